"""Make schemas from types, and smaller: without generated titles, with few references.

A reference is replaced by the definition that it points to: prompts become shorter, and some
providers refuse `$ref`. Two kinds of definitions stay: those that contain themselves, which have no
other form, and those that would become very large.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema
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

If each of thirty models has two fields of the next one, the innermost is inlined 2**30 times.
"""


class SchemaGenerator(GenerateJsonSchema):
    """A schema generator like pydantic's, with fewer titles and no warnings.

    Titles that pydantic makes from the names of fields are left out, and a default that is not JSON
    causes no warning.
    """

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Always False: a title that pydantic makes from the name of a field says nothing new."""
        del schema
        return False

    def encode_default(self, dft: Any) -> Any:
        """A default as JSON, equal in every process: sets are sorted.

        NaN and the infinities, which JSON lacks, are written as text.
        """
        encoded = super().encode_default(dft)  # raises for a value without a JSON form
        # Pydantic lists the items of a set in any order. Its result does not say which lists were
        # sets, so the value itself is encoded.
        if isinstance(encoded, (list, dict)):
            return jsonable(dft)
        return jsonable(encoded)

    def dict_schema(self, schema: Any) -> Schema:
        """The schema of a dict.

        If its keys are an `IntEnum`, the names are the values as text: JSON has no other names.
        """
        json_schema = super().dict_schema(schema)
        names = self.resolve_ref_schema(json_schema.get("propertyNames", {}))
        if names.get("type") == "integer" and "enum" in names:
            texts = [str(value) for value in names["enum"]]
            json_schema["propertyNames"] = {"enum": texts, "type": "string"}
        return json_schema

    def field_is_present(self, field: Any) -> bool:
        """Whether a field is in the schema.

        No value is accepted for a dataclass field with `init=False`, which the class computes.
        """
        if self.mode != "serialization" and not field.get("init", True):
            return False
        return super().field_is_present(field)


def json_schema_of(
    adapter: TypeAdapter[Any], generator: type[SchemaGenerator] = SchemaGenerator
) -> Schema:
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
    direct = {name: list(_references(node, definitions)) for name, node in definitions.items()}
    remaining = _not_inlined(definitions, direct)

    def inline(node: Any) -> Any:
        name = _definition_name(node, definitions)
        if name is None or name in remaining:
            return _correct_discriminator(map_children(node, inline), remaining)
        target = definitions[name]
        if not is_object(target):  # `true` or `false`
            return target
        siblings = {key: copy.deepcopy(value) for key, value in node.items() if key != "$ref"}
        return {**inline(target), **siblings}

    body = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    inlined: Schema = inline(body)
    needed = _reach(_references(inlined, definitions), direct) & remaining
    if needed:
        inlined["$defs"] = {
            name: map_children(definitions[name], inline) for name in definitions if name in needed
        }
    return inlined


def definitions_of(schema: Schema) -> dict[str, Any]:
    """The definitions in a schema, by name."""
    definitions: dict[str, Any] = {}
    for key in _DEFINITIONS:
        if is_object(schema.get(key)):
            definitions |= schema[key]
    return definitions


def strip_titles(schema: Schema) -> Schema:
    """Remove the titles that pydantic makes from class names. Titles written by the author stay."""

    def stripped(node: Any) -> Any:
        copied = map_children(node, stripped)
        if not is_object(copied):
            return copied
        for name, definition in definitions_of(copied).items():
            if is_object(definition) and _is_generated(name, definition.get("title")):
                del definition["title"]
        return copied

    return stripped(schema)


def _is_generated(name: str, title: object) -> bool:
    if not isinstance(title, str):
        return False
    # pydantic's key is the sanitized class name. If two classes share it, the module comes before
    # it, or a suffix after it.
    key = re.sub(r"[^a-zA-Z0-9.\-_]", "_", title)
    return name == key or name.endswith(f"__{key}") or name.startswith((f"{key}-", f"{key}__"))


def _definition_name(schema: Any, definitions: Mapping[str, Any]) -> str | None:
    """The name of the definition that a schema refers to; None if it does not refer to one."""
    if not is_object(schema):
        return None
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return None
    for key in _DEFINITIONS:
        if reference.startswith(f"#/{key}/"):
            name = unescape_step(reference[len(key) + 3 :])
            if name in definitions:
                return name
    return None


def _references(schema: Any, definitions: Mapping[str, Any]) -> Iterator[str]:
    for node in every_schema(schema):
        name = _definition_name(node, definitions)
        if name is not None:
            yield name


def _not_inlined(definitions: Mapping[str, Any], direct: Mapping[str, list[str]]) -> set[str]:
    """The definitions that stay: those that contain themselves, or would grow too large.

    `direct` are the references in each.
    """
    recursive = {name for name in definitions if name in _reach(direct[name], direct)}
    too_large: set[str] = set()
    sizes = dict.fromkeys(recursive, 1)  # a reference that stays is one node

    def size(name: str) -> int:
        """The number of nodes that a reference to the definition becomes."""
        if name not in sizes:
            total = 1 + sum(1 for _ in every_schema(definitions[name]))
            total += sum(size(reference) for reference in direct[name])
            sizes[name] = total
            if total > _LARGEST:
                too_large.add(name)
                sizes[name] = 1
        return sizes[name]

    for name in definitions:
        size(name)
    return recursive | too_large


def _reach(names: Iterable[str], direct: Mapping[str, list[str]]) -> set[str]:
    """These definitions, and all that they refer to, directly or through others."""
    reached: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(direct[name])
    return reached


def _correct_discriminator(schema: Any, remaining: set[str]) -> Any:
    """Correct the discriminator of a tagged union, in place; returns the schema."""
    if not is_object(schema) or not is_object(schema.get("discriminator")):
        return schema
    # OpenAPI's `discriminator.mapping` points to definitions, and inlined ones no longer exist.
    mapping: Mapping[str, str] = schema["discriminator"].get("mapping") or {}
    if any(target.rpartition("/")[2] not in remaining for target in mapping.values()):
        del schema["discriminator"]["mapping"]
    # pydantic refuses a value without the tag, although its schema calls a tag with a default
    # optional.
    tag = schema["discriminator"].get("propertyName")
    for branch in schema.get("oneOf") or ():
        if not is_object(branch):
            continue
        properties: Any = branch.get("properties")
        if properties and tag in properties and tag not in branch.get("required", ()):
            branch["required"] = [tag, *branch.get("required", ())]
            properties[tag] = {
                key: value for key, value in properties[tag].items() if key != "default"
            }
    return schema
