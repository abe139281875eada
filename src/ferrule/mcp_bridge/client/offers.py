"""What a server offers: its tools by name, resources, prompts, and what it says of itself."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ferrule.concurrency.offload import background_loop, run_async
from ferrule.errors import UnknownToolError
from ferrule.mcp_bridge.client.listing import ToolChanges
from ferrule.record import Record, field, replace
from ferrule.tools.server_tools import make_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from ferrule.errors import ConfigurationError, MCPError
    from ferrule.mcp_bridge.client.core import Core
    from ferrule.mcp_bridge.client.listing import Dropped
    from ferrule.mcp_bridge.client.options import ServerOptions
    from ferrule.tools.definition.mcp import MCPDefinition
    from ferrule.tools.mcp.safety import MCPFinding
    from ferrule.tools.tool import Tool

R = TypeVar("R")


class ServerTools:
    """The tools of a server, by name and in order: `tools["echo"]`, `ReAct(..., tools=[*tools])`."""

    def __init__(
        self,
        definitions: Mapping[str, MCPDefinition],
        tools: Mapping[str, Tool],
        notes: Mapping[str, str],
    ) -> None:
        self.notes = dict(notes)
        """By name on the server: why a person must confirm calls of a tool that differs from its pin."""
        self.definitions = dict(definitions)
        """The server's definitions, by their name on the server."""
        self._tools = dict(tools)

    def __getitem__(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownToolError(name, list(self._tools)) from None

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools or any(name is each for each in self._tools.values())

    def __repr__(self) -> str:
        return f"ServerTools({', '.join(self._tools)})"

    def keys(self) -> list[str]:
        """The names, so that `dict(tools)` works."""
        return list(self._tools)

    def items(self) -> list[tuple[str, Tool]]:
        """Names and tools."""
        return list(self._tools.items())

    def values(self) -> list[Tool]:
        """The tools."""
        return list(self._tools.values())


def _with_note(tool: Tool, notes: Mapping[str, str]) -> Tool:
    """The tool; if it has a note, one whose calls a person must confirm."""
    note = notes.get(tool.mcp.name) if tool.mcp is not None else None
    if not note:
        return tool
    func: Any = tool.func
    return tool.model_copy(
        update={"require_confirmation": True, "func": replace(func, note=note, asks_directly=True)},
    )


class ServerInfo(Record, kw_only=True):
    """What a server says about itself."""

    name: str = ""
    version: str = ""
    title: str | None = None
    instructions: str | None = None
    """The server's text for a model. Do not trust it; ferrule puts it into no prompt."""
    protocol_version: str = ""
    capabilities: dict[str, Any] = field(default_factory=dict[str, Any])


class ServerOffers:
    """The lists of `MCPServer`."""

    options: ServerOptions
    _tools: ServerTools | None
    _cores: dict[Any, Core]

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...  # noqa: D102  `MCPServer` says it
        @property
        def core(self) -> Core: ...  # noqa: D102  the same
        async def there(self, make: Callable[[], Coroutine[Any, Any, R]]) -> R: ...  # noqa: D102  the same

    # -- itself
    # -------------------------------------------------------------------------------------------------

    async def ainfo(self) -> ServerInfo:
        """What it says about itself; connects if need be."""
        found = (await self.there(self.core.link.connected)).handshake
        about = {
            key: found.server[key] for key in ("name", "version", "title") if key in found.server
        }
        return ServerInfo(
            **about,
            instructions=found.instructions,
            protocol_version=found.version,
            capabilities=dict(found.capabilities),
        )

    @property
    def info(self) -> ServerInfo:
        """`ainfo` for sync code."""
        return run_async(self.ainfo())

    @property
    def protocol_version(self) -> str | None:
        """The version of the protocol on the current connection; None before the first. Connects nothing."""
        handshake = self.core.link.handshake if self._cores else None
        return handshake.version if handshake is not None else None

    @property
    def session_id(self) -> str | None:
        """The id that an HTTP server gave the current session; None if it gave none, as from 2026-07-28 on. Connects nothing."""
        handshake = self.core.link.handshake if self._cores else None
        return handshake.session_id if handshake is not None else None

    # -- tools
    # --------------------------------------------------------------------------------------------------

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Tools of the last listing that cannot be used, each with the reason."""
        known = self.core.catalog.listing if self._cores else None
        return known.dropped if known is not None else ()

    @property
    def findings(self) -> tuple[MCPFinding, ...]:
        """Suspicious facts of the last listing: invisible characters, differences from the pins."""
        return self.core.guard.findings if self._cores else ()

    def pin(self) -> None:
        """List the tools and write them into the lock file (`lock=`)."""
        run_async(self.there(self.core.catalog.pin))

    @property
    def listed(self) -> dict[str, MCPDefinition] | None:
        """The definitions of the last listing, by name on the server; None before the first. Sends nothing."""
        return self.core.catalog.known_definitions() if self._cores else None

    @property
    def is_stale(self) -> bool:
        """Whether the server is connected, or to be tried again, and its listing is out of date."""
        return (
            bool(self._cores)
            and (self.core.link.is_alive or self.core.catalog.is_away)
            and self.core.catalog.is_stale()
        )

    @property
    def trouble(self) -> MCPError | ConfigurationError | None:
        """Why its tools could not be listed; None if they could. Those of the last listing stay."""
        return self.core.catalog.trouble if self._cores else None

    @property
    def is_away(self) -> bool:
        """Whether programs leave the server out (`on_error="skip"`), as it could not be connected yet."""
        return bool(self._cores) and self.core.catalog.is_away

    async def aoffered(self) -> Iterable[Tool]:
        """`atools` for a program: with `on_error="skip"` there are none if the server cannot be connected."""
        if self.options.on_error == "skip" and not await self.there(self.core.catalog.is_available):
            return ()
        return await self.atools()

    def try_again(self) -> None:
        """Try in the background to connect a server that is away, unless that failed a moment ago."""
        if self.is_away and self.core.catalog.is_stale():
            _ = asyncio.run_coroutine_threadsafe(self.core.catalog.changes(), background_loop())

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    async def atools(self) -> ServerTools:
        """The tools of the last listing; connects and lists if need be."""
        return self._made(await self.there(self.core.catalog.definitions))

    def _made(self, definitions: Mapping[str, MCPDefinition]) -> ServerTools:
        notes = self.core.guard.notes
        if (
            self._tools is None
            or self._tools.definitions != definitions
            or self._tools.notes != notes
        ):
            prefix, rules = self.options.prefix is True, self.options.rules
            made = make_tools(
                definitions.values(),
                cast("Any", self),
                self.name,
                prefix=prefix,
                rules=rules,
            )
            self._tools = ServerTools(
                definitions,
                {each.name: _with_note(each, notes) for each in made},
                notes,
            )
        return self._tools

    @property
    def tools(self) -> ServerTools:
        """`atools` for sync code."""
        known = self.listed
        return run_async(self.atools()) if known is None else self._made(known)

    async def arefresh(self) -> ToolChanges:
        """List the tools again now; returns the changes."""
        return await self.there(self.core.catalog.list_tools)

    def refresh(self) -> ToolChanges:
        """`arefresh` for sync code."""
        return run_async(self.arefresh())

    async def achanges(self) -> ToolChanges:
        """The changes since the last listing, to be asked for between two turns of a model.

        Sends nothing unless the server notified of a change, its list has expired, or `poll_s` is
        over. Waits for a second at most: a later call returns what a slower server lists. Raises
        the `MCPError` of a listing that failed; then the server is left alone for 15 seconds, and
        for up to five minutes if it fails again.
        """
        return await self.there(self.core.catalog.changes)

    def changes(self) -> ToolChanges:
        """`achanges` for sync code."""
        return run_async(self.achanges()) if self.core.catalog.is_stale() else ToolChanges()

    # -- resources and prompts
    # ----------------------------------------------------------------------------------

    async def aresources(self) -> list[dict[str, Any]]:
        """Its resources: `uri`, `name`, `mimeType`, ...; empty if it has none."""
        return await self.there(partial(self.core.catalog.list_of, "resources/list", "resources"))

    def resources(self) -> list[dict[str, Any]]:
        """`aresources` for sync code."""
        return run_async(self.aresources())

    async def aresource_templates(self) -> list[dict[str, Any]]:
        """Its resource templates: `uriTemplate`, `name`, ..."""
        return await self.there(
            partial(self.core.catalog.list_of, "resources/templates/list", "resourceTemplates"),
        )

    def resource_templates(self) -> list[dict[str, Any]]:
        """`aresource_templates` for sync code."""
        return run_async(self.aresource_templates())

    async def aread_resource(self, uri: str) -> list[dict[str, Any]]:
        """The contents of one resource: each with `uri`, and `text` or `blob` (base64)."""
        found = await self.there(
            partial(self.core.catalog.request, "resources/read", {"uri": uri}, phase="read"),
        )
        return cast("list[dict[str, Any]]", found.get("contents") or [])

    def read_resource(self, uri: str) -> list[dict[str, Any]]:
        """`aread_resource` for sync code."""
        return run_async(self.aread_resource(uri))

    async def aprompts(self) -> list[dict[str, Any]]:
        """Its prompts: `name`, `description`, `arguments`."""
        return await self.there(partial(self.core.catalog.list_of, "prompts/list", "prompts"))

    def prompts(self) -> list[dict[str, Any]]:
        """`aprompts` for sync code."""
        return run_async(self.aprompts())

    async def aget_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """One prompt, with its arguments filled in: `description` and `messages`."""
        params = {"name": name, **({"arguments": dict(arguments)} if arguments else {})}
        return await self.there(
            partial(self.core.catalog.request, "prompts/get", params, phase="read"),
        )

    def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> dict[str, Any]:
        """`aget_prompt` for sync code."""
        return run_async(self.aget_prompt(name, arguments))
