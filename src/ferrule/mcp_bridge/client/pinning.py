"""Pinned tools of servers: the lock file `ferrule.lock`, and the guard that compares with it.

The file is JSON in a fixed order, to keep with the code and read in a review: for each server its
identity, and for each tool a hash and the definition that was hashed.
"""

from __future__ import annotations

import json
import logging
import os
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from ferrule.concurrency.forking import ForkLock
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import parse_json
from ferrule.errors import ConfigurationError, MCPConnectionError, shown
from ferrule.mcp_bridge.client.listing import Dropped, Listing
from ferrule.tools.mcp.safety import MCPFinding, scan_mcp_definition, scrub

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.mcp_bridge.client.options import ServerOptions
    from ferrule.mcp_bridge.connection.handshake import Handshake
    from ferrule.mcp_bridge.spec import ServerSpec
    from ferrule.tools.mcp_definition import MCPDefinition

log = logging.getLogger("ferrule.mcp")

_VERSION = 1
_writing = ForkLock()


class Drift(Struct, frozen=True):
    """One difference between a server and its pins."""

    kind: Literal["identity", "new", "changed", "renamed", "gone"]
    tool: str = ""
    """The tool's current name; empty for `identity`."""
    difference: str = ""
    """Lines `- before` and `+ now`."""

    def __str__(self) -> str:
        match self.kind:
            case "identity":
                return f"it is not the server that was pinned:\n{self.difference}"
            case "new":
                what = "is new"
            case "changed":
                what = "changed"
            case "renamed":
                what = "has another name"
            case "gone":
                what = "is gone"
        text = f"`{self.tool}` {what} since it was pinned"
        if self.difference:
            return f"{text}:\n{self.difference}"
        return text


class Pins(Struct, frozen=True):
    """The pins of one server."""

    identity: dict[str, Any]
    tools: dict[str, dict[str, Any]]
    """By name: the pinned definition."""

    def drift(self, now: Pins) -> list[Drift]:
        """The differences, the server's identity first."""
        drifts: list[Drift] = []
        if now.identity != self.identity:
            drifts.append(Drift("identity", "", _diff(self.identity, now.identity)))
        gone: dict[str, list[str]] = {}
        """The names that are gone, by what their tools were apart from the name."""
        for name, tool in self.tools.items():
            if name not in now.tools:
                gone.setdefault(_nameless(tool), []).append(name)
        for name, tool in now.tools.items():
            before = self.tools.get(name)
            if before is not None:
                if before != tool:
                    drifts.append(Drift("changed", name, _diff(before, tool)))
                continue
            old_names = gone.get(_nameless(tool))
            if old_names:
                drifts.append(Drift("renamed", name, f"- {old_names.pop(0)}\n+ {name}"))
            else:
                drifts.append(Drift("new", name))
        still_gone = {name for names in gone.values() for name in names}
        drifts.extend(Drift("gone", name) for name in self.tools if name in still_gone)
        return drifts


def _nameless(pinned: Mapping[str, Any]) -> str:
    return json_text({key: value for key, value in pinned.items() if key != "name"})


