"""Models through a client that the user made: `LM.from_client(openai.OpenAI(...), model="...")`, and litellm.

For whoever has one already: with a login of its own, behind a company's gateway, wrapped by a tracer. The request is the wire's, the
client's public `create` sends it, and what comes back, object or dict, is read by the wire. Nothing of a client is imported here.
"""

from __future__ import annotations

import inspect
import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast
from weakref import WeakKeyDictionary, ref

from ferrule.errors import BadRequestError, ConfigurationError, UnavailableError, shown
from ferrule.models.http.errors import failure
from ferrule.models.http.sse import event
from ferrule.models.model import BaseLM
from ferrule.models.profiles import capabilities_of
from ferrule.models.providers import PROVIDERS, Provider, check_settings
from ferrule.models.wires.normal_form import body_of
from ferrule.models.wires.wire import assembly, wire
from ferrule.values.record import Record

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping

    from ferrule.values.conversation.exchange import Capabilities, Delta, Request, Response


class _Door(Record):
    """How one kind of client is asked."""

    package: str
    wire: str
    path: tuple[str, ...]
    """Attributes from the client to its `create`."""
    asynchronous: tuple[str, ...] = ()
    """The same to a twin for event loops, where the client has both."""


_DOORS = (
    _Door("openai", "openai_chat", ("chat", "completions", "create")),
    _Door("openai", "openai_responses", ("responses", "create")),
    _Door("anthropic", "anthropic", ("messages", "create")),
    _Door("litellm", "openai_chat", ("completion",), ("acompletion",)),
)


class ClientLM(BaseLM):
    """A model behind somebody else's client. Made by `LM.from_client` and `LM.from_litellm`.

    An async client of an SDK serves the event loop of its first request alone: `ConfigurationError` on any other.
    """

    def __init__(
        self, client: Any, model: str, wire_name: str | None, capabilities: Capabilities | None, settings: Mapping[str, Any]
    ) -> None:
        if not isinstance(model, str) or not model:
            msg = f'Which model? Name it as the client does: LM.from_client(client, model="..."), found {shown(model)}.'
            raise ConfigurationError(msg)
        door = _door(client, wire_name)
        self._create = _reached(client, door.path)
        self._acreate = _reached(client, door.asynchronous) if door.asynchronous else self._create
        self._package = door.package
        self._check(settings)
        self._home = _Home.of(client)
        self._wire_name = door.wire
        provider = PROVIDERS.get(door.package) or Provider(door.package, "")
        self._dialect = provider.dialect
        self._model = model
        self.name = f"{door.package}/{model}"
        self.capabilities = capabilities or capabilities_of(provider, model)
        self.settings = settings

    def complete(self, request: Request) -> Response:
        """One answer through the client; an async client is driven on the background loop."""
        if _is_async(self._create):
            from ferrule.concurrency.offload import run_async

            return run_async(self.acomplete(request))
        with self._told():
            return wire(self._wire_name).read(_sent(self._create(**self._arguments(request, self._create))))

    async def acomplete(self, request: Request) -> Response:
        """One answer; a sync client is asked in a worker thread."""
        create = self._acreate
        if not _is_async(create):
            return await super().acomplete(request)
        self._home.enter()
        with self._told():
            return wire(self._wire_name).read(_sent(await create(**self._arguments(request, create))))

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        """The answer as it comes; with an async client, whole."""
        if _is_async(self._create):
            yield from super().stream(request)
            return
        made = assembly(self._wire_name)
        with self._told():
            chunks = self._create(**self._arguments(request, self._create, stream=True))
            try:
                for chunk in chunks:
                    yield from made.feed(event(_sent(chunk)))
            finally:
                _closed(chunks)
            yield from _ended(made)

    async def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        """The answer as it comes; with a sync client, whole."""
        create = self._acreate
        if not _is_async(create):
            async for item in super().astream(request):
                yield item
            return
        self._home.enter()
        made = assembly(self._wire_name)
        with self._told():
            chunks = await create(**self._arguments(request, create, stream=True))
            try:
                async for chunk in chunks:
                    for delta in made.feed(event(_sent(chunk))):
                        yield delta
            finally:
                close = getattr(chunks, "close", None) or getattr(chunks, "aclose", None)
                if close is not None:
                    await close()
            for item in _ended(made):
                yield item

    def copy(self, **settings: Any) -> Self:
        """The same model, behind the same client, with other settings."""
        self._check(settings)
        return super().copy(**settings)

    def _check(self, settings: Mapping[str, Any]) -> None:
        if self._package != "litellm":  # it takes settings of its own, an address and retries among them
            check_settings(settings)

    def _arguments(self, request: Request, create: Callable[..., Any], *, stream: bool = False) -> dict[str, Any]:
        """The body as keywords: those that the client names as such, all others as its `extra_body`."""
        self._check(request.settings)
        body: dict[str, Any] = json.loads(
            wire(self._wire_name).render(request, model=self._model, settings=self.settings, stream=stream, dialect=self._dialect)
        )
        known = inspect.signature(create).parameters
        if "extra_body" not in known:
            return body
        own = {name: value for name, value in body.items() if name in known}
        rest = {name: value for name, value in body.items() if name not in known}
        return {**own, "extra_body": rest} if rest else own

    @contextmanager
    def _told(self) -> Generator[None]:
        """The client's errors as those of the house."""
        packages = [sys.modules.get(name) for name in ("openai", "anthropic")]  # litellm raises errors made of openai's
        found = [getattr(package, name, None) for package in packages for name in ("OpenAIError", "AnthropicError")]
        kinds = tuple(kind for kind in found if kind is not None)
        try:
            yield
        except kinds as error:
            response = getattr(error, "response", None)
            status = getattr(error, "status_code", None)
            if not isinstance(status, int):
                hint = "Is the server running? Its address, timeouts and retries are set where the client is made."
                msg = f"the client failed: {type(error).__name__}: {str(error).rstrip('.')}. {hint} Asked `{self._model}`."
                raise UnavailableError(msg, provider=self._package) from error
            said, _ = failure(status, getattr(response, "headers", None) or {}, _body(error), provider=self._package)
            raise said from error


