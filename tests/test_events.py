"""Events as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agent_script import fields, native_step
from pydantic import BaseModel, SecretStr

from ferrule import (
    History,
    Image,
    MemoryStore,
    Predict,
    Prediction,
    ReAct,
    Response,
    Run,
    ToolCall,
    context,
    emit_event,
    errors,
    events,
    tool,
)
from ferrule.errors import UnavailableError
from ferrule.runs.journal.encode import entry_text
from ferrule.testing import ScriptedLM

COMMON = {
    "version",
    "type",
    "run_id",
    "parent_id",
    "path",
    "depth",
    "number",
    "at",
    "root_id",
    "span_id",
    "parent_span_id",
}
DOT = Image.from_bytes(b"dot", "image/png")
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,ZG90"}}


class Person(BaseModel):
    name: str
    password: SecretStr = SecretStr("hunter2")
    photo: Image | None = None


def as_json(event: events.Event) -> Any:
    """The form, after a trip through strict JSON text."""
    form = event.as_json()
    assert json.loads(json.dumps(form, allow_nan=False)) == form
    assert set(form) >= COMMON
    assert form["version"] == 1
    assert form["type"] == type(event).__name__
    return {name: value for name, value in form.items() if name not in COMMON}


def test_every_event_of_a_run_is_json() -> None:
    @tool(require_confirmation=True)
    def look(n: int) -> Any:
        """Look."""
        emit_event("note", {"who": Person(name="ann"), "odd": float("nan"), "set": {1}})
        return [DOT, "a dot"]

    seen: list[Any] = []
    script = [
        native_step("l", "look", {"n": "x"}),
        native_step("l", "look", {"n": 1}),
        native_step("e", "finish", {"answer": "A"}),
    ]
    agent = ReAct("question, photo: Image -> answer", [look], native=True)
    told: list[events.Event] = []
    with context(lm=ScriptedLM(script), callbacks=[told.append]):
        run = agent.start(question="q", photo=DOT)
        run.answer(run.pending[0].approve())
        run.resume()
    seen = [{**event.as_json(), **as_json(event)} for event in told]
    assert {"CallRefused", "QuestionAsked", "Decided", "Resumed", "Custom", "CallFinished"} <= {
        each["type"] for each in seen
    }
    by_type = {each["type"]: each for each in seen}
    assert by_type["RunStarted"]["program"] == "ReAct"
    assert by_type["RunStarted"]["inputs"] == {"question": "q", "photo": SHOWN}
    assert by_type["CallFinished"]["result"]["content"] == [
        SHOWN,
        {"type": "text", "text": "a dot"},
    ]
    assert by_type["Custom"]["name"] == "note"
    assert by_type["Custom"]["payload"] == {
        "who": {"name": "ann", "password": "**********", "photo": None},
        "odd": "NaN",
        "set": [1],
    }
    assert by_type["RunFinished"]["prediction"]["outputs"] == {"answer": "A"}
    assert by_type["RunFinished"]["status"] == "done"
    assert by_type["QuestionAsked"]["question"]["id"] == run.asked[0].id
    assert by_type["QuestionAsked"]["question"]["digest"] == run.asked[0].digest
    assert by_type["ModelCalled"]["request"].keys() == {"digest", "messages", "tools"}


def test_an_error_is_its_type_and_its_text() -> None:
    answered = as_json(
        events.ModelAnswered("0", error=UnavailableError("down", status=503, provider="p")),
    )
    assert answered["error"] == {
        "type": "UnavailableError",
        "text": str(UnavailableError("down", status=503, provider="p")),
        "provider": "p",
        "status": 503,
    }
    assert as_json(events.RunFinished(error=errors.InputError("no"), status="failed"))["error"] == {
        "type": "InputError",
        "text": "no",
    }


def test_a_response_shows_what_the_model_said_and_not_what_the_provider_sent() -> None:
    response = Response(
        "hi",
        (ToolCall(name="look", args={"n": 1}, id="c"),),
        extra={"signature": "long"},
        body=object(),
        cost=0.5,
    )
    shown = as_json(events.ModelAnswered("0", response))["response"]
    assert shown == {
        "text": "hi", "tool_calls": [{"name": "look", "args": {"n": 1}, "id": "c"}], "cost": 0.5,
        "usage": {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "calls": 0, "reasoning_tokens": 0, "cache_write_tokens": 0},
    }  # fmt: skip


def test_outputs_of_any_type_are_json() -> None:
    made = Prediction(who=Person(name="ann", photo=DOT), photos=[DOT], many={1, 2}, reason="mine")
    shown = as_json(events.RunFinished(made, status="done"))["prediction"]
    assert shown["outputs"] == {
        "who": {"name": "ann", "password": "**********", "photo": SHOWN}, "photos": [SHOWN], "many": [1, 2], "reason": "mine",
    }  # fmt: skip
    assert shown["reason"] is None
    assert as_json(events.RunFinished([1, DOT], status="done"))["prediction"] == [1, SHOWN]  # pyright: ignore[reportArgumentType]  of a `forward`


def test_a_history_among_the_inputs_is_json() -> None:
    history = History(messages=[{"role": "user", "content": "hi"}])
    shown = as_json(
        events.RunStarted(
            Predict("history: History, question -> answer"),
            {"history": history, "question": "q"},
        ),
    )
    assert shown["inputs"] == {
        "history": {"messages": [{"role": "user", "content": "hi"}]},
        "question": "q",
    }


def test_options_of_a_call_are_not_shown() -> None:
    told: list[events.Event] = []
    with context(callbacks=[told.append]):
        Predict("question -> answer")(
            question="q",
            lm=ScriptedLM([fields(answer="A")]),
            config={"api_key": "hunter2"},
        )
    assert "hunter2" not in json.dumps([event.as_json() for event in told])
    assert told[0].as_json()["inputs"] == {"question": "q"}


def test_an_event_shows_no_secret_that_the_journal_hides() -> None:
    @tool
    def sign_in(password: SecretStr, name: str) -> str:
        """Sign in."""
        return f"welcome {name}"

    store, told = MemoryStore(), list[events.Event]()
    script = [
        native_step("s", "sign_in", {"password": "hunter2", "name": "ann"}),
        native_step("e", "finish", {"answer": "A"}),
    ]
    with context(lm=ScriptedLM(script), callbacks=[told.append]):
        run = ReAct("question -> answer", [sign_in], native=True).start(store=store, question="q")
    kept = {entry.kind: entry_text(entry) for entry in run.journal.entries}
    by_type = {event.type: json.dumps(event.as_json()) for event in told}
    hidden = [kind for kind in ("begun", "result") if "hunter2" not in kept[kind]]
    assert hidden == ["begun", "result"]
    assert not [name for name in ("CallStarted", "CallFinished") if "hunter2" in by_type[name]]
    assert isinstance(run, Run)


@pytest.mark.parametrize(
    "kind",
    [
        each
        for each in vars(events).values()
        if isinstance(each, type) and issubclass(each, events.Event)
    ],
)
def test_the_type_of_an_event_is_the_name_of_its_class(kind: type[events.Event]) -> None:
    assert kind.__new__(kind).type == kind.__name__


def test_a_custom_event_keeps_its_own_name() -> None:
    event = events.Custom("note", 1)
    assert (event.type, event.name) == ("Custom", "note")


def test_an_event_of_a_programs_own_class_is_json() -> None:
    class Scored(events.Event):
        score: float
        who: Any

    assert as_json(Scored(0.5, Person(name="ann"))) == {
        "score": 0.5,
        "who": {"name": "ann", "password": "**********", "photo": None},
    }
