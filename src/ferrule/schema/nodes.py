"""Read JSON schemas: the schemas inside one, its references, the types it admits.

Subschemas are searched only where JSON Schema allows them (2020-12, sections 10 and 11): a property
called `title`, or a default that looks like a schema, is not a schema. No function here changes its
arguments.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Schema = dict[str, Any]

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_SINGLE = frozenset(
    {"items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema"},
)
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_MOST_COMPARED = 100
_NAMING = frozenset({"$ref", "patternProperties", "allOf", "anyOf", "oneOf"})


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a JSON object."""
    return isinstance(value, dict)


def is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether a value becomes a JSON array."""
    return isinstance(value, (list, tuple))


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a value is a JSON array."""
    return isinstance(value, list)


def subschemas(schema: Schema) -> Iterator[tuple[str, str | int | None, Any]]:
    """Yield the keyword, the name or index under it (if any), and the schema of each direct subschema."""
    for key, value in schema.items():
        if key in _MAPS and is_object(value):
            yield from ((key, name, each) for name, each in value.items())
        elif key in _LISTS and is_list(value):
            yield from ((key, i, each) for i, each in enumerate(value))
        elif key in _SINGLE:
            yield key, None, value


def every_schema(schema: Any) -> Iterator[Any]:
    """Yield a schema and all schemas inside it. References are not followed."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        yield each
        if is_object(each):
            waiting.extend(inside for _, _, inside in subschemas(each))


def members(schema: Schema, keyword: str) -> dict[str, Any]:
    """The named schemas under a keyword (`properties`, `$defs`); empty if there are none."""
    found: Any = schema.get(keyword)
    return found if is_object(found) else {}


def map_children(schema: Any, change: Callable[[Any], Any]) -> Any:
    """Copy a schema, applying `change` to each direct subschema."""
    if not is_object(schema):
        return schema
    made: Schema = {}
    for key, value in schema.items():
        if key in _MAPS and is_object(value):
            made[key] = {name: change(each) for name, each in value.items()}
        elif key in _LISTS and is_list(value):
            made[key] = [change(each) for each in value]
        elif key in _SINGLE:
            made[key] = change(value)
        else:
            made[key] = copy.deepcopy(value)
    return made


def resolve_reference(schema: Any, root: Schema) -> Any:
    """Follow `$ref` until the schema has none. Keywords beside a reference win. Returns `{}` for a cycle or a dangling reference.

    Empty `properties` do not win: a tool whose schema is a reference gets them, because providers
    require the keyword.
    """
    seen: set[str] = set()
    while is_object(schema) and isinstance(schema.get("$ref"), str):
        reference: str = schema["$ref"]
        target = find_pointer(reference, root)
        if reference in seen or target is None:
            return {}
        seen.add(reference)
        beside = {
            key: value
            for key, value in schema.items()
            if key != "$ref" and not (key == "properties" and value == {})
        }
        schema = {**target, **beside} if is_object(target) else target
    return schema


def names_elsewhere(schema: Schema) -> bool:
    """Whether an object's schema may name properties outside `properties`."""
    return not _NAMING.isdisjoint(schema)


def find_pointer(reference: str, root: Schema) -> Any:
    """The value at a local reference (`#`, `#/$defs/Node`; RFC 6901); None if there is none."""
    if not reference.startswith("#") or (len(reference) > 1 and reference[1] != "/"):
        return None
    place: Any = root
    for step in reference[1:].split("/")[1:]:
        name = unescape_step(step)
        if is_object(place) and name in place:
            place = place[name]
        elif is_list(place) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return None
    return place


