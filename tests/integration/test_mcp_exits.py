"""What is left of MCP servers when their process ends: nothing, however it is interrupted. (M8-M10)"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc"),
]

SERVER = Path(__file__).parents[1] / "moody_server.py"
PROGRAMS = {
    "idle": "server.connect()\nprint('up', flush=True)\ntime.sleep(600)",
    "block": "with server:\n    print('up', flush=True)\n    time.sleep(600)",
    "call": "server.connect()\nprint('up', flush=True)\nserver.call('wait')",
    "asyncio": "async def main():\n    async with server:\n        print('up', flush=True)\n        await asyncio.sleep(600)\nasyncio.run(main())",
}


def is_alive(folder: Path, name: str) -> bool:
    try:
        return (
            Path("/proc", (folder / name).read_text(), "stat")
            .read_text()
            .rsplit(")", 1)[1]
            .split()[0]
            != "Z"
        )
    except OSError:
        return False


def nobody_is_left(folder: Path) -> None:
    """Neither the server nor its child."""
    for _ in range(1_200):
        if not (is_alive(folder, "pid") or is_alive(folder, "child_pid")):
            return
        time.sleep(0.05)
    pytest.fail("a process is left")


def start(folder: Path, program: str) -> subprocess.Popen[str]:
    """The program with a server that has a child of its own; both are up."""
    (folder / "child").touch()
    (folder / "tools").write_text("wait")
    code = f"import asyncio, sys, time\nfrom ferrule import MCPServer\nserver = MCPServer.stdio(sys.executable, [{str(SERVER)!r}, {str(folder)!r}])\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def is_closing(folder: Path) -> bool:
    """Whether the deaf server has seen the end of its input."""
    return (folder / "deaf_now").exists()


@pytest.mark.parametrize(
    "what",
    [
        *(pytest.param(what, marks=pytest.mark.long) for what in ("idle", "block")),
        "call",
        "asyncio",
    ],
)
def test_a_second_ctrl_c_leaves_no_process(tmp_path: Path, what: str) -> None:
    """The server ignores the end of its input, so that closing it politely takes two seconds, in
    which the second Ctrl-C comes.
    """
    (tmp_path / "deaf").touch()
    with start(tmp_path, PROGRAMS[what]) as process:
        process.send_signal(signal.SIGINT)
        for _ in range(1_200):
            if is_closing(tmp_path):
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    nobody_is_left(tmp_path)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_a_signal_that_python_does_not_handle_closes_a_server_that_reads_its_input_and_its_child(
    tmp_path: Path,
    number: int,
) -> None:
    with start(tmp_path, PROGRAMS["call"]) as process:
        process.send_signal(number)
        assert process.wait(60) == -number
    nobody_is_left(tmp_path)


def test_with_the_handler_of_the_docs_sigterm_closes_deaf_servers_too(tmp_path: Path) -> None:
    (tmp_path / "deaf").touch()
    recipe = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    with start(tmp_path, recipe + PROGRAMS["idle"]) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    nobody_is_left(tmp_path)


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param([signal.SIGTERM], id="term"),
        pytest.param([signal.SIGINT], id="int", marks=pytest.mark.long),
        pytest.param([signal.SIGINT, signal.SIGINT], id="twice"),
    ],
)
def test_the_command_leaves_no_process_either(tmp_path: Path, signals: list[int]) -> None:
    for name in ("deaf", "child", "hang"):
        (tmp_path / name).touch()
    command = [
        sys.executable,
        "-m",
        "ferrule",
        "tools",
        "--mcp",
        f"{sys.executable} {SERVER} {tmp_path}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        for _ in range(1_200):
            if (tmp_path / "log").exists() and "tools/list" in (tmp_path / "log").read_text():
                break
            time.sleep(0.05)
        for at, number in enumerate(signals):
            while at and not is_closing(tmp_path):
                time.sleep(0.05)
            process.send_signal(number)
        process.wait(60)
    nobody_is_left(tmp_path)
