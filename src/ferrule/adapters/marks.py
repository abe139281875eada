"""Finding fields below `[[ ## name ## ]]` markers, in a whole text and in one that is still coming.  (Floor 3.)

One rule for both: a marker of a field not seen yet opens it, at a line's start or within one; the marker of a field seen before begins
a stretch that belongs to nobody; the last marker ends everything; markers of unknown fields are text. A marker in backticks within a line
is only spoken of. A field whose first marker stood within a line begins anew where its marker starts a line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_OPENING_FENCE = re.compile(r"```[\w+-]*\s*\Z")
_CLOSING_FENCE = re.compile(r"\s*```\s*\Z")
_KEPT_BEHIND = 256


class Marks:
    """The markers of one signature."""

    __slots__ = ("end", "names", "partial", "pattern")

    def __init__(self, names: Iterable[str], end: str) -> None:
        self.names = tuple(names)
        self.end = end
        known = "|".join(re.escape(name) for name in (*self.names, end))
        longest = max(map(len, (*self.names, end)))
        self.pattern = re.compile(rf"\[\[[ \t]*##[ \t]*({known})[ \t]*##[ \t]*\]\]")
        self.partial = re.compile(rf"\[\[[ \t]*(#(#[ \t]*(\w{{1,{longest}}}[ \t]*(#(#[ \t]*\]?)?)?)?)?)?\Z")
        """A marker whose rest is still to come."""

    def split(self, text: str) -> dict[str, str]:
        """The text below each marker."""
        return self._split_at_once(text) or self._split_with_care(text)

    def _split_at_once(self, text: str) -> dict[str, str] | None:
        """What nearly every answer is: each marker once, the last one at the end, nothing in backticks. None for any other."""
        if "`" in text:
            return None
        parts = self.pattern.split(text)
        found = {parts[i]: parts[i + 1].strip() for i in range(1, len(parts), 2)}
        if len(found) < len(parts) // 2 or (self.end in found and parts[-2] != self.end):
            return None
        found.pop(self.end, None)
        return found

    def _split_with_care(self, text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        opened: dict[str, int] = {}
        name, start, is_fenced = "", 0, False
        for mark in self.pattern.finditer(text):
            at, end = mark.span()
            if at and text[at - 1] == "`" and text[end : end + 1] == "`":
                if not _starts_line(text, at - 1):
                    continue
                at, end = at - 1, end + 1
            if name:
                found[name] = text[start:at].strip()
            elif not opened:
                is_fenced = _OPENING_FENCE.search(text, 0, at) is not None if at else False
            marked = mark[1]
            if marked == self.end:
                if not opened:
                    continue
                return found
            begins = marked not in opened or (not _starts_line(text, opened[marked]) and _starts_line(text, at))
            if begins:
                opened[marked] = at
            name, start = (marked if begins else ""), end
        if name:
            value = text[start:]
            found[name] = (_CLOSING_FENCE.sub("", value) if is_fenced else value).strip()
        return found

    def outside(self, text: str) -> str:
        """What stands before the first marker and behind the last."""
        marks = list(self.pattern.finditer(text))
        if not marks:
            return text
        behind = text[marks[-1].end() :] if marks[-1][1] == self.end else ""
        return f"{text[: marks[0].start()]}\n{behind}"


def _starts_line(text: str, at: int) -> bool:
    while at and text[at - 1] in " \t":
        at -= 1
    return not at or text[at - 1] == "\n"


class MarkReader:
    """Splits a streamed answer as `Marks.split` splits a whole one, and never hands out a piece of a marker."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._text = ""
        """What is not settled yet, and a little of what came before."""
        self._at = 0
        """How much of it is settled."""
        self._name = ""
        self._opened: dict[str, bool] = {}
        """The fields seen, and whether their marker started a line."""
        self._has_begun = self._is_fenced = self._has_ended = False

    def feed(self, text: str) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        if self._has_ended:
            return []
        self._text += text
        pieces: list[tuple[str, str]] = []
        while not self._has_ended and self._to_next_mark(pieces):
            pass
        if not self._has_ended:
            self._emit(pieces, self._certain())
        if self._at > 2 * _KEPT_BEHIND:
            self._text, self._at = self._text[self._at - _KEPT_BEHIND :], _KEPT_BEHIND
        return pieces

    def finish(self) -> list[tuple[str, str]]:
        """What was held back, once no more text comes."""
        pieces: list[tuple[str, str]] = []
        if not self._has_ended:
            while self._to_next_mark(pieces, is_last=True):
                pass
            rest = _CLOSING_FENCE.search(self._text, self._at) if self._is_fenced else None
            self._emit(pieces, rest.start() if rest else len(self._text))
        self._has_ended = True
        return pieces

    def _to_next_mark(self, pieces: list[tuple[str, str]], *, is_last: bool = False) -> bool:
        """Settle the text up to and with the next marker; False where no marker is certain."""
        text, search = self._text, self._at
        while mark := self._marks.pattern.search(text, search):
            at, end = mark.span()
            if at and text[at - 1] == "`":
                if end == len(text) and not is_last:
                    return False
                if text[end : end + 1] == "`":
                    if not _starts_line(text, at - 1):
                        search = end
                        continue
                    at, end = at - 1, end + 1
            self._emit(pieces, at)
            self._open(mark[1], at, end)
            return not self._has_ended
        return False

    def _open(self, marked: str, at: int, end: int) -> None:
        if not self._opened and not self._name:
            self._is_fenced = _OPENING_FENCE.search(self._text, 0, at) is not None
        self._at = end
        if marked == self._marks.end:
            self._has_ended = bool(self._opened)
            self._name = ""
            return
        starts_line = _starts_line(self._text, at)
        begins = marked not in self._opened or (starts_line and not self._opened[marked])
        if begins:
            self._opened[marked] = starts_line
        self._name, self._has_begun = (marked if begins else ""), False

    def _certain(self) -> int:
        """Up to where the text can no longer turn into a marker, or into blanks that a marker cuts off."""
        text = self._text
        end = len(text)
        at = text.rfind("[[", self._at)
        # A complete marker is here only where it waits for the character behind it.
        if at >= 0 and (self._marks.partial.match(text, at) or self._marks.pattern.fullmatch(text, at)):
            end = at
        elif text.endswith("["):
            end -= 1
        if end > self._at and text[end - 1] == "`":
            end -= 1
        while end > self._at and (text[end - 1].isspace() or (self._is_fenced and text[end - 1] == "`")):
            end -= 1
        return max(end, self._at)

    def _emit(self, pieces: list[tuple[str, str]], end: int) -> None:
        """Hand out the text up to a place, without the blanks around the whole value."""
        if not self._name:
            self._at = max(self._at, end)
            return
        piece = self._text[self._at : end]
        blank = 0 if self._has_begun else len(piece) - len(piece.lstrip())
        value = piece[blank:].rstrip()
        if value:
            self._has_begun = True
            self._at += blank + len(value)
            pieces.append((self._name, value))
