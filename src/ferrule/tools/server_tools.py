"""The tools of whole servers as ours.

In: the definitions that servers list. Out: tools under names that do not collide, renamed or connected where that is needed, and what is to
be told of all of them together.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ferrule.tools.mcp.names import Prefix, own_names
from ferrule.tools.mcp.safety import MCPFinding, estimated_tokens, shadowing
from ferrule.tools.mcp.tool import Caller, ConversionRules, RemoteCall, mcp_parts, rules_from
from ferrule.tools.tool import Tool
from ferrule.values.record import replace
from ferrule.values.schema.python_types import convert_input_schema_to_tool_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.tools.definition.mcp import MCPDefinition

__all__ = [
    "connect_mcp_tools",
    "convert_input_schema_to_tool_args",
    "convert_mcp_tool",
    "estimate_mcp_tokens",
    "find_shadowed_tools",
    "make_tools",
    "renamed",
    "separated",
    "together",
]


def convert_mcp_tool(session: Caller, tool: Any) -> Tool:
    """A tool of a live session as ours: `Tool.from_mcp_tool(session, tool)`, under DSPy's name."""
    return Tool.from_mcp_tool(session, tool)


def make_tools(
    definitions: Iterable[MCPDefinition],
    caller: Caller | None,
    server: str,
    *,
    prefix: Prefix = "auto",
    taken: Iterable[str] = (),
    rules: ConversionRules | None = None,
) -> list[Tool]:
    """The tools of one server, whose names are all different, in its order. `taken` are names that are not free."""
    listed = list(definitions)
    names = own_names({server: [each.name for each in listed]}, prefix=prefix, taken=taken)[server]
    return [Tool(**mcp_parts(each, caller=caller, server=server, name=name, rules=rules)) for name, each in zip(names, listed, strict=True)]


# -- several servers ------------------------------------------------------------------------------------------------


def together(*groups: Iterable[Tool], prefix: Prefix = "auto") -> list[Tool]:
    """Tools of several servers, and local ones, under names that do not collide; local tools keep theirs."""
    tools = [each for group in groups for each in group]
    local = [each.name for each in tools if each.mcp is None]
    by_server = {server: [each.name for each in listed] for server, listed in _by_server(tools).items()}
    names = own_names(by_server, prefix=prefix, taken=local)
    waiting = {server: iter(made) for server, made in names.items()}
    return [each if each.mcp is None else renamed(each, next(waiting[each.mcp_server or ""])) for each in tools]


def separated(tools: Iterable[Tool], reserved: Iterable[str] = ()) -> list[Tool]:
    """The same tools; those of servers whose name another tool has too, or that is `reserved`, with the server's name before it."""
    tools = list(tools)
    different = {(each.mcp_server, each.mcp.name if each.mcp is not None else "", each.name) for each in tools}
    counted = Counter(name for _, _, name in different)
    counted.update(dict.fromkeys(reserved, 1))
    clashing = [each for each in tools if each.mcp is not None and counted[each.name] > 1]
    if not clashing:
        return tools
    names = {server: [each.name for each in found] for server, found in _by_server(clashing).items()}
    others = [each.name for each in tools if all(each is not one for one in clashing)]
    made = {server: iter(each) for server, each in own_names(names, prefix=True, taken=others).items()}
    return [renamed(each, next(made[each.mcp_server or ""])) if any(each is one for one in clashing) else each for each in tools]


def renamed(tool: Tool, name: str) -> Tool:
    """The same tool of a server under another name; calls still go out under the server's own."""
    if tool.name == name:
        return tool
    function = replace(tool.func, name=name) if isinstance(tool.func, RemoteCall) else tool.func
    return tool.model_copy(update={"name": name, "func": function})


def connect_mcp_tools(tools: Iterable[Tool], callers: Mapping[str, Caller], **options: Any) -> list[Tool]:
    """Tools that were made of `(entry, server_id)`, or loaded, with a way to be called: through the server of that name. The rest as is."""
    rules = rules_from(options)
    made: list[Tool] = []
    for each in tools:
        caller = callers.get(each.mcp_server or "") if each.mcp is not None and each.func is None else None
        if caller is None:
            made.append(each)
        else:
            function = mcp_parts(each.mcp, caller=caller, server=each.mcp_server, name=each.name, rules=rules)["func"]
            made.append(each.model_copy(update={"func": function, "callable": None}))
    return made


def estimate_mcp_tokens(tools: Iterable[Tool]) -> dict[str, int]:
    """About how many tokens each server's tools take in a prompt, by server."""
    return {server: estimated_tokens(found) for server, found in _by_server(tools).items()}


def find_shadowed_tools(tools: Iterable[Tool]) -> list[MCPFinding]:
    """Tools of one server that have the name of another's, or speak of it."""
    tools = list(tools)
    return shadowing(_by_server(tools), [each.name for each in tools if each.mcp is None])


def _by_server(tools: Iterable[Tool]) -> dict[str, list[MCPDefinition]]:
    found: dict[str, list[MCPDefinition]] = {}
    for each in tools:
        if each.mcp is not None:
            found.setdefault(each.mcp_server or "", []).append(each.mcp)
    return found
