"""What a model writes after its calls: the same calls again, a turn that it makes up, code.

Calls after a turn that the model made up rest on results that it made up, and are ignored. A call
that is written again counts once, unless the words before it ask for another.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from ferrule.text_calls.marks import mark_of, tag_pattern

if TYPE_CHECKING:
    from ferrule.text_calls.drafts import Draft

_HEADERS = frozenset({"imstart", "start", "startheaderid", "startofturn", "begin"})
"""Tokens that stand before the name of a role."""
_BETWEEN = " \t\r\n,;|&`()[]{}>"
_NEAR = 240
_RESULTS = r"(?:results?|outputs?|responses?)"


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(_PATTERNS[name], re.IGNORECASE | re.MULTILINE)


_PATTERNS = {
    "label": r"^[ \t]*(?:#{1,6}[ \t]*)?[*_\[(]{0,3}(?:"
    r"(?P<turn>(?:new |next )?(?:user|human|customer)(?: (?:message|query|question|request|turn))?"
    r"|instructions?|observation"
    rf"|(?:tool|function|api|call|system)[ _-](?:call )?{_RESULTS})"
    rf"|(?P<question>question|q)|(?P<result>(?:the )?{_RESULTS})"
    r")[*_\])]{0,3}[ \t]*:",
    "role": r"\s*(?:user|human|tool|function|ipython|environment|observation|system|developer)s?\b",
    "role token": r"(?:user|human|inst|ipython)(?:token)?\Z",
    "code": r"^[ \t]*(?:def \w+\(|class \w.{0,80}:[ \t]*$|import [\w.]+(?: as \w+)?[ \t]*$"
    r"|from [\w.]+ import |if __name__\b|assert .{0,200}(?:==|\(|is not))"
    r"|^\W{0,8}(?:(?:unit )?tests?|testing)"
    r"(?: (?:it|this|them|code|cases?|the \w+(?: calls?)?))?\W{0,8}$"
    r"|\b(?:with|these|some|following|here (?:is|are)) (?:\w+ ){0,2}"
    r"(?:test (?:code|cases?|program|script)|unit tests?)\b",
    "summary": r"\b(?:summar\w+|recap\w*|in short|altogether|in total|all together|to repeat"
    r"|repeated|for (?:clarity|reference|completeness|convenience)"
    r"|(?:so|here are) (?:all )?(?:the|my) (?:\w+ )?calls)\b",
    "another": r"\b(?:again|once more|one more|another|twice|repeat"
    r"|re-?(?:try|run|check|do|send|roll)"
    r"|(?:second|third|fourth|fifth|other|next|last) (?:\w+ )?(?:time|one|call|attempt|try))\b",
    "sequence": r"\b(?:then|next|also|afterwards?|after (?:that|this|which)|later)\b"
    r"|\A\W*(?:second|third|fourth)",
    "series": r"[ \t]*[-*\u2022][ \t]|\W{0,8}\d{1,3}[.):]"
    r"|\W{0,8}(?:step|call|request|query|task|part) ?\d|\W{0,8}(?:\w+ ){0,2}#?\d{1,3}\W*\Z",
    "for": r"\W*for (?!example|reference|clarity|completeness|convenience)",
    "word": r"[^\W\d_]{2}",
    "fence": r"```\w*",
    "sentence end": r"[.!?]\s|\n",
    "header word": r"\s*(?:assistant|model|commentary|analysis|final|json)\b",
}


class Repeats:
    """The text after the first calls. Pass it the calls in their order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.is_over = False
        """Whether the model made up the rest of the text."""
        self._behind = 0
        """Where the last thought ends. Its words do not start a turn, and do not sum up calls."""
        self._checked = 0
        """The position up to which turns and code were searched."""
        self._code = -1
        """The end of the calls that code follows."""
        self._lead = ""
        """The line before the last calls."""
        self._asks: bool | None = None
        """Whether the text asks questions of its own before its first call."""
        self._counts: Counter[str] = Counter()
        self._counted = 0

    def skip_thought(self, end: int) -> None:
        """Disregard the words before this position: they say nothing about later calls."""
        self._behind = end

    def ignores(self, behind: int, start: int, *, is_marked: bool = True) -> bool:
        """Whether to ignore a call because of the text between it and the calls before it."""
        begin, self._checked = max(behind, self._behind, self._checked), start
        self.is_over = self.is_over or self._has_turn(behind, begin, start)
        if self._code != behind and _pattern("code").search(self._text[begin:start]):
            self._code = behind
        return self.is_over or (self._code == behind and not is_marked)

    def without_repeats(
        self, behind: int, start: int, now: list[Draft], before: list[Draft]
    ) -> list[Draft]:
        """The calls of `now` without those that repeat calls of `before`."""
        said = self._text[max(behind, self._behind, start - _NEAR) : start]
        said = _without_marks(said).strip(_BETWEEN)
        lead, self._lead = self._lead, _last_line(said)
        has_words = _pattern("word").search(said) is not None and said.casefold() != "and"
        if not before or not has_words or self._is_meant(said, lead):
            return now
        for draft in before[self._counted :]:
            self._counts[_digest(draft)] += 1
        self._counted = len(before)
        used: Counter[str] = Counter()
        left: list[Draft] = []
        for draft in now:
            digest = _digest(draft)
            used[digest] += 1
            if used[digest] > self._counts[digest]:
                left.append(draft)
        return left

    def _has_turn(self, behind: int, begin: int, start: int) -> bool:
        """Whether a turn begins there that is another speaker's."""
        labels = _pattern("label")
        if self._asks is None:
            self._asks = any(label["question"] for label in labels.finditer(self._text, 0, behind))
        between = self._text[begin:start]
        for label in labels.finditer(between):
            is_listed = _pattern("series").match(_last_line(between)) is not None
            if label["turn"] or (label["question"] and not self._asks):
                return True
            if label["result"] and not is_listed:
                return True
        for tag in tag_pattern().finditer(between):
            mark = mark_of(tag[0])
            is_token = mark.text[0] == "[" or not mark.text[1].isalpha()
            if mark.word in _HEADERS and _pattern("role").match(between, tag.end()):
                return True
            if mark.role == "result" and not mark.closes:
                return True
            if is_token and not mark.closes and _pattern("role token").match(mark.word):
                return True
        return False

    def _is_meant(self, said: str, lead: str) -> bool:
        """Whether the words between ask for another call."""
        paragraph = said.rsplit("\n\n", 1)[-1]
        if _pattern("summary").search(paragraph):
            return False
        sentence = _pattern("sentence end").split(said.rstrip(".!? \n"))[-1]
        is_for = _pattern("for").match(self._lead) and _pattern("for").match(lead)
        return bool(
            is_for
            or _pattern("series").match(self._lead)
            or _pattern("another").search(paragraph)
            or _pattern("sequence").search(sentence)
        )


def _without_marks(text: str) -> str:
    """The words of a text, without tags and the words that belong to them."""
    pieces: list[str] = []
    offset = 0
    for tag in tag_pattern().finditer(text):
        pieces.append(text[offset : tag.start()])
        word = _pattern("header word").match(text, tag.end())
        offset = max(offset, tag.end() if word is None else word.end())
    return _pattern("fence").sub("", "".join(pieces) + text[offset:])


def _last_line(text: str) -> str:
    """The last line with words or a number."""
    return _pattern("fence").sub("", text[-_NEAR:]).rstrip(" \t\r\n`*_[(").rsplit("\n", 1)[-1]


def _digest(draft: Draft) -> str:
    """A text that is the same for equal calls only."""
    if draft.fault is not None:
        return f"{draft.offer.name} {draft.fault.raw!r} {draft.fault.reason}"
    try:
        return f"{draft.offer.name} {json.dumps(draft.args, sort_keys=True)}"
    except (TypeError, ValueError, RecursionError):  # no JSON, so `find` makes it a fault
        return f"{draft.offer.name} {id(draft)}"
