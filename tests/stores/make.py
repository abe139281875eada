"""Makes stores with waiting, crashed and ended runs, and saved programs: `python make.py FOLDER`.

It runs in a process of its own, because some of its children are killed in the middle of a run.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import ferrule
from ferrule import SQLiteStore
from ferrule.testing import ScriptedLM
from stores.programs import CRASHED, SAVED, STORES, Scenario


def make_in(folder: Path) -> None:
    """Make `waiting.sqlite`, `crashed.sqlite`, `ended.sqlite` and `saved/NAME.json` in a folder."""
    subprocess.run([sys.executable, __file__, str(folder)], check=True)


class FatalEffects(list[str]):
    """The effects of a run's tools, one of which kills the process."""

    def __init__(self, fatal: str | None) -> None:
        super().__init__()
        self._fatal = fatal

    def append(self, effect: str, /) -> None:
        """Note an effect, or die of it."""
        if effect == self._fatal:
            die()
        super().append(effect)


def die(*_: Any) -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def crash(path: Path, name: str, scenario: Scenario) -> None:
    """Start a run in a child process that does not come to its end."""
    child = os.fork()
    if child == 0:
        script = [*scenario.script[: scenario.asked], die]
        with SQLiteStore(path) as store:
            start(store, name, scenario, script, FatalEffects(scenario.dies_at))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"{name} came to its end"


def leave(store: SQLiteStore, name: str, scenario: Scenario) -> None:
    """Start a run that waits or ends."""
    script = list(scenario.script[: scenario.asked])
    if scenario.raises is not None:
        script.append(scenario.raises)
    start(store, name, scenario, script, [])
    if name == "cancelled":
        store.cancel(name)


def start(store: SQLiteStore, name: str, scenario: Scenario, script: Any, deps: list[str]) -> None:
    """Start one run, and decide its first questions."""
    with ferrule.context(lm=ScriptedLM(script)):
        run = scenario.program().start(store=store, run_id=name, deps=deps, **scenario.inputs())
        if scenario.before is not None:
            for question in run.pending:
                run.answer(scenario.before(question))
            run.resume()


def close_file(path: Path) -> None:
    """Let the leases of dead processes run out, and move the write-ahead log into the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE ferrule_runs SET until = updated_at WHERE owner IS NOT NULL")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def make(folder: Path) -> None:
    """Make everything; the crashed runs first, before this process has threads."""
    for name, scenario in CRASHED.items():
        crash(folder / "crashed.sqlite", name, scenario)
    for kind in ("waiting", "ended"):
        with SQLiteStore(folder / f"{kind}.sqlite") as store:
            for name, scenario in STORES[kind].items():
                leave(store, name, scenario)
    for kind in STORES:
        close_file(folder / f"{kind}.sqlite")
    (folder / "saved").mkdir()
    for name, saved in SAVED.items():
        program = saved.fresh()
        saved.dress(program)
        program.save(folder / "saved" / f"{name}.json")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
