"""Read the calls at a position of a text, in any form."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

from ferrule.text_calls.json_form import (
    broken_call,
    drafts_of,
    drafts_of_args,
    fault_of,
    read_value,
    unreadable,
)
from ferrule.text_calls.offers import Draft
from ferrule.text_calls.python_form import read_python_call, read_python_list, read_unreadable
from ferrule.text_calls.tags import TAG, read_arg_keys, read_tagged, skip, tag_of

if TYPE_CHECKING:
    from ferrule.text_calls.offers import Effort, Offer, OfferedTools

FENCE = re.compile(r"`{3,}[ \t]*(?:([\w+.-]*)[ \t]*\r?\n|(json|python|tool_code|tool_call)?\s*)")
PYTHON_LIST = re.compile(r"""\[\s*["'`]*[^\W\d](?:[^\[\](){}"'=,\n\\]|\\_){0,120}\(""")
_JOIN = re.compile(
    r"[\s,;]*(?:(?:#[^\n]{0,300}|\\\r?)(?:\n|\Z)[\s,;]*){0,20}(?:return\s+(?=[\[(\w]))?"
)
"""The text between calls. Bounded: a comment may be searched again from another position."""
_NAME_AND_JSON = re.compile(
    r"(?P<name>[^\W\d](?:[\w.:/-]|\\_){0,120})(?P<between>[ \t]*(?:\r?\n)?[ \t]*(?=\{)"
    r"|\s*(?:(?:<[^<>\n]{1,60}>|\[[A-Z_]+\])\s*(?:[\w.:-]{1,64}\s*(?=[<\[]))?){0,3}\s*[:=]?\s*(?:```\w*\s*)?(?=\{))"
)
_TYPE_AND_NAME = re.compile(r"function\s*<[^<>\n]{1,40}sep[^<>\n]{0,3}>\s*")
_NAME_ALONE = re.compile(r"([^\W\d][\w.:/-]{0,120})\s*(?=<)")
_PARENTHESIZED = re.compile(r"call:\s*([^\W\d][\w.:/-]{0,120})\s*(?=\{)")
_ESCAPED_TEXT = re.compile(r"<escape>(.*?)<escape>|<\|\"\|>(.*?)<\|\"\|>", re.DOTALL)
_ESCAPED_END = re.compile(r"<end_function_call>|<tool_call\|>|<\|tool_call>|<start_function_call>")
_STATEMENT = re.compile(r"[ \t]*(?:[\w, \t]+=[ \t]*)?(?:print[ \t]*\(\s*)?(?:await[ \t]+)?")
_SAME_LINE = re.compile(r"[ \t]*[;,][ \t]*(?=\S)")
_FENCE_END = re.compile(r"\s*`{3,}")
_EXTRA = re.compile(r"\s*\}+(?=\s*(?:<|\[/|```|\Z))")


class Forms:
    """Reads calls at given positions of a text."""

    __slots__ = ("_effort", "_offers", "_text")

    def __init__(self, text: str, offers: OfferedTools, effort: Effort) -> None:
        self._text = text
        self._offers = offers
        self._effort = effort

    def calls(self, at: int, *, is_marked: bool, faults: bool = False) -> tuple[list[Draft], int]:
        """Consecutive calls from a position on, and the end of the last. `is_marked`: a tag or a fence announces calls.

        `faults`: an unreadable call becomes a call with a fault, as it always does where calls are
        announced.
        """
        drafts: list[Draft] = []
        end = at
        while True:
            start = skip(_JOIN, self._text, at)
            found = self._one(start, is_marked=is_marked)
            if found is None and (is_marked or faults):
                fault = read_unreadable(self._text, start, self._offers, self._effort)
                fault = fault or broken_call(self._text, start, self._offers, self._effort)
                found = ([fault[0]], fault[1]) if fault is not None else None
            if found is None and faults and not drafts and self._text.startswith("[", start):
                at = start + 1  # a list that cannot be read: its calls, one by one
                continue
            if found is None:
                return drafts, end
            drafts += found[0]
            at = end = found[1]
            extra = _EXTRA.match(self._text, at)
            if extra is not None:
                drafts[-1] = drafts[-1]._replace(
                    repairs=(*drafts[-1].repairs, "extra_closing_brace")
                )
                at = end = extra.end()

    def _one(self, at: int, *, is_marked: bool) -> tuple[list[Draft], int] | None:
        mark = self._text[at : at + 1]
        if mark == "{" or (mark == "[" and not PYTHON_LIST.match(self._text, at)):
            return self._json(at, is_marked=is_marked)
        if mark in ("[", "("):
            return read_python_list(self._text, at, self._offers, self._effort, is_marked=is_marked)
        if mark == "<":
            return read_tagged(self._text, at, self._offers, self._effort)
        if mark == "`":
            fence = FENCE.match(self._text, at) if is_marked else None
            if fence is None or self._text.startswith("`", skip(_JOIN, self._text, fence.end())):
                return None  # fences do not nest
            drafts, end = self.calls(fence.end(), is_marked=True)
            return (drafts, skip(_FENCE_END, self._text, end)) if drafts else None
        return self._by_name(at, is_marked=is_marked) if mark else None

    def _json(self, at: int, *, is_marked: bool) -> tuple[list[Draft], int] | None:
        found = read_value(self._text, at, self._effort)
        if found is None:
            return self._broken(at) if is_marked else None
        value, end, repairs = found
        drafts = drafts_of(value, self._offers, marked=is_marked)
        return ([add_repairs(each, repairs) for each in drafts], end) if drafts else None

    def _broken(self, at: int) -> tuple[list[Draft], int] | None:
        """Announced JSON that cannot be parsed: repaired if only closing braces are missing, or else a call with a fault."""
        closing = next(
            (
                each
                for each in TAG.finditer(self._text, at)
                if tag_of(each[0]).kind in {"close", "stop"}
            ),
            None,
        )
        end = closing.start() if closing is not None else len(self._text)
        if not self._effort.spend(end - at):
            return None
        drafts = self.unclosed(at, end) if closing is not None else None
        if drafts:
            return drafts, end
        fault = fault_of(self._text, at, end, self._offers)
        return ([fault], end) if fault is not None else None

    def unclosed(self, at: int, end: int) -> list[Draft] | None:
        """The calls of JSON that lacks only its last closing braces."""
        inside = self._text[at:end].strip()
        if not inside.endswith(("}", "]")):
            return None  # truncated: more may be missing
        for lost in ("}", "}}", "]", "}]"):
            try:
                value = json.loads(inside + lost)
            except (ValueError, RecursionError):
                continue
            drafts = drafts_of(value, self._offers, marked=True)
            return [add_repairs(each, ("missing_closing_brace",)) for each in drafts or ()]
        return None

    def _by_name(self, at: int, *, is_marked: bool) -> tuple[list[Draft], int] | None:
        """A call that begins with the tool's name."""
        text = self._text
        call = read_python_call(text, at, self._offers, self._effort)
        if call is not None:
            return [call[0]], call[1]
        typed = _TYPE_AND_NAME.match(text, at) if is_marked else None
        if typed is not None and _NAME_AND_JSON.match(text, typed.end()) is not None:
            at = typed.end()
        escaped = _PARENTHESIZED.match(text, at) if is_marked else None
        if escaped is not None:
            return self._escaped(escaped)
        alone = _NAME_ALONE.match(text, at) if is_marked else None
        offer = self._offers.get(alone[1]) if alone is not None else None
        pairs = (
            read_arg_keys(text, alone.end(), offer, self._effort)
            if alone is not None and offer is not None
            else None
        )
        if pairs is not None:
            return [pairs[0]], pairs[1]
        named = _NAME_AND_JSON.match(text, at)
        called = self._offers.get(named["name"]) if named is not None else None
        if named is not None and called is not None:
            found = self._with_args(called, named.end(), is_marked=is_marked)
            return (
                (found[0], skip(_FENCE_END, text, found[1]))
                if found is not None and "```" in named["between"]
                else found
            )
        if alone is None or offer is None:
            return None
        closing = TAG.match(text, alone.end())
        ended = closing is not None and tag_of(closing[0]).kind in {"close", "stop"}
        return ([Draft(offer, {})], alone.end()) if ended and not offer.required else None

    def _with_args(
        self, offer: Offer, at: int, *, is_marked: bool
    ) -> tuple[list[Draft], int] | None:
        found = read_value(self._text, at, self._effort)
        if found is None:
            closing = next(
                (
                    each
                    for each in TAG.finditer(self._text, at)
                    if tag_of(each[0]).kind in {"close", "stop", "call"}
                ),
                None,
            )
            end = closing.start() if closing is not None else len(self._text)
            if not is_marked or not self._effort.spend(end - at):
                return None
            return [unreadable(offer, self._text[at:end].strip())], end
        draft = drafts_of_args(offer, found[0], self._offers)
        if draft is None or not (is_marked or offer.fits(draft.args)):
            return None
        return [add_repairs(draft, found[2])], found[1]

    def _escaped(self, named: re.Match[str]) -> tuple[list[Draft], int] | None:
        """`call:f{a:<escape>x<escape>}`: tokens in place of quotes."""
        offer = self._offers.get(named[1])
        if offer is None:
            return None
        closing = _ESCAPED_END.search(self._text, named.end())
        end = closing.start() if closing is not None else len(self._text)
        if closing is None and not self._effort.spend(end - named.end()):
            return None
        quoted = _ESCAPED_TEXT.sub(
            lambda each: json.dumps(each[1] if each[1] is not None else each[2]),
            self._text[named.end() : end],
        )
        found = read_value(quoted, 0, self._effort)
        if found is None:
            return [unreadable(offer, self._text[named.end() : end])], end
        repairs = tuple(each for each in found[2] if each != "unquoted_keys")
        return (
            ([Draft(offer, cast("dict[str, Any]", found[0]), repairs)], end)
            if isinstance(found[0], dict)
            else None
        )

    def tool_code(self, at: int, closing: str) -> tuple[list[Draft], int]:
        """The calls among the statements of code, up to its closing mark. A closing mark inside an argument does not end the code."""
        drafts: list[Draft] = []
        last = self.end(closing, at)
        while at < last and self._effort.left > 0:
            start = skip(_STATEMENT, self._text, at)
            found = self._one(start, is_marked=True)
            if (
                found is None
                and (fault := read_unreadable(self._text, start, self._offers, self._effort))
                is not None
            ):
                found = [fault[0]], fault[1]
            if found is not None and (found[1] <= last or not any(each.fault for each in found[0])):
                drafts += found[0]
                at = found[1]
                last = last if at <= last else self.end(closing, at)
                if (more := _SAME_LINE.match(self._text, at, last)) is not None:
                    at = more.end()
                    continue
            line = self._text.find("\n", at, last)
            at = line + 1 if line >= 0 else last
        return drafts, last

    def end(self, closing: str, at: int) -> int:
        """The position of the closing mark, or the end of the text."""
        found = self._text.find(closing, at)
        return found if found >= 0 else len(self._text)


def add_repairs(draft: Draft, repairs: tuple[str, ...]) -> Draft:
    """The draft with the repairs of the surrounding text, which come first."""
    return draft._replace(repairs=(*repairs, *draft.repairs)) if repairs else draft
