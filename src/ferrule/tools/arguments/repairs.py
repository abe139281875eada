"""Named repairs of arguments that a validator refused.

A repair converts a value only if the schema refuses its type and admits the type that it spells
(`"7"`, `"[1]"`); a doubtful value stays unchanged, and is refused. No repair drops anything that
the model wrote, and none completes truncated JSON.
"""

from __future__ import annotations

import ast
import json
import math
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.written import number_text, read_float
from ferrule.schema.nodes import (
    Schema,
    SharedAlternatives,
    admitted_types,
    fits_type,
    is_list,
    is_object,
    is_sequence,
    item_schemas,
    json_type,
    other_properties,
    property_schemas,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

WRAPPERS = frozenset({"arguments", "args", "parameters", "params", "input", "inputs", "kwargs"})
"""Keys in which models wrap all arguments."""
_DEEPEST = 60
_LONGEST = 1_000_000
"""Characters. A longer text is not decoded."""
_MOST_DOUBTFUL = 1_000
"""The most texts that may decode to nothing useful.

After that, the arguments will hardly be accepted, and no more texts are decoded."""


def decode_object(value: Any, notes: list[str]) -> Any:
    """All arguments as an object. None and blank text give an empty one; JSON text is decoded."""
    if value is None:
        return {}
    if isinstance(value, str):
        if not value.strip():
            return {}
        decoded, is_wanted, _ = decode_text(value, frozenset({"object", "string"}))
        if is_wanted and isinstance(decoded, str):  # encoded twice
            decoded, is_wanted, _ = decode_text(decoded, frozenset({"object"}))
        if is_wanted and isinstance(decoded, dict):
            notes.append("doubly_encoded")
            return cast("Any", decoded)
    return value


def unwrap(args: dict[str, Any], tool: str, notes: list[str]) -> dict[str, Any] | None:
    """The arguments inside a single wrapping key; None if there is none."""
    if len(args) != 1:
        return None
    [(key, inside)] = args.items()
    if key not in WRAPPERS and key != tool:
        return None
    inside = decode_object(inside, notes)
    if not isinstance(inside, dict):
        return None
    notes.append("single_key_wrapper")
    return inside  # pyright: ignore[reportUnknownVariableType]


def repair(args: dict[str, Any], schema: Schema, notes: list[str]) -> dict[str, Any]:
    """Convert every value that spells a value of another type; `_NOTES` names the repairs."""
    properties: Schema = schema.get("properties", {})
    other: Any = other_properties(schema)
    required: Any = schema.get("required") or ()
    repairs = _Repairs(schema, notes)
    repaired: dict[Any, Any] = {}
    for name, value in cast("dict[Any, Any]", args).items():  # models write anything
        subschema: Any = None
        if isinstance(name, str):
            subschema = properties.get(name, other)
        is_optional = name in properties and name not in required
        if value is None and is_optional and not _admits(subschema, schema, "null"):
            # Models write null for an argument that they leave out.
            notes.append("null_as_default")
        elif is_object(subschema):
            repaired[name] = repairs.value(value, [subschema], 0)
        else:
            repaired[name] = value
    return repaired


def _admits(schema: Any, root: Schema, kind: str) -> bool:
    types = admitted_types(schema, root)
    return types is None or kind in types


def decode_text(text: str, wanted: frozenset[str]) -> tuple[Any, bool, bool]:
    """Decode JSON or a Python literal in a text.

    Returns the value, whether its type is wanted, and whether it was a Python literal.
    """
    if len(text) > _LONGEST or not text.strip():
        return None, False, False
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=read_float)
    except (ValueError, RecursionError):
        pass
    else:
        return value, _is_one_of(value, wanted), False
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None, False, False
    # Python reads `1,2` as a tuple, but it would be a guess that the model meant a list.
    is_bare_tuple = is_sequence(value) and text.strip()[0] not in "[("
    if is_bare_tuple or not _is_plain(value):
        return None, False, False
    return value, _is_one_of(value, wanted), True


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _is_one_of(value: Any, wanted: frozenset[str]) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return False  # `1e999`: not converted, so that the problem shows the model's own text
    return fits_type(value, wanted)


def _is_plain(value: Any) -> bool:
    """Whether a Python literal has only values that JSON has."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if is_object(item):
            if not all(isinstance(key, str) for key in item):
                return False
            waiting.extend(item.values())
        elif is_sequence(item):
            waiting.extend(item)
        elif json_type(item) == "other":
            return False
    return True


def coercions(original: Any, coerced: Any) -> Iterator[str]:
    """The names of the coercions that pydantic made of texts and numbers, in containers too."""
    waiting: list[tuple[Any, Any]] = [(original, coerced)]
    while waiting:
        before, after = waiting.pop()
        if isinstance(before, str):
            if isinstance(after, bool):
                yield "string_to_boolean"
            elif isinstance(after, (int, float)):
                yield "string_to_number"
        elif isinstance(after, bool) and not isinstance(before, bool):
            if isinstance(before, (int, float)):
                yield "number_to_boolean"
        elif is_list(before) and is_list(after):
            waiting.extend(zip(before, after, strict=False))
        elif is_object(before) and is_object(after):
            for name, value in before.items():
                if name in after:
                    waiting.append((value, after[name]))


_NOTES = {
    "object": "stringified_object",
    "array": "stringified_list",
    "integer": "string_to_number",
    "number": "string_to_number",
    "boolean": "string_to_boolean",
    "null": "string_to_null",
}


class _Repairs:
    """The repair of one call's arguments."""

    def __init__(self, root: Schema, notes: list[str]) -> None:
        self._root = root
        self._notes = notes
        self._left = _MOST_DOUBTFUL
        self._forms = SharedAlternatives(root)

    def value(self, value: Any, schemas: list[Any], depth: int) -> Any:
        """Repair a value that must fit one of these schemas."""
        spread, admitted = self._forms(schemas)
        if not admitted or depth > _DEEPEST:
            return value
        kind = json_type(value)
        if kind == "string" and "string" not in admitted:
            return self._decoded(value, spread, admitted, depth)
        wants_text = "string" in admitted and admitted.isdisjoint({"integer", "number"})
        if kind in {"integer", "number"} and wants_text:
            self._notes.append("number_to_string")
            return number_text(value)
        if is_list(value) and "array" in admitted:
            return self._items(value, spread, depth)
        if is_object(value) and "object" in admitted:
            return {
                name: self.value(item, property_schemas(spread, name), depth + 1)
                for name, item in value.items()
            }
        return value

    def _items(self, values: list[Any], spread: list[Any], depth: int) -> list[Any]:
        # Only with `prefixItems` do the schemas of the items differ.
        has_prefix = any(is_object(branch) and "prefixItems" in branch for branch in spread)
        common = item_schemas(spread, None)
        repaired: list[Any] = []
        for i, value in enumerate(values):
            schemas = common
            if has_prefix:
                schemas = item_schemas(spread, i)
            repaired.append(self.value(value, schemas, depth + 1))
        return repaired

    def _decoded(self, text: str, spread: list[Any], admitted: frozenset[str], depth: int) -> Any:
        if not self._left:
            return text
        value, is_wanted, is_python = decode_text(text, admitted)
        if not is_wanted:
            self._left -= 1
            return text
        if is_python:
            self._notes.append("python_literal")
        else:
            self._notes.append(_NOTES[json_type(value)])
        return self.value(value, spread, depth + 1)
