"""The agent loop: by text and by native calls, the same."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import pickle
import subprocess
import sys
import weakref
from typing import Any, Literal

import pytest
from agent_script import STEPS, fields, native_step, text_step
from msgspec.structs import replace
from pydantic import BaseModel

from ferrule import (
    AdapterParseError,
    ChainOfThought,
    ChatAdapter,
    ConfirmationRequired,
    Decision,
    History,
    Image,
    InputError,
    InputField,
    JSONAdapter,
    Limits,
    OutputField,
    Policy,
    Predict,
    Prediction,
    ReAct,
    Response,
    Signature,
    Tool,
    Toolbox,
    ToolCall,
    ToolRetry,
    ToolStop,
    Trajectory,
    XMLAdapter,
    context,
    deny,
    tool,
)
from ferrule.errors import (
    ConfigurationError,
    ContextOverflowError,
    DecisionError,
    DuplicateToolError,
    SignatureError,
    TooManyFaultsError,
)
from ferrule.testing import AutoLM, ScriptedLM


@pytest.fixture(params=["text", "native"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def agent(
    mode: str,
    signature: Any = "question -> answer: int",
    tools: Any = (add,),
    **keywords: Any,
) -> ReAct:
    return ReAct(signature, tools, native=mode == "native", **keywords)


def call(program: ReAct, driver: str = "sync", **inputs: Any) -> Prediction:
    return asyncio.run(program.acall(**inputs)) if driver == "async" else program(**inputs)


def script(mode: str, *steps: tuple[Any, ...]) -> ScriptedLM:
    return ScriptedLM([STEPS[mode](*step) for step in steps])


def test_the_loop_thinks_calls_sees_and_finishes(mode: str, driver: str) -> None:
    with script(
        mode,
        ("add them", "add", {"a": 2, "b": 3}),
        ("done", "finish", {"answer": 5}),
    ) as lm:
        prediction = call(agent(mode), driver, question="2+3?", lm=lm)
    assert prediction.answer == 5
    assert dict(prediction.trajectory) == {
        "thought_0": "add them", "tool_name_0": "add", "tool_args_0": {"a": 2, "b": 3}, "observation_0": "5",
        "thought_1": "done", "tool_name_1": "finish", "tool_args_1": {"answer": 5}, "observation_1": "Completed.",
    }  # fmt: skip
    assert prediction.reason is None
    json.dumps(dict(prediction.trajectory))


def test_text_and_native_give_equal_predictions_with_equal_scripts() -> None:
    """D27, E66, U133; issue 2."""
    steps = [
        ("one", "add", {"a": 1, "b": 1}),
        ("two", "nosuch", {}),
        ("three", "add", {"a": 2, "b": 2}),
        ("end", "finish", {"answer": 4}),
    ]
    text = agent("text")(question="q", lm=script("text", *steps))
    native = agent("native")(question="q", lm=script("native", *steps))
    assert text == native
    assert text.answer == 4


def test_the_mode_goes_by_what_the_model_can_unless_told() -> None:
    """api.md: native None = by capability of the model; E65."""
    from ferrule import Capabilities

    able = ScriptedLM(
        [native_step("", "finish", {"answer": 1})],
        capabilities=Capabilities(native_tools=True),
    )
    unable = ScriptedLM(
        [text_step("", "finish", {"answer": 1})],
        capabilities=Capabilities(native_tools=False),
    )
    assert ReAct("question -> answer: int", [add])(question="q", lm=able).answer == 1
    assert ReAct("question -> answer: int", [add])(question="q", lm=unable).answer == 1
    assert len(able.requests[0].tools) == 2
    assert len(unable.requests[0].tools) == 0


def test_the_next_turn_of_a_conversation_is_told_what_the_agent_answered(mode: str) -> None:
    """The answer stands in `prediction.history`, in a form that every provider takes, however it
    was given.
    """
    chat = agent(mode, "history: History, question -> answer: int")
    extracted = fields(reasoning="r", answer=43)
    ends: list[list[Any]] = [
        [STEPS[mode]("done", "finish", {"answer": 42})],
        [STEPS[mode]("done", "finish", {}), extracted],
    ]
    if mode == "native":
        ends.append([Response(fields(answer=44))])
    for answered in ends:
        lm = ScriptedLM([STEPS[mode]("sum", "add", {"a": 40, "b": 2}), *answered])
        first = chat(question="What is it?", history=History(), lm=lm)
        assert first.messages[-1].role == "assistant"
        with script(mode, ("done", "finish", {"answer": 1})) as lm:
            chat(question="What did you say?", history=first.history, lm=lm)
        said = [message.text for message in lm.requests[0].messages if message.role == "assistant"]
        assert str(first.answer) in said[-1]


def test_finish_without_outputs_is_followed_by_the_extractor(mode: str) -> None:
    for args in ({}, {"unknown": 1}):
        lm = ScriptedLM(
            [
                STEPS[mode]("sum", "add", {"a": 2, "b": 3}),
                STEPS[mode]("done", "finish", args),
                fields(reasoning="r", answer=5),
            ],
        )
        with lm:
            prediction = agent(mode)(question="2+3?", lm=lm)
        assert prediction.answer == 5
        asked = lm.requests[-1].messages[-1].text
        assert "observation_0" in asked
        assert "2+3?" in asked


def test_max_iters_is_the_hard_cap_and_an_answer_is_still_extracted(mode: str) -> None:
    """Exactly as configured, also per call, and it says so."""
    for keywords, inputs in (({"max_iters": 2}, {}), ({}, {"max_iters": 2})):
        lm = ScriptedLM(
            [STEPS[mode]("go", "add", {"a": 1, "b": 1})] * 2 + [fields(reasoning="r", answer=2)],
        )
        with lm:
            prediction = agent(mode, **keywords)(question="q", lm=lm, **inputs)
        assert prediction.answer == 2
        assert prediction.reason == "max_iters"
        assert len(prediction.trajectory.steps) == 2


def test_the_settings_of_a_call_reach_the_extractor_too_but_not_those_of_its_tools(
    mode: str,
) -> None:
    """Only the steps had them. The extractor has no tools to choose."""
    lm = ScriptedLM([STEPS[mode]("done", "finish", {}), fields(reasoning="r", answer=1)])
    agent(mode, temperature=0.5, seed=1)(
        question="q",
        lm=lm,
        config={"temperature": 0.1, "tool_choice": "required"},
    )
    step, extraction = lm.requests
    assert step.settings == extraction.settings == {"temperature": 0.1, "seed": 1}
    assert extraction.tool_choice is None


@pytest.mark.parametrize("bad", [0, -1, True, "3", 2.5, None])
def test_a_max_iters_that_makes_no_sense_is_refused(bad: Any) -> None:
    """Bad input gets a clear error."""
    with pytest.raises(ConfigurationError, match="max_iters"):
        ReAct("question -> answer", [add], max_iters=bad)


def test_a_raised_exception_becomes_an_observation_without_local_paths(mode: str) -> None:
    def read(path: str) -> str:
        """Read."""
        raise FileNotFoundError(f"no file {path}")

    lm = script(mode, ("read", "read", {"path": "a.txt"}), ("give up", "finish", {"answer": 0}))
    prediction = agent(mode, tools=[read])(question="q", lm=lm)
    observed = prediction.trajectory["observation_0"]
    assert observed.startswith("Execution error in read: FileNotFoundError: no file a.txt")
    assert "/" not in observed
    assert prediction.answer == 0


def test_an_unknown_tool_is_answered_with_the_names_there_are(mode: str) -> None:
    """A result, and the run goes on."""
    lm = script(mode, ("?", "sum", {"a": 1}), ("ok", "finish", {"answer": 1}))
    prediction = agent(mode)(question="q", lm=lm)
    assert "There is no tool `sum`" in prediction.trajectory["observation_0"]
    assert "`add`" in prediction.trajectory["observation_0"]
    assert len(lm.requests) == 2


def test_bad_arguments_are_all_named_and_the_tool_is_not_run(mode: str) -> None:
    ran: list[int] = []

    def note(a: int, b: int) -> str:
        """Note."""
        ran.append(a)
        return "ok"

    lm = script(mode, ("?", "note", {"a": "x", "c": 1}), ("ok", "finish", {"answer": 1}))
    observed = agent(mode, tools=[note])(question="q", lm=lm).trajectory["observation_0"]
    assert ran == []
    for name in ("- a:", "- b:", "- c:"):
        assert name in observed


@pytest.mark.parametrize(
    "args",
    [
        "null",
        '""',
        "",
        '"just text"',
        "[1, 2]",
        '```json\n{"a": 1, "b": 2}\n```',
        "{'a': 1, 'b': 2,}",
    ],
)
@pytest.mark.parametrize("thought", ["", "null", "think\nhard"])
def test_odd_thoughts_and_arguments_do_not_abort_a_text_run(args: str, thought: str) -> None:
    lm = ScriptedLM(
        [text_step(thought, "add", args or "{}"), text_step("ok", "finish", {"answer": 1})],
    )
    assert agent("text")(question="q", lm=lm).answer == 1


def test_a_step_that_cannot_be_read_is_repaired_then_becomes_an_observation() -> None:
    """D19; architecture station 4: the reason goes back, then the fallback adapter once, then an
    observation.
    """
    lm = ScriptedLM(
        [
            "I would rather chat.",
            "Still chatting.",
            "And again.",
            text_step("ok", "finish", {"answer": 1}),
        ],
    )
    with lm, context(adapter=ChatAdapter(repairs=1)):
        prediction = agent("text")(question="q", lm=lm)
    assert prediction.answer == 1
    assert "next_tool_name" in prediction.trajectory["observation_0"]


def test_so_many_bad_steps_in_a_row_stop_the_run_with_the_reason(mode: str) -> None:
    """`same_error`."""
    lm = ScriptedLM([STEPS[mode]("?", "nosuch", {})] * 3)
    with lm, pytest.raises(TooManyFaultsError, match=r"3 faulty steps in a row.*no tool `nosuch`"):
        agent(mode, limits=Limits(same_error=3))(question="q", lm=lm)


def test_a_good_step_in_between_starts_the_count_again(mode: str) -> None:
    """A budget of *consecutive* faults."""
    bad, good = ("?", "nosuch", {}), ("ok", "add", {"a": 1, "b": 1})
    lm = script(mode, bad, good, bad, good, bad, ("end", "finish", {"answer": 1}))
    assert agent(mode, limits=Limits(same_error=2))(question="q", lm=lm).answer == 1


@pytest.mark.parametrize("wrong", [deny("x"), [deny("x")], Policy], ids=["rule", "rules", "class"])
def test_a_policy_that_is_none_is_refused_when_the_program_is_made(wrong: Any) -> None:
    """Every run failed, as a rule has no `rule_for`."""
    with pytest.raises(ConfigurationError, match=r"`policy` takes a `Policy\(\[allow"):
        ReAct("question -> answer", [add], policy=wrong)


def test_tool_retry_goes_to_the_model_and_counts_and_tool_stop_ends_the_run(mode: str) -> None:
    """api.md: `ToolRetry`, `ToolStop`."""

    def pick(n: int) -> str:
        """Pick."""
        if n == 1:
            raise ToolRetry("pick an even number")
        raise ToolStop("budget is gone")

    lm = script(mode, ("1", "pick", {"n": 1}), ("2", "pick", {"n": 2}))
    program = agent(mode, tools=[pick])
    run = program.start(question="q", lm=lm)
    assert run.trajectory["observation_0"] == "pick an even number"
    assert run.trajectory.steps[0].results[0].is_fault
    with pytest.raises(ToolStop, match="budget is gone"):
        _ = run.prediction


@pytest.mark.parametrize(
    ("adapter", "marks"),
    [(ChatAdapter(), ["[[ ## thought_0 ## ]]", "[[ ## observation_0 ## ]]"]), (JSONAdapter(), ['"thought_0"', '"observation_0"']), (XMLAdapter(), ["<thought_0>", "</observation_0>"])],
)  # fmt: skip
def test_the_active_adapter_renders_the_trajectory(adapter: Any, marks: list[str]) -> None:
    def said(name: str, args: Any) -> str:
        values = {"next_thought": "t", "next_tool_name": name, "next_tool_args": args}
        if isinstance(adapter, JSONAdapter):
            return json.dumps(values)
        if isinstance(adapter, XMLAdapter):
            return "".join(
                f"<{key}>{value if isinstance(value, str) else json.dumps(value)}</{key}>"
                for key, value in values.items()
            )
        return text_step("t", name, args)

    lm = ScriptedLM([said("add", {"a": 1, "b": 2}), said("finish", {"answer": 3})])
    with context(adapter=adapter), lm:
        assert agent("text")(question="q", lm=lm).answer == 3
    step = lm.requests[1].messages[-1].text
    assert all(mark in step for mark in marks)
    if isinstance(adapter, JSONAdapter):
        assert json.loads(step)["observation_0"] == "3"


def test_a_tool_name_in_a_list_of_one_is_that_name() -> None:
    lm = ScriptedLM(
        [text_step("t", '["add"]', {"a": 1, "b": 2}), text_step("t", "finish", {"answer": 3})],
    )
    assert agent("text")(question="q", lm=lm).answer == 3


def test_each_request_begins_with_the_one_before(mode: str) -> None:
    """L7, api.md 3: the prompt's prefix never changes between steps."""
    lm = script(
        mode,
        *[("go", "add", {"a": i, "b": 1}) for i in range(10)],
        ("end", "finish", {"answer": 1}),
    )
    agent(mode)(question="q", lm=lm)
    for before, after in zip(lm.requests, lm.requests[1:], strict=False):
        shown = [message.json for message in before.messages]
        assert [message.json for message in after.messages][: len(shown)] == shown
        assert after.tools.json == before.tools.json


