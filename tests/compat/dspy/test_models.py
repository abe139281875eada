"""DSPy's models: which methods of a subclass get a request, and what users read from a model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from ferrule.compat.dspy.utils import DummyLM

import ferrule
from ferrule.compat import dspy

TOKENS = ("prompt_tokens", "completion_tokens", "total_tokens")


def answer(text: str) -> dict[str, Any]:
    """An answer in OpenAI's form."""
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    return {"model": "m", "choices": [{"message": {"content": text}}], "usage": usage}


def lines(text: str) -> str:
    return f"[[ ## b ## ]]\n{text}\n\n[[ ## completed ## ]]"


def asked_both_ways(lm: Any) -> list[str]:
    """What a program answers with this model, called sync and async, and streamed."""
    predict = dspy.Predict("a -> b", lm=lm)
    stream = predict.stream(a="x")
    for _ in stream:
        pass
    return [predict(a="x").b, asyncio.run(predict.acall(a="x")).b, stream.prediction.b]


def test_a_model_that_only_has_call_gets_each_request_as_dspy_passes_it() -> None:
    asked: list[Any] = []

    class Mine(dspy.BaseLM):
        def __call__(self, prompt=None, messages=None, **kwargs):
            asked.append((prompt, [message["role"] for message in messages], kwargs))
            return [lines("yes")]

    lm = Mine("mine", temperature=0.5)
    assert asked_both_ways(lm) == ["yes"] * 3
    assert asked == [(None, ["system", "user"], {})] * 3
    assert dspy.Predict("a -> b", lm=lm)(a="x", config={"max_tokens": 7}).b == "yes"
    assert asked[-1][2] == {"max_tokens": 7}


@pytest.mark.parametrize("name", ["__call__", "forward"])
def test_a_subclass_of_lm_is_called_and_no_request_goes_out(name: str) -> None:
    def method(self, prompt=None, messages=None, **kwargs):
        if name == "__call__":
            return [lines("mine")]
        return answer(lines("mine"))

    kind = type("Mine", (dspy.LM,), {name: method})
    lm = kind("openai/gpt-5", api_key="k", api_base="http://127.0.0.1:9/v1", num_retries=0)
    assert asked_both_ways(lm) == ["mine"] * 3


@pytest.mark.parametrize("name", ["acall", "aforward"])
def test_an_async_override_gets_the_requests_of_async_runs(name: str) -> None:
    async def method(self, prompt=None, messages=None, **kwargs):
        if name == "acall":
            return [lines("mine")]
        return answer(lines("mine"))

    kind = type("Mine", (dspy.LM,), {name: method})
    lm = kind("openai/gpt-5", api_key="k", api_base="http://127.0.0.1:9/v1", num_retries=0)
    predict = dspy.Predict("a -> b", lm=lm)
    assert asyncio.run(predict.acall(a="x")).b == "mine"


def test_super_leads_to_the_next_method_once() -> None:
    seen: list[str] = []

    class Logged(DummyLM):
        def __call__(self, prompt=None, messages=None, **kwargs):
            seen.append("call")
            return super().__call__(prompt, messages, **kwargs)

        def forward(self, prompt=None, messages=None, **kwargs):
            seen.append("forward")
            return super().forward(prompt, messages, **kwargs)

    lm = Logged([{"b": "1"}, {"b": "2"}])
    told: list[str] = []
    with dspy.context(callbacks=[lambda event: told.append(type(event).__name__)]):
        prediction = dspy.Predict("a -> b", lm=lm)(a="x")
        assert prediction.b == "1"
        assert prediction.get_lm_usage() == {"dummy": dict.fromkeys(TOKENS, 0)}
        assert seen == ["call", "forward"]
        assert told.count("ModelCalled") == 1
        assert len(lm.history) == 1
        assert "2" in lm("hi")[0]
        assert seen == ["call", "forward"] * 2
        assert told.count("ModelCalled") == 2


def test_what_a_subclass_passes_on_is_sent() -> None:
    sent: list[Any] = []

    class Mine(dspy.BaseLM):
        def forward(self, prompt=None, messages=None, **kwargs):
            sent.append((messages[0]["content"], kwargs["temperature"]))
            return answer(lines("1"))

    class Polite(Mine):
        def __call__(self, prompt=None, messages=None, **kwargs):
            system = {"role": "system", "content": "Be polite."}
            return super().__call__(messages=[system, *messages], temperature=0.1, **kwargs)

    assert dspy.Predict("a -> b", lm=Polite("polite"))(a="x").b == "1"
    assert sent == [("Be polite.", 0.1)]


def test_a_subclass_may_change_the_outputs() -> None:
    class Loud(DummyLM):
        def __call__(self, prompt=None, messages=None, **kwargs):
            return [output.replace("yes", "YES") for output in super().__call__(messages=messages)]

    assert dspy.Predict("a -> b", lm=Loud([{"b": "yes"}]))(a="x").b == "YES"


def test_outputs_may_have_calls() -> None:
    class Calling(dspy.BaseLM):
        supports_function_calling = True
        turn = 0

        def __call__(self, prompt=None, messages=None, **kwargs):
            self.turn += 1
            if self.turn > 1:
                return ["done"]
            assert [tool["function"]["name"] for tool in kwargs["tools"]][:1] == ["look"]
            call = {"name": "look", "arguments": json.dumps({"at": "sky"})}
            return [{"text": None, "tool_calls": [{"id": "c", "function": call}]}]

    seen: list[str] = []

    def look(at: str) -> str:
        """Look at a thing."""
        seen.append(at)
        return "blue"

    agent = dspy.ReAct("question -> answer", tools=[look], lm=Calling("calling"))
    assert agent(question="?").answer == "done"
    assert seen == ["sky"]


def test_models_say_what_they_support() -> None:
    class Calling(DummyLM):
        @property
        def supports_function_calling(self):
            return True

    assert Calling([]).capabilities.native_tools is True
    assert DummyLM([]).capabilities.native_tools is False
    assert dspy.LM("openai/gpt-5", api_key="k").supports_function_calling is True
    assert dspy.LM("openai/gpt-5", api_key="k", cache=False).cache is False
    for lm in (dspy.LM("openai/gpt-5", api_key="k"), DummyLM([])):
        assert isinstance(lm, dspy.BaseLM)
        assert isinstance(lm, ferrule.BaseLM)
        assert lm.cache is True


def test_the_usage_in_a_history_is_a_dict() -> None:
    class Mine(dspy.BaseLM):
        def forward(self, prompt=None, messages=None, **kwargs):
            return answer(lines("yes"))

    lm = Mine("mine/model")
    predict = dspy.Predict("a -> b", lm=lm)
    tokens = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert predict(a="x").get_lm_usage() == {"mine/model": tokens}
    assert lm.history[-1]["usage"] == tokens
