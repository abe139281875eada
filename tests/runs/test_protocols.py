"""What is no store, and no status of a run, is refused where it is passed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ferrule import MemoryStore, Predict, Run, SQLiteStore, advance
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM

LM = ScriptedLM([])
PROGRAM = Predict("a -> b", lm=LM)
DOORS: dict[str, Callable[[Any], Any]] = {
    "start": lambda store: PROGRAM.start(a="x", store=store),
    "submit": lambda store: PROGRAM.submit(a="x", store=store),
    "stream": lambda store: PROGRAM.stream(a="x", store=store),
    "batch": lambda store: PROGRAM.batch([{"a": "x"}], store=store),
    "load": lambda store: Run.load(store, "r", PROGRAM),
    "list": Run.list,
    "advance": lambda store: advance(store, "r", PROGRAM),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_path_is_no_store(door: Callable[[Any], Any]) -> None:
    """'str' object has no attribute 'create'."""
    with pytest.raises(
        ConfigurationError,
        match=r"`store` takes a store, such as SQLiteStore\('x\.db'\); found 'x\.db'\.",
    ):
        door("x.db")
    assert LM.requests == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Path("x.db"), r"such as SQLiteStore\('x\.db'\); found .*Path\('x\.db'\)"),
        (SQLiteStore, r"such as SQLiteStore\('ferrule\.db'\); found <class"),
        (None, r"such as SQLiteStore\('ferrule\.db'\); found None"),
        (
            "postgresql://me:secret@host/db",
            r"such as PostgresStore\(\.\.\.\); found the address of one\.$",
        ),
        (
            "host=db password=secret",
            r"such as PostgresStore\(\.\.\.\); found the address of one\.$",
        ),
    ],
    ids=["path", "class", "none", "url", "pairs"],
)
def test_what_is_no_store_is_shown_unless_it_may_hold_a_password(given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Run.list(given)


@pytest.mark.parametrize("limit", [-1, 1.5, "3", True, float("nan"), 10**30])
def test_a_limit_that_is_no_number_of_runs_is_refused(limit: Any) -> None:
    with pytest.raises(
        ConfigurationError,
        match="`limit` is a whole number, 0 or more, or None for all runs; found ",
    ):
        Run.list(MemoryStore(), limit=limit)


@pytest.mark.parametrize("before", [5, (), (1.0,), ("x", "y"), (1.0, 5), (None, None)])
def test_a_page_that_follows_no_line_is_refused(before: Any) -> None:
    with pytest.raises(ConfigurationError, match="`before` is the value and the id of a line"):
        Run.list(MemoryStore(), before=before)


def test_a_misspelled_status_is_refused_with_those_that_exist() -> None:
    """The list was empty, and nothing was pruned."""
    words = "is one of queued, running, waiting, done, failed, cancelled; found "
    for read in (partial(Run.list, MemoryStore()), MemoryStore().list):
        with pytest.raises(ConfigurationError, match=f"`status` {words}'wating'"):
            read(status="wating")
    with pytest.raises(ConfigurationError, match=f"`statuses` {words}'don'"):
        MemoryStore().prune(older_than_s=0, statuses=["don"])
