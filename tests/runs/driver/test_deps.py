"""`deps=`: taken by every way to call a program, inherited by programs inside, and checked before
the first act.
"""

from __future__ import annotations

import asyncio
from functools import partialmethod
from typing import Any

import pytest
from agent_script import fields, native_step

from ferrule import (
    ConfirmationRequired,
    Context,
    InputField,
    MemoryStore,
    Module,
    OutputField,
    Predict,
    Prediction,
    ReAct,
    Run,
    Signature,
    Tool,
    Toolbox,
    context,
    module_callback,
    run_until_done,
    tool,
)
from ferrule.errors import ConfigurationError
from ferrule.events import RunStarted
from ferrule.programs.lifecycle.resume import ResumeState
from ferrule.testing import ScriptedLM


class Shop:
    """What tools need."""

    def __init__(self, owner: str = "ann") -> None:
        self.owner = owner


@tool
def owner(ctx: Context[Shop]) -> str:
    """Who owns the shop."""
    return ctx.deps.owner


@tool
def bare(ctx: Context) -> str:
    """Who owns the shop, untyped."""
    return ctx.deps.owner


@tool
def unread(ctx: Context) -> str:
    """Reads no deps."""
    return f"call {bool(ctx.key)}"


@tool
def optional(ctx: Context[Shop | None]) -> str:
    """Works without a shop."""
    return "none" if ctx.deps is None else ctx.deps.owner


@tool(require_confirmation=True)
def sell(ctx: Context[Shop]) -> str:
    """Sell the shop."""
    return f"sold by {ctx.deps.owner}"


def agent(*tools: Any, times: int = 1) -> ReAct:
    """An agent that calls its first tool once and finishes."""
    made = ReAct("question -> answer", tools, native=True)
    turns = [
        native_step("t", (tools[0] if isinstance(tools[0], Tool) else Tool(tools[0])).name),
        native_step("d", "finish", {"answer": "ok"}),
    ]
    made.set_lm(ScriptedLM(turns * times))
    return made


def seen(prediction: Prediction) -> Any:
    return prediction.trajectory["observation_0"]


def asked(program: ReAct) -> int:
    return len(program.react.lm.requests)


SHOP = Shop("bob")
DOORS: dict[str, Any] = {
    "call": lambda p: p(question="q", deps=SHOP),
    "acall": lambda p: asyncio.run(p.acall(question="q", deps=SHOP)),
    "stream": lambda p: p.stream(question="q", deps=SHOP).prediction,
    "astream": lambda p: asyncio.run(_astreamed(p)),
    "start": lambda p: p.start(question="q", deps=SHOP).prediction,
    "astart": lambda p: asyncio.run(p.astart(question="q", deps=SHOP)).prediction,
    "batch": lambda p: p.batch([{"question": "q"}], deps=SHOP)[0],
    "abatch": lambda p: asyncio.run(p.abatch([{"question": "q"}], deps=SHOP))[0],
    "bound": lambda p: p.bind(question="q")(deps=SHOP),
    "bound acall": lambda p: asyncio.run(p.bind(question="q").acall(deps=SHOP)),
    "run_until_done": lambda p: run_until_done(
        p,
        {"question": "q"},
        decide=lambda _: None,
        deps=SHOP,
    ),
}


async def _astreamed(program: ReAct) -> Prediction:
    async with program.astream(question="q", deps=SHOP) as stream:
        async for _ in stream:
            pass
        return stream.prediction


@pytest.mark.parametrize("door", DOORS)
def test_every_way_to_call_a_program_passes_deps_to_its_tools(door: str) -> None:
    """api.md, 21."""
    assert seen(DOORS[door](agent(owner))) == "bob"


def waiting(program: ReAct) -> ConfirmationRequired:
    with pytest.raises(ConfirmationRequired) as raised:
        program(question="q", deps=Shop("ann"))
    return raised.value


