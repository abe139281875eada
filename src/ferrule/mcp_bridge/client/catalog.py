"""What one server lists: its tools and their changes, its resources and prompts.

The policy of `Catalog.changes`, which an agent calls between two turns of a model: the listing is
made again only if it is stale (`Catalog.is_stale`). The turn waits for it a moment; a slower one
goes on, and a later turn gets its changes. After a failure the tools stay as they are, and the
server is left alone for a while, longer after each further failure over the same connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ConfigurationError, MCPConnectionError, MCPError
from ferrule.mcp_bridge.client.listing import ToolChanges, all_pages, read_listing
from ferrule.mcp_bridge.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.mcp_bridge.client.listing import Listing
    from ferrule.mcp_bridge.client.options import ServerOptions
    from ferrule.mcp_bridge.client.pinning import Guard
    from ferrule.mcp_bridge.client.recording import RecordingLink, ReplayLink
    from ferrule.mcp_bridge.connection.link import Link
    from ferrule.tools.mcp_definition import MCPDefinition

log = logging.getLogger("ferrule.mcp")

_LEAST_TTL_S = 5.0
"""A list is kept at least this long. Many servers send `ttlMs: 0` by default, which would be a
request before every turn."""
_WAITS_S = 1.0
"""How long `changes` waits for a listing, which otherwise goes on during the turns of a model."""
_AGAIN_WITHIN_S = 10.0
"""How long such a listing waits for an answer: the server has answered before."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 300.0
"""How long a server is left alone after a failed listing; twice as long after each further one."""


