"""Run calls outside any program, for `ToolCall.execute` and `ToolCalls.execute_all`.

A tool checks the arguments and renders its result itself, as in a run. A plain function is called
with the arguments as the model gave them.

This is not part of `values`, which holds data only: calls start threads here, and run code of
users.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from threading import Thread
from types import FunctionType
from typing import Any, NamedTuple, Protocol, cast

from ferrule.concurrency.cancellation import is_interrupt
from ferrule.encoding.encode import is_read_once, items_of, object_text
from ferrule.errors import (
    AsyncToolError,
    ConfirmationRejected,
    ConfirmationRequired,
    DuplicateToolError,
    ToolArgumentsError,
    ToolCallError,
    ToolDefinitionError,
    ToolError,
    ToolExecutionError,
    UnknownToolError,
    shown,
)

_MOST_THREADS = 32
_OURS = (ToolError, ConfirmationRequired, ConfirmationRejected)
"""Errors that are raised unchanged: bad arguments, a person to ask, a tool's own `ToolStop`."""


class _Call(Protocol):
    """A `ToolCall`, which this module cannot import."""

    @property
    def name(self) -> str: ...
    @property
    def args(self) -> dict[str, Any]: ...
    @property
    def args_as_written(self) -> dict[str, Any]: ...
    @property
    def fault(self) -> Any: ...


class Ended(NamedTuple):
    """The outcome of one of several calls."""

    value: Any = None
    """The function's value, or the tool's `ToolResult`."""
    error: BaseException | None = None
    is_raised: bool = True
    """Whether the function raised the error; False if the call did not run."""


Functions = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]
"""The functions that calls may run: a dict by name, or a list of tools and functions.

Functions in a list are named by their `__name__`.
"""


# -- finding the function


def by_name(functions: Functions) -> Mapping[str, Callable[..., Any]]:
    """The functions by the names that a call may use.

    Raises `ToolDefinitionError` for anything that is not a function.
    """
    if isinstance(functions, Mapping):
        return cast("Mapping[str, Callable[..., Any]]", functions)
    if isinstance(functions, str) or callable(functions) or not isinstance(functions, Iterable):
        raise ToolDefinitionError(
            "Pass the functions as a dict by name, or as a list of tools; "
            f"found {shown(functions)}."
        )
    named: dict[str, Callable[..., Any]] = {}
    for function in cast("Iterable[Any]", functions):
        if _is_tool(function):
            name = function.name
        else:
            name = getattr(function, "__name__", None)
        if not callable(function) or not isinstance(name, str):
            raise ToolDefinitionError(
                "A list of functions holds tools and named functions; "
                f"found {shown(cast('object', function))}."
            )
        # A model calls a tool by its wire name, which may differ from its own.
        for known in (name, getattr(function, "wire_name", name)):
            if named.setdefault(known, function) is not function:
                raise DuplicateToolError(f"Two of the functions are named `{known}`.")
    return named


def callers_functions() -> dict[str, Callable[..., Any]]:
    """The functions and tools that the caller of `execute` defines in its module or its own scope.

    Warns that the look-up is used.

    Imported functions are left out: otherwise a model could call anything in reach.
    """
    warnings.warn(
        "The call ran a function that was found by name in the calling module. "
        "Say what may be called: "
        "`execute(functions={...})` or `execute(functions=[tool, ...])`.",
        stacklevel=3,  # this function, `execute`, and its caller: the frame below
    )
    frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    module = frame.f_globals
    found: dict[str, Callable[..., Any]] = {}
    package = str(module.get("__name__", "")).partition(".")[0]
    if package in sys.stdlib_module_names:  # called by a thread or a pool
        return found
    for scope in (module, frame.f_locals):
        for name, value in list(scope.items()):
            if _is_tool(value) and _is_of(getattr(value, "func", None), module):
                found[value.name] = value
            elif _is_of(value, module):
                found[name] = value
    return found


def _find_function(call: _Call, functions: Functions) -> Callable[..., Any]:
    """The function of a call.

    Raises `UnknownToolError` (a `ValueError`) with the names, and `ToolCallError` for a call with a
    fault.
    """
    if call.fault is not None:
        raise ToolCallError(call.fault.code, call.fault.reason, raw=call.fault.raw, tool=call.name)
    known = by_name(functions)
    function = known.get(call.name)
    if function is None:
        raise UnknownToolError(call.name, [str(known_name) for known_name in known])
    if not callable(function):
        raise ToolDefinitionError(
            f"`{call.name}` is {shown(cast('object', function))}, which cannot be called."
        )
    return function


def _is_tool(value: object) -> bool:
    # On the type: reading an attribute of a proxy may run any code.
    return hasattr(type(value), "acall_result") and isinstance(getattr(value, "name", None), str)


def _is_of(value: Any, module: dict[str, Any]) -> bool:
    if inspect.ismethod(value):
        function = getattr(value, "__func__", value)
    else:
        function = value
    return (
        isinstance(function, FunctionType)
        and getattr(inspect.unwrap(function), "__globals__", None) is module
    )


# -- one call


def invoke(call: _Call, functions: Functions) -> Any:
    """Run a call from sync code.

    Raises `ToolExecutionError` (a `RuntimeError`) with the cause, and `AsyncToolError` for an async
    function.
    """
    function = _find_function(call, functions)
    try:
        return _call(call, function)
    except _OURS:
        raise
    except BaseException as error:
        if is_interrupt(error, in_task=False):
            raise
        raise _failed(call.name, error) from error


async def ainvoke(call: _Call, functions: Functions) -> Any:
    """Run a call without blocking the loop; raises what `invoke` raises."""
    function = _find_function(call, functions)
    try:
        if _is_tool(function):
            return await cast("Any", function).acall(**call.args_as_written)
        return await _acall(call, function)
    except _OURS:
        raise
    except BaseException as error:
        if is_interrupt(error, in_task=True):
            raise
        raise _failed(call.name, error) from error


