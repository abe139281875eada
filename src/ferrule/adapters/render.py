"""Render values and descriptions of fields, for all adapters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Self, Union, get_args, get_origin

from ferrule.encoding.encode import flat_text, json_text
from ferrule.errors import SignatureError
from ferrule.record import Record
from ferrule.schema.nodes import is_object, map_children
from ferrule.values.content.convert import content_of, pieces_of
from ferrule.values.content.type import PART_END, PART_START, TEXTS, Type
from ferrule.values.signatures.compiled import compiled, default_instructions, derived
from ferrule.values.signatures.fields import adapter_of, allows_none, calls_type, without_none

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.values.content.convert import Piece
    from ferrule.values.signatures.fields import SignatureField
    from ferrule.values.signatures.signature import Signature

_PLAIN = frozenset({str, int, float, bool, type(None)})
_LISTS = frozenset({list, tuple, Sequence, Iterable})
_SIMPLE = {bool: "true or false", int: "a whole number", float: "a number"}


class Shown(Record):
    """The fields of a signature that a prompt shows."""

    inputs: Mapping[str, SignatureField]
    outputs: Mapping[str, SignatureField]
    histories: tuple[str, ...]
    """Inputs of type `History`, rendered as separate messages."""
    calls: str | None
    """The output whose values are native calls of an assistant's message, not text."""
    signature: type[Signature]


def shown_fields(signature: type[Signature], *, native: bool) -> Shown:
    """Return the fields that a prompt shows: no histories, and in native mode neither tools nor calls."""
    histories = tuple(name for name, field in signature.plan.inputs.items() if is_history(field))
    beside = {*tool_inputs(signature), *histories} if native else histories
    calls = calls_output(signature) if native else None
    inputs = {name: field for name, field in signature.plan.inputs.items() if name not in beside}
    outputs = {name: field for name, field in signature.plan.outputs.items() if name != calls}
    return Shown(inputs, outputs, histories, calls, signature)


def is_history(field: SignatureField) -> bool:
    """Whether a field holds a `History`."""
    if not Type.extract_custom_type_from_annotation(field.annotation):
        return False
    from ferrule.values.conversation.history import History  # late: only a `Type` may be one

    return bool(History.extract_custom_type_from_annotation(field.annotation))


@derived
def tool_inputs(signature: type[Signature]) -> Mapping[str, bool]:
    """Return the inputs that declare tools, in order, and whether each is a list: `Tool`, `list[Tool]`, or one of them or None."""
    return dict(_declaring(signature.plan.inputs))


def _declaring(fields: Mapping[str, SignatureField]) -> Iterator[tuple[str, bool]]:
    for name, field in fields.items():
        annotation = without_none(field.annotation)
        if _is_tool(annotation):
            yield name, False
        elif get_origin(annotation) in _LISTS and _is_tool(next(iter(get_args(annotation)), None)):
            yield name, True


def _is_tool(annotation: Any) -> bool:
    # `adapters` does not import `tools`, so a tool is recognised by its attribute.
    return (
        isinstance(annotation, type)
        and issubclass(annotation, Type)
        and hasattr(annotation, "declaration")
    )


def calls_output(signature: type[Signature]) -> str | None:
    """Return the output for tool calls, if there is one."""
    found = signature.plan.outputs
    return signature.kept(
        calls_output,
        lambda: next((name for name in found if calls_type(found[name].annotation)), None),
    )


# -- values
# -------------------------------------------------------------------------------------------------------


def _value_text(value: Any) -> str:
    """Render a value: text unchanged, anything else as JSON."""
    if isinstance(value, Enum):
        value = value.value  # as in the list of choices
    return value if isinstance(value, str) else json_text(value)


class RenderedText(str):
    """Text that an adapter rendered. The same adapter does not escape it again: the marks in it are real fields."""

    __slots__ = ("adapter",)
    adapter: object

    def __new__(cls, text: str, adapter: object = None) -> Self:
        """Create the text, with the adapter that rendered it."""
        made = super().__new__(cls, text)
        made.adapter = adapter
        return made


