"""The arguments of calls in code, as JSON data: what a run records and a person is asked about."""

from __future__ import annotations

import math
import re
from datetime import date, timedelta
from datetime import time as clock_time
from decimal import Decimal
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import json_text, jsonable
from ferrule.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.programs.code_mode.interpreter import HostCall
    from ferrule.programs.code_mode.stubs import CodeFunction

_UNAWAITED = re.compile(r"<coroutine external_future\(\d+\)>")
_FUNCTION = re.compile(r"<function '.*' at 0x[0-9a-f]+>")
"""The texts in which the interpreter hands over what is not data."""
_DEEPEST = 100
"""Not Python's own limit: it depends on the caller, and a resumed run must find the same."""


def arguments_by_name(function: CodeFunction, host_call: HostCall) -> dict[str, Any]:
    """The arguments of a call by name, as JSON; raises `TypeError` as Python would."""
    if len(host_call.args) > len(function.parameters):
        raise TypeError(
            f"{function.name}() takes {len(function.parameters)} positional arguments but "
            f"{len(host_call.args)} were given"
        )
    arguments = dict(zip(function.parameters, host_call.args, strict=False))
    for name, value in host_call.kwargs.items():
        if name in arguments:
            raise TypeError(f"{function.name}() got multiple values for argument {name!r}")
        arguments[name] = value
    for name, value in arguments.items():
        try:
            arguments[name] = _json_value(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{function.name}(): {name!r} is not JSON data: {error}") from error
    return arguments


def _json_value(value: Any, depth: int = 0) -> Any:
    """A value of a snippet as JSON data. Raises `TypeError` or `ValueError` for another one.

    Text that stands for something else would become an argument unseen: a call that was not
    awaited, a function, a number that is not finite.
    """
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} times")
    match value:
        case None | bool() | int():
            return value
        case str():
            if _UNAWAITED.fullmatch(value):
                raise TypeError("it is a call that was not awaited")
            if _FUNCTION.fullmatch(value):
                raise TypeError("it is a function")
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value} is not a finite number")
            return value
        case list() | tuple():
            return [_json_value(item, depth + 1) for item in cast("Iterable[Any]", value)]
        case set() | frozenset():
            # Their order differs between processes, and a resumed run must make the same call.
            items = [_json_value(item, depth + 1) for item in cast("Iterable[Any]", value)]
            return sorted(items, key=json_text)
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return {_json_key(key): _json_value(item, depth + 1) for key, item in pairs}
        case bytes():
            return value.decode()
        case date() | clock_time() | timedelta() | Decimal() | PurePath():
            return jsonable(value)
        case _:
            pass
    if getattr(value, "is_dataclass", False) is True:  # the interpreter's stand-in for one
        return _json_value(value.attributes, depth + 1)
    raise TypeError(f"found {type(value).__name__}, {shown(value)}")


def _json_key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, (int, float)) or key is None:
        return json_text(key)  # as Python's `json` writes it
    raise TypeError(f"a key is {shown(key)}, not a text")
