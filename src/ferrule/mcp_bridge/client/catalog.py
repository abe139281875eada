"""What one server lists: its tools and their changes, its resources and prompts."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ConfigurationError, MCPConnectionError, MCPError
from ferrule.mcp_bridge.client.listing import ToolChanges, all_pages, read_listing
from ferrule.mcp_bridge.client.tasks import run_beside
from ferrule.mcp_bridge.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.mcp_bridge.client.listing import Guard, Listing
    from ferrule.mcp_bridge.client.options import ServerOptions
    from ferrule.mcp_bridge.client.recording import RecordingLink, ReplayLink
    from ferrule.mcp_bridge.connection.reconnect import Link
    from ferrule.tools.definition.mcp import MCPDefinition

    AnyLink = Link | RecordingLink | ReplayLink

log = logging.getLogger("ferrule.mcp")

_LEAST_TTL_S = 5.0
"""A list is kept at least this long. Many servers send `ttlMs: 0` by default, which would be a request before every turn."""
_WAITS_S = 1.0
"""How long `changes` waits for a listing, which otherwise goes on beside the turns of a model."""
_AGAIN_WITHIN_S = 10.0
"""How long such a listing waits for an answer: the server has answered before."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 300.0
"""How long a server is left alone after a listing failed; twice as long after each further failure."""


