"""Describe JSON schemas to models: one line for a whole schema, a phrase for one expected value.

`{"query": string, "limit": integer 1-50 = 10, "tags": [string] = []}`, and `a list of strings`.
"""

from __future__ import annotations

from typing import Any

from ferrule.encoding.encode import escape_surrogates, json_text
from ferrule.encoding.pattern import pattern
from ferrule.schema.nodes import Schema, alternatives, is_list, is_object, resolve_reference

LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} properties",
    "maxProperties": "at most {} properties",
}
"""Limits in words, by keyword."""
_DEEPEST = 6
_LONGEST = 80
_MOST = 1_000
"""The most schemas in one line. Beyond that, references are only named: definitions that refer to each other have no end."""
_EXACT = 2**53
"""Above this, a float may not be an exact integer."""
_MARKER = pattern(r"\[\[(?=\s*##)")


class _Above:
    """The path from the outermost schema: its references, and `""` for each list and object. Also counts the schemas described."""

    __slots__ = ("described", "steps")

    def __init__(self, steps: tuple[str, ...] = (), described: list[None] | None = None) -> None:
        self.steps = steps
        self.described = described if described is not None else []

    def then(self, step: str) -> _Above:
        return _Above((*self.steps, step), self.described)


def describe_schema(schema: Any) -> str:
    """Describe a schema in one short line."""
    return _form(schema, schema, _Above())


def describe_expected(schema: Any, root: Schema) -> str:
    """Describe an expected value, to follow the word "expected": `an integer 1-50`, `a list of strings`, `one of "a", "b"`."""
    above = _Above()
    found = list(
        dict.fromkeys(_phrase(each, root, 0, above) for each in alternatives(schema, root)),
    )
    return " or ".join(found) if "any value" not in found else "any value"


