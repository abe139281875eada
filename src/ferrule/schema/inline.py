"""Make schemas smaller: remove generated titles, and replace references with their definitions.

This makes prompts shorter, and some providers refuse `$ref`.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import PydanticSerializationError

from ferrule.encoding.encode import jsonable
from ferrule.schema.nodes import Schema, every_schema, is_object, map_children, unescape_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import TypeAdapter

_DEFINITIONS = ("$defs", "definitions")
INEXPRESSIBLE = (PydanticInvalidForJsonSchema, PydanticSerializationError)
"""The errors that pydantic raises for a type that JSON Schema cannot express."""
_LARGEST = 5_000
"""The most nodes of an inlined definition. A larger one stays a reference.

Models that share models double in size at every level.
"""


class Generator(GenerateJsonSchema):
    """A schema generator like pydantic's, without generated titles.

    And without warnings about defaults that are not JSON.
    """

    ignored_warning_kinds: ClassVar[set[JsonSchemaWarningKind]] = {  # pyright: ignore[reportIncompatibleVariableOverride]
        "skipped-choice",
        "non-serializable-default",
    }  # pyright: ignore[reportIncompatibleVariableOverride]

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Always False: only titles written by the author stay."""
        del schema
        return False

    def encode_default(self, dft: Any) -> Any:
        """A default as JSON, equal in every process: sets are sorted.

        NaN and the infinities, which JSON lacks, are written as text.
        """
        made = super().encode_default(dft)  # raises for a value without a JSON form
        return jsonable(dft if isinstance(made, (list, dict)) else made)

    def dict_schema(self, schema: Any) -> Schema:
        """The schema of a dict.

        If its keys are an `IntEnum`, the names are the values as text: JSON has no other names.
        """
        made = super().dict_schema(schema)
        names = self.resolve_ref_schema(made.get("propertyNames", {}))
        if names.get("type") == "integer" and "enum" in names:
            made["propertyNames"] = {
                "enum": [str(each) for each in names["enum"]],
                "type": "string",
            }
        return made

    def field_is_present(self, field: Any) -> bool:
        """Whether a field is in the schema.

        No value is accepted for a dataclass field with `init=False`, which the class computes.
        """
        if self.mode != "serialization" and not field.get("init", True):
            return False
        return super().field_is_present(field)


def json_schema_of(adapter: TypeAdapter[Any], generator: type[Generator] = Generator) -> Schema:
    """The schema of a validator's type; empty for a type that JSON Schema cannot express."""
    try:
        return adapter.json_schema(schema_generator=generator)
    except INEXPRESSIBLE:
        return {}


def inline_definitions(schema: Schema) -> Schema:
    """Replace references with the definitions that they point to.

    Recursive and very large definitions stay in `$defs`.
    """
    definitions = definitions_of(schema)
    if not definitions:
        return copy.deepcopy(schema)
    direct = {name: list(_references(each, definitions)) for name, each in definitions.items()}
    kept = _kept(definitions, direct)

    def put(each: Any) -> Any:
        name = _local(each, definitions) if is_object(each) else None
        if name is None or name in kept:
            return _tagged(map_children(each, put), kept)
        beside = {key: copy.deepcopy(value) for key, value in each.items() if key != "$ref"}
        target = definitions[name]
        return {**put(target), **beside} if is_object(target) else target

    body = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    made: Schema = put(body)
    needed = _reach(_references(made, definitions), direct) & kept
    if needed:
        made["$defs"] = {
            name: map_children(definitions[name], put) for name in definitions if name in needed
        }
    return made


def definitions_of(schema: Schema) -> dict[str, Any]:
    """The definitions in a schema, by name."""
    definitions: dict[str, Any] = {}
    for key in _DEFINITIONS:
        if is_object(schema.get(key)):
            definitions |= schema[key]
    return definitions


def strip_titles(schema: Schema) -> Schema:
    """Remove the titles that pydantic makes from class names. Titles written by the author stay."""

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
    # pydantic's key is the sanitized class name. If two classes share it, the module comes before
    # it, or a suffix after it.
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
    for each in every_schema(schema):
        name = _local(each, definitions) if is_object(each) else None
        if name is not None:
            yield name


def _kept(definitions: Mapping[str, Any], direct: Mapping[str, list[str]]) -> set[str]:
    """The definitions to keep: those that contain themselves, or would grow too large.

    `direct` are the references in each.
    """
    sizes: dict[str, int] = {}
    kept: set[str] = set()
    on_the_way: list[str] = []

    def size(name: str) -> int:
        if name in on_the_way:
            kept.update(on_the_way[on_the_way.index(name) :])
            return 1
        if name not in sizes:
            on_the_way.append(name)
            own_size = 1 + sum(1 for _ in every_schema(definitions[name]))
            total = own_size + sum(size(reference) for reference in direct[name])
            on_the_way.pop()
            if total > _LARGEST:
                kept.add(name)
            sizes[name] = 1 if name in kept else total
        return sizes[name]

    for name in definitions:
        size(name)
    # A definition on two cycles may have been measured before the second cycle was found.
    kept |= {name for name in definitions if name in _reach(direct[name], direct)}
    return kept


def _reach(names: Iterable[str], direct: Mapping[str, list[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(direct[name])
    return reached


def _tagged(schema: Any, kept: set[str]) -> Any:
    if not is_object(schema) or not is_object(schema.get("discriminator")):
        return schema
    # OpenAPI's `discriminator.mapping` points to definitions, and inlined ones no longer exist.
    mapping: Mapping[str, str] = schema["discriminator"].get("mapping") or {}
    if any(target.rpartition("/")[2] not in kept for target in mapping.values()):
        del schema["discriminator"]["mapping"]
    # pydantic refuses a value without the tag, although its schema calls a tag with a default
    # optional.
    tag = schema["discriminator"].get("propertyName")
    for each in schema.get("oneOf") or ():
        properties = each.get("properties") if is_object(each) else None
        if properties and tag in properties and tag not in each.get("required", ()):
            each["required"] = [tag, *each.get("required", ())]
            properties[tag] = {
                key: value for key, value in properties[tag].items() if key != "default"
            }
    return schema
