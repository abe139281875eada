"""Explain the errors of pydantic and of a schema, in words that a model can act on.

A problem is a pair: the dotted path (`filters.0.name`), and a text with what was expected and what
was found.
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
_OWN_WORDS = {
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
    error: ValidationError,
    args: Mapping[str, Any],
    schema: Schema,
    names: Mapping[str, str],
) -> list[Problem]:
    """The problems in a pydantic error, one for each place."""
    found: dict[Path, list[str]] = {}
    details = error.errors(include_url=False, include_context=True)[:MOST_PROBLEMS]
    labels = [_label(each, args) for each in details]
    for each, (path_of_union, label) in zip(details, labels, strict=True):
        has_branches = (
            label is not None and len({one for one in labels if one[0] == path_of_union}) > 1
        )
        path = path_of_union if has_branches else _whole_place(each, args)
        place = _schema_at(path, schema, names)
        text = (
            _expected(place, schema, reduce(_inside, path, args))
            if has_branches
            else _said(each, place, schema)
        )
        texts = found.setdefault(path, [])
        if text not in texts:
            texts.append(text)
    return [(dotted_path(path), text) for path, texts in found.items() for text in texts]


# -- pydantic
# -------------------------------------------------------------------------------------------------------


def _inside(value: Any, step: str | int) -> Any:
    if is_object(value):
        # pydantic may have turned a key into text or a number: keys are compared as text.
        if step in value:
            return value[step]  # type: ignore[index]
        return next(
            (
                each
                for key, each in value.items()
                if type(key) is not type(step) and str(key) == str(step)
            ),
            _MISSING,
        )
    if is_sequence(value) and isinstance(step, int):
        return value[step] if step < len(value) else _MISSING
    return (
        getattr(value, step, _MISSING)
        if isinstance(step, str) and isinstance(value, BaseModel)
        else _MISSING
    )


def _label(each: ErrorDetails, args: Any) -> tuple[Path, str | int | None]:
    """The path up to the first step that is the label of a union, and that label."""
    value, loc = args, each["loc"]
    for i, step in enumerate(loc[:-1] if each["type"] == "missing" else loc):
        value = _inside(value, step)
        if value is _MISSING:
            return loc[:i], step
    return loc, None


def _whole_place(each: ErrorDetails, args: Any) -> Path:
    """The path without the labels of unions."""
    path: list[str | int] = []
    value: Any = args
    loc = each["loc"]
    for i, step in enumerate(loc):
        inside = _inside(value, step)
        if inside is not _MISSING:
            path.append(step)
            value = inside
        elif i == len(loc) - 1 and each["type"] == "missing":
            path.append(step)
    return tuple(path)


def _said(each: ErrorDetails, place: Any, root: Schema) -> str:
    kind, value, context = each["type"], each["input"], each.get("ctx", {})
    if kind == "missing":
        return missing_argument("", place, root)[1]
    if each["loc"][-1:] == ("[key]",):  # the schema at this place is that of the values
        return f"the name {shorten_json(value)} does not fit: {escape_surrogates(each['msg'])}"
    if kind in {"extra_forbidden", "invalid_key"}:
        return "there is no such argument"
    if kind in _OWN_WORDS:
        return f"{shorten_json(value)} {_OWN_WORDS[kind].format_map({key: format_bound(each) for key, each in context.items()})}"
    if kind == "float_type" and type(value) is int:
        return f"{shorten_json(value)} is not a finite number"
    if kind in {"too_short", "too_long"}:
        bound = "at least {min_length}" if kind == "too_short" else "at most {max_length}"
        return f"has {context.get('actual_length')} items, expected {bound.format_map(context)}"
    if kind in {"value_error", "assertion_error"}:
        return f"{shorten_json(value)} is refused: {escape_surrogates(str(context.get('error', each['msg'])))}"
    if (
        kind.endswith(("_type", "_parsing", "_error", "enum", "_size", "_from_float"))
        and describe_expected(place, root) != "any value"
    ):
        return _expected(place, root, value)
    return f"{escape_surrogates(each['msg'])}, got {shorten_json(value)}"


def _expected(place: Any, root: Schema, value: Any) -> str:
    return f"expected {describe_expected(place, root)}, got {shorten_json(value)}"


def _schema_at(path: Path, schema: Schema, names: Mapping[str, str]) -> Any:
    """The schema at a path; True if there is none."""
    place: Any = schema
    for depth, step in enumerate(path):
        place = _within(resolve_reference(place, schema), step, schema)
        if (
            place is None and depth == 0
        ):  # the path names the parameter, the schema its alias, or the other way round
            own = names.get(str(step), step)
            others = (name for name, each in names.items() if each == own)
            place = next(
                (
                    each
                    for each in (schema.get("properties", {}).get(name) for name in others)
                    if each is not None
                ),
                None,
            )
        if place is None:
            return True
    return place


def _within(node: Any, step: str | int, root: Schema) -> Any:
    if not is_object(node):
        return None
    found: Any = None
    if isinstance(step, int):
        places: Any = node.get("prefixItems")
        found = places[step] if is_list(places) and step < len(places) else node.get("items")
    elif is_object(node.get("properties")) and step in node["properties"]:
        found = node["properties"][step]
    elif is_object(node.get("additionalProperties")):
        found = node["additionalProperties"]
    if found is not None:
        return found
    for key in ("anyOf", "oneOf", "allOf"):
        for each in node.get(key) or ():
            found = _within(resolve_reference(each, root), step, root)
            if found is not None:
                return found
    return None
