"""Values of Python expressions as arguments: `seconds=2 * 60`, `when=datetime(2026, 11, 22)`.

Nothing is evaluated by Python. Only literals, arithmetic on them, dates, times and durations have
values. Any other constructor is read as text: its source, or the text inside it.
"""

from __future__ import annotations

import ast
import datetime as dt
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import to_jsonable_python

from ferrule.errors import shown
from ferrule.schema.nodes import branches_of
from ferrule.text_calls.arguments import kinds_of, schema_of_part

if TYPE_CHECKING:
    from collections.abc import Callable

CONSTANTS = {
    "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
}  # fmt: skip
_TYPE_NAMES = frozenset({
    "str", "string", "int", "integer", "float", "number", "bool", "boolean", "list", "dict",
    "array", "object", "any",
})  # fmt: skip
_CONSTRUCTORS = frozenset({
    "datetime", "date", "time", "timedelta", "timezone", "array", "asarray", "tensor", "range",
    "bytes", "complex", "object",
})  # fmt: skip
_METHODS = frozenset({
    "now", "today", "utcnow", "fromisoformat", "strptime", "fromtimestamp", "combine",
    "fromordinal", "isoformat", "strftime",
})  # fmt: skip
_DATES: dict[str, Callable[..., Any]] = {
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
_DATE_FORMATS = frozenset({"date", "date-time", "time", "duration"})
_LARGEST = 1e15
_LARGEST_POWER = 64
_BARE = re.compile(r"[^\W_][\w .:/@+&%$°-]*|\w+(?:\.\w+|\[[\w'\".:-]*\])+")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\\'\"abfnrtv01234567xuUN\n")


class NoCallError(ValueError):
    """The text is not a call of an offered tool."""


class UnreadableError(ValueError):
    """A constructor whose value does not fit its parameter."""


def read_expression(source: str, key: str, schema: Any) -> tuple[Any, list[str]]:
    """The value of an argument that is not a simple literal, and the repairs that it needed.

    `key` is empty for an argument by position. Raises `NoCallError` for code that has no value,
    and `UnreadableError` for a constructor that the parameter cannot take.
    """
    python = source
    if "r'" not in source and 'r"' not in source:
        python = _ESCAPE.sub(_as_python, source)
    try:
        node = ast.parse(python, mode="eval").body
    except (SyntaxError, ValueError, MemoryError):
        return _bare(source, key), ["unquoted_strings"]
    reader = _Reader(python, key)
    try:
        return reader.value(node, schema), reader.repairs
    except (ArithmeticError, TypeError) as error:
        raise NoCallError(source[:20]) from error


def _as_python(escape: re.Match[str]) -> str:
    """Double the backslash of an unknown escape, about which Python would warn."""
    return escape[0] if escape[1] in _KNOWN_ESCAPES else f"\\{escape[0]}"


def _bare(source: str, key: str) -> str:
    """An unquoted word. The name of a type means that the text is a signature, not a call."""
    if not key or source.lower() in _TYPE_NAMES or not _BARE.fullmatch(source):
        raise NoCallError(source)
    return source


class _Reader:
    """Reads one expression."""

    def __init__(self, source: str, key: str) -> None:
        self.repairs: list[str] = []
        self._source = source
        self._key = key

    def value(self, node: ast.expr, schema: Any) -> Any:
        match node:
            case ast.Constant(value=str() | int() | float() | None):
                return node.value
            case ast.JoinedStr(values=pieces):
                return "".join(str(self._part(piece)) for piece in pieces)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -_number(self._part(operand))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return _number(self._part(operand))
            case ast.BinOp(left=left, op=operation, right=right):
                return _sum(operation, self._part(left), self._part(right))
            case ast.Name(id=word) if word in CONSTANTS:
                self.repairs.append("json_literals")
                return CONSTANTS[word]
            case ast.Name() | ast.Attribute() | ast.Subscript():
                self.repairs.append("unquoted_strings")
                return _bare(ast.unparse(node), self._key)
            case _:
                return self._collection(node, schema)

    def _part(self, node: ast.expr) -> Any:
        """A value inside an expression, where a bare word has no meaning."""
        reader = _Reader(self._source, "")
        value = reader.value(node, None)
        self.repairs += reader.repairs
        return value

    def _collection(self, node: ast.expr, schema: Any) -> Any:
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [self.value(item, schema_of_part(schema, "items")) for item in items]
            case ast.Dict(keys=keys, values=values) if None not in keys:
                names = [str(self._part(cast("ast.expr", key))) for key in keys]
                return {
                    name: self.value(value, schema_of_part(schema, "properties", name))
                    for name, value in zip(names, values, strict=True)
                }
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=members):
                return {
                    _name_of(member): self.value(
                        member.value, schema_of_part(schema, "properties", _name_of(member))
                    )
                    for member in members
                }
            case ast.Call(
                func=ast.Name(id="list" | "tuple" | "set" | "frozenset"),
                args=[ast.List() | ast.Tuple() | ast.Set() as items],
                keywords=[],
            ):
                return self.value(items, schema)
            case ast.Call() if _is_constructor(node):
                source = ast.get_source_segment(self._source, node) or ast.unparse(node)
                value, repair = _constructed(node, source, schema)
                self.repairs.append(repair)
                return value
            case _:
                raise NoCallError(type(node).__name__)


