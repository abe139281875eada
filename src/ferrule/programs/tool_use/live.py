"""Changes a run's tools between two turns.

There are two reasons for a change: an MCP server lists other tools, and a tool that the run loaded
from the shelf is not called.

A flow calls `refresh()` after each turn. If a server has announced a change of its list, or the
list has expired, the run makes a tool call of its own that lists the tools again and changes them
through the run's `Host`. The journal has these changes like those of any tool that loads others: a
replay makes the same changes and asks no server. `Once` records that a refresh was due: a
replay cannot know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from msgspec import Struct

from ferrule.acts import Act, CallTools, Once, Tell
from ferrule.errors import ConfigurationError, MCPError
from ferrule.events import ServerUnavailable
from ferrule.programs.tool_use.chosen import ChosenTools
from ferrule.programs.tool_use.use import has_changes
from ferrule.tools.execution.tool_changes import module_callback
from ferrule.tools.mcp.tool import RemoteCall
from ferrule.tools.mcp_definition import MCPDefinition
from ferrule.tools.server_tools import rename_tool
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import LiveToolbox, Toolbox, is_server
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from ferrule.acts import Conditions
    from ferrule.programs.tool_use.chosen import Choices
    from ferrule.programs.tool_use.dynamic import Host, ModuleContext
    from ferrule.values.calls.call import ToolSpec
    from ferrule.values.outcome import Step

_Definitions = dict[int, dict[str, MCPDefinition]]
"""By the `id` of a server: the definitions of its tools, by their names on the server."""
_ServerTool = tuple[int, str]
"""A tool of a server: the server's `id`, and the tool's name there.

