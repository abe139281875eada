"""A listing of a server's tools: read page by page, and checked against its pins."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from ferrule.errors import MCPConnectionError, MCPProtocolError, ToolDefinitionError
from ferrule.mcp_bridge.client.pinning import Drift, Pins, pins_of, read_pins, write_pins
from ferrule.record import Record, replace
from ferrule.tools.definition.mcp import MCPDefinition, read_definition
from ferrule.tools.mcp.safety import MCPFinding, scan_mcp_definition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ferrule.mcp_bridge.client.options import ServerOptions
    from ferrule.mcp_bridge.connection.handshake import Handshake
    from ferrule.mcp_bridge.spec import ServerSpec

log = logging.getLogger("ferrule.mcp")

_MOST_PAGES = 1000


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
    ask: Callable[[dict[str, Any] | None], Awaitable[dict[str, Any]]],
    key: str,
    server: str,
) -> tuple[list[Any], float | None]:
    """The entries of all pages, and the shortest `ttlMs` of a page, in seconds.

    Raises `MCPProtocolError` if a cursor repeats, for more than 1,000 pages, and for a page without
    a list.
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
            raise _broken(
                server,
                f"the page {cursor!r} a second time: its list of {key} never ends",
            )
        seen.add(cursor)
    raise _broken(server, f"more than {_MOST_PAGES} pages of {key}")


def _broken(server: str, what: str) -> MCPProtocolError:
    return MCPProtocolError(f"MCP server `{server}` sent {what}.", server=server, phase="list")


def read_listing(
    server: str,
    entries: list[Any],
    ttl_s: float | None,
    invalid_header: Callable[[Any], str | None] | None = None,
) -> Listing:
    """The listing of raw entries. An unusable entry is left out, with a warning in the log.

    `invalid_header` checks annotations that become HTTP headers. From 2026-07-28 on a client must
    leave out tools that break that rule.
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

        Raises `MCPConnectionError` if another server than the pinned one answers and
        `pins="block"`; `ConfigurationError` for a file that is no lock file.
        """
        name = self._spec.name
        odd = [
            each
            for one in listing.definitions.values()
            for each in scan_mcp_definition(name, one, self._options.detector)
        ]
        drift = self._drift(listing, handshake)
        self.findings = (*odd, *(MCPFinding(name, each.tool or None, str(each)) for each in drift))
        for each in self.findings:
            if each not in self._logged:
                log.warning(
                    "MCP server `%s`: %s",
                    name,
                    each.what if each.tool is None else f"`{each.tool}`: {each.what}",
                )
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
                begin = f"The MCP server `{self._spec.name}` differs from its pin: "
                self.notes = {
                    name: f"{begin}{what}\n" for name, what in {**every, **changed}.items()
                }
                return listing
            case "block":
                if other is not None:
                    msg = f"The MCP server `{self._spec.name}` is not used: {other}\nIf that is right, pin it again: `server.pin()`."
                    raise MCPConnectionError(
                        msg,
                        server=self._spec.name,
                        phase="pins",
                        may_have_run=False,
                    )
                self.blocked = changed
                kept = {
                    name: each for name, each in listing.definitions.items() if name not in changed
                }
                dropped = (
                    *listing.dropped,
                    *(Dropped(name, what) for name, what in changed.items()),
                )
                return replace(listing, definitions=kept, dropped=dropped)


def _identity(spec: ServerSpec, handshake: Handshake | None) -> dict[str, Any]:
    """The identity of a server: its command or the origin of its address, and the name it gives itself. Without secrets."""
    about: dict[str, Any] = {"transport": spec.transport}
    if spec.transport == "stdio":
        state = spec.dump_state()
        about |= {"command": state["command"], "args": state["args"]}
    elif spec.transport != "memory":
        parts = urlsplit(spec.url)
        about["origin"] = (
            f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
        )
    about["name"] = handshake.server.get("name") if handshake is not None else None
    return about
