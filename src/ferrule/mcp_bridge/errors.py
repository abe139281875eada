"""Errors of the SDK and of the transports as `MCPError`s.

Each names the server, the tool and the phase of the request, and says whether the server may have
executed the call. What the server said is in the text without invisible characters: a model may
read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import (
    ConfigurationError,
    FerruleError,
    MCPConnectionError,
    MCPError,
    MCPProtocolError,
    MCPTimeoutError,
)
from ferrule.mcp_bridge.transport.redact import redact
from ferrule.record import Record, replace
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


class Attempt(Record, kw_only=True):
    """One attempt of a request, as far as its error needs it."""

    server: str
    phase: str
    tool: str | None = None
    was_sent: bool = True
    """Whether any of it may have reached the server."""

    @property
    def may_have_run(self) -> bool | None:
        """Whether the server may have executed the call; None if the request is no call."""
        return self.was_sent if self.phase == "call" else None

    @property
    def subject(self) -> str:
        """The subject of a message."""
        return (
            f"`{self.tool}` of MCP server `{self.server}`"
            if self.tool
            else f"MCP server `{self.server}` ({self.phase})"
        )

    def facts(self, *, ran: bool | None = None) -> dict[str, Any]:
        """The attributes of its error. `ran`: whether the server may have executed a call; by default, whether it was sent."""
        found = self.may_have_run if ran is None or self.phase != "call" else ran
        return {
            "server": self.server,
            "tool": self.tool,
            "phase": self.phase,
            "may_have_run": found,
        }


class UnspokenModeError(Exception):
    """A server does not speak the revision that the user chose; the message has no subject."""


class MissingExtraError(ConfigurationError, ImportError):
    """The `mcp` package is not installed."""


def missing_extra(error: ImportError) -> ConfigurationError:
    """The error for an installation without the extra; also an `ImportError`."""
    made = MissingExtraError("MCP servers need the MCP SDK: pip install 'ferrule[mcp]'.")
    made.__cause__ = error
    return made


def timeout_error(attempt: Attempt, seconds: float, detail: str = "") -> MCPTimeoutError:
    """The error for a request without an answer in time."""
    ran = " It may still have been executed." if attempt.may_have_run else ""
    return MCPTimeoutError(
        scrub(f"{attempt.subject} did not answer within {seconds:g} s.{ran}{_after(detail)}"),
        **attempt.facts(),
    )


def silent_error(attempt: Attempt, seconds: float) -> MCPTimeoutError:
    """The error for a call that is not sent, as the server answers nothing."""
    why = f"the server does not answer. It sent nothing for {seconds:.0f} s, not even an answer to a ping"
    return MCPTimeoutError(
        f"{attempt.subject} was not called: {why}. Continue without it, or try later.",
        **attempt.facts(),
    )


def connection_error(
    attempt: Attempt,
    why: str,
    cause: BaseException | None = None,
) -> MCPConnectionError:
    """The error for a connection that is lost or cannot be made."""
    ran = {True: " The call may have been executed.", False: " The call was not sent.", None: ""}[
        attempt.may_have_run
    ]
    made = MCPConnectionError(scrub(f"{attempt.subject}: {why}.{ran}"), **attempt.facts())
    made.__cause__ = cause
    return made


def login_error(attempt: Attempt, why: str) -> MCPConnectionError:
    """The error where a server needs a log-in and there is none."""
    made = MCPConnectionError(f"{attempt.subject}: {why}.", **attempt.facts(ran=False))
    made.phase = "login"
    return made


def error_answer(
    attempt: Attempt,
    code: int,
    message: str,
    data: object = None,
    *,
    status: int | None = None,
) -> MCPProtocolError:
    """The error for a JSON-RPC error that the server sent."""
    facts = attempt.facts(ran=code not in _SURELY_NOT_RUN)
    text = scrub(f"{attempt.subject} answered with error {code}: {message}")
    return MCPProtocolError(text, code=code, data=data, status=status, **facts)


def error_of_note(attempt: Attempt, note: Note, code: int, message: str, data: object) -> MCPError:
    """The error for a request with a note; `code`, `message` and `data` are the server's only if the note `has_error`."""
    if note.has_error:
        made: MCPError = error_answer(attempt, code, message, data, status=note.status)
    elif note.was_answered or (note.status is not None and note.status < _CLIENT_ERROR):
        http = f"HTTP {note.status}, " if note.status is not None else ""
        text = f"{attempt.subject} sent an invalid response: {http}{note.text or 'no body'}."
        made = MCPProtocolError(scrub(text), status=note.status, **attempt.facts())
    elif note.status is None:
        return connection_error(
            replace(attempt, was_sent=note.was_sent),
            f"the connection failed ({note.text})",
            note.cause,
        )
    else:
        why = _REJECTED.get(
            note.status,
            "it failed" if note.status >= _SERVER_ERROR else "it refused",
        )
        wait = f" Retry in {note.retry_after_s:g} s." if note.retry_after_s is not None else ""
        hint = _PATHS if attempt.phase == "handshake" and note.status in _NO_MCP else ""
        text = f"{attempt.subject}: HTTP {note.status}, {why}.{hint}{wait}{_after(note.text)}"
        made = MCPConnectionError(
            scrub(text),
            status=note.status,
            **attempt.facts(ran=note.status >= _SERVER_ERROR),
        )
    made.retry_after_s = note.retry_after_s
    return made


def opening_error(
    attempt: Attempt,
    cause: BaseException | None,
    note: Note | None,
    exit_reason: str | None,
) -> FerruleError:
    """Why a server could not be connected; `exit_reason` is a child process's."""
    if isinstance(cause, FerruleError):
        return cause
    if isinstance(cause, ImportError):
        return missing_extra(cause)
    if isinstance(cause, UnspokenModeError) and (note is None or note.status not in _NO_MCP):
        return MCPProtocolError(f"{attempt.subject}: {cause}.", **attempt.facts())
    sdk_error: Any = cause if type(cause).__name__ == "MCPError" else None
    if note is not None:
        code, message, data = (
            (sdk_error.code, sdk_error.message, sdk_error.data)
            if sdk_error is not None
            else (0, "", None)
        )
        return error_of_note(attempt, note, code, message, data)
    if exit_reason is not None and (sdk_error is None or sdk_error.code == CONNECTION_CLOSED):
        return connection_error(attempt, exit_reason, cause)
    if sdk_error is not None:
        return error_answer(attempt, sdk_error.code, sdk_error.message, sdk_error.data)
    made = connection_error(
        attempt,
        f"it could not be reached ({type(cause).__name__}: {redact(str(cause))})",
        cause,
    )
    made.status = getattr(
        getattr(cause, "response", None),
        "status_code",
        None,
    )  # the stream of HTTP+SSE was refused
    return made


def unsendable_error(attempt: Attempt, error: Exception) -> MCPProtocolError:
    """The error for arguments that JSON cannot hold."""
    text = f"{attempt.subject} was not called: its arguments cannot be written as JSON ({str(error)[:200]})."
    return MCPProtocolError(text, **attempt.facts(ran=False))


def _after(detail: str) -> str:
    return f" It said: {detail}" if detail else ""


def root_of(error: BaseException) -> BaseException:
    """The first error inside the groups of task groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[Any]", error).exceptions[0]
    return error
