"""Runs that are kept: `python runs.py FIGURE` prints one JSON line; FIGURE is `commits`, `waiting` or `long`.

All of it is on a SQLite file as users have it (write-ahead log, `synchronous=FULL`), in the folder for temporary files. Every figure is a
median with what the middle half of its measurements lay between. What the runs came to is checked after the clock stops.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrule import Response, Run, ScriptedLM, ToolCall, configure, respond_to_confirmation, tool
from ferrule.programs.react import ReAct
from ferrule.runs.journal_json import entry_text
from ferrule.runs.sqlite_store import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

WAITING = 1000
LENGTHS = (50, 100, 500)
TOGETHER = 20


def agent_of(steps: int, *, asks: bool) -> ReAct:
    """An agent that adds, as often as said, and asks before the last step where it is to wait."""

    @tool(effect="idempotent")
    def add(a: int, b: int) -> int:
        """Add two integers."""
        return a + b

    @tool(require_confirmation=True)
    def pay(to: str, euros: float) -> str:
        """Pay somebody."""
        return f"paid {euros} to {to}"

    def answer(request: Any) -> Response:
        i = (len(request.messages) - 2) // 2
        if i < steps:
            return Response(tool_calls=(ToolCall(name="add", args={"a": i, "b": 1}, id=f"c{i}"),))
        if asks and i == steps:
            return Response("This is due.", (ToolCall(name="pay", args={"to": "Ada", "euros": 30.0}, id="p"),))
        return Response(tool_calls=(ToolCall(name="finish", args={"answer": "done"}, id="end"),))

    configure(lm=ScriptedLM(by=answer))
    return ReAct("task -> answer", tools=[add, pay], max_iters=steps + 3, native=True)


def commits(folder: Path) -> dict[str, Any]:
    """Microseconds to keep an entry of a run, and to commit the same bytes with a bare `INSERT`; and by how much more that is (F5).

    What is compared is done entry by entry, in an order by chance, each in a file of its own: a disk is not as fast now as it was a
    second ago, and a write finds it as the one before left it. The files are written full once before, as a growing log costs more.
    """
    agent, chance, rounds, warm = agent_of(32, asks=False), random.Random(5), 12, 12
    entries = agent.start(task="Add.").journal.entries
    lines = [entry_text(entry) for entry in entries]
    bare, runner = _Bare(folder / "bare.db"), asyncio.Runner()
    alone, in_loop, *many = [_opened(agent, folder / f"{k if k < 2 else 'many'}.db") for k in range(2 + TOGETHER)]

    async def together(entry: Any) -> None:
        await asyncio.gather(*[run.kept.later(entry) for run in many])

    ways: dict[str, Callable[[Any, str], float]] = {
        "bare": lambda _, line: _seconds(lambda: bare.commit(line)),
        "kept": lambda entry, _: _seconds(lambda: alone.kept(entry)),
        "kept, async": lambda entry, _: runner.run(_aseconds(in_loop.kept.later(entry))),
        f"kept, async, {TOGETHER} runs at once": lambda entry, _: runner.run(_aseconds(together(entry))) / TOGETHER,
    }
    medians: dict[str, list[float]] = {name: [] for name in ways}
    for k in range(warm + rounds):
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for entry, line in zip(entries, lines, strict=True):
            for name in chance.sample([*ways], len(ways)):
                taken[name].append(1e6 * ways[name](entry, line))
        for name, found in taken.items() if k >= warm else ():
            medians[name].append(statistics.median(found))
    runner.close()
    for run in (alone, in_loop, *many):
        assert run.kept.store.load(run.id).entries == bare.lines() == lines * (warm + rounds)
        run.kept.store.close()
    ratios = {name: [a / b for a, b in zip(found, medians["bare"], strict=True)] for name, found in medians.items()}
    return {
        "bytes an entry": sum(map(len, lines)) // len(lines),
        "us": {name: _spread(found) for name, found in medians.items()},
        "ratio": {name: _spread(found, 2) for name, found in ratios.items()},
    }


_STORES: dict[Path, SQLiteStore] = {}


def _opened(agent: ReAct, path: Path) -> Run:
    """A run that is ready to be written to, in the store of a file."""
    run = Run(agent, (), {"task": "Add."})
    run.keep(_STORES.setdefault(path, SQLiteStore(path)))
    run.kept.open()
    return run


class _Bare:
    """A table of the same shape in a file with the same pragmas, and nothing around it."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE entries (run_id TEXT, seq INTEGER, entry TEXT, PRIMARY KEY (run_id, seq)) WITHOUT ROWID")
        self._seq = 0

    def commit(self, line: str) -> None:
        self._seq += 1
        self._db.execute("INSERT INTO entries VALUES ('00000000000000000000000000000000', ?, ?)", (self._seq, line))
        self._db.commit()

    def lines(self) -> list[str]:
        return [line for (line,) in self._db.execute("SELECT entry FROM entries ORDER BY seq")]


