"""Pinned tools of servers: the lock file `ferrule.lock`.

The file is JSON in a fixed order, to keep beside the code and read in a review: for each server its
identity, and for each tool a hash and what was hashed.
"""

from __future__ import annotations

import json
import os
import threading
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule.concurrency.forking import renew_in_child
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import parse_json
from ferrule.errors import ConfigurationError, shown
from ferrule.record import Record
from ferrule.tools.mcp.safety import scrub

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.tools.definition.mcp import MCPDefinition

_VERSION = 1
_PINNED = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
_writing = threading.Lock()
renew_in_child(globals(), _writing=threading.Lock)


class Drift(Record):
    """One difference between a server and its pins."""

    kind: Literal["identity", "new", "changed", "renamed", "gone"]
    tool: str = ""
    """The tool's current name; empty for `identity`."""
    what: str = ""
    """The difference, in lines `- before` and `+ now`."""

    def __str__(self) -> str:
        if self.kind == "identity":
            return f"it is not the server that was pinned:\n{self.what}"
        said = {
            "new": "is new",
            "changed": "changed",
            "renamed": "has another name",
            "gone": "is gone",
        }[self.kind]
        return f"`{self.tool}` {said} since it was pinned{f':{chr(10)}{self.what}' if self.what else ''}"


class Pins(Record):
    """The pins of one server."""

    identity: dict[str, Any]
    tools: dict[str, dict[str, Any]]
    """By name: the pinned definition."""

    def drift(self, now: Pins) -> list[Drift]:
        """The differences, the server's identity first."""
        found: list[Drift] = []
        if now.identity != self.identity:
            found.append(Drift("identity", "", _diff(self.identity, now.identity)))
        gone = {name: each for name, each in self.tools.items() if name not in now.tools}
        for name, each in now.tools.items():
            was = self.tools.get(name)
            if was is None:
                old = next(
                    (
                        other
                        for other, before in gone.items()
                        if _nameless(before) == _nameless(each)
                    ),
                    None,
                )
                found.append(
                    Drift("new", name)
                    if old is None
                    else Drift("renamed", name, f"- {old}\n+ {name}"),
                )
                gone.pop(old or "", None)
            elif was != each:
                found.append(Drift("changed", name, _diff(was, each)))
        return [*found, *(Drift("gone", name) for name in gone)]


def pins_of(identity: Mapping[str, Any], definitions: Mapping[str, MCPDefinition]) -> Pins:
    """The pins of a server as it is now."""
    tools: dict[str, dict[str, Any]] = {}
    for name in sorted(definitions):
        entry = definitions[name].as_json()
        tools[name] = {key: entry[key] for key in _PINNED if key in entry}
    return Pins(dict(identity), tools)


def _hash_of(pinned: Mapping[str, Any]) -> str:
    """The SHA-256 of a pinned definition: name, title, description, schemas, annotations."""
    text = json.dumps(pinned, sort_keys=True, ensure_ascii=False, default=str)
    return f"sha256:{sha256(text.encode(errors='backslashreplace')).hexdigest()}"


def read_pins(path: str | os.PathLike[str], server: str) -> Pins | None:
    """The pins of a server in a lock file; None if the file or the server is missing.

    Raises `ConfigurationError` for a file that is no lock file, or whose hashes do not match.
    """
    found = _read(Path(path))["servers"].get(server)
    if found is None:
        return None
    try:
        tools = {name: dict(each["definition"]) for name, each in found["tools"].items()}
        wrong = [
            name
            for name, each in found["tools"].items()
            if _hash_of(each["definition"]) != each["hash"]
        ]
        made = Pins(dict(found["identity"]), tools)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _no_lock(path, shown(found)) from error
    if wrong:
        msg = f"In {Path(path).name} the hash of `{wrong[0]}` of the MCP server `{server}` does not match its definition. Pin it again."
        raise ConfigurationError(msg)
    return made


def write_pins(path: str | os.PathLike[str], server: str, pins: Pins) -> None:
    """Write a server's pins into a lock file, replacing its earlier ones."""
    from ferrule.mcp_bridge.login.credentials import move_over  # late: few servers are pinned

    place = Path(path)
    with _writing:
        whole = _read(place)
        tools = {
            name: {"hash": _hash_of(each), "definition": each}
            for name, each in sorted(pins.tools.items())
        }
        whole["servers"][server] = {"identity": pins.identity, "tools": tools}
        text = json.dumps(
            {**whole, "servers": dict(sorted(whole["servers"].items()))},
            indent=1,
            ensure_ascii=False,
        )
        beside = place.with_name(f"{place.name}.{os.getpid()}.new")
        beside.write_bytes(
            f"{text}\n".encode(errors="backslashreplace"),
        )  # half a surrogate pair, as JSON escapes it
        move_over(beside, place)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {"ferrule_lock": _VERSION, "servers": {}}
    try:
        found: Any = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise _no_lock(path, shown(text)) from error
    whole = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if whole.get("ferrule_lock") != _VERSION or not isinstance(whole.get("servers"), dict):
        raise _no_lock(path, shown(text))
    return whole


def _no_lock(path: str | os.PathLike[str], found: str) -> ConfigurationError:
    return ConfigurationError(
        f"{Path(path).name} is not a lock file of version {_VERSION}: found {found}. Remove it, and pin again.",
    )


def _nameless(pinned: Mapping[str, Any]) -> str:
    return json_text({key: value for key, value in pinned.items() if key != "name"})


def _diff(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    before, after = (_lines(each) for each in (was, now))
    return "\n".join(
        line
        for line in unified_diff(before, after, n=0, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    )


def _lines(pinned: Mapping[str, Any]) -> list[str]:
    """The lines of a definition, scrubbed: hidden characters are reported as findings, not shown."""
    return (
        scrub(json.dumps(pinned, indent=1, ensure_ascii=False, default=str))
        .replace("\\n", "\n")
        .split("\n")
    )
