"""Models behind the user's own client: `LM.from_client(openai.OpenAI(...), model="...")`, and litellm.

The wire renders the request, the client's public `create` sends it, and the wire reads the answer,
an object or a dict. This module imports no client.
"""

from __future__ import annotations

import inspect
import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakKeyDictionary, ref

from ferrule.errors import BadRequestError, ConfigurationError, UnavailableError, shown
from ferrule.models.model import TurnsLM, answer_of, as_stream
from ferrule.models.providers import PROVIDERS, Provider, capabilities_of, check_settings
from ferrule.models.turns import Turns
from ferrule.models.wires.wire import assembly, body_of, is_answer, wire
from ferrule.net.errors import payload_error, status_error, with_provider
from ferrule.net.sse import event
from ferrule.record import Record
from ferrule.values.conversation.thoughts import split_thoughts

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping

    from ferrule.models.wires.wire import Assembly
    from ferrule.values.conversation.exchange import Capabilities, Delta, Request, Response


class _Interface(Record):
    """The path to `create` in one kind of client, and the wire it speaks."""

    package: str
    wire: str
    path: tuple[str, ...]
    """The attributes from the client to its `create`."""
    async_path: tuple[str, ...] = ()
    """The attributes from the client to its async `create`, if one client has both."""


_FIRST_ERROR = 400
_INTERFACES = (
    _Interface("openai", "openai_chat", ("chat", "completions", "create")),
    _Interface("openai", "openai_responses", ("responses", "create")),
    _Interface("anthropic", "anthropic", ("messages", "create")),
    _Interface("litellm", "openai_chat", ("completion",), ("acompletion",)),
)


class ClientLM(TurnsLM):
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
    ) -> None:
        if not isinstance(model, str) or not model:
            raise ConfigurationError(
                f'Which model? Name it as the client does: LM.from_client(client, model="..."), found {shown(model)}.',
            )
        interface = _interface(client, wire_name)
        self._client, self._interface = client, interface
        self._package = interface.package
        self._check(settings)
        self._loop = _BoundLoop.of(client)
        self._wire_name = interface.wire
        provider = PROVIDERS.get(interface.package) or Provider(interface.package, "")
        self._dialect = provider.dialect
        self._model = model
        self.name = f"{interface.package}/{model}"
        self.capabilities = capabilities or capabilities_of(provider, model)
        self.settings = settings
        self._turns = Turns()

    @property
    def _create(self) -> Any:  # looked up at each call: tracers and tests replace it
        return _attribute(self._client, self._interface.path)

    @property
    def _acreate(self) -> Any:
        return _attribute(self._client, self._interface.async_path or self._interface.path)

    def _complete(self, request: Request) -> Response:
        """One answer through the client; an async client runs on the background loop."""
        if _is_async(self._create):
            from ferrule.concurrency.offload import run_async

            return run_async(self._acomplete(request))
        with self._translated():
            return self._read(request, self._create(**self._arguments(request, self._create)))

    async def _acomplete(self, request: Request) -> Response:
        """One answer; a sync client runs in a worker thread."""
        from ferrule.concurrency.offload import in_worker_thread

        create = self._acreate
        if not _is_async(create):
            return await in_worker_thread(lambda: self._complete(request))
        self._loop.check()
        with self._translated():
            return self._read(request, await create(**self._arguments(request, create)))

    def _stream(self, request: Request) -> Iterator[Delta | Response]:
        """The answer piece by piece; with an async client, whole."""
        if _is_async(self._create):
            yield from as_stream(answer_of(self, self._complete(request)))
            return
        answer = assembly(self._wire_name, request)
        with self._translated():
            chunks = self._create(**self._arguments(request, self._create, stream=True))
            if _is_whole(chunks, "__next__", "__iter__"):
                yield from as_stream(self._read(request, chunks))
                return
            try:
                for chunk in chunks:
                    yield from answer.feed(event(_json_of(chunk)))
            finally:
                if (close := getattr(chunks, "close", None)) is not None:
                    close()
            yield from _end(answer)

    async def _astream(self, request: Request) -> AsyncGenerator[Delta | Response]:
        """The answer piece by piece; with a sync client, whole."""
        create = self._acreate
        if not _is_async(create):
            for item in as_stream(answer_of(self, await self._acomplete(request))):
                yield item
            return
        self._loop.check()
        answer = assembly(self._wire_name, request)
        with self._translated():
            chunks = await create(**self._arguments(request, create, stream=True))
            if _is_whole(chunks, "__anext__", "__aiter__"):
                for item in as_stream(self._read(request, chunks)):
                    yield item
                return
            try:
                async for chunk in chunks:
                    for delta in answer.feed(event(_json_of(chunk))):
                        yield delta
            finally:
                if (
                    close := getattr(chunks, "close", None) or getattr(chunks, "aclose", None)
                ) is not None:
                    await close()
            for item in _end(answer):
                yield item

    def copy(self, **settings: Any) -> Self:
        """The same model, behind the same client, with other settings."""
        self._check(settings)
        return super().copy(**settings)

    def _read(self, request: Request, answer: Any) -> Response:
        return split_thoughts(wire(self._wire_name).read(_json_of(answer)), request)

    def _check(self, settings: Mapping[str, Any]) -> None:
        if self._package != "litellm":  # it has its own settings, such as an address and retries
            check_settings(settings)

    def _arguments(
        self,
        request: Request,
        create: Callable[..., Any],
        *,
        stream: bool = False,
    ) -> dict[str, Any]:
        """The request's body as keyword arguments: the ones that the client declares; all others go into its `extra_body`."""
        self._check(request.settings)
        body: dict[str, Any] = json.loads(
            wire(self._wire_name).render(
                request,
                model=self._model,
                settings=self.settings,
                stream=stream,
                dialect=self._dialect,
            ),
        )
        known = inspect.signature(create).parameters
        if "extra_body" not in known:
            return body
        own = {name: value for name, value in body.items() if name in known}
        rest = {name: value for name, value in body.items() if name not in known}
        return {**own, "extra_body": rest} if rest else own

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Raise the client's errors as `LMError`s."""
        packages = [
            sys.modules.get(name) for name in ("openai", "anthropic")
        ]  # litellm's errors are subclasses of openai's
        found = [
            getattr(package, name, None)
            for package in packages
            for name in ("OpenAIError", "AnthropicError")
        ]
        kinds = tuple(kind for kind in found if kind is not None)
        try:
            yield
        except kinds as error:
            response = getattr(error, "response", None)
            status, body = getattr(error, "status_code", None), getattr(error, "body", None)
            if isinstance(body, dict) and not (
                isinstance(status, int) and status >= _FIRST_ERROR
            ):  # an event of a stream with status 200
                raise with_provider(
                    payload_error({"error": body, **body}),
                    provider=self._package,
                ) from error
            if not isinstance(status, int):
                hint = "Is the server running? Its address, timeouts and retries are set where the client is made."
                msg = f"the client failed: {type(error).__name__}: {str(error).rstrip('.')}. {hint} Asked `{self._model}`."
                raise UnavailableError(msg, provider=self._package) from error
            found_error, _ = status_error(
                status,
                getattr(response, "headers", None) or {},
                _body(error),
                provider=self._package,
            )
            raise found_error from error


