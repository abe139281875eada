"""The limits and the policy that a run was started with hold until its end."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict
from rules_of_tests import is_large

from ferrule import (
    Limits,
    MemoryStore,
    Policy,
    ReAct,
    Run,
    allow,
    ask,
    call,
    configure,
    context,
    deny,
    gt,
    review,
    tool,
)
from ferrule.approval.policy import Rule
from ferrule.approval.stored_policy import policy_form, read_policy
from ferrule.errors import ConfigurationError, LimitReachedError
from ferrule.programs.lifecycle.advance import advance
from ferrule.testing import ScriptedLM

paid: list[tuple[str, int]] = []


@tool
def pay(to: str, amount: int) -> str:
    """Pay."""
    paid.append((to, amount))
    return "paid"


@tool(require_confirmation=True)
def look() -> str:
    """Look."""
    return "seen"


@pytest.fixture(autouse=True)
def _nothing_paid():
    paid.clear()


def agent(*calls: tuple[str, int]) -> ReAct:
    turns: list[Any] = [{"name": "look", "args": {}}]
    turns += [{"name": "pay", "args": {"to": to, "amount": amount}} for to, amount in calls]
    turns.append({"name": "finish", "args": {"answer": "done"}})
    return ReAct("task -> answer", [look, pay], lm=ScriptedLM(turns))


def waiting(policy: Any = None, limits: Any = None, *calls: tuple[str, int]) -> Run:
    """A stored run that waits for a decision on `look`, loaded as in another process."""
    program, store = agent(*calls), MemoryStore()
    with context(policy=policy, limits=limits):
        program.start(task="pay", store=store, run_id="r")
    run = Run.load(store, "r", program)
    run.answer(run.pending[0].approve())
    return run


def test_a_run_keeps_the_policy_of_its_start_where_it_resumes() -> None:
    run = waiting(Policy([deny("pay", to="Eve")]), None, ("Eve", 5), ("Ada", 5)).resume()
    assert run.status == "done"
    assert paid == [("Ada", 5)]


def test_a_run_keeps_the_limits_of_its_start_where_it_resumes() -> None:
    program, store = agent(("Ada", 1)), MemoryStore()
    program.lm = ScriptedLM(
        [
            {"name": "look", "args": {}},
            {"name": "pay", "args": {"to": "Ada", "amount": 1}},
        ]
    )
    with context(limits=Limits(tool_calls=2)):
        program.start(task="pay", store=store, run_id="r")
    run = Run.load(store, "r", program)
    run.answer(run.pending[0].approve())
    run.resume()
    assert paid == [("Ada", 1)]
    assert isinstance(run.error, LimitReachedError)


def test_limits_in_force_at_the_resume_replace_those_of_the_start() -> None:
    run = waiting(None, Limits(tool_calls=1), ("Ada", 1), ("Ada", 2))
    with context(limits=Limits(tool_calls=20)):
        run.resume()
    assert paid == [("Ada", 1), ("Ada", 2)]


def test_a_policy_in_force_at_the_resume_holds_with_that_of_the_start() -> None:
    run = waiting(Policy([deny("pay", to="Eve")]), None, ("Eve", 5), ("Bob", 5), ("Ada", 5))
    with context(policy=Policy([deny("pay", to="Bob"), allow("*")])):
        run.resume()
    assert paid == [("Ada", 5)]


def test_otherwise_of_either_policy_holds() -> None:
    run = waiting(Policy([ask("look")], otherwise="deny"), None, ("Ada", 5))
    with context(policy=Policy([allow("*")])):
        run.resume()
    assert paid == []


def test_a_policy_given_to_resume_replaces_that_of_the_start() -> None:
    run = waiting(Policy([deny("pay", to="Eve")]), None, ("Eve", 5))
    run.resume(policy=Policy([allow("pay")]))
    assert paid == [("Eve", 5)]


def test_a_function_of_a_module_is_found_again() -> None:
    run = waiting(Policy([deny("pay", amount=is_large)]), None, ("Ada", 500), ("Ada", 5)).resume()
    assert run.status == "done"
    assert paid == [("Ada", 5)]


def test_a_lambda_in_the_policy_of_a_stored_run_needs_a_name() -> None:
    store = MemoryStore()
    with (
        context(policy=Policy([deny("pay", amount=lambda amount: amount > 100)])),
        pytest.raises(ConfigurationError, match=r"lambda.*name="),
    ):
        agent().start(task="pay", store=store)
    assert store.list() == []


def test_a_run_in_memory_keeps_a_policy_with_a_lambda() -> None:
    with context(policy=Policy([deny("pay", amount=lambda amount: amount > 100)])):
        run = agent(("Ada", 500)).start(task="pay")
    run.answer(run.pending[0].approve())
    run.resume()
    assert paid == []
    assert run.status == "done"


def test_a_resume_without_the_named_policy_is_refused_before_anything_runs() -> None:
    house = Policy([deny("pay", amount=lambda amount: amount > 100)], name="house")
    run = waiting(house, None, ("Ada", 500))
    with pytest.raises(ConfigurationError, match="'house'"):
        run.resume()
    assert run.status == "waiting"
    with context(policy=house):
        run.resume()
    assert run.status == "done"
    assert paid == []


def test_a_named_policy_in_force_replaces_the_version_of_the_start() -> None:
    run = waiting(Policy([deny("pay")], name="house"), None, ("Ada", 5))
    with context(policy=Policy([allow("pay")], name="house")):
        run.resume()
    assert paid == [("Ada", 5)]


def test_a_submitted_run_has_the_policy_and_limits_of_the_submission() -> None:
    program = ReAct(
        "task -> answer",
        [pay],
        lm=ScriptedLM(
            [
                {"name": "pay", "args": {"to": "Eve", "amount": 5}},
                {"name": "finish", "args": {"answer": "done"}},
            ]
        ),
    )
    store = MemoryStore()
    with context(policy=Policy([deny("pay", to="Eve")])):
        run_id = program.submit(store=store, task="pay")
    assert advance(store, run_id, program) == "done"
    assert paid == []


def test_a_worker_without_the_named_policy_puts_the_run_off_with_the_reason() -> None:
    program, store = agent(), MemoryStore()
    policy = Policy([ask("pay", amount=lambda amount: amount > 100)], name="house")
    with context(policy=policy):
        run_id = program.submit(store=store, task="pay")
    assert advance(store, run_id, program) == "queued"
    assert "house" in str(store.summary(run_id).error)


def test_a_run_that_goes_through_json_keeps_its_policy() -> None:
    program = agent(("Eve", 5))
    with context(policy=Policy([deny("pay", to="Eve")])):
        text = program.start(task="pay").to_json()
    run = Run.from_json(text, program)
    run.answer(run.pending[0].approve())
    run.resume()
    assert paid == []


def test_configure_counts_as_the_policy_of_the_start() -> None:
    configure(policy=Policy([deny("pay", to="Eve")]))
    try:
        run = waiting_under_configure()
    finally:
        configure(policy=None)
    run.resume()
    assert paid == []


def waiting_under_configure() -> Run:
    program, store = agent(("Eve", 5)), MemoryStore()
    program.start(task="pay", store=store, run_id="r")
    run = Run.load(store, "r", program)
    run.answer(run.pending[0].approve())
    return run


@pytest.mark.parametrize(
    "path",
    [
        "os:system",
        "subprocess:getoutput",
        "pydantic:BaseModel",
        "rules_of_tests:no_such",
        "no_such_module:check",
        "rules_of_tests:is_large.__globals__",
    ],
)
def test_a_stored_policy_cannot_name_other_code_than_functions_of_modules(path: str) -> None:
    form = {
        "name": "",
        "otherwise": None,
        "rules": [{"verdict": "deny", "tool": "pay", "where": {"to": ["function", path]}}],
    }
    with pytest.raises(ConfigurationError, match="not found here"):
        read_policy(form, None)


def test_every_field_of_a_policy_and_its_rules_is_stored() -> None:
    policy = Policy(
        [
            ask("pay", amount=gt(100), to="A*", reason="why", expires_s=60.0),
            deny("look", where={"all": True, "of": [1, 2]}),
            deny("pay", amount=is_large),
            ask("*", when=call(rescued=True)),
            allow("*", when=call(rescued=False)),
            ask("pay", when=is_large),
            review("pay", by=is_large, timeout_s=3.0),
        ],
        otherwise="ask",
        name="house",
        around=Policy([allow("*")]),
    )
    assert read_policy(policy_form(policy), None) == policy
    # A new field of a rule must be stored, too.
    fields = "verdict tool where reason expires_s when by timeout_s"
    assert set(asdict(Rule("deny"))) == set(fields.split())
