"""Which revision of MCP a connection speaks, and which transport: against servers of the SDK in
processes of their own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp_servers import INSISTS, free_port, installed, is_installed, listening
from mcp_talk import ERAS

from ferrule import MCPServer, ReAct, mcp
from ferrule.errors import ConfigurationError, MCPConnectionError, MCPProtocolError, MCPToolError
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = pytest.mark.integration

SERVER = '''
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

app = MCPServer("asker")


class Wish(BaseModel):
    color: str


@app.tool()
async def paint(ctx: Context) -> str:
    """Asks during the call, as tools did before 2026-07-28."""
    found = await ctx.elicit("Which color?", Wish)
    return f"{found.action}: {found.data.color}"


@app.tool()
def plain() -> str:
    return "done"


transport, *port = sys.argv[1:] or ["stdio"]
app.run(transport, **({"port": int(port[0])} if port else {}))
'''

OLD_ONLY = """
import json, sys

for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        info = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}}
        answer = {"result": info}
    elif asked["method"] == "tools/list":
        answer = {"result": {"tools": []}}
    else:
        answer = {"error": {"code": -32601, "message": "Method not found"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


OF_FASTMCP = '''
from dataclasses import dataclass

from fastmcp import Context, FastMCP

app = FastMCP("asker")


@dataclass
class Wish:
    color: str


@app.tool
async def paint(ctx: Context) -> str:
    """Asks during the call."""
    found = await ctx.elicit("Which color?", Wish)
    return f"{found.action}: {found.data.color}"


app.run(show_banner=False)
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("asker") / "asker.py"
    path.write_text(SERVER, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def over_http(script: Path) -> Iterator[str]:
    port = free_port()
    with listening([sys.executable, str(script), "streamable-http", str(port)], {}, port):
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.fixture(scope="module")
def over_sse(script: Path) -> Iterator[str]:
    port = free_port()
    with listening([sys.executable, str(script), "sse", str(port)], {}, port):
        yield f"http://127.0.0.1:{port}"


async def red(params: dict[str, Any]) -> dict[str, Any]:
    del params
    return {"action": "accept", "content": {"color": "red"}}


def version_of(server: MCPServer) -> str:
    with server:
        return server.client.link.handshake.version


# -- the revision


@pytest.mark.parametrize(
    ("mode", "version"),
    [("auto", ERAS[1]), (ERAS[0], ERAS[0]), (ERAS[1], ERAS[1])],
)
def test_a_mode_says_which_revision_is_spoken(over_http: str, mode: str, version: str) -> None:
    assert version_of(MCPServer.http(over_http, mode=mode)) == version


def test_a_tool_that_asks_in_the_older_way_works_in_the_older_mode(over_http: str) -> None:
    with MCPServer.http(over_http, mode=ERAS[0], elicit=red) as tools:
        assert tools["paint"]() == "accept: red"
    with (
        MCPServer.http(over_http, elicit=red) as tools,
        pytest.raises(MCPProtocolError, match="elicitation/create"),
    ):
        tools["paint"]()


def test_a_tool_of_fastmcp_4_asks_in_the_older_mode_only_a_hook_or_the_run(tmp_path: Path) -> None:
    if not INSISTS and not is_installed("fastmcp"):
        pytest.skip("`scripts/real-servers.sh` installs FastMCP")
    path = tmp_path / "painter.py"
    path.write_text(OF_FASTMCP, encoding="utf-8")
    where = str(installed("fastmcp") / "bin" / "python"), [str(path)]
    with MCPServer.stdio(*where, mode=ERAS[0], elicit=red) as tools:
        assert tools["paint"]() == "accept: red"
    for mode in ("auto", ERAS[1]):
        with (
            MCPServer.stdio(*where, mode=mode, elicit=red) as tools,
            pytest.raises(MCPToolError, match="2026-07-28"),
        ):
            tools["paint"]()
    server = MCPServer.stdio(*where, mode=ERAS[0])
    lm = ScriptedLM(
        [{"name": "paint", "args": {}}, {"name": "finish", "args": {"answer": "painted"}}],
    )
    run = ReAct("task -> answer", [server]).start(task="x", lm=lm)
    [question] = run.pending
    run.answer(question.fill({"color": "blue"}))
    run.resume()
    assert run.prediction.trajectory["observation_0"] == "accept: blue"
    server.close()


def test_a_mode_holds_over_reconnects_and_is_saved(over_http: str) -> None:
    server = MCPServer.http(over_http, mode=ERAS[0])
    assert [version_of(server), version_of(server)] == [ERAS[0], ERAS[0]]
    assert MCPServer.from_state(server.dump_state()).options.mode == ERAS[0]


def test_a_server_that_does_not_speak_the_mode_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_text(OLD_ONLY, encoding="utf-8")
    server = MCPServer.stdio(sys.executable, [str(path)], mode=ERAS[1])
    with pytest.raises(
        MCPProtocolError,
        match=r"`old` \(handshake\): it does not speak 2026-07-28, which `mode` requires: it answered",
    ):
        server.connect()
    assert version_of(MCPServer.stdio(sys.executable, [str(path)])) == ERAS[0]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(
        ConfigurationError,
        match="`mode` of an MCP server must be one of auto, 2025-11-25, 2026-07-28",
    ):
        mcp("server", mode="legacy")


# -- the transport


def test_a_server_of_the_older_transport_is_found_at_its_address(over_sse: str) -> None:
    """Specification, 2025-11-25, "Backwards Compatibility"."""
    with mcp(f"{over_sse}/sse") as tools:
        assert tools["plain"]() == "done"


def test_an_address_without_a_server_is_an_error_with_a_hint(over_sse: str) -> None:
    with pytest.raises(
        MCPConnectionError,
        match=r"HTTP 404, .* Most servers answer at `/mcp`",
    ) as raised:
        mcp(f"{over_sse}/nothing").connect()
    assert raised.value.status == 404


def test_with_a_client_of_your_own_no_other_transport_is_tried(over_sse: str) -> None:
    client = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
    server = MCPServer.http(f"{over_sse}/sse", http_client=client)
    with pytest.raises(MCPConnectionError, match="HTTP 405"):
        server.connect()
