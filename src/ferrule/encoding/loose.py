"""A parser of JSON with mistakes, which names each mistake.

`repair` loads it when a text is not valid JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from ferrule.errors import shown

_FENCE_HEAD = re.compile(r"[\w.+-]*[ \t]*\r?\n")
_FENCE_TICKS = 3
_JSON_LABEL = re.compile(r"json\b")
_DEEPEST = 200
_BLANK = re.compile(r"\s*")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_LOOSE_NUMBER = re.compile(r"[+-]?(?:\d+(?:_\d+)*)?(?:\.\d*)?(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[^\W\d][\w$-]*|\$[\w$-]*")
_JSON_WORDS: dict[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
}
_PYTHON_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]+'), "'": re.compile(r"[^'\\\x00-\x1f]+")}
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_PYTHON_ESCAPE = re.compile(r"x[0-9a-fA-F]{2}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}")
_HIGH, _LOW, _AFTER_LOW = 0xD800, 0xDC00, 0xE000


def unfenced(text: str) -> str | None:
    """The content of a text that is one code fence, or one piece of inline code; else None."""
    text = text.strip()
    behind = text.lstrip("`")
    ticks = len(text) - len(behind)
    if not ticks:
        return None
    head, end = _FENCE_HEAD.match(behind), len(behind) - ticks
    if (
        ticks >= _FENCE_TICKS
        and head is not None
        and head.end() <= end
        and behind.endswith(text[:ticks])
    ):
        return behind[head.end() : end].rstrip(" \t").removesuffix("\n").removesuffix("\r")
    if ticks > _FENCE_TICKS or len(behind.rstrip("`")) != end:
        return None
    label = _JSON_LABEL.match(behind)
    return behind[label.end() if label else 0 : end]


def read_loosely(text: str) -> tuple[Any, tuple[str, ...]]:
    """Parse a value. Returns it with the names of the repairs.

    Raises `ValueError` unless there is exactly one value.
    """
    reader = LooseReader(text)
    value, rest = reader.whole()
    if isinstance(value, dict):
        closer = "}"
    else:
        closer = ""
        if isinstance(value, list):
            closer = "]"
    if rest and closer and not rest.replace(closer, "").strip():
        return cast("Any", value), (*reader.repairs, "extra_closing_brace")
    if rest:
        raise ValueError(
            f"after a complete value there is more, at character {len(text) - len(rest)}: "
            f"{shown(rest, 60)}"
        )
    return cast("Any", value), tuple(reader.repairs)


class LooseReader:
    """One pass over a text.

    Every method takes a position and returns the position after the parsed part.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.repairs: list[str] = []
        self.open: list[int] = []
        """The positions of the objects that are not closed yet: after an error, those around it."""

    def whole(self) -> tuple[Any, str]:
        """The value at the start of the text, and the rest of the text."""
        value, end = self.value(self._blank(0), 0)
        return value, self.text[self._blank(end) :]

    def _note(self, repair: str) -> None:
        if repair not in self.repairs:
            self.repairs.append(repair)

    def _fail(self, what: str, at: int) -> ValueError:
        if at < len(self.text):
            found = shown(self.text[at : at + 30], 60)
        else:
            found = "the end of the text"
        return ValueError(f"expected {what} at character {at}, found {found}")

    def _blank(self, at: int) -> int:
        while True:
            at = _BLANK.match(self.text, at).end()  # pyright: ignore[reportOptionalMemberAccess]  matches always
            if self.text[at : at + 1] not in {"/", "#"}:
                return at
            comment = _COMMENT.match(self.text, at)
            if comment is not None:
                end = comment.end()
            elif self.text.startswith("/*", at) and (close := self.text.find("*/", at + 2)) >= 0:
                end = close + 2
            else:
                return at
            self._note("comments")
            at = end

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """The value at a position, and the position after it. Raises `ValueError` for none."""
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        opener = self.text[at : at + 1]
        if opener == "{":
            self.open.append(at)
            found = self._object(at + 1, depth + 1)
            self.open.pop()
            return found
        if opener == "[":
            return self._array(at + 1, "]", depth + 1)
        if opener == "(":
            items, end = self._array(at + 1, ")", depth + 1)
            if "," not in self.text[at:end]:
                raise self._fail("a JSON value", at)  # parentheses around one value are not a tuple
            self._note("python_literals")
            return items, end
        if opener and opener in "\"'":
            return self._string(at)
        return self._scalar(at)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self._blank(at)
        while self.text[at : at + 1] != "}":
            key, at = self._key(at)
            at = self._blank(at)
            if self.text[at : at + 1] != ":":
                raise self._fail("`:`", at)
            found[key], at = self.value(self._blank(at + 1), depth)
            at = self._comma(at, "}")
        return found, at + 1

    def _array(self, at: int, closer: str, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self._blank(at)
        while self.text[at : at + 1] != closer:
            item, at = self.value(at, depth)
            found.append(item)
            at = self._comma(at, closer)
        return found, at + 1

    def _comma(self, at: int, closer: str) -> int:
        at = self._blank(at)
        mark = self.text[at : at + 1]
        if mark == closer:
            return at
        if mark != ",":
            raise self._fail(f"`,` or `{closer}`", at)
        at = self._blank(at + 1)
        if self.text[at : at + 1] == closer and closer != ")":
            self._note("trailing_comma")
        return at

    def _key(self, at: int) -> tuple[str, int]:
        if self.text[at : at + 1] in {'"', "'"}:
            return self._string(at)
        word = _WORD.match(self.text, at)
        if word is None:
            raise self._fail("a key in double quotes", at)
        self._note("unquoted_keys")
        return word[0], word.end()

    def _scalar(self, at: int) -> tuple[Any, int]:
        number = _NUMBER.match(self.text, at)
        if number:
            return json.loads(number[0]), number.end()
        if self.text.startswith("-Infinity", at):
            sign = -1
        else:
            sign = 1
        word = _WORD.match(self.text, at + (sign < 0))
        if word and word[0] in _JSON_WORDS:
            value = _JSON_WORDS[word[0]]
            return (-value if sign < 0 else value), word.end()
        if word and word[0] in _PYTHON_WORDS:
            self._note("python_literals")
            return _PYTHON_WORDS[word[0]], word.end()
        loose = _LOOSE_NUMBER.match(self.text, at)
        if loose and any(map(str.isdigit, loose[0])) and not re.match(r"[+-]?0\d", loose[0]):
            digits = loose[0].replace("_", "")
            self._note("numbers")
            return (
                float(digits) if any(mark in digits for mark in ".eE") else int(digits)
            ), loose.end()
        raise self._fail("a JSON value", at)

    def _string(self, at: int) -> tuple[str, int]:
        quote = self.text[at]
        if quote == "'":
            self._note("single_quotes")
        pieces: list[str] = []
        at += 1
        while True:
            plain = _PLAIN[quote].match(self.text, at)
            if plain:
                pieces.append(plain[0])
                at = plain.end()
            mark = self.text[at : at + 1]
            if not mark:
                raise self._fail(f"a closing {quote}", at)
            if mark == quote:
                return "".join(pieces), at + 1
            if mark == "\\":
                piece, at = self._escape(at + 1)
                pieces.append(piece)
            else:
                self._note("control_characters")
                pieces.append(mark)
                at += 1

    def _escape(self, at: int) -> tuple[str, int]:
        mark = self.text[at : at + 1]
        if mark in _ESCAPES:
            return _ESCAPES[mark], at + 1
        if mark == "u":
            return self._code_unit(at + 1)
        if hexadecimal := _PYTHON_ESCAPE.match(self.text, at):
            self._note("python_literals")
            return chr(int(hexadecimal[0][1:], 16)), hexadecimal.end()
        # `\'` and `\_` can only mean the character itself; `\d` could be a pattern or a mistake.
        if mark and mark in "'_*[]()#-.!&$%`":
            self._note("escapes")
            return mark, at + 1
        raise self._fail("a JSON escape", at - 1)

    def _code_unit(self, at: int) -> tuple[str, int]:
        unit = _HEX.match(self.text, at)
        if unit is None:
            raise self._fail("four hexadecimal digits", at)
        code, end = int(unit[0], 16), unit.end()
        if _HIGH <= code < _LOW and self.text.startswith("\\u", end):
            second = _HEX.match(self.text, end + 2)
            if second and _LOW <= int(second[0], 16) < _AFTER_LOW:
                return chr(
                    0x10000 + ((code - _HIGH) << 10) + int(second[0], 16) - _LOW
                ), second.end()
        return chr(code), end
