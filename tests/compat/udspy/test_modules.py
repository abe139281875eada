"""Modules with an `aexecute`, an `asuspend` and an `aresume` of their own, as udspy's tests have
them.
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from ferrule.compat.udspy.decorators import suspendable
from ferrule.compat.udspy.exceptions import AdapterParseError

import ferrule
from ferrule.compat.udspy import (
    ChainOfThought,
    ChatAdapter,
    ConfirmationRequired,
    Module,
    Predict,
    Prediction,
    ReAct,
    ReactContext,
    ResumeState,
    Signature,
    settings,
)
from ferrule.errors import DecisionError
from ferrule.testing import ScriptedLM


def events_of(module: Any, **inputs: Any) -> list[Any]:
    async def collect() -> list[Any]:
        return [event async for event in module.astream(**inputs)]

    return asyncio.run(collect())


class Asking(Module):
    """Asks a question itself, and resumes by itself."""

    @suspendable
    async def aexecute(self, *, stream: bool = False, **inputs: Any) -> Prediction:
        raise ConfirmationRequired("Proceed?", context={"stream": stream, **inputs})

    async def asuspend(self, exception: ConfirmationRequired) -> Any:
        return {"saved": exception.question}

    async def aresume(self, user_response: str, saved_state: Any) -> Any:
        return Prediction(answer=f"{user_response} to {saved_state.question}")


def test_a_module_that_asks_itself_saves_its_state_and_resumes() -> None:
    module = Asking()
    with pytest.raises(ConfirmationRequired) as caught:
        asyncio.run(module.aforward(question="q"))
    assert caught.value.saved_state == {"saved": "Proceed?"}  # type: ignore[attr-defined]
    state = ResumeState(caught.value, "no")
    assert (state.question, state.user_response) == ("Proceed?", "no")
    for resume in (
        lambda: module(resume_state=state),
        lambda: module.forward(resume_state=state),
        lambda: asyncio.run(module.aforward(question="q", resume_state=state)),
        lambda: events_of(module, question="q", resume_state=state)[-1],
    ):
        assert resume().answer == "no to Proceed?"
    assert module(resume_state=caught.value).answer == "yes to Proceed?"


def test_a_question_of_a_module_that_cannot_resume_says_so() -> None:
    class Plain(Module):
        async def aexecute(self, **inputs: Any) -> Any:
            raise ConfirmationRequired("Proceed?")

    with pytest.raises(ConfirmationRequired) as caught:
        Plain()(question="q")
    with pytest.raises(DecisionError, match="no run waits"):
        Plain()(resume_state=ResumeState(caught.value, "yes"))


def test_a_module_that_extends_aresume_calls_the_one_of_the_library(model: Any) -> None:
    class Counting(ReAct):
        resumed = 0

        async def aresume(self, user_response: str, saved_state: Any) -> Any:
            self.resumed += 1
            return await super().aresume(user_response, saved_state)

    done: list[str] = []

    def delete(path: str) -> str:
        done.append(path)
        return "deleted"

    guarded = ferrule.tool(require_confirmation=True)(delete)
    model({"name": "delete", "args": {"path": "a"}}, {"name": "finish", "args": {"result": "ok"}})
    agent = Counting("task -> result", tools=[guarded])
    with pytest.raises(ConfirmationRequired) as caught:
        agent(task="t")
    assert agent(resume_state=ResumeState(caught.value, "yes")).result == "ok"
    assert (done, agent.resumed) == (["a"], 1)


def test_the_stream_of_a_module_tells_its_aexecute() -> None:
    class Telling(Module):
        async def aexecute(self, *, stream: bool, **inputs: Any) -> Any:
            return Prediction(streamed=stream)

    assert Telling()(x=1).streamed is False
    assert events_of(Telling(), x=1)[-1].streamed is True


def test_an_aexecute_that_is_set_on_a_module_is_called_until_it_is_removed(model: Any) -> None:
    async def failing(*, stream: bool = False, **inputs: Any) -> Any:
        raise ValueError(f"failed with {inputs}")

    model({"answer": "x"}, {"answer": "y"})
    predictor = Predict("question -> answer")
    with patch.object(predictor, "aexecute", failing):
        with pytest.raises(ValueError, match="failed with"):
            predictor(question="q")
        with pytest.raises(ValueError, match="failed with"):
            events_of(predictor, question="q")
        with pytest.raises(ValueError, match="failed with"):
            asyncio.run(predictor.aforward(question="q"))
    assert predictor(question="q").answer == "x"


def test_a_chain_of_thought_shows_its_parts() -> None:
    class QA(Signature):
        question: str = ferrule.InputField()
        answer: str = ferrule.OutputField()

    chain = ChainOfThought(QA, temperature=0.0, max_tokens=100)
    assert chain.original_signature is QA
    assert chain.predict.kwargs == {"temperature": 0.0, "max_tokens": 100}
    assert [*ChainOfThought("a -> b").original_signature.output_fields] == ["b"]


def test_a_context_of_ones_own_is_made_for_a_callback() -> None:
    agent = ReAct("question -> answer", tools=[])
    steps = [{"thought": "t", "tool_name": "x"}]
    context = ReactContext(module=agent, trajectory=steps, input_args={"q": 1}, stream=True)
    assert (context.module, context.trajectory, context.input_args, context.stream) == (
        agent,
        steps,
        {"q": 1},
        True,
    )
    assert ReactContext(agent).stream is False


def test_the_tools_of_a_program_have_udspys_names() -> None:
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    [tool] = Predict("question -> answer", tools=[add]).tools.values()
    assert tool.input_schema == tool.args_schema == tool.parameters
    assert tool.parse_and_validate_args({"a": "2"}) == {"a": 2, "b": 1}
    with pytest.raises(ValueError, match="validation error"):
        tool.parse_and_validate_args({"a": "two"})


class Counting(ChatAdapter):
    """Fails for the first answers; counts as an adapter of udspy may."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures, self.calls = failures, 0

    def parse_outputs(self, signature: Any, completion: str) -> Any:
        self.calls += 1
        if self.calls <= self.failures:
            raise AdapterParseError("Counting", signature, completion, "not yet")
        return super().parse_outputs(signature, completion)


