# ruff: noqa: RUF001  quotation marks of many languages are what this file is about
"""Where a model speaks, and where it only shows what somebody could say.

A call counts at the beginning of the text, and on a line of its own. It does not count inside a
sentence, quotation marks, brackets, a comment, a cell, a quotation, code or an element. When in
doubt, it does not count: a call that is lost is asked for again.

Punctuation, lines and marks decide, so the rules hold in every language. They cannot tell `I look
it up:` from `The page says:`. Models stop after a call and wait for its result, so the first call
behind a colon counts if the answer ends with calls. If it goes on, and in a fence that does not say
what it holds, the call also needs words that announce it. Words that give an example or report
what somebody else says never do. Both are known for English only (`words`).
"""

from __future__ import annotations

import re
from typing import Literal

from ferrule.encoding.ahead import Ahead
from ferrule.encoding.pattern import pattern
from ferrule.text_calls import words as english
from ferrule.text_calls.marks import TAG, is_ending, mark_at, mark_of

_NEAR = 400
"""How far the line and the words beside a call are looked at."""
_CLOSERS = {
    '"': '"', "'": "'", "“": "”", "„": "“", "‘": "’", "«": "»", "»": "«", "「": "」", "『": "』",
    "(": ")", "[": "]", "{": "}", "<!--": "-->", "/*": "*/", '"""': '"""', "'''": "'''",
    "`": "`", "``": "``", "（": "）", "【": "】", "《": "》",
}  # fmt: skip
_OPENS_BESIDE = frozenset("\"'“„‘«「『([{（【《=\\")
_CLOSES_BESIDE = frozenset("\"'”’»」』)]}）】》|")
_ENDS_SENTENCE = frozenset(".!?…。！？")
_MARKUP = " \t\r\n`*_"
_ANSWER_ELEMENTS = frozenset({"response", "answer", "final", "finalanswer", "output", "message"})
"""Elements in which a model wraps all that it says."""
_DEEPEST = 64
_MOST_TAGS = 8
"""Tags that are skipped behind a call."""

CallVerdict = Literal["made", "made at the end", "shown"]
"""Whether the model makes a call. "made at the end": only if the answer does not go on."""


_WORDS_BELOW = pattern(r"[ \t]*\r?\n[ \t]*[^\s<\[{(`]")
_PLAIN_FENCE = pattern(r"(?:`{3,}|~{3,})[ \t]*\r?\n")
_DELIMITERS = pattern(
    r"<!--|-->|/\*|\*/|\"{3}|'{3}|[\"'“”„‘’«»「」『』（）【】《》]|[()\[\]{}]|`+"
    r"|</?[A-Za-z][\w:-]*(?:\s[^<>\n]{0,160})?>"
)
_SET_APART = pattern(
    r"\s*(?:(?:[-*+•]|\d{1,3}[.)])\s+)*[|>]|(?:.*\s)?(?:#+|//|--|;|%|rem\b|<!--|/\*)",
    re.IGNORECASE,
)
"""The beginning of a line that is a quotation, a row of a table, or a comment.

A comment may also follow code.
"""


