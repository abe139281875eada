"""Language models: the protocol `Model`, base classes for them, and `as_model`, which adapts any object with `complete`."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, Self, cast, runtime_checkable

from ferrule.errors import BadRequestError, ConfigurationError, RefusalError, shown
from ferrule.settings import current, is_observed, scope
from ferrule.values.conversation.exchange import Capabilities, Request, Response, exchanges
from ferrule.values.conversation.message import Message, Messages
from ferrule.values.conversation.thoughts import split_thoughts

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Generator,
        Iterator,
        Mapping,
        Sequence,
    )

    from ferrule.models.turns import Turns
    from ferrule.values.conversation.exchange import Delta

_NONE: Mapping[str, Any] = {}


@runtime_checkable
class Model(Protocol):
    """The interface of a model. Subclass `BaseLM` rather than implement all of it."""

    @property
    def name(self) -> str:
        """The model's name in logs, events and errors."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """The features that the model supports."""
        ...

    def complete(self, request: Request) -> Response:
        """One answer. Raises `LMError`s."""
        ...

    async def acomplete(self, request: Request) -> Response:
        """One answer, without blocking the loop."""
        ...

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        """A generator of the answer's pieces; its last item is the whole answer."""
        ...

    def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        """`stream` as an async generator."""
        ...


