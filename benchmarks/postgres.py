"""Runs kept in Postgres: `scripts/pg-bench.sh` prints one JSON line. It starts the system's Postgres on loopback, with `fsync` on.

The variants take turns, in random order, because a disk's speed changes from second to second. Each
figure is a median in milliseconds; only the ratios mean something on another machine. `--tiny` uses
the smallest counts and only shows that the benchmark works.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
from postgres_server import PostgresServer

from ferrule import PostgresStore, ReAct, Run, SQLiteStore, configure, tool
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Callable

TINY = "--tiny" in sys.argv
ENTRIES = 5 if TINY else 600
RUNS = 2 if TINY else 60
ENTRY = "x" * 300
HEAD = json.dumps({"questions": [], "error": None, "answers": []})


@tool(effect="idempotent")
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(require_confirmation=True)
def pay(euros: float) -> str:
    """Pay a bill."""
    return f"paid {euros}"


AGENT = ReAct("task -> answer", tools=[add, pay])
CALLS: list[Any] = [
    *({"name": "add", "args": {"a": k, "b": 1}} for k in range(2)),
    {"name": "pay", "args": {"euros": 3.0}},
    {"name": "finish", "args": {"answer": "done"}},
]


def kept_run(store: Any) -> None:
    """Execute a run in two segments: it waits for an approval, and another `Run` object finishes it."""
    configure(lm=ScriptedLM(CALLS))
    run = AGENT.start(task="t", store=store, run_id=uuid4().hex)
    store.decide(run.id, run.pending[0].approve())
    assert Run.load(store, run.id, AGENT).resume().status == "done"


def medians(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The median milliseconds of each variant; they take turns."""
    chance, times = random.Random(5), {name: list[float]() for name in ways}
    for work in ways.values():
        work()
    for _ in range(rounds):
        for name in chance.sample(list(ways), len(ways)):
            begun = time.perf_counter()
            ways[name]()
            times[name].append((time.perf_counter() - begun) * 1000)
    return {name: round(statistics.median(each), 3) for name, each in times.items()}


def measured(server: PostgresServer, folder: Path) -> dict[str, Any]:
    """Measure all figures."""
    postgres, sqlite = PostgresStore(server.dsn), SQLiteStore(folder / "runs.db")
    lease, in_file = (each.create("appends", program="P", head=HEAD) for each in (postgres, sqlite))
    with psycopg.connect(server.dsn, autocommit=True) as raw:
        raw.execute(
            "CREATE TABLE raw (place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, written_at float8, entry text NOT NULL)",
        )
        insert = "INSERT INTO raw (written_at, entry) VALUES (%s, %s)"
        entries = medians(
            {
                "raw INSERT": lambda: raw.execute(insert, (time.time(), ENTRY)) and None,
                "append, Postgres": lambda: postgres.append(lease, ENTRY) and None,
                "append, SQLite": lambda: sqlite.append(in_file, ENTRY) and None,
            },
            ENTRIES,
        )
    runs = medians(
        {"run, Postgres": lambda: kept_run(postgres), "run, SQLite": lambda: kept_run(sqlite)},
        RUNS,
    )
    postgres.release(lease, status="done", head=HEAD)
    sqlite.release(in_file, status="done", head=HEAD)
    postgres.close()
    sqlite.close()
    return {
        "ms": {**entries, **runs},
        "append / raw INSERT (<= 1.5)": round(
            entries["append, Postgres"] / entries["raw INSERT"],
            2,
        ),
        "run, Postgres / SQLite (<= 2)": round(runs["run, Postgres"] / runs["run, SQLite"], 2),
        "load": [round(each, 1) for each in os.getloadavg()],
    }


def main() -> None:
    """Measure and print."""
    server = PostgresServer(is_durable=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measured(server, Path(folder))))
    finally:
        server.close()


if __name__ == "__main__":
    main()
