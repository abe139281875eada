"""Running calls by hand, outside any program: what `ToolCall.execute` and its like stand on.

In: a name, arguments, and where to look for the function. Out: what it returned, or an error that says what to do. Of a tool only what
`Callee` says is needed; a plain function will do as well. A wall: whatever a function raises becomes an error of ours, or a result.
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from threading import Thread
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol, cast

from ferrule.errors import (
    AsyncToolError,
    ConfirmationRejected,
    ConfirmationRequired,
    DuplicateToolError,
    ToolCallError,
    ToolDefinitionError,
    ToolError,
    ToolExecutionError,
    UnknownToolError,
    shown,
)
from ferrule.values.content.convert import content_of, pieces_of
from ferrule.values.encoding.encode import json_text, object_text

if TYPE_CHECKING:
    from ferrule.values.content.parts import Content

_MOST_THREADS = 32
_OURS = (ToolError, ConfirmationRequired, ConfirmationRejected)
"""Errors that say by themselves what is the matter: bad arguments, a person to ask, a tool's own `ToolStop`."""


class Callee(Protocol):
    """What is needed of a tool to run a call on it."""

    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Check the arguments and run, synchronously."""
        ...

    def acall(self, **kwargs: Any) -> Awaitable[Any]:
        """Check the arguments and run, without blocking the loop."""
        ...


class Asked(Protocol):
    """What is needed of a call (`values.call.ToolCall`)."""

    @property
    def name(self) -> str:
        """The function's name."""
        ...

    @property
    def args(self) -> dict[str, Any]:
        """Its arguments."""
        ...

    @property
    def fault(self) -> Any:
        """Why it cannot be run, or None."""
        ...


Outcome = tuple[Any, Exception | None]
"""What a function returned, or None and what it raised."""
Functions = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any] | Callee]
"""Where a call finds its function: by name, or a list of tools (functions go by their `__name__`)."""


# -- finding the function ---------------------------------------------------------------------------------------


def by_name(functions: Functions) -> Mapping[str, Callable[..., Any]]:
    """The functions by the names that a call may use; raises `ToolDefinitionError` for what is no function."""
    if isinstance(functions, Mapping):
        return cast("Mapping[str, Callable[..., Any]]", functions)
    if isinstance(functions, str) or callable(functions) or not isinstance(functions, Iterable):
        msg = f"The functions come as a dict by name, or as a list of tools; found {shown(functions)}."
        raise ToolDefinitionError(msg)
    found: dict[str, Callable[..., Any]] = {}
    for each in cast("Iterable[Any]", functions):
        name = each.name if _is_tool(each) else getattr(each, "__name__", None)
        if not callable(each) or not isinstance(name, str):
            msg = f"A list of functions holds tools and functions that have a name; found {shown(cast('object', each))}."
            raise ToolDefinitionError(msg)
        for known in (name, getattr(each, "wire_name", name)):
            if found.setdefault(known, each) is not each:
                msg = f"Two of the functions are named `{known}`."
                raise DuplicateToolError(msg)
    return found


def callers_own() -> dict[str, Callable[..., Any]]:
    """The functions and tools that the caller of `execute` defines itself, in its module or its own scope, with a warning.

    What was imported is left out, and so is everything that is neither: else a model could call whatever happens to be in reach.
    """
    warnings.warn(
        "A call was run on whatever its name finds among the caller's own functions. Say what may be called: "
        "`execute(functions={...})` or `execute(functions=[tool, ...])`.",
        stacklevel=3,  # this function, `execute`, and whoever called it: the frame below
    )
    frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    module = frame.f_globals
    found: dict[str, Callable[..., Any]] = {}
    if str(module.get("__name__", "")).partition(".")[0] in sys.stdlib_module_names:  # called by a thread or a pool: these are no one's own
        return found
    for scope in (module, frame.f_locals):
        for name, value in list(scope.items()):
            if _is_tool(value) and _is_of(getattr(value, "func", None), module):
                found[value.name] = value
            elif _is_of(value, module):
                found[name] = value
    return found


def looked_up(call: Asked, functions: Functions) -> Callable[..., Any]:
    """The function of a call; raises `UnknownToolError` (a `ValueError`) listing the names, `ToolCallError` for a call with a fault."""
    if call.fault is not None:
        raise ToolCallError(call.fault.code, call.fault.reason, raw=call.fault.raw, tool=call.name)
    known = by_name(functions)
    function = known.get(call.name)
    if function is None:
        raise UnknownToolError(call.name, [str(each) for each in known])
    if not callable(function):
        msg = f"`{call.name}` stands for {shown(cast('object', function))}, which cannot be called."
        raise ToolDefinitionError(msg)
    return function


def _is_tool(value: object) -> bool:
    # Asked of the type: a foreign object may do anything when it is asked for an attribute.
    return hasattr(type(value), "acall") and isinstance(getattr(value, "name", None), str)


def _is_of(value: Any, module: dict[str, Any]) -> bool:
    function = getattr(value, "__func__", value) if inspect.ismethod(value) else value
    return isinstance(function, FunctionType) and getattr(inspect.unwrap(function), "__globals__", None) is module


