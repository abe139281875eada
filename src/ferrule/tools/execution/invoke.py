"""Running a tool on arguments that fit, here or on a loop.

In: a tool and `CheckedArguments`. Out: what the function returned, awaited where it was awaitable. What the function raises passes through.
Whether a tool is async is seen from what it returns: no other sign is sure, as functions come wrapped and bound (seed 000, section 3).
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self, cast

from ferrule.concurrency import offload
from ferrule.concurrency.deadline import within
from ferrule.errors import AsyncToolError, ToolError
from ferrule.settings import current, scope
from ferrule.values.calls.context import Context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable

    from ferrule.values.calls.call import CheckedArguments, ToolSpec

_PLAIN = frozenset({str, int, float, bool, type(None), dict, list, tuple, bytes})
"""What is surely neither awaitable nor read item by item."""


def execute(tool: ToolSpec, arguments: CheckedArguments, *, whole: bool = False) -> Any:
    """Run from sync code; what is awaitable is awaited on the background loop.

    With `whole`, a generator, or another iterator, comes back as the list of its items: reading it runs the tool's code, so that it is
    done where the tool runs, and counts for its time limit. Without, it comes back as it is.
    """
    if tool.takes_context:
        with _filled(tool, arguments) as filled:
            return _execute(tool, filled, whole=whole)
    if tool.timeout_s is not None or tool.func is None:
        return _execute(tool, arguments, whole=whole)
    value = tool.func(*arguments.positional, **arguments.named)  # most calls of most tools: they end here, as cheaply as can be
    return value if type(value) in _PLAIN else _result(value, whole=whole)


def _execute(tool: ToolSpec, arguments: CheckedArguments, *, whole: bool) -> Any:
    func, timeout_s = tool.func, tool.timeout_s
    if func is None:
        raise _no_function(tool.name)
    if timeout_s is None:
        return _result(func(*arguments.positional, **arguments.named), whole=whole)
    call = partial(func, *arguments.positional, **arguments.named)
    if is_coroutine_function(func):
        ends, value = time.monotonic() + timeout_s, call()
    else:
        with _Work(call, whole=whole) as work:
            value = offload.run_with_timeout(work, timeout_s, tool.name)
        ends = work.began + timeout_s
    if type(value) in _PLAIN or not inspect.isawaitable(value):
        return value
    value = _awaited_within(value, ends - time.monotonic(), timeout_s, tool.name)
    if not whole or not _is_read_once(value):
        return value
    with _Work(lambda: value, whole=True) as work:
        return offload.run_with_timeout(work, timeout_s, tool.name, left_s=ends - time.monotonic())


def _result(value: Any, *, whole: bool) -> Any:
    if inspect.isawaitable(value):
        value = _awaited(value)
    return list(value) if whole and _is_read_once(value) else value


def _awaited(value: Awaitable[Any]) -> Any:
    """Wait for it here. Inside a call of a run it can be cancelled from elsewhere (`runs.observe.CallPlace`)."""
    place = scope().call
    return offload.run_async(value if place is None else place.held(value), even_if_blocked=True)


def _awaited_within(value: Awaitable[Any], left_s: float, timeout_s: float, name: str) -> Any:
    place = scope().call

    def limited() -> Awaitable[Any]:
        timed = within(value, left_s, timeout_s, name)
        return timed if place is None else place.held(timed)

    try:
        return offload.run_async_within(limited, left_s, timeout_s, name)
    except BaseException:
        if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
            with suppress(ValueError):  # just now it began
                value.close()  # it never will, and nobody is to be warned of that
        raise


class _Work:
    """A call of a sync function in a worker thread. As a block: who waits for it; when that ends, it reads no further item."""

    __slots__ = ("_call", "_is_left", "_whole", "began")

    def __init__(self, call: Callable[[], Any], *, whole: bool) -> None:
        self._call = call
        self._whole = whole
        self._is_left = False
        self.began = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_left = True

    def __call__(self) -> Any:
        self.began = time.monotonic()
        value = self._call()
        return self._items(value) if self._whole and _is_read_once(value) else value

    def _items(self, value: Iterable[Any]) -> list[Any]:
        items: list[Any] = []
        for item in value:
            items.append(item)
            if self._is_left:  # nobody waits any more
                getattr(value, "close", tuple)()
                break
        return items


def _is_read_once(value: Any) -> bool:
    """Whether the items of a value are made while they are read. What has fields is shown by them, whatever else it can do."""
    kind = cast("type[Any]", type(value))
    if not hasattr(kind, "__next__") or not hasattr(kind, "__iter__"):
        return False
    return not isinstance(value, Mapping) and not hasattr(kind, "__pydantic_serializer__") and not hasattr(kind, "__dataclass_fields__")


def execute_directly(tool: ToolSpec, arguments: CheckedArguments, *, whole: bool = False) -> Any:
    """Run for a direct call: an async tool raises `AsyncToolError` unless `allow_tool_async_sync_conversion` is on."""
    if current().allow_tool_async_sync_conversion:
        return execute(tool, arguments, whole=whole)
    if tool.takes_context:
        with _filled(tool, arguments) as filled:
            return _execute_directly(tool, filled, whole=whole)
    return _execute_directly(tool, arguments, whole=whole)


def _execute_directly(tool: ToolSpec, arguments: CheckedArguments, *, whole: bool) -> Any:
    func, timeout_s = tool.func, tool.timeout_s
    if func is None:
        raise _no_function(tool.name)
    if timeout_s is None or is_coroutine_function(func):
        value = func(*arguments.positional, **arguments.named)
        if whole and _is_read_once(value):
            value = list(value)
    else:
        with _Work(partial(func, *arguments.positional, **arguments.named), whole=whole) as work:
            value = offload.run_with_timeout(work, timeout_s, tool.name)
    if type(value) in _PLAIN or not inspect.isawaitable(value):
        return value
    _discard(value)
    msg = (
        f"`{tool.name}` is async: use `await {tool.name}.acall(...)`, or switch on `allow_tool_async_sync_conversion` "
        "(with `configure` or `context`) to run it on ferrule's background loop."
    )
    raise AsyncToolError(msg)


async def aexecute(tool: ToolSpec, arguments: CheckedArguments, *, whole: bool = False) -> Any:
    """Run without blocking the loop: an async function on it, a sync one in the pool. `whole` as for `execute`."""
    if tool.takes_context:
        with _filled(tool, arguments) as filled:
            return await _aexecute(tool, filled, whole=whole)
    func = tool.func
    if tool.timeout_s is not None or type(func) is not FunctionType or not func.__code__.co_flags & inspect.CO_COROUTINE:
        return await _aexecute(tool, arguments, whole=whole)
    value = await func(*arguments.positional, **arguments.named)  # most calls of most async tools: they end here
    return value if type(value) in _PLAIN else await _aread(value, None, tool.name, whole=whole)


async def _aexecute(tool: ToolSpec, arguments: CheckedArguments, *, whole: bool) -> Any:
    func, timeout_s = tool.func, tool.timeout_s
    if func is None:
        raise _no_function(tool.name)
    if getattr(func, "is_program", False) is True:  # has both forms
        func = func.acall
    call = partial(func, *arguments.positional, **arguments.named)
    if is_coroutine_function(func):
        began, value = time.monotonic(), call()
    else:
        with _Work(call, whole=whole) as work:
            value = await offload.in_worker_thread(work, timeout_s=timeout_s, name=tool.name)
        began = work.began
    if type(value) in _PLAIN or not inspect.isawaitable(value):
        return value
    if timeout_s is None:
        value = await value
    else:
        value = await within(value, began + timeout_s - time.monotonic(), timeout_s, tool.name)
    left_s = None if timeout_s is None else began + timeout_s - time.monotonic()
    return await _aread(value, timeout_s, tool.name, whole=whole, left_s=left_s)


async def _aread(value: Any, timeout_s: float | None, name: str, *, whole: bool, left_s: float | None = None) -> Any:
    """What an async function returned; an iterator as its items, read in a worker."""
    if not whole or not _is_read_once(value):
        return value
    with _Work(lambda: value, whole=True) as work:
        return await offload.in_worker_thread(work, timeout_s=timeout_s, name=name, left_s=left_s)


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
