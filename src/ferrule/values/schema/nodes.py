"""JSON Schema surgery: inlining, titles, what a schema admits.

In: a schema as pydantic or a person wrote it. Out: a new one; what came in is never changed. Schemas stand only where JSON Schema says
that they stand (2020-12, sections 10 and 11), so that a property called `title` or a default that looks like a schema is left alone.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Schema = dict[str, Any]

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_SINGLE = frozenset(
    {"items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema"}
)
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_DEFINITIONS = ("$defs", "definitions")
_LARGEST = 5_000
"""Nodes. A definition that would grow beyond this when inlined stays a reference: models that share models double at every level."""


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a JSON object, for the type checker's eyes too."""
    return isinstance(value, dict)


def is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether a value becomes a JSON array, for the type checker's eyes too."""
    return isinstance(value, (list, tuple))


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a value is a JSON array, for the type checker's eyes too."""
    return isinstance(value, list)


class Generator(GenerateJsonSchema):
    """pydantic's generator without the titles it makes up, and silent about defaults that are no JSON."""

    ignored_warning_kinds: ClassVar[set[JsonSchemaWarningKind]] = {"skipped-choice", "non-serializable-default"}  # pyright: ignore[reportIncompatibleVariableOverride]

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Only titles that somebody wrote."""
        del schema
        return False


def children(schema: Schema) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside a schema, each with where it stands (`properties/title`, `items`, `anyOf/0`)."""
    for key, value in schema.items():
        if key in _MAPS and is_object(value):
            yield from ((f"{key}/{name}", each) for name, each in value.items())
        elif key in _LISTS and is_list(value):
            yield from ((f"{key}/{i}", each) for i, each in enumerate(value))
        elif key in _SINGLE:
            yield key, value


