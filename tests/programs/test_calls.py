"""`calls=`: one program, three ways to call tools."""

from __future__ import annotations

import pytest

from ferrule import Capabilities, ConfigurationError, Predict, ReAct, ScriptedLM, tool
from ferrule.values.conversation.exchange import Shape

ABLE = Capabilities(constrained_calls=True)


@tool
def double(n: int) -> int:
    """Twice a number."""
    return 2 * n


def as_text(thought: str, name: str, args: str) -> str:
    return f"[[ ## next_thought ## ]]\n{thought}\n\n[[ ## next_tool_name ## ]]\n{name}\n\n[[ ## next_tool_args ## ]]\n{args}"


DECLARED = [
    {"text": "I double.", "tool_calls": [{"name": "double", "args": {"n": 21}}]},
    {"text": "Done.", "tool_calls": [{"name": "finish", "args": {"answer": 42}}]},
]
SCRIPTS = {
    "native": DECLARED,
    "constrained": DECLARED,
    "prompted": [as_text("I double.", "double", '{"n": 21}'), as_text("Done.", "finish", '{"answer": 42}')],
}


@pytest.mark.parametrize("calls", SCRIPTS)
def test_one_program_has_the_same_steps_and_outputs_however_tools_are_called(calls):
    expected = ReAct("question -> answer: int", [double], calls="native")(question="Twice 21?", lm=ScriptedLM(DECLARED))
    with ScriptedLM(SCRIPTS[calls], capabilities=ABLE) as lm:
        found = ReAct("question -> answer: int", [double], calls=calls)(question="Twice 21?", lm=lm)
    assert found.answer == expected.answer == 42
    assert found.trajectory == expected.trajectory
    assert found.trajectory["observation_0"] == "42"


@pytest.mark.parametrize(
    ("able", "shape", "declared"),
    [(Capabilities(), None, 3), (ABLE, Shape("call"), 3), (Capabilities(native_tools=False), None, 0)],
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


def test_a_model_that_cannot_constrain_calls_is_refused_before_any_request():
    lm = ScriptedLM(DECLARED)
    for program in (ReAct("q -> a", [double], calls="constrained"), Predict("q -> a", tools=[double], calls="constrained")):
        with pytest.raises(ConfigurationError, match="cannot constrain its calls"):
            program(q="?", lm=lm)
    assert not lm.requests


@pytest.mark.parametrize(("native", "calls"), [(True, "native"), (False, "prompted"), (None, None)])
def test_native_is_the_older_form_of_the_same_choice(native, calls):
    for program in (ReAct("q -> a", [double], native=native), Predict("q -> a", native=native)):
        assert (program.calls, program.native) == (calls, native)
        program.native = not native
        assert program.calls == ("prompted" if native else "native")
    assert ReAct("q -> a", [double], calls="constrained").native is True


def test_a_wrong_choice_and_a_contradiction_are_refused():
    with pytest.raises(ConfigurationError, match='`calls` is "native", "prompted", "constrained" or None, found \'text\''):
        ReAct("q -> a", [double], calls="text")
    with pytest.raises(ConfigurationError, match="contradict each other"):
        Predict("q -> a", tools=[double], calls="prompted", native=True)
