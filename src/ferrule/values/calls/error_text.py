"""Describe an exception for a model: its type, its message, and a short traceback.

The traceback has the innermost frames of the user's own code, as Python writes them, but without
source lines, which may hold secrets. The text contains no memory addresses, and no local paths
except those that the call named.
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


def error_text(
    tool: str, args: dict[str, Any], error: BaseException, *, shows_frames: bool = True
) -> str:
    """The observation for a call of `tool` with `args` that raised `error`."""
    described = _described(error, args, shows_frames=shows_frames)
    return f"Execution error in {tool}: {described}"


def _described(
    error: BaseException, args: dict[str, Any], indent: str = "", *, shows_frames: bool
) -> str:
    text = type(error).__name__
    message = _without_paths(printed(error) or "", args)
    if message:
        text += f": {message}"
    # A call that timed out was stopped at any line: the line says nothing.
    if shows_frames and not isinstance(error, ToolTimeoutError):
        for frame in _frames(error):
            text += f"\n{indent}  {frame}"
    # The failures of a `TaskGroup` are in the group's exceptions; its own message has only their
    # number.
    if isinstance(error, BaseExceptionGroup) and len(indent) < _DEEPEST:
        group = cast("BaseExceptionGroup[BaseException]", error)
        for member in group.exceptions[:_MOST_EXCEPTIONS]:
            described = _described(member, args, f"{indent}  ", shows_frames=shows_frames)
            text += f"\n{indent}- {described}"
    return text


def _frames(error: BaseException) -> list[str]:
    """The last frames of the user's own code, innermost last, as in a traceback of Python."""
    from traceback import walk_tb

    lines: list[str] = []
    for frame, number in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith((*foreign_folders(), "<frozen")):
            continue
        line = f'File "{_last_part(file)}", line {number}, in {frame.f_code.co_name}'
        if line not in lines:  # a recursive function would fill the text
            lines.append(line)
    return lines[-_MOST_FRAMES:]


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _without_paths(message: str, args: dict[str, Any]) -> str:
    """The message with local paths cut to their last part, but for paths in the arguments."""
    if "/" not in message and "\\" not in message:
        return message
    known = json_text(args)

    def cut(match: re.Match[str]) -> str:
        path = match[0]
        # The arguments are JSON, in which the backslashes of a Windows path are doubled.
        if path in known or json_text(path)[1:-1] in known:
            return path
        return _last_part(path)

    return _local_paths().sub(cut, message)


@cache
def _local_paths() -> re.Pattern[str]:
    folders = sorted(
        {folder for folder in _local_folders() if len(folder) > 1}, key=len, reverse=True
    )
    starts = r"(?:(?<![\w.:/\\])|(?<=file://)|(?<=[A-Za-z]{2}:))"
    return re.compile(
        rf"{starts}(?:{'|'.join(map(re.escape, folders))}|[A-Za-z]:(?=\\))[/\\][^\s'\"<>|:;,()\]]+"
    )


def _local_folders() -> Iterator[str]:
    import tempfile

    for folder in (
        str(Path.home()),
        str(Path.cwd()),
        sys.prefix,
        sys.base_prefix,
        tempfile.gettempdir(),
        PACKAGE,
    ):
        yield folder.rstrip("/\\")
    # Names to be cut, not used.
    yield from ("/home", "/Users", "/root", "/tmp", "/var", "/private")  # noqa: S108
    yield from ("/etc", "/opt", "/srv", "/usr", "/mnt", "/Applications", "/Library", "/Volumes")
