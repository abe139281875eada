"""One live model call, whole or streamed: reported to observers, and journalled."""

from __future__ import annotations

from contextlib import aclosing, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule import events
from ferrule.concurrency import offload
from ferrule.errors import BadRequestError, ConfigurationError, RunError
from ferrule.errors import shown as shortened
from ferrule.forms import usage_form
from ferrule.models.calls_in_text import with_calls
from ferrule.models.model import answer_of
from ferrule.runs.driver.halts import await_effectless, run_until_end
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.spending import spent
from ferrule.values.conversation.exchange import CallReader, Delta, Response, Usage, exchanges
from ferrule.values.conversation.thoughts import ThoughtSplitter
from ferrule.values.masked import masked_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.acts import CallModel
    from ferrule.observers import Observers
    from ferrule.runs.state import Frame
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.conversation.exchange import CallPiece, FieldReader
    from ferrule.values.conversation.message import Messages
    from ferrule.values.conversation.thoughts import Kind
    from ferrule.values.provider_tools import ProviderCall
    from ferrule.values.slot import Slot


async def call_model(frame: Frame, slot: Slot, act: CallModel) -> Response:
    """Call the model.

    Returns the response as it is journalled, with a unique id for every tool call.
    """
    tell, lm = frame.tell, act.lm
    if tell is not None:
        tell(events.ModelCalled(slot, act.request, lm, act.attempt))
    try:
        batch_requests = frame.run.batch_requests
        if batch_requests is not None:
            earlier_calls = spent(frame.run.journal.entries).calls
            mark = b"%b %d" % (frame.run.key, earlier_calls)
            answer = await await_effectless(
                frame, frame.life, batch_requests.answer(mark, lm, act.request)
            )
            response = _answer_of(frame, act, answer)
        elif tell is not None and frame.run.wants_deltas:
            response = await _stream(frame, tell, slot, act)
        elif frame.blocks:
            answer = run_until_end(frame, frame.life, partial(lm.complete, act.request))
            response = _answer_of(frame, act, answer)
        else:
            answer = await await_effectless(frame, frame.life, lm.acomplete(act.request))
            response = _answer_of(frame, act, answer)
        if response.cost is None and frame.run.prices is not None:
            response = await _priced(frame, lm, response)
    except BaseException as error:
        if not hasattr(lm, "complete"):
            raise ConfigurationError(
                f"`CallModel(request, lm)` needs a model, found {shortened(lm)}. "
                "`(yield Within()).lm` is the one that is set."
            ) from None
        # As text: an error object would keep its traceback, and with it every frame of the program,
        # alive in the history.
        exchanges.append((lm, act.request, f"{type(error).__name__}: {error}"))
        if tell is not None:
            tell(events.ModelAnswered(slot, error=error))
        raise
    if tell is not None:
        if not frame.run.wants_deltas:  # a stream has told of them as they came
            for call in response.provider_calls:
                _tell_provider_call(tell, slot, call)
        shown = masked_response(response, act.request.secrets)
        tell(events.ModelAnswered(slot, shown))
    response = _with_ids(response, slot, act.request.messages)
    frame.check_alive()  # a response that arrives after the run ended is discarded
    if frame.budget is not None:
        frame.budget.count_response(response, lm)
        # Before it is journalled: if this raises, a run that is resumed with a price calls again.
        frame.budget.check_cost()
    entry = Entry(slot, "model", act.request, response, act.request.secrets)
    await frame.run.journal.write(entry, blocks=frame.blocks)
    exchanges.append((lm, act.request, response))
    return response


def _answer_of(frame: Frame, act: CallModel, answer: Any) -> Response:
    """The answer as programs get it: thoughts apart, and calls as calls.

    It counts as a call, also if the model itself counts none.
    """
    response = answer_of(act.lm, answer, act.request)
    if not response.usage.calls:
        response = replace(response, usage=replace(response.usage, calls=1))
    return with_calls(act.lm, act.request, response, frame.run.structured_callers)


async def _priced(frame: Frame, lm: Any, response: Response) -> Response:
    """The answer with its cost, if it is known.

    Prices that must be loaded first are loaded in another thread.
    """
    prices, name = frame.run.prices, response.answered_by or getattr(lm, "name", "")
    work = partial(prices.cost_of, response, name)
    if not prices.waits(response, name):
        cost = work()
    elif frame.blocks:
        cost = offload.result_or_run(offload.submit(work), work)
    else:
        cost = await offload.in_worker_thread(work)
    if cost is None:
        return response
    if frame.run.batch_requests is not None:
        cost *= frame.run.batch_requests.price_factor
    return replace(response, cost=cost)


async def _stream(frame: Frame, tell: Observers, slot: Slot, act: CallModel) -> Response:
    deltas = _Deltas(frame, tell, slot, act)

    def read() -> None:
        with closing(act.lm.stream(act.request)) as stream:
            for item in stream:
                deltas.take(item)

    async def aread() -> None:
        async with aclosing(act.lm.astream(act.request)) as stream:
            async for item in stream:
                deltas.take(item)

    try:
        if frame.blocks:
            run_until_end(frame, frame.life, read)
        else:
            await await_effectless(frame, frame.life, aread())
    except GeneratorExit:  # the garbage collector's; nothing can be awaited now
        raise
    except BaseException:
        if deltas.so_far is not None:
            with suppress(RunError):  # an abandoned execution, or a store that fails
                await _count_cut_off(frame, slot, act, deltas.so_far)
        raise
    return deltas.whole()


