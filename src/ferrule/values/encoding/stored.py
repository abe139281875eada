"""Reading stored JSON: a file that ferrule wrote may have been cut off, overwritten or edited since.

Damaged data raises ferrule's own error, with what it should be; it never reaches a program as a value of the wrong type.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from ferrule.errors import FerruleError, RunError, StoreError, shown

if TYPE_CHECKING:
    from collections.abc import Generator

_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "float": (int, float), "None": (type(None),),
    "dict[str, Any]": (dict,), "Mapping[str, Any]": (dict,),
}  # fmt: skip
_LITERAL = re.compile(r"Literal\[([^\]]*)\]")


@contextmanager
def reading(what: str, raises: type[FerruleError] = StoreError) -> Generator[None]:
    """A block, or a function, that reads `what` from stored data: whatever the damage does to it becomes a `raises`."""
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, RunError if raises is StoreError else FerruleError):
            raise
        found = f"{type(error).__name__}: {error}" if not isinstance(error, RecursionError) else "it is nested too deeply"
        raise raises(f"{what} cannot be read: damaged or changed by hand ({found}). Restore it from a backup, or do without it.") from error


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raises `ValueError` for anything else, also for NaN and infinities, and `RecursionError` for deep nesting."""
    return json.loads(text, parse_constant=_refuse_constant)


def check_fields(value: Any) -> Any:
    """Check the plain fields of a record read from JSON against their annotations, and return it; raises `TypeError`."""
    for name, annotation in type(value).__annotations__.items():  # a value of another type has no annotations
        literal = _LITERAL.fullmatch(annotation)
        if literal is not None:
            fits = repr(getattr(value, name)) in literal[1].split(", ")
        else:
            kinds = [_KINDS.get(each) for each in annotation.split(" | ")]
            fits = None in kinds or type(getattr(value, name)) in sum(filter(None, kinds), ())
        if not fits:
            raise TypeError(f"`{name}` is {shown(getattr(value, name))}, not {annotation}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
