"""A call that was read from text: a rule can ask about it, and a person sees it."""

from __future__ import annotations

from typing import Any

import pytest
from agent_script import STEPS, fields, native_step, text_step

from ferrule import (
    MemoryStore,
    Policy,
    Predict,
    ReAct,
    Run,
    SQLiteStore,
    Tool,
    ToolCall,
    allow,
    ask,
    call,
    context,
    deny,
)
from ferrule.cli.main import main
from ferrule.errors import ConfigurationError
from ferrule.events import CallStarted, ModelAnswered, RuleUsed
from ferrule.testing import ScriptedLM

AS_TEXT = '<tool_call>\n{"name": "pay", "arguments": {"euros": 5}}\n</tool_call>'
RESCUED = ToolCall(name="pay", args={"euros": 5}, repairs=("from_text", "trailing_comma"))
STRUCTURED = ToolCall(name="pay", args={"euros": 5}, repairs=("trailing_comma",))
ASKING = Policy([ask("*", when=call(rescued=True))])


def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


# -- rules


@pytest.mark.parametrize("make", [allow, ask, deny])
def test_a_rule_may_be_about_the_call_itself(make: Any) -> None:
    for rescued in (True, False):
        rule = make("p*", when=call(rescued=rescued))
        assert rule.covers("pay", {"euros": 5}, RESCUED) is rescued
        assert rule.covers("pay", {"euros": 5}, STRUCTURED) is not rescued
        assert not rule.covers("search", {}, RESCUED)


def test_both_kinds_of_conditions_must_hold() -> None:
    rule = ask("pay", when=call(rescued=True), euros=5)
    assert rule.covers("pay", {"euros": 5}, RESCUED)
    assert not rule.covers("pay", {"euros": 6}, RESCUED)
    assert not rule.covers("pay", {"euros": 5}, STRUCTURED)


def test_without_the_call_a_doubt_never_lets_it_through() -> None:
    for rescued in (True, False):
        when = call(rescued=rescued)
        assert not allow("pay", when=when).covers("pay", {})
        assert ask("pay", when=when).covers("pay", {})
        assert deny("pay", when=when).covers("pay", {})


def test_an_argument_named_when_is_a_condition_in_where() -> None:
    rule = ask("remind", where={"when": "today"}, when=call(rescued=False))
    assert rule.covers("remind", {"when": "today"}, STRUCTURED)
    assert not rule.covers("remind", {"when": "later"}, STRUCTURED)
    with pytest.raises(ConfigurationError, match="goes into `where`"):
        ask("remind", when="today")  # type: ignore[arg-type]  a habit
    with pytest.raises(ConfigurationError, match="True or False"):
        call(rescued="yes")  # type: ignore[arg-type]


def test_rules_that_differ_in_it_are_different_and_say_so() -> None:
    rules = [ask("pay"), *[ask("pay", when=call(rescued=each)) for each in (True, False)]]
    assert rules[1] == ask("pay", when=call(rescued=True))
    assert len({str(rule) for rule in rules}) == 3
    assert rules[0] != rules[1] != rules[2]
    assert str(rules[1]) == "ask('pay', when=call(rescued=True))"


# -- in runs


def last_of(kind: Any, mode: str) -> list[Any]:
    if kind is ReAct:
        return [STEPS[mode]("", "finish", {"answer": "x"}), fields(reasoning="r", answer="x")]
    return [fields(tool_calls=[], answer="x") if mode == "text" else fields(answer="x")]


@pytest.mark.parametrize("kind", [ReAct, Predict])
@pytest.mark.parametrize("mode", ["native", "text"])
def test_a_policy_asks_about_rescued_calls_only(kind: Any, mode: str) -> None:
    if mode == "native":
        own = native_step("", "pay", {"euros": 1})
    elif kind is ReAct:
        own = text_step("", "pay", {"euros": 1})
    else:
        own = fields(tool_calls=[{"name": "pay", "args": {"euros": 1}}])
    program = kind("task -> answer", tools=[pay], native=mode == "native")
    with context(lm=ScriptedLM([AS_TEXT, own, *last_of(kind, mode)]), policy=ASKING):
        run = program.start(task="Pay.")
        [question] = run.pending
        assert (question.call.name, question.call.is_rescued) == ("pay", True)
        assert "as text" in question.text
        run.answer(question.approve())
        run.resume()
    assert run.status == "done"