class Places:
    """Decides for the calls of one text, in their order, whether the model makes them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._begin = len(text) - len(text.lstrip(" \t\r\n`\"'*("))
        self._read = 0
        """The position up to which delimiters were read."""
        self._open: list[tuple[str, int]] = []
        """The delimiters that are open there, and where."""
        self._ahead = Ahead(text)
        self._behind = 0
        """Where the last call, thought or turn ends: words before it say nothing about the next."""
        self._shown_end = -1
        """The end of the last call that is only shown."""
        self._introduced_end = -1
        """The end of the last call that counts only at the end of the answer."""
        self._shown_line = -1
        """The last line that is a quotation, a row of a table or a comment."""

    def skip(self, end: int, *, forgets: bool = False) -> None:
        """Go on behind a part of the text that is not the model's speech.

        `forgets`: what is open before it ends with it.
        """
        if forgets:
            self._open.clear()
            self._shown_end = -1
        else:
            self._read_to(end)
        self._pass(end)

    def judge(self, start: int, end: int, *, is_marked: bool, is_line: bool = False) -> CallVerdict:
        """Whether the model makes the call between two positions.

        `is_marked`: a tag or token announces it. `is_line`: only its line tells it from prose.
        """
        self._read_to(start)
        verdict = self._verdict(start, end, is_marked=is_marked, is_line=is_line)
        if verdict == "shown":
            self._shown_end = end
        elif verdict == "made at the end":
            self._introduced_end = end
        self._pass(end)
        return verdict

    def passes(self, start: int, end: int) -> None:
        """Note what looks like a call and is none: a list that shows calls goes on behind it."""
        if self._continues_shown(start):
            self._shown_end = end

    def goes_on(self, end: int) -> bool:
        """Whether words follow the last call of an answer."""
        rest = TAG.sub(" ", self._text[end : end + _NEAR])
        return re.search(r"[^\W\d_]{2}", rest) is not None

    # -- the rules

    def _verdict(self, start: int, end: int, *, is_marked: bool, is_line: bool) -> CallVerdict:
        if not is_marked and self._is_whole(start, end):
            return "made"
        if self._is_set_apart(start) or self._continues_shown(start):
            return "shown"
        if self._is_enclosed(start, end, is_marked=is_marked):
            return "shown"
        after = self._line_after(end)
        if after and (is_line or not after[0].isupper()):
            return "shown"
        if not self._may_follow_its_line(start, end, is_marked=is_marked, is_line=is_line):
            return "shown"
        if self._sentence_goes_on(start, end):
            return "shown"
        lead = self._lead(start)
        if lead and english.REPORTS.search(lead):
            return "shown"
        is_announced = english.ANNOUNCES.match(lead) is not None
        if lead and not is_announced and self._is_plain_fence(start):
            return "shown"
        is_introduced = lead[-1:] in (":", "：") and not is_announced
        if is_introduced or self._continues_introduced(start):
            return "made at the end"
        return "made"

    def _is_whole(self, start: int, end: int) -> bool:
        if start > self._begin:
            return False
        return not self._after(end).strip(" \t\r\n`*_'\";.,])}")

    def _is_set_apart(self, start: int) -> bool:
        line = self._text.rfind("\n", max(0, start - _NEAR), start) + 1
        before = self._text[max(line, self._behind) : start]
        # A quotation goes on in the line below it, as in Markdown.
        above = self._text[max(self._behind, line - _NEAR) : line].rpartition("\n")[0]
        is_below_quotation = above.rpartition("\n")[2].startswith(">") and not before.strip()
        if line == self._shown_line or is_below_quotation or _SET_APART.match(before):
            self._shown_line = line
            return True
        return False

    def _continues_shown(self, start: int) -> bool:
        """Whether a call belongs to the last one that is only shown."""
        between = self._between(self._shown_end, start)
        return between is not None and "\n\n" not in between

    def _continues_introduced(self, start: int) -> bool:
        return self._between(self._introduced_end, start) is not None

    def _between(self, end: int, start: int) -> str | None:
        """The text between two calls, if it is only blanks, bullets and tags of calls.

        Calls that stand together are made together, or not at all.
        """
        if not 0 <= end <= start:
            return None
        between = self._text[end : min(start, end + _NEAR)]
        words = TAG.sub(_without_tag_of_calls, between)
        if words.strip(" \t\r\n,;|&-*•"):
            return None
        return between

    def _may_follow_its_line(self, start: int, end: int, *, is_marked: bool, is_line: bool) -> bool:
        """Whether the words before a call on its line lead in to it.

        They end a sentence, or say that a call follows; for a tag, they may also end without any
        sign. They are a paragraph of their own, without a bullet.
        """
        text = self._text
        line = text.rfind("\n", max(self._behind, start - _NEAR), start) + 1
        line = line or max(self._behind, start - _NEAR)
        words = _without_lead(_turn_of(text[line:start]).strip())
        if not words:
            return True
        if words[-1] in _OPENS_BESIDE:
            return False
        if words[-1] == "`":  # around a call without a tag, also behind a label
            label = words.rstrip("`* ")
            return not is_marked and label[-1:] in ("", ":")
        words = words.strip(_MARKUP)
        if not words:
            return True
        above = text[max(self._behind, line - _NEAR) : line]
        if above.strip() and not above.endswith("\n\n"):
            return False
        if re.match(r"\s*(?:[-*+•]|\(?\d{1,3}[.)])\s", text[line:start]):
            return False
        if _WORDS_BELOW.match(text, end):
            return False
        if words[-1] == ">":
            return True
        if words[-1] in _ENDS_SENTENCE:
            return not is_line
        if words[-1] in ":：":
            return english.ANNOUNCES.match(_last_clause(words)) is not None
        return is_marked and not text[start - 1].isspace() and not self._line_after(end)

    def _sentence_goes_on(self, start: int, end: int) -> bool:
        """Whether a sentence begins before the call and goes on in the lines after it."""
        after = self._after(end)
        if not after or not after[0].islower() or re.match(r"[\w.:/-]+\s*[\n({=]", after):
            return False  # a tool's name may be lower case, too
        before = self._text[max(self._behind, start - _NEAR) : start].rstrip()
        return bool(before) and (before[-1].isalnum() or before[-1] in ",;")

    def _lead(self, start: int) -> str:
        """The last clause before a call, if the call belongs to it."""
        before = self._text[max(self._behind, start - _NEAR) : start]
        before = re.sub(r"`{3,}[ \t]*\w*\s*\Z|[\s`*_'\"\[(]+\Z|\s[-•]\s*\Z", "", before)
        before = english.LABEL.sub("", before)
        paragraph = before.rstrip(_MARKUP + "'\"").rsplit("\n\n", 1)[-1]
        if not paragraph:
            return ""
        sentence = TAG.sub("", re.split(r"(?<=[.!?…])\s+|\n", paragraph)[-1])
        if sentence[-1:] not in _ENDS_SENTENCE:
            return _last_clause(sentence)
        if english.REFERS_AHEAD.search(sentence):
            return sentence.rstrip(".!?…")
        return ""

    def _is_plain_fence(self, start: int) -> bool:
        """Whether a fence begins there that does not say what is in it."""
        return _PLAIN_FENCE.match(self._text, start) is not None

    # -- the text after a call

    def _after(self, end: int) -> str:
        """The text after a call, without tags that end it."""
        text = self._text
        offset = end
        for _ in range(_MOST_TAGS):
            while text[offset : offset + 1].isspace():
                offset += 1
            mark = mark_at(text, offset)
            if mark is None or not (mark.role == "stops" or mark.closes):
                break
            offset += len(mark.text)
        return text[offset : offset + _NEAR]

    def _line_after(self, end: int) -> str:
        """What the model says after a call on its line, behind tags that end it.

        Nothing, if another call or another message begins there.
        """
        line_end = self._text.find("\n", end, end + _NEAR)
        if line_end < 0:
            line_end = end + _NEAR
        after = self._text[end:line_end].strip(" \t\r")
        while after := after.lstrip("`*_;. \t"):
            tag = TAG.match(after)
            if tag is None:
                break
            mark = mark_of(tag[0])
            is_message = mark.text.startswith("<|") and mark.word in ("start", "channel", "imstart")
            if is_message or mark.role in ("announces", "names"):
                return ""
            if not mark.closes and mark.role not in ("stops", "ends", "thought"):
                return after
            after = after[tag.end() :]
        if after.startswith(">>>"):
            return ""
        if after[:1] in _CLOSES_BESIDE and not after.strip("\"'`)]}.,;*_ \t"):
            return ""
        return after

    # -- delimiters

    def _pass(self, end: int) -> None:
        self._read = max(self._read, end)
        self._behind = max(self._behind, end)

    def _read_to(self, position: int) -> None:
        """Read the delimiters up to a position. Calls and thoughts are left out."""
        for delimiter in _DELIMITERS.finditer(self._text, self._read, position):
            mark = delimiter[0]
            offset = delimiter.start()
            if mark[0] == "<" and mark != "<!--":
                self._element(mark, offset)
            elif mark[0] == "`":
                if len(mark) <= len("``") and not self._close(mark):
                    self._push(mark, offset)
            elif mark in ('"', "'", "’", '"""', "'''"):
                self._quote(mark, offset)
            elif mark == "“" and self._open and self._open[-1][0] == "„":
                self._close(mark)
            elif mark in _CLOSERS:
                self._push(mark, offset)
            else:
                self._close(mark)
        self._read = max(self._read, position)

    def _quote(self, mark: str, offset: int) -> None:
        """A mark that opens and closes quotations, and may be an apostrophe."""
        before = self._text[offset - 1 : offset] if offset else " "
        behind = self._text[offset + len(mark) : offset + len(mark) + 1]
        if mark != '"' and before.isalnum() and behind.isalnum():
            return
        if not self._close(mark) and mark != "’" and behind and not before.isalnum():
            self._push(mark, offset)

    def _element(self, tag: str, offset: int) -> None:
        name = "<" + tag.strip("</>").split(None, 1)[0].rstrip("/").casefold()
        if tag[1] == "/":
            self._close(name)
        elif not tag.endswith("/>"):
            mark = mark_of(tag)
            if mark.word not in _ANSWER_ELEMENTS and mark.role in ("", "shown", "result"):
                self._push(name, offset)

    def _push(self, opener: str, offset: int) -> None:
        if len(self._open) < _DEEPEST:
            self._open.append((opener, offset))

    def _close(self, closer: str) -> bool:
        """Close what is open up to the last one that ends so. An element closes by its name."""
        for index in range(len(self._open) - 1, -1, -1):
            opener = self._open[index][0]
            if _CLOSERS.get(opener, opener) == closer:
                del self._open[index:]
                return True
        return False

    def _is_enclosed(self, start: int, end: int, *, is_marked: bool) -> bool:
        """Whether something that is open before the call is closed after it.

        What is never closed is forgotten.
        """
        for entry in tuple(self._open):
            opener, offset = entry
            if opener == "<!--":
                return True
            closer = _CLOSERS.get(opener) or f"</{opener[1:]}"
            position = self._next_position(closer, end)
            if position < 0:
                self._open.remove(entry)
                continue
            if opener == "`" and not is_marked and offset == start - 1 and position == end:
                continue  # the line decides: models write their calls in backticks, too
            between = self._text[offset:start] + self._text[end:position]
            if opener in ("`", "``", "'") and "\n\n" in between:
                continue
            return True
        return False

    def _next_position(self, closer: str, offset: int) -> int:
        """Where a closing delimiter is next; -1 if nowhere."""
        if closer != "'":
            return self._ahead.find(closer, offset)
        return self._ahead.search(closer, offset, self._closing_apostrophe)

    def _closing_apostrophe(self, offset: int) -> int:
        position = self._text.find("'", offset)
        while position >= 0 and self._text[position + 1 : position + 2].isalnum():
            position = self._text.find("'", position + 1)
        return position


def _without_tag_of_calls(tag: re.Match[str]) -> str:
    if mark_of(tag[0]).role in ("stops", "ends", "announces", "names"):
        return ""
    return tag[0]


def _last_clause(sentence: str) -> str:
    clauses = re.split(r",\s+(?=(?:now|which|i|we)\b)|,?\s+(?=(?:so|and|but|then)\s)|;\s", sentence)
    return clauses[-1].strip()


def _turn_of(before: str) -> str:
    """The words before a call without those of the turns and the thoughts that end there."""
    turn = 0
    for tag in TAG.finditer(before):
        mark = mark_of(tag[0])
        if mark.role == "stops" or (mark.role == "thought" and is_ending(mark)):
            turn = tag.end()
    return before[turn:]


def _without_lead(before: str) -> str:
    """The words before a call on its line, without bullets, numbers, markup and tags."""
    while before:
        tag = TAG.match(before)
        lead = tag or english.LEAD_IN.match(before)
        if lead is None or not lead.end():
            return before
        before = before[lead.end() :].lstrip()
        if tag is not None and mark_of(tag[0]).role == "":
            before = re.sub(r"\A(?:assistant|model|commentary|final)\b\s*", "", before)
    return before