def _diff(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    lines = unified_diff(_lines(before), _lines(now), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def _lines(pinned: Mapping[str, Any]) -> list[str]:
    """The lines of a definition.

    They are scrubbed: hidden characters are reported as findings, not shown.
    """
    text = scrub(json.dumps(pinned, indent=1, ensure_ascii=False, default=str))
    return text.replace("\\n", "\n").split("\n")


def pins_of(identity: Mapping[str, Any], definitions: Mapping[str, MCPDefinition]) -> Pins:
    """The pins of a server as it is now."""
    tools = {name: definitions[name].pinned for name in sorted(definitions)}
    return Pins(dict(identity), tools)


class Guard:
    """Checks the listings of one server against its pins, and for hidden characters."""

    def __init__(self, spec: ServerSpec, options: ServerOptions) -> None:
        self._spec = spec
        self._options = options
        self._seen: tuple[dict[str, Any], Mapping[str, MCPDefinition]] | None = None
        """The identity of the server, and its tools in the last listing."""
        self.expected: Pins | None = None
        """The pins in a saved program, used if there is no lock file."""
        self._logged: set[MCPFinding] = set()
        self.findings: tuple[MCPFinding, ...] = ()
        """Suspicious facts of the last listing."""
        self.blocked: dict[str, str] = {}
        """By tool: why a changed tool may not be called."""
        self.notes: dict[str, str] = {}
        """By tool: why a person must confirm every call of it, whatever its hints say."""

    def check(self, listing: Listing, handshake: Handshake | None) -> Listing:
        """The listing to use. Pins a server that is not in the lock file yet.

        Raises `MCPConnectionError` if another server than the pinned one answers and
        `pins="block"`; `ConfigurationError` for a file that is not a lock file.
        """
        name = self._spec.name
        findings: list[MCPFinding] = []
        for definition in listing.definitions.values():
            findings.extend(scan_mcp_definition(name, definition))
        drifts = self._drift(listing, handshake)
        findings.extend(MCPFinding(name, drift.tool or None, str(drift)) for drift in drifts)
        self.findings = tuple(findings)
        self._log_findings()
        return self._by_policy(listing, drifts)

    @property
    def now(self) -> Pins | None:
        """The pins that fit the last listing.

        Made when they are read: most servers are not pinned.
        """
        if self._seen is None:
            return None
        return pins_of(*self._seen)

    def pin(self) -> None:
        """Pin the tools of the last listing."""
        pins = self.now
        if pins is None:
            return
        if self._options.lock is not None:
            write_pins(self._options.lock, self._spec.name, pins)
        if self.expected is not None:
            self.expected = pins
        self.blocked = {}
        self.notes = {}

    def _log_findings(self) -> None:
        """Warn of the findings that were not logged before."""
        for finding in self.findings:
            if finding not in self._logged:
                self._logged.add(finding)
                if finding.tool is None:
                    about = finding.what
                else:
                    about = f"`{finding.tool}`: {finding.what}"
                log.warning("MCP server `%s`: %s", self._spec.name, about)

    def _drift(self, listing: Listing, handshake: Handshake | None) -> list[Drift]:
        self._seen = (_identity(self._spec, handshake), listing.definitions)
        lock = self._options.lock
        if lock is None:
            pinned = self.expected
        else:
            pinned = read_pins(lock, self._spec.name)
        if pinned is not None:
            return pinned.drift(pins_of(*self._seen))
        if lock is not None:
            write_pins(lock, self._spec.name, pins_of(*self._seen))
        return []

    def _by_policy(self, listing: Listing, drifts: list[Drift]) -> Listing:
        self.blocked = {}
        self.notes = {}
        identity: Drift | None = None
        changed: dict[str, str] = {}
        for drift in drifts:
            if drift.kind == "identity":
                identity = drift
            elif drift.kind != "gone":
                changed[drift.tool] = str(drift)
        match self._options.pins:
            case "warn":
                return listing
            case "confirm":
                self.notes = self._notes(listing, identity, changed)
                return listing
            case "block":
                if identity is not None:
                    raise self._wrong_server(identity)
                self.blocked = changed
                return _without(listing, changed)

    def _notes(
        self, listing: Listing, identity: Drift | None, changed: dict[str, str]
    ) -> dict[str, str]:
        differences: dict[str, str] = {}
        if identity is not None:  # then each of its tools is another one
            differences = dict.fromkeys(listing.definitions, str(identity))
        differences.update(changed)
        begin = f"The MCP server `{self._spec.name}` differs from its pin: "
        return {name: f"{begin}{difference}\n" for name, difference in differences.items()}

    def _wrong_server(self, identity: Drift) -> MCPConnectionError:
        return MCPConnectionError(
            f"The MCP server `{self._spec.name}` is not used: {identity}\n"
            "If that is right, pin it again: `server.pin()`.",
            server=self._spec.name,
            phase="pins",
            may_have_run=False,
        )


def _without(listing: Listing, changed: Mapping[str, str]) -> Listing:
    """The listing without tools that differ from their pins, which count as dropped."""
    definitions = {
        name: definition for name, definition in listing.definitions.items() if name not in changed
    }
    dropped = [Dropped(name, difference) for name, difference in changed.items()]
    return replace(listing, definitions=definitions, dropped=(*listing.dropped, *dropped))


def _identity(spec: ServerSpec, handshake: Handshake | None) -> dict[str, Any]:
    """The identity of a server, without secrets.

    It is its command or the origin of its address, and the name that it gives itself.
    """
    identity: dict[str, Any] = {"transport": spec.transport}
    if spec.transport == "stdio":
        state = spec.dump_state()
        identity |= {"command": state["command"], "args": state["args"]}
    elif spec.transport != "memory":
        parts = urlsplit(spec.url)
        if parts.port:
            port = f":{parts.port}"
        else:
            port = ""
        identity["origin"] = f"{parts.scheme}://{parts.hostname or ''}{port}"
    identity["name"] = handshake.server.get("name") if handshake is not None else None
    return identity


# -- the lock file


def read_pins(path: str | os.PathLike[str], server: str) -> Pins | None:
    """The pins of a server in a lock file; None if the file or the server is missing.

    Raises `ConfigurationError` for a file that is not a lock file, or whose hashes do not match.
    """
    entry = _read(Path(path))["servers"].get(server)
    if entry is None:
        return None
    try:
        identity = dict(entry["identity"])
        tools = {name: dict(tool["definition"]) for name, tool in entry["tools"].items()}
        wrong = [name for name in tools if _hash_of(tools[name]) != entry["tools"][name]["hash"]]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _no_lock(path, shown(entry)) from error
    if wrong:
        raise ConfigurationError(
            f"In {Path(path).name} the hash of `{wrong[0]}` of the MCP server `{server}` does not "
            "match its definition. Pin it again."
        )
    return Pins(identity, tools)


def write_pins(path: str | os.PathLike[str], server: str, pins: Pins) -> None:
    """Write a server's pins into a lock file, replacing its earlier ones."""
    from ferrule.mcp_bridge.login.credentials import move_over  # late: few servers are pinned

    path = Path(path)
    tools = {
        name: {"hash": _hash_of(definition), "definition": definition}
        for name, definition in sorted(pins.tools.items())
    }
    with _writing.lock:
        content = _read(path)
        content["servers"][server] = {"identity": pins.identity, "tools": tools}
        content["servers"] = dict(sorted(content["servers"].items()))
        text = json.dumps(content, indent=1, ensure_ascii=False)
        draft = path.with_name(f"{path.name}.{os.getpid()}.new")
        # A definition may hold half a surrogate pair, which is written as JSON escapes it.
        draft.write_bytes(f"{text}\n".encode(errors="backslashreplace"))
        move_over(draft, path)


def _hash_of(pinned: Mapping[str, Any]) -> str:
    """The SHA-256 of a pinned definition: name, title, description, schemas, annotations."""
    text = json.dumps(pinned, sort_keys=True, ensure_ascii=False, default=str)
    return f"sha256:{sha256(text.encode(errors='backslashreplace')).hexdigest()}"


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {"ferrule_lock": _VERSION, "servers": {}}
    try:
        content: Any = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise _no_lock(path, shown(text)) from error
    if not isinstance(content, dict):
        raise _no_lock(path, shown(text))
    content = cast("dict[str, Any]", content)
    if content.get("ferrule_lock") != _VERSION or not isinstance(content.get("servers"), dict):
        raise _no_lock(path, shown(text))
    return content


def _no_lock(path: str | os.PathLike[str], content: str) -> ConfigurationError:
    return ConfigurationError(
        f"{Path(path).name} is not a lock file of version {_VERSION}: found {content}. "
        "Remove it, and pin again."
    )
