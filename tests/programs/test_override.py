"""`program.override(lm=...)` replaces every model in the runs of a program, for a block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
from agent_script import fields, native_step, text_step

from ferrule import (
    MemoryStore,
    Message,
    Messages,
    Module,
    Predict,
    Prediction,
    ReAct,
    Request,
    Run,
    context,
    settings,
    tool,
)
from ferrule.acts import CallModel
from ferrule.errors import BadRequestError, ConfigurationError
from ferrule.testing import ScriptedLM


def _answer(request: Any) -> Any:
    """Call each tool that is not `finish` once, and then finish."""
    names = [each["function"]["name"] for each in request.tools]
    if not names:
        return fields(reasoning="r", answer="stand-in")
    called = {call.name for message in request.messages for call in message.tool_calls}
    for name in names:
        if name not in {"finish", *called}:
            arguments = {"question": "inside"} if name in {"inner", "leaf"} else {}
            return native_step("call", name, arguments)
    return native_step("end", "finish", {"answer": "stand-in"})


def stand_in() -> ScriptedLM:
    return ScriptedLM(by=_answer, record=True)


def own() -> ScriptedLM:
    """A model that must not be called."""
    return ScriptedLM([])


def leaf() -> ReAct:
    return ReAct("question -> answer", [], native=True, lm=own())


def agent_of_agents() -> Module:
    middle = ReAct("question -> answer", [leaf().as_tool("leaf")], native=True, lm=own())
    return ReAct("question -> answer", [middle.as_tool("inner")], native=True, lm=own())


class InPlainPython(Module):
    """A `forward` that calls a program and the model of the settings."""

    def __init__(self) -> None:
        self.predict = Predict("question -> answer", lm=own())
        self.agents = [leaf()]

    def forward(self, question: str) -> Prediction:
        assert settings.current().lm is not None
        self.agents[0](question=question)
        return Prediction(answer=self.predict(question=question).answer)


class InAsyncPython(InPlainPython):
    async def aforward(self, question: str) -> Prediction:
        prediction = await self.predict.acall(question=question)
        await self.agents[0].acall(question=question)
        return Prediction(answer=prediction.answer)


class OwnFlow(Module):
    """A flow that yields acts with a model of its own."""

    def __init__(self) -> None:
        self.lm = own()

    def flow(self, question: str) -> Generator[Any, Any, Prediction]:
        response = yield CallModel(Request(Messages([Message("user", question)])), self.lm)
        return Prediction(answer="stand-in" if response.text else "")


def function_that_calls_a_program() -> Module:
    helper = leaf()

    @tool
    def ask() -> str:
        """Ask."""
        with context(lm=own()):
            return helper(question="from a function").answer

    return ReAct("question -> answer", [ask], native=True, lm=own())


def async_function_that_calls_a_program() -> Module:
    helper = leaf()

    @tool
    async def ask() -> str:
        """Ask."""
        return (await helper.acall(question="from a function")).answer

    return ReAct("question -> answer", [ask], native=True, lm=own())


PROGRAMS: dict[str, tuple[Callable[[], Module], int]] = {
    "predict": (lambda: Predict("question -> answer", lm=own()), 1),
    "several answers": (lambda: Predict("question -> answer", lm=own(), n=2), 2),
    "agent": (leaf, 1),
    "agents as tools": (agent_of_agents, 5),
    "forward": (InPlainPython, 2),
    "aforward": (InAsyncPython, 2),
    "flow": (OwnFlow, 1),
    "function": (function_that_calls_a_program, 3),
    "async function": (async_function_that_calls_a_program, 3),
}
"""Programs with models of their own, and how many requests a run makes."""


async def _astreamed(program: Module) -> Any:
    stream = program.astream(question="q")
    async for _ in stream:
        pass
    return stream.prediction


def _streamed(program: Module) -> Any:
    stream = program.stream(question="q")
    for _ in stream:
        pass
    return stream.prediction


DOORS: dict[str, Callable[[Module], Any]] = {
    "call": lambda program: program(question="q"),
    "acall": lambda program: asyncio.run(program.acall(question="q")),
    "start": lambda program: program.start(question="q", store=MemoryStore()).prediction,
    "stream": _streamed,
    "astream": lambda program: asyncio.run(_astreamed(program)),
    "batch": lambda program: program.batch([{"question": "q"}])[0],
    "abatch": lambda program: asyncio.run(program.abatch([{"question": "q"}]))[0],
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_replaces_every_model_below(name: str, door: str) -> None:
    make, count = PROGRAMS[name]
    program, lm = make(), stand_in()
    with program.override(lm=lm):
        prediction = DOORS[door](program)
    assert (prediction.answer, len(lm.requests)) == ("stand-in", count)


def test_it_replaces_the_model_of_a_call() -> None:
    program, lm = agent_of_agents(), stand_in()
    with program.override(lm=lm):
        assert program(question="q", lm=own()).answer == "stand-in"


def test_it_replaces_the_model_of_the_extractor() -> None:
    agent = ReAct(
        "question -> answer",
        [leaf().as_tool("leaf")],
        native=True,
        max_iters=1,
        on_limit="extract",
        lm=own(),
    )
    agent.extract.predict.lm = own()
    with agent.override(lm=stand_in()):
        assert agent(question="q").answer == "stand-in"


def test_a_model_that_refuses_tools_is_asked_again_in_another_form() -> None:
    """It is wrapped for its further calls, which still go to it."""

    def answer(request: Any) -> Any:
        if request.tools:
            raise BadRequestError("tools are not supported", status=400)
        return text_step("t", "finish", {"answer": "in text"})

    lm, agent = ScriptedLM(by=answer, record=True), ReAct("question -> answer", [], lm=own())
    with agent.override(lm=lm):
        answers = [agent(question="q").answer for _ in range(2)]
    assert answers == ["in text", "in text"]
    assert [bool(request.tools) for request in lm.requests] == [True, False, False]


def test_the_block_of_a_program_inside_holds_there() -> None:
    inner = leaf()
    outer = ReAct("question -> answer", [inner.as_tool("inner")], native=True)
    lm, lm_inside = stand_in(), stand_in()
    with inner.override(lm=lm_inside), outer.override(lm=lm):
        outer(question="q")
    assert (len(lm.requests), len(lm_inside.requests)) == (2, 1)


def test_the_innermost_block_of_a_program_holds() -> None:
    program, first, second = leaf(), stand_in(), stand_in()
    with program.override(lm=first):
        with program.override(lm=second):
            program(question="q")
        program(question="q")
    assert (len(first.requests), len(second.requests)) == (1, 1)


def test_other_programs_and_later_runs_keep_their_models() -> None:
    mine, lm = stand_in(), stand_in()
    program = ReAct("question -> answer", [], native=True, lm=mine)
    other = ReAct("question -> answer", [], native=True, lm=mine)
    with program.override(lm=lm):
        other(question="q")
    program(question="q")
    assert (len(mine.requests), lm.requests) == (2, [])


def test_another_thread_without_the_block_has_the_own_model() -> None:
    mine, lm = stand_in(), stand_in()
    program = ReAct("question -> answer", [], native=True, lm=mine)
    with program.override(lm=lm):
        thread = threading.Thread(target=program, kwargs={"question": "q"})
        thread.start()
        thread.join()
    assert (len(mine.requests), lm.requests) == (1, [])


def test_an_async_call_has_the_block_in_which_it_was_made() -> None:
    """As the settings of a block do."""
    program, lm = agent_of_agents(), stand_in()
    with program.override(lm=lm):
        calling = program.acall(question="q")
    assert asyncio.run(calling).answer == "stand-in"


def test_it_holds_for_a_run_that_is_resumed_in_the_block() -> None:
    @tool(require_confirmation=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    store, lm = MemoryStore(), stand_in()
    program = ReAct("question -> answer", [pay], native=True, lm=own())
    with program.override(lm=lm):
        run = program.start(question="q", store=store)
    assert run.status == "waiting"
    with program.override(lm=lm):
        run = Run.load(store, run.id, program)
        run.answer(run.pending[0].approve())
        assert run.resume().prediction.answer == "stand-in"


@pytest.mark.parametrize("lm", [None, "openai/gpt-5-mini", ScriptedLM, 3], ids=repr)
def test_it_takes_models_only(lm: Any) -> None:
    with pytest.raises(ConfigurationError, match="model"), leaf().override(lm=lm):
        pass
