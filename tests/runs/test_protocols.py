"""What is no store, no id, no status and no age of a run is refused where it is passed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ferrule import MemoryStore, Predict, Run, SQLiteStore, advance, context
from ferrule.approval.question import Decision
from ferrule.errors import ConfigurationError, InputError, StoreError
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


NEVER_IDS = [None, "a\0b", "\ud800", 3, b"r", ["r"], math.nan, object]


@pytest.mark.parametrize("run_id", NEVER_IDS, ids=ascii)
def test_no_store_has_a_run_with_an_id_that_none_can_have(any_store: Any, run_id: Any) -> None:
    """And none says that its file is damaged, or that its database failed."""
    methods: dict[str, Callable[[], Any]] = {
        "load": lambda: any_store.load(run_id),
        "summary": lambda: any_store.summary(run_id),
        "cancel": lambda: any_store.cancel(run_id),
        "cancel_call": lambda: any_store.cancel_call(run_id, "c1"),
        "say": lambda: any_store.say(run_id, "Hello."),
        "deliver": lambda: any_store.deliver(run_id, "key", 1),
        "decide": lambda: any_store.decide(run_id, Decision("q1", "approve")),
        "assign": lambda: any_store.assign(run_id, "ann"),
        "add_note": lambda: any_store.add_note(run_id, "Look."),
        "notes": lambda: any_store.notes(run_id),
        "delete": lambda: any_store.delete(run_id),
        "redact": lambda: any_store.redact(run_id),
    }
    for name, method in methods.items():
        with pytest.raises(StoreError) as caught:
            method()
        assert str(caught.value).endswith(f"has no run {run_id!r}."), name


@pytest.mark.parametrize("run_id", ["", *NEVER_IDS[1:]], ids=ascii)
def test_an_id_that_not_every_store_keeps_is_refused_by_all(any_store: Any, run_id: Any) -> None:
    for door in (PROGRAM.start, PROGRAM.submit):
        with pytest.raises(InputError, match="`run_id` is a text"):
            door(a="x", store=any_store, run_id=run_id)
    assert any_store.list() == []


WRONG_CHOICES: list[dict[str, Any]] = [
    {"order": ["cost"]},
    {"order": None},
    {"ascending": "no"},
    {"before": (math.nan, "r")},
    {"before": (1.0, "a\0b")},
    {"tool_failed": "yes"},
    {"since": True},
    *[
        {name: value}
        for name in ("program", "tool", "model", "evaluation", "assigned")
        for value in ("a\0b", "\ud800", 3)
    ],
]


@pytest.mark.parametrize("choice", WRONG_CHOICES, ids=ascii)
def test_a_list_is_not_chosen_by_what_cannot_be_meant(
    any_store: Any, choice: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=f"`{next(iter(choice))}` is"):
        any_store.list(**choice)


@pytest.mark.parametrize("older_than_s", [None, -1, -0.5, "9", True, math.nan, [], object])
def test_what_is_no_age_prunes_nothing(any_store: Any, older_than_s: Any) -> None:
    """A negative age would delete each run that has ended."""
    with context(lm=ScriptedLM([{"outputs": {"b": "y"}}])):
        Predict("a -> b").start(a="x", store=any_store, run_id="r")
    with pytest.raises(ConfigurationError, match="`older_than_s` is a number"):
        any_store.prune(older_than_s=older_than_s)
    with pytest.raises(ConfigurationError, match="`statuses` is"):
        any_store.prune(older_than_s=1, statuses=older_than_s or 3)
    assert any_store.summary("r").status == "done"
    assert any_store.prune(older_than_s=math.inf) == 0
    assert any_store.prune(older_than_s=0) == 1


@pytest.mark.parametrize("number", [None, -1, 0.5, "9", True, math.nan])
def test_what_is_no_number_of_an_entry_or_no_time_is_refused(any_store: Any, number: Any) -> None:
    PROGRAM.submit(a="x", store=any_store, run_id="r")
    with pytest.raises(ConfigurationError, match="`after` is a whole number"):
        any_store.load("r", after=number)
    if number not in {-1, 0.5}:
        with pytest.raises(ConfigurationError, match="`since` is a number"):
            any_store.overview(since=number, until=0)
        with pytest.raises(ConfigurationError, match="`until` is a number"):
            any_store.overview(since=0, until=number)
    assert any_store.load("r", after=10**18).entries == []
    assert any_store.look([]) == []