def test_on_context_overflow_the_oldest_step_is_dropped_and_the_trajectory_stays_whole(
    mode: str,
) -> None:
    overflow = ContextOverflowError("too long")
    steps = [STEPS[mode](str(i), "add", {"a": i, "b": 0}) for i in range(3)]
    with ScriptedLM(
        [*steps, overflow, overflow, STEPS[mode]("end", "finish", {"answer": 9})],
    ) as lm:
        prediction = agent(mode)(question="q", lm=lm)
    assert prediction.answer == 9
    assert [prediction.trajectory[f"thought_{i}"] for i in range(4)] == ["0", "1", "2", "end"]
    assert len(lm.requests[-1].messages) < len(lm.requests[2].messages) + 2


def test_context_overflow_gives_up_after_three_rounds_with_the_error(mode: str) -> None:
    steps: list[Any] = [STEPS[mode](str(i), "add", {"a": i, "b": 0}) for i in range(6)]
    with (
        ScriptedLM([*steps, *[ContextOverflowError("too long")] * 4]) as lm,
        pytest.raises(ContextOverflowError),
    ):
        agent(mode)(question="q", lm=lm)
    with ScriptedLM([ContextOverflowError("too long")]) as lm, pytest.raises(ContextOverflowError):
        agent(mode)(question="q", lm=lm)


