"""Find the calls in a text, in one pass.

The way of a text through this room:

1. The pass stops at each sign that may begin a call, thoughts or somebody else's words (`_signs`).
   `marks` tells what a tag means, by the table in `dialects`.
2. Thoughts, results and fences of code are skipped. At all other signs `forms` reads the calls, in
   any form: `json_form`, `python_form`, or `arguments` in tags. All that lies inside a call belongs
   to it, whatever it looks like.
3. `places` judges whether the model makes these calls or only shows them; `repeats`, whether it
   made them before, or made up what is before them. Both ask punctuation first, then `words`.
4. The first calls that are made decide the answer's dialect: signs of others after them are text.
5. `find` makes the drafts one answer: all calls, or one with a fault.

The time grows with the length of the text and no faster. No search to the end of the text is made
twice (`Ahead`), and no value is read twice that breaks off (`Values`). What else is read twice is
paid for from a budget (`Effort`), which only a text that was written for that uses up.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from ferrule.encoding.pattern import pattern
from ferrule.text_calls.dialects import THOUGHTS_IN_WORDS
from ferrule.text_calls.drafts import COST_OF_CALL, COST_OF_SIGN, Effort, Group
from ferrule.text_calls.forms import Forms, labels
from ferrule.text_calls.marks import TAG, are_pair, is_ending, mark_at, mark_of
from ferrule.text_calls.places import Places
from ferrule.text_calls.python_form import are_signatures
from ferrule.text_calls.repeats import Repeats

if TYPE_CHECKING:
    from ferrule.text_calls.drafts import Draft
    from ferrule.text_calls.marks import Tag
    from ferrule.text_calls.offers import OfferedTools

_LONGEST_HEADER = 300
_NEAR = 240
"""How far the text behind the last call is looked at."""
_MESSAGE = "<|message|>"
_ADDRESSED = pattern(r"to=(?P<name>[\w.:/-]+?)(?:\s[^\n{<]{0,40}|json)?\s*(?=\{)")
"""The recipient of a message whose tokens were lost."""
_TOKEN_OF_HARMONY = pattern(r"<\|(?:end|eom|eot|start|call|return|channel)\|>")
_AROUND = " \t\r\n`\"'*"
"""Markup around a call that is the whole text."""


@cache
def _signs() -> re.Pattern[str]:
    """All that may begin a call, thoughts or another turn."""
    starts = "|".join(label.pattern.split("(?P", 1)[0] for label in labels().values())
    return re.compile(
        rf"(?P<tag>{TAG.pattern})"
        r"|(?:(?<=\n)|\A)[ \t>]{0,8}(?P<fence>`{3,}|~{3,})|(?P<ticks>`{3,})"
        r"|(?P<announced>(?<![\w.])functools(?=\[)|-> tool/function_call\n)"
        r"|(?<![\w.])(?P<header>to=)|(?P<call>(?<![\w.])call:)"
        rf"|(?:(?<=[\n>}}])|\A)[^\w\n{{\[(<>]{{0,4}}(?P<label>{starts})"
        r"|(?:(?<=\n)|\A)[ \t`*]*(?P<name>[^\W\d](?:[\w.:/-]|\\_)*)"
        r"(?=[`*]*[ \t]*\r?\n?[ \t]*(?:`{3}\w*\s*)?\{)"
        r"|(?<![\w\\])(?<![^\W\d_][.:/-])(?P<python>[^\W\d](?:[\w.:/-]|\\_)*)(?=[*`]{0,3}[ \t]?\()"
        r"""|(?P<list>\[)(?=\s*['"`{\w])|(?P<object>\{)(?=\s*[\\"'\w}])"""
    )


class Reading:
    """One pass over a text, and what it contains."""

    def __init__(self, text: str, offers: OfferedTools, effort: Effort) -> None:
        self.drafts: list[Draft] = []
        self.spans: list[tuple[int, int]] = []
        """The start and end of the calls, in order."""
        self.thoughts: list[tuple[int, int]] = []
        """The start and end of what the model thinks."""
        self._text = text
        self._begin = len(text) - len(text.lstrip(_AROUND))
        self._offers = offers
        self._effort = effort
        self.forms = Forms(text, offers, self._effort)
        self._places = Places(text)
        self._repeats = Repeats(text)
        self._introduced = (0, 0)
        """How many spans and drafts there are of the first calls that count only at the end."""
        self._dialect = ""
        self._weak_from = 0
        """Where calls without a tag count again, behind code."""
        self._unclosed: set[str] = set()
        self._is_over = False
        self._has_forgotten = False
        self._visited = 0
        """The position of the last sign."""

    @property
    def unread(self) -> str:
        """The rest of the text, if the budget ended before it."""
        return self._text[self._visited :] if self._effort.left <= 0 else ""

    def run(self) -> None:
        """Read the text once."""
        self._read()
        self._drop_introduced()

    def _read(self) -> None:
        offset = self._opening_thoughts()
        while not self._is_over and self._effort.left > 0:
            sign = _signs().search(self._text, offset)
            if sign is None:
                return
            self._visited = sign.start()
            self._effort.spend(COST_OF_SIGN)
            offset = max(self._visit(sign), sign.start() + 1)

    # -- thoughts

    def _opening_thoughts(self) -> int:
        """Where the text goes on behind thoughts that words begin."""
        for opening, closing, is_closed in THOUGHTS_IN_WORDS:
            begin = re.compile(opening).match(self._text)
            if begin is None:
                continue
            end = re.compile(closing).search(self._text, begin.end())
            if end is not None:
                return self._think(begin.end(), end.start(), end.end())
            if not is_closed:
                return self._think(begin.end(), len(self._text), len(self._text))
        return 0

    def _think(self, start: int, end: int, behind: int) -> int:
        self.thoughts.append((start, end))
        self._places.skip(behind, forgets=True)
        self._repeats.skip_thought(behind)
        return behind

    def _thought(self, mark: Tag, start: int, end: int) -> int:
        text = self._text
        if is_ending(mark):
            if self._is_mention(start, end):
                return end
            self._effort.spend(COST_OF_SIGN)
            self._forget()
            return self._think(0, start, end)
        if mark.word in self._unclosed:
            return end
        closing = self._closing(mark, end)
        if closing is not None:
            return self._think(end, *closing)
        if self._is_mention(start, end):
            return end
        return self._think(end, len(text), len(text))

    def _is_mention(self, start: int, end: int) -> bool:
        """Whether a tag of thoughts is a word of its sentence."""
        if self._text[max(0, start - 1) : start] in ("`", '"', "'", "“"):
            return True
        after = self._text[end : end + 40]
        return after[:1] in (*" ,;)`\"'",) and after.strip()[:1].islower()

    def _forget(self) -> None:
        """Drop what was read: it was in the model's thoughts."""
        self.drafts.clear()
        self.spans.clear()
        self.thoughts.clear()
        self._introduced = (0, 0)
        self._dialect = ""
        self._weak_from = 0
        self._repeats = Repeats(self._text)
        self._unclosed.clear()
        if not self._has_forgotten:
            self._effort.left = max(self._effort.left, len(self._text))
        self._has_forgotten = True

    # -- signs

    def _visit(self, sign: re.Match[str]) -> int:
        kind = sign.lastgroup or ""
        start, end = sign.span(kind)
        match kind:
            case "tag":
                return self._tag(mark_of(sign[0]), start, end)
            case "fence" | "ticks":
                return self._fence(start, is_at_line=kind == "fence")
            case "header":
                return self._header(start) or end
            case "call":
                calls = self.forms.by_name(start, is_marked=True)
                return self._unit(calls, start, is_line=True) or end
            case "announced":
                return self._unit(self.forms.calls(end, is_marked=True), start) or end
            case "label":
                calls = self.forms.calls(start, is_marked=False)
                return self._unit(calls, start) or end
            case "python":
                return self._line(start, end)
            case _:
                return self._unmarked(start) or end

    def _tag(self, mark: Tag, start: int, end: int) -> int:
        if mark.word in ("start", "channel") and mark.text.startswith("<|"):
            return self._header(start) or end
        is_own = self._offers.get(mark.text.strip("<>")) is not None and mark.text != "<think>"
        if mark.role == "thought" and not is_own:
            return self._thought(mark, start, end)
        if mark.role in ("result", "shown") and not is_own:
            return self._aside(mark, end)
        if mark.closes or not (mark.role in ("announces", "names") or is_own):
            return end
        calls = self.forms.calls(start, is_marked=True)
        return self._unit(calls, start, is_marked=mark.role != "") or end

    def _aside(self, mark: Tag, end: int) -> int:
        """Skip results and declarations.

        A result that is not closed is one that the model made up.
        """
        if mark.closes or mark.word in self._unclosed:
            return end
        closing = self._closing(mark, end)
        if closing is not None:
            _, behind = closing
            if mark.role == "result" and self.spans:
                self._is_over = self._repeats.ignores(self.spans[-1][1], behind)
            self._places.skip(behind)
            return behind
        if mark.role == "result" or mark.word in ("tools", "functions"):
            self._is_over = True
        return end

    def _closing(self, mark: Tag, offset: int) -> tuple[int, int] | None:
        """Where the mark is that ends thoughts or an aside, and where the text goes on behind it.

        A mark without one is remembered, so that the next of its kind does not search again.
        """
        for tag in TAG.finditer(self._text, offset):
            if not self._effort.spend(0):
                break
            other = mark_of(tag[0])
            is_end = is_ending(other) and are_pair(mark, other)
            if is_end or (mark.text == "<|think|>" and tag[0] == "<|end|>"):
                return tag.span()
            if mark.word == "innerprefix" and other.word == "toolsprefix":
                return tag.start(), tag.start()
        self._unclosed.add(mark.word)
        return None

    def _header(self, start: int) -> int:
        """The header of a message of gpt-oss or Glimmer: its channel, and whom it is for."""
        text = self._text
        body = text.find(_MESSAGE, start, start + _LONGEST_HEADER)
        if body < 0:
            addressed = _ADDRESSED.match(text, start)
            calls = None if addressed is None else self.forms.behind_label(addressed)
            return self._unit(calls, start, dialect="harmony")
        header = text[start:body].split("\n\n", 1)[0]
        recipient = re.search(r"\bto=([^\s<]+)", header)
        channel = re.search(r"<\|channel\|>\s*(\w+)", header)
        name = "" if recipient is None else recipient[1]
        body += len(_MESSAGE)
        begin = self.forms.blank(body)
        offer = self._offers.get(name)
        tag = mark_at(text, begin)
        if offer is not None and tag is None:
            calls = self.forms.with_args(offer, begin, is_marked=True)
            return self._unit(calls, start, dialect="harmony") or body
        if offer is not None and tag is not None and tag.role in ("announces", "names"):
            calls = self.forms.calls(begin, is_marked=True)
            if calls.drafts:
                return self._unit(calls, start, dialect=self.forms.kind(begin))
        is_thought = channel is not None and channel[1] in ("analysis", "thought")
        if name == "self" or (is_thought and offer is None):
            close = _TOKEN_OF_HARMONY.search(text, body)
            end = len(text) if close is None else close.start()
            return self._think(body, end, end)
        self._places.skip(body)
        return body

    # -- signs without a tag

    def _fence(self, start: int, *, is_at_line: bool) -> int:
        """A fence. It is read as calls if all in it is calls, and skipped otherwise."""
        text = self._text
        fence = self.forms.fence(start)
        close = self.forms.fence_end(fence.end)
        is_line = close < len(text) and "\n" not in text[start:close]
        if not is_at_line and not is_line and not fence.language:
            return fence.end
        language = fence.language.lower()
        is_code = "tool" in language or "function" in language
        if is_code:
            calls = self.forms.statements(fence.end)
        else:
            calls = self.forms.calls(fence.end, is_marked=False, faults=True)
        first = text[self.forms.blank(fence.end) : self.forms.blank(fence.end) + 1]
        is_call = is_code or first in ("{", "[")
        is_call = is_call or any(draft.args or not draft.fault for draft in calls.drafts)
        if calls.drafts and is_call and not is_code:
            close = self.forms.blank(calls.end)
            if not text.startswith(("```", "~~~"), close):
                close = self.forms.fence_end(calls.end)
        behind = min(close + 3, len(text))
        is_all = not text[calls.end : close].strip(" \t\r\n;,`}])")
        is_all = is_all and (is_code or first != "<")
        if is_all and is_call and not are_signatures(calls.drafts, is_whole=False):
            return self._unit(Group(calls.drafts, behind), start) or behind
        if start >= self._weak_from:
            self._weak_from = behind
        self._places.skip(behind)
        return behind

    def _line(self, start: int, end: int) -> int:
        """`f(a=1)` on its own line."""
        text = self._text
        name = text[start:end]
        if self._offers.get(name) is None:
            line = text[max(0, text.rfind("\n", max(0, start - 240), start) + 1) : end]
            spaced = line.lstrip(" \t`*_'\"•-[(,")
            if self._offers.spaced and self._offers.get(spaced) is not None:
                start = end - len(spaced)
            else:
                start += name.rfind(":") + 1
        if start < self._weak_from or self._offers.get(text[start:end]) is None:
            return end
        calls = self.forms.calls(start, is_marked=False)
        if not calls.drafts:
            return end
        is_first = start <= self._begin
        rest = self.forms.blank(calls.end)
        is_whole = is_first and not text[calls.end :].strip(_AROUND + ";.")
        is_whole = is_whole or (is_first and mark_at(text, rest) is not None)
        has_args = any(draft.args or draft.fault for draft in calls.drafts)
        fits = all(draft.fault or draft.offer.fits(draft.args) for draft in calls.drafts)
        if not (has_args and fits) and not is_whole:
            self._places.passes(start, calls.end)
            return calls.end
        return self._unit(calls, start, is_marked=False, is_line=True) or end

    def _unmarked(self, start: int) -> int:
        """JSON, a list, or a name and JSON: the end of it, or 0."""
        if start < self._weak_from:
            value = self.forms.value(start)
            return 0 if value is None else value.end
        calls = self.forms.calls(start, is_marked=False)
        if not calls.drafts and self.forms.kind(start) == "JSON":
            value = self.forms.value(start)
            if value is not None:
                return value.end
            calls = self._broken(start)
        return self._unit(calls, start, is_marked=False)

    def _broken(self, start: int) -> Group | None:
        """JSON that cannot be read: mended if it is the whole text without its end, or a fault."""
        if self._text[start] == "[":
            calls = self.forms.calls(start, is_marked=False, faults=True)
            end = self.forms.blank(calls.end)
            if not any(draft.fault for draft in calls.drafts):
                return None
            return Group(calls.drafts, end + self._text.startswith("]", end))
        if start <= self._begin and not self.spans:
            mended = self.forms.mended(start)
            if mended is not None:
                return mended
        return self.forms.broken.at(start)

    # -- calls

    def _unit(
        self,
        calls: Group | None,
        start: int,
        *,
        is_marked: bool = True,
        is_line: bool = False,
        dialect: str = "",
    ) -> int:
        """Keep calls that stand together, if the model makes them. Returns their end, or 0."""
        if calls is None or not calls.drafts:
            return 0
        self._effort.spend(COST_OF_CALL)
        end = calls.end
        if not is_marked:
            is_whole = start <= self._begin and not self._text[end:].strip()
            if are_signatures(calls.drafts, is_whole=is_whole):
                return end
        dialect = dialect or self.forms.kind(start)
        verdict = self._places.judge(start, end, is_marked=is_marked, is_line=is_line)
        if verdict == "shown" or (self._dialect and dialect != self._dialect):
            return end
        behind = self.spans[-1][1] if self.spans else 0
        if self.drafts and self._repeats.ignores(behind, start, is_marked=is_marked):
            self._is_over = self._repeats.is_over
            self._weak_from = len(self._text)
            return end
        self._dialect = dialect
        drafts = self._repeats.without_repeats(behind, start, calls.drafts, self.drafts)
        is_introduced = verdict == "made at the end" and self._introduced[0] == len(self.spans)
        self.drafts += drafts
        self.spans.append((start, end))
        if is_introduced:
            self._introduced = (len(self.spans), len(self.drafts))
        return end

    def _drop_introduced(self) -> None:
        """Drop the first calls if they count only at the end of an answer, and it goes on."""
        spans, drafts = self._introduced
        if not spans or self._is_over:
            return
        end = self.spans[-1][1]
        is_made_up = self._repeats.ignores(end, min(end + _NEAR, len(self._text)))
        if not is_made_up and self._places.goes_on(end):
            del self.spans[:spans]
            del self.drafts[:drafts]
