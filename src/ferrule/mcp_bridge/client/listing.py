"""One listing of a server's tools: read page by page, and compared with the one before."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ferrule.errors import MCPProtocolError, ToolDefinitionError
from ferrule.tools.mcp_definition import MCPDefinition, read_definition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger("ferrule.mcp")

_MOST_PAGES = 1000


class Dropped(Struct, frozen=True):
    """A listed tool that cannot be used."""

    name: str
    reason: str


class ToolChanges(Struct, frozen=True):
    """How a server's tools changed since the last listing: names on the server."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class Listing(Struct, frozen=True):
    """The usable tools of a server, from one listing."""

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

    A cursor that repeats ends the list, with a warning in the log. Raises `MCPProtocolError` for
    more than 1,000 pages, and for a page without a list.
    """
    all_entries: list[Any] = []
    seen_cursors: set[str] = set()
    ttls_s: list[float] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await ask(None if cursor is None else {"cursor": cursor})
        entries = page.get(key)
        if not isinstance(entries, list):
            raise _broken(server, f"a page without a list of {key}")
        all_entries.extend(cast("list[Any]", entries))
        ttl_ms = page.get("ttlMs")
        if isinstance(ttl_ms, int | float) and not isinstance(ttl_ms, bool):
            ttls_s.append(max(0.0, ttl_ms / 1000))
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return all_entries, min(ttls_s, default=None)
        if cursor in seen_cursors:
            log.warning(
                "MCP server `%s`: its list of %s leads to the page %r a second time; the %d %s "
                "before it are used",
                server,
                key,
                cursor,
                len(all_entries),
                key,
            )
            return all_entries, min(ttls_s, default=None)
        seen_cursors.add(cursor)
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
    definitions: dict[str, MCPDefinition] = {}
    dropped: list[Dropped] = []
    for entry in entries:
        try:
            definition = read_definition(entry)
        except ToolDefinitionError as error:
            name, reason = _name_of(entry), str(error)
        else:
            name, reason = definition.name, None
            if invalid_header is not None:
                reason = invalid_header(definition.input_schema)
            if reason is None and name in definitions:
                reason = "the server lists another tool of this name before it"
            if reason is None:
                definitions[name] = definition
                continue
        dropped.append(Dropped(name, reason))
        log.warning("MCP server `%s`: tool `%s` is left out: %s", server, name, reason)
    return Listing(definitions, tuple(dropped), ttl_s)


def _name_of(entry: Any) -> str:
    if not isinstance(entry, dict):
        return "?"
    name: Any = cast("dict[str, Any]", entry).get("name")
    return name if isinstance(name, str) else "?"
