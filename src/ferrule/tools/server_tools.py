"""The tools of whole MCP servers: conversion, names that are unique across servers, and estimates.

One tool of a server is converted in `tools/mcp/tool.py`.

Each server chooses the names of its tools, so two servers may choose the same one, or that of a
local tool. Within a server, `make_tools` makes the names unique. Across servers, `separate_names`
puts the server's name before each name that clashes, and leaves the others as their servers chose
them: a model knows common ones, such as `search`, from its training.
"""

from __future__ import annotations

from asyncio import gather
from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule.concurrency.offload import run_async
from ferrule.tools.mcp.names import unique_names
from ferrule.tools.mcp.safety import MCPFinding, estimate_tokens, find_shadowing
from ferrule.tools.mcp.tool import (
    Caller,
    ConversionRules,
    RemoteCall,
    confirmation_of,
    make_remote_call,
    mcp_tool_options,
    rules_from,
)
from ferrule.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.tools.mcp_definition import MCPDefinition


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
    """The tools of one server, in its order and under unique names.

    `prefix` puts `server__` before each name.
    """
    definitions = list(definitions)
    names = unique_names([(server, definition.name) for definition in definitions], prefix=prefix)
    tools: list[Tool] = []
    for definition in definitions:
        options = mcp_tool_options(
            definition,
            caller=caller,
            server=server,
            name=names[server, definition.name],
            rules=rules,
        )
        tools.append(Tool(**options))
    return tools


def connect_mcp_tools(
    tools: Iterable[Tool], callers: Mapping[str, Caller], **options: Any
) -> list[Tool]:
    """Give tools without a function the caller of their server. Others stay unchanged.

    Such tools were made from `(entry, server_id)`, or loaded. `callers` are by server.
    """
    rules = rules_from(options)
    connected: list[Tool] = []
    for tool in tools:
        caller = callers.get(tool.mcp_server or "")
        if tool.mcp is None or tool.func is not None or caller is None:
            connected.append(tool)
            continue
        _, is_chosen = confirmation_of(tool.mcp, rules)
        function = make_remote_call(
            tool.mcp, caller, tool.name, tool.mcp_server, rules, asks_directly=is_chosen
        )
        connected.append(tool.model_copy(update={"func": function}))
    return connected


def list_server_tools(servers: Iterable[Any]) -> dict[int, Iterable[Tool]]:
    """The tools of each server, by the server's `id()`.

    Servers that have not listed any yet connect at the same time.
    """
    servers = list(servers)
    tools = {id(server): server.tools for server in servers if server.listed is not None}
    unlisted = [server for server in servers if id(server) not in tools]
    if not unlisted:
        return tools

    async def list_all() -> list[Any]:
        listings = (server.aoffered() for server in unlisted)
        return await gather(*listings, return_exceptions=True)

    for server, outcome in zip(unlisted, run_async(list_all()), strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        tools[id(server)] = outcome
    return tools


# -- several servers


def separate_names(tools: Iterable[Tool], reserved: Iterable[str] = ()) -> list[Tool]:
    """The tools under different names.

    A server's tool whose name is `reserved` or not unique gets the server's name as a prefix. The
    names of local tools do not change.
    """
    tools = list(tools)
    # A tool may be listed twice: only different tools of one name clash.
    distinct: set[tuple[str | None, str, str]] = set()
    for tool in tools:
        original_name = tool.mcp.name if tool.mcp is not None else ""
        distinct.add((tool.mcp_server, original_name, tool.name))
    counts = Counter(name for _, _, name in distinct)
    counts.update(reserved)  # each counts as one more tool
    clashing: dict[int, tuple[str, str]] = {}
    """Server and original name of each tool whose name clashes, by the tool's `id()`."""
    for tool in tools:
        if tool.mcp is not None and counts[tool.name] > 1:
            clashing[id(tool)] = (tool.mcp_server or "", tool.mcp.name)
    names = unique_names(
        clashing.values(),
        prefix=True,
        taken=[tool.name for tool in tools if id(tool) not in clashing],
    )
    renamed: list[Tool] = []
    for tool in tools:
        if id(tool) in clashing:
            renamed.append(rename_tool(tool, names[clashing[id(tool)]]))
        else:
            renamed.append(tool)
    return renamed


def rename_tool(tool: Tool, name: str) -> Tool:
    """A server's tool under another name. Calls still use the server's name."""
    if tool.name == name:
        return tool
    function = tool.func
    if isinstance(function, RemoteCall):
        function = replace(function, name=name)
    return tool.model_copy(update={"name": name, "func": function})


def estimate_mcp_tokens(tools: Iterable[Tool]) -> dict[str, int]:
    """The estimated tokens that the tools of each server take in a prompt."""
    by_server = _definitions_by_server(tools)
    return {server: estimate_tokens(definitions) for server, definitions in by_server.items()}


def find_shadowed_tools(tools: Iterable[Tool]) -> list[MCPFinding]:
    """Servers' tools that share a name with another tool, or that mention one.

    The other tool is local or of another server.
    """
    tools = list(tools)
    local_names = [tool.name for tool in tools if tool.mcp is None]
    return find_shadowing(_definitions_by_server(tools), local_names)


def _definitions_by_server(tools: Iterable[Tool]) -> dict[str, list[MCPDefinition]]:
    definitions: dict[str, list[MCPDefinition]] = {}
    for tool in tools:
        if tool.mcp is not None:
            definitions.setdefault(tool.mcp_server or "", []).append(tool.mcp)
    return definitions
