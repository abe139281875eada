"""Modules, streams, async programs, models, saving, callbacks and errors from DSPy's public pages,
in our own words.
"""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from ferrule.compat.dspy.utils import DummyLM
from ferrule.compat.dspy.utils.callback import BaseCallback

from ferrule.compat import dspy
from ferrule.errors import RateLimitError
from ferrule.testing import ScriptedLM


class Hop(dspy.Module):
    """Asks for queries, searches, and answers."""

    def __init__(self, num_docs: int = 2, num_hops: int = 2) -> None:
        self.num_docs, self.num_hops = num_docs, num_hops
        self.generate_query = dspy.ChainOfThought("claim, notes -> query")
        self.append_notes = dspy.ChainOfThought(
            "claim, notes, context -> new_notes: list[str], titles: list[str]",
        )

    def forward(self, claim: str) -> dspy.Prediction:
        notes: list[str] = []
        titles: list[str] = []
        for _ in range(self.num_hops):
            query = self.generate_query(claim=claim, notes=notes).query
            found = self.append_notes(
                claim=claim,
                notes=notes,
                context=[f"about {query}"] * self.num_docs,
            )
            notes.extend(found.new_notes)
            titles.extend(found.titles)
        return dspy.Prediction(notes=notes, titles=list(set(titles)))


def test_multi_hop_search(caplog: pytest.LogCaptureFixture) -> None:
    """Modules: several predictors in a loop; `notes` is declared as text and given as a list, which
    warns.
    """
    hop = [
        {"reasoning": "r", "query": "q"},
        {"reasoning": "r", "new_notes": ["n"], "titles": ["t"]},
    ]
    dspy.configure(lm=DummyLM(hop * 2))
    found = Hop()(claim="c")
    assert (found.notes, found.titles) == (["n", "n"], ["t"])


def test_rag() -> None:
    """RAG: a module that searches and answers; `rag.respond` is its predictor."""

    class RAG(dspy.Module):
        def __init__(self) -> None:
            self.respond = dspy.ChainOfThought("context, question -> response")

        def forward(self, question: str):
            return self.respond(context="one\ntwo", question=question)

    dspy.configure(lm=DummyLM([{"reasoning": "r", "response": "kernel"}]))
    rag = RAG()
    assert rag(question="?").response == "kernel"
    assert [name for name, _ in rag.named_predictors()] == ["respond.predict"]


