"""Runs in one SQLite file, in several processes: decided elsewhere, contended for, stopped, killed.

The program under test is this very file, run as a script: `start`, `go_on`. What its tool does
stands in a file outside, a line each time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest

import ferrule
from ferrule.errors import StoreError
from ferrule.programs.react import ReAct
from ferrule.runs.run import Run
from ferrule.runs.store.sqlite.store import SQLiteStore
from ferrule.testing.scripted import ScriptedLM

SCRIPT: list[Any] = [
    {"name": "note", "args": {"text": "one"}},
    {"name": "pay", "args": {"euros": 3}},
    {"name": "note", "args": {"text": "two"}},
    {"name": "finish", "args": {"answer": "paid"}},
]


def agent(folder: Path) -> ReAct:
    """An agent that notes, pays after asking, and stops where a file says so."""

    def did(what: str) -> None:
        with (folder / "did").open("a") as file:
            file.write(f"{what}\n")

    @ferrule.tool(effect="idempotent")
    def note(text: str) -> str:
        """Note something."""
        did(f"note {text}")
        if (folder / f"hang_{text}").exists():
            (folder / f"hangs_{text}").touch()
            while (folder / f"hang_{text}").exists():
                time.sleep(0.005)
        return "noted"

    @ferrule.tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        did(f"pay {euros}")
        return "paid"

    return ReAct("task -> answer", [note, pay])


class Replaying(ScriptedLM):
    """Answers by how many answers are in the request already: the same in every process."""

    def complete(self, request: Any) -> Any:
        steps = sum(message.role == "assistant" for message in request.messages)
        return ScriptedLM([SCRIPT[steps]]).complete(request)


def main(what: str, folder: Path) -> None:
    store = SQLiteStore(folder / "runs.db", lease_s=float(os.environ.get("LEASE_S", "30")))
    ferrule.configure(lm=Replaying([]))
    if what == "start":
        run = agent(folder).start(task="x", store=store, run_id="r")
    else:
        try:
            run = Run.load(store, "r", agent(folder)).resume()
        except ferrule.RunError as error:
            sys.stdout.write(f"{type(error).__name__} {error}")
            return
    sys.stdout.write(f"{run.status} {run.error or ''}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    sys.exit()


def process(what: str, folder: Path, **environment: str) -> forked.Forked:
    return forked.Forked(__file__, what, folder, env=environment)


def said(running: forked.Forked) -> str:
    return running.ended().stdout.strip()


def did(folder: Path) -> list[str]:
    path = folder / "did"
    return path.read_text().splitlines() if path.exists() else []


def until(true: Callable[[], bool]) -> None:
    """Wait for another process; there is nothing else to wait by than what it leaves in the folder."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "the other process did not get there"
        time.sleep(0.005)


def here(folder: Path, **keywords: Any) -> tuple[SQLiteStore, Run]:
    store = SQLiteStore(folder / "runs.db", **keywords)
    return store, Run.load(store, "r", agent(folder))


def test_a_run_is_started_decided_and_finished_by_three_processes(tmp_path: Path) -> None:
    """The wait survives the end of every process; each tool ran once."""
    assert said(process("start", tmp_path)) == "waiting"
    store, run = here(tmp_path)
    run.answer(run.pending[0].approve())
    store.close()
    assert said(process("go_on", tmp_path)) == "done"
    assert did(tmp_path) == ["note one", "pay 3", "note two"]


def test_a_killed_run_is_gone_on_with_at_once_and_nothing_finished_is_done_again(
    tmp_path: Path,
) -> None:
    """SIGKILL inside a tool; the lease of a process that is dead holds nobody up."""
    (tmp_path / "hang_one").touch()
    running = process("start", tmp_path)
    until((tmp_path / "hangs_one").exists)
    running.kill()
    running.ended()
    (tmp_path / "hang_one").unlink()
    store, run = here(tmp_path)
    assert run.status == "running"
    with ferrule.context(lm=Replaying([])):
        run.resume()
        run.answer(run.pending[0].approve())
        assert run.resume().prediction.answer == "paid"
    store.close()
    assert did(tmp_path) == [
        "note one",
        "note one",
        "pay 3",
        "note two",
    ]  # idempotent: begun without a result runs again


def test_of_several_processes_one_executes_a_run_and_the_others_are_told(tmp_path: Path) -> None:
    """One approval, four contenders, one payment."""
    assert said(process("start", tmp_path)) == "waiting"
    store, run = here(tmp_path)
    run.answer(run.pending[0].approve())
    store.close()
    told = [said(each) for each in [process("go_on", tmp_path) for _ in range(4)]]
    assert sum(each == "done" for each in told) == 1
    assert all(
        "at work on the run" in each or "finished elsewhere" in each or "is done" in each
        for each in told
        if each != "done"
    )
    assert did(tmp_path).count("pay 3") == 1


def test_while_a_process_is_at_work_its_lease_is_renewed(tmp_path: Path) -> None:
    """A tool may run for longer than the lease."""
    (tmp_path / "hang_one").touch()
    running = process("start", tmp_path, LEASE_S="3")
    until((tmp_path / "hangs_one").exists)
    first = _until(tmp_path)
    until(lambda: _until(tmp_path) > first + 0.3)
    store, run = here(tmp_path, lease_s=3)
    with pytest.raises(StoreError, match="at work on the run"):
        run.resume()
    store.close()
    (tmp_path / "hang_one").unlink()
    assert said(running) == "waiting"


def test_a_stopped_process_that_lost_its_run_is_fenced_when_it_wakes(tmp_path: Path) -> None:
    """SIGSTOP, the run is taken over and finished, SIGCONT: its next write is refused, and it
    starts no tool.
    """
    (tmp_path / "hang_one").touch()
    running = process("start", tmp_path, LEASE_S="3")
    until((tmp_path / "hangs_one").exists)
    running.send_signal(signal.SIGSTOP)
    ends = _until(tmp_path)
    (tmp_path / "hang_one").unlink()
    store, run = here(tmp_path, clock=lambda: ends + 10)
    with ferrule.context(lm=Replaying([])):
        assert run.resume().status == "waiting"
        run.answer(run.pending[0].approve())
        assert run.resume().status == "done"
    kept = store.load("r").entries
    running.send_signal(signal.SIGCONT)
    assert "taken over by another process" in said(running)
    assert store.load("r").entries == kept
    store.close()
    assert did(tmp_path) == ["note one", "note one", "pay 3", "note two"]


def test_another_process_cancels_before_the_next_step(tmp_path: Path) -> None:
    """The call that is going on ends and is written; no other is begun."""
    (tmp_path / "hang_one").touch()
    running = process("start", tmp_path)
    until((tmp_path / "hangs_one").exists)
    store = SQLiteStore(tmp_path / "runs.db")
    store.cancel("r")
    (tmp_path / "hang_one").unlink()
    assert said(running).startswith("cancelled")
    assert store.list()[0].status == "cancelled"
    store.close()


def _until(folder: Path) -> float:
    import sqlite3

    db = sqlite3.connect(folder / "runs.db")
    try:
        return db.execute("SELECT until FROM ferrule_runs").fetchone()[0]
    finally:
        db.close()
