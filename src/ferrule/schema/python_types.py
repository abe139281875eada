"""Convert JSON schemas to Python types: the types of arguments, and pydantic models for output schemas.

The types are for readers and callers. A schema may express more than a type can; values are still
checked against the schema.
"""

from __future__ import annotations

import keyword
from itertools import count
from typing import Any, Literal, Union

from ferrule.schema.inline import inline_definitions
from ferrule.schema.nodes import Schema, is_list, is_object, members, resolve_reference

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
"""The most levels of nested models, because a recursive schema has no end. Deeper values stay unchanged."""
_MOST = 2_000
_MOST_IN_MODELS = 300
"""The most schemas in one type, and in nested models. The rest is `Any`: definitions that refer to each other have no end."""


def convert_input_schema_to_tool_args(
    schema: Schema,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Return `(args, arg_types, arg_desc)`, each by argument: its schema with references inlined, its Python type, its description.

    `arg_desc` has only the arguments that the schema describes. Types are as exact as `typing`
    allows: `int | None`, `list[str]`.
    """
    whole = inline_definitions(schema)
    args = dict(members(whole, "properties"))
    types = {name: python_type(each, whole) for name, each in args.items()}
    said = {name: resolve_reference(each, whole) for name, each in args.items()}
    texts = {
        name: each["description"]
        for name, each in said.items()
        if is_object(each) and isinstance(each.get("description"), str)
    }
    return args, types, texts


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
            return _union([_type(each, root, depth + 1, seen) for each in node[key]])
    kind: Any = node.get("type")
    if is_list(kind):
        return _union([_of_kind(each, node, root, depth, seen) for each in kind])
    return _of_kind(kind, node, root, depth, seen)


def _of_kind(kind: Any, node: Schema, root: Schema, depth: int, seen: count[int]) -> Any:
    if kind == "array" and "items" in node and not is_list(node["items"]):
        held: Any = _type(node["items"], root, depth + 1, seen)
        return list if held is Any else list[held]
    if (
        kind == "object"
        and "properties" not in node
        and is_object(node.get("additionalProperties"))
    ):
        held = _type(node["additionalProperties"], root, depth + 1, seen)
        return dict[str, held]
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any


def _literal(values: list[Any]) -> Any:
    plain = [each for each in values if each is None or isinstance(each, (str, int, bool))]
    if not plain or len(plain) < len(values):
        return Any
    return Literal[tuple(plain)]  # pyright: ignore[reportReturnType]  made of values, as no annotation can be


def _union(types: list[Any]) -> Any:
    return Any if Any in types or not types else Union[tuple(types)]  # noqa: UP007  works for what has no `|`


# -- typed results
# --------------------------------------------------------------------------------------------------


def typed_value(value: Any, schema: Schema | None, wanted: Any = None) -> Any:
    """Convert a structured value to the wanted type, or to a model made from its schema. Unchanged if it does not fit.

    If the schema has `x-fastmcp-wrap-result`, the server has wrapped the value in an object under
    `result`, and it is unwrapped.
    """
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    inside, part = value, schema
    if (
        schema is not None
        and schema.get("x-fastmcp-wrap-result") is True
        and is_object(value)
        and "result" in value
    ):
        inside, part = value["result"], members(schema, "properties").get("result")
    target = wanted
    if target is None:
        target = model_of(part, schema) if is_object(part) else None
    if target is None:
        return inside
    try:
        return TypeAdapter(target).validate_python(inside)
    except (ValidationError, PydanticUserError, RecursionError):
        return inside


def model_of(schema: Schema, root: Schema | None = None) -> Any:
    """A type for an output schema: pydantic models for objects, and `python_type` for anything else. None if there is no type.

    References are resolved in `root`, by default the schema itself.
    """
    made = _model(schema, root if root is not None else schema, "Result", 0, count())
    return None if made is Any else made


def _model(schema: Any, root: Schema, name: str, depth: int, seen: count[int]) -> Any:
    node = resolve_reference(schema, root)
    if not is_object(node) or depth > _DEEPEST or next(seen) > _MOST_IN_MODELS:
        return Any
    for key in ("anyOf", "oneOf"):
        if is_list(node.get(key)):
            return _union(
                [
                    _model(each, root, f"{name}{i}", depth + 1, seen)
                    for i, each in enumerate(node[key])
                ],
            )
    if node.get("type") == "array" and is_object(node.get("items")):
        held: Any = _model(node["items"], root, f"{name}Item", depth + 1, seen)
        return list[held]
    properties: Any = node.get("properties")
    if node.get("type") != "object" or not is_object(properties) or not all(properties):
        return _type(node, root, 0, seen)
    from pydantic import ConfigDict, create_model
    from pydantic import Field as FieldOf

    required: Any = node.get("required") or ()
    fields: dict[str, Any] = {}
    for i, (key, each) in enumerate(properties.items()):
        kind: Any = _model(each, root, f"{name}{_camel(key)}", depth + 1, seen)
        optional = key not in required
        own = key if not _clashes(key) else f"field_{i}"
        default: Any = FieldOf(default=None, alias=key) if optional else FieldOf(alias=key)
        fields[own] = (
            _union([kind, type(None)]) if optional and kind is not Any else kind,
            default,
        )
    title = node.get("title")
    label = title if isinstance(title, str) and title.isidentifier() else name
    return create_model(
        label,
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
    return "".join(
        each.capitalize() for each in name.replace("-", "_").split("_") if each.isidentifier()
    )
