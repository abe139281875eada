"""Run a tool with checked arguments, for a run or for a direct call.

An async tool is recognised by the value it returns: functions come wrapped and bound, so nothing
else is reliable. `run_call` turns what the tool raises into a `ToolResult`, except `ToolStop`,
`ConfirmationRequired` and everything that is not an `Exception` (Ctrl-C, cancellation, suspension).
`run_tool` and `arun_tool` let exceptions pass.
"""

from __future__ import annotations

import inspect
import time
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from types import FunctionType, coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ferrule.concurrency import offload
from ferrule.concurrency.deadline import within
from ferrule.encoding.encode import is_read_once, items_of
from ferrule.errors import (
    AsyncToolError,
    ConfigurationError,
    ConfirmationRequired,
    ReplayMismatchError,
    RunCancelledError,
    StoreError,
    ToolError,
    ToolStop,
    UnknownOutcomeError,
)
from ferrule.settings import current, is_observed, scope
from ferrule.tools.execution.tool_changes import ModuleCallback, aapply_change, apply_change
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult, failure, to_result
from ferrule.values.calls.context import Context

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable

    from ferrule.values.calls.call import CheckedArguments, ToolSpec

R = TypeVar("R")

_OF_THE_RUN = (
    ConfigurationError,
    ReplayMismatchError,
    RunCancelledError,
    StoreError,
    UnknownOutcomeError,
)
"""Errors that end the whole run if a program that is a tool raises them."""
_PLAIN = frozenset({str, int, float, bool, type(None), dict, list, tuple, bytes})
"""Types whose values are neither awaitable nor iterators."""


def run_call(checked: CheckedCall) -> ToolResult:
    """Run a call from sync code; an async tool runs on the background loop."""
    try:
        value = run_tool(checked.tool, checked.arguments, whole=True)
        return (
            apply_change(checked, value)
            if isinstance(value, ModuleCallback)
            else to_result(checked.call, value)
        )
    except Exception as error:  # noqa: BLE001  a tool may raise anything
        return _raised(checked, error)


async def arun_call(checked: CheckedCall) -> ToolResult:
    """Run a call without blocking the loop."""
    try:
        value = await arun_tool(checked.tool, checked.arguments, whole=True)
        return (
            await aapply_change(checked, value)
            if isinstance(value, ModuleCallback)
            else to_result(checked.call, value)
        )
    except Exception as error:  # noqa: BLE001  a tool may raise anything
        return _raised(checked, error)


@coroutine
def awaited_in(
    context: contextvars.Context,
    work: Coroutine[Any, Any, R],
) -> Generator[Any, Any, R]:
    """Await a coroutine whose code runs in `context`, not in its task's: context variables that it sets stay there."""
    step, value = work.send, None
    while True:
        try:
            waits_for = context.run(step, value)
        except StopIteration as end:
            return end.value
        try:
            value = yield waits_for
            step = work.send
        except GeneratorExit:
            context.run(work.close)
            raise
        except BaseException as error:  # noqa: BLE001  thrown into the coroutine, which may handle it
            step, value = work.throw, error


def _raised(checked: CheckedCall, error: Exception) -> ToolResult:
    """The result of a call that raised. An error that ends the whole run is raised again."""
    if isinstance(error, (ToolStop, ConfirmationRequired, ConfigurationError)):
        raise error
    place = scope().call
    if (
        isinstance(error, RunCancelledError) and place is not None and place.cancelled
    ):  # a program in the function, stopped with the call
        raise error
    # A program that is a tool (`as_tool()`) is part of the run, and no model can fix its
    # configuration.
    if isinstance(error, _OF_THE_RUN) and checked.tool.is_program:
        raise error
    return failure(checked.call, error, is_raised=True)


def call_directly(tool: ToolSpec, checked: CheckedArguments) -> ToolResult:
    """Call a tool directly from sync code, and return its `ToolResult`. The tool's exceptions pass through."""
    runs_anywhere = getattr(tool.func, "runs_anywhere", False)
    value = run_directly(tool, checked, whole=True, is_direct=not runs_anywhere)
    return to_result(ToolCall.unchecked(tool.name, checked.shown, repairs=checked.repairs), value)


async def acall_directly(tool: ToolSpec, checked: CheckedArguments) -> ToolResult:
    """As `call_directly`, without blocking the loop."""
    value = await arun_directly(tool, checked, whole=True)
    return to_result(ToolCall.unchecked(tool.name, checked.shown, repairs=checked.repairs), value)


