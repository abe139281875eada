"""Sync calls of a real server's tools: in a running event loop, from threads, and of a session of
the SDK.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mcp_servers import free_port, listening

from ferrule import ReAct, Tool, context, mcp
from ferrule.errors import AsyncToolError, MCPConnectionError
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = pytest.mark.integration

SERVER = """
import sys

from mcp.server import MCPServer

app = MCPServer("adder")


@app.tool()
def add(a: int, b: int) -> int:
    return a + b


app.run("streamable-http", port=int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    script: Path = tmp_path_factory.mktemp("server") / "adder.py"
    script.write_text(SERVER, encoding="utf-8")
    port = free_port()
    with listening([sys.executable, str(script), str(port)], {}, port):
        yield f"http://127.0.0.1:{port}/mcp"


def answer_of(agent: ReAct) -> str:
    calls = [{"name": "add", "args": {"a": 1, "b": 2}}, {"name": "finish", "args": {"answer": "3"}}]
    return agent(question="?", lm=ScriptedLM(calls)).trajectory["observation_0"]


def test_tools_of_a_connection_are_called_in_a_running_loop_and_from_threads(url: str) -> None:
    with mcp(url) as tools:
        add = tools["add"]
        agent = ReAct("question -> answer", [add], native=True)

        async def main() -> list[object]:
            in_threads = [asyncio.to_thread(add, a=a, b=2) for a in range(4)]
            agents = [asyncio.to_thread(answer_of, agent) for _ in range(2)]
            here = [add(a=1, b=2), await add.acall(a=1, b=2), answer_of(agent)]
            return [*here, *await asyncio.gather(*in_threads, *agents)]

        assert asyncio.run(main()) == ["3", "3", "3", "2", "3", "4", "5", "3", "3"]
        assert add(a=1, b=2) == "3"


def test_tools_of_an_sdk_session_are_called_from_threads_and_refuse_to_block_their_loop(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The condition on docs/how-to/mcp/mcp-tools.md: the session works on its own loop alone."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def main() -> None:
        async with (
            streamable_http_client(url) as (reader, writer, *_),
            ClientSession(reader, writer) as session,
        ):
            await session.initialize()
            [entry] = (await session.list_tools()).tools
            add = Tool.from_mcp_tool(session, entry)
            agent = ReAct("question -> answer", [add], native=True)

            def in_another_loop() -> str:
                return asyncio.run(add.acall(a=1, b=2))

            with pytest.raises(AsyncToolError):
                add(a=1, b=2)
            with context(allow_tool_async_sync_conversion=True):
                calls = [asyncio.to_thread(add, a=a, b=2) for a in range(4)]
                assert await asyncio.gather(*calls) == ["2", "3", "4", "5"]
                assert await asyncio.to_thread(answer_of, agent) == "3"
                assert await asyncio.to_thread(in_another_loop) == "3"
                with monkeypatch.context() as patch:
                    patch.setattr("ferrule.tools.mcp.tool._REACTS_WITHIN_S", 0.05)
                    with pytest.raises(MCPConnectionError, match="blocked") as caught:
                        add(a=1, b=2)
                assert caught.value.may_have_run is False
            assert await add.acall(a=1, b=2) == "3"

    asyncio.run(main())
