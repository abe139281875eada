"""What pages show, read from the store."""

from __future__ import annotations

import re
import shlex
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from functools import lru_cache
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, cast, get_args
from urllib.parse import quote
from zlib import crc32

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ferrule.approval.message import is_message
from ferrule.approval.question import Decision, Question
from ferrule.errors import StoreError
from ferrule.runs.journal.cut import ForkedFrom, forked_from
from ferrule.runs.journal.encode import read_entry, read_usage
from ferrule.runs.journal.spending import spent
from ferrule.runs.protocols import RunStatus, Store, Summary
from ferrule.runs.store.listing import NO_ENTRIES, decision_in, decisions_of, head_of
from ferrule.runs.story import Beat, Story
from ferrule.values.conversation.exchange import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ferrule.runs.protocols import Stored

STATUSES: tuple[str, ...] = get_args(RunStatus)
PAGE = 100
"""Runs on a page."""
BEATS = 200
"""Earlier beats on one page of a run."""
FEW, LATEST = 40, 6
"""A run of at most `FEW` beats is shown as a whole.

The first page of a longer one has its `LATEST` beats, more than a screen holds.
"""
_MOST_READINGS = 32
_PLAIN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_OWN_SLOT = re.compile(r"([0-9]+)[^/]*")
"""The slot of an entry of the run's own, not of a program inside it; and its first number."""
_BEGINS_BEAT = frozenset({"model", "failure", "limit", "migrated"})
"""The kinds of entries that begin a beat."""


class _EntryHead(Struct):
    """The part of an entry that says where it belongs."""

    slot: str
    kind: str


_ENTRY_HEAD = msgspec.json.Decoder(_EntryHead)


class AskedQuestion(Struct, frozen=True, kw_only=True):
    """A question of a run, and the decision on it if there is one already."""

    run: Summary
    question: Question
    decision: Decision | None = None


def asked(store: Store, run: Summary) -> list[AskedQuestion]:
    """The questions of a run that waits, decided ones too."""
    decisions = {}
    if run.decided:
        decisions = decided(store, run.id)
    return [
        AskedQuestion(run=run, question=question, decision=decisions.get(question.id))
        for question in run.questions
    ]


def decided(store: Store, run_id: str) -> dict[str, Decision]:
    """The decisions that a run has not used yet, by their questions."""
    return _by_question(decisions_of(store.load(run_id, after=NO_ENTRIES)))


def _by_question(decisions: Iterable[Decision]) -> dict[str, Decision]:
    return {decision.question_id: decision for decision in decisions}


def is_missing(error: StoreError) -> bool:
    """Whether the error says that the store has no such run, and not that the store failed."""
    return "has no run" in str(error)


def find_decision(store: Store, run_id: str, question_id: str) -> Decision | None:
    """The decision on a question, used or not."""
    try:
        stored = store.load(run_id)
    except StoreError as error:
        if is_missing(error):
            return None
        raise
    unused = _by_question(decisions_of(stored))
    return unused.get(question_id) or decision_in(stored.entries, question_id)


def inbox(store: Store) -> tuple[list[AskedQuestion], list[Summary]]:
    """All questions that wait for a person, the oldest first.

    Those that are decided stay until their run goes on. Returns also the runs whose questions are
    damaged, with the reason in `error`.
    """
    questions = list[AskedQuestion]()
    damaged = list["Summary"]()
    waiting = store.list(status="waiting", limit=None)
    for run in sorted(waiting, key=lambda run: run.updated_at):
        try:
            questions += asked(store, run)
        except StoreError as error:
            if not is_missing(error):
                damaged.append(replace(run, error=str(error)))
            continue
        if not run.questions and run.error is not None:
            damaged.append(run)
    return questions, damaged


def undecided(run: Summary) -> list[Question]:
    """The questions of a run without a decision."""
    return [question for question in run.questions if question.id not in run.decided]


def can_go_on(run: Summary) -> bool:
    """Whether a run waits for nothing but to be resumed: all its questions are decided."""
    return run.status == "waiting" and bool(run.questions) and not run.leased and not undecided(run)


