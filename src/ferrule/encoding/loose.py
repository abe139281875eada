"""A parser of JSON with mistakes, which names each mistake.

It reads what can mean one thing only. An unescaped quote or a lost brace can be completed in
several ways, and so is an error that names its position.
"""

from __future__ import annotations

import re
from typing import Any, cast

from ferrule.encoding.ahead import Ahead
from ferrule.encoding.written import read_with_digits
from ferrule.errors import shown

_FENCE_HEAD = re.compile(r"[\w.+-]*[ \t]*\r?\n")
_FENCE_TICKS = 3
_JSON_LABEL = re.compile(r"json\b")
_DEEPEST = 200
_NOT_BLANK = re.compile(r"\S")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_LOOSE_NUMBER = re.compile(r"[+-]?(?:\d+(?:_\d+)*)?(?:\.\d*)?(?:[eE][+-]?\d+)?(?![\w.])")
_LEADING_ZERO = re.compile(r"[+-]?0\d")
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
_MARKDOWN_ESCAPES = frozenset("'_*[]()#-.!&$%`")
"""Characters that models escape as in Markdown. In JSON the backslash means nothing."""
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_PYTHON_ESCAPE = re.compile(r"x[0-9a-fA-F]{2}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}")
_HEX_DIGIT = re.compile(r"[0-9a-fA-F]")
_HIGH, _LOW, _AFTER_LOW = 0xD800, 0xDC00, 0xE000


def unfenced(text: str) -> str | None:
    """The content of a text that is one code fence, or one piece of inline code; else None."""
    text = text.strip()
    after_ticks = text.lstrip("`")
    ticks = len(text) - len(after_ticks)
    if not ticks:
        return None
    head, end = _FENCE_HEAD.match(after_ticks), len(after_ticks) - ticks
    if (
        ticks >= _FENCE_TICKS
        and head is not None
        and head.end() <= end
        and after_ticks.endswith(text[:ticks])
    ):
        return after_ticks[head.end() : end].rstrip(" \t").removesuffix("\n").removesuffix("\r")
    if ticks > _FENCE_TICKS or len(after_ticks.rstrip("`")) != end:
        return None
    start = 0
    label = _JSON_LABEL.match(after_ticks)
    if label is not None:
        start = label.end()
    return after_ticks[start:end]


def read_loosely(text: str) -> tuple[Any, tuple[str, ...]]:
    """Parse a value. Returns it with the names of the repairs.

    Raises `ValueError` unless there is exactly one value.
    """
    reader = LooseReader(text)
    value, rest = reader.whole()
    if not rest:
        return value, tuple(reader.repairs)
    closer = ""
    if isinstance(value, dict):
        closer = "}"
    elif isinstance(value, list):
        closer = "]"
    if closer and not rest.replace(closer, "").strip():
        return cast("Any", value), (*reader.repairs, "extra_closing_brace")
    raise ValueError(
        f"after a complete value there is more, at character {len(text) - len(rest)}: "
        f"{shown(rest, 60)}"
    )


def read_escape(text: str, offset: int) -> tuple[str, int] | None:
    r"""The text of an escape that JSON does not have, after its backslash; None if it is damaged.

    A punctuation mark means itself, as in Markdown. Before any other character the backslash is
    text: models write patterns (`"\d+"`) and paths (`"C:\Users"`) without doubling it. DSPy's
    parser of JSON reads them in the same way. Returns the offset after the parsed part.
    """
    mark = text[offset : offset + 1]
    if not mark or (mark == "u" and _HEX_DIGIT.match(text, offset + 1)):
        return None
    if mark in _MARKDOWN_ESCAPES:
        return mark, offset + 1
    return "\\", offset


