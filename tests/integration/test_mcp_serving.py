"""Servers of ours in processes of their own, and the SDK's client: names, results, sessions, and
the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import AsyncExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp_servers import free_port, listening
from mcp_talk import ERAS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

from ferrule import MCPServer

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = pytest.mark.integration

MODULE = '''
import asyncio, os, sys, time
from pathlib import Path

import ferrule
from pydantic import BaseModel


class Book(BaseModel):
    title: str


def pages(title: str) -> int:
    """How many pages a book has."""
    return len(title)


def books() -> list[Book]:
    """All books."""
    return [Book(title="Emma"), Book(title="Persuasion")]


def reads() -> str:
    """Fails."""
    raise ValueError(f"{Path.cwd() / 'secret' / 'shelf.toml'} has no books")


def waits(mark: str) -> str:
    """Runs for a minute."""
    Path(mark).touch()
    time.sleep(60)


async def awaits(mark: str) -> str:
    """Runs for a minute, and lets others run."""
    Path(mark).touch()
    await asyncio.sleep(60)


librarian = ferrule.Predict("question -> answer")
critic = ferrule.Predict("question -> answer")

if __name__ == "__main__":
    tools = [pages, books, reads, waits, awaits]
    if sys.argv[1:]:
        ferrule.serve(tools, transport="http", port=int(sys.argv[1]), idle_timeout_s=float(os.environ.get("IDLE_S", "60")))
    else:
        ferrule.serve(tools)
'''


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "library.py"
    path.write_text(MODULE, encoding="utf-8")
    return path


def over_stdio(
    arguments: list[str],
    act: Callable[[Any], Awaitable[Any]],
    era: str = ERAS[0],
) -> Any:
    """What the SDK's client makes of a child process."""
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def talk() -> Any:
        parameters = StdioServerParameters(command=sys.executable, args=arguments)
        async with (
            asyncio.timeout(60),
            Client(stdio_client(parameters), mode="legacy" if era == ERAS[0] else "auto") as client,
        ):
            return await act(client)

    return asyncio.run(talk())


async def listed(client: Any) -> list[str]:
    return [each.name for each in (await client.list_tools()).tools]


# -- names


def test_programs_are_served_under_the_names_that_the_command_gives(module: Path) -> None:
    """Two programs of one signature are no clash."""
    places = [f"{module}:librarian", f"{module}:critic"]
    assert over_stdio(["-m", "ferrule.cli.main", "serve", *places], listed) == [
        "librarian",
        "critic",
    ]


# -- results


@pytest.fixture(scope="module", params=ERAS)
def seen(request: pytest.FixtureRequest, module: Path) -> SimpleNamespace:
    """What the SDK's client sees of one server: the client validates results by their schemas."""

    async def look(client: Any) -> SimpleNamespace:
        tools = {each.name: each for each in (await client.list_tools()).tools}
        calls = {"pages": {"title": "Emma"}, "books": {}, "reads": {}}
        return SimpleNamespace(
            info=client.server_info,
            schemas={name: each.output_schema for name, each in tools.items()},
            results={name: await client.call_tool(name, args) for name, args in calls.items()},
        )

    return over_stdio([str(module)], look, request.param)


def test_a_server_without_a_version_has_that_of_ferrule(seen: SimpleNamespace) -> None:
    assert (seen.info.name, seen.info.version) == ("ferrule", version("ferrule"))


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        pytest.param("pages", 4, id="int"),
        pytest.param("books", [{"title": "Emma"}, {"title": "Persuasion"}], id="models"),
    ],
)
def test_plain_results_are_structured_too(
    seen: SimpleNamespace, tool: str, expected: object
) -> None:
    result = seen.results[tool]
    assert seen.schemas[tool]["required"] == ["result"]
    assert (result.is_error, result.structured_content) == (False, {"result": expected})


def test_a_path_in_an_exception_does_not_leave_the_process(seen: SimpleNamespace) -> None:
    result = seen.results["reads"]
    assert result.is_error
    assert result.content[0].text == "Execution error in reads: ValueError: shelf.toml has no books"