def test_predictors_in_lists_and_dicts() -> None:
    """Modules: named parameters, a copy that is reset, and a model for all."""
    lm = DummyLM([])

    class Many(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = [dspy.Predict("a -> b"), dspy.ChainOfThought("a -> b")]
            self.by_name = {"x": dspy.Predict("a -> b")}

    program = Many()
    assert [name for name, _ in program.named_parameters()] == [
        "steps[0]",
        "steps[1].predict",
        "by_name['x']",
    ]
    program.set_lm(lm)
    assert program.get_lm() is lm
    assert program.deepcopy().get_lm() is lm


def test_another_model_for_a_block() -> None:
    """Language models: `with dspy.context(lm=...)`."""
    predict = dspy.Predict("question -> answer")
    dspy.configure(lm=DummyLM([{"answer": "default"}]))
    with dspy.context(lm=DummyLM([{"answer": "other"}])):
        assert predict(question="?").answer == "other"
    assert predict(question="?").answer == "default"


def test_settings_of_a_predictor() -> None:
    """Predict: settings of the model at the constructor, by `update_config`, and at the call."""
    lm = ScriptedLM(["[[ ## answer ## ]]\na"] * 3)
    predict = dspy.Predict("question -> answer", temperature=0.5)
    predict(question="?", lm=lm)
    predict.update_config(max_tokens=10)
    predict(question="?", lm=lm)
    predict(question="?", lm=lm, config={"temperature": 1.0})
    assert [dict(each.settings) for each in lm.requests] == [
        {"temperature": 0.5},
        {"temperature": 0.5, "max_tokens": 10},
        {"temperature": 1.0, "max_tokens": 10},
    ]
    assert predict.get_config() == {"temperature": 0.5, "max_tokens": 10}


def test_parallel() -> None:
    """Parallel: pairs of a module and an example, a mapping or a tuple."""
    dspy.configure(lm=DummyLM({"Spain": {"answer": "Madrid"}, "France": {"answer": "Paris"}}))
    predict = dspy.Predict("question -> answer")
    pairs = [
        (predict, {"question": "Spain?"}),
        (predict, dspy.Example(question="France?").with_inputs("question")),
    ]
    assert [
        each.answer for each in dspy.Parallel(num_threads=2, disable_progress_bar=True)(pairs)
    ] == ["Madrid", "Paris"]


def test_parallel_with_failures() -> None:
    """Parallel: `return_failed_examples=True`, and `max_errors`."""

    class Picky(dspy.Module):
        def forward(self, x: int):
            if x == 2:
                raise ValueError("two")
            return dspy.Prediction(y=x)

    pairs = [(Picky(), {"x": 1}), (Picky(), {"x": 2})]
    results, failed, errors = dspy.Parallel(return_failed_examples=True, disable_progress_bar=True)(
        pairs,
    )
    assert (results[0].y, results[1], failed, [str(each) for each in errors]) == (
        1,
        None,
        [{"x": 2}],
        ["two"],
    )
    with pytest.raises(ValueError, match="two"):
        dspy.Parallel(max_errors=1, disable_progress_bar=True)(pairs)


def test_batch() -> None:
    """Modules: `module.batch(examples)`."""
    dspy.configure(lm=DummyLM({"Rome": {"answer": "1"}, "Oslo": {"answer": "2"}}))
    examples = [
        dspy.Example(question=each, answer="?").with_inputs("question") for each in ("Rome", "Oslo")
    ]
    found = dspy.Predict("question -> answer").batch(
        examples,
        num_threads=2,
        disable_progress_bar=True,
    )
    assert [each.answer for each in found] == ["1", "2"]


def test_usage() -> None:
    """Modules: `prediction.get_lm_usage()` by model."""
    dspy.configure(lm=DummyLM([{"answer": "a"}]), track_usage=True)
    usage = dspy.Predict("question -> answer")(question="?").get_lm_usage()
    assert usage["dummy"].keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}


def test_examples_and_a_metric() -> None:
    """Data: examples, their inputs and labels; a metric over an example and a prediction."""
    article = dspy.Example(article="long", summary="short").with_inputs("article")
    assert (article.inputs().toDict(), article.labels().toDict()) == (
        {"article": "long"},
        {"summary": "short"},
    )
    article.summary = "shorter"
    assert article.without("article").toDict() == {"summary": "shorter"}
    assert dspy.Example(article).copy(summary="s")["summary"] == "s"

    def exact(example, prediction, trace=None) -> bool:
        return example.summary == prediction.summary

    assert exact(article, dspy.Prediction(summary="shorter"))
    with pytest.raises(ValueError, match="Inputs have not been set"):
        dspy.Example(a=1).inputs()


def test_best_of_several() -> None:
    """Output refinement by hand: the best of several answers by a reward."""
    dspy.configure(
        lm=DummyLM(
            [
                {"reasoning": "r", "answer": "Brussels, Belgium"},
                {"reasoning": "r", "answer": "Brussels"},
            ],
        ),
    )
    qa = dspy.ChainOfThought("question -> answer")
    tries = [
        qa(question="Capital of Belgium?", config={"temperature": 1.0, "rollout_id": i})
        for i in range(2)
    ]
    assert (
        max(tries, key=lambda each: 1.0 if len(each.answer.split()) == 1 else 0.0).answer
        == "Brussels"
    )


# -- streams


async def collect(stream) -> list:
    return [each async for each in stream]


def test_stream_of_one_field() -> None:
    """Streaming: pieces of a field, and the prediction at the end."""
    dspy.configure(lm=DummyLM([{"answer": "To get to the other side"}]))
    listener = dspy.streaming.StreamListener(signature_field_name="answer")
    found = asyncio.run(
        collect(
            dspy.streamify(dspy.Predict("question -> answer"), stream_listeners=[listener])(
                question="Why?",
            ),
        ),
    )
    *chunks, prediction = found
    assert isinstance(prediction, dspy.Prediction)
    assert all(
        isinstance(each, dspy.streaming.StreamResponse) and each.predict_name == "self"
        for each in chunks
    )
    assert "".join(each.chunk for each in chunks) == prediction.answer
    assert [each.is_last_chunk for each in chunks] == [False] * (len(chunks) - 1) + [True]


