"""Calls that a text only quotes: in a blockquote, or where the sentence beside them says that they are quoted and ignored.

Only the words of that sentence count: a model that ignored one text may call a tool after the next.
"""

from __future__ import annotations

import re

from ferrule.text_calls.tags import TAG

_BLOCKQUOTE = re.compile(r"[ \t]*(?:(?:[-*+\u2022]|\d{1,3}[.)])[ \t]+)?>(?!>>)")
"""The start of a line (CommonMark 0.31, section 5.1), also in a list. `>>>` announces a call, or is a Python prompt."""
_SPEAKS = re.compile(r"quot(?:e\b|ed|ing|ation)|ignor|disregard", re.IGNORECASE)
_OPENING = re.compile(r"\s*(?:`{3,}[ \t]*\w*)?[\s`*_'\"]*\Z")
"""The text allowed between a sentence and the call: the start of a fence, quotation marks."""
_SENTENCE_END = re.compile(r"[.!?]\s|\n")
_IGNORED = r"(?:ignor(?:e|ed|es|ing)|disregard(?:ed|s|ing)?)\b"
_NOT_RUN = (
    r"(?:not|n['\u2019]t|never|nor) (?:\w+ ){0,2}?(?:run|call(?:ed)?|execute[d]?|invoke[d]?|follow(?:ed)?|obey(?:ed)?|made|meant)\b"
    r"|\b(?:not|no) (?:a |an |my |any )?(?:\w+ )?(?:calls?|requests?|instructions?)\b"
)
_QUOTED = r"\b(?:quoted|quoting|quotations?|quote (?:it|this|that|them|only|from)|only quote)\b"
_WHAT_FOLLOWS = r"(?:\W+(?:it|this|that|these|them|the|following|next|below|quoted|tool|calls?|text|block|quotes?|quotation|messages?)\b)*"
_IS_QUOTED = re.compile(
    rf"{_QUOTED}.*(?:{_IGNORED}|{_NOT_RUN})|(?:{_IGNORED}|{_NOT_RUN}).*{_QUOTED}|\b{_IGNORED}{_WHAT_FOLLOWS}\W*\Z",
    re.IGNORECASE | re.DOTALL,
)
_FOLLOWING = re.compile(
    rf"\b(?:following|below)\b.*{_IGNORED}|\b{_IGNORED}.*\b(?:following|below)\b",
    re.IGNORECASE | re.DOTALL,
)
_LABEL = re.compile(
    r"\W*(?:begin )?(?:quoted|quotation|ignored)(?:\W+(?:and|text|quoted|ignored))*\W*",
    re.IGNORECASE,
)
_BEHIND = re.compile(
    rf"(?:{TAG.pattern}|[\s\"'`)\].,;:])*(?:(?:the|this|that)\s+)?(?:(?:tool\s+)?(?:calls?|text|block|lines?|quotes?)\s+)?(?:above\s+)?"
    r"(?:is|was|are|were)\s+(?:\w+\s+){0,3}?(?:quoted|a\s+quotation|ignored)\b",
    re.IGNORECASE,
)
_GOES_ON = re.compile(r"\b(?:and|but|so|then|instead|now|let|we|i)\b", re.IGNORECASE)
"""The rest of the sentence is about something else: "I ignore the quoted text and search:"."""
_NEAR = 240


class Quotations:
    """The quotations of one text."""

    __slots__ = ("_behind", "_end", "_line", "_quoted", "_speaks", "_start", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._line = 0
        """Where the line of the last call starts."""
        self._start = 0
        """Where the last call starts: lines before it are known, and the line may be long."""
        self._quoted = -1
        """The line of the last call in a blockquote. A line that begins inside a call is not one."""
        self._behind = 0
        """Where the last call ends: words in its arguments say nothing about the next."""
        self._end = -1
        """The end of the last call that the text describes as quoted."""
        self._speaks: bool | None = None

    def quotes(self, start: int, end: int) -> bool:
        """Whether the call between two positions is quoted. Must be called in the order of the calls."""
        behind, self._behind = self._behind, end
        text = self._text
        while text[start : start + 1].isspace():
            start += 1
        self._line = max(self._line, text.rfind("\n", self._start, start) + 1)
        self._start = start
        if self._line == self._quoted or (
            self._line >= behind and _BLOCKQUOTE.match(text, self._line)
        ):
            self._quoted = self._line
            return True
        if self._speaks is None:
            self._speaks = _SPEAKS.search(text) is not None
        if self._speaks and (
            self._continues(start)
            or self._is_announced(behind, start)
            or _BEHIND.match(text[end : end + _NEAR])
        ):
            self._end = end
            return True
        return False

    def _continues(self, start: int) -> bool:
        """Whether the last quoted call is directly before, in one paragraph."""
        between = (
            TAG.sub("", self._text[self._end : start])
            if self._end >= 0 and start - self._end < _NEAR
            else "other"
        )
        return not between.strip(" \t\r\n,;|&") and "\n\n" not in between

    def _is_announced(self, behind: int, start: int) -> bool:
        before = self._text[max(behind, start - _NEAR) : start]
        said = _OPENING.sub("", before)
        sentence = _SENTENCE_END.split(said)[-1]
        if _LABEL.fullmatch(sentence):
            return True
        is_lead = sentence.endswith(":") or "\n" not in before[len(said) :]
        found = _FOLLOWING.search(sentence) or (_IS_QUOTED.search(sentence) if is_lead else None)
        return found is not None and _GOES_ON.search(sentence, found.end()) is None
