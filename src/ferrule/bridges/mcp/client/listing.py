"""Reading the lists of a server, page by page: usable definitions, and why the others are unusable. One bad tool costs no other."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import MCPProtocolError, ToolDefinitionError
from ferrule.tools.definition.mcp import MCPDefinition, read_definition
from ferrule.values.record import Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
