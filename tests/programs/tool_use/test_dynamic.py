"""Tools that come and go during a run (seed 001, U146-U160): both modes, both drivers, and nothing
of it outside the run.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_script import STEPS, fields

from ferrule import (
    ChainOfThought,
    ChatAdapter,
    Context,
    JSONAdapter,
    Load,
    MemoryStore,
    Module,
    ModuleContext,
    Policy,
    Predict,
    Prediction,
    ReAct,
    Response,
    Run,
    RunError,
    Signature,
    SQLiteStore,
    Tool,
    Toolbox,
    ToolCall,
    Unload,
    XMLAdapter,
    context,
    deny,
    module_callback,
    tool,
)
from ferrule.acts import CallModel, CallTools
from ferrule.errors import BadRequestError, ContextOverflowError, DuplicateToolError
from ferrule.programs.tool_use import dynamic
from ferrule.runs.journal.encode import entry_text, read_entry
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.journal import Journal
from ferrule.testing import ScriptedLM
from ferrule.tools.execution.run import run_call
from ferrule.values.calls.call import CheckedCall

BUILTIN = ("finish", "user_clarification")


@pytest.fixture(params=["text", "native"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


@tool
def calculator(expression: str) -> str:
    """Perform calculations."""
    return {"157 * 834": "130938"}.get(expression, "?")


@tool
def clock() -> str:
    """Tell the time."""
    return "noon"


def loader(change: Callable[[ModuleContext], Any], name: str = "load") -> Tool:
    """A tool that returns this as its callback."""

    def load() -> Any:
        """Load more tools."""
        return module_callback(change)

    return Tool(load, name)


def adding(*tools: Any) -> Callable[[ModuleContext], str]:
    def add(context: ModuleContext) -> str:
        context.module.init_module(tools=[*context.module.tools.values(), *tools])
        return f"Loaded {len(tools)}."

    return add


def call(program: Any, driver: str = "sync", **inputs: Any) -> Prediction:
    return asyncio.run(program.acall(**inputs)) if driver == "async" else program(**inputs)


def script(mode: str, *steps: tuple[Any, ...]) -> ScriptedLM:
    return ScriptedLM([STEPS[mode](*step) for step in steps])


def agent(mode: str, *tools: Any, **keywords: Any) -> ReAct:
    """An agent that may ask a person, so that its run can wait."""
    return ReAct(
        "question -> answer",
        tools[0] if isinstance(tools[0], Toolbox) else tools,
        native=mode == "native",
        enable_user_clarification=True,
        **keywords,
    )


LOAD, USE, DONE = (
    ("first", "load"),
    ("then", "calculator", {"expression": "157 * 834"}),
    ("done", "finish", {"answer": "130938"}),
)


def offered(lm: ScriptedLM, at: int, mode: str) -> str:
    """All that a request says of tools."""
    request = lm.requests[at]
    if mode == "native":
        return " ".join(each["function"]["name"] for each in request.tools)
    return "\n".join(message.text for message in request.messages)


def test_a_loaded_tool_is_shown_and_used_in_the_next_step(mode: str, driver: str) -> None:
    with script(mode, LOAD, USE, DONE) as lm:
        made = call(agent(mode, loader(adding(calculator))), driver, question="?", lm=lm)
    assert made.answer == "130938"
    assert [made.trajectory[f"observation_{i}"] for i in range(2)] == ["Loaded 1.", "130938"]
    assert "calculator" not in offered(lm, 0, mode)
    assert "calculator" in offered(lm, 1, mode)


def test_the_prompt_before_the_change_stays_as_it_was(mode: str) -> None:
    """U152, api.md 3: declarations grow at their end, text mode tells of new tools in the step's
    message.
    """
    with script(mode, LOAD, USE, DONE) as lm:
        agent(mode, loader(adding(calculator)))(question="?", lm=lm)
    first, second, third = lm.requests
    assert list(second.messages[: len(first.messages)]) == list(first.messages)
    assert list(third.messages[: len(second.messages)]) == list(second.messages)
    assert second.tools is third.tools or second.tools == third.tools
    assert list(second.tools[: len(first.tools)]) == list(first.tools)
    if mode == "text":
        assert second.messages[-1].text.count("calculator") == 1
        assert "calculator" not in "".join(message.text for message in second.messages[:-1])


@pytest.mark.parametrize(
    "adapter",
    [ChatAdapter(), JSONAdapter(), XMLAdapter()],
    ids=["chat", "json", "xml"],
)
def test_every_adapter_shows_loaded_tools_in_text(adapter: Any) -> None:
    step = Signature("situation -> next_thought, next_tool_name, next_tool_args: dict")
    turns = [
        {"next_thought": why, "next_tool_name": name, "next_tool_args": args or {}}
        for why, name, *rest in (LOAD, USE, DONE)
        for args in rest or [{}]
    ]
    lm = ScriptedLM([adapter.format_assistant_message_content(step, turn) for turn in turns])
    with context(adapter=adapter), lm:
        assert agent("text", loader(adding(calculator)))(question="?", lm=lm).answer == "130938"
    assert "Perform calculations" in lm.requests[1].messages[-1].text


def test_a_change_never_leaves_its_run(mode: str, driver: str) -> None:
    """The agent itself, and its next run, are as before."""
    program = agent(mode, loader(adding(calculator)))
    with script(mode, LOAD, DONE) as lm:
        call(program, driver, question="?", lm=lm)
    assert set(program.tools) == {"load", *BUILTIN}
    with script(mode, USE, DONE) as lm:
        made = call(program, driver, question="?", lm=lm)
    assert "There is no tool `calculator`" in made.trajectory["observation_0"]
    assert "calculator" not in offered(lm, 0, mode)


def test_runs_at_the_same_time_have_tools_of_their_own() -> None:
    """Two runs of one agent, both in the middle of their callbacks at once."""
    both = threading.Barrier(2)
    made: list[ModuleContext] = []

    def change(context: ModuleContext) -> str:
        both.wait(timeout=60)
        made.append(context)
        mine = Tool(lambda: context.input_args["question"], "mine", "Whose run this is.")
        context.module.init_module(tools=[mine])
        both.wait(timeout=60)
        return "changed"

    def answer(request: Any) -> Response:
        asked = sum(message.role == "tool" for message in request.messages)
        return Response(
            "",
            (
                ToolCall(
                    name=("load", "mine", "finish")[asked],
                    args={"answer": "x"} if asked == 2 else {},
                    id=f"c{asked}",
                ),
            ),
        )

    lm = ScriptedLM([answer] * 6)
    found = agent("native", loader(change)).batch(
        [{"question": "a", "lm": lm}, {"question": "b", "lm": lm}],
        2,
        progress=False,
    )
    assert [each.trajectory["observation_1"] for each in found] == ["a", "b"]
    assert made[0].module is not made[1].module


def test_the_callback_is_shown_the_program_and_the_run() -> None:
    """ReAct gives trajectory and inputs; everything else of the module is the user's own."""
    seen: list[ModuleContext] = []

    def look(context: ModuleContext) -> str:
        seen.append(context)
        context.input_args["extra"] = 1  # its own copy
        return "looked"

    program = agent("native", loader(look), clock)
    with script("native", ("what time is it", "clock"), LOAD, LOAD, DONE) as lm:
        program(question="When?", lm=lm)
    found, later = seen
    assert later.input_args == {"question": "When?", "extra": 1}
    assert later.input_args is not found.input_args
    assert dict(found.trajectory) == {
        "thought_0": "what time is it",
        "tool_name_0": "clock",
        "tool_args_0": {},
        "observation_0": "noon",
    }
    assert found.module.signature is program.signature
    assert found.module.tools == program.tools | {"finish": found.module.tools["finish"]}
    assert [message.role for message in found.history.messages] == ["user", "assistant", "tool"]


