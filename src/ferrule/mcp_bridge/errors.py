"""Errors of the SDK and of the transports as `MCPError`s.

Each names the server, the tool and the phase of the request, and says whether the server may have
executed the call. Text of the server is shown without invisible characters: a model may read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule.errors import (
    ConfigurationError,
    FerruleError,
    MCPConnectionError,
    MCPError,
    MCPProtocolError,
    MCPTimeoutError,
    import_problem,
)
from ferrule.mcp_bridge.redact import redact
from ferrule.tools.mcp.safety import scrub

if TYPE_CHECKING:
    from ferrule.mcp_bridge.transport.messages import Note

CONNECTION_CLOSED = -32000  # the SDK's code for a lost connection; a server may send it too
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
_REJECTED = {
    401: "it requires credentials, or rejected these",
    403: "it does not allow this",
    429: "too many requests",
}
_NO_MCP = (404, 405)
_PATHS = " Is the path right? Most servers answer at `/mcp`, those of the older HTTP+SSE at `/sse`."
_SURELY_NOT_RUN = frozenset({-32700, -32600, -32601, -32602, -32020, -32022})
"""Codes with which a server refuses a request before it acts on it."""


class Attempt(Struct, frozen=True, kw_only=True):
    """One attempt of a request, as far as its error needs it."""

    server: str
    phase: str
    tool: str | None = None
    was_sent: bool = True
    """Whether any of it may have reached the server."""

    @property
    def may_have_run(self) -> bool | None:
        """Whether the server may have executed the call; None if the request is not a call."""
        return self.was_sent if self.phase == "call" else None

    @property
    def subject(self) -> str:
        """The subject of a message."""
        if self.tool:
            return f"`{self.tool}` of MCP server `{self.server}`"
        return f"MCP server `{self.server}` ({self.phase})"

    def facts(self, *, ran: bool | None = None) -> dict[str, Any]:
        """The attributes of its error.

        `ran`: whether the server may have executed a call; by default, whether it was sent.
        """
        may_have_run = self.may_have_run
        if ran is not None and self.phase == "call":
            may_have_run = ran
        return {
            "server": self.server,
            "tool": self.tool,
            "phase": self.phase,
            "may_have_run": may_have_run,
        }


class HandshakeError(Exception):
    """A server does not speak a revision of the client's; the message has no subject."""


class MissingExtraError(ConfigurationError, ImportError):
    """The `mcp` package cannot be imported."""


def missing_extra(cause: ImportError) -> ConfigurationError:
    """The error for an installation without the extra; also an `ImportError`."""
    needs = "MCP servers need the MCP SDK: pip install 'ferrule[mcp]'."
    error = MissingExtraError(import_problem(needs, cause))
    error.__cause__ = cause
    return error


def timeout_error(attempt: Attempt, seconds: float, detail: str = "") -> MCPTimeoutError:
    """The error for a request without an answer in time."""
    text = f"{attempt.subject} did not answer within {seconds:g} s."
    if attempt.may_have_run:
        text += " It may still have been executed."
    return MCPTimeoutError(scrub(text + _quoted(detail)), **attempt.facts())


def silent_error(attempt: Attempt, seconds: float) -> MCPTimeoutError:
    """The error for a call that is not sent, as the server answers nothing."""
    text = (
        f"{attempt.subject} was not called: the server does not answer. It sent nothing for "
        f"{seconds:.0f} s, not even an answer to a ping. Continue without it, or try later."
    )
    return MCPTimeoutError(text, **attempt.facts())


def connection_error(
    attempt: Attempt, why: str, cause: BaseException | None = None
) -> MCPConnectionError:
    """The error for a connection that is lost or cannot be made."""
    text = f"{attempt.subject}: {why}."
    if attempt.may_have_run is True:
        text += " The call may have been executed."
    elif attempt.may_have_run is False:
        text += " The call was not sent."
    error = MCPConnectionError(scrub(text), **attempt.facts())
    error.__cause__ = cause
    return error


def login_error(attempt: Attempt, why: str) -> MCPConnectionError:
    """The error where a server needs a log-in and there is none."""
    error = MCPConnectionError(f"{attempt.subject}: {why}.", **attempt.facts(ran=False))
    error.phase = "login"
    return error


