"""Make the stores and saved programs in this folder again, with what each must end as: `python tests/stores/make.py`.

They stand for what users have on disk: make them again only when a stored format changes on purpose. With `--expected` the data stays, and only
what it must end as is written again: for a change on purpose of what a model is sent. Public names only.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import ferrule
from ferrule import SQLiteStore
from ferrule.testing import ScriptedLM
from stores.programs import CRASHED, HALL, SAVED, STORES, Scenario, asked_of, outcome

LEFT = {"waiting": {"waiting"}, "crashed": {"running"}, "ended": {"done", "failed", "cancelled"}}


class Fatal(list[str]):
    """Effects, one of which kills the process."""

    def __init__(self, at: str | None) -> None:
        super().__init__()
        self.at = at

    def append(self, effect: str, /) -> None:
        """Note an effect, or die of it."""
        if effect == self.at:
            die()
        super().append(effect)


def die(*_: Any) -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def crash(path: Path, name: str) -> None:
    """Start a run whose process does not come to its end."""
    scenario = CRASHED[name]
    start(
        SQLiteStore(path),
        name,
        scenario,
        [*scenario.script[: scenario.asked], die],
        Fatal(scenario.dies_at),
    )


def start(store: SQLiteStore, name: str, scenario: Scenario, script: Any, deps: list[str]) -> None:
    """Start one run and leave it."""
    with tempfile.TemporaryDirectory() as folder, ferrule.context(lm=ScriptedLM(script)):
        run = scenario.made(Path(folder)).start(
            store=store,
            run_id=name,
            deps=deps,
            **scenario.inputs(),
        )
        if scenario.before is not None:
            for question in run.pending:
                run.answer(scenario.before(question))
            run.resume()


def leave(store: SQLiteStore, path: Path, of: str, name: str, scenario: Scenario) -> None:
    """One run as it is kept."""
    if of == "crashed":
        ended = subprocess.run([sys.executable, __file__, str(path), name], check=False)
        assert ended.returncode == -signal.SIGKILL, f"{name} ended with {ended.returncode}"
        return
    raises = [scenario.raises] if scenario.raises is not None else []
    start(store, name, scenario, [*scenario.script[: scenario.asked], *raises], [])
    if name == "cancelled":
        store.cancel(name)


def settle(path: Path) -> None:
    """Name no machine in the leases of dead processes, let them run out, and make one small file of the store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(
            "UPDATE runs SET owner = 'a machine pid 1', until = updated_at WHERE owner IS NOT NULL",
        )
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def ends(path: Path, of: str) -> dict[str, Any]:
    """What becomes of a copy of each run."""
    found: dict[str, Any] = {}
    for name, scenario in STORES[of].items():
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy(path, Path(folder) / "runs.sqlite")
            with closing(SQLiteStore(copy)) as store:
                found[name] = outcome(store, name, scenario, Path(folder))
    return found


def save(name: str) -> None:
    """Save one program, without a path of this machine."""
    path = HERE / "saved" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        program = SAVED[name].fresh(Path(folder))
        SAVED[name].dress(program)
        asked_of(program, SAVED[name])  # a server's tools are known once it was asked
        program.save(path)
        text = path.read_text()
        for word, instead in (
            (sys.executable, "python3"),
            (str(HALL), "asking_server.py"),
            (folder, "."),
        ):
            text = text.replace(json.dumps(word)[1:-1], instead)
        path.write_text(text)


def make() -> None:
    """Make the stores and the saved programs."""
    for of, scenarios in STORES.items():
        path = HERE / f"{of}.sqlite"
        path.unlink(missing_ok=True)
        with closing(SQLiteStore(path)) as store:
            for name, scenario in scenarios.items():
                leave(store, path, of, name, scenario)
            found = {each.status for each in store.list()}
            assert found <= LEFT[of], f"{of} has runs that are {found}"
        settle(path)
    for name in SAVED:
        save(name)


def expect() -> None:
    """Write what they must end as."""
    expected: dict[str, Any] = {of: ends(HERE / f"{of}.sqlite", of) for of in STORES}
    expected["saved"] = {}
    for name, each in SAVED.items():
        with tempfile.TemporaryDirectory() as folder:
            program = each.fresh(Path(folder))
            each.dress(program)
            expected["saved"][name] = asked_of(program, each)
    lines = [
        f" {json.dumps(f'{of}/{name}')}: {json.dumps(end)}"
        for of, found in expected.items()
        for name, end in found.items()
    ]
    (HERE / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [path, name]:
            crash(Path(path), name)
        case ["--expected"]:
            expect()
        case _:
            make()
            subprocess.run(
                [sys.executable, __file__, "--expected"],
                check=True,
            )  # a fresh process: nothing of the runs is in its memory