class Read(Struct):
    """A run as far as it was read: it grows with its journal.

    Used by one thread at a time, which holds the lock. A long run at rest is read without its
    beginning, until somebody asks for an earlier beat.
    """

    store: Store
    run_id: str
    is_whole: bool = True
    """Whether the beginning of a long run is read too."""
    story: Story = field(default_factory=Story)
    start: int = 0
    """The number of the first entry that was read."""
    changed: list[Beat | None] = field(default_factory=list["Beat | None"])
    """The beat that each entry from `start` on began or changed."""
    also_changed: dict[int, Beat] = field(default_factory=dict[int, "Beat"])
    """By the number of an entry: `Story.also_changed` after it, if it was not None."""
    head: Mapping[str, Any] = field(default_factory=dict[str, Any])
    usage: Usage = Usage()
    unread: list[Decision] = field(default_factory=list["Decision"])
    """The messages to the run that it has not read."""
    shown: dict[int, str] = field(default_factory=dict[int, str])
    """The HTML of the run's own beats that did not change since they were shown.

    By the number of their first entry.
    """
    lock: Any = field(default_factory=RLock)
    _head: str = ""

    @property
    def forked_from(self) -> ForkedFrom | None:
        """What the run is a fork of; None for most runs."""
        return forked_from(self.head)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What the run was started with."""
        return inputs_in(self.head)

    @property
    def turns(self) -> int:
        """How many beats of its own the run has, those that were not read too."""
        return self.story.before + len(self.story.beats)

    def turns_between(self, first: int, end: int) -> list[Beat]:
        """The run's own beats with these numbers."""
        before = self.story.before
        return self.story.beats[max(0, first - before) : max(0, end - before)]

    def more(self) -> None:
        """Read the new entries.

        Reads all of them again if the run was redacted, or deleted and another one has its id.
        """
        stored = self._load()
        self.unread = [decision for decision in decisions_of(stored) if is_message(decision)]
        texts = stored.entries
        times = stored.times or [None] * len(texts)
        skipped = 0
        if not self.story.entries:
            skipped = self._skip_beginning(stored, times)
        # The head has the sum of all tokens, also of the entries that are skipped here.
        counts_usage = not skipped
        for text, time in zip(texts[skipped:], times[skipped:], strict=True):
            entry = read_entry(text)
            beat = self.story.add(entry, time)
            self.changed.append(beat)
            if self.story.also_changed is not None:
                self.also_changed[self.story.entries - 1] = self.story.also_changed
            for changed_beat in (beat, self.story.also_changed):
                if changed_beat is not None:
                    self.shown.pop(self._outermost(changed_beat).first, None)
            if entry.kind in {"model", "spent"} and counts_usage:
                self.usage += spent([entry])

    def _load(self) -> Stored:
        """The run with its new entries."""
        stored = self.store.load(self.run_id, after=self.story.entries)
        if stored.head == self._head:
            return stored
        head = head_of(stored)
        identity = (head.get("key"), head.get("redacted"))
        if self.head and identity != (self.head.get("key"), self.head.get("redacted")):
            self.is_whole = True
            self.story = Story()
            self.start = 0
            self.changed = []
            self.also_changed = {}
            self.usage = Usage()
            self.shown = {}
            stored = self.store.load(self.run_id)
        self._head = stored.head
        self.head = head
        return stored

    def _skip_beginning(self, stored: Stored, times: Sequence[float | None]) -> int:
        """Decide where to begin to read a long run; returns how many entries to skip."""
        skipped = before = 0
        # If no process executes the run, its head has the sum of all tokens.
        is_at_rest = stored.status in {"done", "failed", "waiting"}
        usage = self.head.get("usage")
        if is_at_rest and not self.is_whole and isinstance(usage, dict):
            skipped, before = _latest(stored.entries)
        self.is_whole = not skipped
        if skipped:
            self.start = skipped
            self.story = Story(entries=skipped, before=before, at=times[skipped - 1])
            self.usage = read_usage(cast("dict[str, Any]", usage))
        return skipped

    def _outermost(self, beat: Beat) -> Beat:
        # The owner of a beat is the key of the call around it, which begins with the number of the
        # first entry of that call's beat.
        while beat.owner:
            first = int(beat.owner.partition(".")[0])
            outer = self.changed[first - self.start]
            assert outer is not None  # noqa: S101  its first entry began a beat with calls
            beat = outer
        return beat

    def since(self, number: int) -> list[Beat]:
        """The beats that the entries from this number on began or changed, each once."""
        changed = self.changed[max(0, number - self.start) :]
        also_changed = [beat for entry, beat in self.also_changed.items() if entry >= number]
        beats = {beat.first: beat for beat in (*changed, *also_changed) if beat is not None}
        return [beats[first] for first in sorted(beats)]

    def beat(self, first: int) -> Beat:
        """The beat of this first entry. Raises `StoreError` if there is none."""
        index = first - self.start
        if 0 <= index < len(self.changed):
            beat = self.changed[index]
            if beat is not None and beat.first == first:
                return beat
        raise StoreError(f"The run {self.run_id!r} has no such turn.")