class Verbatim(str):
    """Output text that is read unchanged: not as JSON, and with the blanks around it."""

    __slots__ = ()


EDGE = "[\\]"


def write_verbatim(text: str, escaped: str) -> str:
    r"""The escaped text, between two `[\]` if it is `Verbatim`."""
    return f"{EDGE}{escaped}{EDGE}" if isinstance(text, Verbatim) else escaped


def read_verbatim(text: str) -> str:
    """Undo `write_verbatim`; any other text is unchanged."""
    return Verbatim(text[3:-3]) if text.startswith(EDGE) and text.endswith(EDGE, 3) else text


def as_read(signature: type[Signature], outputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Outputs as an answer shows them: text that would be read back as another value becomes `Verbatim`."""
    shown: dict[str, Any] = {}
    for name, value in outputs.items():
        unquoted = _unquoted(signature, name, value)
        text = _misread(signature, name, unquoted)
        shown[name] = unquoted if text is None else Verbatim(text)
    return shown


def _unquoted(signature: type[Signature], name: str, value: Any) -> Any:
    """A value that is a string in JSON, such as a date, as that string, if its quotes would be read as part of it (`str | date`)."""
    if (
        type(value) in _PLAIN
        or isinstance(value, (str, Enum, Type))
        or name not in signature.plan.outputs
    ):
        return value
    written = json_text(value)
    if written.startswith('"'):
        with suppress(ValueError):
            return (
                json.loads(written) if signature.output_checks[name](written) == written else value
            )
    return value


def _misread(signature: type[Signature], name: str, value: Any) -> str | None:
    """The text of a value, if an adapter would read it back as something else; else None."""
    text: Any = value.value if isinstance(value, Enum) else value
    if type(text) not in TEXTS or (field := compiled(signature).outputs.get(name)) is None:
        return None
    annotation: Any = field.annotation
    if annotation in TEXTS:
        return text if text != text.strip() or text.startswith(EDGE) else None
    check = signature.output_checks[name]
    meant = (value, text)
    with suppress(ValueError):
        if not text.startswith(EDGE) and check(text.strip()) in meant:
            return None
    with suppress(ValueError):  # not a valid value of this output, such as a note in a demo
        return text if check(text, is_value=True) in meant else None
    return None


Escape = Callable[[str, str], str]
"""Escapes marks of fields in a field's text or JSON: takes the field's name and the text."""


def render_text(name: str, value: Any, escape: Escape, escape_json: Escape) -> str | None:
    """Render a field's value without parts; None for one with parts."""
    if type(value) is str:
        return escape(name, value)
    if (flat := flat_text(value)) is not None:
        return escape_json(name, flat)
    if pieces_of(value):
        return None
    text = _value_text(value)
    return (escape if isinstance(value, (str, Enum)) else escape_json)(name, text)


def render_parts(name: str, value: Any, escape: Escape) -> Iterator[Piece]:
    """Render a field's value with parts. Adjacent texts are joined and then escaped: two of them can make a mark."""
    from ferrule.values.content.parts import Text

    content = content_of(pieces_of(value) or ())
    for part in (content,) if isinstance(content, str) else content:
        text = part.text if isinstance(part, Text) else part
        yield escape(name, text) if isinstance(text, str) else text


def join_pieces(pieces: Iterable[Piece]) -> str:
    """Join pieces into one text, with parts encoded between markers (see `values/content/type.py`)."""
    return "".join(piece if isinstance(piece, str) else _pack_part(piece) for piece in pieces)


def _pack_part(part: Any) -> str:
    from ferrule.values.content.parts import Text

    return (
        part.text if isinstance(part, Text) else f"{PART_START}{json_text(part.format())}{PART_END}"
    )


# -- fields
# -------------------------------------------------------------------------------------------------------


def field_list(fields: Mapping[str, SignatureField], *, expected: bool) -> str:
    """Render a numbered list of fields with type and description; with `expected`, also what their values must look like."""
    lines: list[str] = []
    for i, (name, field) in enumerate(fields.items(), 1):
        said = [
            part for part in (field.description, _expectation(field) if expected else "") if part
        ]
        lines.append(
            f"{i}. `{name}` ({type_name(field.annotation)})"
            + (f": {'; '.join(said)}" if said else ""),
        )
    return "\n".join(lines)


def field_description(fields: Shown) -> str:
    """Render the lists of inputs and outputs."""
    parts = [
        f"Your inputs are:\n{field_list(fields.inputs, expected=False)}" if fields.inputs else "",
    ]
    parts += [
        f"Your outputs are:\n{field_list(fields.outputs, expected=True)}" if fields.outputs else "",
    ]
    return "\n\n".join(part for part in parts if part)


def task_description(signature: type[Signature], fields: Shown) -> str:
    """Render the instructions, or the default ones for these fields."""
    own = signature.plan.own_instructions
    task = own if own is not None else default_instructions(fields.inputs, fields.outputs)
    return f"Your task:\n{task}" if task else ""


def type_name(annotation: Any) -> str:
    """Render a type as in source code: `list[str]`, `Literal['a', 'b']`, `Point`."""
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


def _expectation(field: SignatureField) -> str:
    """Describe what a value must look like beyond its type's name; empty for plain text."""
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
    elif get_origin(annotation) in {Union, UnionType} and set(get_args(annotation)) == {
        str,
        NoneType,
    }:
        said.append("text, or null")
    elif get_origin(annotation) in {Union, UnionType} and str in get_args(annotation):
        said.append(f"text as it is, or {_as_json(field)}")
    elif annotation is not str and annotation is not Any:
        said.append(_as_json(field))
    if annotation is str or annotation is int or annotation is float:
        said += _limits(_schema(field)) if field.metadata else []
    if not field.is_required or allows_none(annotation):
        said.append("may be left out")
    return ", ".join(each for each in said if each)


def _choices(annotation: Any) -> str | None:
    values: list[Any] = []
    if get_origin(annotation) is Literal:
        values = list(get_args(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        values = [each.value for each in annotation]
    return "; ".join(_value_text(value) for value in values) if values else None


def _as_json(field: SignatureField) -> str:
    schema = _schema(field)
    if schema in ({"type": "object", "additionalProperties": True}, {"type": "object"}):
        return "a JSON object"
    if schema in ({"type": "array", "items": {}}, {"type": "array"}):
        return "a JSON array"
    if schema.get("type") == "string":
        limits = [
            *([f"in the format {schema['format']}"] if "format" in schema else []),
            *_limits(schema),
        ]
        return ", ".join(["text", *limits])
    return f"JSON that fits the schema {json_text(schema)}" if schema else ""


def _limits(schema: Mapping[str, Any]) -> list[str]:
    from ferrule.schema.words import LIMITS

    limits = {**LIMITS, "pattern": "matching the pattern {}"}
    return [words.format(schema[key]) for key, words in limits.items() if key in schema]


def _schema(field: SignatureField) -> dict[str, Any]:
    from pydantic import PydanticUserError
    from pydantic_core import SchemaError

    from ferrule.schema.inline import json_schema_of

    try:
        return _untitled(json_schema_of(adapter_of(field)))
    except (PydanticUserError, SchemaError) as error:
        problem = str(error).splitlines()[0]
        raise SignatureError(
            f"Values of the type {type_name(field.annotation)} cannot be checked: {problem}",
        ) from error


def _untitled(schema: Any) -> Any:
    """Remove titles, most of which pydantic derives from names; a property called `title` stays."""
    if is_object(schema):
        schema = {key: value for key, value in schema.items() if key != "title"}
    return map_children(schema, _untitled)
