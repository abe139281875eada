"""Read JSON schemas: the schemas inside one, its references, the types it admits.

Subschemas are searched only where JSON Schema allows them (2020-12, sections 10 and 11): a property
called `title`, or a default that looks like a schema, is not a schema. No function here changes its
arguments.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Schema = dict[str, Any]

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_SINGLE = frozenset(
    {"items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema"}
)
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
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
    """Yield the direct subschemas: the keyword, the name or index under it (if any), the schema."""
    for key, value in schema.items():
        if key in _MAPS and is_object(value):
            for name, part in value.items():
                yield key, name, part
        elif key in _LISTS and is_list(value):
            for i, part in enumerate(value):
                yield key, i, part
        elif key in _SINGLE:
            yield key, None, value


def every_schema(schema: Any) -> Iterator[Any]:
    """Yield a schema and all schemas inside it. References are not followed."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        yield part
        if is_object(part):
            waiting.extend(inside for _, _, inside in subschemas(part))


def members(schema: Schema, keyword: str) -> dict[str, Any]:
    """The named schemas under a keyword (`properties`, `$defs`); empty if there are none."""
    named: Any = schema.get(keyword)
    return named if is_object(named) else {}


def map_children(schema: Any, change: Callable[[Any], Any]) -> Any:
    """Copy a schema, applying `change` to each direct subschema."""
    if not is_object(schema):
        return schema
    changed: Schema = {}
    for key, value in schema.items():
        if key in _MAPS and is_object(value):
            changed[key] = {name: change(part) for name, part in value.items()}
        elif key in _LISTS and is_list(value):
            changed[key] = [change(part) for part in value]
        elif key in _SINGLE:
            changed[key] = change(value)
        else:
            changed[key] = copy.deepcopy(value)
    return changed


def resolve_reference(schema: Any, root: Schema) -> Any:
    """Follow `$ref` until the schema has none. Keywords beside a reference win.

    Returns `{}` for a cycle or a dangling reference. Empty `properties` do not win: a tool whose
    schema is a reference gets them, because providers require the keyword.
    """
    seen: set[str] = set()
    while is_object(schema) and isinstance(schema.get("$ref"), str):
        reference: str = schema["$ref"]
        target = find_pointer(reference, root)
        if reference in seen or target is None:
            return {}
        seen.add(reference)
        if not is_object(target):
            schema = target
            continue
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        if siblings.get("properties") == {}:
            del siblings["properties"]
        schema = {**target, **siblings}
    return schema


def names_elsewhere(schema: Schema) -> bool:
    """Whether an object's schema may name properties outside `properties`."""
    return not _NAMING.isdisjoint(schema)


def find_pointer(reference: str, root: Schema) -> Any:
    """The value at a local reference (`#`, `#/$defs/Node`; RFC 6901); None if there is none."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    target: Any = root
    for step in reference[1:].split("/")[1:]:
        name = unescape_step(unquote(step))
        if is_object(target) and name in target:
            target = target[name]
        elif is_list(target) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target


def escape_step(name: object) -> str:
    """A name as one step of a JSON pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")


def unescape_step(step: str) -> str:
    """The inverse of `escape_step`."""
    return step.replace("~1", "/").replace("~0", "~")


def alternatives(schema: Any, root: Schema) -> list[Any]:
    """The schemas of which a value must fit at least one.

    References are followed, `anyOf` and `oneOf` are flattened.
    """
    return all_alternatives([schema], root)


def all_alternatives(schemas: list[Any], root: Schema) -> list[Any]:
    """The alternatives of several schemas, each only once.

    Definitions that refer to each other would multiply.
    """
    forms: list[Any] = []
    waiting: list[Any] = [*schemas]
    seen: set[int] = set()
    while waiting:
        schema = waiting.pop(0)
        if is_object(schema):
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            if isinstance(schema.get("$ref"), str):
                target = find_pointer(schema["$ref"], root)
                if id(target) in seen:
                    continue
                seen.add(id(target))
        form = resolve_reference(schema, root)
        branches = branches_of(form)
        if branches:
            waiting.extend(branches)
        else:
            forms.append(form)
    return forms


def branches_of(schema: Any) -> list[Any]:
    """The branches of a schema's unions."""
    branches: list[Any] = []
    if is_object(schema):
        for key in ("anyOf", "oneOf"):
            union: Any = schema.get(key)
            if is_list(union):
                branches += union
    return branches


def item_schemas(schemas: list[Any], index: int | None) -> list[Any]:
    """The schemas of an item under these alternatives.

    With `index` None, of an item after those that `prefixItems` describes.
    """
    parts: list[Any] = []
    for schema in schemas:
        if not is_object(schema) or schema.get("type", "array") != "array":
            continue
        prefix: Any = schema.get("prefixItems")
        if index is not None and is_list(prefix) and index < len(prefix):
            parts.append(prefix[index])
        else:
            parts.append(schema.get("items", True))
    return parts or [True]


