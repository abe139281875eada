"""One model call, made live: whole or streamed, told to observers, journalled."""

from __future__ import annotations

from contextlib import aclosing, closing
from typing import TYPE_CHECKING

from ferrule.errors import BadRequestError
from ferrule.models.model import answer_of
from ferrule.runs.journal.journal import Entry
from ferrule.runs.observers import exchanges
from ferrule.values.conversation.exchange import Delta, Response
from ferrule.values.record import replace
from ferrule.values.run import event as events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.runs.observers import Observers
    from ferrule.runs.state import Frame
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.run.act import CallModel


def complete(frame: Frame, slot: str, act: CallModel) -> Response:
    """Ask the model from this thread."""
    tell = frame.tell
    if tell is not None:
        tell(events.ModelCalled(slot, act.request, act.lm, act.attempt))
    try:
        if tell is None or not frame.run.wants_deltas:
            response = answer_of(act.lm, act.lm.complete(act.request))
        else:
            deltas = _Deltas(frame, tell, slot, act)
            with closing(act.lm.stream(act.request)) as stream:
                for item in stream:
                    deltas.take(item)
            response = deltas.whole()
    except BaseException as error:
        _failed(frame, slot, act, error)
        raise
    if tell is not None:
        tell(events.ModelAnswered(slot, response))
    return response


async def acomplete(frame: Frame, slot: str, act: CallModel) -> Response:
    """Ask the model without blocking the loop."""
    tell = frame.tell
    if tell is not None:
        tell(events.ModelCalled(slot, act.request, act.lm, act.attempt))
    try:
        if tell is None or not frame.run.wants_deltas:
            response = answer_of(act.lm, await act.lm.acomplete(act.request))
        else:
            deltas = _Deltas(frame, tell, slot, act)
            async with aclosing(act.lm.astream(act.request)) as stream:
                async for item in stream:
                    deltas.take(item)
            response = deltas.whole()
    except BaseException as error:
        _failed(frame, slot, act, error)
        raise
    if tell is not None:
        tell(events.ModelAnswered(slot, response))
    return response


def answered(frame: Frame, slot: str, digest: str, act: CallModel, response: Response) -> Response:
    """Put a live answer on record, every call in it with an id of its own."""
    entry = _entry(frame, slot, digest, response)
    frame.run.journal.add(entry)
    return _counted(frame, act, entry.value)


async def aanswered(frame: Frame, slot: str, digest: str, act: CallModel, response: Response) -> Response:
    """`answered` without blocking the loop while the record is written."""
    entry = _entry(frame, slot, digest, response)
    await frame.run.journal.aadd(entry)
    return _counted(frame, act, entry.value)


def _entry(frame: Frame, slot: str, digest: str, response: Response) -> Entry:
    calls = response.tool_calls
    if calls and not (len(calls) == 1 and calls[0].id):
        ids = {call.id for call in calls}
        if len(ids) != len(calls) or None in ids or "" in ids:
            response = _with_ids(response, slot)
    frame.alive()  # a late answer, for which nobody waits any more, is none of the run's
    return Entry(slot, "model", digest, response)


def _failed(frame: Frame, slot: str, act: CallModel, error: BaseException) -> None:
    # As text: an error holds its traceback, and with it every frame of the program, as long as the call is kept.
    exchanges.append((act.lm, act.request, f"{type(error).__name__}: {error}"))
    if frame.tell is not None:
        frame.tell(events.ModelAnswered(slot, error=error))


def _counted(frame: Frame, act: CallModel, response: Response) -> Response:
    frame.add_usage(response.usage)
    if frame.budget is not None:
        frame.budget.answered(response)
    exchanges.append((act.lm, act.request, response))
    return response


def _with_ids(response: Response, slot: str) -> Response:
    """Ids from the position, so that a replay in another process gives the same ones; the provider's own are kept where they are unique."""
    seen: set[str] = set()
    calls: list[ToolCall] = []
    for k, call in enumerate(response.tool_calls):
        own = call if call.id and call.id not in seen else call.with_id(f"call_{slot}_{k}")
        seen.add(own.id or "")
        calls.append(own)
    return replace(response, tool_calls=tuple(calls))


class _Deltas:
    """Tells the pieces of one streamed answer and keeps its end."""

    def __init__(self, frame: Frame, tell: Observers, slot: str, act: CallModel) -> None:
        self._frame = frame
        self._tell = tell
        self._slot = slot
        self._lm = act.lm
        self._reader = act.reader() if act.reader is not None else None
        self._response: Response | None = None

    def take(self, item: Delta | Response) -> None:
        self._frame.check()
        if isinstance(item, Response):
            self._response = answer_of(self._lm, item)
            self._tell_fields(self._reader.finish() if self._reader is not None else ())
            return
        if not isinstance(item, Delta):  # pyright: ignore[reportUnnecessaryIsInstance]  models of users yield anything
            answer_of(self._lm, item)  # it is none, and the error says so
            return
        if item.reasoning:
            self._tell(events.ThoughtDelta(self._slot, item.reasoning))
        if item.text:
            self._tell(events.TextDelta(self._slot, item.text))
            self._tell_fields(self._reader.feed(item.text) if self._reader is not None else ())

    def _tell_fields(self, pieces: Sequence[tuple[str, str]]) -> None:
        for name, piece in pieces:
            self._tell(events.ThoughtDelta(self._slot, piece) if name in _THOUGHTS else events.FieldDelta(self._slot, name, piece))

    def whole(self) -> Response:
        if self._response is None:
            msg = "the stream ended without a whole response; a model's `stream` must yield a `Response` last"
            raise BadRequestError(msg)
        return self._response


_THOUGHTS = frozenset({"next_thought", "reasoning"})
