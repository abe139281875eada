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
    from ferrule.mcp_bridge.sampling_requests import sampling
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
    "ferrule.mcp_bridge.client.group": ("connect_all",),
    "ferrule.mcp_bridge.login.oauth": ("OAuth",),
    "ferrule.mcp_bridge.sampling_requests": ("sampling",),
    "ferrule.mcp_bridge.server.app": ("MCPApp",),
    "ferrule.mcp_bridge.server.context": ("MCPCall", "current_mcp_call"),
    "ferrule.tools.mcp.result": ("MCPResult",),
    "ferrule.tools.mcp.safety": ("MCPFinding", "fence_untrusted", "scan_mcp_definition"),
    "ferrule.tools.mcp_definition": ("MCPDefinition",),
    "ferrule.tools.server_tools": (
        "connect_mcp_tools",
        "estimate_mcp_tokens",
        "find_shadowed_tools",
    ),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module `ferrule.mcp_bridge` has no attribute `{name}`")
