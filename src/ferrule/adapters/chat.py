"""`ChatAdapter`: each field below its marker, as in `[[ ## answer ## ]]`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.buffer import Buffer, JSONStrings, Unescaped, follows_fence, starts_line
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.render import (
    RenderedText,
    Shown,
    read_verbatim,
    render_parts,
    render_text,
    write_verbatim,
)
from ferrule.encoding.mark import Mark
from ferrule.encoding.pattern import pattern
from ferrule.values.content.type import TEXTS
from ferrule.values.signatures.compiled import derived
from ferrule.values.signatures.fields import without_none

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.values.content.convert import Piece
    from ferrule.values.conversation.exchange import FieldReader
    from ferrule.values.signatures.signature import Signature

_JSON = JSONAdapter()
_MARKER = Mark(r"\[", r"\[[ \t]*##")
_PARTIAL_ESCAPE = pattern(r"\[(?:\\+(?:\[[ \t]*#?)?)?\Z")
_MARKER_IN_JSON = pattern(r"(\[\\*)\[(?=[ \t]*##)")


class ChatAdapter(Adapter):
    r"""Writes each field below a marker, the form that most models write best. If an answer cannot be parsed, `fallback` retries.

    The start of a marker in a value is escaped, so that no value holds a field: `[\[ ## answer ##
    ]]`, in JSON `[\u005b ##`.
    """

    __slots__ = ()

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

    def structure(self, shown: Shown) -> str:
        """See `Adapter`."""
        form = "Messages have the form below: each field stands under its marker, text as it is and everything else as JSON."
        fields = "\n\n".join(
            f"[[ ## {name} ## ]]\n{{{name}}}" for name in (*shown.inputs, *shown.outputs)
        )
        return f"{form}\n\n{fields}\n\n[[ ## {_end(shown.outputs)} ## ]]"

    def reminder(self, outputs: Sequence[str]) -> str:
        """See `Adapter`."""
        if not outputs:
            return ""
        marks = ", then ".join(f"`[[ ## {name} ## ]]`" for name in outputs)
        return f"Answer with the fields {marks}, and end with `[[ ## {_end(outputs)} ## ]]`."

    def drawn_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        pieces: list[Piece] = []
        opening = "[[ ## "
        for name, value in fields.items():
            pieces.append(
                opening,
            )  # separately: one join of all pieces is quicker than a text per field
            pieces.append(name)
            pieces.append(" ## ]]\n")
            opening = "\n\n[[ ## "
            if type(value) is str:  # as `render_text` would
                pieces.append(value if "##" not in value else _MARKER.escape(value))
            elif type(value) is RenderedText and value.adapter == self:
                pieces.append(value)
            elif (text := render_text(name, value, _escape, _escape_json)) is not None:
                pieces.append(text)
            else:
                pieces += render_parts(name, value, _escape)
        return pieces

    def unescape(self, name: str, text: str) -> str:
        """See `Adapter`."""
        del name
        return read_verbatim(_MARKER.unescape(text))

    def drawn_answer(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        return [*self.drawn_fields(fields), f"\n\n[[ ## {_end(fields)} ## ]]"]

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
    return write_verbatim(text, _MARKER.escape(text) if "##" in text else text)


def _escape_json(_name: str, json: str) -> str:
    # In JSON, the start of a marker can only be inside a string, where any character may be
    # escaped.
    return _MARKER_IN_JSON.sub(r"\1\\u005b", json) if "##" in json else json


@derived
def _markers(signature: type[Signature]) -> Markers:
    outputs = signature.plan.outputs
    structured = [
        name for name, field in outputs.items() if without_none(field.annotation) not in TEXTS
    ]
    return Markers(outputs, _end(outputs), structured=structured)


def _end(outputs: Any) -> str:
    return (
        "completed"
        if "completed" not in outputs
        else "end_of_answer"
        if "end_of_answer" not in outputs
        else "end_of_the_answer"
    )


class Markers:
    """The markers of a signature's output fields, in a whole or a streamed answer.

    A marker at the start of a line opens its field. A second one of the same field ends the current
    value; the text after it is ignored. The end marker ends the answer. A marker within a line
    opens its field only if it is the field's first and none of the field's markers starts a line:
    so one-line answers are read, and a value may mention a marker. All others are text, as are
    markers of unknown fields, in backticks within a line, and inside a JSON string of an unfinished
    object or array (in fields that are not plain text).
    """

    __slots__ = ("end", "headings", "names", "opening", "partial", "pattern", "structured")

    def __init__(self, names: Iterable[str], end: str, *, structured: Iterable[str] = ()) -> None:
        self.names = tuple(names)
        self.end = end
        self.structured = frozenset(structured)
        """The fields that are not plain text."""
        self.opening = "\n[[ ## " if self.structured else "[[ ## "
        """How the prompt begins a marker. If any field is not plain text, a marker within a line may be inside a JSON string."""
        self.headings = [(name, f"{name} ## ]]") for name in (*self.names, end)]
        """Each field, with the rest of its marker."""
        known = "|".join(map(re.escape, (*self.names, end)))
        longest = max(map(len, (*self.names, end)))
        self.pattern = pattern(rf"\[\[[ \t]*##[ \t]*({known})[ \t]*##[ \t]*\]\]")
        self.partial = pattern(
            rf"\[\[[ \t]*(#(#[ \t]*(\w{{1,{longest}}}[ \t]*(#(#[ \t]*\]?)?)?)?)?)?\Z",
        )
        """An incomplete marker at the end of the text."""

    def split(self, text: str) -> dict[str, str]:
        """Return the text below each marker."""
        return self._split_simple(text) or self._split_any(text)

    def _split_simple(self, text: str) -> dict[str, str] | None:
        """Split the usual answer: markers as in the prompt, in its order, each once, and no backticks. None for any other answer."""
        parts = iter(f"\n{text}".split(self.opening))
        if "`" in text or "[[" in next(parts):
            return None
        found: dict[str, str] = {}
        headings = iter(self.headings)
        for part in parts:
            if "[[" in part:
                return None
            for name, heading in headings:  # goes on after the last heading found
                if (value := part.removeprefix(heading)) != part:
                    found[name] = value.strip()
                    break
            else:
                return None
        found.pop(self.end, None)
        return found

    def leading(self, text: str, at: int, opened: Iterable[str]) -> set[str]:
        """The fields whose marker starts a line: `opened`, and those in the text after a position, up to the end marker."""
        found = set(opened)
        for mark in self.pattern.finditer(text, at):
            start, end = mark.span()
            if not starts_line(
                text,
                start - (text[start - 1 : start] == "`" == text[end : end + 1]),
            ):
                continue
            if mark[1] != self.end:
                found.add(mark[1])
            elif found:
                return {*found, self.end}
        return found

    def _split_any(self, text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        leading, opened = self.leading(text, 0, ()), set[str]()
        name, start, is_fenced, strings, read, tick = "", 0, False, None, 0, -1
        for mark in self.pattern.finditer(text):
            at, end = mark.span()
            if strings is not None:
                strings.read(text, read, at)
                read = at
                if strings.is_inside:
                    continue
            if at and text[at - 1] == "`" and at - 1 != tick and text[end : end + 1] == "`":
                tick = end  # this backtick closes a marker, so it does not open the next one
                if not starts_line(text, at - 1):
                    continue
                at, end = at - 1, end + 1
            marked = mark[1]
            if (marked in leading or marked in opened) and not starts_line(text, at):
                continue
            if name:
                found[name] = text[start:at].strip()
            elif not opened:
                is_fenced = follows_fence(text, at)
            if marked == self.end and not opened:
                continue
            if marked == self.end:
                return found
            name, start, read = (marked if marked not in opened else ""), end, end
            opened.add(marked)
            strings = JSONStrings() if name in self.structured else None
        if name:
            value = text[start:].rstrip()
            found[name] = (value[:-3] if is_fenced and value.endswith("```") else value).strip()
        return found

    def outside(self, text: str) -> str:
        """Return the text before the first marker and after the end marker."""
        marks = list(self.pattern.finditer(text))
        if not marks:
            return text
        behind = text[marks[-1].end() :] if marks[-1][1] == self.end else ""
        return f"{text[: marks[0].start()]}\n{behind}"


class MarkerReader:
    """Splits a streamed answer as `Markers.split` does. Keeps back a possible marker, and all text after one that is still undecided."""

    def __init__(self, marks: Markers) -> None:
        self._markers = marks
        self._buffer = Buffer()
        self._pending: list[str] = []
        """Blanks inside a possible marker, which do not decide it, or the text after an undecided marker."""
        self._waits_in_marker = self._is_undecided = False
        self._name = ""
        self._strings: JSONStrings | None = None
        self._read = 0
        """The position up to which `_strings` has read."""
        self._tick = -1
        """The backtick that closed the last marker in backticks: it does not open the next one."""
        self._opened: set[str] = set()
        self._leading: set[str] | None = None
        """The fields whose marker starts a line; None until the answer has ended."""
        self._is_fenced = self._has_ended = False

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
        before = buffer.at
        self._read_strings(before)
        buffer.discard_settled()
        self._read += buffer.at - before
        self._tick += buffer.at - before
        return pieces

    def finish(self) -> list[tuple[str, str]]:
        """Return the text that was kept back, at the end of the answer."""
        pieces: list[tuple[str, str]] = []
        if not self._has_ended:
            self._buffer.text = "".join([self._buffer.text, *self._pending])
            self._leading = self._markers.leading(self._buffer.text, self._buffer.at, self._opened)
            while not self._has_ended and self._read_to_marker(pieces):
                pass
        if not self._has_ended:
            self._close(pieces, len(self._buffer.text), fence=self._is_fenced)
        self._has_ended = True
        return pieces

    def _read_to_marker(self, pieces: list[tuple[str, str]]) -> bool:
        """Parse up to and including the next marker; False if there is no complete one."""
        text = self._buffer.text
        while mark := self._markers.pattern.search(text, self._buffer.at):
            at, end = mark.span()
            self._read_strings(at)
            if self._strings is not None and self._strings.is_inside:
                self._emit_until(pieces, end)
                continue
            if at and text[at - 1] == "`" and at - 1 != self._tick:
                if end == len(text) and self._leading is None:
                    return False
                if text[end : end + 1] == "`":
                    self._tick = end
                    if not starts_line(text, at - 1):
                        self._emit_until(pieces, end)
                        continue
                    at, end = at - 1, end + 1
            if not starts_line(text, at):
                if mark[1] in self._opened or mark[1] in (self._leading or ()):
                    self._emit_until(pieces, end)
                    continue
                if self._leading is None and (mark[1] != self._markers.end or self._opened):
                    self._is_undecided = True
                    self._emit_until(pieces, at)
                    return False
            self._close(pieces, at)
            self._open(mark[1], at, end)
            return not self._has_ended
        return False

    def _open(self, marked: str, at: int, end: int) -> None:
        buffer = self._buffer
        if not self._opened and not self._name:
            self._is_fenced = buffer.holds_backticks = follows_fence(buffer.text, at)
        buffer.open(end)
        self._name, self._strings = "", None
        self._has_ended = marked == self._markers.end and bool(self._opened)
        if marked != self._markers.end and marked not in self._opened:
            self._opened.add(marked)
            self._name, self._read = marked, end
            self._strings = JSONStrings() if marked in self._markers.structured else None

    def _read_strings(self, end: int) -> None:
        if self._strings is not None and end > self._read:
            self._strings.read(self._buffer.text, self._read, end)
            self._read = end

    def _safe_end(self) -> int:
        """The position up to which the text cannot become part of a marker."""
        text, parsed = self._buffer.text, self._buffer.at
        end = len(text)
        at = text.rfind("[[", parsed)
        self._waits_in_marker = (
            at >= 0 and text[-1] in " \t" and self._markers.partial.match(text, at) is not None
        )
        # A complete marker is still here only if it waits for the character after it.
        if at >= 0 and (
            self._waits_in_marker
            or self._markers.partial.match(text, at)
            or self._markers.pattern.fullmatch(text, at)
        ):
            end = at
        elif text.endswith("["):
            end -= 1
        if end > parsed and text[end - 1] == "`":
            end -= 1
        return max(end, parsed)

    def _emit_until(self, pieces: list[tuple[str, str]], end: int) -> None:
        """Emit the text up to a position."""
        if not self._name:
            self._buffer.at = max(self._buffer.at, end)
        elif value := self._buffer.take(end):
            pieces.append((self._name, value))

    def _close(self, pieces: list[tuple[str, str]], end: int, *, fence: bool = False) -> None:
        """Emit the rest of a value."""
        if self._name and (value := self._buffer.last(end, fence=fence)):
            pieces.append((self._name, value))
