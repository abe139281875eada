"""What was asked stays asked, and what is denied by now does not begin, whatever tools and policies
said when the run was started.
"""

from __future__ import annotations

from typing import Any

import pytest
from agent_script import native_step

from ferrule import (
    Grant,
    MemoryStore,
    Policy,
    ReAct,
    Response,
    Run,
    ToolCall,
    allow,
    ask,
    confirm_first,
    context,
    deny,
    events,
    tool,
)
from ferrule.approval.policy import Rule
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.journal import Journal
from ferrule.testing import ScriptedLM

DONE = native_step("done", "finish", {"answer": "ok"})


def pays(*amounts: int) -> Response:
    return Response("", tuple(ToolCall(name="pay", args={"euros": each}) for each in amounts))


class Till:
    """An agent that pays, in a store; what it needs consent for may change while it waits."""

    def __init__(self, *steps: Any, needs: Any = False, effect: Any = "once") -> None:
        self.needs = needs
        self.paid: list[int] = []
        self.lm = ScriptedLM([*steps, DONE])
        self.store = MemoryStore()
        self.told: list[events.Event] = []
        self.crash_at = 0

        def pay(euros: int) -> str:
            """Pay."""
            if euros == self.crash_at:
                raise SystemExit
            self.paid.append(euros)
            return f"paid {euros}"

        self.pay = tool(pay, effect=effect, concurrent=False)
        self.always = tool(pay, effect=effect, concurrent=False, require_confirmation=True)
        self.by_arguments = tool(
            pay,
            effect=effect,
            concurrent=False,
            require_confirmation=lambda _: self.needs,
        )

    def start(self, made: Any, policy: Policy | None = None) -> Run:
        with context(lm=self.lm, policy=policy):
            return ReAct("task -> answer", [made]).start(task="x", store=self.store, run_id="r")

    def load(self, made: Any) -> Run:
        return Run.load(self.store, "r", ReAct("task -> answer", [made]))

    def resume(self, made: Any, policy: Policy | None = None) -> Run:
        with context(lm=self.lm, policy=policy, callbacks=[self.told.append]):
            return self.load(made).resume()


# -- what was asked stays asked


def test_a_denied_call_does_not_run_when_its_tool_no_longer_asks() -> None:
    """The answer of the tool's own function is kept with the run."""
    till = Till(pays(1), needs=True)
    question = till.start(till.by_arguments).pending[0]
    till.store.decide("r", question.deny("never"))
    till.needs = False
    run = till.resume(till.by_arguments)
    assert run.status == "done"
    assert "never" in run.trajectory["observation_0"]
    assert till.paid == []


def test_a_denied_call_does_not_run_where_the_tool_was_changed_to_never_ask() -> None:
    """Consent is no part of what a program is told apart by."""
    till = Till(pays(1))
    till.store.decide("r", till.start(till.always).pending[0].deny("never"))
    assert till.resume(till.pay).status == "done"
    assert till.paid == []


@pytest.mark.parametrize("first", [None, Policy([ask("pay")])], ids=["tool_asked", "policy_asked"])
def test_a_denied_call_does_not_run_under_a_policy_that_allows_it_by_now(
    first: Policy | None,
) -> None:
    till = Till(pays(1))
    till.store.decide("r", till.start(till.always, first).pending[0].deny("never"))
    assert till.resume(till.always, Policy([allow("pay")])).status == "done"
    assert till.paid == []


def test_an_undecided_call_is_asked_about_again_although_its_tool_no_longer_asks() -> None:
    till = Till(pays(1), needs=True)
    first = till.start(till.by_arguments).pending[0]
    till.needs = False
    assert [each.id for each in till.resume(till.by_arguments).pending] == [first.id]
    assert till.paid == []


@pytest.mark.parametrize("asked", [True, False], ids=["asked_then", "asks_now"])
def test_a_run_that_is_done_gives_its_prediction_whatever_the_tool_says_by_now(asked: bool) -> None:
    """A replay goes the way that was gone."""
    till = Till(pays(1), needs=asked)
    run = till.start(till.by_arguments)
    if asked:
        till.store.decide("r", run.pending[0].approve())
        till.resume(till.by_arguments)
    till.needs = not asked
    with context(lm=till.lm):
        assert till.load(till.by_arguments).prediction.answer == "ok"
    assert till.paid == [1]


def test_a_call_that_did_not_begin_is_asked_about_where_its_tool_asks_by_now() -> None:
    """Nothing of the turn had happened, so the stricter ruling counts."""
    till = Till(pays(1))
    till.crash_at = 1
    with pytest.raises(SystemExit):
        till.start(till.pay, Policy([allow("pay")]))
    till.crash_at = 0
    agent = ReAct("task -> answer", [till.always])
    kept = till.load(till.pay)
    run = Run(agent, (), kept.inputs, run_id="r")
    run.journal = Journal(each for each in kept.journal.entries if each.kind != "begun")
    with context(lm=till.lm):
        assert [each.call.args for each in run.resume().pending] == [{"euros": 1}]
    assert till.paid == []


def test_a_tool_without_a_wish_and_no_policy_write_nothing() -> None:
    """The usual step pays for none of this."""
    till = Till(pays(1))
    slots = [(each.kind, each.slot) for each in till.start(till.pay).journal.entries]
    assert [slot for kind, slot in slots if kind == "once" and slot.endswith("~policy")] == []


# -- what is denied by now does not begin


