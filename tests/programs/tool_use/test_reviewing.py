"""Reviewers: programs and functions that decide about calls (`programs/tool_use/reviewing.py`)."""

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
    Predict,
    Prediction,
    ReAct,
    Review,
    Run,
    ToolCall,
    allow,
    ask,
    context,
    deny,
    review,
    tool,
)
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM

RAN: list[str] = []
READ: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    RAN.clear()
    READ.clear()


def shell(command: str) -> str:
    """Run a command."""
    RAN.append(command)
    return f"ran {command}"


def judge(call: ToolCall, ctx: Context[Any]) -> Any:
    READ.append((call.args, dict(ctx.inputs), [done.args for done, _ in ctx.calls]))
    verdicts = {"ls": "allow", "rm": ("deny", "it deletes"), "dd": ("ask", "it may delete")}
    return verdicts[call.args["command"]]


async def judge_async(call: ToolCall, ctx: Context[Any]) -> Any:
    await asyncio.sleep(0)
    return judge(call, ctx)


class Judge(Module):
    """A rule engine as a program."""

    def forward(self, call: str) -> Any:
        READ.append(call)
        verdict = "deny" if "rm" in call else "allow"
        return Prediction(verdict=verdict)


def start(
    rules: list[Any], *commands: str, how: str = "sync", own: Any = None, **given: Any
) -> Run:
    calls = [{"name": "shell", "args": {"command": command}} for command in commands]
    lm = ScriptedLM([*calls, {"name": "finish", "args": {"answer": "x"}}])
    agent = ReAct("task -> answer", [own or shell], policy=Policy(rules), lm=lm)
    if how == "sync":
        return agent.start(task="t", **given)
    return asyncio.run(agent.astart(task="t", **given))


both = pytest.mark.parametrize("how", ["sync", "async"])
functions = pytest.mark.parametrize("by", [judge, judge_async])


@both
@functions
def test_a_function_allows_denies_and_asks_with_its_reason(
    by: Callable[..., Any], how: str
) -> None:
    run = start([review("shell", by=by)], "ls", "rm", "dd", how=how)
    assert RAN == ["ls"]
    assert "Reason: the reviewer says: it deletes" in run.trajectory["observation_1"]
    [question] = run.pending
    assert question.call.args == {"command": "dd"}
    assert "the reviewer says: it may delete" in question.text


def test_it_reads_the_inputs_of_the_run_and_its_calls_so_far() -> None:
    start([review("shell", by=judge)], "ls", "rm")
    assert READ == [
        ({"command": "ls"}, {"task": "t"}, []),
        ({"command": "rm"}, {"task": "t"}, [{"command": "ls"}]),
    ]


def test_a_program_that_needs_another_input_is_refused() -> None:
    """It failed at each call, and a person was asked about all of them."""
    with pytest.raises(ConfigurationError, match="needs an input `amount`"):
        review("pay", by=Predict("call, amount: int -> verdict"))
    review("pay", by=Predict("call, amount: int | None -> verdict"))


@both
def test_a_program_reads_what_it_declares_and_its_cost_counts(how: str) -> None:
    answers = [
        {"outputs": {"reason": "as asked", "verdict": "allow"}},
        {"outputs": {"reason": "not asked for", "verdict": "deny"}},
    ]
    reviewer_lm = ScriptedLM(answers)
    run = start([review("shell", by=Predict(Review, lm=reviewer_lm))], "ls", "rm", how=how)
    assert (run.status, RAN) == ("done", ["ls"])
    asked = [str(message.text) for message in reviewer_lm.requests[1].messages]
    for text in ['{"task":"t"}', "Run a command.", 'shell {"command":"rm"}', "ran ls"]:
        assert text in asked[-1]
    assert run.usage.calls == 5


@both
def test_a_module_is_a_reviewer(how: str) -> None:
    start([review("shell", by=Judge())], "ls", "rm", how=how)
    assert RAN == ["ls"]
    assert READ == ['shell {"command":"ls"}', 'shell {"command":"rm"}']


