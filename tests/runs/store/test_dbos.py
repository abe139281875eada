"""How a worker's process of DBOS looks for tickets.

`tests/integration/test_workers.py` has whole workers.
"""

from __future__ import annotations

import importlib
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ferrule import DBOSEngine
from ferrule.runs.store.dbos import _check_connection

queues: Any = pytest.importorskip("dbos._queue")
LONG_S = 3600.0


class Stopping(threading.Event):
    """An event whose `wait` only notes how long it would have been."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


def interval(
    engine: DBOSEngine,
    stop: threading.Event,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """What the thread that polls a queue waits on."""
    given: list[Any] = []
    monkeypatch.setattr(queues, "queue_worker_thread", lambda stop, dbos, queue: given.append(stop))
    engine._poll_when_free()
    queues.queue_worker_thread(stop, None, SimpleNamespace(name=queue))
    return given[0]


def test_a_busy_worker_looks_for_tickets_as_soon_as_a_slot_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, stop = DBOSEngine(), Stopping()
    waits = interval(engine, stop, "ferrule", monkeypatch)
    engine._full_at = time.monotonic()
    engine._note_free_slot(None)
    assert not waits.wait(LONG_S)  # at once, although an hour is left
    assert stop.waits == [
        pytest.approx(LONG_S / 5),
    ]  # others that end meanwhile are replaced by the same look
    engine._note_free_slot(None)
    stop.set()
    assert waits.wait(LONG_S)
    assert waits.is_set()


def test_a_worker_with_free_slots_keeps_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = DBOSEngine()
    waits = interval(engine, Stopping(), "ferrule", monkeypatch)
    engine._note_free_slot(None)
    assert not engine._free.is_set()
    assert not waits.wait(0.001)


def test_the_other_queues_of_dbos_keep_their_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stopping()
    assert interval(DBOSEngine(), stop, "_dbos_internal_queue", monkeypatch) is stop


def test_what_seldom_changes_is_not_read_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    class Database:
        asked: ClassVar[list[str]] = []

        def _is_latest_version(self, version: str, connection: Any) -> bool:
            raise AssertionError(version, connection)

        def get_queue(self, name: str, **options: Any) -> str:
            self.asked.append(f"{name} {options}")
            return f"{name} {len(self.asked)}"

    database, seconds = Database(), [100.0]
    monkeypatch.setattr(
        "ferrule.runs.store.dbos.time",
        SimpleNamespace(monotonic=lambda: seconds[0]),
    )
    monkeypatch.setattr(queues, "queue_worker_thread", lambda *_: None)
    DBOSEngine()._poll_when_free()
    queues.queue_worker_thread(
        Stopping(),
        SimpleNamespace(_sys_db=database),
        SimpleNamespace(name="ferrule"),
    )
    assert database._is_latest_version("ferrule", None)
    assert [database.get_queue("ferrule"), database.get_queue("ferrule")] == [
        "ferrule 1",
        "ferrule 1",
    ]
    assert database.get_queue("other") == "other 2"
    assert database.get_queue("ferrule", x=1) == "ferrule 3"
    seconds[0] += 1
    assert database.get_queue("ferrule") == "ferrule 4"


def test_where_the_private_names_of_dbos_are_gone_it_works_as_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = SimpleNamespace()
    monkeypatch.setattr(queues, "queue_worker_thread", lambda *_: None)
    DBOSEngine()._poll_when_free()
    queues.queue_worker_thread(
        Stopping(),
        SimpleNamespace(_sys_db=database),
        SimpleNamespace(name="ferrule"),
    )
    assert vars(database) == {}


def test_an_idle_connection_that_was_cut_is_not_used() -> None:
    here, there = socket.socketpair()
    with here, there:
        _check_connection(here)
        there.close()
        with pytest.raises(importlib.import_module("sqlalchemy.exc").DisconnectionError):
            _check_connection(here)
