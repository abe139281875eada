"""Changes of tools between two turns of a run: MCP servers list other tools, and loaded tools that are not called are put back.

A flow calls `refresh()` after each turn. If a server has announced a change of its list, or the
list has expired, the run makes a tool call of its own that lists the tools again and changes them
through the run's `Host`. The journal has these changes like those of any tool that loads others: a
replay makes the same changes and asks no server. `Once` records that a refresh was due: a
replay cannot know it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from ferrule.acts import Act, CallTools, Once, Tell
from ferrule.errors import ConfigurationError, MCPError
from ferrule.events import ServerUnavailable
from ferrule.programs.tool_use.use import has_changes
from ferrule.tools.execution.tool_changes import module_callback
from ferrule.tools.mcp.tool import RemoteCall
from ferrule.tools.server_tools import rename_tool
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import LiveToolbox, Toolbox, is_server
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from ferrule.acts import Conditions
    from ferrule.programs.tool_use.dynamic import Host, ModuleContext
    from ferrule.values.calls.call import ToolSpec
    from ferrule.values.outcome import Step

_Place = tuple[int, str]
"""A tool of a server: the server's `id`, and the tool's name there."""


def after_turns(
    toolbox: Toolbox,
    host: Host,
    conditions: Conditions,
) -> LiveTools | LoadedTools | None:
    """The object that changes a run's tools after its turns, with `begin()` and `refresh(step)`; None if the tools never change."""
    live = LiveTools.of(toolbox, host, conditions)
    return live if toolbox.keep_turns is None else LoadedTools(toolbox.keep_turns, host, live)


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
        return (yield from self._live.begin()) if self._live is not None else ""

    def refresh(self, step: Step) -> Generator[Act, Any, str]:
        """Put back tools that were not called; returns a description of the changes for the model, empty if there are none."""
        news = (yield from self._live.refresh(step)) if self._live is not None else ""
        owner, shelf = self._host.owner, self._host.owner.shelf
        names = [
            tool.name
            for tool in owner.toolbox
            if tool.name not in self._start and shelf is not None and shelf.get(tool.name)
        ]
        called = {
            tool.name for call in step.calls if (tool := owner.toolbox.get(call.name)) is not None
        }
        before = self._idle
        self._idle = {name: 0 if name in called else before.get(name, -1) + 1 for name in names}
        idle = [name for name in names if self._idle[name] >= self._turns]
        if not idle:
            return news
        self._idle = {name: turns for name, turns in self._idle.items() if name not in idle}
        owner.toolbox = Toolbox([tool for tool in owner.toolbox if tool.name not in idle])
        listed = ", ".join(f"`{name}`" for name in idle)
        return "\n".join(
            filter(
                None,
                (
                    news,
                    f"Put back, as not called for {self._turns} turns: {listed}. Load them again to call them.",
                ),
            ),
        )


