"""Run a tool with checked arguments, for a run or for a direct call.

A sync tool runs in this thread, or in a worker thread if it has a time limit or must not block the
loop. An async tool is recognised by the value it returns: functions come wrapped and bound, so
nothing else is reliable. Its time limit covers the call, the awaiting, and the reading of an
iterator that it returns (`whole`), because all three run the tool's code.

`run_call` turns what the tool raises into a `ToolResult`, except `ToolStop`,
`ConfirmationRequired` and everything that is not an `Exception` (Ctrl-C, cancellation, suspension).
`run_tool` and `arun_tool` let exceptions pass.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ferrule.concurrency import offload
from ferrule.concurrency.cancellation import is_interrupt
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
from ferrule.events import CallFinished, CallStarted
from ferrule.execute_calls import discard
from ferrule.observers import events_around
from ferrule.settings import current, is_observed, scope
from ferrule.tools.execution.tool_changes import ModuleCallback, aapply_change, apply_change
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult, failure, to_result
from ferrule.values.calls.context import Context
from ferrule.values.calls.later import Later

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Awaitable, Coroutine, Generator, Iterable

    from ferrule.values.calls.call import CheckedArguments, ToolSpec

R = TypeVar("R")
_Guard = Callable[[], None]
"""Stops a call right before its tool runs, by raising."""

_ENDS_THE_RUN = (
    ConfigurationError,
    ReplayMismatchError,
    RunCancelledError,
    StoreError,
    UnknownOutcomeError,
)
"""Errors that end the whole run if a program that is a tool raises them."""


def run_call(checked: CheckedCall) -> ToolResult:
    """Run a call from sync code; an async tool runs on the background loop."""
    try:
        guard = _guard_of(checked)
        if checked.tool.result != "function":
            return _begin_outside(checked, guard)
        value = run_tool(checked.tool, checked.arguments, whole=True, guard=guard)
        if isinstance(value, ModuleCallback):
            return apply_change(checked, value)
        return to_result(checked.call, value)
    except BaseException as error:  # a tool may raise anything
        if is_interrupt(error, in_task=False):
            raise
        return _result_of_error(checked, error)


async def arun_call(checked: CheckedCall) -> ToolResult:
    """Run a call without blocking the loop."""
    try:
        guard = _guard_of(checked)
        if checked.tool.result != "function":
            return _begin_outside(checked, guard)
        value = await arun_tool(checked.tool, checked.arguments, whole=True, guard=guard)
        if isinstance(value, ModuleCallback):
            return await aapply_change(checked, value)
        return to_result(checked.call, value)
    except BaseException as error:  # a tool may raise anything
        if is_interrupt(error, in_task=True):
            raise
        return _result_of_error(checked, error)


@coroutine
def awaited_in(
    context: contextvars.Context, work: Coroutine[Any, Any, R]
) -> Generator[Any, Any, R]:
    """Await a coroutine whose code runs in `context`, not in its task's.

    Context variables that it sets stay there.
    """
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
        # Thrown into the coroutine, which may handle it.
        except BaseException as error:  # noqa: BLE001
            step, value = work.throw, error


def _guard_of(checked: CheckedCall) -> _Guard | None:
    if checked.guard is None:
        return None
    return partial(checked.guard, checked)


def _begin_outside(checked: CheckedCall, guard: _Guard | None) -> ToolResult:
    """Begin a call whose result comes from outside: nothing runs here."""
    if guard is not None:
        guard()
    return to_result(checked.call, Later(within_s=checked.tool.within_s))


def _result_of_error(checked: CheckedCall, error: BaseException) -> ToolResult:
    """The result of a call that raised. An error that ends the whole run is raised again."""
    if isinstance(error, (ToolStop, ConfirmationRequired, ConfigurationError)):
        raise error
    call_of_run = scope().call
    is_cancelled = call_of_run is not None and call_of_run.cancelled
    if isinstance(error, RunCancelledError) and is_cancelled:
        raise error  # a program in the function, stopped with the call
    # A program that is a tool (`as_tool()`) is part of the run, and no model can fix its
    # configuration.
    if isinstance(error, _ENDS_THE_RUN) and checked.tool.is_program:
        raise error
    return failure(checked.call, error, is_raised=True)


def call_directly(tool: ToolSpec, checked: CheckedArguments) -> ToolResult:
    """Call a tool directly from sync code, and return its `ToolResult`.

    The tool's exceptions pass through.
    """
    # The function of an MCP server's tool is async, but may be called from sync code.
    runs_anywhere = getattr(tool.func, "runs_anywhere", False)
    value = run_directly(tool, checked, whole=True, is_direct=not runs_anywhere)
    return to_result(_direct_call(tool, checked), value)


async def acall_directly(tool: ToolSpec, checked: CheckedArguments) -> ToolResult:
    """As `call_directly`, without blocking the loop."""
    value = await arun_directly(tool, checked, whole=True)
    return to_result(_direct_call(tool, checked), value)


def _direct_call(tool: ToolSpec, checked: CheckedArguments, call_id: str | None = None) -> ToolCall:
    return ToolCall.unchecked(tool.name, checked.shown, call_id, repairs=checked.repairs)


def run_directly(
    tool: ToolSpec, checked: CheckedArguments, *, whole: bool = False, is_direct: bool = True
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
    tool: ToolSpec, checked: CheckedArguments
) -> AbstractContextManager[Callable[[Any], Any]]:
    """Send the events of a direct call around a block; the block reports the tool's value."""

    def start(call_id: str) -> CallStarted:
        return CallStarted(_direct_call(tool, checked, call_id), tool)

    def end(call_id: str, value: Any, error: BaseException | None) -> CallFinished:
        call = _direct_call(tool, checked, call_id)
        if error is not None:
            return CallFinished(call, failure(call, error, is_raised=True))
        return CallFinished(call, to_result(call, value))

    return events_around(scope(), current().callbacks, start, end)


