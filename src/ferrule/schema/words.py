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
"""The most levels of lists and objects that are described."""
_LONGEST = 80
"""The most characters of a value."""
_MOST = 1_000
"""The most schemas in one line. Beyond that, references are only named.

Definitions that refer to each other have no end.
"""
_EXACT = 2**53
"""Above this, a float may not be an exact integer."""
_MARKER = pattern(r"\[\[(?=\s*##)")


class _Above:
    """The path from the outermost schema, and a count of the schemas described.

    The path has the references, and `""` for each list and object.
    """

    __slots__ = ("described", "steps")

    def __init__(self, steps: tuple[str, ...], described: list[None]) -> None:
        self.steps = steps
        self.described = described
        """Shared by all paths of one description: the limit is for the whole, not for a branch."""

    def then(self, step: str) -> _Above:
        """The path one step further inside."""
        return _Above((*self.steps, step), self.described)


def describe_schema(schema: Any) -> str:
    """Describe a schema in one short line."""
    return _form(schema, schema, _Above((), []))


def describe_expected(schema: Any, root: Schema) -> str:
    """Describe an expected value, to follow the word "expected".

    For example `an integer 1-50`, `a list of strings`, `one of "a", "b"`.
    """
    above = _Above((), [])
    phrases = [_phrase(form, root, 0, above) for form in alternatives(schema, root)]
    if "any value" in phrases:
        return "any value"
    return " or ".join(dict.fromkeys(phrases))


def shorten_json(value: object) -> str:
    """A value as JSON, shortened."""
    text = escape_surrogates(json_text(value))
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST - 1]}… ({len(text)} characters)"


def escape_markers(text: str) -> str:
    """Change a text so that it cannot imitate a marker of a prompt."""
    return _MARKER.sub("[ [", text)


# -- the short line


def _form(schema: Any, root: Schema, above: _Above) -> str:
    if is_object(schema) and isinstance(schema.get("$ref"), str):
        reference: str = schema["$ref"]
        if reference in above.steps or len(above.described) > _MOST:
            return reference.rpartition("/")[2] or "the same again"
        above = above.then(reference)
    above.described.append(None)
    node = resolve_reference(schema, root)
    if node is False:
        return "nothing"
    if not is_object(node):
        return "any"
    form = _form_of(node, root, above)
    if "default" in node:
        form += f" = {shorten_json(node['default'])}"
    return form


def _form_of(node: Schema, root: Schema, above: _Above) -> str:
    if "const" in node:
        return shorten_json(node["const"])
    if is_list(node.get("enum")):
        return " | ".join(shorten_json(value) for value in node["enum"])
    for key in ("anyOf", "oneOf"):
        if is_list(node.get(key)):
            forms = [_form(branch, root, above) for branch in node[key]]
            return " or ".join(dict.fromkeys(forms))
    if is_list(node.get("allOf")) and "type" not in node:
        forms = [_form(part, root, above) for part in node["allOf"]]
        return " and ".join(dict.fromkeys(forms))
    kind: Any = node.get("type")
    if "type" not in node and "properties" in node:
        kind = "object"
    if is_list(kind):
        return " or ".join(_form_of({**node, "type": name}, root, above) for name in kind)
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
        if properties == {} and more in (None, False):
            return "{}"
        return "object"
    required: set[str] = set()  # a set: an object may require thousands of properties
    if is_list(node.get("required")):
        required = {name for name in node["required"] if isinstance(name, str)}
    entries: list[str] = []
    if is_object(properties):
        for name, part in properties.items():
            has_default = is_object(part) and "default" in part
            # Without the mark, an optional entry without a default would read like a required one.
            mark = ""
            if name not in required and not has_default:
                mark = "?"
            entries.append(f"{shorten_json(name)}{mark}: {_form(part, root, above.then(''))}")
    if is_object(more):
        entries.append(f"any other name: {_form(more, root, above.then(''))}")
    return "{" + ", ".join(entries) + "}"


