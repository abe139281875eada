"""Rules held against recorded calls (`runs/rules_in_retrospect.py`, `ferrule rules`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferrule import Grant, Policy, ReAct, SQLiteStore, Tool, allow, ask, deny, gt, le, under
from ferrule.cli.main import main
from ferrule.runs.rules_in_retrospect import (
    RecordedCall,
    judge_calls,
    propose_rules,
    recorded_calls,
)
from ferrule.testing import ScriptedLM
from ferrule.values.calls.call import ToolCall


def pay(to: str, amount: int) -> str:
    """Pay."""
    return f"paid {amount} to {to}"


def look(what: str) -> str:
    """Look something up."""
    return what


def decided(store: SQLiteStore, name: str, amount: int, decide: Any, **agent_options: Any) -> None:
    """A run with one lookup and one payment, on which a person decided."""
    lm = ScriptedLM(
        [
            {"name": "look", "args": {"what": "x"}},
            {"name": "pay", "args": {"to": "Ann", "amount": amount}},
            {"name": "finish", "args": {"answer": "done"}},
        ]
    )
    asking = Tool(pay, require_confirmation=True)
    agent = ReAct("task -> answer", [look, asking], lm=lm, **agent_options)
    run = agent.start(task="t", store=store, run_id=name)
    for question in run.pending:
        run.answer(decide(question))
    run.resume()


@pytest.fixture
def store(tmp_path: Path) -> SQLiteStore:
    """Ten approved payments of 10 to 100, one of 500 denied, one of 200 edited to 20."""
    store = SQLiteStore(tmp_path / "runs.db")
    for number in range(1, 11):
        decided(store, f"yes-{number}", number * 10, lambda question: question.approve())
    decided(store, "no", 500, lambda question: question.deny("too much"))
    decided(store, "less", 200, lambda question: question.approve(amount=20))
    return store


def calls_in(store: SQLiteStore) -> list[RecordedCall]:
    return list(recorded_calls(store, [run.id for run in store.list(limit=None)]))


def test_it_reads_every_call_and_what_a_person_said(store: SQLiteStore) -> None:
    calls = calls_in(store)
    assert len(calls) == 24
    said = {call.run_id: call.said for call in calls if call.call.name == "pay"}
    assert (said["yes-1"], said["no"], said["less"]) == ("approved", "denied", "edited")
    assert {call.said for call in calls if call.call.name == "look"} == {None}
    [edited] = [call for call in calls if call.said == "edited"]
    assert edited.call.args == {"to": "Ann", "amount": 200}


def test_a_policy_is_counted_beside_what_people_said(store: SQLiteStore) -> None:
    policy = Policy([allow("pay", amount=le(200)), deny("pay", amount=gt(200)), ask("x*")])
    judged = judge_calls(policy, calls_in(store))
    assert judged.tools["pay"].verdicts == {"allow": 11, "deny": 1}
    assert judged.tools["pay"].said == {"approved": 10, "denied": 1, "edited": 1}
    assert judged.tools["look"].verdicts == {"own": 12}
    assert [(call.run_id, verdict) for call, verdict in judged.differing] == [("less", "allow")]
    assert judged.in_doubt == 0


def test_it_names_what_a_policy_would_deny_and_a_person_approved(store: SQLiteStore) -> None:
    judged = judge_calls(Policy([deny("pay", amount=gt(90))]), calls_in(store))
    assert [(call.run_id, verdict) for call, verdict in judged.differing] == [("yes-10", "deny")]


def test_a_condition_that_looks_further_is_in_doubt_and_not_asked(store: SQLiteStore) -> None:
    def look_further(ctx: Any) -> bool:
        raise AssertionError("asked")

    judged = judge_calls(Policy([ask("pay", when=look_further)]), calls_in(store))
    assert judged.tools["pay"].verdicts == {"ask": 12}
    assert judged.in_doubt == 12


def test_the_decisions_of_a_policy_and_of_a_grant_are_not_a_persons(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    lm = ScriptedLM(
        [
            *[{"name": "pay", "args": {"to": "Ann", "amount": 1}}] * 2,
            {"name": "finish", "args": {"answer": "done"}},
        ]
    )
    agent = ReAct("task -> answer", [Tool(pay, require_confirmation=True)], lm=lm)
    run = agent.start(task="t", store=store, run_id="r")
    run.answer(run.pending[0].approve(always=Grant()))
    run.resume()
    assert [call.said for call in calls_in(store)] == ["approved", None]


def test_a_proposed_rule_allows_what_was_approved_and_nothing_that_was_refused(
    store: SQLiteStore,
) -> None:
    [proposal] = propose_rules(calls_in(store))
    assert str(proposal.rule) == "allow('pay', amount=le(100), to='Ann')"
    assert (proposal.approved, proposal.tool_approved) == (10, 10)


def recorded(said: Any, **args: Any) -> RecordedCall:
    return RecordedCall("r", ToolCall(name="tool", args=args), said)


@pytest.mark.parametrize(
    ("approved", "where"),
    [
        ([{"path": "src/a.py"}, {"path": "src/b/c.py"}], {"path": under("src")}),
        ([{"path": "/srv/x/a"}, {"path": "/srv/y/b"}], {"path": under("/srv")}),
        ([{"n": 1}, {"n": 3.5}], {"n": le(3.5)}),
        ([{"flag": True}, {"flag": True}], {"flag": True}),
        ([{"to": "Ann", "why": "x"}, {"to": "Ann", "why": "y"}], {"to": "Ann"}),
    ],
    ids=["folder", "absolute", "number", "boolean", "one of two"],
)
def test_an_argument_is_bounded_by_what_was_approved(
    approved: list[dict[str, Any]], where: dict[str, Any]
) -> None:
    [proposal] = propose_rules([recorded("approved", **args) for args in approved], least=2)
    assert proposal.rule.where == where


@pytest.mark.parametrize(
    "calls",
    [
        [recorded("approved", to="Ann"), recorded("approved", to="Bob")],
        [recorded("approved", path="/a"), recorded("approved", path="/b")],
        [recorded("approved", path="a/../b"), recorded("approved", path="a/c")],
        [recorded("approved", n=True), recorded("approved", n=2)],
        [recorded("approved", n=1), recorded("approved", n=2), recorded("denied", n=1.5)],
        [recorded("approved", n=1), recorded("approved", n=2), recorded("edited", n=2)],
        [recorded("approved", to="A*"), recorded("approved", to="A*")],
        [recorded("approved", n=1)],
        [recorded("approved"), recorded("approved")],
        [recorded(None, n=1), recorded(None, n=1)],
    ],
    ids=range(10),
)
def test_without_a_bound_that_keeps_out_what_was_refused_nothing_is_proposed(
    calls: list[RecordedCall],
) -> None:
    assert propose_rules(calls, least=2) == []


# -- the command


POLICY = "from ferrule import *\nrules = Policy([allow('pay', amount=le(200))])\nnothing = 3\n"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["rules", *words])
    return code, capsys.readouterr().out


def test_the_command_prints_a_line_a_tool_and_each_difference(
    store: SQLiteStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules.py").write_text(POLICY, encoding="utf-8")
    place = str(tmp_path / "runs.db")
    code, out = run(capsys, "replay", place, "--policy", f"{tmp_path}/rules.py:rules")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[1] == ["look", "0", "0", "0", "12", "|", "0", "0", "0", "0", "12"]
    assert lines[2] == ["pay", "11", "0", "0", "1", "|", "10", "1", "1", "0", "0"]
    assert 'less: allow, but a person edited it: pay {"to":"Ann","amount":200}' in out
    code, out = run(capsys, "replay", place, "--policy", f"{tmp_path}/rules.py:rules", "--json")
    assert json.loads(out)["tools"]["pay"]["verdicts"] == {"allow": 11, "own": 1}
    code, out = run(capsys, "propose", place)
    assert out.startswith("allow('pay', amount=le(100), to='Ann'),  # people approved 10")
    code, out = run(capsys, "propose", place, "--least", "11")
    assert "No rule agrees" in out


def test_what_is_not_a_policy_is_a_usage_error(
    store: SQLiteStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules.py").write_text(POLICY, encoding="utf-8")
    place = str(tmp_path / "runs.db")
    code, _ = run(capsys, "replay", place, "--policy", f"{tmp_path}/rules.py:nothing")
    assert code == 2