@pytest.mark.parametrize(
    ("other", "command", "verdict"),
    [
        (deny("shell"), "ls", "denied"),
        (ask("shell"), "ls", "asked"),
        (allow("shell"), "rm", "denied"),
    ],
    ids=["deny", "ask", "allow"],
)
def test_the_strictest_rule_wins_over_and_beside_a_reviewer(
    other: Any, command: str, verdict: str
) -> None:
    run = start([review("shell", by=judge), other], command)
    assert RAN == []
    assert bool(run.pending) == (verdict == "asked")


def test_it_may_allow_what_the_tool_itself_would_ask_about() -> None:
    start([review("shell", by=judge)], "ls", own=tool(require_confirmation=True)(shell))
    assert RAN == ["ls"]


def broken(call: ToolCall) -> str:
    raise OSError("no network")


async def hangs(call: ToolCall) -> str:
    await asyncio.sleep(60)
    return "allow"


@both
@pytest.mark.parametrize(
    ("by", "reason"),
    [
        (broken, "the reviewer failed: OSError"),
        (hangs, "the reviewer gave no verdict within 0.05 s"),
        (lambda call: "yes", "a verdict is 'allow', 'ask' or 'deny'"),
        (lambda call: None, "a verdict is"),
        (lambda call: ("allow", 3), "a verdict is"),
        (lambda call: True, "a verdict is"),
    ],
    ids=["raises", "hangs", "another word", "None", "no text", "a boolean"],
)
def test_without_a_verdict_a_person_is_asked(by: Any, reason: str, how: str) -> None:
    timeout_s = 0.05 if by is hangs else None
    run = start([review("shell", by=by, timeout_s=timeout_s)], "ls", how=how)
    assert RAN == []
    assert reason in run.pending[0].text


@both
def test_a_resumed_run_does_not_ask_it_again(how: str) -> None:
    store = MemoryStore()
    run = start([review("shell", by=judge)], "ls", "dd", how=how, store=store, run_id="r")
    run.answer(run.pending[0].approve())
    loaded = Run.load(store, "r", run.program)
    loaded.resume()
    assert (loaded.status, RAN, len(READ)) == ("done", ["ls", "dd"], 2)


def test_a_call_that_a_person_edited_is_reviewed_again() -> None:
    run = start([ask("shell"), review("shell", by=judge)], "ls")
    run.answer(run.pending[0].approve(command="rm"))
    run.resume()
    assert RAN == []
    assert "it deletes" in run.trajectory["observation_0"]


def test_it_is_asked_only_about_calls_that_match() -> None:
    rules = [review("shell", by=judge, command="d*", when=lambda ctx: True), allow("shell")]
    start(rules, "ls", "rm")
    assert (RAN, READ) == (["ls", "rm"], [])


def test_a_reason_is_one_short_line_of_the_reviewer() -> None:
    run = start([review("shell", by=lambda call: ("ask", "a\nb" + "c" * 9_000))], "ls")
    first = run.pending[0].text.splitlines()[0]
    assert "the reviewer says: a" in first
    assert len(first) < 500


@pytest.mark.parametrize("by", [None, "gpt", 3])
def test_what_cannot_be_asked_raises_when_the_rule_is_made(by: Any) -> None:
    with pytest.raises(ConfigurationError, match="`by` of `review`"):
        review("shell", by=by)


def test_a_stored_policy_keeps_a_reviewer_that_is_a_function_of_a_module() -> None:
    store = MemoryStore()
    lm = ScriptedLM(
        [
            {"name": "shell", "args": {"command": "dd"}},
            {"name": "shell", "args": {"command": "rm"}},
            {"name": "finish", "args": {"answer": "x"}},
        ]
    )
    agent = ReAct("task -> answer", [shell], lm=lm)
    with context(policy=Policy([review("shell", by=judge, timeout_s=3)])):
        run = agent.start(task="t", store=store, run_id="r")
    store.decide("r", run.pending[0].approve())
    loaded = Run.load(store, "r", agent)
    loaded.resume()
    assert (loaded.status, RAN) == ("done", ["dd"])