async def _count_cut_off(frame: Frame, slot: Slot, act: CallModel, so_far: Response) -> None:
    """Count what is known of a request whose answer was cut off: it has to be paid."""
    if so_far.cost is None and frame.run.prices is not None:
        so_far = await _priced(frame, act.lm, so_far)
    usage = replace(so_far.usage, calls=1, cost=so_far.cost)
    # An unknown cost does not end the run: only that of a whole answer does.
    counts: dict[str, Any] = {"tokens": usage.total_tokens, "cost": so_far.cost or 0.0}
    if frame.budget is not None:
        frame.budget.spend(**counts)
    by_model = Usage(by_model={so_far.model or "": usage})
    await frame.write(Entry(slot, "spent", "", {**counts, "usage": usage_form(by_model)}))


def _with_ids(response: Response, slot: str, messages: Messages) -> Response:
    """Give each call an id from its position, unless it has a unique one from the provider.

    So a replay in another process gives the same ids. Some servers number the calls of each answer
    from 0, so an id may be in the conversation already.
    """
    seen: set[str] = set()
    calls: list[ToolCall] = []
    is_changed = False
    for number, call in enumerate(response.tool_calls):
        if not call.id or call.id in seen or messages.has_call(call.id):
            call_id = f"call_{slot}_{number}"
            while call_id in seen or messages.has_call(call_id):  # of an earlier turn
                call_id += "_"
            call = call.with_id(call_id)  # noqa: PLW2901
            is_changed = True
        seen.add(call.id or "")
        calls.append(call)
    if not is_changed:
        return response
    return replace(response, tool_calls=tuple(calls))


def _tell_provider_call(tell: Observers, slot: str, call: ProviderCall) -> None:
    """Tell of a call that has ended, of which nothing was told before."""
    begun = replace(call, result=None, is_error=False)
    tell(events.ProviderCallStarted(slot, begun))
    tell(events.ProviderCallFinished(slot, call))


