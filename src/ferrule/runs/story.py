"""A journal as a story for readers: the model's thoughts, the calls it made, and how each ended.

It needs no program. It takes entries in the order in which they were written, with their times,
and makes beats. A beat is one turn: a model's answer or failure, and the calls that follow from it;
or a message to the run.
The beats of a program called as a tool are inside that call. Adding an entry takes constant time.

The entry of a model's answer has the calls that the model wrote, with their ids. The entries after
it (a start, a decision, a result) name a call only by its slot and by a digest: `pay {"to": "ada"}`
for a call, `confirm pay {"to": "ada"}` for a decision. So the first entry with a new slot must be
matched with a call that the model wrote. Arguments may differ between the two, because validation
and edits change them, and equal calls of one answer cannot be told apart. `_best_match` therefore
guesses, from strong evidence to weak, and `_swap` corrects the guess when a result brings the id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from msgspec import Struct, field

from ferrule.approval.message import is_message
from ferrule.approval.question import Decision, QuestionKind
from ferrule.errors import LimitReachedError
from ferrule.runs.journal.recall import named_call
from ferrule.values.calls.call import ToolResult
from ferrule.values.conversation.exchange import Usage
from ferrule.values.slot import Slot, innermost_call, programs_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ferrule.runs.journal.entry import Entry
    from ferrule.values.calls.call import ToolCall

_QUESTION_KINDS = frozenset(get_args(QuestionKind))


class CallBeat(Struct, kw_only=True):
    """One call of a beat."""

    name: str
    key: str = ""
    """Identifies the call among all calls of the run."""
    slot: str = ""
    """The slot where it ran; empty for a call that has not begun, and for `finish`."""
    call_id: str | None = None
    intention: str = ""
    written: Mapping[str, Any] | None = None
    """The arguments as the model wrote them; None if it wrote the call as text."""
    args: Mapping[str, Any] | None = None
    """The arguments with which it ran, or that a person was asked about.

    None if the model only wrote the call."""
    problem: str = ""
    """Why the call could not be parsed."""
    is_rescued: bool = False
    """Whether the call was read from the text of an answer."""
    confidence: float | None = None
    """How sure the model is of the call, from 0 to 1; None if it does not say."""
    begun: bool = False
    begun_at: float | None = None
    """When it began, in seconds since 1970; None if it has not, or if the time is unknown."""
    ended_at: float | None = None
    waits: bool = False
    """Whether its result comes from outside."""
    is_past: bool = False
    """Whether the model has answered again since."""
    result: ToolResult | None = None
    decisions: list[Decision] = field(default_factory=list)
    inside: list[Beat] = field(default_factory=list)
    """The beats of the program that was called as this tool."""

    @property
    def is_at_work(self) -> bool:
        """Whether it has begun, and has no result yet."""
        return self.begun and self.result is None and not self.waits

    @property
    def is_refused(self) -> bool:
        """Whether a person or a rule decided that the call does not run."""
        return bool(self.decisions) and self.decisions[-1].kind in {"deny", "reply"}

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The arguments that validation or a person changed, as (written, changed value).

        Arguments that the model did not write are missing: they are mostly defaults.
        """
        if self.written is None or self.args is None:
            return {}
        changes: dict[str, tuple[Any, Any]] = {}
        for name, written in self.written.items():
            if name not in self.args or self.args[name] != written:
                changes[name] = written, self.args.get(name)
        return changes


class Beat(Struct, kw_only=True):
    """One turn of a run."""

    slot: str
    """The slot of its first entry."""
    first: int
    """The number of its first entry, from 0; unique among the beats of the run."""
    number: int
    """Its number, from 0, among the beats of the run, or among those inside one call."""
    owner: str = ""
    """The key of the call in which it happened; empty for the run's own beats."""
    program: str = ""
    """The programs in which it happened, as `outer/inner`: those inside the run's own program, or
    inside the program that `owner` called."""
    begun_at: float | None = None
    """When the previous entry was written, which is about when the model was asked."""
    at: float | None = None
    """When its first entry was written: for a model's answer, when the model had answered."""
    model: str = ""
    reasoning: str = ""
    text: str = ""
    usage: Usage = Usage()
    cost: float | None = None
    error: str = ""
    """The error, if the model gave no answer."""
    limit: str = ""
    """The limit that was reached instead of an answer."""
    message: Decision | None = None
    """The message to the run, if the beat is one (`Run.say`)."""
    changed: Mapping[str, tuple[str, str]] | None = None
    """How the program differed from the one that wrote the earlier entries: (then, now)."""
    calls: list[CallBeat] = field(default_factory=list)


