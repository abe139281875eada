"""The claims of docs/concepts/runs-and-replay.md."""

from __future__ import annotations

from itertools import count

import ferrule
from ferrule import MemoryStore, Module, Prediction, ReAct, Run, ToolStop, context, tool
from ferrule.errors import ReplayMismatchError
from ferrule.testing import ScriptedLM


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
        {"name": "finish", "args": {"answer": "done"}}
        if request.messages[-1].role == "tool"
        else {"name": "ship", "args": {"to": "ann"}}
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


@tool
def stops(to: str) -> str:
    """Stop the run."""
    raise ToolStop(f"enough of {to}")


def test_a_run_that_goes_on_after_a_tool_stop_asks_about_its_call_when_it_is_resumed() -> None:
    class Goes(Module):
        def __init__(self) -> None:
            self.agent = ReAct(
                "task -> answer",
                [stops],
                lm=ScriptedLM([{"name": "stops", "args": {"to": "ann"}}]),
            )

        def forward(self) -> Prediction:
            try:
                return self.agent(task="x")
            except ToolStop:
                return Prediction(answer=ferrule.ask_person("Go on?"))

    store = MemoryStore()
    run = Goes().start(store=store, run_id="r")
    run.answer(run.pending[0].reply("yes"))
    later = Run.load(store, "r", Goes()).resume()
    assert [question.kind for question in later.pending] == ["unknown"]