class _Home:
    """The event loop on which a client of an SDK keeps its connections: that of its first request. Over another they break, or hang."""

    _known: ClassVar[WeakKeyDictionary[Any, _Home]] = WeakKeyDictionary()

    def __init__(self, *, is_bound: bool = True) -> None:
        self._is_bound = is_bound
        self._loop: Callable[[], asyncio.AbstractEventLoop | None] | None = None

    @classmethod
    def of(cls, client: Any) -> _Home:
        """The home of a client, one for all models behind it; of what is no client of an SDK nothing is known, and nothing asked."""
        if not _packages(client) & {"openai", "anthropic"}:
            return cls(is_bound=False)
        return cls._known.setdefault(client, cls())

    def enter(self) -> None:
        """Raise `ConfigurationError` on any loop but the first."""
        if not self._is_bound:
            return
        from asyncio import get_running_loop

        loop = get_running_loop()
        if self._loop is None:
            self._loop = ref(loop)
        if self._loop() is not loop:
            msg = (
                "An async client serves one event loop, that of its first request, and this is another (two `asyncio.run`, say, or first "
                "sync code and then async). Make a client on each loop, give the SDK's sync client, which serves all, or use "
                '`LM("provider/model")`.'
            )
            raise ConfigurationError(msg)


def _is_async(create: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(create))  # the SDKs wrap theirs to check keywords


def _ended(made: Any) -> Iterator[Delta | Response]:
    yield from made.end()
    yield made.response()


def _closed(chunks: Any) -> None:
    close = getattr(chunks, "close", None)
    if close is not None:
        close()


def _door(client: Any, wire_name: str | None) -> _Door:
    kinds = _packages(client) | {getattr(client, "__name__", "")}
    doors = [door for door in _DOORS if door.package in kinds]
    if not doors:  # a wrapper of a tracer, a stand-in of a test: what it can be asked tells what it is
        doors = [door for door in _DOORS[:3] if _has(client, door.path)]
    fitting = [door for door in doors if wire_name in {None, door.wire}]
    if fitting:
        return fitting[0]
    if doors:
        msg = f"`wire` of this client is one of {', '.join(door.wire for door in doors)}, found {shown(wire_name)}."
        raise ConfigurationError(msg)
    msg = (
        f"A client is an `openai.OpenAI`, an `anthropic.Anthropic`, one of their async twins, or something with the same `create`; "
        f"found {shown(client)}. For anything else, subclass `BaseLM`."
    )
    raise ConfigurationError(msg)


def _packages(client: Any) -> set[str]:
    return {kind.__module__.partition(".")[0] for kind in type(client).__mro__}


def _has(client: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        client = getattr(client, name, None)
    return callable(client)


def _reached(client: Any, path: tuple[str, ...]) -> Callable[..., Any]:
    for name in path:
        client = getattr(client, name)
    return cast("Callable[..., Any]", client)


def _sent(answer: Any) -> dict[str, Any]:
    """An answer or a chunk as its provider sent it."""
    body = body_of(answer)
    if not body:
        msg = f"the client's answer is none: {shown(answer)}"
        raise BadRequestError(msg)
    return body


def _body(error: Any) -> bytes:
    content = getattr(getattr(error, "response", None), "content", None)
    if isinstance(content, bytes) and content:
        return content
    return json.dumps({"error": {"message": str(getattr(error, "message", error))}}).encode()