class Story:
    """The beats of one run, which grow with its journal.

    A story may leave out the beginning of a long run. It must then start with the entry of a beat
    of the run's own, not of a beat inside a call.
    """

    def __init__(self, *, entries: int = 0, before: int = 0, at: float | None = None) -> None:
        """Begin a story.

        Args:
            entries: The number of entries that are left out.
            before: The number of the run's own beats that are left out.
            at: The time of the last entry that is left out.

        """
        self.beats: list[Beat] = []
        self.before = before
        """How many beats of the run are left out."""
        self.entries = entries
        """How many entries were added or left out."""
        self.also_changed: Beat | None = None
        """A second beat that the last `add` changed, besides the one that it returned, or None.

        It is the beat before, if it has a call that neither ran nor waits for a person: a new
        answer of the model shows that it never will (`CallBeat.is_past`)."""
        self._calls: dict[str, tuple[Beat, CallBeat]] = {}
        """The calls that are matched with a slot, by slot, with their beats."""
        self._latest: dict[str, Beat] = {}
        """The latest beat of each frame, by the frame's path."""
        self._previous_at: dict[str, float | None] = {"": at}
        """The time of the latest entry of each frame, by the frame's path."""
        self._parsed: tuple[str, tuple[str, dict[str, Any]]] = "", ("", {})
        """The digest parsed last, with its call: a start and its result are mostly neighbours."""

    def add(self, entry: Entry, at: float | None = None) -> Beat | None:
        """Add the next entry; returns the beat that it began or changed, or None."""
        self.entries += 1
        self.also_changed = None
        entry = entry.shown()
        path = Slot(entry.slot).path
        value: Any = entry.value
        beat: Beat | None = None
        match entry.kind:
            case "model":
                beat = self._answered(entry.slot, path, value, at)
            case "failure":
                beat = self._new(entry.slot, path, at)
                beat.error = f"{type(value).__name__}: {value}"
            case "limit":
                beat = self._new(entry.slot, path, at)
                beat.limit = str(LimitReachedError(**value))
            case "begun":
                beat = self._began(entry, path, at)
            case "result":
                beat = self._ended(entry, path, at)
            case "decision" if is_message(value):
                beat = self._new(entry.slot, path, at)
                beat.message = value
            case "decision":
                beat = self._decided(entry, path, at)
            case "migrated":
                beat = self._new(entry.slot, path, at)
                beat.changed = {part: (then, now) for part, (then, now) in value["differs"].items()}
            case "once" if Slot(entry.slot).is_later:
                beat = self._waits(entry)
            case "once" | "spent":  # a clock, a random number, tokens: nothing for a reader
                pass
        if at is not None:
            self._previous_at[path] = at
        return beat

    # -- one kind of entry

    def _answered(self, slot: str, path: str, response: Any, at: float | None) -> Beat:
        beat = self._new(slot, path, at)
        beat.model, beat.reasoning = response.model or "", response.reasoning or ""
        beat.text = response.text or response.refusal or ""
        beat.usage, beat.cost = response.usage, response.cost
        for number, call in enumerate(response.tool_calls):
            beat.calls.append(_written(call, f"{beat.first}.{number}"))
        return beat

    def _began(self, entry: Entry, path: str, at: float | None) -> Beat:
        name, args = self._parse(entry.digest)
        beat, call = self._calls.get(entry.slot) or self._match(entry, path, (name, args), at)
        call.slot, call.args, call.begun, call.begun_at = entry.slot, args, True, at
        self._calls[entry.slot] = beat, call
        return beat

    def _ended(self, entry: Entry, path: str, at: float | None) -> Beat:
        name, args = self._parse(entry.digest)
        result: ToolResult = entry.value
        beat, call = self._calls.get(entry.slot) or self._match(
            entry, path, (name, args), at, result.call_id
        )
        if result.call_id is not None and call.call_id != result.call_id:
            _swap(beat, call, result.call_id)
        if call.call_id is None:
            call.call_id = result.call_id
        call.slot, call.args, call.result, call.ended_at = entry.slot, args, result, at
        self._calls[entry.slot] = beat, call
        return beat

    def _waits(self, entry: Entry) -> Beat | None:
        beat, call = self._calls.get(Slot(entry.slot).call, (None, None))
        if call is not None:
            call.waits = True
        return beat

    def at_work(self) -> list[CallBeat]:
        """The calls that have begun and have no result yet, in the order of their starts."""
        return [call for _, call in self._calls.values() if call.is_at_work]

    def _decided(self, entry: Entry, path: str, at: float | None) -> Beat:
        kind, _, rest = entry.digest.partition(" ")
        call_digest = entry.digest
        if kind in _QUESTION_KINDS:
            call_digest = rest
        name, args = self._parse(call_digest)
        # The call has a slot if it had begun; a decision before its start has to be matched.
        slot = Slot(entry.slot)
        beat, call = self._calls.get(slot.call) or self._match(entry, path, (name, args), at)
        if slot.is_of_consent:  # what begins here later is the call that was decided on
            self._calls[slot.call] = beat, call
        call.decisions.append(entry.value)
        if call.args is None:  # not begun: show the arguments that it will run with
            call.args = {**args, **entry.value.args}
        return beat

    # -- finding the beat and the call of an entry

    def _new(self, slot: str, path: str, at: float | None) -> Beat:
        """Begin a beat: the run's own, or one inside the call around the frame at `path`."""
        previous = self._latest.get(path)
        if previous is not None:
            for call in previous.calls:
                call.is_past = True
                if call.args is None:
                    self.also_changed = previous
        outer_call = innermost_call(path)
        names = programs_in(path[len(outer_call) :])
        beat = Beat(slot=slot, first=self.entries - 1, number=0, at=at)
        beat.begun_at = self._previous_at.get(path)
        if outer_call in self._calls:
            _, owner = self._calls[outer_call]
            beats = owner.inside
            beat.number = len(beats)
            beat.owner = owner.key
            if beat.begun_at is None:
                beat.begun_at = owner.begun_at
            names = names[1:]  # the first is the called program, which the call names already
        else:
            beats = self.beats
            beat.number = len(beats) + self.before
        beat.program = "/".join(names)
        beats.append(beat)
        self._latest[path] = beat
        return beat

    def _parse(self, digest: str) -> tuple[str, dict[str, Any]]:
        """The name and the arguments of the call in a digest."""
        parsed_digest, call = self._parsed
        if parsed_digest != digest:
            call = named_call(digest)
            self._parsed = digest, call
        return call

    def _match(
        self,
        entry: Entry,
        path: str,
        call: tuple[str, Mapping[str, Any]],
        at: float | None,
        call_id: str | None = None,
    ) -> tuple[Beat, CallBeat]:
        """The call of the frame's latest beat that an entry is about, and that beat.

        If the beat has no such call, the model wrote the call as text: it becomes a new call.
        """
        name, args = call
        beat = self._latest.get(path) or self._new(entry.slot, path, at)
        candidates = [
            candidate
            for candidate in beat.calls
            if candidate.name == name and not candidate.slot and not candidate.is_refused
        ]
        if candidates:
            is_decision = entry.kind == "decision"
            return beat, _best_match(candidates, args, call_id, is_decision=is_decision)
        call_as_text = CallBeat(name=name, key=f"{beat.first}.{len(beat.calls)}", args=args)
        beat.calls.append(call_as_text)
        return beat, call_as_text


