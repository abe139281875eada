"""What a tool returns to change the tools of its run: a `@module_callback`, `Load`, `Unload`.

In: such a value, and the host of the run that made the call (`programs/tool_use/dynamic.py`). Out: a `ToolResult` whose
text is what the callback returned and whose `change` is what it did, as JSON: `{"added": {name: digest of its declaration}, "removed":
[name]}`. The callback is part of its call: it runs between `begun` and `result`, and text and change are one
journal entry, so that neither is ever there alone.
"""

from __future__ import annotations

import inspect
from functools import partial, update_wrapper
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ferrule.concurrency import offload
from ferrule.errors import ToolDefinitionError, ToolError, shown
from ferrule.values.calls.call import CheckedCall, ToolResult
from ferrule.values.encoding.encode import json_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.values.calls.call import ToolSpec


class ModuleCallback:
    """A function of a context that may change the tools of the run: made by `@module_callback`, returned by a tool. Still callable."""

    def __init__(self, func: Callable[[Any], Any]) -> None:
        self.func = func
        """Takes a `ModuleContext`; returns the observation, a text, or an awaitable of it."""

    def __call__(self, context: Any) -> Any:
        """Call the function."""
        return self.func(context)

    def __repr__(self) -> str:
        return f"<module callback {getattr(self.func, '__name__', self.func)!s}>"


def module_callback(function: Callable[[Any], Any]) -> ModuleCallback:
    """Mark a function, sync or async, as a callback on the program: a tool returns it, and it is called with a `ModuleContext`.

    It may call `context.module.init_module(tools=[...])`, and must return a text: what the model is shown of the call.
    """
    made = ModuleCallback(function)
    update_wrapper(made, function)
    return made


class _Named(ModuleCallback):
    """A change by names."""

    def __init__(self, *names: str) -> None:
        if not names or not all(isinstance(name, str) for name in names):  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
            msg = f"`{type(self).__name__}` takes names of tools: {type(self).__name__}('billing.*', 'clock'); found {shown(names)}."
            raise ToolDefinitionError(msg)
        self.names = names
        super().__init__(self._change)

    def _change(self, context: Any) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.names))})"


class Load(_Named):
    """Returned by a tool: the tools of these names, globs among them (`"billing.*"`), come from the toolbox's shelf into the run."""

    def _change(self, context: Any) -> str:
        return context.module.load(*self.names)


class Unload(_Named):
    """Returned by a tool: the tools of these names, globs among them, go back to the shelf they came from."""

    def _change(self, context: Any) -> str:
        return context.module.unload(*self.names)


def digest(tool: ToolSpec) -> str:
    """A name for what a model is told of a tool: 16 hexadecimal characters of the SHA-256 of its declaration."""
    return sha256(json_bytes(tool.declaration)).hexdigest()[:16]


def changed(checked: CheckedCall, change: ModuleCallback) -> ToolResult:
    """Make the change from this thread."""
    context = _context(checked)
    said = change.func(context)
    if inspect.isawaitable(said):
        said = offload.run_async(said)
    return _result(checked, context, said)


async def achanged(checked: CheckedCall, change: ModuleCallback) -> ToolResult:
    """Make the change without blocking the loop: the function is called in the pool, what it returns is awaited here."""
    context = _context(checked)
    said = await offload.in_worker_thread(partial(change.func, context))
    if inspect.isawaitable(said):
        said = await said
    return _result(checked, context, said)


def _context(checked: CheckedCall) -> Any:
    if checked.host is None:
        msg = f"`{checked.tool.name}` returned a change of tools, which only a program that offers tools can make: ReAct or Predict."
        raise ToolError(msg)
    return checked.host.context()


def _result(checked: CheckedCall, context: Any, said: Any) -> ToolResult:
    call = checked.call
    if not isinstance(said, str):
        told = f"The module callback of `{call.name}` must return a text, found {shown(said)}. The tools were not changed."
        return ToolResult(call.name, told, call.id, is_error=True)
    return ToolResult(call.name, said, call.id, change=context.module.settled())
