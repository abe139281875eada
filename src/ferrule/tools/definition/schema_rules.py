"""Rules for a schema that the author of a tool wrote: it must be usable before a model sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors import ToolDefinitionError, shown
from ferrule.schema.drafts import EXCLUSIVE, draft_of, problem_of_draft
from ferrule.schema.nodes import is_list, is_object
from ferrule.schema.patterns import is_pattern
from ferrule.schema.references import REFERENCES, SchemaReferences, parts
from ferrule.schema.validator import Validator, work_problem

if TYPE_CHECKING:
    from ferrule.schema.nodes import Schema

_TYPES = {"string", "integer", "number", "boolean", "object", "array", "null"}
_KEYWORDS_OF_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_KEYWORDS_OF_LISTS = ("enum", "anyOf", "oneOf", "allOf")
_KEYWORDS_OF_NUMBERS = (
    "minimum",
    "maximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
)


def check_object_schema(name: str, schema: Any) -> Schema:
    """Check the schema of all arguments of the tool `name`, and return it."""
    if not is_object(schema) or schema.get("type", "object") != "object":
        raise ToolDefinitionError(
            f"`schema` of `{name}` must be the JSON schema of an object, found {shown(schema)}."
        )
    check_schema(f"`{name}`", schema)
    return schema


def check_schema(owner: str, schema: Schema) -> None:
    """Raise `ToolDefinitionError` for a schema that no call could be checked by.

    That is one with unknown types, broken patterns or dangling references, or one that is too
    costly to check. `owner` names the schema in the error.
    """
    problem = work_problem(schema)
    if problem:
        raise ToolDefinitionError(f"The schema of {owner} cannot be used: {problem}.")
    draft, references = draft_of(schema), SchemaReferences(schema)
    # With a list of nodes instead of a recursive function: the schema may be nested deeply.
    waiting: list[tuple[tuple[object, ...], Any]] = [((), schema)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, bool):
            continue
        if is_object(node):
            problem = _problem(node, references) or problem_of_draft(node, draft)
        else:
            problem = f"is not a schema: {shown(node)}"
        if problem:
            location = "/".join(map(str, path)) or "it"
            raise ToolDefinitionError(
                f"The schema of {owner} cannot be used: {location} {problem}."
            )
        for key, step, subschema in parts(node):
            inner_path = (*path, key)
            if step is not None:
                inner_path = (*inner_path, step)
            waiting.append((inner_path, subschema))
    try:
        Validator(schema)
    except ValueError as error:  # a form that no rule above knows
        raise ToolDefinitionError(f"The schema of {owner} cannot be used: {error}.") from error


def _problem(node: Schema, references: SchemaReferences) -> str:
    """Why one node cannot be used, as the end of a sentence; empty if it can."""
    kind = node.get("type")
    kinds: list[Any] = kind if is_list(kind) else [kind]
    if kind is not None and not all(_is_type(name) for name in kinds):
        return f"has the unknown type {shown(kind)}"
    for keyword in _KEYWORDS_OF_SCHEMAS_BY_NAME:
        if not is_object(node.get(keyword, {})):
            return f"has {shown(node[keyword])} for `{keyword}`, which must be an object"
    required: Any = node.get("required", [])
    if not is_list(required) or not all(isinstance(name, str) for name in required):
        return f"has {shown(required)} for `required`, which must be a list of names"
    for keyword in _KEYWORDS_OF_LISTS:
        if not is_list(node.get(keyword, [])):
            return f"has {shown(node[keyword])} for `{keyword}`, which must be a list"
    for keyword in _KEYWORDS_OF_NUMBERS:
        limit = node.get(keyword, 0)
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            return f"has {shown(limit)} for `{keyword}`, which must be a number"
    for keyword in EXCLUSIVE:  # a boolean may be right, if the schema is of draft 4
        if not isinstance(node.get(keyword, 0), int | float):
            return f"has {shown(node[keyword])} for `{keyword}`, which must be a number"
    if references.targets(node) is None:
        reference = next(node[keyword] for keyword in REFERENCES if keyword in node)
        return f"refers to {shown(reference)}, which is not in it"
    patterns: list[Any] = list(node.get("patternProperties", {}))
    if "pattern" in node:
        patterns.insert(0, node["pattern"])
    for pattern in patterns:
        if not is_pattern(pattern):
            return (
                f"has the broken pattern {shown(pattern)}: "
                "it must be a regular expression of ECMA 262"
            )
    return ""


def _is_type(name: Any) -> bool:
    return isinstance(name, str) and name in _TYPES
