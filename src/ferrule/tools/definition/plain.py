"""Parameters that need no validator: those of plain types and lists of these, each optionally None.

Arguments that match them exactly are checked by type alone. pydantic's first validator costs a
process 20 ms, and each validator takes most of the time that making a tool takes.
"""

from __future__ import annotations

import types
import typing
from copy import copy
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic_core import PydanticUndefined

from ferrule.encoding.encode import TYPE_NAMES, escape_surrogates, fits, is_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.schema.nodes import Schema
    from ferrule.tools.definition.inspect_function import FunctionSpec, Parameter

_UNIONS = (typing.Union, types.UnionType)


class Plain(NamedTuple):
    """A parameter of a plain type."""

    name: str
    kind: type
    """`str`, `int`, `float`, `bool` or `list`."""
    items: Any
    """The plain type of a list's items; None for other kinds."""
    may_be_none: bool
    default: Any
    """`PydanticUndefined` for none."""

    @property
    def schema(self) -> Schema:
        """The schema of its type, as pydantic generates it."""
        named: Schema = {"type": TYPE_NAMES[self.kind if self.items is None else self.items]}
        if self.items is not None:
            named = {"items": named, "type": "array"}
        return {"anyOf": [named, {"type": "null"}]} if self.may_be_none else named


def plain_parameters(found: FunctionSpec) -> tuple[Plain, ...]:
    """All parameters, if all are plain and their defaults fit; otherwise an empty tuple."""
    plain = [_plain(each) for each in found.parameters]
    return (
        tuple([each for each in plain if each is not None])
        if None not in plain and found.extra is None
        else ()
    )


def plain_schema(plain: tuple[Plain, ...], docs: Mapping[str, str]) -> Schema:
    """The schema that pydantic would generate, in its order of keywords."""
    properties: Schema = {}
    for each in plain:
        said = each.schema
        if each.default is not PydanticUndefined:
            said["default"] = (
                each.default if each.items is None else copy(each.default)
            )  # the function may change its own list
        if docs.get(each.name):
            said["description"] = escape_surrogates(docs[each.name])
        properties[each.name] = dict(sorted(said.items()))
    return {
        "type": "object",
        "properties": properties,
        "required": [each.name for each in plain if each.default is PydanticUndefined],
    }


def _plain(parameter: Parameter) -> Plain | None:
    kind, items, default = parameter.annotation, None, parameter.default
    may_be_none = default is None
    if (
        typing.get_origin(kind) in _UNIONS
        and len(inside := [each for each in typing.get_args(kind) if each is not NoneType]) == 1
    ):
        kind, may_be_none = inside[0], True
    if typing.get_origin(kind) is list and len(inside := typing.get_args(kind)) == 1:
        kind, items = list, inside[0]
    if not is_plain(kind if items is None else items) or parameter.may_be_missing:
        return None
    if default is not PydanticUndefined and default is not None and not _fits(kind, items, default):
        return None
    return Plain(parameter.name, kind, items, may_be_none, default)


def _fits(kind: Any, items: Any, value: Any) -> bool:
    return (
        fits(kind, value)
        if items is None
        else type(value) is list and all(fits(items, each) for each in cast("list[Any]", value))
    )