def test_one_huge_observation_is_shortened_before_a_step_is_dropped(mode: str) -> None:
    def read(n: int) -> str:
        """Read."""
        return "x" * 50_000

    with ScriptedLM(
        [
            STEPS[mode]("r", "read", {"n": 1}),
            ContextOverflowError("too long"),
            STEPS[mode]("end", "finish", {"answer": 1}),
        ],
    ) as lm:
        prediction = agent(mode, tools=[read])(question="q", lm=lm)
    assert len(prediction.trajectory["observation_0"]) == 50_000
    shown = lm.requests[-1].messages[-1].text
    assert "characters left out" in shown
    assert len(shown) < 20_000


@pytest.mark.parametrize("spill_over", [1_000, None])
def test_an_observation_that_is_not_shown_whole_is_measured_as_it_is_shown(
    mode: str, spill_over: int | None
) -> None:
    def read(n: int) -> str:
        """Read."""
        return "x" * 50_000

    with ScriptedLM(
        [
            STEPS[mode]("r", "read", {"n": 1}),
            STEPS[mode]("s", "read", {"n": 2}),
            ContextOverflowError("too long"),
            STEPS[mode]("end", "finish", {"answer": 1}),
        ],
    ) as lm:
        program = agent(
            mode,
            tools=Toolbox([read], spill_over=spill_over),
            limits=Limits(observation_chars=1_500),
        )
        assert program(question="q", lm=lm).answer == 1
    *_, too_long, shorter = [request.messages for request in lm.requests]
    assert len(shorter) < len(too_long)  # the oldest step is left out at once
    assert str(shorter).count("xxx") > 0
    assert sum(len(each.text) for each in shorter) < sum(len(each.text) for each in too_long)


def test_oversize_observations_are_shown_with_their_middle_cut_out(mode: str) -> None:
    """By rule, `limits.observation_chars`."""

    def read(n: int) -> str:
        """Read."""
        return "x" * 500

    lm = script(mode, ("r", "read", {"n": 1}), ("end", "finish", {"answer": 1}))
    prediction = agent(mode, tools=[read], limits=Limits(observation_chars=100))(
        question="q",
        lm=lm,
    )
    assert len(prediction.trajectory["observation_0"]) == 500
    assert "400 characters left out" in lm.requests[-1].messages[-1].text


def test_truncate_trajectory_can_be_overridden(mode: str) -> None:
    class Keeps(ReAct):
        def truncate_trajectory(self, trajectory: Trajectory) -> Trajectory:
            return Trajectory(trajectory.steps[:1])

    steps = [STEPS[mode](f"thought {i}", "add", {"a": i, "b": 0}) for i in range(3)]
    lm = ScriptedLM(
        [*steps, ContextOverflowError("too long"), STEPS[mode]("end", "finish", {"answer": 9})],
    )
    Keeps("question -> answer: int", [add], native=mode == "native")(question="q", lm=lm)
    text = "".join(message.text for message in lm.requests[-1].messages)
    assert "thought 0" in text
    assert "thought 2" not in text


