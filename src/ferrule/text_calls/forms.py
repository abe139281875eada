"""Read the calls at a position of a text, in any form."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ferrule.encoding.ahead import Ahead
from ferrule.encoding.pattern import pattern
from ferrule.encoding.repair import read_json
from ferrule.encoding.written import read_with_digits
from ferrule.text_calls.arguments import AmbiguousError, Arguments
from ferrule.text_calls.dialects import UNMARKED
from ferrule.text_calls.drafts import COST_OF_ATTEMPT, COST_OF_CALL, Draft, Group, faulty
from ferrule.text_calls.json_form import (
    BrokenCalls,
    Values,
    drafts_of,
    drafts_of_args,
    fault_of,
    unreadable,
)
from ferrule.text_calls.marks import (
    TAG,
    argument_templates,
    mark_at,
    mark_of,
    separates,
)
from ferrule.text_calls.python_form import PythonForm

if TYPE_CHECKING:
    from ferrule.text_calls.drafts import Effort
    from ferrule.text_calls.json_form import Value
    from ferrule.text_calls.marks import Tag
    from ferrule.text_calls.offers import Offer, OfferedTools

_DEEPEST = 6
"""Tags around a call."""
_MOST_SEPARATORS = 4
NAME = r"[^\W\d](?:[\w.:/-]|\\_){0,120}"


_PATTERNS = {
    name: pattern(expression, re.DOTALL)
    for name, expression in {
        "fence": r"(?:`{3,}|~{3,})[ \t]*(?:([\w+.-]*)[ \t]*\r?\n"
        r"|(json|python|tool_code|tool_call)?\s*)",
        "list": r"""\[\s*["'`]*[^\W\d](?:[^\[\](){}"'=,\n\\]|\\_){0,120}\(""",
        "list of objects": r"\[\s*\{",
        # Bounded: a comment may be searched again from another position.
        "join": r"[\s,;]*(?:(?:#[^\n`]{0,300}|\\\r?)(?:\n|\Z)[\s,;]*){0,20}"
        r"(?:return\s+(?=[\[(\w]))?",
        "between": r"(?:[\s,;]|\\\r?\n)*",
        "name": NAME,
        "json": r"[`*]*[ \t]*(?:\r?\n)?[ \t]*(?:`{3}\w*\s*)?(?=\{)"
        r"|\s*[:=>]?\s*(?:`{3}\w*\s*)?(?=\{)",
        "words": r"[\w.:-]{1,64}\s*(?=[<\[])",
        "statement": r"[ \t]*(?:[\w, \t]+=[ \t]*)?(?:print[ \t]*\(\s*)?(?:await[ \t]+)?",
        "same line": r"[ \t]*[;,][ \t]*(?=\S)",
        "closing": r"\n[ \t>]{0,8}(?P<fence>`{3,}|~{3,})(?=[ \t\r]*(?:\n|<|\Z))",
        "fence end": r"\s*`{3,}",
        "extra": r"\s*\}+(?=\s*(?:<|\[/|```|\Z))",
        # A string that is not closed takes the rest of the text: none is searched twice.
        "string": r"<escape>(.*?)(?:<escape>|\Z)|<\|\"\|>(.*?)(?:<\|\"\|>|\Z)"
        r"|(\"(?:[^\"\\]|\\.)*+(?:\"|\\?\Z))|([{}])",
    }.items()
}


@cache
def labels() -> dict[str, re.Pattern[str]]:
    """The forms in which words stand before a tool's name: row by row, a pattern of the call.

    The words are compared without markup. Before the arguments a model may also write a plainer
    word than its template does.
    """
    patterns: dict[str, re.Pattern[str]] = {}
    for row in UNMARKED:
        before, _, after = row.call.partition("{name}")
        between, slot, rest = after.partition("{json}")
        if before.strip() and slot and not rest and TAG.search(row.call) is None:
            announced = _loose(between)
            if announced:
                announced = (
                    rf"(?:{announced}|(?:Input|Arguments|Args|Parameters)\W{{0,4}}:)\W{{0,4}}?"
                )
            patterns[row.name] = re.compile(
                rf"{_loose(before)}[^\w\n]{{0,4}}(?P<name>[\w.:/\\-]+)[^\w\n]{{0,4}}\n\W{{0,4}}?"
                rf"{announced}\s*(?:```\w*\s*)?(?=\{{)"
            )
    return patterns


