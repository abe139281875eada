"""Running checked calls: the wall where whatever a tool raises becomes a result.

In: `CheckedCall`. Out: `ToolResult`, rendered for a model. `ToolStop`, `ConfirmationRequired` and everything that is no `Exception`
(Ctrl-C, cancellation, suspension) pass through. The text of a failure has its type, its message and the user's own frames by file name:
no address, and no local path that the call itself did not name.
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any, TypeVar

from ferrule.errors import (
    ConfirmationRequired,
    ReplayMismatchError,
    RunCancelledError,
    StoreError,
    ToolArgumentsError,
    ToolCallError,
    ToolRetry,
    ToolStop,
    ToolTimeoutError,
    UnknownToolError,
)
from ferrule.tools.execution.invoke import aexecute, execute
from ferrule.tools.execution.tool_changes import ModuleCallback, achanged, changed
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult, ToolSpec
from ferrule.values.content.parts import Audio, Content, File, Image, Part, Text
from ferrule.values.encoding.encode import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

R = TypeVar("R")

_PARTS = (Text, Image, Audio, File)
_WORDS = frozenset({bool, type(None)})
_MOST_FRAMES = 3
_LARGEST = 2**63
_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep


def run_call(checked: CheckedCall) -> ToolResult:
    """Run from sync code; an async tool runs on the background loop."""
    call, tool = checked.call, checked.tool
    try:
        value = execute(tool, checked.arguments, whole=True)
        return changed(checked, value) if isinstance(value, ModuleCallback) else to_result(call, tool, value)
    except (ToolStop, ConfirmationRequired):
        raise
    except Exception as error:  # noqa: BLE001  the wall
        _refuse_end_of_run(tool, error)
        return _raised(call, error)


async def arun_call(checked: CheckedCall) -> ToolResult:
    """Run without blocking the loop."""
    call, tool = checked.call, checked.tool
    try:
        value = await aexecute(tool, checked.arguments, whole=True)
        return await achanged(checked, value) if isinstance(value, ModuleCallback) else to_result(call, tool, value)
    except (ToolStop, ConfirmationRequired):
        raise
    except Exception as error:  # noqa: BLE001  the wall
        _refuse_end_of_run(tool, error)
        return _raised(call, error)


def _refuse_end_of_run(tool: ToolSpec, error: Exception) -> None:
    """Let an error pass that ends the whole run, where it comes from a program that is a part of it (`as_tool()`)."""
    if isinstance(error, (ReplayMismatchError, RunCancelledError, StoreError)) and getattr(tool.func, "is_program", False) is True:
        raise error


def attempt(code: Callable[[], R]) -> tuple[R | None, Exception | None]:
    """Run code that came with a tool (a file of tools, say): its value, or what it raised."""
    try:
        return code(), None
    except Exception as error:  # noqa: BLE001  the wall
        return None, error


def to_result(call: ToolCall, tool: ToolSpec, value: Any) -> ToolResult:
    """What a tool returned, as the model will see it."""
    del tool
    if type(value) is str:
        return ToolResult(call.name, value, call.id, value=value)
    if isinstance(value, ToolResult):
        return ToolResult(call.name, value.content, call.id, value.is_error, value.is_fault, value.value, value.error)
    if isinstance(value, AsyncGeneratorType):
        msg = f"`{call.name}` returned an async generator, which cannot be shown to a model. Collect its values and return a list."
        raise TypeError(msg)
    return ToolResult(call.name, _content(value), call.id, value=value)


def failure(call: ToolCall, error: BaseException) -> ToolResult:
    """A call that was not run, or that failed, as the model will see it. Faults of the call itself are marked as such."""
    if isinstance(error, (ToolRetry, ToolArgumentsError, UnknownToolError, ToolCallError)):
        return ToolResult(call.name, str(error), call.id, is_error=True, is_fault=True, error=error)
    return ToolResult(call.name, _execution_error(call, error), call.id, is_error=True, error=error)


def _raised(call: ToolCall, error: BaseException) -> ToolResult:
    # Bad arguments of a call that the tool itself made to another tool are no fault of this call.
    if isinstance(error, ToolRetry):
        return failure(call, error)
    return ToolResult(call.name, _execution_error(call, error), call.id, is_error=True, error=error)


# -- what a tool returned -----------------------------------------------------------------------------------------


def _content(value: Any) -> Content:
    if type(value) is int:
        return str(value) if -_LARGEST < value < _LARGEST else _text(value)
    if type(value) in _WORDS:
        return json_text(value)
    if isinstance(value, _PARTS):
        return (value,)
    if isinstance(value, (list, tuple)) and any(isinstance(each, _PARTS) for each in value):  # pyright: ignore[reportUnknownVariableType]
        return tuple(_part(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
    return _text(value)


def _part(value: Any) -> Part:
    return value if isinstance(value, _PARTS) else Text(text=_text(value))


def _text(value: Any) -> str:
    """A text as it is, all else as JSON; what JSON can only put as a text (a date, an object without a form) as that text."""
    if isinstance(value, str):
        return str.__str__(value) if type(value).__str__ is str.__str__ else json.loads(json_text(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _of_bytes(bytes(value))  # pyright: ignore[reportUnknownArgumentType]
    text = json_text(value)
    return json.loads(text) if text.startswith('"') else text


def _of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        import base64

        return f"data:application/octet-stream;base64,{base64.b64encode(value).decode()}"


# -- what a tool raised -------------------------------------------------------------------------------------------


def _execution_error(call: ToolCall, error: BaseException) -> str:
    kind, message = type(error).__name__, _without_paths(_message(error), call)
    frames = " (" + ", ".join(_frames(error)) + ")" if not isinstance(error, ToolTimeoutError) and error.__traceback__ else ""
    said = f"{kind}: {message}" if message else kind
    return f"Execution error in {call.name}: {said}{frames if frames != ' ()' else ''}"


def _message(error: BaseException) -> str:
    text, failed = attempt(lambda: str(error))
    if failed is not None or text is None:
        return ""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _frames(error: BaseException) -> list[str]:
    """The last of the user's own places that the error passed, innermost last."""
    from traceback import walk_tb

    found: list[str] = []
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith(_foreign_places()) and not file.startswith("<frozen"):
            place = f"{_last_part(file)}:{line}"
            if place not in found:
                found.append(place)
    return found[-_MOST_FRAMES:]


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


