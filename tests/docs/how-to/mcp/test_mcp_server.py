"""The claims of docs/how-to/mcp/mcp-server.md.

What its tables say is proved in tests/mcp_bridge/server.
"""

from __future__ import annotations

import pytest

from ferrule import MCPServer, Tool
from ferrule.errors import ToolDefinitionError
from ferrule.mcp_bridge import MCPApp

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/mcp/mcp-server.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/mcp/mcp-server.md") == []


def add(number: int) -> int:
    """Add two."""
    return number + 2


def test_a_tools_name_that_the_protocol_does_not_allow_is_written_out_and_one_chosen_for_the_server_is_refused() -> (
    None
):
    with MCPServer.in_memory(MCPApp([Tool(add, "add two")]).server) as tools:
        assert [tool.name for tool in tools] == ["add_x20_two"]
    with pytest.raises(ToolDefinitionError, match="add two"):
        MCPApp({"add two": add})
