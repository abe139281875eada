"""Merge schemas that must all fit: the parts of an `allOf`, or a schema and one branch of its union.

The result is one new schema, and the keywords that could not be merged. A reference is followed
once, because repetition adds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.schema.lowering.rules import TYPE_OF
from ferrule.schema.nodes import (
    Schema,
    declared_types,
    find_pointer,
    fits_type,
    is_list,
    is_object,
    members,
    resolve_reference,
)
from ferrule.schema.references import TooMuchWorkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_GREATER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_SMALLER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_MOST_COMPARED = 64
"""The most schemas that are all compared with each other."""
_FIRST = frozenset({"title", "default", "examples"})
_BOTH: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(_GREATER, max),
    **dict.fromkeys(_SMALLER, min),
    "uniqueItems": lambda one, other: one or other,
    "items": lambda one, other: {"allOf": [one, other]},
}
"""How to merge two values of a keyword. Values of other keywords must be equal."""


def merge(
    schemas: Iterable[Schema],
    root: Schema,
    steps: Iterator[object],
) -> tuple[Schema, list[str]]:
    """Merge schemas, and the parts of their `allOf`, into one. Also returns the keywords that could not be merged.

    Each part uses one of `steps`; if there are no more, raises `TooMuchWorkError`: many places may
    refer to a schema of many parts.
    """
    made: Schema = {}
    clashes: list[str] = []
    wanted, said = dict[str, None](), list[str]()
    seen: set[str] = set()
    for part in (inner for each in schemas for inner in _parts(each, root, seen)):
        if next(steps, None) is None:
            raise TooMuchWorkError("the parts of its schemas are too many to be merged")
        if _closes(made, part) or _closes(part, made):
            clashes.append("additionalProperties")
        if _shifts(made, part) or _shifts(part, made):
            clashes.append("items")
        for key, value in _one_way(part).items():
            if key == "required":
                made[key] = []  # its place, filled at the end
                wanted.update(dict.fromkeys(value))
            elif key == "description":
                made[key] = ""
                if len(said) > _MOST_COMPARED or not any(value in each for each in said):
                    said.append(value)
            elif key not in made:
                made[key] = dict(value) if key == "properties" and is_object(value) else value
            elif not _merge_keyword(made, key, value):
                clashes.append(key)
    if "required" in made:
        made["required"] = list(wanted)
    if "description" in made:
        made["description"] = " ".join(said)
    return made, list(dict.fromkeys(clashes))


def inlined_references(schema: Schema) -> Iterator[str]:
    """The references that merging inlines: those in an `allOf`, and in a union that has other keywords beside it."""
    beside = schema.keys() & (TYPE_OF.keys() | {"type", "enum", "const", "allOf"})
    for key in ("allOf", *(("anyOf", "oneOf") if beside else ())):
        for each in schema.get(key) or ():
            if is_object(each):
                if isinstance(each.get("$ref"), str):
                    yield each["$ref"]
                yield from inlined_references({"allOf": each["allOf"]} if "allOf" in each else {})


def admits_null(schema: Any, root: Schema, known: dict[str, bool]) -> bool:
    """Whether null fits, judged by types and constants. `known` caches the answers for references into this root."""
    if not is_object(schema):
        return schema is not False
    kinds, values = declared_types(schema), _values(schema)
    if (kinds and "null" not in kinds) or (values is not None and None not in values):
        return False
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in known:
            known[reference] = False  # a schema that contains itself adds nothing
            known[reference] = admits_null(find_pointer(reference, root), root, known)
        if not known[reference]:
            return False
    if not all(admits_null(each, root, known) for each in schema.get("allOf") or ()):
        return False
    return all(
        any(admits_null(each, root, known) for each in schema[key])
        for key in ("anyOf", "oneOf")
        if is_list(schema.get(key))
    )


def are_exclusive(branches: list[Any], root: Schema, steps: Iterator[object]) -> bool:
    """Whether no value can fit two of these schemas, judged by types and constants. False for very many schemas, which are not compared."""
    if len(branches) > _MOST_COMPARED:
        return False
    seen = [
        merge([found], root, steps)[0] if is_object(found := resolve_reference(each, root)) else {}
        for each in branches
    ]
    return all(_apart(one, other, root) for i, one in enumerate(seen) for other in seen[i + 1 :])


def _parts(schema: Schema, root: Schema, seen: set[str]) -> Iterator[Schema]:
    """Split a schema into schemas without `allOf` and `$ref` that must all fit. A dangling reference stays; one in `seen` is dropped."""
    yield {key: value for key, value in schema.items() if key not in {"allOf", "$ref"}}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        yield from _every([find_pointer(reference, root)], root, seen, {"$ref": reference})
    yield from _every(schema.get("allOf") or (), root, seen, {})


def _every(
    schemas: Iterable[Any],
    root: Schema,
    seen: set[str],
    otherwise: Schema,
) -> Iterator[Schema]:
    for each in schemas:
        if is_object(each):
            yield from _parts(each, root, seen)
        else:
            yield {"enum": []} if each is False else otherwise


def _one_way(schema: Schema) -> Schema:
    """The schema with a constant written as an enumeration."""
    return {
        ("enum" if key == "const" else key): [value] if key == "const" else value
        for key, value in schema.items()
    }


def _merge_keyword(made: Schema, key: str, value: Any) -> bool:
    """Merge a keyword's second value into its first. Returns False if no single value can express both."""
    before = made[key]
    if key in _FIRST or (
        before == value and json_text(before) == json_text(value)
    ):  # `1`, `1.0` and `True` are equal in Python
        return True
    if key == "items" and (is_list(before) or is_list(value)):
        return False  # a tuple in draft 7's form
    if key in _BOTH:
        made[key] = _BOTH[key](before, value)
    elif key == "properties":
        for name, each in value.items():
            before[name] = {"allOf": [before[name], each]} if name in before else each
    elif key == "enum":
        texts = {json_text(each) for each in value}
        made[key] = [each for each in before if json_text(each) in texts]
    elif key == "type":
        kinds = [kind for kind in declared_types(made) if _admits(kind, value)] + (
            ["integer"] if _narrows(before, value) else []
        )
        if not kinds:
            return False
        made[key] = kinds[0] if len(kinds) == 1 else kinds
    else:
        return False
    return True