def escape_step(name: object) -> str:
    """A name as one step of a JSON pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")


def unescape_step(step: str) -> str:
    """The inverse of `escape_step`."""
    return step.replace("~1", "/").replace("~0", "~")


def alternatives(schema: Any, root: Schema) -> list[Any]:
    """The schemas of which a value must fit at least one. References are followed, `anyOf` and `oneOf` are flattened."""
    return all_alternatives([schema], root)


def all_alternatives(schemas: list[Any], root: Schema) -> list[Any]:
    """The alternatives of several schemas, each only once: definitions that refer to each other would multiply."""
    found: list[Any] = []
    waiting: list[Any] = [*schemas]
    seen: set[int] = set()
    while waiting:
        at = waiting.pop(0)
        if is_object(at):
            if id(at) in seen:
                continue
            seen.add(id(at))
            if isinstance(at.get("$ref"), str):
                target = find_pointer(at["$ref"], root)
                if id(target) in seen:
                    continue
                seen.add(id(target))
        each = resolve_reference(at, root)
        unions: list[Any] = [each.get("anyOf"), each.get("oneOf")] if is_object(each) else []
        spread = [inner for union in unions if is_list(union) for inner in union]
        if spread:
            waiting.extend(spread)
        else:
            found.append(each)
    return found


def item_schemas(schemas: list[Any], index: int | None) -> list[Any]:
    """The schemas of an item under these alternatives. With `index` None, of an item after those that `prefixItems` describes."""
    found: list[Any] = []
    for each in schemas:
        if is_object(each) and each.get("type", "array") == "array":
            places: Any = each.get("prefixItems")
            found.append(
                places[index]
                if index is not None and is_list(places) and index < len(places)
                else each.get("items", True),
            )
    return found or [True]


def property_schemas(schemas: list[Any], name: str) -> list[Any]:
    """The schemas of a property under these alternatives."""
    found = [
        members(each, "properties").get(name, other_properties(each))
        for each in schemas
        if is_object(each) and each.get("type", "object") == "object"
    ]
    return found or [True]


def is_dictionary(schema: Schema, kinds: list[str]) -> bool:
    """Whether all properties of an object have the same form, and names that the model chooses."""
    if (
        "object" not in kinds
        or "array" in kinds
        or "enum" in schema
        or schema.get("properties")
        or schema.get("required")
    ):
        return False
    patterns, more = len(members(schema, "patternProperties")), schema.get("additionalProperties")
    return (
        more in (None, False, True, {})
        if patterns == 1
        else not patterns and is_object(more) and bool(more)
    )


def may_be_list_or_dictionary(schemas: list[Any], root: Schema) -> bool:
    """Whether a list and a dictionary are both possible for a value of these schemas, or for a part of it. Compares at most 100 parts."""
    waiting, seen = [schemas], set[frozenset[int]]()
    for group in waiting:
        found = [each for each in all_alternatives(group, root) if is_object(each)]
        dictionaries = [
            each for each in found if is_dictionary(each, declared_types(each) or ["object"])
        ]
        if dictionaries and any("array" in declared_types(each) for each in found):
            return True
        values = [
            next(
                iter(members(each, "patternProperties").values()),
                each.get("additionalProperties"),
            )
            for each in dictionaries
        ]
        parts: dict[str, list[Any]] = {
            "values": values,
            "items": [each["items"] for each in found if is_object(each.get("items"))],
        }
        for each in found:
            for name, part in members(each, "properties").items():
                parts.setdefault(f"properties/{name}", []).append(part)
        for each in parts.values():
            same = frozenset(map(id, each))
            if len(same) > 1 and same not in seen and len(seen) < _MOST_COMPARED:
                seen.add(same)
                waiting.append(each)
    return False


def other_properties(node: Schema) -> Any:
    """The schema of properties without a schema of their own; True if it depends on a pattern of their names."""
    return True if members(node, "patternProperties") else node.get("additionalProperties", True)


def admitted_types(schema: Any, root: Schema) -> frozenset[str] | None:
    """The JSON types that a schema admits; None for any type."""
    return _admitted_types(schema, root, set())


def _admitted_types(schema: Any, root: Schema, seen: set[int]) -> frozenset[str] | None:
    admitted: set[str] = set()
    for each in alternatives(schema, root):
        found = _types_of_one(each, root, seen)
        if found is None:
            return None
        admitted |= found
    return frozenset(admitted)


class SharedAlternatives:
    """Computes the alternatives of several schemas and the types that they admit (None for any), once for all items of a list."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[tuple[int, ...], tuple[list[Any], frozenset[str] | None, list[Any]]] = {}

    def __call__(self, schemas: list[Any]) -> tuple[list[Any], frozenset[str] | None]:
        """The alternatives of these schemas, and the types that they admit."""
        key = tuple(map(id, schemas))
        found = self._known.get(key)
        if found is None:
            spread = all_alternatives(schemas, self._root)
            types = [admitted_types(each, self._root) for each in spread]
            admitted = None if None in types else frozenset[str]().union(*filter(None, types))
            found = self._known[key] = (
                spread,
                admitted,
                schemas,
            )  # kept, so that no other schema gets its id
        return found[:2]


def json_type(value: object) -> str:
    """The JSON type of a value; `other` if it has none. An integral float is a `number`, although it also fits `integer`."""
    if value is None:
        return "null"
    for kind, name in _JSON_TYPES:
        if isinstance(value, kind):
            return name
    return "other"


def declared_types(schema: Schema) -> list[str]:
    """The JSON types in a schema's `type`."""
    kind: Any = schema.get("type")
    return [kind] if isinstance(kind, str) else list(kind) if is_list(kind) else []


def fits_type(value: Any, types: Iterable[str]) -> bool:
    """Whether a value has one of these JSON types."""
    admitted, kind = set(types), json_type(value)
    if kind == "number" and "integer" in admitted and value % 1 == 0:
        return True
    return kind in admitted or (kind == "integer" and "number" in admitted)


_JSON_TYPES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    *((bool, "boolean"), (int, "integer"), (float, "number")),
    *((str, "string"), (dict, "object"), ((list, tuple), "array")),
)


def _types_of_one(schema: Any, root: Schema, seen: set[int]) -> set[str] | frozenset[str] | None:
    if not is_object(schema):
        return None
    node = schema
    if "const" in node:
        return {json_type(node["const"])}
    if is_list(node.get("enum")):
        return {json_type(each) for each in node["enum"]}
    kind = node.get("type")
    if isinstance(kind, str):
        return {kind}
    if is_list(kind):
        return set(kind)
    for each in node.get("allOf") or ():
        if id(each) not in seen:  # a schema may apply itself to the same value, and more than once
            seen.add(id(each))
            found = _admitted_types(each, root, seen)
            if found is not None:
                return found
    return None


def mentions_type(schema: Schema, types: frozenset[str]) -> bool:
    """Whether a schema or one of its subschemas names one of these JSON types."""
    named = (
        {key: value for key, value in each.items() if key != "allOf"}
        for each in every_schema(schema)
        if is_object(each)
    )
    return any(not types.isdisjoint(_types_of_one(each, schema, set()) or ()) for each in named)
