"""Runs on Postgres with real workers: `scripts/pg-bench.sh` prints each figure with its bound. Only ratios count; the machine should be quiet.

Figures: two workers compared to one; DBOS tickets compared to a hand-written loop; the time from a
decision to the start of its tool; the cost of an idle worker, alone and with ten thousand queued
and as many waiting runs; and what an import loads. `--only WORD` selects the figures with the word
in their names. `--tiny` uses the smallest counts and only shows that the benchmark works. It starts
its own Postgres.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psycopg
import worker_program
from killing.workers import decide
from postgres_server import PostgresServer
from worker_yard import Yard

from ferrule import PostgresStore, advance

if TYPE_CHECKING:
    from collections.abc import Callable

TINY = "--tiny" in sys.argv
TOOL_S, IDLE_S = 0.5, 0.5 if TINY else 10.0
AT_ONCE = 4
_TICKS = os.sysconf("SC_CLK_TCK")


def two_workers(server: PostgresServer, runs: int = 4 if TINY else 64) -> str:
    """Two workers compared to one. The runs' only tool waits half a second; each worker executes four runs at once."""
    found: list[float] = []
    for workers in (1, 2):
        yard = _yard(server, f"with{workers}")
        for _ in range(workers):
            yard.worker(tool_s=TOOL_S)
        began = time.monotonic()
        yard.submit(*[f"waits {n}" for n in range(runs)])
        yard.until(yard.all_are("done"))
        found.append(runs / (time.monotonic() - began))
        _end(yard)
    one, two = found
    return f"tools that wait {TOOL_S} s: {one:.1f} runs/s with one worker, {two:.1f} with two: {two / one:.2f} x (>= 1.8)"


# -- a hand-written loop
# -----------------------------------------------------------------------------------------------------------

_CALLS = """
    CREATE TABLE {0}.calls (no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run_id text NOT NULL);
    CREATE FUNCTION {0}.call() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO {0}.calls (run_id) VALUES (to_jsonb(NEW) ->> TG_ARGV[0]); NOTIFY {0}_calls; RETURN NULL; END $$;
    CREATE TRIGGER submitted AFTER INSERT ON {0}.runs FOR EACH ROW EXECUTE FUNCTION {0}.call('id');
    CREATE TRIGGER decided AFTER INSERT ON {0}.decisions FOR EACH ROW EXECUTE FUNCTION {0}.call('run_id');
"""
_TAKE = "DELETE FROM {0}.calls WHERE no = (SELECT no FROM {0}.calls ORDER BY no FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING run_id"


def work_by_hand(dsn: str, schema: str) -> None:
    """The worker to compare with: it has no limits, priorities, delays or schedules, and does not repeat lost calls."""
    store = PostgresStore(dsn, schema=schema)
    store.join()

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute(f"LISTEN {schema}_calls")
            while True:
                with db.transaction():  # if this process dies, the call returns to the queue
                    row = db.execute(_TAKE.format(schema)).fetchone()
                    if row is not None:
                        advance(store, row[0], worker_program.agent)
                if row is None:
                    for _ in db.notifies(timeout=0.1, stop_after=1):
                        pass

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    for each in threads:
        each.start()
    sys.stderr.write("Ready\n")
    sys.stderr.flush()
    for each in threads:
        each.join()


def _by_hand(yard: Yard) -> None:
    """Start a hand-written worker in a yard."""
    log = yard.folder / f"hand{len(yard.workers)}.log"
    with log.open("w") as errors:
        command = [sys.executable, __file__, "--by-hand", yard.schema]
        environment = {**yard.environment, "EFFECTS": str(yard.folder), "TOOL_S": "0"}
        yard.workers.append(subprocess.Popen(command, env=environment, stderr=errors))
    yard.until(lambda: "Ready" in log.read_text())


def tickets(
    server: PostgresServer,
    runs: int = 4 if TINY else 120,
    rounds: int = 1 if TINY else 3,
) -> str:
    """Runs with two segments and an approval, on two workers: with DBOS tickets and with the hand-written loop, in turns."""

    def runs_per_s(name: str, *, is_by_hand: bool) -> float:
        yard = _yard(server, name)
        if is_by_hand:
            yard.store.engine = None
            yard.store.setup()
            yard.sql(_CALLS.format(yard.schema))
        for _ in range(2):
            (_by_hand if is_by_hand else Yard.worker)(yard)
        began = time.monotonic()
        yard.submit(*[f"pays {n}" for n in range(runs)])
        while decide(yard):
            time.sleep(0.1)
        seconds = time.monotonic() - began
        _end(yard)
        return runs / seconds

    found = [
        (runs_per_s(f"dbos{k}", is_by_hand=False), runs_per_s(f"hand{k}", is_by_hand=True))
        for k in range(rounds)
    ]
    by_tickets, by_hand = (max(each[way] for each in found) for way in (0, 1))
    share = by_tickets / by_hand
    return f"two workers: {by_tickets:.1f} runs/s with tickets, {by_hand:.1f} with a loop made by hand: {share:.2f} x (>= 0.55)"


# -- one worker
# --------------------------------------------------------------------------------------------------------------------