def _array(node: Schema, root: Schema, above: _Above) -> str:
    if len(above.steps) > _DEEPEST:
        return "list"
    inside = above.then("")
    prefix: Any = node.get("prefixItems")
    if is_list(prefix):
        return "[" + ", ".join(_form(part, root, inside) for part in prefix) + "]"
    form = "any"
    if is_object(node.get("items")):
        form = _form(node["items"], root, inside)
    return f"[{form}]{_counts(node, 'minItems', 'maxItems', 'items')}"


def _bounds(node: Schema) -> str:
    """The bounds of a number: ` 1-50`, ` >= 0 in steps of 5`."""
    low, high = node.get("minimum"), node.get("maximum")
    bounds: list[str] = []
    if isinstance(low, int | float) and isinstance(high, int | float):
        lowest, highest = format_number(low), format_number(high)
        if low >= 0:
            bounds.append(f"{lowest}-{highest}")
        else:  # a dash before a negative number would be misread
            bounds.append(f"from {lowest} to {highest}")
    elif isinstance(low, int | float):
        bounds.append(f">= {format_number(low)}")
    elif isinstance(high, int | float):
        bounds.append(f"<= {format_number(high)}")
    for words, key in (
        (">", "exclusiveMinimum"),
        ("<", "exclusiveMaximum"),
        ("in steps of", "multipleOf"),
    ):
        if isinstance(node.get(key), int | float):
            bounds.append(f"{words} {format_number(node[key])}")
    return "".join(f" {bound}" for bound in bounds)


def format_number(value: float) -> str:
    """A number as text, without a `.0`."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        value = int(value)
    return shorten_json(value)


def _string_limits(node: Schema) -> str:
    limits = _counts(node, "minLength", "maxLength", "characters")
    if isinstance(node.get("format"), str):
        limits += f" ({node['format']})"
    if isinstance(node.get("pattern"), str):
        limits += f" matching {shorten_json(node['pattern'])}"
    return limits


def _counts(node: Schema, least: str, most: str, what: str) -> str:
    """How many there may be: ` of 2-3 items`; empty without a limit."""
    low, high = node.get(least), node.get(most)
    if isinstance(low, int) and isinstance(high, int):
        if low == high:
            return f" of {low} {what}"
        return f" of {low}-{high} {what}"
    if isinstance(low, int) and low > 0:
        return f" of at least {low} {what}"
    if isinstance(high, int):
        return f" of at most {high} {what}"
    return ""


# -- the phrase

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
        return "one of " + ", ".join(shorten_json(value) for value in node["enum"])
    kind: Any = node.get("type")
    if is_list(kind):
        phrases = [_phrase({**node, "type": name}, root, depth, above) for name in kind]
        return " or ".join(phrases)
    match kind:
        case "array":
            return f"a list{_items(node, root, depth, above)}"
        case "object":
            form = _object(node, root, above)
            if form == "object":
                return "an object"
            return f"an object {form}"
        case "integer" | "number":
            return _ONE[kind] + _bounds(node)
        case "string":
            return _ONE[kind] + _string_limits(node)
        case str():
            return _ONE.get(kind, "any value")
        case _:
            return "any value"


def _items(node: Schema, root: Schema, depth: int, above: _Above) -> str:
    """` of strings`, ` of lists of integers`; empty for a list of any values."""
    if is_list(node.get("prefixItems")):
        return f" {_array(node, root, above)}"
    items = resolve_reference(node.get("items"), root)
    if not is_object(items) or depth > _DEEPEST:
        return ""
    limits = _counts(node, "minItems", "maxItems", "items").replace(" of ", ", ", 1)
    kind = items.get("type")
    if isinstance(kind, str) and kind in _MANY and not items.keys() & {"enum", "const"}:
        inside = ""
        if kind == "array":
            inside = _items(items, root, depth + 1, above)
        return f" of {_MANY[kind]}{inside}{limits}"
    form = _form(items, root, above)
    if form == "any":
        return limits
    return f" of {form}{limits}"
