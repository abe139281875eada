"""What went wrong with a server, as an error of ours.

In: an error of the SDK or of a transport, and what is known of the request. Out: an `MCPError` that names server, tool and phase, and says
whether the server may have executed the call.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from ferrule.bridges.mcp.transport.redact import shown
from ferrule.errors import ConfigurationError, FerruleError, MCPConnectionError, MCPError, MCPProtocolError, MCPTimeoutError
from ferrule.values.record import Record

if TYPE_CHECKING:
    from ferrule.bridges.mcp.transport.messages import Note

CONNECTION_CLOSED = -32000  # what the SDK answers in the place of a server that is gone; a server may say it, too
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY = 401, 403, 429
_REJECTED = {
    _UNAUTHORIZED: "it wants credentials, or does not take these",
    _FORBIDDEN: "it does not allow this",
    _TOO_MANY: "it was asked too often",
}


class Asked(Record, kw_only=True):
    """One request, as far as an error needs it."""

    server: str
    phase: str
    tool: str | None = None
    was_sent: bool = True
    """Whether any of it may have reached the server."""

    @property
    def may_have_run(self) -> bool | None:
        """Whether a call may have been executed; None for what is no call."""
        return self.was_sent if self.phase == "call" else None

    @property
    def what(self) -> str:
        """The subject of a message."""
        return f"`{self.tool}` of MCP server `{self.server}`" if self.tool else f"MCP server `{self.server}` ({self.phase})"


def missing_extra(error: ImportError) -> ConfigurationError:
    """The error for an installation without the extra; also an `ImportError`."""
    made = MissingExtraError("MCP servers need the MCP SDK: pip install 'ferrule[mcp]'.")
    made.__cause__ = error
    return made


class MissingExtraError(ConfigurationError, ImportError):
    """The `mcp` package is not installed."""


def timed_out(asked: Asked, seconds: float, detail: str = "") -> MCPTimeoutError:
    """No answer in time."""
    ran = " It may have been executed all the same." if asked.may_have_run else ""
    return MCPTimeoutError(
        f"{asked.what} did not answer within {seconds:g} s.{ran}{_after(detail)}",
        server=asked.server, tool=asked.tool, phase=asked.phase, may_have_run=asked.may_have_run,
    )  # fmt: skip


def lost(asked: Asked, why: str, cause: BaseException | None = None) -> MCPConnectionError:
    """The connection is gone, or never was."""
    ran = " The call may have been executed." if asked.may_have_run else " The call was not sent." if asked.may_have_run is False else ""
    made = MCPConnectionError(
        f"{asked.what}: {why}.{ran}", server=asked.server, tool=asked.tool, phase=asked.phase, may_have_run=asked.may_have_run
    )
    made.__cause__ = cause
    return made


def answered(asked: Asked, code: int, message: str, data: object = None, *, status: int | None = None) -> MCPProtocolError:
    """A JSON-RPC error of the server: it was heard, and refused."""
    return MCPProtocolError(
        f"{asked.what} answered with error {code}: {message}",
        server=asked.server, tool=asked.tool, phase=asked.phase, code=code, data=data, status=status,
        may_have_run=None if asked.phase != "call" else code not in _SURELY_NOT_RUN,
    )  # fmt: skip


_SURELY_NOT_RUN = frozenset({-32700, -32600, -32601, -32602, -32020, -32022})


def of_note(asked: Asked, note: Note, code: int, message: str, data: object) -> MCPError:
    """What is noted of a request; `code`, `message` and `data` are the server's own only where the note says that it has an error."""
    if note.has_error:
        made: MCPError = answered(asked, code, message, data, status=note.status)
    elif note.was_answered or (note.status is not None and note.status < _CLIENT_ERROR):
        http = f"HTTP {note.status}, " if note.status is not None else ""
        made = MCPProtocolError(
            f"{asked.what} answered with what is no answer: {http}{note.text or 'no body'}.",
            server=asked.server, tool=asked.tool, phase=asked.phase, status=note.status, may_have_run=asked.may_have_run,
        )  # fmt: skip
    elif note.status is None:
        asked = Asked(server=asked.server, phase=asked.phase, tool=asked.tool, was_sent=note.was_sent)
        return lost(asked, f"the connection failed ({note.text})", note.cause)
    else:
        why = _REJECTED.get(note.status, "it failed" if note.status >= _SERVER_ERROR else "it refused")
        wait = f" It may be asked again in {note.retry_after_s:g} s." if note.retry_after_s is not None else ""
        made = MCPConnectionError(
            f"{asked.what}: HTTP {note.status}, {why}.{wait}{_after(note.text)}",
            server=asked.server, tool=asked.tool, phase=asked.phase, status=note.status,
            may_have_run=None if asked.phase != "call" else note.status >= _SERVER_ERROR,
        )  # fmt: skip
    made.retry_after_s = note.retry_after_s
    return made


def unopened(asked: Asked, cause: BaseException | None, note: Note | None, how_it_died: str | None) -> FerruleError:
    """Why a server could not be connected; `how_it_died` of a child process."""
    if isinstance(cause, FerruleError):
        return cause
    if isinstance(cause, ImportError):
        return missing_extra(cause)
    sdk_error: Any = cause if type(cause).__name__ == "MCPError" else None
    if note is not None:
        code, message, data = (sdk_error.code, sdk_error.message, sdk_error.data) if sdk_error is not None else (0, "", None)
        return of_note(asked, note, code, message, data)
    if how_it_died is not None and (sdk_error is None or sdk_error.code == CONNECTION_CLOSED):
        return lost(asked, how_it_died, cause)
    if sdk_error is not None:
        return answered(asked, sdk_error.code, sdk_error.message, sdk_error.data)
    return lost(asked, f"it could not be reached ({type(cause).__name__}: {shown(str(cause))})", cause)


def sendable(asked: Asked, value: Any) -> Any:
    """A value as plain JSON. Raises `MCPProtocolError` for what JSON cannot say: NaN, half a character, an object, too deep a nesting."""
    from pydantic_core import to_jsonable_python

    try:
        plain = to_jsonable_python(value)
        json.dumps(plain, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        msg = f"{asked.what} was not asked: what it was to be given cannot be written as JSON ({str(error)[:200]})."
        ran = False if asked.phase == "call" else None
        raise MCPProtocolError(msg, server=asked.server, tool=asked.tool, phase=asked.phase, may_have_run=ran) from error
    return plain


def _after(detail: str) -> str:
    return f" It said: {detail}" if detail else ""


def root_of(error: BaseException) -> BaseException:
    """The first error that is none of a task group's wrappers."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[Any]", error).exceptions[0]
    return error
