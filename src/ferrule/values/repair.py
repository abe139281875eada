"""JSON as models write it: read strictly first, and then with repairs that each have a name.  (Floor 2.)

In: text. Out: the value and the names of the repairs it needed, in the order of the text. A repair undoes a known slip of the pen and
loses nothing; what could be meant in two ways is an error, never a guess.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic_core import from_json

from ferrule.errors import ToolCallError, shown

LOSSY = frozenset({"comments", "extra_closing_brace", "prose"})
"""Repairs that drop a part of the text; all others only rewrite it."""

_DEEPEST = 200
_MOST_CANDIDATES = 1000
_FENCE = re.compile(r"\s*(?:(`{3,})[\w.+-]*[ \t]*\r?\n(.*?)\r?\n?[ \t]*\1|(`{1,3})(?!`)(?:json\b)?(.*?)(?<!`)\3)\s*", re.DOTALL)
_BLANK = re.compile(r"\s*")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_LOOSE_NUMBER = re.compile(r"[+-]?(?:\d+(?:_\d+)*)?(?:\.\d*)?(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[^\W\d][\w$-]*|\$[\w$-]*")
_JSON_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "NaN": float("nan"), "Infinity": float("inf")}
_PYTHON_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]+'), "'": re.compile(r"[^'\\\x00-\x1f]+")}
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_HIGH, _LOW, _AFTER_LOW = 0xD800, 0xDC00, 0xE000


def read_json(text: str) -> tuple[Any, tuple[str, ...]]:
    """The value a text stands for, and the names of the repairs needed. Raises `ValueError` for two values, a cut value, or junk.

    Names: `code_fence`, `comments`, `control_characters`, `doubly_encoded`, `escapes`, `extra_closing_brace`, `numbers`,
    `python_literals`, `single_quotes`, `trailing_comma`, `unquoted_keys`.
    """
    try:
        return strict_json(text), ()
    except ValueError as error:
        fenced = _FENCE.fullmatch(text)
        if fenced:
            value, repairs = read_json(fenced[2] if fenced[2] is not None else fenced[4])
            return value, ("code_fence", *repairs)
        if text.lstrip()[:2] in {"{\\", "[\\"} or text.lstrip().startswith('[{\\"'):
            return _escaped_once_more(text, error)
        return _repaired(text)


def strict_json(text: str) -> Any:
    """The value of JSON text (RFC 8259, and `NaN`); raises `ValueError`."""
    try:
        return from_json(text)
    except (ValueError, TypeError):
        # The fast reader takes neither lone surrogates nor deep nesting.
        try:
            return json.loads(text)
        except RecursionError:
            msg = "nested too deeply"
            raise ValueError(msg) from None


def read_object(text: str, *, tool: str = "") -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments a text stands for: `{}` for an empty text and for `null`.

    A string that holds the object's JSON is opened once (`doubly_encoded`). Raises `ToolCallError` with the code
    `invalid_tool_call_arguments`, the text as `raw`.
    """
    if not text.strip():
        return {}, ()
    of = f"the arguments of `{tool}`" if tool else "the arguments"
    try:
        value, repairs = read_json(text)
        if isinstance(value, str) and value.strip():
            value, more = read_json(value)
            repairs = (*repairs, "doubly_encoded", *more)
    except ValueError as error:
        msg = f"{of} are not valid JSON: {error}"
        raise ToolCallError("invalid_tool_call_arguments", msg, raw=text, tool=tool or None) from None
    if value is None or value == "":
        return {}, repairs
    if not isinstance(value, dict):
        msg = f"{of} must be a JSON object, found {kind_of(value)}"
        raise ToolCallError("invalid_tool_call_arguments", msg, raw=text, tool=tool or None)
    return value, repairs  # pyright: ignore[reportUnknownVariableType]  JSON's keys are strings


def objects_in(text: str) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """The complete objects that stand in a text, whatever is written around them, in order; those inside another are not listed."""
    found: list[tuple[dict[str, Any], tuple[str, ...]]] = []
    at = text.find("{")
    for _ in range(_MOST_CANDIDATES):
        if at < 0:
            break
        reader = _Reader(text)
        try:
            value, end = reader.value(at, 0)
        except ValueError:
            end = at + 1
        else:
            if isinstance(value, dict):
                found.append((value, ("prose", *reader.repairs)))  # pyright: ignore[reportUnknownArgumentType]
        at = text.find("{", end)
    return found


