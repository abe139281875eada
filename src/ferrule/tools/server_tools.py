"""The tools of whole servers: conversion, unique names across servers, and estimates and findings for all of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ferrule.concurrency.offload import run_async
from ferrule.record import replace
from ferrule.tools.mcp.safety import MCPFinding, estimate_tokens, find_shadowing
from ferrule.tools.mcp.tool import (
    Caller,
    ConversionRules,
    RemoteCall,
    mcp_tool_options,
    rules_from,
    unique_names,
)
from ferrule.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.tools.definition.mcp import MCPDefinition


def convert_mcp_tool(session: Caller, tool: Any) -> Tool:
    """Make a tool of a live session: `Tool.from_mcp_tool(session, tool)` under DSPy's name."""
    return Tool.from_mcp_tool(session, tool)


def make_tools(
    definitions: Iterable[MCPDefinition],
    caller: Caller | None,
    server: str,
    *,
    prefix: bool = False,
    rules: ConversionRules | None = None,
) -> list[Tool]:
    """The tools of one server, in its order and under unique names. `prefix` puts `server__` before each name."""
    listed = list(definitions)
    names = unique_names([(server, each.name) for each in listed], prefix=prefix)
    return [
        Tool(
            **mcp_tool_options(
                each,
                caller=caller,
                server=server,
                name=names[server, each.name],
                rules=rules,
            ),
        )
        for each in listed
    ]


# -- several servers
# ------------------------------------------------------------------------------------------------


def separate_names(tools: Iterable[Tool], reserved: Iterable[str] = ()) -> list[Tool]:
    """The tools; a server's tool whose name is `reserved` or not unique gets the server's name as a prefix."""
    tools = list(tools)
    different = {
        (each.mcp_server, each.mcp.name if each.mcp is not None else "", each.name)
        for each in tools
    }
    counted = Counter(name for _, _, name in different)
    counted.update(dict.fromkeys(reserved, 1))
    clashing = {
        id(each): (each.mcp_server or "", each.mcp.name)
        for each in tools
        if each.mcp is not None and counted[each.name] > 1
    }
    made = unique_names(
        clashing.values(),
        prefix=True,
        taken=[each.name for each in tools if id(each) not in clashing],
    )
    return [
        rename_tool(each, made[clashing[id(each)]]) if id(each) in clashing else each
        for each in tools
    ]


def rename_tool(tool: Tool, name: str) -> Tool:
    """A server's tool under another name. Calls still use the server's name."""
    if tool.name == name:
        return tool
    function = replace(tool.func, name=name) if isinstance(tool.func, RemoteCall) else tool.func
    return tool.model_copy(update={"name": name, "func": function})


def connect_mcp_tools(
    tools: Iterable[Tool],
    callers: Mapping[str, Caller],
    **options: Any,
) -> list[Tool]:
    """Give tools without a function, made from `(entry, server_id)` or loaded, the caller of their server. Others stay unchanged."""
    rules = rules_from(options)
    made: list[Tool] = []
    for each in tools:
        caller = (
            callers.get(each.mcp_server or "")
            if each.mcp is not None and each.func is None
            else None
        )
        if caller is None:
            made.append(each)
        else:
            function = mcp_tool_options(
                each.mcp,
                caller=caller,
                server=each.mcp_server,
                name=each.name,
                rules=rules,
            )["func"]
            made.append(each.model_copy(update={"func": function}))
    return made


def estimate_mcp_tokens(tools: Iterable[Tool]) -> dict[str, int]:
    """The estimated tokens that the tools of each server take in a prompt."""
    return {server: estimate_tokens(found) for server, found in _by_server(tools).items()}


def list_server_tools(servers: Iterable[Any]) -> dict[int, Iterable[Tool]]:
    """The tools of each server, by the server's `id()`. Servers that have not listed any yet connect at the same time."""
    servers = list(servers)
    found = {id(each): each.tools for each in servers if each.listed is not None}
    others = [each for each in servers if id(each) not in found]
    if others:
        from asyncio import gather

        async def ask() -> list[Any]:
            return await gather(*(each.aoffered() for each in others), return_exceptions=True)

        for server, outcome in zip(others, run_async(ask()), strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            found[id(server)] = outcome
    return found


def find_shadowed_tools(tools: Iterable[Tool]) -> list[MCPFinding]:
    """Servers' tools that share a name with another server's tool or a local one, or that mention such a tool."""
    tools = list(tools)
    return find_shadowing(_by_server(tools), [each.name for each in tools if each.mcp is None])


def _by_server(tools: Iterable[Tool]) -> dict[str, list[MCPDefinition]]:
    found: dict[str, list[MCPDefinition]] = {}
    for each in tools:
        if each.mcp is not None:
            found.setdefault(each.mcp_server or "", []).append(each.mcp)
    return found