class TwoAnswers(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.predict1, self.predict2 = (
            dspy.Predict("question -> answer"),
            dspy.ChainOfThought("question, answer -> answer2"),
        )

    def forward(self, question: str):
        return self.predict2(question=question, answer=self.predict1(question=question).answer)


def test_stream_of_several_predictors() -> None:
    """Streaming: fields of two predictors, and the reasoning."""
    dspy.configure(
        lm=DummyLM(
            [{"answer": "first one"}, {"reasoning": "because of it", "answer2": "second one"}],
        ),
    )
    listeners = [
        dspy.streaming.StreamListener(signature_field_name=each)
        for each in ("answer", "answer2", "reasoning")
    ]
    found = asyncio.run(
        collect(dspy.streamify(TwoAnswers(), stream_listeners=listeners)(question="?")),
    )
    told: dict[tuple[str, str], str] = {}
    for each in found[:-1]:
        told[each.predict_name, each.signature_field_name] = (
            told.get((each.predict_name, each.signature_field_name), "") + each.chunk
        )
    assert told == {
        ("predict1", "answer"): "first one",
        ("predict2.predict", "reasoning"): "because of it",
        ("predict2.predict", "answer2"): "second one",
    }
    assert found[-1].answer2 == "second one"


def test_stream_of_a_field_that_two_predictors_have() -> None:
    """Streaming: the listener names its predictor; otherwise it is refused."""

    class Twins(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (
                dspy.Predict("question -> answer"),
                dspy.Predict("question, draft -> answer"),
            )

        def forward(self, question: str):
            return self.two(question=question, draft=self.one(question=question).answer)

    dspy.configure(lm=DummyLM([{"answer": "draft"}, {"answer": "final"}]))
    program = Twins()
    listener = dspy.streaming.StreamListener(
        signature_field_name="answer",
        predict=program.two,
        predict_name="second",
    )
    found = asyncio.run(collect(dspy.streamify(program, stream_listeners=[listener])(question="?")))
    assert [(each.predict_name, each.chunk) for each in found[:-1]] == [("second", "final")]
    with pytest.raises(ValueError, match="not unique"):
        asyncio.run(
            collect(
                dspy.streamify(program, stream_listeners=[dspy.streaming.StreamListener("answer")])(
                    question="?",
                ),
            ),
        )


def test_stream_in_sync_code_without_the_prediction() -> None:
    """Streaming: `async_streaming=False`, `include_final_prediction_in_output_stream=False`."""
    dspy.configure(lm=DummyLM([{"answer": "a b"}]))
    stream = dspy.streamify(
        dspy.Predict("question -> answer"),
        stream_listeners=[dspy.streaming.StreamListener(signature_field_name="answer")],
        include_final_prediction_in_output_stream=False,
        async_streaming=False,
    )
    assert "".join(each.chunk for each in stream(question="?")) == "a b"


class Status(dspy.streaming.StatusMessageProvider):
    def lm_start_status_message(self, instance, inputs):
        return f"asking {instance.name}"

    def tool_start_status_message(self, instance, inputs):
        return f"{instance.name} with {inputs}"


def test_status_messages() -> None:
    """Streaming: messages about tools and models."""

    def double(x: int) -> int:
        """Double it."""
        return 2 * x

    steps = [
        {"next_thought": "t", "next_tool_name": name, "next_tool_args": args}
        for name, args in [("double", {"x": 2}), ("finish", {})]
    ]
    dspy.configure(lm=DummyLM([*steps, {"reasoning": "r", "answer": 4}]))
    agent = dspy.ReAct("question -> answer: int", tools=[double])
    found = asyncio.run(
        collect(dspy.streamify(agent, status_message_provider=Status())(question="?")),
    )
    told = [each.message for each in found if isinstance(each, dspy.streaming.StatusMessage)]
    assert told == [
        "asking dummy",
        "double with {'kwargs': {'x': 2}}",
        "Tool calling finished! Querying the LLM with tool calling results...",
        "asking dummy",
        "asking dummy",
    ]
    assert found[-1].answer == 4


def test_stream_of_an_agents_thoughts() -> None:
    """Streaming: `next_thought` of the loop's predictor, and `reasoning` of the extraction, which
    is another's.
    """

    def search(query: str) -> str:
        """Search."""
        return query

    steps = [("look", "search", {"query": "x"}), ("done", "finish", {})]
    answers = [
        {"next_thought": thought, "next_tool_name": name, "next_tool_args": args}
        for thought, name, args in steps
    ]
    dspy.configure(lm=DummyLM([*answers, {"reasoning": "because", "answer": "A"}]))
    agent = dspy.ReAct("question -> answer", tools=[search])
    listeners = [
        dspy.streaming.StreamListener("next_thought", predict=agent.react, allow_reuse=True),
        dspy.streaming.StreamListener("reasoning", predict=agent.extract.predict),
    ]
    *pieces, _ = asyncio.run(
        collect(dspy.streamify(agent, stream_listeners=listeners)(question="?")),
    )
    told = [
        (each.signature_field_name, each.chunk)
        for each in pieces
        if isinstance(each, dspy.streaming.StreamResponse)
    ]
    assert told == [("next_thought", "look"), ("next_thought", "done"), ("reasoning", "because")]


# -- async


def test_async_predictor() -> None:
    """Async: `await predict.acall(...)`, several at once."""
    dspy.configure(lm=DummyLM({"Rome": {"answer": "1"}, "Oslo": {"answer": "2"}}))
    predict = dspy.Predict("question -> answer")

    async def main():
        return await asyncio.gather(predict.acall(question="Rome"), predict.acall(question="Oslo"))

    assert [each.answer for each in asyncio.run(main())] == ["1", "2"]


class Later(dspy.Module):
    def __init__(self) -> None:
        self.predict1, self.predict2 = (
            dspy.ChainOfThought("question -> answer"),
            dspy.ChainOfThought("answer -> simplified"),
        )

    async def aforward(self, question: str, **kwargs):
        found = await self.predict1.acall(question=question)
        return await self.predict2.acall(answer=found.answer)


def test_async_module() -> None:
    """Async: a module with an `aforward`; `syncify` calls it in sync code."""
    answers = [{"reasoning": "r", "answer": "a"}, {"reasoning": "r", "simplified": "s"}]
    dspy.configure(lm=DummyLM(answers * 2))
    assert asyncio.run(Later().acall(question="?")).simplified == "s"
    assert dspy.syncify(Later())(question="?").simplified == "s"


def test_asyncify() -> None:
    """Deployment: `dspy.asyncify(program)` for a web server, with the settings of the caller."""
    program = dspy.asyncify(dspy.ChainOfThought("question -> answer"))

    async def endpoint(question: str) -> dict:
        with dspy.context(lm=DummyLM([{"reasoning": "r", "answer": "Paris"}])):
            result = await program(question=question)
        return {"status": "success", "data": result.toDict()}

    assert asyncio.run(endpoint("?")) == {
        "status": "success",
        "data": {"reasoning": "r", "answer": "Paris"},
    }


def test_asyncify_runs_no_more_programs_at_once_than_async_max_workers() -> None:
    lock, running, most = threading.Lock(), [0], [0]
    pair = threading.Barrier(2, timeout=60)

    def work() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        pair.wait()  # two are at work at once, or this breaks
        with lock:
            running[0] -= 1

    async def main() -> None:
        program = dspy.asyncify(work)
        await asyncio.gather(*[program() for _ in range(8)])

    dspy.configure(async_max_workers=2)
    asyncio.run(main())
    assert most == [2]
    with dspy.context(async_max_workers=4):
        asyncio.run(main())
    assert most[0] <= 4


# -- models


def test_calling_a_model() -> None:
    """Language models: `lm("...")` and `lm(messages=[...])` return lists, and `history` has the
    calls.
    """
    lm = DummyLM([{"answer": "This is a test"}] * 2)
    [first] = lm("Say this is a test!", temperature=0.7)
    assert "This is a test" in first
    assert lm(messages=[{"role": "user", "content": "Again"}]) == [first]
    assert (len(lm.history), lm.model, lm.kwargs) == (2, "dummy", {})
    assert lm.history[0].keys() >= {
        "prompt",
        "messages",
        "kwargs",
        "response",
        "outputs",
        "usage",
        "model",
    }
    assert lm.history[0]["kwargs"] == {"temperature": 0.7}
    assert sum(each["cost"] for each in lm.history if each["cost"] is not None) == 0


def test_arguments_of_a_model() -> None:
    """Language models: DSPy's constructor."""
    lm = dspy.LM(
        "openai/gpt-4o-mini",
        api_key="k",
        temperature=0.5,
        max_tokens=100,
        cache=False,
        num_retries=1,
    )
    assert (lm.model, lm.kwargs) == ("openai/gpt-4o-mini", {"temperature": 0.5, "max_tokens": 100})
    local = dspy.LM(
        "openai/my-model",
        api_base="http://localhost:7501/v1",
        api_key="local",
        model_type="chat",
    )
    assert local.model.endswith("my-model")


class Mine(dspy.BaseLM):
    def forward(self, prompt=None, messages=None, **kwargs):
        text = f"[[ ## answer ## ]]\n{len(messages)} messages for {kwargs['model']}"
        choice = SimpleNamespace(
            message=SimpleNamespace(role="assistant", content=text),
            finish_reason="stop",
        )
        usage = SimpleNamespace(prompt_tokens=1, completion_tokens=2, total_tokens=3)
        return SimpleNamespace(choices=[choice], usage=usage, model="mine")


def test_model_of_ones_own() -> None:
    """Language models: a subclass of `BaseLM` that answers in OpenAI's form."""
    dspy.configure(lm=(lm := Mine(model="mine/model", temperature=0.1)))
    found = dspy.Predict("question -> answer")(question="?")
    assert found.answer == "2 messages for mine/model"
    assert found.get_lm_usage() == {
        "mine/model": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }
    assert asyncio.run(lm.acall("hi"))[0].endswith("1 messages for mine/model")


def test_inspect_history(capsys: pytest.CaptureFixture[str]) -> None:
    """Language models: `dspy.inspect_history`, `lm.inspect_history`, `module.inspect_history`."""
    dspy.configure(lm=(lm := DummyLM([{"answer": "a"}])))
    predict = dspy.Predict("question -> answer")
    predict(question="the question")
    for each in (dspy, lm, predict):
        each.inspect_history(n=1)
        assert "the question" in capsys.readouterr().out


# -- saving


def test_saved_and_loaded(tmp_path: Path) -> None:
    """Saving: the state as JSON in DSPy's layout, and back."""
    program = dspy.ChainOfThought("question -> answer")
    program.predict.demos = [dspy.Example(question="q", answer="a")]
    program.predict.signature = program.predict.signature.with_instructions("Be kind.")
    program.save(tmp_path / "program.json")
    state = json.loads((tmp_path / "program.json").read_text())
    assert state.keys() == {"predict", "metadata"}
    assert state["predict"].keys() >= {"traces", "train", "demos", "signature", "lm"}
    assert state["predict"]["signature"]["fields"][0] == {
        "prefix": "Question:",
        "description": "${question}",
    }
    loaded = dspy.ChainOfThought("question -> answer")
    loaded.load(tmp_path / "program.json")
    assert loaded.predict.signature.instructions == "Be kind."
    assert loaded.predict.demos[0].toDict() == {"question": "q", "answer": "a"}


def test_program_as_pickle_is_refused(tmp_path: Path) -> None:
    """Saving: the whole program, with its code."""
    with pytest.raises(ValueError, match="ferrule saves no code"):
        dspy.Predict("a -> b").save(tmp_path / "program", save_program=True)
    with pytest.raises(AttributeError, match=r"program\.load"):
        dspy.load(tmp_path)


# -- callbacks and errors


class Log(BaseCallback):
    def __init__(self) -> None:
        self.told: list = []

    def on_module_start(self, call_id, instance, inputs):
        self.told.append((type(instance).__name__, inputs))

    def on_module_end(self, call_id, outputs, exception):
        self.told.append(("end", exception or dict(outputs)))

    def on_lm_start(self, call_id, instance, inputs):
        self.told.append((instance.model, [each["role"] for each in inputs["messages"]]))

    def on_lm_end(self, call_id, outputs, exception):
        self.told.append(("lm", outputs))

    def on_tool_start(self, call_id, instance, inputs):
        self.told.append((instance.name, inputs))

    def on_tool_end(self, call_id, outputs, exception):
        self.told.append(("tool", outputs))


def test_callback() -> None:
    """Observability: a callback that logs modules and models, with the objects that DSPy gives."""
    log = Log()
    dspy.configure(lm=DummyLM([{"answer": "a"}]), callbacks=[log])
    dspy.Predict("question -> answer")(question="?")
    assert dspy.settings.callbacks == [log]
    assert log.told == [
        ("Predict", {"args": (), "kwargs": {"question": "?"}}),
        ("dummy", ["system", "user"]),
        ("lm", ["[[ ## answer ## ]]\na\n\n[[ ## completed ## ]]"]),
        ("end", {"answer": "a"}),
    ]


def test_callback_about_tools() -> None:
    """Observability: the tool, its arguments and its value."""

    def double(x: int) -> int:
        """Double it."""
        return 2 * x

    steps = [
        {"next_thought": "t", "next_tool_name": name, "next_tool_args": args}
        for name, args in [("double", {"x": 2}), ("finish", {})]
    ]
    log = Log()
    with dspy.context(lm=DummyLM([*steps, {"reasoning": "r", "answer": 4}]), callbacks=[log]):
        dspy.ReAct("question -> answer: int", tools=[double])(question="?")
    assert ("double", {"kwargs": {"x": 2}}) in log.told
    assert ("tool", 4) in log.told


def test_callback_of_one_module() -> None:
    """Observability: `callbacks=[...]` of a module."""
    log = Log()
    dspy.configure(lm=DummyLM([{"answer": "a"}] * 2))
    dspy.Predict("question -> answer", callbacks=[log])(question="?")
    count = len(log.told)
    dspy.Predict("question -> answer")(question="?")
    assert count == len(log.told) == 4


def test_errors() -> None:
    """Errors: DSPy's names catch what fails here, with DSPy's attributes."""
    dspy.configure(lm=DummyLM([{"other": 1}] * 3))
    with pytest.raises(dspy.AdapterParseError) as caught:
        dspy.Predict("question -> answer")(question="?")
    assert (caught.value.adapter_name, list(caught.value.signature.output_fields)) == (
        "JSONAdapter",
        ["answer"],
    )
    dspy.configure(lm=ScriptedLM([RateLimitError("slow down")]))
    with pytest.raises(dspy.LMRateLimitError) as limited:
        dspy.Predict("question -> answer")(question="?")
    assert isinstance(limited.value, dspy.LMError)
    assert dspy.utils.exceptions.is_retryable_lm_error(limited.value)
    assert dspy.utils.exceptions.format_error_for_lm(ValueError("no")) == "no"


def test_context_window_exceeded() -> None:
    """Errors: `ContextWindowExceededError(model=...)`."""
    error = dspy.ContextWindowExceededError(model="openai/gpt")
    dspy.configure(lm=ScriptedLM([error]))
    with pytest.raises(dspy.ContextWindowExceededError, match="Context window exceeded"):
        dspy.Predict("question -> answer")(question="?")


def test_nothing_configured() -> None:
    """Errors: no model, and positional arguments."""
    with (
        dspy.context(lm=None),
        pytest.raises(ValueError, match=r"No LM is loaded\. Please configure the LM"),
    ):
        dspy.Predict("question -> answer")(question="?")
    with pytest.raises(
        ValueError,
        match=r"Positional arguments are not allowed when calling `dspy\.Predict`",
    ):
        dspy.Predict("question -> answer")("?")


def test_several_completions() -> None:
    """Predict: `n=` and `completions`, and thoughts as an output."""
    dspy.configure(
        lm=DummyLM([{"answer": "red"}, {"answer": "blue"}, {"why": "so", "answer": "red"}]),
    )
    found = dspy.Predict("question -> answer", n=2)(question="Which colour?")
    assert sorted(found.completions.answer) == ["blue", "red"]
    assert all(isinstance(each, dspy.Prediction) for each in found.completions)

    class Why(dspy.Signature):
        question: str = dspy.InputField()
        why: dspy.Reasoning = dspy.OutputField()
        answer: str = dspy.OutputField()

    assert dspy.Predict(Why)(question="Why?").why.upper() == "SO"
