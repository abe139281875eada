"""What a resumed run recalls of a turn: which of its calls ran, were asked about, or did not fit."""

from __future__ import annotations

import asyncio
import json
from itertools import count, permutations
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from ferrule import (
    Decision,
    Limits,
    MemoryStore,
    Module,
    Policy,
    Predict,
    Prediction,
    Question,
    ReAct,
    Request,
    Response,
    Run,
    SQLiteStore,
    Tool,
    ToolCall,
    ask,
    call_tool,
    context,
    deny,
    events,
    gather,
    tool,
)
from ferrule.acts import Once
from ferrule.errors import DecisionError, MaxTurnsReachedError, ReplayMismatchError
from ferrule.testing import ScriptedLM


@tool(require_confirmation=True)
def book(hotel: str) -> str:
    """Book a hotel."""
    return f"booked {hotel}"


@tool
def add(x: int) -> str:
    """Add one."""
    return str(x + 1)


CALLS = [
    {"name": "book", "args": {"hotel": "Ritz"}},
    {"name": "add", "args": {"x": 1}},
    {"name": "add", "args": {"x": "zz"}},
]


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_a_turn_with_a_call_that_ran_one_that_did_not_fit_and_one_that_waits_goes_on(
    order: tuple[int, ...],
) -> None:
    """Two calls of one tool: the one that ran has two entries in the journal, and is still one
    call.
    """
    agent, store = ReAct("question -> answer", [book, add], native=True), MemoryStore()
    calls: list[dict[str, Any]] = [CALLS[k] for k in order]
    with context(
        lm=ScriptedLM([{"tool_calls": calls}, {"name": "finish", "args": {"answer": "done"}}]),
    ):
        waiting = agent.start(question="q", store=store)
        run = Run.load(store, waiting.id, agent)
        run.answer(run.pending[0].approve())
        assert run.resume().prediction.answer == "done"
    results = [run.trajectory["observation_0"][order.index(k)] for k in range(3)]
    assert results[:2] == ["booked Ritz", "2"]
    assert "was not run" in results[2]


HAPPENED: list[str] = []


@tool(name="desk.pay", require_confirmation=True)
def pay(euros: int, why: str = "") -> str:
    """Pay."""
    HAPPENED.append(f"paid {euros}")
    return f"paid {euros} {why}"


@tool
def send(euros: int) -> str:
    """Send."""
    HAPPENED.append(f"sent {euros}")
    return f"sent {euros}"


def agent_of(*, parallel: bool, nested: bool) -> ReAct:
    agent = ReAct(
        "question -> answer",
        [pay, send],
        native=True,
        parallel=parallel,
        enable_user_clarification=True,
    )
    return (
        ReAct("question -> answer", [agent.as_tool("desk"), send], native=True) if nested else agent
    )


PAY, SEND = ({"name": name, "args": {}} for name in ("desk_dot_pay", "send"))
KINDS = [
    *(
        {**call, "args": {"euros": euros}}
        for call in (PAY, SEND, {"name": "desk.pay"})
        for euros in (10, "10", 20, "ten")
    ),
    *(
        PAY,
        {"name": "user_clarification", "args": {"question": "which?"}},
        {"name": "gone", "args": {"euros": 10}},
    ),
]
HOW = ["approve", "deny", "edit", "edit twice"]


def decide(question: Question, first: int) -> Decision:
    """What a person says: the same to equal questions.

    An `edit twice` first gives what does not fit.
    """
    args = question.call.args
    if question.kind == "unknown":  # as if the call had ended before the crash
        return question.reply(
            f"paid {args['euros']} {args['why']}" if "why" in args else f"sent {args['euros']}",
        )
    if question.kind == "clarify":
        return question.reply("this one")
    how = HOW[(first + args["euros"] // 10) % 4]
    if how == "edit twice" and not question.text.startswith("The edited"):
        return question.approve(euros=["no", "number"])
    return (
        question.deny("no")
        if how == "deny"
        else question.approve()
        if how == "approve"
        else question.approve(euros=args["euros"] + 1)
    )


def played(run: Run, first: int) -> Run:
    """The run at its end."""
    while run.status == "waiting":
        for question in run.pending:
            run.answer(decide(question, first))
        run.resume()
    assert run.status == "done", run.error
    return run


def contents(run: Run) -> list[list[Any]]:
    return [[result.content for result in step.results] for step in run.prediction.trajectory.steps]


turns = st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), min_size=1, max_size=2)


