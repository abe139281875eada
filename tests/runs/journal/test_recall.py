"""A kept run as events, for readers who come later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_script import native_step

from ferrule import Event, ReAct, Run, SQLiteStore, context, tool
from ferrule.errors import UnavailableError
from ferrule.testing import ScriptedLM


@tool(require_confirmation=True)
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


def program() -> ReAct:
    return ReAct(
        "question -> answer",
        [ReAct("job -> outcome", [pay], native=True).as_tool("sub")],
        native=True,
    )


def script(request: Any) -> Any:
    is_inside = any(tool["function"]["name"] == "pay" for tool in request.tools)
    if request.messages[-1].role == "tool":
        return native_step("e", "finish", {"outcome": "O"} if is_inside else {"answer": "A"})
    return (
        native_step("p", "pay", {"to": "ann"})
        if is_inside
        else native_step("s", "sub", {"job": "a"})
    )


TELLING = {
    "RunStarted",
    "ModelAnswered",
    "CallStarted",
    "CallFinished",
    "QuestionAsked",
    "RunFinished",
}


def shown(event: Event) -> tuple[str, str, int]:
    return event.type, event.path, event.depth


def test_a_kept_run_is_told_as_it_happened(tmp_path: Path) -> None:
    store, told = SQLiteStore(tmp_path / "runs.db"), list[Event]()
    with context(lm=ScriptedLM(by=script), callbacks=[told.append]):
        run = program().start(store=store, question="q")
        again = Run.load(store, run.id, program())
        waiting = [shown(event) for event in again.events()]
        live = [
            shown(event)
            for event in told
            if event.type in TELLING and (event.depth == 0 or event.type[:3] != "Run")
        ]
        assert waiting == [
            ("QuestionAsked", "1.0/sub", 1) if each[0] == "QuestionAsked" else each for each in live
        ]
        run.answer(run.pending[0].approve())
        run.resume()
        again = Run.load(store, run.id, program())
        recalled = again.events()
    ended = [
        event
        for event in told
        if event.type in TELLING - {"QuestionAsked"}
        and (event.depth == 0 or event.type[:3] != "Run")
    ]
    ended = [event for event in ended if getattr(event, "status", "") != "waiting"]
    assert [shown(event) for event in recalled] == [shown(event) for event in ended]
    left_out = {"at", "number", "parent_id", "response"}
    for found, live in zip(recalled, ended, strict=True):
        found_json, live_json = found.as_json(), live.as_json()
        assert {name: value for name, value in found_json.items() if name not in left_out} == {
            name: value for name, value in live_json.items() if name not in left_out
        }
    assert json.loads(json.dumps([event.as_json() for event in recalled]))[-1]["prediction"][
        "outputs"
    ] == {"answer": "A"}


def test_a_reader_goes_on_after_the_path_that_it_saw_last(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    with context(lm=ScriptedLM(by=script)):
        run = program().start(store=store, question="q")
    events = Run.load(store, run.id, program()).events()
    assert Run.load(store, run.id, program()).events(after="1.0") == events[3:]
    assert [event.type for event in events[3:]] == ["ModelAnswered", "QuestionAsked", "RunFinished"]
    assert Run.load(store, run.id, program()).events(after="7")[1:] == events[1:]


def test_a_failed_run_is_told_with_its_error(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    with context(lm=ScriptedLM([UnavailableError("down")])):
        run = program().start(store=store, question="q")
    with pytest.raises(UnavailableError):
        _ = run.prediction
    last = Run.load(store, run.id, program()).events()[-1].as_json()
    assert (last["type"], last["status"], last["error"]["type"]) == (
        "RunFinished",
        "failed",
        "UnavailableError",
    )
