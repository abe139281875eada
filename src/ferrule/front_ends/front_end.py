"""`FrontEnd`: reads one request of a chat page, and encodes its response.

Each protocol is a subclass: `_read` takes the request apart and passes each answer to a question
to `_put_answer`; `_answer` makes a `Decision` from such an answer; `_page` says how the protocol
writes the parts of a run. The response has three stages: a `Narrator` turns events into messages of
the page, which are dicts; `Chunks` asks it for them, for sync and for async events; `_framed`
writes each as a server-sent event.
"""

from __future__ import annotations

import json
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ferrule.approval.decisions import asked_now
from ferrule.encoding.encode import json_text, jsonable
from ferrule.errors import DecisionError, InputError, checks_keywords, shown
from ferrule.front_ends.messages import objects
from ferrule.front_ends.narrator import Narrator
from ferrule.front_ends.page import question_id, tool_call_id
from ferrule.front_ends.page_tools import check_allowed, page_decision
from ferrule.values.content.convert import content_text, read_content
from ferrule.values.conversation.history import History

if TYPE_CHECKING:
    from ferrule.approval.question import Decision, Question
    from ferrule.events import Event
    from ferrule.front_ends.page import Page, Waiting
    from ferrule.tools.tool import Tool


class FrontEnd:
    """One request of a chat page. Call it with the events of a run to encode the response.

    docs/how-to/running/front-ends.md shows how a service uses it.
    """

    via: ClassVar[str]
    """The name of the front end in the signatures of decisions."""
    headers: ClassVar[Mapping[str, str]]
    """The headers of a response, besides its `media_type`."""
    media_type: ClassVar[str] = "text/event-stream"
    _last_chunk: ClassVar[str] = ""
    """The text after the last message; empty if the protocol has none."""

    @checks_keywords
    def __init__(
        self,
        body: Mapping[str, Any] | None = None,
        *,
        error_text: Callable[[BaseException], str] | None = None,
        page_tools: Sequence[str] = (),
    ) -> None:
        """Read a request.

        Args:
            body: The request, as JSON data. With None, the object only encodes.
            error_text: Returns the text that the page shows for a run's error. By default it has
                only the name of the error's class: the error's own text may be private.
            page_tools: The tools that the page may declare, by name or pattern (`"ui_*"`). By
                default none.

        """
        self.thread_id = ""
        """The page's id of the conversation."""
        self.run_id = ""
        """The run whose questions the request decides; empty for a request that starts a run."""
        self.content: Any = ""
        """The person's last message: a text, or a list of parts in OpenAI's form."""
        self.history = History()
        """The messages before the last one, without system messages."""
        self.tools: list[Tool] = []
        """The tools of the page that `page_tools` allows: inputs for a program with a field of the
        type `list[Tool]`. The page runs them, and its next request has their results."""
        self.state: Any = None
        """The state of an AG-UI page, as it is. Do not trust it."""
        self.context: list[dict[str, Any]] = []
        """What an AG-UI page says about itself: `description` and `value`. Do not trust it."""
        self._allowed = check_allowed(page_tools)
        self._error_text = error_text or _class_of_error
        self._messages: list[dict[str, Any]] = []
        """The messages that the page holds."""
        self._answers: dict[str, Any] = {}
        """The answers in the request, by the id of the question, or of its call on the page.

        Protocols differ in which of the two ids an answer has."""
        if body is not None:
            if not isinstance(body, Mapping):
                raise InputError(f"A request is a JSON object; found {shown(body)}.")
            self._read(body)

    @property
    def text(self) -> str:
        """The text of the person's last message."""
        return content_text(read_content(self.content))

    def decisions(self, run: Waiting, *, by: str = "") -> list[Decision]:
        """The request's decisions on questions of this run, signed; pass each to `run.answer`.

        Answers to other questions are left out, because a page may resend earlier ones. Raises
        `DecisionError` if none is left, and for an answer that does not fit its question. An empty
        list means that the request only repeats results of the page's tools, which the run has.
        """
        decisions: list[Decision] = []
        for question in run.pending:
            decision = self._decision_on(run, question)
            if decision is not None:
                decisions.append(decision.signed(by, self.via))
        if self._answers and not decisions and not self._has_repeated(run):
            raise DecisionError(
                f"The run {run.id} is not waiting for the questions that the request answers: "
                "they were decided, or belong to another run. "
                f"Waiting are: {asked_now(run.pending)}."
            )
        return decisions

    def __call__(self, events: AsyncIterable[Event] | Iterable[Event]) -> Chunks:
        """Encode the response in chunks of text, for `async for`, or `for` if events allow it."""
        narrator = Narrator(self._page(), self._known_calls(), self._error_text)
        return Chunks(events, narrator, self._last_chunk)

    def _decision_on(self, run: Waiting, question: Question) -> Decision | None:
        """The request's decision on a question, or None."""
        answer = self._answer_to(run, question)
        if answer is None:
            return None
        is_of_tool = "output" in answer or "error" in answer
        if question.kind == "result" and is_of_tool:
            return page_decision(question, answer)
        return self._answer(question, answer)

    def _has_repeated(self, run: Waiting) -> bool:
        """Whether the request has a result of a page's tool that the run has used already.

        A page whose connection was lost after it had sent the result sends it again.
        """
        return any(
            question.by_page and self._decision_on(run, question) in run.decisions
            for question in run.awaited
        )

    def _put_answer(self, key: str, answer: Mapping[str, Any]) -> None:
        """Store an answer of the request; a repeated one must be equal."""
        if self._answers.setdefault(key, answer) != answer:
            raise InputError(
                f"A request answers each question once; found two answers to {shown(key)}."
            )

    def _answer_to(self, run: Waiting, question: Question) -> Any:
        """The request's answer to a question, or None."""
        answer: Any = self._answers.get(question_id(run.id, question))
        if answer is not None:
            return answer
        program = question.path.strip("/")
        answer = self._answers.get(tool_call_id(run.id, program, question.call.id))
        # Some models repeat the id of a call, and a page sends its earlier calls again. So the
        # arguments that the page shows must be those of the question.
        args = jsonable(question.call.args)
        if isinstance(answer, dict):
            shown_args = cast("dict[str, Any]", answer).get("input", args)
            if shown_args != args:
                return None
        return cast("Any", answer)

    # -- what a protocol implements

    def _read(self, body: Mapping[str, Any]) -> None:
        """Set the public attributes from a request, and call `_put_answer` for its answers."""
        raise NotImplementedError

    def _answer(self, question: Question, answer: Any) -> Decision:
        """Make a decision from what was put with `_put_answer`. Raises `DecisionError`."""
        raise NotImplementedError

    def _page(self) -> Page:
        """The page that writes the protocol's messages."""
        raise NotImplementedError

    def _known_calls(self) -> Iterable[str]:
        """The ids of calls that the page shows already."""
        return ()


