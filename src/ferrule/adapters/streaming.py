"""What the parsers of streamed answers share.

A parser gets an answer in chunks of any size, and emits the text of a field as soon as it cannot
become part of a marker, of a fence, or of the blanks around the value. Parsing takes linear time,
however small the chunks are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.adapters.render import EDGE, read_verbatim
from ferrule.encoding.pattern import pattern

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Sequence

    from ferrule.values.conversation.exchange import FieldReader

_CONTEXT_CHARS = 256
_PLAIN = pattern(r'[^"\\\n]*')
_STRUCTURE = pattern(r'["{}\[\]]')
_BLANKS = pattern(r"\s*")
_NOT_OF_FENCE = pattern(r"[^\w+-]")


def starts_line(text: str, offset: int) -> bool:
    """Whether only blanks precede an offset on its line."""
    while offset and text[offset - 1] in " \t":
        offset -= 1
    return not offset or text[offset - 1] == "\n"


def follows_fence(text: str, offset: int) -> bool:
    """Whether the line before an offset opens a fence."""
    while offset and text[offset - 1].isspace():
        offset -= 1
    while offset and not _NOT_OF_FENCE.match(text, offset - 1):
        offset -= 1
    return text.endswith("```", 0, offset)


class Buffer:
    """The text that a parser keeps back.

    It holds the unparsed text, a little context before it, and trailing blanks, which belong to the
    value only if more text follows.
    """

    __slots__ = ("_blanks", "_has_begun", "holds_backticks", "offset", "text")

    def __init__(self) -> None:
        self.text = ""
        self.offset = 0
        """The text before this offset is parsed."""
        self.holds_backticks = False
        """Whether trailing backticks are kept back like blanks.

        They may close a fence around the whole answer.
        """
        self._has_begun = False
        """Whether any text of the current value was emitted."""
        self._blanks: list[str] = []

    def open(self, offset: int) -> None:
        """Start a value, or text outside all fields, at an offset. Drops the kept blanks."""
        self.offset = offset
        self._has_begun = False
        self._blanks.clear()

    def take(self, end: int) -> str:
        """Return the value's text up to an offset, without blanks around the value.

        Trailing blanks are kept until more text comes.
        """
        text, stop = self.text, end
        while stop > self.offset and self._is_kept_back(text[stop - 1]):
            stop -= 1
        value = ""
        if stop > self.offset:
            value = self._with_blanks(text[self.offset : stop])
        if stop < end:
            self._blanks.append(text[stop:end])
        self.offset = end
        return value

    def add(self, text: str) -> str:
        """Return text that was kept elsewhere, as `take` does."""
        value = text.rstrip()
        emitted = ""
        if value:
            emitted = self._with_blanks(value)
        self._blanks.append(text[len(value) :])
        return emitted

    def last(self, end: int, *, fence: bool = False) -> str:
        """Return the rest of a value that ends at an offset.

        `fence` drops the fence that closes the whole answer.
        """
        rest = self._with_blanks(self.text[self.offset : end]).rstrip()
        self.offset = end
        if fence and rest.endswith("```"):
            return rest[:-3].rstrip()
        return rest

    def _is_kept_back(self, character: str) -> bool:
        return character.isspace() or (self.holds_backticks and character == "`")

    def _with_blanks(self, text: str) -> str:
        whole = "".join([*self._blanks, text])
        self._blanks.clear()
        if not self._has_begun:
            whole = whole.lstrip()
        self._has_begun = self._has_begun or bool(whole)
        return whole

    def discard_settled(self) -> None:
        """Drop parsed text, except for some context.

        The context shows whether a line starts here and whether a fence precedes it.
        """
        if self.offset <= 2 * _CONTEXT_CHARS:
            return
        before = self.text[: self.offset]
        bare = before.rstrip()
        # One blank replaces all: a line feed if a line starts here, else a vertical tab.
        blank = ""
        if len(bare) < len(before):
            if starts_line(before, len(before)):
                blank = "\n"
            else:
                blank = "\v"
        context = bare[-_CONTEXT_CHARS:] + blank
        self.text = context + self.text[self.offset :]
        self.offset = len(context)


class Unescaped:
    """A `FieldReader` that removes from values the escapes that the prompt shows the model.

    Parsing a whole answer removes them, too.
    """

    def __init__(
        self, reader: FieldReader, unescape: Callable[[str, str], str], partial: re.Pattern[str]
    ) -> None:
        """`partial` matches an escape that is incomplete at the end of a text."""
        self._reader = reader
        self._unescape = unescape
        self._partial = partial
        self._name = ""
        self._tail = ""
        """The end of the text so far, which may be part of an escape."""
        self._begins = False
        self._verbatim: list[str] = []
        """The pieces of a value that may be `Verbatim`: only its end decides."""

    def feed(self, text: str) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        return self._read(self._reader.feed(text))

    def finish(self) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        return [*self._read(self._reader.finish()), *self._finish_field()]

    def _read(self, pieces: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        unescaped: list[tuple[str, str]] = []
        for name, piece in pieces:
            if name != self._name:
                unescaped += self._finish_field()
                self._name, self._begins = name, True
            if self._verbatim:
                self._verbatim.append(piece)
                continue
            text = self._tail + piece
            if self._begins and EDGE.startswith(text[: len(EDGE)]):
                # The value begins like a `Verbatim` one, or may do so with the next piece.
                if len(text) >= len(EDGE):
                    self._tail, self._verbatim = "", [text]
                else:
                    self._tail = text
                continue
            self._begins = False
            partial = self._partial.search(text)
            if partial:
                end = partial.start()
            else:
                end = len(text)
            self._tail = text[end:]
            if end:
                unescaped.append((name, self._unescape(name, text[:end])))
        return unescaped

    def _finish_field(self) -> list[tuple[str, str]]:
        text = self._tail
        if self._verbatim:
            # A plain string: consumers of a stream do not know `Verbatim`.
            text = str(read_verbatim(self._unescape(self._name, "".join(self._verbatim))))
        self._tail, self._verbatim = "", []
        if not text:
            return []
        return [(self._name, text)]


class JSONStrings:
    """Tracks whether an offset is inside a string of an unfinished JSON object or array.

    A string ends at the latest with its line: JSON strings hold no line feed, so a missing quote
    spoils one line only.
    """

    __slots__ = ("_depth", "_is_escaped", "_is_over", "is_inside")

    def __init__(self) -> None:
        self._depth = 0
        self._is_escaped = False
        self._is_over = False
        """Whether the value has ended, or is not an object or array."""
        self.is_inside = False

    def read(self, text: str, start: int, end: int) -> None:
        """Read the value's text between two offsets; the first is where the last call ended."""
        offset = start
        if not self._depth and not self._is_over:
            offset = _end_of(_BLANKS, text, offset, end)
            self._is_over = offset < end and text[offset] not in "{["
        while offset < end and not self._is_over:
            if self.is_inside:
                offset = self._read_string(text, offset, end)
                continue
            mark = _STRUCTURE.search(text, offset, end)
            if mark is None:
                return
            offset = mark.end()
            if mark[0] == '"':
                self.is_inside = True
            elif mark[0] in "{[":
                self._depth += 1
            else:
                self._depth -= 1
            self._is_over = self._depth == 0

    def _read_string(self, text: str, offset: int, end: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            self.is_inside = text[offset] != "\n"
            return offset + 1
        offset = _end_of(_PLAIN, text, offset, end)
        if offset < end:
            self._is_escaped = text[offset] == "\\"
            self.is_inside = self._is_escaped
        return offset + 1


def _end_of(pattern: re.Pattern[str], text: str, offset: int, end: int) -> int:
    match = pattern.match(text, offset, end)
    if match is None:
        return offset
    return match.end()
