"""Python expressions as arguments: `seconds=2 * 60`, `when=datetime(2026, 11, 22)`.

Only numbers, dates, times and durations are computed, from literals. Any other constructor is read
as text: its source, or the text inside it.
"""

from __future__ import annotations

import ast
import datetime as dt
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import shown
from ferrule.schema.nodes import is_list
from ferrule.text_calls.arguments import kinds_of

if TYPE_CHECKING:
    from collections.abc import Callable

_KNOWN = frozenset(
    {
        "datetime",
        "date",
        "time",
        "timedelta",
        "timezone",
        "array",
        "asarray",
        "tensor",
        "range",
        "bytes",
        "complex",
        "object",
    }
)
_METHODS = frozenset(
    {
        "now",
        "today",
        "utcnow",
        "fromisoformat",
        "strptime",
        "fromtimestamp",
        "combine",
        "fromordinal",
        "isoformat",
        "strftime",
    }
)
_MADE: dict[str, Callable[..., Any]] = {
    "datetime": dt.datetime,
    "date": dt.date,
    "time": dt.time,
    "timedelta": dt.timedelta,
    "timezone": dt.timezone,
    "datetime.fromisoformat": dt.datetime.fromisoformat,
    "date.fromisoformat": dt.date.fromisoformat,
    "time.fromisoformat": dt.time.fromisoformat,
    "datetime.strptime": dt.datetime.strptime,
    "datetime.combine": dt.datetime.combine,
}
_SUMS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b,
}
_LARGEST = 1e15
_DATES = frozenset({"date", "date-time", "time", "duration"})


class UnreadableError(ValueError):
    """A constructor whose value does not fit its parameter."""


def arithmetic(operator: ast.operator, first: Any, second: Any) -> Any:
    """The result of arithmetic on plain numbers.

    Raises `ValueError` or `ArithmeticError` for anything else.
    """
    if isinstance(operator, ast.Pow) and abs(number(second)) > 64:
        raise ValueError("a power")
    if type(operator) not in _SUMS:
        raise ValueError(type(operator).__name__)
    return number(_SUMS[type(operator)](number(first), number(second)))


def number(value: Any) -> Any:
    """The value, if it is a plain number. Raises `ValueError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _LARGEST:
        raise ValueError("no number of use")
    return value


def is_constructor(node: ast.Call) -> bool:
    """Whether a call constructs a value: its name looks like a class or is a type of Python."""
    match node.func:
        case ast.Attribute(
            value=ast.Call() as inner, attr="isoformat" | "strftime" | "date" | "time"
        ):
            return is_constructor(inner)
        case ast.Attribute(value=ast.Name(id=made) | ast.Attribute(attr=made), attr=name) if (
            name in _METHODS
        ):
            return made in _KNOWN or made[:1].isupper()
        case ast.Name(id=name) | ast.Attribute(value=ast.Name() | ast.Attribute(), attr=name):
            return name in _KNOWN or name[:1].isupper()
        case _:
            return False


def read_constructor(node: ast.Call, source: str, schema: Any) -> tuple[str, str]:
    """The value of a constructor for a parameter with this schema, and the repair.

    Raises `UnreadableError` if there is no value.
    """
    kinds, formats = kinds_of(schema), _formats(schema)
    if kinds and "string" not in kinds:
        raise UnreadableError(
            f"{shown(source)} is Python code, and the parameter takes {_any_of(kinds)}: "
            "write the value itself"
        )
    if not formats and not (kinds & {"number", "integer"} and _name(node.func) == "Decimal"):
        return source, "unquoted_strings"
    inside = (
        node.args[0].value
        if len(node.args) == 1 and not node.keywords and isinstance(node.args[0], ast.Constant)
        else None
    )
    try:
        if formats & _DATES and (made := _iso(_value(node), formats)) is not None:
            return made, "dates"
    except (ValueError, TypeError, OverflowError, ArithmeticError, re.error, RecursionError):
        inside = (
            inside if not (found := _name(node.func)) or found.split(".")[0] not in _MADE else None
        )
    if isinstance(inside, str) or (
        not formats & _DATES and isinstance(inside, (int, float)) and not isinstance(inside, bool)
    ):
        return str(inside), "dates" if formats & _DATES else "unquoted_strings"
    raise UnreadableError(
        f"{shown(source)} is Python code, and no {_any_of(formats or kinds)}: "
        "write the value itself"
    )


def _any_of(names: set[str]) -> str:
    return " or ".join(sorted(names))


def _formats(schema: Any) -> set[str]:
    """The forms of text that a schema names."""
    if not isinstance(schema, Mapping):
        return set()
    found = cast("Mapping[str, Any]", schema)
    formats = {
        each
        for each in (found.get("format"), "text of its pattern" if "pattern" in found else None)
        if isinstance(each, str)
    }
    for key in ("anyOf", "oneOf"):
        branches: Any = found.get(key)
        if is_list(branches):
            formats = formats.union(*map(_formats, branches))
    return formats


def _iso(value: Any, formats: set[str]) -> str | None:
    """A date, time or duration in ISO 8601, as a parameter takes it."""
    match value:
        case dt.datetime():
            is_day = "date-time" not in formats and "date" in formats and value.time() == dt.time()
            return value.date().isoformat() if is_day else value.isoformat()
        case dt.date():
            is_moment = "date" not in formats and "date-time" in formats
            return (
                dt.datetime.combine(value, dt.time()).isoformat()
                if is_moment
                else value.isoformat()
            )
        case dt.time():
            return value.isoformat()
        case dt.timedelta():
            return _iso_duration(value)
        case _:
            return None


def _iso_duration(span: dt.timedelta) -> str:
    sign = ""
    if span < dt.timedelta():
        sign, span = "-", -span
    seconds = span.seconds + span.microseconds / 1_000_000
    duration = f"{sign}P"
    if span.days:
        duration += f"{span.days}D"
    if seconds or not span.days:
        duration += f"T{seconds:g}S"
    return duration


def _name(node: ast.expr) -> str:
    """The last two names of a callee if they make a date, as in `datetime.date.fromisoformat`.

    Otherwise its last name; empty if it has none.
    """
    match node:
        case ast.Attribute(value=ast.Name(id=made) | ast.Attribute(attr=made), attr=name) if (
            f"{made}.{name}" in _MADE
        ):
            return f"{made}.{name}"
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(), attr=name):
            return name
        case _:
            return ""


def _value(node: ast.expr) -> Any:
    """A date, time, duration or time zone, or a literal inside of one. Raises for anything else."""
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.Name(id="UTC") | ast.Attribute(attr="utc" | "UTC"):
            return dt.UTC
        case ast.Call(
            func=ast.Attribute(
                value=ast.Call() as inner, attr="isoformat" | "date" | "time" as method
            ),
            args=[],
            keywords=[],
        ):
            made = _value(inner)
            return (
                made
                if method == "isoformat" or not isinstance(made, dt.datetime)
                else getattr(made, method)()
            )
        case ast.Call(func=callee, args=args, keywords=keywords):
            make = _MADE.get(_name(callee))
            if make is None or any(each.arg is None for each in keywords):
                raise ValueError(ast.unparse(callee))
            return make(
                *map(_value, args), **{str(each.arg): _value(each.value) for each in keywords}
            )
        case _:
            raise ValueError(type(node).__name__)
