"""`JSONAdapter`: inputs, steps and answers are JSON objects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.render import Shown, calls_output, type_name
from ferrule.encoding.encode import is_flat, json_text
from ferrule.encoding.pattern import pattern
from ferrule.encoding.repair import objects_in, read_json, strict_json
from ferrule.errors import AdapterParseError
from ferrule.values.content.convert import pieces_of
from ferrule.values.conversation.exchange import Shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.values.content.convert import Piece
    from ferrule.values.conversation.exchange import Capabilities, FieldReader
    from ferrule.values.signatures.signature import Signature


class JSONAdapter(Adapter):
    """Writes each message as one JSON object. Providers that support JSON answers enforce the form."""

    reads_values: ClassVar[bool] = True

    __slots__ = ()

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

    def structure(self, shown: Shown) -> str:
        """See `Adapter`."""
        fields = ", ".join(
            f"{json_text(name)}: {{{type_name(field.annotation)}}}"
            for name, field in shown.outputs.items()
        )
        return f"Each answer is one JSON object with exactly these fields, in this order, and nothing around it:\n\n{{{fields}}}"

    def reminder(self, outputs: Sequence[str]) -> str:
        """See `Adapter`."""
        if not outputs:
            return ""
        return f"Answer with one JSON object that has the fields {', '.join(f'`{name}`' for name in outputs)}, in this order."

    def drawn_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        if all(map(is_flat, fields.values())):
            return [json_text(fields)]
        return pieces_of(dict(fields)) or [json_text(fields)]

    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """See `Adapter`."""
        names = signature.plan.outputs
        try:
            value = strict_json(text)
        except ValueError:
            value = _repair(text, signature)
        if not isinstance(value, dict) or not any(name in value for name in names):
            return {}
        return value  # pyright: ignore[reportUnknownVariableType]  JSON's keys are strings

    def reader(self, signature: type[Signature]) -> FieldReader:
        """See `Adapter`."""
        return JSONReader(signature.plan.outputs)

    def shape(self, signature: type[Signature], capabilities: Capabilities | None) -> Shape | None:
        """A JSON Schema if the model supports it and the outputs fit in one; otherwise a JSON object if the model supports that."""
        outputs = signature.plan.outputs
        if capabilities is None or not outputs or calls_output(signature) is not None:
            return None
        if capabilities.json_schema and signature.kept(
            _is_closed,
            lambda: _is_closed(signature.plan.output_schema()),
        ):
            return Shape("json_schema", signature.plan.output_schema())
        return (
            Shape("json_object") if capabilities.json_schema or capabilities.json_object else None
        )


def _repair(text: str, signature: type[Signature]) -> Any:
    """Find the object in an answer that is not plain JSON: invalid JSON, or JSON within text. None if there is none."""
    try:
        return read_json(text)[0]
    except ValueError:
        pass
    names = signature.plan.outputs
    found = [value for value, _ in objects_in(text) if any(name in value for name in names)]
    complete = [value for value in found if all(name in value for name in names)]
    candidates = complete or found
    if len(candidates) > 1 and any(value != candidates[0] for value in candidates):
        problem = (
            f"there are {len(candidates)} different JSON objects in the answer; write exactly one"
        )
        raise AdapterParseError("JSONAdapter", text, [("", problem)], signature=signature)
    return candidates[0] if candidates else None


def _is_closed(schema: Any) -> bool:
    """Whether a schema names every key. Providers cannot enforce an open object."""
    if isinstance(schema, list):
        return all(map(_is_closed, schema))  # pyright: ignore[reportUnknownArgumentType]
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" and not schema.get("properties"):  # pyright: ignore[reportUnknownMemberType]
        return False
    return all(_is_closed(each) for each in schema.values())  # pyright: ignore[reportUnknownVariableType]


_LONGEST_KEY = 10_000
"""The most characters of a key, escapes included; after a longer one, no more fields are streamed."""
_BEGIN = pattern(r'\{\s*"')
_PLAIN = pattern(r'[^"\\]+')
_ESCAPE = pattern(
    r'\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|["\\/bfnrt])',
)
_HIGH = pattern(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_PART_OF_PAIR = pattern(r"\\u[dD][89abAB][0-9a-fA-F]{2}(\\(u[0-9a-fA-F]{0,3})?)?\Z")
_PART_OF_ESCAPE = pattern(r"\\(u[0-9a-fA-F]{0,3})?\Z")
_STRUCTURE = pattern(r'["{}\[\],]')


class JSONReader:
    """Splits one streamed JSON object into fields: strings unescaped, other values as JSON. Emits nothing after invalid JSON."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._seen: set[str] = set()
        self._text = ""
        self._at = 0
        self._state: Literal[
            "before",
            "key",
            "colon",
            "value",
            "text",
            "other",
            "after",
            "done",
        ] = "before"
        self._name = ""
        self._depth = 0
        self._in_string = False
        self._blanks: list[str] = []
        """Blanks after the emitted text: part of the value only if more of it follows."""

    def feed(self, text: str) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        self._text = self._text[self._at :] + text
        self._at = 0
        pieces: list[tuple[str, str]] = []
        while self._state != "done" and getattr(self, f"_read_{self._state}")(pieces):
            pass
        if self._state == "done":
            self._text, self._at = "", 0
        return pieces

    def finish(self) -> list[tuple[str, str]]:
        """End the answer. Nothing is kept back: an unfinished value is not a value."""
        self._state = "done"
        return []

    def _emit(self, pieces: list[tuple[str, str]], piece: str) -> None:
        if piece and self._name:
            pieces.append((self._name, piece))

    def _next(self) -> str:
        """The next non-blank character, or an empty string if it has not arrived."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _read_before(self, _pieces: list[tuple[str, str]]) -> bool:
        found = _BEGIN.search(self._text, self._at)
        if found is None:
            brace = self._text.rfind("{", self._at)
            is_open = brace >= 0 and not self._text[brace + 1 :].strip()
            self._text, self._at = "{" if is_open else "", 0  # blanks after it mean nothing
            return False
        self._at = found.end() - 1
        self._state = "key"
        return True

    def _read_key(self, _pieces: list[tuple[str, str]]) -> bool:
        if self._next() != '"':
            self._state = "done" if self._next() else "key"
            return False
        end = self._at + 1
        while True:
            plain = _PLAIN.match(self._text, end)
            end = plain.end() if plain else end
            mark = self._text[end : end + 1]
            if mark != "\\":
                break
            end += 2
        if mark != '"':
            if end - self._at > _LONGEST_KEY:
                self._state = "done"
            return False
        try:
            name: str = json.loads(self._text[self._at : end + 1])
        except ValueError:
            self._state = "done"
            return False
        # The first of two equal keys wins: its text is already emitted.
        self._name = name if name in self._names and name not in self._seen else ""
        self._seen.add(name)
        self._at, self._state = end + 1, "colon"
        return True

    def _read_colon(self, _pieces: list[tuple[str, str]]) -> bool:
        mark = self._next()
        if mark != ":":
            self._state = "done" if mark else "colon"
            return False
        self._at += 1
        self._state = "value"
        return True

    def _read_value(self, _pieces: list[tuple[str, str]]) -> bool:
        mark = self._next()
        if not mark:
            return False
        self._at += mark == '"'
        self._state = "text" if mark == '"' else "other"
        self._depth, self._in_string, self._blanks = 0, False, []
        return True

    def _read_text(self, pieces: list[tuple[str, str]]) -> bool:
        text, at = self._text, self._at
        parts: list[str] = []
        while at < len(text):
            plain = _PLAIN.match(text, at)
            if plain:
                parts.append(plain[0])
                at = plain.end()
                continue
            if text[at] == '"':
                self._state = "after"
                break
            escape = _ESCAPE.match(text, at)
            if _PART_OF_ESCAPE.match(text, at) or _PART_OF_PAIR.match(text, at):
                break  # wait for the rest
            if escape is None:
                self._state = "done"
                break
            parts.append(json.loads(f'"{escape[0]}"'))
            at = escape.end()
        self._at = at + (self._state == "after")
        self._emit(pieces, "".join(parts))
        return self._state == "after"

    def _read_other(self, pieces: list[tuple[str, str]]) -> bool:
        start = at = self._at
        text = self._text
        while at < len(text):
            if self._in_string:
                plain = _PLAIN.match(text, at)
                if plain:
                    at = plain.end()
                elif text[at] == '"':
                    self._in_string, at = False, at + 1
                elif at + 1 == len(text):
                    break  # wait for the escaped character
                else:
                    at += 2
                continue
            found = _STRUCTURE.search(text, at)
            if found is None:
                at = len(text)
                break
            at, mark = found.end(), found[0]
            if mark in "}," and self._depth == 0:
                at -= 1
                self._state = "after"
                break
            self._depth += (mark in "{[") - (mark in "}]")
            self._in_string = mark == '"'
        piece = text[start:at]
        shown = piece if self._in_string else piece.rstrip()
        self._at = at
        if shown:
            self._emit(pieces, "".join([*self._blanks, shown]))
            self._blanks = []
        self._blanks.append(piece[len(shown) :])
        return self._state == "after"

    def _read_after(self, _pieces: list[tuple[str, str]]) -> bool:
        mark = self._next()
        if not mark:
            return False
        self._at += 1
        self._state = "key" if mark == "," else "done"
        return mark == ","
