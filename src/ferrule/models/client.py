"""Models behind the user's own client, by `LM.from_client` and `LM.from_litellm`.

The wire renders the request, the client's public `create` sends it, and the wire reads the answer,
an object or a dict. This module imports no client.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, ref

from msgspec.structs import replace

from ferrule.concurrency.offload import in_worker_thread, run_async
from ferrule.errors import BadRequestError, ConfigurationError, LMError, UnavailableError, shown
from ferrule.models.learning import Learned, LearningLM
from ferrule.models.model import answer_of, as_stream, check_text_calls
from ferrule.models.providers import (
    PROVIDERS,
    Provider,
    capabilities_of,
    is_hosted_at,
    of_wire,
)
from ferrule.models.setting_names import check_finite, check_settings
from ferrule.models.wires.any_answer import body_of, is_answer
from ferrule.models.wires.streamed import assembly
from ferrule.models.wires.wire import rendered, wire
from ferrule.net.errors import payload_error, status_error, with_provider
from ferrule.net.sse import event
from ferrule.net.transport import joined_headers
from ferrule.values.conversation.message import Author
from ferrule.values.conversation.thoughts import split_thoughts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping

    from ferrule.models.model import TextCalls
    from ferrule.models.wires.wire import Assembly
    from ferrule.values.conversation.exchange import Capabilities, Delta, Request, Response


class _Interface(NamedTuple):
    """The path to `create` in one kind of client, and the wire it speaks."""

    package: str
    wire: str
    path: tuple[str, ...]
    """The attributes from the client to its `create`."""
    async_path: tuple[str, ...] = ()
    """The attributes from the client to its async `create`, if one client has both."""


_SDKS = (
    _Interface("openai", "openai_chat", ("chat", "completions", "create")),
    _Interface("openai", "openai_responses", ("responses", "create")),
    _Interface("anthropic", "anthropic", ("messages", "create")),
)
_LITELLM = _Interface("litellm", "openai_chat", ("completion",), ("acompletion",))
_FIRST_ERROR = 400
"""The lowest HTTP status of an error."""


class ClientLM(LearningLM):
    """A model behind the user's own client. Made by `LM.from_client` and `LM.from_litellm`.

    An async client of an SDK serves only the event loop of its first request; another loop raises
    `ConfigurationError`.
    """

    def __init__(
        self,
        client: Any,
        model: str,
        wire_name: str | None,
        capabilities: Capabilities | None,
        settings: Mapping[str, Any],
        *,
        text_calls: TextCalls | None = None,
        send_reasoning: bool | None = None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise ConfigurationError(
                'Which model? Name it as the client does: LM.from_client(client, model="..."), '
                f"found {shown(model)}."
            )
        interface = _interface_of(client, wire_name)
        self._client, self._interface = client, interface
        self._package = interface.package
        self._check(settings)
        self._loop = _BoundLoop.of(client)
        self._wire_name = interface.wire
        provider = PROVIDERS.get(interface.package) or Provider(interface.package, "")
        provider = replace(provider, wire=interface.wire)
        self._model = model
        self.name = f"{interface.package}/{model}"
        if capabilities is None:
            self.capabilities = capabilities_of(provider, model)
        else:
            self.capabilities = of_wire(capabilities, provider)
        self.settings = settings
        self.text_calls = check_text_calls(text_calls)
        self.is_hosted = _is_hosted(client, interface.package, model)
        self._learned = Learned(provider.dialect, send_reasoning=send_reasoning)

    def author(self) -> Author | None:
        """Who writes the answers: the model, at the client's address, with the client's key."""
        url = getattr(self._client, "base_url", None)
        host = self._package
        if url is not None:
            host = urlsplit(str(url)).netloc or host
        keys = (
            getattr(self._client, "api_key", None),
            getattr(self._client, "auth_token", None),
            self.settings.get("api_key"),  # litellm's
        )
        key = next((key for key in keys if isinstance(key, str)), None)
        return Author.of(host, key, self._model)

    # `create` is looked up at each call: tracers and tests replace it.

    @property
    def _create(self) -> Any:
        return _attribute(self._client, self._interface.path)

    @property
    def _acreate(self) -> Any:
        return _attribute(self._client, self._interface.async_path or self._interface.path)

    def _complete(self, request: Request) -> Response:
        """One answer through the client; an async client runs on the background loop."""
        create = self._create
        if _is_async(create):
            return run_async(self._acomplete(request))
        with self._translated():
            return self._read(request, create(**self._arguments(request, create)))

    async def _acomplete(self, request: Request) -> Response:
        """One answer; a sync client runs in a worker thread."""
        create = self._acreate
        if not _is_async(create):
            return await in_worker_thread(lambda: self._complete(request))
        self._loop.check()
        with self._translated():
            return self._read(request, await create(**self._arguments(request, create)))

    def _stream(self, request: Request) -> Iterator[Delta | Response]:
        """The answer piece by piece; with an async client, whole."""
        create = self._create
        if _is_async(create):
            yield from as_stream(answer_of(self, self._complete(request)))
            return
        with self._translated():
            chunks = create(**self._arguments(request, create, stream=True))
            if not hasattr(chunks, "__next__") and _is_whole(chunks, "__iter__"):
                yield from as_stream(self._read(request, chunks))
                return
            reader = assembly(self._wire_name, request)
            try:
                for chunk in chunks:
                    yield from reader.feed(event(_json_of(chunk)))
            finally:
                close = getattr(chunks, "close", None)
                if close is not None:
                    close()
            yield from _rest(reader)

    async def _astream(self, request: Request) -> AsyncGenerator[Delta | Response]:
        """The answer piece by piece; with a sync client, whole."""
        create = self._acreate
        if not _is_async(create):
            for item in as_stream(answer_of(self, await self._acomplete(request))):
                yield item
            return
        self._loop.check()
        with self._translated():
            chunks = await create(**self._arguments(request, create, stream=True))
            if not hasattr(chunks, "__anext__") and _is_whole(chunks, "__aiter__"):
                for item in as_stream(self._read(request, chunks)):
                    yield item
                return
            reader = assembly(self._wire_name, request)
            try:
                async for chunk in chunks:
                    for delta in reader.feed(event(_json_of(chunk))):
                        yield delta
            finally:
                close = getattr(chunks, "close", None) or getattr(chunks, "aclose", None)
                if close is not None:
                    await close()
            for item in _rest(reader):
                yield item

    def copy(self, **settings: Any) -> Self:
        """The same model, behind the same client, with other settings."""
        self._check(settings)
        return super().copy(**settings)

    def _read(self, request: Request, answer: Any) -> Response:
        return split_thoughts(wire(self._wire_name).read(_json_of(answer)), request)

    def _check(self, settings: Mapping[str, Any]) -> None:
        check_finite(settings)
        if self._package != "litellm":  # it has its own settings, such as an address and retries
            check_settings(settings)

    def _arguments(
        self, request: Request, create: Callable[..., Any], *, stream: bool = False
    ) -> dict[str, Any]:
        """The request as keyword arguments of the client.

        Fields that the client does not declare go into its `extra_body`, and the headers that the
        request needs into `extra_headers`.
        """
        self._check(request.settings)
        content, headers = rendered(
            wire(self._wire_name),
            request,
            model=self._model,
            settings=self.settings,
            stream=stream,
            dialect=self._learned.dialect,
        )
        body: dict[str, Any] = json.loads(content)
        declared = inspect.signature(create).parameters
        arguments = body
        if "extra_body" in declared:
            arguments = {name: value for name, value in body.items() if name in declared}
            others = {name: value for name, value in body.items() if name not in declared}
            if others:
                arguments["extra_body"] = others
        if headers:
            # The client would replace its own list of betas by ours.
            own: Mapping[str, str] = getattr(self._client, "default_headers", None) or {}
            same = {name.lower(): own[name] for name in own if name.lower() in headers}
            arguments["extra_headers"] = joined_headers(headers, same)
        return arguments

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Raise the client's errors as `LMError`s."""
        try:
            yield
        except _errors_of_sdks() as error:
            raise self._translation(error) from error

    def _translation(self, error: Any) -> LMError:
        status, body = getattr(error, "status_code", None), getattr(error, "body", None)
        has_status = isinstance(status, int)
        if isinstance(body, dict) and not (has_status and status >= _FIRST_ERROR):
            # An event of a stream whose status is 200.
            return with_provider(payload_error({"error": body, **body}), provider=self._package)
        if not has_status:
            return UnavailableError(
                f"the client failed: {type(error).__name__}: {str(error).rstrip('.')}. "
                "Is the server running? Its address, timeouts and retries are set where the "
                f"client is made. Asked `{self._model}`.",
                provider=self._package,
            )
        headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
        translated, _ = status_error(status, headers, _body_of(error), provider=self._package)
        return translated


