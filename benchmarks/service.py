"""Chats at once, in one service of each library: `scripts/service-bench.sh` prints a table.

Each service (`services/`) is a FastAPI app under uvicorn, written as its library's documentation
says. A chat has five turns of about 40 words: the second calls a tool, and in every tenth chat the
fourth waits for a person's approval, which this client gives. Between the third and the fourth, the
service is stopped and started again. The model is a server in a process of its own, and streams 40
tokens an answer.

The service runs on one core; the model and this client share another. Options are environment
variables: `ONLY=ours,relay` (services), `CHATS=10,100,500`, `RATES=0,60` (tokens a second of the
model; 0 sends an answer at once), `KEEPS=1,0` (with the library's own persistence, and without).

What is printed, a line each run: turns a second; CPU of the service a turn; the time from a request
to its first token; the time between two tokens; memory of the service above its start, a chat;
bytes on disk; errors.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
SERVICES = ("relay", "ours", "pydantic_ai_chat", "langgraph_chat", "openai_agents_chat")
TURNS = 5
RESTARTS_AFTER = 3
TOOL_TURN, APPROVAL_TURN = 1, 3
ANSWER_WORDS = 40
WORDS = " ".join(f"word{number}" for number in range(39))
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass
class Figures:
    """What was measured in one run."""

    first_token_s: list[float] = field(default_factory=list)
    between_tokens_s: list[float] = field(default_factory=list)
    turns: int = 0
    took_s: float = 0.0
    cpu_s: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    errors: list[str] = field(default_factory=list)


class Connection:
    """One client: an HTTP connection that is kept, and the events of its requests."""

    def __init__(self, port: int, figures: Figures) -> None:
        self._port, self._figures = port, figures
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: dict[str, str]) -> tuple[set[str], int]:
        """The types of the events that answer a request, and the number of words in its text."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        text = json.dumps(body)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        begun = time.perf_counter()
        self._writer.write(f"{head}content-length: {len(text)}\r\n\r\n{text}".encode())
        status = await self._reader.readline()
        while await self._reader.readline() != b"\r\n":
            pass
        if b" 200 " not in status:
            raise ConnectionError(status.decode())
        kinds: set[str] = set()
        words = 0
        last_token = 0.0
        while size := int(await self._reader.readline(), 16):
            chunk = await self._reader.readexactly(size + 2)
            for line in chunk.split(b"\n"):
                if not line.startswith(b"data:"):
                    continue
                event = json.loads(line[5:])
                kind = event["type"]
                kinds.add(kind)
                if kind == "token":
                    words += event["text"].count(" ")
                    now = time.perf_counter()
                    if last_token:
                        self._figures.between_tokens_s.append(now - last_token)
                    elif "tool" not in kinds:
                        self._figures.first_token_s.append(now - begun)
                    last_token = now
        await self._reader.readline()
        return kinds, words

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def chat(name: str, turns: range, connection: Connection, figures: Figures) -> None:
    """Some turns of one chat. One whose name ends with 0 waits for approval in its fourth turn."""
    for turn in turns:
        wanted = {"token", "end"}
        sign = "TELL"
        if turn == TOOL_TURN:
            sign = "ORDER"
            wanted.add("tool")
        asks = turn == APPROVAL_TURN and name.endswith("0")
        if asks:
            sign = "REFUND"
        try:
            kinds, words = await connection.post(f"/chats/{name}", {"text": f"{sign} {WORDS}"})
            if asks:
                if "question" not in kinds or "tool" in kinds:
                    figures.errors.append(f"turn {turn} of chat {name}: {sorted(kinds)}")
                kinds, words = await connection.post(f"/chats/{name}/decision", {"answer": "yes"})
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            figures.errors.append(f"turn {turn} of chat {name}: {error!r}")
            connection.close()
            continue
        figures.turns += 1
        if not wanted <= kinds or words != ANSWER_WORDS:
            figures.errors.append(f"turn {turn} of chat {name}: {sorted(kinds)}, {words} words")


