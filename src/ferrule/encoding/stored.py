"""Read stored JSON, which may have been truncated, overwritten or edited since ferrule wrote it.

Damaged data raises one of ferrule's errors, which says what the data should be. It never becomes a
value of the wrong type.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ferrule.encoding.pattern import pattern
from ferrule.errors import FerruleError, RunError, StoreError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

LAST_TIME = 253402300799
"""The end of the year 9999, in seconds since 1970: the last time that a date can represent."""
DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "float": (int, float), "None": (type(None),),
    "dict[str, Any]": (dict,), "Mapping[str, Any]": (dict,),
}  # fmt: skip
_Plain = tuple[str, str, "frozenset[str] | None", frozenset[type]]
"""A field: its name, its annotation, and either the texts of its literals or its types."""
_LITERAL = pattern(r"Literal\[([^\]]*)\]")


@contextmanager
def reading(
    what: str | Callable[[], str], raises: type[FerruleError] = StoreError
) -> Generator[None]:
    """A context manager or decorator for code that reads `what` from stored data.

    An error that damage causes is raised as `raises`.

    `what` may be a function that makes the text; it is called only for an error.
    """
    try:
        yield
    except DAMAGE as error:
        if isinstance(error, RunError if raises is StoreError else FerruleError):
            raise
        raise damaged(what if isinstance(what, str) else what(), error, raises) from error


def damaged(
    what: str, error: BaseException, raises: type[FerruleError] = StoreError
) -> FerruleError:
    """The error for stored data, described by `what`, whose reading raised one of `DAMAGE`."""
    if not isinstance(error, RecursionError):
        found = f"{type(error).__name__}: {error}"
    else:
        found = "it is nested too deeply"
    return raises(
        f"{what} cannot be read: damaged or changed by hand ({found}). "
        "Restore it from a backup, or do without it."
    )


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises `ValueError` for anything else, including NaN and infinities, and `RecursionError` for
    deep nesting.
    """
    if not isinstance(text, str):
        return json.loads(text, parse_constant=_refuse_constant)
    try:
        found, end = _DECODER.raw_decode(text)
    except ValueError:
        found, end = None, -1
    return (
        found if end == len(text) else _DECODER.decode(text)
    )  # which skips white space around it, twice as slow, or raises


def parse_object(text: Any, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raises a `StoreError` that says that `what` was expected."""
    try:
        found = (
            parse_json(text) if isinstance(text, str) else None
        )  # not bytes, which may be a pickle
    except (ValueError, RecursionError) as error:
        raise StoreError(f"This is not {what}, which is JSON text: found {shown(text)}.") from error
    if not isinstance(found, dict):
        raise StoreError(f"This is not {what}, which is a JSON object: found {shown(text)}.")
    return cast("dict[str, Any]", found)


def check_fields(value: Any) -> Any:
    """Check the plain fields of a record read from JSON against their annotations.

    Returns the record, or raises `TypeError`.
    """
    fields, values_of, passed = _plain_fields(value.__class__)
    types = tuple(map(type, values_of(value)))
    if types not in passed:
        for name, annotation, literals, kinds in fields:
            found = getattr(value, name)
            if repr(found) not in literals if literals is not None else type(found) not in kinds:
                raise TypeError(f"`{name}` is {shown(found)}, not {annotation}")
        if all(each[2] is None for each in fields):  # otherwise the types do not decide
            passed.add(types)
    return value


@cache
def _plain_fields(
    kind: type,
) -> tuple[list[_Plain], Callable[[Any], tuple[Any, ...]], set[tuple[type, ...]]]:
    """The fields of a class with plain annotations.

    With a function that reads their values, and the sets of types that passed.
    """
    found: list[_Plain] = []
    for (
        name,
        annotation,
    ) in kind.__annotations__.items():  # a value of another type has no annotations
        literal = _LITERAL.fullmatch(annotation)
        kinds = [_KINDS.get(each) for each in annotation.split(" | ")]
        if literal is not None:
            found.append((name, annotation, frozenset(literal[1].split(", ")), frozenset()))
        elif None not in kinds:
            found.append((name, annotation, None, frozenset(sum(filter(None, kinds), ()))))
    return (
        found,
        attrgetter("__class__", "__class__", *[each[0] for each in found]),
        set(),
    )  # a tuple also for a class without such fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once: `json.loads` would make one for each text."""
