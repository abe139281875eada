"""Render values and descriptions of fields, for all adapters.

Text is written as it is and any other value as JSON, with one exception. An answer that is shown to
the model (in a demo, a history, a repair) must read back as the value it came from, and some texts
would not: the text `null` of an output `str | None` is read as None, and the blanks around a text
are stripped. Such a text is `Verbatim`: it is written between two marks (`EDGE`), and the parser
takes the text between them unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Self, Union, get_args, get_origin

from ferrule.encoding.encode import json_text
from ferrule.errors import SignatureError
from ferrule.schema.inline import json_schema_of
from ferrule.schema.nodes import is_object, map_children
from ferrule.schema.words import LIMITS
from ferrule.values.content.convert import content_of, pieces_of
from ferrule.values.content.parts import Text
from ferrule.values.content.type import PART_END, PART_START, TEXTS, Type
from ferrule.values.signatures.compiled import compiled, default_instructions
from ferrule.values.signatures.fields import adapter_of, allows_none, without_none

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.adapters.fields import PromptFields
    from ferrule.values.content.convert import Piece
    from ferrule.values.signatures.fields import SignatureField
    from ferrule.values.signatures.output_checks import OutputCheck
    from ferrule.values.signatures.signature import Signature

_SCALARS = frozenset({str, int, float, bool, type(None)})
_UNIONS = frozenset({Union, UnionType})
_SIMPLE = {bool: "true or false", int: "a whole number", float: "a number"}


# -- values


def _value_text(value: Any) -> str:
    """Render a value: text unchanged, anything else as JSON."""
    if isinstance(value, Enum):
        value = value.value  # as in the list of choices
    if isinstance(value, str):
        return value
    return json_text(value)


class RenderedText(str):
    """Text that an adapter rendered, such as the steps of a trajectory, with the marks of fields.

    The same adapter does not escape it again, because these marks are not an imitation in a value.
    """

    __slots__ = ("adapter",)
    adapter: object

    def __new__(cls, text: str, adapter: object = None) -> Self:
        """Create the text, with the adapter that rendered it."""
        rendered = super().__new__(cls, text)
        rendered.adapter = adapter
        return rendered


class Verbatim(str):
    """Output text that is read unchanged: not as JSON, and with the blanks around it."""

    __slots__ = ()


EDGE = "[\\]"
"""The mark before and after a verbatim text: no JSON begins with it, and hardly any prose."""


def write_verbatim(text: str, escaped: str) -> str:
    r"""`escaped`, the written form of `text`; between two `[\]` if `text` is `Verbatim`."""
    if isinstance(text, Verbatim):
        return f"{EDGE}{escaped}{EDGE}"
    return escaped


def read_verbatim(text: str) -> str:
    """Undo `write_verbatim`; any other text is unchanged."""
    if text.startswith(EDGE) and text.endswith(EDGE, len(EDGE)):
        return Verbatim(text[len(EDGE) : -len(EDGE)])
    return text


def as_read(signature: type[Signature], outputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Outputs as an answer shows them, so that reading the answer gives the same values.

    Text that would be read back as another value becomes `Verbatim`.
    """
    plan = compiled(signature)
    shown: dict[str, Any] = {}
    for name, value in outputs.items():
        field = plan.outputs.get(name)
        if field is None:
            shown[name] = value
            continue
        check = plan.output_checks[name]
        unquoted = _unquoted(value, check)
        text = unquoted
        if isinstance(unquoted, Enum):
            text = unquoted.value
        if type(text) in TEXTS and _is_misread(text, unquoted, field.annotation, check):
            shown[name] = Verbatim(text)
        else:
            shown[name] = unquoted
    return shown


def _unquoted(value: Any, check: OutputCheck) -> Any:
    """A value that is a string in JSON, such as a date, without the quotes.

    Only where the quotes would be read as part of it, as in `str | date`.
    """
    if type(value) in _SCALARS or isinstance(value, (str, Enum, Type)):
        return value
    written = json_text(value)
    if not written.startswith('"'):
        return value
    with suppress(ValueError):
        if check(written) == written:
            return json.loads(written)
    return value


def _is_misread(text: str, value: Any, annotation: Any, check: OutputCheck) -> bool:
    """Whether an adapter would read the text of a value as something else.

    `value` differs from `text` if it is an enum: its text is the value of the member.
    """
    if annotation in TEXTS:
        return text != text.strip() or text.startswith(EDGE)
    meant = (value, text)
    with suppress(ValueError):
        if not text.startswith(EDGE) and check(text.strip()) in meant:
            return False
    try:
        return check(text, is_value=True) in meant
    except ValueError:
        # Not a valid value of this output, such as a note in a demo: it cannot be read back at all.
        return False


Escape = Callable[[str, str], str]
"""Escapes marks of fields in a field's text or JSON: takes the field's name and the text."""


def render_text(name: str, value: Any, escape: Escape, escape_json: Escape) -> str | None:
    """Render a field's value; None for a value with parts (images, sounds, files)."""
    if type(value) is str:
        return escape(name, value)
    if pieces_of(value):
        return None
    if isinstance(value, (str, Enum)):
        return escape(name, _value_text(value))
    return escape_json(name, _value_text(value))


