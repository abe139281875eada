"""Read stored JSON, which may have been truncated, overwritten or edited since ferrule wrote it.

Damaged data raises one of ferrule's errors, which says what the data should be. It never becomes a
value of the wrong type.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from pydantic_core import from_json

from ferrule.encoding.pattern import pattern
from ferrule.errors import FerruleError, RunError, StoreError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

LAST_TIME = 253402300799
"""The end of the year 9999, in seconds since 1970: the last time that a date can represent."""
DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "None": (type(None),),
    "dict[str, Any]": (dict,),
    "Mapping[str, Any]": (dict,),
}
"""The types of plain annotations. A bool is not an int here: JSON tells them apart."""
_LITERAL = pattern(r"Literal\[([^\]]*)\]")


@contextmanager
def reading(
    what: str | Callable[[], str], raises: type[FerruleError] = StoreError
) -> Generator[None]:
    """A context manager or decorator for code that reads `what` from stored data.

    An error that damage causes is raised as `raises`. `what` may be a function that makes the text;
    it is called only for an error.
    """
    try:
        yield
    except DAMAGE as error:
        already_told: type[FerruleError] = FerruleError
        if raises is StoreError:
            already_told = RunError
        if isinstance(error, already_told):
            raise
        if not isinstance(what, str):
            what = what()
        raise damaged(what, error, raises) from error


def damaged(
    what: str, error: BaseException, raises: type[FerruleError] = StoreError
) -> FerruleError:
    """The error for stored data, described by `what`, whose reading raised one of `DAMAGE`."""
    if isinstance(error, RecursionError):
        reason = "it is nested too deeply"
    else:
        reason = f"{type(error).__name__}: {error}"
    return raises(
        f"{what} cannot be read: damaged or changed by hand ({reason}). "
        "Restore it from a backup, or do without it."
    )


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises `ValueError` for anything else, including NaN and infinities, and `RecursionError` for
    deep nesting.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except (TypeError, ValueError):  # not JSON, too deep for it, or half of a surrogate pair
        return json.loads(text, parse_constant=_refuse_constant)


def parse_object(text: Any, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raises a `StoreError` that says that `what` was expected."""
    value: Any = None
    if isinstance(text, str):  # bytes may be a pickle
        try:
            value = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"This is not {what}, which is JSON text: found {shown(text)}."
            ) from error
    if not isinstance(value, dict):
        raise StoreError(f"This is not {what}, which is a JSON object: found {shown(text)}.")
    return cast("dict[str, Any]", value)


def check_fields(value: Any) -> Any:
    """Check the plain fields of a record read from JSON against their annotations.

    Returns the record, or raises `TypeError`.
    """
    for field in _plain_fields(value.__class__):
        content = getattr(value, field.name)
        if field.literals:
            fits = repr(content) in field.literals
        else:
            fits = type(content) in field.types
        if not fits:
            raise TypeError(f"`{field.name}` is {shown(content)}, not {field.annotation}")
    return value


class _PlainField(NamedTuple):
    """A field whose annotation says which JSON values it takes."""

    name: str
    annotation: str
    literals: frozenset[str]
    """The `repr` of each value of a `Literal`; empty for another annotation."""
    types: frozenset[type]


@cache
def _plain_fields(record_type: type) -> tuple[_PlainField, ...]:
    """The fields of a class with plain annotations; those of other types are not checked."""
    fields: list[_PlainField] = []
    for name, annotation in record_type.__annotations__.items():
        literal = _LITERAL.fullmatch(annotation)
        if literal is not None:
            literals = frozenset(literal[1].split(", "))
            fields.append(_PlainField(name, annotation, literals, frozenset()))
            continue
        parts = annotation.split(" | ")
        if all(part in _TYPES for part in parts):
            types = frozenset(kind for part in parts for kind in _TYPES[part])
            fields.append(_PlainField(name, annotation, frozenset(), types))
    return tuple(fields)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")
