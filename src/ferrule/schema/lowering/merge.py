"""Merge schemas that must all fit: parts of an `allOf`, or a schema and a branch of its union.

The result is one new schema, and the keywords that could not be merged. A reference is followed
once, because repetition adds nothing. A few definitions that refer to each other several times have
very many parts, so merging takes steps of a `StepBudget`.
"""

from __future__ import annotations

from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.schema.lowering.rules import TYPE_OF
from ferrule.schema.lowering.unions import one_or_list
from ferrule.schema.nodes import (
    Schema,
    all_alternatives,
    declared_types,
    find_pointer,
    fits_type,
    is_dictionary,
    is_list,
    is_object,
    members,
    resolve_reference,
)
from ferrule.schema.references import TooMuchWorkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ferrule.schema.references import StepBudget

_GREATER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_SMALLER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_MOST_COMPARED = 64
"""The most schemas that are all compared with each other."""
_FIRST = frozenset({"title", "default", "examples"})
"""Keywords that constrain no value: the first one stays."""


def _both_items(one: Any, other: Any) -> Schema:
    return {"allOf": [one, other]}


_BOTH: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(_GREATER, max),
    **dict.fromkeys(_SMALLER, min),
    "uniqueItems": max,
    "items": _both_items,
}
"""How to merge two values of a keyword. Values of other keywords must be equal."""


def merge(schemas: Iterable[Schema], root: Schema, budget: StepBudget) -> tuple[Schema, list[str]]:
    """Merge schemas, and the parts of their `allOf`, into one.

    Also returns the keywords that could not be merged. Each part takes a step of the budget; if
    there are no more, raises `TooMuchWorkError`.
    """
    merged: Schema = {}
    clashes: dict[str, None] = {}
    required: dict[str, None] = {}
    descriptions: list[str] = []
    seen: set[str] = set()
    for part in chain.from_iterable(_parts(schema, root, seen) for schema in schemas):
        if not budget.take_step():
            raise TooMuchWorkError("the parts of its schemas are too many to be merged")
        if _closes(merged, part) or _closes(part, merged):
            clashes["additionalProperties"] = None
        if _shifts(merged, part) or _shifts(part, merged):
            clashes["items"] = None
        for key, value in _with_enum(part).items():
            if key == "required":
                merged[key] = []  # its place, filled at the end
                required.update(dict.fromkeys(value))
            elif key == "description":
                merged[key] = ""
                # Comparing very many texts with each other would take too long.
                is_compared = len(descriptions) <= _MOST_COMPARED
                if not is_compared or not any(value in text for text in descriptions):
                    descriptions.append(value)
            elif key not in merged:
                is_copied = key == "properties" and is_object(value)
                merged[key] = dict(value) if is_copied else value
            elif not _merge_keyword(merged, key, value):
                clashes[key] = None
    if "required" in merged:
        merged["required"] = list(required)
    if "description" in merged:
        merged["description"] = " ".join(descriptions)
    return merged, list(clashes)


def inlined_references(schema: Schema) -> Iterator[str]:
    """The references that merging inlines.

    Those in an `allOf`, and in a union that has other keywords beside it.
    """
    keys = ["allOf"]
    if schema.keys() & (TYPE_OF.keys() | {"type", "enum", "const", "allOf"}):
        keys += ["anyOf", "oneOf"]
    for key in keys:
        for part in schema.get(key) or ():
            if not is_object(part):
                continue
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            if "allOf" in part:
                yield from inlined_references({"allOf": part["allOf"]})


def admits_null(schema: Any, root: Schema, known: dict[str, bool]) -> bool:
    """Whether null fits, judged by types and constants.

    `known` caches the answers for references into this root.
    """
    if not is_object(schema):
        return schema is not False
    kinds, values = declared_types(schema), _values(schema)
    if kinds and "null" not in kinds:
        return False
    if values is not None and None not in values:
        return False
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in known:
            known[reference] = False  # a schema that contains itself adds nothing
            known[reference] = admits_null(find_pointer(reference, root), root, known)
        if not known[reference]:
            return False
    if not all(admits_null(part, root, known) for part in schema.get("allOf") or ()):
        return False
    for key in ("anyOf", "oneOf"):
        branches: Any = schema.get(key)
        if is_list(branches) and not any(admits_null(part, root, known) for part in branches):
            return False
    return True


def are_exclusive(branches: list[Any], root: Schema, budget: StepBudget) -> bool:
    """Whether no value can fit two of these schemas, judged by types and constants.

    False for very many schemas, which are not compared.
    """
    if len(branches) > _MOST_COMPARED:
        return False
    merged: list[Schema] = []
    for branch in branches:
        schema = resolve_reference(branch, root)
        if is_object(schema):
            merged_branch, _ = merge([schema], root, budget)
            merged.append(merged_branch)
        else:
            merged.append({})
    return all(_exclude(one, other, root) for one, other in combinations(merged, 2))


def may_be_list_or_dictionary(schemas: list[Any], root: Schema, budget: StepBudget) -> bool:
    """Whether a list and a dictionary are both possible for a value of these schemas.

    Or for a part of such a value. Compares at most 64 parts.
    """
    waiting, seen = [schemas], set[frozenset[int]]()
    for group in waiting:  # grows while it is walked
        forms = [
            merge([form], root, budget)[0]
            for form in all_alternatives(group, root)
            if is_object(form)
        ]
        dictionaries = [
            form for form in forms if is_dictionary(form, declared_types(form) or ["object"])
        ]
        if dictionaries and any("array" in declared_types(form) for form in forms):
            return True
        for part in _same_parts(forms, dictionaries):
            ids = frozenset(map(id, part))
            if len(ids) > 1 and ids not in seen and len(seen) < _MOST_COMPARED:
                seen.add(ids)
                waiting.append(part)
    return False


