"""Changes of a run's tools that a tool returns: a `@module_callback`, `Load`, `Unload`.

The result has the callback's text as content and the change as JSON: `{"added": {name: digest of
its declaration}, "removed": [name]}`. The callback is part of its call: it runs between the
journal's `begun` and `result`, and text and change are in one entry.
"""

from __future__ import annotations

import inspect
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

from ferrule.concurrency import offload
from ferrule.encoding.encode import digest_of
from ferrule.errors import ToolDefinitionError, ToolError, shown
from ferrule.values.calls.call import CheckedCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.values.calls.call import ToolSpec


class ModuleCallback:
    """A function that may change the tools of the run.

    It is made by `@module_callback`, returned by a tool, and still callable.
    """

    def __init__(self, func: Callable[[Any], Any]) -> None:
        self.func = func
        """Takes a `ModuleContext`; returns the observation (a string), or an awaitable of it."""

    def __call__(self, context: Any) -> Any:
        """Call the function."""
        return self.func(context)

    def __repr__(self) -> str:
        return f"<module callback {getattr(self.func, '__name__', self.func)!s}>"


def module_callback(function: Callable[[Any], Any]) -> ModuleCallback:
    """Turn a sync or async function into a callback that may change the tools of a run.

    A tool returns it, and the run calls it with a `ModuleContext`. It may call
    `context.module.init_module(tools=[...])`, and returns a text, which the model sees as the
    result of the tool's call.
    """
    callback = ModuleCallback(function)
    update_wrapper(callback, function)
    return callback


class _Named(ModuleCallback):
    """A change of tools by name."""

    def __init__(self, *names: str) -> None:
        # Users pass anything.
        if not names or not all(isinstance(name, str) for name in names):
            kind = type(self).__name__
            raise ToolDefinitionError(
                f"`{kind}` takes names of tools: {kind}('billing.*', 'clock'); "
                f"found {shown(names)}."
            )
        self.names = names
        super().__init__(self._change)

    def _change(self, context: Any) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.names))})"


class Load(_Named):
    """Returned by a tool, loads tools from the toolbox's shelf into the run.

    Takes names or globs (`"billing.*"`).
    """

    def _change(self, context: Any) -> str:
        return context.module.load(*self.names)


class Unload(_Named):
    """Returned by a tool, moves tools back to the shelf, by name or glob."""

    def _change(self, context: Any) -> str:
        return context.module.unload(*self.names)


def digest(tool: ToolSpec) -> str:
    """A digest of a tool's declaration: 16 hexadecimal characters of its SHA-256."""
    return digest_of(tool.declaration)


def apply_change(checked: CheckedCall, change: ModuleCallback) -> ToolResult:
    """Run the callback in this thread."""
    context = _context(checked)
    text = change.func(context)
    if inspect.isawaitable(text):
        text = offload.run_async(text)
    return _result(checked, context, text)


async def aapply_change(checked: CheckedCall, change: ModuleCallback) -> ToolResult:
    """Run the callback in the pool, without blocking the loop.

    An awaitable that it returns is awaited here.
    """
    context = _context(checked)
    text = await offload.in_worker_thread(partial(change.func, context))
    if inspect.isawaitable(text):
        text = await text
    return _result(checked, context, text)


def _context(checked: CheckedCall) -> Any:
    if checked.host is None:
        raise ToolError(
            f"`{checked.tool.name}` returned a change of tools, which only a program that offers "
            "tools can make: ReAct or Predict."
        )
    return checked.host.context()


def _result(checked: CheckedCall, context: Any, text: Any) -> ToolResult:
    call = checked.call
    if not isinstance(text, str):
        problem = (
            f"The module callback of `{call.name}` must return a text, found {shown(text)}. "
            "The tools were not changed."
        )
        return ToolResult(call.name, problem, call.id, is_error=True)
    return ToolResult(call.name, text, call.id, change=context.module.settled())
