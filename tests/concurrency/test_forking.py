"""A thread of the parent does not live on in the child of a fork: what it held would stay held."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from ferrule.concurrency.forking import ForkGuard, ForkLock, run_in_child

SRC = Path(__file__).parents[2] / "src"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def holds_in_child(check) -> bool:
    """Whether a check is true in a child of this process."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_fork
@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_a_lock_that_a_thread_holds_is_free_in_a_forked_child(make) -> None:
    guard = ForkLock(make)
    holds, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with guard.lock:
            holds.set()
            may_end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(60)
    assert holds_in_child(lambda: guard.lock.acquire(blocking=False))
    may_end.set()
    thread.join()


def test_locks_of_modules_are_fork_locks() -> None:
    """Except one, which a fork takes before it happens."""
    bare = {
        f"{path.stem}.{name}"
        for path in (SRC / "ferrule").rglob("*.py")
        for name in re.findall(
            r"^(\w+)(?:: .+)? = (?:threading\.)?R?Lock\(\)",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    }
    assert bare <= {"file._connecting", "late_model._LOCK"}


@needs_fork
def test_a_function_runs_in_the_child_before_its_code() -> None:
    processes = []
    run_in_child(lambda: processes.append(os.getpid()))
    assert holds_in_child(lambda: processes == [os.getpid()])
    assert processes == []


@needs_fork
def test_a_guard_tells_once_that_its_object_was_forked() -> None:
    guard = ForkGuard()
    assert holds_in_child(lambda: (guard.has_forked(), guard.has_forked()) == (True, False))
    assert not guard.has_forked()
