"""A journal as a story for readers: the model's thoughts, the calls it made, and how each ended.

It needs no program. In: entries in the order in which they were written, with their times.
Out: beats. A beat is one
turn: a model's answer or failure, and the calls that follow from it. The beats of a program called
as a tool are inside that call. Adding an entry takes constant time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ferrule.approval.question import Decision
from ferrule.errors import LimitReachedError
from ferrule.runs.journal.recall import named_call
from ferrule.values.calls.call import ToolResult
from ferrule.values.conversation.exchange import Usage
from ferrule.values.slot import Slot, innermost_call, programs_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ferrule.runs.journal.entry import Entry
    from ferrule.values.calls.call import ToolCall

_ABOUT = frozenset({"confirm", "clarify", "unknown", "input", "migration"})


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
    begun_at: float | None = None
    ended_at: float | None = None
    begun: bool = False
    is_past: bool = False
    """Whether the model has answered again since."""
    result: ToolResult | None = None
    decisions: list[Decision] = field(default_factory=list)
    inside: list[Beat] = field(default_factory=list)
    """The beats of the program that was called as this tool."""

    @property
    def is_refused(self) -> bool:
        """Whether a person or a rule decided that the call does not run."""
        return bool(self.decisions) and self.decisions[-1].kind in {"deny", "reply"}

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The arguments that differ from what the model wrote: name to (written, prepared).

        Without defaults that were filled in.
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
    """The names of the programs around it that were not called as tools."""
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
    changed: Mapping[str, tuple[str, str]] | None = None
    """How the program differed from the one that wrote the earlier entries: (then, now)."""
    calls: list[CallBeat] = field(default_factory=list)


class Story:
    """The beats of one run, which grow with its journal.

    All of them, or only those after the first `entries` entries and `before` beats. A story without
    its beginning must start with a beat of the run's own. `at` is when the entry before that was
    written.
    """

    def __init__(self, *, entries: int = 0, before: int = 0, at: float | None = None) -> None:
        self.beats: list[Beat] = []
        self.before = before
        """How many beats of the run are left out."""
        self.entries = entries
        """How many entries were added or left out."""
        self.past: Beat | None = None
        """Another beat that the last entry changed, or None.

        A call in it never ran, and no person was asked about it; it is now past."""
        self._calls: dict[str, tuple[Beat, CallBeat]] = {}
        """The calls that have a slot, with their beats."""
        self._open: dict[str, Beat] = {}
        """The latest beat of each frame, by its path."""
        self._seen_at: dict[str, float | None] = {"": at}
        self._last: tuple[str, tuple[str, dict[str, Any]]] = "", ("", {})
        """The call parsed last, by its digest: its start and its result are mostly neighbours."""

    def add(self, entry: Entry, at: float | None = None) -> Beat | None:
        """Add the next entry; returns the beat that it began or changed, or None."""
        self.entries += 1
        self.past = None
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
            case "decision":
                beat = self._decided(entry, path, at)
            case "migrated":
                beat = self._new(entry.slot, path, at)
                beat.changed = {what: (then, now) for what, (then, now) in value["differs"].items()}
            case "once":
                pass
        if at is not None:
            self._seen_at[path] = at
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
        name, args = self._named(entry.digest)
        beat, call = self._calls.get(entry.slot) or self._match(entry, path, (name, args), at)
        call.slot, call.args, call.begun, call.begun_at = entry.slot, args, True, at
        self._calls[entry.slot] = beat, call
        return beat

    def _ended(self, entry: Entry, path: str, at: float | None) -> Beat:
        name, args = self._named(entry.digest)
        result: ToolResult = entry.value
        beat, call = self._calls.get(entry.slot) or self._match(
            entry, path, (name, args), at, result.call_id
        )
        if result.call_id is not None and call.call_id != result.call_id:
            _swap(beat, call, result.call_id)
        call.slot, call.args, call.result, call.ended_at = entry.slot, args, result, at
        self._calls[entry.slot] = beat, call
        return beat

    def _decided(self, entry: Entry, path: str, at: float | None) -> Beat:
        kind, _, rest = entry.digest.partition(" ")
        call_digest = entry.digest
        if kind in _ABOUT:
            call_digest = rest
        name, args = self._named(call_digest)
        beat, call = self._calls.get(Slot(entry.slot).call) or self._match(
            entry, path, (name, args), at
        )
        call.decisions.append(entry.value)
        if call.args is None:
            call.args = {**args, **entry.value.args}
        return beat

    # -- places

    def _new(self, slot: str, path: str, at: float | None) -> Beat:
        previous = self._open.get(path)
        if previous is not None:
            for call in previous.calls:
                call.is_past = True
                if call.args is None:
                    self.past = previous
        around = innermost_call(path)
        names = programs_in(path[len(around) :])
        beat = Beat(slot=slot, first=self.entries - 1, number=0, at=at)
        beat.begun_at = self._seen_at.get(path)
        if around in self._calls:
            _, owner = self._calls[around]
            beats, beat.number = owner.inside, len(owner.inside)
            beat.owner = owner.key
            if beat.begun_at is None:
                beat.begun_at = owner.begun_at
            names = names[1:]  # the program that was called as this tool
        else:
            beats, beat.number = self.beats, len(self.beats) + self.before
        beat.program = "/".join(names)
        beats.append(beat)
        self._open[path] = beat
        return beat

    def _named(self, digest: str) -> tuple[str, dict[str, Any]]:
        if self._last[0] != digest:
            self._last = digest, named_call(digest)
        return self._last[1]

    def _match(
        self,
        entry: Entry,
        path: str,
        call: tuple[str, Mapping[str, Any]],
        at: float | None,
        call_id: str | None = None,
    ) -> tuple[Beat, CallBeat]:
        """The call of the latest beat to which these arguments belong.

        A new call if the model wrote it as text.
        """
        name, args = call
        beat = self._open.get(path) or self._new(entry.slot, path, at)
        free = [
            written
            for written in beat.calls
            if written.name == name and not written.slot and not written.is_refused
        ]
        if free:
            is_decision = entry.kind == "decision"
            return beat, _best_match(free, args, call_id, is_decision=is_decision)
        as_text = CallBeat(name=name, key=f"{beat.first}.{len(beat.calls)}", args=args)
        beat.calls.append(as_text)
        return beat, as_text


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
    free: list[CallBeat], args: Mapping[str, Any], call_id: str | None, *, is_decision: bool
) -> CallBeat:
    """Of equally named calls, the one that an entry is about: by its id, else by its arguments."""
    for call in free:
        if call_id is not None and call.call_id == call_id:
            return call
    for call in free:
        # A decision is about a call without one, and a start or a result about a decided one.
        if call.args == args and bool(call.decisions) is not is_decision:
            return call
    for call in free:
        if call.args is None and call.written == args:
            return call
    for call in free:
        if not call.decisions:
            return call
    return free[0]


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
    )


def _swap(beat: Beat, call: CallBeat, call_id: str) -> None:
    """Correct a match.

    Equal calls of one answer are matched by their order, until a result's id shows that two must
    be swapped.
    """
    for other in beat.calls:
        if other.call_id == call_id and other.name == call.name:
            call.call_id, other.call_id = other.call_id, call.call_id
            call.written, other.written = other.written, call.written
            call.intention, other.intention = other.intention, call.intention
            return