class Point(BaseModel):
    x: int
    y: int


@pytest.mark.parametrize(
    "value",
    [
        None,
        [None],
        [1, "a"],
        {"k": (1, 2)},
        Point(x=1, y=2),
        b"\xff",
        {1, 2},
        object,
        3.5,
        float("nan"),
        "\ud800",
    ],
)
@pytest.mark.filterwarnings("ignore:The tool .* has no form in JSON")
def test_any_result_of_a_tool_can_be_shown(mode: str, value: Any) -> None:
    give = Tool(lambda: value, "give", "Give.")
    lm = script(mode, ("g", "give", {}), ("end", "finish", {"answer": 1}))
    prediction = agent(mode, tools=[give])(question="q", lm=lm)
    assert isinstance(prediction.trajectory["observation_0"], str)
    assert not prediction.trajectory.steps[0].results[0].is_error
    again = agent(mode, tools=[give])(
        question="q",
        lm=script(mode, ("g", "give", {}), ("end", "finish", {"answer": 1})),
    )
    assert again == prediction


def test_pictures_from_tools_reach_the_model_as_parts(mode: str) -> None:
    """Images."""
    look = Tool(lambda: Image(data="aGk=", media_type="image/png"), "look", "Look.")
    lm = script(mode, ("l", "look", {}), ("end", "finish", {"answer": 1}))
    agent(mode, tools=[look])(question="q", lm=lm)
    assert b"data:image/png;base64,aGk=" in lm.requests[-1].messages[-1].json


@pytest.mark.parametrize(
    "name",
    ["trajectory", "max_iters", "history", "next_thought", "next_tool_name"],
)
def test_inputs_the_loop_needs_for_itself_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(SignatureError, match=name):
        ReAct(f"{name} -> answer", [add])


def test_an_output_called_trajectory_is_refused_with_the_reason() -> None:
    """It was told as a field that the extractor's signature has already."""
    with pytest.raises(
        SignatureError,
        match="output of a ReAct agent cannot be called `trajectory`: its prediction has the steps",
    ):
        ReAct("question -> trajectory", [add])


@pytest.mark.parametrize(
    "name", ["next_thought", "next_intention", "next_tool_name", "next_tool_args"]
)
def test_an_output_called_like_one_of_a_step_is_refused_with_the_reason(name: str) -> None:
    """`next_tool_name` made the agent's signature pass for one of a step."""
    with pytest.raises(SignatureError, match=f"output of a ReAct agent cannot be called `{name}`"):
        ReAct(f"question -> {name}", [add])


def test_an_output_called_reasoning_is_an_output_like_others(mode: str) -> None:
    """The extractor reasons in an output of that name itself."""
    agent = ReAct("question -> reasoning, answer", [add], native=mode == "native")
    outputs = {"reasoning": "r", "answer": "a"}
    step = native_step if mode == "native" else text_step
    assert (
        dict(agent(question="q", lm=ScriptedLM([step("e", "finish", {}), fields(**outputs)])))
        == outputs
    )
    if mode == "native":
        assert (
            dict(agent(question="q", lm=ScriptedLM([native_step("e", "finish", outputs)])))
            == outputs
        )


def test_an_agent_may_have_an_input_called_reasoning(mode: str) -> None:
    """Its extractor then has no other output than the agent's."""
    agent = ReAct("reasoning -> answer", [add], native=mode == "native")
    step = native_step if mode == "native" else text_step
    lm = ScriptedLM([step("e", "finish", {}), fields(answer="a")])
    assert dict(agent(reasoning="as I see it", lm=lm)) == {"answer": "a"}
    assert "as I see it" in lm.requests[1].messages[-1].text
    assert [name for name, _ in agent.named_predictors()] == ["react", "extract.predict"]
    agent.deepcopy().load_state(agent.dump_state())


@pytest.mark.parametrize("name", ["finish", "user_clarification"])
def test_a_tool_named_like_a_builtin_is_refused(name: str) -> None:
    with pytest.raises(DuplicateToolError, match=name):
        ReAct("question -> answer", [Tool(add, name)])


def test_two_tools_of_one_name_and_things_that_are_no_tools_are_refused() -> None:
    with pytest.raises(DuplicateToolError, match="add"):
        ReAct("question -> answer", [add, Tool(add)])
    with pytest.raises(TypeError):
        ReAct("question -> answer", [3])


def test_several_calls_of_one_turn_give_lists_in_the_trajectory(mode: str) -> None:
    """Native, and where the text asks for several."""
    calls = [{"a": 1, "b": 1}, {"a": 2, "b": 2}]
    first: Any = (
        Response("both", tuple(ToolCall(name="add", args=each) for each in calls))
        if mode == "native"
        else text_step("both", '["add", "add"]', json.dumps(calls))
    )
    lm = ScriptedLM([first, STEPS[mode]("end", "finish", {"answer": 6})])
    trajectory = agent(mode)(question="q", lm=lm).trajectory
    assert trajectory["tool_name_0"] == ["add", "add"]
    assert trajectory["tool_args_0"] == calls
    assert trajectory["observation_0"] == ["2", "4"]


def test_every_native_call_gets_exactly_one_tool_message_with_its_id() -> None:
    calls = (
        ToolCall(name="add", args={"a": 1, "b": 1}, id="x"),
        ToolCall(name="nosuch", id="y"),
        ToolCall(name="add", args={"a": 1}, id="z"),
    )
    lm = ScriptedLM([Response(tool_calls=calls), native_step("end", "finish", {"answer": 6})])
    agent("native")(question="q", lm=lm)
    answers = [message for message in lm.requests[-1].messages if message.role == "tool"]
    assert [message.tool_call_id for message in answers] == ["x", "y", "z"]