def seconds_to_tool(server: PostgresServer, decisions: int = 2 if TINY else 15) -> str:
    """The median time from a decision to the start of the tool that it approves."""
    yard = _yard(server, "decisions")
    yard.worker()
    found: list[float] = []
    for n in range(decisions):
        [run_id] = yard.submit(f"pays {n}")
        yard.until(lambda run_id=run_id: yard.store.summary(run_id).status == "waiting")
        [question] = yard.store.summary(run_id).questions
        began = time.monotonic()
        yard.store.decide(run_id, question.approve())
        while not yard.did()[f"pay {n}"]:
            time.sleep(0.002)
        found.append(time.monotonic() - began)
    _end(yard)
    return f"from a decision to its tool, poll_s=0.1: {median(found):.3f} s, {median(found) / 0.1:.1f} x poll_s (<= 3)"


def idle_worker(server: PostgresServer, poll_s: float, most: int) -> str:
    """The share of one core that an idle worker uses, and its memory."""
    yard = _yard(server, f"idle{int(poll_s * 1000)}")
    pid = yard.worker("--poll-s", str(poll_s)).pid
    time.sleep(3.0)
    share = _share(pid)
    memory = _memory(pid)
    _end(yard)
    return f"an idle worker, poll_s={poll_s}: {share:.1%} of a core (<= {most} %), {memory:.0f} MiB"


def ten_thousand(server: PostgresServer, runs: int = 20 if TINY else 10_000) -> str:
    """The cost for a worker of runs behind a full queue, and of as many that wait for a person."""
    yard = _yard(server, "crowd")
    pid = yard.worker("--per-minute", "4", dsn=f"{yard.dsn}?application_name=crowd").pid
    yard.submit(*[f"pays {n}" for n in range(4)])
    yard.until(yard.all_are("waiting"))
    time.sleep(3.0)

    def costs() -> tuple[float, int, int]:
        connections = yard.sql(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'crowd'",
        )[0][0]
        return _memory(pid), len(list(Path(f"/proc/{pid}/task").iterdir())), connections

    before = costs()
    columns = (
        "program, status, created_at, updated_at, token, written, segment, queue, questions, head"
    )
    yard.sql(
        f"INSERT INTO {yard.schema}.runs (id, {columns}) SELECT 'pays-' || n, {columns} FROM {yard.schema}.runs, generate_series(10, %s) n "
        "WHERE id = 'pays-0'", runs + 5,
    )  # fmt: skip
    yard.submit(*[f"charges {n}" for n in range(runs)])
    time.sleep(3.0)
    share, after = _share(pid), costs()
    _end(yard)
    return (
        f"an idle worker with {runs:,} queued and {runs:,} waiting runs: {share:.1%} of a core (<= 8 %), {after[0] - before[0]:+.1f} MiB "
        f"(<= +50), threads {before[1]} -> {after[1]}, connections {before[2]} -> {after[2]}"
    )


# -- none
# --------------------------------------------------------------------------------------------------------------------------


def imports(_: Any = None) -> str:
    """The modules that importing the store and the engine loads, before either is used."""
    code = (
        "import sys; from ferrule import DBOSEngine, PostgresStore; DBOSEngine()\n"
        "print(len([each for each in sys.modules if each.partition('.')[0] in {'dbos', 'psycopg', 'psycopg_binary', 'sqlalchemy'}]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return f"modules of psycopg and DBOS that `from ferrule import PostgresStore, DBOSEngine` loads: {found} (0)"


FIGURES: dict[str, Callable[[PostgresServer], str]] = {
    "two workers": two_workers,
    "tickets": tickets,
    "decision": seconds_to_tool,
    "imports": imports,
    "idle 0.1": partial(idle_worker, poll_s=0.1, most=8),
    "idle 0.5": partial(idle_worker, poll_s=0.5, most=4),
    "ten thousand": ten_thousand,
}


def main() -> None:
    """Print each figure on a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument(
        "--by-hand",
        metavar="SCHEMA",
        help=argparse.SUPPRESS,
    )  # a hand-written worker to compare with
    told = parser.parse_args()
    if told.by_hand is not None:
        work_by_hand(os.environ["FERRULE_STORE"], told.by_hand)
        return
    server = PostgresServer()
    try:
        for name, figure in FIGURES.items():
            if told.only in name:
                sys.stdout.write(f"{figure(server)}\n")
                sys.stdout.flush()
    finally:
        server.close()
    sys.stdout.write(f"load: {os.getloadavg()[0]:.1f}\n")


def _yard(server: PostgresServer, name: str) -> Yard:
    return Yard(server, name, Path(tempfile.mkdtemp(prefix="ferrule-bench-")))


def _end(yard: Yard) -> None:
    yard.close()
    shutil.rmtree(yard.folder, ignore_errors=True)


def _share(pid: int) -> float:
    before = _cpu_s(pid)
    time.sleep(IDLE_S)
    return (_cpu_s(pid) - before) / IDLE_S


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS


def _memory(pid: int) -> float:
    """The memory of a process in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


if __name__ == "__main__":
    main()
