"""Real MCP servers for tests: installed once into a cache, at the versions of the specification,
and started on demand.

`FERRULE_MCP_SERVERS` says where the cache is (otherwise the user's cache folder). One test session,
with all its xdist workers, tries to install once and for at most `BUDGET_S`; if that fails, for
whatever reason, every test that needs a server is skipped with the same line. With
`FERRULE_REAL_SERVERS` set (`scripts/real-servers.sh`) such a test fails instead, and an install may
take longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import forked
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = tuple(
    f"@modelcontextprotocol/server-{each}@2026.8.31"
    for each in ("everything", "filesystem", "memory", "sequential-thinking")
)
PYTHON = (
    "mcp-server-time==2026.10.19",
    "mcp-server-git==2026.10.19",
    "mcp-server-fetch==2026.10.24",
)
PYTHON_ON_OLD_SDK = ("mcp-server-calculator==0.2.1", "mcp-server-sqlite==2025.4.25", "mcp<2")
FASTMCP = ("fastmcp==4.1.2",)
WANTED = {
    "node": NODE,
    "python": PYTHON,
    "python-on-old-sdk": PYTHON_ON_OLD_SDK,
    "fastmcp": FASTMCP,
}
INSISTS = bool(os.environ.get("FERRULE_REAL_SERVERS"))
BUDGET_S = 600.0 if INSISTS else 30.0
"""Seconds that all installs of one session may take together."""
_SESSION = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex


def command(server: str) -> list[str]:
    """How one of the real servers is started, without its own arguments: `command("filesystem")`."""
    if server in {"everything", "filesystem", "memory", "sequential-thinking"}:
        return [str(installed("node") / "node_modules" / ".bin" / f"mcp-server-{server}")]
    kind = "python" if server in {"time", "git", "fetch"} else "python-on-old-sdk"
    return [str(installed(kind) / "bin" / f"mcp-server-{server}")]


@contextlib.contextmanager
def listening(arguments: list[str], env: dict[str, str], port: int) -> Iterator[int]:
    """Run a server that listens on a port; ends when it is left."""
    process: forked.Forked | subprocess.Popen[bytes]
    if arguments[0] == sys.executable:
        process = forked.Forked(*arguments[1:], env=env)
    else:
        process = subprocess.Popen(
            arguments,
            env={**os.environ, **env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        for _ in range(2400):  # a proxy imports for a minute on a busy machine
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=1),
            ):
                break
            if process.poll() is not None:
                pytest.fail(f"{arguments} ended with {process.poll()} instead of listening")
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class InstallError(Exception):
    """Why servers could not be installed, in one line."""


def _folder(kind: str) -> Path:
    """Where one kind of servers is installed, or will be."""
    cache = (
        os.environ.get("FERRULE_MCP_SERVERS")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferrule-mcp-servers"
    )
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    return (
        Path(cache)
        / f"{kind}-{hashlib.sha256(' '.join((*WANTED[kind], version)).encode()).hexdigest()[:12]}"
    )


def is_installed(kind: str) -> bool:
    """Whether one kind of servers is installed already."""
    return (_folder(kind) / "ready").exists()


def installed(kind: str) -> Path:
    """The folder of one kind of servers.

    Skips the test, or fails it, if they cannot be installed.
    """
    folder = _folder(kind)
    cache = folder.parent
    if (folder / "ready").exists():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / "lock"):
            _install_once(kind, folder, cache / "session.json")
    except (InstallError, OSError) as error:
        _give_up(f"real servers cannot be installed: {error}")
    return folder


def _give_up(why: str) -> NoReturn:
    if INSISTS:
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


def _install_once(kind: str, folder: Path, record: Path) -> None:
    """Install, unless another worker did, or this session has failed already."""
    session = _read_record(record)
    if session["failed"]:
        raise InstallError(session["failed"])
    if (folder / "ready").exists():
        return
    start = time.monotonic()
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for command in _install_commands(kind, folder):
            _run(command, BUDGET_S - session["spent_s"] - (time.monotonic() - start))
        (folder / "ready").touch()
    except (InstallError, OSError) as error:
        session["failed"] = str(error)
        raise
    finally:
        session["spent_s"] += time.monotonic() - start
        record.write_text(json.dumps(session), encoding="utf-8")


def _read_record(record: Path) -> dict[str, Any]:
    """What the workers of this session have spent, and why they failed."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(record.read_text(encoding="utf-8"))
        if found["session"] == _SESSION:
            return found
    return {"session": _SESSION, "spent_s": 0.0, "failed": ""}


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time: the workers of xdist all want the same."""
    fcntl = pytest.importorskip("fcntl", reason="the cache needs file locks of POSIX")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install_commands(kind: str, folder: Path) -> list[list[str]]:
    wanted = WANTED[kind]
    if kind == "node":
        if not (shutil.which("npm") and shutil.which("node")):
            msg = "node and npm are missing"
            raise InstallError(msg)
        options = [
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
            "--fetch-retries=1",
            "--fetch-retry-mintimeout=1000",
        ]
        return [["npm", "install", "--prefix", str(folder), *options, *wanted]]
    # Each kind needs a version of `mcp` of its own: these servers never share the environment of
    # the tests.
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--quiet",
        "--retries=1",
        "--timeout=15",
    ]
    return [[sys.executable, "-m", "venv", "--without-pip", str(folder)], [*pip, *wanted]]


def _run(command: list[str], within_s: float) -> None:
    """Run a command, and kill it with its children after its time."""
    name = " ".join(command[1:3]) if command[0] == sys.executable else " ".join(command[:2])
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=max(within_s, 0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            msg = f"`{name}` took more than the {BUDGET_S:g} s for all installs (`scripts/real-servers.sh` allows more)"
            raise InstallError(msg) from None
    if process.returncode != 0:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        line = next(
            (each for each in lines if "error" in each.lower()),
            lines[-1] if lines else "it said nothing",
        )
        msg = f"`{name}` failed with code {process.returncode}: {line[:200]}"
        raise InstallError(msg)