The name in the program may differ: tools can be renamed when they are given to a program.
"""


def after_turns(
    toolbox: Toolbox, host: Host, conditions: Conditions, choices: Choices, all_tools: Toolbox
) -> LiveTools | LoadedTools | ChosenTools | None:
    """The object that changes a run's tools after its turns; None if the tools never change.

    The object has `begin()` and `refresh(step)`. `choices` choose among `all_tools`.
    """
    live: LiveTools | LoadedTools | None = None
    if toolbox.servers or toolbox.has_remote:
        live = LiveTools.of(toolbox, host, conditions)
    if toolbox.keep_turns is not None:
        live = LoadedTools(toolbox.keep_turns, host, live)
    if choices.tools_for is not None and (live is not None or choices.each == "step"):
        return ChosenTools(choices, all_tools, host, live)
    return live


class LoadedTools:
    """Puts tools that a run loaded from the shelf back, if they are not called for some turns.

    Nothing is recorded, because a replay has the same steps. All other tools keep their order, so
    that earlier declarations stay the same.
    """

    def __init__(self, turns: int, host: Host, live: LiveTools | None) -> None:
        self._turns = turns
        self._host = host
        self._live = live
        self._start = frozenset(tool.name for tool in host.owner.toolbox)
        self._idle: dict[str, int] = {}
        """For each loaded tool, the turns since it was loaded or last called."""

    def begin(self) -> Generator[Act, Any, str]:
        """See `LiveTools.begin`."""
        if self._live is None:
            return ""
        return (yield from self._live.begin())

    def refresh(self, step: Step) -> Generator[Act, Any, str]:
        """Put back tools that were not called, after the changes of `LiveTools.refresh`.

        Returns a description of all changes for the model, empty if there are none.
        """
        notes: list[str] = []
        if self._live is not None:
            note = yield from self._live.refresh(step)
            if note:
                notes.append(note)
        idle = self._count_idle(step)
        if idle:
            owner = self._host.owner
            owner.toolbox = Toolbox([tool for tool in owner.toolbox if tool.name not in idle])
            names = ", ".join(f"`{name}`" for name in idle)
            notes.append(
                f"Put back, as not called for {self._turns} turns: {names}. "
                "Load them again to call them."
            )
        return "\n".join(notes)

    def _count_idle(self, step: Step) -> list[str]:
        """Count this turn for each loaded tool. Returns the tools that were idle for too long."""
        toolbox, shelf = self._host.owner.toolbox, self._host.owner.shelf
        if shelf is None:
            return []
        called, self._host.called = self._host.called, set()
        for call in step.calls:
            # The model may have written the name in another way: the toolbox finds it.
            tool = toolbox.get(call.name)
            if tool is not None:
                called.add(tool.name)
        turns_before = self._idle
        self._idle = {}
        idle: list[str] = []
        for tool in toolbox:
            name = tool.name
            if name in self._start or not shelf.get(name):
                continue
            turns = 0
            if name not in called:
                turns = turns_before.get(name, -1) + 1
            if turns >= self._turns:
                idle.append(name)
            else:
                self._idle[name] = turns
        return idle


class LiveTools:
    """Keeps the tools of one run up to date with the MCP servers behind them."""

    @classmethod
    def of(cls, toolbox: Toolbox, host: Host, conditions: Conditions) -> LiveTools | None:
        """Make one for a run; None if none of its tools is on a server."""
        remote = _RemoteTools.of(toolbox)
        servers = {id(server): server for server in (*toolbox.servers, *remote.servers)}
        if not servers:
            return None
        return cls(toolbox, host, tuple(servers.values()), is_resumed=conditions.is_resumed)

    def __init__(
        self, toolbox: Toolbox, host: Host, servers: tuple[Any, ...], *, is_resumed: bool
    ) -> None:
        self._toolbox = toolbox
        self._host = host
        self._servers = servers
        self._is_resumed = is_resumed
        self._whole = {id(server) for server in toolbox.servers}
        """The servers given as a whole, not tool by tool: their new tools are offered."""
        self._have: dict[int, Any] = {}
        """For each server, the definitions that this run has, by their names on the server."""
        offered = _RemoteTools.of(host.owner.toolbox).offered
        shelved = _RemoteTools.of(toolbox).shelved
        for server_id in map(id, servers):
            self._have[server_id] = offered.get(server_id, {}) | shelved.get(server_id, {})
        self._began_with = (offered, shelved)
        self._seen: dict[int, Any] = {}
        """For each server, the listing that was compared last."""
        self._away: set[int] = set()
        """The servers that could not be listed again and that this run has reported."""
        self._known: set[_ServerTool] = set()
        """The tools that this run has had since it began."""
        host.server_tools = _call_weakly(self._current_tools)
        self._lister: ToolSpec = Tool(
            self._list_again,
            "list_tools_again",
            "List the tools of MCP servers that have changed.",
            effect="read",
        )

    def begin(self) -> Generator[Act, Any, str]:
        """A note for the model about servers that are not available; empty if all are available."""
        if not self._is_resumed and not self._servers_away():
            return ""
        yield from self._report_availability()
        names = yield Once(self._servers_away, "servers away", only_if_true=True)
        if not names:
            return ""
        listed = ", ".join(f"`{name}`" for name in names)
        return f"Not available at the moment, with all their tools: the MCP servers {listed}."

    def refresh(self, step: Step) -> Generator[Act, Any, str]:
        """Apply the servers' changes.

        Returns a description for the model, empty if there are none.
        """
        del step  # `LoadedTools` has the same method, and counts the calls of the step
        if not self._is_resumed and not self._is_due():
            return ""  # no act: there is nothing to do, and nothing in the journal to follow
        if not (yield Once(self._is_due, "tools of servers", only_if_true=True)):
            return ""
        call = ToolCall(name=self._lister.name, args={})
        checked = CheckedCall(call, self._lister, self._lister.prepare({}), self._host)
        results: list[ToolResult] = yield CallTools((checked,))
        yield from self._report_availability()
        if not has_changes(results):
            return ""
        _, description = self._host.apply(results)
        return description

    def _servers_away(self) -> list[str]:
        return [server.name for server in self._servers if server.is_away]

    def _report_availability(self) -> Generator[Act, Any, None]:
        """Tell observers about each server that has become unavailable, once until it is back."""
        for server in self._servers:
            if not self._has_moved(server):
                continue
            if server.trouble is None:
                self._away.discard(id(server))
            else:
                self._away.add(id(server))
                yield Tell(ServerUnavailable(server=server.name, error=server.trouble))

    def _has_moved(self, server: Any) -> bool:
        """Whether the server has become available or unavailable since the last report."""
        is_away = server.trouble is not None
        return is_away != (id(server) in self._away)

    def _is_due(self) -> bool:
        return any(map(self._is_changed, self._servers))

    def _is_changed(self, server: Any) -> bool:
        if server.is_stale or self._has_moved(server):
            return True
        listed = server.listed
        if listed is None or listed is self._seen.get(id(server)):
            return False
        have = self._have[id(server)]
        if id(server) in self._whole:
            differs = listed != have
        else:
            # Tools that the program did not ask for may come and go.
            differs = any(listed.get(name) != definition for name, definition in have.items())
        if not differs:
            self._seen[id(server)] = listed  # so that it is not compared again
        return differs

    async def _list_again(self) -> Any:
        """List the tools of the servers again, and change the run's tools accordingly."""
        from asyncio import gather

        await gather(*map(_list_one, self._servers))
        return module_callback(self._change)

    def _change(self, context: ModuleContext) -> str:
        """Give the program the tools that the servers list now, in their earlier order.

        Tools of other origin stay, and so do those of a server that could not be listed. New tools
        come last, so that the declarations before them stay the same for the prompt cache.
        """
        current = list(self._current_tools())
        fresh: dict[_ServerTool, Tool] = {}
        for tool in current:
            server_tool = _server_tool(tool)
            if server_tool is not None:
                fresh[server_tool] = tool
        listed_servers = self._take_listings()
        before: Iterable[Tool] = context.module.toolbox
        tools: list[Tool] = []
        for tool in before:
            server_tool = _server_tool(tool)
            if server_tool is None or server_tool[0] not in listed_servers:
                tools.append(tool)
            elif server_tool in fresh:
                tools.append(_newer(tool, fresh[server_tool]))
        for tool in self._offered(current):
            server_tool = _server_tool(tool)
            if server_tool is not None and self._is_new(server_tool):
                tools.append(tool)
        self._known |= fresh.keys() | set(_server_tools(before))
        context.module.init_module(tools)
        return "The tools of the servers are as they list them now."

    def _is_new(self, server_tool: _ServerTool) -> bool:
        """Whether the run has never had a tool. It may then be offered."""
        server_id, name = server_tool
        if any(name in definitions.get(server_id, ()) for definitions in self._began_with):
            return False
        return server_tool not in self._known

    def _take_listings(self) -> set[int]:
        """Remember what the servers list now. Returns the servers that have a list, by `id`."""
        listed_servers: set[int] = set()
        for server in self._servers:
            listed = server.listed
            if listed is None:
                continue
            server_id = id(server)
            listed_servers.add(server_id)
            self._seen[server_id] = listed
            if server_id in self._whole:
                self._have[server_id] = listed
            else:
                have = self._have[server_id]
                self._have[server_id] = {name: listed[name] for name in have if name in listed}
        return listed_servers

    def _offered(self, current: list[Tool]) -> Iterable[Tool]:
        """The tools that are offered although the program does not name them.

        These are the tools of servers given as a whole, unless they are on a shelf.
        """
        if not isinstance(self._toolbox, LiveToolbox):
            return ()
        toolbox = self._toolbox.list_tools()
        # The run's shelf is the one that its search tool reads: it takes the newer content.
        shelf = self._host.owner.shelf
        if toolbox.shelf is not None and shelf is not None:
            shelf.replace(toolbox.shelf)
        names = set(toolbox.names)
        return [tool for tool in current if tool.name in names]

    def _current_tools(self) -> Iterator[Tool]:
        """Every tool that these servers list now, under its name in this program."""
        listed: set[int] = set()
        if isinstance(self._toolbox, LiveToolbox):
            toolbox = self._toolbox.list_tools()
            listed = {id(server) for server in self._toolbox.servers}
            yield from (tool for tool in (*toolbox, *(toolbox.shelf or ())) if tool.mcp is not None)
        names: dict[_ServerTool, str] = {}
        for tool in (*self._toolbox, *(self._toolbox.shelf or ())):
            server_tool = _server_tool(tool)
            if server_tool is not None:
                names[server_tool] = tool.name
        for server in self._servers:
            if id(server) in listed:
                continue
            for tool in server.tools:
                server_tool = _server_tool(tool)
                if server_tool in names:
                    yield rename_tool(tool, names[server_tool])