class _BoundLoop:
    """The event loop that a client is bound to, by its first request. On another loop its connections break or hang."""

    _known: ClassVar[WeakKeyDictionary[Any, _BoundLoop]] = WeakKeyDictionary()

    def __init__(self, *, is_bound: bool = True) -> None:
        self._is_bound = is_bound
        self._loop: Callable[[], asyncio.AbstractEventLoop | None] | None = None

    @classmethod
    def of(cls, client: Any) -> _BoundLoop:
        """The `_BoundLoop` of an SDK's client, shared by all models behind it; other clients are not bound."""
        if not _packages(client) & {"openai", "anthropic"}:
            return cls(is_bound=False)
        return cls._known.setdefault(client, cls())

    def check(self) -> None:
        """Raise `ConfigurationError` on any loop other than that of the first request."""
        if not self._is_bound:
            return
        from asyncio import get_running_loop

        loop = get_running_loop()
        if self._loop is None:
            self._loop = ref(loop)
        if self._loop() is not loop:
            msg = (
                "An async client serves one event loop, that of its first request, and this is another: two calls of `asyncio.run`, or "
                "sync code before async code. Make a client for each loop, use the SDK's sync client, which serves all loops, or use "
                '`LM("provider/model")`.'
            )
            raise ConfigurationError(msg)


def _is_async(create: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(
        inspect.unwrap(create),
    )  # the SDKs wrap `create` to check keywords


def _is_whole(found: Any, of_iterators: str, of_iterables: str) -> bool:
    """Whether a client returned a whole answer instead of a stream, as a wrapper or a stand-in may."""
    return not hasattr(found, of_iterators) and (
        is_answer(found) or not hasattr(found, of_iterables)
    )


def _end(answer: Assembly) -> Iterator[Delta | Response]:
    yield from answer.end()
    yield answer.response()


def _interface(client: Any, wire_name: str | None) -> _Interface:
    kinds = _packages(client) | {getattr(client, "__name__", "")}
    found = [each for each in _INTERFACES if each.package in kinds]
    if not found:  # a tracer's wrapper or a test's stand-in: recognised by its attributes
        found = [each for each in _INTERFACES[:3] if callable(_attribute(client, each.path))]
    fitting = [each for each in found if wire_name in {None, each.wire}]
    if fitting:
        return fitting[0]
    if found:
        raise ConfigurationError(
            f"`wire` of this client is one of {', '.join(each.wire for each in found)}, found {shown(wire_name)}.",
        )
    msg = (
        f"A client is an `openai.OpenAI`, an `anthropic.Anthropic`, one of their async variants, or an object with the same `create`; "
        f"found {shown(client)}. For anything else, subclass `BaseLM`."
    )
    raise ConfigurationError(msg)


def _packages(client: Any) -> set[str]:
    return {kind.__module__.partition(".")[0] for kind in type(client).__mro__}


def _attribute(client: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        client = getattr(client, name, None)
    return client


def _json_of(answer: Any) -> dict[str, Any]:
    """The JSON of an answer or a chunk, as its provider sent it."""
    body = body_of(answer)
    if not body:
        raise BadRequestError(f"the client returned no answer: {shown(answer)}")
    return body


def _body(error: Any) -> bytes:
    content = getattr(getattr(error, "response", None), "content", None)
    if isinstance(content, bytes) and content:
        return content
    return json.dumps({"error": {"message": str(getattr(error, "message", error))}}).encode()
