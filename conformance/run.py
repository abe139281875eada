"""Run the conformance suites of the Model Context Protocol against ferrule: `make conformance`.

Node 22 and the suite are installed into a cache folder (`FERRULE_CONFORMANCE`, else in the user's
cache); the suites run one after another, as they start dozens of processes each. Exit code 0: every
scenario that the revisions require has passed.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
NODE = "node@22"  # the suite uses what node 20 does not have
REVISIONS = ("2025-11-25", "2026-07-28")
TIMEOUT_MS = "120000"  # the suite's own 30 s are too few where it starts 39 clients at once
_STARTS_WITHIN_S = 30
_OF_NOTE = ("✓", "✗", "Total", "Not scored", "Baseline", "Unexpected", "Stale")


def main(wanted: list[str]) -> int:
    """Run the suites named (`server`, `client`; both where none is) and tell the exit code."""
    suite = installed()
    failed = 0
    for side in wanted or ("server", "client"):
        for revision in REVISIONS:
            failed += (server if side == "server" else client)(suite, revision)
    return 1 if failed else 0


def home() -> Path:
    """Where the suite is kept, and what it said."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("FERRULE_CONFORMANCE") or cache / "ferrule-conformance")


def installed() -> list[str]:
    """The command of the suite."""
    modules = home() / "node_modules"
    index = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    node = modules / "node" / "bin" / "node"
    if not (index.is_file() and node.is_file()):
        home().mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "install", "--prefix", str(home()), "--no-audit", "--no-fund", NODE, SUITE],
            check=True,
        )
    return [str(node), str(index)]


def server(suite: list[str], revision: str) -> int:
    """The suite against our server."""
    with listening() as port:
        return told([*suite, "server"], revision, ["--url", f"http://localhost:{port}/mcp"])


def client(suite: list[str], revision: str) -> int:
    """The suite against our client."""
    return told(
        [*suite, "client"],
        revision,
        ["--command", f"{sys.executable} {HERE / 'client.py'}"],
    )


def told(suite: list[str], revision: str, target: list[str]) -> int:
    """Run one suite, show what it says of each scenario, and keep all that it says."""
    options = [
        "--requirements",
        revision,
        "--timeout",
        TIMEOUT_MS,
        "--expected-failures",
        str(HERE / "expected-failures.yml"),
    ]
    done = subprocess.run([*suite, *options, *target], capture_output=True, text=True, check=False)
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    title = f"{suite[-1]} {revision}"
    log = home() / "logs" / f"{title.replace(' ', '-')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(said, encoding="utf-8")
    shown = [line for line in said.splitlines() if line.startswith(_OF_NOTE)]
    sys.stdout.write(
        "\n".join(
            [
                f"===== {title}: exit {done.returncode}",
                *(shown or [said[-3000:]]),
                f"All of it: {log}",
                "",
            ],
        ),
    )
    return done.returncode


@contextlib.contextmanager
def listening() -> Iterator[int]:
    """Our server, on a port of its own."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(HERE / "server.py"), str(port)],
        stderr=subprocess.DEVNULL,
    )
    try:
        ends = time.monotonic() + _STARTS_WITHIN_S
        while process.poll() is None and time.monotonic() < ends:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=1),
            ):
                break
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
