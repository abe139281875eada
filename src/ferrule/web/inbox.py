"""The inbox: questions as lines, in groups, and equal ones side by side.

Two calls have equal shapes if the same tool of the same program would run with the same arguments,
of the same types. Only such calls are decided together, and only on a page that shows every value
of every call in full: those that are equal in all of them once, the others by call. What sticks
out there is marked, because a person who reads the twentieth call of a kind sees what they expect.
"""

from __future__ import annotations

import re
from collections import Counter
from keyword import iskeyword
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from msgspec import Struct, field

from ferrule.approval.call_view import (
    ArgumentView,
    CallView,
    shortened,
    view_call,
    whole_number,
)
from ferrule.encoding.encode import digest_of
from ferrule.encoding.safe_text import one_line, reveal
from ferrule.web.reading import AskedQuestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.approval.question import Question

_MOST_WORDS = 300
_MOST_ROWS = 100
"""Questions that are decided together."""
_FAR = 2.0
"""A number so many times the median, or so many times below it, sticks out."""
_FEWEST_TO_COMPARE = 3
_NOBODY = "-"
_DIGITS = re.compile(r"\d+")
_NAMES_OF_RULES = frozenset({"reason", "where", "when", "expires_s"})
"""Keywords of `allow` and `ask` that are not arguments of a call."""


def brief_of(question: Question) -> str:
    """A question on one line, shortened: enough to know it again, not to decide on it."""
    if question.kind in {"clarify", "input"}:
        return one_line(reveal(question.text), _MOST_WORDS)
    args: list[str] = []
    for name, value in question.call.args.items():
        text = value if isinstance(value, str) else shortened(value)
        args.append(f"{name} {text}")
    return one_line(reveal(f"{question.call.name}: {', '.join(args)}"), _MOST_WORDS)


def why_of(question: Question) -> str:
    """What the model said of its reason, on one line."""
    reason = question.call.intention or question.thought or question.note
    return one_line(reveal(reason), _MOST_WORDS)


# -- lines and groups


class InboxQuery(Struct, kw_only=True):
    """What a person wants to see of the inbox."""

    program: str = ""
    tool: str = ""
    assigned: str = ""
    """The person to whom the run is assigned; `-` for those without one."""
    search: str = ""
    programs: list[str] = field(default_factory=list[str])
    """What there is to choose from."""
    tools: list[str] = field(default_factory=list[str])
    persons: list[str] = field(default_factory=list[str])

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """From the query of an address."""
        return cls(
            program=query.get("program", ""),
            tool=query.get("tool", ""),
            assigned=query.get("assigned", "").strip(),
            search=query.get("q", "").strip(),
        )

    @property
    def text(self) -> str:
        """As the query of an address; empty for all questions."""
        wanted = {
            "program": self.program,
            "tool": self.tool,
            "assigned": self.assigned,
            "q": self.search,
        }
        return urlencode({name: value for name, value in wanted.items() if value})

    def note_choices(self, asked: Iterable[AskedQuestion]) -> None:
        """Note what there is to choose from."""
        questions = list(asked)
        self.programs = sorted({waiting.run.program for waiting in questions})
        self.tools = sorted({waiting.question.call.name for waiting in questions})
        self.persons = sorted({waiting.run.assigned for waiting in questions} - {""})

    def fits(self, asked: AskedQuestion) -> bool:
        """Whether a question is wanted."""
        question, run = asked.question, asked.run
        if self.program and run.program != self.program:
            return False
        if self.tool and question.call.name != self.tool:
            return False
        if self.assigned and (run.assigned or _NOBODY) != self.assigned:
            return False
        if not self.search:
            return True
        about = [run.id, run.title, brief_of(question), why_of(question), *map(str, run.metadata)]
        about += [str(value) for value in run.metadata.values()]
        return self.search.casefold() in " ".join(about).casefold()


class QuestionGroup(Struct, kw_only=True):
    """The questions about one tool of one program, the oldest first."""

    program: str
    tool: str
    asked: list[AskedQuestion]
    shapes: list[tuple[str, int]] = field(default_factory=list["tuple[str, int]"])
    """The shapes of at least two undecided calls, and how many there are of each."""

    @property
    def key(self) -> str:
        """Identifies the group on a page."""
        return digest_of([self.program, self.tool], 12)


def groups_of(asked: Iterable[AskedQuestion]) -> list[QuestionGroup]:
    """Questions by program and tool, in the order of the oldest question of each."""
    groups: dict[tuple[str, str], QuestionGroup] = {}
    for waiting in asked:
        tool = waiting.question.call.name
        if waiting.question.kind == "clarify":
            tool = ""
        key = waiting.run.program, tool
        if key not in groups:
            groups[key] = QuestionGroup(program=waiting.run.program, tool=tool, asked=[])
        groups[key].asked.append(waiting)
    for group in groups.values():
        shapes = Counter(shape_of(waiting) for waiting in group.asked)
        group.shapes = [(shape, count) for shape, count in shapes.items() if shape and count > 1]
    return list(groups.values())


def shape_of(asked: AskedQuestion) -> str:
    """A digest of the shape of a call that may be decided with others; empty for any other."""
    question = asked.question
    if question.kind != "confirm" or asked.decision is not None:
        return ""
    shown = view_call(question)
    if shown.not_shown:
        return ""
    types = sorted((argument.name, argument.type) for argument in shown.arguments)
    return digest_of(
        [
            asked.run.program,
            question.inside,
            question.call.name,
            question.server,
            question.fingerprint,
            question.note,
            types,
        ],
        16,
    )