def test_an_adapter_counts_and_is_asked_three_times(model: Any) -> None:
    model(*[{"answer": "4"}] * 3)
    adapter = Counting(2)
    assert Predict("question -> answer", adapter=adapter)(question="q").answer == "4"
    assert adapter.calls == 3


def test_an_error_of_the_library_has_udspys_attributes() -> None:
    settings.configure(lm=ScriptedLM(["no json"] * 5))
    with pytest.raises(AdapterParseError) as caught:
        Predict("question -> answer: int", adapter=ChatAdapter(fallback=None))(question="q")
    assert "ChatAdapter" in caught.value.adapter_name
    assert caught.value.lm_response == "no json"
    with pytest.raises(AdapterParseError):
        ChatAdapter().parse_outputs(Signature.from_string("q -> answer"), "no json")
    with pytest.raises(AdapterParseError, match=r"\['answer'\] are missing"):
        ChatAdapter().validate_outputs(Signature.from_string("q -> answer"), {}, [], "{}")
    ChatAdapter().validate_outputs(Signature.from_string("q -> answer"), {}, [object()], "")
    assert AdapterParseError("X", None, "text").lm_response == "text"


def test_values_of_texts() -> None:
    from ferrule.compat.udspy.formatters import format_value, parse_value

    texts = [("42", int, 42), ("3.5", float, 3.5), ("Yes", bool, True), ("no", bool, False)]
    texts += [("[1]", list, [1]), ("{bad", dict, "{bad"), (" x ", str, "x"), ("any", object, "any")]
    for text, kind, value in texts:
        assert parse_value(text, kind) == value
    assert (format_value("a"), format_value([1])) == ("a", "[\n  1\n]")


def test_a_model_of_pydantic_is_the_schema_of_a_tool() -> None:
    from pydantic import BaseModel

    class Calculator(BaseModel):
        """Perform arithmetic."""

        a: float

    [schema] = ChatAdapter().format_tool_schemas([Calculator])
    assert schema["function"]["name"] == "Calculator"
    assert [*schema["function"]["parameters"]["properties"]] == ["a"]
