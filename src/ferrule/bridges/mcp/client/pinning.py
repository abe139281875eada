"""Checking what a server lists against a lock file.

`Guard.check` takes a new listing and returns the one to use. For each tool that differs from its pin it keeps what to show to the person
who confirms a call of it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ferrule.bridges.mcp.client.listing import Dropped, Listing
from ferrule.errors import MCPConnectionError
from ferrule.tools.mcp.pins import Drift, Pins, pins_of, read_pins, write_pins
from ferrule.tools.mcp.safety import MCPFinding, scan_mcp_definition
from ferrule.values.record import replace

if TYPE_CHECKING:
    from ferrule.bridges.mcp.client.options import ServerOptions
    from ferrule.bridges.mcp.connection.handshake import Handshake
    from ferrule.bridges.mcp.spec import ServerSpec

log = logging.getLogger("ferrule.mcp")


class Guard:
    """Checks the listings of one server."""

    def __init__(self, spec: ServerSpec, options: ServerOptions) -> None:
        self._spec = spec
        self._options = options
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
