"""`example`: the smallest value that fits a JSON Schema, where it is easy to find.

Only required properties are filled in; nothing is random.
"""

from __future__ import annotations

import math
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast
from warnings import catch_warnings, simplefilter

from ferrule.models.wires.payload import Json, count_of, list_of, mapping
from ferrule.schema.nodes import find_pointer

if TYPE_CHECKING:
    from collections.abc import Callable

_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "a@example.com",
    "hostname": "example.com",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "https://example.com",
    "uri-reference": "/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    # formats of pydantic
    "uuid4": "00000000-0000-4000-8000-000000000000",
    "ipvanyaddress": "127.0.0.1",
    "ipv4network": "127.0.0.0/8",
    "ipv6network": "::/64",
    "ipv4interface": "127.0.0.1/8",
    "ipv6interface": "::1/128",
    "zoneinfo": "UTC",
    "json-pointer": "",
    "binary": "",
    "byte": "",
}
_DEEPEST = 24
_MOST = 2000
"""The most values inside a value: a schema that contains itself twice grows exponentially."""
_LONGEST = 100_000
_HIGHEST = 1e300
_ENDING = 4
"""From this depth on, a choice takes an option that ends, such as null or a scalar."""


def example(schema: Any, *, defs: Json | None = None) -> Any:
    """A value that fits a schema.

    `defs` is the document for its references, by default the schema itself.
    """
    return _Maker(schema if defs is None else defs).value(schema, 0)


class _Maker:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _MOST

    def value(self, schema: Any, depth: int) -> Any:
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            return None  # no finite value fits, or only a huge one
        if not isinstance(schema, dict):
            return "text"  # `true` fits anything
        found = self._resolved(cast("Json", schema), 0)
        if "const" in found:
            return found["const"]
        if list_of(found.get("enum")):
            return found["enum"][0]
        if "default" in found and depth:
            return found["default"]
        for name in ("anyOf", "oneOf"):
            if list_of(found.get(name)):
                return self._chosen(found, found[name], depth)
        makers: dict[str, Callable[[], Any]] = {
            "object": lambda: self._object(found, depth),
            "array": lambda: self._array(found, depth),
            "string": lambda: _string(found),
            "integer": lambda: _number(found, whole=True),
            "number": lambda: _number(found, whole=False),
            "boolean": lambda: True,
        }
        return makers.get(_kind(found), lambda: None)()

    def _resolved(self, schema: Json, hops: int) -> Json:
        """The schema with references resolved and `allOf` merged."""
        self._left -= 1
        if self._left < 0:
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str) and hops < _DEEPEST:
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            return self._resolved(
                {**mapping(find_pointer(reference, self._root)), **beside}, hops + 1
            )
        if hops < _DEEPEST and list_of(schema.get("allOf")):
            merged: Json = {key: value for key, value in schema.items() if key != "allOf"}
            for part in schema["allOf"]:
                merged = _merged(merged, self._resolved(mapping(part), hops + 1))
            return merged
        return schema

    def _chosen(self, schema: Json, options: list[Any], depth: int) -> Any:
        rest = {key: value for key, value in schema.items() if key not in {"anyOf", "oneOf"}}
        resolved = [
            self._resolved(cast("Json", option), 0)
            for option in options
            if isinstance(option, dict)
        ]
        resolved.sort(
            key=lambda option: (
                _kind(option) == "null" if depth < _ENDING else _kind(option) in {"object", "array"}
            )
        )
        return self.value(_merged(rest, resolved[0]), depth) if resolved else None

    def _object(self, schema: Json, depth: int) -> Json:
        properties = mapping(schema.get("properties"))
        names = [name for name in list_of(schema.get("required")) if isinstance(name, str)]
        least = count_of(schema.get("minProperties"))
        names += [name for name in properties if name not in names][: max(0, least - len(names))]
        names += [f"key{n}" for n in range(min(_MOST, max(0, least - len(names))))]
        extra = schema.get("additionalProperties")
        return {
            name: self.value(
                properties.get(name, extra if isinstance(extra, dict) else True), depth + 1
            )
            for name in names
        }

    def _array(self, schema: Json, depth: int) -> list[Any]:
        fixed = list_of(schema.get("prefixItems"))
        least = count_of(schema.get("minItems")) if "minItems" in schema else len(fixed)
        items = [
            self.value(fixed[n] if n < len(fixed) else schema.get("items", True), depth + 1)
            for n in range(min(least, _MOST))
        ]
        return self._varied(schema, items) if schema.get("uniqueItems") else items

    def _varied(self, schema: Json, items: list[Any]) -> list[Any]:
        inner = self._resolved(mapping(schema.get("items")), 0)
        if list_of(inner.get("enum")):
            return inner["enum"][: len(items)]
        return [_numbered(item, number) for number, item in enumerate(items)]


def _numbered(item: Any, number: int) -> Any:
    """The item, made different from equal ones by its number."""
    if isinstance(item, str):
        return f"{item}{number}"
    if type(item) in {int, float}:
        return item + number
    return item


