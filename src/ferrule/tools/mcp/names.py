"""Names of servers' tools that every provider accepts, and that stay unique across servers."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING

from ferrule.errors import ToolDefinitionError
from ferrule.values.calls.wire_name import LONGEST, wire_name

if TYPE_CHECKING:
    from collections.abc import Iterable

_LENGTH_OF_DIGEST = 8
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def unique_names(
    tools: Iterable[tuple[str, str]], *, prefix: bool, taken: Iterable[str] = ()
) -> dict[tuple[str, str], str]:
    """For each tool, given as (server, name there), a name that every provider accepts.

    Calls still use the name on the server. `prefix` puts `server__` before every name. A name that
    is too long for providers, not unique, or in `taken` (the names of local tools, which do not
    change) is cut, and ends in a digest of server and name. The order of the tools does not matter.
    """
    names: dict[tuple[str, str], str] = {}
    for server, name in tools:
        wanted = name
        if prefix:
            wanted = f"{safe_server(server)}__{name}"
        names[server, name] = usable_name(wanted, server, name)
    counts = Counter(_wire_name(name) for name in names.values())
    counts.update({_wire_name(name) for name in taken})
    for (server, original), name in names.items():
        if counts[_wire_name(name)] > 1:
            names[server, original] = _with_digest(name, server, original)
    return names


def usable_name(wanted: str, server: str, name: str) -> str:
    """The wanted name if providers accept it or its escaped form; otherwise a safe name."""
    try:
        wire_name(wanted)
    except ToolDefinitionError:
        return _with_digest(wanted, server, name)
    return wanted


def safe_server(server: str) -> str:
    """A server's name as the prefix of a tool's name."""
    return _UNSAFE.sub("_", server).strip("_") or "server"


def _wire_name(name: str) -> str:
    """The name on the wire; a local tool's name that has none clashes as it is."""
    try:
        return wire_name(name)
    except ToolDefinitionError:
        return name


def _with_digest(wanted: str, server: str, name: str) -> str:
    origin = f"{server}\0{name}".encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(origin).hexdigest()[:_LENGTH_OF_DIGEST]
    plain = _UNSAFE.sub("_", wanted)[: LONGEST - _LENGTH_OF_DIGEST - 1].strip("_")
    # A remaining `_x2f_` would be read as an escape, escaped again, and grow.
    plain = plain.replace("_x", "-x").replace("_dot_", "-dot-")
    return f"{plain or 'tool'}-{digest}"