def test_predict_and_chain_of_thought_change_their_tools_too(mode: str, driver: str) -> None:
    """`context.module` is the module the user built; Predict gives the conversation."""
    seen: list[ModuleContext] = []

    def change(context: ModuleContext) -> str:
        seen.append(context)
        return adding(calculator)(context)

    for kind in (Predict, ChainOfThought):
        program = kind("question -> answer", tools=[loader(change)], native=mode == "native")
        seen.clear()
        turns = [("load", {}), ("calculator", {"expression": "157 * 834"})]
        answers: list[Any] = [
            Response("", (ToolCall(name=name, args=args),))
            if mode == "native"
            else fields(tool_calls={"tool_calls": [{"name": name, "args": args}]})
            for name, args in turns
        ]
        with ScriptedLM([*answers, fields(reasoning="so", answer="130938")]) as lm:
            made = call(program, driver, question="What?", lm=lm)
        assert made.answer == "130938"
        assert made.trajectory["observation_1"] == "130938"
        assert [type(each.module.__repr__.__self__).__name__ for each in seen] == ["ModuleView"]
        assert seen[0].module.named_predictors.__self__ is program
        assert "What?" in seen[0].history.messages[0].text
        assert list(seen[0].input_args) == ["question"]
        assert set(program.tools) == {"load"}
        assert "calculator" in offered(lm, 1, mode)
        assert list(lm.requests[1].messages[: len(lm.requests[0].messages)]) == list(
            lm.requests[0].messages,
        )


def test_an_async_callback_is_awaited(mode: str, driver: str) -> None:
    """By either driver."""

    async def change(context: ModuleContext) -> str:
        await asyncio.sleep(0)
        return adding(calculator)(context)

    with script(mode, LOAD, USE, DONE) as lm:
        made = call(agent(mode, loader(change)), driver, question="?", lm=lm)
    assert made.trajectory["observation_1"] == "130938"


