"""What differs on Windows when a server is a child process, as far as it shows without a Windows:
names, variables, trees, loops.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule import MCPServer
from ferrule.errors import MCPConnectionError
from ferrule.mcp_bridge.spec import split_words
from ferrule.mcp_bridge.transport import stdio

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")


@pytest.mark.usefixtures("windows")
def test_a_backslash_of_a_command_line_belongs_to_a_path() -> None:
    words = split_words(r'"C:\Program Files\node.exe" C:\servers\files.js --dir D:\x\ #1')
    assert words == [r"C:\Program Files\node.exe", r"C:\servers\files.js", "--dir", "D:\\x\\", "#1"]


def test_elsewhere_a_backslash_escapes() -> None:
    assert split_words(r"""serve a\ b 'c d' "e\"f" #1""") == ["serve", "a b", "c d", 'e"f', "#1"]


def test_a_command_is_looked_for_with_the_endings_of_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`npx` is `npx.cmd` there, which `CreateProcess` does not find."""
    found: Any = {"npx": r"C:\node\npx.cmd"}
    monkeypatch.setattr(
        stdio.shutil,
        "which",
        lambda command, path: found.get(command) if path == r"C:\node" else None,
    )
    assert stdio.find_command("npx", {"PATH": r"C:\node"}) == "npx"
    monkeypatch.setattr(sys, "platform", "win32")
    assert stdio.find_command("npx", {"PATH": r"C:\node"}) == r"C:\node\npx.cmd"
    assert stdio.find_command("nothing", {"PATH": r"C:\node"}) == "nothing"


@pytest.mark.usefixtures("windows")
def test_a_command_in_a_folder_is_looked_for_with_these_endings(tmp_path: Path) -> None:
    """Node has `npx`, a script for POSIX shells, and `npx.cmd` in one folder."""
    for name in ("npx", "npx.cmd"):
        (tmp_path / name).touch()
    env = {"PATHEXT": ".exe;.cmd"}
    assert stdio.find_command(str(tmp_path / "npx"), env) == str(tmp_path / "npx.cmd")
    assert stdio.find_command(str(tmp_path / "npx.cmd"), env) == str(tmp_path / "npx.cmd")
    assert stdio.find_command(str(tmp_path / "nothing"), env) == str(tmp_path / "nothing")


@pytest.mark.usefixtures("windows")
def test_names_of_variables_have_no_case() -> None:
    env = stdio.child_environment({"Path": "mine"})
    assert [(key, value) for key, value in env.items() if key.upper() == "PATH"] == [
        ("PATH", "mine"),
    ]


@pytest.mark.usefixtures("windows")
def test_what_a_child_started_is_ended_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[Any]] = []
    monkeypatch.setenv("SYSTEMROOT", "W")
    monkeypatch.setattr(stdio.subprocess, "run", lambda command, **_: ran.append(command))

    class Process:
        pid, returncode, is_killed = 4321, None, False

        def kill(self) -> None:
            self.is_killed = True

    process: Any = Process()
    stdio.Child("s", process).kill_now()
    assert ran == [[Path("W") / "System32" / "taskkill.exe", "/F", "/T", "/PID", "4321"]]
    assert process.is_killed


def test_a_loop_that_starts_no_processes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the `SelectorEventLoop` of Windows."""

    async def start(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    server = MCPServer.stdio(sys.executable, ["-c", ""])
    with pytest.raises(MCPConnectionError, match="on Windows, a `ProactorEventLoop` does"):
        server.connect()