def attempt(code: Callable[[], R]) -> tuple[R | None, Exception | SystemExit | None]:
    """Run code that came with a tool, such as a file of tools.

    Returns its value, or the exception that it raised.
    """
    try:
        return code(), None
    # A file may raise anything, and a script may call `sys.exit`.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return None, error


# -- invoking


def run_tool(
    tool: ToolSpec,
    arguments: CheckedArguments,
    *,
    whole: bool = False,
    is_direct: bool = False,
    guard: _Guard | None = None,
) -> Any:
    """Run a tool from sync code; an awaitable is awaited on the background loop.

    `whole` returns the items of an iterator as a list: reading them runs the tool's code, so it
    happens here and counts for its time limit. With `is_direct` an async tool raises
    `AsyncToolError`, unless `allow_tool_async_sync_conversion` is on.
    """
    if tool.takes_context:
        with _filled(tool, arguments) as filled:
            return _invoke(tool, filled, guard, whole=whole, is_direct=is_direct)
    return _invoke(tool, arguments, guard, whole=whole, is_direct=is_direct)


def _invoke(
    tool: ToolSpec,
    arguments: CheckedArguments,
    guard: _Guard | None,
    *,
    whole: bool,
    is_direct: bool,
) -> Any:
    func, timeout_s = _function_of(tool), tool.timeout_s
    call = _call_of(func, arguments, guard)
    began = time.monotonic()
    if timeout_s is None or is_coroutine_function(func):
        value = call()
    else:
        with _Work(call, whole=whole) as work:
            value = offload.run_with_timeout(work, timeout_s, tool.name)
        began = work.began  # without the wait for a free thread
    value = _as_awaitable(value, whole=whole)
    if inspect.isawaitable(value):
        if is_direct and not current().allow_tool_async_sync_conversion:
            raise _is_async(tool.name, value)
        if timeout_s is None:
            value = _wait_for(value, tool.name)
        else:
            left_s = began + timeout_s - time.monotonic()
            value = _wait_within(value, left_s, timeout_s, tool.name)
    if not whole or not is_read_once(value):
        return value
    if timeout_s is None:
        return _items_of(value)
    with _Work(lambda: value, whole=True) as work:
        left_s = began + timeout_s - time.monotonic()
        return offload.run_with_timeout(work, timeout_s, tool.name, left_s=left_s)


def _items_of(value: Iterable[Any]) -> list[Any]:
    """The items of an iterator. Reading stops when the call has ended without its result."""
    call_of_run = scope().call
    items: list[Any] = []
    for item in value:
        items.append(item)
        if call_of_run is not None and call_of_run.over:
            getattr(value, "close", tuple)()
            break
    return items


def _call_of(func: Any, arguments: CheckedArguments, guard: _Guard | None) -> Callable[[], Any]:
    """The call of a tool's function, which its guard may stop. It may wait for a free thread."""
    call = partial(func, *arguments.positional, **arguments.named)
    if guard is None:
        return call

    def guarded_call() -> Any:
        guard()
        return call()

    return guarded_call


def _wait_for(value: Awaitable[Any], name: str) -> Any:
    """Wait for the value in this thread. Inside a call of a run, it can be cancelled elsewhere."""
    call_of_run = scope().call
    if call_of_run is not None:
        value = call_of_run.cancellable(value)
    return offload.run_async(value, name=name)