def _name_of(member: ast.keyword) -> str:
    if member.arg is None:
        raise NoCallError("a dict in a dict")
    return member.arg


# -- numbers


def _sum(operation: ast.operator, first: Any, second: Any) -> Any:
    """The result of an operator on plain numbers; texts can only be joined."""
    if isinstance(operation, ast.Add) and isinstance(first, str):
        return first + str(second)
    first, second = _number(first), _number(second)
    match operation:
        case ast.Add():
            return _number(first + second)
        case ast.Sub():
            return _number(first - second)
        case ast.Mult():
            return _number(first * second)
        case ast.Div():
            return _number(first / second)
        case ast.FloorDiv():
            return _number(first // second)
        case ast.Mod():
            return _number(first % second)
        case ast.Pow() if abs(second) <= _LARGEST_POWER:
            return _number(first**second)
        case _:
            raise NoCallError(type(operation).__name__)


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _LARGEST:
        raise NoCallError("not a number of use")
    return value


# -- constructors


def _is_constructor(node: ast.Call) -> bool:
    """Whether a call constructs a value: its name looks like a class or is a type of Python."""
    match node.func:
        case ast.Attribute(
            value=ast.Call() as inner, attr="isoformat" | "strftime" | "date" | "time"
        ):
            return _is_constructor(inner)
        case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=method) if (
            method in _METHODS
        ):
            return name in _CONSTRUCTORS or name[:1].isupper()
        case ast.Name(id=name) | ast.Attribute(value=ast.Name() | ast.Attribute(), attr=name):
            return name in _CONSTRUCTORS or name[:1].isupper()
        case _:
            return False


def _constructed(node: ast.Call, source: str, schema: Any) -> tuple[str, str]:
    """The value of a constructor for a parameter with this schema, and the repair.

    Raises `UnreadableError` if there is no value.
    """
    kinds = kinds_of(schema)
    formats = _formats(schema)
    name = _callee(node.func)
    if kinds and "string" not in kinds:
        raise UnreadableError(
            f"{shown(source)} is Python code, and the parameter takes {_any_of(kinds)}: "
            "write the value itself"
        )
    if not formats and not (kinds & {"number", "integer"} and name == "Decimal"):
        return source, "unquoted_strings"
    is_date = bool(formats & _DATE_FORMATS)
    value = None
    if len(node.args) == 1 and not node.keywords and isinstance(node.args[0], ast.Constant):
        value = node.args[0].value
    if is_date:
        try:
            return _iso(_moment(node), formats), "dates"
        except (ValueError, TypeError, OverflowError, ArithmeticError, re.error, RecursionError):
            if name.split(".")[0] in _DATES:
                value = None
    if isinstance(value, str):
        return value, "dates" if is_date else "unquoted_strings"
    if type(value) in (int, float) and not is_date:
        return str(value), "unquoted_strings"
    raise UnreadableError(
        f"{shown(source)} is Python code, and no {_any_of(formats or kinds)}: "
        "write the value itself"
    )


def _any_of(names: set[str]) -> str:
    return " or ".join(sorted(names))


def _formats(schema: Any) -> set[str]:
    """The forms of text that a schema names."""
    formats: set[str] = set()
    if not isinstance(schema, Mapping):
        return formats
    keywords = cast("Mapping[str, Any]", schema)
    if isinstance(keywords.get("format"), str):
        formats.add(keywords["format"])
    if "pattern" in keywords:
        formats.add("text of its pattern")
    return formats.union(*map(_formats, branches_of(keywords)))


def _iso(value: Any, formats: set[str]) -> str:
    """A date, time or duration in ISO 8601, as a parameter takes it."""
    match value:
        case dt.datetime():
            is_day = "date-time" not in formats and "date" in formats and value.time() == dt.time()
            return value.date().isoformat() if is_day else value.isoformat()
        case dt.date() if "date" not in formats and "date-time" in formats:
            return dt.datetime.combine(value, dt.time()).isoformat()
        case dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return str(to_jsonable_python(value))
        case _:
            raise ValueError(type(value).__name__)


def _callee(node: ast.expr) -> str:
    """The last two names of a callee if they make a date, as in `datetime.date.fromisoformat`.

    Otherwise its last name; empty if it has none.
    """
    match node:
        case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=method) if (
            f"{name}.{method}" in _DATES
        ):
            return f"{name}.{method}"
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(), attr=name):
            return name
        case _:
            return ""


def _moment(node: ast.expr) -> Any:
    """A date, time, duration or time zone, or a literal inside of one. Raises for anything else."""
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_moment(operand)
        case ast.Name(id="UTC") | ast.Attribute(attr="utc" | "UTC"):
            return dt.UTC
        case ast.Call(
            func=ast.Attribute(
                value=ast.Call() as inner, attr="isoformat" | "date" | "time" as method
            ),
            args=[],
            keywords=[],
        ):
            moment = _moment(inner)
            if method == "isoformat" or not isinstance(moment, dt.datetime):
                return moment
            return moment.date() if method == "date" else moment.time()
        case ast.Call(func=callee, args=args, keywords=members):
            make = _DATES.get(_callee(callee))
            if make is None:
                raise ValueError(ast.unparse(callee))
            named = {_name_of(member): _moment(member.value) for member in members}
            return make(*map(_moment, args), **named)
        case _:
            raise ValueError(type(node).__name__)
