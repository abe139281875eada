"""Make unions of lowered schemas, and let a lowered schema admit null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.schema.nodes import declared_types

if TYPE_CHECKING:
    from ferrule.schema.nodes import Schema


def one_or_list(kinds: list[str]) -> Any:
    """JSON types as the value of `type`: one as text, several as a list."""
    return kinds[0] if len(kinds) == 1 else kinds


def any_of(forms: list[Schema]) -> Schema:
    """A union of these schemas, with nested unions flattened and duplicates removed."""
    distinct: dict[str, Schema] = {}
    for form in forms:
        is_union = form.keys() == {"anyOf"}
        for branch in form["anyOf"] if is_union else [form]:
            distinct[json_text(branch)] = branch
    branches = list(distinct.values())
    if len(branches) == 1:
        return branches[0]
    return {"anyOf": branches}


def admit_null(lowered: Schema) -> Schema:
    """The lowered schema, which then also admits null."""
    if "anyOf" in lowered:
        return {**lowered, "anyOf": [*lowered["anyOf"], {"type": "null"}]}
    if "$ref" in lowered:
        return {"anyOf": [lowered, {"type": "null"}]}
    nullable = dict(lowered)
    kinds = declared_types(lowered)
    if kinds and "null" not in kinds:
        nullable["type"] = [*kinds, "null"]
    if "enum" in lowered:
        nullable["enum"] = [*lowered["enum"], None]
    return nullable


def null_apart(lowered: Schema) -> Schema:
    """Split an enumeration that contains null into a union.

    For a target whose enumerations must not contain null.
    """
    kinds = [kind for kind in declared_types(lowered) if kind != "null"]
    listed = {
        **lowered,
        "type": one_or_list(kinds),
        "enum": [value for value in lowered["enum"] if value is not None],
    }
    annotations = {key: listed.pop(key) for key in ("title", "description") if key in listed}
    return {**annotations, "anyOf": [listed, {"type": "null"}]}
