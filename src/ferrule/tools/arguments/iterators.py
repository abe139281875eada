"""Arguments copied for one call, with iterators read into lists.

Several checks look at the arguments before the function does, and an iterator gives its items only once. Copies keep the call on record
unchanged, whatever a tool does to its arguments.
"""

from __future__ import annotations

import operator
from collections import abc
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from pydantic_core import PydanticCustomError, ValidationError

from ferrule.tools.definition.parameters import Reread
from ferrule.values.schema.nodes import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from pydantic_core import InitErrorDetails

_SCALARS = frozenset({int, str, bool, float, type(None)})
_NOTHING_MORE = frozenset({"builtins", "itertools"})


def copy_arguments(args: Any, takes_items: Callable[[str], bool]) -> Any:
    """Copy the lists and dicts among the arguments, and read iterators into lists.

    Generators, `map` and the like are always read; any other iterator only if the argument's type `takes_items`.
    """
    if not is_object(args):
        return args
    try:
        return {name: value if type(value) in _SCALARS else _outermost(value, name, takes_items) for name, value in args.items()}
    except RecursionError:  # nested deeper than any JSON text: the checks report it
        return args


def _outermost(value: Any, name: str, takes_items: Callable[[str], bool]) -> Any:
    return Reread(cast("Any", value)) if _is_read(value, name, takes_items) else _copied(value, name, takes_items)


def _is_read(value: Any, name: str, takes_items: Callable[[str], bool]) -> TypeGuard[Iterator[Any]]:
    # A file or a cursor is more than an iterator: the function reads it, unless its type says that it is a list.
    return isinstance(value, abc.Iterator) and (cast("Any", type)(value).__module__ in _NOTHING_MORE or takes_items(name))


def _copied(value: Any, name: str, takes_items: Callable[[str], bool]) -> Any:
    kind = cast("Any", type(value))
    if kind in _SCALARS:
        return value
    if kind is dict:
        return {key: _copied(each, name, takes_items) for key, each in cast("dict[Any, Any]", value).items()}
    if kind is list:
        items = cast("list[Any]", value)
        return list(items) if _SCALARS.issuperset(map(type, items)) else [_copied(each, name, takes_items) for each in items]
    return [_copied(each, name, takes_items) for each in value] if _is_read(value, name, takes_items) else value


def iterate_again(items: Reread) -> Generator[Any]:
    """A generator over the items."""
    yield from items


# -- iterators in the fields of models ------------------------------------------------------------------------------


def read_iterators(value: Any, path: tuple[str | int, ...] = ()) -> Any:
    """Replace pydantic's lazy iterators by lists. Raises `ValidationError` for an item that does not fit."""
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


def _remade(value: Any, path: tuple[str | int, ...]) -> Any:
    items = list(value)
    made = [read_iterators(each, (*path, i)) for i, each in enumerate(items)]
    if all(map(operator.is_, items, made)):
        return value
    return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)  # the first: a named tuple


def _inside(value: Any) -> Iterator[tuple[str | int, Any]]:
    if is_object(value):
        yield from list(value.items())
    elif is_list(value):
        yield from enumerate(value)
    else:
        yield from [(name, getattr(value, name)) for name in fields_of_model(value) if hasattr(value, name)]


def fields_of_model(value: Any) -> dict[str, Any]:
    """The fields of a model or a dataclass, by name; empty for anything else."""
    kind = cast("Any", type(value))
    return getattr(kind, "__pydantic_fields__", None) or getattr(kind, "__dataclass_fields__", None) or {}


def _put(value: Any, place: str | int, made: Any) -> None:
    if isinstance(value, (dict, list)):
        cast("Any", value)[place] = made
    else:
        object.__setattr__(value, cast("str", place), made)  # also if it is frozen: no other code has seen it yet


def _located(error: ValidationError, path: tuple[str | int, ...]) -> ValidationError:
    """The same error, its locations under the path of the iterator; a location that starts with the path stays."""
    details: list[InitErrorDetails] = []
    for each in error.errors(include_url=False):
        kind = PydanticCustomError(cast("Any", each["type"]), cast("Any", each["msg"]), each.get("ctx"))
        loc = each["loc"] if each["loc"][: len(path)] == path and path else (*path, *each["loc"])
        details.append({"type": kind, "loc": loc, "input": each["input"]})
    return ValidationError.from_exception_data(error.title, details)
