"""A secret argument in every view of a run: stars everywhere, and the store keeps what the model
wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from otel_spans import Sent
from page_server import Client, served
from pydantic import BaseModel, Field, SecretStr

from ferrule import AGUI, ReAct, Run, SQLiteStore, VercelAI, context, tool
from ferrule.cli.main import main
from ferrule.testing import ScriptedLM
from ferrule.web.ui import ui_app

WORDS = ("hunter2-of-ann", "pin-4711", "typed-by-ann", "short1")


class Card(BaseModel):
    owner: str
    pin: SecretStr


got: list[tuple[str, str | None]] = []


@tool(require_confirmation=True)
def log_in(
    user: str, password: Annotated[SecretStr, Field(min_length=8)], card: Card | None = None
) -> str:
    """Log in."""
    pin = None
    if card is not None:
        pin = card.pin.get_secret_value()
    got.append((password.get_secret_value(), pin))
    return "in"


def script(*, native: bool) -> list[Any]:
    """A call that does not fit, the same with values that do, and the end."""
    card = {"owner": "ann", "pin": "pin-4711"}
    refused = {"user": "ann", "password": "short1"}
    asked = {"user": "ann", "password": "hunter2-of-ann", "card": card}
    if native:
        return [
            {"tool_calls": [{"name": "log_in", "args": refused}]},
            {
                "text": "The password is hunter2-of-ann.",
                "tool_calls": [{"name": "log_in", "args": asked}],
            },
            {"name": "finish", "args": {"answer": "in"}},
        ]

    def step(name: str, args: dict[str, Any]) -> dict[str, Any]:
        return {"outputs": {"next_thought": "So.", "next_tool_name": name, "next_tool_args": args}}

    return [step("log_in", refused), step("log_in", asked), step("finish", {"answer": "in"})]


@pytest.fixture(params=["native", "in_text"])
def agent(request: pytest.FixtureRequest) -> tuple[ReAct, ScriptedLM]:
    got.clear()
    is_native = request.param == "native"
    return ReAct("task -> answer", [log_in], native=is_native), ScriptedLM(script(native=is_native))


def test_a_secret_argument_is_stars_in_every_view_and_the_store_keeps_what_the_model_wrote(
    agent: tuple[ReAct, ScriptedLM], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, lm = agent
    place = tmp_path / "runs.db"
    store, sent, told = SQLiteStore(place), Sent(content=True), list[Any]()

    def views() -> str:
        pages: list[str] = []
        app = ui_app(store, people=["ann"])
        with served(app) as address:
            client = Client(address, app.links["ann"])
            pages += [
                client.get(path).text for path in ("/inbox", "/runs/r", "/runs/r/text/2/text")
            ]
        for words in (["show", "r"], ["show", "r", "--json"], ["show", "r", "--html"], ["runs"]):
            main([*words, "--store", str(place)])
        main(["runs", "--json", "--store", str(place)])
        pages += capsys.readouterr()
        pages += [json.dumps(event.as_json()) for event in told]
        pages += [str(span.attributes) for span in sent.spans]
        return "\n".join(pages)

    with context(lm=lm, callbacks=[told.append, sent.observer]):
        run = program.start(task="x", store=store, run_id="r")
        [question] = run.pending
        before = views()
        run.answer(question.approve(user="bob", password="typed-by-ann"))
        decided = views()
        run.resume()
    assert got == [("typed-by-ann", "pin-4711")]
    everything = before + decided + views()
    assert {word for word in WORDS if word in everything} == set()
    assert "**********" in everything
    assert run.prediction.answer == "in"
    kept = "".join(store.load("r").entries)
    assert {word for word in WORDS if word in kept} == set(WORDS)
    with context(lm=lm):
        assert Run.load(store, "r", program).prediction.answer == "in"
    store.close()


@pytest.mark.parametrize("front_end", [AGUI, VercelAI])
def test_a_chat_page_never_gets_a_secret_argument(front_end: Any) -> None:
    """Words before a call are streamed before it is known what the call has: not so its arguments."""
    steps = script(native=True)
    del steps[1]["text"]
    lm = ScriptedLM(steps)
    agent = ReAct("task -> answer", [log_in], native=True)
    shown = "".join(front_end()(agent.stream(task="x", lm=lm)))
    assert {word for word in WORDS if word in shown} == set()
    assert "**********" in shown