def test_a_plain_answer_in_native_mode_ends_the_loop() -> None:
    """A single text output is taken as it stands; otherwise the extractor makes outputs of it."""
    lm = ScriptedLM([native_step("sum", "add", {"a": 1, "b": 1}), "It is two."])
    assert agent("native", "question -> answer")(question="q", lm=lm).answer == "It is two."
    lm = ScriptedLM(["It is two.", fields(reasoning="r", answer=2)])
    assert agent("native")(question="q", lm=lm).answer == 2


def test_an_empty_native_answer_is_a_bad_step() -> None:
    lm = ScriptedLM([Response(""), Response(None), native_step("end", "finish", {"answer": 1})])
    prediction = agent("native")(question="q", lm=lm)
    assert prediction.answer == 1
    assert "empty" in prediction.trajectory["observation_0"]


class Report(Signature):
    """Judge the number carefully."""

    number: int = InputField(desc="what to judge")
    verdict: Literal["odd", "even"] = OutputField(desc="its parity")
    point: Point = OutputField(desc="where it lies")


def test_instructions_and_field_descriptions_reach_the_step_and_the_extraction(mode: str) -> None:
    lm = ScriptedLM(
        [
            STEPS[mode]("end", "finish"),
            fields(reasoning="r", verdict="odd", point={"x": 1, "y": 2}),
        ],
    )
    prediction = agent(mode, Report, ())(number=3, lm=lm)
    assert prediction.verdict == "odd"
    assert prediction.point == Point(x=1, y=2)
    for request in lm.requests:
        system = request.messages[0].text
        assert "Judge the number carefully." in system
        assert "what to judge" in system
        declared = "" if not request.tools else request.tools.json.decode()
        assert "its parity" in system + declared


def test_typed_outputs_given_to_finish_are_validated(mode: str) -> None:
    lm = script(mode, ("end", "finish", {"verdict": "even", "point": {"x": "1", "y": 2}}))
    assert agent(mode, Report, ())(number=2, lm=lm).point == Point(x=1, y=2)


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.long)])
def test_two_runs_at_once_share_nothing(mode: str, count: int) -> None:
    """Many runs of one agent instance in one process."""

    def answer(request: Any) -> Any:
        number = int(request.messages[1].text.split("number-")[1].split()[0])
        steps = len(
            [m for m in request.messages if m.role == ("tool" if mode == "native" else "user")],
        ) - (mode == "text")
        if steps < 3:
            return STEPS[mode](f"step {steps}", "add", {"a": number, "b": steps})
        return STEPS[mode]("end", "finish", {"answer": number})

    seen: list[int] = []

    async def slow_add(a: int, b: int) -> int:
        """Add."""
        seen.append(a)
        await asyncio.sleep(0)
        return a + b

    program = agent(mode, tools=[Tool(slow_add, "add")])
    lm = ScriptedLM(by=answer)

    async def main() -> list[Prediction]:
        return await asyncio.gather(
            *(program.acall(question=f"number-{n} ?", lm=lm) for n in range(count)),
        )

    before = dict(vars(program))
    for n, prediction in enumerate(asyncio.run(main())):
        assert prediction.answer == n
        assert [prediction.trajectory[f"observation_{i}"] for i in range(3)] == [
            str(n),
            str(n + 1),
            str(n + 2),
        ]
    assert len(seen) == 3 * count
    assert vars(program) == before


def test_user_clarification_pauses_with_the_models_question_and_the_answer_is_the_observation(
    mode: str,
    driver: str,
) -> None:
    lm = script(
        mode,
        ("unclear", "user_clarification", {"question": "Which year?"}),
        ("ok", "finish", {"answer": 1999}),
    )
    with pytest.raises(ConfirmationRequired) as raised:
        call(agent(mode, enable_user_clarification=True), driver, question="When?", lm=lm)
    assert raised.value.question == "Which year?"
    run = raised.value.run
    run.answer(run.pending[0].reply("1999"))
    run = asyncio.run(run.aresume()) if driver == "async" else run.resume()
    assert run.prediction.answer == 1999
    assert run.prediction.trajectory["observation_0"] == "1999"


def test_an_agent_without_a_tool_that_asks_never_asks(mode: str, driver: str) -> None:
    """Without `enable_user_clarification`, the model has no tool for questions."""
    lm = script(
        mode,
        ("unclear", "user_clarification", {"question": "Which year?"}),
        ("ok", "finish", {"answer": 1999}),
    )
    assert list(agent(mode).tools) == ["add", "finish"]
    prediction = call(agent(mode), driver, question="When?", lm=lm)
    assert prediction.answer == 1999
    assert prediction.trajectory.steps[0].results[0].is_fault


def test_the_error_of_a_waiting_run_says_what_to_do() -> None:
    @tool(require_confirmation=True)
    def remove(path: str) -> str:
        """Remove a file."""
        return path

    lm = script("native", ("", "remove", {"path": "a"}), ("", "finish", {"answer": 1}))
    with pytest.raises(ConfirmationRequired) as raised:
        agent("native", tools=[remove])(question="q", lm=lm)
    question, _, remedy = str(raised.value).partition("\n")
    assert question == raised.value.question
    for words in ("run = error.run", "run.answer(question.approve())", "run.resume()", "start("):
        assert words in remedy
    run = raised.value.run
    run.answer(run.pending[0].approve())
    run.resume()
    assert run.prediction.answer == 1