RESUMED: dict[str, Any] = {
    "resume": lambda p, raised: p.resume("yes", raised, deps=SHOP),
    "aresume": lambda p, raised: asyncio.run(p.aresume("yes", raised, deps=SHOP)),
    "call": lambda p, raised: p(resume_state=ResumeState(raised, "yes"), deps=SHOP),
    "acall": lambda p, raised: asyncio.run(
        p.acall(resume_state=ResumeState(raised, "yes"), deps=SHOP),
    ),
    "stream": lambda p, raised: (
        p.stream(resume_state=ResumeState(raised, "yes"), deps=SHOP).prediction
    ),
    "run": lambda _, raised: _approved(raised.run).resume(deps=SHOP).prediction,
    "run, async": lambda _, raised: (
        asyncio.run(_approved(raised.run).aresume(deps=SHOP)).prediction
    ),
    "from_json": lambda p, raised: (
        Run.from_json(_approved(raised.run).to_json(), p, deps=SHOP).resume().prediction
    ),
}


def _approved(run: Run) -> Run:
    run.answer(run.pending[0].approve())
    return run


@pytest.mark.parametrize("door", RESUMED)
def test_every_way_to_resume_takes_other_deps(door: str) -> None:
    """api.md, 21."""
    program = agent(sell)
    assert seen(RESUMED[door](program, waiting(program))) == "sold by bob"


def test_a_run_resumed_in_its_own_process_keeps_its_deps() -> None:
    program = agent(sell)
    assert seen(program.resume("yes", waiting(program))) == "sold by ann"


@pytest.mark.parametrize("door", ["call", "acall", "start", "astart", "stream", "batch"])
def test_a_tool_that_declares_deps_and_gets_none_stops_the_run_before_its_first_act(
    door: str,
) -> None:
    """api.md, 21: no model is called; and the error says which tool, which type, and what to pass."""
    program = agent(owner)
    calls: dict[str, Any] = {
        "call": lambda: program(question="q"),
        "acall": lambda: asyncio.run(program.acall(question="q")),
        "start": lambda: program.start(question="q"),
        "astart": lambda: asyncio.run(program.astart(question="q")),
        "stream": lambda: list(program.stream(question="q")),
        "batch": lambda: program.batch([{"question": "q"}]),
    }
    with pytest.raises(
        ConfigurationError,
        match=r"`owner` declares `Context\[.*Shop\]`, and no `deps` were passed.*deps=.*--deps",
    ):
        calls[door]()
    assert asked(program) == 0


def test_deps_of_another_type_are_refused_and_not_shown() -> None:
    """api.md, 9 and 21: they may hold secrets."""
    program = agent(owner)
    with pytest.raises(
        ConfigurationError,
        match=r"`Context\[.*Shop\]`.* of the type `str`",
    ) as raised:
        program(question="q", deps="hunter2")
    assert "hunter2" not in str(raised.value)
    assert asked(program) == 0
    assert seen(program(question="q", deps=type("Child", (Shop,), {})("eve"))) == "eve"


@pytest.mark.parametrize("where", ["shelf", "sub-agent", "sub-agent of a sub-agent", "Predict"])
def test_the_check_finds_tools_on_the_shelf_and_in_agents_that_are_tools(where: str) -> None:
    inner = ReAct("question -> answer", [owner])
    programs: dict[str, Any] = {
        "shelf": lambda: ReAct("question -> answer", Toolbox([unread], shelf=[owner])),
        "sub-agent": lambda: ReAct("question -> answer", [inner.as_tool("inner")]),
        "sub-agent of a sub-agent": lambda: ReAct(
            "question -> answer",
            [ReAct("q -> a", [inner.as_tool("inner")]).as_tool("middle")],
        ),
        "Predict": lambda: Predict("question -> answer", tools=[owner]),
    }
    program = programs[where]()
    lm = ScriptedLM([])
    program.set_lm(lm)
    with pytest.raises(ConfigurationError, match="`owner` declares"):
        program(question="q")
    assert not lm.requests


