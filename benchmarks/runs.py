"""Stored runs: `python runs.py FIGURE` prints one JSON line; FIGURE is `commits`, `together`, `waiting`, `long` or `loaded`.

The store is a SQLite file with the default settings, in the folder for temporary files. Each figure
is a median with its quartiles. The results of the runs are checked after the clock stops. `--tiny`
uses the smallest counts and only shows that the benchmark works.
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
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ferrule import (
    Module,
    Prediction,
    ReAct,
    Response,
    Run,
    SQLiteStore,
    ToolCall,
    configure,
    respond_to_confirmation,
    tool,
)
from ferrule.acts import Once
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

TINY = "--tiny" in sys.argv
WAITING = 40 if TINY else 1000
IN_MEMORY = 5 if TINY else 200
LENGTHS = (2, 3) if TINY else (50, 100, 500)
LONG_ROUNDS = 2 if TINY else 5
LOADED = (2, 3) if TINY else (10, 100, 1000, 4000)
LOADED_ROUNDS = 2 if TINY else 4
TOGETHER = 2 if TINY else 20
MANY = 3 if TINY else 200
ALONE = 2 if TINY else 20
MANY_ROUNDS = 2 if TINY else 5
COMMIT_ROUNDS = 2 if TINY else 20
ENTRIES = [f"{i} {'x' * 150}" for i in range(3 if TINY else 50)]
BEGAN: list[float] = []
"""The times at which the tool of a resumed run began."""
FILLER = ["x" * 800] * (10 if TINY else 6000)
"""Entries written before the measurement: writes cost more until the write-ahead log has its full length."""


def agent_of(steps: int, *, asks: bool, is_async: bool = False) -> ReAct:
    """An agent that adds `steps` times, and waits for a confirmation before the last step if it `asks`."""

    @tool(effect="idempotent")
    def add(a: int, b: int) -> int:
        """Add two integers."""
        return a + b

    @tool(name="add", effect="idempotent")
    async def aadd(a: int, b: int) -> int:
        """Add two integers."""
        return a + b

    @tool(require_confirmation=True)
    def pay(to: str, euros: float) -> str:
        """Pay somebody."""
        BEGAN.append(time.perf_counter())
        return f"paid {euros} to {to}"

    def answer(request: Any) -> Response:
        i = (len(request.messages) - 2) // 2
        if i < steps:
            return Response(tool_calls=(ToolCall(name="add", args={"a": i, "b": 1}, id=f"c{i}"),))
        if asks and i == steps:
            return Response(
                "This is due.",
                (ToolCall(name="pay", args={"to": "Ada", "euros": 30.0}, id="p"),),
            )
        return Response(tool_calls=(ToolCall(name="finish", args={"answer": "done"}, id="end"),))

    configure(lm=ScriptedLM(by=answer))
    return ReAct(
        "task -> answer",
        tools=[aadd if is_async else add, pay],
        max_iters=steps + 3,
        native=True,
    )


def commits(folder: Path) -> dict[str, Any]:
    """Microseconds to store an entry of a run, and to commit the same bytes with a bare `INSERT`; and their ratio.

    The speed of a disk changes from second to second, so the variants take turns, in random order,
    each with its own file. On an event loop, the bare commit has its own thread, too. Both figures
    of a stored run include the cost of a run without a store, which is listed.
    """
    program, chance = Writer(), random.Random(5)
    stores = {name: _filled(folder / f"{name}.db") for name in ("alone", "async", "together")}
    lines = stores["alone"].load(program.start(store=stores["alone"]).id).entries
    bare, bare_in_thread = _Bare(folder / "bare.db"), _Bare(folder / "bare_in_thread.db")
    thread = ThreadPoolExecutor(1)

    async def hop(line: str) -> None:
        await asyncio.get_running_loop().run_in_executor(thread, bare_in_thread.commit, line)

    async def bare_async() -> list[float]:
        return [await _aseconds(hop(line)) for line in lines]

    async def together() -> None:
        await asyncio.gather(*[program.astart(store=stores["together"]) for _ in range(TOGETHER)])

    with asyncio.Runner() as runner:
        ways: dict[str, Callable[[], list[float]]] = {
            "bare": lambda: [_seconds(lambda line=line: bare.commit(line)) for line in lines],
            "kept": lambda: program.times(lambda: program.start(store=stores["alone"])),
            "not kept": lambda: program.times(program.start),
            "bare, async": lambda: runner.run(bare_async()),
            "kept, async": lambda: program.times(
                lambda: runner.run(program.astart(store=stores["async"])),
            ),
            f"kept, async, {TOGETHER} runs at once": lambda: [
                each / TOGETHER for each in program.times(lambda: runner.run(together()))
            ],
        }
        medians: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(COMMIT_ROUNDS):
            for name in chance.sample([*ways], len(ways)):
                medians[name].append(1e6 * statistics.median(ways[name]()))
    thread.shutdown()
    written = [
        store.load(run.id).entries
        for store in stores.values()
        for run in Run.list(store, program=program.name, limit=None)
    ]
    assert written == [lines] * (1 + COMMIT_ROUNDS * (2 + TOGETHER))
    assert bare.lines() == bare_in_thread.lines() == [*lines] * COMMIT_ROUNDS
    for store in stores.values():
        store.close()
    found = {
        name: _ratio(each, medians["bare, async" if "async" in name else "bare"])
        for name, each in medians.items()
    }
    size = sum(map(len, lines)) // len(lines)
    return {
        "bytes an entry": size,
        "us": {name: _spread(each) for name, each in medians.items()},
        "ratio": found,
    }


def _ratio(found: list[float], bare: list[float]) -> list[float]:
    return _spread([a / b for a, b in zip(found, bare, strict=True)], 2)


class Writer(Module):
    """A program whose acts only write journal entries; times each of them."""

    def __init__(self) -> None:
        self._taken: list[float] = []

    def flow(self) -> Generator[Once, Any, Prediction]:
        """Yield acts without work, whose answers are journalled."""
        for text in ENTRIES:
            asked = time.perf_counter()
            yield Once(lambda text=text: text)
            self._taken.append(time.perf_counter() - asked)
        return Prediction(written=len(ENTRIES))

    def times(self, run: Callable[[], object]) -> list[float]:
        """Seconds from act to answer, for each entry of the run."""
        self._taken.clear()
        run()
        return [*self._taken]


def _filled(path: Path) -> SQLiteStore:
    store = SQLiteStore(path)
    lease = store.create(uuid4().hex, program="filler", head="{}")
    store.transact(lease, lambda _: [store.append(lease, line) for line in FILLER])
    return store


class _Bare:
    """A bare table of the same shape, in a file with the same pragmas."""

    INSERT = "INSERT INTO ferrule_entries VALUES ('00000000000000000000000000000000', ?, ?)"

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute(
            "CREATE TABLE ferrule_entries (run_id TEXT, seq INTEGER, entry TEXT, PRIMARY KEY (run_id, seq)) WITHOUT ROWID",
        )
        self._db.executemany(self.INSERT, enumerate(FILLER))
        self._db.commit()
        self._seq = len(FILLER)

    def commit(self, line: str) -> None:
        self._seq += 1
        self._db.execute(self.INSERT, (self._seq, line))
        self._db.commit()

    def lines(self) -> list[str]:
        return [
            line
            for (line,) in self._db.execute(
                "SELECT entry FROM ferrule_entries WHERE seq > ? ORDER BY seq",
                (len(FILLER),),
            )
        ]


def together(folder: Path) -> dict[str, Any]:
    """Milliseconds of a stored run of ten steps, one after another and many at once; and how many times more at once, in the same time."""
    threads, chance = ThreadPoolExecutor(MANY), random.Random(5)
    agents = {is_async: agent_of(10, asks=False, is_async=is_async) for is_async in (False, True)}
    stores = {
        name: _filled(folder / f"{name}.db")
        for name in ("one at a time", "async, one at a time", "async, at once", "threads, at once")
    }

    async def at_once() -> list[Run]:
        return await asyncio.gather(
            *[
                agents[True].astart(task="Add.", store=stores["async, at once"])
                for _ in range(MANY)
            ],
        )

    with asyncio.Runner() as runner:
        keep = {
            name: partial(agents["async" in name].start, task="Add.", store=store)
            for name, store in stores.items()
        }
        one = partial(agents[True].astart, task="Add.", store=stores["async, one at a time"])
        ways: dict[str, Callable[[], list[Run]]] = {
            "one at a time": lambda: [keep["one at a time"]() for _ in range(ALONE)],
            "async, one at a time": lambda: [runner.run(one()) for _ in range(ALONE)],
            "async, at once": lambda: runner.run(at_once()),
            "threads, at once": lambda: list(
                threads.map(lambda _: keep["threads, at once"](), range(MANY)),
            ),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(1 + MANY_ROUNDS):
            for name in chance.sample([*ways], len(ways)):
                started = time.perf_counter()
                runs = ways[name]()
                taken[name].append(1e3 * (time.perf_counter() - started) / len(runs))
                assert all(
                    run.prediction.answer == "done" and len(run.trajectory.steps) == 11
                    for run in runs
                )
    threads.shutdown()
    for store in stores.values():
        store.close()
    best = {name: min(found[1:]) for name, found in taken.items()}  # the first round warms up
    gains = {
        name: round(
            best["async, one at a time" if "async" in name else "one at a time"] / best[name],
            1,
        )
        for name in best
    }
    return {
        "runs": MANY,
        "ms": {name: round(found, 2) for name, found in best.items()},
        "times as many": gains,
    }


def waiting(folder: Path) -> dict[str, Any]:
    """Milliseconds of operations with 1,000 waiting runs in one file, and the size of one run."""
    agent = agent_of(1, asks=True)
    filling = SQLiteStore(folder / "runs.db", full_sync=False)
    for k in range(WAITING):
        assert (
            agent.start(task=f"Add, then pay ({k}).", store=filling, run_id=f"run-{k}").status
            == "waiting"
        )
    filling.close()
    store = SQLiteStore(folder / "runs.db")
    assert len(Run.list(store, status="waiting", limit=None)) == WAITING
    listed = [
        1e3 * _seconds(lambda: Run.list(store, status="waiting", limit=None)) for _ in range(15)
    ]
    found: dict[str, list[float]] = {
        "load": [],
        "answer": [],
        "resume, to the tool": [],
        "all, to the tool": [],
        "all, to the end": [],
    }
    for k in range(0, WAITING, 20):
        started = time.perf_counter()
        run = Run.load(store, f"run-{k}", agent)
        loaded = time.perf_counter()
        run.answer(run.pending[0].approve())
        answered = time.perf_counter()
        run.resume()
        ended = time.perf_counter()
        taken = (
            loaded - started,
            answered - loaded,
            BEGAN[-1] - answered,
            BEGAN[-1] - started,
            ended - started,
        )
        for times, seconds in zip(found.values(), taken, strict=True):
            times.append(1e3 * seconds)
        assert run.prediction.answer == "done"
    by_id = [
        1e3 * _seconds(lambda key=line.questions[0].id: respond_to_confirmation(key, store=store))
        for line in Run.list(store)[-15:]
    ]
    kept = store.load("run-1")
    size = len(kept.head) + sum(map(len, kept.entries))
    store.close()
    bytes_of_one = {
        "text": size,
        "file": (folder / "runs.db").stat().st_size // WAITING,
        **_in_memory(agent),
    }
    times = {"list": listed, **found, "decide by id": by_id}
    return {
        "runs": WAITING,
        "ms": {name: _spread(each, 2) for name, each in times.items()},
        "bytes": bytes_of_one,
    }


def _in_memory(agent: ReAct) -> dict[str, int]:
    """Bytes of Python memory that a waiting run takes while referenced, and afterwards."""
    many, in_hand, let_go = IN_MEMORY, 0, 0
    tracemalloc.start()
    for _ in range(2):  # the first round fills caches that belong to no run in particular
        gc.collect()
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
    """Microseconds and bytes per step of runs of several lengths, executed and replayed."""
    made: dict[int, dict[str, list[float]]] = {
        steps: {"cpu": [], "wall": [], "replay": [], "bytes": []} for steps in LENGTHS
    }
    for k in range(LONG_ROUNDS):
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
            for times, value in zip(
                made[steps].values(),
                (1e6 * cpu, 1e6 * wall, 1e6 * again, size),
                strict=True,
            ):
                times.append(value / steps)
    return {
        str(steps): {name: _spread(each) for name, each in found.items()}
        for steps, found in made.items()
    }


def loaded(folder: Path) -> dict[str, Any]:
    """Microseconds of CPU per step to load a finished run, read it first, and list its store.

    The lengths take turns, and a value is the lowest: other work on the machine only adds to it.
    """
    agents: dict[int, ReAct] = {}
    for steps in LOADED:
        store = SQLiteStore(folder / f"{steps}.db", full_sync=False)
        agents[steps] = agent_of(steps, asks=False)
        agents[steps].start(task="Add.", store=store, run_id="r")
        store.close()
    times: dict[int, list[float]] = {steps: [] for steps in LOADED}
    for _ in range(LOADED_ROUNDS):
        for steps, agent in agents.items():
            gc.collect()
            seconds = 0.0
            # As many steps for each length: other work on the machine then disturbs all alike.
            for _ in range(LOADED[-1] // steps):
                store = SQLiteStore(folder / f"{steps}.db")
                started = time.process_time()
                run = Run.load(store, "r", agent)
                prediction = run.prediction
                listed = Run.list(store)
                seconds += time.process_time() - started
                assert len(prediction.trajectory.steps) == steps + 1
                assert [line.status for line in listed] == ["done"]
                store.close()
            times[steps].append(1e6 * seconds / (LOADED[-1] // steps * steps))
    return {str(steps): round(min(found), 1) for steps, found in times.items()}


def _seconds(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


async def _aseconds(doing: Awaitable[object]) -> float:
    started = time.perf_counter()
    await doing
    return time.perf_counter() - started


def _spread(found: list[float], digits: int = 1) -> list[float]:
    """The median and the quartiles."""
    low, middle, high = statistics.quantiles(found, n=4)
    return [round(each, digits) for each in (middle, low, high)]


FIGURES = {each.__name__: each for each in (commits, together, waiting, long, loaded)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(FIGURES[sys.argv[1]](Path(place))))
