"""What a reader of a streamed answer holds back, in work that is linear in the answer however small its pieces are."""

from __future__ import annotations

import re

_KEPT_BEHIND = 256
_PLAIN = re.compile(r'[^"\\\n]*')
_STRUCTURE = re.compile(r'["{}\[\]]')
_BLANKS = re.compile(r"\s*")


def starts_line(text: str, at: int) -> bool:
    """Whether nothing but blanks stands before a place in its line."""
    while at and text[at - 1] in " \t":
        at -= 1
    return not at or text[at - 1] == "\n"


class Held:
    """The text that is not settled yet, with a little of what came before, and the blanks that may turn out to stand within a value."""

    __slots__ = ("_blanks", "at", "has_begun", "holds_backticks", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        """How much of the text is settled."""
        self.has_begun = False
        """Whether the value that is read has given out anything."""
        self.holds_backticks = False
        """Whether backticks at the end are held like blanks: they may be the fence around the whole answer."""
        self._blanks: list[str] = []

    def open(self, at: int) -> None:
        """A value begins at a place, or a stretch that belongs to nobody; what was held is dropped."""
        self.at, self.has_begun = at, False
        self._blanks.clear()

    def take(self, end: int) -> str:
        """The value's text up to a place, without blanks around the whole; those at its end are held until more comes."""
        text, stop = self.text, end
        while stop > self.at and (text[stop - 1].isspace() or (self.holds_backticks and text[stop - 1] == "`")):
            stop -= 1
        value = self._with_blanks(text[self.at : stop]) if stop > self.at else ""
        if stop < end:
            self._blanks.append(text[stop:end])
        self.at = end
        return value

    def last(self, end: int, *, fence: bool = False) -> str:
        """The value's text up to a place where it ends; with `fence` without the fence that closes the whole answer."""
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

    def let_go(self) -> None:
        """Forget what is settled but for what tells how a line begins, and whether a fence stands before."""
        if self.at <= 2 * _KEPT_BEHIND:
            return
        before = self.text[: self.at]
        bare = before.rstrip()
        # One blank stands for all: a line feed where a line begins, else one that begins none.
        blank = "" if len(bare) == len(before) else "\n" if starts_line(before, len(before)) else "\v"
        kept = bare[-_KEPT_BEHIND:] + blank
        self.text, self.at = kept + self.text[self.at :], len(kept)


class Strings:
    """Whether a place in a value stands inside a string of a JSON object or array that has not ended there.

    A string ends with its line at the latest: JSON has no line feed in one, and of a slip no more is lost than that.
    """

    __slots__ = ("_depth", "_is_escaped", "_is_over", "is_inside")

    def __init__(self) -> None:
        self._depth = 0
        self._is_escaped = self._is_over = self.is_inside = False

    def read(self, text: str, start: int, end: int) -> None:
        """Go on through the value's text between two places, the first being where the last reading ended."""
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
