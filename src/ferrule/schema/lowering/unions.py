"""Make unions of lowered schemas, and let a lowered schema admit null."""

from __future__ import annotations

from ferrule.encoding.encode import json_text
from ferrule.schema.nodes import Schema, declared_types


def any_of(forms: list[Schema]) -> Schema:
    """A union of these schemas, with nested unions flattened and duplicates removed."""
    spread = [
        inner for each in forms for inner in (each["anyOf"] if each.keys() == {"anyOf"} else [each])
    ]
    distinct = list({json_text(each): each for each in spread}.values())
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def admit_null(made: Schema) -> Schema:
    """The lowered schema, which then also admits null."""
    if "anyOf" in made:
        return {**made, "anyOf": [*made["anyOf"], {"type": "null"}]}
    if "$ref" in made:
        return {"anyOf": [made, {"type": "null"}]}
    enum = {"enum": [*made["enum"], None]} if "enum" in made else {}
    kinds = declared_types(made)
    return {**made, **({"type": [*kinds, "null"]} if kinds and "null" not in kinds else {}), **enum}


def null_apart(made: Schema) -> Schema:
    """Split an enumeration that contains null, for a target whose enumerations must not contain it."""
    kinds = [kind for kind in declared_types(made) if kind != "null"]
    listed = {
        **made,
        "type": kinds[0] if len(kinds) == 1 else kinds,
        "enum": [each for each in made["enum"] if each is not None],
    }
    own = {key: listed.pop(key) for key in ("title", "description") if key in listed}
    return {**own, "anyOf": [listed, {"type": "null"}]}
