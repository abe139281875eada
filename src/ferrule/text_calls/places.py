# ruff: noqa: RUF001  quotation marks of many languages are what this file is about
"""Where a model speaks, and where it only shows what somebody could say.

A call counts at the beginning of the text, and on a line of its own. Words may lead in to it on its
line if they are a paragraph of their own and say that a call follows. It does not count inside a
sentence, quotation marks, brackets, a comment, a cell, a quotation, code or an element, nor where
the words before it announce an example or the words of somebody else. When in doubt, it does not
count: a call that is lost is asked for again.

Which words announce a call or an example is known for English. In other languages only the
punctuation, the lines and the marks around a call decide.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

from ferrule.text_calls.marks import is_ending, mark_at, mark_of, tag_pattern

_NEAR = 400
"""How far the line and the words beside a call are looked at."""
_CLOSERS = {
    '"': '"', "'": "'", "“": "”", "„": "“", "‘": "’", "«": "»", "»": "«", "「": "」", "『": "』",
    "(": ")", "[": "]", "{": "}", "<!--": "-->", "/*": "*/", '"""': '"""', "'''": "'''",
    "`": "`", "``": "``", "（": "）", "【": "】", "《": "》",
}  # fmt: skip
_OPENS_BESIDE = frozenset("\"'“„‘«「『([{（【《=\\")
_CLOSES_BESIDE = frozenset("\"'”’»」』)]}）】》")
_ANSWER_ELEMENTS = frozenset({"response", "answer", "final", "finalanswer", "output", "message"})
"""Elements in which a model wraps all that it says."""
_DEEPEST = 64

Side = Literal["nothing", "sentence", "goes on"]


@cache
def _delimiters() -> re.Pattern[str]:
    return re.compile(
        r"<!--|-->|/\*|\*/|\"{3}|'{3}|[\"'“”„‘’«»「」『』（）【】《》]|[()\[\]{}]|`+"
        r"|</?[A-Za-z][\w:-]*(?:\s[^<>\n]{0,160})?>"
    )


@cache
def _comment() -> re.Pattern[str]:
    """A comment in a program, at the beginning of a line or behind code."""
    return re.compile(r"(?:\A|\s)(?:#+|//|--|;|%|rem\b|<!--|/\*)", re.IGNORECASE)


@cache
def _lead_in() -> re.Pattern[str]:
    """A bullet, a number, the speaker or an announcing word before a call, and markup around."""
    return re.compile(
        r"(?:[-*+•]|\(?\d{1,3}[.)]|step \d+:?)(?=\s|\Z)|[*_~]+|return\b"
        r"|(?:assistant)?commentary\b|(?:assistant|calls?|action)[*_]*:|\Z",
        re.IGNORECASE,
    )


@cache
def _reported() -> re.Pattern[str]:
    """The end of a clause that gives a call as an example, or as the words of somebody else."""
    return re.compile(
        r"\b(?:e\.\s?g\b|for (?:example|instance)|such as|like this|usage|examples?\b|template\b"
        r"|would|could|might|should|used to|must not|cannot|can['’]t|won['’]t"
        r"|says?|said|states?|reads?|writes?|wrote|written by|contains?|contained|includes?"
        r"|shows?|showed|quot(?:ed|es|ing|ations?)|quote (?:it|this|that|them|only|from)"
        r"|the following quote|returned|replied|answered|sent|received|injected|injection"
        r"|ignor(?:e[ds]?|ing)|disregard(?:ed|s|ing)?"
        r"|(?:not|n['’]t|never|no) (?:\w+ ){0,3}?(?:run|call(?:s|ed)?|execute[d]?|use|invoke[d]?"
        r"|follow(?:ed)?|obey(?:ed)?|made|meant|write|send|make)"
        r"|(?:if|when|unless) (?:you|a|an|the|they|it|some)\b.{0,60}|you (?:can|may)"
        r"|available (?:functions|tools)|signatures?|(?:these|following) forms?|has this form)\b"
        r"(?:[^,.;!?\n]|\.(?!\s)){0,80}\Z",
        re.IGNORECASE,
    )


@cache
def _spoken() -> re.Pattern[str]:
    """A clause in which the model says that it calls, whatever else it mentions."""
    return re.compile(
        r"(?:\A|\b(?:so|and|but|then|now|instead|thus|hence)\b)\W*(?:so |now |then |again,? )*"
        r"(?:i|we|i['’]ll|we['’]ll|let me|let us|let['’]s|i['’]m|search"
        r"|call(?:ing)?|run(?:ning)?)\b"
        r"(?![^\n]*\b(?:not|n['’]t|never|quot\w+|ignor\w+|would|could|disregard\w*)\b)[^\n]*\Z",
        re.IGNORECASE,
    )


@cache
def _bullet() -> re.Pattern[str]:
    return re.compile(r"\s*(?:[-*+•]|\(?\d{1,3}[.)])\s")


@cache
def _labelled_item() -> re.Pattern[str]:
    """An item of a list whose text, behind its label, ends with a colon: `2. Footer: Call:`."""
    return re.compile(r"(?:\A|\n)[ \t]*(?:[-*+•]|\(?\d{1,3}[.)])[ \t][^\n:]{1,80}:[ \t][^\n]*:\W*$")


@cache
def _announces() -> re.Pattern[str]:
    """Words with which a model says that it calls."""
    return re.compile(
        r"\b(?:i|we|let me|let us|let['’]s|i['’]ll|we['’]ll|i['’]m|calls?|calling|running|using"
        r"|searching|steps?|tools?|functions?|actions?|invocations?|invok\w+|requests?"
        r"|commands?)\b",
        re.IGNORECASE,
    )


@cache
def _said_after() -> re.Pattern[str]:
    return re.compile(
        r"[\s\"'`)\].,;:]*(?:(?:the|this|that)\s+)?(?:(?:tool\s+)?(?:calls?|text|block|lines?)\s+)?"
        r"(?:above\s+)?(?:is|was|are|were)\s+(?:\w+\s+){0,3}?"
        r"(?:quoted|a\s+quotation|ignored|an?\s+example)\b",
        re.IGNORECASE,
    )


class Places:
    """Decides for the calls of one text, in their order, whether the model makes them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._read = 0
        """The position up to which delimiters were read."""
        self._open: list[tuple[str, int]] = []
        """The delimiters that are open there, and where."""
        self._next: dict[str, int] = {}
        """Where each closing delimiter was last found."""
        self._behind = 0
        """Where the last call, thought or turn ends: words before it say nothing about the next."""
        self._quoted = -1
        """The end of the last call that is only shown."""
        self._apart = -1
        """The last line that is a quotation, a row of a table or a comment."""

    def skip(self, end: int, *, forgets: bool = False) -> None:
        """Go on behind a part of the text that is not the model's speech.

        `forgets`: what is open before it ends with it.
        """
        if forgets:
            self._open.clear()
            self._quoted = -1
        else:
            self._read_to(end)
        self._read = max(self._read, end)
        self._behind = max(self._behind, end)

    def speaks(self, start: int, end: int, *, is_marked: bool, is_line: bool = False) -> bool:
        """Whether the model makes the call between two positions.

        `is_marked`: a tag or token announces it. `is_line`: only its line tells it from prose.
        """
        self._read_to(start)
        is_made = self._is_made(start, end, is_marked=is_marked, is_line=is_line)
        if not is_made:
            self._quoted = end
        self._read = max(self._read, end)
        self._behind = max(self._behind, end)
        return is_made

    def _is_made(self, start: int, end: int, *, is_marked: bool, is_line: bool) -> bool:
        text = self._text
        is_whole = not text[:start].strip(" \t\r\n`\"'*(") and not self._after(end, whole=True)
        if is_whole and not is_marked:
            return True
        line = text.rfind("\n", max(self._behind, start - _NEAR), start) + 1
        if not line:
            line = max(self._behind, start - _NEAR)
        before = _turn_of(text[line:start]).strip(" \t\r\n")
        own_line = text.rfind("\n", max(0, start - _NEAR), start) + 1
        is_apart = _is_set_apart(text[max(own_line, self._behind) : start])
        if is_apart or own_line == self._apart:
            self._apart = own_line
            return False
        if self._continues_quoted(start):
            return False
        if self._is_enclosed(start, end, is_marked=is_marked):
            return False
        after = self._side(end)
        bare = _without_lead(before)
        if bare and bare[-1] in _OPENS_BESIDE:
            return False
        before_code = bare.rstrip("`* ")
        if bare[-1:] == "`" and (is_marked or not (before_code == "" or before_code[-1] == ":")):
            return False
        bare = bare.strip("`*_ \t")
        if after == "goes on":
            return False
        is_open = bool(bare) and bare[-1] not in ".:!?…。：！？)>" and not bare.endswith("]")
        if is_open and (after != "nothing" or not is_marked):
            return False
        if is_line and bare and bare[-1] not in ":：>":
            return False
        if is_line and after != "nothing":
            return False
        if bare and not self._is_led_in(line, start, end, bare):
            return False
        if self._is_introduced_as_shown(start):
            return False
        if self._sentence_goes_on(start, end):
            return False
        return _said_after().match(text[end : end + 240]) is None

    def _is_introduced_as_shown(self, start: int) -> bool:
        """Whether the words before a call say that it is an example, or somebody else's."""
        if _labelled_item().search(self._text, max(self._behind, start - _NEAR), start) is not None:
            return True
        lead = self._lead(start)
        if _is_plain_fence(self._text, start) and lead and not _announces().search(lead):
            return True
        return bool(lead) and bool(_reported().search(lead)) and not _spoken().search(lead)

    def _is_led_in(self, line: int, start: int, end: int, words: str) -> bool:
        """Whether the words before a call on its line lead in to it.

        They are a paragraph of their own, without a bullet, and no label: words that a colon or
        nothing ends must say that a call follows.
        """
        text = self._text
        before = text[max(self._behind, line - _NEAR) : line]
        if before.strip() and not before.endswith("\n\n"):
            return False
        if _bullet().match(text[line:start]) is not None:
            return False
        if re.compile(r"[ \t]*\r?\n[ \t]*[^\s<\[{(`]").match(text, end) is not None:
            return False
        if words[-1] in ".!?…。！？>":
            return True
        is_glued = not text[start - 1 : start].isspace() and words[-1] not in ":："
        return is_glued or _announces().search(words) is not None

    def passes(self, start: int, end: int) -> None:
        """Note what looks like a call and is none: a list that shows calls goes on behind it."""
        if self._continues_quoted(start):
            self._quoted = end

    def _continues_quoted(self, start: int) -> bool:
        """Whether only blanks, bullets and tags of calls are between the last shown call and this.

        Calls that stand together are made together, or not at all.
        """
        if not 0 <= self._quoted <= start:
            return False
        between = self._text[self._quoted : min(start, self._quoted + _NEAR)]
        words = tag_pattern().sub(_without_tag_of_calls, between)
        return not words.strip(" \t\r\n,;|&-*•") and "\n\n" not in between

    def _lead(self, start: int) -> str:
        """The last clause before a call, if the call belongs to it."""
        before = self._text[max(self._behind, start - _NEAR) : start]
        before = re.sub(r"`{3,}[ \t]*\w*\s*\Z|[\s`*_'\"\[(]+\Z|\s[-•]\s*\Z", "", before)
        before = before.rstrip(" \t\r\n`*_'\"")
        if not before:
            return ""
        paragraph = before.rsplit("\n\n", 1)[-1]
        ends = paragraph[-1] in ".!?…。"
        sentence = re.split(r"(?<=[.!?…])\s+|\n", paragraph)[-1]
        if ends and not re.search(
            r"\b(?:following|below|example|usage)\b", sentence, re.IGNORECASE
        ):
            return ""
        if ends:
            return sentence.rstrip(".!?…")
        clause = re.split(r",\s+(?=(?:so|and|but|then|now|which|i|we)\b)|;\s", sentence)[-1]
        return clause.strip().rstrip(":：").rstrip()

    def _sentence_goes_on(self, start: int, end: int) -> bool:
        """Whether a sentence begins before the call and goes on in the lines after it."""
        after = self._after(end)
        if not after or not after[0].islower() or re.match(r"[\w.:/-]+\s*[\n({=]", after):
            return False  # a tool's name may be lower case, too
        before = self._text[max(self._behind, start - _NEAR) : start].rstrip()
        return bool(before) and (before[-1].isalnum() or before[-1] in ",;")

    def _after(self, end: int, *, whole: bool = False) -> str:
        """The text after a call, without tags that end it."""
        offset = end
        text = self._text
        for _ in range(8):
            while text[offset : offset + 1].isspace():
                offset += 1
            mark = mark_at(text, offset)
            if mark is None or not (mark.role == "stops" or mark.closes):
                break
            offset += len(mark.text)
        rest = text[offset : offset + _NEAR]
        return rest.strip(" \t\r\n`*_'\";.,])}") if whole else rest

    def _side(self, end: int) -> Side:
        """What stands after a call on its line."""
        text = self._text
        line_end = text.find("\n", end, end + _NEAR)
        after = text[end : line_end if line_end >= 0 else end + _NEAR].strip(" \t\r")
        while after := after.lstrip("`*_;. \t"):
            found = tag_pattern().match(after)
            if found is None:
                break
            mark = mark_of(found[0])
            if mark.text.startswith("<|") and mark.word in ("start", "channel", "imstart"):
                return "nothing"
            if mark.role not in ("stops", "ends", "announces", "names", "thought") and (
                not mark.closes
            ):
                return "goes on"
            if mark.role in ("announces", "names"):
                return "nothing"
            after = after[found.end() :]
        if not after or after.startswith(">>>"):
            return "nothing"
        if after[0] in _CLOSES_BESIDE or after[0] == "|":
            return "nothing" if not after.strip("\"'`)]}.,;*_ \t") else "goes on"
        return "sentence" if after[0].isupper() else "goes on"

    def _read_to(self, position: int) -> None:
        """Read the delimiters up to a position. Calls and thoughts are left out."""
        text = self._text
        opened = self._open
        for found in _delimiters().finditer(text, self._read, position):
            mark = found[0]
            offset = found.start()
            if mark[0] == "<" and mark != "<!--":
                self._element(mark, offset)
            elif mark[0] == "`":
                if len(mark) <= len("``"):
                    self._toggle(mark, offset)
            elif mark in ('"', "'", "’", '"""', "'''"):
                self._quote(mark, offset)
            elif mark in _CLOSERS and not (mark == "“" and opened and opened[-1][0] == "„"):
                if len(opened) < _DEEPEST:
                    opened.append((mark, offset))
            else:
                self._close(mark)
        self._read = max(self._read, position)

    def _quote(self, mark: str, offset: int) -> None:
        text = self._text
        before = text[offset - 1 : offset] if offset else " "
        behind = text[offset + len(mark) : offset + len(mark) + 1]
        if mark != '"' and before.isalnum() and behind.isalnum():
            return  # an apostrophe
        if self._close(mark):
            return
        if mark == "’" or before.isalnum() or not behind or len(self._open) >= _DEEPEST:
            return
        self._open.append((mark, offset))

    def _toggle(self, mark: str, offset: int) -> None:
        if not self._close(mark) and len(self._open) < _DEEPEST:
            self._open.append((mark, offset))

    def _close(self, closer: str) -> bool:
        for index in range(len(self._open) - 1, -1, -1):
            if _CLOSERS.get(self._open[index][0]) == closer:
                del self._open[index:]
                return True
        return False

    def _element(self, tag: str, offset: int) -> None:
        name = tag.strip("</>").split(None, 1)[0].rstrip("/").casefold()
        if tag[1] == "/":
            for index in range(len(self._open) - 1, -1, -1):
                if self._open[index][0] == f"<{name}":
                    del self._open[index:]
                    return
        elif not tag.endswith("/>") and len(self._open) < _DEEPEST:
            mark = mark_of(tag)
            if mark.word not in _ANSWER_ELEMENTS and mark.role in ("", "shown", "result"):
                self._open.append((f"<{name}", offset))

    def _is_enclosed(self, start: int, end: int, *, is_marked: bool) -> bool:
        """Whether something that is open before the call is closed after it."""
        for opener, offset in self._open:
            if opener[0] == "<" and opener != "<!--":
                closer = f"</{opener[1:]}"
            elif opener == "<!--":
                return True
            else:
                closer = _CLOSERS[opener]
            found = self._position(closer, end)
            if found < 0:
                continue
            if opener == "`" and not is_marked and offset == start - 1 and found == end:
                continue  # the line decides: models write their calls in backticks, too
            if (
                opener in ("`", "``", "'")
                and "\n\n" in self._text[offset:start] + self._text[end:found]
            ):
                continue
            return True
        return False

    def _position(self, closer: str, offset: int) -> int:
        """Where a closing delimiter is found from a position on; -1 if nowhere."""
        known = self._next.get(closer, 0)
        if known < 0 or known >= offset:
            return known
        found = self._text.find(closer, offset)
        while closer == "'" and found >= 0 and self._text[found + 1 : found + 2].isalnum():
            found = self._text.find(closer, found + 1)
        self._next[closer] = found
        return found


