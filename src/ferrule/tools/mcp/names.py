"""Unique names for the tools of servers, accepted by every provider.

The names are the same whenever the same servers are connected. `tool.mcp.name` keeps the server's own name, which calls use.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Literal

from ferrule.errors import ToolDefinitionError
from ferrule.tools.definition.export import LONGEST, wire_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Prefix = Literal["auto"] | bool
_SEPARATOR = "__"
_DIGEST = 8
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")


def unique_names(servers: Mapping[str, Sequence[str]], *, prefix: Prefix = "auto", taken: Iterable[str] = ()) -> dict[str, list[str]]:
    """A name for each tool of each server, in the given order.

    `auto` puts `server__` before every name that two servers share, or that is in `taken` (names of local tools, which stay), so that the
    order of the servers does not matter. A name that is too long for providers, or still not unique, is cut and ends in a digest of server
    and name.
    """
    used = {_wire(each) for each in taken}
    counted: dict[str, int] = {}
    for names in servers.values():
        for name in dict.fromkeys(map(_wire, names)):
            counted[name] = counted.get(name, 0) + 1
    made: dict[str, list[str]] = {}
    given: dict[tuple[str, str], str] = {}
    for server in sorted(servers):
        for name in sorted(set(servers[server])):
            collides = counted[_wire(name)] > 1 or _wire(name) in used
            wanted = f"{safe_server(server)}{_SEPARATOR}{name}" if prefix is True or (prefix == "auto" and collides) else name
            given[server, name] = _usable(wanted, server, name)
    clashing = _clashing(given.values(), used)
    for server, names in servers.items():
        made[server] = [
            _with_digest(given[server, name], server, name) if _wire(given[server, name]) in clashing else given[server, name]
            for name in names
        ]
    return made


def _clashing(names: Iterable[str], used: set[str]) -> set[str]:
    seen, twice = set(used), set[str]()
    for name in map(_wire, names):
        (twice if name in seen else seen).add(name)
    return twice


def _usable(wanted: str, server: str, name: str) -> str:
    """The name itself if providers accept it or a form of it; otherwise a safe one."""
    try:
        wire_name(wanted)
    except ToolDefinitionError:
        return _with_digest(wanted, server, name)
    return wanted


def _wire(name: str) -> str:
    try:
        return wire_name(name)
    except ToolDefinitionError:
        return name


def _with_digest(wanted: str, server: str, name: str) -> str:
    digest = hashlib.sha256(f"{server}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    plain = _OTHER.sub("_", wanted)[: LONGEST - _DIGEST - 1].strip("_")
    # A remaining `_x2f_` would be read as an escape, escaped again, and grow.
    return f"{plain.replace('_x', '-x').replace('_dot_', '-dot-') or 'tool'}-{digest}"


def safe_server(server: str) -> str:
    """A server's name as the prefix of a tool's name."""
    return _OTHER.sub("_", server).strip("_") or "server"