class BaseLM:
    """Base class of models. A subclass writes `complete`; the other methods call it.

    ```python
    class Shouting(BaseLM):
        def complete(self, request):
            return Response(text=request.messages[-1].text.upper())

    assert Shouting()("hi") == "HI"
    ```
    """

    name: str = ""
    capabilities: Capabilities = Capabilities()
    is_free: bool = False
    """Whether answers cost nothing. `Limits(cost=)` raises `ConfigurationError` for other answers without a known cost."""
    settings: Mapping[str, Any] = _NONE
    """Settings of every request, such as `temperature`; those of the request override them."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__ and not cls.name:
            cls.name = cls.__name__

    def complete(self, request: Request) -> Response:
        """One answer. Subclasses implement this method."""
        raise NotImplementedError(
            f"`{type(self).__name__}` must define `complete(self, request) -> Response`.",
        )

    async def acomplete(self, request: Request) -> Response:
        """`complete` in a worker thread."""
        from ferrule.concurrency.offload import in_worker_thread

        return await in_worker_thread(lambda: self.complete(request))

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        """`complete` as a stream of one piece."""
        yield from as_stream(answer_of(self, self.complete(request), request))

    async def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        """`complete` as a stream of one piece."""
        for item in as_stream(answer_of(self, await self.acomplete(request), request)):
            yield item

    def __call__(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> str:
        """The text of the answer to a question, or to a conversation in OpenAI's form."""
        return _text(self.respond(prompt, messages=messages, **settings))

    async def acall(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> str:
        """`lm(...)` without blocking the loop."""
        return _text(await self.arespond(prompt, messages=messages, **settings))

    def respond(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> Response:
        """The whole `Response` to a question, or to a conversation in OpenAI's form: text, reasoning, usage. Observers see the request."""
        request = self._question(prompt, messages, settings)
        with _recorded(self, request) as answered:
            return answered(answer_of(self, self.complete(request)))

    async def arespond(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> Response:
        """`respond` without blocking the loop."""
        request = self._question(prompt, messages, settings)
        with _recorded(self, request) as answered:
            return answered(answer_of(self, await self.acomplete(request)))

    def context_tokens(self) -> int | None:
        """The size of the context window; None if it is unknown."""
        return self.capabilities.context_tokens

    def copy(self, **settings: Any) -> Self:
        """The same model with other settings: `lm.copy(temperature=1.0)`."""
        other = copy.copy(self)
        other.settings = {**self.settings, **settings}
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copies of a program share the model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}{_show_settings(self.settings)})"

    def _question(self, prompt: Any, messages: Any, settings: Mapping[str, Any]) -> Request:
        if (prompt is None) == (messages is None):
            raise ConfigurationError("A model takes either a question or `messages=[...]`.")
        if isinstance(prompt, str):
            return Request(
                Messages([Message("user", prompt)]),
                settings={**self.settings, **settings},
            )
        from ferrule.models.wires.openai_chat.read_request import read_messages

        if prompt is not None:
            msg = f"A question is text, found {shown(prompt)}. Use `messages=[...]` for a conversation, `complete` for a `Request`."
            raise ConfigurationError(msg)
        return Request(read_messages(messages), settings={**self.settings, **settings})


@contextmanager
def _recorded(lm: BaseLM, request: Request) -> Generator[Callable[[Response], Response]]:
    """Record a direct call of a model: the block passes its answer to the function it gets, for observers and `inspect_history`."""
    try:
        with _events(lm, request) if is_observed() else nullcontext(_same) as pass_on:

            def answered(response: Response) -> Response:
                exchanges.append((lm, request, response))
                return pass_on(response)

            yield answered
    except BaseException as error:
        exchanges.append((lm, request, f"{type(error).__name__}: {error}"))
        raise


def _events(lm: BaseLM, request: Request) -> AbstractContextManager[Callable[[Response], Response]]:
    from ferrule.events import ModelAnswered, ModelCalled  # late: few direct calls are observed
    from ferrule.observers import events_around

    return events_around(
        scope(),
        current().callbacks,
        lambda own: ModelCalled(own, request, lm),
        ModelAnswered,
    )


def _same(response: Response) -> Response:
    return response


class TurnsLM(BaseLM):
    """Base class of models behind a chat template: adapts the turns of each request to what the template accepts (see `turns.py`)."""

    _turns: Turns

    def __setattr__(self, name: str, value: Any) -> None:
        from ferrule.models.providers import (
            set_attribute,
        )  # late: it loads pydantic, and every model is a `BaseLM`

        set_attribute(self, name, value)

    def complete(self, request: Request) -> Response:
        """One answer."""
        sent = self._turns.of(request) if self._turns.merges else request
        try:
            return self._complete(sent)
        except BadRequestError as error:
            if not self._turns.learn(error, request, sent):
                raise
        return self.complete(request)

    async def acomplete(self, request: Request) -> Response:
        """One answer, without blocking the loop; cancelling closes the request."""
        sent = self._turns.of(request) if self._turns.merges else request
        try:
            return await self._acomplete(sent)
        except BadRequestError as error:
            if not self._turns.learn(error, request, sent):
                raise
        return await self.acomplete(request)

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        """The answer piece by piece; leaving the loop closes the request."""
        sent = self._turns.of(request) if self._turns.merges else request
        try:
            yield from self._stream(sent)
        except BadRequestError as error:
            if not self._turns.learn(error, request, sent):
                raise
            yield from self.stream(request)

    async def astream(self, request: Request) -> AsyncGenerator[Delta | Response]:
        """The answer piece by piece; leaving the loop and closing the generator, or cancelling, closes the request."""
        sent = self._turns.of(request) if self._turns.merges else request
        try:
            async with aclosing(self._astream(sent)) as items:
                async for item in items:
                    yield item
        except BadRequestError as error:
            if not self._turns.learn(error, request, sent):
                raise
            async with aclosing(self.astream(request)) as items:
                async for item in items:
                    yield item

    def _complete(self, request: Request) -> Response:
        raise NotImplementedError

    async def _acomplete(self, request: Request) -> Response:
        raise NotImplementedError

    def _stream(self, request: Request) -> Iterator[Delta | Response]:
        raise NotImplementedError

    def _astream(self, request: Request) -> AsyncGenerator[Delta | Response]:
        raise NotImplementedError


def as_stream(response: Response) -> Iterator[Delta | Response]:
    """A whole answer as a stream."""
    yield from response.deltas()
    yield response


def answer_of(lm: Any, found: Any, request: Request | None = None) -> Response:
    """The model's answer to `request`, with the thoughts in its text as reasoning.

    Raises a `ConfigurationError` that names the model's class if `found` is not a `Response`.
    """
    if type(found) is not Response or (found.text is not None and type(found.text) is not str):
        found = _check_answer(lm, found)
    return split_thoughts(found, request) if found.text else found


def as_model(lm: Any) -> Model:
    """Adapt any object with a method `complete` to `Model`; raises `ConfigurationError` for anything else."""
    if isinstance(lm, BaseLM):
        return cast("Model", lm)
    if isinstance(lm, type):
        raise ConfigurationError(
            f"A model is an object, found the class `{lm.__name__}`: write `{lm.__name__}(...)`.",
        )
    if isinstance(lm, str):
        raise ConfigurationError(f"A model is an object, found its name: write `LM({lm!r})`.")
    if not callable(getattr(lm, "complete", None)):
        msg = f"A model has a method `complete(request) -> Response`, found {shown(lm)}. Subclass `BaseLM`, or use `LM('provider/model')`."
        raise ConfigurationError(msg)
    return lm if isinstance(lm, Model) else _Wrapped(lm)


class _Wrapped(BaseLM):
    """Wraps an object that has `complete` and perhaps other methods of `Model`."""

    def __init__(self, lm: Any) -> None:
        self._lm = lm
        self.name = str(getattr(lm, "name", None) or type(lm).__name__)
        capabilities = getattr(lm, "capabilities", None)
        self.capabilities = (
            capabilities if isinstance(capabilities, Capabilities) else Capabilities()
        )

    def complete(self, request: Request) -> Response:
        return _normalize(self._lm.complete(request), self.name)

    async def acomplete(self, request: Request) -> Response:
        if not callable(getattr(self._lm, "acomplete", None)):
            return await super().acomplete(request)
        return _normalize(await self._lm.acomplete(request), self.name)

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        if callable(getattr(self._lm, "stream", None)):
            yield from self._lm.stream(request)
        else:
            yield from as_stream(self.complete(request))

    async def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        if callable(getattr(self._lm, "astream", None)):
            async for item in self._lm.astream(request):
                yield item
        else:
            for item in as_stream(await self.acomplete(request)):
                yield item


def _check_answer(lm: Any, found: Any) -> Response:
    if isinstance(found, Response) and (found.text is None or isinstance(found.text, str)):  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
        return found
    inner: Any = lm
    while inner is not None:  # name the user's model, not a wrapper of ferrule
        lm, inner = (
            inner,
            getattr(inner, "_lm", None) if type(inner).__module__.startswith("ferrule.") else None,
        )
    name = type(lm).__name__
    _refuse_coroutine(found, name)
    if isinstance(found, Response):
        msg = f"`{name}` answered with a `Response` whose text is {shown(found.text)}: return a `Response` whose `text` is a `str` or None."
    else:
        msg = f"`{name}` answered with {shown(found)}, which is not a `Response`: return a `Response`, such as `Response(text=...)`."
    raise ConfigurationError(msg)


def _refuse_coroutine(found: Any, name: str) -> None:
    if callable(getattr(found, "close", None)) and hasattr(found, "__await__"):
        found.close()  # otherwise Python would warn later, elsewhere, that it was never awaited
        raise ConfigurationError(
            f"`{name}.complete` is async. Name it `acomplete`, and write a `complete` beside it.",
        )


def _normalize(answer: Any, name: str) -> Response:
    answer = Response(answer) if isinstance(answer, str) else answer
    if isinstance(answer, Response):
        return answer
    _refuse_coroutine(answer, name)
    from ferrule.models.wires.wire import is_answer, response_of

    if is_answer(answer):
        return response_of(answer)
    raise BadRequestError(f"`{name}.complete` must return a `Response`, found {shown(answer)}.")


def _text(response: Response) -> str:
    if not response.text and response.refusal:
        raise RefusalError(response.refusal)
    return response.text or ""


def _show_settings(settings: Mapping[str, Any]) -> str:
    # Only numbers: text settings may hold keys or headers.
    return "".join(
        f", {name}={value if isinstance(value, (int, float)) else '…'}"
        for name, value in settings.items()
    )
