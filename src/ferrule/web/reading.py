"""What pages show, read from the store."""

from __future__ import annotations

from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, get_args

from ferrule.errors import StoreError
from ferrule.runs.journal.encode import parse_object, read_decision, read_entry
from ferrule.runs.state import RunStatus
from ferrule.runs.store.listing import NO_ENTRIES
from ferrule.runs.story import Story
from ferrule.values.conversation.exchange import Usage
from ferrule.values.record import Changing, Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.runs.protocols import Store, Summary
    from ferrule.runs.story import Beat
    from ferrule.values.confirmation.question import Decision, Question

STATUSES: tuple[str, ...] = get_args(RunStatus)
PAGE = 100
"""Runs on a page."""
BEATS = 200
"""Beats on the first page of a run."""


class Runs(Record, kw_only=True):
    """One page of the list of runs."""

    lines: list[Summary]
    status: str
    program: str
    search: str
    before: str
    """Where this page begins: empty for the first one."""
    older: str
    """Where the next page begins; empty if there is none."""

    @property
    def programs(self) -> list[str]:
        """Those of the lines, each once."""
        return list(dict.fromkeys(each.program for each in self.lines))


def page_of_runs(store: Store, query: Mapping[str, str]) -> Runs:
    """The runs that a query asks for: `status`, `program`, `q` (a part of the id) and `before`."""
    status = query.get("status", "")
    status = status if status in STATUSES else ""
    program, search = query.get("program", "").strip(), query.get("q", "").strip()
    wanted: dict[str, Any] = {"status": status or None, "program": program or None, "before": _place(query.get("before", ""))}
    found = store.list(**wanted, limit=None if search else PAGE + 1)
    if search:
        found = [each for each in found if search in each.id]
    lines = found[:PAGE]
    older = f"{lines[-1].updated_at!r}~{lines[-1].id}" if len(found) > PAGE else ""
    return Runs(lines=lines, status=status, program=program, search=search, before=query.get("before", ""), older=older)


def _place(text: str) -> tuple[float, str] | None:
    at, found, run_id = text.partition("~")
    try:
        return (float(at), run_id) if found else None
    except ValueError:
        return None


class AskedQuestion(Record, kw_only=True):
    """A question of a run, and the decision on it if there is one already."""

    run: Summary
    question: Question
    decision: Decision | None = None


def asked(store: Store, run: Summary) -> list[AskedQuestion]:
    """The questions of a run that waits, decided ones too."""
    decisions = decided(store, run.id) if run.decided else {}
    return [AskedQuestion(run=run, question=each, decision=decisions.get(each.id)) for each in run.questions]


def decided(store: Store, run_id: str) -> dict[str, Decision]:
    """The decisions that a run has not used yet, by their questions."""
    stored = store.load(run_id, after=NO_ENTRIES)
    return {each.question_id: each for each in (read_decision(parse_object(text, "a decision")) for text in stored.decisions)}


def find_decision(store: Store, run_id: str, question_id: str) -> Decision | None:
    """The decision on a question, used or not."""
    try:
        stored = store.load(run_id)
    except StoreError:
        return None
    used = (read_entry(text).value for text in reversed(stored.entries) if question_id in text and '"decision"' in text)
    waiting = (read_decision(parse_object(text, "a decision")) for text in stored.decisions)
    return next((each for each in (*waiting, *used) if getattr(each, "question_id", None) == question_id), None)


def inbox(store: Store) -> list[AskedQuestion]:
    """All questions that wait for a person, the oldest first; those that are decided stay until their run goes on."""
    waiting = sorted(store.list(status="waiting", limit=None), key=lambda each: each.updated_at)
    return [each for run in waiting for each in asked(store, run)]


def count_waiting(store: Store) -> int:
    """How many questions are undecided."""
    return sum(1 for run in store.list(status="waiting", limit=None) for each in run.questions if each.id not in run.decided)


class Read(Changing):
    """A run as far as it was read: it grows with its journal. Used by one thread at a time, which holds the lock."""

    store: Store
    run_id: str
    story: Story = field(default_factory=Story)
    changed: list[Beat | None] = field(default_factory=list["Beat | None"])
    """The beat that each entry began or changed, by the entry's number."""
    head: Mapping[str, Any] = field(default_factory=dict[str, Any])
    usage: Usage = Usage()
    shown: dict[int, str] = field(default_factory=dict[int, str])
    """The HTML of the run's own beats that did not change since they were shown, by their first entries."""
    lock: Any = field(default_factory=RLock)
    _head: str = ""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What the run was started with."""
        return inputs_in(self.head)

    def more(self) -> None:
        """Read what was written since; all of it, if the run was deleted or redacted, and another one has its id."""
        stored = self.store.load(self.run_id, after=self.story.entries)
        if stored.head != self._head:
            head = parse_object(stored.head, "the head of a run")
            if self.head and (head.get("key"), head.get("redacted")) != (self.head.get("key"), self.head.get("redacted")):
                self.story, self.changed, self.usage, self.shown = Story(), [], Usage(), {}
                stored = self.store.load(self.run_id)
            self._head, self.head = stored.head, head
        times = stored.times or [None] * len(stored.entries)
        for text, at in zip(stored.entries, times, strict=True):
            entry = read_entry(text)
            last = self.story.beats[-1:]
            beat = self.story.add(entry, at)
            self.changed.append(beat)
            if beat is not None:
                for each in (self._outermost(beat), *last):  # the last one too: its calls may be past now
                    self.shown.pop(each.first, None)
            if entry.kind == "model":
                self.usage += entry.value.usage

    def _outermost(self, beat: Beat) -> Beat:
        while beat.owner:  # the key of the call around it, which begins with the number of that call's beat
            outer = self.changed[int(beat.owner.partition(".")[0])]
            assert outer is not None  # noqa: S101  a beat with calls was begun by its first entry
            beat = outer
        return beat

    def since(self, number: int) -> list[Beat]:
        """The beats that the entries from this number on began or changed, each once."""
        beats = {each.first: each for each in self.changed[number:] if each is not None}
        return [beats[first] for first in sorted(beats)]

    def beat(self, first: int) -> Beat:
        """The beat of this first entry. Raises `StoreError` if there is none."""
        found = self.changed[first] if 0 <= first < len(self.changed) else None
        if found is None or found.first != first:
            raise StoreError(f"The run {self.run_id!r} has no such turn.")
        return found


class Readings:
    """The runs that pages showed last, so that a page reads only what is new."""

    def __init__(self, store: Store, most: int = 32) -> None:
        self._store = store
        self._most = most
        self._lock = Lock()
        self._found: dict[str, Read] = {}

    def read(self, run_id: str) -> Read:
        """A run, with its whole journal. Raises `StoreError` if there is none."""
        with self._lock:
            found = self._found.pop(run_id, None) or Read(self._store, run_id)
            self._found[run_id] = found
            while len(self._found) > self._most:
                del self._found[next(iter(self._found))]
        try:
            with found.lock:
                found.more()
        except BaseException:
            with self._lock:
                self._found.pop(run_id, None)
            raise
        return found


def inputs_in(head: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that the head of a run holds, by name or place."""
    named: Any = head.get("inputs")
    args: Any = head.get("args") or ()
    return {**{str(k): value for k, value in enumerate(args)}, **(named if isinstance(named, dict) else {})}


def read_run(store: Store, run_id: str) -> Read:
    """A run with its whole journal."""
    found = Read(store, run_id)
    found.more()
    return found