@pytest.mark.parametrize("confirm", [ask(when=call(rescued=True)), ask(when=call(rescued=False))])
def test_a_tool_may_ask_for_itself(confirm: Any) -> None:
    tool = Tool(pay, require_confirmation=confirm)
    agent = ReAct("task -> answer", [tool])
    for answer, is_rescued in ((AS_TEXT, True), (native_step("", "pay", {"euros": 5}), False)):
        lm = ScriptedLM([answer, *last_of(ReAct, "native")])
        run = agent.bind(task="Pay.", lm=lm).start()
        asks = confirm.when.rescued is is_rescued
        assert run.status == ("waiting" if asks else "done")
    if confirm.when.rescued:
        assert tool(euros=5) == "paid 5"  # a direct call of code was not read from text


def test_a_denial_at_once_keeps_a_rescued_call_from_running() -> None:
    ran: list[int] = []
    policy = Policy([allow("pay"), deny("*", when=call(rescued=True), reason="only structured")])

    def pay(euros: int) -> None:
        """Pay."""
        ran.append(euros)

    script = [AS_TEXT, native_step("", "pay", {"euros": 7}), *last_of(ReAct, "native")]
    prediction = ReAct("task -> answer", [pay], policy=policy)(task="Pay.", lm=ScriptedLM(script))
    assert ran == [7]
    assert "only structured" in prediction.trajectory["observation_0"]


# -- what a person sees


def test_events_carry_the_mark() -> None:
    agent = ReAct("task -> answer", [pay], policy=Policy([allow("*", when=call(rescued=True))]))
    seen: list[Any] = []
    with context(callbacks=[seen.append]):
        agent(task="Pay.", lm=ScriptedLM([AS_TEXT, *last_of(ReAct, "native")]))
    answered = next(event for event in seen if isinstance(event, ModelAnswered))
    started = next(event for event in seen if isinstance(event, CallStarted))
    assert answered.response.tool_calls[0].repairs == ("from_text",)
    assert started.as_json()["call"]["repairs"] == ("from_text",)
    [used] = [event for event in seen if isinstance(event, RuleUsed) and event.call.name == "pay"]
    assert used.rule == "allow('*', when=call(rescued=True))"


def test_the_command_line_and_the_page_show_it(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = ReAct("task -> answer", [pay])
    store = SQLiteStore(tmp_path / "runs.db")
    lm = ScriptedLM([AS_TEXT, native_step("", "pay", {"euros": 7})])
    with context(lm=lm, policy=Policy([ask("pay", euros=7)])):
        agent.start(task="Pay.", store=store, run_id="r")
    store.close()
    assert main(["show", "r", "--store", str(tmp_path / "runs.db")]) == 0
    shown = capsys.readouterr().out
    assert "pay(euros=5) (read from text)" in shown
    assert "pay(euros=7) (read" not in shown
    assert main(["show", "r", "--store", str(tmp_path / "runs.db"), "--html"]) == 0
    assert capsys.readouterr().out.count("read from text") == 1


def test_the_journal_keeps_the_mark() -> None:
    agent = ReAct("task -> answer", [Tool(pay, require_confirmation=True)])
    with context(lm=ScriptedLM([AS_TEXT])):
        run = agent.start(task="Pay.")
    again = Run.from_json(run.to_json(), agent)
    [question] = again.pending
    assert question.call.repairs == ("from_text",)


def test_a_run_that_resumes_elsewhere_keeps_the_condition() -> None:
    """Without it, the first rule would allow every call."""
    ran: list[int] = []

    def pay(euros: int) -> None:
        """Pay."""
        ran.append(euros)

    policy = Policy([allow("pay", when=call(rescued=False)), ask("pay", when=call(rescued=True))])
    store = MemoryStore()
    agent = ReAct("task -> answer", [pay])
    with context(lm=ScriptedLM([AS_TEXT]), policy=policy):
        run = agent.start(task="Pay.", store=store)
    again = AS_TEXT.replace("5", "6")
    with context(lm=ScriptedLM([again])):
        run = Run.load(store, run.id, agent)
        run.answer(run.pending[0].deny())
        run.resume()
    assert run.status == "waiting"
    assert run.pending[0].call.args == {"euros": 6}
    assert ran == []