class _BoundLoop:
    """The event loop that a client is bound to, by its first request.

    On another loop its connections break or hang.
    """

    _known: ClassVar[WeakKeyDictionary[Any, _BoundLoop]] = WeakKeyDictionary()

    def __init__(self, *, is_bound: bool = True) -> None:
        self._is_bound = is_bound
        self._loop: Callable[[], asyncio.AbstractEventLoop | None] | None = None

    @classmethod
    def of(cls, client: Any) -> _BoundLoop:
        """The `_BoundLoop` of an SDK's client, shared by all models behind it.

        Other clients are not bound.
        """
        if not _packages(client) & {"openai", "anthropic"}:
            return cls(is_bound=False)
        return cls._known.setdefault(client, cls())

    def check(self) -> None:
        """Raise `ConfigurationError` on any loop other than that of the first request."""
        if not self._is_bound:
            return
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = ref(loop)
        if self._loop() is not loop:
            raise ConfigurationError(
                "An async client serves one event loop, that of its first request, and this is "
                "another: two calls of `asyncio.run`, or sync code before async code. Make a "
                "client for each loop, use the SDK's sync client, which serves all loops, or use "
                '`LM("provider/model")`.'
            )


# -- what a client is


def _interface_of(client: Any, wire_name: str | None) -> _Interface:
    names = _packages(client) | {getattr(client, "__name__", "")}
    interfaces = [interface for interface in (*_SDKS, _LITELLM) if interface.package in names]
    if not interfaces:
        # A tracer's wrapper or a test's stand-in: known by its attributes.
        interfaces = [known for known in _SDKS if callable(_attribute(client, known.path))]
    if not interfaces:
        raise ConfigurationError(
            "A client is an `openai.OpenAI`, an `anthropic.Anthropic`, one of their async "
            f"variants, or an object with the same `create`; found {shown(client)}. "
            "For anything else, subclass `BaseLM`."
        )
    for interface in interfaces:
        if wire_name is None or interface.wire == wire_name:
            return interface
    wires = ", ".join(interface.wire for interface in interfaces)
    raise ConfigurationError(f"`wire` of this client is one of {wires}, found {shown(wire_name)}.")


