"""A thread of the parent does not live on in the child of a fork: what it held there would stay held for ever."""

from __future__ import annotations

import importlib
import os
import re
import threading
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
_LOCK = re.compile(r"^(\w+) = threading\.R?Lock\(\)", re.MULTILINE)
LOCKS = [
    (".".join(path.relative_to(SRC).with_suffix("").parts), name)
    for path in sorted((SRC / "ferrule").rglob("*.py"))
    for name in _LOCK.findall(path.read_text(encoding="utf-8"))
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize(
    ("module", "name"),
    LOCKS,
    ids=[f"{module}.{name}" for module, name in LOCKS],
)
def test_a_lock_of_a_module_that_a_thread_holds_is_free_in_a_forked_child(
    module: str,
    name: str,
) -> None:
    for part, extra in (("postgres", "psycopg"), ("mcp", "mcp")):
        if part in module.split("."):
            pytest.importorskip(extra)
    found = importlib.import_module(module)
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with getattr(found, name):
            held.set()
            forked.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if getattr(found, name).acquire(blocking=False) else 1)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
