"""Distinguish a call that a model makes from one that it only quotes or gives as an example, by the text around it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ferrule.text_calls.tags import TAG, tag_of

if TYPE_CHECKING:
    from ferrule.text_calls.offers import Draft

# English words before a call that introduce it as an example.
_LIKE_EXAMPLE = re.compile(
    r"\b(?:e\.\s?g\.|for (?:example|instance)|such as|usage|examples?\s*(?::|of how\b)"
    r"|if you (?:\w+ ){0,2}?(?:want|wish|need|like) to (?:\w+ ){0,2}?(?:use|call|run|try|invoke)\b"
    r"|available (?:functions|tools)|(?:do not|don['\u2019]t|never) (?:\w+ ){0,3}?(?:run|call|execute|use|invoke))[^\n]*\n?[\s\W]*\Z",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"(?:>\s*)+")  # a quotation in Markdown
_QUOTES = " \t\r\n`*_'\""
BESIDE = " \t`*_'\"•-[(,"
_AFTER = " \t\r`*_'\";.,])}"
_BETWEEN = " \t\r\n,;|&"
_NEAR = 240


class Edges(NamedTuple):
    """The position of a span in its text."""

    begins: bool
    """Whether only a bullet, a number, a label with a colon, a tag, `return` or another call is before it on its line."""
    ends: bool
    """Whether only punctuation or a tag is after it on its line."""
    is_whole: bool
    """Whether it is the whole text."""


class Surroundings:
    """The text around its calls. The scanner adds each call that it finds to `spans`."""

    __slots__ = ("_example", "_first", "_last", "_spans", "_text")

    def __init__(self, text: str, spans: list[tuple[int, int]]) -> None:
        self._text = text
        self._spans = spans
        self._example = -1
        """Where the last example ends; -1 before the first."""
        self._first = len(text) - len(text.lstrip(_QUOTES))
        self._last = -1

    @property
    def last(self) -> int:
        """The end of the text, without trailing quotation marks and stop tokens."""
        if self._last < 0:
            last = self._text.rstrip(_QUOTES)
            while (
                last.endswith((">", "]"))
                and (tag := TAG.search(last, max(0, last.rfind("<", -40)))) is not None
            ):
                if tag.end() != len(last) or tag_of(tag[0]).kind != "stop":
                    break
                last = last[: tag.start()].rstrip(_QUOTES)
            self._last = len(last)
        return self._last

    def stand_alone(self, start: int, end: int) -> bool:
        """Whether a call between two positions is the whole text, or begins or ends a line and is not an example."""
        edges = self.edges(start, end)
        return edges.is_whole or ((edges.begins or edges.ends) and not self.is_example(start, end))

    def edges(self, start: int, end: int) -> Edges:
        """The text beside a call between two positions, on its line."""
        text = self._text
        is_whole = start <= self._first and end >= self.last - 1
        low = text.rfind("\n", max(0, start - _NEAR), start) + 1
        before = text[max(low, start - _NEAR) : start].strip(BESIDE)
        if _QUOTED.fullmatch(before):
            return Edges(begins=False, ends=False, is_whole=False)
        begins = (
            before in {"", "return"}
            or before.endswith(":")
            or before.rstrip(".)").isdigit()
            or (
                before.endswith(">") and not before.endswith(">>>")
            )  # a tag, not the prompt of a Python session
        )
        behind = self._spans[-1][1] if self._spans else -_NEAR
        begins = begins or (
            start - behind < _NEAR and not text[behind:start].strip(_BETWEEN)
        )  # follows a call
        line = text.find("\n", end, end + _NEAR)
        after = text[end : line if line >= 0 else end + _NEAR].strip(_AFTER)
        return Edges(begins, not after or after.startswith(("<", "[/")), is_whole)

    def is_example(self, start: int, end: int) -> bool:
        """Whether the text before introduces a call as an example, or the call continues a list of examples."""
        text = self._text
        behind = self._spans[-1][1] if self._spans else 0
        found = _LIKE_EXAMPLE.search(text, max(behind, start - 160), start) is not None
        found = found or (
            0 <= self._example < start and not text[self._example : start].strip(_BETWEEN + BESIDE)
        )
        if found:
            self._example = end
        return found


def are_signatures(drafts: list[Draft], *, is_whole: bool) -> bool:
    """Whether all values are the unquoted names of parameters, as in `add(a, b)`. An `add(a)` that is the whole text is still a call."""
    return all(
        "unquoted_strings" in each.repairs
        and len(each.args) > (1 if is_whole else 0)
        and all(
            isinstance(value, str) and value in each.offer.properties
            for value in each.args.values()
        )
        for each in drafts
    )
