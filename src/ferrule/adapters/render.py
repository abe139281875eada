"""Values and fields as text for a model, in words and forms that all adapters share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args, get_origin

from ferrule.values.calls.call import ToolCalls
from ferrule.values.content.convert import Piece, pieces_of
from ferrule.values.content.custom_type import PART_END, PART_START, Type
from ferrule.values.content.parts import Text
from ferrule.values.conversation.history import History
from ferrule.values.encoding.encode import json_text
from ferrule.values.record import Record
from ferrule.values.signatures.fields import adapter_of, allows_none, description_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from ferrule.values.signatures.signature import Signature

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "matching the pattern {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}
_PLAIN = frozenset({str, int, float, bool, type(None)})
_LISTS = frozenset({list, tuple, Sequence, Iterable})
_SIMPLE = {bool: "true or false", int: "a whole number", float: "a number"}


class Shown(Record):
    """Which fields of a signature a prompt shows."""

    inputs: Mapping[str, FieldInfo]
    outputs: Mapping[str, FieldInfo]
    histories: tuple[str, ...]
    """Inputs that become messages of their own."""
    calls: str | None
    """The output whose values travel beside the text: as the calls of an assistant's message."""


def shown_fields(signature: type[Signature], *, native: bool) -> Shown:
    """The fields a prompt shows: no histories, and in native mode neither tools nor the calls, which travel beside the text."""
    histories = tuple(name for name, field in signature.input_fields.items() if is_history(field))
    beside = {*tool_inputs(signature), *histories} if native else histories
    calls = calls_output(signature) if native else None
    inputs = {name: field for name, field in signature.input_fields.items() if name not in beside}
    outputs = {name: field for name, field in signature.output_fields.items() if name != calls}
    return Shown(inputs, outputs, histories, calls)


def is_history(field: FieldInfo) -> bool:
    """Whether a field holds a `History`."""
    return bool(History.extract_custom_type_from_annotation(field.annotation))


def tool_inputs(signature: type[Signature]) -> Mapping[str, bool]:
    """The inputs that declare tools, in order, and whether each takes a list of them: `Tool`, `list[Tool]`, either of them or None."""
    return signature.kept(tool_inputs, lambda: dict(_declaring(signature.input_fields)))


def _declaring(fields: Mapping[str, FieldInfo]) -> Iterator[tuple[str, bool]]:
    for name, field in fields.items():
        annotation = without_none(field.annotation)
        if _is_tool(annotation):
            yield name, False
        elif get_origin(annotation) in _LISTS and _is_tool(next(iter(get_args(annotation)), None)):
            yield name, True


def _is_tool(annotation: Any) -> bool:
    # Tools live in a room beside this one, so they are known by what they can do.
    return isinstance(annotation, type) and issubclass(annotation, Type) and hasattr(annotation, "declaration")


def calls_output(signature: type[Signature]) -> str | None:
    """The output that receives an answer's tool calls, if there is one."""
    return signature.kept(calls_output, lambda: next((name for name, field in signature.output_fields.items() if calls_type(field)), None))


def calls_type(field: FieldInfo) -> type[ToolCalls] | None:
    """`ToolCalls` or the class made from it, of a field that receives calls; None for any other field."""
    return next(iter(ToolCalls.extract_custom_type_from_annotation(field.annotation)), None)


def without_none(annotation: Any) -> Any:
    """`T` for `T | None`; any other type as it is."""
    if get_origin(annotation) not in {Union, UnionType}:
        return annotation
    others = [each for each in get_args(annotation) if each is not NoneType]
    return others[0] if len(others) == 1 else annotation


# -- values -------------------------------------------------------------------------------------------------------


def value_text(value: Any) -> str:
    """A value as text: text as it is, everything else as JSON."""
    if isinstance(value, Enum):
        value = value.value  # as its choices are listed
    return value if isinstance(value, str) else json_text(value)


def unmarked_text(value: Any, spelled: Callable[[str], str]) -> str | None:
    """A value without parts as text, None for one with parts. JSON goes through `spelled`, which takes out of it what ends a field."""
    if type(value) is str:
        return value
    if is_plain(value):
        return spelled(json_text(value))
    if pieces_of(value):
        return None
    text = value_text(value)
    return text if isinstance(value, (str, Enum)) else spelled(text)


def value_pieces(value: Any) -> list[Piece]:
    """A value as text and parts."""
    return pieces_of(value) or [value_text(value)]