class Catalog:
    """What one server lists. Runs on the background loop."""

    def __init__(self, server: str, options: ServerOptions, link: AnyLink, guard: Guard) -> None:
        self._server = server
        self._options = options
        self._link = link
        self._guard = guard
        self.listing: Listing | None = None
        """The tools as last listed; only `list_tools` replaces it."""
        self.listed_over = 0
        """The number of the connection that the listing came over. A new connection may have other tools."""
        self.changed: set[str] = set()
        """The lists that the server has notified of."""
        self._passing: tuple[Listing, dict[str, MCPDefinition]] | None = None
        self._listed_at = 0.0
        self.removed: set[str] = set()
        """Names of tools that the server no longer lists."""
        self.headers: dict[str, Any] = {}
        """By tool: which arguments go into headers."""
        self.trouble: MCPError | ConfigurationError | None = None
        """Why the last listing failed; None if it did not."""
        self._again: asyncio.Task[ToolChanges] | None = None
        self._late = ToolChanges()
        self._failures = 0
        self._paused: tuple[int, float] = (0, 0.0)
        """The connection over which no listing is tried, and until when."""

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None,
        *,
        phase: str,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """A request that may be repeated."""
        within = self._options.timeout_s if timeout_s is None else timeout_s
        return await self._link.request(
            method,
            params,
            phase=phase,
            may_repeat=True,
            timeout_s=within,
        )

    async def list_tools(self, timeout_s: float | None = None) -> ToolChanges:
        """List the tools again; returns the changes. Without `timeout_s` each page may take the server's."""
        self.changed.discard("tools")  # first: a change during the listing counts
        entries, ttl_s = await all_pages(
            lambda params: self.request("tools/list", params, phase="list", timeout_s=timeout_s),
            "tools",
            self._server,
        )
        found = read_listing(self._server, entries, ttl_s, self._header_rule())
        before, self.listing = self.listing, self._guard.check(found, self._link.handshake)
        self._listed_at, self.listed_over = time.monotonic(), self._link.starts
        self.trouble, self._failures = None, 0
        self.headers.clear()
        changes = self.listing.since(before)
        self.removed = (self.removed | set(changes.removed)) - set(changes.added)
        if before is not None and changes and self._options.on_tools_changed is not None:
            await asyncio.wait(
                (run_beside(self._tell(self._options.on_tools_changed, changes)),),
            )  # raises nothing
        return changes

    async def _tell(self, observer: Callable[..., None], changes: ToolChanges) -> None:
        observer(changes.added, changes.removed, changes.changed)

    async def pin(self) -> None:
        """Write the current tools into the lock file."""
        try:
            await self.list_tools()
        except MCPConnectionError as error:
            if error.phase != "pins":
                raise
        self._guard.pin()
        await self.list_tools()

    def _header_rule(self) -> Callable[[Any], str | None] | None:
        handshake = self._link.handshake
        if handshake is None or not handshake.is_modern:
            return None
        from mcp.shared.inbound import find_invalid_x_mcp_header

        return find_invalid_x_mcp_header

    async def changes(self) -> ToolChanges:
        """List the tools again if the listing is stale; otherwise send nothing.

        Waits a moment only, and not at all over a connection that failed before. A slow listing
        goes on, and a later call returns its changes. After a failure the server is left alone for
        a while.
        """
        if self.listing is None and self.trouble is None:
            await self.list_tools()
            return ToolChanges()
        again = self._again
        if again is None and not self._late and self.is_stale():
            within = min(self._options.timeout_s, _AGAIN_WITHIN_S)
            again = self._again = asyncio.get_running_loop().create_task(self.list_tools(within))
            again.add_done_callback(self._end_listing)
        if again is not None:
            await asyncio.wait(
                (again,),
                timeout=0 if self._failures and self._link.starts == self._paused[0] else _WAITS_S,
            )
            if again.done():
                again.result()  # may raise
        late, self._late = self._late, ToolChanges()
        return late

    def _end_listing(self, again: asyncio.Task[ToolChanges]) -> None:
        self._again = None
        error = None if again.cancelled() else again.exception()
        if error is None:
            self._late = again.result() if not again.cancelled() else self._late
        elif isinstance(error, MCPError | ConfigurationError):
            self._failed(error)

    def _failed(self, error: MCPError | ConfigurationError) -> None:
        """Leave the server alone for a while; the log has the first of several failures."""
        if self.trouble is None:
            what = (
                "it is left out"
                if self.listing is None
                else "its tools could not be listed again, and stay as they are"
            )
            log.warning("MCP server `%s`: %s: %s", self._server, what, error)
        self.trouble = error
        pause_s = min(_FIRST_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S)
        self._failures += 1
        self._paused = self._link.starts, time.monotonic() + pause_s

    async def is_available(self) -> bool:
        """Whether there is a listing. Makes the first; some time after it failed it is made in the background."""
        if self.listing is None and self.trouble is not None:
            if self.is_stale():
                with suppress(MCPError, ConfigurationError):  # it is logged
                    await self.changes()
        elif self.listing is None:
            try:
                await self.list_tools()
            except MissingExtraError:
                raise
            except (MCPError, ConfigurationError) as error:
                self._failed(error)
        return self.listing is not None

    @property
    def is_away(self) -> bool:
        """Whether the server could not be connected or listed since it was first tried."""
        return self.listing is None and self.trouble is not None

    @property
    def is_listing(self) -> bool:
        """Whether a listing of `changes` is under way."""
        return self._again is not None

    def is_stale(self) -> bool:
        """Whether the listing is missing, too old, from an earlier connection, or the server notified of a change.

        Not while it is being replaced, and not for a while after that failed over this connection.
        """
        known, over = self.listing, self._link.starts
        if self._late:
            return True
        if self._again is not None or (
            self._failures and over == self._paused[0] and time.monotonic() < self._paused[1]
        ):
            return False
        if (
            known is None
            or self.trouble is not None
            or "tools" in self.changed
            or self.listed_over != over
        ):
            return True
        ttl_s = None if known.ttl_s is None else max(known.ttl_s, _LEAST_TTL_S)
        limits = [each for each in (ttl_s, self._options.poll_s) if each is not None]
        return any(time.monotonic() - self._listed_at >= each for each in limits)

    async def definitions(self) -> dict[str, MCPDefinition]:
        """The tools that pass the filters."""
        if self.listing is None:
            await self.list_tools()
        return cast("dict[str, MCPDefinition]", self.known_definitions())

    def known_definitions(self) -> dict[str, MCPDefinition] | None:
        """`definitions` without a request: the same object until the next listing; None before the first."""
        known = self.listing
        if known is None:
            return None
        if self._passing is None or self._passing[0] is not known:
            self._passing = (
                known,
                {
                    name: each
                    for name, each in known.definitions.items()
                    if self._options.passes(each)
                },
            )
        return self._passing[1]

    async def list_of(self, method: str, key: str) -> list[dict[str, Any]]:
        """All entries of another list; empty if the server does not declare it."""
        handshake = (await self._link.connected()).handshake
        kind = "prompts" if key == "prompts" else "resources"
        self.changed.discard(kind)
        if handshake.capabilities.get(kind) is None:
            return []
        entries, _ = await all_pages(
            lambda params: self.request(method, params, phase="list"),
            key,
            self._server,
        )
        return [cast("dict[str, Any]", each) for each in entries if isinstance(each, dict)]