def _merged(first: Json, second: Json) -> Json:
    both = {**first, **second}
    if "properties" in first and "properties" in second:
        both["properties"] = {**mapping(first["properties"]), **mapping(second["properties"])}
    if "required" in first and "required" in second:
        needed = list_of(first["required"])
        both["required"] = [
            *needed,
            *(name for name in list_of(second["required"]) if name not in needed),
        ]
    return both


def _kind(schema: Json) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = cast("list[Any]", kind)
        kind = next((name for name in kinds if name != "null"), "null")
    if isinstance(kind, str):
        return kind
    if "properties" in schema or "required" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    return "number" if "minimum" in schema or "maximum" in schema else "string"


def _number(schema: Json, *, whole: bool) -> int | float:
    names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
    low, over, high, under, given = [_limit(schema.get(name)) for name in names]
    step = given or (1 if whole else None)
    floor = max((bound for bound in (low, over) if bound is not None), default=None)
    ceiling = min((bound for bound in (high, under) if bound is not None), default=None)

    def fits(value: float) -> bool:
        is_high_enough = (low is None or value >= low) and (over is None or value > over)
        return (
            is_high_enough and (high is None or value <= high) and (under is None or value < under)
        )

    guesses: list[int | float] = [1, 0]
    if step and floor is not None:
        guesses += [math.ceil(floor / step) * step, (math.floor(floor / step) + 1) * step]
    if step and ceiling is not None:
        guesses += [math.floor(ceiling / step) * step, (math.ceil(ceiling / step) - 1) * step]
    if floor is not None:
        guesses += [
            floor,
            floor + 1,
            floor + 0.5,
            (floor + (ceiling if ceiling is not None else floor + 2)) / 2,
        ]
    if ceiling is not None:
        guesses += [ceiling, ceiling - 1]
    if step:
        guesses = [
            guess
            for guess in [step, *guesses]
            if math.isclose(guess / step, round(guess / step), abs_tol=1e-9)
        ]
    found = next((guess for guess in guesses if fits(guess)), 1)
    return int(found) if whole else found


def _limit(value: Any) -> int | float | None:
    return value if type(value) in {int, float} and abs(value) < _HIGHEST else None


def is_free(schema: Json, text: str) -> bool:
    """Whether a string schema has no pattern or format, and its length limits fit the text."""
    most = schema.get("maxLength")
    fits = count_of(schema.get("minLength")) <= len(text) and (
        type(most) is not int or len(text) <= most
    )
    return fits and "pattern" not in schema and str(schema.get("format")) not in _FORMATS


def _string(schema: Json) -> str:
    if str(schema.get("format")) in _FORMATS:
        return _FORMATS[str(schema["format"])]
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        made = _matching(pattern)
        if made is not None:
            return made
    least, most = min(count_of(schema.get("minLength")), _LONGEST), schema.get("maxLength")
    text = "text" * (least // len("text") + 1)
    return (
        text[: max(least, min(len(text), int(most)))]
        if type(most) is int
        else text[: max(least, len("text"))]
    )


def _matching(pattern: str) -> str | None:
    """A text that matches a regular expression, or None if it is not easy to find."""
    try:
        with catch_warnings():
            simplefilter("ignore")  # warnings about the pattern are for the schema's author
            made = _spelled(import_module("re._parser").parse(pattern))
            return made if re.search(pattern, made) else None
    except (re.error, ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


_CATEGORIES = {
    "CATEGORY_DIGIT": "0",
    "CATEGORY_WORD": "a",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_DIGIT": "a",
    "CATEGORY_NOT_SPACE": "a",
}
_MOST_REPEATS = 1000


def _spelled(parsed: Any) -> str:
    return "".join(_piece(str(operation), argument) for operation, argument in parsed)


def _piece(operation: str, argument: Any) -> str:
    match operation:
        case "LITERAL":
            return chr(argument)
        case "NOT_LITERAL":
            return "a" if argument != ord("a") else "b"
        case "ANY":
            return "a"
        case "AT":
            return ""
        case "IN":
            return _member(argument)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, _, inner = argument
            if least > _MOST_REPEATS:
                raise ValueError(least)
            return _spelled(inner) * least
        case "SUBPATTERN":
            return _spelled(argument[-1])
        case "BRANCH":
            return _spelled(argument[1][0])
        case "ASSERT" | "ASSERT_NOT":
            return ""
        case _:
            raise ValueError(operation)


def _member(members: Any) -> str:
    """A character in a regular expression's set."""
    first, argument = members[0]
    match str(first):
        case "NEGATE":
            inside = "".join(
                _piece("LITERAL", each) for kind, each in members[1:] if str(kind) == "LITERAL"
            )
            return next(character for character in "a0-_ .x" if character not in inside)
        case "RANGE":
            return chr(argument[0])
        case "CATEGORY":
            return _CATEGORIES[str(argument)]
        case _:
            return chr(argument)
