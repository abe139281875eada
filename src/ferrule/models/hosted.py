"""`LM("provider/model")`: a hosted model, which is a wire (`wires`) over the transport (`http`)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from ferrule.errors import ConfigurationError, LMError
from ferrule.models.model import BaseLM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator, Mapping

    from ferrule.models.client import ClientLM
    from ferrule.models.wires.wire import Assembly, Wire
    from ferrule.values.conversation.exchange import Capabilities, Delta, Request, Response
    from ferrule.values.schema.lowering.lower import Target


class LM(BaseLM):
    """A hosted model, or one behind a server of one's own.

    ```python
    LM("openai/gpt-5-mini", temperature=0)
    LM("ollama/qwen3")
    LM("http://localhost:8000/v1", model="my-model")
    LM("openai/gpt-5", wire="openai_responses")
    ```
    The wire is the provider's own; a server at an address is taken to speak OpenAI's chat completions unless `wire` says otherwise:
    `openai_chat`, `openai_responses`, `anthropic` or `gemini`. `strict_tools=True` has the provider keep calls to their schemas, where
    its strict mode takes them (`ferrule lint` tells). Prompts are cached at Anthropic unless `prompt_cache=False`.

    The key comes from the provider's usual environment variable when a request goes out, unless `api_key` is given; it is never shown,
    logged or pickled. Whatever else is given by name (`temperature`, `max_tokens`, ...) goes to the provider; `extra={...}` goes
    unchecked.
    """

    def __init__(
        self,
        model: str,
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
        capabilities: Capabilities | None = None,
        strict_tools: bool = False,
        **settings: Any,
    ) -> None:
        from ferrule.models.http.transport import Timeouts, Transport
        from ferrule.models.profiles import capabilities_of
        from ferrule.models.providers import address, check_settings, choose
        from ferrule.models.wires.strict import target_of

        self._provider, self._model = choose(model, base_url, settings.pop("model", None), wire)
        check_settings(settings)
        self._key = api_key
        self._needs_key = base_url is None
        self.name = f"{self._provider.name}/{self._model}"
        self.capabilities = capabilities or capabilities_of(self._provider, self._model)
        self.settings = settings
        self._target: Target | None = target_of(self._provider.wire) if strict_tools else None
        self._transport = Transport(
            address(self._provider.base_url, self._wire.path(self._model)),
            stream_url=address(self._provider.base_url, self._wire.path(self._model, stream=True)),
            auth=self._wire.headers,
            provider=self._provider.name,
            model=self._model,
            headers=headers,
            timeouts=Timeouts(connect_timeout_s, read_timeout_s, timeout_s),
            max_retries=max_retries,
        )

    @staticmethod
    def from_client(
        client: Any, model: str = "", *, wire: str | None = None, capabilities: Capabilities | None = None, **settings: Any
    ) -> ClientLM:
        """A model behind a client of one's own: `LM.from_client(openai.OpenAI(...), model="gpt-5-mini", temperature=0)`.

        Takes `openai.OpenAI`, `anthropic.Anthropic`, their async and cloud twins, and wrappers with the same `create`. `wire` is
        `openai_responses` for OpenAI's other protocol. Retries and timeouts are the client's business.
        """
        from ferrule.models.client import ClientLM

        return ClientLM(client, model, wire, capabilities, settings)

    @staticmethod
    def from_litellm(model: str, *, capabilities: Capabilities | None = None, **settings: Any) -> ClientLM:
        """A model by litellm's name for it; needs `pip install 'ferrule[litellm]'`."""
        from ferrule.models.client import ClientLM

        try:
            import litellm  # pyright: ignore[reportMissingImports]  an extra
        except ImportError as error:
            msg = "This model needs litellm: pip install 'ferrule[litellm]'."
            raise ConfigurationError(msg) from error
        return ClientLM(litellm, model, None, capabilities, settings)

    def complete(self, request: Request) -> Response:
        """One answer over HTTP."""
        key = self._key_for(request)
        answer = self._transport.post(self._body(request, stream=False), key)
        return self._read(request, answer.body, answer.headers, key)

    async def acomplete(self, request: Request) -> Response:
        """One answer over HTTP; cancelling closes the request."""
        key = self._key_for(request)
        answer = await self._transport.apost(self._body(request, stream=False), key)
        return self._read(request, answer.body, answer.headers, key)

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        """The answer as it comes; leaving the loop closes the request."""
        key = self._key_for(request)
        with self._transport.stream(self._body(request, stream=True), key) as (headers, pieces), self._placed(headers, key):
            reader = self._reader(headers)
            for piece in pieces:
                yield from reader.feed(piece)
            yield from reader.end()
            yield self._finished(request, reader.response())

    async def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        """The answer as it comes; leaving the loop and closing the generator, or cancelling, closes the request."""
        key = self._key_for(request)
        async with self._transport.astream(self._body(request, stream=True), key) as (headers, pieces):
            with self._placed(headers, key):
                reader = self._reader(headers)
                async for piece in pieces:
                    for delta in reader.feed(piece):
                        yield delta
                for delta in reader.end():
                    yield delta
                yield self._finished(request, reader.response())

    def copy(self, **settings: Any) -> Self:
        """The same model, over the same connections, with other settings."""
        from ferrule.models.providers import check_settings

        check_settings(settings)
        return super().copy(**settings)

    def close(self) -> None:
        """Close the connections of sync code. Not needed at the end of a program."""
        self._transport.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop. Not needed under `asyncio.run`."""
        await self._transport.aclose()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_key": None}

    def _key_for(self, request: Request) -> str | None:
        """The key; raises `ConfigurationError` where the request's settings say what a model is made with (a key, say)."""
        from ferrule.models.providers import check_settings, key_for

        check_settings(request.settings)
        return key_for(self._provider, self._key, needed=self._needs_key)

    @property
    def _wire(self) -> Wire:
        from ferrule.models.wires.wire import wire

        return wire(self._provider.wire)

    def _body(self, request: Request, *, stream: bool) -> bytes:
        if self._target is not None:
            from ferrule.models.wires.strict import strictly

            request = strictly(request, self._target)
        return self._wire.render(request, model=self._model, settings=self.settings, stream=stream, dialect=self._provider.dialect)

    def _read(self, request: Request, body: bytes, headers: Mapping[str, str], key: str | None) -> Response:
        with self._placed(headers, key):
            return self._finished(request, self._wire.read(body))

    def _finished(self, request: Request, response: Response) -> Response:
        if self._target is None:
            return response
        from ferrule.models.wires.strict import restored

        return restored(response, request, self._target)

    def _reader(self, headers: Mapping[str, str]) -> Assembly:
        from ferrule.models.http.sse import Whole
        from ferrule.models.wires.wire import assembly

        kind = headers.get("content-type", "")
        return Whole(self._wire.read) if "json" in kind or "html" in kind else assembly(self._provider.wire)

    @contextmanager
    def _placed(self, headers: Mapping[str, str], key: str | None) -> Generator[None]:
        try:
            yield
        except LMError as error:
            from ferrule.models.http.errors import hide, placed, request_id

            hide(error, key)
            asked = self._transport.asked(key)
            said = placed(error, provider=self._provider.name, found_request_id=request_id(headers), secret=key, asked=asked)
            raise said from error.__cause__
