"""The claims of docs/concepts/runs-and-replay.md."""

from __future__ import annotations

from itertools import count

import pytest

from ferrule import (
    LMError,
    MemoryStore,
    Module,
    Predict,
    Prediction,
    ReAct,
    ReplayMismatchError,
    Run,
    ScriptedLM,
    UnavailableError,
    context,
    once,
    tool,
)


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/concepts/runs-and-replay.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/concepts/runs-and-replay.md") == []


@tool(require_confirmation=True)
def ship(to: str) -> str:
    """Ship a parcel."""
    return f"shipped to {to}"


def model(request):
    return (
        {"name": "finish", "args": {"answer": "done"}} if request.messages[-1].role == "tool" else {"name": "ship", "args": {"to": "ann"}}
    )


def test_a_run_whose_forward_reads_a_clock_fails_when_it_goes_on() -> None:
    clock = count()

    class Desk(Module):
        def __init__(self) -> None:
            self.agent = ReAct("task, now: int -> answer", [ship])

        def forward(self, task: str) -> Prediction:
            return self.agent(task=task, now=next(clock))

    store = MemoryStore()
    with context(lm=ScriptedLM(by=model)):
        Desk().start(task="Ship it.", store=store, run_id="r")
        run = Run.load(store, "r", Desk())
        run.answer(run.pending[0].approve())
        assert run.resume().status == "failed"
        assert isinstance(run.error, ReplayMismatchError)


def test_a_tool_that_a_forward_calls_runs_again_on_resume_whatever_its_effect() -> None:
    """Also docs/concepts/effects.md and docs/reference/events.md."""
    charged: list[int] = []

    @tool(effect="once")
    def charge(euros: int) -> str:
        """Charge a card."""
        charged.append(euros)
        return "charged"

    class Order(Module):
        def __init__(self) -> None:
            self.agent = ReAct("task -> answer", [ship])

        def forward(self, task: str) -> Prediction:
            charge(5)
            return self.agent(task=task)

    with context(lm=ScriptedLM(by=model)):
        run = Order().start(task="Ship it.")
        run.answer(run.pending[0].approve())
        assert run.resume().status == "done"
    assert charged == [5, 5]


@pytest.mark.parametrize("is_once", [True, False], ids=["in once", "in forward"])
def test_an_error_of_a_model_that_forward_caught_is_repeated_in_the_resumed_run(is_once: bool) -> None:
    class Desk(Module):
        def __init__(self) -> None:
            self.classify = Predict("ticket -> urgency")
            self.agent = ReAct("ticket, urgency -> answer", [ship])

        def urgency(self, ticket: str) -> str:
            try:
                return self.classify(ticket=ticket).urgency
            except LMError:
                return "unknown"

        def forward(self, ticket: str) -> Prediction:
            urgency = once(lambda: self.urgency(ticket)) if is_once else self.urgency(ticket)
            return self.agent(ticket=ticket, urgency=urgency)

    store, is_down = MemoryStore(), [True]

    def answer(request):
        if request.tools:
            return model(request)
        return UnavailableError("down") if is_down[0] else {"outputs": {"urgency": "high"}}

    with context(lm=ScriptedLM(by=answer)):
        Desk().start(ticket="?", store=store, run_id="r")
        is_down[0] = False
        run = Run.load(store, "r", Desk())
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.prediction.answer == "done"
