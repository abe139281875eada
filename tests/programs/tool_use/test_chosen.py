"""Instructions and tools that functions choose for a run: asked once, recorded, and not asked in a
replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_script import fields, native_step, text_step

from ferrule import (
    ChainOfThought,
    Context,
    MemoryStore,
    Predict,
    ReAct,
    Response,
    Run,
    SQLiteStore,
    Toolbox,
    tool,
)
from ferrule.errors import ConfigurationError, UnavailableError
from ferrule.testing import ScriptedLM


@tool
def look(at: str) -> str:
    """Look."""
    return f"seen {at}"


@tool(require_confirmation=True)
def pay(to: str) -> str:
    """Pay."""
    return f"paid {to}"


DONE = native_step("done", "finish", {"answer": "ok"})
LOOK = native_step("look", "look", {"at": "it"})
PAY = native_step("pay", "pay", {"to": "ada"})


class Asked:
    """Functions that count how often they are asked."""

    def __init__(self, *names: list[str] | None) -> None:
        self.texts = 0
        self.names = list(names)
        self.tools = 0

    def instructions(self, ctx: Context) -> str:
        self.texts += 1
        return f"Help {ctx.deps}."

    def tools_for(self, ctx: Context) -> list[str] | None:
        del ctx
        self.tools += 1
        return self.names[min(self.tools, len(self.names)) - 1]


@pytest.fixture(params=["no store", "memory", "file", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "no store":
        yield None
        return
    if request.param == "postgres":
        from ferrule import PostgresStore

        dsn = request.getfixturevalue("postgres").dsn
        opened: Any = PostgresStore(dsn, schema=request.getfixturevalue("schema"))
        opened.setup()
    elif request.param == "memory":
        opened = MemoryStore()
    else:
        opened = SQLiteStore(tmp_path / "runs.db")
    yield opened
    opened.close()


def again(run: Run[Any], store: Any, program: Any, **options: Any) -> Run[Any]:
    if store is None:
        return Run.from_json(run.to_json(), program, **options)
    return Run.load(store, run.id, program, **options)


def offered(lm: ScriptedLM) -> list[list[str]]:
    return [[each["function"]["name"] for each in request.tools] for request in lm.requests]


@pytest.mark.parametrize("make", [Predict, ChainOfThought])
def test_instructions_follow_those_of_the_signature(make: Any) -> None:
    asked = Asked()
    lm = ScriptedLM([fields(reasoning="r", b="B")])
    program = make("a -> b", instructions=asked.instructions, lm=lm)
    prediction = program(a="A", deps="Ada")
    assert prediction.b == "B"
    text = lm.requests[0].messages[0].text
    assert text.index("Given the fields") < text.index("Help Ada.")
    assert "Help" not in program.signature.instructions


@pytest.mark.parametrize("native", [True, False])
def test_a_replay_does_not_ask_again(store: Any, native: bool) -> None:
    step = native_step if native else text_step
    lm = ScriptedLM([step("pay", "pay", {"to": "ada"})])
    asked = Asked(["pay"])
    agent = ReAct(
        "task -> answer",
        [look, pay],
        instructions=asked.instructions,
        tools_for=asked.tools_for,
        native=native,
        lm=lm,
    )
    run = agent.start(task="x", store=store, deps="Ada")
    assert run.status == "waiting"
    loaded = again(run, store, agent, deps="Bob")
    loaded.answer(loaded.pending[0].approve())
    end = {"answer": "ok"} if native else {}
    agent.lm = after = ScriptedLM([step("done", "finish", end), fields(reasoning="r", answer="ok")])
    loaded.resume()
    assert loaded.prediction.answer == "ok"
    assert (asked.texts, asked.tools) == (1, 1)
    first, then = lm.requests[0], after.requests[0]
    assert [*then.messages][: len(first.messages)] == [*first.messages]
    assert list(then.tools) == list(first.tools)
    for request in after.requests:  # the extractor's, too
        assert "Help Ada." in request.messages[0].text
    assert again(loaded, store, agent).prediction.answer == "ok"
    assert (asked.texts, asked.tools) == (1, 1)


def test_a_crash_before_the_first_answer_does_not_ask_again(store: Any) -> None:
    asked = Asked(["look"])
    agent = ReAct(
        "task -> answer",
        [look, pay],
        instructions=asked.instructions,
        tools_for=asked.tools_for,
        lm=ScriptedLM([UnavailableError("down")]),
    )
    run = agent.start(task="x", store=store, deps="Ada")
    assert run.status == "failed"
    agent.lm = lm = ScriptedLM([DONE])
    again(run, store, agent, deps="Bob").resume()
    assert (asked.texts, asked.tools) == (1, 1)
    assert "Help Ada." in lm.requests[0].messages[0].text


def test_async_functions_are_awaited_in_sync_and_async_runs() -> None:
    async def instructions(ctx: Context) -> str:
        await asyncio.sleep(0)
        return f"Help {ctx.deps}."

    async def tools_for() -> list[Any]:
        return [look]

    for is_async in (False, True):
        lm = ScriptedLM([DONE])
        agent = ReAct(
            "task -> answer", [look, pay], instructions=instructions, tools_for=tools_for, lm=lm
        )
        if is_async:
            asyncio.run(agent.acall(task="x", deps="Ada"))
        else:
            agent(task="x", deps="Ada")
        assert "Help Ada." in lm.requests[0].messages[0].text
        assert offered(lm) == [["look", "finish"]]


def test_an_agent_that_is_a_tool_asks_in_each_of_its_calls(store: Any) -> None:
    asked = Asked(["look"], ["pay"])
    inner_lm = ScriptedLM([DONE, DONE])
    inner = ReAct(
        "job -> answer",
        [look, pay],
        instructions=asked.instructions,
        tools_for=asked.tools_for,
        lm=inner_lm,
        name="clerk",
    )
    step = native_step("go", "clerk", {"job": "j"})
    outer = ReAct("task -> answer", [inner.as_tool()], lm=ScriptedLM([step, step, DONE]))
    run = outer.start(task="x", store=store, deps="Ada")
    assert run.status == "done", run.error
    assert offered(inner_lm) == [["look", "finish"], ["pay", "finish"]]
    assert (asked.texts, asked.tools) == (2, 2)


def test_tools_are_chosen_again_after_each_step(store: Any) -> None:
    asked = Asked(["look"], ["look", "pay"], ["look"])
    lm = ScriptedLM([LOOK, PAY])
    agent = ReAct(
        "task -> answer", [look, pay], tools_for=asked.tools_for, tools_each="step", lm=lm
    )
    run = agent.start(task="x", store=store)
    assert offered(lm) == [["look", "finish"], ["look", "pay", "finish"]]
    loaded = again(run, store, agent)
    loaded.answer(loaded.pending[0].approve())
    agent.lm = after = ScriptedLM([DONE])
    loaded.resume()
    assert loaded.prediction.answer == "ok"
    assert offered(after) == [["look", "finish"]]
    assert asked.tools == 3
    first = lm.requests[0]
    assert [*after.requests[0].messages][: len(first.messages)] == [*first.messages]


def test_a_model_with_its_tools_in_the_prompt_is_told_of_a_change() -> None:
    asked = Asked(["look"], ["pay"])
    lm = ScriptedLM(
        [
            text_step("look", "look", {"at": "it"}),
            text_step("end", "finish"),
            fields(reasoning="", answer="ok"),
        ]
    )
    agent = ReAct(
        "task -> answer",
        [look, pay],
        tools_for=asked.tools_for,
        tools_each="step",
        native=False,
        lm=lm,
    )
    agent(task="x")
    before, after = lm.requests[0].messages, lm.requests[1].messages
    assert after[0].text == before[0].text
    assert "pay" not in before[0].text
    assert "From now on there are these tools too" in after[-1].text
    assert "No longer there: `look`" in after[-1].text


@pytest.mark.parametrize("each", ["run", "step"])
def test_predict_offers_the_chosen_tools(each: Any) -> None:
    asked = Asked(["look"], ["pay"])
    lm = ScriptedLM([LOOK, Response("B")])
    program = Predict(
        "a -> b", tools=[look, pay], tools_for=asked.tools_for, tools_each=each, lm=lm
    )
    assert program(a="A").b == "B"
    assert offered(lm) == [["look"], ["look" if each == "run" else "pay"]]


@pytest.mark.parametrize("each", ["run", "step"])
@pytest.mark.parametrize("make", [ReAct, Predict])
def test_a_long_result_can_be_read_whichever_tools_are_chosen(make: Any, each: Any) -> None:
    """The model is told to read it with a tool that no function needs to name."""

    def report() -> str:
        """Write a report."""
        return "long " * 2000

    def other() -> str:
        """Do something else."""
        return "done"

    read = {"name": "read_result", "args": {"call": "c1", "start": 5000, "length": 10}}
    last: Any = {"name": "finish", "args": {"answer": "well"}}
    if make is Predict:
        last = "well"
    lm = ScriptedLM([{"tool_calls": [{"name": "report", "args": {}, "id": "c1"}]}, read, last])
    program = make(
        "question -> answer",
        tools=Toolbox([report, other], spill_over=1000),
        native=True,
        tools_for=lambda ctx: ["report"],
        tools_each=each,
    )
    assert program(question="q", lm=lm).answer == "well"
    assert lm.requests[-1].messages[-1].text.count("long") == 2


def test_no_tools_are_a_choice_too() -> None:
    lm = ScriptedLM([fields(b="B")])
    program = Predict("a -> b", tools=[look], tools_for=lambda: (), lm=lm)
    assert program(a="A").b == "B"
    assert offered(lm) == [[]]


def test_what_a_function_raises_ends_the_run_with_that_error() -> None:
    def fail(ctx: Context) -> str:
        raise LookupError("no user")

    for options in ({"instructions": fail}, {"tools_for": fail}):
        lm = ScriptedLM([DONE])
        run = ReAct("task -> answer", [look], lm=lm, **options).start(task="x")
        assert isinstance(run.error, LookupError)
        assert not lm.requests


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"instructions": lambda: 7}, "text or None"),
        ({"tools_for": lambda: "look"}, "list of tools"),
        ({"tools_for": lambda: ["lok"]}, "There is no tool 'lok'"),
        ({"tools_for": lambda: 7}, "list of tools"),
    ],
)
def test_what_a_function_must_not_return_is_named(options: Any, says: str) -> None:
    run = ReAct("task -> answer", [look], lm=ScriptedLM([DONE]), **options).start(task="x")
    assert isinstance(run.error, ConfigurationError)
    assert says in str(run.error)


@pytest.mark.parametrize(
    "options",
    [
        {"instructions": 7},
        {"instructions": lambda ctx, more: ""},
        {"tools_for": ["look"]},
        {"tools_for": dict},
        {"tools_each": "step"},
        {"tools_for": lambda: (), "tools_each": "turn"},
    ],
)
def test_wrong_options_are_refused_when_the_program_is_made(options: Any) -> None:
    for make in (
        lambda: ReAct("task -> answer", [look], **options),
        lambda: Predict("a -> b", **options),
    ):
        with pytest.raises(ConfigurationError):
            make()


def test_missing_deps_are_an_error_before_anything_happens() -> None:
    def instructions(ctx: Context[int]) -> str:
        return str(ctx.deps)

    lm = ScriptedLM([DONE])
    agent = ReAct("task -> answer", [look], instructions=instructions, lm=lm)
    with pytest.raises(ConfigurationError, match="instructions"):
        agent(task="x")
    with pytest.raises(ConfigurationError, match="instructions"):
        agent(task="x", deps="no number")
    assert not lm.requests


def test_a_run_of_a_version_without_functions_goes_on_without(store: Any) -> None:
    old = ReAct("task -> answer", [look, pay], lm=ScriptedLM([PAY]))
    run = old.start(task="x", store=store)
    asked = Asked(["look"])
    lm = ScriptedLM([DONE])
    new = ReAct(
        "task -> answer",
        [look, pay],
        instructions=asked.instructions,
        tools_for=asked.tools_for,
        lm=lm,
    )
    loaded = again(run, store, new, deps="Ada")
    loaded.answer(loaded.pending[0].approve())
    loaded.resume()
    assert loaded.prediction.answer == "ok"
    assert (asked.texts, asked.tools) == (0, 0)
    assert offered(lm) == [["look", "pay", "finish"]]


def test_a_fork_keeps_the_recorded_instructions_but_from_its_start() -> None:
    asked = Asked(["look"])
    agent = ReAct(
        "task -> answer", [look], instructions=asked.instructions, lm=ScriptedLM([LOOK, DONE])
    )
    run = agent.start(task="x", deps="Ada")
    agent.lm = lm = ScriptedLM([DONE, DONE])
    run.fork(at_step=1, deps="Bob").resume()
    run.fork(at_step=0, deps="Bob").resume()
    assert ["Help Ada." in r.messages[0].text for r in lm.requests] == [True, False]
    assert "Help Bob." in lm.requests[1].messages[0].text


def test_a_plain_text_needs_no_record() -> None:
    lm = ScriptedLM([DONE])
    run = ReAct("task -> answer", [look], instructions="Be brief.", lm=lm).start(task="x")
    assert "Be brief." in lm.requests[0].messages[0].text
    assert [entry.kind for entry in run.journal.entries] == ["model"]
