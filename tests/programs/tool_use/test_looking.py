"""Conditions of rules that look beyond a call (`programs/tool_use/looking.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ferrule import (
    Context,
    MemoryStore,
    Module,
    Policy,
    ReAct,
    Run,
    Tool,
    allow,
    ask,
    call_tool,
    context,
    deny,
    tool,
)
from ferrule.errors import ConfigurationError, ConfirmationRejected, ConfirmationRequired
from ferrule.testing import ScriptedLM

PAID: list[int] = []
ASKED: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    PAID.clear()
    ASKED.clear()


def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return f"paid {amount}"


def is_over(ctx: Context[Any], amount: int) -> bool:
    """A condition that counts how often it is asked."""
    ASKED.append(amount)
    return amount > ctx.deps


async def is_over_async(ctx: Context[Any], amount: int) -> bool:
    await asyncio.sleep(0)
    return is_over(ctx, amount)


def paying(*amounts: int) -> ScriptedLM:
    calls = [{"name": "pay", "args": {"amount": amount}} for amount in amounts]
    return ScriptedLM([*calls, {"name": "finish", "args": {"answer": "x"}}])


def agent_under(*rules: Any, own: Any = None) -> ReAct:
    return ReAct("task -> answer", [own or pay], policy=Policy(rules))


def start(agent: ReAct, lm: ScriptedLM, how: str = "sync", **options: Any) -> Run:
    agent.lm = lm
    if how == "sync":
        return agent.start(task="t", **options)
    return asyncio.run(agent.astart(task="t", **options))


both = pytest.mark.parametrize("how", ["sync", "async"])
conditions = pytest.mark.parametrize("condition", [is_over, is_over_async])


@both
@conditions
def test_a_condition_reads_the_deps_of_the_run(how: str, condition: Callable[..., Any]) -> None:
    agent = agent_under(ask("pay", when=condition, reason="above the limit"))
    run = start(agent, paying(10, 80), how, deps=50)
    [question] = run.pending
    assert question.call.args == {"amount": 80}
    assert "above the limit" in question.text
    assert PAID == [10]


@both
@conditions
def test_its_answer_is_recorded_and_a_resumed_run_does_not_ask_it_again(
    how: str, condition: Callable[..., Any]
) -> None:
    store = MemoryStore()
    agent = agent_under(ask("pay", when=condition))
    run = start(agent, paying(10, 80), how, deps=50, store=store, run_id="r")
    assert ASKED == [10, 80]
    run.answer(run.pending[0].approve())
    # By now it would object to nothing, and the call was approved as it was shown.
    loaded = Run.load(store, "r", agent, deps=10_000)
    loaded.resume()
    assert (loaded.status, PAID, ASKED) == ("done", [10, 80], [10, 80])


def test_a_denial_holds_for_what_a_person_made_of_the_call() -> None:
    agent = agent_under(ask("pay"), deny("pay", when=is_over))
    run = start(agent, paying(10), deps=50)
    run.answer(run.pending[0].approve(amount=80))
    run.resume()
    assert (PAID, ASKED) == ([], [10, 80])
    assert "A policy forbids the call as it was edited" in run.trajectory["observation_0"]


@both
def test_each_edited_call_is_looked_at_once_while_others_wait(how: str) -> None:
    store = MemoryStore()
    agent = agent_under(ask("pay"), deny("pay", when=is_over))
    calls = [{"name": "pay", "args": {"amount": amount}} for amount in (10, 20, 30)]
    lm = ScriptedLM([{"tool_calls": calls}, {"name": "finish", "args": {"answer": "x"}}])
    run = start(agent, lm, how, deps=50, store=store, run_id="r")
    run.answer(run.pending[2].approve(amount=80))
    run.resume()
    assert (PAID, ASKED) == ([], [10, 20, 30, 80])
    loaded = Run.load(store, "r", agent, deps=50)
    loaded.answer(loaded.pending[0].approve(amount=40))
    loaded.resume()
    assert (PAID, ASKED) == ([40], [10, 20, 30, 80, 40])
    again = Run.load(store, "r", agent, deps=1)  # what was found before stays
    again.answer(again.pending[0].approve())
    assert again.resume().status == "done"
    assert (PAID, ASKED) == ([40, 20], [10, 20, 30, 80, 40])
    assert len(Run.load(store, "r", agent).trajectory.steps) == 2


def test_it_sees_the_calls_of_the_run_that_have_ended() -> None:
    seen: list[Any] = []

    def look(ctx: Context[Any]) -> bool:
        seen.append([(call.name, call.args, result.content) for call, result in ctx.calls])
        return False

    start(agent_under(ask("pay", when=look)), paying(1, 2))
    assert seen == [[], [("pay", {"amount": 1}, "paid 1")]]


@pytest.mark.parametrize(
    "condition",
    [
        lambda amount: amount > 50,
        lambda ctx, amount: amount > ctx.deps,
        lambda ctx, amount, currency="EUR": amount > 50 and currency == "EUR",
        lambda **arguments: arguments["amount"] > 50,
        lambda ctx, **arguments: arguments["amount"] > ctx.deps,
    ],
    ids=["argument", "context", "default", "all", "context and all"],
)
def test_it_takes_the_context_and_the_arguments_that_it_names(
    condition: Callable[..., Any],
) -> None:
    run = start(agent_under(ask("pay", when=condition)), paying(10, 80), deps=50)
    assert PAID == [10]
    assert [question.call.args["amount"] for question in run.pending] == [80]


def test_a_rule_for_many_tools_does_not_apply_to_one_without_its_arguments() -> None:
    agent = agent_under(ask("*", when=lambda ctx, to: True))
    start(agent, paying(10))
    assert PAID == [10]


def test_a_misspelled_argument_raises_when_the_agent_is_made() -> None:
    with pytest.raises(ConfigurationError, match="`amuont` that `pay` does not have"):
        agent_under(ask("pay", when=lambda ctx, amuont: True))


@pytest.mark.parametrize(
    "wrong",
    [lambda ctx, /: True, lambda *args: True, 3, "x"],
    ids=["positional", "star", "number", "text"],
)
def test_what_cannot_be_called_by_names_raises_when_the_rule_is_made(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="`when"):
        ask("pay", when=wrong)


@pytest.mark.parametrize(
    ("rule", "paid", "asks"),
    [(allow, [], True), (ask, [], True), (deny, [], False)],
)
def test_in_doubt_a_call_does_not_run(rule: Any, paid: list[int], asks: bool) -> None:
    agent = agent_under(
        rule("pay", when=lambda ctx: None), own=tool(require_confirmation=True)(pay)
    )
    run = start(agent, paying(10))
    assert (PAID, bool(run.pending)) == (paid, asks)


def test_one_that_raises_stops_the_run_and_is_named() -> None:
    def broken(ctx: Context[Any]) -> bool:
        raise OSError("no database")

    agent = agent_under(ask("pay", when=broken))
    with pytest.raises(ConfigurationError, match=r"condition of ask\('pay'.*no database"):
        agent(task="t", lm=paying(10))
    assert PAID == []


def test_a_sync_function_that_returns_an_awaitable_does_not_count_as_true() -> None:
    agent = agent_under(allow("pay", when=lambda ctx: asyncio.sleep(0)))
    with pytest.raises(ConfigurationError, match="not awaited"):
        agent(task="t", lm=paying(10))


@both
def test_a_tool_has_such_a_condition_of_its_own(how: str) -> None:
    own = tool(require_confirmation=ask(when=is_over))(pay)
    run = start(ReAct("task -> answer", [own]), paying(10, 80), how, deps=50)
    assert PAID == [10]
    assert [question.call.args["amount"] for question in run.pending] == [80]


def test_a_direct_call_of_that_tool_asks_because_no_run_can_ask_the_condition() -> None:
    own = Tool(pay, require_confirmation=ask(when=is_over))
    with pytest.raises(ConfirmationRequired):
        own(amount=10)
    assert ASKED == []


def test_it_holds_for_the_calls_of_a_program_of_ones_own() -> None:
    payment = Tool(pay)

    class Settle(Module):
        def forward(self, amount: int) -> Any:
            return call_tool(payment, amount=amount)

    settle = Settle()
    with context(policy=Policy([deny("pay", when=is_over, reason="too much")])):
        settle(amount=10, deps=50)
        with pytest.raises(ConfirmationRejected, match="too much"):
            settle(amount=80, deps=50)
    assert PAID == [10]


def test_it_holds_for_the_calls_of_an_agent_inside_and_of_policies_around_policies() -> None:
    inner = agent_under()
    inner_lm = paying(80)
    outer = ReAct("task -> answer", [inner.as_tool(name="clerk", description="Pays.")])
    outer_lm = ScriptedLM(
        [
            {"name": "clerk", "args": {"task": "Pay 80."}},
            {"name": "finish", "args": {"answer": "x"}},
        ]
    )
    inner.lm = inner_lm
    around = Policy([], around=Policy([deny("pay", when=is_over)]))
    with context(policy=around):
        outer(task="t", lm=outer_lm, deps=50)
    assert (PAID, ASKED) == ([], [80])


def test_a_stored_policy_keeps_a_function_of_a_module() -> None:
    store = MemoryStore()
    agent = ReAct("task -> answer", [pay])
    with context(policy=Policy([ask("pay"), deny("pay", when=is_over)])):
        run = start(agent, paying(10), deps=50, store=store, run_id="r")
    store.decide("r", run.pending[0].approve(amount=80))
    loaded = Run.load(store, "r", agent, deps=50)
    loaded.resume()
    assert (PAID, ASKED) == ([], [10, 80])


class PayContext:
    """A class of the user's, whose name has the word."""


def test_a_parameter_of_a_class_whose_name_has_the_word_context_is_an_argument() -> None:
    def is_large(amount: PayContext) -> bool:
        ASKED.append(amount)
        return True

    start(agent_under(ask("pay", when=is_large)), paying(10))
    assert ASKED == [10]


def test_a_context_is_known_by_its_annotation_under_any_name() -> None:
    def is_large(shop: Context[Any], amount: int) -> bool:
        return amount > shop.deps

    run = start(agent_under(ask("pay", when=is_large)), paying(10, 80), deps=50)
    assert (PAID, len(run.pending)) == ([10], 1)
