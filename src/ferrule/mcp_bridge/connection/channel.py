"""The way from a client to its server: a child process, HTTP, or memory, as two streams."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.mcp_bridge.errors import Attempt, connection_error, opening_error, root_of
from ferrule.mcp_bridge.login.login import Login
from ferrule.mcp_bridge.redact import public_words, redact
from ferrule.mcp_bridge.spec import ServerSpec
from ferrule.mcp_bridge.transport.http import http_streams, sse_streams
from ferrule.mcp_bridge.transport.stdio import (
    CHILD_GRACE_S,
    Child,
    child_environment,
    private_proxies,
    stdio_streams,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from ferrule.errors import FerruleError
    from ferrule.mcp_bridge.transport.http import GuardedClient
    from ferrule.mcp_bridge.transport.messages import Note

_SETTLE_S = 0.5


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where a server is: its spec, expanded, and live objects that a spec cannot hold."""

    spec: ServerSpec
    connect_timeout_s: float
    inherit: Sequence[str] = ()
    """For `stdio`: what the child process inherits."""
    auth: Any = None
    login: Login | None = None
    http_client: Any = None
    server: Any = None
    """For `memory`: a server of the SDK in this process."""


class Channel:
    """The streams to one server, and the child process or HTTP client behind them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.child: Child | None = None
        self.guard: GuardedClient | None = None
        self.grace_s = CHILD_GRACE_S
        self.is_given_up = False
        """Whether the client closed it."""

    async def open(
        self,
        stack: AsyncExitStack,
        note: Callable[[Any, Note], None],
        guarded: Callable[[GuardedClient], None],
    ) -> Any:
        """The streams to read from and to write to.

        `guarded` gets the HTTP client, `note` an answer on stdout that cannot be read.
        """
        endpoint, spec = self._endpoint, self._endpoint.spec

        def keep(guard: GuardedClient) -> None:
            self.guard = guard
            guarded(guard)

        streams: Any
        match spec.transport:
            case "stdio":
                self.child = await self._start_child()
                stack.push_async_callback(self._end_child, self.child)
                streams = stdio_streams(self.child, note)
            case "http":
                streams = http_streams(
                    spec.url, spec.headers, endpoint.auth, endpoint.http_client, keep
                )
            case "sse":
                streams = sse_streams(spec.url, spec.headers, endpoint.auth, keep)
            case "memory":
                # Private, but there is no other way: an `MCPServer` of the SDK gives its
                # low-level server no public name, and `mcp.Client` brings a session of its own.
                from mcp.client._memory import InMemoryTransport

                streams = InMemoryTransport(endpoint.server)
        return await stack.enter_async_context(streams)

    async def _start_child(self) -> Child:
        spec = self._endpoint.spec
        try:
            env = child_environment(spec.environment(), self._endpoint.inherit)
            return await Child.start(spec.name, spec.command, spec.args, env, spec.cwd)
        except (FileNotFoundError, NotADirectoryError) as error:
            # Windows raises the second for a folder that does not exist.
            raise connection_error(self._not_started(), _missing_file(spec), error) from error
        except NotImplementedError as error:
            why = "this event loop starts no processes; on Windows, a `ProactorEventLoop` does"
            raise connection_error(self._not_started(), why, error) from error

    def _not_started(self) -> Attempt:
        return Attempt(server=self._endpoint.spec.name, phase="start", was_sent=False)

    async def _end_child(self, child: Child) -> None:
        await child.close(self.grace_s)

    async def settle(self, owner: asyncio.Task[None] | None) -> None:
        """Wait a moment for the reason of a loss.

        It is the child's exit code and last output, or the owner's error.
        """
        if self.child is not None:
            await self.child.settle(_SETTLE_S)
        elif owner is not None:
            await asyncio.wait((owner,), timeout=_SETTLE_S)

    def last_words(self) -> str:
        """The last lines of a child's stderr, with a hint."""
        words = ""
        if self.child is not None:
            words = self.child.last_words()
        return words + _hint(words, self._endpoint)

    def why_lost(self, owner: asyncio.Task[None] | None) -> str:
        """How the connection ended, for an error."""
        if self.is_given_up:
            return "it was closed during this request"
        if self.child is not None:
            return self._why_child_ended(self.child)
        cause = _error_of(owner)
        if cause is None:
            return "the connection was closed"
        return f"the connection broke ({type(cause).__name__}: {redact(str(cause))})"

    def _why_child_ended(self, child: Child) -> str:
        if child.exit_code is None:
            how = "it closed the connection"
        else:
            how = f"it exited with code {child.exit_code}"
        words = self.last_words()
        if words:
            return f"{how}; its last words were: {words}"
        return how

    def opening_error(self, attempt: Attempt, owner: asyncio.Task[None]) -> FerruleError:
        """Why it could not be opened."""
        if self.is_given_up or owner.cancelled():
            return connection_error(attempt, "it was closed before it was connected")
        note = None
        if self.guard is not None:
            note = self.guard.last
        exit_reason = None
        if self.child is not None:
            exit_reason = self.why_lost(owner)
        return opening_error(attempt, _error_of(owner), note, exit_reason)


_CERTIFICATE = re.compile(
    r"certificate.verify.failed|self.signed.cert|local issuer cert|unknown ?issuer"
    r"|unknown authority|unable to verify the first|UNABLE_TO_\w+_(?:SIGNATURE|LOCALLY)"
    r"|unknown_ca",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN"
    r"|resolve|unreachable|timed out|network",
    re.IGNORECASE,
)


def _hint(words: str, endpoint: Endpoint) -> str:
    """What helps a child that trusts no certificate, or did not get the way to the network."""
    if _CERTIFICATE.search(words):
        return (
            "\n(It does not trust a certificate, perhaps that of a proxy. Name a file with the "
            "right one in its environment: NODE_EXTRA_CA_CERTS for Node, SSL_CERT_FILE for Python "
            "and uv.)"
        )
    if "proxy" in endpoint.inherit and _NETWORK.search(words):
        for name in private_proxies():
            if name not in endpoint.inherit:
                return (
                    f"\n(`{name}` holds a password and was not passed on. If it may be: "
                    f"inherit=[..., {name!r}].)"
                )
    return ""


def _missing_file(spec: ServerSpec) -> str:
    """Why a process could not be started: its folder or its command does not exist."""
    if spec.cwd is not None and not Path(spec.cwd).is_dir():
        return f"the folder {spec.cwd!r} (`cwd`) was not found"
    words = public_words(spec.command.split())
    why = f"the command `{' '.join(words)}` was not found"
    if len(words) > 1:
        why += (
            f'. Arguments have a list of their own: "command": "{words[0]}", '
            f'"args": {json.dumps(words[1:])}'
        )
    return why


def _error_of(owner: asyncio.Task[None] | None) -> BaseException | None:
    if owner is None or not owner.done() or owner.cancelled():
        return None
    raised = owner.exception()
    if raised is not None:
        return root_of(raised)
    return None