def test_an_agent_that_is_its_own_tool_is_checked_once() -> None:
    program = agent(unread)
    program.react.toolbox = Toolbox([unread, program.as_tool("again")])
    assert seen(program(question="q")) == "call True"


def test_tools_that_are_only_declared_need_no_deps() -> None:
    program = Predict("question -> answer", tools=[owner], auto_execute_tools=False, native=True)
    program.set_lm(ScriptedLM([native_step("t", "owner")]))
    assert [call.name for call in program(question="q").tool_calls.tool_calls] == ["owner"]


@pytest.mark.parametrize("chosen", [unread, optional], ids=["a bare Context", "X | None"])
def test_deps_that_are_not_needed_may_be_left_out(chosen: Tool) -> None:
    assert seen(agent(chosen)(question="q")) == ("call True" if chosen is unread else "none")


def test_a_tool_that_accepts_none_is_called_directly_without_deps() -> None:
    assert (optional(), optional(Context()), optional(Context(deps=SHOP))) == (
        "none",
        "none",
        "bob",
    )


def test_a_bare_context_ends_the_run_when_the_tool_reads_deps_that_were_not_passed() -> None:
    """api.md, 21: the model must not say that a thing was done which was not."""
    run = agent(bare).start(question="q")
    assert run.status == "failed"
    with pytest.raises(
        ConfigurationError,
        match=r"`ctx\.deps` was read, and no `deps` were passed.*deps=",
    ):
        _ = run.prediction


def test_programs_that_are_tools_and_programs_called_inside_inherit_deps() -> None:
    """api.md, 21."""
    inner = agent(owner)
    outer = agent(inner.as_tool("inner"))
    outer.react.lm = ScriptedLM(
        [
            native_step("t", "inner", {"question": "who"}),
            native_step("d", "finish", {"answer": "ok"}),
        ],
    )
    found: list[str] = []

    @tool
    def calls_one(question: str) -> str:
        """Call a program in plain Python."""
        found.append(seen(agent(owner)(question=question)))
        return found[-1]

    assert outer(question="q", deps=SHOP).answer == "ok"
    assert [
        message.text for message in inner.react.lm.requests[1].messages if message.role == "tool"
    ] == ["bob"]
    caller = agent(calls_one)
    caller.react.lm = ScriptedLM(
        [
            native_step("t", "calls_one", {"question": "q"}),
            native_step("d", "finish", {"answer": "ok"}),
        ],
    )
    caller(question="q", deps=SHOP)
    assert found == ["bob"]


class Desk(Module):
    """Plain Python around an agent, with or without deps of its own."""

    def __init__(self, own: Shop | None) -> None:
        self.own = own
        self.agent = agent(owner)

    def forward(self, question: str) -> Prediction:
        return (
            self.agent(question=question)
            if self.own is None
            else self.agent(question=question, deps=self.own)
        )


def test_a_program_in_plain_python_passes_its_deps_on_or_others() -> None:
    assert seen(Desk(None)(question="q", deps=SHOP)) == "bob"
    assert seen(Desk(Shop("eve"))(question="q")) == "eve"
    assert seen(Desk(Shop("eve"))(question="q", deps=SHOP)) == "eve"
    without = Desk(None)
    with pytest.raises(ConfigurationError, match="`owner` declares"):
        without(question="q")
    assert asked(without.agent) == 0


def test_a_tool_that_is_loaded_in_the_run_is_checked_when_it_is_called() -> None:
    ran: list[bool] = []

    @tool
    def late(ctx: Context[Shop]) -> str:
        """Loaded later."""
        ran.append(True)
        return "x"

    @tool
    def load() -> Any:
        """Load the other."""

        @module_callback
        def change(context: Any) -> str:
            context.module.init_module([*context.module.tools.values(), late])
            return "loaded"

        return change

    program = ReAct("question -> answer", [load], native=True)
    program.set_lm(ScriptedLM([native_step("t", "load"), native_step("t", "late")]))
    with pytest.raises(ConfigurationError, match="`late` declares"):
        program(question="q")
    assert not ran