class Chunks:
    """The encoded events, as an iterable.

    Stopping early closes the events, which cancels the run if they are its stream. The two loops
    differ only in how they wait. If the run fails, its events end with its error, and the narrator
    shows that to the page; it knows which errors those are (`Narrator.raised`), so any other error
    passes.
    """

    def __init__(
        self, events: AsyncIterable[Event] | Iterable[Event], narrator: Narrator, last_chunk: str
    ) -> None:
        self._events = events
        self._narrator = narrator
        self._last_chunk = last_chunk

    def __iter__(self) -> Iterator[str]:
        events = iter(cast("Iterable[Event]", self._events))
        narrator = self._narrator
        try:
            for event in events:
                yield from _framed(narrator.take(event))
            yield from _framed(narrator.end())
        except narrator.raised as error:
            yield from _framed(narrator.end(error))
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()
        if self._last_chunk:
            yield self._last_chunk

    async def __aiter__(self) -> AsyncIterator[str]:
        if isinstance(self._events, AsyncIterable):
            events = aiter(self._events)
        else:
            events = _as_async(self._events)
        narrator = self._narrator
        try:
            async for event in events:
                for chunk in _framed(narrator.take(event)):
                    yield chunk
            for chunk in _framed(narrator.end()):
                yield chunk
        except narrator.raised as error:
            for chunk in _framed(narrator.end(error)):
                yield chunk
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()
        if self._last_chunk:
            yield self._last_chunk


async def _as_async(events: Iterable[Event]) -> AsyncIterator[Event]:
    for event in events:
        yield event


def _framed(messages: list[dict[str, Any]]) -> Iterator[str]:
    if messages:
        yield "".join(f"data: {_json(message)}\n\n" for message in messages)


def _json(message: dict[str, Any]) -> str:
    """The message as JSON that each reader accepts, also if a text is cut inside a character.

    A model's text can contain half of a surrogate pair, which `json_text` writes as an escape.
    UTF-8 cannot encode it, and many readers refuse the escape.
    """
    text = json_text(message)
    if "\\ud" not in text:  # no escape of a surrogate
        return text
    plain = json.dumps(json.loads(text), ensure_ascii=False)
    # In UTF-16, two halves side by side are one character; a half alone is replaced with U+FFFD.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _class_of_error(error: BaseException) -> str:
    return f"The run failed: {type(error).__name__}."


def read_text(body: Mapping[str, Any], name: str) -> str:
    """A field of a request that must be a non-empty text. Raises `InputError` otherwise."""
    text = body.get(name)
    if not isinstance(text, str) or not text:
        raise InputError(f"`{name}` of a request is a text; found {shown(text)}.")
    return text


def read_list(
    body: Mapping[str, Any], name: str, *, is_required: bool = False
) -> list[dict[str, Any]]:
    """A field of a request that must be a list of objects. Raises `InputError` otherwise."""
    value: Any = body.get(name)
    if value is None and not is_required:
        return []
    if not isinstance(value, list) or len(objects(value)) < len(cast("list[Any]", value)):
        raise InputError(
            f"`{name}` of a request is a list of objects; found {shown(cast('object', value))}."
        )
    return cast("list[dict[str, Any]]", value)
