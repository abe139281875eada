"""Named repairs of arguments that a validator refused.

A repair converts a value only if the schema refuses its type and admits the type that it spells
(`"7"`, `"[1]"`); a doubtful value stays unchanged, and is refused. No repair drops anything that
the model wrote, and none completes truncated JSON.
"""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any

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
"""The most texts that may decode to nothing useful. After that, the arguments will hardly be accepted, and no more texts are decoded."""


def decode_object(value: Any, notes: list[str]) -> Any:
    """All arguments as an object. None and blank text give an empty one; JSON text is decoded."""
    if value is None:
        return {}
    if isinstance(value, str):
        if not value.strip():
            return {}
        found, made, _ = decode_text(value, frozenset({"object", "string"}))
        if made and isinstance(found, str):  # encoded twice
            found, made, _ = decode_text(found, frozenset({"object"}))
        if made and isinstance(found, dict):
            notes.append("doubly_encoded")
            return found  # pyright: ignore[reportUnknownVariableType]
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
    made: dict[str, Any] = {}
    properties: Schema = schema.get("properties", {})
    more: Any = other_properties(schema)
    required: Any = schema.get("required") or ()
    repairs = _Repairs(schema, notes)
    for name, value in args.items():
        each: Any = properties.get(name, more) if isinstance(name, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]  models write anything
        if (
            value is None
            and name in properties
            and name not in required
            and not _admits(each, schema, "null")
        ):
            notes.append("null_as_default")
            continue
        made[name] = repairs.value(value, [each], 0) if is_object(each) else value
    return made


def _admits(schema: Any, root: Schema, kind: str) -> bool:
    found = admitted_types(schema, root)
    return found is None or kind in found


def decode_text(text: str, wanted: frozenset[str]) -> tuple[Any, bool, bool]:
    """The value of JSON or a Python literal in a text, whether its type is wanted, and whether it was a Python literal."""
    if len(text) > _LONGEST or not text.strip():
        return None, False, False
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        pass
    else:
        return found, _is_one_of(found, wanted), False
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None, False, False
    # Python reads `1,2` as a tuple, but it would be a guess that the model meant a list.
    if not _is_plain(found) or (is_sequence(found) and text.strip()[0] not in "[("):
        return None, False, False
    return found, _is_one_of(found, wanted), True


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _is_one_of(value: Any, wanted: frozenset[str]) -> bool:
    if (
        isinstance(value, float) and value - value != 0.0
    ):  # `1e999`: not converted, so that the problem shows the model's own text
        return False
    return fits_type(value, wanted)


def _is_plain(value: Any) -> bool:
    """Whether a Python literal has only values that JSON has."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if is_object(each):
            if not all(isinstance(key, str) for key in each):
                return False
            waiting.extend(each.values())
        elif is_sequence(each):
            waiting.extend(each)
        elif json_type(each) == "other":
            return False
    return True


def coercions(given: Any, taken: Any) -> Iterator[str]:
    """The names of the coercions of texts and numbers that pydantic made, in lists and objects too."""
    waiting: list[tuple[Any, Any]] = [(given, taken)]
    while waiting:
        given, taken = waiting.pop()
        if isinstance(given, str):
            if isinstance(taken, (bool, int, float)):
                yield "string_to_boolean" if isinstance(taken, bool) else "string_to_number"
        elif (
            isinstance(taken, bool)
            and isinstance(given, (int, float))
            and not isinstance(given, bool)
        ):
            yield "number_to_boolean"
        elif is_list(given) and is_list(taken):
            waiting.extend(zip(given, taken, strict=False))
        elif is_object(given) and is_object(taken):
            waiting.extend((value, taken[name]) for name, value in given.items() if name in taken)


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
        if (
            kind in {"integer", "number"}
            and "string" in admitted
            and not admitted & {"integer", "number"}
        ):
            self._notes.append("number_to_string")
            return json.dumps(value)
        if is_list(value) and "array" in admitted:
            by_place = any(is_object(each) and "prefixItems" in each for each in spread)
            items = [item_schemas(spread, i) for i in range(len(value))] if by_place else None
            plain = item_schemas(spread, None)
            return [
                self.value(each, items[i] if items else plain, depth + 1)
                for i, each in enumerate(value)
            ]
        if is_object(value) and "object" in admitted:
            return {
                name: self.value(each, property_schemas(spread, name), depth + 1)
                for name, each in value.items()
            }
        return value

    def _decoded(self, text: str, spread: list[Any], admitted: frozenset[str], depth: int) -> Any:
        if not self._left:
            return text
        made, is_wanted, is_python = decode_text(text, admitted)
        if not is_wanted:
            self._left -= 1
            return text
        self._notes.append("python_literal" if is_python else _NOTES[json_type(made)])
        return self.value(made, spread, depth + 1)
