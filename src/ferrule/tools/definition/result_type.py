"""The type of result that a function declares, as JSON Schema."""

from __future__ import annotations

import inspect
import types
from typing import Any, Union, cast, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from ferrule.errors import ToolDefinitionError, shown
from ferrule.schema.inline import json_schema_of
from ferrule.schema.nodes import is_object
from ferrule.tools.definition.inspect_function import return_type
from ferrule.tools.definition.schema_rules import check_schema
from ferrule.values.calls.later import Later

_ANYTHING = (inspect.Parameter.empty, Later, Any)
_NO_VALIDATOR = (PydanticUserError, SchemaError, TypeError, ValueError, NameError)
"""The errors that pydantic raises for a type without a validator."""


def result_schema(function: Any, returns: Any = None) -> dict[str, Any] | None:
    """The JSON Schema of a tool's declared result, apart from `Later`.

    `returns` declares it if there is no function. None if nothing does, or if JSON Schema cannot
    express it: then any JSON value fits.
    """
    if is_object(returns) or (returns is None and function is None):
        return returns
    declared: Any = returns
    if function is not None:
        declared = return_type(function)
    if get_origin(declared) in {Union, types.UnionType}:
        others = tuple(kind for kind in get_args(declared) if kind is not Later)
        declared = cast("Any", Union[others])  # noqa: UP007  the members are known only now
    # By identity: annotated types may not be hashable.
    if any(declared is anything for anything in _ANYTHING) or isinstance(declared, str):
        return None
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(declared)
        return json_schema_of(adapter) or None
    except _NO_VALIDATOR:
        return None


def check_returns(name: str, returns: Any) -> None:
    """Raise `ToolDefinitionError` unless `returns` is a type with a JSON form, a schema or None."""
    if is_object(returns):
        check_schema(f"the result of `{name}`", returns)
        return
    if returns in (None, Any):
        return
    if result_schema(None, returns) is None:
        raise ToolDefinitionError(
            f"`returns` of `{name}` is a type with a JSON form, or a JSON schema; "
            f"found {shown(returns)}."
        )
