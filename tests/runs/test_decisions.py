"""Decisions put on runs, policies, grants, expiry: nothing runs without consent to exactly that
call, and consent is used once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from agent_script import native_step
from msgspec.structs import replace
from pydantic import AfterValidator, BaseModel, Field, Json, SecretStr

from ferrule import (
    AGUI,
    ConfirmationRequired,
    Decision,
    Grant,
    MemoryStore,
    Policy,
    Predict,
    ReAct,
    Response,
    ResumeState,
    RunError,
    ToolCall,
    VercelAI,
    allow,
    ask,
    configure,
    context,
    deny,
    events,
    gather,
    get_confirmation_status,
    gt,
    respond_to_confirmation,
    tool,
)
from ferrule.approval.question import Question
from ferrule.errors import DecisionError, RunCancelledError
from ferrule.programs.module import Module
from ferrule.runs import decisions as confirm
from ferrule.runs.driver import approval as ask_person
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.journal import Journal
from ferrule.runs.life import Execution
from ferrule.runs.run import Run
from ferrule.testing import ScriptedLM

DONE = native_step("done", "finish", {"answer": "ok"})


class Shop:
    """An agent with a tool that asks, and what it did."""

    def __init__(self, steps: list[Any], **keywords: Any) -> None:
        self.ran: list[tuple[str, int]] = []
        self.lm = ScriptedLM([*steps, DONE])
        self.told: list[events.Event] = []

        @tool(require_confirmation=keywords.pop("needs", True))
        def pay(to: str, amount: int = 5) -> str:
            """Pay."""
            self.ran.append((to, amount))
            return f"paid {to}"

        @tool
        def look(at: str) -> str:
            """Look."""
            self.ran.append((at, 0))
            return at

        self.agent = ReAct("task -> answer", [pay, look], **keywords)

    def start(self) -> Run:
        with context(lm=self.lm, callbacks=[self.told.append]):
            return self.agent.start(task="x")

    def resume(self, run: Run) -> Run:
        with context(lm=self.lm, callbacks=[self.told.append]):
            return run.resume()

    def heard(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.told if isinstance(each, kind)]


def pays(*to: str, **more: Any) -> Any:
    return Response("paying", tuple(ToolCall(name="pay", args={"to": each, **more}) for each in to))


# -- binding and single use


class Order(BaseModel):
    """What its factory makes differs at every check."""

    number: UUID = Field(default_factory=uuid4)
    article: str


def _order_agent(placed: list[Any], turns: int = 1) -> Any:
    @tool(require_confirmation=True)
    def order(what: Order, note: str = Field(default_factory=lambda: uuid4().hex)) -> str:
        placed.append((str(what.number), what.article, note))
        return "ordered"

    wanted = [
        {"name": "order", "args": {"what": {"article": each}}} for each in ("ink", "pen")[:turns]
    ]
    return ReAct("task -> answer", [order], native=True, lm=ScriptedLM([wanted, DONE]))


def _order_shown(question: Question) -> tuple[str, str, str]:
    what = question.call.args["what"]
    return what["number"], what["article"], question.call.args["note"]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_call_runs_with_the_defaults_that_were_shown(is_loaded: bool) -> None:
    """The check of the call is repeated when the run resumes, and a factory makes another value."""
    placed: list[Any] = []
    store, agent = MemoryStore(), _order_agent(placed)
    run = agent.start(task="x", store=store, run_id="r")
    shown = _order_shown(run.pending[0])
    run = Run.load(store, "r", agent) if is_loaded else run
    assert _order_shown(run.pending[0]) == shown
    run.answer(run.pending[0].approve())
    assert run.resume().status == "done"
    assert placed == [shown]


def test_an_edit_keeps_the_defaults_that_were_shown() -> None:
    placed: list[Any] = []
    run = _order_agent(placed).start(task="x")
    number, article, _ = _order_shown(run.pending[0])
    run.answer(run.pending[0].edit({"note": "soon"}))
    assert run.resume().status == "done"
    assert placed == [(number, article, "soon")]


def test_defaults_that_were_shown_stay_while_another_call_of_the_turn_waits() -> None:
    placed: list[Any] = []
    store, agent = MemoryStore(), _order_agent(placed, turns=2)
    run = agent.start(task="x", store=store, run_id="r")
    shown = [_order_shown(each) for each in run.pending]
    for k in (1, 0):
        run = Run.load(store, "r", agent)
        ids = [each.id for each in run.pending]
        run.resume()  # without a decision: the same questions wait
        assert [each.id for each in run.pending] == ids
        run.answer(run.pending[k].approve())
        run.resume()
    assert run.status == "done"
    assert sorted(placed) == sorted(shown)
    assert Run.load(store, "r", agent).prediction == run.prediction


def test_the_question_shows_what_will_run_and_why() -> None:
    """Prepared arguments, definition, thought, raw beside prepared."""
    shop = Shop([pays("ada", amount="7")])
    run = shop.start()
    [question] = run.pending
    assert question.call.args == {"to": "ada", "amount": 7}
    assert question.changes == {"amount": ("7", 7)}
    assert question.thought == "paying"
    assert question.fingerprint
    assert shop.ran == []


def test_an_approval_runs_the_call_once_with_what_was_shown() -> None:
    shop = Shop([pays("ada"), pays("ada")])
    run = shop.start()
    first = run.pending[0]
    run.answer(first.approve())
    shop.resume(run)
    assert shop.ran == [("ada", 5)]
    [second] = run.pending  # the same call in the next turn is another call (U80, U107)
    assert second.id != first.id
    with pytest.raises(DecisionError, match="decided already"):
        run.answer(replace(second.deny(), question_id=first.id))
    run.answer(
        first.approve(),
    )  # the very same decision once more is passed over, and decides nothing else (U92)
    assert shop.resume(run).pending[0].id == second.id
    assert shop.ran == [("ada", 5)]


def test_identical_calls_of_one_turn_need_a_decision_each() -> None:
    shop = Shop([pays("ada", "ada")])
    run = shop.start()
    one, two = run.pending
    assert one.id != two.id
    run.answer(two.deny())
    shop.resume(run)
    assert shop.ran == []
    assert [each.id for each in run.pending] == [one.id]
    run.answer(one.approve())
    assert shop.resume(run).prediction.answer == "ok"
    assert shop.ran == [("ada", 5)]


def test_ids_are_not_made_of_what_a_model_can_know() -> None:
    """Another run with the same call has another id, and does not take the decision."""
    one, two = (Shop([pays("ada")]).start() for _ in range(2))
    assert one.pending[0].id != two.pending[0].id
    with pytest.raises(DecisionError, match="No question"):
        two.answer(one.pending[0].approve())
    with pytest.raises(DecisionError, match="No question"):
        one.answer(Decision("pay:ada", "approve"))


def test_a_decision_on_something_else_than_is_shown_is_refused() -> None:
    run = Shop([pays("ada")]).start()
    with pytest.raises(DecisionError, match="does not fit what question"):
        run.answer(replace(run.pending[0].approve(), shown="0" * 20))


def _by_ag_ui(run: Run, old: Question) -> None:
    entry = {"interruptId": f"{run.id}:{old.id}", "status": "resolved", "payload": True}
    body = {"threadId": "t", "runId": "r", "messages": [], "resume": [entry]}
    for decision in AGUI(body).decisions(run):
        run.answer(decision)


def _by_vercel(run: Run, old: Question) -> None:
    """The page answers a call by its id, which this model repeats."""
    part = {
        "type": "tool-pay",
        "toolCallId": f"{run.id}/{old.call.id}",
        "state": "output-available",
        "input": old.call.args,
        "output": "yes",
    }
    message = {"id": run.id, "role": "assistant", "parts": [part]}
    for decision in VercelAI({"id": "c", "messages": [message]}).decisions(run):
        run.answer(decision)


_DOORS: dict[str, Callable[[Run, Question], Any]] = {
    "run.answer": lambda run, old: run.answer(old.approve()),
    "a decision made by hand": lambda run, old: run.answer(Decision(old.id, "approve")),
    "its digest made by hand": lambda run, old: run.answer(
        Decision(run.pending[0].id, "approve", shown=old.digest)
    ),
    "the store": lambda run, old: run.persistence.store.decide(run.id, old.approve()),  # pyright: ignore[reportOptionalMemberAccess]
    "respond_to_confirmation": lambda _, old: respond_to_confirmation(old.id),
    "AG-UI": _by_ag_ui,
    "Vercel": _by_vercel,
}


@pytest.mark.parametrize(
    ("door", "is_decided"),
    # An id that this process never had names no run, so `respond_to_confirmation` has no run.
    [
        (door, is_decided)
        for door in sorted(_DOORS)
        for is_decided in (True, False)
        if is_decided or door != "respond_to_confirmation"
    ],
)
def test_a_decision_on_a_question_that_the_run_no_longer_asks_is_refused_with_what_it_asks_now(
    door: str, is_decided: bool
) -> None:
    """The run went from five for Ada to five thousand for Eve after the person had looked."""
    steps = [
        {"tool_calls": [{"name": "pay", "args": {"to": to, "amount": amount}, "id": "c1"}]}
        for to, amount in (("Ada", 5), ("Eve", 5000))
    ]
    if not is_decided:
        del steps[0]
    shop = Shop(steps)
    with context(lm=shop.lm):
        run = shop.agent.start(task="x", store=MemoryStore())
    old = run.pending[0]
    if is_decided:
        run.answer(old.deny())
        run = shop.resume(run)
    else:  # the question as it was in another version of the program
        call = old.call.changed(args={"to": "Ada", "amount": 5})
        old = replace(old, id="0" * 20, call=call)
    assert [question.call.args["amount"] for question in run.pending] == [5000]
    with pytest.raises(DecisionError, match="5000"):
        _DOORS[door](run, old)
    assert shop.resume(run).status == "waiting"
    assert shop.ran == []


def test_a_response_to_a_run_answers_what_it_asked_when_the_response_was_made() -> None:
    shop = Shop([pays("ada"), pays("eve")])
    run = shop.start()
    state = ResumeState(run, "yes")
    run.answer(run.pending[0].deny())
    shop.resume(run)
    with context(lm=shop.lm), pytest.raises(DecisionError, match="eve"):
        shop.agent(resume_state=state)
    assert shop.ran == []


def test_an_approval_does_not_reach_a_tool_that_changed_since_the_question() -> None:
    """The approval was for another definition; the question is asked anew, and nothing runs."""
    shop = Shop([pays("ada")])
    run = shop.start()
    before = run.pending[0]
    run.answer(before.approve())
    old = shop.agent.react.tools["pay"]
    changed = old.model_copy(update={"desc": "Pay, and tell everybody."})
    shop.agent.react.toolbox = type(shop.agent.react.toolbox)(
        [changed, shop.agent.react.tools["look"]],
    )
    shop.resume(run)
    assert run.status == "waiting"
    assert run.pending[0].id != before.id
    assert shop.ran == []


def asking(check: Callable[[], str]) -> Module:
    """A flow that asks about a call with arguments that are worked out anew each time."""
    from ferrule.acts import AskPerson
    from ferrule.approval.question import Question
    from ferrule.values.outcome import Prediction

    class Asking(Module):
        def flow(self, /, **inputs: Any) -> Generator[Any, Any, Any]:
            del inputs
            [decision] = yield AskPerson(
                (
                    Question(
                        "confirm",
                        "?",
                        ToolCall(name="t", args={"to": "x"}),
                        fingerprint=check(),
                    ),
                ),
            )
            return Prediction(kind=decision.kind)

    return Asking()


def test_a_definition_that_changed_voids_the_decision_and_asks_again() -> None:
    """Before it is taken, and after it was journalled while nothing was done on it."""
    version = ["1"]
    program = asking(lambda: version[0])
    run = program.start()
    old = run.pending[0]
    run.answer(old.approve())
    version[0] = "2"
    run.resume()
    assert run.status == "waiting"
    assert run.pending[0].id != old.id
    run.answer(run.pending[0].approve())
    run.resume()
    assert run.prediction.kind == "approve"
    again = Run(program, (), {})
    again.journal.entries[:] = run.journal.entries
    version[0] = "3"
    again.resume()
    assert again.status == "waiting"


def test_forty_contenders_run_the_call_once() -> None:
    """Decided and resumed from forty threads at once."""
    shop = Shop([pays("ada")])
    run = shop.start()
    question = run.pending[0]
    start = threading.Barrier(40)

    def contend(_: int) -> str:
        start.wait()
        try:
            run.answer(question.approve())
            with context(lm=shop.lm):
                run.resume()
        except RunError as error:
            return type(error).__name__
        return run.status

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(contend, range(40)))
    assert shop.ran == [("ada", 5)]


@pytest.mark.parametrize(
    "decision",
    [
        Decision("ID", "edit"),
        Decision("ID", "approve", args={"to": "eve"}),
        Decision("ID", "deny", grant=Grant(args="any")),
        Decision("ID", "revoke"),
    ],
    ids=["edit_without_change", "approval_with_arguments", "denial_with_grant", "revoke"],
)
def test_a_decision_that_contradicts_itself_is_refused(decision: Decision) -> None:
    run = Shop([pays("ada")]).start()
    with pytest.raises(DecisionError):
        run.answer(replace(decision, question_id=run.pending[0].id))
    assert run.decisions == []


@pytest.mark.parametrize("word", ["no", "false", 1, None])
def test_a_response_approves_with_true_alone(word: Any) -> None:
    """Text of a web form, such as "false", is true in Python."""
    run = Shop([pays("ada")]).start()
    with pytest.raises(DecisionError, match="`approved` is True or False"):
        respond_to_confirmation(run.pending[0].id, approved=word)
    assert run.decisions == []


def test_always_takes_a_grant() -> None:
    question = Shop([pays("ada")]).start().pending[0]
    with pytest.raises(DecisionError, match=r"`always` takes a `Grant\(...\)`, found True"):
        question.approve(always=True)  # type: ignore[arg-type]


def test_an_edit_that_does_not_fit_the_tool_is_asked_about_again_and_nothing_runs() -> None:
    """And a part of the arguments is enough."""
    shop = Shop([pays("ada")])
    run = shop.start()
    run.answer(run.pending[0].approve(amount="much"))
    shop.resume(run)
    assert "do not fit" in run.pending[0].text
    assert shop.ran == []
    run.answer(run.pending[0].approve(amount=9))
    shop.resume(run)
    assert shop.ran == [("ada", 9)]


def test_an_edit_of_one_argument_leaves_a_secret_one_as_it_was() -> None:
    """What is not changed runs as it would have run."""
    got: list[tuple[str, str]] = []

    @tool(require_confirmation=True)
    def login(user: str, password: SecretStr) -> str:
        """Log in."""
        got.append((user, password.get_secret_value()))
        return "in"

    with context(
        lm=ScriptedLM([native_step("", "login", {"user": "ann", "password": "s3cr3t"}), DONE]),
    ):
        run = ReAct("task -> answer", [login]).start(task="x")
        run.answer(run.pending[0].approve(user="bob"))
        run.resume()
    assert got == [("bob", "s3cr3t")]


def test_an_edit_of_one_argument_leaves_the_others_as_they_were_shown_and_a_replay_agrees() -> None:
    """To check once more what was checked would change it, or refuse it."""
    got: list[tuple[str, int, list[int]]] = []

    @tool(require_confirmation=True)
    def order(
        what: str,
        dozens: Annotated[int, AfterValidator(lambda n: n * 12)],
        sizes: Json[list[int]],
    ) -> str:
        """Order."""
        got.append((what, dozens, sizes))
        return "ordered"

    call = native_step("", "order", {"what": "eggs", "dozens": 2, "sizes": "[4]"})
    agent = ReAct("task -> answer", [order])
    with context(lm=ScriptedLM([call, call, DONE])):
        run = agent.start(task="x")
        assert run.pending[0].call.args == {"what": "eggs", "dozens": 24, "sizes": [4]}
        run.answer(run.pending[0].approve(what="ducks"))
        run.resume()
        again = Run.from_json(run.to_json(), agent)
        again.answer(again.pending[0].approve(dozens=1))
        again.resume()
    assert again.status == "done"
    assert got == [("ducks", 24, [4]), ("eggs", 12, [4])]


# -- who, when, what (audit)


def test_every_decision_says_who_when_from_where_and_on_what(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirm, "time", lambda: 100.0)
    shop = Shop([pays("ada")])
    run = shop.start()
    question = run.pending[0]
    run.answer(question.approve().signed("grace", "web"))
    shop.resume(run)
    [decision] = run.decisions
    assert (decision.by, decision.via, decision.at, decision.shown) == (
        "grace",
        "web",
        100.0,
        question.digest,
    )
    assert [entry.value for entry in run.journal.entries if entry.kind == "decision"] == [decision]
    assert [event.decision for event in shop.heard(events.Decided)] == [decision]
    with pytest.raises(DecisionError, match="decided already by grace: approved"):
        run.answer(question.deny())


# -- expiry


@pytest.mark.parametrize("needs", [ask(expires_s=60), True], ids=["tool", "policy"])
def test_a_question_that_nobody_answers_in_time_counts_as_denied(
    monkeypatch: pytest.MonkeyPatch,
    needs: Any,
) -> None:
    """The model is told, a late approval is refused."""
    now = [1000.0]
    for module in (ask_person, confirm):
        monkeypatch.setattr(module, "time", lambda: now[0])
    shop = Shop(
        [pays("ada")],
        needs=needs,
        policy=Policy([ask("pay", expires_s=60)]) if needs is True else None,
    )
    run = shop.start()
    question = run.pending[0]
    assert question.expires_at == 1060
    now[0] = 1030
    assert shop.resume(run).pending[0].expires_at == 1060  # it does not begin anew
    now[0] = 1061
    with pytest.raises(DecisionError, match="expired without a decision"):
        run.answer(question.approve())
    shop.resume(run)
    assert shop.ran == []
    assert (
        run.trajectory["observation_0"]
        == "This call waited too long for a decision; it was not run."
    )
    assert run.decisions[-1].via == "expiry"


def test_a_question_that_expired_says_so_also_when_its_run_has_gone_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    for module in (ask_person, confirm):
        monkeypatch.setattr(module, "time", lambda: now[0])
    shop = Shop([pays("ada")], needs=ask(expires_s=60))
    run = shop.start()
    [question] = run.pending
    now[0] = 1061
    shop.resume(run)
    for late in (question.approve(), question.deny().signed("ann")):
        with pytest.raises(DecisionError, match="expired without a decision") as refused:
            run.answer(late)
        assert refused.value.reason == "expired"


def test_a_decision_in_time_counts_also_when_the_run_goes_on_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    for module in (ask_person, confirm):
        monkeypatch.setattr(module, "time", lambda: now[0])
    shop = Shop([pays("ada")], needs=ask(expires_s=60))
    run = shop.start()
    run.answer(run.pending[0].approve())
    now[0] = 5000
    assert shop.resume(run).prediction.answer == "ok"
    assert shop.ran == [("ada", 5)]


# -- policies


def test_policies_of_settings_and_agent_both_count_and_the_stricter_wins() -> None:
    shop = Shop(
        [pays("ada"), pays("eve", amount=500), native_step("", "look", {"at": "x"})],
        policy=Policy([allow("pay"), deny("look")]),
    )
    with context(policy=Policy([ask("pay", amount=gt(100)), allow("*")])):
        run = shop.start()
        assert shop.ran == [("ada", 5)]  # allowed, though the tool itself asks
        run.answer(run.pending[0].deny())
        shop.resume(run)
    assert shop.ran == [("ada", 5)]
    assert "A policy forbids this call" in run.trajectory["observation_2"]
    assert [(each.call.name, each.verdict) for each in shop.heard(events.RuleUsed)] == [
        ("pay", "allow"),
        ("pay", "ask"),
        ("look", "deny"),
    ]


def test_a_denial_by_policy_is_told_with_its_reason_and_runs_nothing() -> None:
    """An observation; the run goes on."""
    shop = Shop(
        [pays("ada", "bob")],
        policy=Policy([deny("pay", to="ada", reason="not her"), allow("pay")]),
    )
    run = shop.start()
    assert run.prediction.answer == "ok"
    assert shop.ran == [("bob", 5)]
    assert run.trajectory["observation_0"][0].endswith("it was not run. Reason: not her")


def test_an_edit_is_no_way_around_a_policy() -> None:
    shop = Shop([pays("ada")], policy=Policy([deny("pay", to="eve")]))
    run = shop.start()
    run.answer(run.pending[0].approve(to="eve"))
    shop.resume(run)
    assert shop.ran == []
    assert "as it was edited" in run.trajectory["observation_0"]


def test_what_runs_is_what_was_written_down_as_decided() -> None:
    """A decision is taken as its JSON says, whatever becomes of the objects it was made of."""
    shop = Shop([pays("ada"), pays("bob")])
    store = MemoryStore()
    with context(lm=shop.lm):
        run = shop.agent.start(task="x", store=store)
        edit = run.pending[0].approve(amount=2)
        run.answer(edit)
        edit.args["amount"] = 999
        run.resume()
        live = run.pending[0].approve(to=(each for each in "eve"))
        run.answer(live)
        run.answer(replace(live, args={"to": ["e", "v", "e"]}))  # the same once more
        assert store.load(run.id).decisions
        assert run.decisions[-1].args == {"to": ["e", "v", "e"]}
    assert shop.ran == [("ada", 2)]


def test_a_secret_is_no_edit_as_it_would_be_masked() -> None:
    run = Shop([pays("ada")]).start()
    with pytest.raises(DecisionError, match="mask a secret"):
        run.answer(run.pending[0].approve(to=SecretStr("eve")))


@pytest.mark.parametrize("via_store", [True, False], ids=["store", "run"])
@pytest.mark.parametrize("change", ["tool", "fingerprint", "same", "inside"])
def test_a_grant_for_another_call_than_was_shown_is_refused(change: str, via_store: bool) -> None:
    shop, store = Shop([pays("ada")]), MemoryStore()
    with context(lm=shop.lm):
        run = shop.agent.start(task="x", store=store)
    given = run.pending[0].approve(always=Grant(args="any"))
    assert given.grant is not None
    forged = replace(given, grant=replace(given.grant, **{change: "look"}))
    with pytest.raises(DecisionError, match="another call"):
        store.decide(run.id, forged) if via_store else run.answer(forged)
    run.answer(given)


def test_only_a_call_that_asks_first_can_be_granted() -> None:
    """Not the answer to a question of the model."""
    with context(
        lm=ScriptedLM([native_step("", "user_clarification", {"question": "Which?"}), DONE]),
    ):
        run = ReAct("task -> answer", [], enable_user_clarification=True).start(task="x")
    with pytest.raises(DecisionError, match="grant"):
        run.pending[0].approve(always=Grant())


def test_the_time_of_a_decision_is_taken_where_it_is_put() -> None:
    """A door with another clock neither saves nor loses a decision."""
    shop = Shop([pays("ada")], needs=ask(expires_s=60))
    run = shop.start()
    run.answer(replace(run.pending[0].approve(), at=1e12))
    shop.resume(run)
    assert shop.ran == [("ada", 5)]
    assert run.decisions[0].at is not None
    assert run.decisions[0].at < 1e12


@pytest.mark.parametrize("is_kept", [True, False], ids=["store", "memory"])
def test_an_approval_does_not_outlive_a_cancellation(is_kept: bool) -> None:
    """The run asks again when it is resumed, and it can be decided anew."""
    shop, store = Shop([pays("ada")]), MemoryStore()
    with context(lm=shop.lm):
        run = shop.agent.start(task="x", store=store if is_kept else None)
        question = run.pending[0]
        run.answer(question.approve())
        run.cancel()
        with pytest.raises(DecisionError):
            run.answer(question.approve())
        again = (
            Run.load(store, run.id, shop.agent)
            if is_kept
            else Run.from_json(run.to_json(), shop.agent)
        )
        assert again.resume().status == "waiting"
        assert shop.ran == []
        again.answer(again.pending[0].deny("not any more"))
        assert again.resume().status == "done"
    assert shop.ran == []


def test_a_cancellation_in_the_middle_of_an_execution_leaves_no_approval_behind() -> None:
    """Of a question that the execution had not come to yet."""
    shop = Shop([pays("ada")])
    run = shop.start()
    run.answer(run.pending[0].approve())
    run.begin(Execution(), None, wants_deltas=False)
    run.cancel()
    run.stopped(RunCancelledError("cancelled"))
    assert (run.status, run.answers, run.decisions) == ("cancelled", {}, [])


def test_an_approval_that_another_process_discarded_is_not_used_by_a_run_that_had_read_it() -> None:
    """What the store has left is what counts, and so does a denial that came later."""
    shop, store = Shop([pays("ada")]), MemoryStore()
    with context(lm=shop.lm):
        shop.agent.start(task="x", store=store, run_id="r")
        store.decide("r", store.summary("r").questions[0].approve())
        run = Run.load(store, "r", shop.agent)
        store.cancel("r")
        again = Run.load(store, "r", shop.agent).resume()
        assert again.status == "waiting"
        store.decide("r", again.pending[0].deny("No!"))
        assert run.resume().status == "done"
    assert shop.ran == []
    assert [(each.kind, each.text) for each in run.decisions] == [("deny", "No!")]


@pytest.mark.parametrize("is_kept", [True, False], ids=["store", "memory"])
def test_an_interrupt_while_a_decision_is_written_leaves_a_question_that_can_be_decided(
    monkeypatch: pytest.MonkeyPatch,
    is_kept: bool,
) -> None:
    shop = Shop([pays("ada")])
    with context(lm=shop.lm):
        run = shop.agent.start(task="x", store=MemoryStore() if is_kept else None)
        run.answer(run.pending[0].approve())

        def interrupted(journal: Journal, entry: Entry) -> None:
            del journal
            raise KeyboardInterrupt(entry.kind)

        with monkeypatch.context() as patched:
            patched.setattr(Journal, "add", interrupted)
            with pytest.raises(KeyboardInterrupt, match="decision"):
                run.resume()
        assert shop.ran == []
        if run.resume().status == "waiting":
            run.answer(run.pending[0].approve())
            run.resume()
    assert run.status == "done"
    assert shop.ran == [("ada", 5)]


@pytest.mark.parametrize("ahead_s", [600.0, -600.0])
def test_a_question_of_a_stored_run_expires_by_the_clock_of_its_store(ahead_s: float) -> None:
    """The clocks of machines do not matter."""
    shop, store = (
        Shop([pays("ada")], needs=ask(expires_s=60)),
        MemoryStore(clock=lambda: time.time() + ahead_s),
    )
    with context(lm=shop.lm):
        run = shop.agent.start(task="x", store=store)
        run.answer(run.pending[0].approve())
        assert run.resume().status == "done"
    assert shop.ran == [("ada", 5)]


def test_a_copy_of_a_kept_run_does_not_bring_its_decisions_along() -> None:
    """The approval is taken once, where the run is kept."""
    shop, store = Shop([pays("ada")]), MemoryStore()
    with context(lm=shop.lm):
        run = shop.agent.start(task="x", store=store)
        run.answer(run.pending[0].approve())
        copies = [Run.from_json(run.to_json(), shop.agent) for _ in range(2)]
        assert [each.resume().status for each in copies] == ["waiting", "waiting"]
        assert run.resume().status == "done"
    assert shop.ran == [("ada", 5)]


@pytest.mark.parametrize(
    "later",
    [None, Policy([deny("*")]), Policy([ask("*")])],
    ids=["none", "deny", "ask"],
)
def test_what_was_decided_by_a_policy_stays_decided_when_the_policy_changes(
    later: Policy | None,
) -> None:
    """A replay goes by what was so then, and runs nothing twice."""
    shop = Shop([native_step("", "look", {"at": "x"}), pays("ada")])
    with context(policy=Policy([allow("look")])):
        run = shop.start()
    assert shop.ran == [("x", 0)]
    run.answer(run.pending[0].approve())
    with context(policy=later):
        shop.resume(run)
    assert shop.ran.count(("x", 0)) == 1
    assert run.trajectory["observation_0"] == "x"
    # The call that was still waiting is under the rules of now: a new denial holds for it.
    assert (("ada", 5) in shop.ran) is (later is None or later.rules[0].verdict == "ask")


def test_a_policy_that_comes_while_a_run_waits_moves_nothing() -> None:
    shop = Shop([native_step("", "look", {"at": "x"}), pays("ada")])
    run = shop.start()
    run.answer(run.pending[0].approve())
    with context(policy=Policy([allow("*")])):
        shop.resume(run)
    assert run.prediction.answer == "ok"
    assert shop.ran == [("x", 0), ("ada", 5)]


def test_destructive_asks_unless_the_tool_only_reads() -> None:
    @tool(require_confirmation="destructive", effect="read")
    def peek() -> str:
        """Peek."""
        return "seen"

    @tool(require_confirmation="destructive")
    def wipe() -> str:
        """Wipe."""
        raise AssertionError

    assert peek() == "seen"
    with pytest.raises(ConfirmationRequired):
        wipe()


def test_a_policy_is_set_for_the_process_too() -> None:
    shop = Shop([native_step("", "look", {"at": "x"})])
    configure(policy=Policy([deny("look")]))
    try:
        assert shop.start().prediction.answer == "ok"
    finally:
        configure(policy=None)
    assert shop.ran == []


# -- grants


def test_without_a_grant_every_call_asks_again() -> None:
    shop = Shop([pays("ada"), pays("ada")])
    run = shop.start()
    run.answer(run.pending[0].approve())
    assert shop.resume(run).status == "waiting"


@pytest.mark.parametrize(
    ("grant", "ran"),
    [
        (Grant(), ["ada", "ada", "ada"]),
        (Grant(calls=1), ["ada", "ada"]),
        (Grant(args={"to": "a*"}, calls=5), ["ada", "ada", "ada"]),
        (Grant(args={"to": "e*"}), ["ada"]),
        (Grant(until=0.0), ["ada"]),
        (Grant(until=1e12), ["ada", "ada", "ada"]),
        (Grant(args="any"), ["ada", "ada", "ada", "eve"]),
    ],
    ids=["same", "one_call", "pattern", "other_pattern", "over", "until", "any"],
)
def test_a_grant_holds_for_what_it_says(grant: Grant, ran: list[str]) -> None:
    """This run, N calls, until a time, the same arguments or a pattern."""
    shop = Shop([pays("ada"), pays("ada"), pays("ada"), pays("eve")])
    run = shop.start()
    run.answer(run.pending[0].approve(always=grant).signed("grace"))
    shop.resume(run)
    assert [to for to, _ in shop.ran] == ran
    used = [each for each in run.decisions if each.via == f"grant:{run.decisions[0].question_id}"]
    assert len(used) == len(ran) - 1  # every use is kept, and told
    assert len(shop.heard(events.Decided)) == len(ran)


def test_grants_are_listed_and_revoked() -> None:
    shop = Shop([pays("ada"), pays("ada"), pays("eve"), pays("ada")])
    run = shop.start()
    run.answer(run.pending[0].approve(always=Grant(calls=3)))
    shop.resume(run)
    [(key, left)] = run.grants.items()
    assert left.calls == 2
    run.revoke(key, by="grace")
    assert run.grants == {}
    with pytest.raises(DecisionError, match="no grant"):
        run.revoke(key)
    run.answer(run.pending[0].deny())
    shop.resume(run)
    assert run.status == "waiting"
    assert [to for to, _ in shop.ran] == ["ada", "ada"]


def test_a_grant_is_of_its_run_alone() -> None:
    """No other run of the same agent, in the same context, is let through."""
    shop = Shop([pays("ada"), DONE, pays("ada")])
    run = shop.start()
    run.answer(run.pending[0].approve(always=Grant(args="any")))
    shop.resume(run)
    assert shop.start().status == "waiting"
    assert len(shop.ran) == 1


def test_branches_at_once_use_the_last_calls_of_a_grant_once_each() -> None:
    """Of four branches that ask at the same time, two find what is left of the grant, and two wait."""
    one = asking(lambda: "1")

    class Both(Module):
        async def aforward(self, /, **inputs: Any) -> Any:
            del inputs
            await one.acall()
            return await gather(*[one.acall() for _ in range(4)])

    run = asyncio.run(Both().astart())
    run.answer(run.pending[0].approve(always=Grant(calls=2)))
    asyncio.run(run.aresume())
    assert run.status == "waiting"
    assert [each.via[:6] for each in run.decisions[1:]] == ["grant:", "grant:"]
    assert run.grants == {}
    assert len(run.pending) == 2
    assert all(each.path.startswith("gather#0.") for each in run.pending)


# -- by id


def test_a_decision_by_id_from_another_thread_or_task_counts() -> None:
    shop = Shop([pays("ada"), pays("bob")])
    run = shop.start()
    first = run.pending[0].id
    assert get_confirmation_status(first) == "pending"
    thread = threading.Thread(target=respond_to_confirmation, args=(first,))
    thread.start()
    thread.join()
    assert get_confirmation_status(first) == "approved"
    shop.resume(run)
    assert get_confirmation_status(first) == "approved"
    second = run.pending[0].id

    async def other_task() -> None:
        await asyncio.create_task(
            asyncio.to_thread(respond_to_confirmation, second, approved=True, data={"to": "eve"}),
        )

    asyncio.run(other_task())
    assert get_confirmation_status(second) == "edited"
    shop.resume(run)
    assert [to for to, _ in shop.ran] == ["ada", "eve"]


@pytest.mark.parametrize(
    ("response", "status"),
    [
        ({}, "approved"),
        ({"status": "approved"}, "approved"),
        ({"approved": False}, "rejected"),
        ({"approved": False, "data": "too much", "status": "rejected"}, "rejected"),
        ({"data": {"to": "bob"}}, "edited"),
        ({"data": {"to": "bob"}, "status": "edited"}, "edited"),
        ({"data": "ask bob", "status": "feedback"}, "feedback"),
        ({"approved": False, "data": "ask bob", "status": "feedback"}, "feedback"),
    ],
    ids=["default", "approved", "false", "reason", "data", "edited", "feedback", "feedback_false"],
)
def test_a_response_by_id_in_udspys_words(response: dict[str, Any], status: str) -> None:
    run = Shop([pays("ada")]).start()
    key = run.pending[0].id
    respond_to_confirmation(key, **response)
    assert get_confirmation_status(key) == status
    respond_to_confirmation(key, **response)  # equal: passed over (U92)
    with pytest.raises(DecisionError, match="decided already"):
        respond_to_confirmation(key, approved=False, data="something else", status="feedback")


def test_a_response_that_comes_twice_is_passed_over_after_the_run_went_on_too() -> None:
    """The second button of a page that two people have open."""
    shop = Shop([pays("ada")])
    run = shop.start()
    key = run.pending[0].id
    respond_to_confirmation(key, approved=True)
    shop.resume(run)
    respond_to_confirmation(key, approved=True)
    for other in ({"approved": False}, {"data": {"to": "bob"}}):
        with pytest.raises(DecisionError, match="is decided already: approved"):
            respond_to_confirmation(key, **other)
    assert shop.ran == [("ada", 5)]


def test_an_answer_that_is_no_decision_is_refused() -> None:
    """It says how a decision is made."""
    run = Shop([pays("ada")]).start()
    with pytest.raises(DecisionError, match=r"A decision comes from a question: .* found 'yes'"):
        run.answer("yes")  # type: ignore[arg-type]


def test_a_question_for_input_is_filled_in_or_denied_and_not_only_approved() -> None:
    question = Question(
        "input",
        "Which room?",
        ToolCall(name="book"),
        id="q",
        form={"type": "object", "properties": {"n": {"type": "integer"}}},
    )
    for decision in (Decision("q", "approve"), Decision("q", "edit", args={"n": 1})):
        with pytest.raises(DecisionError, match="asks for input"):
            confirm.accept(question, decision, now=0.0)
    assert confirm.accept(question, question.fill({"n": 1}), now=0.0).kind == "reply"
    assert confirm.accept(question, question.deny("no"), now=0.0).kind == "deny"


@pytest.mark.parametrize(
    "response",
    [
        {"approved": True, "status": "rejected"},
        {"approved": False, "status": "approved"},
        {"approved": False, "data": {"to": "bob"}},
        {"status": "edited"},
        {"status": "feedback"},
        {"data": "yes"},
        {"status": "approved", "data": {"to": "bob"}},
        {"status": "maybe"},
        {"data": {}},
    ],
    ids=[
        "true_rejected",
        "false_approved",
        "false_edit",
        "no_edit",
        "no_feedback",
        "text",
        "approved_edit",
        "unknown",
        "empty",
    ],
)
def test_a_response_that_contradicts_itself_is_refused(response: dict[str, Any]) -> None:
    run = Shop([pays("ada")]).start()
    key = run.pending[0].id
    with pytest.raises(DecisionError):
        respond_to_confirmation(key, **response)
    assert get_confirmation_status(key) == "pending"


def test_an_id_that_was_never_given_is_an_error() -> None:
    with pytest.raises(DecisionError, match="is known in this process"):
        respond_to_confirmation("nonsense")
    assert get_confirmation_status("nonsense") is None


def test_predict_asks_as_react_does() -> None:
    shop = Shop([])
    predict = Predict("task -> answer", tools=[shop.agent.react.tools["pay"]])
    with context(lm=ScriptedLM([pays("ada"), "ok"])):
        run = predict.start(task="x")
        assert run.pending[0].thought == "paying"
        respond_to_confirmation(run.pending[0].id)
        assert run.resume().prediction.answer == "ok"
    assert shop.ran == [("ada", 5)]


def test_a_decision_by_id_reaches_a_run_in_a_store() -> None:
    """As another process would make it."""
    store = MemoryStore()
    shop = Shop([pays("ada")])
    with context(lm=shop.lm):
        run = shop.agent.start(store=store, task="x")
    key = run.pending[0].id
    respond_to_confirmation(key, data={"to": "bob"}, store=store, by="grace")
    with pytest.raises(DecisionError, match="No run in this store"):
        respond_to_confirmation("nonsense", store=store)
    with context(lm=shop.lm):
        again = Run.load(store, run.id, shop.agent)
        again.resume()
    assert shop.ran == [("bob", 5)]
    assert again.decisions[0].by == "grace"


def test_a_grant_and_its_end_survive_a_store() -> None:
    """Used, counted and revoked over several loads."""
    store = MemoryStore()
    shop = Shop([pays("ada"), pays("ada"), pays("bob"), pays("ada"), pays("eve"), pays("ada")])
    with context(lm=shop.lm):
        key = shop.agent.start(store=store, task="x").id

        def load() -> Run:
            return Run.load(store, key, shop.agent)

        run = load()
        run.answer(run.pending[0].approve(always=Grant(calls=9)))
        granted = run.pending[0].id
        load().resume()
        assert load().grants[granted].calls == 8
        run = load()
        run.answer(run.pending[0].deny())
        run.resume()
        run = load()
        assert run.grants[granted].calls == 7
        run.revoke(granted)
        run.answer(run.pending[0].deny())
        run.resume()
        run = load()
    assert run.grants == {}
    assert run.pending[0].call.args["to"] == "ada"
    assert [to for to, _ in shop.ran] == ["ada", "ada", "ada"]


def test_a_loaded_run_is_found_by_its_question_and_keeps_what_was_revoked() -> None:
    shop = Shop([pays("ada"), pays("eve")])
    run = shop.start()
    run.answer(run.pending[0].approve(always=Grant(args="any", calls=9)))
    run.revoke(run.pending[0].id)
    shop.resume(run)
    again = Run.from_json(run.to_json(), shop.agent)
    assert again.grants == {}
    assert [each.kind for each in again.decisions] == ["approve", "revoke"]
    respond_to_confirmation(again.pending[0].id, approved=False)
    assert get_confirmation_status(again.pending[0].id) == "rejected"
    with context(lm=shop.lm):
        assert again.resume().prediction.answer == "ok"


def test_of_two_who_decide_at_once_one_is_told_that_the_other_was_first() -> None:
    run = Shop([pays("ada")]).start()
    question = run.pending[0]
    start = threading.Barrier(20)

    def press(i: int) -> bool:
        start.wait()
        try:
            run.answer(question.reply(f"words {i}"))
        except DecisionError:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(press, range(20))) == 1
    assert len(run.decisions) == 1


def test_asking_is_told_apart_from_running() -> None:
    """Hooks of an observer."""
    heard: list[str] = []

    class Hooks:
        def on_question(self, question: Any) -> None:
            heard.append(f"asked {question.call.name}")

        def on_tool_start(self, call_id: str, name: str, args: Any) -> None:
            heard.append(f"ran {name}")

    shop = Shop([pays("ada")])
    with context(lm=shop.lm, callbacks=[Hooks()]):
        run = shop.agent.start(task="x")
        assert heard == ["asked pay"]
        run.answer(run.pending[0].approve())
        run.resume()
    assert heard == ["asked pay", "ran pay"]


def test_a_new_denial_holds_for_a_question_that_may_expire() -> None:
    """That it was asked, and when, is kept; that is no decision."""
    shop = Shop([pays("ada")], needs=ask(expires_s=60))
    run = shop.start()
    run.answer(run.pending[0].approve())
    with context(policy=Policy([deny("*")])):
        shop.resume(run)
    assert shop.ran == []


class UserId(str):
    """A text of a class of the user's."""