class _Deltas:
    """Reports the pieces of one streamed answer, each once, and keeps its final response.

    If a reader splits the text into fields, text that it does not return is held back until the
    first field begins: it may be thoughts without an opening tag, or an answer without fields. What
    the text is may become clear only after it was reported; `Preamble` then takes it back.
    """

    def __init__(self, frame: Frame, tell: Observers, slot: str, act: CallModel) -> None:
        self._frame = frame
        self._tell = tell
        self._slot = slot
        self._act = act
        self._splitter = ThoughtSplitter(act.request)
        self._reader: FieldReader | None = None
        self._call_reader: CallReader | None = None
        """The same reader, if it also reads calls."""
        self._begin_reader()
        self._held_back: list[str] | None = []
        """The text so far, while it may be thoughts or text without fields.

        None after the first field."""
        self._has_fields = False
        self._reported_text: list[str] | None = []
        """The text that was reported and may precede calls; None after the first call."""
        self._names: dict[int, str] = {}
        """The names of the calls so far."""
        self._provider_calls: dict[str, bool] = {}
        """By id, or by name and arguments, the provider's calls so far, and whether they ended."""
        self._is_silent = True
        """Whether no piece has come so far: a model may stream only its final response."""
        self._response: Response | None = None
        self._is_over = False
        """Whether the pieces have come, and only the whole response follows."""
        self.so_far: Response | None = None
        """What is known of the model and of the tokens, before the whole response."""

    def take(self, item: Delta | Response) -> None:
        self._frame.check()
        if isinstance(item, Response):
            response = _answer_of(self._frame, self._act, item)
            self._response = response
            self._is_over = not self._is_silent
            if self._is_silent:
                for delta in response.deltas():
                    self.take(delta)
            elif response.tool_calls and not item.tool_calls:
                self._note_rescued(response.text or "")
            self._take_pieces(self._splitter.finish())
            for call in response.provider_calls:  # a model may tell of them at the end only
                self._take_provider_call(call, is_running=False)
            if self._reader is not None:
                self._finish_reader(self._reader)
            self._tell_held_back()
            return
        # Models of users yield anything.
        if not isinstance(item, Delta):
            answer_of(self._act.lm, item)  # raises: the item is not a response
            return
        self._is_silent = False
        if item.so_far is not None:
            self.so_far = item.so_far
        if item.reasoning:
            self._splitter.follow_reasoning()
            self._tell(events.ThoughtDelta(self._slot, item.reasoning))
        if item.text:
            self._take_pieces(self._splitter.feed(item.text))
        if item.provider_call is not None:
            self._take_provider_call(item.provider_call, is_running=item.is_running)
        if item.call is not None:
            self._take_call(item.call)

    def _take_provider_call(self, call: ProviderCall, *, is_running: bool) -> None:
        """Tell of a call of the provider once when it begins, and once when it has ended."""
        key = call.id or f"{call.name} {call.args}"
        has_ended = self._provider_calls.get(key)
        if has_ended is None:
            self._take_pieces(self._splitter.finish())
            if not self._is_over:
                self._begin_again()
            self._tell(events.ProviderCallStarted(self._slot, replace(call, result=None)))
        if not is_running and not has_ended:
            self._tell(events.ProviderCallFinished(self._slot, call))
        self._provider_calls[key] = bool(has_ended) or not is_running

    def _begin_again(self) -> None:
        """Report that the text so far precedes a call: the answer begins after it."""
        if self._reported_text is not None:
            self._end_text()
        self._begin_reader()
        self._held_back, self._reported_text, self._has_fields = [], [], False

    def _take_pieces(self, pieces: Sequence[tuple[Kind, str]]) -> None:
        for kind, piece in pieces:
            if kind == "closed":
                self._take_back()
            elif kind == "thought":
                self._tell(events.ThoughtDelta(self._slot, piece))
            elif self._reader is None:
                self._tell_text(piece)
            else:
                if self._held_back is not None:
                    self._held_back.append(piece)
                self._tell_fields(self._reader.feed(piece))

    def _take_call(self, piece: CallPiece) -> None:
        self._take_pieces(self._splitter.finish())  # a closing tag right before the call
        if self._reported_text is not None:
            self._end_text()
        arguments = piece.arguments
        # Which piece of a secret is harmless cannot be told; the checked arguments come with
        # `CallStarted`.
        if self._has_secrets(piece):
            arguments = ""
        self._tell(events.CallDelta(self._slot, piece.index, piece.name, arguments, piece.id))
        if self._call_reader is not None:
            self._tell_fields(self._call_reader.feed_call(piece))

    def _has_secrets(self, piece: CallPiece) -> bool:
        """Whether a piece belongs to a call with secret arguments, as far as its name is known."""
        secrets = self._act.request.secrets
        if not secrets:
            return False
        name = self._names[piece.index] = piece.name or self._names.get(piece.index, "")
        return any(tool in name for tool in secrets)

    def _end_text(self) -> None:
        """Report that the text so far precedes calls."""
        if self._call_reader is not None:
            self._tell_fields(self._call_reader.begin_calls())
        self._tell_held_back()
        text = "".join(self._reported_text or ())
        self._reported_text = None
        if text.strip():
            self._tell(events.Preamble(self._slot, self._text_field, text))

    def _finish_reader(self, reader: FieldReader) -> None:
        pieces = reader.finish()
        if self._call_reader is not None:
            remains = self._call_reader.take_back()
            if remains is not None:
                self._tell(events.Preamble(self._slot, self._text_field, remains))
        self._tell_fields(pieces)

    def _note_rescued(self, rest: str) -> None:
        # The reader has the text as it came, with the calls.
        if self._call_reader is not None:
            self._call_reader.note_rescued(rest)

    @property
    def _text_field(self) -> str:
        if self._call_reader is None:
            return ""
        return self._call_reader.text_field

    def _take_back(self) -> None:
        """Treat all text so far as thoughts: the fields are read from the text after them."""
        text = "".join([*(self._reported_text or ()), *(self._held_back or ())]).strip()
        if self._reported_text:
            self._tell(events.Preamble(self._slot, self._text_field, ""))
        if text:
            self._tell(events.ThoughtDelta(self._slot, text))
        elif self._has_fields:  # the thoughts held a draft of the answer
            self._tell(
                events.AttemptFailed(
                    "The fields so far were a draft in the model's thoughts.", self._act.attempt
                )
            )
        self._begin_reader()
        self._held_back, self._reported_text, self._has_fields = [], [], False

    def _tell_held_back(self) -> None:
        if self._held_back:
            self._tell_text("".join(self._held_back))
            self._held_back.clear()

    def _tell_text(self, text: str) -> None:
        if self._reported_text is not None:
            self._reported_text.append(text)
        self._tell(events.TextDelta(self._slot, text))

    def _tell_fields(self, pieces: Sequence[tuple[str, str]]) -> None:
        for name, piece in pieces:
            self._held_back = None
            if not name:
                self._tell_text(piece)
            elif name in _THOUGHTS:
                self._tell(events.ThoughtDelta(self._slot, piece))
            else:
                if name == self._text_field and self._reported_text is not None:
                    self._reported_text.append(piece)
                self._has_fields = True
                self._tell(events.FieldDelta(self._slot, name, piece))

    def _begin_reader(self) -> None:
        self._reader = self._call_reader = None
        if self._act.reader is not None:
            self._reader = self._act.reader()
        # Once an answer: to compare with a protocol takes longer than to read a piece.
        if isinstance(self._reader, CallReader):
            self._call_reader = self._reader

    def whole(self) -> Response:
        """The final response, which the model's stream yields last."""
        if self._response is None:
            raise BadRequestError(
                "the stream ended without a whole response; a model's `stream` must yield a "
                "`Response` last"
            )
        return self._response


_THOUGHTS = frozenset({"next_thought", "reasoning"})
