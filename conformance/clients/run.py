"""Drive a real `ferrule serve` by eleven foreign clients, over stdio and HTTP: `scripts/mcp-clients.sh`, or `run.py CLIENT...` for some.

Each client is installed, in pinned versions, into an environment of its own in a cache folder
(`FERRULE_MCP_CLIENTS`, else in the user's cache). The table says what came of each case. Exit code
1: a case failed. A client that cannot be installed is named, and fails nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cases import CASES, CaseError
from inspector import Inspector

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
SERVED = HERE / "served.py"
TRANSPORTS = ("stdio", "http")
_STARTS_WITHIN_S = 60
_ANSWERS_WITHIN_S = 60


@dataclass
class Client:
    """A foreign client."""

    title: str
    packages: tuple[str, ...]
    not_offered: dict[str, str] = field(default_factory=dict)
    """By case: why it cannot be tried."""
    remarks: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its folder, and its function in drivers.py."""
        return self.title.lower().replace(" ", "-").removesuffix(".x")

    @property
    def is_node(self) -> bool:
        """Whether it is a package of npm."""
        return self.packages[0].startswith("@")


_NO_QUESTIONS = "it has no hook for questions"
_NO_PROGRESS = "it passes no progress on"
_NO_STREAM = "in revision 2026-07-28, which it chooses, it opens no stream of changes"
_OLDER = "in an older revision; in 2026-07-28 it opens no stream of changes"
CLIENTS = [
    Client("Python SDK 1.x", ("mcp==1.30.0",)),
    Client("Python SDK 2.x", ("mcp==2.3.0",)),
    Client("TypeScript SDK 1.x", ("@modelcontextprotocol/sdk@1.32.2",)),
    Client("TypeScript SDK 2.x", ("@modelcontextprotocol/client@2.4.0",)),
    Client("FastMCP 2", ("fastmcp==2.14.7",)),
    Client("FastMCP 4", ("fastmcp==4.1.2",), remarks={"list change": _OLDER}),
    Client("pydantic-ai", ("pydantic-ai-slim[mcp]==2.66.0",), remarks={"list change": _OLDER}),
    Client(
        "OpenAI Agents",
        ("openai-agents==0.24.0", "mcp==2.3.0"),
        {"confirmation, asked": _NO_QUESTIONS, "progress": _NO_PROGRESS, "list change": _NO_STREAM},
    ),
    Client(
        "LangChain",
        ("langchain-mcp-adapters==0.3.2", "mcp==1.30.0"),
        {"cancel": "a cancelled task sends nothing to the server"},
    ),
    Client("DSPy", ("dspy==3.4.1", "mcp==2.3.0"), {"progress": _NO_PROGRESS}),
    Client(
        "Inspector",
        (
            "@modelcontextprotocol/inspector@2.12.0",
            "node@22",
        ),  # it needs what node 20 does not have
        {
            "confirmation, asked": "its command line answers no question",
            "progress": "its command line shows none",
            "cancel": "its command line has no such option",
            "list change": "its command line makes one request for each process",
        },
    ),
]


# -- installing
# ----------------------------------------------------------------------------------------------------


def home() -> Path:
    """Where the clients are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("FERRULE_MCP_CLIENTS") or cache / "ferrule-mcp-clients")


def install(client: Client) -> Path:
    """The folder of a client. Raises `CaseError` with one line if it cannot be installed."""
    folder = home() / client.name
    stamp = folder / "installed"
    wanted = " ".join(client.packages)
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    if client.is_node:
        commands = [
            [
                "npm",
                "install",
                "--prefix",
                str(folder),
                "--no-audit",
                "--no-fund",
                "--loglevel=error",
                *client.packages,
            ],
        ]
    else:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(folder / "bin" / "python"),
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        commands = [
            [sys.executable, "-m", "venv", "--without-pip", str(folder)],
            [*pip, *client.packages],
        ]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CaseError(f"not installed: {error}") from error
        if done.returncode != 0:
            said = [
                line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()
            ]
            raise CaseError(
                f"not installed: {next((line for line in said if 'ERROR' in line.upper()), 'no reason given')[:200]}",
            )
    stamp.write_text(wanted, encoding="utf-8")
    return folder


# -- our servers
# ---------------------------------------------------------------------------------------------------


def command(*, growing: bool, port: int | None) -> list[str]:
    """How a server is started."""
    if growing:
        return [sys.executable, str(SERVED), *([str(port)] if port else [])]
    ferrule = str(Path(sys.executable).with_name("ferrule"))
    return [
        ferrule,
        "serve",
        str(SERVED),
        f"{SERVED}:wise",
        *(["--http", "--port", str(port)] if port else []),
    ]


@contextlib.contextmanager
def listening(*, growing: bool) -> Iterator[str]:
    """A server over HTTP; its address."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen(command(growing=growing, port=port), stderr=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + _STARTS_WITHIN_S
        while process.poll() is None and time.monotonic() < ends:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=1),
            ):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


