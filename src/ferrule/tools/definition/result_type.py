"""The type of result that a function declares, as JSON Schema."""

from __future__ import annotations

import inspect
import types
from typing import Any, Union, cast, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from ferrule.schema.inline import json_schema_of
from ferrule.tools.definition.inspect_function import return_type
from ferrule.values.calls.later import Later

_ANYTHING = (inspect.Parameter.empty, Later, Any)
_NO_VALIDATOR = (PydanticUserError, SchemaError, TypeError, ValueError, NameError)
"""The errors that pydantic raises for a type without a validator."""


def result_schema(function: Any) -> dict[str, Any] | None:
    """The JSON Schema of a function's declared result, apart from `Later`.

    None if it declares none, or one that JSON Schema cannot express: then any JSON value fits.
    """
    declared: Any = return_type(function)
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
