# ruff: noqa: RUF001  models write typographic apostrophes, too
"""Find the calls in a text, in one pass.

The pass stops at each sign that may begin a call, reads the calls there in any form, and asks
`places` whether the model makes them. The first calls that it makes decide the answer's dialect:
signs of other dialects after them are text. All that lies inside a call belongs to it, whatever it
looks like. Reading what turns out not to be a call is paid for from a budget (`Effort`), so the
time grows with the text's length and no faster.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ferrule.text_calls.forms import Forms
from ferrule.text_calls.json_form import broken_call, drafts_of, drafts_of_args, read_value
from ferrule.text_calls.marks import are_pair, is_ending, mark_at, mark_of, tag_pattern
from ferrule.text_calls.offers import COST_OF_CALL, Effort, add_repairs
from ferrule.text_calls.places import Places
from ferrule.text_calls.python_form import are_signatures, read_python_calls, read_python_list
from ferrule.text_calls.repeats import Repeats

if TYPE_CHECKING:
    from ferrule.text_calls.marks import Tag
    from ferrule.text_calls.offers import Draft, OfferedTools

_NEAR = 240
_LONGEST_HEADER = 300
_SPEAKERS = frozenset({"assistant", "model", "self"})


@cache
def _signs() -> re.Pattern[str]:
    """All that may begin a call, thoughts or another turn."""
    return re.compile(
        tag_pattern().pattern
        + r"|(?:(?<=\n)|\A)[ \t>]{0,8}(?:`{3,}|~{3,})|`{3,}|(?<![\w.])(?:to=|call:|functools(?=\[)"
        r"|-> tool/function_call\n)"
        r"""|\[(?=\s*['"`{\w])|\{(?=\s*[\\"'\w}])|(?<=[\w*`])\(|(?<=[\w*`] )\("""
    )


@cache
def _before_arguments() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A tool's name before JSON: behind words that announce it, and on a line of its own."""
    return re.compile(
        r"(?:\bto=(?P<to>[\w.:/-]+?)(?:\s[^\n{<]{0,40}|json)?"
        r"|\u273fFUNCTION\u273f:\s*(?P<function>[\w.:/-]+)\s*\n\u273fARGS\u273f:\s*"
        r"|(?:\A|[\n>}])>>>\s?(?P<prompt>[\w.:/-]+)\s*\n\s*"
        r"|(?:\A|\n)\W{0,4}Action\W{0,4}:\W{0,4}(?P<action>[\w.:/ \\-]+?)\W{0,4}\n+\W{0,4}"
        r"(?:Action[ _]?Input|Input|Arguments|Args|Parameters)\W{0,4}:\s*(?:```\w*\s*)?)\Z"
    ), re.compile(
        r"(?:\A|\n)[ \t]*[`*]*(?P<name>[^\W\d](?:[\w.:/-]|\\_)*)[`*]*[ \t]*(?:\r?\n)?[ \t]*"
        r"(?:```\w*\s*)?\Z"
    )


@cache
def _words_of_thoughts() -> re.Pattern[str]:
    """Thoughts whose tokens were lost, or that words announce."""
    return re.compile(
        r"\s*(?:(?P<harmony>(?:assistant)?analysis(?=[A-Z\s]))"
        r"|(?P<granite>Here(?: is|['’]s) my thought process:)|(?P<medical><unused94>thought))"
    )


class Thoughts(NamedTuple):
    """A part of the text that the model thinks."""

    start: int
    end: int


class Reading:
    """One pass over a text, and what it found."""

    def __init__(self, text: str, offers: OfferedTools) -> None:
        self.drafts: list[Draft] = []
        self.spans: list[tuple[int, int]] = []
        """The start and end of the calls, in order."""
        self.thoughts: list[Thoughts] = []
        self.asides: list[tuple[int, int]] = []
        """Results and declarations, which are not the model's words."""
        self._text = text
        self._offers = offers
        self._effort = Effort(len(text))
        self.forms = Forms(text, offers, self._effort)
        self._places = Places(text)
        self._repeats = Repeats(text)
        self._dialect = ""
        self._weak_from = 0
        """Where calls without a tag count again, behind code."""
        self._unclosed: set[str] = set()
        self._is_over = False
        self._has_forgotten = False

    @property
    def is_exhausted(self) -> bool:
        """Whether the budget ended before the text."""
        return self._effort.left <= 0

    def run(self) -> None:
        """Read the text once."""
        offset = self._opening_thoughts()
        text = self._text
        while not self._is_over and self._effort.left > 0:
            sign = _signs().search(text, offset)
            if sign is None:
                return
            self._effort.spend(0)
            offset = max(self._visit(sign), sign.start() + 1)

    # -- thoughts

    def _opening_thoughts(self) -> int:
        """Where the text goes on behind thoughts that words begin."""
        found = _words_of_thoughts().match(self._text)
        if found is None:
            return 0
        if found["harmony"]:
            end = re.compile(r"assistant(?=final|commentary)(?:final)?").search(
                self._text, found.end()
            )
        elif found["granite"]:
            end = re.compile(r"Here(?: is|['’]s) my response:").search(self._text, found.end())
        else:
            end = re.compile(r"<unused95>").search(self._text, found.end())
        if end is None and found["harmony"]:
            return 0
        close = len(self._text) if end is None else end.start()
        behind = len(self._text) if end is None else end.end()
        return self._think(found.end(), close, behind)

    def _think(self, start: int, end: int, behind: int) -> int:
        self.thoughts.append(Thoughts(start, end))
        self._places.skip(behind, forgets=True)
        self._repeats.skip_thought(behind)
        return behind

    def _thought(self, mark: Tag, start: int, end: int) -> int:
        text = self._text
        if is_ending(mark):
            if self._is_mention(start, end):
                return end
            self._forget()
            return self._think(0, start, end)
        if mark.word in self._unclosed:
            return end
        for tag in tag_pattern().finditer(text, end):
            if not self._effort.spend(0):
                break
            other = mark_of(tag[0])
            is_end = other.role == "thought" and is_ending(other) and are_pair(mark, other)
            if is_end or (mark.text == "<|think|>" and tag[0] == "<|end|>"):
                return self._think(end, tag.start(), tag.end())
            if mark.word == "innerprefix" and other.word == "toolsprefix":
                return self._think(end, tag.start(), tag.start())
        self._unclosed.add(mark.word)
        if self._is_mention(start, end):
            return end
        return self._think(end, len(text), len(text))

    def _is_mention(self, start: int, end: int) -> bool:
        """Whether a tag of thoughts is a word of its sentence."""
        before = self._text[max(0, start - 1) : start]
        after = self._text[end : end + 1]
        if before in ("`", '"', "'", "“"):
            return True
        return (
            bool(after) and after in " ,;)`\"'" and self._text[end : end + 40].strip()[:1].islower()
        )

    def _forget(self) -> None:
        """Drop what was found: it was in the model's thoughts."""
        self.drafts.clear()
        self.spans.clear()
        self.thoughts.clear()
        self._dialect = ""
        self._weak_from = 0
        self._repeats = Repeats(self._text)
        self._unclosed.clear()
        if not self._has_forgotten:
            self._effort.left = max(self._effort.left, len(self._text))
        self._has_forgotten = True

    # -- signs

    def _visit(self, sign: re.Match[str]) -> int:
        start, end = sign.span()
        mark = sign[0]
        bare = mark.strip(" \t>")
        if bare.startswith(("```", "~~~")):
            return self._fence(start + len(mark) - len(mark.lstrip(" \t>")))
        if mark == "(":
            return self._line(start)
        if mark == "{":
            return self._object(start)
        if mark == "[":
            return self._list(start)
        if mark == "to=":
            return self._header(start, start) or end
        if mark == "call:":
            return self._unit(
                "call:", self.forms.by_name(start, is_marked=True), start, is_line=True
            )
        if mark == "functools" or mark[0] == "-":
            return self._unit(mark, self.forms.calls(end, is_marked=True), start) or end
        return self._tag(mark_of(mark), start, end)

    def _tag(self, mark: Tag, start: int, end: int) -> int:
        if mark.word in ("start", "channel") and mark.text.startswith("<|"):
            return self._header(start, end) or end
        is_aside = mark.role in ("thought", "result", "shown") and mark.text != "<think>"
        is_own = is_aside and self._offers.get(mark.text.strip("<>")) is not None
        if mark.role == "thought" and not is_own:
            return self._thought(mark, start, end)
        if mark.role in ("result", "shown") and not is_own:
            return self._aside(mark, start, end)
        if mark.closes:
            return end
        if mark.role in ("announces", "names", "") or is_own:
            found = self.forms.tagged(start)
            if found is not None:
                found = self._siblings(mark, found)
                is_marked = mark.role != ""
                name = mark.spelling + mark.word if is_marked else "own tags"
                return self._unit(name, found, start, is_marked=is_marked) or found[1]
            self._effort.spend(0)
        return end

    def _siblings(self, mark: Tag, found: tuple[list[Draft], int]) -> tuple[list[Draft], int]:
        """The calls, and those that follow behind blanks with the same tag: they stand together."""
        drafts, end = found
        while self._effort.spend(COST_OF_CALL):
            start = self.forms.join(end)
            sibling = mark_at(self._text, start)
            if sibling is None or (sibling.word, sibling.spelling, sibling.closes) != (
                mark.word,
                mark.spelling,
                mark.closes,
            ):
                break
            more = self.forms.tagged(start)
            if more is None:
                break
            drafts += more[0]
            end = more[1]
        return drafts, end

    def _aside(self, mark: Tag, start: int, end: int) -> int:
        """Skip results and declarations.

        A result that is not closed is one that the model made up.
        """
        if mark.closes or mark.word in self._unclosed:
            return end
        for tag in tag_pattern().finditer(self._text, end):
            if not self._effort.spend(0):
                break
            other = mark_of(tag[0])
            if is_ending(other) and are_pair(mark, other):
                self.asides.append((start, tag.end()))
                if mark.role == "result" and self.spans:
                    self._is_over = self._repeats.ignores(self.spans[-1][1], tag.end())
                self._places.skip(tag.end())
                return tag.end()
        self._unclosed.add(mark.word)
        if mark.role == "result" or mark.word in ("tools", "functions"):
            self._is_over = True
        return end

    def _header(self, start: int, end: int) -> int:
        """The header of a message of gpt-oss or Glimmer: its channel, and whom it is for."""
        text = self._text
        body = text.find("<|message|>", start, start + _LONGEST_HEADER)
        header = text[start : body if body >= 0 else start + _LONGEST_HEADER].split("\n\n", 1)[0]
        recipient = re.search(r"\bto=([^\s<]+)", header)
        name = "" if recipient is None else recipient[1]
        if body < 0:
            return end if end > start else 0
        behind = body + len("<|message|>")
        channel = re.search(r"<\|channel\|>\s*(\w+)", header)
        offer = self._offers.get(name) if name else None
        tag = mark_at(text, self.forms.blank(behind))
        if offer is not None and tag is not None and tag.role in ("announces", "names"):
            found = self.forms.tagged(self.forms.blank(behind))
            if found is not None:
                found = self._siblings(tag, found)
                return self._unit(tag.spelling + tag.word, found, start) or found[1]
        elif offer is not None and tag is None:
            found = self.forms.with_args(offer, self.forms.blank(behind), is_marked=True)
            if found is None:
                return behind
            return self._unit("harmony", found, start) or found[1]
        is_thought = name == "self" or (
            channel is not None and channel[1] in ("analysis", "thought") and offer is None
        )
        if is_thought:
            close = re.compile(r"<\|(?:end|eom|eot|start|call|return|channel)\|>").search(
                text, behind
            )
            if close is None:
                return self._think(behind, len(text), len(text))
            return self._think(behind, close.start(), close.start())
        self._places.skip(behind)
        return behind

    # -- signs without a tag

    def _fence(self, start: int) -> int:
        """A fence. It is read as calls if all in it is calls, and skipped otherwise."""
        text = self._text
        fence = self.forms.fence(start)
        is_at_line = start == 0 or not text[text.rfind("\n", 0, start) + 1 : start].strip(" \t>")
        close = self.forms.fence_end(fence.end)
        is_line = close < len(text) and "\n" not in text[start:close]
        if not is_at_line and not is_line and not fence.language:
            return start + 3
        behind = min(close + 3, len(text))
        language = fence.language.lower()
        is_code = "tool" in language or "function" in language
        if is_code:
            drafts, end = self.forms.statements(fence.end, "")
        else:
            drafts, end = self.forms.calls(fence.end, is_marked=False, faults=True)
        kind = text[self.forms.blank(fence.end) : self.forms.blank(fence.end) + 1]
        is_read = any(draft.args or not draft.fault for draft in drafts)
        if is_read or is_code or kind in ("{", "["):
            if drafts and not is_code:
                close = self.forms.blank(end)
                if not text.startswith(("```", "~~~"), close):
                    close = self.forms.fence_end(end)
            behind = min(close + 3, len(text))
            is_all = not text[end:close].strip(" \t\r\n;,`}])")
            is_plain = is_code or kind != "<"
            if drafts and is_all and is_plain and not are_signatures(drafts, is_whole=False):
                return self._unit("fence" + kind, (drafts, behind), start) or behind
        if start >= self._weak_from:
            self._weak_from = behind
        before = text[max(0, start - _NEAR) : start].rstrip()
        is_named = before.endswith(":") or before[-1:].isalnum()
        weak = self._behind_name(fence.end, fence_start=start) if is_named else 0
        if weak:
            return weak
        self._places.skip(behind)
        return behind

    def _line(self, offset: int) -> int:
        """`f(a=1)` on its own line."""
        text = self._text
        last = text[max(0, offset - 5) : offset].rstrip(" *`")[-1:]
        if not last.isidentifier() and not last.isdigit():
            return offset + 1
        low = max(text.rfind("\n", max(0, offset - _NEAR), offset) + 1, offset - _NEAR)
        if self.spans:
            low = max(low, self.spans[-1][1])
        head = text[low:offset].rstrip("*` ")
        start = low + len(re.match(r"(?:.*[^\w.:/\\-])?[\d.:/\\-]*", head, re.DOTALL)[0])  # type: ignore[index]  matches always
        name = text[start : low + len(head)]
        if not name or low < self._weak_from:
            return offset + 1
        if self._offers.get(name) is None:
            colon = name.rfind(":") + 1
            spaced = head.lstrip(" \t`*_'\"•-[(,")
            if self._offers.spaced and self._offers.get(spaced) is not None:
                start = offset - len(spaced)
            elif colon and self._offers.get(name[colon:]) is not None:
                start += colon
            else:
                self._effort.spend(0)
                return offset + 1
        drafts, end = read_python_calls(text, start, self._offers, self._effort)
        if not drafts:
            self._effort.spend(offset - low)
            return offset + 1
        is_whole = not text[:start].strip(" \t\r\n`\"'*")
        if are_signatures(drafts, is_whole=is_whole):
            return end
        fits = any(draft.args or draft.fault for draft in drafts) and all(
            draft.fault or draft.offer.fits(draft.args) for draft in drafts
        )
        if not fits and not (is_whole and not text[end:].strip(" \t\r\n`\"'*;.")):
            fits = is_whole and tag_pattern().match(text, self.forms.blank(end)) is not None
            if not fits:
                self._places.passes(start, end)
                return end
        return self._unit("line", (drafts, end), start, is_marked=False, is_line=True) or end

    def _list(self, offset: int) -> int:
        text = self._text
        if offset < self._weak_from:
            return offset + 1
        if self.forms.is_python_list(offset):
            found = read_python_list(text, offset, self._offers, self._effort)
            if found is None:
                self._effort.spend(0)
                return offset + 1
            is_whole = not text[:offset].strip() and not text[found[1] :].strip()
            if are_signatures(found[0], is_whole=is_whole):
                return found[1]
            drafts, end = found
            start = self.forms.join(end)
            while self.forms.is_python_list(start) and self._effort.spend(COST_OF_CALL):
                more = read_python_list(text, start, self._offers, self._effort)
                if more is None:
                    break
                drafts += more[0]
                end = more[1]
                start = self.forms.join(end)
            return self._unit("list", (drafts, end), offset, is_marked=False) or end
        if re.compile(r"\[\s*\{").match(text, offset) is None:
            return offset + 1
        value = read_value(text, offset, self._effort)
        if value is None:
            drafts, end = self.forms.calls(offset, is_marked=False, faults=True)
            if not any(draft.fault for draft in drafts):
                return offset + 1
            end += text.startswith("]", self.forms.blank(end))
            return self._unit("JSON", (drafts, end), offset, is_marked=False) or offset + 1
        drafts = self._calls_of(value)
        return (
            self._unit("JSON", self._series(drafts, value[1]), offset, is_marked=False) or value[1]
        )

    def _calls_of(self, value: tuple[Any, int, tuple[str, ...]]) -> list[Draft]:
        drafts = drafts_of(value[0], self._offers, marked=False) or []
        return [add_repairs(draft, value[2]) for draft in drafts]

    def _series(self, drafts: list[Draft], end: int) -> tuple[list[Draft], int]:
        """The calls, and those in JSON that follow with nothing between but commas and blanks."""
        while drafts and self._effort.spend(COST_OF_CALL):
            start = self.forms.join(end)
            if self._text[start : start + 1] not in ("{", "["):
                break
            value = read_value(self._text, start, self._effort)
            more = [] if value is None else self._calls_of(value)
            if value is None or not more:
                break
            drafts += more
            end = value[1]
        return drafts, end

    def _object(self, offset: int) -> int:
        text = self._text
        found = read_value(text, offset, self._effort)
        if found is None:
            return self._broken_object(offset)
        value, end, _ = found
        if offset >= self._weak_from:
            drafts = self._calls_of(found)
            if drafts:
                return self._unit("JSON", self._series(drafts, end), offset, is_marked=False) or end
        if isinstance(value, dict):
            return self._behind_name(offset) or end
        return end

    def _behind_name(self, offset: int, fence_start: int = -1) -> int:
        """JSON behind a tool's name: the end of the call, or 0."""
        text = self._text
        found = read_value(text, self.forms.blank(offset), self._effort)
        if found is None or not isinstance(found[0], dict):
            return 0
        low = max(self.spans[-1][1] if self.spans else 0, offset - _NEAR)
        before = text[low:offset]
        if not before.rstrip(" \t\r\n`*:\u273f")[-1:].isalnum() and "```" not in before:
            return 0
        self._effort.spend(32)
        strong, weak = _before_arguments()
        named = strong.search(before)
        is_strong = named is not None
        if named is None:
            named = weak.search(before)
        if named is None:
            return 0
        group = named.lastgroup or "name"
        offer = self._offers.get(named[group])
        draft = None if offer is None else drafts_of_args(offer, found[0], self._offers)
        if draft is None or (not is_strong and not draft.offer.fits(draft.args)):
            return 0
        start = low + named.start(group)
        if group != "name":  # the words that announce the name
            announced = {"to": "to=", "function": "\u273f", "prompt": ">>>", "action": "Action"}
            sign = announced[group]
            start = low + before.rfind(sign, 0, named.start(group))
            if group == "function":
                start = low + before.rfind(sign, 0, start - low)
        if not is_strong and start < self._weak_from and fence_start < 0:
            return 0
        end = found[1]
        if "```" in named[0] or fence_start >= 0:
            end = min(self.forms.fence_end(end) + 3, len(text))
        unit = ([add_repairs(draft, found[2])], end)
        return self._unit(f"name {group}", unit, start, is_marked=is_strong) or end

    def _broken_object(self, offset: int) -> int:
        """JSON that cannot be read: mended if it is the whole text without its end, or a fault."""
        text = self._text
        if not text[:offset].strip(" \t\r\n`\"'*") and not self.spans:
            mended = self.forms.mended(offset)
            if mended is not None:
                return self._unit("JSON", mended, offset, is_marked=False) or mended[1]
        found = broken_call(text, offset, self._offers, self._effort)
        if found is None:
            return offset + 1
        if offset >= self._weak_from:
            return self._unit("JSON", ([found[0]], found[1]), offset, is_marked=False) or found[1]
        return found[1]

    # -- calls

    def _unit(
        self,
        dialect: str,
        found: tuple[list[Draft], int] | None,
        start: int,
        *,
        is_marked: bool = True,
        is_line: bool = False,
    ) -> int:
        """Keep calls that stand together, if the model makes them. Returns their end, or 0."""
        if found is None or not found[0]:
            return 0
        drafts, end = found
        self._effort.spend(COST_OF_CALL)
        speaks = self._places.speaks(start, end, is_marked=is_marked, is_line=is_line)
        if not speaks or (self._dialect and dialect != self._dialect):
            return end
        behind = self.spans[-1][1] if self.spans else 0
        if self.drafts and self._repeats.ignores(behind, start, is_marked=is_marked):
            self._is_over = self._repeats.is_over
            self._weak_from = len(self._text)
            return end
        self._dialect = dialect
        self.drafts += self._repeats.without_repeats(behind, start, drafts, self.drafts)
        self.spans.append((start, end))
        return end