# -- driving
# -------------------------------------------------------------------------------------------------------


class Remote:
    """A client in a process of its own, asked line by line."""

    def __init__(self, client: Client, folder: Path, target: dict[str, Any]) -> None:
        if client.is_node:
            words = ["node", str(HERE / "driver.mjs"), client.name[-1], str(folder)]
        else:
            words = [
                str(folder / "bin" / "python"),
                str(HERE / "drivers.py"),
                client.name.replace("-", "_"),
            ]
        self._log = home() / "logs" / f"{client.name}.txt"
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [*words, json.dumps(target)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
            )

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """One request. A client that does not answer in time is killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        clock = threading.Timer(_ANSWERS_WITHIN_S, self.process.kill)
        clock.start()
        try:
            self.process.stdin.write(json.dumps({"do": do, **details}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError as error:
            raise CaseError(f"the client has ended ({error}); see {self._log}") from error
        finally:
            clock.cancel()
        if not line:
            raise CaseError(
                f"the client ended, or did not answer within {_ANSWERS_WITHIN_S} s; see {self._log}",
            )
        found = json.loads(line)
        if "raised" in found:
            raise CaseError(found["raised"])
        return found

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def try_client(client: Client, addresses: dict[bool, str] | None) -> dict[str, str]:
    """By case: ok, not offered, or FAILED; over HTTP if there are addresses of servers."""
    folder = install(client)
    drivers: dict[tuple[tuple[str, bool], ...], Any] = {}
    found: dict[str, str] = {}
    for title, (case, options) in CASES.items():
        if title in client.not_offered:
            found[title] = "not offered"
            continue
        key = tuple(options.items())
        try:
            if key not in drivers:
                growing = options.get("growing", False)
                where = (
                    {"command": command(growing=growing, port=None)}
                    if addresses is None
                    else {"url": addresses[growing]}
                )
                target = {**where, "elicit": options.get("elicit", True), "growing": growing}
                drivers[key] = (
                    Inspector(folder, target)
                    if client.title == "Inspector"
                    else Remote(client, folder, target)
                )
            case(drivers[key])
            found[title] = "ok"
        except CaseError as error:
            found[title] = f"FAILED: {error}"
            if key in drivers:
                drivers.pop(key).close()  # what it is in the middle of must not fail the next case
    for each in drivers.values():
        each.close()
    return found


# -- the table
# -----------------------------------------------------------------------------------------------------


def table(results: dict[str, dict[str, str]]) -> str:
    """Clients by cases; a cell has a word for each transport, or one for both."""
    rows = [["client", *CASES]]
    for client, found in results.items():
        rows.append([client, *(found[title] for title in CASES)])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


def cell(by_transport: dict[str, str]) -> str:
    """One word if both transports have it."""
    words = {transport: said.partition(":")[0] for transport, said in by_transport.items()}
    return (
        next(iter(words.values()))
        if len(set(words.values())) == 1
        else ", ".join(f"{key} {word}" for key, word in words.items())
    )


def main(wanted: list[str]) -> int:
    """Try the clients named, or all; returns the exit code."""
    results: dict[str, dict[str, str]] = {}
    notes: list[str] = []
    has_failed = False
    with listening(growing=False) as served, listening(growing=True) as growing:
        for client in CLIENTS:
            if wanted and client.name not in wanted:
                continue
            try:
                found = {
                    each: try_client(
                        client,
                        {False: served, True: growing} if each == "http" else None,
                    )
                    for each in TRANSPORTS
                }
            except CaseError as error:
                notes.append(f"{client.title}: {error}")
                continue
            results[client.title] = {
                title: cell({each: found[each][title] for each in TRANSPORTS}) for title in CASES
            }
            failures = {
                (each, title): said
                for each in TRANSPORTS
                for title, said in found[each].items()
                if said.startswith("FAILED")
            }
            notes += [
                f"{client.title}, {each}, {title}: {said}"
                for (each, title), said in failures.items()
            ]
            notes += [
                f"{client.title}, {title}: not offered, {why}"
                for title, why in client.not_offered.items()
            ]
            notes += [
                f"{client.title}, {title}: {remark}" for title, remark in client.remarks.items()
            ]
            has_failed |= bool(failures)
            sys.stderr.write(f"{client.title}: {'FAILED' if failures else 'done'}\n")
    sys.stdout.write("\n".join([table(results), "", *notes, ""]))
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
