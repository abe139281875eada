"""Programs with histories, streams, modules and settings from udspy's public pages, in our own
words: they run with the import changed.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
from ferrule.compat.udspy.lm import LM, OpenAILM
from ferrule.compat.udspy.streaming import (
    OutputStreamChunk,
    Prediction,
    StreamEvent,
    ThoughtStreamChunk,
    emit_event,
)

import ferrule
from ferrule import Response
from ferrule.compat import udspy
from ferrule.compat.udspy import (
    BaseCallback,
    ChainOfThought,
    ChatAdapter,
    History,
    InputField,
    Module,
    OutputField,
    Predict,
    ReAct,
    Signature,
    make_signature,
    settings,
    tool,
)
from ferrule.testing import ScriptedLM


class QA(Signature):
    """Answer questions."""

    question: str = InputField(description="What to answer")
    answer: str = OutputField(description="Short")


def answer(text: str) -> dict[str, str]:
    return {"answer": text}


# -- basics and signatures


def test_a_signature_and_a_predictor(model) -> None:
    """Basic usage."""
    model(answer("Paris"))
    result = Predict(QA)(question="What is the capital of France?")
    assert (result.answer, result["answer"], json.dumps(result)) == (
        "Paris",
        "Paris",
        '{"answer": "Paris"}',
    )
    with pytest.raises(AttributeError, match="no attribute 'anwser'"):
        _ = Prediction(answer="x").anwser


def test_signatures_of_strings_and_of_types(model) -> None:
    """Signatures: `from_string` and `make_signature`, and the fields of each."""
    made = Signature.from_string("context, question -> answer", "Use the context.")
    assert (list(made.get_input_fields()), list(made.get_output_fields())) == (
        ["context", "question"],
        ["answer"],
    )
    assert made.get_instructions() == "Use the context."
    typed = make_signature({"text": str}, {"words": list[str], "count": int}, "Find the words.")
    model({"words": ["a", "b"], "count": 2})
    assert Predict(typed)(text="a b") == {"words": ["a", "b"], "count": 2}


def test_a_missing_input_is_named() -> None:
    """Modules: the error of a call without an input."""
    with pytest.raises(ValueError, match="Missing required input field: question"):
        Predict(QA)()


def test_a_chain_of_thought(model) -> None:
    """Chain of thought: the reasoning, and its description."""
    lm = model({"reasoning": "157 * 234 is 36738", "answer": "36738"})
    result = ChainOfThought(QA, reasoning_description="Every step")(question="157 * 234?")
    assert (result.reasoning, result.answer) == ("157 * 234 is 36738", "36738")
    assert "Every step" in lm.requests[0].messages[0].text


# -- histories


def test_a_conversation_of_several_turns(model) -> None:
    """History: it grows with each call."""
    lm = model(answer("A language"), answer("Readable"))
    predictor, history = Predict(QA), History()
    predictor(question="What is Python?", history=history)
    assert [message["role"] for message in history.messages] == ["system", "user", "assistant"]
    asyncio.run(predictor.aforward(question="And its features?", history=history))
    assert len(history) == 5
    assert "What is Python?" in lm.requests[1].messages[1].text
    assert str(history).startswith("History (5 messages):\n  1. [system]")


def test_a_history_that_begins_elsewhere(model) -> None:
    """History: messages of before, and the system message that is managed."""
    lm = model(answer("Python"))
    history = History()
    history.add_user_message("I learn to code")
    history.add_assistant_message("Good!")
    Predict(QA)(question="Which language?", history=history)
    assert [message["role"] for message in history.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert [message.text for message in lm.requests[0].messages][1:3] == [
        "I learn to code",
        "Good!",
    ]


def test_a_system_message_of_your_own_is_replaced(model) -> None:
    """History: the signature's stands first, once."""
    model(answer("x"), answer("y"))
    history = History()
    history.add_system_message("Be brief")
    history.set_system_message("Be very brief")
    for _ in range(2):
        Predict(QA)(question="q", history=history)
    roles = [message["role"] for message in history.messages]
    assert (roles[0], roles.count("system")) == ("system", 1)
    assert "Answer questions." in history.messages[0]["content"]