def story(entries: Iterable[Entry], times: Sequence[float | None] = ()) -> tuple[Beat, ...]:
    """The beats of a whole journal.

    `times` are the times of the entries in seconds since 1970, or None where unknown.
    """
    whole = Story()
    for number, entry in enumerate(entries):
        written_at = None
        if number < len(times):
            written_at = times[number]
        whole.add(entry, written_at)
    return tuple(whole.beats)


def _best_match(
    candidates: list[CallBeat], args: Mapping[str, Any], call_id: str | None, *, is_decision: bool
) -> CallBeat:
    """Of calls with one name, the one that an entry is about. The first test that fits decides."""
    for call in candidates:
        if call_id is not None and call.call_id == call_id:
            return call
    for call in candidates:
        # A person saw these arguments. A start or a result follows the decision on its call; a
        # decision is about another call with equal arguments, which has none yet.
        if call.args == args and bool(call.decisions) is not is_decision:
            return call
    for call in candidates:
        if call.args is None and call.written == args:
            return call
    for call in candidates:  # validation changed the arguments
        if not call.decisions:
            return call
    return candidates[0]


def _written(call: ToolCall, key: str) -> CallBeat:
    problem = ""
    if call.fault is not None:
        problem = call.fault.reason
    return CallBeat(
        name=call.name,
        key=key,
        call_id=call.id,
        intention=call.intention or "",
        written=call.args,
        problem=problem,
        is_rescued=call.is_rescued,
        confidence=call.confidence,
    )


def _swap(beat: Beat, call: CallBeat, call_id: str) -> None:
    """Give a matched call the id that its result has, and what the model wrote under that id.

    Equal calls of one answer were matched by their order. What the run did stays where it is; what
    the model wrote changes places with the call that has the id so far.
    """
    for other in beat.calls:
        if other.call_id == call_id and other.name == call.name:
            call.call_id, other.call_id = other.call_id, call.call_id
            call.written, other.written = other.written, call.written
            call.intention, other.intention = other.intention, call.intention
            return
