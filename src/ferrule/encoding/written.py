"""Numbers of a model's JSON with the digits that the model wrote: `3.10`, `1e3`.

Reading JSON turns `3.10` into a float, and the float is written `3.1`. Where the number was meant
as a text (a price, a version, a postal code), digits are lost. So the readers of a model's JSON
give a `WrittenFloat` for a number that its float would write otherwise. It lives only until the
answer is taken apart: a call keeps its arguments as plain values, with their text beside them, and
the checks of arguments and outputs take the digits where text is wanted, or else the float.
"""

# Values of any type pass here.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self, cast

from ferrule.encoding.encode import json_text
from ferrule.encoding.pattern import pattern

if TYPE_CHECKING:
    import re

_FLOAT = r"(?:\A|[\[:,])\s*-?\d+(?:\.\d|[eE])"
"""The beginning of a number with a fraction or an exponent, where JSON may have a value.

It also matches inside of strings: then a text is read by the slower parser, with the same result.
"""
_FLOAT_IN_TEXT = pattern(_FLOAT)
_FLOAT_IN_BYTES: re.Pattern[bytes] = cast("Any", pattern)(_FLOAT.encode())
_FRACTION_IN_BYTES: re.Pattern[bytes] = cast("Any", pattern)(rb"\d(?:\.\d|[eE])")
"""What a float has anywhere. It is found in a fourth of the time: each token of a model is an event
of its own, and is searched."""


class WrittenFloat(float):
    """A float that knows the digits it was read from. Otherwise it is a float like any other."""

    __slots__ = ("digits",)
    digits: str

    def __new__(cls, digits: str) -> Self:
        """Read the number that these digits write."""
        number = super().__new__(cls, digits)
        number.digits = digits
        return number

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.digits,)


def read_float(digits: str) -> float:
    """The float of a number in JSON; a `WrittenFloat` if JSON would write it with other digits."""
    number = float(digits)
    if json_text(number) == digits:
        return number
    return WrittenFloat(digits)


def number_text(number: object) -> str:
    """A number as text: with the digits that the model wrote, if they are known."""
    if type(number) is WrittenFloat:
        return number.digits
    return json_text(number)


def may_hold_floats(text: str | bytes) -> bool:
    """Whether JSON may hold a number with a fraction or an exponent."""
    if isinstance(text, bytes):
        return bool(_FRACTION_IN_BYTES.search(text) and _FLOAT_IN_BYTES.search(text))
    return _FLOAT_IN_TEXT.search(text) is not None


def read_with_digits(text: str | bytes) -> Any:
    """Parse JSON, with digits; raises `ValueError`, or `RecursionError` for deep nesting."""
    return json.loads(text, parse_float=read_float)


def without_digits(value: Any) -> Any:
    """JSON data with plain floats: the same object, unless it holds a `WrittenFloat`."""
    if not _has_digits(value):
        return value
    whole: list[Any] = [value]
    waiting: list[Any] = [whole]
    while waiting:
        copied = waiting.pop()
        entries = list(copied.items() if type(copied) is dict else enumerate(copied))
        for key, item in entries:
            kind = type(item)
            if kind is WrittenFloat:
                copied[key] = float(item)
            elif kind in (dict, list):
                copied[key] = item.copy()
                waiting.append(copied[key])
    return whole[0]


def split_digits(args: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Arguments with plain floats, and their text if that has digits which the floats have not."""
    if not _has_digits(args):
        return args, None
    plain = without_digits(args)
    try:
        return plain, _write(args)
    except RecursionError:  # deeper than the arguments of a call may be
        return plain, None


def with_digits(value: dict[str, Any], text: str | None) -> dict[str, Any]:
    """Arguments with the digits in the text that they were read from.

    They stay as they are if the text says something else: they were changed since.
    """
    if text is None:
        return value
    written = read_with_digits(text)
    if written != value:
        return value
    return written


def _has_digits(value: Any) -> bool:
    waiting: list[Any] = [value]
    seen: set[int] = set()  # a value that Python code passes may hold another many times, or itself
    while waiting:
        item = waiting.pop()
        kind = type(item)
        if kind is WrittenFloat:
            return True
        if kind in (dict, list) and id(item) not in seen:
            seen.add(id(item))
            waiting += item.values() if kind is dict else item
    return False


def _write(value: Any) -> str:
    if type(value) is dict:
        fields = cast("dict[str, Any]", value).items()
        members = [f"{json_text(name)}:{_write(item)}" for name, item in fields]
        return "{" + ",".join(members) + "}"
    if type(value) is list:
        return "[" + ",".join([_write(item) for item in cast("list[Any]", value)]) + "]"
    return number_text(value)
