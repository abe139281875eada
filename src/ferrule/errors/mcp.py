"""Errors of MCP servers."""

from __future__ import annotations

from typing import Any

from ferrule.errors.error import FerruleError
from ferrule.errors.tool import ToolError


class MCPError(FerruleError):
    """Base class of errors of MCP servers: `server` is its name, `tool` the tool's name there, `phase` the operation, such as `call`.

    `may_have_run` says whether the call may have run (None: unknown). HTTP errors have `status` and `retry_after_s`; JSON-RPC errors have
    `data`, and a number as `code`.
    """

    def __init__(
        self, message: str, *, server: str | None = None, tool: str | None = None, phase: str | None = None, code: int | None = None,
        may_have_run: bool | None = None, status: int | None = None, retry_after_s: float | None = None, data: object = None,
    ) -> None:  # fmt: skip
        self.server, self.tool, self.phase, self.data = server, tool, phase, data
        self.code: Any = self.code if code is None else code
        self.may_have_run, self.status, self.retry_after_s = may_have_run, status, retry_after_s
        super().__init__(message)

    @property
    def is_retryable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True for a lost connection, a timeout, 429 and 5xx; for a call only if it has certainly not run."""
        is_lost = isinstance(self, (MCPConnectionError, MCPTimeoutError)) and self.phase != "login"
        return (is_lost or self.status in {429, 500, 502, 503, 504}) and not self.may_have_run


class MCPConnectionError(MCPError):
    """A server cannot be started or reached, or the connection was lost."""


class MCPTimeoutError(MCPError, TimeoutError):
    """A server did not answer in time."""


class MCPProtocolError(MCPError):
    """A server answered with a JSON-RPC error or a malformed message."""


class MCPToolError(MCPError, ToolError, RuntimeError):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A tool of a server reported a failure (`isError`)."""
