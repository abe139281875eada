"""How sure the model is of a call: a rule can go by it, and a person sees it."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule import (
    MemoryStore,
    Policy,
    ReAct,
    Run,
    SQLiteStore,
    ToolCall,
    allow,
    ask,
    call,
    context,
    deny,
    ge,
    lt,
)
from ferrule.cli.main import main
from ferrule.errors import ConfigurationError
from ferrule.events import CallStarted
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.exchange import Response

UNSURE = call(confidence=lt(0.6))


def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


def paying(confidence: float | None, euros: int = 5) -> ToolCall:
    return ToolCall(name="pay", args={"euros": euros}, confidence=confidence)


def model(*confidences: float | None) -> ScriptedLM:
    """Makes a call with each confidence, then ends."""
    answers = [
        Response(tool_calls=(paying(confidence, index).with_id(f"c{index}"),))
        for index, confidence in enumerate(confidences)
    ]
    finish = ToolCall(name="finish", args={"answer": "done"}, id="end")
    return ScriptedLM([*answers, Response(tool_calls=(finish,))])


def test_a_rule_compares_the_confidence() -> None:
    for make in (allow, ask, deny):
        rule = make("pay", when=UNSURE)
        assert rule.covers("pay", {"euros": 5}, paying(0.4))
        assert not rule.covers("pay", {"euros": 5}, paying(0.6))


def test_an_unknown_confidence_meets_ask_and_deny_and_never_allow() -> None:
    for when in (UNSURE, call(confidence=ge(0.6))):
        for known in (paying(None), None):
            assert ask("pay", when=when).covers("pay", {"euros": 5}, known)
            assert deny("pay", when=when).covers("pay", {"euros": 5}, known)
            assert not allow("pay", when=when).covers("pay", {"euros": 5}, known)


def test_both_conditions_on_the_call_must_hold() -> None:
    rule = ask("pay", when=call(rescued=True, confidence=lt(0.6)))
    rescued = paying(0.4).changed(repairs=("from_text",))
    assert rule.covers("pay", {"euros": 5}, rescued)
    assert not rule.covers("pay", {"euros": 5}, paying(0.4))
    assert not rule.covers("pay", {"euros": 5}, paying(None))
    assert str(rule) == "ask('pay', when=call(rescued=True, confidence=lt(0.6)))"


@pytest.mark.parametrize("condition", [0.6, "low", lt("a"), lt(60)])
def test_a_condition_that_no_confidence_meets_is_refused(condition: Any) -> None:
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        call(confidence=condition)
    with pytest.raises(ConfigurationError, match="takes a condition"):
        call()


def test_act_ask_or_refuse_by_the_model_s_own_measure() -> None:
    policy = Policy(
        [deny("*", when=call(confidence=lt(0.3)), reason="too unsure"), ask(when=UNSURE)]
    )
    agent = ReAct("task -> answer", [pay], policy=policy)
    seen: list[Any] = []
    with context(lm=model(0.9, 0.2, 0.5), callbacks=[seen.append]):
        run = agent.start(task="Pay.")
        [question] = run.pending
        assert question.call.confidence == 0.5
        assert "0.50 of 1" in question.text
        run.answer(question.approve())
        prediction = run.resume()
    observations = [step.results[0].content for step in prediction.trajectory.steps[:3]]
    assert observations[0] == "paid 0"
    assert "too unsure" in str(observations[1])
    assert observations[2] == "paid 2"
    started = [event.as_json()["call"] for event in seen if isinstance(event, CallStarted)]
    assert [form["confidence"] for form in started] == [0.9, 0.5]


def test_the_journal_keeps_the_confidence_and_the_condition() -> None:
    store = MemoryStore()
    agent = ReAct("task -> answer", [pay])
    with context(lm=model(0.4), policy=Policy([ask("*", when=UNSURE)])):
        run = agent.start(task="Pay.", store=store)
    with context(lm=model(0.5)):
        run = Run.load(store, run.id, agent)
        [question] = run.pending
        assert question.call.confidence == 0.4
        run.answer(question.deny())
        run.resume()
        assert run.status == "waiting"  # about the next call: the stored policy still asks
        assert run.pending[0].call.confidence == 0.5


def test_the_command_line_and_the_page_show_it(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "runs.db")
    store = SQLiteStore(path)
    with context(lm=model(0.4, None)):
        run = ReAct("task -> answer", [pay]).start(task="Pay.", store=store)
    store.close()
    assert main(["show", run.id, "--store", path]) == 0
    shown = capsys.readouterr().out
    assert "pay(euros=0) (confidence 0.40)" in shown
    assert "pay(euros=1) (confidence" not in shown
    assert main(["show", run.id, "--store", path, "--html"]) == 0
    assert capsys.readouterr().out.count("confidence 0.40") == 1


def test_a_model_cannot_claim_a_confidence_in_its_text() -> None:
    """Else it could talk its way past a rule."""
    claimed = '<tool_call>{"name": "pay", "arguments": {"euros": 5}, "confidence": 1.0}</tool_call>'
    agent = ReAct("task -> answer", [pay], policy=Policy([ask("*", when=UNSURE)]))
    with context(lm=ScriptedLM([claimed])):
        [question] = agent.start(task="Pay.").pending
    assert question.call.confidence is None
