"""What pages show, read from the store."""

from __future__ import annotations

import re
import shlex
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, cast, get_args
from urllib.parse import quote
from zlib import crc32

from msgspec import Struct, field
from msgspec.structs import replace

from ferrule.errors import StoreError
from ferrule.runs.protocols import RunStatus
from ferrule.runs.store.listing import NO_ENTRIES, decision_in, decisions_of, head_of, read_usage
from ferrule.runs.story import Story
from ferrule.values.conversation.exchange import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ferrule.approval.question import Decision, Question
    from ferrule.runs.protocols import Store, Summary
    from ferrule.runs.story import Beat

STATUSES: tuple[str, ...] = get_args(RunStatus)
PAGE = 100
"""Runs on a page."""
BEATS = 200
"""Earlier beats on one page of a run."""
FEW, LATEST = 40, 6
"""A run of at most `FEW` beats is shown as a whole, the first page of a longer one has its `LATEST`, more than a screen holds."""
_MOST_READINGS = 32
_PLAIN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ENTRY = re.compile(
    r'\{"v":1,"slot":"([0-9]+)[^"/\\]*","kind":"(?:(model|failure|limit|migrated)|[a-z]+)"',
)
"""The beginning of an entry of the run's own, not of a program inside it. The second group is there if it begins a beat."""


class Runs(Struct, frozen=True, kw_only=True):
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
        """The programs of these runs, each once."""
        return list(dict.fromkeys(each.program for each in self.lines))


def page_of_runs(store: Store, query: Mapping[str, str]) -> Runs:
    """The runs that a query asks for: `status`, `program`, `q` (a part of the id) and `before`."""
    status = query.get("status", "")
    status = status if status in STATUSES else ""
    program, search = query.get("program", "").strip(), query.get("q", "").strip()
    wanted: dict[str, Any] = {
        "status": status or None,
        "program": program or None,
        "before": _place(query.get("before", "")),
    }
    found = store.list(**wanted, limit=None if search else PAGE + 1)
    if search:
        found = [each for each in found if search in each.id]
    lines = found[:PAGE]
    older = f"{lines[-1].updated_at!r}~{lines[-1].id}" if len(found) > PAGE else ""
    return Runs(
        lines=lines,
        status=status,
        program=program,
        search=search,
        before=query.get("before", ""),
        older=older,
    )


def _place(text: str) -> tuple[float, str] | None:
    at, found, run_id = text.partition("~")
    try:
        return (float(at), run_id) if found else None
    except ValueError:
        return None


class AskedQuestion(Struct, frozen=True, kw_only=True):
    """A question of a run, and the decision on it if there is one already."""

    run: Summary
    question: Question
    decision: Decision | None = None


def asked(store: Store, run: Summary) -> list[AskedQuestion]:
    """The questions of a run that waits, decided ones too."""
    decisions = decided(store, run.id) if run.decided else {}
    return [
        AskedQuestion(run=run, question=each, decision=decisions.get(each.id))
        for each in run.questions
    ]


def decided(store: Store, run_id: str) -> dict[str, Decision]:
    """The decisions that a run has not used yet, by their questions."""
    return {each.question_id: each for each in decisions_of(store.load(run_id, after=NO_ENTRIES))}


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
    waiting = {each.question_id: each for each in decisions_of(stored)}
    return waiting.get(question_id) or decision_in(stored.entries, question_id)


def inbox(store: Store) -> tuple[list[AskedQuestion], list[Summary]]:
    """All questions that wait for a person, the oldest first; those that are decided stay until their run goes on.

    Also the runs whose questions are damaged, with the reason in `error`.
    """
    found, damaged = list[AskedQuestion](), list["Summary"]()
    for run in sorted(store.list(status="waiting", limit=None), key=lambda each: each.updated_at):
        try:
            found += asked(store, run)
        except StoreError as error:
            if not is_missing(error):
                damaged.append(replace(run, error=str(error)))
        else:
            damaged += () if run.questions or run.error is None else (run,)
    return found, damaged


def undecided(run: Summary) -> list[Question]:
    """The questions of a run without a decision."""
    return [each for each in run.questions if each.id not in run.decided]


def can_go_on(run: Summary) -> bool:
    """Whether a run waits for nothing but to be resumed: all its questions are decided."""
    return run.status == "waiting" and bool(run.questions) and not run.leased and not undecided(run)


def count_waiting(store: Store) -> int:
    """How many questions are undecided."""
    return sum(len(undecided(run)) for run in store.list(status="waiting", limit=None))


