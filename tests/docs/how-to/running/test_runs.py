"""The claims of docs/how-to/running/runs.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from ferrule import (
    Context,
    InputError,
    MemoryStore,
    Module,
    Predict,
    ReAct,
    Run,
    RunError,
    SQLiteStore,
    Store,
    context,
)
from ferrule.errors import ConfigurationError, StoreError
from ferrule.testing import ScriptedLM

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "running" / "runs.md"


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/running/runs.md")["store"].close()


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/running/runs.md") == []


def test_the_numbers_of_the_page_are_the_defaults() -> None:
    """Thirty seconds, five recoveries."""
    defaults = {
        name: each.default for name, each in inspect.signature(SQLiteStore).parameters.items()
    }
    assert (
        defaults["path"],
        defaults["lease_s"],
        defaults["max_recoveries"],
        defaults["full_sync"],
    ) == ("ferrule.db", 30.0, 5, True)


def test_the_page_names_what_a_store_does() -> None:
    """Every method of the port, but the ways of writing an entry, which are one."""
    [said] = re.findall(r"small protocol: ([a-z_, ]+)\.", PAGE.read_text(encoding="utf-8"))
    methods = {name for name in vars(Store) if not name.startswith("_")} - {
        "aappend",
        "transaction",
    }
    assert set(said.split(", ")) == methods


def test_a_loaded_result_has_its_text_and_no_value() -> None:
    def weigh() -> float:
        """Weigh a parcel."""
        return 2.5

    store, agent = MemoryStore(), ReAct("task -> answer", [weigh])
    with context(
        lm=ScriptedLM(
            [{"name": "weigh", "args": {}}, {"name": "finish", "args": {"answer": "2.5"}}],
        ),
    ):
        made = agent.start(task="Weigh it.", store=store, run_id="r").trajectory.steps[0].results[0]
        loaded = Run.load(store, "r", agent).trajectory.steps[0].results[0]
    assert (made.value, made.content) == (2.5, "2.5")
    assert (loaded.value, loaded.content) == (None, "2.5")


def needs_deps(ctx: Context[str]) -> str:
    """Use the dependencies."""
    return ctx.deps


@pytest.mark.parametrize(
    ("error", "program", "options"),
    [
        (InputError, Predict("task -> answer"), {"run_id": ""}),
        (RunError, Predict("task: object -> answer"), {"task": object(), "store": MemoryStore()}),
        (RunError, Predict("task -> answer"), {"lm": ScriptedLM([]), "store": MemoryStore()}),
        (ConfigurationError, ReAct("task -> answer", [needs_deps]), {}),
        (StoreError, Predict("task -> answer"), {"store": SQLiteStore("/no/such/folder/runs.db")}),
    ],
    ids=[
        "an invalid id",
        "an input that cannot be stored",
        "an option that cannot be stored",
        "no deps",
        "no store",
    ],
)
def test_start_raises_what_keeps_a_run_from_beginning(
    error: type[Exception],
    program: Module,
    options: dict[str, Any],
) -> None:
    with context(lm=ScriptedLM([])), pytest.raises(error):
        program.start(**{"task": "x", **options})


def test_start_returns_a_failed_run_if_a_later_write_fails() -> None:
    class Full(MemoryStore):
        def append(self, *args: Any, **options: Any) -> Any:
            del args, options
            raise StoreError("the disk is full")

    with context(lm=ScriptedLM([{"outputs": {"answer": "x"}}])):
        run = Predict("task -> answer").start(task="x", store=Full())
    assert run.status == "failed"
    assert isinstance(run.error, StoreError)
