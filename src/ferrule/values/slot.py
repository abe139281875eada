"""`Slot`: the name of a place in a run, which is also its text in the journal.

A run is a tree of frames: the program, the programs that it calls, the branches of a `gather`. A
frame has a *path*, which is empty or ends in `/`; the acts of the frame are numbered from 0. So the
same program with the same journal uses the same slots, in any process, at any time.

========================  =======================================================================
text                      place
========================  =======================================================================
`3`                       act 3 of the run's program
`3.0`                     the first call, or the first question, of this act
`3~compaction`            a value recorded before act 3, found by its name (`Once.only_if_true`)
`3~said.0`                the first message to the run that was read before act 3
`once:now#0`              the first value that `ferrule.once` recorded as `now`
`3~check#0`               what the first check before act 3, by functions of the user, objected to
`3.0?`                    when the question `3.0` was asked
`3.0??`                   the values with which it was shown
`3.0?a0`                  the question whether the call `3.0` may run; `?a1`: asked once more
`3.0?a0~check#0`          what conditions found that looked at the call as it was edited
`3.0?1`                   a person's decision on the call `3.0`, which a crash interrupted once
`3.0?i1`, `3.0?i1.0`      the first questions of an MCP server during the call; one decision
`3.0?t0`                  the task that an MCP server made of the call
`3.0?later`               the wait of the call for its result from outside
`3.0?later.0`             the decision that brings this result
`3.0?cancel`              the decision that cancelled the call `3.0`
`qa:1f2e#0/3`             act 3 of the program `qa`, called with inputs of this digest
`gather#0.1/3`            act 3 of the second branch of the first `gather`
`3.0/qa/1`                act 1 of the program `qa`, called as a tool by the call `3.0`
`migrated#0`              the first note on a changed program; not a place in it
========================  =======================================================================
"""

from __future__ import annotations

import re

_LEADING_NUMBER = re.compile(r"[0-9]+")
_CALL = re.compile(r"[0-9]+\.[0-9]+")
_NOT_A_PROGRAM = re.compile(
    r"[0-9]+\.[0-9]+|gather#[0-9.]+|once:[^/#]+#[0-9]+|[0-9][0-9.?a]*~check#[0-9]+"
)
"""The segments of a path that name a call, a branch or a value, not a program."""
_PAUSE = re.compile(r"\?(?:[it][0-9]+|later)")
_CONSENT = re.compile(r"(\?a[0-9]+)(?:\?{0,2}|~check#[0-9]+)$")