def run_directly(
    tool: ToolSpec,
    checked: CheckedArguments,
    *,
    whole: bool = False,
    is_direct: bool = True,
) -> Any:
    """`run_tool` for a direct call, with events for the observers."""
    if not is_observed():
        return run_tool(tool, checked, whole=whole, is_direct=is_direct)
    with _events_of(tool, checked) as ended:
        return ended(run_tool(tool, checked, whole=whole, is_direct=is_direct))


async def arun_directly(tool: ToolSpec, checked: CheckedArguments, *, whole: bool = False) -> Any:
    """As `run_directly`, without blocking the loop."""
    if not is_observed():
        return await arun_tool(tool, checked, whole=whole)
    with _events_of(tool, checked) as ended:
        return ended(await arun_tool(tool, checked, whole=whole))


def _events_of(
    tool: ToolSpec,
    checked: CheckedArguments,
) -> AbstractContextManager[Callable[[Any], Any]]:
    """Send the events of a direct call around a block; the block reports the tool's value."""
    from ferrule.events import CallFinished, CallStarted  # late: few direct calls are observed
    from ferrule.observers import events_around

    def call(own: str) -> ToolCall:
        return ToolCall.unchecked(tool.name, checked.shown, own, repairs=checked.repairs)

    def end(own: str, value: Any, error: BaseException | None) -> CallFinished:
        made = call(own)
        return CallFinished(
            made,
            to_result(made, value) if error is None else failure(made, error, is_raised=True),
        )

    return events_around(
        scope(),
        current().callbacks,
        lambda own: CallStarted(call(own), tool),
        end,
    )


def attempt(code: Callable[[], R]) -> tuple[R | None, Exception | SystemExit | None]:
    """Run code that came with a tool, such as a file of tools. Returns its value, or the exception that it raised."""
    try:
        return code(), None
    except (Exception, SystemExit) as error:  # noqa: BLE001  a file may raise anything; a script may call `sys.exit`
        return None, error


# -- invoking
# -----------------------------------------------------------------------------------------------------


def run_tool(
    tool: ToolSpec,
    arguments: CheckedArguments,
    *,
    whole: bool = False,
    is_direct: bool = False,
) -> Any:
    """Run a tool from sync code; an awaitable is awaited on the background loop.

    `whole` returns the items of an iterator as a list: reading them runs the tool's code, so it
    happens here and counts for its time limit. With `is_direct` an async tool raises
    `AsyncToolError`, unless `allow_tool_async_sync_conversion` is on.
    """
    if tool.takes_context:
        with _filled(tool, arguments) as filled:
            return _invoke(tool, filled, whole=whole, is_direct=is_direct)
    return _invoke(tool, arguments, whole=whole, is_direct=is_direct)


def _invoke(tool: ToolSpec, arguments: CheckedArguments, *, whole: bool, is_direct: bool) -> Any:
    func, timeout_s = tool.func, tool.timeout_s
    if func is None:
        raise _no_function(tool.name)
    ends = 0.0
    if timeout_s is None or is_coroutine_function(func):
        if timeout_s is not None:
            ends = time.monotonic() + timeout_s
        value = func(*arguments.positional, **arguments.named)
    else:
        with _Work(partial(func, *arguments.positional, **arguments.named), whole=whole) as work:
            value = offload.run_with_timeout(work, timeout_s, tool.name)
        ends = work.began + timeout_s
    if type(value) in _PLAIN:
        return value
    value = _awaitable(value, whole=whole)
    if inspect.isawaitable(value):
        if is_direct and not current().allow_tool_async_sync_conversion:
            raise _is_async(tool.name, value)
        value = (
            _awaited(value, tool.name)
            if timeout_s is None
            else _awaited_within(value, ends - time.monotonic(), timeout_s, tool.name)
        )
    if not whole or not is_read_once(value):
        return value
    if timeout_s is None:
        return list(value)
    with _Work(lambda: value, whole=True) as work:
        return offload.run_with_timeout(work, timeout_s, tool.name, left_s=ends - time.monotonic())


def _awaited(value: Awaitable[Any], name: str) -> Any:
    """Wait for the value in this thread. Inside a call of a run, it can be cancelled from elsewhere (see `runs/observers.py`)."""
    place = scope().call
    return offload.run_async(value if place is None else place.cancellable(value), name=name)


def _awaited_within(value: Awaitable[Any], left_s: float, timeout_s: float, name: str) -> Any:
    place = scope().call

    def limited() -> Awaitable[Any]:
        timed = within(value, left_s, timeout_s, name)
        return timed if place is None else place.cancellable(timed)

    try:
        return offload.run_async_within(limited, left_s, timeout_s, name)
    except BaseException:
        if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
            with suppress(ValueError):  # it has just started
                value.close()  # without this, Python warns that it was never awaited
        raise


