"""Judge the text that a model writes after its calls: the same calls again, an invented turn, code that tests the calls.

Calls after an invented turn rest on invented results, and are ignored. A repeated call counts once,
unless the words beside it ask for another call.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING

from ferrule.text_calls.tags import TAG, tag_of

if TYPE_CHECKING:
    from ferrule.text_calls.offers import Draft

_RESULTS = r"(?:results?|outputs?|responses?)"
_LABEL = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]*)?[*_\[(]{0,3}(?:"
    r"(?P<turn>(?:new |next )?(?:user|human|customer)(?: (?:message|query|question|request|turn))?|instructions?|observation"
    rf"|(?:tool|function|api|call|system)[ _-](?:call )?{_RESULTS})"
    rf"|(?P<question>question|q)|(?P<result>(?:the )?{_RESULTS})"
    r")[*_\])]{0,3}[ \t]*:",
    re.IGNORECASE | re.MULTILINE,
)
_HEADERS = frozenset({"imstart", "start", "startheaderid", "startofturn"})
"""Tokens that stand before the name of a role."""
_ROLE = re.compile(
    r"\s*(?:user|human|tool|function|ipython|environment|observation|system|developer)s?\b",
    re.IGNORECASE,
)
_ROLE_TOKEN = re.compile(r"(?:user|human|inst|ipython)(?:token)?|toolresults")
_RESULT_TAG = re.compile(
    rf"(?:begin|start)?(?:(?:tool|function|fn)s?(?:call)?{_RESULTS}(?:begin)?|observations?|results?)"
)
_MARKUP = re.compile(
    rf"(?:{TAG.pattern})(?:\s*(?:assistant|model|commentary|analysis|final|json)\b)?"
)
"""Tags, and the words that belong to them."""
_CODE = re.compile(
    r"^[ \t]*(?:def \w+\(|class \w.{0,80}:[ \t]*$|import [\w.]+(?: as \w+)?[ \t]*$|from [\w.]+ import |if __name__\b"
    r"|assert .{0,200}(?:==|\(|is not))"
    r"|^\W{0,8}(?:(?:unit )?tests?|testing)(?: (?:it|this|them|code|cases?|the \w+(?: calls?)?))?\W{0,8}$"
    r"|\b(?:with|these|some|following|here (?:is|are)) (?:\w+ ){0,2}(?:test (?:code|cases?|program|script)|unit tests?)\b",
    re.IGNORECASE | re.MULTILINE,
)
_SUMMARY = re.compile(
    r"\b(?:summar\w+|recap\w*|in short|altogether|in total|all together|to repeat|repeated"
    r"|for (?:clarity|reference|completeness|convenience)"
    r"|(?:so|here are) (?:all )?(?:the|my) (?:\w+ )?calls)\b",
    re.IGNORECASE,
)
_ANEW = re.compile(
    r"\b(?:again|once more|one more|another|twice|repeat|re-?(?:try|run|check|do|send|roll)"
    r"|(?:second|third|fourth|fifth|other|next|last) (?:\w+ )?(?:time|one|call|attempt|try))\b",
    re.IGNORECASE,
)
_SEQUENCE = re.compile(
    r"\b(?:then|next|also|afterwards?|after (?:that|this|which)|later)\b|^\W*(?:second|third|fourth)",
    re.IGNORECASE,
)
_SERIES = re.compile(
    r"[ \t]*[-*\u2022][ \t]|\W{0,8}\d{1,3}[.):]|\W{0,8}(?:step|call|request|query|task|part) ?\d|\W{0,8}(?:\w+ ){0,2}#?\d{1,3}\W*\Z",
    re.IGNORECASE,
)
_FOR = re.compile(r"\W*for (?!example|reference|clarity|completeness|convenience)", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]{2}")
_FENCE = re.compile(r"```\w*")
_SENTENCE_END = re.compile(r"[.!?]\s|\n")
_BETWEEN = " \t\r\n,;|&`()[]{}>"
_NEAR = 240


class Continuation:
    """The text after the first calls. Pass it the calls in their order."""

    __slots__ = (
        "_asks",
        "_behind",
        "_checked",
        "_code",
        "_counted",
        "_counts",
        "_form",
        "_lead",
        "_text",
        "is_over",
    )

    def __init__(self, text: str) -> None:
        self._text = text
        self.is_over = False
        """Whether the model invented the rest of the text."""
        self._behind = 0
        """Where the last thought ends. Its words do not start a turn, and do not sum up calls."""
        self._checked = 0
        """The position up to which turns and code were searched."""
        self._code = -1
        """The end of the calls that code follows."""
        self._lead = ""
        """The line before the last calls."""
        self._form = ""
        self._asks: bool | None = None
        """Whether the text asks questions of its own before its first call."""
        self._counts: Counter[str] = Counter()
        self._counted = 0

    def skip_thought(self, end: int) -> None:
        """Disregard the words before this position: they say nothing about later calls."""
        self._behind = end

    def ignores(self, behind: int, start: int) -> bool:
        """Whether to ignore a call because of the text between it and the calls before it."""
        begin, self._checked = max(behind, self._behind, self._checked), start
        self.is_over = self._has_turn(behind, begin, start)
        if self._code != behind and _CODE.search(self._text, begin, start) is not None:
            self._code = behind
        return self.is_over or (self._code == behind and TAG.match(self._text, start) is None)

    def without_repeats(
        self, behind: int, start: int, now: list[Draft], before: list[Draft]
    ) -> list[Draft]:
        """The calls of `now` without those that repeat calls of `before`."""
        text = self._text
        said = _FENCE.sub(
            "", _MARKUP.sub("", text[max(behind, self._behind, start - _NEAR) : start])
        ).strip(_BETWEEN)
        lead, self._lead = self._lead, _last_line(said)
        form, self._form = self._form, _form(text, start)
        has_words = _WORD.search(said) is not None and said.casefold() != "and"
        if not before or (
            self._is_meant(said, lead) if has_words else form == self._form or self._behind > behind
        ):
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
        return left if has_words or (not left and len(now) == len(before)) else now

    def _has_turn(self, behind: int, begin: int, start: int) -> bool:
        """Whether a turn begins there that is another speaker's."""
        if self._asks is None:
            self._asks = any(each["question"] for each in _LABEL.finditer(self._text, 0, behind))
        between = self._text[begin:start]
        for label in _LABEL.finditer(between):
            if (
                label["turn"]
                or (label["question"] and not self._asks)
                or (label["result"] and not _SERIES.match(_last_line(between)))
            ):
                return True
        for found in TAG.finditer(between):
            tag = tag_of(found[0])
            if tag.stem in _HEADERS and _ROLE.match(between, found.end()):
                return True
            is_token = found[0].startswith("[") or not found[0][1].isalpha()
            if tag.kind != "close" and (
                _RESULT_TAG.fullmatch(tag.stem) or (is_token and _ROLE_TOKEN.fullmatch(tag.stem))
            ):
                return True
        return False

    def _is_meant(self, said: str, lead: str) -> bool:
        """Whether the words between ask for another call."""
        paragraph = said.rsplit("\n\n", 1)[-1]
        if _SUMMARY.search(paragraph):
            return False
        sentence = _SENTENCE_END.split(said.rstrip(".!? \n"))[-1]
        is_listed = _SERIES.match(self._lead) or (_FOR.match(self._lead) and _FOR.match(lead))
        return bool(is_listed or _ANEW.search(paragraph) or _SEQUENCE.search(sentence))


def _last_line(text: str) -> str:
    """The last line with words or a number."""
    lines = _FENCE.sub("", text[-_NEAR:]).rstrip(" \t\r\n`*_[(").rsplit("\n", 1)
    return lines[-1]


def _form(text: str, start: int) -> str:
    """The form of a call, by its first character."""
    if TAG.match(text, start):
        return "tag"
    mark = text[start : start + 1]
    return mark if mark in "[{`(" else "name"


def _digest(draft: Draft) -> str:
    """A text that is the same for equal calls only."""
    if draft.fault is not None:
        return f"{draft.offer.name} {draft.fault.raw!r} {draft.fault.reason}"
    try:
        return f"{draft.offer.name} {json.dumps(draft.args, sort_keys=True)}"
    except (TypeError, ValueError, RecursionError):  # no JSON, so `find` makes it a fault
        return f"{draft.offer.name} {id(draft)}"
