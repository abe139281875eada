"""`LM("provider/model")`: a model behind an HTTP API, reached through a wire and the HTTP transport."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast, overload

from ferrule.errors import ConfigurationError, LMError, UnavailableError
from ferrule.models.model import TurnsLM
from ferrule.models.providers import (
    address,
    capabilities_of,
    check_settings,
    check_spelling,
    choose,
    key_for,
    thought_settings,
)
from ferrule.models.turns import Turns
from ferrule.record import replace
from ferrule.values.conversation.thoughts import split_thoughts
from ferrule.values.display import Concealed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterator, Mapping

    from ferrule.models.client import ClientLM
    from ferrule.models.guided import GuidedLM
    from ferrule.models.wires.wire import Assembly, Wire
    from ferrule.values.conversation.exchange import Capabilities, Delta, Request, Response


class LM(TurnsLM):
    """A model of a provider, or of your own server.

    ```python
    LM("openai/gpt-5-mini", temperature=0)  # or LM(model="openai/gpt-5-mini", ...)
    LM("ollama/qwen3")
    LM("http://localhost:8000/v1", model="my-model")
    LM("openai/gpt-5", wire="openai_responses")
    LM("local:Qwen/Qwen3-0.6B")  # in this process
    ```
    The wire (the protocol) is the provider's own; for a server at an address, OpenAI's chat
    completions. `wire` chooses another: `openai_chat`, `openai_responses`, `anthropic` or `gemini`.
    With `strict_tools=True`, the provider enforces the schemas of tools; a tool that its strict
    mode does not support is sent unchanged, with a warning. Anthropic caches prompts unless
    `prompt_cache=False`.

    `max_concurrency` and `requests_per_minute` limit the requests of this model and its copies
    together, in all threads and event loops of the process; requests over the limit wait in order.

    Each request reads the key from the provider's environment variable, unless `api_key` is given;
    the key is never shown, logged or pickled. All other keywords (`temperature`, `max_tokens`, ...)
    are settings sent to the provider; `extra={...}` is sent unchecked.
    """

    @overload
    def __init__(
        self, model: str, /, *, base_url: str | None = None, wire: str | None = None, api_key: str | None = None,
        headers: Mapping[str, str] | None = None, connect_timeout_s: float | None = 10.0, read_timeout_s: float | None = 300.0,
        timeout_s: float | None = 600.0, max_retries: int = 2, max_concurrency: int | None = None, requests_per_minute: int | None = None,
        capabilities: Capabilities | None = None, strict_tools: bool = False, **settings: Any,
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(
        self, /, *, model: str, base_url: str | None = None, wire: str | None = None, api_key: str | None = None,
        headers: Mapping[str, str] | None = None, connect_timeout_s: float | None = 10.0, read_timeout_s: float | None = 300.0,
        timeout_s: float | None = 600.0, max_retries: int = 2, max_concurrency: int | None = None, requests_per_minute: int | None = None,
        capabilities: Capabilities | None = None, strict_tools: bool = False, **settings: Any,
    ) -> None: ...  # fmt: skip

    def __init__(
        self,
        model: str = "",
        /,
        *,
        base_url: str | None = None,
        wire: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: float | None = 10.0,
        read_timeout_s: float | None = 300.0,
        timeout_s: float | None = 600.0,
        max_retries: int = 2,
        max_concurrency: int | None = None,
        requests_per_minute: int | None = None,
        capabilities: Capabilities | None = None,
        strict_tools: bool = False,
        **settings: Any,
    ) -> None:
        from ferrule.models.wires import wire as wires
        from ferrule.net.pace import Pace
        from ferrule.net.transport import HTTPTransport, Timeouts

        named = settings.pop("model", None)
        self._provider, self._model = choose(
            *((model, base_url, named) if model or named is None else (named, base_url, None)),
            wire,
        )
        check_spelling(settings)
        self._key = Concealed(api_key) if isinstance(api_key, str) else api_key
        self._needs_key = base_url is None
        self.name = f"{self._provider.name}/{self._model}"
        self.capabilities = capabilities or capabilities_of(self._provider, self._model)
        self.settings = settings
        self._turns = Turns()
        self._has_asked_window = False
        self._wire: Wire = wires.wire(self._provider.wire)
        self._is_strict = strict_tools
        self._transport = HTTPTransport(
            address(self._provider.base_url, self._wire.path(self._model)),
            stream_url=address(self._provider.base_url, self._wire.path(self._model, stream=True)),
            provider=self._provider.name,
            model=self._model,
            headers=headers,
            timeouts=Timeouts(connect_timeout_s, read_timeout_s, timeout_s),
            max_retries=max_retries,
            pace=None
            if max_concurrency is None and requests_per_minute is None
            else Pace(max_concurrency, requests_per_minute),
        )

    def __new__(cls, model: str = "", /, **settings: Any) -> Self:
        """Create the model; an `InProcessLM` for `local:` and `llama_cpp:`, which has the methods of every model and no connections."""
        if cls is LM and str(model or settings.get("model", "")).startswith(
            ("local:", "llama_cpp:"),
        ):
            from ferrule.models.local.model import (
                local_lm,
            )  # late: it needs packages that few users have

            return cast("Self", local_lm(settings.pop("model", "") or model, settings))
        return super().__new__(cls)

    __new__.__wrapped__ = __init__  # pyright: ignore[reportFunctionMemberAccess]  its signature, for `help` and editors

    @staticmethod
    def from_client(
        client: Any,
        model: str = "",
        *,
        wire: str | None = None,
        capabilities: Capabilities | None = None,
        **settings: Any,
    ) -> ClientLM:
        """A model behind your own client: `LM.from_client(openai.OpenAI(...), model="gpt-5-mini", temperature=0)`.

        Takes `openai.OpenAI`, `anthropic.Anthropic`, their async and cloud variants, and wrappers
        with the same `create`. `wire` is `openai_responses` for OpenAI's other protocol. The client
        does retries and timeouts.
        """
        from ferrule.models.client import ClientLM

        return ClientLM(client, model, wire, capabilities, settings)

    @staticmethod
    def from_litellm(
        model: str,
        *,
        capabilities: Capabilities | None = None,
        **settings: Any,
    ) -> ClientLM:
        """A model that litellm calls, by its litellm name; needs `pip install 'ferrule[litellm]'`."""
        from ferrule.models.client import ClientLM

        try:
            import litellm  # pyright: ignore[reportMissingImports]  an extra
        except ImportError as error:
            raise ConfigurationError(
                "This model needs litellm: pip install 'ferrule[litellm]'.",
            ) from error
        return ClientLM(litellm, model, None, capabilities, settings)

    def _complete(self, request: Request) -> Response:
        """One answer over HTTP."""
        key, auth, body = self._sent(request)
        found, headers = self._transport.post(body, auth, key)
        return self._read(request, found, headers, key)

    async def _acomplete(self, request: Request) -> Response:
        """One answer over HTTP; cancelling closes the request."""
        key, auth, body = self._sent(request)
        found, headers = await self._transport.apost(body, auth, key)
        return self._read(request, found, headers, key)

    def _stream(self, request: Request) -> Iterator[Delta | Response]:
        """The answer piece by piece; leaving the loop closes the request."""
        key, auth, body = self._sent(request, stream=True)
        with (
            self._transport.stream(body, auth, key, lambda: reader.is_done) as (headers, pieces),
            self._naming_provider(headers, key),
        ):
            reader = self._reader(request, headers)
            with _ending(reader):
                for piece in pieces:
                    yield from reader.feed(piece)
            yield from reader.end()
            yield self._restored(request, reader.response(), headers)

    async def _astream(self, request: Request) -> AsyncGenerator[Delta | Response]:
        """The answer piece by piece; leaving the loop and closing the generator, or cancelling, closes the request."""
        key, auth, body = self._sent(request, stream=True)
        async with self._transport.astream(body, auth, key, lambda: reader.is_done) as (
            headers,
            pieces,
        ):
            with self._naming_provider(headers, key):
                reader = self._reader(request, headers)
                with _ending(reader):
                    async for piece in pieces:
                        for delta in reader.feed(piece):
                            yield delta
                for delta in reader.end():
                    yield delta
                yield self._restored(request, reader.response(), headers)

    def copy(self, **settings: Any) -> Self:
        """The same model, over the same connections, with other settings."""
        check_spelling(settings)
        return super().copy(**settings)

    def constrained(self, *, thought_chars: int = 1_000, partial: bool = False) -> GuidedLM:
        """The same model, with calls that are valid by construction: its server takes a grammar or a schema (llama.cpp, vLLM).

        The first constrained request finds out which form of constraint the server obeys. If it
        ignores them all, this raises `ConstraintError`. `thought_chars` limits the thought before a
        call. With `partial`, keywords that a grammar cannot enforce are only validated in the
        answer.
        """
        from ferrule.models.guided import GuidedLM

        return GuidedLM(self, thought_chars=thought_chars, partial=partial)

    @property
    def url(self) -> str:
        """The address to which requests go."""
        return self._transport.url

    def context_tokens(self) -> int | None:
        """The size of the context window: `capabilities.context_tokens`, else as the server reports it, or None. The server is asked once.

        Requests do not use it, and it raises nothing.
        """
        if self.capabilities.context_tokens is None and not self._has_asked_window:
            from ferrule.models.window import find_window

            self._has_asked_window = True
            with suppress(ConfigurationError):  # no key
                auth = self._wire.headers(key_for(self._provider, self._key, needed=False))
                found = find_window(
                    self._provider.base_url,
                    self._model,
                    lambda url: self._transport.fetch(url, auth),
                )
                self.capabilities = replace(self.capabilities, context_tokens=found)
        return self.capabilities.context_tokens

    async def acontext_tokens(self) -> int | None:
        """`context_tokens` without blocking the loop."""
        from ferrule.concurrency.offload import in_worker_thread

        return await in_worker_thread(self.context_tokens)

    def close(self) -> None:
        """Close the connections of sync code. Not needed at the end of a program."""
        self._transport.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop. Not needed under `asyncio.run`."""
        await self._transport.aclose()

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)  # with the key, which the state for pickles lacks
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_key": None, "_wire": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from ferrule.models.wires.wire import wire

        self.__dict__.update(state, _wire=wire(state["_provider"].wire))

    def _sent(
        self,
        request: Request,
        *,
        stream: bool = False,
    ) -> tuple[str | None, Mapping[str, str], bytes]:
        """The key, the headers that carry it, and the body of a request to send.

        Raises `ConfigurationError` if the request's settings hold an argument of `LM`, such as a
        key.
        """
        if self._is_strict and request.tools:
            from ferrule.models.wires.strict_tools import strictly

            request = strictly(request, self._provider.wire)
        check_settings(request.settings)
        key = key_for(self._provider, self._key, needed=self._needs_key)
        auth = self._wire.headers(key)
        body = self._wire.render(
            request,
            model=self._model,
            settings=self.settings,
            stream=stream,
            dialect=self._provider.dialect,
        )
        return key, auth, body

    @property
    def wire(self) -> str:
        """The name of the protocol that the model speaks."""
        return self._provider.wire

    def thought_settings(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Settings for a request that make this model return its thoughts with its text; None if it cannot think, or is set not to."""
        return thought_settings(
            self._provider.wire,
            self._provider.name,
            {**self.settings, **settings},
        )

    def _read(
        self,
        request: Request,
        body: bytes,
        headers: Mapping[str, str],
        key: str | None,
    ) -> Response:
        from ferrule.models.wires.wire import (
            read_body,
        )  # late, as in `_reader`: programs without a model server name `LM`, too

        with self._naming_provider(headers, key):
            response = read_body(self._wire, self._provider.wire, body)
            return self._restored(
                request,
                split_thoughts(response, request) if response.text else response,
                headers,
            )

    def _restored(
        self,
        request: Request,
        response: Response,
        headers: Mapping[str, str],
    ) -> Response:
        """The answer with the cost from a gateway's header, and with strict calls converted back to the tools' own schemas."""
        if response.cost is None and "x-litellm-response-cost" in headers:
            from ferrule.net.errors import cost_in

            response = replace(response, cost=cost_in(headers))
        if not self._is_strict or not response.tool_calls:
            return response
        from ferrule.models.wires.strict_tools import restored_calls

        return replace(
            response,
            tool_calls=restored_calls(response.tool_calls, request.tools, self._provider.wire),
        )

    def _reader(self, request: Request, headers: Mapping[str, str]) -> Assembly:
        from ferrule.models.wires.wire import ThoughtsApart, UnlabelledAnswer, assembly, read_body
        from ferrule.net.sse import WholeAnswer

        kind = headers.get("content-type", "")
        whole = ThoughtsApart(
            WholeAnswer(partial(read_body, self._wire, self._provider.wire)),
            request,
        )
        if "json" in kind or "html" in kind:
            return whole
        streamed = assembly(self._provider.wire, request)
        return streamed if "event-stream" in kind else UnlabelledAnswer(whole, streamed)

    @contextmanager
    def _naming_provider(self, headers: Mapping[str, str], key: str | None) -> Generator[None]:
        try:
            yield
        except LMError as error:
            from ferrule.net.errors import redact_error, request_id, with_provider

            redact_error(error, key)
            asked = self._transport.asked(key)
            named = with_provider(
                error,
                provider=self._provider.name,
                found_request_id=request_id(headers),
                secret=key,
                asked=asked,
            )
            raise named from error.__cause__


@contextmanager
def _ending(reader: Assembly) -> Generator[None]:
    """Ignore a lost connection once the server has sent the end of its answer: nothing is missing then."""
    try:
        yield
    except UnavailableError:
        if not reader.is_done:
            raise