@pytest.mark.parametrize("decision", ["approve", "edit", "deny", "reply", "bad edit"])
def test_a_call_that_needs_a_person_waits_for_the_decision(
    mode: str,
    driver: str,
    decision: str,
) -> None:
    removed: list[str] = []

    @tool(require_confirmation=True)
    def remove(path: str, *, force: bool = False) -> str:
        """Remove a file."""
        removed.append(path)
        return f"removed {path}"

    lm = script(mode, ("clean", "remove", {"path": "a"}), ("ok", "finish", {"answer": 1}))
    run = agent(mode, tools=[remove]).start(question="q", lm=lm)
    (question,) = run.pending
    assert (
        question.text
        == 'Confirm execution of remove with args: {"path":"a","force":false}? (yes/no)'
    )
    assert removed == []
    choices = {
        "approve": question.approve(), "edit": question.approve(path="b"), "deny": question.deny("keep it"), "reply": question.reply("ask Ann"),
        "bad edit": question.approve(path=["no"]),
    }  # fmt: skip
    run.answer(choices[decision])
    run = asyncio.run(run.aresume()) if driver == "async" else run.resume()
    if decision == "bad edit":
        assert removed == []
        assert run.status == "waiting"
        assert "do not fit" in run.pending[0].text
        assert run.pending[0].id != question.id
        return
    expected = {"approve": "removed a", "edit": "removed b", "deny": "keep it", "reply": "ask Ann"}[
        decision
    ]
    assert expected in run.prediction.trajectory["observation_0"]
    assert removed == {"approve": ["a"], "edit": ["b"]}.get(decision, [])
    assert len(lm.requests) == 2


def test_other_calls_of_the_turn_run_once_whatever_becomes_of_the_question() -> None:
    ran: list[str] = []

    def free(n: int) -> str:
        """Free."""
        ran.append(f"free {n}")
        return "ok"

    guarded = Tool(
        lambda n: ran.append(f"guarded {n}"),
        "guarded",
        "Guarded.",
        {"n": {"type": "integer"}},
        require_confirmation=True,
    )
    turn = Response(
        tool_calls=(
            ToolCall(name="guarded", args={"n": 1}),
            ToolCall(name="free", args={"n": 2}),
            ToolCall(name="guarded", args={"n": 3}),
        ),
    )
    lm = ScriptedLM([turn, native_step("end", "finish", {"answer": 1})])
    run = agent("native", tools=[free, guarded]).start(question="q", lm=lm)
    assert ran == ["free 2"]
    first, second = run.pending
    assert first.id != second.id
    run.answer(first.approve())
    run.resume()
    assert run.status == "waiting"
    assert [question.id for question in run.pending] == [second.id]
    run.answer(second.deny())
    assert run.resume().prediction.answer == 1
    assert ran == ["free 2", "guarded 1"]
    assert [
        message.tool_call_id for message in lm.requests[-1].messages if message.role == "tool"
    ] == ["call_0", "call_1", "call_2"]


@pytest.mark.parametrize("text", ["Half an ans", "[[ ## answer ## ]]\n4"])
def test_an_answer_that_a_content_filter_cut_off_is_no_answer(text: str) -> None:
    """A part of it would pass for the whole. Calls are whole, and run."""
    from ferrule import Predict
    from ferrule.errors import RefusalError

    cut = Response(text, finish_reason="content_filter")
    for program in (
        agent("native"),
        Predict("question -> answer: int"),
        Predict("question -> answer", tools=[add]),
    ):
        with (
            ScriptedLM([cut]) as lm,
            pytest.raises(RefusalError, match="content filter cut the answer off"),
        ):
            program(question="q", lm=lm)
    call = Response(
        "hm",
        (ToolCall(name="add", args={"a": 1, "b": 2}),),
        finish_reason="content_filter",
    )
    assert (
        agent("native")(
            question="q",
            lm=ScriptedLM([call, {"name": "finish", "args": {"answer": 3}}]),
        ).answer
        == 3
    )


def test_a_refusal_of_the_model_is_raised_with_its_words() -> None:
    """`RefusalError`."""
    from ferrule.errors import RefusalError

    with pytest.raises(RefusalError, match="I cannot help"):
        agent("native")(question="q", lm=ScriptedLM([Response(refusal="I cannot help")]))


def test_an_extraction_that_cannot_be_read_is_an_error_with_the_answer() -> None:
    lm = ScriptedLM([text_step("end", "finish"), "junk", "junk", "junk"])
    with pytest.raises(AdapterParseError, match="junk"), context(adapter=ChatAdapter(repairs=1)):
        agent("text")(question="q", lm=lm)


def test_a_tool_that_changes_its_arguments_does_not_change_the_record(mode: str) -> None:
    """What the model sent stays what it sent, in the trajectory, in the next request and in a
    replay.
    """

    def spoil(items: Any, more: dict, pay: bool = False) -> str:
        """Spoil."""
        items.append(9)
        more["n"].append(3)
        return "k"

    guarded = Tool(add, require_confirmation=True)
    lm = script(
        mode,
        ("s", "spoil", {"items": [1], "more": {"n": []}}),
        ("p", "add", {"a": 1, "b": 1}),
        ("e", "finish", {"answer": 2}),
    )
    run = agent(mode, tools=[spoil, guarded]).start(question="q", lm=lm)
    assert run.trajectory["tool_args_0"] == {"items": [1], "more": {"n": []}}
    run.answer(run.pending[0].approve())
    assert run.resume().prediction.answer == 2


def test_what_was_given_may_be_changed_while_the_run_waits(mode: str) -> None:
    """Inputs are held as they were."""

    class Chat(Signature):
        """Chat."""

        history: History = InputField()
        numbers: list[int] = InputField()
        answer: int = OutputField()

    guarded = Tool(add, require_confirmation=True)
    lm = script(mode, ("p", "add", {"a": 1, "b": 1}), ("e", "finish", {"answer": 2}))
    history, numbers = History(messages=[]), [1]
    run = agent(mode, Chat, [guarded]).start(history=history, numbers=numbers, lm=lm)
    history.messages.append({"numbers": [0], "answer": 1})
    numbers.append(2)
    run.answer(run.pending[0].approve())
    assert run.resume().prediction.answer == 2