# -- running calls ----------------------------------------------------------------------------------------------


def invoke(call: Asked, functions: Functions) -> Any:
    """Run from sync code. Raises `ToolExecutionError` (a `RuntimeError`) with the cause, `AsyncToolError` for what is async."""
    function = looked_up(call, functions)
    try:
        value = function(**call.args)
    except AsyncToolError as error:
        raise _is_async(call.name) from error
    except _OURS:
        raise
    except Exception as error:
        raise _failed(call.name, error) from error
    if inspect.isawaitable(value):
        _let_go(value)
        raise _is_async(call.name)
    return value


async def ainvoke(call: Asked, functions: Functions) -> Any:
    """Run on a loop without blocking it; errors as `invoke`."""
    import asyncio

    function = looked_up(call, functions)
    try:
        if _is_tool(function):
            return await cast("Callee", function).acall(**call.args)
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(type(function), "__call__", None)):  # noqa: B004
            return await function(**call.args)
        # As a pair: asyncio cannot carry a `StopIteration`, and would wait for ever.
        value, error = await asyncio.to_thread(_attempt, partial(function, **call.args))
        if error is not None:
            raise error
        return await value if inspect.isawaitable(value) else value
    except _OURS:
        raise
    except Exception as error:
        raise _failed(call.name, error) from error


def invoke_all(calls: Sequence[Asked], functions: Functions, *, concurrent: bool) -> list[Outcome]:
    """Run many, in daemon threads with the caller's context variables; tools that say `concurrent=False` here, one by one. In order."""
    known = by_name(functions)
    together, alone = _parted(calls, known, concurrent=concurrent)
    outcomes: dict[int, Outcome] = {}
    stopped: list[BaseException] = []
    todo = deque((at, copy_context()) for at in together)

    def carry() -> None:
        while todo and not stopped:
            try:
                at, context = todo.popleft()
                outcomes[at] = context.run(_attempt, partial(invoke, calls[at], known))
            except IndexError:  # another thread was faster
                return
            except BaseException as error:  # noqa: BLE001  raised again by the caller, who waits
                stopped.append(error)

    threads = [Thread(target=carry, name="ferrule-execute", daemon=True) for _ in together[:_MOST_THREADS]]
    for thread in threads:
        thread.start()
    for at in alone:
        outcomes[at] = _attempt(partial(invoke, calls[at], known))
    for thread in threads:
        thread.join()
    if stopped:
        raise stopped[0]
    return [outcomes[at] for at in range(len(calls))]


async def ainvoke_all(calls: Sequence[Asked], functions: Functions, *, concurrent: bool) -> list[Outcome]:
    """As `invoke_all`, as tasks. None is left running when one of them, or the caller, is cancelled."""
    import asyncio

    known = by_name(functions)
    together, alone = _parted(calls, known, concurrent=concurrent)
    outcomes: dict[int, Outcome] = {}

    async def carry(places: list[int]) -> None:
        for at in places:
            try:
                outcomes[at] = await ainvoke(calls[at], known), None
            except Exception as error:  # noqa: BLE001  the wall
                outcomes[at] = None, error

    try:
        async with asyncio.TaskGroup() as group:
            for places in (alone, *([at] for at in together)):
                group.create_task(carry(places))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    return [outcomes[at] for at in range(len(calls))]


def _parted(calls: Sequence[Asked], known: Mapping[str, Any], *, concurrent: bool) -> tuple[list[int], list[int]]:
    """The places of calls that may run side by side, and of those that run one by one."""
    together = {at for at, call in enumerate(calls) if concurrent and getattr(known.get(call.name), "concurrent", True) is not False}
    if len(together) < 2:  # noqa: PLR2004  alone, it needs no thread
        together = set[int]()
    return sorted(together), [at for at in range(len(calls)) if at not in together]


def _attempt(work: Callable[[], Any]) -> Outcome:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001  the wall
        return None, error


def _failed(name: str, error: Exception) -> ToolExecutionError:
    return ToolExecutionError(f"Execution error in `{name}`: {type(error).__name__}: {object_text(error)}")


def _is_async(name: str) -> AsyncToolError:
    return AsyncToolError(f"`{name}` is async: use `await call.aexecute(...)`, or `await calls.aexecute_all(...)`.")


def _let_go(value: Any) -> None:
    """Drop what nobody will await, without a warning."""
    if inspect.iscoroutine(value):
        value.close()
    elif callable(getattr(value, "cancel", None)):
        value.cancel()


# -- showing what it returned -----------------------------------------------------------------------------------


def shown_to_model(value: Any) -> Content:
    """What a function returned, as a model sees it: text as it is, pictures and the like as parts, all else as JSON."""
    pieces = pieces_of(value)
    if pieces is not None:
        return content_of(pieces)
    if isinstance(value, str):
        return str.__str__(value)
    text = json_text(value)
    return json.loads(text) if text.startswith('"') else text
