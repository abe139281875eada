"""`Limits(cost=)`: no call once the money is spent, and no run whose spending is unknown.

The models are real servers on loopback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from agent_script import fields

from ferrule import (
    LM,
    EventStream,
    FallbackLM,
    Limits,
    MemoryStore,
    Module,
    Predict,
    Prices,
    ReAct,
    Response,
    Run,
    Tool,
    ToolCall,
    Usage,
    context,
    gather,
)
from ferrule.errors import ConfigurationError, LimitReachedError, UnavailableError
from ferrule.testing import ScriptedLM, serve

EACH = Usage(100_000, 0, 0, 1)
"""Of every answer: 0.1 US dollars at 1 dollar a million."""
PRICED = Prices(extra={"m": (1.0, 1.0)})


def looping(request: Any) -> Response:
    """A model that looks again as long as it has tools."""
    if not len(request.tools):
        return Response(fields(reasoning="r", answer="extracted"), usage=EACH)
    return Response("", (ToolCall(name=request.tools[0]["function"]["name"], args={}),), usage=EACH)


@contextmanager
def served(by: Callable[[Any], Any] = looping, name: str = "m") -> Iterator[LM]:
    with serve(ScriptedLM(by=by)) as server:
        yield LM(server.base_url, model=name, max_retries=0)


def looker(looks: list[str] | None = None, on_limit: Any = "extract", **keywords: Any) -> ReAct:
    """An agent that answers at a limit, unless told otherwise."""
    seen = looks if looks is not None else []
    return ReAct(
        "question -> answer",
        [Tool(lambda: seen.append("look") or "seen", "look", "Look.")],
        native=True,
        on_limit=on_limit,
        **keywords,
    )


@pytest.fixture(params=["sync", "async", "stream", "astream"])
def how(request: pytest.FixtureRequest) -> str:
    return request.param


def carry(program: Module, how: str, **inputs: Any) -> Run[Any]:
    if how == "sync":
        return program.start(**inputs)
    if how == "async":
        return asyncio.run(program.astart(**inputs))
    stream: EventStream = program.stream(**inputs)

    async def follow() -> None:
        async for _ in stream:
            pass

    with suppress(ConfigurationError, LimitReachedError):
        [*stream] if how == "stream" else asyncio.run(follow())
    return stream.run


# -- spent


def test_no_tool_turn_begins_once_the_money_is_spent(how: str) -> None:
    """The call that goes over it is the last one; one more extracts the answer."""
    looks: list[str] = []
    with served() as lm, context(lm=lm, prices=PRICED):
        run = carry(looker(looks, limits=Limits(cost=0.25)), how, question="?")
    assert (run.prediction.reason, run.prediction.answer, len(looks)) == (
        "limits.cost",
        "extracted",
        3,
    )
    assert (run.cost, run.usage.calls) == (pytest.approx(0.4), 4)


def test_costs_that_the_provider_reports_count_alike(how: str) -> None:
    with (
        served(lambda request: Response(**{**_parts(looping(request)), "cost": 0.2})) as lm,
        context(lm=lm),
    ):
        run = carry(looker(limits=Limits(cost=0.3)), how, question="?")
    assert (run.prediction.reason, run.cost) == ("limits.cost", pytest.approx(0.6))


def _parts(response: Response) -> dict[str, Any]:
    return {"text": response.text, "tool_calls": response.tool_calls, "usage": response.usage}


def test_a_program_without_a_way_to_end_early_raises(how: str) -> None:
    class Chatty(Module):
        def __init__(self) -> None:
            self.ask = Predict("question -> answer")

        def forward(self, question: str) -> Any:
            for k in range(10):
                self.ask(question=f"{question} {k}")

    with served() as lm, context(lm=lm, prices=PRICED, limits=Limits(cost=0.15)):
        run = carry(Chatty(), how, question="?")
    assert (type(run.error), run.usage.calls) == (LimitReachedError, 2)


def test_what_a_sub_agent_spends_counts_for_the_agent_around_it(how: str) -> None:
    inner = looker(limits=Limits(steps=2)).as_tool("inner", description="Asks.")

    def by(request: Any) -> Response:
        names = [each["function"]["name"] for each in request.tools]
        if "inner" in names:
            return Response("", (ToolCall(name="inner", args={"question": "?"}),), usage=EACH)
        return looping(request)

    agent = ReAct(
        "question -> answer", [inner], native=True, limits=Limits(cost=0.55), on_limit="extract"
    )
    with served(by) as lm, context(lm=lm, prices=PRICED):
        run = carry(agent, how, question="?")
    # 1 call, 3 inside, 1 call, 1 inside: 0.6, then the sub-agent and the agent extract an answer
    # each
    assert run.prediction.reason == "limits.cost"
    assert run.usage.calls == 8
    assert run.usage.by_model["m"] == run.usage


def test_parallel_children_spend_from_one_budget_and_none_begins_a_call_when_it_is_spent() -> None:
    class Wide(Module):
        def __init__(self) -> None:
            self.agents = [looker() for _ in range(4)]

        async def aforward(self, question: str) -> Any:
            return await gather(*[each.acall(question=question) for each in self.agents])

    with served() as lm, context(lm=lm, prices=PRICED, limits=Limits(cost=0.95)):
        run = carry(Wide(), "async", question="?")
    assert [each.reason for each in run.prediction] == ["limits.cost"] * 4
    # 10 calls reach the limit. At most 3 more were under way just then, and each agent extracts an
    # answer.
    assert 14 <= run.usage.calls <= 17


def test_a_resumed_run_goes_on_counting_where_it_was() -> None:
    def by(request: Any) -> Response:
        asked = sum(message.role == "tool" for message in request.messages)
        if len(request.tools) and asked == 1:
            return Response("", (ToolCall(name="pay", args={}),), usage=EACH)
        return looping(request)

    paid: list[str] = []
    tools = [
        Tool(lambda: "seen", "look", "Look."),
        Tool(lambda: paid.append("pay") or "paid", "pay", "Pay.", require_confirmation=True),
    ]
    agent, store = (
        ReAct(
            "question -> answer", tools, native=True, limits=Limits(cost=0.35), on_limit="extract"
        ),
        MemoryStore(),
    )
    with served(by) as lm, context(lm=lm, prices=PRICED):
        run = agent.start(question="?", store=store, run_id="r")
        assert (run.status, run.cost, store.summary("r").cost) == ("waiting", 0.2, 0.2)
    with (
        served(by) as lm,
        context(lm=lm, prices=Prices(extra={"m": (100.0, 100.0)})),
    ):  # newer prices change nothing of what was spent
        again = agent.load_run(store, "r")
        again.answer(again.pending[0].approve())
        again.resume()
    assert (again.prediction.reason, paid) == ("limits.cost", ["pay"])
    assert (store.summary("r").cost, store.summary("r").usage) == (again.cost, again.usage)
    assert again.cost == pytest.approx(0.2 + 10.0 + 10.0)


def test_each_item_of_a_batch_has_the_whole_limit_and_a_batch_in_a_run_shares_one() -> None:
    with served() as lm, context(lm=lm, prices=PRICED, limits=Limits(cost=0.15)):
        found = looker().batch([{"question": "a"}, {"question": "b"}])
    assert [each.reason for each in found] == ["limits.cost"] * 2
    assert (found.usage.calls, found.cost) == (6, pytest.approx(0.6))
    assert found.usage.by_model["m"].cost == pytest.approx(0.6)

    class Around(Module):
        def __init__(self) -> None:
            self.inner = looker()

        def forward(self) -> Any:
            return [
                each.reason
                for each in self.inner.batch(
                    [{"question": "a"}, {"question": "b"}],
                    max_concurrency=1,
                )
            ]

    with served() as lm, context(lm=lm, prices=PRICED, limits=Limits(cost=0.15)):
        run = Around().start()
    assert (run.prediction, run.usage.calls) == (["limits.cost", "limits.cost"], 4)


# -- unknown


def test_an_answer_of_unknown_cost_is_refused_and_says_what_to_set(how: str) -> None:
    """A limit that cannot be known is never ignored."""
    looks: list[str] = []
    with served() as lm, context(lm=lm):
        run = carry(looker(looks, limits=Limits(cost=5)), how, question="?")
    assert (type(run.error), looks) == (ConfigurationError, [])
    assert str(run.error).startswith(
        f"`Limits(cost=5)` cannot be enforced: the cost of an answer of `{lm.name}` is unknown",
    )
    assert "Prices(extra={'m': (0.5, 2.0)})" in str(run.error)


def test_a_refused_run_goes_on_once_there_is_a_price() -> None:
    store, agent = MemoryStore(), looker(limits=Limits(cost=0.15))
    with served() as lm, context(lm=lm):
        assert agent.start(question="?", store=store, run_id="r").status == "failed"
        with context(prices=PRICED):
            run = agent.load_run(store, "r").resume()
    assert (run.prediction.reason, run.cost) == ("limits.cost", pytest.approx(0.3))


def test_one_call_that_is_all_of_a_program_is_refused_too(how: str) -> None:
    with served() as lm, context(lm=lm, limits=Limits(cost=5)):
        assert (
            type(carry(Predict("question -> answer"), how, question="?").error)
            is ConfigurationError
        )


def test_recorded_answers_of_unknown_cost_are_refused_when_a_limit_comes_later() -> None:
    def by(request: Any) -> Response:
        return Response("", (ToolCall(name="pay", args={}),), usage=EACH)

    agent = ReAct(
        "question -> answer",
        [Tool(lambda: "paid", "pay", "Pay.", require_confirmation=True)],
        native=True,
    )
    with served(by) as lm, context(lm=lm):
        run = agent.start(question="?")
        run.answer(run.pending[0].approve())
        with context(prices=PRICED, limits=Limits(cost=5)):
            run.resume()
    assert type(run.error) is ConfigurationError


def test_a_sub_agent_of_unknown_cost_ends_the_agent_around_it(how: str) -> None:
    """Its error would be a tool's result, and the next one would spend again."""
    with served(name="unknown") as other:
        asked: list[int] = []
        inner = Predict("question -> answer", lm=other).as_tool("inner", description="Asks.")
        agent = ReAct("question -> answer", [inner], native=True, limits=Limits(cost=5))

        def by(request: Any) -> Response:
            asked.append(1)
            return Response("", (ToolCall(name="inner", args={"question": "?"}),), usage=EACH)

        with served(by) as lm, context(lm=lm, prices=PRICED):
            run = carry(agent, how, question="?")
    assert (type(run.error), len(asked)) == (ConfigurationError, 1)
    assert "unknown" in str(run.error)


