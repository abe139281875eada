"""Real MCP servers for tests: installed once into a cache, at the versions of the specification, and started on demand.

`FERRULE_MCP_SERVERS` says where the cache is (otherwise the user's cache folder). A test is skipped only where there is no node, or where
the registry cannot be reached; any other failure to install fails it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = tuple(f"@modelcontextprotocol/server-{each}@2026.8.31" for each in ("everything", "filesystem", "memory", "sequential-thinking"))
PYTHON = ("mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19", "mcp-server-fetch==2026.10.24")
PYTHON_ON_OLD_SDK = ("mcp-server-calculator==0.2.1", "mcp-server-sqlite==2025.4.25", "mcp<2")
_UNREACHABLE = re.compile(
    r"ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|network|Name or service not known|Temporary failure in name|"
    r"Connection (refused|reset|timed out|broken|to \S+ timed out)|Read timed out|NewConnectionError",
    re.IGNORECASE,
)


def command(server: str) -> list[str]:
    """How one of the real servers is started, without its own arguments: `command("filesystem")`."""
    if server in {"everything", "filesystem", "memory", "sequential-thinking"}:
        return [str(_installed("node") / "node_modules" / ".bin" / f"mcp-server-{server}")]
    kind = "python" if server in {"time", "git", "fetch"} else "python-on-old-sdk"
    return [str(_installed(kind) / "bin" / f"mcp-server-{server}")]


@contextlib.contextmanager
def listening(arguments: list[str], env: dict[str, str], port: int) -> Iterator[int]:
    """Run a server that listens on a port; ends when it is left."""
    process = subprocess.Popen(
        arguments, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None:
                pytest.fail(f"{arguments[0]} ended with {process.returncode} instead of listening")
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


@functools.cache
def _installed(kind: str) -> Path:
    wanted = {"node": NODE, "python": PYTHON, "python-on-old-sdk": PYTHON_ON_OLD_SDK}[kind]
    if kind == "node" and not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("these servers need node and npm")
    home = Path(
        os.environ.get("FERRULE_MCP_SERVERS") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferrule-mcp-servers"
    )
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    folder = home / f"{kind}-{hashlib.sha256(' '.join((*wanted, version)).encode()).hexdigest()[:12]}"
    home.mkdir(parents=True, exist_ok=True)
    with _alone(home / f"{folder.name}.lock"):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (_install_node if kind == "node" else _install_python)(folder, wanted)
            (folder / "ready").touch()
    return folder


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time: the workers of xdist all want the same."""
    fcntl = pytest.importorskip("fcntl", reason="the cache is locked by a way that this system does not have")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install_node(folder: Path, wanted: tuple[str, ...]) -> None:
    _run(["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error", *wanted])


def _install_python(folder: Path, wanted: tuple[str, ...]) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    # `mcp` wants versions of its own in each: these servers never share our environment.
    _run([sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet", "--retries=1", *wanted])


def _run(arguments: list[str]) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-2000:]
        if _UNREACHABLE.search(said):
            pytest.skip(f"the registry cannot be reached: {said[-300:]}")
        pytest.fail(f"{' '.join(arguments[:3])} failed: {said}")
