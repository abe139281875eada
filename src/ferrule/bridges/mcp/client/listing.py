"""The lists of one server, read page by page: its tools, checked against their pins, and their changes; its resources and prompts."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from ferrule.bridges.mcp.client.pinning import Drift, Pins, pins_of, read_pins, write_pins
from ferrule.errors import MCPConnectionError, MCPProtocolError, ToolDefinitionError
from ferrule.tools.definition.mcp import MCPDefinition, read_definition
from ferrule.tools.mcp.safety import MCPFinding, scan_mcp_definition
from ferrule.values.record import Record, replace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ferrule.bridges.mcp.client.options import ServerOptions
    from ferrule.bridges.mcp.client.recording import RecordingLink, ReplayLink
    from ferrule.bridges.mcp.connection.handshake import Handshake
    from ferrule.bridges.mcp.connection.reconnect import Link
    from ferrule.bridges.mcp.spec import ServerSpec

    AnyLink = Link | RecordingLink | ReplayLink

log = logging.getLogger("ferrule.mcp")

_MOST_PAGES = 1000
_LEAST_TTL_S = 5.0
"""A list is kept at least this long. Many servers send `ttlMs: 0` by default, which would be a request before every turn."""


class Dropped(Record):
    """A listed tool that cannot be used."""

    name: str
    reason: str


class ToolChanges(Record):
    """How a server's tools changed since the last listing: names on the server."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class Listing(Record):
    """The usable tools of a server as it last listed them."""

    definitions: dict[str, MCPDefinition]
    """By their name on the server, in its order. The first of two with one name counts."""
    dropped: tuple[Dropped, ...] = ()
    ttl_s: float | None = None
    """How long the list is valid according to the server; None if it does not say."""

    def since(self, before: Listing | None) -> ToolChanges:
        """The differences from an earlier listing."""
        was = before.definitions if before is not None else {}
        now = self.definitions
        return ToolChanges(
            added=tuple(name for name in now if name not in was),
            removed=tuple(name for name in was if name not in now),
            changed=tuple(name for name in now if name in was and now[name] != was[name]),
        )


async def all_pages(
    ask: Callable[[dict[str, Any] | None], Awaitable[dict[str, Any]]], key: str, server: str
) -> tuple[list[Any], float | None]:
    """The entries of all pages, and the shortest `ttlMs` of a page, in seconds.

    Raises `MCPProtocolError` if a cursor repeats, for more than 1,000 pages, and for a page without a list.
    """
    entries: list[Any] = []
    seen: set[str] = set()
    ttl_s: float | None = None
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await ask(None if cursor is None else {"cursor": cursor})
        found = page.get(key)
        if not isinstance(found, list):
            raise _broken(server, f"a page without a list of {key}")
        entries.extend(cast("list[Any]", found))
        ttl = page.get("ttlMs")
        if isinstance(ttl, int | float) and not isinstance(ttl, bool):
            ttl_s = min(max(0.0, ttl / 1000), ttl_s if ttl_s is not None else float("inf"))
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return entries, ttl_s
        if cursor in seen:
            raise _broken(server, f"the page {cursor!r} a second time: its list of {key} never ends")
        seen.add(cursor)
    raise _broken(server, f"more than {_MOST_PAGES} pages of {key}")


def _broken(server: str, what: str) -> MCPProtocolError:
    return MCPProtocolError(f"MCP server `{server}` sent {what}.", server=server, phase="list")


def read_listing(
    server: str, entries: list[Any], ttl_s: float | None, invalid_header: Callable[[Any], str | None] | None = None
) -> Listing:
    """The listing of raw entries. An unusable entry is left out, with a warning in the log.

    `invalid_header` checks annotations that become HTTP headers. From 2026-07-28 on a client must leave out tools that break that rule.
    """
    found: dict[str, MCPDefinition] = {}
    dropped: list[Dropped] = []
    for entry in entries:
        try:
            made = read_definition(entry)
            reason = invalid_header(made.input_schema) if invalid_header is not None else None
        except ToolDefinitionError as error:
            reason = str(error)
            made = None
        if made is not None and reason is None and made.name in found:
            reason = "the server lists another tool of this name before it"
        if made is None or reason is not None:
            name = made.name if made is not None else _name_of(entry)
            dropped.append(Dropped(name, reason or ""))
            log.warning("MCP server `%s`: tool `%s` is left out: %s", server, name, reason)
        else:
            found[made.name] = made
    return Listing(found, tuple(dropped), ttl_s)