def shorten_json(value: object) -> str:
    """A value as JSON, shortened."""
    text = escape_surrogates(json_text(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}… ({len(text)} characters)"


def escape_markers(text: str) -> str:
    """Change a text so that it cannot imitate a marker of a prompt."""
    return _MARKER.sub("[ [", text) if "[[" in text else text


# -- the short line
# -----------------------------------------------------------------------------------------------


def _form(schema: Any, root: Schema, above: _Above) -> str:
    reference = schema.get("$ref") if is_object(schema) else None
    if isinstance(reference, str):
        if reference in above.steps or len(above.described) > _MOST:
            return reference.rpartition("/")[2] or "the same again"
        above = above.then(reference)
    above.described.append(None)
    node = resolve_reference(schema, root)
    if not is_object(node):
        return "nothing" if node is False else "any"
    default = f" = {shorten_json(node['default'])}" if "default" in node else ""
    return _form_of(node, root, above) + default


def _form_of(node: Schema, root: Schema, above: _Above) -> str:
    if "const" in node:
        return shorten_json(node["const"])
    if is_list(node.get("enum")):
        return " | ".join(shorten_json(each) for each in node["enum"])
    for key in ("anyOf", "oneOf"):
        if is_list(node.get(key)):
            return " or ".join(dict.fromkeys(_form(each, root, above) for each in node[key]))
    if is_list(node.get("allOf")) and "type" not in node:
        return " and ".join(dict.fromkeys(_form(each, root, above) for each in node["allOf"]))
    kind: Any = node.get("type", "object" if "properties" in node else None)
    if is_list(kind):
        return " or ".join(_form_of({**node, "type": each}, root, above) for each in kind)
    return _form_of_kind(kind, node, root, above)


def _form_of_kind(kind: Any, node: Schema, root: Schema, above: _Above) -> str:
    match kind:
        case "object":
            return _object(node, root, above)
        case "array":
            return _array(node, root, above)
        case "integer" | "number":
            return f"{kind}{_bounds(node)}"
        case "string":
            return f"string{_string_limits(node)}"
        case str():
            return kind
        case _:
            return "any"


def _object(node: Schema, root: Schema, above: _Above) -> str:
    properties: Any = node.get("properties")
    more: Any = node.get("additionalProperties")
    if len(above.steps) > _DEEPEST or (not properties and not is_object(more)):
        return "{}" if properties == {} and more in (None, False) else "object"
    named: Any = node.get("required")
    required = {each for each in named if isinstance(each, str)} if is_list(named) else ()
    entries: list[str] = []
    for name, each in properties.items() if is_object(properties) else ():
        said = _form(each, root, above.then(""))
        # Without the mark, an optional entry without a default would read like a required one.
        mark = "" if name in required or (is_object(each) and "default" in each) else "?"
        entries.append(f"{shorten_json(name)}{mark}: {said}")
    if is_object(more):
        entries.append(f"any other name: {_form(more, root, above.then(''))}")
    return "{" + ", ".join(entries) + "}"


def _array(node: Schema, root: Schema, above: _Above) -> str:
    if len(above.steps) > _DEEPEST:
        return "list"
    inside = above.then("")
    places: Any = node.get("prefixItems")
    if is_list(places):
        return "[" + ", ".join(_form(each, root, inside) for each in places) + "]"
    items = node.get("items")
    held = _form(items, root, inside) if is_object(items) else "any"
    return f"[{held}]{_counts(node, 'minItems', 'maxItems', 'items')}"


def _bounds(node: Schema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    said: list[str] = []
    if isinstance(low, int | float) and isinstance(high, int | float):
        said.append(
            f"{format_number(low)}-{format_number(high)}"
            if low >= 0
            else f"from {format_number(low)} to {format_number(high)}",
        )
    else:
        said += [
            f"{sign} {format_number(bound)}"
            for sign, bound in ((">=", low), ("<=", high))
            if isinstance(bound, int | float)
        ]
    for sign, key in ((">", "exclusiveMinimum"), ("<", "exclusiveMaximum")):
        if isinstance(node.get(key), int | float):
            said.append(f"{sign} {format_number(node[key])}")
    if isinstance(node.get("multipleOf"), int | float):
        said.append(f"in steps of {format_number(node['multipleOf'])}")
    return "".join(f" {each}" for each in said)


def format_number(value: float) -> str:
    """A number as text, without a `.0`."""
    return shorten_json(
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
        else value,
    )


def _string_limits(node: Schema) -> str:
    said = _counts(node, "minLength", "maxLength", "characters")
    if isinstance(node.get("format"), str):
        said += f" ({node['format']})"
    if isinstance(node.get("pattern"), str):
        said += f" matching {shorten_json(node['pattern'])}"
    return said


def _counts(node: Schema, least: str, most: str, what: str) -> str:
    low, high = node.get(least), node.get(most)
    if isinstance(low, int) and isinstance(high, int):
        return f" of {low} {what}" if low == high else f" of {low}-{high} {what}"
    if isinstance(low, int) and low > 0:
        return f" of at least {low} {what}"
    return f" of at most {high} {what}" if isinstance(high, int) else ""


# -- the phrase
# ---------------------------------------------------------------------------------------------------

_ONE = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "null": "null",
}
_MANY = {
    "integer": "integers",
    "number": "numbers",
    "string": "strings",
    "boolean": "booleans",
    "array": "lists",
    "object": "objects",
}


def _phrase(node: Any, root: Schema, depth: int, above: _Above) -> str:
    if not is_object(node):
        return "any value"
    if "const" in node:
        return shorten_json(node["const"])
    if is_list(node.get("enum")):
        return "one of " + ", ".join(shorten_json(each) for each in node["enum"])
    kind: Any = node.get("type")
    if is_list(kind):
        return " or ".join(_phrase({**node, "type": each}, root, depth, above) for each in kind)
    match kind:
        case "array":
            return f"a list{_held(node, root, depth, above)}"
        case "object":
            said = _object(node, root, above)
            return "an object" if said == "object" else f"an object {said}"
        case "integer" | "number":
            return _ONE[kind] + _bounds(node)
        case "string":
            return _ONE[kind] + _string_limits(node)
        case str():
            return _ONE.get(kind, "any value")
        case _:
            return "any value"


def _held(node: Schema, root: Schema, depth: int, above: _Above) -> str:
    """` of strings`, ` of lists of integers`; empty for a list of any values."""
    if is_list(node.get("prefixItems")):
        return f" {_array(node, root, above)}"
    items = resolve_reference(node.get("items"), root)
    if not is_object(items) or depth > _DEEPEST:
        return ""
    kind = items.get("type")
    limits = _counts(node, "minItems", "maxItems", "items").replace(" of ", ", ", 1)
    if isinstance(kind, str) and kind in _MANY and "enum" not in items and "const" not in items:
        return f" of {_MANY[kind]}{_held(items, root, depth + 1, above) if kind == 'array' else ''}{limits}"
    said = _form(items, root, above)
    return f" of {said}{limits}" if said != "any" else limits
