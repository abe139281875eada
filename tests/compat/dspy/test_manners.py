"""DSPy's manners, each by itself: where the facade differs from the core on purpose."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from ferrule.compat.dspy.utils import DummyLM

import ferrule
from ferrule.compat import dspy


def double(x: int) -> int:
    """Double it."""
    return 2 * x


def step(name: str, **args: Any) -> dict:
    return {"next_thought": "t", "next_tool_name": name, "next_tool_args": args}


def test_the_core_raises_where_the_facade_warns() -> None:
    """Compatibility: core keeps its principles."""
    with pytest.raises(ferrule.InputError):
        ferrule.Predict("a: int -> b", lm=DummyLM([{"b": "1"}]))(a="x", c=1)
    assert dspy.Predict("a: int -> b", lm=DummyLM([{"b": "1"}]))(a="x", c=1).b == "1"


def test_a_program_is_not_changed_by_inputs_that_do_not_fit() -> None:
    """Compatibility: a program serves other threads at the same time."""
    predict = dspy.Predict("a: int -> b", lm=DummyLM([{"b": "1"}] * 2))
    before = predict.signature
    predict(a="x")
    assert predict.signature is before
    assert predict(a=1).b == "1"


def test_a_call_has_a_signature_of_its_own() -> None:
    """Compatibility: `predict(signature=...)`."""
    predict = dspy.Predict("a -> b", lm=DummyLM([{"c": "1"}]))
    assert predict(a="x", signature="a -> c").c == "1"


def test_agents_take_inputs_that_do_not_fit() -> None:
    """Compatibility: in the loop and in the extraction."""
    agent = dspy.ReAct(
        "n: int -> answer",
        tools=[double],
        lm=DummyLM([step("finish"), {"reasoning": "r", "answer": "ok"}]),
    )
    assert agent(n="many").answer == "ok"


def test_predictions_and_examples_can_be_set_copied_and_pickled() -> None:
    """Compatibility: mutable values, with their inputs."""
    example = dspy.Example(a=1, b=2).with_inputs("a")
    for again in (
        copy.deepcopy(example),
        pickle.loads(pickle.dumps(example)),
        dspy.Example(base=example),
        dspy.Example(example),
    ):
        assert again == example
        assert again.inputs().toDict() == {"a": 1}
    example["c"] = 3
    del example["b"]
    assert (dict(example), "c" in example, example.get("b"), len(example)) == (
        {"a": 1, "c": 3},
        True,
        None,
        2,
    )
    prediction = dspy.Predict("a -> b", lm=DummyLM([{"b": "1"}]))(a="x")
    prediction.b, prediction.more = "2", [dspy.Example(x=1)]
    assert prediction.toDict() == {"b": "2", "more": [{"x": 1}]}
    assert isinstance(prediction, dspy.Example)


def test_settings_of_a_block_stay_in_it_and_in_its_threads() -> None:
    """Compatibility: DSPy's settings and one's own are the core's `extra`, so they go where
    settings go.
    """
    seen: list[Any] = []
    with dspy.context(my_own=1, num_threads=3):
        thread = threading.Thread(target=lambda: seen.append(hasattr(dspy.settings, "my_own")))
        thread.start()
        thread.join()
        assert (dspy.settings.my_own, dspy.settings.num_threads, ferrule.settings.max_workers) == (
            1,
            3,
            3,
        )
        asyncio.run(dspy.asyncify(lambda: seen.append(dspy.settings.my_own))())
    assert seen == [False, 1]
    assert dspy.settings.num_threads == 8
    dspy.configure(another="x")
    assert dspy.settings.another == ferrule.settings.extra["another"] == "x"


def test_a_state_that_dspy_saved_is_loaded() -> None:
    """Compatibility: DSPy's layout; its filler for descriptions is none of ours."""
    fields = [
        {"prefix": "Question:", "description": "${question}"},
        {"prefix": "Answer:", "description": "in one word"},
    ]
    signature = {"instructions": "Be kind.", "fields": fields}
    state = {
        "traces": [],
        "train": [],
        "demos": [{"augmented": True, "question": "q", "answer": "a"}],
        "signature": signature,
        "lm": None,
    }
    predict = dspy.Predict("question -> answer")
    predict.load_state(state)
    assert predict.signature.instructions == "Be kind."
    assert [each["desc"] for each in predict.signature.dump_state()["fields"]] == [
        "",
        "in one word",
    ]
    assert predict.demos[0].answer == "a"
    predict.lm = DummyLM([{"answer": "b"}])
    assert predict(question="?").answer == "b"


