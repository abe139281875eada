"""`LM("provider/model")`: a model behind an HTTP API."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from msgspec.structs import replace

from ferrule.errors import (
    BadRequestError,
    ConfigurationError,
    LMError,
    MissingKeyError,
    UnavailableError,
    check_flag,
    importing,
)
from ferrule.models.learning import Learned, LearningLM
from ferrule.models.model import check_text_calls
from ferrule.models.providers import (
    address,
    capabilities_of,
    choose,
    of_wire,
    thought_settings,
)
from ferrule.models.setting_names import check_settings, check_spelling, check_values
from ferrule.models.wires.payload import count_of, list_of, mapping
from ferrule.models.wires.streamed import (
    ThoughtsApart,
    UnlabelledAnswer,
    assembly,
    is_event_stream,
    read_stream,
)
from ferrule.models.wires.wire import Rendered, rendered
from ferrule.models.wires.wire import wire as wire_of
from ferrule.net.errors import (
    cost_in,
    redact_error,
    redact_key,
    request_id,
    retry_after_s,
    with_provider,
)
from ferrule.net.pace import Pace
from ferrule.net.sse import WholeAnswer
from ferrule.net.transport import HTTPTransport, Timeouts
from ferrule.values.conversation.message import Author
from ferrule.values.conversation.thoughts import split_thoughts
from ferrule.values.display import Concealed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
    from contextlib import AbstractContextManager

    from ferrule.models.batches import BatchAPI
    from ferrule.models.client import ClientLM
    from ferrule.models.guided import GuidedLM
    from ferrule.models.model import TextCalls
    from ferrule.models.providers import Provider
    from ferrule.models.wires.wire import Assembly
    from ferrule.values.conversation.exchange import Capabilities, Delta, Request, Response


class LM(LearningLM):
    """A model of a provider, or of your own server.

    ```python
    LM("openai/gpt-5-mini", temperature=0)  # or LM(model="openai/gpt-5-mini", ...)
    LM("ollama/qwen3")
    LM("http://localhost:8000/v1", model="my-model")
    LM("openai/gpt-5", wire="openai_responses")
    LM("local:Qwen/Qwen3-0.6B")  # in this process
    LM("needle")  # the embedded model, offline
    ```
    The wire (the protocol) is the provider's own; for a server at an address, OpenAI's chat
    completions. `wire` chooses another: `openai_chat`, `openai_responses`, `anthropic` or `gemini`.
    With `strict_tools=True`, the provider enforces the schemas of tools; a tool that its strict
    mode does not support is sent unchanged, with a warning. Anthropic caches prompts unless
    `prompt_cache=False`.

    `max_concurrency` and `requests_per_minute` limit the requests of this model and its copies
    together, in all threads and event loops of the process; requests over the limit wait in order.

    `text_calls` says whether the text of answers is read for tool calls, which some servers do not
    parse: `"never"`; `"rescue"`, until the model has made one structured call in the run;
    `"always"`. By default, a hosted provider that is known by its name is not read when the request
    declares tools, and any other server is read as with `"rescue"`.

    Reasoning of earlier answers that only its author can read (encrypted, signed) goes back to the
    host, account and model that wrote it, and `reasoning_content` to servers that sent it. With
    `send_reasoning=True`, every server gets all of it; with False, no server gets any.

    Each request reads the key from the provider's environment variable, unless `api_key` is given;
    the key is never shown, logged or pickled. All other keywords (`temperature`, `max_tokens`, ...)
    are settings sent to the provider; `extra={...}` is sent unchecked.
    """

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
        text_calls: TextCalls | None = None,
        send_reasoning: bool | None = None,
        **settings: Any,
    ) -> None:
        # `model=` names the model at an address, or stands in for the first argument.
        model_at_url = settings.pop("model", None)
        if not model and model_at_url is not None:
            model, model_at_url = model_at_url, None
        self._provider, self._model = choose(model, base_url, model_at_url, wire)
        check_spelling(settings)
        check_values(settings)
        if isinstance(api_key, str):
            self._key = Concealed(api_key)
        else:
            self._key = api_key
        self._needs_key = base_url is None
        self.name = f"{self._provider.name}/{self._model}"
        if send_reasoning is not None:
            check_flag("send_reasoning", send_reasoning)
        if capabilities is None:
            self.capabilities = capabilities_of(self._provider, self._model)
        else:
            self.capabilities = of_wire(capabilities, self._provider)
        self.settings = settings
        self._learned = Learned(self._provider.dialect, send_reasoning=send_reasoning)
        self._has_asked_window = False
        self._wire = wire_of(self._provider.wire)
        check_flag("strict_tools", strict_tools)
        self._is_strict = strict_tools
        self.text_calls = check_text_calls(text_calls)
        self.is_hosted = self._provider.is_hosted
        pace = None
        if max_concurrency is not None or requests_per_minute is not None:
            pace = Pace(max_concurrency, requests_per_minute)
        self._transport = HTTPTransport(
            address(self._provider.base_url, self._wire.path(self._model)),
            stream_url=address(self._provider.base_url, self._wire.path(self._model, stream=True)),
            provider=self._provider.name,
            model=self._model,
            headers=headers,
            timeouts=Timeouts(connect_timeout_s, read_timeout_s, timeout_s),
            max_retries=max_retries,
            pace=pace,
        )

    def __new__(cls, model: str = "", /, **settings: Any) -> Self:
        """Create the model.

        For `local:` and `llama_cpp:` it is an `InProcessLM`, for `needle` a `NeedleLM`: they have
        the methods of every model and no connections.
        """
        name = str(model or settings.get("model", ""))
        if cls is not LM:
            return super().__new__(cls)
        kind, _, _ = name.partition(":")
        if kind == "needle":
            from ferrule.models.local.backends.needle import needle_lm  # late: few users have it

            settings.pop("model", None)
            return cast("Self", needle_lm(name, settings))
        if name.startswith(("local:", "llama_cpp:")):
            from ferrule.models.local.model import local_lm  # late: few users have its packages

            settings.pop("model", None)
            return cast("Self", local_lm(name, settings))
        return super().__new__(cls)

    # The signature that `help` and editors show: they look at `__new__` first.
    __new__.__wrapped__ = __init__  # pyright: ignore[reportFunctionMemberAccess]

    @staticmethod
    def from_client(
        client: Any,
        model: str = "",
        *,
        wire: str | None = None,
        capabilities: Capabilities | None = None,
        text_calls: TextCalls | None = None,
        send_reasoning: bool | None = None,
        **settings: Any,
    ) -> ClientLM:
        """A model behind your own client.

        ```text
        LM.from_client(openai.OpenAI(...), model="gpt-5-mini", temperature=0)
        ```
        Takes `openai.OpenAI`, `anthropic.Anthropic`, their async and cloud variants, and wrappers
        with the same `create`. `wire` is `openai_responses` for OpenAI's other protocol. The client
        does retries and timeouts. `text_calls` and `send_reasoning` are as for `LM`; a client whose
        address is not that of a known provider is a server of your own.
        """
        from ferrule.models.client import ClientLM

        return ClientLM(
            client,
            model,
            wire,
            capabilities,
            settings,
            text_calls=text_calls,
            send_reasoning=send_reasoning,
        )

    @staticmethod
    def from_litellm(
        model: str,
        *,
        capabilities: Capabilities | None = None,
        text_calls: TextCalls | None = None,
        send_reasoning: bool | None = None,
        **settings: Any,
    ) -> ClientLM:
        """A model that litellm calls, by its litellm name.

        It needs `pip install 'ferrule[litellm]'`. `text_calls` and `send_reasoning` are as for
        `LM`.
        """
        from ferrule.models.client import ClientLM

        with importing("This model needs litellm: pip install 'ferrule[litellm]'."):
            import litellm  # pyright: ignore[reportMissingImports]  an extra
        return ClientLM(
            litellm,
            model,
            None,
            capabilities,
            settings,
            text_calls=text_calls,
            send_reasoning=send_reasoning,
        )

    # -- requests

    def _complete(self, request: Request) -> Response:
        sent = self._prepare(request)
        return self._transport.post(sent.body, sent.auth, sent.key, self._read(request, sent.key))

    async def _acomplete(self, request: Request) -> Response:
        sent = self._prepare(request)
        read = self._read(request, sent.key)
        return await self._transport.apost(sent.body, sent.auth, sent.key, read)

    def _stream(self, request: Request) -> Iterator[Delta | Response]:
        sent = self._prepare(request, stream=True)
        receive = self._receive(request, sent.key)
        with self._transport.stream(sent.body, sent.auth, sent.key, receive) as (answer, pieces):
            yield from answer.beginning()
            with answer.receiving():
                for piece in pieces:
                    yield from answer.reader.feed(piece)
            yield from answer.rest()
            yield answer.response()

    async def _astream(self, request: Request) -> AsyncGenerator[Delta | Response]:
        sent = self._prepare(request, stream=True)
        receive = self._receive(request, sent.key)
        async with self._transport.astream(sent.body, sent.auth, sent.key, receive) as (
            answer,
            pieces,
        ):
            for delta in answer.beginning():
                yield delta
            with answer.receiving():
                async for piece in pieces:
                    for delta in answer.reader.feed(piece):
                        yield delta
            for delta in answer.rest():
                yield delta
            yield answer.response()

    def _prepare(self, request: Request, *, stream: bool = False) -> _Prepared:
        """The body of a request, and its key.

        Raises `ConfigurationError` if the request's settings hold an argument of `LM`, such as a
        key.
        """
        if request.settings:
            check_settings(request.settings)
            check_values(request.settings)
        key = key_for(self._provider, self._key, needed=self._needs_key)
        body, needed = self._rendered(request, stream=stream)
        return _Prepared(body, {**self._wire.headers(key), **needed}, key, needed)

    def _rendered(self, request: Request, *, stream: bool = False) -> Rendered:
        if self._is_strict and request.tools:
            from ferrule.models.wires.strict_tools import strictly  # late: few models are strict

            request = strictly(request, self._provider.wire)
        return rendered(
            self._wire,
            request,
            model=self._model,
            settings=self.settings,
            stream=stream,
            dialect=self._learned.dialect,
        )

    def author(self) -> Author | None:
        """Who writes the answers: the model, at its host, with the key of the environment."""
        parts = urlsplit(self._transport.url)
        if self._provider.has_passing_keys:
            account: str | None = parts.path  # it names the project
        else:
            account = key_for(self._provider, self._key, needed=False)
        return Author.of(parts.netloc, account, self._model)

    # -- batches of the provider

    def batch_api(self) -> BatchAPI | None:
        """The provider's batch API for this model; None if it has none that ferrule knows."""
        from ferrule.models.batches import AnthropicBatches, OpenAIBatches  # late: few send batches

        apis = {
            "openai": (OpenAIBatches, {"openai_chat", "openai_responses"}),
            "anthropic": (AnthropicBatches, {"anthropic"}),
        }
        if not self._provider.takes_batches:
            return None
        api, wires = apis[self._provider.name]
        if self.wire not in wires:
            return None

        def authorize() -> tuple[Mapping[str, str], str | None]:
            key = key_for(self._provider, self._key, needed=self._needs_key)
            return self._wire.headers(key), key

        return api(self._transport, self._wire.path(self._model), authorize)

    def rendered_for_batch(self, request: Request) -> Rendered:
        """A request in the form that the server accepts, for a batch."""
        sent = self._prepare(self._learned.accepted(request, self))
        return Rendered(sent.body, dict(sent.needed))

    def answer_in_batch(self, request: Request, body: bytes) -> Response:
        """The answer to a request in a body of a batch. Raises `LMError` as `complete` does."""
        sent = self._learned.accepted(request, self)
        return self._signed(self._read(sent, None)(body, {}))

    def learns_from(self, error: BadRequestError, request: Request) -> bool:
        """Whether a request that was refused in a batch may now succeed, in another form."""
        return self._learned.learn(error, request, self._learned.accepted(request, self), self)

    # -- the request for a person

    def curl(self, request: Request | str) -> str:
        """A request, or a question, as a command line of `curl`, which sends it.

        It holds no key: the key, the headers that you added, and values in the address's query are
        named as variables of the shell.
        """
        if isinstance(request, str):
            request = self._request_of(request, None, {})
        request = self._learned.accepted(request, self)
        body, needed = self._rendered(request)
        variable = self._provider.key_variable
        if variable is None and self._key is not None:
            variable = "API_KEY"
        key = None
        if variable is not None:
            key = f"${variable}"
        headers = {**self._wire.headers(key), **needed}
        sent = self._transport.all_headers(headers)
        command = curl_of(self.url, sent, headers, body.decode("utf-8", "replace"))
        return redact_key(command, key_for(self._provider, self._key, needed=False))

    # -- answers

    def _read(
        self, request: Request, key: str | None
    ) -> Callable[[bytes, Mapping[str, str]], Response]:
        """A function that reads the answer to a request."""

        def read(body: bytes, headers: Mapping[str, str]) -> Response:
            with self._naming_provider(headers, key):
                response = self._read_body(body)
                if response.text:
                    response = split_thoughts(response, request)
                return self._finished(request, response, headers)

        return read

    def _receive(
        self, request: Request, key: str | None
    ) -> Callable[[Mapping[str, str]], _StreamedAnswer]:
        """A function that makes the receiver of the streamed answer to a request."""

        def receive(headers: Mapping[str, str]) -> _StreamedAnswer:
            return _StreamedAnswer(
                self._reader(request, headers),
                lambda: self._naming_provider(headers, key),
                lambda response: self._finished(request, response, headers),
            )

        return receive

    def _read_body(self, body: bytes) -> Response:
        """The answer in a body. Some gateways stream unasked, or label a stream as JSON."""
        try:
            return self._wire.read(body)
        except BadRequestError:
            if not is_event_stream(body):
                raise
        return read_stream(self._provider.wire, body)

    def _finished(
        self, request: Request, response: Response, headers: Mapping[str, str]
    ) -> Response:
        """The answer with the cost from a gateway's header.

        Strict calls are converted back to the tools' own schemas.
        """
        if response.cost is None and "x-litellm-response-cost" in headers:
            response = replace(response, cost=cost_in(headers))
        if not self._is_strict or not response.tool_calls:
            return response
        from ferrule.models.wires.strict_tools import restored_calls

        calls = restored_calls(response.tool_calls, request.tools, self._provider.wire)
        return replace(response, tool_calls=calls)

    def _reader(self, request: Request, headers: Mapping[str, str]) -> Assembly:
        """The reader of a streamed answer, which some servers send whole."""
        content_type = headers.get("content-type", "")
        whole = ThoughtsApart(WholeAnswer(self._read_body), request)
        if "json" in content_type or "html" in content_type:
            return whole
        streamed = assembly(self._provider.wire, request)
        if "event-stream" in content_type:
            return streamed
        return UnlabelledAnswer(whole, streamed)

    @contextmanager
    def _naming_provider(self, headers: Mapping[str, str], key: str | None) -> Generator[None]:
        """Name the provider, the request and the address in errors, and remove the key."""
        try:
            yield
        except LMError as error:
            redact_error(error, key)
            if error.retry_after_s is None:
                error.retry_after_s = retry_after_s(headers)
            named = with_provider(
                error,
                provider=self._provider.name,
                response_request_id=request_id(headers),
                secret=key,
                asked=self._transport.asked(key),
            )
            raise named from error.__cause__

    # -- what is known of the model

    @property
    def url(self) -> str:
        """The address to which requests go."""
        return self._transport.url

    @property
    def wire(self) -> str:
        """The name of the protocol that the model speaks."""
        return self._provider.wire

    def thought_settings(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Settings for a request that make this model return its thoughts with its text.

        None if it cannot think, or is set not to.
        """
        settings = {**self.settings, **settings}
        return thought_settings(self._provider.wire, self._provider.name, settings)

    def context_tokens(self) -> int | None:
        """The size of the context window, or None if it is unknown.

        `capabilities.context_tokens`, else as the server reports it. The server is asked once.
        Requests do not use it, and it raises nothing.
        """
        if self.capabilities.context_tokens is None and not self._has_asked_window:
            self._has_asked_window = True
            with suppress(ConfigurationError):  # no key
                auth = self._wire.headers(key_for(self._provider, self._key, needed=False))
                window = find_window(
                    self._provider.base_url,
                    self._model,
                    lambda url: self._transport.fetch(url, auth),
                )
                self.capabilities = replace(self.capabilities, context_tokens=window)
        return self.capabilities.context_tokens

    async def acontext_tokens(self) -> int | None:
        """`context_tokens` without blocking the loop."""
        from ferrule.concurrency.offload import in_worker_thread

        return await in_worker_thread(self.context_tokens)

    # -- copies

    def copy(self, **settings: Any) -> Self:
        """The same model, over the same connections, with other settings."""
        check_spelling(settings)
        check_values(settings)
        return super().copy(**settings)

    def constrained(self, *, thought_chars: int = 1_000, partial: bool = False) -> GuidedLM:
        """The same model, with calls that are valid by construction.

        Its server takes a grammar or a schema (llama.cpp, vLLM). The first constrained request
        finds out which form of constraint the server obeys. If it ignores them all, this raises
        `ConstraintError`. `thought_chars` limits the thought before a call. With `partial`,
        keywords that a grammar cannot enforce are only validated in the answer.
        """
        from ferrule.models.guided import GuidedLM

        return GuidedLM(self, thought_chars=thought_chars, partial=partial)

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
        self.__dict__.update(state, _wire=wire_of(state["_provider"].wire))


_PLAIN_HEADERS = frozenset({"content-type"})
_NOT_SHOWN = frozenset({"accept-encoding", "user-agent"})
_PLAIN_PARAMETERS = frozenset({"alt", "api-version"})


def curl_of(url: str, headers: Mapping[str, str], ours: Mapping[str, str], body: str) -> str:
    """A request as a command line of `curl`. Whatever could be a key is a variable of the shell."""
    lines = [f"curl {_in_shell(_address_without_keys(url))}"]
    for name, value in headers.items():
        if name in _NOT_SHOWN:
            continue
        shown_value = value
        if name not in _PLAIN_HEADERS and ours.get(name) != value:
            shown_value = _variable(name)
        lines.append(f"-H {_in_shell(f'{name}: {shown_value}')}")
    lines.append(f"--data-raw {shlex.quote(body)}")
    return " \\\n  ".join(lines)


def _address_without_keys(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    query: list[str] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        shown_value = value
        if name not in _PLAIN_PARAMETERS:
            shown_value = _variable(name)
        query.append(f"{name}={shown_value}")
    return urlunsplit(parts._replace(netloc=host, query="&".join(query)))


def _variable(name: str) -> str:
    return "$" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def _in_shell(text: str) -> str:
    """A text in double quotes, in which the shell replaces our variables and nothing else."""
    escaped = re.sub(r'([\\"`])', r"\\\1", text)
    return f'"{escaped}"'


class _Prepared(NamedTuple):
    """A request as it is sent."""

    body: bytes
    auth: Mapping[str, str]
    """The headers that carry the key, and `needed`."""
    key: str | None
    needed: Mapping[str, str]
    """The headers that the body needs."""


class _StreamedAnswer:
    """A streamed answer: its beginning, received in an attempt that may be repeated; then the rest.

    `naming` is a block that names the provider in errors; `finished` completes the whole answer.
    """

    def __init__(
        self,
        reader: Assembly,
        naming: Callable[[], AbstractContextManager[None]],
        finished: Callable[[Response], Response],
    ) -> None:
        self.reader = reader
        self._beginning: Iterator[Delta] = iter(())
        self._naming = naming
        self._finished = finished
        self._has_ended = False
        self._response: Response | None = None

    @property
    def is_done(self) -> bool:
        """See `Receiver`."""
        return self.reader.is_done

    def take(self, piece: bytes) -> bool:
        """See `Receiver`."""
        with self._naming():
            return self._begin(self.reader.feed(piece)) or self.reader.is_done

    def end(self) -> None:
        """See `Receiver`. A whole answer is read here, and one without any piece."""
        self._has_ended = True
        with self._naming():
            if not self._begin(self.reader.end()):
                self._response = self.reader.response()

    def _begin(self, deltas: Iterator[Delta]) -> bool:
        """Read up to the first piece, so that an error before it is raised. Is there one?"""
        for delta in deltas:
            self._beginning = chain([delta], deltas)
            return True
        return False

    def beginning(self) -> Iterator[Delta]:
        """The pieces in the bytes that were taken."""
        with self._naming():
            yield from self._beginning

    @contextmanager
    def receiving(self) -> Generator[None]:
        """Ignore a lost connection once the server has sent the end of its answer."""
        with self._naming():
            try:
                yield
            except UnavailableError:
                if not self.reader.is_done:
                    raise

    def rest(self) -> Iterator[Delta]:
        """The pieces that the end of the body completes."""
        if not self._has_ended:
            with self._naming():
                yield from self.reader.end()

    def response(self) -> Response:
        """The whole answer."""
        with self._naming():
            return self._finished(self._response or self.reader.response())


# -- keys


def key_for(provider: Provider, key: str | None, *, needed: bool) -> str | None:
    """The key of a request: the argument (`""` for none), or the environment variable.

    Errors name the variable, never its value.
    """
    source = "`api_key`"
    if key is None:
        variable = _variable_of_key(provider)
        if variable is None:
            if needed and provider.key_variable:
                raise MissingKeyError(
                    f"No key for `{provider.name}`: set the environment variable "
                    f"{provider.key_variable}, or give `api_key=...`."
                )
            return None
        source, key = f"The environment variable {variable}", os.environ[variable]
    if not isinstance(key, str):
        raise ConfigurationError(
            f"`api_key` is text, found a value of type `{type(key).__name__}`."
        )
    key = key.strip()  # a key read from a file ends with a newline
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError(
            f"{source} holds characters that no key has (spaces, line ends, or other than ASCII)."
        )
    return key or None


def _variable_of_key(provider: Provider) -> str | None:
    """The first of the provider's environment variables that is set."""
    for name in (provider.key_variable, *provider.other_variables):
        if name and os.environ.get(name, "").strip():
            return name
    return None


# -- the size of the context window

_WINDOW_NAMES = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "n_ctx",
    "max_input_tokens",
    "inputTokenLimit",
)
"""The field's names.

At vLLM and SGLang, OpenRouter, Groq, Mistral and LM Studio, llama.cpp, Anthropic and Gemini.
"""