@pytest.mark.parametrize("returned", [None, 3, ["loaded"]], ids=["nothing", "number", "list"])
def test_a_callback_that_returns_no_text_is_told_so_and_changes_nothing(
    returned: Any,
    driver: str,
) -> None:
    def change(context: ModuleContext) -> Any:
        adding(calculator)(context)
        return returned

    with script("native", LOAD, DONE) as lm:
        made = call(agent("native", loader(change)), driver, question="?", lm=lm)
    assert (
        "The module callback of `load` must return a text, found"
        in made.trajectory["observation_0"]
    )
    assert made.trajectory.steps[0].results[0].is_error
    assert "calculator" not in offered(lm, 1, "native")


def test_a_callback_that_raises_becomes_an_observation_and_changes_nothing(
    mode: str,
    driver: str,
) -> None:
    def change(context: ModuleContext) -> str:
        adding(calculator)(context)
        msg = "no licence"
        raise PermissionError(msg)

    with script(mode, LOAD, USE, DONE) as lm:
        made = call(agent(mode, loader(change)), driver, question="?", lm=lm)
    assert made.trajectory["observation_0"].startswith(
        "Execution error in load: PermissionError: no licence",
    )
    assert (
        "There is no tool `calculator`. Available tools: `load`" in made.trajectory["observation_1"]
    )


def test_built_in_tools_stay_and_are_not_doubled() -> None:
    """Not passed, passed, and passed from the agent itself."""
    program: ReAct
    names: list[list[str]] = []

    def change(context: ModuleContext) -> str:
        context.module.init_module(tools=[calculator])
        names.append(sorted(context.module.tools))
        context.module.init_module(tools=[*context.module.tools.values(), clock])
        names.append(sorted(context.module.tools))
        context.module.init_module(tools=[*program.tools.values(), clock])
        names.append(sorted(context.module.tools))
        return "done"

    program = agent("native", loader(change))
    with script("native", LOAD, DONE) as lm:
        program(question="?", lm=lm)
    assert names == [
        sorted(["calculator", *BUILTIN]),
        sorted(["calculator", "clock", *BUILTIN]),
        sorted(["load", "clock", *BUILTIN]),
    ]
    assert [each["function"]["name"] for each in lm.requests[1].tools] == [
        "load",
        *reversed(BUILTIN),
        "clock",
    ]


def test_two_tools_of_one_name_are_refused_inside_the_callback() -> None:
    """Among themselves, and one that is called like a built-in one."""
    raised: list[str] = []

    def change(context: ModuleContext) -> str:
        for wrong in ([clock, Tool(lambda: "", "clock")], [Tool(lambda: "", "finish")]):
            with pytest.raises(DuplicateToolError) as caught:
                context.module.init_module(tools=wrong)
            raised.append(str(caught.value))
        return "refused"

    with script("native", LOAD, DONE) as lm:
        made = agent("native", loader(change))(question="?", lm=lm)
    assert made.trajectory["observation_0"] == "refused"
    assert ["two tools named `clock`" in raised[0], "`finish`" in raised[1]] == [True, True]
    assert lm.requests[0].tools == lm.requests[1].tools


def test_a_text_without_a_change_is_all_right() -> None:
    """And it leaves no mark in the journal."""
    with script("native", LOAD, DONE) as lm:
        run = agent("native", loader(lambda context: "Unknown category: art")).start(
            question="?",
            lm=lm,
        )
    assert run.trajectory["observation_0"] == "Unknown category: art"
    assert all(
        entry.value.change is None for entry in run.journal.entries if entry.kind == "result"
    )


def test_init_module_with_none_leaves_the_built_in_tools_only(mode: str) -> None:
    def change(context: ModuleContext) -> str:
        context.module.init_module(None)
        return "all gone"

    with script(mode, LOAD, ("again", "load"), DONE) as lm:
        made = agent(mode, loader(change), clock)(question="?", lm=lm)
    assert "There is no tool `load`" in made.trajectory["observation_1"]
    if mode == "native":
        assert {each["function"]["name"] for each in lm.requests[1].tools} == set(BUILTIN)
    else:
        assert "No longer there: `load`, `clock`" in lm.requests[1].messages[-1].text


def test_a_callable_that_is_not_marked_is_a_value(driver: str) -> None:
    """It is not run."""
    ran: list[Any] = []

    def plain() -> Any:
        return ran.append

    with (
        script("native", ("", "plain"), DONE) as lm,
        pytest.warns(RuntimeWarning, match="`plain` returned an object"),
    ):
        made = call(agent("native", plain), driver, question="?", lm=lm)
    assert ran == []
    assert "method append" in made.trajectory["observation_0"]
    assert not made.trajectory.steps[0].results[0].is_error