def is_plain(value: Any) -> bool:
    """Whether a value is seen at a glance to hold no parts."""
    kind = cast("Any", type(value))
    return kind in _PLAIN or (kind is dict and _PLAIN.issuperset(map(type, value.values())))


def packed(pieces: Iterable[Piece]) -> str:
    """Pieces as one text, parts packed between markers (see `values.custom`)."""
    return "".join(piece if isinstance(piece, str) else _packed(piece) for piece in pieces)


def _packed(part: Any) -> str:
    return part.text if isinstance(part, Text) else f"{PART_START}{json_text(part.format())}{PART_END}"


# -- fields -------------------------------------------------------------------------------------------------------


def listing(fields: Mapping[str, FieldInfo], *, expected: bool) -> str:
    """A numbered list of fields with type and description; with `expected`, also what their values must look like."""
    lines: list[str] = []
    for i, (name, field) in enumerate(fields.items(), 1):
        said = [part for part in (description_of(field), expectation(field) if expected else "") if part]
        lines.append(f"{i}. `{name}` ({type_name(field.annotation)})" + (f": {'; '.join(said)}" if said else ""))
    return "\n".join(lines)


def type_name(annotation: Any) -> str:
    """A type as people write it: `list[str]`, `Literal['a', 'b']`, `Point`."""
    if annotation is None or annotation is NoneType:
        return "null"
    if annotation is Any:
        return "any"
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, inside))}]"
    if origin in {Union, UnionType}:
        return " | ".join(map(type_name, inside))
    name = getattr(origin or annotation, "__name__", None) or str(annotation)
    if origin is None or not inside:
        return name
    return f"{name}[{', '.join('...' if each is ... else type_name(each) if not isinstance(each, list) else '...' for each in inside)}]"


def expectation(field: FieldInfo) -> str:
    """What a value must look like, where its type's name does not say it all; empty for plain text."""
    annotation = field.annotation
    said: list[str] = []
    choices = _choices(annotation)
    custom = Type.extract_custom_type_from_annotation(annotation)
    single = without_none(annotation)
    if choices is not None:
        said.append(f"exactly one of: {choices}")
    elif isinstance(annotation, type) and annotation in _SIMPLE:
        said.append(_SIMPLE[annotation])
    elif custom and single is custom[0] and custom[0].description():
        said.append(custom[0].description())
    elif get_origin(annotation) in {Union, UnionType} and set(get_args(annotation)) == {str, NoneType}:
        said.append("text, or null")
    elif get_origin(annotation) in {Union, UnionType} and str in get_args(annotation):
        said.append(f"text as it is, or {_as_json(field)}")
    elif annotation is not str and annotation is not Any:
        said.append(_as_json(field))
    if annotation is str or annotation is int or annotation is float:
        said += _bounds(_schema(field)) if field.metadata else []
    if not field.is_required() or allows_none(annotation):
        said.append("may be left out")
    return ", ".join(each for each in said if each)


def _choices(annotation: Any) -> str | None:
    values: list[Any] = []
    if get_origin(annotation) is Literal:
        values = list(get_args(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        values = [each.value for each in annotation]
    return "; ".join(value_text(value) for value in values) if values else None


def _as_json(field: FieldInfo) -> str:
    schema = _schema(field)
    if schema in ({"type": "object", "additionalProperties": True}, {"type": "object"}):
        return "a JSON object"
    if schema in ({"type": "array", "items": {}}, {"type": "array"}):
        return "a JSON array"
    if schema.get("type") == "string":
        bounds = [*([f"in the format {schema['format']}"] if "format" in schema else []), *_bounds(schema)]
        return ", ".join(["text", *bounds])
    return f"JSON that fits the schema {json_text(schema)}" if schema else ""


def _bounds(schema: Mapping[str, Any]) -> list[str]:
    return [words.format(schema[key]) for key, words in _BOUNDS.items() if key in schema]


def _schema(field: FieldInfo) -> dict[str, Any]:
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        found = adapter_of(field).json_schema()
    except PydanticInvalidForJsonSchema:
        return {}
    return cast("dict[str, Any]", _untitled(found))


def _untitled(schema: Any, *, names: bool = False) -> Any:
    """A schema without the titles pydantic makes of names; where keys are names of properties, `title` is one of them."""
    if isinstance(schema, list):
        return [_untitled(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    entries = cast("dict[str, Any]", schema).items()
    return {
        key: _untitled(each, names=not names and key in {"properties", "$defs"})
        for key, each in entries
        if names or key != "title" or not isinstance(each, str)
    }