def test_a_run_is_carried_by_one_at_a_time(mode: str) -> None:
    """Two resumes at once run an approved call once."""
    ran: list[int] = []

    async def pay(x: int) -> str:
        """Pay."""
        ran.append(x)
        await asyncio.sleep(0)
        return "paid"

    lm = script(mode, ("p", "pay", {"x": 1}), ("e", "finish", {"answer": 2}))
    run = agent(mode, tools=[Tool(pay, require_confirmation=True)]).start(question="q", lm=lm)
    run.answer(run.pending[0].approve())

    async def main() -> list[Any]:
        return await asyncio.gather(run.aresume(), run.aresume(), return_exceptions=True)

    ended = asyncio.run(main())
    assert ran == [1]
    assert run.status == "done"
    assert [type(each).__name__ for each in ended if isinstance(each, BaseException)] == [
        "RunError",
    ]


@pytest.mark.parametrize(
    "decision",
    [
        True,
        None,
        "yes",
        Decision("ID", "edit", args=None),
        Decision("ID", "edit", args=[1]),
        Decision("ID", "edit", args={1: 2}),
        Decision("ID", "reply", text=None),
        Decision("ID", "nonsense"),
        Decision("ID", "approve", at="now"),
        Decision("ID", "approve", at=math.nan),
        Decision("ID", "approve", grant="any"),
        Decision("other", "approve"),
    ],
    ids=range(12),
)
def test_a_decision_that_makes_no_sense_is_refused_and_the_question_still_waits(
    decision: Any,
) -> None:
    """Nothing runs, and nothing is lost."""
    lm = script("native", ("p", "add", {"a": 1, "b": 1}), ("e", "finish", {"answer": 2}))
    run = agent("native", tools=[Tool(add, require_confirmation=True)]).start(question="q", lm=lm)
    (question,) = run.pending
    wrong = (
        replace(decision, question_id=question.id)
        if isinstance(decision, Decision) and decision.question_id == "ID"
        else decision
    )
    with pytest.raises(DecisionError):
        run.answer(wrong)
    run.answer(question.approve())
    with pytest.raises(DecisionError, match="decided already"):
        run.answer(question.deny())
    assert run.resume().prediction.answer == 2


def test_inputs_come_by_name_and_may_have_any_name() -> None:
    """Ours; api.md 4: `self` is an ordinary name."""
    lm = ScriptedLM(by=lambda _: native_step("e", "finish", {"answer": 2}))
    with pytest.raises(InputError, match="by name"):
        agent("native")("hello", lm=lm)
    odd = agent("native", "self, args, inputs, program -> answer: int")
    given = {"self": "s", "args": "a", "inputs": "i", "program": "p", "lm": lm}
    assert odd(**given).answer == 2
    assert odd.start(**given).prediction.answer == 2
    assert odd.stream(**given).prediction.answer == 2
    assert asyncio.run(odd.acall(**given)).answer == 2


@pytest.mark.parametrize("args", [{"a": 2, "b": 3}, '{"a": 2, "b": 3}'], ids=["object", "string"])
def test_the_arguments_of_a_step_in_json_may_be_a_string_of_json(args: Any) -> None:
    """Doubly encoded arguments, as in native calls."""
    step = {"next_thought": "null", "next_tool_name": "add", "next_tool_args": args}
    done = {"next_thought": "x", "next_tool_name": "finish", "next_tool_args": {}}
    lm = ScriptedLM([json.dumps(each) for each in (step, done, {"reasoning": "r", "answer": 5})])
    with context(lm=lm, adapter=JSONAdapter(use_native_function_calling=False)):
        found = agent("text")(question="?")
    first = found.trajectory.steps[0]
    assert (first.thought, first.calls[0].args, first.results[0].is_error) == (
        "null",
        {"a": 2, "b": 3},
        False,
    )


def test_what_finish_carries_natively_is_typed_already() -> None:
    """A string is that string."""
    lm = ScriptedLM([native_step("done", "finish", {"answer": "null", "code": "  x\n"})])
    with context(lm=lm):
        found = agent("native", Signature("question -> answer: str | None, code: int | str"))(
            question="?",
        )
    assert (found.answer, found.code) == ("null", "  x\n")


def test_agents_of_one_signature_share_what_derives_from_it() -> None:
    """A service makes an agent for every request."""

    class QA(Signature):
        question: str = InputField()
        answer: int = OutputField()

    one, other = (ReAct(QA, tools=[], max_iters=iters) for iters in (1, 2))
    assert one.extract.predict.signature is other.extract.predict.signature
    thinking = [
        ChainOfThought(QA, reasoning_description=said).predict.signature.output_fields["reasoning"]
        for said in "aba"
    ]
    assert [each.description for each in thinking] == ["a", "b", "a"]