def test_a_loaded_tool_still_asks_a_person_first() -> None:
    ran: list[int] = []
    wipe = Tool(lambda: ran.append(1) or "wiped", "wipe", require_confirmation=True)
    with script("native", LOAD, ("", "wipe"), DONE) as lm:
        run = agent("native", loader(adding(wipe))).start(question="?", lm=lm)
        assert run.status == "waiting"
        assert ran == []
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.prediction.trajectory["observation_1"] == "wiped"
    assert ran == [1]


@pytest.mark.parametrize(
    ("user", "may"),
    [("ann", True), ("bob", False)],
    ids=["allowed", "not_allowed"],
)
def test_tools_are_loaded_only_for_those_who_may_have_them(
    driver: str,
    user: str,
    may: bool,
) -> None:
    """Who that is comes from the run's `deps`, which no model writes; and a policy holds for loaded
    tools too.
    """

    def load(ctx: Context) -> Any:
        """Load more tools."""

        @module_callback
        def change(context: ModuleContext) -> str:
            return adding(calculator)(context) if ctx.deps == "ann" else "You may not."

        return change

    program = agent("native", load)
    for policy, observed in (
        (None, "130938"),
        (Policy([deny("calculator")], loaded_later=["calculator"]), "A policy forbids this call"),
    ):
        with script("native", LOAD, USE, DONE) as lm, context(lm=lm, policy=policy):
            asked = {"question": "?", "deps": user}
            run = (
                asyncio.run(program.astart(**asked))
                if driver == "async"
                else program.start(**asked)
            )
        assert run.trajectory["observation_0"] == ("Loaded 1." if may else "You may not.")
        assert (observed if may else "There is no tool `calculator`") in run.trajectory[
            "observation_1"
        ]
        assert ("calculator" in offered(lm, 1, "native")) is may


def test_a_resumed_run_has_its_tools_and_runs_no_callback_again(mode: str, driver: str) -> None:
    made: list[int] = []

    def change(context: ModuleContext) -> str:
        made.append(1)
        wipe = Tool(
            lambda: "wiped",
            "wipe",
            require_confirmation=True,
        )  # made anew by every callback: known by this run alone
        return adding(wipe)(context)

    async def both(run: Run) -> None:
        await run.aresume()

    with script(mode, LOAD, ("", "wipe"), DONE) as lm:
        run = agent(mode, loader(change)).start(question="?", lm=lm)
        run.answer(run.pending[0].approve())
        if driver == "async":
            asyncio.run(both(run))
        else:
            run.resume()
    assert run.prediction.trajectory["observation_1"] == "wiped"
    assert made == [1]


def elsewhere(run: Run, program: Any, **inputs: Any) -> Run:
    """The run as another process sees it: its journal as JSON, and a key that this process has
    loaded nothing for.
    """
    other = Run(program, (), inputs)
    other.journal = Journal(read_entry(entry_text(entry)) for entry in run.journal.entries)
    return other


def stopped_after_loading(*tools: Any, change: Callable[[ModuleContext], Any]) -> tuple[Run, ReAct]:
    program = agent("native", loader(change), *tools)
    with script("native", LOAD, ("", "user_clarification", {"question": "Which?"})) as lm:
        run = program.start(question="?", lm=lm)
    assert run.status == "waiting"
    return run, program


def test_another_process_finds_loaded_tools_among_those_it_is_handed() -> None:
    """`Run.load(..., tools=[...])`."""
    run, program = stopped_after_loading(change=adding(calculator))
    lm = script("native", USE, DONE)
    other = elsewhere(run, program, question="?", lm=ScriptedLM([]))
    other.inputs["lm"] = lm
    other.extra_tools = (calculator,)
    other.resume()
    assert other.status == "waiting"
    other.answer(other.pending[0].reply("this"))
    other.resume()
    assert other.prediction.trajectory["observation_2"] == "130938"


def test_another_process_finds_loaded_tools_on_the_programs_shelf() -> None:
    """Tools that the program has need not be handed in."""
    run, program = stopped_after_loading(change=adding(calculator))
    again = agent("native", Toolbox(program.react.tools.values(), shelf=[calculator]))
    other = elsewhere(run, again, question="?", lm=ScriptedLM([]))
    other.resume()
    assert other.status == "waiting"
    assert other.error is None


def test_a_newer_version_of_a_loaded_tool_takes_its_place() -> None:
    """As with the program's own tools."""
    run, program = stopped_after_loading(change=adding(calculator))
    other = elsewhere(run, program, question="?", lm=ScriptedLM([]))
    other.extra_tools = (Tool(lambda expression: "", "calculator", "Something else."),)
    other.resume()
    assert other.status == "waiting"


def test_a_loaded_tool_that_is_not_found_again_is_named() -> None:
    """With what to do; and the run can still be resumed with it."""
    run, program = stopped_after_loading(change=adding(calculator))
    other = elsewhere(run, program, question="?", lm=ScriptedLM([]))
    other.resume()
    assert other.status == "failed"
    assert isinstance(other.error, RunError)
    assert "`calculator`" in str(other.error) or "'calculator'" in str(other.error)
    assert "Run.load(..., tools=[calculator])" in str(other.error)
    other.extra_tools = (calculator,)
    other.resume()
    assert other.status == "waiting"


