"""Running a tool on arguments that fit, here or on a loop.  (Floor 3.)

In: a tool and `CheckedArguments`. Out: what the function returned, awaited where it was awaitable. What the function raises passes through.
Whether a tool is async is seen from what it returns: no other sign is sure, as functions come wrapped and bound (seed 000, section 3).
"""

from __future__ import annotations

import inspect
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ferrule import offload
from ferrule.errors import AsyncToolError, ToolError, ToolTimeoutError
from ferrule.settings import current, scope
from ferrule.values.context import Context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator

    from ferrule.values.call import CheckedArguments, ToolSpec

_NEVER_AWAITABLE = frozenset({str, int, float, bool, type(None), dict, list, tuple, bytes})


def execute(tool: ToolSpec, arguments: CheckedArguments) -> Any:
    """Run from sync code; what is awaitable is awaited on the background loop."""
    if tool.takes_context:
        with _filled(tool, arguments) as filled:
            return _execute(tool, filled)
    return _execute(tool, arguments)


def _execute(tool: ToolSpec, arguments: CheckedArguments) -> Any:
    func, timeout_s = tool.func, tool.timeout_s
    if func is None:
        raise _no_function(tool.name)
    if timeout_s is None:
        value = func(*arguments.positional, **arguments.named)
        if type(value) in _NEVER_AWAITABLE or not inspect.isawaitable(value):
            return value
        return _awaited(value)
    if is_coroutine_function(func):
        return _awaited(_within(func(*arguments.positional, **arguments.named), timeout_s, timeout_s, tool.name))
    ends = time.monotonic() + timeout_s
    value = offload.run_with_timeout(partial(func, *arguments.positional, **arguments.named), timeout_s, tool.name)
    if inspect.isawaitable(value):
        return _awaited(_within(value, ends - time.monotonic(), timeout_s, tool.name))
    return value


def _awaited(value: Awaitable[Any]) -> Any:
    """Wait for it here. Inside a call of a run it can be cancelled from elsewhere (`runs.observe.CallPlace`)."""
    place = scope().call
    return offload.run_async(value if place is None else place.held(value))


def execute_directly(tool: ToolSpec, arguments: CheckedArguments) -> Any:
    """Run for a direct call: an async tool raises `AsyncToolError` unless `allow_tool_async_sync_conversion` is on."""
    if current().allow_tool_async_sync_conversion:
        return execute(tool, arguments)
    if tool.takes_context:
        with _filled(tool, arguments) as filled:
            return _execute_directly(tool, filled)
    return _execute_directly(tool, arguments)


def _execute_directly(tool: ToolSpec, arguments: CheckedArguments) -> Any:
    func, timeout_s = tool.func, tool.timeout_s
    if func is None:
        raise _no_function(tool.name)
    if timeout_s is None or is_coroutine_function(func):
        value = func(*arguments.positional, **arguments.named)
    else:
        value = offload.run_with_timeout(partial(func, *arguments.positional, **arguments.named), timeout_s, tool.name)
    if type(value) in _NEVER_AWAITABLE or not inspect.isawaitable(value):
        return value
    _discard(value)
    msg = (
        f"`{tool.name}` is async: use `await {tool.name}.acall(...)`, or switch on `allow_tool_async_sync_conversion` "
        "(with `configure` or `context`) to run it on ferrule's background loop."
    )
    raise AsyncToolError(msg)


async def aexecute(tool: ToolSpec, arguments: CheckedArguments) -> Any:
    """Run without blocking the loop: an async function on it, a sync one in the pool."""
    if tool.takes_context:
        with _filled(tool, arguments) as filled:
            return await _aexecute(tool, filled)
    return await _aexecute(tool, arguments)


async def _aexecute(tool: ToolSpec, arguments: CheckedArguments) -> Any:
    func, timeout_s = tool.func, tool.timeout_s
    if func is None:
        raise _no_function(tool.name)
    if getattr(func, "is_program", False) is True:  # has both forms
        func = func.acall
    if is_coroutine_function(func):
        value = func(*arguments.positional, **arguments.named)
        return await (value if timeout_s is None else _within(value, timeout_s, timeout_s, tool.name))
    call = partial(func, *arguments.positional, **arguments.named)
    if timeout_s is None:
        value = await offload.in_worker_thread(call)
        return await value if type(value) not in _NEVER_AWAITABLE and inspect.isawaitable(value) else value
    ends = time.monotonic() + timeout_s
    value = await offload.in_worker_thread(call, timeout_s=timeout_s, name=tool.name)
    if inspect.isawaitable(value):
        return await _within(value, ends - time.monotonic(), timeout_s, tool.name)
    return value


@contextmanager
def _filled(tool: ToolSpec, arguments: CheckedArguments) -> Generator[CheckedArguments]:
    """Arguments with what the run fills: the tool call going on here (`runs.observe.CallPlace`) knows it. Outside a run it is bare."""
    place = scope().call
    context: Context[Any] = place.context(tool, arguments) if place is not None else Context()
    try:
        yield tool.with_context(arguments, context, place.caller if place is not None else None)
    finally:
        context.end()


def is_coroutine_function(func: Any) -> bool:
    """Whether calling it surely only makes a coroutine. False says nothing: what is returned decides."""
    made_by: Any = type(func).__call__ if callable(func) else None
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(made_by)


async def _within(value: Awaitable[Any], left_s: float, timeout_s: float, name: str) -> Any:
    import asyncio

    limit = asyncio.timeout(max(left_s, 0))
    try:
        async with limit:
            return await value
    except TimeoutError as late:
        if limit.expired():
            raise ToolTimeoutError(name, timeout_s) from late
        raise


def _discard(value: Any) -> None:
    """Let go of what nobody will await, without a warning."""
    if inspect.iscoroutine(value):
        value.close()
    elif callable(getattr(value, "cancel", None)):
        value.cancel()


def _no_function(name: str) -> ToolError:
    return ToolError(
        f"`{name}` has no function here: it was declared with a schema only. Bind one with Tool({name!r}, callable=..., schema=...)."
    )