def property_schemas(schemas: list[Any], name: str) -> list[Any]:
    """The schemas of a property under these alternatives."""
    parts: list[Any] = []
    for schema in schemas:
        if is_object(schema) and schema.get("type", "object") == "object":
            parts.append(members(schema, "properties").get(name, other_properties(schema)))
    return parts or [True]


def is_dictionary(schema: Schema, kinds: list[str]) -> bool:
    """Whether all properties of an object have the same form, and names that the model chooses."""
    if "object" not in kinds or "array" in kinds or "enum" in schema:
        return False
    if schema.get("properties") or schema.get("required"):
        return False
    patterns = len(members(schema, "patternProperties"))
    more = schema.get("additionalProperties")
    if patterns == 1:
        return more in (None, False, True, {})
    return not patterns and is_object(more) and bool(more)


def other_properties(node: Schema) -> Any:
    """The schema of properties without a schema of their own.

    True if it depends on a pattern of their names.
    """
    if members(node, "patternProperties"):
        return True
    return node.get("additionalProperties", True)


def admitted_types(schema: Any, root: Schema) -> frozenset[str] | None:
    """The JSON types that a schema admits; None for any type."""
    return _admitted_types(schema, root, set())


def _admitted_types(schema: Any, root: Schema, seen: set[int]) -> frozenset[str] | None:
    admitted: set[str] = set()
    for form in alternatives(schema, root):
        kinds = _types_of_one(form, root, seen)
        if kinds is None:
            return None
        admitted |= kinds
    return frozenset(admitted)


class SharedAlternatives:
    """Computes the alternatives of several schemas and the types that they admit (None for any).

    Once for all items of a list.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[tuple[int, ...], tuple[list[Any], frozenset[str] | None]] = {}
        self._schemas: list[list[Any]] = []
        """The schemas that were asked about. Held, so that no other schema gets their ids."""

    def __call__(self, schemas: list[Any]) -> tuple[list[Any], frozenset[str] | None]:
        """The alternatives of these schemas, and the types that they admit."""
        key = tuple(map(id, schemas))
        if key not in self._known:
            forms = all_alternatives(schemas, self._root)
            self._known[key] = (forms, self._types(forms))
            self._schemas.append(schemas)
        return self._known[key]

    def _types(self, forms: list[Any]) -> frozenset[str] | None:
        admitted: set[str] = set()
        for form in forms:
            kinds = admitted_types(form, self._root)
            if kinds is None:
                return None
            admitted |= kinds
        return frozenset(admitted)


def json_type(value: object) -> str:
    """The JSON type of a value; `other` if it has none.

    An integral float is a `number`, although it also fits `integer`.
    """
    match value:
        case None:
            return "null"
        case bool():  # before `int`, which is its base class
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case dict():
            return "object"
        case list() | tuple():
            return "array"
        case _:
            return "other"


def declared_types(schema: Schema) -> list[str]:
    """The JSON types in a schema's `type`."""
    kind: Any = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if is_list(kind):
        return [name for name in kind if isinstance(name, str)]
    return []


def fits_type(value: Any, types: Iterable[str]) -> bool:
    """Whether a value has one of these JSON types."""
    admitted, kind = set(types), json_type(value)
    if kind == "number" and "integer" in admitted and value % 1 == 0:
        return True
    return kind in admitted or (kind == "integer" and "number" in admitted)


def _types_of_one(schema: Any, root: Schema, seen: set[int]) -> set[str] | frozenset[str] | None:
    """The types that a schema without unions admits."""
    if not is_object(schema):
        return None
    if "const" in schema:
        return {json_type(schema["const"])}
    if is_list(schema.get("enum")):
        return {json_type(value) for value in schema["enum"]}
    kinds = declared_types(schema)
    if kinds or is_list(schema.get("type")):
        return set(kinds)
    for part in schema.get("allOf") or ():
        if id(part) not in seen:  # a schema may apply itself to the same value, and more than once
            seen.add(id(part))
            part_types = _admitted_types(part, root, seen)
            if part_types is not None:
                return part_types
    return None


def mentions_type(schema: Schema, types: frozenset[str]) -> bool:
    """Whether a schema or one of its subschemas names one of these JSON types."""
    for part in every_schema(schema):
        if not is_object(part):
            continue
        plain = {key: value for key, value in part.items() if key != "allOf"}
        if not types.isdisjoint(_types_of_one(plain, schema, set()) or ()):
            return True
    return False