def test_text_and_change_of_a_callback_are_one_entry_of_the_journal() -> None:
    """After a crash there is never the one without the other."""
    run, _ = stopped_after_loading(change=adding(calculator))
    (result,) = [entry.value for entry in run.journal.entries if entry.kind == "result"]
    assert result.content == "Loaded 1."
    assert list(result.change["added"]) == ["calculator"]
    assert result.change["removed"] == []
    entry = next(entry for entry in run.journal.entries if entry.kind == "result")
    assert read_entry(entry_text(entry)) == Entry(entry.slot, "result", entry.digest, result)


def test_callbacks_of_one_turn_do_not_undo_each_other(driver: str) -> None:
    """Each sees the tools before the turn; all their changes are made, in the order of the calls."""
    both = Response(
        "",
        tuple(ToolCall(name=name, args={}, id=name) for name in ("load", "more", "other")),
    )
    different = Tool(lambda: "another", "clock", "Another clock.")
    tools = (
        loader(adding(calculator)),
        loader(adding(clock), "more"),
        loader(adding(different), "other"),
    )
    with ScriptedLM(
        [both, STEPS["native"]("", "clock"), STEPS["native"](*USE), STEPS["native"](*DONE)],
    ) as lm:
        made = call(agent("native", *tools), driver, question="?", lm=lm)
    observed = made.trajectory["observation_0"]
    assert observed[:2] == ["Loaded 1.", "Loaded 1."]
    assert observed[2].startswith("The tools were not changed. There are two tools named `clock`")
    assert [(each.is_error, each.change is None) for each in made.trajectory.steps[0].results] == [
        (False, False),
        (False, False),
        (True, True),
    ]
    assert (made.trajectory["observation_1"], made.trajectory["observation_2"]) == (
        "noon",
        "130938",
    )


def test_two_calls_of_one_turn_may_load_the_same_tool() -> None:
    both = Response("", tuple(ToolCall(name=name, args={}, id=name) for name in ("load", "more")))
    with ScriptedLM([both, STEPS["native"](*USE), STEPS["native"](*DONE)]) as lm:
        made = agent(
            "native",
            loader(adding(calculator)),
            loader(adding(calculator, clock), "more"),
        )(question="?", lm=lm)
    assert made.trajectory["observation_0"] == ["Loaded 1.", "Loaded 2."]
    assert [each["function"]["name"] for each in lm.requests[1].tools[-2:]] == [
        "calculator",
        "clock",
    ]


def test_a_tool_can_be_taken_away_and_put_in_again() -> None:
    def change(context: ModuleContext) -> str:
        has = "clock" in context.module.tools
        rest = [each for each in context.module.tools.values() if each.name != "clock"]
        context.module.init_module(tools=rest if has else [*rest, clock])
        return "switched"

    ask = ("", "user_clarification", {"question": "Which?"})
    program = agent("native", loader(change), clock)
    with script("native", LOAD, ("", "clock"), LOAD, ask, ("", "clock"), DONE) as lm:
        run = program.start(question="?", lm=lm)
        run.answer(run.pending[0].reply("this"))
        made = run.resume().prediction
    assert "There is no tool `clock`" in made.trajectory["observation_1"]
    assert made.trajectory["observation_4"] == "noon"
    again = elsewhere(run, program, question="?", lm=ScriptedLM([]))
    again.resume()
    assert again.prediction == made  # in a process that loaded nothing: it is the program's own


def test_a_callback_outside_a_program_is_a_failure_that_says_why() -> None:
    """Nobody is there whose tools it could change."""
    load = loader(adding(calculator))
    found = run_call(CheckedCall(ToolCall(name="load", args={}), load, load.prepare({})))
    assert found.is_error
    assert "only a program that offers tools can make" in str(found.content)


def test_intention_is_asked_of_loaded_tools_too() -> None:
    """U148, E57 with seed 004: the declaration of a loaded tool has the same further argument."""
    with script("native", LOAD, USE, DONE) as lm:
        agent("native", loader(adding(calculator)), intention=True)(question="?", lm=lm)
    assert "intention" in lm.requests[1].tools[-1]["function"]["parameters"]["properties"]
    mine = Tool(lambda intention: intention, "mine")
    with script("native", LOAD, DONE) as lm:
        made = agent("native", loader(adding(mine)), intention=True)(question="?", lm=lm)
    assert "`mine` has an argument `intention` of its own" in made.trajectory["observation_0"]


# -- the plain form


def refund(invoice: str) -> str:
    """Pay an invoice back."""
    return f"refunded {invoice}"


SHELF = [
    Tool(refund, "billing.refund"),
    Tool(lambda: "sent", "billing.send", "Send invoices."),
    Tool(lambda: "up", "ops.status", "Status."),
]


