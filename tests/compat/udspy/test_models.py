"""udspy's models: a class of your own, a client, and settings that are kept apart from the model."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ferrule.compat.udspy.lm import LM

import ferrule
from ferrule.compat.udspy import BaseLM, OpenAILM, Predict, settings
from ferrule.errors import ConfigurationError

MESSAGES = [{"role": "user", "content": "Hi"}]


def answer(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message, "finish_reason": "stop"}]}


def client_of(create: Any) -> Any:
    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


class Recording:
    """A client's `create` that keeps what it is asked."""

    def __init__(self, text: str = '{"answer": "x"}') -> None:
        self.asked: list[dict[str, Any]] = []
        self.text = text

    async def create(self, **asked: Any) -> Any:
        self.asked.append(asked)
        return answer(self.text)


class MyLM(BaseLM):
    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def acomplete(
        self,
        messages: Any,
        *,
        model: Any = None,
        tools: Any = None,
        stream: bool = False,
        **more: Any,
    ) -> Any:
        self.asked.append((messages[-1]["role"], tools, stream, more))
        return answer('{"answer": "mine"}')


def test_a_model_of_your_own_answers_a_program() -> None:
    lm = MyLM()
    with settings.context(lm=lm, temperature=0.5):
        assert settings.lm is lm
        assert isinstance(settings.lm, BaseLM)
        assert Predict("question -> answer")(question="q").answer == "mine"
        assert asyncio.run(Predict("question -> answer").aforward(question="q")).answer == "mine"
    assert [(role, tools, stream) for role, tools, stream, _ in lm.asked] == [
        ("user", None, False)
    ] * 2
    assert [more["temperature"] for *_, more in lm.asked] == [0.5, 0.5]


def test_a_model_of_your_own_is_called_directly() -> None:
    assert MyLM()("Hi") == '{"answer": "mine"}'
    assert MyLM().complete(MESSAGES) == answer('{"answer": "mine"}')
    with pytest.raises(TypeError):
        BaseLM()  # type: ignore[abstract]


def test_a_subclass_of_the_client_model_is_called_through_its_own_method() -> None:
    class Counting(OpenAILM):
        calls = 0

        async def acomplete(self, messages: Any, **more: Any) -> Any:
            type(self).calls += 1
            return await super().acomplete(messages, **more)

    create = Recording()
    lm = Counting(client=client_of(create.create), default_model="gpt-4o")

    async def stream() -> Any:
        return [event async for event in Predict("question -> answer").astream(question="q")][-1]

    with settings.context(lm=lm):
        assert Predict("question -> answer")(question="q").answer == "x"
        assert asyncio.run(stream()).answer == "x"
    assert (Counting.calls, len(create.asked)) == (2, 2)


def test_messages_go_to_the_client_as_they_are() -> None:
    create = Recording("Hello!")
    lm = OpenAILM(client=client_of(create.create), default_model="gpt-4o")
    tools = [{"type": "function", "function": {"name": "add"}}]
    response = asyncio.run(lm.acomplete(MESSAGES, model="gpt-5", tools=tools, custom="x"))
    assert response == answer("Hello!")
    assert create.asked == [
        {
            "model": "gpt-5",
            "messages": MESSAGES,
            "stream": False,
            "max_tokens": 8000,
            "custom": "x",
            "tools": tools,
        }
    ]
    assert lm(MESSAGES) == answer("Hello!")
    assert asyncio.run(lm.acall(MESSAGES)) == answer("Hello!")
    with pytest.raises(ValueError, match="No model specified"):
        asyncio.run(OpenAILM(client=client_of(create.create)).acomplete(MESSAGES))


def test_a_model_without_a_client_says_so() -> None:
    lm = LM("groq/llama-3-70b", api_key="k")
    assert isinstance(lm, OpenAILM)
    assert (lm.default_model, lm.name, lm.client) == ("llama-3-70b", "groq/llama-3-70b", None)
    with pytest.raises(ConfigurationError, match="client=AsyncOpenAI"):
        asyncio.run(lm.acomplete(MESSAGES))


def test_a_change_of_sampling_leaves_the_model_the_same() -> None:
    create = Recording()
    lm = OpenAILM(client=client_of(create.create), default_model="gpt-4o")
    settings.configure(lm=lm)
    predictor = Predict("question -> answer", top_p=0.1)
    with settings.context(temperature=0.9, seed=7):
        assert settings.lm is lm
        assert predictor.kwargs == {"temperature": 0.9, "seed": 7, "top_p": 0.1}
        predictor(question="q")
    predictor(question="q")
    names = ("temperature", "seed", "top_p")
    sent = [{name: asked[name] for name in names if name in asked} for asked in create.asked]
    assert sent == [{"temperature": 0.9, "seed": 7, "top_p": 0.1}, {"top_p": 0.1}]
    assert ferrule.settings.lm is lm


def test_calls_with_other_settings_share_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = OpenAILM._make_core
    monkeypatch.setattr(OpenAILM, "_make_core", lambda self: made.append(self) or make(self))
    create = Recording()
    settings.configure(lm=OpenAILM(client=client_of(create.create), default_model="gpt-4o"))
    with settings.context(temperature=0.5):
        for model in (None, "gpt-5", "gpt-5"):
            Predict("question -> answer", model=model)(question="q")
    assert [asked["model"] for asked in create.asked] == ["gpt-4o", "gpt-5", "gpt-5"]
    assert [asked["temperature"] for asked in create.asked] == [0.5] * 3
    assert len(made) == 1