def _without_tag_of_calls(tag: re.Match[str]) -> str:
    if mark_of(tag[0]).role in ("stops", "ends", "announces", "names"):
        return ""
    return tag[0]


def _is_plain_fence(text: str, start: int) -> bool:
    """Whether a fence begins there that does not say what is in it."""
    return re.compile(r"(?:`{3,}|~{3,})[ \t]*\r?\n").match(text, start) is not None


def _is_set_apart(before: str) -> bool:
    """Whether the beginning of a line makes it a quotation, a table's row or a comment."""
    stripped = before.strip()
    if not stripped:
        return False
    quoted = re.sub(r"\A(?:(?:[-*+•]|\d{1,3}[.)])\s+)+", "", stripped)
    if quoted.startswith(("|", ">")):
        return True
    return _comment().search(stripped) is not None


def _turn_of(before: str) -> str:
    """The words before a call without those of the turns and the thoughts that end there."""
    turn = 0
    for tag in tag_pattern().finditer(before):
        mark = mark_of(tag[0])
        if mark.role == "stops" or (mark.role == "thought" and is_ending(mark)):
            turn = tag.end()
    return before[turn:]


def _without_lead(before: str) -> str:
    """The words before a call on its line, without bullets, numbers, markup and tags."""
    while before:
        mark = tag_pattern().match(before)
        lead = _lead_in().match(before)
        end = 0
        if mark is not None:
            end = mark.end()
        elif lead is not None:
            end = lead.end()
        if not end:
            return before
        before = before[end:].lstrip()
        if mark is not None and mark_of(mark[0]).role == "":
            before = re.sub(r"\A(?:assistant|model|commentary|final)\b\s*", "", before)
    return before
