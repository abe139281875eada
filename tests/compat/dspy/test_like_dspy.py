"""What DSPy's own tests ask of its values, errors and settings: each behaviour in one test."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from ferrule.compat.dspy.utils import DummyLM
from ferrule.compat.dspy.utils.exceptions import ContextWindowExceededError, LMInvalidRequestError

from ferrule.compat import dspy


def test_an_exceeded_context_is_an_invalid_request_with_a_model() -> None:
    error = dspy.ContextWindowExceededError(model="openai/gpt-5", message="too long")
    assert isinstance(error, LMInvalidRequestError)
    assert isinstance(error, dspy.LMError)
    assert (error.model, error.code) == ("openai/gpt-5", "context_window_exceeded")
    assert str(error) == "[openai/gpt-5] too long"
    assert ContextWindowExceededError().model is None


def test_an_overflow_that_the_core_raises_has_the_attributes_of_dspys() -> None:
    lm = DummyLM([])
    lm.complete = lambda request: (_ for _ in ()).throw(dspy.ContextOverflowError("too long"))
    with pytest.raises(dspy.ContextWindowExceededError) as caught:
        dspy.Predict("a -> b", lm=lm)(a="x")
    assert isinstance(caught.value, LMInvalidRequestError)
    assert caught.value.model is None


def test_a_parse_error_names_the_fields_that_were_found() -> None:
    signature = dspy.Signature("a -> b, c")
    error = dspy.AdapterParseError("ChatAdapter", signature, "b", "no", parsed_result={"b": 1})
    assert error.code == "adapter_parse_error"
    assert str(error).startswith("no\n\nAdapter ChatAdapter failed to parse")
    assert "[b, c]" in str(error)
    assert "parsed from the LM response: [b]" in str(error)


@pytest.mark.parametrize(
    ("signature", "value", "expected"),
    [
        ("x: list[int] -> b", ["1", "2"], "list[int]"),
        ("x: dict[str, int] -> b", {"a": "1"}, "dict[str, int]"),
        ("x: tuple[int, ...] -> b", ("a",), "tuple[int, ...]"),
        ("x: Literal['p', 'q'] -> b", "r", "Literal['p', 'q']"),
        ("x: int | None -> b", "seven", "int | null"),
        ("x: int -> b", "7", "int"),
    ],
)
def test_a_warning_names_the_whole_type(
    signature: str, value: Any, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    predict = dspy.Predict(signature, lm=DummyLM([{"b": "1"}]))
    with caplog.at_level(logging.WARNING, logger="ferrule.compat.dspy"):
        assert predict(x=value).b == "1"
    assert f"Type mismatch for field 'x': expected {expected} based on" in caplog.text


@pytest.mark.parametrize(
    ("signature", "value"),
    [
        ("x: list[int] -> b", []),
        ("x: int -> b", None),
        ("x: str -> b", ["a", "b"]),
        ("x -> b", 7),
    ],
)
def test_values_that_dspy_accepts_get_no_warning(
    signature: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    predict = dspy.Predict(signature, lm=DummyLM([{"b": "1"}]))
    with caplog.at_level(logging.WARNING, logger="ferrule.compat.dspy"):
        assert predict(x=value).b == "1"
    assert "Type mismatch" not in caplog.text


def test_a_reset_predictor_has_no_traces() -> None:
    predict = dspy.Predict("a -> b")
    predict.traces, predict.train, predict.demos, predict.lm = [1], [2], [{"a": "x"}], DummyLM([])
    predict.reset()
    assert (predict.traces, predict.train, predict.demos, predict.lm) == ([], [], [], None)


def test_the_last_step_of_a_trajectory_cannot_be_left_out() -> None:
    agent = dspy.ReAct("a -> b", tools=[])
    one = {"thought_0": "t", "tool_name_0": "f", "tool_args_0": {}, "observation_0": "o"}
    with pytest.raises(dspy.ContextWindowExceededError, match="only one tool call"):
        agent.truncate_trajectory(one)
    two = {**one, **{name.replace("0", "1"): value for name, value in one.items()}}
    assert len(agent.truncate_trajectory(two)) == 4


def test_examples_are_hashed_by_content() -> None:
    examples = [dspy.Example(a=1, b=[1]), dspy.Example(b=[1], a=1), dspy.Example(a=2, b=[1])]
    assert len({*examples}) == 2
    assert examples[0] == {"a": 1, "b": [1]}
    assert examples[0] != {"a": 1}


def test_results_belong_to_a_list_of_calls() -> None:
    call = dspy.ToolCalls.ToolCall(id="c1", name="look", args={"at": "x"})
    results = dspy.ToolCallResults.from_tool_calls_and_values([call], ["seen"])
    calls = dspy.ToolCalls(tool_calls=[call], tool_call_results=results)
    assert results == dspy.ToolCallResults.from_tool_calls_and_values(calls, ["seen"])
    dumped = calls.model_dump(mode="json")["tool_call_results"]
    assert dumped["tool_call_results"][0]["value"] == "seen"
    again = dspy.ToolCalls.model_validate(calls.model_dump(mode="json"))
    assert again.tool_call_results == results


def test_copied_settings_can_be_configured_again() -> None:
    before = dspy.settings.copy()
    dspy.configure(lm=DummyLM([]), async_max_workers=3, my_own=1, callbacks=[dspy.BaseCallback()])
    assert dspy.settings.async_max_workers == 3
    dspy.configure(**before)
    assert dspy.settings.callbacks == []
    assert dspy.settings.lm is None
    assert dspy.settings.async_max_workers == before["async_max_workers"] == 8


def test_callbacks_get_arguments_as_dspy_passes_them() -> None:
    told: list[Any] = []

    class Log(dspy.BaseCallback):
        def on_module_start(self, call_id, instance, inputs):
            told.append(inputs)

        def on_tool_start(self, call_id, instance, inputs):
            told.append(inputs)

    class Mine(dspy.Module):
        def __init__(self):
            self.tools = [dspy.Tool(shout)]

        def forward(self, word):
            return self.tools[0](word=word)

    with dspy.context(callbacks=[Log()]):
        assert Mine()(word="hey") == "hey!"
    assert told == [{"args": (), "kwargs": {"word": "hey"}}, {"kwargs": {"word": "hey"}}]


def shout(word: str) -> str:
    """Shout it."""
    return f"{word}!"


def test_usage_has_a_key_for_each_model_also_of_programs_inside_tools() -> None:
    inner = dspy.Predict("word -> loud", lm=DummyLM([{"loud": "HEY"}]))
    inner.lm.name = "small"

    def louder(word: str) -> str:
        """Make it louder."""
        return inner(word=word).loud

    steps = [
        {"next_thought": "t", "next_tool_name": "louder", "next_tool_args": {"word": "hey"}},
        {"next_thought": "t", "next_tool_name": "finish", "next_tool_args": {}},
        {"reasoning": "r", "answer": "HEY"},
    ]
    agent = dspy.ReAct("question -> answer", tools=[louder], lm=DummyLM(steps))
    usage = agent(question="?").get_lm_usage()
    assert {*usage} == {"dummy", "small"}
    assert {*usage["small"]} == {"prompt_tokens", "completion_tokens", "total_tokens"}