async def arun_tool(tool: ToolSpec, arguments: CheckedArguments, *, whole: bool = False) -> Any:
    """Run a tool without blocking the loop: an async function on it, a sync one in the pool. `whole` as for `run_tool`."""
    if tool.takes_context:
        with _filled(tool, arguments) as filled:
            return await _ainvoke(tool, filled, whole=whole)
    func = tool.func
    if (
        tool.timeout_s is not None
        or type(func) is not FunctionType
        or not func.__code__.co_flags & inspect.CO_COROUTINE
    ):
        return await _ainvoke(tool, arguments, whole=whole)
    value = await func(*arguments.positional, **arguments.named)  # the common async tool
    return value if type(value) in _PLAIN else await _aread(value, None, tool.name, whole=whole)


async def _ainvoke(tool: ToolSpec, arguments: CheckedArguments, *, whole: bool) -> Any:
    func, timeout_s = tool.func, tool.timeout_s
    if func is None:
        raise _no_function(tool.name)
    if tool.is_program:  # a program has a sync and an async form
        func = func.acall
    call = partial(func, *arguments.positional, **arguments.named)
    if is_coroutine_function(func):
        began, value = time.monotonic(), call()
    else:
        with _Work(call, whole=whole) as work:
            value = await offload.in_worker_thread(work, timeout_s=timeout_s, name=tool.name)
        began, value = work.began, _awaitable(value, whole=whole)
    if type(value) in _PLAIN or not inspect.isawaitable(value):
        return value
    if timeout_s is None:
        value = await value
    else:
        value = await within(value, began + timeout_s - time.monotonic(), timeout_s, tool.name)
    left_s = None if timeout_s is None else began + timeout_s - time.monotonic()
    return await _aread(value, timeout_s, tool.name, whole=whole, left_s=left_s)


async def _aread(
    value: Any,
    timeout_s: float | None,
    name: str,
    *,
    whole: bool,
    left_s: float | None = None,
) -> Any:
    """The value of an async function. With `whole`, an iterator is replaced by its items, read in a worker thread."""
    if not whole or not is_read_once(value):
        return value
    with _Work(lambda: value, whole=True) as work:
        return await offload.in_worker_thread(work, timeout_s=timeout_s, name=name, left_s=left_s)


def _awaitable(value: Any, *, whole: bool) -> Any:
    """The value of a function; with `whole`, an async generator as a coroutine that returns its items."""
    return items_of(value) if whole and inspect.isasyncgen(value) else value


class _Work:
    """A call of a sync function in a worker thread. The code that waits for it uses it as a context manager: on exit, reading stops."""

    __slots__ = ("_call", "_is_abandoned", "_whole", "began")

    def __init__(self, call: Callable[[], Any], *, whole: bool) -> None:
        self._call = call
        self._whole = whole
        self._is_abandoned = False
        self.began = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_abandoned = True

    def __call__(self) -> Any:
        self.began = time.monotonic()
        value = self._call()
        return self._items(value) if self._whole and is_read_once(value) else value

    def _items(self, value: Iterable[Any]) -> list[Any]:
        items: list[Any] = []
        for item in value:
            items.append(item)
            if self._is_abandoned:
                getattr(value, "close", tuple)()
                break
        return items


@contextmanager
def _filled(tool: ToolSpec, arguments: CheckedArguments) -> Generator[CheckedArguments]:
    """Arguments with the run's `Context` filled in, or with an empty one outside a run."""
    place = scope().call
    context: Context[Any] = place.context(tool, arguments) if place is not None else Context()
    try:
        yield tool.with_context(arguments, context, place.caller if place is not None else None)
    finally:
        context.end()


def is_coroutine_function(func: Any) -> bool:
    """Whether calling it certainly returns a coroutine. False proves nothing: the returned value decides."""
    made_by: Any = type(func).__call__ if callable(func) else None
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(made_by)


def _is_async(name: str, value: Any) -> AsyncToolError:
    """The error for an async tool in sync code; the value is dropped without a warning."""
    from ferrule.values.calls.direct import discard

    discard(value)
    return AsyncToolError(
        f"`{name}` is async: use `await {name}.acall(...)`, or switch on `allow_tool_async_sync_conversion` "
        "(with `configure` or `context`) to run it on ferrule's background loop.",
    )


def _no_function(name: str) -> ToolError:
    return ToolError(
        f"`{name}` has no function here: it was declared with a schema only. Bind one with Tool({name!r}, callable=..., schema=...).",
    )
