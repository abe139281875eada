"""Runs go to their end, past questions. Errors of a run are on `run.error`, and are not raised."""

from __future__ import annotations

import pytest

from ferrule import Module, ReAct, ToolStop, events, tool
from ferrule.cli.commands.ask import follow_stream
from ferrule.testing import ScriptedLM

ran: list[str] = []


@tool(require_confirmation=True)
def wipe(disk: str) -> str:
    """Wipe a disk."""
    ran.append(disk)
    return f"{disk} wiped"


def wiping() -> ReAct:
    ran.clear()
    agent = ReAct("task -> answer", [wipe])
    agent.set_lm(
        ScriptedLM(
            [
                [{"name": "wipe", "args": {"disk": "a"}}, {"name": "wipe", "args": {"disk": "b"}}],
                {"name": "finish", "args": {"answer": "x"}},
            ],
        ),
    )
    return agent


def ignore(event: events.Event) -> None:
    del event


def test_every_question_is_asked_and_the_run_goes_on() -> None:
    asked: list[str] = []

    def decide(question):
        asked.append(question.call.args["disk"])
        return question.approve() if question.call.args["disk"] == "a" else question.deny("keep it")

    heard: list[events.Event] = []
    run = follow_stream(wiping().stream(task="wipe"), on_event=heard.append, ask=decide)
    assert run.prediction.answer == "x"
    assert (asked, ran) == (["a", "b"], ["a"])
    assert [type(event).__name__ for event in heard].count("StepFinished") == 2


@pytest.mark.parametrize("ask", [None, lambda _: None], ids=["nobody", "no_answer"])
def test_without_an_answer_the_run_waits_and_nothing_ran(ask) -> None:
    run = follow_stream(wiping().stream(task="wipe"), on_event=ignore, ask=ask)
    assert run.status == "waiting"
    assert len(run.pending) == 2
    assert ran == []


def test_how_a_run_failed_stands_on_it() -> None:

    def stop() -> str:
        """Stop."""
        raise ToolStop("enough")

    agent = ReAct("task -> answer", [stop])
    run = follow_stream(
        agent.stream(task="x", lm=ScriptedLM([{"name": "stop", "args": {}}])),
        on_event=ignore,
    )
    assert run.status == "failed"
    assert str(run.error) == "enough"


def test_a_foreign_error_stands_on_the_run_as_well() -> None:

    class Broken(Module):
        def forward(self) -> None:
            raise LookupError("lost")

    run = follow_stream(Broken().stream(), on_event=ignore)
    assert isinstance(run.error, LookupError)


def test_an_interrupt_goes_through() -> None:
    """Ctrl-C while events are drawn."""

    def interrupted(event: events.Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow_stream(wiping().stream(task="wipe"), on_event=interrupted)
    assert ran == []
