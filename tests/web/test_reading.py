"""A long run is read from its latest turns on, and shows the same as a run that was read whole
(`web/reading.py`).
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace
from page_store import fill, support

from ferrule import (
    MemoryStore,
    Module,
    ReAct,
    Response,
    Run,
    SQLiteStore,
    ToolCall,
    Usage,
    context,
    gather,
    tool,
)  # fmt: skip
from ferrule.errors import StoreError
from ferrule.testing import ScriptedLM
from ferrule.web import reading
from ferrule.web.reading import Readings, read_run
from ferrule.web.render import steps_html
from ferrule.web.timeline import grouped_steps

if TYPE_CHECKING:
    from pathlib import Path

TURNS = 60


@tool
def echo(text: str) -> str:
    """Say it again."""
    return text


@tool(require_confirmation=True)
def pay(text: str) -> str:
    """Pay."""
    return f"paid {text}"


def by(request: Any) -> Response:
    turn = sum(each.role == "tool" for each in request.messages)
    call = ToolCall(name="pay" if turn == TURNS - 2 else "echo", args={"text": f"t{turn}"})
    call = ToolCall(name="finish", args={"answer": "ok"}) if turn == TURNS - 1 else call
    return Response(
        "",
        (call,),
        f"Thought {turn}.",
        usage=Usage(10, 2, calls=1),
        model="m",
        cost=0.001,
    )


def long_run(store: Any) -> Run[Any]:
    """A run that waits at its turn before the last."""
    with context(lm=ScriptedLM(by=by)):
        return ReAct("message -> answer", [echo, pay], max_iters=TURNS + 1).start(
            message="x",
            store=store,
            run_id="long",
        )


def end(run: Run[Any]) -> None:
    run.answer(run.pending[0].approve().signed("ann", "web"))
    with context(lm=ScriptedLM(by=by)):
        run.resume()
    assert run.status == "done"


def shown(read: reading.Read, count: int) -> str:
    return _steps_html(read.turns_between(read.turns - count, read.turns), "/runs/x", {})


def test_the_latest_turns_of_a_long_run_are_those_of_the_whole() -> None:
    store = MemoryStore()
    end(long_run(store))
    latest, whole = Readings(store).read("long"), read_run(store, "long")
    assert (len(latest.story.beats), latest.turns, whole.turns) == (reading.LATEST, TURNS, TURNS)
    assert shown(latest, reading.LATEST) == shown(whole, reading.LATEST)
    assert (latest.usage.counts, latest.inputs, latest.story.entries) == (
        whole.usage.counts,
        whole.inputs,
        whole.story.entries,
    )


def test_a_run_that_waited_when_it_was_read_goes_on_where_it_was() -> None:
    store = MemoryStore()
    run = long_run(store)
    latest = (readings := Readings(store)).read("long")
    before = latest.story.entries
    assert (latest.is_whole, latest.turns) == (False, TURNS - 1)
    end(run)
    assert readings.read("long") is latest
    whole = read_run(store, "long")
    assert [each.first for each in latest.since(before)] == [
        each.first for each in whole.since(before)
    ]
    assert shown(latest, reading.LATEST) == shown(whole, reading.LATEST)
    assert latest.usage.counts == whole.usage.counts


def test_what_is_older_is_read_when_it_is_asked_for() -> None:
    store = MemoryStore()
    end(long_run(store))
    readings = Readings(store)
    latest = readings.read("long")
    assert readings.read("long", latest.start) is latest
    with pytest.raises(StoreError, match="no such turn"):
        latest.beat(0)
    whole = readings.read("long", latest.start - 1)
    assert (whole.is_whole, whole.start, len(whole.story.beats)) == (True, 0, TURNS)
    assert whole.beat(0).reasoning == "Thought 0."
    assert readings.read("long") is whole


def test_any_run_shows_the_same_latest_turns_however_it_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    fill(store)
    partly = 0
    for run in store.list():
        for count in (1, 2):
            monkeypatch.setattr(reading, "LATEST", count)
            monkeypatch.setattr(reading, "FEW", count)
            latest, whole = Readings(store).read(run.id), read_run(store, run.id)
            assert (latest.turns, shown(latest, count)) == (whole.turns, shown(whole, count))
            assert latest.usage.counts == whole.usage.counts
            partly += not latest.is_whole
    assert partly


@pytest.mark.parametrize(
    "first",
    [
        {"v": 1, "slot": "0/sub/0", "kind": "once", "digest": "", "value": 1},
        {"slot": "0", "v": 1, "kind": "once", "digest": "", "value": 1},
        {"v": 1, "slot": "0", "kind": "once", "digest": "", "value": 1},
    ],
    ids=["a program inside it", "spelt otherwise", "no turn at its beginning"],
)
def test_a_journal_that_only_parsing_tells_apart_is_read_whole(
    tmp_path: Path,
    first: dict[str, Any],
) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    end(long_run(store))
    entries = store.load("long").entries
    lease = store.create(
        "other",
        program="ReAct",
        head=store.load("long").head.replace('"waiting"', '"done"'),
    )
    for each in (json.dumps(first, separators=(",", ":")), *entries):
        store.append(lease, each)
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("UPDATE ferrule_runs SET status = 'done', owner = NULL WHERE id = 'other'")
    found = Readings(store).read("other")
    assert found.is_whole
    assert found.turns == TURNS
    store.close()


def test_a_run_that_executes_is_read_whole_because_its_head_is_old() -> None:
    store = MemoryStore()
    long_run(store)
    store.take("long", after=len(store.load("long").entries))
    assert Readings(store).read("long").is_whole


def test_a_run_of_few_turns_is_read_whole() -> None:
    store = MemoryStore()
    with context(lm=ScriptedLM([Response("", (ToolCall(name="finish", args={"answer": "ok"}),))])):
        support().start(message="x", store=store, run_id="r")
    assert Readings(store).read("r").is_whole


class Growing:
    """A store whose run has another entry each time that it is read."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.count = 0

    def load(self, run_id: str, *, after: int = 0) -> Any:
        found = self.store.load(run_id, after=after)
        self.count += 1
        most = self.count - after
        return replace(found, entries=found.entries[:most], times=found.times[:most])