def render_parts(name: str, value: Any, escape: Escape) -> Iterator[Piece]:
    """Render a field's value with parts.

    Adjacent texts are joined first and then escaped: two of them can make a mark.
    """
    content = content_of(pieces_of(value) or ())
    if isinstance(content, str):
        yield escape(name, content)
        return
    for part in content:
        yield escape(name, part.text) if isinstance(part, Text) else part


def join_pieces(pieces: Iterable[Piece]) -> str:
    """Join pieces into one text, with parts encoded between markers (`values/content/type.py`)."""
    return "".join(piece if isinstance(piece, str) else _pack_part(piece) for piece in pieces)


def _pack_part(part: Any) -> str:
    if isinstance(part, Text):
        return part.text
    return f"{PART_START}{json_text(part.format())}{PART_END}"


# -- fields


def field_list(fields: Mapping[str, SignatureField], *, expected: bool) -> str:
    """Render a numbered list of fields with type and description.

    With `expected`, the list also says what their values must look like.
    """
    lines: list[str] = []
    for number, (name, field) in enumerate(fields.items(), 1):
        line = f"{number}. `{name}` ({type_name(field.annotation)})"
        notes = [field.description, _expectation(field) if expected else ""]
        described = "; ".join(note for note in notes if note)
        lines.append(f"{line}: {described}" if described else line)
    return "\n".join(lines)


def field_description(fields: PromptFields) -> str:
    """Render the lists of inputs and outputs."""
    parts: list[str] = []
    if fields.inputs:
        parts.append(f"Your inputs are:\n{field_list(fields.inputs, expected=False)}")
    if fields.outputs:
        parts.append(f"Your outputs are:\n{field_list(fields.outputs, expected=True)}")
    return "\n\n".join(parts)


def task_description(signature: type[Signature], fields: PromptFields) -> str:
    """Render the instructions, or the default ones for these fields."""
    task = signature.plan.author_instructions
    if task is None:
        task = default_instructions(fields.inputs, fields.outputs)
    if task:
        return f"Your task:\n{task}"
    return ""


def type_name(annotation: Any) -> str:
    """Render a type as in source code: `list[str]`, `Literal['a', 'b']`, `Point`."""
    if annotation is None or annotation is NoneType:
        return "null"
    if annotation is Any:
        return "any"
    # The arguments of `Callable[[int], str]` and of `tuple[int, ...]` are not types.
    if annotation is ... or isinstance(annotation, list):
        return "..."
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in _UNIONS:
        return " | ".join(map(type_name, arguments))
    name = getattr(origin or annotation, "__name__", None) or str(annotation)
    if origin is None or not arguments:
        return name
    return f"{name}[{', '.join(map(type_name, arguments))}]"


def _expectation(field: SignatureField) -> str:
    """Describe what a value must look like beyond its type's name; empty for plain text."""
    annotation = field.annotation
    notes = [_form_of_value(field)]
    # The form of other types is their schema, which holds their limits.
    if annotation in (str, int, float) and field.metadata:
        notes += _limits(_schema(field))
    if not field.is_required or allows_none(annotation):
        notes.append("may be left out")
    return ", ".join(note for note in notes if note)


def _form_of_value(field: SignatureField) -> str:
    annotation = field.annotation
    choices = _choices(annotation)
    if choices:
        return f"exactly one of: {'; '.join(map(_value_text, choices))}"
    if isinstance(annotation, type) and annotation in _SIMPLE:
        return _SIMPLE[annotation]
    custom = Type.extract_custom_type_from_annotation(annotation)
    if custom and without_none(annotation) is custom[0] and custom[0].description():
        return custom[0].description()
    if get_origin(annotation) in _UNIONS and str in get_args(annotation):
        if set(get_args(annotation)) == {str, NoneType}:
            return "text, or null"
        return f"text as it is, or {_as_json(field)}"
    if annotation is str or annotation is Any:
        return ""
    return _as_json(field)


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [member.value for member in annotation]
    return []


def _as_json(field: SignatureField) -> str:
    schema = _schema(field)
    if schema in ({"type": "object", "additionalProperties": True}, {"type": "object"}):
        return "a JSON object"
    if schema in ({"type": "array", "items": {}}, {"type": "array"}):
        return "a JSON array"
    if schema.get("type") == "string":
        notes = ["text"]
        if "format" in schema:
            notes.append(f"in the format {schema['format']}")
        return ", ".join(notes + _limits(schema))
    if schema:
        return f"JSON that fits the schema {json_text(schema)}"
    return ""


def _limits(schema: Mapping[str, Any]) -> list[str]:
    limits = {**LIMITS, "pattern": "matching the pattern {}"}
    return [words.format(schema[key]) for key, words in limits.items() if key in schema]


def _schema(field: SignatureField) -> dict[str, Any]:
    from pydantic import PydanticUserError
    from pydantic_core import SchemaError

    try:
        return _untitled(json_schema_of(adapter_of(field)))
    except (PydanticUserError, SchemaError) as error:
        problem = str(error).splitlines()[0]
        raise SignatureError(
            f"Values of the type {type_name(field.annotation)} cannot be checked: {problem}"
        ) from error


def _untitled(schema: Any) -> Any:
    """Remove titles, most of which pydantic derives from names."""
    # `map_children` visits schemas only, so that a property that is named `title` stays.
    if is_object(schema):
        schema = {key: value for key, value in schema.items() if key != "title"}
    return map_children(schema, _untitled)
