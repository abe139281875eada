"""Runs that are killed, interrupted, stopped and raced come to the same end, and do nothing twice
(`tests/killing`; all: `make kill-test`).
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import pytest
from killing import mutants, stores, system_calls
from killing.agents import EVERY, Scenario
from killing.judging import CLASSES, Expected, faults, read
from killing.processes import DONE, WAITS, judge_questions, work
from killing.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from postgres_server import PostgresServer

TESTS = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked"),
]


def said_by(*told: str) -> subprocess.CompletedProcess[str]:
    """A part of the kill test."""
    return forked.run("-m", *told, env={"PYTHONPATH": str(TESTS)})


def disturbed(*told: str) -> dict[str, int]:
    """The figures of `python -m killing`, by one worker, which finds no fault."""
    found = said_by("killing", "--workers", "1", *told)
    figures = dict(re.findall(r"([\w-]+): (\d+)", found.stdout.strip().rpartition("\n")[2]))
    said = found.stdout + found.stderr
    assert found.returncode == 0, said
    assert {name: figures[name] for name in CLASSES} == dict.fromkeys(CLASSES, "0"), said
    return {name: int(count) for name, count in figures.items()}


def test_nothing_is_lost_or_done_twice_wherever_the_process_is_killed() -> None:
    """A few kills of one scenario; the rest is for `make kill-test`.

    Answers, effects, keys, rows and questions are compared.
    """
    figures = disturbed(
        "--kills", "5", "--races", "0", "--interrupts", "0", "--only", "every effect, async"
    )
    assert figures["kills"] >= 4, figures


def test_nothing_is_lost_or_done_twice_by_races_and_interrupts() -> None:
    figures = disturbed("--kills", "0", "--races", "2", "--interrupts", "3")
    assert figures["races"] == 2, figures
    assert figures["Ctrl-C"] >= 3, figures


@pytest.mark.long
@pytest.mark.usefixtures("postgres")
def test_nothing_is_lost_or_done_twice_on_postgres_either() -> None:
    """Killed also in the middle of what is sent and received.

    All scenarios, races and Ctrl-C: `scripts/pg-kills.sh`.
    """
    figures = disturbed(
        "--postgres",
        "--kills",
        "4",
        "--races",
        "0",
        "--interrupts",
        "0",
        "--only",
        "every effect, async",
    )
    assert figures["kills"] >= 3, figures


def test_a_run_with_long_results_and_metadata_survives_kills() -> None:
    """What the model was not shown is read from the run, and `list` finds the run by its metadata."""
    figures = disturbed(
        "--kills", "4", "--races", "0", "--interrupts", "0", "--only", "long results, async"
    )
    assert figures["kills"] >= 3, figures


def test_a_run_keeps_its_instructions_tools_and_skills_across_kills() -> None:
    """Its functions would choose others in each process."""
    figures = disturbed(
        "--kills", "4", "--races", "0", "--interrupts", "0", "--only", "chosen for the run"
    )
    assert figures["kills"] >= 3, figures


@pytest.mark.long
@pytest.mark.usefixtures("postgres")
def test_a_process_that_stops_for_longer_than_its_lease_is_fenced_on_postgres() -> None:
    figures = disturbed(
        "--postgres",
        "--kills",
        "0",
        "--races",
        "1",
        "--interrupts",
        "0",
        "--only",
        "stopped",
    )
    assert figures["races"] == 1, figures


@pytest.mark.long
@pytest.mark.usefixtures("postgres")
def test_workers_reach_postgres_through_a_pooler() -> None:
    """By `--store 'postgresql://...?liveness=heartbeat'`; no ticket fails.

    Outages, cuts and upgrades: `scripts/pg-kills.sh`.
    """
    pytest.importorskip("dbos", reason="needs ferrule[dbos]")
    found = said_by("killing.troubles", "--only", "a pooler", "--runs", "6")
    assert found.returncode == 0, found.stdout + found.stderr


ONE_AFTER_ANOTHER = Scenario("undisturbed", EVERY)
NESTED = Scenario("nested, undisturbed", ("clerk 1 + clerk 2", "pay 3"), asks_at_once=2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Scenario], World]:
    """The folder of a run that nothing disturbed: worked on once for all tests of a scenario."""

    worlds: dict[str, World] = {}

    def world_of(scenario: Scenario) -> World:
        if scenario.name not in worlds:
            world = World(tmp_path_factory.mktemp("undisturbed") / "run")
            world.place.mkdir()
            carry_to_its_end(world, scenario)
            worlds[scenario.name] = world
        return worlds[scenario.name]

    return world_of


def carry_to_its_end(world: World, scenario: Scenario) -> None:
    while (code := work(world, scenario)) != DONE:
        assert code == WAITS
        assert judge_questions(world, scenario) == DONE


@pytest.fixture
def finished(
    tmp_path: Path, undisturbed: Callable[[Scenario], World]
) -> Callable[..., tuple[World, Scenario, Expected]]:
    """Makes a copy of a run that nothing disturbed, for the test to damage."""

    def copy(scenario: Scenario = ONE_AFTER_ANOTHER) -> tuple[World, Scenario, Expected]:
        # The folder keeps its name: the name is the task, and part of the answer.
        world = World(tmp_path / "run")
        shutil.copytree(undisturbed(scenario).place, world.place)
        return world, scenario, read(world)

    return copy


def kinds(world: World, scenario: Scenario, expected: Expected, strikes: int = 0) -> list[str]:
    return [fault.kind for fault in faults(world, scenario, expected, strikes)]


def test_a_run_that_nothing_disturbs_has_no_fault(finished: Callable[..., Any]) -> None:
    assert kinds(*finished()) == []


@pytest.mark.parametrize("what", ["look 0", "pay 1", "fetch 2", "ship 6", "refund 7", "model"])
def test_an_effect_too_many_counts_as_a_duplicate(finished: Callable[..., Any], what: str) -> None:
    run = finished()
    [key, *_] = [key for done, key in run[0].noted() if done == what]
    run[0].note(what, key)
    assert kinds(*run) == ["duplicates"]


@pytest.mark.parametrize(
    ("scenario", "at_once"),
    [(ONE_AFTER_ANOTHER, 1), (NESTED, 2)],
    ids=["one after another", "nested"],
)
def test_each_strike_excuses_the_questions_to_models_that_are_asked_at_once(
    finished: Callable[..., Any],
    scenario: Scenario,
    at_once: int,
) -> None:
    run = finished(scenario)
    for strikes in (1, 2):
        for _ in range(at_once):
            run[0].note("model")
        assert kinds(*run, strikes=strikes) == []
        assert kinds(*run, strikes=strikes - 1) == ["duplicates"]


def test_effects_at_once_are_not_excused_by_a_strike(finished: Callable[..., Any]) -> None:
    run = finished(NESTED)
    [key] = [key for done, key in run[0].noted() if done == "pay 11"]
    run[0].note("pay 11", key)
    assert kinds(*run, strikes=1) == ["duplicates"]


def test_a_second_key_counts_as_a_duplicate(finished: Callable[..., Any]) -> None:
    run = finished()
    run[0].note("fetch 2", "another key")
    assert kinds(*run, strikes=1) == ["duplicates"]


@pytest.mark.parametrize("what", ["look 0", "pay 1", "fetch 2", "ship 6", "refund 7"])
def test_an_effect_that_is_not_there_counts_as_lost(
    finished: Callable[..., Any], what: str
) -> None:
    run = finished()
    file = run[0].place / "effects"
    file.write_text(
        "".join(
            line for line in file.read_text().splitlines(keepends=True) if f'["{what}"' not in line
        ),
    )
    assert kinds(*run) == ["lost"]


@pytest.mark.parametrize(
    ("sql", "kind"),
    [("DELETE FROM orders WHERE n = 5", "lost"), ("INSERT INTO orders VALUES (5)", "duplicates")],
)
def test_rows_of_a_transaction_are_counted(
    finished: Callable[..., Any], sql: str, kind: str
) -> None:
    run = finished()
    with closing(sqlite3.connect(run[0].place / "runs.db")) as db, db:
        db.execute(sql)
    assert kinds(*run) == [kind]


def test_another_answer_counts_as_wrong(finished: Callable[..., Any]) -> None:
    run = finished()
    (run[0].place / "answer").write_text(run[2].answer.replace("pay 1 done", "pay 1 failed"))
    assert kinds(*run) == ["wrong"]


def test_a_question_about_a_call_that_nothing_cut_off_counts_as_wrong(
    finished: Callable[..., Any],
) -> None:
    run = finished()
    run[0].note("asked unknown pay 1")
    assert kinds(*run) == ["wrong"]
    assert kinds(*run, strikes=1) == []


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("DELETE FROM {schema}.orders WHERE n = 5", "lost"),
        ("INSERT INTO {schema}.orders VALUES (5)", "duplicates"),
        ("UPDATE {schema}.entries SET place = place + 1000 WHERE place & 255 = 7", "corrupt"),
    ],
)
def test_what_a_run_left_in_postgres_is_judged_alike(
    tmp_path: Path,
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    sql: str,
    kind: str,
) -> None:
    monkeypatch.setenv(stores.DSN, postgres.dsn)
    world = World(tmp_path)
    with stores.kept(world):
        carry_to_its_end(world, ONE_AFTER_ANOTHER)
        run = world, ONE_AFTER_ANOTHER, read(world)
        assert kinds(*run) == []
        stores.run_sql(world, sql)
        assert kind in kinds(*run)


def test_a_damaged_store_counts_as_corrupt(finished: Callable[..., Any]) -> None:
    run = finished()
    run[0].store().close()
    with closing(sqlite3.connect(run[0].place / "runs.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file = run[0].place / "runs.db"
    damaged = bytearray(file.read_bytes())
    damaged[4096 * 2 : 4096 * 3] = os.urandom(4096)
    file.write_bytes(damaged)
    assert "corrupt" in kinds(*run)


def test_without_a_c_compiler_system_calls_are_skipped_with_a_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert system_calls.build(tmp_path) == ({}, "there is no C compiler (cc)")


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_of_the_library_can_be_made(tmp_path: Path, mutant: mutants.Mutant) -> None:
    """`scripts/mutants.sh` shows that each is caught."""
    assert mutants.mutate(tmp_path, mutant) is None
