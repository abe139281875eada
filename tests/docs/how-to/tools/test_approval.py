"""The claims of docs/how-to/tools/approval.md."""

from __future__ import annotations

import pytest

from ferrule import (
    MemoryStore,
    Module,
    Policy,
    Prediction,
    Question,
    ReAct,
    Run,
    ToolCall,
    allow,
    ask,
    context,
    deny,
    gather,
    gt,
)
from ferrule.acts import AskPerson
from ferrule.errors import ConfigurationError, DecisionError
from ferrule.testing import ScriptedLM


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test. A4-A8, U80, U116."""
    execute("docs/how-to/tools/approval.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/approval.md") == []


def pay(to: str, amount: float) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


def run_with(*rules):
    lm = ScriptedLM(
        [
            {"name": "pay", "args": {"to": "Ada", "amount": 500}},
            {"name": "finish", "args": {"answer": "done"}},
        ],
    )
    return ReAct("task -> answer", [pay], policy=Policy(rules)).start(task="Pay Ada.", lm=lm)


@pytest.mark.parametrize("rule", [ask("pay", amuont=gt(100)), deny("pay", amuont=500)], ids=str)
def test_a_rule_of_one_tool_about_an_argument_that_it_lacks_is_refused(rule) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean `amount`"):
        run_with(rule)


@pytest.mark.parametrize("rule", [ask("pay", amuont=gt(100)), deny("pay", amuont=500)], ids=str)
def test_such_a_rule_of_the_settings_fails_the_run(rule) -> None:
    with context(policy=Policy([rule])):
        run = run_with()
    assert run.status == "failed"
    assert isinstance(run.error, ConfigurationError)


def test_a_rule_with_a_pattern_does_not_apply_to_a_tool_without_its_argument() -> None:
    assert run_with(ask("p*", amuont=gt(100))).status == "done"


def test_an_async_condition_is_refused() -> None:
    async def is_large(amount: float) -> bool:
        return amount > 100

    with pytest.raises(ConfigurationError, match="async"):
        ask("pay", amount=is_large)


class Sure(Module):
    def flow(self, what):
        [decision] = yield AskPerson(
            (
                Question(
                    "confirm",
                    f"Sure about {what}?",
                    ToolCall(name="sure", args={"what": what}),
                    expires_s=60,
                ),
            ),
        )
        return Prediction(kind=decision.kind, args=dict(decision.args))


class Both(Module):
    def __init__(self) -> None:
        self.sure = Sure()

    async def aforward(self):
        one, other = await gather(self.sure.acall(what="one"), self.sure.acall(what="other"))
        return Prediction(one=one.kind, other=other.args)


def test_a_program_that_asks_itself_waits_in_a_store_with_the_questions_of_all_branches() -> None:
    store = MemoryStore()
    waiting = Both().start(store=store, run_id="r")
    assert [question.text for question in waiting.pending] == [
        "Sure about one?",
        "Sure about other?",
    ]
    for question, said in zip(
        Run.list(store)[0].questions,
        ("no", '{"what": "third"}'),
        strict=True,
    ):
        store.decide("r", question.decide(said))
    assert Run.load(store, "r", Both()).resume().prediction.toDict() == {
        "one": "deny",
        "other": {"what": "third"},
    }


def test_policies_do_not_apply_to_a_question_of_a_program_and_a_clarification_takes_no_edit() -> (
    None
):
    with context(policy=Policy([allow("*")])):
        assert Sure().start(what="this").status == "waiting"
    [question] = Sure().start(what="this").pending
    with pytest.raises(DecisionError):
        Question("clarify", "Why?", question.call).edit({"what": "that"})