class Service:
    """The process of a service."""

    def __init__(self, name: str, folder: Path, model_url: str, *, keeps_runs: bool) -> None:
        self.port = free_port()
        environment = {
            **os.environ,
            "MODEL_URL": model_url,
            "SERVICE_FOLDER": str(folder),
            "SERVICE_KEEPS_RUNS": str(int(keeps_runs)),
            "OPENAI_API_KEY": "x",
            "PYTHONPATH": str(HERE),
        }
        command = ["-m", "uvicorn", f"services.{name}:app", "--port", str(self.port)]
        options = ["--log-level", "error", "--backlog", "4096"]
        self._log = (folder / "log.txt").open("a")
        self._process = subprocess.Popen(
            [sys.executable, *command, *options],
            env=environment,
            cwd=folder,
            stdout=self._log,
            stderr=self._log,
        )
        pin(self._process.pid, core=1)
        await_port(self.port, self._process)
        # A service that has just started still imports what its first requests need.
        asyncio.run(chat("warm", range(2), Connection(self.port, Figures()), Figures()))
        self._cpu_before = self._cpu_s()
        self._memory_before = self._memory("VmRSS")

    def _cpu_s(self) -> float:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / TICKS_A_SECOND

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return int(status.partition(f"{name}:")[2].split()[0]) * 1024

    def stop(self, figures: Figures) -> None:
        """Stop it, and note what it used."""
        figures.cpu_s += self._cpu_s() - self._cpu_before
        used = self._memory("VmHWM") - self._memory_before
        figures.memory_bytes = max(figures.memory_bytes, used)
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        self._log.close()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(3000):
        if process.poll() is not None:
            raise RuntimeError(f"a server ended with {process.returncode}")
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("a server did not start within a minute")


def pin(pid: int, core: int) -> None:
    os.sched_setaffinity(pid, {ALL_CORES[core % len(ALL_CORES)]})


ALL_CORES = sorted(os.sched_getaffinity(0))


def measure(name: str, chats: int, rate: float, *, keeps_runs: bool) -> Figures:
    """One run: all turns of all chats."""
    figures = Figures()
    folder = Path(tempfile.mkdtemp(prefix="ferrule-service-"))
    model_port = free_port()
    model = subprocess.Popen(
        [sys.executable, "-m", "services.model", str(model_port), str(rate)], cwd=HERE
    )
    pin(model.pid, core=0)
    try:
        await_port(model_port, model)
        for turns in (range(RESTARTS_AFTER), range(RESTARTS_AFTER, TURNS)):
            url = f"http://127.0.0.1:{model_port}"
            service = Service(name, folder, url, keeps_runs=keeps_runs)
            try:
                begun = time.perf_counter()
                asyncio.run(all_chats(service.port, range(chats), turns, figures))
                figures.took_s += time.perf_counter() - begun
            finally:
                service.stop(figures)
        figures.disk_bytes = sum(
            path.stat().st_size for path in folder.iterdir() if path.name != "log.txt"
        )
        if figures.errors:
            print((folder / "log.txt").read_text(encoding="utf-8")[-2000:], file=sys.stderr)
    finally:
        model.terminate()
        model.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return figures


async def all_chats(port: int, numbers: range, turns: range, figures: Figures) -> None:
    connections = [Connection(port, figures) for _ in numbers]
    await asyncio.gather(
        *(
            chat(str(number), turns, connection, figures)
            for number, connection in zip(numbers, connections, strict=True)
        )
    )
    for connection in connections:
        connection.close()


def percentile(values: list[float], share: float) -> float:
    if not values:
        return float("nan")
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


COLUMNS = (
    "service             chats tokens/s kept  turns/s  CPU/turn   first token p50, p99"
    "   between p50, p99  memory/chat     disk errors"
)


def line(name: str, chats: int, rate: float, figures: Figures, *, keeps_runs: bool) -> str:
    first, between = figures.first_token_s, figures.between_tokens_s
    turns = max(figures.turns, 1)
    cells = [
        f"{name:18} {chats:6} {rate or 'all':>8} {'yes' if keeps_runs else 'no':>4}",
        f"{figures.turns / figures.took_s:8.1f} {figures.cpu_s / turns * 1000:6.2f} ms",
        f"{percentile(first, 0.5):10.3f} s {percentile(first, 0.99):6.3f} s",
        f"{percentile(between, 0.5) * 1000:7.2f} ms {percentile(between, 0.99) * 1000:6.1f} ms",
        f"{figures.memory_bytes / chats / 1000:8.0f} KB {figures.disk_bytes / 1e6:6.1f} MB",
        f"{len(figures.errors):6}",
    ]
    return " ".join(cells)


def main() -> None:
    names = [name for name in os.environ.get("ONLY", "").split(",") if name] or SERVICES
    chats = [int(number) for number in os.environ.get("CHATS", "10,100,500").split(",")]
    rates = [float(rate) for rate in os.environ.get("RATES", "0,60").split(",")]
    keeps = [keep == "1" for keep in os.environ.get("KEEPS", "1,0").split(",")]
    pin(0, core=0)
    print(COLUMNS, flush=True)
    for number, rate, keeps_runs, name in product(chats, rates, keeps, names):
        figures = measure(name, number, rate, keeps_runs=keeps_runs)
        print(line(name, number, rate, figures, keeps_runs=keeps_runs), flush=True)
        for error in figures.errors[:3]:
            print(f"  {error}")


if __name__ == "__main__":
    main()
