"""Explain the errors of pydantic in words that a model can act on.

pydantic names a place by its own labels: the branch of a union, the name of a validator. A model
knows none of these, so paths are walked through the arguments, and steps that lead nowhere are
labels (see `schema/explain.py` for what a problem is).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from ferrule.encoding.encode import escape_surrogates
from ferrule.schema.explain import (
    MOST_PROBLEMS,
    Path,
    Problem,
    dotted_path,
    format_bound,
    missing_argument,
)
from ferrule.schema.nodes import Schema, is_list, is_object, is_sequence, resolve_reference
from ferrule.schema.words import describe_expected, shorten_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails, ValidationError

_MISSING = object()
_KINDS_OF_TYPES = ("_type", "_parsing", "_error", "enum", "_size", "_from_float")
"""The ends of pydantic's names for values of the wrong type or form."""
_TEXTS = {
    "greater_than_equal": "is under the minimum {ge}",
    "less_than_equal": "is over the maximum {le}",
    "greater_than": "must be greater than {gt}",
    "less_than": "must be less than {lt}",
    "multiple_of": "is not a multiple of {multiple_of}",
    "string_too_short": "has fewer than {min_length} characters",
    "string_too_long": "has more than {max_length} characters",
    "string_pattern_mismatch": "does not match the pattern {pattern}",
    "finite_number": "is not a finite number",
    "decimal_max_digits": "has more than {max_digits} digits",
    "decimal_max_places": "has more than {decimal_places} decimal places",
}


def explain_pydantic(
    error: ValidationError, args: Mapping[str, Any], schema: Schema, names: Mapping[str, str]
) -> list[Problem]:
    """The problems in a pydantic error, one for each place.

    A union reports an error for each of its branches; several branches become one problem, which
    says what the whole union takes.
    """
    details = error.errors(include_url=False, include_context=True)[:MOST_PROBLEMS]
    labels = [_label(detail, args) for detail in details]
    texts: dict[Path, list[str]] = {}
    for detail, (path_of_union, label) in zip(details, labels, strict=True):
        branches = {other for other in labels if other[0] == path_of_union}
        if label is not None and len(branches) > 1:
            path = path_of_union
            subschema = _schema_at(path, schema, names)
            text = _expected(subschema, schema, reduce(_inside, path, args))
        else:
            path = _path_without_labels(detail, args)
            text = _explain(detail, _schema_at(path, schema, names), schema)
        texts_of_place = texts.setdefault(path, [])
        if text not in texts_of_place:
            texts_of_place.append(text)
    return [
        (dotted_path(path), text)
        for path, texts_of_place in texts.items()
        for text in texts_of_place
    ]


def _inside(value: Any, step: str | int) -> Any:
    """The value one step further; `_MISSING` if there is none."""
    if is_object(value):
        if step in value:
            return value[step]
        # pydantic may have turned a key into text or a number: keys are compared as text.
        for key, item in value.items():
            if type(key) is not type(step) and str(key) == str(step):
                return item
        return _MISSING
    if is_sequence(value) and isinstance(step, int):
        if step >= len(value):
            return _MISSING
        return value[step]
    if isinstance(step, str) and isinstance(value, BaseModel):
        return getattr(value, step, _MISSING)
    return _MISSING


def _label(detail: ErrorDetails, args: Any) -> tuple[Path, str | int | None]:
    """The path up to the first step that is the label of a union, and that label."""
    value, path = args, detail["loc"]
    steps = path
    if detail["type"] == "missing":
        # The last step to a missing value leads nowhere, too, but is not a label.
        steps = path[:-1]
    for i, step in enumerate(steps):
        value = _inside(value, step)
        if value is _MISSING:
            return path[:i], step
    return path, None


def _path_without_labels(detail: ErrorDetails, args: Any) -> Path:
    path: list[str | int] = []
    value: Any = args
    steps = detail["loc"]
    for i, step in enumerate(steps):
        inside = _inside(value, step)
        if inside is not _MISSING:
            path.append(step)
            value = inside
        elif i == len(steps) - 1 and detail["type"] == "missing":
            path.append(step)
    return tuple(path)


def _explain(detail: ErrorDetails, subschema: Any, root: Schema) -> str:
    """The text of one error; `subschema` is the schema of its place."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    message = escape_surrogates(detail["msg"])
    if kind == "missing":
        _, text = missing_argument("", subschema, root)
        return text
    if detail["loc"][-1:] == ("[key]",):  # the schema at this place is that of the values
        return f"the name {shorten_json(value)} does not fit: {message}"
    if kind in {"extra_forbidden", "invalid_key"}:
        return "there is no such argument"
    if kind in _TEXTS:
        bounds = {name: format_bound(bound) for name, bound in context.items()}
        return f"{shorten_json(value)} {_TEXTS[kind].format_map(bounds)}"
    if kind == "float_type" and type(value) is int:
        return f"{shorten_json(value)} is not a finite number"
    if kind in {"too_short", "too_long"}:
        if kind == "too_short":
            bound = f"at least {context['min_length']}"
        else:
            bound = f"at most {context['max_length']}"
        return f"has {context.get('actual_length')} items, expected {bound}"
    if kind in {"value_error", "assertion_error"}:  # of a user's validator, in its words
        reason = escape_surrogates(str(context.get("error", detail["msg"])))
        return f"{shorten_json(value)} is refused: {reason}"
    if kind.endswith(_KINDS_OF_TYPES) and describe_expected(subschema, root) != "any value":
        return _expected(subschema, root, value)
    return f"{message}, got {shorten_json(value)}"


def _expected(subschema: Any, root: Schema, value: Any) -> str:
    return f"expected {describe_expected(subschema, root)}, got {shorten_json(value)}"


def _schema_at(path: Path, schema: Schema, names: Mapping[str, str]) -> Any:
    """The schema at a path; True if there is none."""
    node: Any = schema
    for depth, step in enumerate(path):
        inner = _within(resolve_reference(node, schema), step, schema)
        if inner is None and depth == 0:
            inner = _by_other_name(str(step), schema, names)
        if inner is None:
            return True
        node = inner
    return node


def _by_other_name(name: str, schema: Schema, names: Mapping[str, str]) -> Any:
    """The schema of an argument that the path and the schema name differently.

    One has the parameter, the other its alias.
    """
    parameter = names.get(name, name)
    properties = schema.get("properties", {})
    for other, target in names.items():
        if target == parameter and properties.get(other) is not None:
            return properties[other]
    return None


def _within(node: Any, step: str | int, root: Schema) -> Any:
    """The schema one step further; None if there is none."""
    if not is_object(node):
        return None
    inner: Any = None
    if isinstance(step, int):
        prefix_items: Any = node.get("prefixItems")
        if is_list(prefix_items) and step < len(prefix_items):
            inner = prefix_items[step]
        else:
            inner = node.get("items")
    elif is_object(node.get("properties")) and step in node["properties"]:
        inner = node["properties"][step]
    elif is_object(node.get("additionalProperties")):
        inner = node["additionalProperties"]
    if inner is not None:
        return inner
    for keyword in ("anyOf", "oneOf", "allOf"):
        for branch in node.get(keyword) or ():
            inner = _within(resolve_reference(branch, root), step, root)
            if inner is not None:
                return inner
    return None