def error_answer(
    attempt: Attempt, code: int, message: str, data: object = None, *, status: int | None = None
) -> MCPProtocolError:
    """The error for a JSON-RPC error that the server sent."""
    facts = attempt.facts(ran=code not in _SURELY_NOT_RUN)
    text = scrub(f"{attempt.subject} answered with error {code}: {message}")
    return MCPProtocolError(text, code=code, data=data, status=status, **facts)


def error_of_note(attempt: Attempt, note: Note, code: int, message: str, data: object) -> MCPError:
    """The error for a request with a note.

    `code`, `message` and `data` are the server's only if the note `has_error`.
    """
    error: MCPError
    if note.has_error:
        error = error_answer(attempt, code, message, data, status=note.status)
    elif note.was_answered or (note.status is not None and note.status < _CLIENT_ERROR):
        error = _invalid_response(attempt, note)
    elif note.status is not None:
        error = _refused_error(attempt, note, note.status)
    else:
        why = f"the connection failed ({note.text})"
        return connection_error(replace(attempt, was_sent=note.was_sent), why, note.cause)
    error.retry_after_s = note.retry_after_s
    return error


def _invalid_response(attempt: Attempt, note: Note) -> MCPProtocolError:
    http = ""
    if note.status is not None:
        http = f"HTTP {note.status}, "
    text = f"{attempt.subject} sent an invalid response: {http}{note.text or 'no body'}."
    return MCPProtocolError(scrub(text), status=note.status, **attempt.facts())


def _refused_error(attempt: Attempt, note: Note, status: int) -> MCPConnectionError:
    has_failed = status >= _SERVER_ERROR
    why = _REJECTED.get(status, "it failed" if has_failed else "it refused")
    text = f"{attempt.subject}: HTTP {status}, {why}."
    if attempt.phase == "handshake" and status in _NO_MCP:
        text += _PATHS
    if note.retry_after_s is not None:
        text += f" Retry in {note.retry_after_s:g} s."
    text += _quoted(note.text)
    return MCPConnectionError(scrub(text), status=status, **attempt.facts(ran=has_failed))


def opening_error(
    attempt: Attempt, cause: BaseException | None, note: Note | None, exit_reason: str | None
) -> FerruleError:
    """Why a server could not be connected; `exit_reason` is a child process's."""
    if isinstance(cause, FerruleError):
        return cause
    if isinstance(cause, ImportError):
        return missing_extra(cause)
    if isinstance(cause, HandshakeError) and (note is None or note.status not in _NO_MCP):
        return MCPProtocolError(f"{attempt.subject}: {cause}.", **attempt.facts())
    # By name, as the SDK may be missing. Its class is called like ours.
    sdk_error: Any = cause if type(cause).__name__ == "MCPError" else None
    if note is not None:
        if sdk_error is None:
            return error_of_note(attempt, note, 0, "", None)
        return error_of_note(attempt, note, sdk_error.code, sdk_error.message, sdk_error.data)
    if exit_reason is not None and (sdk_error is None or sdk_error.code == CONNECTION_CLOSED):
        return connection_error(attempt, exit_reason, cause)
    if sdk_error is not None:
        return error_answer(attempt, sdk_error.code, sdk_error.message, sdk_error.data)
    why = f"it could not be reached ({type(cause).__name__}: {redact(str(cause))})"
    error = connection_error(attempt, why, cause)
    # The stream of HTTP+SSE may have been refused.
    error.status = getattr(getattr(cause, "response", None), "status_code", None)
    return error


def unsendable_error(attempt: Attempt, error: Exception) -> MCPProtocolError:
    """The error for arguments that JSON cannot hold."""
    text = (
        f"{attempt.subject} was not called: its arguments cannot be written as JSON "
        f"({str(error)[:200]})."
    )
    return MCPProtocolError(text, **attempt.facts(ran=False))


def _quoted(detail: str) -> str:
    if detail:
        return f" It said: {detail}"
    return ""


def root_of(error: BaseException) -> BaseException:
    """The first error inside the groups of task groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[Any]", error).exceptions[0]
    return error