def waiting(folder: Path) -> dict[str, Any]:
    """Milliseconds with 1,000 runs that wait in one file; bytes of one of them."""
    agent = agent_of(1, asks=True)
    filling = SQLiteStore(folder / "runs.db", full_sync=False)
    for k in range(WAITING):
        assert agent.start(task=f"Add, then pay ({k}).", store=filling, run_id=f"run-{k}").status == "waiting"
    filling.close()
    store = SQLiteStore(folder / "runs.db")
    assert len(Run.list(store, status="waiting")) == WAITING
    listed = [1e3 * _seconds(lambda: Run.list(store, status="waiting")) for _ in range(15)]
    found: dict[str, list[float]] = {"load": [], "answer": [], "resume": [], "all": []}
    for k in range(0, WAITING, 20):
        started = time.perf_counter()
        run = Run.load(store, f"run-{k}", agent)
        loaded = time.perf_counter()
        run.answer(run.pending[0].approve())
        answered = time.perf_counter()
        run.resume()
        ended = time.perf_counter()
        parts = zip(found.values(), (loaded - started, answered - loaded, ended - answered, ended - started), strict=True)
        for times, taken in parts:
            times.append(1e3 * taken)
        assert run.prediction.answer == "done"
    by_id = [1e3 * _seconds(lambda key=line.questions[0].id: respond_to_confirmation(key, store=store)) for line in Run.list(store)[-15:]]
    with store._file.reading() as db:  # noqa: SLF001  what a run takes up is not to be learned otherwise
        size = db.execute(
            "SELECT length(head) + length(questions) + length(id) + (SELECT sum(length(entry)) FROM entries WHERE run_id = id) "
            "FROM runs WHERE id = 'run-1'"
        ).fetchone()[0]
    store.close()
    bytes_of_one = {"text": size, "file": (folder / "runs.db").stat().st_size // WAITING, **_in_memory(agent)}
    times = {"list": listed, **found, "decide by id": by_id}
    return {"ms": {name: _spread(each, 2) for name, each in times.items()}, "bytes": bytes_of_one}


def _in_memory(agent: ReAct) -> dict[str, int]:
    """Bytes that Python holds for a waiting run which somebody keeps in hand, and for one that was let go."""
    many = 200
    agent.start(task="warm")
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    held = [agent.start(task=f"Add, then pay ({k}).") for k in range(many)]
    gc.collect()
    in_hand = (tracemalloc.get_traced_memory()[0] - before) // many
    held.clear()
    gc.collect()
    let_go = (tracemalloc.get_traced_memory()[0] - before) // many
    tracemalloc.stop()
    return {"in memory": in_hand, "in memory, let go": let_go}


def long(folder: Path) -> dict[str, Any]:
    """Microseconds and bytes a step of runs of several lengths, started, and replayed to their end."""
    made: dict[int, dict[str, list[float]]] = {steps: {"cpu": [], "wall": [], "replay": [], "bytes": []} for steps in LENGTHS}
    for k in range(5):
        for steps in LENGTHS:
            agent, store = agent_of(steps, asks=False), SQLiteStore(folder / f"{steps}-{k}.db")
            cpu_from, wall_from = time.process_time(), time.perf_counter()
            run = agent.start(task="Add.", store=store, run_id="r")
            wall, cpu = time.perf_counter() - wall_from, time.process_time() - cpu_from
            again = time.perf_counter()
            replayed = Run.load(store, "r", agent).prediction
            again = time.perf_counter() - again
            assert len(run.trajectory.steps) == len(replayed.trajectory.steps) == steps + 1
            size = sum(map(len, store.load("r").entries))
            store.close()
            for times, value in zip(made[steps].values(), (1e6 * cpu, 1e6 * wall, 1e6 * again, size), strict=True):
                times.append(value / steps)
    return {str(steps): {name: _spread(each) for name, each in found.items()} for steps, found in made.items()}


def _seconds(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


async def _aseconds(doing: Awaitable[object]) -> float:
    started = time.perf_counter()
    await doing
    return time.perf_counter() - started


def _spread(found: list[float], digits: int = 1) -> list[float]:
    """The median, and the quartiles around it."""
    low, middle, high = statistics.quantiles(found, n=4)
    return [round(each, digits) for each in (middle, low, high)]


FIGURES = {each.__name__: each for each in (commits, waiting, long)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(FIGURES[sys.argv[1]](Path(place))))
