"""What a model writes after its calls: the same calls again, a turn that it makes up, code.

Calls after a turn that the model made up rest on results that it made up, and are ignored. A call
that is written again counts once, unless the words before it ask for another.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from ferrule.text_calls.marks import TAG, mark_of
from ferrule.text_calls.words import AFTER_CALLS

if TYPE_CHECKING:
    from ferrule.text_calls.drafts import Draft

_HEADERS = frozenset({"imstart", "start", "startheaderid", "startofturn", "begin"})
"""Tokens that stand before the name of a role."""
_BETWEEN = " \t\r\n,;|&`()[]{}>"
_NEAR = 240


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
        if self._code != behind and AFTER_CALLS["code"].search(self._text[begin:start]):
            self._code = behind
        return self.is_over or (self._code == behind and not is_marked)

    def without_repeats(
        self, behind: int, start: int, now: list[Draft], before: list[Draft]
    ) -> list[Draft]:
        """The calls of `now` without those that repeat calls of `before`."""
        said = self._text[max(behind, self._behind, start - _NEAR) : start]
        said = _without_marks(said).strip(_BETWEEN)
        lead, self._lead = self._lead, _last_line(said)
        has_words = AFTER_CALLS["word"].search(said) is not None and said.casefold() != "and"
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
        labels = AFTER_CALLS["label"]
        if self._asks is None:
            self._asks = any(label["question"] for label in labels.finditer(self._text, 0, behind))
        between = self._text[begin:start]
        for label in labels.finditer(between):
            is_listed = AFTER_CALLS["series"].match(_last_line(between)) is not None
            if label["turn"] or (label["question"] and not self._asks):
                return True
            if label["result"] and not is_listed:
                return True
        for tag in TAG.finditer(between):
            mark = mark_of(tag[0])
            is_token = mark.text[0] == "[" or not mark.text[1].isalpha()
            if mark.word in _HEADERS and AFTER_CALLS["role"].match(between, tag.end()):
                return True
            if mark.role == "result" and not mark.closes:
                return True
            if is_token and not mark.closes and AFTER_CALLS["role token"].match(mark.word):
                return True
        return False

    def _is_meant(self, said: str, lead: str) -> bool:
        """Whether the words between ask for another call."""
        paragraph = said.rsplit("\n\n", 1)[-1]
        if AFTER_CALLS["summary"].search(paragraph):
            return False
        sentence = AFTER_CALLS["sentence end"].split(said.rstrip(".!? \n"))[-1]
        is_for = AFTER_CALLS["for"].match(self._lead) and AFTER_CALLS["for"].match(lead)
        return bool(
            is_for
            or AFTER_CALLS["series"].match(self._lead)
            or AFTER_CALLS["another"].search(paragraph)
            or AFTER_CALLS["sequence"].search(sentence)
        )


def _without_marks(text: str) -> str:
    """The words of a text, without tags and the words that belong to them."""
    pieces: list[str] = []
    offset = 0
    for tag in TAG.finditer(text):
        pieces.append(text[offset : tag.start()])
        word = AFTER_CALLS["header word"].match(text, tag.end())
        offset = max(offset, tag.end() if word is None else word.end())
    return AFTER_CALLS["fence"].sub("", "".join(pieces) + text[offset:])


def _last_line(text: str) -> str:
    """The last line with words or a number."""
    return AFTER_CALLS["fence"].sub("", text[-_NEAR:]).rstrip(" \t\r\n`*_[(").rsplit("\n", 1)[-1]


def _digest(draft: Draft) -> str:
    """A text that is the same for equal calls only."""
    if draft.fault is not None:
        return f"{draft.offer.name} {draft.fault.raw!r} {draft.fault.reason}"
    try:
        return f"{draft.offer.name} {json.dumps(draft.args, sort_keys=True)}"
    except (TypeError, ValueError, RecursionError):  # no JSON, so `find` makes it a fault
        return f"{draft.offer.name} {id(draft)}"
