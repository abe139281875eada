"""`JSONAdapter`: inputs, steps and answers are JSON objects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.fields import calls_output
from ferrule.adapters.render import type_name
from ferrule.encoding.encode import json_text
from ferrule.encoding.loose import read_escape
from ferrule.encoding.pattern import pattern
from ferrule.encoding.repair import flaw_of_object, objects_in, read_json, strict_json
from ferrule.errors import AdapterParseError, checks_keywords
from ferrule.values.content.convert import pieces_of
from ferrule.values.conversation.exchange import Shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.adapters.fields import PromptFields
    from ferrule.values.content.convert import Piece
    from ferrule.values.conversation.exchange import Capabilities, FieldReader
    from ferrule.values.signatures.signature import Signature


class JSONAdapter(Adapter):
    """Writes each message as one JSON object.

    Providers that support JSON answers enforce the form.
    """

    reads_values: ClassVar[bool] = True
    writes_native_text: ClassVar[bool] = True

    __slots__ = ()

    @checks_keywords
    def __init__(
        self,
        *,
        use_native_function_calling: bool | None = True,
        fallback: Adapter | None = None,
        repairs: int = 1,
    ) -> None:
        super().__init__(
            use_native_function_calling=use_native_function_calling,
            fallback=fallback,
            repairs=repairs,
        )

    def structure(self, fields: PromptFields) -> str:
        """See `Adapter`."""
        members = ", ".join(
            f"{json_text(name)}: {{{type_name(field.annotation)}}}"
            for name, field in fields.outputs.items()
        )
        form = (
            "Each answer is one JSON object with exactly these fields, in this order, "
            "and nothing around it:"
        )
        return f"{form}\n\n{{{members}}}"

    def reminder(self, outputs: Sequence[str]) -> str:
        """See `Adapter`."""
        if not outputs:
            return ""
        names = ", ".join(f"`{name}`" for name in outputs)
        return f"Answer with one JSON object that has the fields {names}, in this order."

    def render_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        return pieces_of(dict(fields)) or [json_text(fields)]

    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """See `Adapter`."""
        try:
            value = strict_json(text)
        except ValueError:
            value = _repair(text, signature)
        if not isinstance(value, dict):
            return {}
        fields = cast("dict[str, Any]", value)
        if fields.keys().isdisjoint(signature.plan.outputs):
            return {}
        return fields

    def flaw(self, signature: type[Signature], text: str) -> str:
        """See `Adapter`."""
        problem = flaw_of_object(text, signature.plan.outputs)
        if not problem:
            return ""
        return f"the answer is not valid JSON: {problem}"

    def reader(self, signature: type[Signature]) -> FieldReader:
        """See `Adapter`."""
        return JSONReader(signature.plan.outputs)

    def shape(self, signature: type[Signature], capabilities: Capabilities | None) -> Shape | None:
        """A JSON Schema or a JSON object, as far as the model supports it.

        A schema only if the outputs fit in one: providers cannot enforce an open object.
        """
        if capabilities is None or not signature.plan.outputs:
            return None
        if calls_output(signature) is not None:
            return None
        if capabilities.json_schema:
            schema = signature.plan.output_schema()
            if signature.cached_value(is_closed, lambda: is_closed(schema)):
                return Shape("json_schema", schema)
        if capabilities.json_schema or capabilities.json_object:
            return Shape("json_object")
        return None


def _repair(text: str, signature: type[Signature]) -> Any:
    """Find the object in an answer that is not plain JSON; None if there is none.

    The JSON may be invalid, or stand within text.
    """
    try:
        return read_json(text)[0]
    except ValueError:
        pass
    names = signature.plan.outputs
    partial = [value for value, _ in objects_in(text) if any(name in value for name in names)]
    complete = [value for value in partial if all(name in value for name in names)]
    candidates = complete or partial
    if any(value != candidates[0] for value in candidates):
        problem = (
            f"there are {len(candidates)} different JSON objects in the answer; write exactly one"
        )
        raise AdapterParseError("JSONAdapter", text, [("", problem)], signature=signature)
    if not candidates:
        return None
    if not complete and flaw_of_object(text, names):
        # The object lies in one that is broken, or comes with one. It is not the answer.
        return None
    return candidates[0]


def is_closed(schema: Any) -> bool:
    """Whether a schema names every key of its objects."""
    if isinstance(schema, list):
        return all(map(is_closed, schema))  # pyright: ignore[reportUnknownArgumentType]
    if not isinstance(schema, dict):
        return True
    members = cast("dict[str, Any]", schema)
    if members.get("type") == "object" and not members.get("properties"):
        return False
    return all(map(is_closed, members.values()))


_LONGEST_KEY = 10_000
"""The most characters of a key, escapes included.

