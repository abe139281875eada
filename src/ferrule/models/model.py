"""Language models: the protocol `Model`, and the base class `BaseLM`.

`as_model` adapts any object with a method `complete`.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, cast, get_args, runtime_checkable

from ferrule.concurrency.offload import in_worker_thread
from ferrule.errors import BadRequestError, ConfigurationError, RefusalError, shown
from ferrule.events import ModelAnswered, ModelCalled
from ferrule.models.wires.any_answer import is_answer, response_of
from ferrule.models.wires.openai_chat.read_request import read_messages
from ferrule.observers import events_around
from ferrule.settings import current, is_observed, scope
from ferrule.values.conversation.exchange import Capabilities, Request, Response, exchanges
from ferrule.values.conversation.message import Message, Messages
from ferrule.values.conversation.thoughts import split_thoughts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence

    from ferrule.values.conversation.exchange import Delta
    from ferrule.values.provider_tools import ProviderTool

_NO_SETTINGS: Mapping[str, Any] = {}
TextCalls = Literal["never", "rescue", "always"]
"""Whether the text of answers is read for calls: `BaseLM.text_calls`."""


def check_text_calls(value: Any) -> TextCalls | None:
    """The value of an option `text_calls`; raises `ConfigurationError` for an unknown one."""
    if value is None or value in get_args(TextCalls):
        return value
    raise ConfigurationError(
        f'`text_calls` is "never", "rescue", "always" or None, found {shown(value)}.'
    )


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
    """Whether answers cost nothing.

    `Limits(cost=)` raises `ConfigurationError` for other answers without a known cost.
    """
    settings: Mapping[str, Any] = _NO_SETTINGS
    """Settings of every request, such as `temperature`; those of the request override them."""
    text_calls: TextCalls | None = None
    """Whether the text of its answers is read for tool calls.

    `"never"`; `"rescue"`, until the model has made one structured call in the run; `"always"`.
    None: as `"rescue"`, and not if the model is hosted and the request declares tools.
    """
    is_hosted: bool = False
    """Whether a provider that is known by its name serves the model.

    Such a provider answers declared tools with structured calls.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__ and not cls.name:
            cls.name = cls.__name__

    def complete(self, request: Request) -> Response:
        """One answer. Subclasses implement this method."""
        raise NotImplementedError(
            f"`{type(self).__name__}` must define `complete(self, request) -> Response`."
        )

    async def acomplete(self, request: Request) -> Response:
        """`complete` in a worker thread."""
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
        return _text_of(self.respond(prompt, messages=messages, **settings))

    async def acall(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> str:
        """`lm(...)` without blocking the loop."""
        return _text_of(await self.arespond(prompt, messages=messages, **settings))

    def respond(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> Response:
        """The whole `Response` to a question, or to a conversation in OpenAI's form.

        It has text, reasoning and usage. Observers see the request.
        """
        request = self._request_of(prompt, messages, settings)
        with _recorded(self, request) as record:
            return record(answer_of(self, self.complete(request)))

    async def arespond(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> Response:
        """`respond` without blocking the loop."""
        request = self._request_of(prompt, messages, settings)
        with _recorded(self, request) as record:
            return record(answer_of(self, await self.acomplete(request)))

    def context_tokens(self) -> int | None:
        """The size of the context window; None if it is unknown."""
        return self.capabilities.context_tokens

    def can(self, what: str | ProviderTool | type[ProviderTool]) -> bool:
        """Whether the model has a feature: `lm.can("images")`, `lm.can(WebSearch)`.

        See `Capabilities.can`.
        """
        return self.capabilities.can(what)

    def copy(self, **settings: Any) -> Self:
        """The same model with other settings: `lm.copy(temperature=1.0)`."""
        other = copy.copy(self)
        other.settings = {**self.settings, **settings}
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copies of a program share the model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}{_shown_settings(self.settings)})"

    def _request_of(self, prompt: Any, messages: Any, settings: Mapping[str, Any]) -> Request:
        if (prompt is None) == (messages is None):
            raise ConfigurationError("A model takes either a question or `messages=[...]`.")
        settings = {**self.settings, **settings}
        if isinstance(prompt, str):
            return Request(Messages([Message("user", prompt)]), settings=settings)
        if prompt is not None:
            raise ConfigurationError(
                f"A question is text, found {shown(prompt)}. "
                "Use `messages=[...]` for a conversation, `complete` for a `Request`."
            )
        return Request(read_messages(messages), settings=settings)


# -- direct calls


@contextmanager
def _recorded(lm: BaseLM, request: Request) -> Generator[Callable[[Response], Response]]:
    """Record a direct call of a model, for observers and `inspect_history`.

    The block passes its answer to the function that it gets.
    """
    try:
        with _observed(lm, request) as tell:

            def record(response: Response) -> Response:
                exchanges.append((lm, request, response))
                return tell(response)

            yield record
    except BaseException as error:
        exchanges.append((lm, request, f"{type(error).__name__}: {error}"))
        raise


def _observed(
    lm: BaseLM, request: Request
) -> AbstractContextManager[Callable[[Response], Response]]:
    if not is_observed():
        return nullcontext(lambda response: response)
    return events_around(
        scope(), current().callbacks, lambda slot: ModelCalled(slot, request, lm), ModelAnswered
    )


def _text_of(response: Response) -> str:
    if not response.text and response.refusal:
        raise RefusalError(response.refusal)
    return response.text or ""


def _shown_settings(settings: Mapping[str, Any]) -> str:
    # Only numbers: text settings may hold keys or headers.
    shown_settings: list[str] = []
    for name, value in settings.items():
        if isinstance(value, (int, float)):
            shown_value = value
        else:
            shown_value = "…"
        shown_settings.append(f", {name}={shown_value}")
    return "".join(shown_settings)


# -- answers


def as_stream(response: Response) -> Iterator[Delta | Response]:
    """A whole answer as a stream."""
    yield from response.deltas()
    yield response


def answer_of(lm: Any, answer: Any, request: Request | None = None) -> Response:
    """The model's answer to `request`, with the thoughts in its text as reasoning.

    Raises a `ConfigurationError` that names the model's class if it is not a `Response`.
    """
    if not isinstance(answer, Response):
        name = _class_of(lm)
        _refuse_coroutine(answer, name)
        raise ConfigurationError(
            f"`{name}` answered with {shown(answer)}, which is not a `Response`: "
            "return a `Response`, such as `Response(text=...)`."
        )
    text: Any = answer.text
    if text is not None and not isinstance(text, str):
        raise ConfigurationError(
            f"`{_class_of(lm)}` answered with a `Response` whose text is {shown(text)}: "
            "return a `Response` whose `text` is a `str` or None."
        )
    if not text:
        return answer
    return split_thoughts(answer, request)


def _class_of(lm: Any) -> str:
    """The name of the user's class, not that of a wrapper of ferrule around it."""
    while type(lm).__module__.startswith("ferrule.") and getattr(lm, "_lm", None) is not None:
        lm = lm._lm  # noqa: SLF001  a wrapper's model
    return type(lm).__name__


def _refuse_coroutine(answer: Any, name: str) -> None:
    if callable(getattr(answer, "close", None)) and hasattr(answer, "__await__"):
        answer.close()  # otherwise Python would warn later, elsewhere, that it was never awaited
        raise ConfigurationError(
            f"`{name}.complete` is async. Name it `acomplete`, and write a sync `complete` too."
        )


# -- models of other kinds


def as_model(lm: Any) -> Model:
    """Adapt any object with a method `complete` to `Model`.

    Raises `ConfigurationError` for anything else.
    """
    if isinstance(lm, BaseLM):
        return cast("Model", lm)
    if isinstance(lm, type):
        raise ConfigurationError(
            f"A model is an object, found the class `{lm.__name__}`: write `{lm.__name__}(...)`."
        )
    if isinstance(lm, str):
        raise ConfigurationError(f"A model is an object, found its name: write `LM({lm!r})`.")
    if not callable(getattr(lm, "complete", None)):
        raise ConfigurationError(
            f"A model has a method `complete(request) -> Response`, found {shown(lm)}. "
            "Subclass `BaseLM`, or use `LM('provider/model')`."
        )
    if isinstance(lm, Model):
        return lm
    return _Wrapped(lm)


class _Wrapped(BaseLM):
    """Wraps an object that has `complete` and perhaps other methods of `Model`."""

    def __init__(self, lm: Any) -> None:
        self._lm = lm
        self.name = str(getattr(lm, "name", None) or type(lm).__name__)
        capabilities = getattr(lm, "capabilities", None)
        if isinstance(capabilities, Capabilities):
            self.capabilities = capabilities

    def complete(self, request: Request) -> Response:
        return _normalized(self._lm.complete(request), self.name)

    async def acomplete(self, request: Request) -> Response:
        if not callable(getattr(self._lm, "acomplete", None)):
            return await super().acomplete(request)
        return _normalized(await self._lm.acomplete(request), self.name)

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


def _normalized(answer: Any, name: str) -> Response:
    """The `Response` in text, or in an answer in a provider's form."""
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, str):
        return Response(answer)
    _refuse_coroutine(answer, name)
    if is_answer(answer):
        return response_of(answer)
    raise BadRequestError(f"`{name}.complete` must return a `Response`, found {shown(answer)}.")