def test_a_model_is_saved_with_its_predictor() -> None:
    """Compatibility: name and settings, no key."""
    predict = dspy.Predict("a -> b")
    predict.lm = dspy.LM("openai/gpt-5", api_key="secret", temperature=0.5)
    state = predict.dump_state()
    assert state["lm"] == {"model": "openai/gpt-5", "model_type": "chat", "temperature": 0.5}
    again = dspy.Predict("a -> b")
    again.load_state(state)
    assert (again.lm.model, again.lm.kwargs) == ("openai/gpt-5", {"temperature": 0.5})


def test_a_state_of_another_signature_is_refused() -> None:
    """Compatibility: an agent that DSPy saved has other fields inside."""
    state = dspy.Predict("a, b -> c").dump_state()
    with pytest.raises(ferrule.errors.ConfigurationError, match="another signature"):
        dspy.Predict("a -> c").load_state(state)


def test_observations_are_values_and_failures_texts() -> None:
    """Compatibility: also where one turn has several calls."""
    script = [
        [{"name": "double", "args": {"x": 1}}, {"name": "double", "args": {"x": 2}}],
        {"name": "finish", "args": {"answer": "ok"}},
    ]
    found = dspy.ReAct("question -> answer", tools=[double], lm=ferrule.testing.ScriptedLM(script))(
        question="?",
    )
    assert (found.trajectory["observation_0"], found.trajectory["observation_1"]) == (
        [2, 4],
        "Completed.",
    )


def test_direct_calls_of_models_and_tools_are_observed() -> None:
    """Compatibility: callbacks of `lm(...)` and `tool(...)`, with DSPy's inputs."""
    told: list[Any] = []

    class Log(dspy.BaseCallback):
        def on_lm_start(self, call_id, instance, inputs):
            told.append((call_id, instance, inputs["messages"]))

        def on_lm_end(self, call_id, outputs, exception):
            told.append((call_id, outputs))

        def on_tool_end(self, call_id, outputs, exception):
            told.append(outputs)

    lm = DummyLM({"hi": "hello"})
    with dspy.context(callbacks=[Log()]):
        assert lm("hi") == ["hello"]
        dspy.Tool(double)(x=2)
    (first, instance, messages), (second, outputs), value = told
    assert (first, instance, messages, outputs, value) == (
        second,
        lm,
        [{"role": "user", "content": "hi"}],
        ["hello"],
        4,
    )


def test_errors_stay_the_same_objects_under_dspys_names() -> None:
    """Compatibility: data and causes are not lost."""
    raised = ferrule.errors.ContextOverflowError("too long", provider="p", status=400)
    with pytest.raises(dspy.ContextWindowExceededError) as caught:
        dspy.Predict("a -> b", lm=ferrule.testing.ScriptedLM([raised]))(a="x")
    assert caught.value is raised
    assert (caught.value.provider, caught.value.status) == ("p", 400)


def test_a_module_stays_a_module_of_the_core() -> None:
    """Compatibility: runs, streams and tools of the core work on programs of the facade."""
    agent = dspy.ReAct(
        "question -> answer",
        tools=[double],
        lm=DummyLM([step("double", x=1), step("finish"), {"reasoning": "r", "answer": "2"}]),
    )
    run = agent.start(question="?")
    assert (run.status, run.prediction.answer, len(run.trajectory.steps)) == ("done", "2", 2)
    assert isinstance(dspy.Predict("a -> b"), dspy.Module)
    assert isinstance(agent.react, dspy.Predict)
    assert isinstance(agent.extract, dspy.ChainOfThought)
    assert isinstance(agent.extract.predict, dspy.Predict)
    assert isinstance(dspy.ReAct("reasoning -> b", tools=[]).extract, dspy.ChainOfThought)
    assert isinstance(dspy.ChainOfThought("a -> b").predict, dspy.Predict)
    found = agent.react(question="?", lm=DummyLM([step("double", x=1)]))
    assert isinstance(found, dspy.Prediction)
    assert (found.next_tool_name, found.next_tool_args) == ("double", {"x": 1})


