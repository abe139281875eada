"""Twenty programs on the embedded model, judged by what came of their tools and outputs, not by
words.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from typing import Any, Literal

import mcp_servers
import pytest

from ferrule import (
    InputField,
    Load,
    MCPServer,
    OutputField,
    Policy,
    Predict,
    ReAct,
    Run,
    Signature,
    SQLiteStore,
    Tool,
    Toolbox,
    ToolCalls,
    ask,
    call,
    deny,
    lt,
)
from ferrule.errors import RefusalError

pytestmark = pytest.mark.needle


class Shop:
    """Tools that note what they were called with."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def refund(self, order: int, euros: float) -> str:
        """Refund euros for an order."""
        self.done.append(("refund", order, euros))
        return "refunded"

    def get_weather(self, city: str) -> str:
        """Get the current weather of a city."""
        self.done.append(("weather", city))
        return "sunny, 21 degrees"

    def set_alarm(self, time: str) -> str:
        """Set an alarm at a time, as HH:MM."""
        self.done.append(("alarm", time))
        return "set"

    def book_table(self, people: int, day: date) -> str:
        """Book a table in the restaurant for a number of people on a date."""
        self.done.append(("table", people, day))
        return "booked"


@pytest.fixture
def shop():
    return Shop()


def agent(*tools, outputs="answer", **options):
    return ReAct(f"question -> {outputs}", list(tools), max_iters=4, **options)


# -- calls


def test_one_tool_with_two_numbers(shop):
    agent(shop.refund, shop.get_weather)(question="Refund 29.90 euros for order 1042")
    assert shop.done == [("refund", 1042, 29.9)]


def test_one_of_four_tools(shop):
    tools = (shop.refund, shop.get_weather, shop.set_alarm, shop.book_table)
    agent(*tools)(question="What is the weather in Lagos?")
    assert shop.done == [("weather", "Lagos")]


def test_two_tools_for_one_question(shop):
    question = "What is the weather in Paris, and refund order 17 with 20 euros"
    agent(shop.refund, shop.get_weather)(question=question)
    assert sorted(shop.done) == [("refund", 17, 20.0), ("weather", "Paris")]


def test_the_same_tool_twice(shop):
    agent(shop.get_weather)(question="What is the weather in Paris and in Rome?")
    assert sorted(shop.done) == [("weather", "Paris"), ("weather", "Rome")]


def test_a_date_becomes_a_date(shop):
    agent(shop.book_table)(question="Book a table for 4 people on 2026-03-14")
    assert shop.done == [("table", 4, date(2026, 3, 14))]


def test_a_question_that_no_tool_fits(shop):
    with pytest.raises(RefusalError):
        agent(shop.refund, shop.get_weather)(question="Tell me a joke")
    assert shop.done == []


def test_calls_as_an_output(shop):
    class Choose(Signature):
        """Choose."""

        question: str = InputField()
        tools: list[Tool] = InputField()
        calls: ToolCalls = OutputField()

    prediction = Predict(Choose)(
        question="What is the weather in Oslo?", tools=[Tool(shop.get_weather)]
    )
    for chosen in prediction.calls.tool_calls:
        chosen.execute([Tool(shop.get_weather)])
    assert shop.done == [("weather", "Oslo")]


# -- outputs


def test_typed_outputs_of_an_agent(shop):
    prediction = agent(shop.get_weather, outputs="city, degrees: int")(
        question="How warm is it in Paris?"
    )
    assert (prediction.city, prediction.degrees) == ("Paris", 21)


def test_a_record_from_a_text():
    text = "Invoice 4711 of 3 March 2026 from Acme Ltd over 1299 EUR, paid"
    signature = "text -> number, date: datetime.date, vendor, total: float, paid: bool"
    record = Predict(signature)(text=text)
    assert (record.number, record.date, record.total) == ("4711", date(2026, 3, 3), 1299.0)
    assert (record.vendor, record.paid) == ("Acme Ltd", True)


def test_a_list_from_a_text():
    prediction = Predict("text -> people: list[str]")(
        text="Meeting with Ann, Bob and Carl on Friday"
    )
    assert prediction.people == ["Ann", "Bob", "Carl"]


def test_one_of_several_labels():
    class Feeling(Signature):
        """Judge."""

        text: str = InputField()
        sentiment: Literal["positive", "negative"] = OutputField()

    assert Predict(Feeling)(text="I hated every minute").sentiment == "negative"


