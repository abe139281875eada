"""`NativeReader`: the fields in a streamed answer of a model that calls tools natively."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.adapters.json_object import JSONReader
from ferrule.errors import AdapterParseError
from ferrule.values.conversation.exchange import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ferrule.values.conversation.exchange import CallPiece, FieldReader


class NativeReader:
    """Splits the arguments of the call that ends the loop, and the text of an answer without calls, into fields.

    `reader` splits the text; without one, the text is the model's thought. If neither a call nor a
    field came, the text is the answer itself, which `read` parses at the end.
    """

    def __init__(
        self,
        read: Callable[[Response], Mapping[str, Any]],
        reader: FieldReader | None,
        outputs: Sequence[str],
        *,
        last_call: str = "",
    ) -> None:
        self._read = read
        self._reader = reader
        self._outputs = outputs
        self._last_call = last_call
        self._arguments = JSONReader(outputs)
        self._index: int | None = None
        """The index of the call that ends the loop: the first call with that name."""
        self._text: list[str] = []
        self._is_answer = True
        """Whether the text may still be the answer itself."""

    def feed(self, text: str) -> Sequence[tuple[str, str]]:
        """See `FieldReader`."""
        self._text.append(text)
        if self._reader is None:
            return (("next_thought", text),)
        pieces = self._reader.feed(text)
        self._is_answer = self._is_answer and not pieces
        return pieces

    def feed_call(self, piece: CallPiece) -> Sequence[tuple[str, str]]:
        """See `CallReader`."""
        self._is_answer = False
        if not piece.arguments or piece.name != self._last_call:
            return ()
        if self._index is None:
            self._index = piece.index
        return self._arguments.feed(piece.arguments) if piece.index == self._index else ()

    def finish(self) -> Sequence[tuple[str, str]]:
        """See `FieldReader`."""
        pieces = self._reader.finish() if self._reader is not None else ()
        if pieces or not self._is_answer or not self._text:
            return pieces
        try:
            found = self._read(Response("".join(self._text)))
        except AdapterParseError:
            return ()
        return [
            (name, value)
            for name in self._outputs
            if isinstance(value := found.get(name), str) and value
        ]