def _call(call: _Call, function: Callable[..., Any]) -> Any:
    args = call.args
    if _is_tool(getattr(function, "__self__", function)):  # a tool, or a method of one
        args = call.args_as_written
    try:
        value = function(**args)
    except AsyncToolError as error:
        raise _is_async(call.name) from error
    if inspect.isawaitable(value):
        discard(value)
        raise _is_async(call.name)
    return value


async def _acall(call: _Call, function: Callable[..., Any]) -> Any:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    ):
        return await function(**call.args)
    value = await _in_thread(call, partial(function, **call.args))
    if inspect.isawaitable(value):
        return await value
    return value


async def _in_thread(call: _Call, work: Callable[[], Any]) -> Any:
    import asyncio

    # Returned as a pair, because a coroutine cannot raise `StopIteration`.
    value, error = await asyncio.to_thread(_attempt, work)
    if isinstance(error, StopIteration):
        raise _failed(call.name, error) from error
    if error is not None:
        raise error
    return value


def discard(awaitable: Any) -> None:
    """Drop an awaitable that will not be awaited, without a warning."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()
    elif callable(getattr(awaitable, "cancel", None)):
        awaitable.cancel()


def _attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001  a tool may raise anything
        return None, error


def _failed(name: str, error: BaseException) -> ToolExecutionError:
    return ToolExecutionError(
        f"Execution error in `{name}`: {type(error).__name__}: {object_text(error)}"
    )


def _is_async(name: str) -> AsyncToolError:
    return AsyncToolError(
        f"`{name}` is async: use `await call.aexecute(...)`, or `await calls.aexecute_all(...)`."
    )


# -- many calls


def invoke_all(calls: Sequence[_Call], functions: Functions, *, concurrent: bool) -> list[Ended]:
    """Run calls in daemon threads with the caller's context variables. The results are in order.

    Tools with `concurrent=False` run here, one by one.
    """
    known = by_name(functions)
    # A `Toolbox` may turn concurrency off for all its tools.
    concurrent = concurrent and getattr(functions, "concurrent", True)
    together, alone = _split(calls, known, concurrent=concurrent)
    ended: dict[int, Ended] = {}
    stopped: list[BaseException] = []
    todo = deque((index, copy_context()) for index in together)

    def work() -> None:
        while todo and not stopped:
            try:
                index, context = todo.popleft()
                ended[index] = context.run(_end, calls[index], known)
            except IndexError:  # another thread was faster
                return
            except BaseException as error:  # noqa: BLE001  raised again in the waiting thread
                stopped.append(error)

    threads = [
        Thread(target=work, name="ferrule-execute", daemon=True) for _ in together[:_MOST_THREADS]
    ]
    for thread in threads:
        thread.start()
    for index in alone:
        ended[index] = _end(calls[index], known)
    for thread in threads:
        thread.join()
    if stopped:
        raise stopped[0]
    return [ended[index] for index in range(len(calls))]


async def ainvoke_all(
    calls: Sequence[_Call], functions: Functions, *, concurrent: bool
) -> list[Ended]:
    """As `invoke_all`, but in asyncio tasks. If one of them or the caller is cancelled, all are."""
    import asyncio

    known = by_name(functions)
    # A `Toolbox` may turn concurrency off for all its tools.
    concurrent = concurrent and getattr(functions, "concurrent", True)
    together, alone = _split(calls, known, concurrent=concurrent)
    ended: dict[int, Ended] = {}

    async def work(indexes: list[int]) -> None:
        for index in indexes:
            ended[index] = await _aend(calls[index], known)

    try:
        async with asyncio.TaskGroup() as group:
            for indexes in (alone, *([index] for index in together)):
                group.create_task(work(indexes))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    return [ended[index] for index in range(len(calls))]


def _end(call: _Call, known: Mapping[str, Callable[..., Any]]) -> Ended:
    function: Any = None
    try:
        function = _find_function(call, known)
        value = _call(call, function.call_result if _is_tool(function) else function)
        return Ended(list(value) if is_read_once(value) else value)
    except BaseException as error:  # a tool may raise anything
        if is_interrupt(error, in_task=False):
            raise
        return Ended(None, error, is_raised=_has_begun(function, error))


async def _aend(call: _Call, known: Mapping[str, Callable[..., Any]]) -> Ended:
    function: Any = None
    try:
        function = _find_function(call, known)
        if _is_tool(function):
            value = await function.acall_result(**call.args_as_written)
        else:
            value = await _acall(call, function)
        if inspect.isasyncgen(value):
            value = await items_of(value)
        elif is_read_once(value):
            # A thread, because the iterator may block.
            value = await _in_thread(call, partial(list[Any], value))
        return Ended(value)
    except BaseException as error:  # a tool may raise anything
        if is_interrupt(error, in_task=True):
            raise
        return Ended(None, error, is_raised=_has_begun(function, error))


def _has_begun(function: Any, error: BaseException) -> bool:
    """Whether the function was running when the error was raised."""
    return function is not None and not (
        isinstance(error, ToolArgumentsError) and error.tool == getattr(function, "name", None)
    )


def _split(
    calls: Sequence[_Call], known: Mapping[str, Any], *, concurrent: bool
) -> tuple[list[int], list[int]]:
    """The positions of calls that may run side by side, and of those that run one by one."""
    together = {
        index
        for index, call in enumerate(calls)
        if concurrent and getattr(known.get(call.name), "concurrent", True) is not False
    }
    if len(together) < 2:
        together = set[int]()
    return sorted(together), [index for index in range(len(calls)) if index not in together]