def test_the_built_in_tools_keep_their_descriptions_when_python_drops_docstrings():
    code = (
        "from ferrule import ReAct, Tool, Toolbox, defer_tools\n"
        "tool = Tool(lambda x: x, 'echo', 'Echo.')\n"
        "agent = ReAct('question -> answer', Toolbox([tool], search='bm25'))\n"
        "print([each.declaration for each in (*agent.toolbox, *defer_tools([tool]))])\n"
    )
    told = [
        subprocess.run(
            [sys.executable, *option, "-c", code],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for option in ([], ["-OO"])
    ]
    assert told[0] == told[1]
    assert "'description': ''" not in told[0]


class Desk:
    """What a tool belongs to."""

    def look(self, key: str) -> str:
        """Look."""
        return key


@pytest.mark.parametrize("calls", ["native", "prompted"])
@pytest.mark.parametrize("intention", [False, True])
def test_what_a_tool_belongs_to_is_freed_with_the_agent(calls: Any, intention: bool) -> None:
    """A service makes an agent for each request: up to 256 of their connections and users stayed in
    memory.
    """

    def ask() -> Any:
        desk = Desk()
        step = (
            native_step("a", "look", {"key": "k"})
            if calls == "native"
            else text_step("t", "look", {"key": "k"})
        )
        last = (
            native_step("b", "finish", {"answer": "x"})
            if calls == "native"
            else text_step("t", "finish", {})
        )
        agent = ReAct("question -> answer", [desk.look], calls=calls, intention=intention)
        answers = [step, last, fields(reasoning="r", answer="x")]
        assert agent(question="q", lm=ScriptedLM(answers)).trajectory["observation_0"] == "k"
        return weakref.ref(desk)

    left = ask()
    gc.collect()
    assert left() is None


@pytest.mark.parametrize("native", [True, False])
def test_what_a_tool_belongs_to_is_freed_with_the_predictor(native: bool) -> None:
    def ask() -> Any:
        desk = Desk()
        predict = Predict("question -> answer", tools=[desk.look], native=native)
        predict(question="q", lm=ScriptedLM([fields(answer="x")]))
        return weakref.ref(desk)

    left = ask()
    gc.collect()
    assert left() is None


def test_a_pickled_toolbox_is_equal_and_has_nothing_that_was_derived_from_it() -> None:
    box = Toolbox([Tool(len, "size", "Size.")])
    whole = pickle.dumps(box)
    ReAct("question -> answer", box)(question="q", lm=AutoLM())
    assert pickle.dumps(box) == whole
    assert pickle.loads(whole) == box


# -- the parts of seed 000


def test_the_predictor_of_the_loop_shows_one_step() -> None:
    """Seed 000: its outputs are a thought, a tool of the list, and arguments; it lists the tools."""
    program = ReAct("question -> answer: int", [add])
    signature = program.react.signature
    assert isinstance(program.react, Predict)
    assert list(signature.input_fields) == ["question"]
    annotations = {name: field.annotation for name, field in signature.output_fields.items()}
    assert annotations == {
        "next_thought": str,
        "next_tool_name": Literal["add", "finish"],
        "next_tool_args": dict[str, Any],
    }
    assert "(1) add, " in signature.instructions
    assert "(2) finish, " in signature.instructions
    assert list(program.signature.fields) == ["question", "answer"]


def test_the_signature_of_a_step_is_the_prompt_of_a_step_in_text() -> None:
    program = agent("text")
    lm = ScriptedLM([text_step("t", "finish"), fields(reasoning="r", answer=3)])
    program(question="q", lm=lm)
    assert program.react.signature.instructions in lm.requests[0].messages[0].text


def test_the_signature_of_a_step_follows_the_agent() -> None:
    program = ReAct("question -> answer", [add], intention=True)
    program.signature = "topic -> verdict"
    program.enable_user_clarification = True
    program.react.toolbox = Toolbox([Tool(add, "plus")])
    signature = program.react.signature
    assert list(signature.fields) == [
        "topic",
        "next_thought",
        "next_intention",
        "next_tool_name",
        "next_tool_args",
    ]
    tools = ("plus", "user_clarification", "finish")
    assert signature.output_fields["next_tool_name"].annotation == Literal[tools]


def test_the_predictor_of_the_loop_asks_for_one_step_when_it_is_called() -> None:
    program = ReAct("question -> answer", [add])
    found = program.react(question="q", lm=ScriptedLM([text_step("t", "add", {"a": 1, "b": 2})]))
    assert dict(found) == {
        "next_thought": "t",
        "next_tool_name": "add",
        "next_tool_args": {"a": 1, "b": 2},
    }


def test_other_instructions_of_a_step_become_those_of_the_agent(mode: str) -> None:
    """As programs of DSPy set them; in native mode, too."""
    program = agent(mode)
    for change in ("Think of ducks.", program.react.signature.instructions + "\nMind the ducks."):
        program.react.signature = program.react.signature.with_instructions(change)
        assert program.react.signature.instructions.startswith(change)
    assert program.signature.instructions.endswith("Mind the ducks.")
    answers: list[Any] = [text_step("t", "finish"), fields(reasoning="r", answer=3)]
    if mode == "native":
        answers = [native_step("e", "finish", {"answer": 3})]
    lm = ScriptedLM(answers)
    assert program(question="q", lm=lm).answer == 3
    assert "Mind the ducks." in lm.requests[0].messages[0].text
    with pytest.raises(SignatureError, match=r"set `agent\.signature`"):
        program.react.signature = program.react.signature.append("more", OutputField(), str)


IN_MARKERS = """[[ ## thought_0 ## ]]
t

[[ ## tool_name_0 ## ]]
add

[[ ## tool_args_0 ## ]]
{"a":1}

[[ ## observation_0 ## ]]
3"""
IN_JSON = '{"thought_0":"t","tool_name_0":"add","tool_args_0":{"a":1},"observation_0":"3"}'
IN_TAGS = """<thought_0>
t
</thought_0>
<tool_name_0>
add
</tool_name_0>
<tool_args_0>
{"a":1}
</tool_args_0>
<observation_0>
3
</observation_0>"""


@pytest.mark.parametrize(
    ("adapter", "expected"),
    [(ChatAdapter(), IN_MARKERS), (JSONAdapter(), IN_JSON), (XMLAdapter(), IN_TAGS)],
    ids=["chat", "JSON", "XML"],
)
def test_the_adapter_decides_how_a_trajectory_looks(adapter: Any, expected: str) -> None:
    """Seed 000, decision 7: markers, one JSON object, or tags."""
    entries = {"thought_0": "t", "tool_name_0": "add", "tool_args_0": {"a": 1}}
    with context(adapter=adapter):
        text = ReAct("question -> answer", [add])._format_trajectory(
            {**entries, "observation_0": "3"}
        )
    assert text == expected


def test_a_subclass_may_format_the_trajectory_itself(mode: str) -> None:
    class Brief(ReAct):
        def _format_trajectory(self, trajectory: Any) -> str:
            return f"{len(trajectory.steps)} step: {trajectory['observation_0']}"

    program = Brief("question -> answer: int", [add], max_iters=1, native=mode == "native")
    step = native_step("a", "add", {"a": 1, "b": 2})
    if mode == "text":
        step = text_step("t", "add", {"a": 1, "b": 2})
    lm = ScriptedLM([step, fields(reasoning="r", answer=3)])
    assert program(question="q", lm=lm).answer == 3
    assert "1 step: 3" in lm.requests[-1].messages[-1].text