@cache
def _foreign_places() -> tuple[str, ...]:
    """Folders of code that is not the user's: this package, the standard library, what was installed."""
    import site
    import sysconfig

    installed = [*site.getsitepackages(), site.getusersitepackages()] if hasattr(site, "getsitepackages") else []
    library = [sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib")]
    return (_PACKAGE, *dict.fromkeys(f"{each.rstrip(os.sep)}{os.sep}" for each in (*installed, *library) if each))


def _without_paths(message: str, call: ToolCall) -> str:
    """The message with local paths cut to their last part, unless the call itself named them."""
    if "/" not in message and "\\" not in message:
        return message
    known = json_text(call.args)

    def cut(found: re.Match[str]) -> str:
        path = found[0]
        return path if path in known or json_text(path)[1:-1] in known else _last_part(path)

    return _local_paths().sub(cut, message)


@cache
def _local_paths() -> re.Pattern[str]:
    places = sorted({each for each in _places() if len(each) > 1}, key=len, reverse=True)
    return re.compile(rf"(?<![\w.:/\\])(?:{'|'.join(map(re.escape, places))})[/\\][^\s'\"<>|:;,()\]]+")


def _places() -> Iterator[str]:
    import tempfile

    for each in (str(Path.home()), str(Path.cwd()), sys.prefix, sys.base_prefix, tempfile.gettempdir(), _PACKAGE):
        yield each.rstrip("/\\")
    yield from ("/home", "/Users", "C:\\Users", "/root", "/tmp", "/var", "/private")  # noqa: S108  names to be cut, not used
