"""Whether a test of MCP servers left anything behind: child processes and threads.

A fixture: `from mcp_leaks import nothing_left`.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import forked
import pytest


def children() -> set[int]:
    """The living child processes of this one; nothing where there is no /proc."""
    found: set[int] = set()
    for task in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        try:
            found |= {int(each) for each in task.read_text().split()}
        except OSError:  # the thread ended meanwhile
            continue
    return found


def strangers() -> set[str]:
    """Threads that are not the house's own: its loop and its pool stay."""
    return {
        each.name
        for each in threading.enumerate()
        if not each.name.startswith(("ferrule-", "MainThread", "asyncio_"))
    }


@pytest.fixture
def nothing_left():
    """After the test there is no child and no thread that was not there before."""
    forked.start_fork_server()
    before, threads = children(), strangers()
    yield
    for _ in range(1_200):
        left, more = children() - before, strangers() - threads
        if not left and not more:
            return
        time.sleep(0.05)
    assert (left, more) == (set(), set())