def _loose(words: str) -> str:
    """A pattern of words and signs with blanks and markup between them."""
    return r"[\s*_`]{0,4}".join(map(re.escape, re.findall(r"[^\W_]+|[^\w\s]+", words)))


class Fence(NamedTuple):
    """The beginning of a fence."""

    language: str
    end: int


class Forms:
    """Reads calls at given positions of a text."""

    def __init__(self, text: str, offers: OfferedTools, effort: Effort) -> None:
        self._text = text
        self._offers = offers
        self._effort = effort
        self._values = Values(text)
        self.arguments = Arguments(text, self._values, effort)
        self.broken = BrokenCalls(text, offers)
        self._python = PythonForm(text, offers, effort)
        self._ahead = Ahead(text)
        self._depth = 0
        """How many tags and fences around the position announce calls."""

    def blank(self, offset: int) -> int:
        """The position after blanks."""
        return self.arguments.blank(offset)

    def value(self, offset: int) -> Value | None:
        """The JSON value at a position."""
        return self._values.at(offset)

    def fence(self, offset: int) -> Fence:
        """The beginning of a fence at a position."""
        fence = _PATTERNS["fence"].match(self._text, offset)
        if fence is None:
            return Fence("", offset + 3)
        return Fence(fence[1] or fence[2] or "", fence.end())

    def fence_end(self, offset: int) -> int:
        """Where a fence closes: at the start of a line, or else anywhere, or at the text's end."""
        end = self._ahead.search("fence", offset, self._line_of_fence)
        if end < 0:
            end = self._ahead.find("```", offset)
        return end if end >= 0 else len(self._text)

    def _line_of_fence(self, offset: int) -> int:
        closing = _PATTERNS["closing"].search(self._text, max(offset - 1, 0))
        return -1 if closing is None else closing.start("fence")

    def kind(self, offset: int) -> str:
        """In which form a call at a position is written, if one is there."""
        text = self._text
        sign = text[offset : offset + 1]
        mark = mark_at(text, offset)
        if mark is not None:
            if not mark.role and not mark.closes:
                return "own tags"
            return f"{'/' * mark.closes}{mark.spelling}{mark.word}"
        if sign == "{" or self._is("list of objects", offset):
            return "JSON"
        for name, label in labels().items():
            if label.match(text, offset):
                return name
        if self._python.is_at(offset):
            return "Python"
        return "name" if self._is("name", offset) else sign

    def calls(
        self,
        offset: int,
        *,
        is_marked: bool,
        faults: bool = False,
        closings: tuple[str, ...] = (),
    ) -> Group:
        """The calls from a position on that are written in one form.

        `is_marked`: a tag or a fence announces calls. `faults`: a call that cannot be read becomes
        one with a fault, as it always does where calls are announced. `closings`: the closing tags
        of what is around them, innermost first.
        """
        drafts: list[Draft] = []
        end = offset
        if self._depth >= _DEEPEST:
            return Group(drafts, end)
        self._depth += 1
        self._effort.spend(COST_OF_ATTEMPT)
        kind = ""
        between = "join" if is_marked or faults else "between"
        while self._effort.left > 0:
            start = self._skip(between, offset)
            if drafts and self.kind(start) != kind:
                break
            group = self._one(start, is_marked=is_marked, closings=closings)
            if group is None and (is_marked or faults):
                group = self._unreadable(start)
            if group is None and faults and not drafts and self._text.startswith("[", start):
                offset = start + 1  # a list that cannot be read: its calls, one by one
                continue
            if group is None:
                break
            kind = kind or self.kind(start)
            drafts += group.drafts
            self._effort.spend(COST_OF_CALL)
            offset = end = group.end
            extra = _PATTERNS["extra"].match(self._text, offset)
            if extra is not None and drafts:
                drafts[-1] = drafts[-1].repaired("extra_closing_brace")
                offset = end = extra.end()
        self._depth -= 1
        return Group(drafts, end)

    def _one(self, offset: int, *, is_marked: bool, closings: tuple[str, ...]) -> Group | None:
        text = self._text
        sign = text[offset : offset + 1]
        if sign == "(" or (sign == "[" and self._is("list", offset)):
            return self._python.sequence(offset, is_marked=is_marked)
        if sign == "{" or self._is("list of objects", offset):
            return self._json(offset, is_marked=is_marked)
        if sign in ("<", "]", "["):
            return self.tagged(offset, closings)
        if sign == "`":
            return self._fenced(offset) if is_marked else None
        return self.by_name(offset, is_marked=is_marked, closings=closings) if sign else None

    def _unreadable(self, offset: int) -> Group | None:
        """A call that names an offered tool and cannot be read."""
        fault = self._python.unreadable(offset)
        return fault or self.broken.at(offset)

    def _fenced(self, offset: int) -> Group | None:
        start = self.fence(offset).end
        if self._text.startswith("`", self._skip("join", start)):
            return None  # fences do not nest
        drafts, end = self.calls(start, is_marked=True)
        return Group(drafts, self._skip("fence end", end)) if drafts else None

    # -- tags

    def tagged(self, offset: int, closings: tuple[str, ...] = ()) -> Group | None:
        """The calls that a tag at a position begins."""
        mark = mark_at(self._text, offset)
        if mark is None or mark.closes or not self._effort.spend(0):
            return None
        end = offset + len(mark.text)
        if mark.role == "names":
            offer = self._offers.get(mark.value or "")
            if offer is None:
                return None
            group = self._with_arguments(offer, end, (mark.closing, *closings))
            return None if group is None else self._behind(group, mark.closing)
        if mark.word == "toolfunction":
            return self._with_line(end)
        if mark.word == "toolcode":
            code = self.statements(end, mark.closing)
            return code if code.drafts else None
        if mark.role != "announces":
            return self._own_tag(mark, end, closings)
        if self._ahead.find(mark.closing, end) >= 0:
            closings = (mark.closing, *closings)
        drafts, end = self.calls(end, is_marked=True, closings=closings)
        return Group(drafts, self._behind_closings(end)) if drafts else None

    def _behind_closings(self, offset: int) -> int:
        """The position after the tags and tokens that end a call."""
        while True:
            start = self.blank(offset)
            mark = mark_at(self._text, start)
            if mark is None or not (
                mark.role == "ends"
                or (mark.closes and mark.role in ("announces", "names", "separates"))
            ):
                return offset
            offset = start + len(mark.text)

    def _behind(self, group: Group, closing: str) -> Group:
        """The calls with their closing tag, if it is there."""
        start = self.blank(group.end)
        if not self._text.startswith(closing, start):
            return group
        return Group(group.drafts, start + len(closing))

    def _with_arguments(self, offer: Offer, offset: int, closings: tuple[str, ...]) -> Group | None:
        """The arguments of a call whose tool is known: JSON, or tags."""
        start = self.blank(offset)
        if self._text.startswith("{", start):
            return self.with_args(offer, start, is_marked=True)
        group = self._in_tags(offer, offset, closings)
        is_closed = bool(closings) and self._text.startswith(closings[0], self.blank(group.end))
        draft = group.drafts[0]
        if draft.args or draft.fault or is_closed:
            return group
        is_complete = not offer.required and self.arguments.follows(group.end, closings)
        return group if is_complete else None

    def _in_tags(self, offer: Offer, offset: int, closings: tuple[str, ...]) -> Group:
        try:
            args, end, repairs = self.arguments.read(offset, offer, closings)
        except AmbiguousError as error:
            reason = f"the call of `{offer.name}` cannot be read: {error}"
            return Group(
                [faulty(offer, reason, self._text[offset : offset + 2000])], len(self._text)
            )
        return Group([Draft(offer, args, tuple(dict.fromkeys(repairs)))], end)

    def _own_tag(self, mark: Tag, offset: int, closings: tuple[str, ...]) -> Group | None:
        """`<search><query>cats</query></search>`.

        The arguments must fit: other markup has tags, too.
        """
        name = mark.text.strip("<>")
        is_name = name.replace("-", "_").replace(".", "_").isidentifier()
        offer = self._offers.get(name) if is_name else None
        if offer is None or mark.text[0] == "[":
            return None
        group = self._in_tags(offer, offset, (mark.closing, *closings))
        draft = group.drafts[0]
        if draft.fault is None and not (draft.args and offer.fits(draft.args)):
            return None
        closed = self._behind(group, mark.closing)
        return closed if draft.fault is not None or closed is not group else None

    def _with_line(self, offset: int) -> Group | None:
        """A tool's name and the text of its first argument, up to the closing tag."""
        text = self._text
        offer, name_end = self._tool_at(self.blank(offset))
        end = self.arguments.last_end("</tool>", name_end)
        if offer is None or end < 0:
            return None
        value = text[name_end:end].strip()
        end += len("</tool>")
        if "<tool:" in value:
            reason = f"where the call of `{offer.name}` ends is unclear"
            return Group([faulty(offer, reason, value)], end)
        json_value = self.value(self.blank(name_end))
        if json_value is not None and isinstance(json_value.content, dict):
            args = cast("dict[str, Any]", json_value.content)
            if offer.fits(args):
                return Group([Draft(offer, args, json_value.repairs)], end)
        if not value:
            return Group([Draft(offer, {})], end)
        keys = [key for key in offer.properties if key in offer.required] or list(offer.properties)
        if "command" in keys:
            keys = ["command"]
        if len(keys) != 1:
            reason = f"`{offer.name}` takes more than one argument: write them as JSON"
            return Group([faulty(offer, reason, value)], end)
        return Group([Draft(offer, {keys[0]: value})], end)

    # -- JSON and names

    def _json(self, offset: int, *, is_marked: bool) -> Group | None:
        value = self.value(offset)
        if value is None:
            return self._broken(offset) if is_marked else None
        if value.repairs:
            self._effort.spend(value.end - offset)  # our own parser is slower than that for JSON
        drafts = drafts_of(value.content, self._offers, marked=is_marked)
        if not drafts:
            return None
        return Group([draft.repaired(*value.repairs) for draft in drafts], value.end)

    def _broken(self, offset: int) -> Group | None:
        """Announced JSON that cannot be parsed: repaired if it lost its last braces, or a fault."""
        end, is_closed = self._next_end(offset)
        drafts = self._unclosed(offset, end) if is_closed else None
        if drafts:
            return Group(drafts, end)
        fault = fault_of(self._text, offset, end, self._offers)
        return Group([fault], end) if fault is not None else None

    def _next_end(self, offset: int) -> tuple[int, bool]:
        """Where the next tag that ends something is, and whether there is one."""
        end = self._ahead.search("end", offset, self._ending_tag)
        return (end, True) if end >= 0 else (len(self._text), False)

    def _ending_tag(self, offset: int) -> int:
        for tag in TAG.finditer(self._text, offset):
            mark = mark_of(tag[0])
            if mark.closes or mark.role in ("ends", "stops"):
                return tag.start()
        return -1

    def mended(self, offset: int) -> Group | None:
        """The calls of JSON that lost a brace at the end of the text, or is escaped twice."""
        last = len(self._text.rstrip(" \t\r\n`*_'\""))
        tail = self._text.rfind("<", 0, last)
        mark = mark_at(self._text, tail) if tail > offset else None
        if mark is not None and mark.role == "stops" and tail + len(mark.text) == last:
            last = len(self._text[:tail].rstrip(" \t\r\n`*_'\""))
        drafts = self._unclosed(offset, last)
        if drafts is None and self._text.startswith("{\\", offset):
            try:
                content, repairs = read_json(self._text[offset:last])
            except ValueError:
                return None
            drafts = drafts_of(content, self._offers, marked=False) or []
            drafts = [draft.repaired(*repairs) for draft in drafts]
        return Group(drafts, last) if drafts else None

    def _unclosed(self, offset: int, end: int) -> list[Draft] | None:
        """The calls of JSON that lacks only its last closing braces."""
        if not self._values.reaches(offset, end):
            return None  # it breaks off earlier
        inside = self._text[offset:end].strip()
        if not inside.endswith(("}", "]")):
            return None  # truncated: more may be missing
        for lost in ("}", "}}", "]", "}]"):
            try:
                content = read_with_digits(inside + lost)
            except (ValueError, RecursionError):
                continue
            drafts = drafts_of(content, self._offers, marked=True)
            return [draft.repaired("missing_closing_brace") for draft in drafts or ()]
        return None

    def by_name(
        self, offset: int, *, is_marked: bool, closings: tuple[str, ...] = ()
    ) -> Group | None:
        """A call that begins with the tool's name."""
        text = self._text
        call = self._python.call(offset)
        if call is not None:
            return call
        for label in labels().values():
            labelled = label.match(text, offset)
            if labelled is not None:
                return self.behind_label(labelled)
        if is_marked and text.startswith("call:", offset):
            return self._with_strings(offset + len("call:"))
        offer, name_end = self._tool_at(offset)
        if is_marked and offer is None:
            offer, name_end = self._tool_behind_words(offset)
        if offer is None:
            return None
        behind = name_end
        mark = None
        if is_marked:
            behind, closings = self._behind_separators(behind, closings)
            mark = mark_at(text, self.blank(behind))
        if mark is not None and not mark.closes:
            is_argument = mark.role == "argument" or bool(argument_templates(mark.word))
            if is_argument or behind > name_end:
                group = self._with_arguments(offer, behind, closings)
                if group is not None:
                    return group
        before_json = _PATTERNS["json"].match(text, behind)
        if before_json is not None:
            return self._behind_name(offer, before_json, is_marked=is_marked)
        ends = mark is not None and (mark.closes or mark.role in ("ends", "stops"))
        if not ends or offer.required:
            return None
        return Group([Draft(offer, {})], behind)

    def behind_label(self, call: re.Match[str]) -> Group | None:
        """A call whose tool's name has a label, as in `Action: f`."""
        offer = self._offers.get(call["name"])
        if offer is None or self.value(call.end()) is None:
            return None
        return self._behind_name(offer, call, is_marked=True)

    def _behind_name(self, offer: Offer, name: re.Match[str], *, is_marked: bool) -> Group | None:
        """The JSON behind a name, with the fence around it."""
        group = self.with_args(offer, name.end(), is_marked=is_marked)
        if group is None or "```" not in name[0]:
            return group
        return Group(group.drafts, self._skip("fence end", group.end))

    def _tool_at(self, offset: int) -> tuple[Offer | None, int]:
        """The tool whose name is at a position, and the position after the name."""
        name = _PATTERNS["name"].match(self._text, offset)
        if name is None:
            return None, offset
        return self._offers.get(name[0]), name.end()

    def _tool_behind_words(self, offset: int) -> tuple[Offer | None, int]:
        """The tool whose name is behind a kind or an id, and a mark that separates them."""
        mark, start = self._mark_behind_words(offset)
        if mark is None or mark.word not in ("toolsep", "toolcallname"):
            return None, offset
        return self._tool_at(self.blank(start + len(mark.text)))

    def _mark_behind_words(self, offset: int) -> tuple[Tag | None, int]:
        """The mark behind an id or the like, and its position."""
        words = _PATTERNS["words"].match(self._text, offset)
        if words is None:
            return None, offset
        return mark_at(self._text, words.end()), words.end()

    def _behind_separators(
        self, offset: int, closings: tuple[str, ...]
    ) -> tuple[int, tuple[str, ...]]:
        """The position after the marks, and the id, between a name and its arguments.

        Also the closing tags of what is open there.
        """
        for _ in range(_MOST_SEPARATORS):
            start = self.blank(offset)
            mark = mark_at(self._text, start)
            if mark is None or not separates(mark):
                return offset, closings
            offset = start + len(mark.text)
            if closings and mark.text == closings[0]:
                closings = closings[1:]
            elif not mark.closes and mark.text.startswith("<") and mark.text[1].isalpha():
                closings = (mark.closing, *closings)
            following, words_end = self._mark_behind_words(offset)
            if following is not None and separates(following):
                offset = words_end
        return offset, closings

    def with_args(self, offer: Offer, offset: int, *, is_marked: bool) -> Group | None:
        """The call of a tool with the JSON at a position as its arguments."""
        value = self.value(offset)
        if value is None:
            if not is_marked or not self._text.startswith("{", offset):
                return None
            end, _ = self._next_end(offset)
            return Group([unreadable(offer, self._text[offset:end].strip())], end)
        draft = drafts_of_args(offer, value.content, self._offers)
        if draft is None or not (is_marked or offer.fits(draft.args)):
            return None
        end = self._behind_closings(value.end) if is_marked else value.end
        return Group([draft.repaired(*value.repairs)], end)

    def _with_strings(self, offset: int) -> Group | None:
        """`f{a:<escape>x<escape>}`: tokens in place of quotation marks."""
        text = self._text
        offer, start = self._tool_at(offset)
        if offer is None or not text.startswith("{", start):
            return None
        depth = 0
        pieces: list[str] = []
        done = start
        for token in _PATTERNS["string"].finditer(text, done):
            escaped, quoted, plain, brace = token.groups()
            pieces.append(text[done : token.start()])
            done = token.end()
            if brace is None:
                string = escaped if escaped is not None else quoted
                pieces.append(plain if plain is not None else json.dumps(string))
                continue
            pieces.append(brace)
            depth += 1 if brace == "{" else -1
            if not depth:
                break
        value = None if depth else Values("".join(pieces)).at(0)
        if value is None or not isinstance(value.content, dict):
            end, _ = self._next_end(done)
            return Group([unreadable(offer, text[start:end])], end)
        repairs = tuple(repair for repair in value.repairs if repair != "unquoted_keys")
        args = cast("dict[str, Any]", value.content)
        return Group([Draft(offer, args, repairs)], self._behind_closings(done))

    # -- code

    def statements(self, offset: int, closing: str = "") -> Group:
        """The calls among the statements of code, up to its closing tag, or to the end of a fence.

        A closing mark inside an argument does not end the code.
        """
        text = self._text
        drafts: list[Draft] = []
        last = self._end_of_code(offset, closing)
        while offset < last and self._effort.left > 0:
            self._effort.spend(COST_OF_ATTEMPT)
            start = self._skip("statement", offset)
            group = self._one(start, is_marked=True, closings=()) or self._unreadable(start)
            if group is not None and (
                group.end <= last or not any(draft.fault for draft in group.drafts)
            ):
                drafts += group.drafts
                offset = group.end
                if offset > last:
                    last = self._end_of_code(offset, closing)
                more = _PATTERNS["same line"].match(text, offset, last)
                if more is not None:
                    offset = more.end()
                    continue
            line = text.find("\n", offset, last)
            offset = line + 1 if line >= 0 else last
        return Group(drafts, last)

    def _end_of_code(self, offset: int, closing: str) -> int:
        if not closing:
            return self.fence_end(offset)
        end = self._ahead.find(closing, offset)
        if end < 0:  # not closed: up to the next tag
            end = self._ahead.find("<", offset)
        return end if end >= 0 else len(self._text)

    def _is(self, name: str, offset: int) -> bool:
        return _PATTERNS[name].match(self._text, offset) is not None

    def _skip(self, name: str, offset: int) -> int:
        blank = _PATTERNS[name].match(self._text, offset)
        return blank.end() if blank is not None else offset