class LiveTools:
    """Keeps the tools of one run up to date with the MCP servers behind them."""

    @classmethod
    def of(cls, toolbox: Toolbox, host: Host, conditions: Conditions) -> LiveTools | None:
        """Make one for a run; None if none of its tools is on a server."""
        every = (*toolbox, *(toolbox.shelf or ()))
        found = {
            id(each): each
            for each in (*toolbox.servers, *map(_server_of, every))
            if each is not None
        }
        return (
            cls(toolbox, host, tuple(found.values()), is_resumed=conditions.is_resumed)
            if found
            else None
        )

    def __init__(
        self,
        toolbox: Toolbox,
        host: Host,
        servers: tuple[Any, ...],
        *,
        is_resumed: bool,
    ) -> None:
        self._toolbox = toolbox
        self._host = host
        self._servers = servers
        self._is_resumed = is_resumed
        every = (*host.owner.toolbox, *(toolbox.shelf or ()))
        self._whole = {id(each) for each in toolbox.servers}
        """The servers given as a whole, not tool by tool: their new tools are offered."""
        self._have = {
            id(each): {
                tool.mcp.name: tool.mcp for tool in every if tool.mcp and _server_of(tool) is each
            }
            for each in servers
        }
        """For each server, the definitions that this run has, by their names on the server."""
        self._seen: dict[int, Any] = {}
        """For each server, the listing that was compared last."""
        self._away: set[int] = set()
        """The servers that could not be listed again and that this run has reported."""
        self._known = set(_places(every))
        current = WeakMethod(self._current_tools)  # weak: this object holds the host
        host.elsewhere = lambda: method() if (method := current()) is not None else ()
        self._lister: ToolSpec = Tool(
            self._list_again,
            "list_tools_again",
            "List the tools of MCP servers that have changed.",
            effect="read",
        )

    def begin(self) -> Generator[Act, Any, str]:
        """A note for the model about servers that are not available; empty if all are available."""
        if not (self._is_resumed or any(each.is_away for each in self._servers)):
            return ""
        yield from self._tell()
        names = yield Once(
            lambda: [each.name for each in self._servers if each.is_away],
            "servers away",
            only_if_true=True,
        )
        if not names:
            return ""
        return f"Not available at the moment, with all their tools: the MCP servers {', '.join(f'`{each}`' for each in names)}."

    def _tell(self) -> Generator[Act, Any, None]:
        for server in self._servers:
            if (server.trouble is None) is (id(server) in self._away):
                self._away ^= {id(server)}
                if server.trouble is not None:
                    yield Tell(ServerUnavailable(server=server.name, error=server.trouble))

    def refresh(self, step: Step) -> Generator[Act, Any, str]:
        """Apply the servers' changes; returns a description for the model, empty if there are none."""
        del step  # for `LoadedTools`
        if not (
            self._is_resumed or self._is_due()
        ):  # no act if there is nothing to find or to record
            return ""
        if not (yield Once(self._is_due, "tools of servers", only_if_true=True)):
            return ""
        call = ToolCall(name=self._lister.name, args={})
        results: list[ToolResult] = yield CallTools(
            (CheckedCall(call, self._lister, self._lister.prepare({}), self._host),),
        )
        yield from self._tell()
        return self._host.apply(results)[1] if has_changes(results) else ""

    def _is_due(self) -> bool:
        return any(map(self._is_changed, self._servers))

    def _is_changed(self, server: Any) -> bool:
        if server.is_stale or (server.trouble is None) is (id(server) in self._away):
            return True
        listed = server.listed
        if listed is None or listed is self._seen.get(id(server)):
            return False
        have = self._have[id(server)]
        differs = (
            listed != have
            if id(server) in self._whole
            else any(listed.get(name) != found for name, found in have.items())
        )
        if not differs:
            self._seen[id(server)] = listed  # so that it is not compared again
        return differs

    async def _list_again(self) -> Any:
        """List the tools of the servers again, and change the run's tools accordingly."""
        from asyncio import gather

        await gather(*map(_list_one, self._servers))
        return module_callback(self._change)

    def _change(self, context: ModuleContext) -> str:
        now = list(self._current_tools())
        fresh = {place: tool for tool in now if (place := _place(tool)) is not None}
        asked: set[int] = set()
        for each in self._servers:
            if (listed := each.listed) is not None:
                asked.add(id(each))
                self._seen[id(each)] = listed
                have = self._have[id(each)]
                self._have[id(each)] = (
                    listed
                    if id(each) in self._whole
                    else {name: listed[name] for name in have if name in listed}
                )
        before: Iterable[Tool] = context.module.toolbox
        kept: list[Tool] = []
        for tool in before:
            place = _place(tool)
            if place is None or place[0] not in asked:
                kept.append(tool)
            elif place in fresh:
                kept.append(tool if _same(tool, fresh[place]) else fresh[place])
        added = [
            tool
            for tool in self._offered(now)
            if (place := _place(tool)) is not None and place not in self._known
        ]
        self._known |= fresh.keys() | set(_places(before))
        context.module.init_module([*kept, *added])
        return "The tools of the servers are as they list them now."

    def _offered(self, now: list[Tool]) -> Iterable[Tool]:
        """The tools that are offered although the program does not name them: those of servers given as a whole, unless on a shelf."""
        if not isinstance(self._toolbox, LiveToolbox):
            return ()
        made, shelf = (
            self._toolbox.list_tools(),
            self._host.owner.shelf,
        )  # the run's shelf: the toolbox may have a newer one
        if made.shelf is not None and shelf is not None:
            shelf.replace(made.shelf)
        names = set(made.names)
        return [tool for tool in now if tool.name in names]

    def _current_tools(self) -> Iterator[Tool]:
        """Every tool that these servers list now, under its name in this program."""
        given: set[int] = set()
        if isinstance(self._toolbox, LiveToolbox):
            made = self._toolbox.list_tools()
            given = {id(each) for each in self._toolbox.servers}
            yield from (tool for tool in (*made, *(made.shelf or ())) if tool.mcp is not None)
        names: Mapping[_Place, str] = {
            place: tool.name
            for tool in (*self._toolbox, *(self._toolbox.shelf or ()))
            if (place := _place(tool)) is not None
        }
        for server in self._servers:
            if id(server) not in given:
                for tool in server.tools:
                    place = _place(tool)
                    if place in names:
                        yield rename_tool(tool, names[place])


async def _list_one(server: Any) -> None:
    with suppress(
        MCPError,
        ConfigurationError,
    ):  # the error is logged, and the tools stay the same; the next call reports the problem
        if server.is_stale:
            await server.achanges()
        if server.listed is not None:
            await server.atools()


def _same(one: Tool, other: Tool) -> bool:
    return one is other or (
        one.mcp == other.mcp
        and one.name == other.name
        and one.require_confirmation == other.require_confirmation
    )


def _server_of(tool: Tool) -> Any:
    caller = tool.func.caller if isinstance(tool.func, RemoteCall) else None
    return caller if is_server(caller) else None


def _place(tool: Tool) -> _Place | None:
    server = _server_of(tool)
    return (id(server), tool.mcp.name) if server is not None and tool.mcp is not None else None


def _places(tools: Iterable[Tool]) -> Iterator[_Place]:
    return (place for tool in tools if (place := _place(tool)) is not None)
