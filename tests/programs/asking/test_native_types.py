"""Output types for which a model has a feature of its own."""

from __future__ import annotations

from typing import Any

import pytest
from agent_script import fields

from ferrule import (
    AdapterParseError,
    Capabilities,
    InputField,
    OutputField,
    Predict,
    Response,
    Signature,
    ToolCall,
    ToolCalls,
    Type,
)
from ferrule.testing import ScriptedLM


class Thinking(Type):
    """Reasoning that a model tells beside its answer."""

    said: str

    @classmethod
    def adapt_to_native_lm_feature(
        cls,
        signature: Any,
        field_name: str,
        lm: Any,
        lm_kwargs: dict[str, Any],
    ) -> Any:
        if not lm.capabilities.native_tools:  # stands in for whatever a type asks of a model
            return signature
        lm_kwargs["reasoning_effort"] = "low"
        return signature.delete(field_name)

    @classmethod
    def parse_lm_response(cls, response: Any) -> Thinking | None:
        return cls(said=response["reasoning_content"]) if response["reasoning_content"] else None


class Ask(Signature):
    """Answer."""

    question: str = InputField()
    why: Thinking = OutputField()
    answer: str = OutputField()


def test_a_type_takes_its_field_out_and_reads_it_from_the_whole_answer() -> None:
    """The adapted signature, settings changed in place, and the response parsed; the caller's
    settings stay.
    """
    program = Predict(Ask, temperature=0)
    lm = ScriptedLM([Response(fields(answer="4"), reasoning="2 + 2")])
    prediction = program(question="q", lm=lm)
    assert dict(prediction) == {"why": Thinking(said="2 + 2"), "answer": "4"}
    assert dict(lm.requests[0].settings) == {"temperature": 0, "reasoning_effort": "low"}
    assert "why" not in lm.requests[0].messages[0].text
    assert program.config == {"temperature": 0}


def test_a_model_without_the_feature_is_asked_for_the_field() -> None:
    """The original signature."""
    lm = ScriptedLM([fields(why={"said": "so"}, answer="4")])
    lm.capabilities = Capabilities(native_tools=False)
    assert Predict(Ask)(question="q", lm=lm).why == Thinking(said="so")
    assert dict(lm.requests[0].settings) == {}


def test_a_required_output_that_the_answer_lacks_is_missing() -> None:
    with pytest.raises(AdapterParseError, match="why: is missing") as raised:
        Predict(Ask)(question="q", lm=ScriptedLM([fields(answer="4")]))
    assert raised.value.code == "missing_required_outputs"
    optional = Ask.with_updated_fields("why", Thinking | None)
    assert Predict(optional)(question="q", lm=ScriptedLM([fields(answer="4")])).why is None


def look(place: str) -> str:
    """Look."""
    return f"nothing in {place}"


@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
def test_such_a_type_stands_beside_tools_as_well(native: bool) -> None:
    """Whatever turns came before, it is read from the last answer."""
    call = (
        Response(None, (ToolCall(name="look", args={"place": "x"}),))
        if native
        else fields(tool_calls=[{"name": "look", "args": {"place": "x"}}])
    )
    lm = ScriptedLM([call, Response(fields(answer="4"), reasoning="2 + 2")])
    prediction = Predict(Ask, tools=[look], native=native)(question="q", lm=lm)
    assert dict(prediction) == {"why": Thinking(said="2 + 2"), "answer": "4"}
    assert [dict(request.settings) for request in lm.requests] == [{"reasoning_effort": "low"}] * 2
    assert prediction.trajectory.steps[0].results[0].content == "nothing in x"


def test_such_a_type_stands_beside_calls_as_an_output() -> None:
    """Calls alone are an answer; the others are None."""
    made = Ask.append("calls", OutputField(), ToolCalls | None)
    lm = ScriptedLM(
        [
            Response(None, (ToolCall(name="look", args={"place": "x"}),)),
            Response(fields(answer="4"), reasoning="2 + 2"),
        ],
    )
    program = Predict(made, tools=[look], native=True)
    first = program(question="q", lm=lm)
    assert (first.why, first.answer, [call.name for call in first.calls.tool_calls]) == (
        None,
        None,
        ["look"],
    )
    second = program(question="q", lm=lm)
    assert (second.why, second.answer, second.calls) == (Thinking(said="2 + 2"), "4", None)
