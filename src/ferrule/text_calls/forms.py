"""Read the calls at a position of a text, in any form."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ferrule.text_calls.arguments import AmbiguousError, Arguments
from ferrule.text_calls.json_form import (
    broken_call,
    drafts_of,
    drafts_of_args,
    fault_of,
    read_value,
    unreadable,
)
from ferrule.text_calls.marks import argument_templates, mark_at, separates, tag_pattern
from ferrule.text_calls.offers import COST_OF_CALL, Draft, add_repairs
from ferrule.text_calls.python_form import read_python_call, read_python_list, read_unreadable
from ferrule.text_calls.shapes import CallFault

if TYPE_CHECKING:
    from ferrule.text_calls.marks import Tag
    from ferrule.text_calls.offers import Effort, Offer, OfferedTools

Found = tuple[list[Draft], int]
"""Calls, and where they end."""

_DEEPEST = 6
"""Tags around a call."""
_NAME = r"[^\W\d](?:[\w.:/-]|\\_){0,120}"


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    """Compiled on first use: most answers hold no text that may be a call."""
    return {
        name: re.compile(pattern, re.DOTALL)
        for name, pattern in {
            "fence": r"(?:`{3,}|~{3,})[ \t]*(?:([\w+.-]*)[ \t]*\r?\n"
            r"|(json|python|tool_code|tool_call)?\s*)",
            "list": r"""\[\s*["'`]*[^\W\d](?:[^\[\](){}"'=,\n\\]|\\_){0,120}\(""",
            # Bounded: a comment may be searched again from another position.
            "join": r"[\s,;]*(?:(?:#[^\n`]{0,300}|\\\r?)(?:\n|\Z)[\s,;]*){0,20}"
            r"(?:return\s+(?=[\[(\w]))?",
            "name": _NAME,
            "json": r"[ \t]*(?:\r?\n)?[ \t]*(?=\{)|\s*[:=>]?\s*(?:`{3}\w*\s*)?(?=\{)",
            "words": r"[\w.:-]{1,64}\s*(?=[<\[])",
            "statement": r"[ \t]*(?:[\w, \t]+=[ \t]*)?(?:print[ \t]*\(\s*)?(?:await[ \t]+)?",
            "same line": r"[ \t]*[;,][ \t]*(?=\S)",
            "closing": r"\n[ \t>]{0,8}(?P<fence>`{3,}|~{3,})(?=[ \t\r]*(?:\n|<|\Z))",
            "fence end": r"\s*`{3,}",
            "extra": r"\s*\}+(?=\s*(?:<|\[/|```|\Z))",
            "string": r"<escape>(.*?)<escape>|<\|\"\|>(.*?)<\|\"\|>|(\"(?:[^\"\\]|\\.)*\")|([{}])",
            "blank": r"\s*",
        }.items()
    }


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
        self.arguments = Arguments(text, effort)
        self._closing = (0, -1)
        """From where the end of a fence was last searched, and where it was found."""
        self._unclosed_from = len(text) + 1
        """From here on, no line closes a fence."""
        self._depth = 0
        """How many tags and fences around the position announce calls."""

    def blank(self, offset: int) -> int:
        """The position after blanks."""
        return self._skip("blank", offset)

    def join(self, offset: int) -> int:
        """The position after what may stand between two calls."""
        return self._skip("join", offset)

    def fence(self, offset: int) -> Fence:
        """The beginning of a fence at a position."""
        found = _patterns()["fence"].match(self._text, offset)
        if found is None:
            return Fence("", offset + 3)
        return Fence(found[1] or found[2] or "", found.end())

    def fence_end(self, offset: int) -> int:
        """Where a fence closes: at the start of a line, or else anywhere, or at the text's end."""
        searched, end = self._closing
        if searched <= offset <= end:
            return end
        closing = None
        if offset < self._unclosed_from:
            closing = _patterns()["closing"].search(self._text, max(offset - 1, 0))
        if closing is not None:
            end = closing.start("fence")
        else:
            self._unclosed_from = min(
                offset, self._unclosed_from
            )  # Nor does a later search find one.
            end = self._text.find("```", offset)
        if end < 0:
            end = len(self._text)
        self._effort.spend((end - offset) // 4)
        self._closing = (offset, end)
        return end

    def _find(self, closing: str, offset: int) -> int:
        found = self._text.find(closing, offset)
        end = found if found >= 0 else len(self._text)
        self._effort.spend((end - offset) // 16)
        return end

    def is_python_list(self, offset: int) -> bool:
        """Whether a list at a position may be one of Python calls."""
        return _patterns()["list"].match(self._text, offset) is not None

    def calls(
        self,
        offset: int,
        *,
        is_marked: bool,
        faults: bool = False,
        closings: tuple[str, ...] = (),
    ) -> Found:
        """Consecutive calls from a position on, and the end of the last.

        `is_marked`: a tag or a fence announces calls. `faults`: a call that cannot be read becomes
        one with a fault, as it always does where calls are announced. `closings`: the closing tags
        of what is around them, innermost first.
        """
        drafts: list[Draft] = []
        end = offset
        if self._depth >= _DEEPEST:
            return drafts, end
        self._depth += 1
        while self._effort.spend(COST_OF_CALL if drafts else 0):
            start = self._skip("join", offset)
            found = self._one(start, is_marked=is_marked, closings=closings)
            if found is None and (is_marked or faults):
                fault = read_unreadable(self._text, start, self._offers, self._effort)
                fault = fault or broken_call(self._text, start, self._offers, self._effort)
                found = ([fault[0]], fault[1]) if fault is not None else None
            if found is None and faults and not drafts and self._text.startswith("[", start):
                offset = start + 1  # a list that cannot be read: its calls, one by one
                continue
            if found is None:
                break
            drafts += found[0]
            offset = end = found[1]
            extra = _patterns()["extra"].match(self._text, offset)
            if extra is not None and drafts:
                drafts[-1] = add_repairs(drafts[-1], ("extra_closing_brace",))
                offset = end = extra.end()
        self._depth -= 1
        return drafts, end

    def _one(self, offset: int, *, is_marked: bool, closings: tuple[str, ...]) -> Found | None:
        text = self._text
        mark = text[offset : offset + 1]
        if mark == "{" or (mark == "[" and not self.is_python_list(offset)):
            found = (
                self._json(offset, is_marked=is_marked)
                if mark == "{" or text[offset + 1 : offset + 2] != "/"
                else None
            )
            return found if found is not None or mark == "{" else self.tagged(offset, closings)
        if mark in ("[", "("):
            return read_python_list(text, offset, self._offers, self._effort, is_marked=is_marked)
        if mark in ("<", "]") and is_marked:
            return self.tagged(offset, closings)
        if mark == "`":
            if not is_marked:
                return None
            start = self.fence(offset).end
            if text.startswith("`", self._skip("join", start)):
                return None  # fences do not nest
            drafts, end = self.calls(start, is_marked=True)
            return (drafts, self._skip("fence end", end)) if drafts else None
        return self.by_name(offset, is_marked=is_marked, closings=closings) if mark else None

    # -- tags

    def tagged(self, offset: int, closings: tuple[str, ...] = ()) -> Found | None:
        """The calls that a tag at a position begins."""
        mark = mark_at(self._text, offset)
        if mark is None or mark.closes or not self._effort.spend(0):
            return None
        end = offset + len(mark.text)
        offer = self._offers.get(mark.value) if mark.role == "names" and mark.value else None
        if mark.role == "names":
            if offer is None:
                return None
            found = self._with_arguments(offer, end, (mark.closing, *closings))
            return None if found is None else (found[0], self._skip_closing(found[1], mark.closing))
        if mark.word == "toolfunction":
            return self._with_line(end)
        if mark.role == "announces":
            if mark.word == "toolcode":
                return self.statements(end, mark.closing)
            return self._announced(mark, end, closings)
        return self._own_tag(mark, offset, closings)

    def _announced(self, mark: Tag, offset: int, closings: tuple[str, ...]) -> Found | None:
        is_closed = self.arguments.is_ahead(mark.closing, offset)
        inner = (mark.closing, *closings) if is_closed else closings
        drafts, end = self.calls(offset, is_marked=True, closings=inner)
        if not drafts:
            return None
        return drafts, self._behind_closings(end)

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

    def _with_arguments(self, offer: Offer, offset: int, closings: tuple[str, ...]) -> Found | None:
        """The arguments of a call whose tool is known: JSON, or tags."""
        start = self.blank(offset)
        if self._text.startswith("{", start):
            return self.with_args(offer, start, is_marked=True)
        try:
            args, end, repairs = self.arguments.read(offset, offer, closings)
        except AmbiguousError as error:
            reason = f"the call of `{offer.name}` cannot be read: {error}"
            return [_fault(offer, reason, self._text[offset : offset + 2000])], len(self._text)
        is_closed = self._text.startswith(closings[0], self.blank(end)) if closings else False
        if (
            not args
            and not is_closed
            and (offer.required or not self.arguments.follows(end, closings))
        ):
            return None
        return [Draft(offer, args, tuple(dict.fromkeys(repairs)))], end

    def _skip_closing(self, offset: int, closing: str) -> int:
        start = self.blank(offset)
        return start + len(closing) if self._text.startswith(closing, start) else offset

    def _own_tag(self, mark: Tag, offset: int, closings: tuple[str, ...]) -> Found | None:
        """`<search><query>cats</query></search>`.

        The arguments must fit: other markup has tags, too.
        """
        name = mark.text.strip("<>")
        offer = (
            self._offers.get(name)
            if name.replace("-", "_").replace(".", "_").isidentifier()
            else None
        )
        if offer is None or mark.text[0] == "[":
            return None
        try:
            inner = (mark.closing, *closings)
            args, end, repairs = self.arguments.read(offset + len(mark.text), offer, inner)
        except AmbiguousError as error:
            reason = f"the call of `{offer.name}` cannot be read: {error}"
            return [_fault(offer, reason, self._text[offset : offset + 2000])], len(self._text)
        closing = self.blank(end)
        if not self._text.startswith(mark.closing, closing) or not args or not offer.fits(args):
            return None
        return [Draft(offer, args, tuple(repairs))], closing + len(mark.closing)

    def _with_line(self, offset: int) -> Found | None:
        """A tool's name and the text of its first argument, up to the closing tag."""
        text = self._text
        start = self.blank(offset)
        name = _patterns()["name"].match(text, start)
        offer = self._offers.get(name[0]) if name is not None else None
        first = end = text.find("</tool>", start)
        if name is None or offer is None or end < 0:
            return None
        while end >= 0 and self._effort.spend((end - start) // 16):
            following = self.blank(end + len("</tool>"))
            if following >= len(text) or mark_at(text, following) is not None:
                break
            end = text.find("</tool>", following)
        end = max(first, end)
        value = text[name.end() : end].strip()
        behind = end + len("</tool>")
        if "<tool:" in value:
            return [
                _fault(offer, f"where the call of `{offer.name}` ends is unclear", value)
            ], behind
        value_start = self.blank(name.end())
        found = read_value(text, value_start, self._effort) if value.startswith("{") else None
        if found is not None and isinstance(found[0], dict):
            args = cast("dict[str, Any]", found[0])
            if offer.fits(args):
                return [Draft(offer, args, found[2])], behind
        keys = [key for key in offer.properties if key in offer.required] or list(offer.properties)
        if value and len(keys) != 1 and "command" not in keys:
            reason = f"`{offer.name}` takes more than one argument: write them as JSON"
            return [_fault(offer, reason, value)], behind
        key = "command" if "command" in keys else (keys or [""])[0]
        return [Draft(offer, {key: value} if value else {})], behind

    # -- JSON and names

    def _json(self, offset: int, *, is_marked: bool) -> Found | None:
        found = read_value(self._text, offset, self._effort)
        if found is None:
            return self._broken(offset) if is_marked else None
        value, end, repairs = found
        drafts = drafts_of(value, self._offers, marked=is_marked)
        return ([add_repairs(draft, repairs) for draft in drafts], end) if drafts else None

    def _broken(self, offset: int) -> Found | None:
        """Announced JSON that cannot be parsed: repaired if it lost its last braces, or a fault."""
        end, is_closed = self._next_end(offset)
        if not self._effort.spend(end - offset):
            return None
        drafts = self._unclosed(offset, end) if is_closed else None
        if drafts:
            return drafts, end
        fault = fault_of(self._text, offset, end, self._offers)
        return ([fault], end) if fault is not None else None

    def _next_end(self, offset: int) -> tuple[int, bool]:
        """Where the next tag that ends something is, and whether there is one."""
        for found in tag_pattern().finditer(self._text, offset):
            mark = mark_at(self._text, found.start())
            if not self._effort.spend(0):
                break
            if mark is not None and (mark.closes or mark.role in ("ends", "stops")):
                return found.start(), True
        return len(self._text), False

    def mended(self, offset: int) -> Found | None:
        """The calls of JSON that lost a brace at the end of the text, or is escaped twice."""
        last = len(self._text.rstrip(" \t\r\n`*_'\""))
        tail = self._text.rfind("<", 0, last)
        mark = mark_at(self._text, tail) if tail > offset else None
        if mark is not None and mark.role == "stops" and tail + len(mark.text) == last:
            last = len(self._text[:tail].rstrip(" \t\r\n`*_'\""))
        drafts = self._unclosed(offset, last)
        if drafts is None and self._text.startswith("{\\", offset):
            from_escapes = read_escaped(self._text[offset:last])
            if from_escapes is not None:
                value, repairs = from_escapes
                drafts = [
                    add_repairs(draft, repairs)
                    for draft in drafts_of(value, self._offers, marked=False) or ()
                ]
        return (drafts, last) if drafts else None

    def _unclosed(self, offset: int, end: int) -> list[Draft] | None:
        """The calls of JSON that lacks only its last closing braces."""
        inside = self._text[offset:end].strip()
        if not inside.endswith(("}", "]")):
            return None  # truncated: more may be missing
        for lost in ("}", "}}", "]", "}]"):
            self._effort.spend(len(inside) // 8)
            try:
                value = json.loads(inside + lost)
            except (ValueError, RecursionError):
                continue
            drafts = drafts_of(value, self._offers, marked=True)
            return [add_repairs(draft, ("missing_closing_brace",)) for draft in drafts or ()]
        return None

    def by_name(
        self, offset: int, *, is_marked: bool, closings: tuple[str, ...] = ()
    ) -> Found | None:
        """A call that begins with the tool's name."""
        text = self._text
        call = read_python_call(text, offset, self._offers, self._effort)
        if call is not None:
            return [call[0]], call[1]
        if is_marked and text.startswith("call:", offset):
            return self._with_strings(offset + len("call:"))
        start = offset
        name = _patterns()["name"].match(text, start)
        if is_marked:
            kind = _patterns()["words"].match(text, start)
            if kind is not None and (name is None or self._offers.get(name[0]) is None):
                mark = mark_at(text, kind.end())  # a kind or an id before the name
                if mark is not None and mark.word in ("toolsep", "toolcallname"):
                    start = self.blank(kind.end() + len(mark.text))
                    name = _patterns()["name"].match(text, start)
        offer = self._offers.get(name[0]) if name is not None else None
        if name is None or offer is None:
            return None
        behind = name.end()
        if is_marked:
            behind, closings = self._behind_separators(behind, closings)
        mark = mark_at(text, self.blank(behind)) if is_marked else None
        if (
            mark is not None
            and not mark.closes
            and (mark.role == "argument" or argument_templates(mark.word) or behind > name.end())
        ):
            found = self._with_arguments(offer, behind, closings)
            if found is not None:
                return found
        before_json = _patterns()["json"].match(text, behind)
        if before_json is not None:
            found = self.with_args(offer, before_json.end(), is_marked=is_marked)
            if found is not None and "```" in before_json[0]:
                return found[0], self._skip("fence end", found[1])
            return found
        ends = mark is not None and (mark.closes or mark.role in ("ends", "stops"))
        if not is_marked or offer.required or not ends:
            return None
        return [Draft(offer, {})], behind

    def _behind_separators(
        self, offset: int, closings: tuple[str, ...]
    ) -> tuple[int, tuple[str, ...]]:
        """The position after the marks, and the id, between a name and its arguments.

        Also the closing tags of what is open there.
        """
        for _ in range(4):
            start = self.blank(offset)
            mark = mark_at(self._text, start)
            if mark is None or not separates(mark):
                return offset, closings
            offset = start + len(mark.text)
            if closings and mark.text == closings[0]:
                closings = closings[1:]
            elif not mark.closes and mark.text.startswith("<") and mark.text[1].isalpha():
                closings = (mark.closing, *closings)
            words = _patterns()["words"].match(self._text, offset)
            following = mark_at(self._text, words.end()) if words is not None else None
            if words is not None and following is not None and separates(following):
                offset = words.end()
        return offset, closings

    def with_args(self, offer: Offer, offset: int, *, is_marked: bool) -> Found | None:
        """The call of a tool with the JSON at a position as its arguments."""
        found = read_value(self._text, offset, self._effort)
        if found is None:
            if not is_marked or not self._text.startswith("{", offset):
                return None
            end, _ = self._next_end(offset)
            if not self._effort.spend(end - offset):
                return None
            return [unreadable(offer, self._text[offset:end].strip())], end
        draft = drafts_of_args(offer, found[0], self._offers)
        if draft is None or not (is_marked or offer.fits(draft.args)):
            return None
        return [add_repairs(draft, found[2])], self._behind_closings(
            found[1]
        ) if is_marked else found[1]

    def _with_strings(self, offset: int) -> Found | None:
        """`f{a:<escape>x<escape>}`: tokens in place of quotation marks."""
        text = self._text
        name = _patterns()["name"].match(text, offset)
        offer = self._offers.get(name[0]) if name is not None else None
        if name is None or offer is None or not text.startswith("{", name.end()):
            return None
        depth = 0
        pieces: list[str] = []
        done = name.end()
        for token in _patterns()["string"].finditer(text, done):
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
        self._effort.spend(done - offset)
        found = None if depth else read_value("".join(pieces), 0, self._effort)
        if found is None or not isinstance(found[0], dict):
            end, _ = self._next_end(done)
            return [unreadable(offer, text[name.end() : end])], end
        repairs = tuple(repair for repair in found[2] if repair != "unquoted_keys")
        args = cast("dict[str, object]", found[0])
        return [Draft(offer, args, repairs)], self._behind_closings(done)

    # -- code

    def statements(self, offset: int, closing: str) -> Found:
        """The calls among the statements of code, up to its closing tag, or to the end of a fence.

        A closing mark inside an argument does not end the code.
        """
        text = self._text
        drafts: list[Draft] = []
        if closing and not self.arguments.is_ahead(closing, offset):
            last = self._find("<", offset)  # not closed: up to the next tag
        else:
            last = self._find(closing, offset) if closing else self.fence_end(offset)
        while offset < last and self._effort.left > 0:
            start = self._skip("statement", offset)
            found = self._one(start, is_marked=True, closings=())
            if found is None:
                fault = read_unreadable(text, start, self._offers, self._effort)
                found = ([fault[0]], fault[1]) if fault is not None else None
            if found is not None and (found[1] <= last or not any(each.fault for each in found[0])):
                drafts += found[0]
                offset = found[1]
                if offset > last:
                    last = self._find(closing, offset) if closing else self.fence_end(offset)
                more = _patterns()["same line"].match(text, offset, last)
                if more is not None:
                    offset = more.end()
                    continue
            line = text.find("\n", offset, last)
            offset = line + 1 if line >= 0 else last
        return drafts, last

    def _skip(self, name: str, offset: int) -> int:
        found = _patterns()[name].match(self._text, offset)
        return found.end() if found is not None else offset


def read_escaped(text: str) -> tuple[object, tuple[str, ...]] | None:
    """JSON whose quotation marks are escaped."""
    from ferrule.encoding.repair import read_json

    try:
        return read_json(text)
    except ValueError:
        return None


def _fault(offer: Offer, reason: str, raw: str) -> Draft:
    return Draft(offer, {}, fault=CallFault("invalid_tool_call_arguments", reason, raw))
