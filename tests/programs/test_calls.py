"""`calls=`: one program, three ways to call tools."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from ferrule import LM, Capabilities, Predict, ReAct, tool
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.exchange import Shape

ABLE = Capabilities(constrained_calls=True)


@tool
def double(n: int) -> int:
    """Twice a number."""
    return 2 * n


def as_text(thought: str, name: str, args: str) -> str:
    return f"[[ ## next_thought ## ]]\n{thought}\n\n[[ ## next_tool_name ## ]]\n{name}\n\n[[ ## next_tool_args ## ]]\n{args}"


@tool
def file(words: dict[str, list[int]], by: Literal["name", "date"] = "name") -> str:
    """File some words."""
    return f"{by}: {words}"


DECLARED = [
    {"text": "I double.", "tool_calls": [{"name": "double", "args": {"n": 21}}]},
    {"text": "Done.", "tool_calls": [{"name": "finish", "args": {"answer": 42}}]},
]
SCRIPTS = {
    "native": DECLARED,
    "constrained": DECLARED,
    "prompted": [
        as_text("I double.", "double", '{"n": 21}'),
        as_text("Done.", "finish", '{"answer": 42}'),
    ],
}


@pytest.mark.parametrize("calls", SCRIPTS)
def test_one_program_has_the_same_steps_and_outputs_however_tools_are_called(calls):
    expected = ReAct("question -> answer: int", [double], calls="native")(
        question="Twice 21?",
        lm=ScriptedLM(DECLARED),
    )
    with ScriptedLM(SCRIPTS[calls], capabilities=ABLE) as lm:
        found = ReAct("question -> answer: int", [double], calls=calls)(question="Twice 21?", lm=lm)
    assert found.answer == expected.answer == 42
    assert found.trajectory == expected.trajectory
    assert found.trajectory["observation_0"] == "42"


STEPS = [
    ("Too many.", "double", {"n": "many"}),
    ("I double.", "double", {"n": 21}),
    ("I file.", "file", {"words": {"two words": [1, 2], '"quoted"': []}, "by": "date"}),
    ("Again.", "file", {"words": {}}),
    ("Who?", "sort", {"x": None}),
    ("Done.", "finish", {"answer": 42}),
]


def test_equivalent_models_give_equal_trajectories_in_all_three_ways():
    """Faulty calls, and their answers, too."""
    declared = [
        {"text": thought, "tool_calls": [{"name": name, "args": args}]}
        for thought, name, args in STEPS
    ]
    models = {
        "native": ScriptedLM(declared),
        "prompted": ScriptedLM(
            [as_text(thought, name, json.dumps(args)) for thought, name, args in STEPS],
        ),
        "constrained": ScriptedLM(declared, capabilities=ABLE),
    }
    found = {
        calls: ReAct("question -> answer: int", [double, file], calls=calls)(question="?", lm=lm)
        for calls, lm in models.items()
    }
    assert [each.answer for each in found.values()] == [42, 42, 42]
    native, prompted, constrained = (each.trajectory for each in found.values())
    assert native == prompted == constrained
    assert [result.is_fault for step in native.steps for result in step.results] == [
        True,
        False,
        False,
        False,
        True,
        False,
    ]
    assert native["observation_2"] == "date: {'two words': [1, 2], '\"quoted\"': []}"


@pytest.mark.parametrize(
    ("able", "shape", "declared"),
    [
        (Capabilities(), None, 2),
        (ABLE, Shape("call"), 2),
        (Capabilities(native_tools=False), None, 0),
    ],
    ids=["native", "constrained", "prompted"],
)
def test_without_a_choice_the_capabilities_choose(able, shape, declared):
    mode = "prompted" if not declared else "native"
    lm = ScriptedLM(SCRIPTS[mode], capabilities=able)
    ReAct("question -> answer: int", [double])(question="?", lm=lm)
    assert (lm.requests[0].shape, len(lm.requests[0].tools)) == (shape, declared)


def test_a_constrained_step_is_a_call_and_an_answer_of_predict_may_be_one():
    lm = ScriptedLM([*DECLARED, "[[ ## answer ## ]]\n42"], capabilities=ABLE)
    ReAct("question -> answer: int", [double])(question="?", lm=lm)
    assert [each.tool_choice for each in lm.requests] == ["required", "required"]
    Predict("question -> answer: int", tools=[double])(question="?", lm=lm)
    assert (lm.requests[2].tool_choice, lm.requests[2].shape) == (None, Shape("call"))


def test_a_model_behind_a_provider_is_refused_with_what_to_do_instead():
    program = ReAct("q -> a", [double], calls="constrained")
    with pytest.raises(
        ConfigurationError,
        match=r"`openai/gpt-5` cannot constrain its calls.* `LM\(..., strict_tools=True\)` with",
    ):
        program(q="?", lm=LM("openai/gpt-5", api_key="none"))


def test_a_model_that_cannot_constrain_calls_is_refused_before_any_request():
    lm = ScriptedLM(DECLARED)
    for program in (
        ReAct("q -> a", [double], calls="constrained"),
        Predict("q -> a", tools=[double], calls="constrained"),
    ):
        with pytest.raises(ConfigurationError, match="cannot constrain its calls"):
            program(q="?", lm=lm)
    assert not lm.requests


@pytest.mark.parametrize(("native", "calls"), [(True, "native"), (False, "prompted"), (None, None)])
def test_native_is_another_spelling_of_calls(native, calls):
    for program in (ReAct("q -> a", [double], native=native), Predict("q -> a", native=native)):
        assert program.calls == calls
        assert "native" not in getattr(program, "react", program).config


def test_a_wrong_choice_and_a_contradiction_are_refused():
    with pytest.raises(
        ConfigurationError,
        match='`calls` is "native", "prompted", "constrained", "code" or None, found \'text\'',
    ):
        ReAct("q -> a", [double], calls="text")
    with pytest.raises(ConfigurationError, match="contradict each other"):
        Predict("q -> a", tools=[double], calls="prompted", native=True)
