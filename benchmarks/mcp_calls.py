"""The time of an MCP tool call over stdio, compared with the SDK's own session: `python mcp_calls.py CALLS ROUNDS` prints one JSON line.

The variants alternate, with CALLS calls each. A figure is the median of ROUNDS rounds, in
milliseconds per call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING

from mcp import ClientSession, StdioServerParameters, stdio_client

from ferrule import MCPServer

if TYPE_CHECKING:
    from collections.abc import Callable

SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "bench", "version": "1"}}
        answer["result"] = {"protocolVersion": message["params"]["protocolVersion"], **about}
    elif message["method"] == "tools/call":
        answer["result"] = {"content": [{"type": "text", "text": "ok"}]}
    elif message["method"] == "tools/list":
        answer["result"] = {"tools": [{"name": "ok", "inputSchema": {"type": "object", "properties": {"x": {"type": "string"}}}}]}
    else:
        answer["error"] = {"code": -32601, "message": "no"}
    print(json.dumps(answer), flush=True)
"""


async def bare(calls: int, session: ClientSession) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        await session.call_tool("ok", {"x": "a"})
    return (time.perf_counter() - start) / calls


async def ours(calls: int, server: MCPServer) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        await server.acall("ok", {"x": "a"})
    return (time.perf_counter() - start) / calls


def in_sync_code(calls: int, call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


async def main(calls: int, rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    parameters = StdioServerParameters(command=sys.executable, args=["-c", SERVER])
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            ClientSession(*await stack.enter_async_context(stdio_client(parameters))),
        )
        await session.initialize()
        await session.list_tools()
        server = MCPServer.stdio(sys.executable, ["-c", SERVER], name="bench")
        tools = await stack.enter_async_context(server)
        ways = {
            "SDK session, async": lambda: bare(calls, session),
            "MCPServer.acall": lambda: ours(calls, server),
            "MCPServer.call": lambda: asyncio.to_thread(
                in_sync_code,
                calls,
                lambda: server.call("ok", {"x": "a"}),
            ),
            "tool(...), checked": lambda: asyncio.to_thread(
                in_sync_code,
                calls,
                lambda: tools["ok"](x="a"),
            ),
        }
        for _ in range(rounds):
            for name, way in ways.items():
                found.setdefault(name, []).append(await way())
    return {name: round(1e3 * statistics.median(times), 3) for name, times in found.items()}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))))
