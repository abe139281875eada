"""Finding fields below `[[ ## name ## ]]` markers, in a whole text and in one that is still coming.

One rule for both: a marker of a field not seen yet opens it, at a line's start or within one; the marker of a field seen before begins
a stretch that belongs to nobody; the last marker ends everything; markers of unknown fields are text. A marker in backticks within a line
is only spoken of, and so is one inside a string of a JSON object or array that is not yet complete, in a field that is no plain text.
A field whose first marker stood within a line begins anew where its marker starts a line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ferrule.adapters.streaming.buffer import Held, Strings, starts_line

if TYPE_CHECKING:
    from collections.abc import Iterable

_NOT_OF_FENCE = re.compile(r"[^\w+-]")


class Marks:
    """The markers of one signature."""

    __slots__ = ("_parts", "end", "names", "partial", "pattern", "structured")

    def __init__(self, names: Iterable[str], end: str, *, structured: Iterable[str] = ()) -> None:
        self.names = tuple(names)
        self.end = end
        self.structured = frozenset(structured)
        """The fields that are no plain text."""
        known = "|".join(re.escape(name) for name in (*self.names, end))
        longest = max(map(len, (*self.names, end)))
        self.pattern = re.compile(rf"\[\[[ \t]*##[ \t]*({known})[ \t]*##[ \t]*\]\]")
        self._parts = self.pattern.split
        self.partial = re.compile(rf"\[\[[ \t]*(#(#[ \t]*(\w{{1,{longest}}}[ \t]*(#(#[ \t]*\]?)?)?)?)?)?\Z")
        """A marker whose rest is still to come."""

    def split(self, text: str) -> dict[str, str]:
        """The text below each marker."""
        return self._split_at_once(text) or self._split_with_care(text)

    def _split_at_once(self, text: str) -> dict[str, str] | None:
        """What nearly every answer is: each marker once, the last one at the end, nothing in backticks. None for any other."""
        if "`" in text:
            return None
        parts = self._parts(text)
        if self.structured:
            found: dict[str, str] = {}
            name, last = "", "\n"
            for part in parts[1:]:
                if not name:
                    name = part
                    continue
                if last[-1:] != "\n":  # the marker starts no line: it may stand in a string of JSON
                    return None
                found[name] = part.strip()
                name, last = "", part
        else:
            found = {parts[i]: parts[i + 1].strip() for i in range(1, len(parts), 2)}
        end = self.end
        if len(found) < len(parts) // 2 or (found.pop(end, None) is not None and parts[-2] != end):
            return None
        return found

    def _split_with_care(self, text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        opened: dict[str, int] = {}
        name, start, is_fenced, strings, read, tick = "", 0, False, None, 0, -1
        for mark in self.pattern.finditer(text):
            at, end = mark.span()
            if strings is not None:
                strings.read(text, read, at)
                read = at
                if strings.is_inside:
                    continue
            if at and text[at - 1] == "`" and at - 1 != tick and text[end : end + 1] == "`":
                tick = end  # one backtick does not close this marker and open the next
                if not starts_line(text, at - 1):
                    continue
                at, end = at - 1, end + 1
            if name:
                found[name] = text[start:at].strip()
            elif not opened:
                is_fenced = _follows_fence(text, at)
            marked = mark[1]
            if marked == self.end:
                if not opened:
                    continue
                return found
            begins = marked not in opened or (not starts_line(text, opened[marked]) and starts_line(text, at))
            if begins:
                opened[marked] = at
            name, start, read = (marked if begins else ""), end, end
            strings = Strings() if name in self.structured else None
        if name:
            value = text[start:].rstrip()
            found[name] = (value[:-3] if is_fenced and value.endswith("```") else value).strip()
        return found

    def outside(self, text: str) -> str:
        """What stands before the first marker and behind the last."""
        marks = list(self.pattern.finditer(text))
        if not marks:
            return text
        behind = text[marks[-1].end() :] if marks[-1][1] == self.end else ""
        return f"{text[: marks[0].start()]}\n{behind}"


def _follows_fence(text: str, at: int) -> bool:
    """Whether a line that opens a fence stands right before a place."""
    while at and text[at - 1].isspace():
        at -= 1
    while at and not _NOT_OF_FENCE.match(text, at - 1):
        at -= 1
    return text.endswith("```", 0, at)


class MarkReader:
    """Splits a streamed answer as `Marks.split` splits a whole one, and never hands out a piece of a marker."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._held = Held()
        self._later: list[str] = []
        """Blanks within what may become a marker: they decide nothing."""
        self._waits_in_marker = False
        self._name = ""
        self._strings: Strings | None = None
        self._read = 0
        """How far those are read."""
        self._tick = -1
        """The backtick that closed the latest marker in backticks: it does not open the next."""
        self._opened: dict[str, bool] = {}
        """The fields seen, and whether their marker started a line."""
        self._is_fenced = self._has_ended = False

    def feed(self, text: str) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        if self._has_ended:
            return []
        if self._waits_in_marker and not text.strip(" \t"):
            self._later.append(text)
            return []
        held = self._held
        held.text = "".join([held.text, *self._later, text])
        self._later.clear()
        pieces: list[tuple[str, str]] = []
        while not self._has_ended and self._to_next_mark(pieces):
            pass
        if not self._has_ended:
            self._settle(pieces, self._certain())
        before = held.at
        self._read_strings(before)
        held.let_go()
        self._read += held.at - before
        self._tick += held.at - before
        return pieces

    def finish(self) -> list[tuple[str, str]]:
        """What was held back, once no more text comes."""
        pieces: list[tuple[str, str]] = []
        if not self._has_ended:
            self._held.text = "".join([self._held.text, *self._later])
            while not self._has_ended and self._to_next_mark(pieces, is_last=True):
                pass
        if not self._has_ended:
            self._close(pieces, len(self._held.text), fence=self._is_fenced)
        self._has_ended = True
        return pieces

    def _to_next_mark(self, pieces: list[tuple[str, str]], *, is_last: bool = False) -> bool:
        """Settle the text up to and with the next marker; False where no marker is certain."""
        text = self._held.text
        while mark := self._marks.pattern.search(text, self._held.at):
            at, end = mark.span()
            self._read_strings(at)
            if self._strings is not None and self._strings.is_inside:
                self._settle(pieces, end)
                continue
            if at and text[at - 1] == "`" and at - 1 != self._tick:
                if end == len(text) and not is_last:
                    return False
                if text[end : end + 1] == "`":
                    self._tick = end
                    if not starts_line(text, at - 1):
                        self._settle(pieces, end)
                        continue
                    at, end = at - 1, end + 1
            self._close(pieces, at)
            self._open(mark[1], at, end)
            return not self._has_ended
        return False

    def _open(self, marked: str, at: int, end: int) -> None:
        held = self._held
        if not self._opened and not self._name:
            self._is_fenced = held.holds_backticks = _follows_fence(held.text, at)
        held.open(end)
        self._name, self._strings = "", None
        if marked == self._marks.end:
            self._has_ended = bool(self._opened)
            return
        is_first_of_line = starts_line(held.text, at)
        if marked not in self._opened or (is_first_of_line and not self._opened[marked]):
            self._opened[marked] = is_first_of_line
            self._name, self._read = marked, end
            self._strings = Strings() if marked in self._marks.structured else None

    def _read_strings(self, end: int) -> None:
        if self._strings is not None and end > self._read:
            self._strings.read(self._held.text, self._read, end)
            self._read = end

    def _certain(self) -> int:
        """Up to where the text can no longer turn into a marker."""
        text, settled = self._held.text, self._held.at
        end = len(text)
        at = text.rfind("[[", settled)
        self._waits_in_marker = at >= 0 and text[-1] in " \t" and self._marks.partial.match(text, at) is not None
        # A complete marker is here only where it waits for the character behind it.
        if at >= 0 and (self._waits_in_marker or self._marks.partial.match(text, at) or self._marks.pattern.fullmatch(text, at)):
            end = at
        elif text.endswith("["):
            end -= 1
        if end > settled and text[end - 1] == "`":
            end -= 1
        return max(end, settled)

    def _settle(self, pieces: list[tuple[str, str]], end: int) -> None:
        """Hand out the text up to a place that is certain."""
        if not self._name:
            self._held.at = max(self._held.at, end)
        elif value := self._held.take(end):
            pieces.append((self._name, value))

    def _close(self, pieces: list[tuple[str, str]], end: int, *, fence: bool = False) -> None:
        """Hand out the rest of a value."""
        if self._name and (value := self._held.last(end, fence=fence)):
            pieces.append((self._name, value))
