"""Splits streamed answers with native calls into fields.

The text of an answer is text: it is the only text output from its first token, until a call shows
that it was a preamble. But models also write what the request did not ask for: an adapter's markers
from an older history, a JSON object, a call as text. Where such a form may begin, `_Hold` keeps the
text back until the answer ends and can be read as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.adapters.json_object import JSONReader
from ferrule.encoding.encode import json_text
from ferrule.encoding.pattern import pattern
from ferrule.errors import AdapterParseError
from ferrule.values.conversation.exchange import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ferrule.values.conversation.exchange import CallPiece, FieldReader

    Pieces = Sequence[tuple[str, str]]

_FORM_AT_LINE = pattern(
    r"\[\[[ \t]*##|\{|\[\s*\{|<[/|]?[A-Za-z_]|```tool|```[\w+-]*[ \t]*\r?\n\s*[{\[<]"
)
"""A form that begins a line: a marker, JSON, a tag, a fence around one of these."""
_FORM = pattern(r"<[/|]{0,2}(?:tool|function|python|assistant)|<\||\[TOOL_")
"""A form that may begin anywhere."""
_PARTIAL = pattern(
    r"(?:\[(?:\[[ \t]*#?|\s+|[A-Z_]{0,5})?|<[/|]{0,2}[a-z]{0,9}|`{1,2}|```[\w+-]*[ \t]*\r?\n?\s*)\Z"
)
"""The beginning of a form at the end of the text."""
_FIRST_CHARACTERS = pattern(r"[\[{<`]")
_FENCE = "```"


class _Hold:
    """Passes text on, up to where a form may begin.

    A fence around JSON is passed on at its end if it holds no call, and any other fence at once.
    """

    def __init__(self, has_calls: Callable[[], bool]) -> None:
        self._has_calls = has_calls
        self._rest: list[str] = []
        """The text that is kept back."""
        self._is_line_blank = True
        """Whether the current line has only blanks so far, in the text that was passed on."""
        self._has_begun = False
        self._is_fenced = False
        self._keeps_fence = False
        """Whether the text is kept back because of the fence at its beginning."""
        self._keeps_all = False

    def feed(self, text: str) -> str:
        """Take the next piece; returns the text that is passed on."""
        self._rest.append(text)
        if self._keeps_all or (self._keeps_fence and "`" not in text):
            return ""
        whole = "".join(self._rest)
        start = 0
        if self._keeps_fence:
            start = self._end_of_kept_fence(whole)
            if not start:
                self._rest = [whole]
                return ""
        end = self._end_of_text(whole, start)
        self._rest = [whole[end:]]
        return self._passed(whole[:end])

    def finish(self) -> str:
        """End the text; returns what was kept back."""
        rest, self._rest = "".join(self._rest), []
        return rest

    def _passed(self, text: str) -> str:
        if not self._has_begun and not text.strip():
            self._rest.insert(0, text)  # blanks before a call are not text
            return ""
        self._has_begun = True
        _, line_feed, line = text.rpartition("\n")
        self._is_line_blank = not line.strip() and (bool(line_feed) or self._is_line_blank)
        return text

    def _begins_line(self, text: str, offset: int) -> bool:
        while offset and text[offset - 1] in " \t":
            offset -= 1
        if offset:
            return text[offset - 1] == "\n"
        return self._is_line_blank

    def _end_of_kept_fence(self, text: str) -> int:
        """The offset behind the fence that is kept back, or 0 if it stays so."""
        close = text.find(f"\n{_FENCE}", len(_FENCE))
        if close < 0 or self._has_calls():
            return 0
        self._keeps_fence = False
        return close + 1 + len(_FENCE)

    def _end_of_text(self, text: str, start: int) -> int:
        """The offset of the first form, or of what may become one; else the end of the text."""
        while match := _FIRST_CHARACTERS.search(text, start):
            offset = match.start()
            begins_line = self._begins_line(text, offset)
            if self._is_fenced:
                if not begins_line or match[0] != "`":
                    start = offset + 1
                    continue
                if not text.startswith(_FENCE, offset):
                    if _FENCE.startswith(text[offset:]):
                        return offset
                    start = offset + 1
                    continue
                self._is_fenced = False
                start = offset + len(_FENCE)
                continue
            is_form = _FORM.match(text, offset) is not None
            if is_form or (begins_line and _FORM_AT_LINE.match(text, offset)):
                self._keeps_fence = match[0] == "`"
                self._keeps_all = not self._keeps_fence
                return offset
            if _PARTIAL.match(text, offset) and (begins_line or match[0] != "`"):
                return offset
            start = offset + 1
            if begins_line and text.startswith(_FENCE, offset):
                self._is_fenced = True
                start = offset + len(_FENCE)
        return len(text)


class NativeReader:
    """Splits an answer whose text is text, and whose outputs may be the arguments of a call.

    Args:
        read: Parses a whole answer into fields.
        may_call: Whether a text holds calls, which the driver may take from it.
        text_field: The only text output; "" if the outputs are others.
        outputs: The names of all outputs.
        last_call: The name of the call whose arguments are the outputs.

    """

    def __init__(
        self,
        read: Callable[[Response], Mapping[str, Any]],
        may_call: Callable[[str], bool],
        text_field: str,
        outputs: Sequence[str],
        *,
        last_call: str = "",
    ) -> None:
        self.text_field = text_field
        self._read = read
        self._outputs = outputs
        self._last_call = last_call
        self._arguments = JSONReader(outputs)
        self._index: int | None = None
        """The index of the call that ends the loop: the first call with that name."""
        self._hold = _Hold(lambda: may_call("".join(self._text)))
        self._text: list[str] = []
        self._has_returned_text = False
        self._has_calls = False
        self._remains: str | None = None
        """What `take_back` returns."""

    def feed(self, text: str) -> Pieces:
        """See `FieldReader`."""
        if self._has_calls:
            return (("", text),)
        self._text.append(text)
        return self._pieces(self._hold.feed(text))

    def begin_calls(self) -> Pieces:
        """See `CallReader`."""
        self._has_calls = True
        text = self._hold.finish()
        if not self._has_returned_text and not text.strip():
            return ()
        return self._pieces(text)

    def feed_call(self, piece: CallPiece) -> Pieces:
        """See `CallReader`."""
        if not piece.arguments or piece.name != self._last_call:
            return ()
        if self._index is None:
            self._index = piece.index
        if piece.index != self._index:
            return ()
        return self._arguments.feed(piece.arguments)

    def finish(self) -> Pieces:
        """See `FieldReader`."""
        rest = self._hold.finish()
        text = "".join(self._text)
        if self._has_calls or self._remains is not None or not text.strip():
            return ()
        try:
            fields = self._read(Response(text))
        except AdapterParseError:
            return ()
        if not fields or fields.get(self.text_field) == text:
            return self._pieces(rest)
        if self._has_returned_text:
            self._remains = ""
        return [(name, _written(fields[name])) for name in self._outputs if name in fields]

    def note_rescued(self, rest: str) -> None:
        """See `CallReader`."""
        self._remains = rest

    def take_back(self) -> str | None:
        """See `CallReader`."""
        remains, self._remains = self._remains, None
        return remains

    def _pieces(self, text: str) -> Pieces:
        if not text:
            return ()
        self._has_returned_text = True
        return ((self.text_field, text),)


def _written(value: Any) -> str:
    """A value as the pieces of a field: a text, or JSON."""
    if isinstance(value, str):
        return value
    return json_text(value)


class FormReader:
    """Splits an answer with native calls whose text has the form of an adapter.

    `reader` splits the text. If neither a call nor a field came, the text is the answer itself,
    which `read` parses at the end.
    """

    text_field = ""

    def __init__(
        self,
        read: Callable[[Response], Mapping[str, Any]],
        reader: FieldReader,
        outputs: Sequence[str],
    ) -> None:
        self._read = read
        self._reader = reader
        self._outputs = outputs
        self._text: list[str] = []
        self._is_answer = True
        """Whether the text may still be the answer itself."""

    def feed(self, text: str) -> Pieces:
        """See `FieldReader`."""
        self._text.append(text)
        pieces = self._reader.feed(text)
        if pieces:
            self._is_answer = False
        return pieces

    def begin_calls(self) -> Pieces:
        """See `CallReader`."""
        self._is_answer = False
        return ()

    def feed_call(self, piece: CallPiece) -> Pieces:
        """See `CallReader`."""
        del piece
        return ()

    def finish(self) -> Pieces:
        """See `FieldReader`."""
        pieces = self._reader.finish()
        if pieces or not self._is_answer or not self._text:
            return pieces
        try:
            fields = self._read(Response("".join(self._text)))
        except AdapterParseError:
            return ()
        texts = [(name, fields.get(name)) for name in self._outputs]
        return [(name, text) for name, text in texts if isinstance(text, str) and text]

    def note_rescued(self, rest: str) -> None:
        """See `CallReader`."""
        del rest
        self._is_answer = False

    def take_back(self) -> str | None:
        """See `CallReader`."""
        return None
