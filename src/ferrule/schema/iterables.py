"""Iterables in types and values become lists.

Pydantic checks iterables lazily, and yields their items only once. A lazy value would hide items
that do not fit, and would be empty when it is read again.

`Literal`s of `Enum` members are corrected here, too: pydantic writes the values of the members into
its schema, but accepts only the members.
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
_NO_TYPES_INSIDE: tuple[Any, ...] = (typing.Literal, cast("Any", abc).Callable)
"""Types whose arguments are not types of values."""
_NO_VALIDATORS = frozenset({"metadata", "default", "serialization", "expected"})
"""The keys of a core schema that hold data, not validators."""


def eager_type(hint: Any, *, of_iterator: Any = None) -> Any:
    """Replace the iterables in a type with lists; `Enum` members of a `Literal` are read by value.

    A type that is itself an iterator, or a union with one, gets the metadata `of_iterator` there.
    """
    origin = get_origin(hint) or hint
    arguments = get_args(hint)
    if origin is Annotated:
        return _eager_annotated(hint, of_iterator)
    if origin is abc.Iterable or origin in _ITERATORS:
        items: Any = list
        if arguments:
            items = list[eager_type(arguments[0])]
        if of_iterator is not None and origin in _ITERATORS:
            return Annotated[items, of_iterator]
        return items
    if origin is typing.Literal and any(map(_is_bare_member, arguments)):
        from pydantic import BeforeValidator  # late: few types need it

        return Annotated[hint, BeforeValidator(partial(_member, arguments))]
    if not arguments or origin in _NO_TYPES_INSIDE:
        return hint
    is_union = origin in {typing.Union, types.UnionType}
    if not is_union:  # an iterator deeper inside is not the value itself
        of_iterator = None
    eager = tuple(eager_type(argument, of_iterator=of_iterator) for argument in arguments)
    # If nothing changes, the hint itself: it may be an alias that cannot be rebuilt.
    if all(map(operator.is_, eager, arguments)):
        return hint
    if is_union:
        return cast("Any", typing.Union)[eager]
    if hasattr(hint, "copy_with"):  # aliases of `typing`, such as `List[int]`
        return hint.copy_with(eager)
    return origin[eager]


def _eager_annotated(hint: Any, of_iterator: Any) -> Any:
    bare, *metadata = get_args(hint)
    eager = eager_type(bare, of_iterator=of_iterator)
    if eager is bare:
        return hint
    # The new metadata comes last, so that a bound on the number of items applies to the list.
    if get_origin(eager) is Annotated:
        eager, *added = get_args(eager)
        metadata += added
    return Annotated[(eager, *metadata)]


def _is_bare_member(choice: Any) -> bool:
    return isinstance(choice, Enum) and not isinstance(choice, (str, int))


def _member(choices: tuple[Any, ...], value: Any) -> Any:
    """The member of a `Literal` that has this value, unless the value is a choice itself."""
    if value in choices:
        return value
    for choice in choices:
        if not isinstance(choice, Enum) or choice.value != value:
            continue
        # `True == 1` in Python, but not in JSON.
        if isinstance(choice.value, bool) == isinstance(value, bool):
            return choice
    return value


def validator_kinds(core_schema: Any) -> frozenset[str]:
    """The kinds of validators in a core schema, by pydantic's names, such as `"generator"`."""
    return frozenset(
        node["type"] for node in core_nodes(core_schema) if isinstance(node.get("type"), str)
    )


def core_nodes(core_schema: Any) -> Iterator[dict[str, Any]]:
    """The objects in a core schema, outermost first."""
    waiting: list[Any] = [core_schema]
    seen: set[int] = set()
    for node in waiting:  # the list grows while it is walked
        if id(node) in seen:
            continue
        seen.add(id(node))
        if is_object(node):
            yield node
            waiting.extend(value for key, value in node.items() if key not in _NO_VALIDATORS)
        elif is_list(node):
            waiting.extend(node)


def eager_validators(
    adapter: TypeAdapter[Any],
) -> tuple[Callable[[Any], Any], Callable[[str | bytes], Any]]:
    """The adapter's validators of Python values and of JSON, with lists for lazy iterators."""
    if "generator" not in validator_kinds(adapter.core_schema):
        return adapter.validate_python, adapter.validate_json

    def validate_python(value: Any) -> Any:
        return read_iterators(adapter.validate_python(value))

    def validate_json(text: str | bytes) -> Any:
        return read_iterators(adapter.validate_json(text))

    return validate_python, validate_json


# -- iterators in the fields of models


def read_iterators(value: Any, path: _Path = ()) -> Any:
    """Replace pydantic's lazy iterators with lists.

    Raises `ValidationError` for an item that does not fit.
    """
    if type(value).__name__ == "ValidatorIterator":
        try:
            return [read_iterators(item, (*path, i)) for i, item in enumerate(value)]
        except ValidationError as error:
            raise _located(error, path) from None
    if isinstance(value, (tuple, set, frozenset)):
        return _rebuilt(cast("Any", value), path)
    for step, part in _parts_of(value):
        read = read_iterators(part, (*path, step))
        if read is not part:
            _put(value, step, read)
    return value


def _rebuilt(value: Any, path: _Path) -> Any:
    """A tuple or set with its iterators read; the same object if there are none."""
    items = list(value)
    read = [read_iterators(item, (*path, i)) for i, item in enumerate(items)]
    if all(map(operator.is_, items, read)):
        return value
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*read)
    return type(value)(read)


def _parts_of(value: Any) -> Iterator[tuple[str | int, Any]]:
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


def _put(value: Any, step: str | int, part: Any) -> None:
    if isinstance(value, (dict, list)):
        cast("Any", value)[step] = part
    else:
        # Even if the object is frozen: no other code has seen it yet.
        object.__setattr__(value, cast("str", step), part)


def _located(error: ValidationError, path: _Path) -> ValidationError:
    """The same error with its locations placed under the iterator's path.

    A location that starts with the path stays.
    """
    details: list[InitErrorDetails] = []
    for problem in error.errors(include_url=False):
        copied = PydanticCustomError(
            cast("Any", problem["type"]), cast("Any", problem["msg"]), problem.get("ctx")
        )
        location = problem["loc"]
        if location[: len(path)] != path:
            location = (*path, *location)
        details.append({"type": copied, "loc": location, "input": problem["input"]})
    return ValidationError.from_exception_data(error.title, details)