class AtOnce(Module):
    """Two agents beside each other, whose first calls do not fit."""

    async def aforward(self, message: str) -> Any:
        agent = ReAct("message -> answer", [echo], native=True)
        await gather(*(agent.acall(message=f"{message} {k}") for k in range(2)))
        return await agent.acall(message=message)


def test_a_call_that_did_not_run_is_shown_so_once_the_model_has_answered_again() -> None:
    """Also where another program answered in between, and on a page that was there before."""

    def misspell(request: Any) -> Response:
        is_over = sum(each.role == "assistant" for each in request.messages) == 2
        return Response(
            "",
            (
                ToolCall(name="finish", args={"answer": "ok"})
                if is_over
                else ToolCall(name="echo", args={"txt": "x"}),
            ),
        )

    store = MemoryStore()
    with context(lm=ScriptedLM(by=misspell)):
        assert AtOnce().start(message="x", store=store, run_id="r").status == "done"
    read = reading.Read(cast("Any", Growing(store)), "r")
    page: dict[int, str] = {}
    for number in range(len(store.load("r").entries)):
        read.more()
        _steps_html(read.turns_between(0, read.turns), "/runs/r", read.shown)
        page |= {each.first: shown_alone(each) for each in read.since(number)}
    whole = read_run(store, "r")
    assert shown(whole, whole.turns).count("not run") == 6
    assert _steps_html(read.turns_between(0, read.turns), "/runs/x", read.shown).replace(
        "/runs/r",
        "/runs/x",
    ) == shown(whole, whole.turns)
    assert page == {each.first: shown_alone(each) for each in whole.story.beats}


def shown_alone(beat: Any) -> str:
    return _steps_html([beat], "/runs/x", {})


def _steps_html(beats: Any, base: str, shown: dict[int, str]) -> str:
    return "".join(steps_html(grouped_steps(beats), base, shown))