def _call_weakly(method: Callable[[], Iterable[Tool]]) -> Callable[[], Iterable[Tool]]:
    """The method, without a reference to its object. Returns no tools once the object is gone.

    A `LiveTools` holds its host. A host that held the `LiveTools` too would live until the garbage
    collector finds the circle.
    """
    reference = WeakMethod(method)

    def call() -> Iterable[Tool]:
        current = reference()
        if current is None:
            return ()
        return current()

    return call


async def _list_one(server: Any) -> None:
    # The server logs the error, and its tools stay the same: the next call reports the problem.
    with suppress(MCPError, ConfigurationError):
        if server.is_stale:
            await server.achanges()
        if server.listed is not None:
            await server.atools()


class _RemoteTools(Struct, frozen=True):
    """The tools of MCP servers in a toolbox. Do not change them: all its runs share this."""

    servers: tuple[Any, ...]
    offered: _Definitions
    shelved: _Definitions
    on_shelf: Mapping[str, Tool] | None
    """What was on the shelf."""

    @classmethod
    def of(cls, toolbox: Toolbox) -> _RemoteTools:
        """Those of a toolbox, read once: a server may have 10,000 tools, and each run asks."""
        on_shelf = None
        if toolbox.shelf is not None:
            on_shelf = toolbox.shelf.by_name
        # A run may replace what is on the shelf. What is kept holds it, so that its `id` is not
        # given to another.
        return toolbox.cached_value(
            ("remote tools", id(on_shelf)), lambda: cls._read(toolbox, on_shelf)
        )

    @classmethod
    def _read(cls, toolbox: Toolbox, on_shelf: Mapping[str, Tool] | None) -> _RemoteTools:
        servers: dict[int, Any] = {}
        offered = _by_server(toolbox, servers)
        shelved = _by_server((on_shelf or {}).values(), servers)
        return cls(tuple(servers.values()), offered, shelved, on_shelf)


