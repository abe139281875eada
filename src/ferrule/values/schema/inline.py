"""Schemas made smaller: no generated titles, and definitions put in place of the references to them.

Prompts get shorter, and some providers refuse `$ref`.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from ferrule.values.encoding.encode import jsonable
from ferrule.values.schema.nodes import Schema, children, is_object, map_children, unescape_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DEFINITIONS = ("$defs", "definitions")
_LARGEST = 5_000
"""Nodes. A definition that would grow beyond this when inlined stays a reference: models that share models double at every level."""


class Generator(GenerateJsonSchema):
    """pydantic's schema generator without generated titles and without warnings about defaults that are not JSON."""

    ignored_warning_kinds: ClassVar[set[JsonSchemaWarningKind]] = {"skipped-choice", "non-serializable-default"}  # pyright: ignore[reportIncompatibleVariableOverride]

    def field_title_should_be_set(self, schema: Any) -> bool:
        """No: only titles written by the author stay."""
        del schema
        return False

    def encode_default(self, dft: Any) -> Any:
        """A default as JSON, equal in every process: sets in order, and NaN and the infinities as text, since JSON has no such numbers."""
        made = super().encode_default(dft)  # raises for a value without a JSON form
        return jsonable(dft if isinstance(made, (list, dict)) else made)

    def dict_schema(self, schema: Any) -> Schema:
        """An object whose names are the values of an `IntEnum`: as text, since JSON has no other names."""
        made = super().dict_schema(schema)
        names = self.resolve_ref_schema(made.get("propertyNames", {}))
        if names.get("type") == "integer" and "enum" in names:
            made["propertyNames"] = {"enum": [str(each) for each in names["enum"]], "type": "string"}
        return made

    def field_is_present(self, field: Any) -> bool:
        """A dataclass computes a field with `init=False`: no value is accepted for it."""
        return field.get("init", True) and super().field_is_present(field)


def inline_definitions(schema: Schema) -> Schema:
    """Replace references by the definitions they point at. Recursive and very large definitions stay in `$defs`."""
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
    """The definitions in a schema, by name."""
    return {name: each for key in _DEFINITIONS if is_object(schema.get(key)) for name, each in schema[key].items()}


def strip_titles(schema: Schema) -> Schema:
    """Remove the titles that pydantic makes of class names; titles chosen by the author stay."""

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
    # pydantic's key is the sanitized class name; if two classes share it, with the module before it or a suffix after it.
    made = re.sub(r"[^a-zA-Z0-9.\-_]", "_", title)
    return name == made or name.endswith(f"__{made}") or name.startswith((f"{made}-", f"{made}__"))


def _local(schema: Schema, definitions: Mapping[str, Any]) -> str | None:
    """The name of the definition that a schema refers to."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return None
    for key in _DEFINITIONS:
        if reference.startswith(f"#/{key}/"):
            name = unescape_step(reference[len(key) + 3 :])
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
    """Definitions that contain themselves or would grow too large."""
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
    # A definition on two circles may have been measured before the second circle was seen.
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
    # OpenAPI's `discriminator.mapping` points at definitions, and inlined ones are gone.
    if is_object(schema) and is_object(schema.get("discriminator")):
        mapping: Mapping[str, str] = schema["discriminator"].get("mapping") or {}
        if any(target.rpartition("/")[2] not in kept for target in mapping.values()):
            del schema["discriminator"]["mapping"]
    return schema