def test_a_fallback_to_a_model_without_a_price_is_refused(how: str) -> None:
    def down(_: Any) -> Response:
        raise UnavailableError("down", status=503)

    with (
        served(down) as first,
        served(name="dear") as second,
        context(lm=FallbackLM([first, second]), prices=PRICED),
    ):
        run = carry(looker(limits=Limits(cost=5)), how, question="?")
    assert f"an answer of `{second.name}` is unknown" in str(run.error)
    with (
        served(down) as first,
        served() as second,
        context(lm=FallbackLM([first, second]), prices=PRICED),
    ):
        assert (
            carry(looker(limits=Limits(cost=0.15)), how, question="?").prediction.reason
            == "limits.cost"
        )


def test_models_that_cost_nothing_need_no_price(how: str) -> None:
    """Those of tests, and those in this process."""
    for lm in (
        ScriptedLM(by=lambda _: fields(answer="a")),
        FallbackLM([ScriptedLM(by=lambda _: fields(answer="a"))]),
    ):
        with context(lm=lm, limits=Limits(cost=0.01)):
            assert carry(Predict("question -> answer"), how, question="?").prediction.answer == "a"


def test_other_limits_need_no_price(how: str) -> None:
    with served() as lm, context(lm=lm):
        assert (
            carry(looker(limits=Limits(tokens=150_000)), how, question="?").prediction.reason
            == "limits.tokens"
        )
