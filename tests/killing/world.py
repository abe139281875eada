"""What the agents under test act on: a folder with the store, with a file of effects, and with the
points where a process can be killed.

Nothing here is ferrule's, except the store that it watches. An effect is one line of a file, in one
write: it is there whole or not at all.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from killing import stores, system_calls

if TYPE_CHECKING:
    from pathlib import Path

RUN = "the-run"
ABOUT: dict[str, Any] = {"metadata": {"user": "ann", "job": [4, None]}, "title": "A run to kill"}
"""What the run is started with."""
ORIGINAL = "original"
"""The run that `RUN` is a fork of, if it is one."""
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGINT}


@dataclass(frozen=True)
class Target:
    """Where a process is struck: the `at`-th point with this label (any, if it is empty), or the
    `at`-th system call.
    """

    at: int
    how: str = "kill"
    """`kill` or `stop` for a point; for a system call one of `system_calls.MODES`."""
    label: str = ""


class Points:
    """Counts the points of a process, and strikes it at one of them."""

    def __init__(self, target: Target | None = None) -> None:
        self.target = target if target is not None and target.how in SIGNALS else None
        self.passed = 0
        self._lock = threading.Lock()

    def __call__(self, label: str) -> None:
        with self._lock:
            if self.target is not None and self.target.label not in {"", label}:
                return
            at = self.passed
            self.passed += 1
        if self.target is not None and self.target.at == at:
            os.kill(os.getpid(), SIGNALS[self.target.how])


@dataclass(frozen=True)
class World:
    """The folder of one run, as one process sees it."""

    place: Path
    point: Points = field(default_factory=Points)
    slow_s: float = 0.0
    """How long each effect takes: races need calls that last."""
    must_sync: bool = False
    """Whether everything must be on the disk before an effect.

    Only where one thing happens at a time.
    """

    @property
    def scenario(self) -> str:
        """The name of its scenario, for the process that plays the model."""
        return (self.place / "scenario").read_text()

    def note(self, what: str, key: str = "") -> None:
        """Add a line to the file of effects."""
        line = json.dumps([what, key, os.getpid()]) + "\n"
        file = os.open(self.place / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)

    def noted(self) -> list[tuple[str, str]]:
        """The lines of the file of effects, without the processes."""
        file = self.place / "effects"
        return (
            [(what, key) for what, key, _ in map(json.loads, file.read_text().splitlines())]
            if file.exists()
            else []
        )

    def has(self, what: str, key: str = "") -> bool:
        """Whether an effect took place; with a key, under that key."""
        return any(what == each and key in {"", its} for each, its in self.noted())

    def act(self, what: str, key: str = "") -> str:
        """An effect of a tool or a call of the model, with a point on both sides."""
        self.point(f"act {what}")
        self._sleep()
        if self.must_sync and not _synced():
            self.note(f"unsynced {what}")
        self.note(what, key)
        self._sleep()
        self.point(f"acted {what}")
        return f"{what} done"

    def _sleep(self) -> None:
        if self.slow_s:
            time.sleep(self.slow_s / 2)

    def bank(self, key: str, what: str) -> None:
        """A service that honours keys, in an SQLite file of its own."""
        with closing(sqlite3.connect(self.place / "bank.db", timeout=60)) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS deposits (key TEXT PRIMARY KEY, what TEXT)")
            db.execute("INSERT OR IGNORE INTO deposits VALUES (?, ?)", (key, what))

    def store(self, **options: Any) -> Any:
        """The store of the runs, with points.

        Without `full_sync`, because a kill takes no power.
        """
        return stores.watched(self, **{"full_sync": False, **options})


def _synced() -> bool:
    """Whether all that this process wrote is on the disk, or is a moment later: a thread may be
    renewing a lease.
    """
    for _ in range(200):
        if not system_calls.unsynced():
            return True
        time.sleep(0.005)
    return False
