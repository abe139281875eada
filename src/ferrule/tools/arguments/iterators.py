"""Arguments that nobody else holds, and what can be read only once.

In: arguments as they came; types as they are written. Out: the same arguments in lists and dicts of their own, an iterator as a list of its
items; types that pydantic reads at once. Several checks follow one another, and what is shown is made before the call: each must see
every item, and so must the function. Of `Iterable[int]` pydantic makes an iterator that checks an item when it is asked for.
"""

from __future__ import annotations

import operator
import types
import typing
from collections import abc
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard, cast

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError, ValidationError

from ferrule.values.schema.nodes import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from pydantic_core import InitErrorDetails

_SCALARS = frozenset({int, str, bool, float, type(None)})
_NOTHING_MORE = frozenset({"builtins", "itertools"})
_ITERATORS: tuple[Any, ...] = (abc.Iterator, abc.Generator)
_NO_VALIDATORS = frozenset({"metadata", "default", "serialization", "expected"})
_NO_TYPES_INSIDE: tuple[Any, ...] = (typing.Literal, cast("Any", abc).Callable)


class Reread(list[Any]):
    """The items of an iterator, which the function gets as an iterator again."""


def copy_arguments(args: Any, takes_items: Callable[[str], bool]) -> Any:
    """The arguments in lists and dicts of their own: what a tool does to them must not change the call on record.

    Generators are read, and `map` and its like; so is any iterator in an argument whose type `takes_items`.
    """
    if not is_object(args):
        return args
    try:
        return {name: value if type(value) in _SCALARS else _outermost(value, name, takes_items) for name, value in args.items()}
    except RecursionError:  # deeper than any JSON text: the checks will say so
        return args


def _outermost(value: Any, name: str, takes_items: Callable[[str], bool]) -> Any:
    return Reread(cast("Any", value)) if _is_read(value, name, takes_items) else _copied(value, name, takes_items)


def _is_read(value: Any, name: str, takes_items: Callable[[str], bool]) -> TypeGuard[Iterator[Any]]:
    # What is more than an iterator (a file, a cursor) is the function's own to read, unless the type says that it is a list.
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
    """The items as a generator."""
    yield from items


# -- types --------------------------------------------------------------------------------------------------------


def eager_type(hint: Any) -> Any:
    """A type with lists for its iterables, whose items are all checked at once; an iterator as a whole becomes a `Reread`."""
    return _eager(hint, is_outermost=True)


def _eager(hint: Any, *, is_outermost: bool) -> Any:
    origin, inside = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Annotated:
        made = _eager(inside[0], is_outermost=is_outermost)
        if made is inside[0]:
            return hint
        # Behind what else is said of it: a bound on the number of items is one on the list.
        bare, *behind = typing.get_args(made) if typing.get_origin(made) is Annotated else (made,)
        return Annotated[(bare, *inside[1:], *behind)]
    if origin is abc.Iterable or origin in _ITERATORS:
        items: Any = list[_eager(inside[0], is_outermost=False)] if inside else list
        return Annotated[items, AfterValidator(Reread)] if is_outermost and origin in _ITERATORS else items
    if not inside or origin in _NO_TYPES_INSIDE:
        return hint
    is_union = origin in {typing.Union, types.UnionType}
    new = tuple([_eager(each, is_outermost=is_outermost and is_union) for each in inside])
    if all(one is other for one, other in zip(new, inside, strict=True)):
        return hint
    if is_union:
        return cast("Any", typing.Union)[new]
    return hint.copy_with(new) if hasattr(hint, "copy_with") else origin[new]


# -- iterators that are left: in the fields of models ---------------------------------------------------------------


def validator_kinds(core_schema: Any) -> frozenset[str]:
    """The kinds of validators that pydantic has made somewhere in one: `"generator"` for an iterator in a model's field, say."""
    waiting: list[Any] = [core_schema]
    seen: set[int] = set()
    found: set[str] = set()
    for each in waiting:
        if id(each) in seen:
            continue
        seen.add(id(each))
        if is_object(each):
            if isinstance(each.get("type"), str):
                found.add(each["type"])
            waiting.extend(value for key, value in each.items() if key not in _NO_VALIDATORS)
        elif is_list(each):
            waiting.extend(each)
    return frozenset(found)


def read_iterators(value: Any, path: tuple[str | int, ...] = ()) -> Any:
    """What pydantic made, with lists for its iterators. Raises `ValidationError` for an item that does not fit."""
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
        object.__setattr__(value, cast("str", place), made)  # also where it is frozen: nobody has it yet


def _located(error: ValidationError, path: tuple[str | int, ...]) -> ValidationError:
    """The same error with the path of the iterator before its own; an item that was read with its path keeps that."""
    details: list[InitErrorDetails] = []
    for each in error.errors(include_url=False):
        kind = PydanticCustomError(cast("Any", each["type"]), cast("Any", each["msg"]), each.get("ctx"))
        loc = each["loc"] if each["loc"][: len(path)] == path and path else (*path, *each["loc"])
        details.append({"type": kind, "loc": loc, "input": each["input"]})
    return ValidationError.from_exception_data(error.title, details)
