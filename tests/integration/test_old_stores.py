"""Runs and programs that were stored before load, continue and end as they did then (`tests/stores`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from stores.programs import HALL, SAVED, STORES, asked_of, outcome, write

import ferrule
from ferrule import ReAct, SQLiteStore, Usage

DATA = Path(__file__).parents[1] / "stores"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())

REWORDED = {"waiting/policy": "f407cd3c6eff4d6a", "waiting/expired": "d7d6fb1bcdd4b5a2"}
"""Conversations with a denial whose text for the model is another now: the journal has the decision, and a replay makes its text."""

pytestmark = pytest.mark.integration


def plain(found: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(found))


def under_names_of_now(expected: dict[str, Any]) -> dict[str, Any]:
    """Errors are recorded by their class; one that was renamed since is known by both names."""
    rests = [
        [status, error and getattr(ferrule, error).__name__, *more] if more else [status, error]
        for status, error, *more in expected["rests"]
    ]
    return {**expected, "rests": rests}


def needs_sdk(name: str) -> None:
    """The hall is an MCP server."""
    if "hall" in name:
        pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")


@pytest.mark.parametrize(("of", "name"), [(of, name) for of, runs in STORES.items() for name in runs])
def test_a_stored_run_ends_as_it_did(tmp_path: Path, of: str, name: str) -> None:
    """The status and the questions at each rest, the effects, the calls of the model, the outputs and the conversation are equal."""
    needs_sdk(name)
    path = shutil.copy(DATA / f"{of}.sqlite", tmp_path / "runs.sqlite")
    with closing(SQLiteStore(path)) as store:
        found = outcome(store, name, STORES[of][name], tmp_path)
        expected = under_names_of_now(EXPECTED[f"{of}/{name}"])
        if f"{of}/{name}" in REWORDED:
            expected["end"] = {**expected["end"], "messages": REWORDED[f"{of}/{name}"]}
        assert plain(found) == expected
        if found["end"] is not None:  # and once more, from what is stored now
            again = outcome(store, name, STORES[of][name], tmp_path)
            assert (again["end"], again["effects"], again["asked"]) == (found["end"], [], 0)


def test_every_stored_run_is_listed(tmp_path: Path) -> None:
    """Each store holds the runs of its name and no others."""
    for of, runs in STORES.items():
        with closing(SQLiteStore(shutil.copy(DATA / f"{of}.sqlite", tmp_path / of))) as store:
            assert sorted(each.id for each in store.list()) == sorted(runs)


def test_entries_of_a_store_that_kept_no_times_have_none(tmp_path: Path) -> None:
    """W1: the file is upgraded where it is, and entries that are written from then on have a time."""
    with closing(SQLiteStore(shutil.copy(DATA / "waiting.sqlite", tmp_path / "runs.sqlite"))) as store:
        run_id = next(each.id for each in store.list() if store.load(each.id).entries)
        before = store.load(run_id)
        lease = store.take(run_id, after=0).lease
        assert lease is not None
        store.append(lease, "{}")
        after = store.load(run_id)
    assert before.times == [None] * len(before.entries)
    assert after.entries == [*before.entries, "{}"]
    assert after.times[:-1] == before.times
    assert after.times[-1] is not None


def test_runs_of_a_store_that_kept_no_usage_have_none_until_they_rest_again(tmp_path: Path) -> None:
    """W2: the file is upgraded where it is."""
    with closing(SQLiteStore(shutil.copy(DATA / "waiting.sqlite", tmp_path / "runs.sqlite"))) as store:
        before = store.list()
        lease = store.take(before[0].id, after=0).lease
        assert lease is not None
        head = json.loads(store.load(before[0].id).head)
        store.release(lease, status="waiting", head=json.dumps({**head, "usage": {"input_tokens": 3, "calls": 1, "cost": 0.5}}))
        after = store.summary(before[0].id)
    assert [each.usage for each in before] == [Usage()] * len(before)
    assert (after.usage, after.cost) == (Usage(3, calls=1, cost=0.5), 0.5)


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_program_does_what_it_did(tmp_path: Path, name: str) -> None:
    """What the model is sent, the effects and the outputs are equal."""
    needs_sdk(name)
    program = SAVED[name].fresh(tmp_path)
    program.load(DATA / "saved" / f"{name}.json")
    assert plain(asked_of(program, SAVED[name])) == EXPECTED[f"saved/{name}"]


def test_a_saved_program_reaches_its_server_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program has no server: how it is reached stands in the file."""
    needs_sdk("hall")
    shutil.copy(HALL, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    program = ReAct("task -> answer", [write], native=True)
    program.load(DATA / "saved" / "hall.json")
    assert plain(asked_of(program, SAVED["hall"])) == EXPECTED["saved/hall"]
    assert "call pay" in (tmp_path / "hall.log").read_text()


def test_stored_data_names_no_module_of_ferrule_and_no_place() -> None:
    """Both change."""
    for path in [*DATA.glob("*.sqlite"), *DATA.glob("saved/*.json"), DATA / "expected.json"]:
        found = path.read_bytes()
        assert re.search(rb"ferrule\.\w+\.\w+|/(?:tmp|home|root|usr|work)/", found) is None, path.name