def find_window(base_url: str, model: str, fetch: Callable[[str], object]) -> int | None:
    """The context window in tokens, as its server reports it, or None.

    `fetch` returns the JSON at an address, or None. Asks for the list of models, then for
    llama.cpp's `/props`, which is outside `/v1`.
    """
    listing = mapping(fetch(address(base_url, "/models")))
    for entry in _entries_of(model, listing):
        for fields in (mapping(entry.get("meta")), entry):
            for name in _WINDOW_NAMES:
                window = count_of(fields.get(name))
                if window:
                    return window
    parts = urlsplit(base_url)
    root = parts.path.rstrip("/").removesuffix("/v1")
    properties = mapping(fetch(urlunsplit(parts._replace(path=f"{root}/props"))))
    defaults = mapping(properties.get("default_generation_settings"))
    return count_of(defaults.get("n_ctx")) or None


def _entries_of(model: str, listing: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of a model in a server's list."""
    models = list_of(listing.get("data")) or list_of(listing.get("models"))
    entries = [mapping(entry) for entry in models]
    matching: list[dict[str, Any]] = []
    for entry in entries:
        name = entry.get("name")
        if model in (entry.get("id"), name, str(name).removeprefix("models/")):
            matching.append(entry)
    if not matching and len(entries) == 1:
        return entries  # a server of one model answers to any name
    return matching
