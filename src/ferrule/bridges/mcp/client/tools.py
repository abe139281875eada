"""The tools of one server, by name, and what became of them since they were last listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.bridges.mcp.client.listing import Changes
from ferrule.concurrency.offload import run_async
from ferrule.errors import UnknownToolError
from ferrule.tools import server_tools as convert
from ferrule.values.record import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from ferrule.bridges.mcp.client.listing import Dropped
    from ferrule.bridges.mcp.client.operations import Core
    from ferrule.bridges.mcp.client.options import ServerOptions
    from ferrule.tools.definition.mcp import MCPDefinition
    from ferrule.tools.mcp.safety import MCPFinding
    from ferrule.tools.tool import Tool


class ServerTools:
    """Tools by name, and one after the other: `tools["echo"]`, `ReAct(..., tools=[*tools])`."""

    def __init__(self, definitions: Mapping[str, MCPDefinition], tools: Mapping[str, Tool], notes: Mapping[str, str] | None = None) -> None:
        self.notes = dict(notes or {})
        """Why a person is asked about calls of a tool that is not as it was pinned, by its name on the server."""
        self.definitions = dict(definitions)
        """What the server says of them, by their name on the server."""
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


def tools_of(
    server: Any, definitions: Mapping[str, MCPDefinition], options: ServerOptions, notes: Mapping[str, str] | None = None
) -> ServerTools:
    """The tools of a server, under the names that its `prefix` gives them; those with a note ask a person, who is shown it."""
    made = convert.tools_of(definitions.values(), server, server.name, prefix=options.prefix, rules=options.rules)
    noted = [_noted(each, (notes or {}).get(each.mcp.name, "") if each.mcp is not None else "") for each in made]
    return ServerTools(definitions, {each.name: each for each in noted}, notes)


def _noted(tool: Tool, note: str) -> Tool:
    if not note:
        return tool
    func: Any = tool.func
    return tool.model_copy(update={"require_confirmation": True, "func": replace(func, note=note, asks_directly=True)})


class Listed:
    """What `MCPServer` can say of its tools."""

    options: ServerOptions
    _tools: ServerTools | None
    _lives: dict[Any, Core]

    if TYPE_CHECKING:

        @property
        def core(self) -> Core: ...  # noqa: D102  `MCPServer` says it
        async def there(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any: ...  # noqa: D102  the same

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """The tools that it lists and that cannot be used, each with the reason; as of the last listing."""
        known = self.core.listing if self._lives else None
        return known.dropped if known is not None else ()

    @property
    def findings(self) -> tuple[MCPFinding, ...]:
        """What was odd about its tools when they were last listed: characters that nobody sees, differences to what is pinned."""
        return self.core.guard.findings if self._lives else ()

    def pin(self) -> None:
        """Take its tools as they are for good: they are listed, and written into the lock file (`lock=`)."""
        run_async(self.there(self.core.pin))

    @property
    def listed(self) -> dict[str, MCPDefinition] | None:
        """What it last listed, by name there; None before it did. Asks nobody."""
        return self.core.known_definitions() if self._lives else None

    @property
    def is_stale(self) -> bool:
        """Whether there is a connection, and what was listed over it is known or said to be out of date."""
        return bool(self._lives) and self.core.link.is_alive and self.core.is_stale()

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    async def atools(self) -> ServerTools:
        """Its tools as they were last listed; connects and lists if need be."""
        definitions = await self.there(self.core.definitions)
        notes = self.core.guard.notes
        if self._tools is None or self._tools.definitions != definitions or self._tools.notes != notes:
            self._tools = tools_of(self, definitions, self.options, notes)
        return self._tools

    @property
    def tools(self) -> ServerTools:
        """`atools` for sync code."""
        return run_async(self.atools())

    async def arefresh(self) -> Changes:
        """List the tools anew, now; what is different."""
        return await self.there(self.core.list_tools)

    def refresh(self) -> Changes:
        """`arefresh` for sync code."""
        return run_async(self.arefresh())

    async def achanges(self) -> Changes:
        """What changed since the last listing, for the moment between two turns of a model.

        Nothing is sent unless the server told of a change, its list ran out, or `poll_s` is over.
        """
        return await self.there(self.core.changes)

    def changes(self) -> Changes:
        """`achanges` for sync code."""
        return run_async(self.achanges()) if self.core.is_stale() else Changes()