class Read(Struct):
    """A run as far as it was read: it grows with its journal. Used by one thread at a time, which holds the lock."""

    store: Store
    run_id: str
    is_whole: bool = True
    """Whether the beginning of a long run is read too."""
    story: Story = field(default_factory=Story)
    start: int = 0
    """The number of the first entry that was read."""
    changed: list[Beat | None] = field(default_factory=list["Beat | None"])
    """The beat that each entry from `start` on began or changed."""
    past: dict[int, Beat] = field(default_factory=dict[int, "Beat"])
    """By the number of an entry: the beat that it changed as well (`Story.past`)."""
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

    @property
    def turns(self) -> int:
        """How many beats of its own the run has, those that were not read too."""
        return self.story.before + len(self.story.beats)

    def turns_between(self, first: int, end: int) -> list[Beat]:
        """The run's own beats with these numbers."""
        before = self.story.before
        return self.story.beats[max(0, first - before) : max(0, end - before)]

    def more(self) -> None:
        """Read the new entries; all of them if the run was redacted, or was deleted and another one has its id."""
        from ferrule.runs.journal.encode import (
            read_entry,
        )  # late, with pydantic: a list of runs needs none of it

        stored = self.store.load(self.run_id, after=self.story.entries)
        if stored.head != self._head:
            head = head_of(stored)
            if self.head and (head.get("key"), head.get("redacted")) != (
                self.head.get("key"),
                self.head.get("redacted"),
            ):
                self.story, self.start, self.changed, self.usage, self.shown, self.is_whole = (
                    Story(),
                    0,
                    [],
                    Usage(),
                    {},
                    True,
                )
                self.past = {}
                stored = self.store.load(self.run_id)
            self._head, self.head = stored.head, head
        times = stored.times or [None] * len(stored.entries)
        left_out = 0
        if not self.story.entries:
            # If no process executes the run, its head has the sum of all tokens.
            is_at_rest = stored.status in {"done", "failed", "waiting"} and isinstance(
                self.head.get("usage"),
                dict,
            )
            left_out, before = (
                _latest(stored.entries) if is_at_rest and not self.is_whole else (0, 0)
            )
            if left_out:
                self.start, self.story = (
                    left_out,
                    Story(entries=left_out, before=before, at=times[left_out - 1]),
                )
                self.usage = read_usage(self.head["usage"])
            self.is_whole = not left_out
        for text, at in zip(stored.entries[left_out:], times[left_out:], strict=True):
            entry = read_entry(text)
            beat = self.story.add(entry, at)
            self.changed.append(beat)
            if self.story.past is not None:
                self.past[self.story.entries - 1] = self.story.past
            for each in (beat, self.story.past):
                if each is not None:
                    self.shown.pop(self._outermost(each).first, None)
            if entry.kind == "model" and not left_out:
                self.usage += entry.value.usage

    def _outermost(self, beat: Beat) -> Beat:
        while (
            beat.owner
        ):  # the key of the call around it, which begins with the number of that call's beat
            outer = self.changed[int(beat.owner.partition(".")[0]) - self.start]
            assert outer is not None  # noqa: S101  a beat with calls was begun by its first entry
            beat = outer
        return beat

    def since(self, number: int) -> list[Beat]:
        """The beats that the entries from this number on began or changed, each once."""
        past = [each for at, each in self.past.items() if at >= number]
        beats = {
            each.first: each
            for each in (*self.changed[max(0, number - self.start) :], *past)
            if each is not None
        }
        return [beats[first] for first in sorted(beats)]

    def beat(self, first: int) -> Beat:
        """The beat of this first entry. Raises `StoreError` if there is none."""
        found = (
            self.changed[first - self.start]
            if 0 <= first - self.start < len(self.changed)
            else None
        )
        if found is None or found.first != first:
            raise StoreError(f"The run {self.run_id!r} has no such turn.")
        return found


class Readings:
    """The runs that pages showed last, so that a page reads only what is new."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._found: dict[str, Read] = {}

    def read(self, run_id: str, since: int | None = None) -> Read:
        """A run, with its latest beats, and those since this entry. Raises `StoreError` if there is none."""
        with self._lock:
            found = self._found.pop(run_id, None)
            if found is None or (since is not None and since < found.start):
                found = Read(self._store, run_id, is_whole=since is not None)
            self._found[run_id] = found
            while len(self._found) > _MOST_READINGS:
                del self._found[next(iter(self._found))]
        try:
            with found.lock:
                found.more()
        except BaseException:
            with self._lock:
                self._found.pop(run_id, None)
            raise
        return found


def _latest(texts: Sequence[str]) -> tuple[int, int]:
    """Where the latest beats of a long run begin, and how many are before them, without parsing it. (0, 0): read all of it.

    Parsing and showing a few beats costs as much as skipping thousands. A run with programs inside
    it, or with entries in another writer's spelling, is read whole: the beginning of such an entry
    does not show its kind.
    """
    found = list(map(_ENTRY.match, texts))
    if not found or not all(found):
        return 0, 0
    entries = cast("list[re.Match[str]]", found)
    begins = [number for number, each in enumerate(entries) if each.lastindex == 2]
    if len(begins) <= FEW or begins[0] > 0:
        return 0, 0
    start = begins[-LATEST]
    is_in_order = all(int(each[1]) >= int(entries[start][1]) for each in entries[start:])
    return (start, len(begins) - LATEST) if is_in_order else (0, 0)


def inputs_in(head: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that the head of a run holds, by name or place."""
    named: Any = head.get("inputs")
    args: Any = head.get("args") or ()
    return {
        **{str(k): value for k, value in enumerate(args)},
        **(named if isinstance(named, dict) else {}),
    }


def read_run(store: Store, run_id: str) -> Read:
    """A run with its whole journal."""
    found = Read(store, run_id)
    found.more()
    return found


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
