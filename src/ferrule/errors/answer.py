"""Errors about the data between a program and a model: declarations, requests, calls and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors.error import FerruleError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class BoundaryError(FerruleError, ValueError):
    """A declaration, a request, a call or an answer is invalid. Sync, async and streamed runs raise the same class, code and data.

    `code` is one of `invalid_tool_spec`, `invalid_request` (nothing was sent); `missing_content`, `missing_required_outputs`,
    `invalid_outputs`, `invalid_tool_calls`, `invalid_tool_call`, `invalid_tool_call_arguments` (in an answer). `raw` is the invalid value.
    """

    raw: object = None


class ToolCallError(BoundaryError):
    """A tool call, a declaration or a request is invalid. `index` is its place in a list, `tool` its tool if known, `reason` one word."""

    def __init__(
        self, code: str, message: str, *, raw: object = None, index: int | None = None, tool: str | None = None, reason: str | None = None
    ) -> None:
        self.code, self.raw, self.index, self.tool, self.reason = code, raw, index, tool, reason
        super().__init__(message)


class AdapterParseError(BoundaryError):
    """A model's answer cannot be parsed into the outputs of the signature.

    `text` is the whole answer, `raw` the part that `code` is about. `problems` holds pairs `(field, problem)`, `parsed` the outputs that
    could be parsed, and `absent` the names of outputs missing from the answer. `signature` is None if the adapter got none.
    """

    def __init__(
        self, adapter: str, text: str, problems: Sequence[tuple[str, str]], *, signature: Any = None,
        parsed: Mapping[str, Any] | None = None, absent: Iterable[str] = (), code: str = "invalid_outputs", raw: object = None,
    ) -> None:  # fmt: skip
        self.code, self.raw, self.signature, self.absent = code, text if raw is None else raw, signature, frozenset(absent)
        self.adapter, self.text, self.problems, self.parsed = adapter, text, tuple(problems), dict(parsed or {})
        lines = [f"- {name}: {problem}" if name else f"- {problem}" for name, problem in self.problems]
        super().__init__("\n".join([f"{adapter} could not read the model's answer:", *lines, f"The answer was: {shown(text, 600)}"]))