DOORS = {
    "decide": lambda run, **who: run.answer(run.pending[0].approve().signed(**who)),
    "by hand": lambda run, **who: run.answer(Decision(run.pending[0].id, "approve", **who)),
    "say": lambda run, **who: run.say("Hello.", **who),
    "cancel a call": lambda run, **who: run.cancel_call(run.pending[0].call.id, **who),
    "store: decide": lambda run, **who: run.persistence.store.decide(
        run.id, Decision(run.pending[0].id, "approve", **who)
    ),
    "store: say": lambda run, **who: run.persistence.store.say(run.id, "Hello.", **who),
    "store: cancel a call": lambda run, **who: run.persistence.store.cancel_call(
        run.id, run.pending[0].call.id, **who
    ),
}


def waiting_talk(store: Any) -> tuple[ReAct, Run[Any]]:
    act = tool(lambda: "done", name="act", require_confirmation=True)
    agent = ReAct("question -> answer", [act], native=True)
    return agent, agent.start(question="q", store=store)


@pytest.mark.parametrize("who", [{"by": 5}, {"by": ["ann"]}, {"via": 1.5}, {"via": True}])
@pytest.mark.parametrize("door", DOORS)
def test_an_author_that_a_store_could_not_read_back_is_refused_at_every_door(
    door: str, who: dict[str, Any]
) -> None:
    """It was taken, and then the run could never be read again."""
    steps = [{"name": "act", "args": {}}, {"name": "finish", "args": {"answer": "ok"}}]
    stores = [MemoryStore()]
    if "store" not in door:
        stores.append(None)
    for store in stores:
        with context(lm=ScriptedLM(steps)):
            agent, run = waiting_talk(store)
            with pytest.raises(DecisionError, match=r"Pass a text, such as `\w+=str\(...\)`"):
                DOORS[door](run, **who)
            if store is not None:
                run = Run.load(store, run.id, agent)
            run.answer(run.pending[0].approve().signed(UserId("ann")))
            assert run.resume().status == "done"
        assert [type(decision.by) for decision in run.decisions] == [str]


@pytest.mark.parametrize(
    "made",
    [
        lambda question: question.reply(None),
        lambda question: question.reply({"a": 1}),
        lambda question: question.edit({}, removed=5),
        lambda question: question.edit({}, removed="note"),
    ],
    ids=["None", "a dict", "a number", "one name"],
)
def test_a_decision_of_another_type_says_what_to_pass(made: Any) -> None:
    for kind in ("confirm", "result", "input"):
        question = Question(kind, "?", ToolCall(name="act", args={"note": ""}), key="k")
        with pytest.raises(DecisionError):
            made(question)