@pytest.mark.parametrize("decided", [True, False], ids=["approved", "undecided"])
@pytest.mark.parametrize("own", [True, False], ids=["tool_asks", "policy_asks"])
def test_a_denial_that_comes_while_a_call_waits_holds(decided: bool, own: bool) -> None:
    """Nobody is asked about it any more, and an approval does not carry it through."""
    till = Till(pays(1))
    made = till.always if own else till.pay
    question = till.start(made, None if own else Policy([ask("pay")])).pending[0]
    if decided:
        till.store.decide("r", question.approve())
    run = till.resume(made, Policy([deny("pay", reason="closed")]))
    assert run.status == "done"
    assert (
        run.trajectory["observation_0"]
        == "A policy forbids this call; it was not run. Reason: closed"
    )
    assert [(each.kind, each.via) for each in run.decisions][-1] == ("deny", "policy")
    assert till.paid == []


def test_a_denial_holds_for_an_approval_that_was_taken_before_a_crash() -> None:
    """The decision is in the journal, and the call did not begin."""
    till = Till(pays(1))
    run = till.start(till.always)
    till.store.decide("r", run.pending[0].approve())
    entries = list(till.resume(till.always).journal.entries)
    taken = next(k for k, each in enumerate(entries) if each.kind == "decision")
    again = Run(ReAct("task -> answer", [till.always]), (), run.inputs, run_id="r")
    again.key, again.journal = run.key, Journal(entries[: taken + 1])
    till.paid.clear()
    with context(lm=ScriptedLM([DONE]), policy=Policy([deny("pay")])):
        again.resume()
    assert again.status == "done"
    assert "forbids this call" in again.trajectory["observation_0"]
    assert till.paid == []
    with context(lm=ScriptedLM([])):  # and so it stays, without the policy too
        assert Run.from_json(again.to_json(), again.program).prediction.answer == "ok"
    assert till.paid == []


def test_a_denial_holds_for_the_rest_of_a_turn_that_a_crash_cut_off_and_moves_no_other_call() -> (
    None
):
    """What had its result keeps it, in its place."""
    till = Till(pays(1, 2, 3), effect="idempotent")
    till.crash_at = 2
    with pytest.raises(SystemExit):
        till.start(till.pay)
    till.crash_at = 0
    run = till.resume(till.pay, Policy([deny("pay", reason="closed")]))
    contents = [each.content for each in run.trajectory.steps[0].results]
    assert contents[:2] == [
        "paid 1",
        "paid 2",
    ]  # the second had begun: its effect says that it may be repeated
    assert contents[2].endswith("Reason: closed")
    assert till.paid == [1, 2]


def test_no_rule_answers_for_the_person_that_a_model_asks() -> None:
    lm = ScriptedLM([native_step("", "user_clarification", {"question": "Which?"}), DONE])
    with context(lm=lm, policy=Policy([deny("*")])):
        run = ReAct("task -> answer", [], enable_user_clarification=True).start(task="x")
        run.answer(run.pending[0].reply("that one"))
        assert run.resume().trajectory["observation_0"] == "that one"


# -- grants stay where they were given


def test_a_grant_does_not_reach_the_equal_tool_of_another_agent() -> None:
    """Two agents called as tools, each with a `pay` of its own."""
    paid: list[tuple[str, int]] = []

    def cashier(account: str) -> Any:
        def pay(euros: int) -> str:
            """Pay."""
            paid.append((account, euros))
            return "ok"

        return ReAct("bill -> receipt", [confirm_first(tool(pay))]).as_tool(
            f"cashier_{account}",
            "A cashier.",
        )

    def bill(account: str, euros: int) -> list[Any]:
        receipt = native_step("", "finish", {"receipt": "r"})
        return [
            native_step("", f"cashier_{account}", {"bill": str(euros)}),
            native_step("", "pay", {"euros": euros}),
            receipt,
        ]

    lm = ScriptedLM([*bill("private", 5), *bill("private", 6), *bill("company", 5000), DONE])
    with context(lm=lm):
        run = ReAct("task -> answer", [cashier("private"), cashier("company")]).start(task="x")
        assert run.pending[0].inside == "cashier_private"
        run.answer(run.pending[0].approve(always=Grant(args="any")))
        run.resume()
    assert paid == [("private", 5), ("private", 6)]
    assert [each.inside for each in run.pending] == ["cashier_company"]


def test_a_ruling_is_written_once() -> None:
    """The same ruling is not written again at every resume."""
    till = Till(pays(1))
    till.start(till.always)
    for _ in range(3):
        run = till.resume(till.always)
    rulings = [each for each in run.journal.entries if each.slot.endswith("~policy")]
    assert rulings == [
        Entry("1~policy", "once", 'policy [["pay",{"euros":1}]]', [["ask", "", None]])
    ]


@pytest.mark.parametrize("rule", [ask("pay", euro=7), deny("pay", where={"Euros": 7})])
def test_a_rule_about_an_argument_that_its_tool_does_not_have_stops_the_run_before_the_call(
    rule: Rule,
) -> None:
    """A slip of the pen would let every call through."""
    till = Till(pays(7))
    run = till.start(till.pay, Policy([rule]))
    assert run.status == "failed"
    assert "that `pay` does not have. It has: `euros`." in str(run.error)
    assert till.paid == []


def test_a_rule_for_many_tools_may_be_about_arguments_that_one_of_them_does_not_have() -> None:
    till = Till(pays(7))
    assert (
        till.start(till.pay, Policy([deny("*", path="/etc/*"), ask("pa?", to="Eve")])).status
        == "done"
    )
