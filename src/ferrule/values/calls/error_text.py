"""Describe an exception for a model: its type, its message, and the lines of the user's own code that raised it.

The text contains no memory addresses, and no local paths except those that the call named.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import json_text, printed
from ferrule.errors import ToolTimeoutError
from ferrule.values.tracebacks import PACKAGE, foreign_folders

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_FRAMES = 3
_MOST_EXCEPTIONS = 5
_DEEPEST = 10
"""The deepest indent of nested exception groups in characters, two for each level."""


def error_text(tool: str, args: dict[str, Any], error: BaseException) -> str:
    """The observation for a call of `tool` with `args` that raised `error`."""
    return f"Execution error in {tool}: {_described(error, args)}"


def _described(error: BaseException, args: dict[str, Any], indent: str = "") -> str:
    kind, message = type(error).__name__, _without_paths(printed(error) or "", args)
    frames = [] if isinstance(error, ToolTimeoutError) else _frames(error)
    text = f"{kind}{': ' if message else ''}{message}{' (' + ', '.join(frames) + ')' if frames else ''}"
    # The failures of a `TaskGroup` are in the group's exceptions; its own message has only their
    # number.
    is_group = isinstance(error, BaseExceptionGroup) and len(indent) < _DEEPEST
    inside = (
        cast("BaseExceptionGroup[BaseException]", error).exceptions[:_MOST_EXCEPTIONS]
        if is_group
        else ()
    )
    return text + "".join(f"\n{indent}- {_described(each, args, indent + '  ')}" for each in inside)


def _frames(error: BaseException) -> list[str]:
    """The last places (`file.py:12`) in the user's own code, innermost last."""
    from traceback import walk_tb

    found: list[str] = []
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith(foreign_folders()) and not file.startswith("<frozen"):
            place = f"{_last_part(file)}:{line}"
            if place not in found:
                found.append(place)
    return found[-_MOST_FRAMES:]


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _without_paths(message: str, args: dict[str, Any]) -> str:
    """The message with local paths cut to their last part, except paths that the arguments contain."""
    if "/" not in message and "\\" not in message:
        return message
    known = json_text(args)

    def cut(found: re.Match[str]) -> str:
        path = found[0]
        return path if path in known or json_text(path)[1:-1] in known else _last_part(path)

    return _local_paths().sub(cut, message)


@cache
def _local_paths() -> re.Pattern[str]:
    folders = sorted({each for each in _local_folders() if len(each) > 1}, key=len, reverse=True)
    starts = r"(?:(?<![\w.:/\\])|(?<=file://)|(?<=[A-Za-z]{2}:))"
    return re.compile(
        rf"{starts}(?:{'|'.join(map(re.escape, folders))}|[A-Za-z]:(?=\\))[/\\][^\s'\"<>|:;,()\]]+",
    )


def _local_folders() -> Iterator[str]:
    import tempfile

    for each in (
        str(Path.home()),
        str(Path.cwd()),
        sys.prefix,
        sys.base_prefix,
        tempfile.gettempdir(),
        PACKAGE,
    ):
        yield each.rstrip("/\\")
    yield from ("/home", "/Users", "/root", "/tmp", "/var", "/private")  # noqa: S108  names to be cut, not used
    yield from ("/etc", "/opt", "/srv", "/usr", "/mnt", "/Applications", "/Library", "/Volumes")