def test_an_instruction_in_the_middle_stays_there_and_reaches_the_model(model) -> None:
    """History: `add_system_message` appends, `set_system_message` replaces the first."""
    lm = model(answer("x"), answer("y"))
    history = History()
    history.set_system_message("Be brief")
    history.add_user_message("Hello")
    history.add_system_message("Answer in French.")
    history.add_message("system", "Be polite.")
    history.set_system_message("Be very brief")
    assert [message["role"] for message in history.messages] == [
        "system",
        "user",
        "system",
        "system",
    ]
    for _ in range(2):
        Predict(QA)(question="q", history=history)
    assert [message.role for message in lm.requests[1].messages] == [
        "system",
        "user",
        "system",
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert history.messages[2]["content"] == lm.requests[1].messages[2].text == "Answer in French."


def test_a_conversation_branches(model) -> None:
    """History: copies."""
    model(*[answer(each) for each in "abc"])
    predictor, trunk = Predict(QA), History()
    predictor(question="AI?", history=trunk)
    branches = [trunk.copy(), trunk.copy()]
    for branch in branches:
        predictor(question="more?", history=branch)
    assert [len(each) for each in (trunk, *branches)] == [3, 5, 5]


def test_a_history_is_cleared_and_kept_as_json(model) -> None:
    """History: `clear`, and messages in OpenAI's form."""
    model(answer("x"), answer("y"))
    history = History()
    Predict(QA)(question="one", history=history)
    stored = json.dumps(history.messages)
    history.clear()
    assert len(history) == 0
    again = History(messages=json.loads(stored))
    Predict(QA)(question="two", history=again)
    assert len(again) == 5


# -- streams


def events_of(module: Any, **inputs: Any) -> list[Any]:
    async def collect() -> list[Any]:
        return [event async for event in module.astream(**inputs)]

    return asyncio.run(collect())


def test_an_answer_is_streamed(model) -> None:
    """Streaming: deltas, the content so far, the end of the field, the prediction."""
    model(answer("It is Paris"))
    predictor = Predict(QA)
    *chunks, last = events_of(predictor, question="q")
    assert all(
        isinstance(each, OutputStreamChunk) and each.field_name == "answer" for each in chunks
    )
    assert "".join(each.delta for each in chunks) == chunks[-1].content == "It is Paris"
    assert [each.is_complete for each in chunks] == [*[False] * (len(chunks) - 1), True]
    assert isinstance(last, Prediction)
    assert (last.answer, last.is_final, last.module) == ("It is Paris", True, predictor)
    assert (
        repr(chunks[-1])
        == "OutputStreamChunk(field=answer, status=complete, delta='', content='It is Paris')"
    )


def test_fields_are_streamed_one_after_another(model) -> None:
    """Streaming: several outputs, also of a chain of thought."""
    model({"reasoning": "because", "answer": "42"})
    chunks = [
        each
        for each in events_of(ChainOfThought(QA), question="q")
        if isinstance(each, OutputStreamChunk)
    ]
    assert [each.field_name for each in chunks if each.is_complete] == ["reasoning", "answer"]


@dataclass
class Progress(StreamEvent):
    message: str
    share: float


def test_a_tool_tells_its_progress(model) -> None:
    """Streaming: events of your own."""

    @tool(name="search")
    async def search(query: str) -> str:
        emit_event(Progress("started", 0.0))
        await asyncio.sleep(0)
        emit_event(Progress("done", 1.0))
        return f"found {query}"

    model({"name": "search", "args": {"query": "x"}}, answer("ok"))
    events = events_of(Predict(QA, tools=[search]), question="q")
    assert [each for each in events if isinstance(each, Progress)] == [
        Progress("started", 0.0),
        Progress("done", 1.0),
    ]
    emit_event(Progress("heard by nobody", 1.0))


def test_an_agent_is_streamed(model) -> None:
    """Streaming: a ReAct agent, and the thoughts of a model that tells them."""
    model(
        Response(
            reasoning="I should look",
            tool_calls=(ferrule.ToolCall(name="look", args={}, id="1"),),
        ),
        {"name": "finish", "args": {"answer": "done"}},
    )

    @tool(name="look")
    def look() -> str:
        return "seen"

    events = events_of(ReAct(QA, tools=[look]), question="q")
    assert "I should look" in "".join(
        each.delta for each in events if isinstance(each, ThoughtStreamChunk)
    )
    assert (events[-1].answer, events[-1].trajectory[0]["observation"]) == ("done", "seen")


def test_server_sent_events(model) -> None:
    """Streaming: lines for a web application."""
    model(answer("two words"))

    async def lines() -> list[str]:
        return [
            f"data: {event.delta}\n\n"
            async for event in Predict(QA).astream(question="q")
            if isinstance(event, OutputStreamChunk) and not event.is_complete
        ]

    assert "".join(line[6:-2] for line in asyncio.run(lines())) == "two words"


def test_settings_of_a_module_end_with_each_event(model) -> None:
    """They are not those of the code that reads the stream."""
    model(answer("a b c"))
    seen: list[Any] = []

    async def read() -> None:
        async for _ in Predict(QA, callbacks=[BaseCallback()]).astream(question="q"):
            seen.extend(ferrule.settings.callbacks)

    asyncio.run(read())
    assert seen == []


# -- modules


class Pipeline(Module):
    """Modules: two predictors, one after the other."""

    def __init__(self) -> None:
        self.analyze = Predict("text -> analysis")
        self.summarize = ChainOfThought("analysis -> summary")

    async def aexecute(self, *, stream: bool = False, **inputs: Any) -> Prediction:
        found = await self.analyze.aexecute(stream=stream, text=inputs["text"])
        last = await self.summarize.aforward(analysis=found.analysis)
        return Prediction(module=self, summary=last.summary, analysis=found.analysis)


PIPELINE = ({"analysis": "long"}, {"reasoning": "r", "summary": "short"})


@pytest.mark.parametrize("way", ["call", "forward", "aforward", "aexecute"])
def test_a_module_of_modules(model, way: str) -> None:
    """Modules: composition, however it is called."""
    model(*PIPELINE)
    found = getattr(Pipeline(), "__call__" if way == "call" else way)(text="t")
    assert (asyncio.run(found) if way.startswith("a") else found) == {
        "summary": "short",
        "analysis": "long",
    }


def test_the_stream_of_a_module_of_modules(model) -> None:
    """Streaming: `event.module` and the predictions of the inner modules."""
    model(*PIPELINE)
    pipeline = Pipeline()
    events = events_of(pipeline, text="t")
    assert [type(each.module).__name__ for each in events if isinstance(each, Prediction)] == [
        "Predict",
        "ChainOfThought",
        "Pipeline",
    ]
    assert {each.module for each in events if isinstance(each, OutputStreamChunk)} == {
        pipeline.analyze,
        pipeline.summarize,
    }
    assert events[-1].module is pipeline


def test_reasoning_by_hand_in_a_forward(model) -> None:
    """Advanced: a chain of thought of two predictors; its prediction is changed."""

    class Reasoned(Module):
        def __init__(self, signature: Any) -> None:
            self.reason = Predict(
                make_signature(
                    signature.get_input_fields(),
                    {"reasoning": str},
                    "Think step by step.",
                ),
            )
            self.answer = Predict(signature)

        def forward(self, **inputs: Any) -> Prediction:
            thought, result = self.reason(**inputs), self.answer(**inputs)
            result["reasoning"] = thought.reasoning
            result.checked = True
            return Prediction(**result)

    model({"reasoning": "so"}, answer("42"))
    assert Reasoned(QA)(question="q") == {"answer": "42", "reasoning": "so", "checked": True}


def test_a_module_tries_again(model) -> None:
    """Advanced: validation and another try."""

    class Validated(Module):
        def __init__(self) -> None:
            self.predictor = Predict("question -> number")

        def forward(self, **inputs: Any) -> Prediction:
            for _ in range(3):
                found = self.predictor(**inputs)
                if found.number.isdigit():
                    return found
            raise ValueError("no number")

    model({"number": "many"}, {"number": "7"})
    assert Validated()(question="q").number == "7"


def test_a_module_keeps_its_answers(model) -> None:
    """Advanced: a cache."""

    class Cached(Module):
        def __init__(self) -> None:
            self.predictor = Predict(QA)
            self.ask = lru_cache(maxsize=8)(lambda question: self.predictor(question=question))

        def forward(self, **inputs: Any) -> Prediction:
            return self.ask(inputs["question"])

    lm = model(answer("once"))
    cached = Cached()
    assert [cached(question="q").answer for _ in range(3)] == ["once"] * 3
    assert len(lm.requests) == 1


def test_an_adapter_of_your_own(model) -> None:
    """Advanced: custom formatting, under udspy's names."""

    class Verbose(ChatAdapter):
        def format_instructions(self, signature: Any) -> str:
            return f"{super().format_instructions(signature)}\n\nBe detailed."

        def format_inputs(self, signature: Any, inputs: Any) -> str:
            return f"Input data:\n{super().format_inputs(signature, inputs)}"

        def parse_outputs(self, signature: Any, completion: str) -> dict[str, Any]:
            return {
                name: value.upper()
                for name, value in super().parse_outputs(signature, completion).items()
            }

    lm = model(answer("x"))
    assert Predict(QA, adapter=Verbose())(question="q").answer == "X"
    system, user = lm.requests[0].messages
    assert system.text.endswith("Be detailed.")
    assert user.text.startswith('Input data:\n{"question":"q"}')


def test_a_piece_that_nothing_calls_is_refused() -> None:
    """No override is ignored."""
    assert type("Other", (ChatAdapter,), {})
    for name in ("format_tool_schemas", "process_chunk"):
        with pytest.raises(
            ferrule.errors.ConfigurationError, match=f"`Other.{name}` would not be called"
        ):
            type("Other", (ChatAdapter,), {name: lambda self, given: given})


def test_a_request_of_your_own(model) -> None:
    """Adapters: `format_user_request`."""

    class Polite(ChatAdapter):
        def format_user_request(self, signature: Any, inputs: Any) -> str:
            return f"Please. {super().format_user_request(signature, inputs)}"

    lm = model(answer("x"))
    assert Predict(QA, adapter=Polite())(question="q").answer == "x"
    assert (
        lm.requests[0]
        .messages[1]
        .text.startswith('Please. {"question":"q"}\n\nAnswer with one JSON object')
    )


def test_messages_are_made_by_hand() -> None:
    """Tool calling by hand: what the adapter writes."""
    predictor = Predict(QA, tools=[tool(name="add")(lambda a, b: a + b)])
    assert "Answer questions." in predictor.adapter.format_instructions(predictor.signature)
    assert (
        predictor.adapter.format_inputs(predictor.signature, {"question": "q"})
        == '{"question":"q"}'
    )
    assert [
        each["function"]["name"]
        for each in predictor.adapter.format_tool_schemas(predictor.tools.values())
    ] == ["add"]
    assert predictor.adapter.parse_outputs(QA, '{"answer": "x"}') == {"answer": "x"}


def test_a_module_that_writes_nothing_says_so() -> None:
    class Empty(Module):
        pass

    for module in (Module(), Empty()):
        with pytest.raises(NotImplementedError, match="must implement aexecute"):
            module(question="q")
        with pytest.raises(NotImplementedError, match="must implement aexecute"):
            events_of(module, question="q")


def test_the_turns_run_out(model) -> None:
    """Modules: `max_turns`."""
    model(*[{"name": "add", "args": {"a": 1, "b": 1}}] * 2)
    with pytest.raises(RuntimeError, match=r"Max turns \(2\) reached without final answer"):
        Predict(QA, tools=[tool(name="add")(lambda a, b: a + b)], max_turns=2)(question="q")


# -- settings, models, callbacks


def named(name: str) -> ScriptedLM:
    lm = ScriptedLM([json.dumps(answer(name))] * 5)
    lm.name = name
    return lm


def test_settings_in_contexts() -> None:
    """Context settings: models and sampling settings, nested."""
    settings.configure(lm=named("small"), temperature=0.7)
    predictor = Predict(QA)
    assert predictor(question="q").answer == "small"
    with settings.context(lm=named("large"), max_tokens=5):
        assert predictor(question="q").answer == "large"
        assert settings.default_kwargs == {"temperature": 0.7, "max_tokens": 5}
        with settings.context(temperature=0.0):
            assert (settings.lm.name, settings.default_kwargs["temperature"]) == ("large", 0.0)
        assert settings.default_kwargs["temperature"] == 0.7
    assert (predictor(question="q").answer, settings.default_kwargs) == (
        "small",
        {"temperature": 0.7},
    )


def test_a_model_keeps_its_own_settings() -> None:
    """Those of `configure` go to other models, those of a model do not."""
    settings.configure(lm=named("a").copy(temperature=0.2))
    settings.configure(lm=named("b").copy(top_p=0.5))
    assert (settings.lm.settings, settings.default_kwargs) == ({"top_p": 0.5}, {})
    settings.configure(seed=1)
    settings.configure(lm=named("c").copy(top_p=0.1))
    assert (settings.lm.settings, settings.default_kwargs) == ({"top_p": 0.1}, {"seed": 1})


def test_several_tenants_at_once() -> None:
    """Context settings: a model for each task."""

    async def ask(tenant: str) -> str:
        with settings.context(lm=named(tenant)):
            return (await Predict(QA).aforward(question="q")).answer

    async def main() -> list[str]:
        return await asyncio.gather(*map(ask, "abc"))

    assert asyncio.run(main()) == ["a", "b", "c"]


def test_nothing_is_configured() -> None:
    """Settings: the error without a model."""
    ferrule.configure(lm=None)
    with pytest.raises(RuntimeError, match="LM not configured"):
        _ = settings.lm


MODELS = {
    "gpt-4o-mini": "openai/gpt-4o-mini",
    "groq/llama-3-70b": "groq/llama-3-70b",
    "ollama/llama2": "ollama/llama2",
    "meta-llama/llama-3": "openai/meta-llama/llama-3",
}


def test_models_by_name() -> None:
    """Language models: prefixes, and a server of one's own."""
    assert {name: LM(model=name, api_key="sk-x").name for name in MODELS} == MODELS
    assert LM(model="llama2", base_url="http://localhost:11434/v1").name == "localhost:11434/llama2"
    assert LM(model="groq/llama-3-70b", api_key="k").model == "llama-3-70b"
    assert OpenAILM(api_key="sk-x", default_model="gpt-4o").name == "openai/gpt-4o"


def test_a_model_from_the_environment(monkeypatch) -> None:
    """Settings: `configure()` alone; what is configured is never overridden."""
    monkeypatch.setenv("UDSPY_LM_MODEL", "groq/llama-3-70b")
    monkeypatch.setenv("UDSPY_LM_API_KEY", "sk-x")
    ferrule.configure(lm=None)
    settings.configure()
    assert settings.lm.name == "groq/llama-3-70b"
    mine = named("mine")
    settings.configure(lm=mine)
    settings.configure(callbacks=[])
    assert settings.lm is mine


class Client:
    """A client of one's own, in the form of OpenAI's."""

    def __init__(self, text: str) -> None:
        self.asked: list[Any] = []
        self.text = text
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    async def create(self, **asked: Any) -> Any:
        self.asked.append(asked)
        return {
            "choices": [
                {"message": {"role": "assistant", "content": self.text}, "finish_reason": "stop"},
            ],
        }


@pytest.mark.parametrize("keyword", ["aclient", "client"])
def test_a_client_of_your_own(keyword: str) -> None:
    """Testing helpers: a client that answers, in the settings."""
    client = Client('{"answer": "from the client"}')
    settings.configure(**{keyword: client}, model="gpt-4o")
    assert Predict(QA)(question="q").answer == "from the client"
    assert (client.asked[0]["model"], settings.lm.client, settings.lm.model) == (
        "gpt-4o",
        client,
        "gpt-4o",
    )
    assert Predict(QA, model="gpt-5", temperature=0)(question="q").answer == "from the client"
    assert (client.asked[1]["model"], client.asked[1]["temperature"], settings.lm.model) == (
        "gpt-5",
        0,
        "gpt-4o",
    )


def test_a_model_is_called_directly() -> None:
    """Basic usage: `lm("...")`, of a client whose `create` is replaced."""
    lm = OpenAILM(client=Client("Paris"), default_model="gpt-4o")
    assert (
        lm("Which capital?"),
        asyncio.run(lm.acall("Which?")),
        lm(messages=[{"role": "user", "content": "?"}]),
    ) == ("Paris",) * 3
    lm.client.chat.completions.create = Client("Rome").create
    assert lm("And now?") == "Rome"


class Recorder(BaseCallback):
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.told.append(("module", type(instance).__name__, inputs["question"]))

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.told.append(
            ("lm", inputs["model"], inputs["messages"][-1]["role"], len(inputs["tools"])),
        )

    def on_tool_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.told.append(("tool", instance.name, inputs["kwargs"]))

    def on_tool_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        self.told.append(("tool end", outputs, exception))

    def on_module_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        self.told.append(("end", outputs["answer"], exception))


@pytest.mark.parametrize("wrong", [3, BaseCallback(), "callback"])
def test_callbacks_that_are_not_a_list_are_refused_wherever_they_are_given(wrong: Any) -> None:
    for give in (settings.configure, settings.context, partial(Predict, QA), partial(ReAct, QA)):
        with pytest.raises(ferrule.errors.ConfigurationError, match="`callbacks` takes a list"):
            give(callbacks=wrong)


@pytest.mark.parametrize("where", ["settings", "context", "module"])
def test_callbacks_see_modules_models_and_tools(model, where: str) -> None:
    """Callbacks: a logger, in the settings or for one module."""
    lm = model({"name": "double", "args": {"n": 2}}, answer("4"))
    recorder = Recorder()
    double = tool(name="double")(lambda n: 2 * n)
    predictor = Predict(QA, tools=[double], callbacks=[recorder] if where == "module" else None)
    if where == "settings":
        settings.configure(callbacks=[recorder])
        assert settings.callbacks == [recorder]
    with settings.context(callbacks=[recorder]) if where == "context" else settings.context():
        predictor(question="q")
    assert recorder.told == [
        ("module", "Predict", "q"), ("lm", lm.name, "user", 1), ("tool", "double", {"n": 2}), ("tool end", "4", None),
        ("lm", lm.name, "tool", 1), ("end", "4", None),
    ]  # fmt: skip


def test_a_faulty_callback_changes_nothing(model) -> None:
    """Callbacks: errors."""

    class Faulty(BaseCallback):
        def on_lm_start(self, *args: Any) -> None:
            raise ValueError("no")

    model(answer("x"))
    with (
        pytest.warns(RuntimeWarning, match="an observer failed"),
        settings.context(callbacks=[Faulty()]),
    ):
        assert Predict(QA)(question="q").answer == "x"


def test_submodules_are_the_facade() -> None:
    """The paths that udspy's pages import."""
    import importlib

    paths = "adapter callback confirmation exceptions history lm lm.factory module module.callbacks module.react settings signature streaming tool"
    assert all(
        importlib.import_module(f"ferrule.compat.udspy.{path}") is udspy for path in paths.split()
    )
    assert isinstance(udspy.tool(lambda n: n, name="same"), ferrule.Tool)
    assert udspy.settings is settings
    base = importlib.import_module("ferrule.compat.udspy.lm.base")
    assert base.LM is udspy.BaseLM