class Readings:
    """The runs that pages showed last, so that a page reads only what is new."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._runs: dict[str, Read] = {}
        """By id, the one that was shown last at the end."""

    def read(self, run_id: str, since: int | None = None) -> Read:
        """A run, with its latest beats, and those since this entry.

        Raises `StoreError` if the store has no such run.
        """
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is None or (since is not None and since < run.start):
                run = Read(self._store, run_id, is_whole=since is not None)
            self._runs[run_id] = run
            while len(self._runs) > _MOST_READINGS:
                del self._runs[next(iter(self._runs))]
        try:
            with run.lock:
                run.more()
        except BaseException:
            with self._lock:
                self._runs.pop(run_id, None)
            raise
        return run


def _latest(texts: Sequence[str]) -> tuple[int, int]:
    """Where the latest beats of a long run begin, and how many beats are before them.

    Decoding only the head of each entry is cheap: showing a few beats costs as much as skipping
    thousands. Returns (0, 0) for a run that must be read as a whole: a short one, one with programs
    inside it, or one whose entries were not written in order.
    """
    numbers: list[int] = []
    begins: list[int] = []
    """The indices of the entries that begin a beat."""
    for index, text in enumerate(texts):
        try:
            head = _ENTRY_HEAD.decode(text)
        except msgspec.DecodeError:
            return 0, 0  # damaged: reading the whole journal raises the error that says so
        own_slot = _OWN_SLOT.fullmatch(head.slot)
        if own_slot is None:
            return 0, 0
        numbers.append(int(own_slot[1]))
        if head.kind in _BEGINS_BEAT:
            begins.append(index)
    if len(begins) <= FEW or begins[0] > 0:
        return 0, 0
    start = begins[-LATEST]
    is_in_order = all(number >= numbers[start] for number in numbers[start:])
    if not is_in_order:
        return 0, 0
    return start, len(begins) - LATEST


def inputs_in(head: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in the head of a run, by name or position."""
    positional: Any = head.get("args") or ()
    named: Any = head.get("inputs")
    inputs = {str(position): value for position, value in enumerate(positional)}
    if isinstance(named, dict):
        inputs.update(cast("dict[str, Any]", named))
    return inputs


def read_run(store: Store, run_id: str) -> Read:
    """A run with its whole journal."""
    run = Read(store, run_id)
    run.more()
    return run


@lru_cache(4096)
def id_in_path(run_id: str) -> str:
    """A run's id as one part of an address. Any text may be an id."""
    if _PLAIN_ID.fullmatch(run_id):
        return quote(run_id)
    return "~" + urlsafe_b64encode(run_id.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def id_from_path(part: str) -> str:
    """The inverse of `id_in_path`."""
    if not part.startswith("~"):
        return part
    try:
        coded = part[1:] + "=" * (-len(part[1:]) % 4)
        return urlsafe_b64decode(coded).decode("utf-8", "surrogatepass")
    except ValueError:
        return ""


def version_of(*values: Any) -> str:
    """A short mark that differs if one of the values does."""
    return f"{crc32(repr(values).encode('utf-8', 'replace')):08x}"


def command_line(run_id: str, place: str, store: str) -> str:
    """The command that resumes a run in a terminal."""
    words = ["ferrule", "resume", run_id, "--program", place or "FILE.py:NAME", "--store", store]
    if sys.platform == "win32":  # its command line knows double quotes only
        from subprocess import list2cmdline

        return list2cmdline(words)
    return shlex.join(words)