def test_confirmation_works_in_the_facade() -> None:
    """Compatibility: a tool that needs a person's consent."""
    tool = ferrule.Tool(double, require_confirmation=True)
    script = [step("double", x=1), step("finish"), {"reasoning": "r", "answer": "2"}]
    agent = dspy.ReAct("question -> answer", tools=[tool], lm=DummyLM(script))
    with pytest.raises(ferrule.ConfirmationRequired) as asked:
        agent(question="?")
    assert agent(question="?", resume_state=asked.value).answer == "2"


def test_models_and_images_as_dspys_pages_make_them(tmp_path: Path) -> None:
    """Compatibility: `ollama_chat/...`, `api_base`, `timeout`, `rollout_id`; an image by its
    address.
    """
    local = dspy.LM(
        "ollama_chat/llama3.2",
        api_base="http://localhost:11434",
        api_key="",
        timeout=5,
        rollout_id=1,
    )
    assert (local.model, local.kwargs) == ("ollama/llama3.2", {})
    assert (
        dspy.LM("openai/my-model", api_base="http://localhost:8000/v1", api_key="local").model
        == "openai/my-model"
    )
    with pytest.raises(ValueError, match=r"Image\.from_file\(path\)"):
        dspy.Image("a.png")
    with pytest.raises(ferrule.errors.ConfigurationError, match="callbacks"):
        dspy.ChatAdapter(callbacks=[])
    assert dspy.Image("https://example.org/a.png") == dspy.Image.from_url(
        "https://example.org/a.png",
    )
    assert isinstance(dspy.Image(url="https://example.org/a.png"), ferrule.Image)
    (tmp_path / "a.png").write_bytes(b"1234")
    for kind in (dspy.Image, dspy.Audio, dspy.File):
        assert kind.from_path(tmp_path / "a.png") == kind.from_file(tmp_path / "a.png")


def test_rollouts_reach_no_provider() -> None:
    """Compatibility: `rollout_id` only varies DSPy's cache, which is not here."""
    lm = ferrule.testing.ScriptedLM(["[[ ## b ## ]]\n1"])
    dspy.Predict("a -> b", lm=lm, rollout_id=1)(a="x", config={"rollout_id": 2, "temperature": 1.0})
    assert lm.requests[0].settings == {"temperature": 1.0}


def test_settings_are_read_like_a_mapping_too() -> None:
    """Compatibility: `dspy.settings["lm"]`, `dspy.settings.get(...)`."""
    with dspy.context(lm=(lm := DummyLM([])), mine=1):
        assert dspy.settings["lm"] is dspy.settings.lm is lm
        assert (dspy.settings.get("mine"), dspy.settings.get("other", 2)) == (1, 2)


def test_parallel_has_a_time_limit() -> None:
    """Compatibility: `Parallel(timeout=...)`; what is late is a failure."""

    over = threading.Event()

    class Slow(dspy.Module):
        def forward(self, x: int):
            over.wait(60 if x else 0)
            return dspy.Prediction(y=x)

    results, failed, errors = dspy.Parallel(
        timeout=0.5,
        return_failed_examples=True,
        disable_progress_bar=True,
    )([(Slow(), {"x": 0}), (Slow(), {"x": 1})])
    over.set()
    assert (results[0].y, results[1], failed, [type(each) for each in errors]) == (
        0,
        None,
        [{"x": 1}],
        [TimeoutError],
    )


def test_several_answers() -> None:
    """Compatibility: `n=` gives completions, and several outputs where the model gives them at
    once.
    """
    found = dspy.Predict("a -> b", n=2, lm=DummyLM([{"b": "1"}, {"b": "2"}]))(a="x")
    assert (found.b, found.completions.b, isinstance(found.completions[1], dspy.Prediction)) == (
        "1",
        ["1", "2"],
        True,
    )