class Catalog:
    """What one server lists. Runs on the background loop."""

    def __init__(
        self,
        server: str,
        options: ServerOptions,
        link: Link | RecordingLink | ReplayLink,
        guard: Guard,
    ) -> None:
        self._server = server
        self._options = options
        self._link = link
        self._guard = guard

        self.listing: Listing | None = None
        """The tools of the last listing; only `list_tools` replaces it."""
        self._listed_at = 0.0
        self.listed_over = 0
        """The number of its connection. A new connection may have other tools."""
        self.changed: set[str] = set()
        """The lists of whose changes the server has notified."""
        self.removed: set[str] = set()
        """Names of tools that the server no longer lists."""
        self.headers: dict[str, Any] = {}
        """By tool: which arguments go into headers."""
        self._passing: tuple[Listing, dict[str, MCPDefinition]] | None = None
        """The listing and those of its tools that pass the filters."""

        self._relisting: asyncio.Task[ToolChanges] | None = None
        self._late_changes = ToolChanges()
        """The changes of a listing that ended after its turn."""
        self.trouble: MCPError | ConfigurationError | None = None
        """Why the last listing failed; None if it did not."""
        self._failures = 0
        self._paused_over = 0
        """The connection over which no listing is tried until `_paused_until`."""
        self._paused_until = 0.0

    # -- requests

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None,
        *,
        phase: str,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """A request that may be repeated."""
        return await self._link.request(
            method,
            params,
            phase=phase,
            may_repeat=True,
            timeout_s=self._options.timeout_s if timeout_s is None else timeout_s,
        )

    async def list_tools(self, timeout_s: float | None = None) -> ToolChanges:
        """List the tools again; returns the changes.

        Without `timeout_s` each page may take the server's.
        """
        self.changed.discard("tools")  # first: a change during the listing counts
        entries, ttl_s = await all_pages(
            lambda params: self.request("tools/list", params, phase="list", timeout_s=timeout_s),
            "tools",
            self._server,
        )
        listing = read_listing(self._server, entries, ttl_s, self._header_rule())
        before = self.listing
        self.listing = self._guard.check(listing, self._link.handshake)
        self._listed_at = time.monotonic()
        self.listed_over = self._link.starts
        self.trouble = None
        self._failures = 0
        self.headers.clear()
        changes = self.listing.since(before)
        self.removed = (self.removed | set(changes.removed)) - set(changes.added)
        return changes

    def _header_rule(self) -> Callable[[Any], str | None] | None:
        handshake = self._link.handshake
        if handshake is None or not handshake.is_modern:
            return None
        from mcp.shared.inbound import find_invalid_x_mcp_header

        return find_invalid_x_mcp_header

    async def pin(self) -> None:
        """Write the current tools into the lock file."""
        try:
            await self.list_tools()
        except MCPConnectionError as error:
            if error.phase != "pins":  # pins that differ can still be renewed
                raise
        self._guard.pin()
        await self.list_tools()

    async def list_of(self, method: str, key: str) -> list[dict[str, Any]]:
        """All entries of another list; empty if the server does not declare it."""
        handshake = (await self._link.connected()).handshake
        kind = "prompts" if key == "prompts" else "resources"
        self.changed.discard(kind)
        if handshake.capabilities.get(kind) is None:
            return []
        entries, _ = await all_pages(
            lambda params: self.request(method, params, phase="list"), key, self._server
        )
        return [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]

    # -- the tools that pass the filters

    async def definitions(self) -> dict[str, MCPDefinition]:
        """The tools that pass the filters."""
        if self.listing is None:
            await self.list_tools()
        return cast("dict[str, MCPDefinition]", self.known_definitions())

    def known_definitions(self) -> dict[str, MCPDefinition] | None:
        """`definitions` without a request.

        The same object until the next listing; None before the first.
        """
        listing = self.listing
        if listing is None:
            return None
        if self._passing is None:
            self._options.warn_of_names(self._server, listing.definitions.keys())
        if self._passing is None or self._passing[0] is not listing:
            passing = {
                name: definition
                for name, definition in listing.definitions.items()
                if self._options.passes(definition)
            }
            self._passing = (listing, passing)
        return self._passing[1]

    # -- changes between turns

    async def changes(self) -> ToolChanges:
        """List the tools again if the listing is stale; otherwise send nothing.

        Waits a moment only, and not at all over a connection that failed before. A slow listing
        goes on, and a later call returns its changes. After a failure the server is left alone for
        a while.
        """
        if self.listing is None and self.trouble is None:
            await self.list_tools()
            return ToolChanges()
        relisting = self._relisting
        if relisting is None and not self._late_changes and self.is_stale():
            relisting = self._relist()
        if relisting is not None:
            has_failed_here = self._failures > 0 and self._link.starts == self._paused_over
            await asyncio.wait((relisting,), timeout=0 if has_failed_here else _WAITS_S)
            if relisting.done():
                relisting.result()  # may raise
        changes, self._late_changes = self._late_changes, ToolChanges()
        return changes

    def _relist(self) -> asyncio.Task[ToolChanges]:
        within_s = min(self._options.timeout_s, _AGAIN_WITHIN_S)
        relisting = asyncio.get_running_loop().create_task(self.list_tools(within_s))
        relisting.add_done_callback(self._end_listing)
        self._relisting = relisting
        return relisting

    def _end_listing(self, relisting: asyncio.Task[ToolChanges]) -> None:
        self._relisting = None
        if relisting.cancelled():
            return
        error = relisting.exception()
        if error is None:
            self._late_changes = relisting.result()
        elif isinstance(error, MCPError | ConfigurationError):
            self._fail(error)

    def _fail(self, error: MCPError | ConfigurationError) -> None:
        """Leave the server alone for a while; the log has the first of several failures."""
        if self.trouble is None:
            if self.listing is None:
                what = "it is left out"
            else:
                what = "its tools could not be listed again, and stay as they are"
            log.warning("MCP server `%s`: %s: %s", self._server, what, error)
        self.trouble = error
        pause_s = min(_FIRST_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S)
        self._failures += 1
        self._paused_over = self._link.starts
        self._paused_until = time.monotonic() + pause_s

    async def is_available(self) -> bool:
        """Whether there is a listing.

        Makes the first; some time after that failed, it is made in the background.
        """
        if self.listing is not None:
            return True
        if self.trouble is not None:
            if self.is_stale():
                with suppress(MCPError, ConfigurationError):  # it is logged
                    await self.changes()
        else:
            try:
                await self.list_tools()
            except MissingExtraError:
                raise
            except (MCPError, ConfigurationError) as error:
                self._fail(error)
        return self.listing is not None

    @property
    def is_away(self) -> bool:
        """Whether the server could not be connected or listed since it was first tried."""
        return self.listing is None and self.trouble is not None

    @property
    def is_listing(self) -> bool:
        """Whether a listing of `changes` is under way."""
        return self._relisting is not None

    def is_stale(self) -> bool:
        """Whether there are changes to fetch, or there may be.

        A listing is stale if it is missing, too old, from an earlier connection, or if the server
        notified of a change. Not while it is being replaced, and not for a while after that failed
        over this connection.
        """
        if self._late_changes:
            return True
        if self._relisting is not None or self._is_paused():
            return False
        if self.listing is None or self.trouble is not None:
            return True
        if "tools" in self.changed or self.listed_over != self._link.starts:
            return True
        age_s = time.monotonic() - self._listed_at
        ttl_s, poll_s = self.listing.ttl_s, self._options.poll_s
        if ttl_s is not None and age_s >= max(ttl_s, _LEAST_TTL_S):
            return True
        return poll_s is not None and age_s >= poll_s

    def _is_paused(self) -> bool:
        if not self._failures or self._link.starts != self._paused_over:
            return False
        return time.monotonic() < self._paused_until