After a longer one, no more fields are streamed.
"""
_BEGIN = pattern(r'\{\s*"')
_PLAIN = pattern(r'[^"\\]+')
_ESCAPE = pattern(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r'|u[0-9a-fA-F]{4}|["\\/bfnrt])'
)
_PART_OF_PAIR = pattern(r"\\u[dD][89abAB][0-9a-fA-F]{2}(\\(u[0-9a-fA-F]{0,3})?)?\Z")
_PART_OF_ESCAPE = pattern(r"\\(u[0-9a-fA-F]{0,3})?\Z")
_STRUCTURE = pattern(r'["{}\[\],]')

Pieces = list[tuple[str, str]]


class JSONReader:
    """Splits one streamed JSON object into fields: strings unescaped, other values as JSON.

    A state machine: each method `_read_...` reads one element of the object. It returns False if
    the element, or the object, goes no further with the text so far. After invalid JSON, nothing
    is emitted.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._seen: set[str] = set()
        self._text = ""
        self._offset = 0
        self._state: Literal[
            "before", "key", "colon", "value", "string", "other", "after", "done"
        ] = "before"
        self._name = ""
        self._depth = 0
        self._in_string = False
        self._blanks: list[str] = []
        """Blanks after the emitted text: part of the value only if more of it follows."""

    def feed(self, text: str) -> Pieces:
        """See `FieldReader`."""
        self._text = self._text[self._offset :] + text
        self._offset = 0
        pieces: Pieces = []
        while self._read_element(pieces):
            pass
        if self._state == "done":
            self._text, self._offset = "", 0
        return pieces

    def finish(self) -> Pieces:
        """End the answer. Nothing is kept back: an unfinished value is not a value."""
        self._state = "done"
        return []

    def _read_element(self, pieces: Pieces) -> bool:
        match self._state:
            case "before":
                return self._read_before()
            case "key":
                return self._read_key()
            case "colon":
                return self._read_colon()
            case "value":
                return self._read_value()
            case "string":
                return self._read_string(pieces)
            case "other":
                return self._read_other(pieces)
            case "after":
                return self._read_after()
            case "done":
                return False

    def _emit(self, pieces: Pieces, piece: str) -> None:
        if piece and self._name:
            pieces.append((self._name, piece))

    def _next(self) -> str:
        """The next non-blank character, or an empty string if it has not arrived."""
        while self._offset < len(self._text) and self._text[self._offset].isspace():
            self._offset += 1
        return self._text[self._offset : self._offset + 1]

    def _read_before(self) -> bool:
        """Find the brace that opens the object; there may be text before it."""
        begin = _BEGIN.search(self._text, self._offset)
        if begin is None:
            brace = self._text.rfind("{", self._offset)
            is_open = brace >= 0 and not self._text[brace + 1 :].strip()
            self._text = "{" if is_open else ""  # blanks after it mean nothing
            self._offset = 0
            return False
        self._offset = begin.end() - 1
        self._state = "key"
        return True

    def _read_key(self) -> bool:
        character = self._next()
        if character != '"':
            if character:
                self._state = "done"
            return False
        end = self._end_of_string(self._offset + 1)
        if self._text[end : end + 1] != '"':
            if end - self._offset > _LONGEST_KEY:
                self._state = "done"
            return False
        try:
            name: str = json.loads(self._text[self._offset : end + 1])
        except ValueError:
            self._state = "done"
            return False
        # The first of two equal keys wins: its text is already emitted.
        is_field = name in self._names and name not in self._seen
        self._name = ""
        if is_field:
            self._name = name
        self._seen.add(name)
        self._offset, self._state = end + 1, "colon"
        return True

    def _end_of_string(self, offset: int) -> int:
        """The offset of the quote that ends a string, or the end of the text."""
        while True:
            plain = _PLAIN.match(self._text, offset)
            if plain:
                offset = plain.end()
            if self._text[offset : offset + 1] != "\\":
                return offset
            offset += 2

    def _read_colon(self) -> bool:
        character = self._next()
        if character != ":":
            if character:
                self._state = "done"
            return False
        self._offset += 1
        self._state = "value"
        return True

    def _read_value(self) -> bool:
        character = self._next()
        if not character:
            return False
        if character == '"':
            self._offset += 1
            self._state = "string"
        else:
            self._state = "other"
        self._depth, self._in_string, self._blanks = 0, False, []
        return True

    def _read_string(self, pieces: Pieces) -> bool:
        """Emit the text of a string as far as it has arrived; wait for the rest of an escape."""
        text, offset = self._text, self._offset
        parts: list[str] = []
        has_ended = False
        while offset < len(text):
            plain = _PLAIN.match(text, offset)
            if plain:
                parts.append(plain[0])
                offset = plain.end()
                continue
            if text[offset] == '"':
                offset += 1
                has_ended = True
                break
            if _PART_OF_ESCAPE.match(text, offset) or _PART_OF_PAIR.match(text, offset):
                break
            escape = _ESCAPE.match(text, offset)
            if escape is not None:
                parts.append(json.loads(f'"{escape[0]}"'))
                offset = escape.end()
                continue
            unknown = read_escape(text, offset + 1)
            if unknown is None:
                self._state = "done"
                break
            meaning, offset = unknown
            parts.append(meaning)
        self._offset = offset
        self._emit(pieces, "".join(parts))
        if has_ended:
            self._state = "after"
        return has_ended

    def _read_other(self, pieces: Pieces) -> bool:
        """Emit a number, a word, an array or an object as JSON, without blanks around it."""
        start = self._offset
        has_ended = self._skip_other()
        piece = self._text[start : self._offset]
        if self._in_string:
            value = piece
        else:
            value = piece.rstrip()
        if value:
            self._emit(pieces, "".join([*self._blanks, value]))
            self._blanks = []
        self._blanks.append(piece[len(value) :])
        if has_ended:
            self._state = "after"
        return has_ended

    def _skip_other(self) -> bool:
        """Move the offset to the end of the value, or of the text; True if the value ended."""
        text = self._text
        while self._offset < len(text):
            if self._in_string:
                self._offset = self._end_of_string(self._offset)
                if self._offset >= len(text):
                    # An escape at the end is complete only with its next character.
                    is_cut = self._offset > len(text)
                    if is_cut:
                        self._offset = len(text) - 1
                    else:
                        self._offset = len(text)
                    return False
                self._in_string = False
                self._offset += 1
                continue
            mark = _STRUCTURE.search(text, self._offset)
            if mark is None:
                self._offset = len(text)
                return False
            if mark[0] in "}," and self._depth == 0:
                self._offset = mark.start()
                return True
            self._offset = mark.end()
            if mark[0] == '"':
                self._in_string = True
            elif mark[0] in "{[":
                self._depth += 1
            elif mark[0] in "}]":
                self._depth -= 1
        return False

    def _read_after(self) -> bool:
        character = self._next()
        if not character:
            return False
        self._offset += 1
        if character != ",":
            self._state = "done"
            return False
        self._state = "key"
        return True
