"""Reading stored JSON: a file that ferrule wrote may have been cut off, overwritten or edited since.

Damaged data raises ferrule's own error, with what it should be; it never reaches a program as a value of the wrong type.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from ferrule.errors import FerruleError, RunError, StoreError, shown
from ferrule.values.encoding.pattern import pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "float": (int, float), "None": (type(None),),
    "dict[str, Any]": (dict,), "Mapping[str, Any]": (dict,),
}  # fmt: skip
_LITERAL = pattern(r"Literal\[([^\]]*)\]")


@contextmanager
def reading(what: str | Callable[[], str], raises: type[FerruleError] = StoreError) -> Generator[None]:
    """A block, or a function, that reads `what` from stored data: whatever the damage does to it becomes a `raises`.

    `what` may be a function that makes the text, which is called only then.
    """
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, RunError if raises is StoreError else FerruleError):
            raise
        found = f"{type(error).__name__}: {error}" if not isinstance(error, RecursionError) else "it is nested too deeply"
        what = what if isinstance(what, str) else what()
        raise raises(f"{what} cannot be read: damaged or changed by hand ({found}). Restore it from a backup, or do without it.") from error


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raises `ValueError` for anything else, also for NaN and infinities, and `RecursionError` for deep nesting."""
    return _DECODER.decode(text) if isinstance(text, str) else json.loads(text, parse_constant=_refuse_constant)


def check_fields(value: Any) -> Any:
    """Check the plain fields of a record read from JSON against their annotations, and return it; raises `TypeError`."""
    for name, annotation, literals, kinds in _plain_fields(value.__class__):
        found = getattr(value, name)
        if repr(found) not in literals if literals is not None else type(found) not in kinds:
            raise TypeError(f"`{name}` is {shown(found)}, not {annotation}")
    return value


@cache
def _plain_fields(kind: type) -> tuple[tuple[str, str, frozenset[str] | None, frozenset[type]], ...]:
    """Of a class: each field with a plain annotation, and either the texts of its literals or its types."""
    found: list[tuple[str, str, frozenset[str] | None, frozenset[type]]] = []
    for name, annotation in kind.__annotations__.items():  # a value of another type has no annotations
        literal = _LITERAL.fullmatch(annotation)
        kinds = [_KINDS.get(each) for each in annotation.split(" | ")]
        if literal is not None:
            found.append((name, annotation, frozenset(literal[1].split(", ")), frozenset()))
        elif None not in kinds:
            found.append((name, annotation, None, frozenset(sum(filter(None, kinds), ()))))
    return tuple(found)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""`json.loads` would make one for each text."""