# An example plays a run again from each entry of its journal.
@settings(max_examples=settings().max_examples // 2)
@given(turns=turns, first=st.integers(0, 3), parallel=st.booleans(), nested=st.booleans())
@example(
    turns=[[SEND | {"args": {"euros": "ten"}}, SEND | {"args": {"euros": "10"}}]],
    first=0,
    parallel=True,
    nested=False,
)
@example(
    turns=[[{"name": "user_clarification", "args": {"question": "which?"}}] * 2],
    first=0,
    parallel=False,
    nested=False,
)
@example(
    turns=[[PAY | {"args": {"euros": "10"}}, PAY | {"args": {"euros": 10}}]],
    first=0,
    parallel=True,
    nested=False,
)
@example(turns=[[SEND], [PAY | {"args": {"euros": 10}}]], first=3, parallel=True, nested=False)
@example(
    turns=[[PAY | {"args": {"euros": 10}}, SEND], [PAY | {"args": {"euros": 20}}]],
    first=3,
    parallel=True,
    nested=True,
)
def test_a_run_that_stopped_anywhere_ends_as_the_whole_run_and_does_nothing_twice(
    turns: list[list[dict[str, Any]]],
    first: int,
    parallel: bool,
    nested: bool,
) -> None:
    """The program is unchanged: the journal says which calls of a turn ran, without numbers of the
    calls.
    """

    def answer(request: Request) -> Any:
        is_inner = "desk" not in [each["function"]["name"] for each in request.tools]
        at = sum(bool(message.tool_calls) for message in request.messages)
        if nested and not is_inner:
            return (
                {"name": "finish", "args": {"answer": "x"}}
                if at
                else {"name": "desk", "args": {"question": "q"}}
            )
        ended = {"name": "finish", "args": {"answer": "done"}}
        return (
            Response(
                None,
                tuple([ToolCall(**each, id=f"call_{k}") for k, each in enumerate(turns[at])]),
            )
            if at < len(turns)
            else ended
        )

    agent = agent_of(parallel=parallel, nested=nested)
    with context(lm=ScriptedLM(by=answer)):
        HAPPENED.clear()
        whole, happened = played(agent.start(question="q"), first), len(HAPPENED)
        stored = json.loads(whole.to_json())
        assert contents(Run.from_json(whole.to_json(), agent)) == contents(whole)
        journal = stored["journal"]
        for n in range(1, len(journal)):
            HAPPENED.clear()
            cut = {**stored, "journal": journal[:n], "status": "running", "error": None}
            run = played(Run.from_json(json.dumps(cut), agent).resume(), first)
            begun = sum(
                each["kind"] == "begun" and not each["digest"].startswith("desk {")
                for each in journal[:n]
            )
            assert (contents(run), len(HAPPENED)) == (contents(whole), happened - begun), journal[
                :n
            ]


def test_ids_of_calls_may_come_again_in_a_later_turn() -> None:
    """In text every turn numbers its calls from 0: a question about a call of one turn says nothing
    of the other turns.
    """
    agent = Predict("question -> answer", tools=[send, pay], native=False)
    turns = [
        {"outputs": {"tool_calls": [{"name": "send", "args": {"euros": "ten"}}]}},
        {"outputs": {"tool_calls": [KINDS[8]]}},
    ]
    with context(lm=ScriptedLM([*turns, {"outputs": {"answer": "done"}}])):
        run = played(agent.start(question="q"), 3)
        assert contents(Run.from_json(run.to_json(), agent)) == contents(run)
    assert [[call.id for call in step.calls] for step in run.prediction.trajectory.steps] == [
        ["call_0"],
        ["call_0"],
    ]


def test_an_agent_that_was_refused_as_a_tool_has_spent_nothing() -> None:
    """The limit was reached in its turn: so a replay finds no record of its spending."""
    inner = agent_of(parallel=True, nested=False).as_tool("desk")
    agent = ReAct(
        "question -> answer",
        [inner, send],
        native=True,
        limits=Limits(tool_calls=1),
        on_limit="extract",
    )
    turn = [{"name": "send", "args": {"euros": 10}}, {"name": "desk", "args": {"question": "q"}}]
    with context(lm=ScriptedLM([turn, {"outputs": {"reasoning": "r", "answer": "done"}}])):
        run = agent.start(question="q")
        assert contents(Run.from_json(run.to_json(), agent)) == contents(run)
    assert (
        "the limit of tool calls is reached"
        in run.prediction.trajectory.steps[0].results[1].content
    )


def test_a_call_that_began_before_a_crash_is_not_refused_over_a_limit() -> None:
    """It may have run: a person is asked, as without the limit."""
    agent = ReAct("question -> answer", [send], native=True)
    turn = [{"name": "send", "args": {"euros": euros}} for euros in (10, 20)]
    with context(lm=ScriptedLM([turn, {"name": "finish", "args": {"answer": "done"}}])):
        stored = json.loads(agent.start(question="q").to_json())
        begun = [each for each in stored["journal"] if each["kind"] != "result"][:3]
        cut = {**stored, "journal": begun, "status": "running", "error": None}
        run = Run.from_json(
            json.dumps(cut),
            ReAct("question -> answer", [send], native=True, limits=Limits(tool_calls=1)),
        )
        run.resume()
    assert [(question.kind, question.call.args["euros"]) for question in run.pending] == [
        ("unknown", 10),
        ("unknown", 20),
    ]


@pytest.mark.parametrize("amounts", [("10", 10), (10, "10")], ids=str)
def test_decisions_about_a_tool_that_is_gone_stay_with_their_calls(
    amounts: tuple[Any, ...],
) -> None:
    """The second call is written as the journal has the arguments of both: the first decision is
    still about the first call.
    """
    calls = [{"name": "desk.pay", "args": {"euros": euros}} for euros in amounts]
    with context(lm=ScriptedLM([calls, {"name": "finish", "args": {"answer": "done"}}])):
        run = played(ReAct("question -> answer", [pay, send], native=True).start(question="q"), 0)
        again = Run.from_json(
            run.to_json(),
            ReAct("question -> answer", [send], native=True),
            migrate=True,
        )
        assert contents(again) == contents(run)
    assert [str(content).partition(";")[0] for content in contents(run)[0]] == [
        "A person decided against this call",
    ] * 2


def paid(euros: int) -> str:
    HAPPENED.append(f"paid {euros}")
    return "paid"


def pay_once(euros: int, note: str = "") -> str:
    """Pay."""
    return paid(euros)


def pay_less(euros: int) -> str:
    """Pay."""
    return paid(euros)


def pay_more(euros: int, note: str, more: int) -> str:
    """Pay."""
    return paid(euros + more)


def pay_or_not(euros: bool, note: str = "") -> str:
    """Pay."""
    return paid(euros)


def pay_five(euros: Literal[5], note: str = "") -> str:
    """Pay."""
    return paid(euros)


def payer(function: Any, *, asks: bool = True) -> ReAct:
    """An agent with this function as its tool `pay`, and with one that asks besides."""
    tools = [Tool(function, "pay", require_confirmation=asks)] if function is not None else []
    return ReAct("question -> answer", [*tools, book], native=True)


@pytest.mark.parametrize(
    "edit",
    [{"euros": 4}, {"note": "for tea"}],
    ids=["a value", "an argument"],
)
@pytest.mark.parametrize("version", [pay_once, pay_less, pay_more, pay_or_not, pay_five, None])
@pytest.mark.parametrize("asks", [True, False])
def test_a_call_that_ran_with_changed_arguments_keeps_its_result_in_any_version(
    version: Any,
    asks: bool,
    edit: dict[str, Any],
) -> None:
    HAPPENED.clear()
    turns = [
        {"name": "pay", "args": {"euros": 5}},
        {"name": "book", "args": {"hotel": "Ritz"}},
        {"name": "finish", "args": {"answer": "done"}},
    ]
    with context(lm=ScriptedLM(turns)):
        run = payer(pay_once).start(question="q")
        run.answer(run.pending[0].edit(edit))
        run.resume()
        again = Run.from_json(run.to_json(), payer(version, asks=asks))
        again.answer(again.pending[0].approve())
        again.resume()
    assert again.status == "done", again.error
    assert len(HAPPENED) == 1
    assert [content.rpartition("\n")[2] for [content] in contents(again)[:2]] == [
        "paid",
        "booked Ritz",
    ]
    assert "A person changed the arguments to" in contents(again)[0][0]


@pytest.mark.parametrize("has_begun", [False, True], ids=["waits", "was cut off"])
def test_code_that_lost_a_tool_runs_nothing_and_the_older_version_goes_on(has_begun: bool) -> None:
    """The code ended before the call, and the model was asked with an error as its result. Then
    neither version could continue the run.
    """
    pytest.importorskip("pydantic_monty", reason="needs the extra: pip install 'ferrule[code]'")
    paid: list[int] = []

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        paid.append(euros)
        return "paid"

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    def version(*tools: Any) -> ReAct:
        return ReAct("question -> answer", tools, native=True, calls="code")

    code = {"name": "run_code", "args": {"code": "await look()\nprint(await pay(5))"}}
    finish = {"name": "finish", "args": {"answer": "done"}}
    store = MemoryStore()
    with context(lm=ScriptedLM([code])):
        run = version(look, pay).start(question="q", store=store)
    store.decide(run.id, run.pending[0].approve())
    text = run.to_json()
    if has_begun:
        with context(lm=ScriptedLM([finish])):
            head = json.loads(Run.load(store, run.id, version(look, pay)).resume().to_json())
        journal = [entry for entry in head["journal"] if entry["slot"] <= "5.0?"][:-1]
        assert journal[-1]["kind"] == "begun"
        text = json.dumps({**head, "journal": journal, "status": "running", "error": None})
        paid.clear()
    asked = ScriptedLM([])
    with context(lm=asked):
        stopped = Run.from_json(text, version(look))
        with pytest.raises(ReplayMismatchError):
            _ = stopped.trajectory
        stopped.resume()
    assert isinstance(stopped.error, ReplayMismatchError)
    assert (len(asked.requests), paid) == (0, [])
    with context(lm=ScriptedLM([finish])):
        again = Run.from_json(stopped.to_json(), version(look, pay))
        again.resume()
        for question in again.pending:
            again.answer(question.approve())
            again.resume()
    assert again.prediction.answer == "done"
    assert paid == [5]


def test_stars_are_no_secret_of_a_call_that_no_longer_fits() -> None:
    """The edit replaces all arguments, so stars in it stand for nothing that was shown."""
    entered: list[str] = []

    @tool(require_confirmation=True)
    def enter(pin: SecretStr) -> str:
        """Enter."""
        raise AssertionError

    @tool(name="enter", require_confirmation=True)
    def enter_house(house: str, code: SecretStr) -> str:
        """Enter."""
        entered.append(f"{house} {code.get_secret_value()}")
        return "entered"

    turns = [
        {"name": "enter", "args": {"pin": "1234"}},
        {"name": "finish", "args": {"answer": "done"}},
    ]
    with context(lm=ScriptedLM(turns)):
        run = ReAct("question -> answer", [enter]).start(question="q")
        again = Run.from_json(run.to_json(), ReAct("question -> answer", [enter_house])).resume()
        for code in ("**********", "1234"):
            [question] = again.pending
            assert question.kind == "migration"
            assert entered == []
            again.answer(question.edit({"house": "A", "code": code}))
            again.resume()
    assert again.prediction.answer == "done"
    assert entered == ["A 1234"]


@pytest.mark.parametrize("version", [pay_five, None])
def test_a_changed_call_that_was_cut_off_and_no_longer_fits_is_asked_about(version: Any) -> None:
    HAPPENED.clear()
    turns = [{"name": "pay", "args": {"euros": 5}}, {"name": "finish", "args": {"answer": "done"}}]
    with context(lm=ScriptedLM(turns)):
        run = payer(pay_once).start(question="q")
        run.answer(run.pending[0].edit({"euros": 4}))
        stored = json.loads(run.resume().to_json())
        journal = [entry for entry in stored["journal"] if entry["kind"] != "result"][
            :-1
        ]  # and without the model's last answer
        cut = json.dumps({**stored, "journal": journal, "status": "running", "error": None})
        again = Run.from_json(cut, payer(version)).resume()
    [question] = again.pending
    assert question.kind == "migration"
    assert question.text.startswith('pay with args: {"euros":4')
    assert "may have run" in question.text
    assert HAPPENED == ["paid 4"]
    # What may have run is the call as it was: no decision is taken that would have no effect.
    assert question.schema is None
    for answer in (
        lambda: question.edit({"euros": 5}),
        lambda: question.approve(euros=5),
        question.approve,
        lambda: again.answer(Decision(question.id, "edit", args={"euros": 5})),
    ):
        with pytest.raises(DecisionError, match="give its result as a reply, or deny it"):
            answer()
    again.answer(question.reply("It was paid."))
    with context(lm=ScriptedLM([{"name": "finish", "args": {"answer": "done"}}])):
        again.resume()
    assert contents(again)[0][0].endswith("It was paid.")
    assert HAPPENED == ["paid 4"]


def test_a_call_whose_tool_is_gone_takes_no_edit() -> None:
    HAPPENED.clear()
    with context(lm=ScriptedLM([{"name": "pay", "args": {"euros": 5}}])):
        run = payer(pay_once).start(question="q")
        [question] = Run.from_json(run.to_json(), payer(None)).resume().pending
    with pytest.raises(DecisionError, match="give its result as a reply, or deny it"):
        question.edit({"euros": 4})
    assert question.reply("It was paid.").kind == "reply"


def test_an_edit_that_did_not_fit_is_still_refused_by_a_version_that_it_fits() -> None:
    HAPPENED.clear()
    with context(
        lm=ScriptedLM(
            [{"name": "pay", "args": {"euros": 5}}, {"name": "finish", "args": {"answer": "done"}}],
        ),
    ):
        run = payer(pay_five).start(question="q")
        run.answer(run.pending[0].edit({"euros": 4}))
        run.resume()
        run.answer(run.pending[0].deny("No."))
        run.resume()
        again = Run.from_json(run.to_json(), payer(pay_once))
        assert contents(again) == contents(run)
    assert HAPPENED == []


@pytest.mark.parametrize("edits", [1, 2, 3])
def test_a_version_that_comes_back_forgets_the_answers_to_the_one_between(edits: int) -> None:
    """The edits did not fit the version between: it asked again after each."""
    HAPPENED.clear()
    with context(
        lm=ScriptedLM(
            [{"name": "pay", "args": {"euros": 5}}, {"name": "finish", "args": {"answer": "done"}}],
        ),
    ):
        run = payer(pay_once).start(question="q")
        run = Run.from_json(run.to_json(), payer(pay_more)).resume()
        for euros in range(edits):
            run.answer(run.pending[0].edit({"euros": euros}))
            run.resume()
        back = Run.from_json(run.to_json(), payer(pay_once)).resume()
        assert [question.kind for question in back.pending] == ["confirm"]
        back.answer(back.pending[0].approve())
        back.resume()
        assert back.status == "done", back.error
        assert HAPPENED == ["paid 5"]
        assert contents(Run.from_json(back.to_json(), payer(pay_once))) == [
            ["paid"],
            *contents(back)[1:],
        ]


@pytest.mark.parametrize("rule", ["the tool asks", "a policy asks", "a policy denies"])
@pytest.mark.parametrize("migrate", [False, True])
def test_a_call_that_began_is_not_ruled_again(rule: str, migrate: bool) -> None:
    """It may have run: a person is asked that, not whether it may run, and the model does not hear
    that it was not run.
    """
    rules = {"a policy asks": Policy([ask("send")]), "a policy denies": Policy([deny("send")])}
    turn = [{"name": "send", "args": {"euros": 10}}, {"name": "finish", "args": {"answer": "done"}}]
    with context(lm=ScriptedLM(turn)):
        stored = json.loads(
            ReAct("question -> answer", [send], native=True).start(question="q").to_json(),
        )
    cut = json.dumps(
        {**stored, "journal": stored["journal"][:2], "status": "running", "error": None},
    )
    changed = Tool(send.func, "send", require_confirmation=rule == "the tool asks")
    with context(lm=ScriptedLM(turn[1:]), policy=rules.get(rule)):
        run = Run.from_json(
            cut,
            ReAct("question -> answer", [changed], native=True),
            migrate=migrate,
        ).resume()
    assert [(question.kind, question.call.args) for question in run.pending] == [
        ("unknown", {"euros": 10}),
    ]


@pytest.mark.parametrize("known", [2, 3], ids=["began", "ended"])
def test_a_call_that_fits_only_now_is_asked_about(known: int) -> None:
    """The run acted on the call beside it, without a question: that says nothing about this one."""
    turn = [{"name": "send", "args": {"euros": 10}}, {"name": "desk.pay", "args": {"euros": "ten"}}]
    with context(lm=ScriptedLM([turn, {"name": "finish", "args": {"answer": "done"}}])):
        stored = json.loads(
            ReAct("question -> answer", [pay, send], native=True).start(question="q").to_json(),
        )
    cut = json.dumps(
        {**stored, "journal": stored["journal"][:known], "status": "running", "error": None},
    )

    def pay_any(euros: str) -> str:
        """Pay."""
        HAPPENED.append(f"paid {euros}")
        return "paid"

    changed = ReAct(
        "question -> answer",
        [Tool(pay_any, "desk.pay", require_confirmation=True), send],
        native=True,
    )
    HAPPENED.clear()
    with context(lm=ScriptedLM([{"name": "finish", "args": {"answer": "done"}}])):
        run = Run.from_json(cut, changed)
        run.resume()
        asked = [(question.kind, question.call.args["euros"]) for question in run.pending]
        if known == 2:
            run.answer(run.pending[0].reply("sent 10"))
            run.resume()
            asked += [(question.kind, question.call.args["euros"]) for question in run.pending]
        assert asked[-1] == ("confirm", "ten")
        assert HAPPENED == []
        run.answer(run.pending[0].approve())
        run.resume()
        assert (HAPPENED, contents(run)[0]) == (["paid ten"], ["sent 10", "paid"])
        assert contents(Run.from_json(run.to_json(), changed)) == contents(run)


def books(request: Request) -> dict[str, Any]:
    has_called = any(message.tool_calls for message in request.messages)
    return (
        {"name": "finish", "args": {"answer": "done"}}
        if has_called
        else {"name": "book", "args": {"hotel": "Ritz"}}
    )


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_forward_that_calls_a_program_with_other_inputs_when_it_goes_on_ends_with_an_error(
    is_nested: bool,
) -> None:
    """It asked again for what was approved, in every execution."""
    clock = count()

    class Desk(Module):
        def __init__(self) -> None:
            self.agent = ReAct("question, now: int -> answer", [book], native=True)

        def forward(self, question: str) -> Prediction:
            return self.agent(question=question, now=next(clock))

    class Office(Module):
        def __init__(self) -> None:
            self.desk = Desk()

        def forward(self, question: str) -> Prediction:
            return self.desk(question=question)

    program = Office() if is_nested else Desk()
    with context(lm=ScriptedLM(by=books)):
        run = program.start(question="q")
        run.answer(run.pending[0].approve())
        assert run.resume().status == "failed"
    assert isinstance(run.error, ReplayMismatchError)
    assert "a call of `ReAct` with other inputs" in str(run.error)


@pytest.mark.parametrize("gathers", [gather, asyncio.gather], ids=["gather", "asyncio.gather"])
def test_a_forward_that_asks_for_one_input_after_the_other_goes_on(gathers: Any) -> None:
    """Other inputs than before are no error if nothing is left of the earlier execution, or its
    branch goes on beside.
    """

    class Desks(Module):
        def __init__(self) -> None:
            self.agent = ReAct("question -> answer", [book], native=True)

        async def aforward(self, questions: list[str]) -> Prediction:
            first = await self.agent.acall(question="first")
            return Prediction(
                found=[
                    first,
                    *await gathers(*(self.agent.acall(question=each) for each in questions)),
                ],
            )

    with context(lm=ScriptedLM(by=books)):
        run = Desks().start(questions=["a", "b"])
        while run.status == "waiting":
            run.answer(run.pending[0].approve())
            run.resume()
    assert run.status == "done", run.error


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_version_that_comes_back_asks_a_question_that_can_be_decided(
    is_kept: bool,
    tmp_path: Path,
) -> None:
    """A decision of the version in between stands in the journal after its own, which counts no
    more.

    Each is written down, and the process dies before its call begins.
    """
    ran: list[str] = []

    def die(event: Any) -> None:
        if isinstance(event, events.Decided):
            raise KeyboardInterrupt

    def version(text: str) -> ReAct:
        pay = Tool(
            lambda to: ran.append(f"{text} {to}") or "paid",
            "pay",
            text,
            {"to": {"type": "string"}},
            require_confirmation=True,
        )
        turn = Response("", tuple(ToolCall(name="pay", args={"to": to}, id=to) for to in "AB"))
        end = Response("", (ToolCall(name="finish", args={"answer": "ok"}),))
        return ReAct(
            "task -> answer",
            [pay],
            native=True,
            lm=ScriptedLM(by=lambda request: [turn, end][len(request.messages) > 3]),
        )

    def load(text: str, run: Run) -> Run:
        return (
            Run.load(store, run.id, version(text))
            if store is not None
            else Run.from_json(run.to_json(), version(text))
        )

    store = SQLiteStore(tmp_path / "runs.db") if is_kept else None
    run = version("one").start(task="x", **({"store": store} if store is not None else {}))
    for text in ("one", "two", "one", "two", "one"):
        run = load(text, run).resume()
        [asked] = [each for each in run.pending if each.call.args == {"to": "A"}]
        run.answer(asked.approve())
        with pytest.raises(KeyboardInterrupt), context(callbacks=[die]):
            run.resume()
    run = load("one", run).resume()
    assert [each.call.args["to"] for each in run.pending] == ["B"]
    run.answer(run.pending[0].approve())
    assert run.resume().status == "done"
    assert ran == ["one A", "one B"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize("runs_first", [False, True])
def test_equal_calls_of_a_turn_that_no_longer_fit_are_decided_in_any_order(
    order: tuple[int, int],
    *,
    runs_first: bool,
) -> None:
    """The decision on the second one counted as that on the first: the run failed, in every
    execution from then on.
    """
    ran: list[int] = []

    @tool(name="book")
    def book_rooms(rooms: int) -> str:
        ran.append(rooms)
        return "booked"

    waits, store = Tool(lambda: "booked", "book", "Book.", require_confirmation=True), MemoryStore()
    calls = [{"name": "add", "args": {"x": 1}}] * runs_first + [{"name": "book", "args": {}}] * 2
    with context(
        lm=ScriptedLM([{"tool_calls": calls}, {"name": "finish", "args": {"answer": "done"}}]),
    ):
        ReAct("question -> answer", [waits, add], native=True).start(
            question="q",
            store=store,
            run_id="r",
        )
        changed = ReAct("question -> answer", [book_rooms, add], native=True)
        questions = Run.load(store, "r", changed).resume().pending
        assert [each.kind for each in questions] == ["migration"] * 2
        for number in order:
            run = Run.load(store, "r", changed)
            call = questions[number].call.id
            [question] = [each for each in run.pending if each.call.id == call]
            run.answer(question.edit({"rooms": number + 1}))
            run.resume()
        assert run.prediction.answer == "done"
    assert sorted(ran) == [1, 2]


def test_a_forward_that_catches_a_mismatch_does_nothing_more() -> None:
    """It called its tool as if the agent had failed, and the run lost its approval; now the version
    before can still finish it.
    """
    told: list[str] = []

    def tell(text: str) -> str:
        told.append(text)
        return "told"

    class Inner(Module):
        def __init__(self, *, is_timed: bool) -> None:
            self.agent, self.is_timed = ReAct("question -> answer", [book], native=True), is_timed

        def flow(self, question: str) -> Any:
            if self.is_timed:
                yield Once(lambda: 1.0, "clock")
            return (yield from self.agent.flow(question=question))

    class Catching(Module):
        def __init__(self, *, is_timed: bool) -> None:
            self.inner = Inner(is_timed=is_timed)

        def forward(self, question: str) -> Prediction:
            try:
                return self.inner(question=question)
            except Exception as error:
                return Prediction(answer=call_tool(Tool(tell), text=str(error)))

    store = MemoryStore()
    with context(lm=ScriptedLM(by=books)):
        waiting = Catching(is_timed=False).start(question="q", store=store, run_id="r")
        waiting.answer(waiting.pending[0].approve())
        run = Run.load(store, "r", Catching(is_timed=True)).resume()
        assert (type(run.error), store.summary("r").status, told) == (
            ReplayMismatchError,
            "waiting",
            [],
        )
        assert Run.load(store, "r", Catching(is_timed=False)).resume().prediction.answer == "done"


def program_of(kind: Any, turns: int) -> Any:
    if kind is ReAct:
        return ReAct("question -> answer", [book, add], native=True, max_iters=turns)
    return Predict("question -> answer", tools=[book, add], native=True, max_turns=turns)


EXTRACTED = {"outputs": {"reasoning": "It said so.", "answer": "done"}}
FINISHED = {"name": "finish", "args": {"answer": "done"}}


@pytest.mark.parametrize(
    ("kind", "turns", "end"),
    [
        *((ReAct, turns, EXTRACTED) for turns in (1, 2, 3)),
        *((Predict, turns, None) for turns in (1, 2, 3)),
        (ReAct, 9, FINISHED),
        (Predict, 9, {"outputs": {"answer": "done"}}),
    ],
)
def test_a_call_that_waits_runs_whatever_number_of_turns_a_new_version_has(
    kind: Any, turns: int, end: Any
) -> None:
    """A run keeps the turns that it took, and takes no new one over the number."""
    store, answers = MemoryStore(), [CALLS[1], CALLS[1], CALLS[0]]
    with context(lm=ScriptedLM([*answers, end] if end else answers)):
        waiting = program_of(kind, 3).start(question="q", store=store)
        run = Run.load(store, waiting.id, program_of(kind, turns))
        run.answer(run.pending[0].approve())
        run.resume()
    results = [result.text for step in run.trajectory.steps for result in step.results]
    assert results[:3] == ["2", "2", "booked Ritz"]
    if end is None:
        assert isinstance(run.error, MaxTurnsReachedError)
    else:
        assert run.prediction.answer == "done"


@pytest.mark.parametrize("turns", [1, 2, 9])
@pytest.mark.parametrize("kind", [ReAct, Predict])
def test_a_program_that_ran_out_of_turns_stays_so_in_a_new_version(kind: Any, turns: int) -> None:
    class Desk(Module):
        def __init__(self, turns: int) -> None:
            self.program = program_of(kind, turns)

        def forward(self, question: str) -> Prediction:
            try:
                answer = self.program(question=question).answer
            except MaxTurnsReachedError:
                answer = "done"
            return Prediction(answer=f"{answer}, {call_tool(book, hotel='Ritz')}")

    store = MemoryStore()
    with context(lm=ScriptedLM([CALLS[1], CALLS[1], EXTRACTED])):
        waiting = Desk(2).start(question="q", store=store)
        assert len(waiting.pending) == 1
        run = Run.load(store, waiting.id, Desk(turns))
        run.answer(run.pending[0].approve())
        assert run.resume().prediction.answer == "done, booked Ritz"
