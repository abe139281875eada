"""Tools of MCP servers that change while a program runs: taken in between two turns.

A flow asks `news()` after each turn. Where a server has said that its list changed, or its list ran out, a call of the run's own lists it
anew and makes the changes through the run's `Host`: so they stand in the journal as those of any tool that loads others, and a replay makes
the same ones and asks no server. That there was something to see stands there too, beside the acts (`7t`), as a replay cannot know it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from ferrule.errors import MCPError
from ferrule.programs.tool_use.dynamic import changes
from ferrule.tools.execution.tool_changes import module_callback
from ferrule.tools.mcp.tool import RemoteCall
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import LiveToolbox, Toolbox, is_server
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult
from ferrule.values.run.act import Act, CallTools, CheckDue

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from ferrule.programs.tool_use.dynamic import Host, ModuleContext
    from ferrule.values.calls.call import ToolSpec

log = logging.getLogger("ferrule.mcp")

_Place = tuple[int, str]
"""A tool of a server: which server, and its name there."""


def live_tools(toolbox: Toolbox, host: Host, *, is_resumed: bool) -> LiveTools | None:
    """What keeps a run's tools as their servers have them; None where no tool is of a server."""
    every = (*toolbox, *(toolbox.shelf or ()))
    found = {id(each): each for each in (*toolbox.servers, *map(_server_of, every)) if each is not None}
    return LiveTools(toolbox, host, tuple(found.values()), is_resumed=is_resumed) if found else None


class LiveTools:
    """The servers behind the tools of one run."""

    def __init__(self, toolbox: Toolbox, host: Host, servers: tuple[Any, ...], *, is_resumed: bool) -> None:
        self._toolbox = toolbox
        self._host = host
        self._servers = servers
        self._is_resumed = is_resumed
        every = (*host.owner.toolbox, *(toolbox.shelf or ()))
        self._whole = {id(each) for each in toolbox.servers}
        """The servers that were given whole: what is new on them is offered."""
        self._have = {id(each): {tool.mcp.name: tool.mcp for tool in every if tool.mcp and _server_of(tool) is each} for each in servers}
        """By server, the definitions that this run has, by their names there."""
        self._seen: dict[int, Any] = {}
        """By server, the listing that was last looked at."""
        self._known = set(_places(every))
        now = WeakMethod(self._now)  # weak, as this holds the host
        host.elsewhere = lambda: found() if (found := now()) is not None else ()
        self._look = Tool(self._listed, "list_tools_again", "List the tools of MCP servers that have changed.", effect="read")

    def news(self) -> Generator[Act, Any, str]:
        """Take in what changed; what the model is to be told of it, empty for nothing."""
        if not (self._is_resumed or self._is_due()):  # no act where there is nothing to find or to record
            return ""
        if not (yield CheckDue(self._is_due, "tools of servers")):
            return ""
        call = ToolCall(name=self._look.name, args={})
        results: list[ToolResult] = yield CallTools((CheckedCall(call, self._as_spec(), self._look.prepare({}), self._host),))
        if not changes(results):
            return ""
        return self._host.applied(results)[1]

    def _as_spec(self) -> ToolSpec:
        return self._look

    def _is_due(self) -> bool:
        return any(map(self._is_changed, self._servers))

    def _is_changed(self, server: Any) -> bool:
        if server.is_stale:
            return True
        listed = server.listed
        if listed is None or listed is self._seen.get(id(server)):
            return False
        have = self._have[id(server)]
        differs = listed != have if id(server) in self._whole else any(listed.get(name) != found for name, found in have.items())
        if not differs:
            self._seen[id(server)] = listed  # not compared again
        return differs

    async def _listed(self) -> Any:
        """Ask the servers, and change the tools of the run."""
        for server in self._servers:
            try:
                if server.is_stale:
                    await server.achanges()
                if server.listed is not None:
                    await server.atools()
            except MCPError as error:  # the tools stay as they were; the next call says what is wrong
                log.warning("MCP server `%s`: its tools could not be listed again: %s", server.name, error)
        return module_callback(self._changed)

    def _changed(self, context: ModuleContext) -> str:
        now = list(self._now())
        fresh = {place: tool for tool in now if (place := _place(tool)) is not None}
        asked: set[int] = set()
        for each in self._servers:
            if (listed := each.listed) is not None:
                asked.add(id(each))
                self._seen[id(each)] = listed
                have = self._have[id(each)]
                self._have[id(each)] = listed if id(each) in self._whole else {name: listed[name] for name in have if name in listed}
        before: Iterable[Tool] = context.module.toolbox
        kept: list[Tool] = []
        for tool in before:
            place = _place(tool)
            if place is None or place[0] not in asked:
                kept.append(tool)
            elif place in fresh:
                kept.append(tool if _same(tool, fresh[place]) else fresh[place])
        added = [tool for tool in self._offered(now) if (place := _place(tool)) is not None and place not in self._known]
        self._known |= fresh.keys() | set(_places(before))
        context.module.init_module([*kept, *added])
        return "The tools of the servers are as they list them now."

    def _offered(self, now: list[Tool]) -> Iterable[Tool]:
        """Of the tools there are now, those that are offered unasked: of servers that were given whole, and not put on a shelf."""
        if not isinstance(self._toolbox, LiveToolbox):
            return ()
        made = self._toolbox.made()
        if made.shelf is not None and self._toolbox.shelf is not None:
            self._toolbox.shelf.replace(made.shelf)
        names = set(made.names)
        return [tool for tool in now if tool.name in names]

    def _now(self) -> Iterator[Tool]:
        """Every tool of these servers as it is now, under the names that it has in this program."""
        given: set[int] = set()
        if isinstance(self._toolbox, LiveToolbox):
            made = self._toolbox.made()
            given = {id(each) for each in self._toolbox.servers}
            yield from (tool for tool in (*made, *(made.shelf or ())) if tool.mcp is not None)
        names: Mapping[_Place, str] = {
            place: tool.name for tool in (*self._toolbox, *(self._toolbox.shelf or ())) if (place := _place(tool)) is not None
        }
        for server in self._servers:
            if id(server) not in given:
                for tool in server.tools:
                    place = _place(tool)
                    if place in names:
                        yield _named(tool, names[place])


def _named(tool: Tool, name: str) -> Tool:
    from ferrule.tools.server_tools import renamed

    return renamed(tool, name)


def _same(one: Tool, other: Tool) -> bool:
    return one is other or (one.mcp == other.mcp and one.name == other.name and one.require_confirmation == other.require_confirmation)


def _server_of(tool: Tool) -> Any:
    caller = tool.func.caller if isinstance(tool.func, RemoteCall) else None
    return caller if is_server(caller) else None


def _place(tool: Tool) -> _Place | None:
    server = _server_of(tool)
    return (id(server), tool.mcp.name) if server is not None and tool.mcp is not None else None


def _places(tools: Iterable[Tool]) -> Iterator[_Place]:
    return (place for tool in tools if (place := _place(tool)) is not None)
