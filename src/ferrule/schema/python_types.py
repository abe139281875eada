"""Convert JSON schemas to Python types: types of arguments, pydantic models for outputs.

The types are for readers and callers. A schema may express more than a type can; values are still
checked against the schema.
"""

from __future__ import annotations

import keyword
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Union

from ferrule.schema.inline import inline_definitions
from ferrule.schema.nodes import Schema, is_list, is_object, members, resolve_reference

if TYPE_CHECKING:
    from collections.abc import Iterable

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
_DEEPEST = 12
"""The most levels of nested models, because a recursive schema has no end.

Deeper values stay unchanged.
"""
_MOST = 2_000
_MOST_IN_MODELS = 300
"""The most schemas in one type, and in nested models. The rest is `Any`.

Definitions that refer to each other have no end.
"""


class InputArguments(dict[str, Any]):
    """The schemas of arguments by name, of which some are required."""

    def __init__(self, schemas: Schema, required: Iterable[str]) -> None:
        super().__init__(schemas)
        self.required = frozenset(required)
        """The arguments that must be given. A dict of schemas alone cannot say this."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self), self.required)


def convert_input_schema_to_tool_args(
    schema: Schema,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Return `(args, arg_types, arg_desc)`, each by argument, for `Tool(function, args=args, ...)`.

    Its schema with references inlined, its Python type, its description.

    `arg_desc` has only the arguments that the schema describes. Types are as exact as `typing`
    allows: `int | None`, `list[str]`. `args` also knows which arguments the schema requires: pass
    it on as it is, and the others stay optional.
    """
    whole = inline_definitions(schema)
    required: Any = whole.get("required")
    args = InputArguments(members(whole, "properties"), required if is_list(required) else ())
    types: dict[str, Any] = {}
    descriptions: dict[str, str] = {}
    for name, schema_of_argument in args.items():
        types[name] = python_type(schema_of_argument, whole)
        resolved = resolve_reference(schema_of_argument, whole)
        if is_object(resolved) and isinstance(resolved.get("description"), str):
            descriptions[name] = resolved["description"]
    return args, types, descriptions


def python_type(schema: Any, root: Schema) -> Any:
    """The type for a schema; `Any` if the schema says nothing, or more than a type can express."""
    return _type(schema, root, 0, count())


def _type(schema: Any, root: Schema, depth: int, seen: count[int]) -> Any:
    node = resolve_reference(schema, root)
    if not is_object(node) or depth > _DEEPEST or next(seen) > _MOST:
        return Any
    if "const" in node:
        return _literal([node["const"]])
    if is_list(node.get("enum")):
        return _literal(node["enum"])
    for key in ("anyOf", "oneOf"):
        if is_list(node.get(key)):
            return _union([_type(branch, root, depth + 1, seen) for branch in node[key]])
    kind: Any = node.get("type")
    if is_list(kind):
        return _union([_of_kind(name, node, root, depth, seen) for name in kind])
    return _of_kind(kind, node, root, depth, seen)


def _of_kind(kind: Any, node: Schema, root: Schema, depth: int, seen: count[int]) -> Any:
    if kind == "array" and "items" in node and not is_list(node["items"]):
        item: Any = _type(node["items"], root, depth + 1, seen)
        if item is Any:
            return list
        return list[item]
    more: Any = node.get("additionalProperties")
    if kind == "object" and "properties" not in node and is_object(more):
        value: Any = _type(more, root, depth + 1, seen)
        return dict[str, value]
    if not isinstance(kind, str):
        return Any
    return _TYPES.get(kind, Any)


def _literal(values: list[Any]) -> Any:
    plain = [value for value in values if value is None or isinstance(value, (str, int, bool))]
    if not plain or len(plain) < len(values):
        return Any
    literal: Any = Literal
    return literal[tuple(plain)]


def _union(types: list[Any]) -> Any:
    if Any in types or not types:
        return Any
    return Union[tuple(types)]  # noqa: UP007  some types here have no `|`


# -- typed results


def typed_value(value: Any, schema: Schema | None, wanted: Any = None) -> Any:
    """Convert a structured value to the wanted type, or to a model made from its schema.

    It stays unchanged if it does not fit.

    If the schema has `x-fastmcp-wrap-result`, the server has wrapped the value in an object under
    `result`, and it is unwrapped.
    """
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    part: Any = schema
    is_wrapped = schema is not None and schema.get("x-fastmcp-wrap-result") is True
    if schema is not None and is_wrapped and is_object(value) and "result" in value:
        value, part = value["result"], members(schema, "properties").get("result")
    if wanted is None and is_object(part):
        wanted = model_of(part, schema)
    if wanted is None:
        return value
    try:
        return TypeAdapter(wanted).validate_python(value)
    except (ValidationError, PydanticUserError, RecursionError):
        return value


def model_of(schema: Schema, root: Schema | None = None) -> Any:
    """A type for an output schema; None if there is none.

    Pydantic models for objects, and `python_type` for anything else. References are resolved in
    `root`, by default the schema itself.
    """
    if root is None:
        root = schema
    model = _model(schema, root, "Result", 0, count())
    if model is Any:
        return None
    return model


def _model(schema: Any, root: Schema, name: str, depth: int, seen: count[int]) -> Any:
    node = resolve_reference(schema, root)
    if not is_object(node) or depth > _DEEPEST or next(seen) > _MOST_IN_MODELS:
        return Any
    for key in ("anyOf", "oneOf"):
        if is_list(node.get(key)):
            models = [
                _model(branch, root, f"{name}{i}", depth + 1, seen)
                for i, branch in enumerate(node[key])
            ]
            return _union(models)
    if node.get("type") == "array" and is_object(node.get("items")):
        item: Any = _model(node["items"], root, f"{name}Item", depth + 1, seen)
        return list[item]
    properties: Any = node.get("properties")
    if node.get("type") != "object" or not is_object(properties) or not all(properties):
        return _type(node, root, 0, seen)
    from pydantic import ConfigDict, create_model
    from pydantic import Field as FieldOf

    required: Any = node.get("required") or ()
    fields: dict[str, Any] = {}
    for i, (key, part) in enumerate(properties.items()):
        kind: Any = _model(part, root, f"{name}{_camel(key)}", depth + 1, seen)
        field_name = key
        if _clashes(key):
            field_name = f"field_{i}"
        if key in required:
            fields[field_name] = (kind, FieldOf(alias=key))
        else:  # `_union` leaves `Any` as it is
            fields[field_name] = (_union([kind, type(None)]), FieldOf(default=None, alias=key))
    title = node.get("title")
    if isinstance(title, str) and title.isidentifier():
        name = title
    return create_model(
        name,
        __config__=ConfigDict(extra="allow", populate_by_name=True, protected_namespaces=()),
        **fields,
    )


def _clashes(name: str) -> bool:
    from pydantic import BaseModel

    return (
        not name.isidentifier()
        or keyword.iskeyword(name)
        or name.startswith("_")
        or hasattr(BaseModel, name)
    )


def _camel(name: str) -> str:
    words = name.replace("-", "_").split("_")
    return "".join(word.capitalize() for word in words if word.isidentifier())
