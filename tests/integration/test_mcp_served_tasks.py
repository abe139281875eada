"""A server of ours that is killed in the middle of a task: started again with the same store, it
goes on with the run.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import forked
import pytest
from mcp_servers import free_port

from ferrule import MCPServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = pytest.mark.integration

MODULE = '''
import asyncio, os, signal, time
from pathlib import Path

import ferrule

STEPS = [("first", {}), ("second", {}), ("finish", {"answer": "reported"})]


class Answers(ferrule.testing.ScriptedLM):
    def complete(self, request):
        name, args = STEPS[sum(each.role == "assistant" for each in request.messages)]
        return ferrule.testing.ScriptedLM([{"name": name, "args": args}]).complete(request)


def note(word):
    with open("log", "a") as file:
        file.write(f"{word} ")


@ferrule.tool
def first() -> str:
    """The first part."""
    note("first")
    return "one"


@ferrule.tool(effect="idempotent")
async def second() -> str:
    """The second part; it kills the process the first time."""
    note("second")
    await asyncio.sleep(1)
    if not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "two"


ferrule.configure(lm=Answers([]))
agent = ferrule.ReAct("topic -> answer", [first, second])
'''


@contextmanager
def listening(
    command: list[str],
    env: dict[str, str],
    port: int,
    folder: Path,
) -> Iterator[forked.Forked]:
    """A server that listens on a port, until it is killed or left."""
    process = forked.Forked(*command, env=env, cwd=folder)
    try:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(MODULE)
    return tmp_path


def arguments(*more: str) -> list[str]:
    return ["-m", "ferrule", "serve", "job:agent", "--store", "runs.db", *more]


def check(folder: Path, result: Any) -> None:
    assert result.structured == {"answer": "reported"}
    assert (folder / "log").read_text().split() == ["first", "second", "second"]


@pytest.mark.long
def test_over_stdio_the_client_starts_it_again(folder: Path) -> None:
    env = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    with MCPServer.stdio(sys.executable, arguments(), env, folder) as tools:
        check(folder, tools["agent"].call_result(topic="x").value)


def test_over_http_the_client_finds_it_again(folder: Path) -> None:
    port = free_port()
    env = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    command = arguments("--http", "--port", str(port))
    with ExitStack() as stack:
        server = stack.enter_context(listening(command, env, port, folder))
        tools = stack.enter_context(MCPServer.http(f"http://127.0.0.1:{port}/mcp"))
        with ThreadPoolExecutor() as pool:
            called = pool.submit(tools["agent"].call_result, topic="x")
            server.wait()
            stack.enter_context(listening(command, env, port, folder))
            check(folder, called.result(timeout=60).value)