def _packages(client: Any) -> set[str]:
    return {kind.__module__.partition(".")[0] for kind in type(client).__mro__}


def _attribute(client: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        client = getattr(client, name, None)
    return client


def _is_hosted(client: Any, package: str, model: str) -> bool:
    """Whether a known provider serves the model: by the client's address, or by litellm's name."""
    if package == "litellm":
        provider = PROVIDERS.get(model.partition("/")[0])
        return "/" not in model or (provider is not None and provider.is_hosted)
    address = getattr(client, "base_url", None)
    # A tracer's wrapper or a test's stand-in may have no address.
    return address is None or is_hosted_at(str(address))


def _is_async(create: Callable[..., Any]) -> bool:
    # The SDKs wrap `create` to check keywords.
    return inspect.iscoroutinefunction(inspect.unwrap(create))


# -- what a client returns


def _is_whole(answer: Any, iteration: str) -> bool:
    """Whether a client returned a whole answer instead of a stream.

    A wrapper or a stand-in may. An object of a client's answer is iterable, too.
    """
    return is_answer(answer) or not hasattr(answer, iteration)


def _rest(reader: Assembly) -> Iterator[Delta | Response]:
    yield from reader.end()
    yield reader.response()


def _json_of(answer: Any) -> dict[str, Any]:
    """The JSON of an answer or a chunk, as its provider sent it."""
    body = body_of(answer)
    if not body:
        raise BadRequestError(f"the client returned no answer: {shown(answer)}")
    return body


def _errors_of_sdks() -> tuple[type[Exception], ...]:
    """The errors of the SDKs that the program has imported.

    litellm's are subclasses of openai's.
    """
    errors: list[type[Exception]] = []
    for package, name in (("openai", "OpenAIError"), ("anthropic", "AnthropicError")):
        error = getattr(sys.modules.get(package), name, None)
        if error is not None:
            errors.append(error)
    return tuple(errors)


def _body_of(error: Any) -> bytes:
    content = getattr(getattr(error, "response", None), "content", None)
    if isinstance(content, bytes) and content:
        return content
    return json.dumps({"error": {"message": str(getattr(error, "message", error))}}).encode()