def _wait_within(value: Awaitable[Any], left_s: float, timeout_s: float, name: str) -> Any:
    call_of_run = scope().call

    def limited() -> Awaitable[Any]:
        timed = within(value, left_s, timeout_s, name)
        if call_of_run is None:
            return timed
        return call_of_run.cancellable(timed)

    try:
        return offload.run_async_within(limited, left_s, timeout_s, name)
    except BaseException:
        if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
            with suppress(ValueError):  # it has just started
                value.close()  # without this, Python warns that it was never awaited
        raise


async def arun_tool(
    tool: ToolSpec,
    arguments: CheckedArguments,
    *,
    whole: bool = False,
    guard: _Guard | None = None,
) -> Any:
    """Run a tool without blocking the loop: an async function on it, a sync one in the pool.

    `whole` as for `run_tool`.
    """
    if tool.takes_context:
        with _filled(tool, arguments) as filled:
            return await _ainvoke(tool, filled, guard, whole=whole)
    return await _ainvoke(tool, arguments, guard, whole=whole)


async def _ainvoke(
    tool: ToolSpec, arguments: CheckedArguments, guard: _Guard | None, *, whole: bool
) -> Any:
    func, timeout_s = _function_of(tool), tool.timeout_s
    call_of_run = scope().call
    if tool.is_program:  # a program has a sync and an async form
        func = func.acall
    call = _call_of(func, arguments, guard)
    if is_coroutine_function(func):
        began, value = time.monotonic(), call()
    else:
        with _Work(call, whole=whole) as work:
            value = await offload.in_worker_thread(work, timeout_s=timeout_s, name=tool.name)
        began, value = work.began, _as_awaitable(value, whole=whole)
    if not inspect.isawaitable(value):
        return value
    left_s = None
    if timeout_s is not None:
        value = within(value, began + timeout_s - time.monotonic(), timeout_s, tool.name)
    if call_of_run is not None and not tool.is_program:  # what a program awaits ends by itself
        value = call_of_run.cancellable(value)
    value = await value
    if timeout_s is not None:
        left_s = began + timeout_s - time.monotonic()
    if not whole or not is_read_once(value):
        return value
    # Reading an iterator runs the tool's code, which may block.
    with _Work(lambda: value, whole=True) as work:
        return await offload.in_worker_thread(
            work, timeout_s=timeout_s, name=tool.name, left_s=left_s
        )


def _as_awaitable(value: Any, *, whole: bool) -> Any:
    """The value of a function; with `whole`, an async generator as a coroutine of its items."""
    if whole and inspect.isasyncgen(value):
        return items_of(value)
    return value


class _Work:
    """A call of a sync function in a worker thread.

    The code that waits for it uses it as a context manager: on exit, reading stops, because nobody
    waits for further items.
    """

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
        if self._whole and is_read_once(value):
            return self._read_items(value)
        return value

    def _read_items(self, value: Iterable[Any]) -> list[Any]:
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
    call_of_run = scope().call
    context: Context[Any] = Context()
    caller = None
    if call_of_run is not None:
        context = call_of_run.context(tool, arguments)
        caller = call_of_run.caller
    try:
        yield tool.with_context(arguments, context, caller)
    finally:
        context.end()


def is_coroutine_function(func: Any) -> bool:
    """Whether calling it certainly returns a coroutine.

    False proves nothing: the returned value decides.
    """
    if inspect.iscoroutinefunction(func):
        return True
    return callable(func) and inspect.iscoroutinefunction(type(func).__call__)


def _is_async(name: str, value: Any) -> AsyncToolError:
    """The error for an async tool in sync code; the value is dropped without a warning."""
    discard(value)
    return AsyncToolError(
        f"`{name}` is async: use `await {name}.acall(...)`, or switch on "
        "`allow_tool_async_sync_conversion` (with `configure` or `context`) to run it on "
        "ferrule's background loop."
    )


def _function_of(tool: ToolSpec) -> Any:
    """The function that a call runs; raises `ToolError` for a tool that runs nothing here."""
    name = tool.name
    if tool.result != "function":
        raise ToolError(
            f"The result of `{name}` comes from outside, and only a run can wait for it: an agent "
            f"with the tool, or `call_tool({name!r}, ...)` in a `forward`."
        )
    if tool.func is None:
        raise ToolError(
            f"`{name}` has no function here: it was declared with a schema only. "
            f"Bind one with Tool({name!r}, callable=..., schema=...)."
        )
    return tool.func
