"""`ScriptedLM`: a model that answers from a script."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Self, cast

from msgspec.structs import replace

from ferrule.encoding.pattern import pattern
from ferrule.errors import ConfigurationError, ScriptError, ToolCallError, checks_keywords, shown
from ferrule.models.model import BaseLM
from ferrule.values.calls.call import ToolCall
from ferrule.values.content.type import Type
from ferrule.values.conversation.exchange import Capabilities, Delta, Request, Response, Usage
from ferrule.values.provider_tools import PROVIDER_TOOLS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    _Numbering = Callable[[ToolCall], ToolCall]

_ONE = Usage(calls=1)
_ANSWER_KEYS = frozenset(
    {"text", "outputs", "tool_calls", "reasoning", "refusal", "finish_reason", "model", "usage"}
)
_KINDS = (
    "text, a call ({'name': ..., 'args': {...}} or `ToolCall`), a list of calls, "
    "{'outputs': {...}}, {'text': ..., 'tool_calls': [...]}, a `Response`, "
    "an exception to raise, or a function of the request that returns one of these"
)
_WORDS = pattern(r"\S+\s*|\s+")


class LocalLM(BaseLM):
    """Base class of models without a provider: they answer at once and stream word by word."""

    is_instant = True
    is_free = True
    # It stands for any model: a script says what the provider's tools find.
    capabilities = Capabilities(provider_tools=tuple(PROVIDER_TOOLS))

    def __init__(self, *, capabilities: Capabilities | None = None) -> None:
        if capabilities is not None:
            self.capabilities = capabilities

    async def acomplete(self, request: Request) -> Response:
        """The answer, at once: no thread is needed."""
        return self.complete(request)

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        """The answer, word by word."""
        yield from _in_words(self.complete(request))

    async def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        """The answer, word by word."""
        for item in _in_words(self.complete(request)):
            yield item


class ScriptedLM(LocalLM):
    """Gives the answers of a script in order, whatever the requests are.

    When no answer is left, a request raises `ScriptError`.

    ```python
    with ScriptedLM([{"name": "add", "args": {"a": 1, "b": 2}}, "It is 3."]) as lm: ...
    ```
    An answer is text, a call, a list of calls, `{"text": ..., "tool_calls": [...]}`, a `Response`,
    an exception (raised), or a function of the `Request` that returns any of these. `{"outputs":
    {"answer": "42"}}` is written as text in the form that the program's adapter expects. Calls
    without an id get `call_0`, `call_1` and so on. As a context manager it asserts on exit that
    every answer was used.

    With `by=function`, the function answers every request. The model is then stateless: one
    instance serves any number of concurrent runs. `requests` holds the requests of a script; with
    `by`, only if `record=True`, because they keep every conversation in memory.
    """

    name = "scripted"

    @checks_keywords
    def __init__(
        self,
        answers: Iterable[Any] | Any = (),
        *,
        by: Callable[[Request], Any] | None = None,
        capabilities: Capabilities | None = None,
        record: bool | None = None,
    ) -> None:
        super().__init__(capabilities=capabilities)
        if isinstance(answers, (str, bytes, Mapping, ToolCall, Type, Response)) or not hasattr(
            answers, "__iter__"
        ):
            raise ConfigurationError(
                f"`ScriptedLM` takes a list of answers, found {shown(cast('object', answers))}."
            )
        items: list[Any] = list(answers)
        if by is not None and (items or not callable(by)):
            raise ConfigurationError(
                "`ScriptedLM` takes a list of answers or `by=function`, not both."
            )
        add_id = _numbering("call_")
        self._script = [
            _prepare(item, f"answers[{number}]", add_id) for number, item in enumerate(items)
        ]
        self._by = by
        if record is None:
            record = by is None
        self._record = record
        self._place = _Place()
        self.requests: list[Request] = []
        """The requests so far, in order."""

    def complete(self, request: Request) -> Response:
        """The next answer."""
        by = self._by
        if by is not None:
            if self._record:
                self.requests.append(request)
            answer = by(request)
            if type(answer) is Response and _has_ids(answer.tool_calls):
                return answer
            return _respond(_prepare(answer, "what `by` returned", _numbering_of(request)), request)
        with self._place.lock:
            number = self._place.asked
            self._place.asked = number + 1
            if self._record:
                self.requests.append(request)
        if number >= len(self._script):
            raise ScriptError(_too_much(number + 1, len(self._script), request))
        answer = self._script[number]
        return _respond(answer, request)

    def assert_done(self) -> None:
        """Raise `ScriptError` if an answer was not used."""
        asked = self._place.asked
        if asked < len(self._script):
            left = self._script[asked]
            raise ScriptError(
                f"`ScriptedLM` was asked {_counted(asked, 'time')} and has "
                f"{_counted(len(self._script), 'answer')}; the next was {shown(left)}."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.assert_done()


def _in_words(response: Response) -> Iterator[Delta | Response]:
    """A whole answer as a stream of words."""
    for whole in response.deltas():
        if whole.provider_call is not None:
            yield Delta(provider_call=whole.provider_call)
        for word in _WORDS.findall(whole.reasoning):
            yield Delta(reasoning=word)
        for word in _WORDS.findall(whole.text):
            yield Delta(word)
        call = whole.call
        if call is not None:
            yield from (
                Delta(call=replace(call, arguments=word)) for word in _WORDS.findall(call.arguments)
            )
    yield response


class _Place:
    """The position in a script; copies of the model share it."""

    __slots__ = ("asked", "lock")

    def __init__(self) -> None:
        self.asked = 0
        self.lock = threading.Lock()


def _numbering(stem: str) -> _Numbering:
    """A function that gives each call without an id the next id."""
    numbers = count()

    def add_id(call: ToolCall) -> ToolCall:
        if call.id:
            return call
        return call.with_id(f"{stem}{next(numbers)}")

    return add_id


def _numbering_of(request: Request) -> _Numbering:
    """A numbering with ids that are new in the conversation.

    It needs no counter outside the request, because the model is stateless with `by`.
    """
    return _numbering(f"call_{len(request.messages)}_")


def _has_ids(calls: Sequence[ToolCall]) -> bool:
    return all(call.id for call in calls)


def _prepare(item: Any, where: str, add_id: _Numbering) -> Any:
    """Convert an item of a script to a `Response`.

    Exceptions and functions stay unchanged until they are used.
    """
    if type(item) is str:
        return Response(item, finish_reason="stop", usage=_ONE)
    if isinstance(item, Response):
        if _has_ids(item.tool_calls):
            return item
        return replace(item, tool_calls=tuple([add_id(call) for call in item.tool_calls]))
    try:
        match item:
            case str():
                return Response(str(item), finish_reason="stop", usage=_ONE)
            case Type() if calls := getattr(item, "tool_calls", None):  # `ToolCalls`
                return _calling(calls, add_id)
            case list() | tuple() if item:
                return _calling(cast("list[Any]", item), add_id)
            case dict() if item and item.keys() <= _ANSWER_KEYS:
                return _answer(cast("dict[str, Any]", item), add_id)
            case ToolCall() | dict():
                return _calling([item], add_id)
            case _ if isinstance(item, BaseException) or callable(item):
                return item
            case _:
                unknown: object = item
                msg = f"{where} is not an answer: {shown(unknown)}. An answer is {_KINDS}."
                raise ConfigurationError(msg)
    except (ToolCallError, TypeError) as error:
        raise ConfigurationError(
            f"{where} is not an answer: {error} An answer is {_KINDS}."
        ) from error


def _calling(entries: Sequence[Any], add_id: _Numbering) -> Response:
    calls = tuple([add_id(ToolCall.read(entry)) for entry in entries])
    return Response(None, calls, finish_reason="tool_calls", usage=_ONE)


def _answer(fields: dict[str, Any], add_id: _Numbering) -> Any:
    if "outputs" in fields:
        fields = dict(fields)
        outputs = fields.pop("outputs")
        if not isinstance(outputs, Mapping) or "text" in fields:
            raise TypeError(
                "`outputs` is a mapping of output fields to values, and takes the place of `text`."
            )
        return partial(_write, _answer(fields, add_id), outputs)
    entries = fields.get("tool_calls") or ()
    calls = tuple(
        [add_id(ToolCall.read(entry)) for entry in getattr(entries, "tool_calls", entries)]
    )
    known: dict[str, Any] = {
        "finish_reason": "tool_calls" if calls else "stop",
        "usage": _ONE,
        **fields,
        "tool_calls": calls,
    }
    return Response(**known)


def _write(response: Response, outputs: Mapping[str, Any], request: Request) -> Response:
    form = request.form
    if form is None:
        raise ConfigurationError(
            "`ScriptedLM` cannot write `outputs`: the request does not come from a program of "
            "this process. Write the answer's text instead."
        )
    known = form.schema.get("properties", {})
    unknown = [name for name in outputs if name not in known]
    if unknown and any(tool["function"]["name"] == "finish" for tool in request.tools):
        raise ConfigurationError(
            f"`ScriptedLM` cannot write {shown(unknown)} as text: this program ends with a call. "
            f"Write {{'name': 'finish', 'args': {shown(dict(outputs))}}}."
        )
    if unknown:
        raise ConfigurationError(
            f"`ScriptedLM` cannot write {shown(unknown)}: "
            f"the outputs of this request are {', '.join(known)}."
        )
    return replace(response, text=form.write(outputs))


def _respond(answer: Any, request: Request) -> Response:
    for _ in range(_DEEPEST):
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, BaseException) or (
            isinstance(answer, type) and issubclass(answer, BaseException)
        ):
            raise answer
        answer = _prepare(
            answer(request), "what a function of the script returned", _numbering_of(request)
        )
    raise ConfigurationError(f"a function of the script keeps returning functions: {shown(answer)}")


_DEEPEST = 10


def _too_much(asked: int, held: int, request: Request) -> str:
    question = "The request has no messages"
    if request.messages:
        last = request.messages[-1]
        question = f"The last message was {last.role}: {shown(last.text)}"
    return (
        f"`ScriptedLM` has {_counted(held, 'answer')} and was asked {_counted(asked, 'time')}. "
        f"{question}."
    )


def _counted(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"