# -- equal calls side by side


class ReviewedArgument(Struct, kw_only=True):
    """An argument in one row, and why it sticks out."""

    argument: ArgumentView
    remark: str = ""


class ReviewRow(Struct, kw_only=True):
    """One of several equal calls."""

    asked: AskedQuestion
    shown: CallView
    differing: list[ReviewedArgument]
    """The arguments whose values are not the same in all rows."""
    is_ticked: bool = False
    is_beyond: bool = False
    """Whether a bound that a person set leaves the call out."""

    @property
    def sticks_out(self) -> bool:
        """Whether a value differs from what the other calls have."""
        return self.is_beyond or any(argument.remark for argument in self.differing)


class SideBySide(Struct, kw_only=True):
    """Equal calls, for a person who decides on them together."""

    shape: str
    rows: list[ReviewRow]
    same: list[ArgumentView] = field(default_factory=list[ArgumentView])
    """The arguments that all calls have with the same value."""
    numbers: list[str] = field(default_factory=list[str])
    """The arguments that are numbers and differ."""
    bound_name: str = ""
    bound_text: str = ""
    rule: str = ""
    """The bound as a rule for a policy."""

    @classmethod
    def of(cls, asked: Iterable[AskedQuestion], shape: str, query: Mapping[str, str]) -> Self:
        """The undecided calls of a shape. `query` may have a bound: `arg`, and `most`."""
        chosen = [waiting for waiting in asked if shape and shape_of(waiting) == shape][:_MOST_ROWS]
        views = [view_call(waiting.question) for waiting in chosen]
        review = cls(shape=shape, rows=[])
        if not views:
            return review
        columns = _columns(views)
        differing = {name for name, cells in columns.items() if len(set(map(_content, cells))) > 1}
        review.same = [cells[0] for name, cells in columns.items() if name not in differing]
        review.numbers = [
            name
            for name, cells in columns.items()
            if name in differing and cells[0].type == "number"
        ]
        remarks = {name: _remarks(columns[name]) for name in differing}
        for number, (each, view) in enumerate(zip(chosen, views, strict=True)):
            arguments = [
                ReviewedArgument(argument=columns[name][number], remark=remarks[name][number])
                for name in columns
                if name in differing
            ]
            review.rows.append(ReviewRow(asked=each, shown=view, differing=arguments))
        review.set_bound(query.get("arg", ""), query.get("most", "").strip())
        return review

    def set_bound(self, name: str, text: str) -> None:
        """Tick the calls whose argument is at most a number."""
        try:
            most = float(text)
        except ValueError:
            return
        if name not in self.numbers or not isfinite(most):
            return
        self.bound_name, self.bound_text = name, f"{most:g}"
        tool = self.rows[0].asked.question.call.name
        bound = f"le({whole_number(most)!r})"
        condition = f"where={{{name!r}: {bound}}}"
        if name.isidentifier() and name not in _NAMES_OF_RULES and not iskeyword(name):
            condition = f"{name}={bound}"
        self.rule = f"Policy([allow({tool!r}, {condition}), ask({tool!r})])"
        for row in self.rows:
            value: Any = row.asked.question.call.args[name]
            row.is_beyond = value > most
            row.is_ticked = not row.sticks_out


def _columns(views: Sequence[CallView]) -> dict[str, list[ArgumentView]]:
    """The arguments of calls of one shape, by name."""
    columns: dict[str, list[ArgumentView]] = {}
    for argument in views[0].arguments:
        columns[argument.name] = []
    for view in views:
        for argument in view.arguments:
            columns[argument.name].append(argument)
    return columns


def _content(argument: ArgumentView) -> tuple[Any, ...]:
    """All that a person sees of an argument."""
    return (
        argument.text,
        argument.is_secret,
        argument.written,
        argument.is_default,
        argument.default,
    )


def _remarks(cells: list[ArgumentView]) -> list[str]:
    """For each call, what is unusual in its value among the others; mostly nothing."""
    if len(cells) < _FEWEST_TO_COMPARE:
        return [""] * len(cells)
    if cells[0].type == "number":
        numbers = [float(cell.text) for cell in cells]
        middle = median(numbers)
        return [_remark_on_number(number, middle) for number in numbers]
    texts = [cell.text for cell in cells]
    is_odd = _unlike_most(texts)
    if any(is_odd):
        return ["unlike the others" if odd else "" for odd in is_odd]
    is_odd = _unlike_most([_form_of(text) for text in texts])
    return ["of another form than the others" if odd else "" for odd in is_odd]


def _unlike_most(texts: list[str]) -> list[bool]:
    """Which texts differ from the one that at least half of them are; none if there is no such."""
    text, count = Counter(texts).most_common(1)[0]
    if count * 2 < len(texts):
        return [False] * len(texts)
    return [other != text for other in texts]


def _form_of(text: str) -> str:
    """What ids of one kind have in common: all but their digits; of a mail address, its host."""
    return _DIGITS.sub("0", text.rpartition("@")[2])


def _remark_on_number(number: float, middle: float) -> str:
    if number == middle:
        return ""
    if (number < 0) != (middle < 0):
        return "another sign than the others"
    if abs(number) > abs(middle) * _FAR:
        return f"far above the middle, {middle:g}"
    if abs(number) * _FAR < abs(middle):
        return f"far below the middle, {middle:g}"
    return ""