class Slot(str):
    """A place in a run. See the table above."""

    __slots__ = ()

    # -- making

    @classmethod
    def of_act(cls, path: str, number: int) -> Slot:
        """The slot of an act of the frame at `path`."""
        return cls(f"{path}{number}")

    @classmethod
    def of_value(cls, path: str, number: int, name: str) -> Slot:
        """The slot of a value that is recorded before this act, without a number of its own."""
        return cls(f"{path}{number}~{name}")

    @property
    def is_check(self) -> bool:
        """Whether functions of the user checked something here."""
        return "~check#" in self.name

    @property
    def is_message(self) -> bool:
        """Whether a message to the run was read here."""
        return "~said." in self.name

    @classmethod
    def of_own_call(cls, path: str, call_id: str | None) -> Slot:
        """The place of a call that a program carries out itself. Nothing is recorded there."""
        return cls(f"{path}~{call_id}")

    @classmethod
    def of_note(cls, number: int) -> Slot:
        """The slot of a note on a changed program."""
        return cls(f"migrated#{number}")

    def item(self, number: int) -> Slot:
        """The slot of one call of a batch, or of one of several questions."""
        return Slot(f"{self}.{number}")

    @property
    def asked_at(self) -> Slot:
        """The slot of the time at which this question was asked."""
        return Slot(f"{self}?")

    @property
    def shown_values(self) -> Slot:
        """The slot of the values with which this question was shown."""
        return Slot(f"{self}??")

    def consent(self, number: int) -> Slot:
        """The slot of a question whether this call may run, counted from 0.

        There are several if an edit does not fit.
        """
        return Slot(f"{self}?a{number}")

    def check(self, number: int) -> Slot:
        """The slot of a check of the call as this decision allows it, by functions of the user."""
        return Slot(f"{self}~check#{number}")

    @property
    def is_of_consent(self) -> bool:
        """Whether this is about the question whether a call may run."""
        return _CONSENT.search(self) is not None

    @property
    def is_below_consent(self) -> bool:
        """Whether a program did this that a condition called to look at a call."""
        return "?a" in self.path

    @property
    def consent_of(self) -> tuple[Slot, int]:
        """The call that a slot of `consent` asks about, and how often it was asked before."""
        call, _, number = self.rpartition("?a")
        return Slot(call), int(number)

    def decision(self, starts: int) -> Slot:
        """The slot of a decision on this call after `starts` interrupted starts."""
        return Slot(f"{self}?{starts}")

    def inputs(self, number: int) -> Slot:
        """The slot of the questions with which an MCP server paused this call, counted from 1."""
        return Slot(f"{self}?i{number}")

    def task(self, number: int) -> Slot:
        """The slot of the task that an MCP server made of this call."""
        return Slot(f"{self}?t{number}")

    @property
    def later(self) -> Slot:
        """The slot of the wait of this call for its result from outside."""
        return Slot(f"{self}?later")

    @property
    def cancellation(self) -> Slot:
        """The slot of the decision that cancelled this call."""
        return Slot(f"{self}?cancel")

    @property
    def is_later(self) -> bool:
        """Whether a call waits here for its result from outside."""
        return self.endswith("?later")

    @property
    def is_of_wait(self) -> bool:
        """Whether this is the wait of a call for its result from outside, or what ends it."""
        return "?later" in self.name

    def inside(self, program: str = "") -> str:
        """The path of the frame below this place: of a called program, or of a value's function."""
        if program:
            return f"{self}/{program}/"
        return f"{self}/"

    # -- reading

    @property
    def path(self) -> str:
        """The path of the frame."""
        return self[: self.rfind("/") + 1]

    @property
    def name(self) -> str:
        """The last segment: the place inside its frame."""
        return self[self.rfind("/") + 1 :]

    @property
    def position(self) -> tuple[str, int]:
        """The path of its frame, and the number of its act there; -1 for a value of `once`."""
        start = self.rfind("/") + 1
        number = _LEADING_NUMBER.match(self, start)
        return self[:start], -1 if number is None else int(number[0])

    @property
    def is_act(self) -> bool:
        """Whether this is an act of its frame, a call or a question of one, not a value beside."""
        _, number = self.position
        return number >= 0 and "~" not in self.name

    @property
    def call(self) -> Slot:
        """The call or the question that this is about: `3.0` for `3.0?1`. Itself for any other."""
        return Slot(self.partition("?")[0])

    @property
    def _subject(self) -> str:
        """The place that this is a fact about: the call, or the question whether it may run."""
        consent = _CONSENT.search(self)
        if consent is not None:
            return self[: consent.end(1)]
        return self.call

    @property
    def paused_call(self) -> Slot | None:
        """The call that stopped here: to ask a person, as a server's task, or for its result."""
        call, mark, number = self.rpartition("?")
        if mark and _PAUSE.fullmatch(mark + number):
            return Slot(call)
        return None

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the act and of the call.

        `3.10` comes after `3.9`, and `3.9?1` has the order of `3.9`.
        """
        numbers = self.name.partition("?")[0].split(".")
        return tuple(int(number) if number.isdigit() else -1 for number in numbers)

    def is_below(self, slots: set[str]) -> bool:
        """Whether this is inside one of these calls or values, or about one of these calls.

        The question whether a call may run is not about it here: it comes before the call, and how
        it was decided is read even where the result of the call is recorded.
        """
        if "?" in self and self._subject in slots:
            return True
        end = self.find("/")
        while end >= 0:
            if self[:end] in slots:
                return True
            end = self.find("/", end + 1)
        return False


# -- paths


def child_path(path: str, key: str, number: int) -> str:
    """The path of an item by its number among those with one key, such as a `gather`."""
    return f"{path}{key}#{number}"


def programs_in(path: str) -> list[str]:
    """The names of the nested programs in a path, outermost first."""
    return [segment.partition(":")[0] for segment in path.split("/") if is_program(segment)]


def is_program(segment: str) -> bool:
    """Whether a segment of a path names a program, not a call, a branch or a value."""
    return bool(segment) and not _NOT_A_PROGRAM.fullmatch(segment)


def is_branch_or_value(segment: str) -> bool:
    """Whether a segment of a path names a branch or a recorded value: these have no span."""
    return segment.startswith(("gather#", "once:")) or "~check#" in segment


def is_call(segment: str) -> bool:
    """Whether a segment of a path names a call: `3.0`."""
    return _CALL.fullmatch(segment) is not None


def is_own_program(path: str) -> bool:
    """Whether the code of the run called the program of this frame, not a tool or `once`."""
    segments = path.split("/")
    return not any(is_call(segment) or segment.startswith("once:") for segment in segments)


def innermost_call(path: str) -> str:
    """The slot of the innermost call around a frame: `1.0` for `1.0/sub/`; empty for none."""
    segments = path.split("/")
    for last in range(len(segments) - 2, -1, -1):
        if is_call(segments[last]):
            return "/".join(segments[: last + 1])
    return ""
