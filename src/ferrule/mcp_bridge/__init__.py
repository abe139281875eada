"""The Model Context Protocol in both directions: what few programs need.

`mcp`, `MCPServer` and `serve` are names of `ferrule`. Names are loaded when they are first used:
most need the extra `mcp`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferrule.mcp_bridge.client.group import connect_all
    from ferrule.mcp_bridge.login.oauth import OAuth
    from ferrule.mcp_bridge.sampling import sampling
    from ferrule.mcp_bridge.server.app import MCPApp
    from ferrule.mcp_bridge.server.context import MCPCall, current_mcp_call
    from ferrule.tools.mcp.result import MCPResult
    from ferrule.tools.mcp.safety import MCPFinding, fence_untrusted, scan_mcp_definition
    from ferrule.tools.mcp_definition import MCPDefinition
    from ferrule.tools.server_tools import (
        connect_mcp_tools,
        estimate_mcp_tokens,
        find_shadowed_tools,
    )

__all__ = [
    "MCPApp",
    "MCPCall",
    "MCPDefinition",
    "MCPFinding",
    "MCPResult",
    "OAuth",
    "connect_all",
    "connect_mcp_tools",
    "current_mcp_call",
    "estimate_mcp_tokens",
    "fence_untrusted",
    "find_shadowed_tools",
    "sampling",
    "scan_mcp_definition",
]

_HOMES = {
    "MCPApp": "ferrule.mcp_bridge.server.app",
    "MCPCall": "ferrule.mcp_bridge.server.context",
    "MCPDefinition": "ferrule.tools.mcp_definition",
    "MCPFinding": "ferrule.tools.mcp.safety",
    "MCPResult": "ferrule.tools.mcp.result",
    "OAuth": "ferrule.mcp_bridge.login.oauth",
    "connect_all": "ferrule.mcp_bridge.client.group",
    "connect_mcp_tools": "ferrule.tools.server_tools",
    "current_mcp_call": "ferrule.mcp_bridge.server.context",
    "estimate_mcp_tokens": "ferrule.tools.server_tools",
    "fence_untrusted": "ferrule.tools.mcp.safety",
    "find_shadowed_tools": "ferrule.tools.server_tools",
    "sampling": "ferrule.mcp_bridge.sampling",
    "scan_mcp_definition": "ferrule.tools.mcp.safety",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module `ferrule.mcp_bridge` has no attribute `{name}`")
    return getattr(import_module(home), name)
