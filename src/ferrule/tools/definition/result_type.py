"""The type of result that a function declares, as JSON Schema."""

from __future__ import annotations

import inspect
import types
from typing import Any, Union, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from ferrule.schema.inline import json_schema_of
from ferrule.tools.definition.inspect_function import return_type
from ferrule.values.calls.later import Later

_NO_VALIDATOR = (PydanticUserError, SchemaError, TypeError, ValueError, NameError)
"""The errors that pydantic raises for a type without a validator."""


def result_schema(function: Any) -> dict[str, Any] | None:
    """The JSON Schema of a function's declared result, apart from `Later`.

    None if it declares none, or one that JSON Schema cannot express: then any JSON value fits.
    """
    declared = return_type(function)
    if get_origin(declared) in {Union, types.UnionType}:
        others = tuple(kind for kind in get_args(declared) if kind is not Later)
        declared = Union[others]  # noqa: UP007  the members are known only now
    if declared in {inspect.Parameter.empty, Later, Any} or isinstance(declared, str):
        return None
    try:
        return json_schema_of(TypeAdapter(declared)) or None
    except _NO_VALIDATOR:
        return None