def _admits(kind: str, types: Any) -> bool:
    admitted = declared_types({"type": types})
    return kind in admitted or (kind == "integer" and "number" in admitted)


def _narrows(before: Any, after: Any) -> bool:
    return (
        "number" in declared_types({"type": before})
        and "integer" in (found := declared_types({"type": after}))
        and "number" not in found
    )


def _closes(one: Schema, other: Schema) -> bool:
    """Whether the first schema forbids or limits properties that the second names."""
    if one.get("additionalProperties", True) is True or one.get("additionalProperties") == {}:
        return False
    named = one.get("properties") or ()
    return any(name not in named for name in other.get("properties") or ())


def _shifts(one: Schema, other: Schema) -> bool:
    """Whether `items` means the items after `prefixItems` in one schema, and all items in the other."""
    return "prefixItems" in one and "prefixItems" not in other and "items" in other


def _apart(one: Schema, other: Schema, root: Schema) -> bool:
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return {json_text(each) for each in values}.isdisjoint(
            json_text(each) for each in others
        ) and not _look_equal(values, others)
    if values is not None or others is not None:
        listed, kinds = (
            (values, declared_types(other))
            if values is not None
            else (others or [], declared_types(one))
        )
        return bool(kinds) and not any(fits_type(each, kinds) for each in listed)
    kinds, more = declared_types(one), declared_types(other)
    if not kinds or not more:
        return False
    if not any(_admits(kind, more) for kind in kinds) and not any(
        _admits(kind, kinds) for kind in more
    ):
        return True
    if kinds != ["object"] or more != ["object"]:
        return False
    both = set(one.get("required") or ()) & set(other.get("required") or ())
    return any(
        _apart(_property(one, name, root), _property(other, name, root), root) for name in both
    )


def _property(schema: Schema, name: str, root: Schema) -> Schema:
    found = resolve_reference(members(schema, "properties").get(name), root)
    return {} if not is_object(found) or _values(found) is None else found


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    listed: Any = schema.get("enum")
    return listed if is_list(listed) else None


def _look_equal(values: list[Any], others: list[Any]) -> bool:
    # `1` and `1.0` are one value in JSON Schema (section 4.2.2), but two texts.
    numbers = {each for each in values if type(each) in {int, float}}
    return any(type(each) in {int, float} and each in numbers for each in others)