def load_group(group: str) -> Any:
    """Load a group of tools."""
    return Load(f"{group}.*")


def unload_group(group: str) -> Any:
    """Put a group of tools away."""
    return Unload(f"{group}.*")


def test_tools_are_loaded_from_the_shelf_by_name(mode: str, driver: str) -> None:
    """`Load` and `Unload`, with globs."""
    steps = (
        ("", "load_group", {"group": "billing"}),
        ("", "billing.refund", {"invoice": "7"}),
        ("", "unload_group", {"group": "billing"}),
        ("", "billing.refund", {"invoice": "7"}),
        DONE,
    )
    program = agent(mode, Toolbox([load_group, unload_group], shelf=SHELF))
    with script(mode, *steps) as lm:
        seen = call(program, driver, question="?", lm=lm).trajectory
    assert (
        seen["observation_0"]
        == "Loaded, and ready to be called:\n- billing.refund: Pay an invoice back.\n- billing.send: Send invoices."
    )
    assert seen["observation_1"] == "refunded 7"
    assert (
        seen["observation_2"]
        == "No longer there:\n- billing.refund: Pay an invoice back.\n- billing.send: Send invoices."
    )
    assert "There is no tool `billing.refund`" in seen["observation_3"]


def test_what_cannot_be_loaded_is_said() -> None:
    """An unknown name, and one that is there already."""
    steps = (
        ("", "load_group", {"group": "ops"}),
        ("", "load_group", {"group": "ops"}),
        ("", "load_group", {"group": "art"}),
        DONE,
    )
    with script("native", *steps) as lm:
        seen = agent("native", Toolbox([load_group], shelf=SHELF))(question="?", lm=lm).trajectory
    assert seen["observation_1"] == "There already: `ops.status`."
    assert seen["observation_2"] == "No tool on the shelf is called 'art.*'."
    assert lm.requests[1].tools == lm.requests[3].tools


# -- search


def thousand() -> list[Tool]:
    return [
        Tool(lambda: "made", f"create_{thing}_{i}", f"Create the {thing} number {i}.")
        for i in range(250)
        for thing in "abcd"
    ]


def test_of_a_thousand_tools_the_model_sees_the_search_and_what_it_loaded() -> None:
    """F6, api.md 3: the list of declarations grows at its end only."""
    box = Toolbox([*thousand(), calculator, clock], search="bm25", keep=["clock"])
    steps = (
        ("", "search_tools", {"query": "perform a calculation"}),
        USE,
        ("", "search_tools", {"query": "zzz"}),
        ("", "search_tools", {"query": "create c number 17", "limit": 2}),
        DONE,
    )
    with script("native", *steps) as lm:
        made = ReAct("question -> answer", box, native=True)(question="?", lm=lm)
    names = [[each["function"]["name"] for each in request.tools] for request in lm.requests]
    assert names[0] == ["clock", "search_tools", "finish"]
    assert names[1][:4] == [*names[0], "calculator"]
    assert made.trajectory["observation_1"] == "130938"
    assert made.trajectory["observation_2"] == "No tool fits 'zzz'. Try other words, or fewer."
    assert names[3] == names[2] == names[1]
    assert names[4][: len(names[3])] == names[3]
    assert "create_c_17" in names[4]
    assert len(names[4]) == len(names[3]) + 2


# -- what may happen beside it


def test_loaded_tools_are_shown_when_the_oldest_steps_no_longer_are(mode: str) -> None:
    """The window overflows, and the step that told of them is the first to go."""
    overflow: Any = ContextOverflowError("too long")
    with ScriptedLM(
        [STEPS[mode](*LOAD), STEPS[mode](*USE), overflow, overflow, STEPS[mode](*DONE)],
    ) as lm:
        made = agent(mode, loader(adding(calculator)))(question="?", lm=lm)
    assert made.answer == "130938"
    assert "Loaded 1." not in "\n".join(message.text for message in lm.requests[-1].messages)
    assert "calculator" in offered(lm, -1, mode)


def test_a_model_that_refuses_tools_later_is_told_of_loaded_ones_in_the_text() -> None:
    """U152 with E65."""
    refusal: Any = BadRequestError("this model does not support tools", status=400)
    with ScriptedLM(
        [STEPS["native"](*LOAD), refusal, STEPS["text"](*USE), STEPS["text"](*DONE)],
    ) as lm:
        made = ReAct("question -> answer", [loader(adding(calculator))])(question="?", lm=lm)
    assert made.trajectory["observation_1"] == "130938"
    assert "calculator" in lm.requests[-1].messages[0].text