def _name_of(entry: Any) -> str:
    name: Any = cast("dict[str, Any]", entry).get("name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) else "?"


class Guard:
    """Checks the listings of one server."""

    def __init__(self, spec: ServerSpec, options: ServerOptions) -> None:
        self._spec, self._options = spec, options
        self.now: Pins | None = None
        """What would be pinned of the server as last listed."""
        self.expected: Pins | None = None
        """The pins in a saved program, used if there is no lock file."""
        self._logged: set[MCPFinding] = set()
        self.blocked: dict[str, str] = {}
        """By tool: why a changed tool may not be called."""
        self.findings: tuple[MCPFinding, ...] = ()
        """Suspicious facts of the last listing."""
        self.notes: dict[str, str] = {}
        """By tool: why a person must confirm every call of it, whatever its hints say."""

    def check(self, listing: Listing, handshake: Handshake | None) -> Listing:
        """The listing to use. Pins a server that is not in the lock file yet.

        Raises `MCPConnectionError` if another server than the pinned one answers and `pins="block"`; `ConfigurationError` for a file that
        is no lock file.
        """
        name = self._spec.name
        odd = [each for one in listing.definitions.values() for each in scan_mcp_definition(name, one, self._options.detector)]
        drift = self._drift(listing, handshake)
        self.findings = (*odd, *(MCPFinding(name, each.tool or None, str(each)) for each in drift))
        for each in self.findings:
            if each not in self._logged:
                log.warning("MCP server `%s`: %s", name, each.what if each.tool is None else f"`{each.tool}`: {each.what}")
        self._logged.update(self.findings)
        return self._by_policy(listing, drift)

    def pin(self) -> None:
        """Pin what the server last listed."""
        if self.now is not None:
            if self._options.lock is not None:
                write_pins(self._options.lock, self._spec.name, self.now)
            self.expected = self.now if self.expected is not None else None
            self.blocked, self.notes = {}, {}

    def _drift(self, listing: Listing, handshake: Handshake | None) -> list[Drift]:
        self.now = pins_of(_identity(self._spec, handshake), listing.definitions)
        if self._options.lock is None:
            return self.expected.drift(self.now) if self.expected is not None else []
        pinned = read_pins(self._options.lock, self._spec.name)
        if pinned is None:
            write_pins(self._options.lock, self._spec.name, self.now)
            return []
        return pinned.drift(self.now)

    def _by_policy(self, listing: Listing, drift: list[Drift]) -> Listing:
        self.blocked, self.notes = {}, {}
        other = next((each for each in drift if each.kind == "identity"), None)
        changed = {each.tool: str(each) for each in drift if each.kind not in {"identity", "gone"}}
        match self._options.pins:
            case "warn":
                return listing
            case "confirm":
                every = {} if other is None else dict.fromkeys(listing.definitions, str(other))
                begin = f"The MCP server `{self._spec.name}` is not as it was pinned: "
                self.notes = {name: f"{begin}{what}\n" for name, what in {**every, **changed}.items()}
                return listing
            case "block":
                if other is not None:
                    msg = f"The MCP server `{self._spec.name}` is not used: {other}\nIf that is right, pin it anew: `server.pin()`."
                    raise MCPConnectionError(msg, server=self._spec.name, phase="pins", may_have_run=False)
                self.blocked = changed
                kept = {name: each for name, each in listing.definitions.items() if name not in changed}
                dropped = (*listing.dropped, *(Dropped(name, what) for name, what in changed.items()))
                return replace(listing, definitions=kept, dropped=dropped)


def _identity(spec: ServerSpec, handshake: Handshake | None) -> dict[str, Any]:
    """The identity of a server: its command or the origin of its address, and the name it gives itself. Without secrets."""
    about: dict[str, Any] = {"transport": spec.transport}
    if spec.transport == "stdio":
        state = spec.dump_state()
        about |= {"command": state["command"], "args": state["args"]}
    elif spec.transport != "memory":
        parts = urlsplit(spec.url)
        about["origin"] = f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    about["name"] = handshake.server.get("name") if handshake is not None else None
    return about


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

    async def request(self, method: str, params: dict[str, Any] | None, *, phase: str) -> dict[str, Any]:
        """A request that may be repeated."""
        return await self._link.request(method, params, phase=phase, may_repeat=True, timeout_s=self._options.timeout_s)

    async def list_tools(self) -> ToolChanges:
        """List the tools again; returns the changes."""
        self.changed.discard("tools")  # first: a change during the listing counts
        entries, ttl_s = await all_pages(lambda params: self.request("tools/list", params, phase="list"), "tools", self._server)
        found = read_listing(self._server, entries, ttl_s, self._header_rule())
        before, self.listing = self.listing, self._guard.check(found, self._link.handshake)
        self._listed_at, self.listed_over = time.monotonic(), self._link.starts
        self.headers.clear()
        changes = self.listing.since(before)
        self.removed = (self.removed | set(changes.removed)) - set(changes.added)
        if before is not None and changes and self._options.on_tools_changed is not None:
            self._options.on_tools_changed(changes.added, changes.removed, changes.changed)
        return changes

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
        """List the tools again if the listing is stale; otherwise send nothing."""
        if self.listing is None:
            await self.list_tools()
            return ToolChanges()
        return await self.list_tools() if self.is_stale() else ToolChanges()

    def is_stale(self) -> bool:
        """Whether the listing is missing, too old, from an earlier connection, or the server notified of a change."""
        known = self.listing
        if known is None or "tools" in self.changed or self.listed_over != self._link.starts:
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
            self._passing = known, {name: each for name, each in known.definitions.items() if self._options.passes(each)}
        return self._passing[1]

    async def list_of(self, method: str, key: str) -> list[dict[str, Any]]:
        """All entries of another list; empty if the server does not declare it."""
        handshake = (await self._link.connected()).handshake
        kind = "prompts" if key == "prompts" else "resources"
        self.changed.discard(kind)
        if handshake.capabilities.get(kind) is None:
            return []
        entries, _ = await all_pages(lambda params: self.request(method, params, phase="list"), key, self._server)
        return [cast("dict[str, Any]", each) for each in entries if isinstance(each, dict)]