def map_children(schema: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of a schema whose direct children went through `change`."""
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


def inline_definitions(schema: Schema) -> Schema:
    """The schema with every definition put where it is used, but for those that contain themselves: they stay in `$defs`."""
    definitions = definitions_of(schema)
    if not definitions:
        return copy.deepcopy(schema)
    kept = _kept(definitions)

    def put(each: Any) -> Any:
        name = _local(each, definitions) if is_object(each) else None
        if name is None or name in kept:
            return _without_mapping(map_children(each, put), kept)
        beside = {key: copy.deepcopy(value) for key, value in each.items() if key != "$ref"}
        target = definitions[name]
        return {**put(target), **beside} if is_object(target) else target

    body = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    made: Schema = put(body)
    needed = _needed(made, definitions, kept)
    if needed:
        made["$defs"] = {name: map_children(definitions[name], put) for name in definitions if name in needed}
    return made


def definitions_of(schema: Schema) -> dict[str, Any]:
    """The definitions a schema brings along, by name."""
    return {name: each for key in _DEFINITIONS if is_object(schema.get(key)) for name, each in schema[key].items()}


def strip_titles(schema: Schema) -> Schema:
    """The schema without the titles that pydantic made of class names; those that somebody chose stay."""

    def plain(each: Any) -> Any:
        made = map_children(each, plain)
        for name, definition in (definitions_of(made) if is_object(made) else {}).items():
            if is_object(definition) and _is_generated(name, definition.get("title")):
                del definition["title"]
        return made

    return plain(schema)


def _is_generated(name: str, title: object) -> bool:
    if not isinstance(title, str):
        return False
    # pydantic's key is the class's name made plain; where two classes share it, with the module before it or a suffix behind.
    made = re.sub(r"[^a-zA-Z0-9.\-_]", "_", title)
    return name == made or name.endswith(f"__{made}") or name.startswith((f"{made}-", f"{made}__"))


def resolve_reference(schema: Any, root: Schema) -> Any:
    """What a schema says once its `$ref` is followed; keywords beside the reference are laid over."""
    seen: set[str] = set()
    while is_object(schema) and isinstance(schema.get("$ref"), str):
        node = schema
        if node["$ref"] in seen:
            return {}
        seen.add(node["$ref"])
        found, target = find_pointer(node["$ref"], root)
        if not found:
            return {}
        beside = {key: value for key, value in node.items() if key != "$ref"}
        schema = {**target, **beside} if is_object(target) else target
    return schema


def find_pointer(reference: str, root: Schema) -> tuple[bool, Any]:
    """What a local reference (`#`, `#/$defs/Node`) points at, and whether there is anything."""
    if not reference.startswith("#"):
        return False, None
    place: Any = root
    for step in reference[1:].split("/")[1:] if len(reference) > 1 else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if is_object(place) and name in place:
            place = place[name]
        elif is_list(place) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return False, None
    return not (len(reference) > 1 and reference[1] != "/"), place


def alternatives(schema: Any, root: Schema) -> list[Any]:
    """The schemas one of which a value must fit: `anyOf` and `oneOf` spread out, references followed."""
    found: list[Any] = []
    waiting: list[Any] = [schema]
    seen: set[int] = set()
    while waiting:
        at = waiting.pop(0)
        if is_object(at) and isinstance(at.get("$ref"), str):
            _, target = find_pointer(at["$ref"], root)
            if id(target) in seen:
                continue
            seen.add(id(target))
        each = resolve_reference(at, root)
        spread: list[Any] = [*(each.get("anyOf") or ()), *(each.get("oneOf") or ())] if is_object(each) else []
        if spread:
            waiting.extend(spread)
        else:
            found.append(each)
    return found


def admitted_types(schema: Any, root: Schema) -> frozenset[str] | None:
    """The JSON types a schema admits; None where it admits any."""
    admitted: set[str] = set()
    for each in alternatives(schema, root):
        found = _kinds_of_one(each, root)
        if found is None:
            return None
        admitted |= found
    return frozenset(admitted)


def json_type(value: object) -> str:
    """The JSON type of a value, `other` for what JSON does not have."""
    if value is None:
        return "null"
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return "other"


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    *((bool, "boolean"), (int, "integer"), (float, "number")),
    *((str, "string"), (dict, "object"), ((list, tuple), "array")),
)


def _kinds_of_one(schema: Any, root: Schema) -> set[str] | frozenset[str] | None:
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
        found = admitted_types(each, root)
        if found is not None:
            return found
    return None


def mentions_type(schema: Schema, types: frozenset[str]) -> bool:
    """Whether a schema speaks of one of these JSON types anywhere."""
    waiting: list[Any] = [schema]
    while waiting:
        each = waiting.pop()
        if is_object(each):
            found = _kinds_of_one({key: value for key, value in each.items() if key != "allOf"}, schema)
            if found and found & types:
                return True
            waiting.extend(child for _, child in children(each))
    return False


# -- definitions ------------------------------------------------------------------------------------------------


def _local(schema: Schema, definitions: Mapping[str, Any]) -> str | None:
    """The name of the definition a schema refers to."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return None
    for key in _DEFINITIONS:
        if reference.startswith(f"#/{key}/"):
            name = reference[len(key) + 3 :].replace("~1", "/").replace("~0", "~")
            return name if name in definitions else None
    return None


def _references(schema: Any, definitions: Mapping[str, Any]) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if is_object(each):
            name = _local(each, definitions)
            if name is not None:
                yield name
            waiting.extend(child for _, child in children(each))


def _kept(definitions: Mapping[str, Any]) -> set[str]:
    """Definitions that contain themselves, or would grow too large."""
    direct = {name: list(_references(each, definitions)) for name, each in definitions.items()}
    sizes: dict[str, int] = {}
    kept: set[str] = set()
    on_the_way: list[str] = []

    def size(name: str) -> int:
        if name in on_the_way:
            kept.update(on_the_way[on_the_way.index(name) :])
            return 1
        if name not in sizes:
            on_the_way.append(name)
            total = 1 + _nodes(definitions[name]) + sum(size(each) for each in direct[name])
            on_the_way.pop()
            if total > _LARGEST:
                kept.add(name)
            sizes[name] = 1 if name in kept else total
        return sizes[name]

    for name in definitions:
        size(name)
    # A definition met on two different circles may have been settled before the second was seen.
    kept |= {name for name in definitions if name in _reach(direct[name], direct)}
    return kept


def _reach(names: list[str], direct: Mapping[str, list[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(direct[name])
    return reached


def _nodes(schema: Any) -> int:
    total, waiting = 0, [schema]
    while waiting:
        each = waiting.pop()
        total += 1
        if is_object(each):
            waiting.extend(child for _, child in children(each))
    return total


def _needed(schema: Schema, definitions: Mapping[str, Any], kept: set[str]) -> set[str]:
    direct = {name: list(_references(each, definitions)) for name, each in definitions.items()}
    return _reach(list(_references(schema, definitions)), direct) & kept


def _without_mapping(schema: Any, kept: set[str]) -> Any:
    # OpenAPI's `discriminator.mapping` points at definitions; those that were inlined are not there any more.
    if is_object(schema) and is_object(schema.get("discriminator")):
        mapping: Mapping[str, str] = schema["discriminator"].get("mapping") or {}
        if any(target.rpartition("/")[2] not in kept for target in mapping.values()):
            del schema["discriminator"]["mapping"]
    return schema