class LooseReader:
    """Reads the values of a text, also one after the other.

    Every method takes an offset and returns the offset after the parsed part. What is never closed
    is remembered, so that no later value searches for its end again.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.repairs: list[str] = []
        self.open: list[int] = []
        """The offsets of what is not closed yet: after an error, the objects and lists around it.

        Read again, each of them would end in the same error.
        """
        self.failed_at = 0
        """The offset of the last error."""
        self._ahead = Ahead(text)
        self._unclosed: dict[str, int] = {}
        """By quotation mark: from where on no string closes.

        A later mark of this kind is escaped in the string that was read, or would close it.
        """

    def next_value(self, offset: int) -> tuple[Any, int]:
        """The value at an offset, and the offset after it, with the repairs of this value only."""
        self.repairs = []
        self.open = []
        return self.value(offset, 0)

    def never_closes(self, quote: str, offset: int) -> bool:
        """Whether no string with this mark closes that begins at an offset, or later."""
        return self._unclosed.get(quote, len(self.text)) <= offset

    def whole(self) -> tuple[Any, str]:
        """The value at the start of the text, and the rest of the text."""
        value, end = self.value(self._blank(0), 0)
        return value, self.text[self._blank(end) :]

    def _note(self, repair: str) -> None:
        if repair not in self.repairs:
            self.repairs.append(repair)

    def _fail(self, expected: str, offset: int) -> ValueError:
        self.failed_at = offset
        rest = "the end of the text"
        if offset < len(self.text):
            rest = shown(self.text[offset : offset + 30], 60)
        return ValueError(f"expected {expected} at character {offset}, found {rest}")

    def _character(self, offset: int) -> str:
        """The character at an offset; empty at the end of the text."""
        return self.text[offset : offset + 1]

    def _blank(self, offset: int) -> int:
        """The offset after blanks and comments."""
        while True:
            visible = _NOT_BLANK.search(self.text, offset)
            if visible is None:
                return len(self.text)
            offset = visible.start()
            if self._character(offset) not in {"/", "#"}:
                return offset
            end = self._comment_end(offset)
            if end is None:
                return offset
            self._note("comments")
            offset = end

    def _comment_end(self, offset: int) -> int | None:
        """The offset after the comment at an offset; None if there is no complete one."""
        if self.text.startswith(("//", "#"), offset):
            end = self._ahead.find("\n", offset)
            return end if end >= 0 else len(self.text)
        if not self.text.startswith("/*", offset):
            return None
        close = self._ahead.find("*/", offset + 2)
        return close + 2 if close >= 0 else None

    def value(self, offset: int, depth: int) -> tuple[Any, int]:
        """The value at an offset, and the offset after it. Raises `ValueError` for none."""
        if depth > _DEEPEST:
            self.failed_at = offset
            raise ValueError("nested too deeply")
        opener = self._character(offset)
        if opener == "{":
            self.open.append(offset)
            value = self._object(offset + 1, depth + 1)
            self.open.pop()
            return value
        if opener == "[":
            self.open.append(offset)
            values = self._array(offset + 1, "]", depth + 1)
            self.open.pop()
            return values
        if opener == "(":
            items, end = self._array(offset + 1, ")", depth + 1)
            if "," not in self.text[offset:end]:
                # Parentheses around one value are not a tuple.
                raise self._fail("a JSON value", offset)
            self._note("python_literals")
            return items, end
        if opener and opener in "\"'":
            return self._string(offset)
        return self._scalar(offset)

    def _object(self, offset: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        offset = self._blank(offset)
        while self._character(offset) != "}":
            key, offset = self._key(offset)
            offset = self._blank(offset)
            if self._character(offset) != ":":
                raise self._fail("`:`", offset)
            members[key], offset = self.value(self._blank(offset + 1), depth)
            offset = self._comma(offset, "}")
        return members, offset + 1

    def _array(self, offset: int, closer: str, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        offset = self._blank(offset)
        while self._character(offset) != closer:
            item, offset = self.value(offset, depth)
            items.append(item)
            offset = self._comma(offset, closer)
        return items, offset + 1

    def _comma(self, offset: int, closer: str) -> int:
        offset = self._blank(offset)
        mark = self._character(offset)
        if mark == closer:
            return offset
        if mark != ",":
            raise self._fail(f"`,` or `{closer}`", offset)
        offset = self._blank(offset + 1)
        if self._character(offset) == closer and closer != ")":
            self._note("trailing_comma")
        return offset

    def _key(self, offset: int) -> tuple[str, int]:
        if self._character(offset) in {'"', "'"}:
            return self._string(offset)
        word = _WORD.match(self.text, offset)
        if word is None:
            raise self._fail("a key in double quotes", offset)
        self._note("unquoted_keys")
        return word[0], word.end()

    def _scalar(self, offset: int) -> tuple[Any, int]:
        number = _NUMBER.match(self.text, offset)
        if number:
            return read_with_digits(number[0]), number.end()
        is_negative = self.text.startswith("-Infinity", offset)
        word = _WORD.match(self.text, offset + is_negative)
        if word and word[0] in _JSON_WORDS:
            value = _JSON_WORDS[word[0]]
            if is_negative:
                value = -value
            return value, word.end()
        if word and word[0] in _PYTHON_WORDS:
            self._note("python_literals")
            return _PYTHON_WORDS[word[0]], word.end()
        loose = _LOOSE_NUMBER.match(self.text, offset)
        has_digits = loose is not None and any(map(str.isdigit, loose[0]))
        if loose is None or not has_digits or _LEADING_ZERO.match(loose[0]):
            raise self._fail("a JSON value", offset)
        self._note("numbers")
        digits = loose[0].replace("_", "").removeprefix("+")
        if _NUMBER.fullmatch(digits):
            return read_with_digits(digits), loose.end()
        if any(mark in digits for mark in ".eE"):
            return float(digits), loose.end()
        return int(digits), loose.end()

    def _string(self, offset: int) -> tuple[str, int]:
        quote = self.text[offset]
        if quote == "'":
            self._note("single_quotes")
        if self.never_closes(quote, offset):
            raise self._fail(f"a closing {quote}", len(self.text))
        pieces: list[str] = []
        start = offset
        offset += 1
        while True:
            plain = _PLAIN[quote].match(self.text, offset)
            if plain:
                pieces.append(plain[0])
                offset = plain.end()
            mark = self._character(offset)
            if not mark:
                self._unclosed[quote] = start
                raise self._fail(f"a closing {quote}", offset)
            if mark == quote:
                return "".join(pieces), offset + 1
            if mark == "\\":
                piece, offset = self._escape(offset + 1)
                pieces.append(piece)
            else:
                self._note("control_characters")
                pieces.append(mark)
                offset += 1

    def _escape(self, offset: int) -> tuple[str, int]:
        """The text of the escape whose backslash precedes an offset."""
        mark = self._character(offset)
        if mark in _ESCAPES:
            return _ESCAPES[mark], offset + 1
        if mark == "u" and _HEX_DIGIT.match(self.text, offset + 1):
            return self._code_unit(offset + 1)
        hexadecimal = _PYTHON_ESCAPE.match(self.text, offset)
        if hexadecimal is not None:
            self._note("python_literals")
            return chr(int(hexadecimal[0][1:], 16)), hexadecimal.end()
        unknown = read_escape(self.text, offset)
        if unknown is None:
            raise self._fail("a JSON escape", offset - 1)
        self._note("escapes")
        return unknown

    def _code_unit(self, offset: int) -> tuple[str, int]:
        unit = _HEX.match(self.text, offset)
        if unit is None:
            raise self._fail("four hexadecimal digits", offset)
        code, end = int(unit[0], 16), unit.end()
        if _HIGH <= code < _LOW and self.text.startswith("\\u", end):
            second = _HEX.match(self.text, end + 2)
            if second and _LOW <= int(second[0], 16) < _AFTER_LOW:
                low = int(second[0], 16) - _LOW
                return chr(0x10000 + ((code - _HIGH) << 10) + low), second.end()
        return chr(code), end
