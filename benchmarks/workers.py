"""Runs on Postgres with real workers: two workers beside one, a decision until its tool begins, and what an idle worker costs.

`PYTHONPATH=tests python benchmarks/workers.py`. It starts a Postgres of its own. Only ratios count; the machine should be quiet.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from postgres_server import PostgresServer
from worker_yard import Yard

RUNS, TOOL_S, IDLE_S, DECISIONS = 40, 0.5, 10.0, 15
_TICKS = os.sysconf("SC_CLK_TCK")


def runs_per_s(server: PostgresServer, workers: int) -> float:
    """Runs whose one tool waits half a second, four at once on each worker."""
    yard = _yard(server, f"with{workers}")
    for _ in range(workers):
        yard.worker(tool_s=TOOL_S)
    began = time.monotonic()
    yard.submit(*[f"waits {n}" for n in range(RUNS)])
    yard.until(yard.all_are("done"))
    seconds = time.monotonic() - began
    _end(yard)
    return RUNS / seconds


def seconds_to_tool(server: PostgresServer) -> float:
    """The median time from a decision to the start of the tool that it allows."""
    yard = _yard(server, "decisions")
    yard.worker()
    found: list[float] = []
    for n in range(DECISIONS):
        [run_id] = yard.submit(f"pays {n}")
        yard.until(lambda run_id=run_id: yard.store.summary(run_id).status == "waiting")
        [question] = yard.store.summary(run_id).questions
        began = time.monotonic()
        yard.store.decide(run_id, question.approve())
        while not yard.did()[f"pay {n}"]:
            time.sleep(0.002)
        found.append(time.monotonic() - began)
    _end(yard)
    return median(found)


def idle_share(server: PostgresServer, poll_s: float) -> tuple[float, float]:
    """The share of one core that a worker without work takes, and its memory in MiB."""
    yard = _yard(server, f"idle{int(poll_s * 1000)}")
    pid = yard.worker("--poll-s", str(poll_s)).pid
    time.sleep(3.0)
    before = _cpu_s(pid)
    time.sleep(IDLE_S)
    share = (_cpu_s(pid) - before) / IDLE_S
    memory = int(next(line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))) / 1024
    _end(yard)
    return share, memory


def main() -> None:
    """Print each figure on a line."""
    server = PostgresServer()
    try:
        one, two = runs_per_s(server, 1), runs_per_s(server, 2)
        sys.stdout.write(f"tools that wait {TOOL_S} s: {one:.1f} runs/s with one worker, {two:.1f} with two: {two / one:.2f} x (>= 1.8)\n")
        sys.stdout.write(f"from a decision to its tool, poll_s=0.1: {seconds_to_tool(server):.3f} s (<= 0.3)\n")
        for poll_s, most in ((0.1, 8), (0.5, 4)):
            share, memory = idle_share(server, poll_s)
            sys.stdout.write(f"an idle worker, poll_s={poll_s}: {share:.1%} of a core (<= {most} %), {memory:.0f} MiB\n")
    finally:
        server.close()


def _yard(server: PostgresServer, name: str) -> Yard:
    return Yard(server, name, Path(tempfile.mkdtemp(prefix="ferrule-bench-")))


def _end(yard: Yard) -> None:
    yard.close()
    shutil.rmtree(yard.folder, ignore_errors=True)


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS


if __name__ == "__main__":
    main()
