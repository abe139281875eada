"""Metrics: what is counted, and how few series there are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from otel_spans import Sent

from ferrule import MemoryStore, Predict, ReAct, Response, Run, Usage, context, tool
from ferrule.testing import ScriptedLM

DONE = {"name": "finish", "args": {"answer": "yes"}}


def add(a: int, b: int) -> int:
    """Add."""
    if a < 0:
        raise ValueError("negative")
    return a + b


def points(sent: Sent, name: str) -> list[tuple[dict[str, Any], Any]]:
    return [(dict(point.attributes), point) for point in sent.points()[name]]


def test_tokens_and_durations_of_calls_and_programs_are_counted() -> None:
    """By operation, provider and model, tool, or program; an error by its class."""
    sent = Sent()
    script = [
        {"name": "add", "args": {"a": 1, "b": 2}},
        {"name": "add", "args": {"a": -1, "b": 2}},
        DONE,
    ]
    with context(callbacks=[sent.observer], lm=ScriptedLM(script)):
        ReAct("task -> answer", [add], native=True)(task="x")
    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM([Response("[[ ## answer ## ]]\nx", usage=Usage(10, 5, 4, 1), model="m-1")]),
    ):
        Predict("question -> answer")(question="x")
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "scripted",
    }
    assert [(about, point.sum) for about, point in points(sent, "gen_ai.client.token.usage")] == [
        ({**common, "gen_ai.response.model": "m-1", "gen_ai.token.type": "input"}, 10),
        ({**common, "gen_ai.response.model": "m-1", "gen_ai.token.type": "output"}, 5),
    ]
    models = points(sent, "gen_ai.client.operation.duration")
    assert [(about, point.count) for about, point in models] == [
        (common, 3),
        ({**common, "gen_ai.response.model": "m-1"}, 1),
    ]
    assert models[0][1].explicit_bounds[:3] == (0.01, 0.02, 0.04)
    of_tool = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.type": "function",
    }
    assert [about for about, _ in points(sent, "gen_ai.execute_tool.duration")] == [
        of_tool,
        {**of_tool, "error.type": "ValueError"},
    ]
    assert [
        about["gen_ai.agent.name"] for about, _ in points(sent, "gen_ai.invoke_agent.duration")
    ] == ["ReAct", "Predict"]
    assert "gen_ai.client.operation.time_to_first_chunk" not in sent.points()


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_stream_tells_when_its_first_piece_came(driver: str) -> None:
    sent = Sent()

    async def follow() -> None:
        async for _ in Predict("question -> answer").astream(question="x"):
            pass

    with context(callbacks=[sent.observer], lm=ScriptedLM(["[[ ## answer ## ]]\nx"])):
        if driver == "async":
            asyncio.run(follow())
        else:
            list(Predict("question -> answer").stream(question="x"))
    [(_, point)] = points(sent, "gen_ai.client.operation.time_to_first_chunk")
    assert point.count == 1


def test_the_newest_names_are_emitted_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counters of tokens take the place of the histogram."""
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http,gen_ai_latest_experimental")
    sent = Sent()
    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM([Response("[[ ## answer ## ]]\nx", usage=Usage(10, 5, 4, 1))]),
    ):
        Predict("question -> answer")(question="x")
    found = {
        name: [point.value for point in each]
        for name, each in sent.points().items()
        if "usage" in name
    }
    assert found == {
        "gen_ai.client.inference.usage.input_tokens": [10],
        "gen_ai.client.inference.usage.output_tokens": [5],
        "gen_ai.client.inference.usage.cache_read.input_tokens": [4],
    }


def test_runs_that_wait_and_the_time_they_do_are_counted() -> None:
    """A run that goes on does not wait any more."""
    sent = Sent()

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        return "paid"

    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM([{"name": "pay", "args": {"euros": 3}}, DONE]),
    ):
        run = ReAct("task -> answer", [pay], native=True).start(task="x")
        assert [point.value for _, point in points(sent, "ferrule.runs.waiting")] == [1]
        run.resume()
        assert [point.value for _, point in points(sent, "ferrule.runs.waiting")] == [1]
        run.answer(run.pending[0].approve())
        run.resume()
    assert [point.value for _, point in points(sent, "ferrule.runs.waiting")] == [0]
    assert [(about, point.count) for about, point in points(sent, "ferrule.question.wait")] == [
        ({"ferrule.question.kind": "confirm"}, 1),
    ]


def test_a_run_that_is_interrupted_as_it_goes_on_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its questions are still noted, but it does not wait."""
    sent, store = Sent(), MemoryStore()

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        return "paid"

    def ends(*_: object, **__: object) -> bool:
        raise SystemExit

    def waiting() -> list[int]:
        return [point.value for _, point in points(sent, "ferrule.runs.waiting")]

    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM([{"name": "pay", "args": {"euros": 3}}, DONE]),
    ):
        agent = ReAct("task -> answer", [pay], native=True)
        run = agent.start(task="x", store=store, run_id="r")
        run.answer(run.pending[0].approve())
        monkeypatch.setattr(store, "append", ends)
        with pytest.raises(SystemExit):
            run.resume()
        monkeypatch.undo()
        assert waiting() == [0]
        run = Run.load(store, "r", agent).resume()
        assert (run.status, waiting()) == ("waiting", [1])
        run.answer(run.pending[0].approve())
        assert (run.resume().status, waiting()) == ("done", [0])