class Named(Signature):
    """Answer."""

    deps: str = InputField()
    answer: str = OutputField()


def test_an_input_called_deps_is_the_input_and_bind_passes_both() -> None:
    """api.md, 21."""
    for door in ("call", "start", "stream"):
        program = Predict(Named)
        program.set_lm(lm := ScriptedLM([fields(answer="ok")]))
        made: Any = {"call": program, "start": program.start, "stream": program.stream}[door](
            deps="the input",
        )
        assert (made if door == "call" else made.prediction).answer == "ok"
        assert "the input" in lm.requests[0].messages[-1].text
    program = ReAct(Named, [owner], native=True)
    program.set_lm(
        ScriptedLM([native_step("t", "owner"), native_step("d", "finish", {"answer": "ok"})] * 2),
    )
    assert seen(program.bind(deps="the input")(deps=SHOP)) == "bob"
    assert seen(program.bind(deps="the input").start(deps=SHOP).prediction) == "bob"


def test_a_parameter_of_forward_called_deps_is_an_input() -> None:
    class Plain(Module):
        def forward(self, deps: str) -> str:
            return deps

    assert Plain()(deps="the input") == "the input"


def test_a_waiting_run_that_is_resumed_without_its_deps_keeps_waiting_with_its_decision() -> None:
    """api.md, 21: nothing runs, nothing is lost, and it goes on as soon as deps are there."""
    store, program = MemoryStore(), agent(sell)
    _approved(program.start(question="q", deps=Shop(), store=store, run_id="r"))
    loaded = Run.load(store, "r", program)
    with pytest.raises(ConfigurationError, match="`sell` declares"):
        loaded.resume()
    [kept] = Run.list(store)
    assert kept.status == "waiting"
    assert asked(program) == 1
    assert seen(Run.load(store, "r", program, deps=SHOP).resume().prediction) == "sold by bob"
    assert (
        seen(Run.load(store, "r", program).prediction) == "sold by bob"
    )  # a run that is done is only read


# -- a `forward` with a `Context`


class First(Module):
    """Takes it first."""

    def forward(self, ctx: Context[Shop], question: str) -> tuple[str, str]:
        return question, ctx.deps.owner


class Last(Module):
    """Takes it last, and by name alone."""

    def forward(self, question: str, *, ctx: Context[Shop]) -> tuple[str, str]:
        return question, ctx.deps.owner


class OnlyAsync(Module):
    """An `aforward` with an annotation as text."""

    async def aforward(self, question: str, ctx: "Context[Shop]") -> tuple[str, str]:
        return question, ctx.deps.owner


@pytest.mark.parametrize("kind", [First, Last, OnlyAsync])
def test_a_forward_takes_the_deps_in_a_context(kind: Any) -> None:
    program, shop = kind(), Shop("bo")
    assert program("?", deps=shop) == program(question="?", deps=shop) == ("?", "bo")
    assert (
        asyncio.run(program.acall("?", deps=shop))
        == asyncio.run(program.acall(question="?", deps=shop))
        == ("?", "bo")
    )
    assert program.start(question="?", deps=shop).prediction == ("?", "bo")


def test_the_context_of_a_forward_knows_the_run_and_is_not_stored() -> None:
    class Reports(Module):
        def forward(self, ctx: Context) -> tuple[str, bool, bool]:
            return ctx.run_id, ctx.cancelled, ctx.has_deps

    run = Reports().start(run_id="r", store=MemoryStore(), deps=Shop())
    assert run.prediction == ("r", False, True)
    assert run.inputs == {}


def test_an_event_names_the_positional_inputs_of_a_forward_with_a_context() -> None:
    started: list[Any] = []
    with context(
        callbacks=[
            lambda event: started.append(event.inputs) if isinstance(event, RunStarted) else None,
        ],
    ):
        First()("?", deps=Shop())
        Last()("?", deps=Shop())
    assert started == [{"question": "?"}] * 2


