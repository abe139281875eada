"""Iterables in types and values become lists.

Pydantic checks iterables lazily, and yields their items only once. A lazy value would hide items
that do not fit, and be empty when read again. `Literal`s of `Enum` members are corrected here, too:
pydantic writes the values of the members into its schema, but accepts only the members.
"""

from __future__ import annotations

import operator
import types
import typing
from collections import abc
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

from pydantic_core import PydanticCustomError, ValidationError

from ferrule.schema.nodes import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import TypeAdapter
    from pydantic_core import InitErrorDetails

_Path = tuple[str | int, ...]
_ITERATORS: tuple[Any, ...] = (abc.Iterator, abc.Generator)
_NO_VALIDATORS = frozenset({"metadata", "default", "serialization", "expected"})
_NO_TYPES_INSIDE: tuple[Any, ...] = (typing.Literal, cast("Any", abc).Callable)


def eager_type(hint: Any, *, of_iterator: Any = None) -> Any:
    """Replace iterables in a type with lists, as pydantic would check them lazily.

    `Enum` members in a `Literal` can then be read by value.
    If the type itself is an iterator, it gets the metadata `of_iterator`.
    """
    origin, inside = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        made = eager_type(inside[0], of_iterator=of_iterator)
        if made is inside[0]:
            return hint
        # After the other metadata, so that a bound on the number of items applies to the list.
        bare, *behind = get_args(made) if get_origin(made) is Annotated else (made,)
        return Annotated[(bare, *inside[1:], *behind)]
    if origin is abc.Iterable or origin in _ITERATORS:
        items: Any = list[eager_type(inside[0])] if inside else list
        if of_iterator is not None and origin in _ITERATORS:
            return Annotated[items, of_iterator]
        return items
    if origin is typing.Literal and any(map(_is_bare_member, inside)):
        from pydantic import BeforeValidator  # late: few types need it

        return Annotated[hint, BeforeValidator(partial(_member, inside))]
    if not inside or origin in _NO_TYPES_INSIDE:
        return hint
    is_union = origin in {typing.Union, types.UnionType}
    new = tuple(
        [eager_type(each, of_iterator=of_iterator if is_union else None) for each in inside],
    )
    if all(one is other for one, other in zip(new, inside, strict=True)):
        return hint
    if is_union:
        return cast("Any", typing.Union)[new]
    return hint.copy_with(new) if hasattr(hint, "copy_with") else origin[new]


def _is_bare_member(each: Any) -> bool:
    return isinstance(each, Enum) and not isinstance(each, (str, int))


def _member(choices: tuple[Any, ...], value: Any) -> Any:
    """The member of a `Literal` that has this value, unless the value is a choice itself."""
    if value in choices:
        return value
    of_value = (each for each in choices if isinstance(each, Enum) and each.value == value)
    return next(
        (each for each in of_value if isinstance(each.value, bool) == isinstance(value, bool)),
        value,
    )


def validator_kinds(core_schema: Any) -> frozenset[str]:
    """The kinds of validators in a core schema, by pydantic's names.

    For example `"generator"` for an iterator in a model's field.
    """
    return frozenset(
        each["type"] for each in core_nodes(core_schema) if isinstance(each.get("type"), str)
    )


def core_nodes(core_schema: Any) -> Iterator[dict[str, Any]]:
    """The objects in a core schema, outermost first."""
    waiting: list[Any] = [core_schema]
    seen: set[int] = set()
    for each in waiting:
        if id(each) in seen:
            continue
        seen.add(id(each))
        if is_object(each):
            yield each
            waiting.extend(value for key, value in each.items() if key not in _NO_VALIDATORS)
        elif is_list(each):
            waiting.extend(each)


def eager_validators(
    adapter: TypeAdapter[Any],
) -> tuple[Callable[[Any], Any], Callable[[str | bytes], Any]]:
    """The adapter's validators of Python values and of JSON.

    Iterators in the fields of models are replaced by lists.
    """
    if "generator" not in validator_kinds(adapter.core_schema):
        return adapter.validate_python, adapter.validate_json

    def validate_python(value: Any) -> Any:
        return read_iterators(adapter.validate_python(value))

    def validate_json(text: str | bytes) -> Any:
        return read_iterators(adapter.validate_json(text))

    return validate_python, validate_json


# -- iterators in the fields of models
# --------------------------------------------------------------------------------------------


def read_iterators(value: Any, path: _Path = ()) -> Any:
    """Replace pydantic's lazy iterators with lists.

    Raises `ValidationError` for an item that does not fit.
    """
    if type(value).__name__ == "ValidatorIterator":
        try:
            return [read_iterators(each, (*path, i)) for i, each in enumerate(value)]
        except ValidationError as error:
            raise _located(error, path) from None
    if isinstance(value, (tuple, set, frozenset)):
        return _remade(cast("Any", value), path)
    for place, each in _inside(value):
        made = read_iterators(each, (*path, place))
        if made is not each:
            _put(value, place, made)
    return value


def _remade(value: Any, path: _Path) -> Any:
    items = list(value)
    made = [read_iterators(each, (*path, i)) for i, each in enumerate(items)]
    if all(map(operator.is_, items, made)):
        return value
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*made)
    return type(value)(made)


def _inside(value: Any) -> Iterator[tuple[str | int, Any]]:
    if is_object(value):
        yield from list(value.items())
    elif is_list(value):
        yield from enumerate(value)
    else:
        yield from [
            (name, getattr(value, name))
            for name in model_fields_of(type(value))
            if hasattr(value, name)
        ]


def model_fields_of(kind: Any) -> dict[str, Any]:
    """The fields of a model or dataclass type, by name; empty for any other type."""
    return (
        getattr(kind, "__pydantic_fields__", None)
        or getattr(kind, "__dataclass_fields__", None)
        or {}
    )


def _put(value: Any, place: str | int, made: Any) -> None:
    if isinstance(value, (dict, list)):
        cast("Any", value)[place] = made
    else:
        object.__setattr__(
            value,
            cast("str", place),
            made,
        )  # even if it is frozen: no other code has seen it yet


def _located(error: ValidationError, path: _Path) -> ValidationError:
    """The same error with its locations placed under the iterator's path.

    A location that starts with the path stays.
    """
    details: list[InitErrorDetails] = []
    for each in error.errors(include_url=False):
        kind = PydanticCustomError(
            cast("Any", each["type"]),
            cast("Any", each["msg"]),
            each.get("ctx"),
        )
        loc = each["loc"] if each["loc"][: len(path)] == path and path else (*path, *each["loc"])
        details.append({"type": kind, "loc": loc, "input": each["input"]})
    return ValidationError.from_exception_data(error.title, details)