@pytest.mark.parametrize("size", [10, pytest.param(50, marks=pytest.mark.long)])
def test_a_batch_of_extractions(size):
    program = Predict("text -> count: int")
    texts = [{"text": f"I bought {count} apples"} for count in range(2, size + 2)]
    counts = [prediction.count for prediction in program.batch(texts)]
    right = sum(count == index for index, count in enumerate(counts, 2))
    assert right >= 0.96 * size


# -- consent


def test_a_person_approves_a_refund(shop):
    guarded = Tool(shop.refund, require_confirmation=True)
    run = agent(guarded).start(question="Refund 29.90 euros for order 1042")
    [question] = run.pending
    assert (question.call.args, shop.done) == ({"order": 1042, "euros": 29.9}, [])
    run.answer(question.approve())
    run.resume()
    assert shop.done == [("refund", 1042, 29.9)]


def test_a_person_changes_the_arguments(shop):
    guarded = Tool(shop.refund, require_confirmation=True)
    run = agent(guarded).start(question="Refund 29.90 euros for order 1042")
    run.answer(run.pending[0].approve(euros=5.0))
    run.resume()
    assert shop.done == [("refund", 1042, 5.0)]


def test_a_call_below_a_confidence_waits(shop):
    policy = Policy([ask("*", when=call(confidence=lt(1.0)))])
    run = agent(shop.get_weather, policy=policy).start(question="What is the weather in Oslo?")
    assert run.status == "waiting"
    assert 0 < run.pending[0].call.confidence < 1


def test_a_denied_call_does_not_run(shop):
    policy = Policy([deny("refund", reason="The till is closed.")])
    program = agent(shop.refund, policy=policy)
    run = program.start(question="Refund 29.90 euros for order 1042")
    assert isinstance(run.error, RefusalError)
    assert shop.done == []


# -- larger programs


def test_an_agent_inside_another_one(shop):
    inner = agent(shop.get_weather).as_tool(
        name="ask_about_weather", description="Ask a question about the weather."
    )
    agent(inner)(question="What is the weather in Oslo?")
    assert [done[0] for done in shop.done] == ["weather"]
    assert "Oslo" in shop.done[0][1]


def test_tools_from_a_shelf(shop):
    def load_weather_tools() -> Load:
        """Load the weather tools."""
        return Load("get_weather")

    toolbox = Toolbox([load_weather_tools], shelf=[shop.get_weather])
    program = ReAct("question -> answer", toolbox, max_iters=4)
    prediction = program(question="Load the weather tools")
    [called, *_] = prediction.trajectory.steps[0].calls
    assert called.name == "load_weather_tools"
    assert "get_weather" in str(prediction.trajectory.steps[0].results[0].content)


def test_a_tool_of_an_mcp_server():
    server = MCPServer.stdio(
        mcp_servers.command("calculator")[0], name="calculator", trust=True, confirm=False
    )
    try:
        assert "12" in agent(server)(question="Compute sqrt(144)").answer
    finally:
        server.close()


_KILLED = """
import os, sys
from ferrule import LM, ReAct, SQLiteStore, context
from ferrule.events import ModelCalled

def refund(order: int, euros: float) -> str:
    "Refund euros for an order."
    open("paid", "a").write(f"{order} {euros}\\n")
    return "refunded"

def die(event):
    die.count += isinstance(event, ModelCalled)
    if die.count > 1:
        os.kill(os.getpid(), 9)

die.count = 0
with context(lm=LM("needle"), callbacks=[die]):
    ReAct("question -> answer", [refund]).start(
        question="Refund 29.90 euros for order 1042", store=SQLiteStore("runs.db"), run_id="r"
    )
"""


@pytest.mark.skipif(os.name == "nt", reason="kills with a signal")
def test_a_killed_run_is_resumed_without_a_second_refund(tmp_path, shop):
    killed = subprocess.run([sys.executable, "-c", _KILLED], cwd=tmp_path, check=False)
    assert killed.returncode == -9
    paid = tmp_path / "paid"

    def refund(order: int, euros: float) -> str:
        """Refund euros for an order."""
        return shop.refund(order, euros)

    store = SQLiteStore(tmp_path / "runs.db")
    run = Run.load(store, "r", ReAct("question -> answer", [refund]))
    run.resume()
    store.close()
    assert run.status == "done"
    assert paid.read_text() == "1042 29.9\n"
    assert shop.done == []