def test_a_model_sees_a_plain_result_once(module: Path) -> None:
    with MCPServer.stdio(sys.executable, [str(module)]) as tools:
        assert tools["pages"].call_result(title="Emma").content == "4"
        assert tools["books"].call_result().content == '[{"title":"Emma"},{"title":"Persuasion"}]'


# -- sessions

HEADERS = {"Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "protocolVersion": ERAS[0],
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}


def test_a_session_without_requests_ends(module: Path) -> None:
    """404 tells the client to begin another session."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"

    def post(
        client: httpx2.Client,
        method: str,
        params: dict[str, Any],
        session: str | None,
    ) -> httpx2.Response:
        headers = HEADERS if session is None else {**HEADERS, "Mcp-Session-Id": session}
        return client.post(
            url,
            json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
            headers=headers,
        )

    with (
        listening([sys.executable, str(module), str(port)], {"IDLE_S": "0.2"}, port),
        httpx2.Client(timeout=60) as client,
    ):
        session = post(client, "initialize", INITIALIZE, None).headers["mcp-session-id"]
        paused, pause_s = threading.Event(), 0.1
        while post(client, "tools/list", {}, session).status_code != 404:
            assert pause_s < 60
            paused.wait(pause_s)
            pause_s *= 2


# -- the end


@contextmanager
def process_of(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that writes to pipes, and does not outlive the test."""
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(120, process.kill)
    guard.start()
    try:
        yield process
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


async def interrupted(
    process: subprocess.Popen[str],
    calling: asyncio.Task[Any],
    mark: Path,
) -> tuple[int, str]:
    """How a process ends that is interrupted in a call."""
    while not await asyncio.to_thread(mark.exists):
        assert not calling.done(), calling
        await asyncio.sleep(0.01)
    process.send_signal(signal.SIGINT)
    return await asyncio.to_thread(process.wait), await asyncio.to_thread(process.stderr.read)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize(
    ("tool", "era"),
    [
        ("waits", ERAS[0]),
        ("awaits", ERAS[1]),
        pytest.param("waits", ERAS[1], marks=pytest.mark.long),
        pytest.param("awaits", ERAS[0], marks=pytest.mark.long),
    ],
)
def test_ctrl_c_in_a_call_over_http_ends_the_server_without_a_traceback(
    module: Path,
    tmp_path: Path,
    era: str,
    tool: str,
) -> None:
    from mcp import Client

    port, mark = free_port(), tmp_path / "begun"

    async def act(process: subprocess.Popen[str]) -> tuple[int, str]:
        async with AsyncExitStack() as stack:
            while True:
                with suppress(OSError):
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                await asyncio.sleep(0.01)
            client = await stack.enter_async_context(
                Client(f"http://127.0.0.1:{port}/mcp", mode="legacy" if era == ERAS[0] else "auto"),
            )
            calling = asyncio.create_task(client.call_tool(tool, {"mark": str(mark)}))
            try:
                return await interrupted(process, calling, mark)
            finally:
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)

    with process_of([sys.executable, str(module), str(port)]) as process:
        code, said = asyncio.run(act(process))
    assert (code, "Traceback" in said, "ERROR" in said) == (0, False, False), said


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_ctrl_c_in_calls_over_stdio_ends_the_server_without_a_word(
    module: Path,
    tmp_path: Path,
) -> None:
    """One call waits in a thread, the other in the loop."""
    calls = {
        tool: {"name": tool, "arguments": {"mark": str(tmp_path / tool)}}
        for tool in ("waits", "awaits")
    }
    with process_of([sys.executable, str(module)]) as process:
        process.stdin.write(
            '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}\n'
            '{"jsonrpc":"2.0","method":"notifications/initialized"}\n',
        )
        for number, params in enumerate(calls.values(), 2):
            request = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        while not all((tmp_path / tool).exists() for tool in calls):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert (process.wait(), process.stderr.read()) == (0, "")
