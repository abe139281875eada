"""`JSONAdapter`: inputs, steps and answers are JSON objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.render import Shown, calls_output, has_no_parts, type_name
from ferrule.errors import AdapterParseError
from ferrule.values.content.convert import pieces_of
from ferrule.values.conversation.exchange import Shape
from ferrule.values.encoding.encode import json_text
from ferrule.values.encoding.repair import objects_in, read_json, strict_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ferrule.values.content.convert import Piece
    from ferrule.values.conversation.exchange import Capabilities, FieldReader
    from ferrule.values.signatures.signature import Signature


class JSONAdapter(Adapter):
    """Writes each message as one JSON object. Providers that support it enforce the form."""

    reads_values: ClassVar[bool] = True

    __slots__ = ()

    def __init__(self, *, use_native_function_calling: bool | None = True, fallback: Adapter | None = None, repairs: int = 1) -> None:
        super().__init__(use_native_function_calling=use_native_function_calling, fallback=fallback, repairs=repairs)

    def structure(self, shown: Shown) -> str:
        """See `Adapter`."""
        fields = ", ".join(f"{json_text(name)}: {{{type_name(field.annotation)}}}" for name, field in shown.outputs.items())
        return f"Each answer is one JSON object with exactly these fields, in this order, and nothing around it:\n\n{{{fields}}}"

    def reminder(self, outputs: Sequence[str]) -> str:
        """See `Adapter`."""
        if not outputs:
            return ""
        return f"Answer with one JSON object that has the fields {', '.join(f'`{name}`' for name in outputs)}, in this order."

    def drawn_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        if all(map(has_no_parts, fields.values())):
            return [json_text(fields)]
        return pieces_of(dict(fields)) or [json_text(fields)]

    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """See `Adapter`."""
        names = signature.output_fields
        try:
            value = strict_json(text)
        except ValueError:
            value = _repair(text, names)
        if not isinstance(value, dict) or not any(name in value for name in names):
            return {}
        return value  # pyright: ignore[reportUnknownVariableType]  JSON's keys are strings

    def reader(self, signature: type[Signature]) -> FieldReader:
        """See `Adapter`."""
        from ferrule.adapters.streaming.json_fields import JSONReader

        return JSONReader(signature.output_fields)

    def shape(self, signature: type[Signature], capabilities: Capabilities | None) -> Shape | None:
        """A JSON Schema if the model supports it and the outputs fit in one; otherwise a JSON object if the model supports that."""
        outputs = signature.output_fields
        if capabilities is None or not outputs or calls_output(signature) is not None:
            return None
        if capabilities.json_schema and signature.kept(_is_closed, lambda: _is_closed(signature.plan.output_schema())):
            return Shape("json_schema", signature.plan.output_schema())
        return Shape("json_object") if capabilities.json_schema or capabilities.json_object else None


def _repair(text: str, names: Mapping[str, Any]) -> Any:
    """Find the object in an answer that is not plain JSON: invalid JSON, or JSON within text. None if there is none."""
    try:
        return read_json(text)[0]
    except ValueError:
        pass
    found = [value for value, _ in objects_in(text) if any(name in value for name in names)]
    complete = [value for value in found if all(name in value for name in names)]
    candidates = complete or found
    if len(candidates) > 1 and any(value != candidates[0] for value in candidates):
        problem = f"there are {len(candidates)} different JSON objects in the answer; write exactly one"
        raise AdapterParseError("JSONAdapter", text, [("", problem)])
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
