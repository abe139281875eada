"""`ChatAdapter`: each field below its marker, as in `[[ ## answer ## ]]`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.render import (
    RenderedText,
    read_verbatim,
    render_parts,
    render_text,
    write_verbatim,
)
from ferrule.adapters.streaming import Buffer, JSONStrings, Unescaped, follows_fence, starts_line
from ferrule.encoding.mark import Mark
from ferrule.encoding.pattern import pattern
from ferrule.errors import checks_keywords
from ferrule.values.content.type import TEXTS
from ferrule.values.signatures.compiled import derived
from ferrule.values.signatures.fields import without_none

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.adapters.fields import PromptFields
    from ferrule.values.content.convert import Piece
    from ferrule.values.conversation.exchange import FieldReader
    from ferrule.values.signatures.signature import Signature

_JSON = JSONAdapter()
_MARKER = Mark(r"\[", r"\[[ \t]*##")
_PARTIAL_ESCAPE = pattern(r"\[(?:\\+(?:\[[ \t]*#?)?)?\Z")
_MARKER_IN_JSON = pattern(r"(\[\\*)\[(?=[ \t]*##)")


class ChatAdapter(Adapter):
    r"""Writes each field below a marker, the form that most models write best.

    If an answer cannot be parsed, `fallback` asks once more. The start of a marker in a value is
    escaped, so that no value holds a field: `[\[ ## answer ## ]]`, in JSON `[\u005b ##`.
    """

    writes_native_text = True

    __slots__ = ()

    @checks_keywords
    def __init__(
        self,
        *,
        use_native_function_calling: bool | None = False,
        fallback: Adapter | None = _JSON,
        repairs: int = 1,
    ) -> None:
        super().__init__(
            use_native_function_calling=use_native_function_calling,
            fallback=fallback,
            repairs=repairs,
        )

    def structure(self, fields: PromptFields) -> str:
        """See `Adapter`."""
        form = (
            "Messages have the form below: each field stands under its marker, text as it is and "
            "everything else as JSON."
        )
        names = (*fields.inputs, *fields.outputs)
        example = "\n\n".join(f"[[ ## {name} ## ]]\n{{{name}}}" for name in names)
        return f"{form}\n\n{example}\n\n[[ ## {_end_name(fields.outputs)} ## ]]"

    def reminder(self, outputs: Sequence[str]) -> str:
        """See `Adapter`."""
        if not outputs:
            return ""
        markers = ", then ".join(f"`[[ ## {name} ## ]]`" for name in outputs)
        end = _end_name(outputs)
        return f"Answer with the fields {markers}, and end with `[[ ## {end} ## ]]`."

    def render_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        pieces: list[Piece] = []
        for name, value in fields.items():
            between = "\n\n" if pieces else ""
            pieces.append(f"{between}[[ ## {name} ## ]]\n")
            if isinstance(value, RenderedText) and value.adapter == self:
                pieces.append(value)
                continue
            text = render_text(name, value, _escape, _escape_json)
            if text is not None:
                pieces.append(text)
            else:
                pieces += render_parts(name, value, _escape)
        return pieces

    def unescape(self, name: str, text: str) -> str:
        """See `Adapter`."""
        del name
        return read_verbatim(_MARKER.unescape(text))

    def render_answer(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        return [*self.render_fields(fields), f"\n\n[[ ## {_end_name(fields)} ## ]]"]

    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """See `Adapter`."""
        return _markers(signature).split(text)

    def outside(self, signature: type[Signature], text: str) -> str:
        """See `Adapter`."""
        return _markers(signature).outside(text)

    def reader(self, signature: type[Signature]) -> FieldReader:
        """See `Adapter`."""
        return Unescaped(
            MarkerReader(_markers(signature)),
            lambda _, text: _MARKER.unescape(text),
            _PARTIAL_ESCAPE,
        )


def _escape(_name: str, text: str) -> str:
    return write_verbatim(text, _MARKER.escape(text))


def _escape_json(_name: str, json: str) -> str:
    # In JSON, the start of a marker can only be inside a string, where any character may be
    # escaped.
    return _MARKER_IN_JSON.sub(r"\1\\u005b", json)


@derived
def _markers(signature: type[Signature]) -> Markers:
    outputs = signature.plan.outputs
    structured = [
        name for name, field in outputs.items() if without_none(field.annotation) not in TEXTS
    ]
    return Markers(outputs, _end_name(outputs), structured=structured)


def _end_name(outputs: Iterable[str]) -> str:
    """The name in the marker that ends an answer; not that of an output."""
    names = set(outputs)
    for name in ("completed", "end_of_answer"):
        if name not in names:
            return name
    return "end_of_the_answer"


class Markers:
    """The markers of a signature's output fields.

    A marker at the start of a line opens its field. A second one of the same field ends the current
    value; the text after it is ignored. The end marker ends the answer. A marker within a line
    opens its field only if it is the field's first and none of the field's markers starts a line:
    so one-line answers are read, and a value may mention a marker. All others are text, as are
    markers of unknown fields, in backticks within a line, and inside a JSON string of an unfinished
    object or array (in fields that are not plain text).
    """

    __slots__ = ("end", "names", "partial", "pattern", "structured")

    def __init__(self, names: Iterable[str], end: str, *, structured: Iterable[str] = ()) -> None:
        self.names = tuple(names)
        self.end = end
        self.structured = frozenset(structured)
        """The fields that are not plain text."""
        known = "|".join(map(re.escape, (*self.names, end)))
        longest = max(map(len, (*self.names, end)))
        self.pattern = pattern(rf"\[\[[ \t]*##[ \t]*({known})[ \t]*##[ \t]*\]\]")
        self.partial = pattern(
            rf"\[\[[ \t]*(#(#[ \t]*(\w{{1,{longest}}}[ \t]*(#(#[ \t]*\]?)?)?)?)?)?\Z"
        )
        """An incomplete marker at the end of the text."""

    def split(self, text: str) -> dict[str, str]:
        """Return the text below each marker."""
        reader = MarkerReader(self)
        pieces = [*reader.feed(text), *reader.finish()]
        values: dict[str, list[str]] = {name: [] for name in reader.opened}
        for name, piece in pieces:
            values[name].append(piece)
        return {name: "".join(value) for name, value in values.items()}

    def leading(self, text: str, offset: int, opened: Iterable[str]) -> set[str]:
        """The fields whose marker starts a line.

        These are `opened`, and those in the text after an offset, up to the end marker.
        """
        names = set(opened)
        for marker in self.pattern.finditer(text, offset):
            start, end = marker.span()
            is_in_backticks = text[start - 1 : start] == "`" == text[end : end + 1]
            if is_in_backticks:
                start -= 1
            if not starts_line(text, start):
                continue
            if marker[1] != self.end:
                names.add(marker[1])
            elif names:
                return {*names, self.end}
        return names

    def outside(self, text: str) -> str:
        """Return the text before the first marker and after the end marker."""
        markers = list(self.pattern.finditer(text))
        if not markers:
            return text
        first, last = markers[0], markers[-1]
        behind = ""
        if last[1] == self.end:
            behind = text[last.end() :]
        return f"{text[: first.start()]}\n{behind}"


class MarkerReader:
    """Splits an answer, whole or streamed, at the markers of its fields (see `Markers`).

    It keeps back a possible marker. If only the rest of the answer decides whether a marker opens
    its field, it keeps back all text after that marker.
    """

    def __init__(self, markers: Markers) -> None:
        self.opened: dict[str, None] = {}
        """The fields whose marker came, in order."""
        self._markers = markers
        self._buffer = Buffer()
        self._pending: list[str] = []
        """Text that decides nothing: blanks in a possible marker, or text after an unclear one."""
        self._waits_in_marker = False
        self._is_undecided = False
        self._name = ""
        """The field of the current value; empty between values."""
        self._strings: JSONStrings | None = None
        self._strings_end = 0
        """The offset up to which `_strings` has read."""
        self._backtick = -1
        """The offset of the backtick that closed the last marker in backticks.

        It does not open the next one.
        """
        self._leading: set[str] | None = None
        """The fields whose marker starts a line; None until the answer has ended."""
        self._is_fenced = False
        self._has_ended = False

    def feed(self, text: str) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        if self._has_ended:
            return []
        if self._is_undecided or (self._waits_in_marker and not text.strip(" \t")):
            self._pending.append(text)
            return []
        buffer = self._buffer
        buffer.text = "".join([buffer.text, *self._pending, text])
        self._pending.clear()
        pieces: list[tuple[str, str]] = []
        while not self._has_ended and self._read_to_marker(pieces):
            pass
        if not self._has_ended and not self._is_undecided:
            self._emit_until(pieces, self._safe_end())
        offset = buffer.offset
        self._read_strings(offset)
        buffer.discard_settled()
        self._strings_end += buffer.offset - offset
        self._backtick += buffer.offset - offset
        return pieces

    def finish(self) -> list[tuple[str, str]]:
        """Return the text that was kept back, at the end of the answer."""
        if self._has_ended:
            return []
        pieces: list[tuple[str, str]] = []
        buffer = self._buffer
        buffer.text = "".join([buffer.text, *self._pending])
        self._leading = self._markers.leading(buffer.text, buffer.offset, self.opened)
        while not self._has_ended and self._read_to_marker(pieces):
            pass
        if not self._has_ended:
            self._close(pieces, len(buffer.text), fence=self._is_fenced)
        self._has_ended = True
        return pieces

    def _read_to_marker(self, pieces: list[tuple[str, str]]) -> bool:
        """Parse up to and including the next marker; False if there is no complete one."""
        text = self._buffer.text
        while marker := self._markers.pattern.search(text, self._buffer.offset):
            start, end = marker.span()
            self._read_strings(start)
            if self._strings is not None and self._strings.is_inside:
                self._emit_until(pieces, end)
                continue
            if start and text[start - 1] == "`" and start - 1 != self._backtick:
                if end == len(text) and self._leading is None:
                    return False  # the next character decides whether it is in backticks
                if text[end : end + 1] == "`":
                    self._backtick = end
                    if not starts_line(text, start - 1):
                        self._emit_until(pieces, end)
                        continue
                    start, end = start - 1, end + 1
            if not starts_line(text, start):
                if marker[1] in self.opened or marker[1] in (self._leading or ()):
                    self._emit_until(pieces, end)
                    continue
                if self._leading is None and (marker[1] != self._markers.end or self.opened):
                    self._is_undecided = True
                    self._emit_until(pieces, start)
                    return False
            self._close(pieces, start)
            self._open(marker[1], start, end)
            return not self._has_ended
        return False

    def _open(self, name: str, start: int, end: int) -> None:
        """Start the value of a field after its marker; ignore what follows a repeated one."""
        buffer = self._buffer
        if not self.opened and not self._name:
            self._is_fenced = follows_fence(buffer.text, start)
            buffer.holds_backticks = self._is_fenced
        buffer.open(end)
        self._name, self._strings = "", None
        if name == self._markers.end:
            self._has_ended = bool(self.opened)
        elif name not in self.opened:
            self.opened[name] = None
            self._name, self._strings_end = name, end
            if name in self._markers.structured:
                self._strings = JSONStrings()

    def _read_strings(self, end: int) -> None:
        if self._strings is not None and end > self._strings_end:
            self._strings.read(self._buffer.text, self._strings_end, end)
            self._strings_end = end

    def _safe_end(self) -> int:
        """The offset up to which the text cannot become part of a marker."""
        text, parsed = self._buffer.text, self._buffer.offset
        end = len(text)
        start = text.rfind("[[", parsed)
        is_partial = start >= 0 and self._markers.partial.match(text, start) is not None
        self._waits_in_marker = is_partial and text[-1] in " \t"
        # A complete marker is still here only if it waits for the character after it.
        if is_partial or (start >= 0 and self._markers.pattern.fullmatch(text, start)):
            end = start
        elif text.endswith("["):
            end -= 1
        if end > parsed and text[end - 1] == "`":
            end -= 1
        return max(end, parsed)

    def _emit_until(self, pieces: list[tuple[str, str]], end: int) -> None:
        """Emit the text up to an offset."""
        if not self._name:
            self._buffer.offset = max(self._buffer.offset, end)
        elif value := self._buffer.take(end):
            pieces.append((self._name, value))

    def _close(self, pieces: list[tuple[str, str]], end: int, *, fence: bool = False) -> None:
        """Emit the rest of a value."""
        if self._name and (value := self._buffer.last(end, fence=fence)):
            pieces.append((self._name, value))