def _by_server(tools: Iterable[Tool], servers: dict[int, Any]) -> _Definitions:
    """The definitions of servers' tools. Adds the servers to `servers`."""
    definitions: _Definitions = {}
    for tool in tools:
        server = _server_of(tool)
        if server is None:
            continue
        servers[id(server)] = server
        if tool.mcp is not None:
            definitions.setdefault(id(server), {})[tool.mcp.name] = tool.mcp
    return definitions


def _newer(tool: Tool, fresh: Tool) -> Tool:
    """The fresh tool, or the one that the run has if a model and a person see no difference."""
    is_same = (
        tool.mcp == fresh.mcp
        and tool.name == fresh.name
        and tool.require_confirmation == fresh.require_confirmation
    )
    if is_same:
        return tool
    return fresh


def _server_of(tool: Tool) -> Any:
    if isinstance(tool.func, RemoteCall) and is_server(tool.func.caller):
        return tool.func.caller
    return None


def _server_tool(tool: Tool) -> _ServerTool | None:
    server = _server_of(tool)
    if server is None or tool.mcp is None:
        return None
    return id(server), tool.mcp.name


def _server_tools(tools: Iterable[Tool]) -> Iterator[_ServerTool]:
    for tool in tools:
        server_tool = _server_tool(tool)
        if server_tool is not None:
            yield server_tool
