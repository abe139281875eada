"""What is odd about a server's list, and what a lock file has to say to it.

In: a listing, just made. Out: the listing that may be used, with the findings; and for each tool that is not as it was pinned, what a
person is shown who is asked about a call of it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ferrule.bridges.mcp.client.listing import Dropped, Listing
from ferrule.errors import MCPConnectionError, MCPToolError
from ferrule.tools.mcp.pins import Drift, Pins, pins_of, read_pins, write_pins
from ferrule.tools.mcp.safety import MCPFinding, scan_mcp_definition
from ferrule.values.record import replace

if TYPE_CHECKING:
    from ferrule.bridges.mcp.client.options import ServerOptions
    from ferrule.bridges.mcp.connection.handshake import Wire
    from ferrule.bridges.mcp.spec import ServerSpec

log = logging.getLogger("ferrule.mcp")


class Guard:
    """Looks at what one server lists."""

    def __init__(self, spec: ServerSpec, options: ServerOptions) -> None:
        self._spec = spec
        self._options = options
        self._now: Pins | None = None
        self.expected: Pins | None = None
        """What a saved program had of the server, where there is no lock file."""
        self._told: set[MCPFinding] = set()
        self._blocked: dict[str, str] = {}
        self.findings: tuple[MCPFinding, ...] = ()
        """What was odd about the last listing."""
        self.notes: dict[str, str] = {}
        """By tool: why a person is asked about every call of it, whatever the hints say."""

    @property
    def is_on(self) -> bool:
        """Whether there is anything to go by: a lock file, or a saved program."""
        return self._options.lock is not None or self.expected is not None

    @property
    def now(self) -> Pins | None:
        """What would be pinned of the server as it was last listed."""
        return self._now

    def passed(self, listing: Listing, wire: Wire | None) -> Listing:
        """The listing that may be used. A server that is not in the lock file yet is put into it.

        Raises `MCPConnectionError` where the server is not the one that was pinned, and that blocks it; `ConfigurationError` for a file
        that is no lock file.
        """
        name = self._spec.name
        odd = [each for one in listing.definitions.values() for each in scan_mcp_definition(name, one, self._options.detector)]
        drift = self._drift(listing, wire)
        self.findings = (*odd, *(MCPFinding(name, each.tool or None, str(each)) for each in drift))
        for each in self.findings:
            if each not in self._told:
                log.warning("MCP server `%s`: %s", name, each.what if each.tool is None else f"`{each.tool}`: {each.what}")
        self._told.update(self.findings)
        return self._by_policy(listing, drift)

    def refuse_blocked(self, tool: str) -> None:
        """Raise `MCPToolError` for a tool that its changes have blocked."""
        if tool in self._blocked:
            msg = f"`{tool}` of the MCP server `{self._spec.name}` was not called, as it is not as it was pinned: {self._blocked[tool]}"
            raise MCPToolError(msg, server=self._spec.name, tool=tool, phase="pins", may_have_run=False)

    def pin(self) -> None:
        """Take what the server last listed for good, and write it down."""
        if self._now is not None:
            if self._options.lock is not None:
                write_pins(self._options.lock, self._spec.name, self._now)
            self.expected = self._now if self.expected is not None else None
            self._blocked, self.notes = {}, {}

    def _drift(self, listing: Listing, wire: Wire | None) -> list[Drift]:
        self._now = pins_of(_identity(self._spec, wire), listing.definitions)
        if self._options.lock is None:
            return self.expected.drift(self._now) if self.expected is not None else []
        pinned = read_pins(self._options.lock, self._spec.name)
        if pinned is None:
            write_pins(self._options.lock, self._spec.name, self._now)
            return []
        return pinned.drift(self._now)

    def _by_policy(self, listing: Listing, drift: list[Drift]) -> Listing:
        self._blocked, self.notes = {}, {}
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
                self._blocked = changed
                left = {name: each for name, each in listing.definitions.items() if name not in changed}
                dropped = (*listing.dropped, *(Dropped(name, what) for name, what in changed.items()))
                return replace(listing, definitions=left, dropped=dropped)


def _identity(spec: ServerSpec, wire: Wire | None) -> dict[str, Any]:
    """Who a server is: the command or the origin of the address, and what it calls itself. Without secrets."""
    about: dict[str, Any] = {"transport": spec.transport}
    if spec.transport == "stdio":
        state = spec.dump_state()
        about |= {"command": state["command"], "args": state["args"]}
    elif spec.transport != "memory":
        parts = urlsplit(spec.url)
        about["origin"] = f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    about["name"] = wire.server.get("name") if wire is not None else None
    return about
