"""Where a tool of an MCP server goes another way than one that is here.

`Tool` asks here, and what is about MCP is loaded when the first such tool is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.tools.arguments.checker import Checker
from ferrule.tools.definition.parameters import build_parameters
from ferrule.tools.execution.run import acall_directly, call_directly
from ferrule.values.schema.nodes import is_object

if TYPE_CHECKING:
    from ferrule.tools.definition.constructor import ToolDefinition
    from ferrule.tools.definition.inspect_function import FunctionSpec
    from ferrule.values.calls.call import CheckedArguments, ToolSpec


def checker_of(found: FunctionSpec, given: ToolDefinition) -> Checker:
    """What checks the arguments: against the function's types and schema, or against the schema that the server gave."""
    if given.mcp is None:
        return Checker(given.name, found, build_parameters(given.name, found, given))
    from ferrule.tools.mcp.argument_check import MCPChecker

    return MCPChecker(given.name, given.mcp.input_schema, lenient=getattr(given.func, "lenient", True))


def is_mcp_entry(thing: Any) -> bool:
    """Whether a thing is an entry of `tools/list`, as a dict or as the SDK's object."""
    if is_object(thing):
        return "inputSchema" in thing
    return type(thing).__module__.startswith(("mcp.", "mcp_types")) and hasattr(thing, "name")


def is_remote(tool: Any) -> bool:
    """Whether an MCP server runs the calls of a tool, and so may ask in their middle."""
    return getattr(tool, "mcp", None) is not None


def origin(tool: Any) -> tuple[str, str]:
    """The MCP server of a tool, and its name there; two empty texts for a local tool."""
    definition = getattr(tool, "mcp", None)
    return ("", "") if definition is None else (getattr(tool, "mcp_server", None) or "?", definition.name)


def asks_directly(given: ToolDefinition) -> bool:
    """Whether code that calls the tool by hand is asked for consent too: not where only a server's hints, or their absence, ask."""
    return given.mcp is None or getattr(given.func, "asks_directly", True)


def value(tool: ToolSpec, checked: CheckedArguments) -> Any:
    """What a direct call of a tool of a server returns, from sync code."""
    from ferrule.tools.mcp.tool import plain_value

    return plain_value(call_directly(tool, checked))


async def avalue(tool: ToolSpec, checked: CheckedArguments) -> Any:
    """As `value`, on a loop."""
    from ferrule.tools.mcp.tool import plain_value

    return plain_value(await acall_directly(tool, checked))
