"""A fork begins with the first steps of another run: nothing in them happens again, and the rest is
live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_script import fields, native_step

from ferrule import (
    Context,
    Grant,
    Later,
    MemoryStore,
    Module,
    Policy,
    Predict,
    ReAct,
    Response,
    Run,
    SQLiteStore,
    Tool,
    ToolCall,
    advance,
    ask,
    context,
    deny,
    events,
    tool,
)
from ferrule.errors import (
    ConfigurationError,
    DecisionError,
    InputError,
    ReplayMismatchError,
    RunError,
    StoreError,
    ToolError,
    UnavailableError,
)
from ferrule.runs.journal.cut import ForkedFrom
from ferrule.testing import ScriptedLM


def done(answer: str = "ok") -> Response:
    return native_step("done", "finish", {"answer": answer})


def pay_step(*names: str) -> Response:
    calls = [ToolCall(name="pay", args={"to": name}, id=f"call-{name}") for name in names]
    return Response("", tuple(calls))


class Shop:
    """An agent that pays people. `paid` is what happened, `requests` what the model was asked."""

    def __init__(self, **options: Any) -> None:
        self.paid: list[str] = []
        self.keys: list[str] = []
        self.requests: list[Any] = []
        self.script: list[Any] = []
        self.agent = ReAct("task -> answer", [self.tool(**options)], lm=ScriptedLM(by=self.answer))

    def tool(self, **options: Any) -> Tool:
        def pay(to: str, ctx: Context) -> Any:
            """Pay a person."""
            self.paid.append(to)
            self.keys.append(ctx.key)
            return self.work(to)

        return tool(pay, **options)

    def work(self, to: str) -> Any:
        return f"paid {to}"

    def answer(self, request: Any) -> Any:
        self.requests.append(request)
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    def start(self, *script: Any, store: Any = None, **options: Any) -> Run[Any]:
        self.script = list(script)
        return self.agent.start(task="x", store=store, **options)

    def go_on(self, run: Run[Any], *script: Any, **options: Any) -> Run[Any]:
        self.script = list(script)
        return run.resume(**options)


@pytest.fixture(params=["no store", "memory", "file", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "no store":
        yield None
        return
    if request.param == "postgres":
        from ferrule import PostgresStore

        dsn = request.getfixturevalue("postgres").dsn
        opened: Any = PostgresStore(dsn, schema=request.getfixturevalue("schema"))
        opened.setup()
    elif request.param == "memory":
        opened = MemoryStore()
    else:
        opened = SQLiteStore(tmp_path / "runs.db")
    yield opened
    opened.close()


def again(run: Run[Any], store: Any, program: Any) -> Run[Any]:
    """The run as another process has it."""
    if store is None:
        return Run.from_json(run.to_json(), program)
    return Run.load(store, run.id, program)


# -- the first steps


def test_a_fork_keeps_the_first_steps_and_does_the_others_again(store: Any) -> None:
    shop = Shop()
    original = again(
        shop.start(pay_step("ada"), pay_step("bob"), done(), store=store), store, shop.agent
    )
    fork = original.fork(at_step=1)
    assert [step.calls[0].args["to"] for step in fork.trajectory.steps] == ["ada"]
    assert shop.paid == ["ada", "bob"]
    shop.go_on(fork, pay_step("zoe"), done("else"))
    assert (fork.status, fork.prediction.answer) == ("done", "else")
    assert shop.paid == ["ada", "bob", "zoe"]
    assert fork.id != original.id
    loaded = again(fork, store, shop.agent)
    assert loaded.forked_from == ForkedFrom(original.id, at="2", entries=3)
    assert loaded.prediction.trajectory == fork.prediction.trajectory
    assert again(original, store, shop.agent).prediction.answer == "ok"


def test_each_step_of_the_trajectory_can_be_the_first_that_is_done_again(store: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), pay_step("bob", "eve"), done(), store=store)
    assert [len(original.fork(at_step=number).trajectory.steps) for number in range(4)] == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("wrong", [4, -1, True, "1", 1.0])
def test_what_is_not_a_step_is_refused(wrong: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), pay_step("bob"), done())
    with pytest.raises(InputError, match=r"at_step"):
        original.fork(at_step=wrong)


def test_messages_and_unreadable_answers_count_as_the_trajectory_counts_them() -> None:
    shop = Shop()
    run = shop.agent.stream(task="x").run
    run.say("Hurry")
    shop.script = [pay_step("ada"), done()]
    run.resume()
    said = run.trajectory.steps[0]
    assert said.said == "Hurry"
    assert run.fork(at_step=1).trajectory.steps == [said]
    assert run.fork(at_step=0).trajectory.steps == []


def test_a_place_is_the_path_of_an_event(store: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), pay_step("bob"), done(), store=store)
    [_, second, _] = [
        event for event in original.events() if isinstance(event, events.ModelAnswered)
    ]
    fork = original.fork(at=second.path)
    shop.go_on(fork, done("early"))
    assert (fork.prediction.answer, shop.paid) == ("early", ["ada", "bob"])


def test_a_place_that_the_journal_does_not_have_is_refused() -> None:
    original = Shop().start(done())
    with pytest.raises(InputError, match=r"no entry at '9'"):
        original.fork(at="9")
    with pytest.raises(InputError, match="found both"):
        original.fork(at="0", at_step=0)


def test_one_text_is_not_a_list_of_messages() -> None:
    """Each of its letters was a message."""
    original = Shop().start(done())
    with pytest.raises(InputError, match=r"a list of texts; found 'Be kind\.'"):
        original.fork(messages="Be kind.")


# -- what is tried


def test_inputs_and_the_program_of_a_fork_may_differ(store: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), done(), store=store)
    other = ReAct("task -> answer", [shop.agent.tools["pay"]], lm=ScriptedLM(by=shop.answer))
    other.signature = other.signature.with_instructions("Be brief.")
    fork = original.fork(at_step=1, inputs={"task": "another"}, program=other)
    shop.go_on(fork, done("brief"))
    assert fork.prediction.answer == "brief"
    shown = "\n".join(message.text for message in shop.requests[-1].messages)
    assert "Be brief." in shown
    assert "another" in shown
    assert again(fork, store, other).inputs == {"task": "another"}
    assert original.inputs == {"task": "x"}
    assert any(entry.kind == "migrated" for entry in fork.journal.entries)


def test_inputs_that_do_not_fit_are_refused_at_once() -> None:
    original = Shop().start(done())
    with pytest.raises(InputError):
        original.fork(inputs={"tusk": 1})
    with pytest.raises(ConfigurationError):
        original.fork(program=ReAct)  # pyright: ignore[reportArgumentType]


def test_messages_to_a_fork_go_on_from_the_end_of_a_run_that_is_done(store: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), done(), store=store)
    fork = original.fork(messages=["Now in French", "and short"])
    shop.go_on(fork, done("oui"))
    assert fork.prediction.answer == "oui"
    assert [m.text for m in shop.requests[-1].messages][-2:] == ["Now in French", "and short"]
    second = again(fork, store, shop.agent).fork(messages=["And in Latin"])
    shop.go_on(second, done("ita"))
    assert [m.text for m in shop.requests[-1].messages if m.role == "user"][1:] == [
        "Now in French",
        "and short",
        "And in Latin",
    ]
    assert shop.paid == ["ada"]


def test_a_fork_takes_messages_after_those_that_the_first_steps_have(store: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), done(), store=store)
    fork = original.fork(messages=["one"])
    shop.go_on(fork, pay_step("bob"), done())
    second = again(fork, store, shop.agent).fork()
    assert second.forked_from is not None
    second.say("two")
    shop.go_on(second, done("last"))
    assert [m.text for m in shop.requests[-1].messages if m.role == "user"][1:] == ["one", "two"]
    assert second.prediction.answer == "last"


def test_a_program_that_takes_no_messages_refuses_them() -> None:
    with context(lm=ScriptedLM([fields(b="B")])):
        original = Predict("a -> b").start(a="A")
    with pytest.raises(DecisionError):
        original.fork(messages=["hello"])


def test_a_fork_has_another_model_and_another_policy(store: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), pay_step("bob"), done(), store=store)
    fork = original.fork(at_step=1)
    shop.go_on(fork, pay_step("bob"), done(), policy=Policy([deny("pay")]))
    assert shop.paid == ["ada", "bob"]
    second = original.fork(at_step=1)
    with shop.agent.override(lm=ScriptedLM([done("other model")])):
        second.resume()
    assert second.prediction.answer == "other model"


def test_the_policy_of_the_start_holds_in_a_fork(store: Any) -> None:
    shop = Shop()
    with context(policy=Policy([deny("pay")])):
        original = shop.start(pay_step("ada"), done(), store=store)
    fork = original.fork(at_step=0)
    shop.go_on(fork, pay_step("bob"), done())
    assert shop.paid == []


# -- runs in any state


def test_a_failed_run_goes_on_as_a_fork_from_before_its_failure(store: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), UnavailableError("down"), store=store)
    assert original.status == "failed"
    fork = again(original, store, shop.agent).fork()
    shop.go_on(fork, done("up"))
    assert (fork.prediction.answer, shop.paid) == ("up", ["ada"])


def test_a_cancelled_run_can_be_forked(store: Any) -> None:
    shop = Shop(require_confirmation=True)
    original = shop.start(pay_step("ada"), store=store)
    original.cancel()
    fork = again(original, store, shop.agent).fork(at_step=0)
    shop.go_on(fork, done("no payment"))
    assert (fork.prediction.answer, original.status) == ("no payment", "cancelled")


def test_a_run_that_executes_cannot_be_forked(store: Any) -> None:
    shop = Shop()
    refusals: list[Exception] = []

    def fork_inside(to: str) -> str:
        for run in (
            [stream.run] if store is None else [stream.run, again(stream.run, store, shop.agent)]
        ):
            with pytest.raises(RunError, match="is executing") as refusal:
                run.fork(at_step=0)
            refusals.append(refusal.value)
        return to

    shop.work = fork_inside  # pyright: ignore[reportAttributeAccessIssue]
    shop.script = [pay_step("ada"), done()]
    stream = shop.agent.stream(task="x", store=store)
    for _ in stream:
        pass
    assert len(refusals) == (1 if store is None else 2)


def test_the_id_of_a_fork_is_taken_once(store: Any) -> None:
    if store is None:
        return
    shop = Shop()
    original = shop.start(done(), store=store)
    shop.go_on(original.fork(at_step=0, run_id="mine"), done())
    with pytest.raises(RunError):
        shop.go_on(original.fork(at_step=0, run_id="mine"), done())


# -- decisions


def test_a_waiting_run_and_its_fork_are_decided_each_for_itself(store: Any) -> None:
    shop = Shop(require_confirmation=True)
    original = shop.start(pay_step("ada"), done(), store=store)
    fork = original.fork()
    shop.go_on(fork)
    [asked], [own] = original.pending, fork.pending
    assert asked.id != own.id
    fork.answer(own.deny("never"))
    shop.go_on(fork, done("kept"))
    assert (shop.paid, original.status) == ([], "waiting")
    original.answer(asked.approve())
    shop.go_on(original, done("paid"))
    assert (original.prediction.answer, fork.prediction.answer) == ("paid", "kept")
    assert shop.paid == ["ada"]


def test_a_question_can_be_answered_otherwise_from_the_place_of_its_decision(store: Any) -> None:
    shop = Shop(require_confirmation=True)
    original = shop.start(pay_step("ada"), store=store)
    original.answer(original.pending[0].deny("no"))
    shop.go_on(original, done("unpaid"))
    fork = again(original, store, shop.agent).fork(at="1.0?a0")
    shop.go_on(fork)
    fork.answer(fork.pending[0].approve())
    shop.go_on(fork, done("paid"))
    assert (shop.paid, fork.prediction.answer) == (["ada"], "paid")


def test_one_approval_is_not_two_payments(store: Any) -> None:
    """The fork is cut between the approval and the call that used it."""
    shop = Shop(require_confirmation=True)
    original = shop.start(pay_step("ada", "bob"), store=store)
    for question in original.pending:
        original.answer(question.approve())
    shop.go_on(original, done())
    slots = [entry.slot for entry in original.journal.entries]
    fork = original.fork(at=slots[slots.index("1.1?a0") + 1])
    shop.go_on(fork)
    assert fork.status == "waiting"
    assert sorted(shop.paid) == ["ada", "bob"]
    for question in fork.pending:
        assert question.call.args["to"] in {"ada", "bob"}


def test_a_grant_does_not_hold_in_a_fork(store: Any) -> None:
    shop = Shop(require_confirmation=True)
    original = shop.start(pay_step("ada"), store=store)
    question = original.pending[0]
    original.answer(question.approve(always=Grant(args="any")))
    shop.go_on(original, pay_step("ada"), done())
    assert shop.paid == ["ada", "ada"]
    fork = original.fork(at_step=2)
    assert fork.grants == {}
    shop.go_on(fork, pay_step("ada"))
    assert fork.status == "waiting"
    assert shop.paid == ["ada", "ada"]


def test_what_was_denied_stays_denied(store: Any) -> None:
    shop = Shop(require_confirmation=True)
    original = shop.start(pay_step("ada"), store=store)
    original.answer(original.pending[0].deny("no"))
    shop.go_on(original, done())
    fork = original.fork(at_step=1)
    shop.go_on(fork, done("still unpaid"))
    assert (fork.prediction.answer, shop.paid) == ("still unpaid", [])


def test_the_time_of_a_question_begins_again(store: Any) -> None:
    shop = Shop()
    policy = Policy([ask("pay", expires_s=1000)])
    with context(policy=policy):
        original = shop.start(pay_step("ada"), store=store)
        fork = original.fork()
        shop.go_on(fork)
    [asked], [own] = original.pending, fork.pending
    assert asked.expires_at is not None
    assert own.expires_at is not None
    assert own.expires_at > asked.expires_at


# -- a fork in the middle of a step


def test_calls_of_a_step_that_had_begun_keep_their_results(store: Any) -> None:
    """Both calls run at once, so the journal has both starts before the first result."""
    shop = Shop()
    original = shop.start(pay_step("ada", "bob"), done(), store=store)
    # Either call may begin first.
    _, second = [entry.slot for entry in original.journal.entries if entry.kind == "begun"]
    fork = original.fork(at=second)
    shop.go_on(fork, done("mid"))
    assert fork.prediction.answer == "mid"
    assert sorted(shop.paid) == sorted(["ada", "bob", {"1.0": "ada", "1.1": "bob"}[second]])
    assert [result.content for result in fork.trajectory.steps[0].results] == [
        "paid ada",
        "paid bob",
    ]


def test_a_call_is_made_again_from_its_own_place(store: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), done(), store=store)
    fork = original.fork(at="1.0")
    shop.go_on(fork, done("twice"))
    assert shop.paid == ["ada", "ada"]
    assert len(set(shop.keys)) == 2


def test_an_interrupted_call_that_repeats_keeps_the_key_with_which_it_began(store: Any) -> None:
    shop = Shop(effect="idempotent")

    def die(to: str) -> str:
        raise KeyboardInterrupt

    shop.work = die  # pyright: ignore[reportAttributeAccessIssue]
    shop.script = [pay_step("ada"), done()]
    stream = shop.agent.stream(task="x", store=store)
    with pytest.raises(KeyboardInterrupt):
        for _ in stream:
            pass
    fork = again(stream.run, store, shop.agent).fork()
    shop.work = lambda to: to  # pyright: ignore[reportAttributeAccessIssue]
    loaded = fork
    shop.go_on(loaded, done("repeated"))
    assert loaded.prediction.answer == "repeated"
    assert shop.paid == ["ada", "ada"]
    assert len(set(shop.keys)) == 1


def test_an_interrupted_call_that_may_not_repeat_asks_in_the_fork_too(store: Any) -> None:
    shop = Shop(unknown="ask")

    def die(to: str) -> str:
        raise KeyboardInterrupt

    shop.work = die  # pyright: ignore[reportAttributeAccessIssue]
    shop.script = [pay_step("ada"), done()]
    stream = shop.agent.stream(task="x", store=store)
    with pytest.raises(KeyboardInterrupt):
        for _ in stream:
            pass
    fork = again(stream.run, store, shop.agent).fork()
    shop.go_on(fork)
    assert [question.kind for question in fork.pending] == ["unknown"]
    assert shop.paid == ["ada"]


def test_a_fork_waits_for_a_result_from_outside_under_its_own_question(store: Any) -> None:
    shop = Shop()
    shop.work = lambda to: Later(key=f"job-{to}")  # pyright: ignore[reportAttributeAccessIssue]
    original = shop.start(pay_step("ada"), store=store)
    fork = original.fork()
    shop.go_on(fork)
    [asked], [own] = original.pending, fork.pending
    assert (asked.key, asked.id == own.id) == (own.key, False)
    fork.deliver("job-ada", "shipped")
    shop.go_on(fork, done("got it"))
    assert (fork.prediction.answer, original.status) == ("got it", "waiting")
    assert shop.paid == ["ada"]
    second = again(fork, store, shop.agent).fork(at_step=1)
    shop.go_on(second, done("once more"))
    assert (second.prediction.answer, shop.paid) == ("once more", ["ada"])


# -- programs inside


class Nested(Shop):
    """An agent that has another one as a tool, which pays."""

    def __init__(self) -> None:
        super().__init__()
        clerk = ReAct(
            "job -> answer", [self.agent.tools["pay"]], lm=ScriptedLM(by=self.answer), name="clerk"
        )
        self.agent = ReAct("task -> answer", [clerk.as_tool()], lm=ScriptedLM(by=self.answer))


def clerk_step() -> Response:
    return native_step("delegate", "clerk", {"job": "pay them"})


def test_a_fork_goes_on_inside_an_agent_that_is_a_tool(store: Any) -> None:
    shop = Nested()
    original = shop.start(
        clerk_step(), pay_step("ada"), pay_step("bob"), done("both"), done(), store=store
    )
    assert original.status == "done"
    inner = [
        event.path
        for event in original.events()
        if isinstance(event, events.ModelAnswered) and event.depth
    ]
    fork = again(original, store, shop.agent).fork(at=inner[1])
    shop.go_on(fork, pay_step("zoe"), done("one"), done("outer"))
    assert fork.prediction.answer == "outer"
    assert shop.paid == ["ada", "bob", "zoe"]
    assert fork.trajectory.steps[0].results[0].content == "one"


def test_steps_of_a_run_are_not_those_of_agents_inside(store: Any) -> None:
    shop = Nested()
    original = shop.start(
        clerk_step(),
        pay_step("ada"),
        done("inner"),
        clerk_step(),
        done("idle"),
        done(),
        store=store,
    )
    fork = original.fork(at_step=1)
    shop.go_on(fork, done("enough"))
    assert (fork.prediction.answer, shop.paid) == ("enough", ["ada"])


class Two(Module):
    """Asks twice, side by side if it is async."""

    def __init__(self) -> None:
        self.first, self.second = Predict("a -> b"), Predict("c -> d")

    def forward(self, a: str) -> Any:
        first = self.first(a=a)
        return self.second(c=first.b)


def test_a_forward_is_forked_at_a_place(store: Any) -> None:
    program = Two()
    with context(lm=ScriptedLM([fields(b="B"), fields(d="D")])):
        original = program.start(a="A", store=store)
    second = original.journal.entries[1].slot
    fork = again(original, store, program).fork(at=second)
    with context(lm=ScriptedLM([fields(d="E")])):
        fork.resume()
    assert fork.prediction.d == "E"
    assert fork.trajectory.steps == []
    with context(lm=ScriptedLM([])), pytest.raises(InputError, match="steps of its own"):
        original.fork(at_step=1)
    with pytest.raises(ConfigurationError, match="No language model"):
        original.fork(at_step=1)


def test_other_inputs_of_a_forward_do_not_fit_what_it_recorded(store: Any) -> None:
    program = Two()
    with context(lm=ScriptedLM([fields(b="B"), fields(d="D")])):
        original = program.start(a="A", store=store)
    fork = original.fork(at=original.journal.entries[1].slot, inputs={"a": "other"})
    with context(lm=ScriptedLM([fields(b="X"), fields(d="Y")])):
        fork.resume()
    assert isinstance(fork.error, ReplayMismatchError)
    fresh = original.fork(at_step=0, inputs={"a": "other"})
    with context(lm=ScriptedLM([fields(b="X"), fields(d="Y")])):
        fresh.resume()
    assert fresh.prediction.d == "Y"
    with pytest.raises(InputError):
        original.fork(at_step=0, inputs={"b": 1})


def test_code_goes_on_in_its_middle(store: Any) -> None:
    pytest.importorskip("pydantic_monty")
    shop = Shop()
    code = 'a = await pay(to="ada")\nb = await pay(to="bob")\nprint(a, b)'
    agent = ReAct(
        "task -> answer", [shop.agent.tools["pay"]], calls="code", lm=ScriptedLM(by=shop.answer)
    )
    shop.agent = agent
    step = Response("", (ToolCall(name="run_code", args={"code": code}),))
    original = shop.start(step, done(), store=store)
    assert original.status == "done", original.error
    begun = [entry.slot for entry in original.journal.entries if entry.kind == "begun"]
    fork = again(original, store, agent).fork(at=begun[-1])
    shop.go_on(fork, done("code"))
    assert fork.prediction.answer == "code"
    assert shop.paid == ["ada", "bob", "bob"]


# -- what a fork says of itself


def test_the_events_of_a_fork_say_what_it_is_a_fork_of(store: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), done(), store=store)
    fork = original.fork(at_step=1)
    seen: list[events.Event] = []
    with context(callbacks=[seen.append]):
        shop.go_on(fork, done())
    started = [event for event in seen if isinstance(event, events.RunStarted)]
    assert [event.forked_from for event in started] == [original.id]
    [first, *_] = again(fork, store, shop.agent).events()
    assert first.as_json()["forked_from"] == original.id
    assert not [event for event in seen if isinstance(event, events.CallStarted)]


def test_a_fork_that_stopped_resumes_as_any_run(store: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), done(), store=store)
    fork = original.fork(at_step=1)
    shop.go_on(fork, pay_step("bob"), UnavailableError("down"))
    assert fork.status == "failed"
    loaded = again(fork, store, shop.agent)
    seen: list[events.Event] = []
    with context(callbacks=[seen.append]):
        shop.go_on(loaded, done("up"))
    assert (loaded.prediction.answer, shop.paid) == ("up", ["ada", "bob"])
    assert not [event for event in seen if isinstance(event, events.RunStarted)]


def test_a_fork_resumes_on_an_event_loop(store: Any) -> None:
    shop = Shop()
    original = shop.start(pay_step("ada"), done(), store=store)
    fork = original.fork(at_step=1)
    shop.script = [done("async")]
    asyncio.run(fork.aresume())
    assert fork.prediction.answer == "async"


def test_a_fork_counts_what_its_first_steps_cost() -> None:
    from ferrule import Usage

    shop = Shop()
    answer = pay_step("ada")
    original = shop.start(Response("", answer.tool_calls, usage=Usage(10, 5, 0, 1)), done())
    assert original.fork(at_step=1).usage.total_tokens == 15
    assert original.fork(at_step=0).usage.total_tokens == 0


def test_tool_errors_are_results_too(store: Any) -> None:
    shop = Shop()

    def fail(to: str) -> str:
        raise ToolError("no money")

    shop.work = fail  # pyright: ignore[reportAttributeAccessIssue]
    original = shop.start(pay_step("ada"), done(), store=store)
    fork = original.fork(at_step=1)
    shop.go_on(fork, done("poor"))
    assert (fork.prediction.answer, shop.paid) == ("poor", ["ada"])


# -- a worker's queue


def test_a_worker_goes_on_with_a_fork_that_was_submitted(any_store: Any) -> None:
    shop = Shop()
    shop.script = [pay_step("ann"), pay_step("bob"), done()]
    run = shop.agent.start(task="Pay.", store=any_store, run_id="r")
    assert run.status == "done", run.error
    fork = run.fork(at_step=1, messages=["Not Bob."], run_id="f")
    assert fork.submit() == "f"
    assert any_store.summary("f").status == "queued"
    waiting = Run.load(any_store, "f", shop.agent)
    assert len(waiting.trajectory.steps) == 1
    shop.script = [done("only Ann")]
    assert advance(any_store, "f", shop.agent) == "done"
    again = Run.load(any_store, "f", shop.agent)
    assert again.prediction.answer == "only Ann"
    assert again.forked_from.run_id == "r"
    assert shop.paid == ["ann", "bob"]
    assert "Not Bob." in str(shop.requests[-1].messages[-1].text)


def test_a_submitted_fork_asks_again_for_what_was_approved(any_store: Any) -> None:
    shop = Shop(require_confirmation=True)
    shop.script = [pay_step("ann"), done()]
    run = shop.agent.start(task="Pay.", store=any_store)
    run.answer(run.pending[0].approve())
    fork = run.fork()
    fork.submit()
    assert advance(any_store, fork.id, shop.agent) == "waiting"
    assert shop.paid == []


def test_a_fork_can_be_submitted_on_an_event_loop_and_only_once(any_store: Any) -> None:
    shop = Shop()
    shop.script = [pay_step("ann"), done()]
    fork = shop.agent.start(task="Pay.", store=any_store).fork(at_step=1)
    asyncio.run(fork.asubmit())
    with pytest.raises(RunError, match="has begun"):
        fork.submit()


def test_a_fork_that_the_store_does_not_take_can_still_be_executed_here(any_store: Any) -> None:
    shop = Shop()
    shop.script = [pay_step("ann"), done()]
    fork = shop.agent.start(task="Pay.", store=any_store).fork(at_step=1)
    with pytest.raises(StoreError, match="need an engine"):
        fork.submit(priority=1)
    shop.script = [done("here")]
    assert fork.resume().prediction.answer == "here"


def test_what_cannot_be_submitted_is_refused() -> None:
    shop = Shop()
    shop.script = [pay_step("ann"), done()]
    run = shop.agent.start(task="Pay.")
    with pytest.raises(RunError, match="has no store"):
        run.fork(at_step=1).submit()
    with pytest.raises(ConfigurationError, match=r"A run is forked with a program"):
        run.fork(program="agent")