def test_a_program_inside_a_forward_gets_the_deps_or_others() -> None:
    class Outer(Module):
        def __init__(self) -> None:
            self.inner = First()

        def forward(self, question: str) -> tuple[Any, Any]:
            return self.inner(question), self.inner(question, deps=Shop("cy"))

    assert Outer()("?", deps=Shop("bo")) == (("?", "bo"), ("?", "cy"))


def test_a_forward_without_its_deps_is_not_executed() -> None:
    for kind in (First, Last, OnlyAsync):
        with pytest.raises(
            ConfigurationError,
            match=r"`\w+\.a?forward` declares `Context\[.*Shop\]`, and no `deps` were passed",
        ):
            kind()("?")
        with pytest.raises(ConfigurationError, match="of the type `int`"):
            kind()("?", deps=3)
    store = MemoryStore()
    First().submit(question="?", store=store, run_id="r")
    with pytest.raises(ConfigurationError, match="no `deps`"):
        Run.load(store, "r", First()).resume()
    assert Run.load(store, "r", First(), deps=Shop()).resume().prediction == ("?", "ann")


def test_a_forward_may_do_without_deps_if_its_context_says_so() -> None:
    class Optional(Module):
        def forward(self, ctx: Context[Shop | None]) -> bool:
            return ctx.deps is None

    assert Optional()()


def test_a_context_that_the_caller_passes_stays() -> None:
    assert First().forward(Context(deps=Shop("bo")), "?") == ("?", "bo")
    assert Last()("?", ctx=Context(deps=Shop("cy")), deps=Shop("bo")) == ("?", "cy")


def told(question: str, ctx: Context[Shop]) -> tuple[str, str]:
    return question, ctx.deps.owner


class Static(Module):
    forward = staticmethod(told)


class OfClass(Module):
    @classmethod
    def forward(cls, question: str, ctx: Context[Shop]) -> tuple[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return told(question, ctx)


class Compiled:
    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    def __call__(self, question: str, ctx: Context[Shop]) -> tuple[str, str]:
        return told(question, ctx)


class Called(Module):
    forward = Compiled()  # pyright: ignore[reportAssignmentType]


class Bound(Module):
    def _told(self, mark: str, question: str, ctx: Context[Shop]) -> tuple[str, str]:
        return told(question, ctx)

    forward = partialmethod(_told, "!")  # pyright: ignore[reportAssignmentType]


class OfInstance(Module):
    def __init__(self) -> None:
        self.forward = told  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, question: str) -> None:
        raise NotImplementedError


ShopContext = Context[Shop]


class ByAlias(Module):
    def forward(self, question: str, ctx: "ShopContext") -> tuple[str, str]:
        return told(question, ctx)


class NamedDeps(Module):
    def forward(self, question: str, deps: Context[Shop]) -> tuple[str, str]:
        return told(question, deps)


@pytest.mark.parametrize("kind", [Static, OfClass, Called, Bound, OfInstance, ByAlias, NamedDeps])
def test_any_callable_may_be_the_forward_that_takes_a_context(kind: Any) -> None:
    program, shop = kind(), Shop("bo")
    assert program("?", deps=shop) == program(question="?", deps=shop) == ("?", "bo")
    assert asyncio.run(program.acall("?", deps=shop)) == ("?", "bo")
    run = program.start(question="?", deps=shop)
    assert (run.prediction, dict(run.inputs)) == (("?", "bo"), {"question": "?"})


def test_a_context_that_is_passed_by_name_takes_no_place_of_another_argument() -> None:
    class Words(Module):
        def forward(self, *words: str, ctx: Context[Shop]) -> tuple[tuple[str, ...], str]:
            return words, ctx.deps.owner

    assert Words()("a", "b", "c", deps=Shop("bo")) == (("a", "b", "c"), "bo")


def test_an_input_with_the_name_of_the_context_is_refused() -> None:
    with pytest.raises(TypeError, match="`ctx` takes the `Context` of the run, found 'mine'"):
        First()(question="?", ctx="mine", deps=Shop())
