"""What goes on inside a tool call, as the run around it sees it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from agent_script import fields, native_step

from ferrule import Limits, Predict, ReAct, Response, Tool, context
from ferrule.errors import ReplayMismatchError, RunCancelledError
from ferrule.runs.driver.inner_programs import recount
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.journal import Journal
from ferrule.runs.life import Execution
from ferrule.runs.run import Run
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.exchange import Usage
from ferrule.values.slot import Slot


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def rewound(*entries: Entry) -> Journal:
    journal = Journal(entries)
    journal.rewind()
    return journal


def test_what_lies_below_a_call_with_a_result_is_not_asked_for_again() -> None:
    """A replay takes the result alone."""
    inner = [
        Entry("1.0/cashier/0", "model", "d"),
        Entry("1.0/cashier/1.0", "result", "d"),
        Entry("1.0", "spent", "", {}),
    ]
    journal = rewound(Entry("1.0", "begun", "d"), *inner, Entry("1.0", "result", "d", "found"))
    assert journal.take("1.0", "result", "d") is not None
    assert journal.spending.pop("1.0") == [inner[-1]]
    assert "1.0" not in journal.spending
    journal.check_finished()


def test_what_lies_below_a_call_without_a_result_is() -> None:
    """A16, R3; `1.0` is no beginning of `1.01`."""
    journal = rewound(
        Entry("1.0", "begun", "d"),
        Entry("1.0/cashier/0", "model", "d"),
        Entry("1.01", "result", "d"),
    )
    assert journal.has_begun("1.0")
    assert not journal.has_begun("1.1")
    assert journal.take("1.0/cashier/0", "model", "d") is not None


def test_a_program_that_ends_before_its_journal_is_a_mismatch_unless_it_failed() -> None:
    """As with the run itself; a failure may come at any place."""
    entry = Entry("1.0/cashier/3", "model", "d")
    with pytest.raises(ReplayMismatchError, match="cashier/3"):
        rewound(entry).close_frame("1.0/cashier/")
    journal = rewound(entry, Entry("2", "model", "d"))
    journal.close_frame("1.0/cashier/", unfinished=True)
    assert journal.take("2", "model", "d") is not None
    journal.check_finished()


def test_only_a_program_is_gone_into_again() -> None:
    """A function would run a second time."""
    assert Predict("a -> b").as_tool("p").is_program
    assert not Tool(lambda: None, "f").is_program
    assert not Tool("declared", "Elsewhere.", None, {"type": "object", "properties": {}}).is_program


def test_what_was_spent_inside_is_counted_again_in_a_replay() -> None:
    run = Run(Predict("a -> b"), (), {})
    run.journal = rewound(
        Entry(
            "1.0",
            "spent",
            "",
            {"steps": 2, "tool_calls": 1, "tokens": 6, "cost": 0.5},
        ),
    )
    frame = run.begin(Execution(), None, wants_deltas=False)
    from ferrule.runs.limits import Budget

    frame.budget = Budget(Limits(steps=2))
    recount(frame, Slot("1.0"))
    recount(frame, Slot("1.1"))
    assert frame.budget.spent() == {"steps": 2, "tool_calls": 1, "tokens": 6, "cost": 0.5}


def test_a_program_that_a_function_calls_spends_from_the_same_budget(driver: str) -> None:
    """Though it is a run of its own."""
    inner = Predict("word -> upper")

    def shout(word: str) -> str:
        """Shout."""
        return inner(word=word).upper

    def answer(request: Any) -> Response:
        if "word ## ]]" in request.messages[1].text:
            return Response(fields(upper="A"), usage=Usage(50, 50, 0, 1))
        return (
            native_step("s", "shout", {"word": "a"})
            if len(request.tools)
            else Response(fields(reasoning="r", answer="x"))
        )

    agent = ReAct(
        "question -> answer",
        [Tool(shout)],
        native=True,
        limits=Limits(tokens=100),
        on_limit="extract",
    )
    with context(lm=ScriptedLM(by=answer)):
        prediction = (
            asyncio.run(agent.acall(question="q")) if driver == "async" else agent(question="q")
        )
    assert (prediction.reason, len(prediction.trajectory.steps)) == ("limits.tokens", 1)


def test_a_function_that_was_given_up_calls_no_further_program() -> None:
    """No call goes on behind a run's back."""
    reached, release, stopped = threading.Event(), threading.Event(), threading.Event()
    inner, asked = Predict("word -> upper"), list[str]()

    def slow() -> str:
        """Take long."""
        reached.set()
        release.wait(60)
        try:
            return inner(word="a").upper
        except RunCancelledError:
            stopped.set()
            raise

    def answer(request: Any) -> Any:
        if "word ## ]]" in request.messages[1].text:
            asked.append("inner")
        if request.messages[-1].role == "tool":  # the run goes on, and so does the thread
            release.set()
            assert stopped.wait(60)
        return (
            native_step("e", "finish", {"answer": "x"})
            if request.messages[-1].role == "tool"
            else native_step("s", "slow")
        )

    agent = ReAct("question -> answer", [Tool(slow, timeout_s=0.05)], native=True)
    with context(lm=ScriptedLM(by=answer)):
        assert "may still be running" in str(agent(question="q").trajectory["observation_0"])
    assert asked == []


def test_what_was_spent_is_written_before_the_result_and_without_blocking_the_loop() -> None:
    """Architecture: of an async run, beside the loop."""
    written: list[str] = []

    class Later:
        def __call__(self, entry: Entry) -> None:
            raise AssertionError(entry)

        async def later(self, entry: Entry) -> None:
            written.append(f"{entry.slot} {entry.kind}")

    cashier = ReAct("bill -> receipt", [Tool(lambda: "ok", "pay")], native=True).as_tool(
        "cashier",
        "Pays.",
    )
    agent = ReAct("task -> answer", [cashier], native=True)
    steps = [
        ("", "cashier", {"bill": "1"}),
        ("", "finish", {"receipt": "r"}),
        ("", "finish", {"answer": "a"}),
    ]
    with context(lm=ScriptedLM([native_step(*each) for each in steps])):
        run = Run(agent, (), {"task": "x"})
        run.journal.sink = Later()
        asyncio.run(run.aresume())
    assert run.prediction.answer == "a"
    assert written == [
        "0 model",
        "1.0 begun",
        "1.0/cashier/0 model",
        "1.0 spent",
        "1.0 result",
        "2 model",
    ]