def kind_of(value: object) -> str:
    """What JSON calls a value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, (list, tuple)) else "an object"


def _escaped_once_more(text: str, error: ValueError) -> tuple[Any, tuple[str, ...]]:
    # `{\"a\": 1}`: the inside of a JSON string whose quotes were lost.
    try:
        inside = json.loads(f'"{text}"')
    except ValueError:
        raise error from None
    value, repairs = read_json(inside)
    return value, ("doubly_encoded", *repairs)


def _repaired(text: str) -> tuple[Any, tuple[str, ...]]:
    reader = _Reader(text)
    value, end = reader.value(reader.blank(0), 0)
    end = reader.blank(end)
    rest = text[end:]
    if rest and isinstance(value, (dict, list)) and not rest.replace("}" if isinstance(value, dict) else "]", "").strip():
        reader.note("extra_closing_brace")
    elif rest:
        msg = f"after a complete value there is more, at character {end}: {shown(rest, 60)}"
        raise ValueError(msg)
    return value, tuple(reader.repairs)


class _Reader:
    """One pass over a text; every method takes a position and returns the position behind what it read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.repairs: list[str] = []

    def note(self, repair: str) -> None:
        if repair not in self.repairs:
            self.repairs.append(repair)

    def fail(self, what: str, at: int) -> ValueError:
        found = shown(self.text[at : at + 30], 60) if at < len(self.text) else "the end of the text"
        return ValueError(f"expected {what} at character {at}, found {found}")

    def blank(self, at: int) -> int:
        while True:
            at = _BLANK.match(self.text, at).end()  # pyright: ignore[reportOptionalMemberAccess]  matches always
            if self.text[at : at + 1] not in {"/", "#"}:
                return at
            comment = _COMMENT.match(self.text, at)
            if comment is None:
                return at
            self.note("comments")
            at = comment.end()

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        if depth > _DEEPEST:
            msg = "nested too deeply"
            raise ValueError(msg)
        opener = self.text[at : at + 1]
        if opener == "{":
            return self.object(at + 1, depth + 1)
        if opener == "[":
            return self.array(at + 1, "]", depth + 1)
        if opener == "(":
            items, end = self.array(at + 1, ")", depth + 1)
            if "," not in self.text[at:end]:
                raise self.fail("a JSON value", at)  # parentheses around one value are no tuple
            self.note("python_literals")
            return items, end
        if opener and opener in "\"'":
            return self.string(at)
        return self.scalar(at)

    def object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self.blank(at)
        while self.text[at : at + 1] != "}":
            key, at = self.key(at)
            at = self.blank(at)
            if self.text[at : at + 1] != ":":
                raise self.fail("`:`", at)
            found[key], at = self.value(self.blank(at + 1), depth)
            at = self.comma(at, "}")
        return found, at + 1

    def array(self, at: int, closer: str, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self.blank(at)
        while self.text[at : at + 1] != closer:
            item, at = self.value(at, depth)
            found.append(item)
            at = self.comma(at, closer)
        return found, at + 1

    def comma(self, at: int, closer: str) -> int:
        at = self.blank(at)
        mark = self.text[at : at + 1]
        if mark == closer:
            return at
        if mark != ",":
            raise self.fail(f"`,` or `{closer}`", at)
        at = self.blank(at + 1)
        if self.text[at : at + 1] == closer and closer != ")":
            self.note("trailing_comma")
        return at

    def key(self, at: int) -> tuple[str, int]:
        if self.text[at : at + 1] in {'"', "'"}:
            return self.string(at)
        word = _WORD.match(self.text, at)
        if word is None:
            raise self.fail("a key in double quotes", at)
        self.note("unquoted_keys")
        return word[0], word.end()

    def scalar(self, at: int) -> tuple[Any, int]:
        number = _NUMBER.match(self.text, at)
        if number:
            return json.loads(number[0]), number.end()
        sign = -1 if self.text.startswith("-Infinity", at) else 1
        word = _WORD.match(self.text, at + (sign < 0))
        if word and word[0] in _JSON_WORDS:
            value = _JSON_WORDS[word[0]]
            return (-value if sign < 0 else value), word.end()
        if word and word[0] in _PYTHON_WORDS:
            self.note("python_literals")
            return _PYTHON_WORDS[word[0]], word.end()
        loose = _LOOSE_NUMBER.match(self.text, at)
        if loose and any(map(str.isdigit, loose[0])) and not re.match(r"[+-]?0\d", loose[0]):
            digits = loose[0].replace("_", "")
            self.note("numbers")
            return (float(digits) if any(mark in digits for mark in ".eE") else int(digits)), loose.end()
        raise self.fail("a JSON value", at)

    def string(self, at: int) -> tuple[str, int]:
        quote = self.text[at]
        if quote == "'":
            self.note("single_quotes")
        pieces: list[str] = []
        at += 1
        while True:
            plain = _PLAIN[quote].match(self.text, at)
            if plain:
                pieces.append(plain[0])
                at = plain.end()
            mark = self.text[at : at + 1]
            if not mark:
                raise self.fail(f"a closing {quote}", at)
            if mark == quote:
                return "".join(pieces), at + 1
            if mark == "\\":
                piece, at = self.escape(at + 1)
                pieces.append(piece)
            else:
                self.note("control_characters")
                pieces.append(mark)
                at += 1

    def escape(self, at: int) -> tuple[str, int]:
        mark = self.text[at : at + 1]
        if mark in _ESCAPES:
            return _ESCAPES[mark], at + 1
        if mark == "u":
            return self.code_unit(at + 1)
        # `\'` and `\_` mean the character itself to every writer of them; `\d` could be a pattern or a slip.
        if mark and mark in "'_*[]()#-.!&$%`":
            self.note("escapes")
            return mark, at + 1
        raise self.fail("a JSON escape", at - 1)

    def code_unit(self, at: int) -> tuple[str, int]:
        unit = _HEX.match(self.text, at)
        if unit is None:
            raise self.fail("four hexadecimal digits", at)
        code, end = int(unit[0], 16), unit.end()
        if _HIGH <= code < _LOW and self.text.startswith("\\u", end):
            second = _HEX.match(self.text, end + 2)
            if second and _LOW <= int(second[0], 16) < _AFTER_LOW:
                return chr(0x10000 + ((code - _HIGH) << 10) + int(second[0], 16) - _LOW), second.end()
        return chr(code), end