def test_a_view_can_be_read_and_not_written() -> None:
    """What would change nothing, or more than this run, is refused and told."""
    seen: list[Any] = []

    def change(context: ModuleContext) -> str:
        with pytest.raises(AttributeError):
            context.module.max_iters = 3
        with pytest.raises(TypeError):
            context.module.tools["calculator"] = calculator
        with pytest.raises(AttributeError):
            _ = context.module._anything
        seen.append(
            (
                context.module.max_iters,
                copy.copy(context.module).toolbox.names,
                repr(context.module),
            ),
        )
        return "looked"

    with script("native", LOAD, DONE) as lm:
        assert (
            agent("native", loader(change))(question="?", lm=lm).trajectory["observation_0"]
            == "looked"
        )
    names = ("load", "user_clarification", "finish")
    assert seen[0][:2] == (20, names)
    assert seen[0][2].endswith("in a run, with load, user_clarification, finish>")


def test_agents_inside_a_program_have_tools_of_their_own() -> None:
    """Each in its own place in the run, also when it is resumed."""

    class Two(Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = agent("native", loader(adding(calculator)))
            self.second = agent("native", clock)

        def forward(self, question: str) -> Prediction:
            one = self.first(question=question)
            two = self.second(question=question)
            return Prediction(one=one.answer, two=two.trajectory["observation_0"])

    ask = ("", "user_clarification", {"question": "Sure?"})
    with script("native", LOAD, USE, ask, DONE, USE, DONE) as lm, context(lm=lm):
        run = Two().start(question="?")
        run.answer(run.pending[0].reply("yes"))
        run.resume()
    assert run.prediction.one == "130938"
    assert "There is no tool `calculator`" in run.prediction.two


def test_a_saved_program_keeps_its_shelf() -> None:
    """Tools on the shelf are the program's, not the state's."""
    program = agent("native", Toolbox([load_group], shelf=SHELF))
    other = agent("native", Toolbox([load_group], shelf=SHELF))
    other.load_state(program.dump_state())
    assert other.react.toolbox == program.react.toolbox
    assert other.deepcopy().react.toolbox == program.react.toolbox


def test_tools_are_remembered_for_the_latest_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that runs for long does not keep all it ever loaded."""
    monkeypatch.setattr(dynamic, "_MOST_RUNS", 3)
    monkeypatch.setattr(dynamic, "_loaded", type(dynamic._loaded)())
    program = agent("native", loader(adding(calculator)))
    runs: list[Run] = []
    for again in (False, False, False, True, False):
        run = Run(program, (), {"question": "?"})
        if again:
            run.key = runs[0].key
        runs.append(run)
        with script("native", LOAD, DONE) as lm, context(lm=lm):
            run.resume()
    assert [key for key, _ in dynamic._loaded] == [runs[2].key, runs[0].key, runs[4].key]


def test_a_run_never_has_the_tool_of_another_run_of_its_id() -> None:
    """Two stores may each have a run `order-1`."""
    wiped: list[str] = []

    def of(tenant: str) -> ReAct:
        def change(context: ModuleContext) -> str:
            return adding(
                Tool(lambda: wiped.append(tenant) or "wiped", "wipe", require_confirmation=True),
            )(context)

        return agent("native", loader(change))

    waiting: list[Run] = []
    for tenant in ("A", "B"):
        with script("native", LOAD, ("", "wipe")) as lm, context(lm=lm):
            waiting.append(of(tenant).start(question="?", store=MemoryStore(), run_id="order-1"))
    with script("native", DONE) as lm, context(lm=lm):
        waiting[0].answer(waiting[0].pending[0].approve())
        waiting[0].resume()
    assert wiped == ["A"]


@pytest.mark.parametrize("handed", [False, True], ids=["not handed in", "handed in"])
def test_a_tool_that_took_the_place_of_one_declared_alike_is_not_taken_for_it(handed: bool) -> None:
    """Another process is told which tool is missing, and never runs the one that is gone."""
    ran: list[str] = []

    def named(which: str) -> Tool:
        return Tool(lambda: ran.append(which) or which, "wipe", "Wipe.")

    new = named("new")

    def change(context: ModuleContext) -> str:
        context.module.init_module(
            [*(tool for tool in context.module.toolbox if tool.name != "wipe"), new],
        )
        return "Changed."

    run, program = stopped_after_loading(named("old"), change=change)
    other = elsewhere(run, program, question="?", lm=ScriptedLM([]))
    other.inputs["lm"] = script("native", ("", "wipe"), DONE)
    other.extra_tools = (new,) if handed else ()
    other.resume()
    if not handed:
        assert isinstance(other.error, RunError)
        assert "'wipe'" in str(other.error)
        assert "an equal declaration" in str(other.error)
        return
    other.answer(other.pending[0].reply("this"))
    other.resume()
    assert other.status == "done"
    assert ran == ["new"]


@pytest.mark.parametrize("names", [["finish"], ["user_clarification"]], ids=["finish", "clarify"])
def test_a_tool_on_the_shelf_is_not_called_like_a_built_in_one(names: list[str]) -> None:
    """Said when the agent is made."""
    with pytest.raises(DuplicateToolError, match="built-in"):
        agent("native", Toolbox([clock], shelf=[Tool(lambda: "", name) for name in names]))


@pytest.mark.parametrize("kept", ["memory", "file", "json"])
def test_a_run_out_of_a_store_finds_the_tools_it_had_loaded(
    kept: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And names those that are missing, before a model is asked."""
    store = MemoryStore() if kept == "memory" else SQLiteStore(tmp_path / "runs.db")
    program = agent("native", loader(adding(calculator)))
    with (
        script("native", LOAD, ("", "user_clarification", {"question": "Which?"})) as lm,
        context(lm=lm),
    ):
        run = program.start(question="?", store=store, run_id="r1")
        text = run.to_json()
    monkeypatch.setattr(
        dynamic,
        "_loaded",
        type(dynamic._loaded)(),
    )  # as in a process that has loaded nothing

    def loaded(*tools: Any) -> Run:
        again = agent("native", loader(adding(clock)))  # a callback that ran again would show
        return (
            Run.from_json(text, again, tools=tools)
            if kept == "json"
            else Run.load(store, "r1", again, tools=tools)
        )

    with context(lm=ScriptedLM([])):
        missing = loaded().resume()
    assert missing.status == "failed"
    assert "calculator" in str(missing.error)
    with script("native", USE, DONE) as lm, context(lm=lm):
        found = loaded(calculator).resume()
        found.answer(found.pending[0].reply("that one"))
        found.resume()
    assert found.prediction.trajectory["observation_2"] == "130938"


def test_a_callback_that_was_interrupted_runs_again_with_its_call() -> None:
    """It is a part of the call, and goes by the effect of the tool."""
    made: list[int] = []

    def change(context: ModuleContext) -> str:
        made.append(1)
        if len(made) == 1:
            raise KeyboardInterrupt
        return adding(calculator)(context)

    program = agent("native", loader(change).model_copy(update={"effect": "read"}))
    with script("native", LOAD, USE, DONE) as lm:
        run = Run(program, (), {"question": "?", "lm": lm})
        with pytest.raises(KeyboardInterrupt):
            run.resume()
        run.resume()
    assert run.prediction.trajectory["observation_1"] == "130938"
    assert made == [1, 1]


def test_a_flow_that_is_driven_by_hand_changes_its_tools_too() -> None:
    """Without a run, which is where tools are remembered for a resumption."""
    before = dict(dynamic._loaded)
    lm = script("native", LOAD, USE, DONE)
    flow = agent("native", loader(adding(calculator))).flow(question="?", lm=lm)
    results: list[Any] = []

    made: Any = None
    answer: Any = None
    while made is None:
        try:
            act = flow.send(answer)
        except StopIteration as end:
            made = end.value
            break
        answer = act.lm.complete(act.request) if isinstance(act, CallModel) else None
        if isinstance(act, CallTools):
            answer = [run_call(each) for each in act.calls]
            results += answer
    assert made.answer == "130938"
    assert [each.content for each in results] == ["Loaded 1.", "130938"]
    assert dynamic._loaded == before


def test_a_predictor_of_ones_own_inside_a_chain_of_thought_still_has_its_say() -> None:
    """Its flow is what runs."""

    class Loud(Predict):
        def flow(self, /, **inputs: Any) -> Any:
            found = yield from super().flow(**inputs)
            return Prediction(answer=found.answer.upper())

    program = ChainOfThought("question -> answer")
    program.predict = Loud(program.predict.signature)
    assert (
        program(question="?", lm=ScriptedLM([fields(reasoning="r", answer="yes")])).answer == "YES"
    )


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("callback", [True, False], ids=["a callback", "the shelf"])
def test_a_new_version_of_a_loaded_tool_is_taken_in_the_same_process_too(
    callback: bool, stored: bool
) -> None:
    """As in another process: what was approved was the old one, so a person is asked again."""
    ran: list[str] = []

    def version(number: str) -> ReAct:
        """An agent that has `pay` on its shelf, in this version."""
        pay = Tool(
            lambda: ran.append(number) or "paid",
            "pay",
            f"Pay, {number}.",
            require_confirmation=True,
        )
        load = loader(adding(pay))
        if not callback:
            load = tool(lambda: Load("pay"), name="load", desc="Load.")
        return agent("native", Toolbox([load], shelf=[pay]))

    store = None
    if stored:
        store = MemoryStore()
    with script("native", ("", "load"), ("", "pay")) as lm, context(lm=lm):
        run = version("old").start(question="?", store=store, run_id="r1")
        run.answer(run.pending[0].approve())
    with script("native", DONE) as lm, context(lm=lm):
        again = Run.from_json(run.to_json(), version("new"))
        if store is not None:
            again = Run.load(store, "r1", version("new"))
        again.resume()
        assert (again.status, ran) == ("waiting", [])
        again.answer(again.pending[0].approve())
        again.resume()
    assert (again.status, ran) == ("done", ["new"])
