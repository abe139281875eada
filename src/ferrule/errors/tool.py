"""Errors about tools, and about confirmations of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors.error import FerruleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_MOST_CHARS = 8_000
"""The most characters of problems in a message. The model corrects these, and gets the others after its next call."""


class ToolError(FerruleError):
    """The base class of errors about tools."""


class ToolDefinitionError(ToolError, ValueError, TypeError):
    """A function, file or declaration cannot become a tool."""


class DuplicateToolError(ToolDefinitionError):
    """Two tools have the same name, or the same wire name."""


class ToolLoadError(ToolDefinitionError):
    """A file or folder of tools cannot be loaded."""


class UnknownToolError(ToolError, ValueError):
    """No tool has this name; `names` are the available ones."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self.name, self.names = name, tuple(names)
        known = ", ".join(f"`{each}`" for each in self.names) or "none"
        super().__init__(f"There is no tool `{name}`. Available tools: {known}.")


class ToolArgumentsError(ToolError, ValueError):
    """The arguments of a call are invalid. `problems` holds pairs `(path, text)`: a dotted path (`filters.0`), or `""` for the whole."""

    def __init__(self, tool: str, problems: Sequence[tuple[str, str]], expected: str = "") -> None:
        self.tool, self.problems, self.expected = tool, tuple(problems), expected
        lines = [*_lines(self.problems), *([f"Expected: {expected}"] if expected else [])]
        super().__init__("\n".join([f"Call to `{tool}` was not run. Fix and call again:", *lines]))


def _lines(problems: Sequence[tuple[str, str]]) -> Iterator[str]:
    left = _MOST_CHARS
    for i, (path, text) in enumerate(problems):
        line = f"- {path}: {text}" if path else f"- {text}"
        left -= len(line)
        if left < 0 < i:
            yield f"- and {len(problems) - i} more"
            return
        yield line


class AsyncToolError(ToolError, RuntimeError, ValueError):
    """An async tool was called from sync code without `allow_tool_async_sync_conversion`."""


class ToolTimeoutError(ToolError, TimeoutError):
    """A tool took longer than its `timeout_s`; the thread of a sync tool is abandoned and may still run."""

    def __init__(self, tool: str, timeout_s: float, *, abandoned: bool = False, because: str = "") -> None:
        self.tool, self.timeout_s = tool, timeout_s
        left = " It may still be running: a thread cannot be stopped from outside." if abandoned else because
        super().__init__(f"`{tool}` did not finish within {timeout_s:g} s.{left}")


class ToolExecutionError(ToolError, RuntimeError):
    """The function that `ToolCall.execute` called raised an error, which is the `__cause__`."""


class ToolRetry(ToolError):  # noqa: N818  a public name
    """Raise it in a tool to tell the model what to change. It counts as a fault of the model's call."""


class ToolStop(ToolError):  # noqa: N818  a public name
    """Raise it in a tool to end the run. The caller of the run gets this error."""


class ConfirmationRequired(FerruleError):  # noqa: N818  a public name
    """A person must decide on `question`. `tool_call` has the arguments that will run; `run` is the waiting run, None for a direct call."""

    def __init__(
        self, question: str, *, confirmation_id: str = "", tool_call: Any = None, run: Any = None, context: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.question, self.confirmation_id, self.tool_call = question, confirmation_id, tool_call
        self.run, self.context = run, dict(context or {})
        super().__init__(question)


class ConfirmationRejected(FerruleError):  # noqa: N818  a public name
    """A person denied a call made outside a run or through `call_tool`, or denied a question of `ask_person`."""

    def __init__(self, message: str, *, confirmation_id: str = "", tool_call: Any = None) -> None:
        self.message, self.confirmation_id, self.tool_call = message, confirmation_id, tool_call
        super().__init__(message)
