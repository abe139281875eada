"""The MCP servers behind a saved program's tools.

In: a toolbox with tools of servers. Out: how each is reached and what it listed, as JSON data without secrets and without any connection;
and from that the same tools again. They are called through servers that are connected at the first call, and then compared with what stands
in the state, by the rule that the server's `pins=` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.tools.mcp.tool import RemoteCall, mcp_parts
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import LiveToolbox, Toolbox, is_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def dumped_servers(toolbox: Toolbox) -> list[dict[str, Any]]:
    """Every server that tools of the box are called through; not one that lives in this process, which nobody could reach from another."""
    callers = (tool.func.caller for tool in toolbox if isinstance(tool.func, RemoteCall))
    found = {id(each): each for each in (*toolbox.servers, *filter(is_server, callers)) if each.spec.transport != "memory"}
    whole = {id(each) for each in toolbox.servers}
    return [{**each.dump_state(), "whole": id(each) in whole} for each in found.values()]


def bound_servers(states: Iterable[Mapping[str, Any]], toolbox: Toolbox) -> dict[str, tuple[Any, bool]]:
    """The servers of a state by name, each with whether it was given whole: those of the program where it has them, else new ones.

    Raises `ConfigurationError` for a variable of the environment that one needs and that is not set.
    """
    at_hand = {each.name: each for each in toolbox.servers}
    found: dict[str, tuple[Any, bool]] = {}
    for state in states:
        if state["name"] in at_hand:
            found[state["name"]] = (at_hand[state["name"]], True)
        else:
            from ferrule.bridges.mcp.client.mcp_server import MCPServer

            found[state["name"]] = (MCPServer.from_state(state), bool(state.get("whole")))
    return found


def bound_tools(states: Iterable[Mapping[str, Any]], servers: Mapping[str, tuple[Any, bool]]) -> dict[str, Tool]:
    """The tools of these servers by name, as they were saved."""
    found: dict[str, Tool] = {}
    for state in states:
        if state.get("mcp") is not None and state.get("mcp_server") in servers:
            server, _ = servers[state["mcp_server"]]
            name = state["name"]
            found[name] = Tool(**mcp_parts(state["mcp"], caller=server, server=server.name, name=name, rules=server.options.rules))
    return found


def live_again(tools: Sequence[Tool], servers: Mapping[str, tuple[Any, bool]], before: Toolbox) -> Toolbox:
    """A toolbox with the saved tools, which sees what becomes of servers that were given whole."""
    made = Toolbox(tools)
    if isinstance(before, LiveToolbox):
        return before.filled(made)
    whole = [server for server, is_whole in servers.values() if is_whole]
    own = [tool for tool in tools if not (isinstance(tool.func, RemoteCall) and any(tool.func.caller is each for each in whole))]
    return LiveToolbox([*whole, *own]).filled(made) if whole else made
