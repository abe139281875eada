"""`Buffer`: the text that a streaming parser keeps back. Parsing takes linear time, however small the chunks are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.adapters.render import EDGE, read_verbatim
from ferrule.encoding.pattern import pattern

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Sequence

    from ferrule.values.conversation.exchange import FieldReader

_CONTEXT_CHARS = 256
_PLAIN = pattern(r'[^"\\\n]*')
_STRUCTURE = pattern(r'["{}\[\]]')
_BLANKS = pattern(r"\s*")
_NOT_OF_FENCE = pattern(r"[^\w+-]")


def starts_line(text: str, at: int) -> bool:
    """Whether only blanks precede a position on its line."""
    while at and text[at - 1] in " \t":
        at -= 1
    return not at or text[at - 1] == "\n"


def follows_fence(text: str, at: int) -> bool:
    """Whether the line before a position opens a fence."""
    while at and text[at - 1].isspace():
        at -= 1
    while at and not _NOT_OF_FENCE.match(text, at - 1):
        at -= 1
    return text.endswith("```", 0, at)


class Buffer:
    """Unparsed text, a little context before it, and trailing blanks, which belong to the value only if more text follows."""

    __slots__ = ("_blanks", "at", "has_begun", "holds_backticks", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        """The position up to which the text is parsed."""
        self.has_begun = False
        """Whether any text of the current value was emitted."""
        self.holds_backticks = False
        """Whether trailing backticks are kept back like blanks: they may close a fence around the whole answer."""
        self._blanks: list[str] = []

    def open(self, at: int) -> None:
        """Start a value, or text outside all fields, at a position. Drops the kept blanks."""
        self.at, self.has_begun = at, False
        self._blanks.clear()

    def take(self, end: int) -> str:
        """Return the value's text up to a position, without blanks around the value; trailing ones are kept until more text comes."""
        text, stop = self.text, end
        while stop > self.at and (
            text[stop - 1].isspace() or (self.holds_backticks and text[stop - 1] == "`")
        ):
            stop -= 1
        value = self._with_blanks(text[self.at : stop]) if stop > self.at else ""
        if stop < end:
            self._blanks.append(text[stop:end])
        self.at = end
        return value

    def add(self, text: str) -> str:
        """Return text that was kept elsewhere, as `take` does."""
        value = text.rstrip()
        found = self._with_blanks(value) if value else ""
        self._blanks.append(text[len(value) :])
        return found

    def last(self, end: int, *, fence: bool = False) -> str:
        """Return the rest of a value that ends at a position; `fence` drops the fence that closes the whole answer."""
        rest = self._with_blanks(self.text[self.at : end]).rstrip()
        self.at = end
        return rest[:-3].rstrip() if fence and rest.endswith("```") else rest

    def _with_blanks(self, text: str) -> str:
        whole = "".join([*self._blanks, text])
        self._blanks.clear()
        if not self.has_begun:
            whole = whole.lstrip()
        self.has_begun = self.has_begun or bool(whole)
        return whole

    def discard_settled(self) -> None:
        """Drop parsed text, except what shows whether a line starts here and whether a fence precedes it."""
        if self.at <= 2 * _CONTEXT_CHARS:
            return
        before = self.text[: self.at]
        bare = before.rstrip()
        # One blank replaces all: a line feed if a line starts here, else a vertical tab.
        blank = (
            "" if len(bare) == len(before) else "\n" if starts_line(before, len(before)) else "\v"
        )
        kept = bare[-_CONTEXT_CHARS:] + blank
        self.text, self.at = kept + self.text[self.at :], len(kept)


class Unescaped:
    """A `FieldReader` that removes from values the escapes that the prompt shows the model, as parsing a whole answer does."""

    def __init__(
        self,
        reader: FieldReader,
        unescape: Callable[[str, str], str],
        partial: re.Pattern[str],
    ) -> None:
        """`partial` matches an escape that is incomplete at the end of a text."""
        self._reader = reader
        self._unescape = unescape
        self._partial = partial
        self._name = self._kept = ""
        self._begins = False
        self._verbatim: list[str] = []
        """The pieces of a value that may be `Verbatim`: only its end decides."""

    def feed(self, text: str) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        return self._read(self._reader.feed(text))

    def finish(self) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        return [*self._read(self._reader.finish()), *self._last()]

    def _read(self, pieces: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for name, piece in pieces:
            if name != self._name:
                found += self._last()
                self._name, self._begins = name, True
            text = self._kept + piece
            if self._verbatim:
                self._verbatim.append(piece)
                continue
            if self._begins and EDGE.startswith(text[: len(EDGE)]):
                self._kept, self._verbatim = ("", [text]) if len(text) >= len(EDGE) else (text, [])
                continue
            self._begins = False
            partial = self._partial.search(text)
            end = partial.start() if partial else len(text)
            self._kept = text[end:]
            if end:
                found.append((name, self._unescape(name, text[:end])))
        return found

    def _last(self) -> list[tuple[str, str]]:
        text = (
            f"{read_verbatim(self._unescape(self._name, ''.join(self._verbatim)))}"
            if self._verbatim
            else self._kept
        )
        self._kept, self._verbatim = "", []
        return [(self._name, text)] if text else []


class JSONStrings:
    """Tracks whether a position is inside a string of an unfinished JSON object or array.

    A string ends at the latest with its line: JSON strings hold no line feed, so a missing quote
    spoils one line only.
    """

    __slots__ = ("_depth", "_is_escaped", "_is_over", "is_inside")

    def __init__(self) -> None:
        self._depth = 0
        self._is_escaped = self._is_over = self.is_inside = False

    def read(self, text: str, start: int, end: int) -> None:
        """Read the value's text between two positions; the first is where the last call ended."""
        at = start
        if not self._depth and not self._is_over:
            at = _end_of(_BLANKS, text, at, end)
            self._is_over = at < end and text[at] not in "{["
        while at < end and not self._is_over:
            if self.is_inside:
                at = self._read_string(text, at, end)
                continue
            mark = _STRUCTURE.search(text, at, end)
            if mark is None:
                return
            at = mark.end()
            self.is_inside = mark[0] == '"'
            self._depth += (mark[0] in "{[") - (mark[0] in "}]")
            self._is_over = self._depth == 0

    def _read_string(self, text: str, at: int, end: int) -> int:
        if self._is_escaped:
            self._is_escaped, self.is_inside = False, text[at] != "\n"
            return at + 1
        at = _end_of(_PLAIN, text, at, end)
        if at < end:
            self._is_escaped = text[at] == "\\"
            self.is_inside = self._is_escaped
        return at + 1


def _end_of(pattern: re.Pattern[str], text: str, at: int, end: int) -> int:
    found = pattern.match(text, at, end)
    return found.end() if found else at