def _same_parts(forms: list[Schema], dictionaries: list[Schema]) -> list[list[Any]]:
    """The schemas of each part of a value under several forms: values, items, each property."""
    values: list[Any] = []
    for form in dictionaries:
        patterns = list(members(form, "patternProperties").values())
        values.append(patterns[0] if patterns else form.get("additionalProperties"))
    items = [form["items"] for form in forms if is_object(form.get("items"))]
    properties: dict[str, list[Any]] = {}
    for form in forms:
        for name, part in members(form, "properties").items():
            properties.setdefault(name, []).append(part)
    return [values, items, *properties.values()]


def _parts(schema: Schema, root: Schema, seen: set[str]) -> Iterator[Schema]:
    """Split a schema into schemas without `allOf` and `$ref` that must all fit.

    A dangling reference stays; one in `seen` is dropped.
    """
    yield {key: value for key, value in schema.items() if key not in {"allOf", "$ref"}}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        yield from _every([find_pointer(reference, root)], root, seen, {"$ref": reference})
    yield from _every(schema.get("allOf") or (), root, seen, {})


def _every(
    schemas: Iterable[Any], root: Schema, seen: set[str], otherwise: Schema
) -> Iterator[Schema]:
    """The parts of all schemas; `otherwise` for one that is not a schema."""
    for schema in schemas:
        if is_object(schema):
            yield from _parts(schema, root, seen)
        elif schema is False:
            yield {"enum": []}
        else:
            yield otherwise


def _with_enum(schema: Schema) -> Schema:
    """The schema with a constant written as an enumeration."""
    if "const" not in schema:
        return schema
    written: Schema = {}
    for key, value in schema.items():
        if key == "const":
            written["enum"] = [value]
        else:
            written[key] = value
    return written


def _merge_keyword(merged: Schema, key: str, value: Any) -> bool:
    """Merge a keyword's second value into its first.

    Returns False if no single value can express both.
    """
    before = merged[key]
    # As text too: `1`, `1.0` and `True` are equal in Python.
    if key in _FIRST or (before == value and json_text(before) == json_text(value)):
        return True
    if key == "items" and (is_list(before) or is_list(value)):
        return False  # a tuple in draft 7's form
    if key in _BOTH:
        merged[key] = _BOTH[key](before, value)
        return True
    if key == "properties":
        for name, part in value.items():
            if name in before:
                before[name] = {"allOf": [before[name], part]}
            else:
                before[name] = part
        return True
    if key == "enum":
        texts = {json_text(choice) for choice in value}
        merged[key] = [choice for choice in before if json_text(choice) in texts]
        return True
    if key == "type":
        kinds = _common_types(declared_types(merged), declared_types({"type": value}))
        if kinds:
            merged[key] = one_or_list(kinds)
        return bool(kinds)
    return False


def _common_types(kinds: list[str], others: list[str]) -> list[str]:
    """The types that both admit; `integer` where one admits it and the other any number."""
    common = [kind for kind in kinds if _admits(kind, others)]
    if "number" in kinds and "integer" in others and "number" not in others:
        common.append("integer")
    return common


def _admits(kind: str, kinds: list[str]) -> bool:
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _closes(one: Schema, other: Schema) -> bool:
    """Whether the first schema forbids or limits properties that the second names."""
    more: Any = one.get("additionalProperties", True)
    if more is True or more == {}:
        return False
    named = one.get("properties") or ()
    return any(name not in named for name in other.get("properties") or ())


def _shifts(one: Schema, other: Schema) -> bool:
    """Whether `items` means the items after `prefixItems` in one schema, and all in the other."""
    return "prefixItems" in one and "prefixItems" not in other and "items" in other


def _exclude(one: Schema, other: Schema, root: Schema) -> bool:
    """Whether no value fits both schemas."""
    values, other_values = _values(one), _values(other)
    if values is not None and other_values is not None:
        texts = {json_text(value) for value in values}
        are_other_texts = texts.isdisjoint(json_text(value) for value in other_values)
        return are_other_texts and not _look_equal(values, other_values)
    if values is not None:
        return _fit_none(values, declared_types(other))
    if other_values is not None:
        return _fit_none(other_values, declared_types(one))
    kinds, other_kinds = declared_types(one), declared_types(other)
    if not kinds or not other_kinds:
        return False
    if not _common_types(kinds, other_kinds) and not _common_types(other_kinds, kinds):
        return True
    if kinds != ["object"] or other_kinds != ["object"]:
        return False
    # A property that both objects require, with constants, may tell them apart.
    for name in set(one.get("required") or ()) & set(other.get("required") or ()):
        part = _constant_property(one, name, root)
        other_part = _constant_property(other, name, root)
        if _exclude(part, other_part, root):
            return True
    return False


def _fit_none(values: list[Any], kinds: list[str]) -> bool:
    """Whether none of the values has one of these types; False if any type is admitted."""
    return bool(kinds) and not any(fits_type(value, kinds) for value in values)


def _constant_property(schema: Schema, name: str, root: Schema) -> Schema:
    """The schema of a property with constant values; empty for any other property."""
    part = resolve_reference(members(schema, "properties").get(name), root)
    if not is_object(part) or _values(part) is None:
        return {}
    return part


def _values(schema: Schema) -> list[Any] | None:
    """The only values that a schema admits, if it lists them."""
    if "const" in schema:
        return [schema["const"]]
    listed: Any = schema.get("enum")
    return listed if is_list(listed) else None


def _look_equal(values: list[Any], others: list[Any]) -> bool:
    # `1` and `1.0` are one value in JSON Schema (section 4.2.2), but two texts.
    numbers = {value for value in values if type(value) in {int, float}}
    return any(type(value) in {int, float} and value in numbers for value in others)
