"""Conditions on what a run did (`runs/cases/expectations.py`, `conduct.py`, `reading.py`)."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ferrule import (
    Evaluate,
    Later,
    MemoryStore,
    Module,
    Policy,
    Prediction,
    ReAct,
    Response,
    Run,
    ask_person,
    call,
    context,
    ge,
    gt,
    le,
    lt,
    tool,
    under,
)
from ferrule import deny as deny_rule
from ferrule.cases import (
    Expectation,
    asked_person,
    at_least,
    at_most,
    called,
    cost_under,
    in_order,
    never,
    read_expectation,
)
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM


@tool(effect="read")
def find_order(order: str) -> float:
    """Find the price of an order."""
    return {"A1": 30.0, "Z": 5.0}[order]


@tool
def refund(order: str, euros: float, notes: list[str] | None = None) -> str:
    """Refund an order."""
    return "paid"


@tool(require_confirmation=True)
def close(account: str) -> str:
    """Close an account."""
    return "closed"


def made(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def ran(*script: Any, tools: Any = (find_order, refund, close), **options: Any) -> Run[Any]:
    """A run of an agent that makes these calls, each in a step of its own, and ends."""
    agent = ReAct("message -> reply", list(tools), **options)
    return agent.start(
        message="Pay A1 back.", lm=ScriptedLM([*script, made("finish", reply="Done.")])
    )


REFUND = made("refund", order="A1", euros=30)
FIND = made("find_order", order="A1")


# -- what a call must be


@pytest.mark.parametrize(
    "expectation",
    [
        called("refund"),
        called("ref*"),
        called(),
        called("refund", order="A1", euros=30),
        called("refund", order="A*", euros=le(30)),
        called("refund", euros=ge(30.0)),
        called("refund", euros=lambda euros: euros % 10 == 0),
        called("refund", where={"order": "A1"}),
        called("refund", when=call(rescued=False)),
        called("refund", notes=None),
        at_least(1, "refund"),
        at_most(1, "refund"),
        never("delete*"),
        never("refund", euros=gt(30)),
        in_order(called("find_order"), called("refund")),
        in_order(called("refund")),
    ],
    ids=range(16),
)
def test_a_run_that_is_as_expected_passes(expectation: Expectation) -> None:
    run = ran(FIND, REFUND)
    assert expectation(run)
    assert expectation(run.prediction)
    assert expectation.judge(run) == expectation.judge(run.prediction)


@pytest.mark.parametrize(
    "expectation",
    [
        called("close"),
        called("refund", euros=lt(30)),
        called("refund", order="B*"),
        called("refund", colour="red"),
        called("refund", when=call(rescued=True)),
        called("refund", when=call(confidence=ge(0.5))),
        called("find_order", order=le(3)),
        at_least(2, "refund"),
        at_most(0, "refund"),
        at_most(1),
        never("refund"),
        never("*", order="A1"),
        in_order(called("refund"), called("find_order")),
        in_order(called("refund"), called("refund")),
        asked_person("refund"),
    ],
    ids=range(15),
)
def test_a_run_that_is_not_as_expected_fails(expectation: Expectation) -> None:
    run = ran(FIND, REFUND)
    assert not expectation.judge(run)
    with pytest.raises(AssertionError):
        assert expectation(run)


def test_the_message_shows_the_calls_and_why_none_fits() -> None:
    run = ran(FIND, made("refund", order="A1", euros=35), made("refnd", order="A1"))
    with pytest.raises(AssertionError) as caught:
        called("refund", euros=le(30))(run)
    assert str(caught.value).splitlines() == [
        "called('refund', euros=le(30)) does not hold: no call fits.",
        "The calls of the run:",
        "  1. find_order(order='A1') -> 30.0",
        "  2. refund(order='A1', euros=35.0, notes=None) -> paid | euros is 35.0, not le(30)",
        "  3. refnd(order='A1'): not run",
    ]


def test_a_misspelled_tool_is_named() -> None:
    assert "Did you mean `refund`?" in called("refnd").judge(ran(REFUND)).feedback


def test_of_many_calls_the_message_shows_those_of_the_tool_that_is_meant() -> None:
    calls = [FIND] * 40
    feedback = called("refund", euros=1).judge(ran(*calls, REFUND, max_iters=50)).feedback
    assert "  41. refund(" in feedback
    assert feedback.endswith("  ... and 11 more")


def test_a_run_without_calls_says_so() -> None:
    assert called("refund").judge(ran()).feedback.endswith("The run made no calls.")


def test_a_list_is_as_expected_if_each_of_its_elements_is() -> None:
    run = ran(made("refund", order="A1", euros=1, notes=["late", "lamp"]))
    assert called("refund", notes="l*")(run)
    assert not called("refund", notes="late").judge(run)
    assert called("refund", notes=["late", "lamp"])(run)


def test_a_path_is_followed_and_a_pattern_for_one_does_not_warn() -> None:
    @tool
    def write(path: str) -> str:
        """Write a file."""
        return "written"

    run = ran(made("write", path="out/a.txt"), tools=[write])
    assert called("write", path="out/*")(run)
    assert called("write", path=under("out"))(run)


def test_a_condition_that_raises_is_named() -> None:
    with pytest.raises(ConfigurationError, match="`euros`"):
        called("refund", euros=lambda euros: euros["x"])(ran(REFUND))


# -- which calls count


def test_a_call_that_did_not_fit_its_tool_did_not_run() -> None:
    run = ran(made("refund", order="A1", euros="many"))
    for source in (run, run.prediction, run.trajectory):
        assert never("refund")(source)
        assert not called("refund").judge(source)


def test_a_call_that_a_rule_denies_did_not_run() -> None:
    run = ran(REFUND, policy=Policy([deny_rule("refund")]))
    assert never("refund")(run)
    assert never("refund")(run.prediction)


def test_a_call_whose_tool_raises_ran() -> None:
    run = ran(made("find_order", order="unknown"))
    assert called("find_order")(run)
    assert called("find_order")(run.trajectory)


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_a_person_who_was_asked_is_seen_whatever_the_answer(decision: str) -> None:
    run = ran(made("close", account="7"))
    assert asked_person("close", account="7")(run), "the question is open"
    assert never("close")(run)
    question = run.pending[0]
    run.answer(question.approve() if decision == "approve" else question.deny("Not today."))
    run.resume()
    for source in (run, run.prediction):
        assert asked_person("close")(source)
        assert bool(called("close").judge(source)) is (decision == "approve")
    if decision == "deny":
        assert "denied: Not today." in called("close").judge(run).feedback


def test_a_trajectory_does_not_tell_whether_a_call_that_failed_was_refused() -> None:
    run = ran(made("close", account="7"))
    run.answer(run.pending[0].deny())
    run.resume()
    assert not called("close").judge(run.trajectory)
    assert not never("close").judge(run.trajectory)


def test_arguments_that_a_person_changed_are_those_that_ran() -> None:
    run = ran(made("close", account="7"))
    run.answer(run.pending[0].edit({"account": "8"}))
    run.resume()
    assert called("close", account="8")(run)
    assert never("close", account="7")(run)


def test_a_question_of_a_forward_was_asked() -> None:
    class Asking(Module):
        def forward(self, message: str) -> Prediction:
            return Prediction(reply=ask_person("Go on?"))

    run = Asking().start(message="?")
    assert asked_person()(run)
    run.answer(run.pending[0].reply("yes"))
    run.resume()
    assert asked_person("ask_person")(run)


def test_a_result_from_outside_is_no_answer_to_a_question() -> None:
    @tool
    def order(item: str) -> Later[str]:
        """Order an item."""
        return Later(key=item)

    run = ran(made("order", item="lamp"), tools=[order])
    assert called("order")(run)
    run.deliver("lamp", "sent")
    run.resume()
    assert called("order", item="lamp")(run)
    assert not asked_person().judge(run)


def test_a_tool_of_ones_own_may_be_called_run_code() -> None:
    @tool
    def run_code(code: str) -> str:
        """Run code somewhere else."""
        return "ran"

    run = ran(made("run_code", code="1"), tools=[run_code])
    assert called("run_code", code="1")(run)
    assert called("run_code", code="1")(run.prediction)
    assert never("finish")(run)


def test_calls_of_a_program_that_is_a_tool_count() -> None:
    inner = ReAct("question -> answer", [find_order], name="inner").as_tool("inner", "Answers.")
    script = [
        made("inner", question="?"),
        made("find_order", order="Z"),
        made("finish", answer="5"),
        REFUND,
    ]
    run = ran(*script, tools=[inner, refund])
    for source in (run, run.prediction):
        assert called("find_order", order="Z")(source)
        assert in_order(called("inner"), called("find_order"), called("refund"))(source)
        assert not never("find_order").judge(source)
    assert "  2.   find_order(order='Z')" in never("find_order").judge(run).feedback
    assert not called("find_order").judge(run.trajectory), "it has the agent's own calls"


def test_calls_of_a_program_inside_a_forward_count() -> None:
    class Desk(Module):
        def __init__(self) -> None:
            self.agent = ReAct("message -> reply", [find_order])

        def forward(self, message: str) -> Prediction:
            return self.agent(message=message)

    with context(lm=ScriptedLM([FIND, made("finish", reply="x")])):
        run = Desk().start(message="?")
    assert called("find_order", order="A1")(run)
    assert called("find_order", order="A1")(run.prediction)


def test_calls_in_code_count() -> None:
    pytest.importorskip("pydantic_monty")
    code = 'price = await find_order("A1")\nawait refund("A1", price)'
    run = ran(made("run_code", code=code), tools=[find_order, refund], calls="code")
    for source in (run, run.prediction):
        assert in_order(called("find_order", order="A1"), called("refund", euros=30))(source)
    with pytest.raises(ConfigurationError, match="judge the run"):
        called("refund")(run.trajectory)


def test_a_run_that_was_loaded_is_judged_without_executing_it() -> None:
    store = MemoryStore()
    agent = ReAct("message -> reply", [find_order, close])
    script = [FIND, made("close", account="7"), made("finish", reply="x")]
    with context(lm=ScriptedLM(script)):
        run = agent.start(message="?", store=store)
        run.answer(run.pending[0].approve())
        run.resume()
    loaded = Run.load(store, run.id, ReAct("message -> reply", [find_order, close]))
    assert in_order(called("find_order", order="A1"), called("close"))(loaded)
    assert asked_person("close")(loaded)
    again = Run.from_json(run.to_json(), agent)
    assert called("close")(again)


def test_a_prediction_that_was_pickled_keeps_the_calls_of_its_agent() -> None:
    prediction = pickle.loads(pickle.dumps(ran(FIND).prediction))
    assert called("find_order", order="A1")(prediction)
    with pytest.raises(ConfigurationError, match="whether a person was asked"):
        asked_person("find_order")(prediction)


def test_an_output_may_be_named_as_an_attribute() -> None:
    agent = ReAct("message -> usage, history", [find_order])
    script = [FIND, made("finish", usage="x", history="y")]
    assert called("find_order")(agent(message="?", lm=ScriptedLM(script)))


# -- cost


def test_a_cost_is_compared_and_an_unknown_one_does_not_pass() -> None:
    def priced(cost: float | None) -> Run[Any]:
        calls = ran(FIND).journal.entries[0].value.tool_calls
        answers = [Response(None, tool_calls=calls, cost=cost), made("finish", reply="x")]
        agent = ReAct("message -> reply", [find_order])
        return agent.start(message="?", lm=ScriptedLM(answers))

    assert "price of a model is not known" in cost_under(1).judge(priced(None)).feedback
    run = priced(0.25)
    run.journal.entries[-1].value = Response("x", cost=0.0)
    assert cost_under(0.3)(run)
    assert "it cost 0.25 US dollars" in cost_under(0.25).judge(run).feedback


# -- as metrics


def test_expectations_are_metrics_with_a_reason_in_the_table() -> None:
    agent = ReAct("message -> reply", [find_order, refund])

    def model(request: Any) -> Any:
        asked = request.messages[1].text
        if request.messages[-1].role == "tool":
            return made("finish", reply="x")
        return made("refund", order="A1", euros=50 if "much" in asked else 30)

    expectations = [called("refund", euros=le(30)), never("find_order")]
    with context(lm=ScriptedLM(by=model)):
        result = Evaluate([{"message": "little"}, {"message": "much"}], expectations)(agent)
    assert result.scores == {"called('refund', euros=le(30))": 0.5, "never('find_order')": 1.0}
    assert "euros is 50.0, not le(30)" in result[1].feedback
    assert "does not hold" in result.table()
    assert result.failed == []


def test_what_has_no_calls_is_an_error_of_the_item() -> None:
    class Shout(Module):
        def forward(self, message: str) -> str:
            return message.upper()

    result = Evaluate([{"message": "x"}], called("refund"))(Shout())
    assert isinstance(result[0].error, ConfigurationError)


# -- wrong use


@pytest.mark.parametrize("source", [None, "refund", {"trajectory": 1}, 3, [REFUND]])
def test_what_is_no_run_is_refused(source: Any) -> None:
    with pytest.raises(ConfigurationError, match="`Run`, a `Prediction` or a `Trajectory`"):
        called("refund")(source)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: called(find_order),
        lambda: at_most("refund"),
        lambda: at_most(True, "refund"),
        lambda: at_least(-1, "refund"),
        lambda: in_order(),
        lambda: in_order("refund"),
        lambda: in_order(never("refund")),
        lambda: cost_under(0),
        lambda: cost_under(float("nan")),
        lambda: cost_under("1"),
        lambda: called("refund", when=call(tainted=True)),
        lambda: called("refund", when=lambda ctx: True),
        lambda: called("refund", when=3),
        lambda: called("refund", euros=gt(None)),
    ],
    ids=range(14),
)
def test_a_condition_that_cannot_hold_or_fail_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        wrong()


# -- as text


@pytest.mark.parametrize(
    "expectation",
    [
        called("refund", order="A1", euros=le(30), notes=["a", {"b": None}]),
        called("*", where={"order-id": 3, "when": "x", "class": True, "where": -1.5}),
        called("refund", when=call(rescued=False, confidence=ge(0.5))),
        called("write", path=under("src", root="/tmp")),
        called("say", text='it\'s "quoted"\n\u2603 {x}'),
        never("delete*"),
        at_least(2, "find_order", order="A[1]"),
        at_most(0),
        in_order(called("a"), called("b", x=lt("z"))),
        asked_person("close", account=gt(7)),
        cost_under(0.02),
    ],
    ids=range(11),
)
def test_an_expectation_is_read_from_its_text(expectation: Expectation) -> None:
    assert read_expectation(str(expectation)) == expectation
    assert str(read_expectation(f"  {expectation}\n")) == str(expectation)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "refund",
        "'refund'",
        "le(30)",
        "call(rescued=True)",
        "called('refund'",
        "called('refund') or never('x')",
        "__import__('os').system('true')",
        "open('x')",
        "called(**{'euros': 1})",
        "called(*['refund'])",
        "called(tool)",
        "called(3)",
        "called('x', euros=lambda euros: True)",
        "called('x', euros=print(1))",
        "never('x', 'y')",
        "at_most('x')",
        "called({**{}})",
        "(" * 500,
        "called(" * 90 + ")" * 90,
        "called('x', a=\0)",
        None,
        3,
    ],
    ids=range(23),
)
def test_any_other_text_is_refused_and_nothing_is_executed(text: Any) -> None:
    with pytest.raises(ConfigurationError, match="An expectation is written as in Python"):
        read_expectation(text)
