"""`Run` as people hold it: what it says of itself, and when."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest
from agent_script import fields, native_step

import ferrule
from ferrule import (
    ConfirmationRequired,
    Grant,
    Limits,
    MemoryStore,
    Module,
    Predict,
    Prediction,
    ReAct,
    Response,
    Run,
    RunError,
    Tool,
    ToolCall,
    ToolRetry,
    Usage,
    context,
)
from ferrule.errors import (
    ConfigurationError,
    ReplayMismatchError,
    RunCancelledError,
    StoreError,
    UnavailableError,
)
from ferrule.runs import state
from ferrule.runs.driver import approval
from ferrule.runs.driver.execution import aexecute
from ferrule.testing import ScriptedLM


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def call(program: Any, driver: str, **inputs: Any) -> Any:
    return asyncio.run(program.acall(**inputs)) if driver == "async" else program(**inputs)


def model(answers: int | None = None) -> ScriptedLM:
    """A model that answers `b`, each answer of 10 and 5 tokens."""
    answer = Response(fields(b="B"), usage=Usage(10, 5, 0, 1))
    return (
        ScriptedLM([answer] * answers) if answers is not None else ScriptedLM(by=lambda _: answer)
    )


class Notify(Module):
    """Does something, and returns nothing."""

    def __init__(self) -> None:
        self.ask = Predict("a -> b")
        self.sent: list[str] = []

    def forward(self, to: str) -> None:
        self.ask(a=to)
        self.sent.append(to)


def test_a_program_that_returns_nothing_runs_once(driver: str) -> None:
    """Also where the run is read again and again."""
    program = Notify()
    with context(lm=model()):
        assert call(program, driver, to="ann") is None
        run = program.start(to="bob")
        assert [run.prediction, run.prediction, run.usage.calls, len(run.trajectory.steps)] == [
            None,
            None,
            1,
            0,
        ]
    assert program.sent == ["ann", "bob"]


@pytest.mark.parametrize("program", [Notify, None, "Notify"], ids=["class", "none", "name"])
def test_a_run_is_loaded_with_its_program(program: Any) -> None:
    with closing(MemoryStore()) as store, context(lm=model()):
        Notify().start(to="ann", store=store, run_id="r")
        with pytest.raises(
            ConfigurationError,
            match=r"A run is loaded with a program, such as `ReAct\(\.\.\.\)`; found",
        ):
            Run.load(store, "r", program)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize(
    "lock",
    [(state, "_BEGINNING"), (approval, "_GRANTING")],
    ids=["begins", "grants"],
)
def test_a_child_that_is_forked_while_a_thread_begins_a_run_or_uses_a_grant_runs_programs(
    lock: Any,
) -> None:
    """The thread does not live on in the child, which waited for it for ever."""
    module, name = lock
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with getattr(module, name).lock:
            held.set()
            forked.wait(60)

    pay = Tool(lambda: "paid", "pay", require_confirmation=True)
    steps = [
        native_step("", "pay"),
        native_step("", "pay"),
        native_step("", "finish", {"answer": "yes"}),
    ]
    run = ReAct("task -> answer", [pay], lm=ScriptedLM(steps), native=True).start(task="x")
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        run.answer(run.pending[0].approve(always=Grant()))
        run.resume()
        os._exit(0 if run.status == "done" else 1)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_run_that_was_done_when_it_was_loaded_may_be_read_by_several_threads() -> None:
    """It is made of its journal once, and is done all the while."""
    program = Notify()
    with closing(MemoryStore()) as store, context(lm=model()):
        program.start(to="ann", store=store, run_id="r")
        for _ in range(20):
            program.sent.clear()
            run = Run.load(store, "r", program)
            both = threading.Barrier(3)

            def read(run: Run = run, both: threading.Barrier = both) -> tuple[Any, int, str]:
                both.wait(60)
                return run.prediction, run.usage.calls, run.status

            with ThreadPoolExecutor(3) as pool:
                found = [
                    future.result(60)
                    for future in [pool.submit(context_free, read) for _ in range(3)]
                ]
            assert found == [(None, 1, "done")] * 3
            assert program.sent == ["ann"]


def test_a_loaded_run_may_be_read_by_a_tool_while_a_thread_makes_it_of_its_journal() -> None:
    """The loop that the replay needs does not wait for it."""
    began, go_on = threading.Event(), threading.Event()

    class Slow(Module):
        def __init__(self) -> None:
            self.ask = Predict("a -> b")

        async def aforward(self) -> Prediction:
            began.set()
            await asyncio.to_thread(go_on.wait, 10)
            return await self.ask.acall(a="x")

    program = Slow()
    program.set_lm(model())
    go_on.set()
    run = Run.from_json(program.start().to_json(), program)
    began.clear()
    go_on.clear()
    first = threading.Thread(target=lambda: run.prediction, daemon=True)
    first.start()
    assert began.wait(60)

    async def reader() -> str:
        """Read it."""
        threading.Timer(0.05, go_on.set).start()
        return run.prediction.b

    agent = ReAct("question -> answer", [reader], native=True)
    agent.set_lm(
        ScriptedLM([native_step("r", "reader", {}), native_step("f", "finish", {"answer": "a"})]),
    )
    assert agent(question="q").trajectory["observation_0"] == "B"
    first.join(60)
    assert not first.is_alive()


def test_reading_a_loaded_run_spends_nothing_of_the_readers_limits() -> None:
    """It was paid for when it ran."""
    program = Notify()
    program.set_lm(model())
    run = Run.from_json(program.start(to="ann").to_json(), program)

    def reader() -> str:
        """Read it."""
        return str(run.prediction)

    agent = ReAct("question -> answer", [reader], native=True, limits=Limits(tokens=10))
    agent.set_lm(
        ScriptedLM([native_step("r", "reader", {}), native_step("f", "finish", {"answer": "a"})]),
    )
    assert agent(question="q").reason is None


def test_reading_a_run_that_is_done_keeps_the_verdict_of_its_validators() -> None:
    is_strict: list[bool] = []
    program = Predict("-> b")

    @program.output_validator
    def judge(_: Any) -> None:
        if is_strict:
            raise ToolRetry("another one")

    with context(lm=model(1)):
        run = program.start()
    is_strict.append(True)
    lm = model(3)
    with context(lm=lm):
        assert Run.from_json(run.to_json(), program).prediction.b == run.prediction.b
    assert lm.requests == []


def test_reading_a_run_that_is_done_asks_no_model_if_the_program_takes_another_step() -> None:
    """It is replayed to its end, and does nothing new."""
    changed: list[bool] = []
    ask = Predict("a -> b")

    class Twice(Module):
        def forward(self) -> Prediction:
            found = ask(a="x")
            return ask(a=found.b) if changed else found

    program = Twice()
    with context(lm=model(1)):
        text = program.start().to_json()
    changed.append(True)
    lm = model(3)
    for migrate in (False, True):
        with (
            context(lm=lm),
            pytest.raises(
                ReplayMismatchError,
                match="recorded the end of a run that is done, now model",
            ) as caught,
        ):
            _ = Run.from_json(text, program, migrate=migrate).prediction
        assert "load it with the version of the program that executed it" in str(caught.value)
    assert lm.requests == []


def test_a_run_that_is_done_cannot_be_read_with_a_program_that_asks_a_person() -> None:
    """Its prediction was None."""
    changed: list[bool] = []

    class Asking(Module):
        def forward(self) -> Prediction:
            return Prediction(b=ferrule.ask_person("Really?") if changed else "B")

    program = Asking()
    text = program.start().to_json()
    changed.append(True)
    run = Run.from_json(text, program)
    with pytest.raises(
        ReplayMismatchError,
        match="recorded the end of a run that is done, now decision",
    ):
        _ = run.prediction
    assert (run.status, run.pending) == ("done", ())


def context_free(read: Any) -> Any:
    with context(lm=ScriptedLM([])):
        return read()


def test_reading_a_failed_run_leaves_its_error_as_it_was() -> None:
    """Python writes every place where an error is raised into the error."""

    def fails(_: Any) -> Any:
        raise UnavailableError("down")

    with context(lm=ScriptedLM(by=fails)):
        run = Predict("a -> b").start(a="x")
    lengths = []
    for _ in range(3):
        with pytest.raises(UnavailableError) as caught:
            _ = run.prediction
        lengths.append(len(caught.traceback))
    assert lengths[0] == lengths[1] == lengths[2]


@pytest.mark.parametrize("kind", ["flow", "forward"])
def test_a_run_that_is_cancelled_before_it_begins_does_nothing_until_it_is_resumed(
    driver: str,
    kind: str,
) -> None:
    program: Any = Notify() if kind == "forward" else Predict("a -> b")
    lm = model(1)
    run = Run(program, (), {"to": "ann"} if kind == "forward" else {"a": "x"})
    with context(lm=lm):
        run.cancel()
        if driver == "async":
            asyncio.run(aexecute(run))
        else:
            with pytest.raises(RunCancelledError):
                list(stream_of(run))
        assert (run.status, len(lm.requests)) == ("cancelled", 0)
        if driver == "async":
            asyncio.run(run.aresume())
        else:
            run.resume()
    assert (run.status, len(lm.requests)) == ("done", 1)


@pytest.mark.parametrize("status", ["failed", "waiting"])
def test_a_cancellation_that_comes_while_a_run_is_taken_up_again_holds(status: str) -> None:
    """No tool is begun."""
    did: list[str] = []
    pay = Tool(lambda: did.append("paid"), "pay", require_confirmation=status == "waiting")
    agent = ReAct("question -> answer", [pay], native=True)
    taking = threading.Event()

    class Slow(MemoryStore):
        def take(self, *args: Any, **keywords: Any) -> Any:
            run.cancel()
            taking.set()
            return super().take(*args, **keywords)

    with closing(Slow()) as store:
        script = (
            [native_step("p", "pay", {})] if status == "waiting" else [UnavailableError("down")]
        )
        with context(lm=ScriptedLM(script)):
            run = agent.start(question="q", store=store)
        assert run.status == status
        for question in run.pending:
            run.answer(question.approve())
        with context(lm=ScriptedLM(by=lambda _: pytest.fail("asked"))), suppress(RunCancelledError):
            run.resume()
    assert taking.is_set()
    assert (run.status, did) == ("cancelled", [])


def stream_of(run: Run) -> Any:
    from ferrule.runs.stream import EventStream

    return EventStream(run)


def test_an_async_stream_of_a_run_that_cannot_begin_says_why() -> None:
    """As the stream for `for` does."""

    async def main(store: MemoryStore) -> None:
        async for _ in Predict("a -> b").stream(a="x", store=store, run_id="r"):
            pass

    with closing(MemoryStore()) as store, context(lm=model()):
        Predict("a -> b").start(a="x", store=store, run_id="r")
        with pytest.raises(StoreError, match="has a run 'r' already"):
            asyncio.run(main(store))


def test_the_messages_of_a_run_are_there_while_it_waits_and_when_it_is_done() -> None:
    """api.md: `run.messages`."""
    pay = Tool(lambda: "paid", "pay", require_confirmation=True)
    finish = native_step("f", "finish", {"answer": "yes"})
    with context(lm=ScriptedLM([native_step("p", "pay", {}), finish])):
        run = ReAct("question -> answer", [pay], native=True).start(question="May I?")
        assert [message.role for message in run.messages] == ["system", "user"]
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.messages == run.prediction.messages
    assert len(Run(Notify(), (), {"to": "ann"}).messages) == 0


# -- usage


class Outer(Module):
    """A program of two model calls in a program."""

    def __init__(self, seen: list[Usage]) -> None:
        self.inner = Inner()
        self.seen = seen

    def forward(self, a: str) -> None:
        self.inner(a=a)


class Inner(Module):
    def __init__(self) -> None:
        self.ask = Predict("a -> b")

    def forward(self, a: str) -> None:
        self.ask(a=a)
        self.ask(a=f"{a}!")


def test_usage_counts_what_programs_inside_have_spent_while_they_are_at_it() -> None:
    seen: list[int] = []
    run = Run(Outer([]), (), {"a": "x"})

    def by(_: Any) -> Response:
        seen.append(run.usage.calls)
        return Response(fields(b="B"), usage=Usage(10, 5, 0, 1))

    with context(lm=ScriptedLM(by=by)):
        run.resume()
    assert seen == [0, 1]
    assert run.usage == Usage(20, 10, 0, 2)


class Team(Module):
    """A program in another one, two equal calls, and a batch."""

    def __init__(self) -> None:
        self.inner, self.ask = Inner(), Predict("a -> b")

    def spent(self, **parts: Prediction) -> Prediction:
        return Prediction(
            calls={name: part.usage.calls for name, part in parts.items()},
            tokens=parts["one"].usage.total_tokens,
        )


class SyncTeam(Team):
    def forward(self, a: str) -> Prediction:
        self.inner(a=a)
        one, two = self.ask(a="1"), self.ask(a="1")
        several = self.ask.batch([{"a": "2"}, {"a": "3"}], progress=False)
        return self.spent(one=one, two=two, several=several)


class AsyncTeam(Team):
    async def aforward(self, a: str) -> Prediction:
        await self.inner.acall(a=a)
        one, two = await ferrule.gather(self.ask.acall(a="1"), self.ask.acall(a="1"))
        several = await self.ask.abatch([{"a": "2"}, {"a": "3"}], progress=False)
        return self.spent(one=one, two=two, several=several)


@pytest.mark.parametrize("kind", [SyncTeam, AsyncTeam])
def test_a_program_inside_a_run_has_its_own_part_of_the_usage(
    kind: type[Team],
    driver: str,
) -> None:
    """Its prediction and its `RunFinished` count what it spent itself, and what programs inside it
    spent; those of the run count all.
    """
    store, told = MemoryStore(), []
    with context(lm=model(), callbacks=[told.append]):
        run = (
            asyncio.run(kind().astart(a="x", store=store))
            if driver == "async"
            else kind().start(a="x", store=store)
        )
        assert run.prediction.toDict() == {
            "calls": {"one": 1, "two": 1, "several": 2},
            "tokens": 15,
        }
        assert run.prediction.usage == run.usage == Usage(60, 30, 0, 6)
        again = Run.load(store, run.id, kind())
        assert again.prediction.toDict() == run.prediction.toDict()
    ends = [
        (event.depth, event.as_json()["prediction"])
        for event in told
        if event.type == "RunFinished"
    ]
    assert [
        (depth, form["usage"]["calls"]) for depth, form in ends if form is not None and depth < 2
    ] == [(1, 1)] * 4 + [(0, 6)]


class Cached(Module):
    """Returns what a program inside it, or an earlier run, has made."""

    def __init__(self) -> None:
        self.ask = Predict("a -> b")
        self.kept: dict[str, Prediction] = {}

    def forward(self, a: str) -> Prediction:
        if a not in self.kept:
            self.ask(a="first")
            self.kept[a] = self.ask(a=a)
        return self.kept[a]


def test_a_prediction_that_was_made_elsewhere_keeps_its_usage(driver: str) -> None:
    """A run counts its own copy: before, a later run without model calls took the tokens of the
    first one's result.
    """
    program = Cached()
    with context(lm=model()):
        first, second = call(program, driver, a="x"), call(program, driver, a="x")
    assert [each.usage.total_tokens for each in (first, second, program.kept["x"])] == [30, 0, 15]
    assert first == second == program.kept["x"]
    assert (first.messages, first.outputs.b, first.history) == (
        second.messages,
        "B",
        second.history,
    )


def test_an_agent_that_is_a_tool_has_its_own_part_of_the_usage(driver: str) -> None:
    told: list[Any] = []
    scout = ReAct("place -> report", [], native=True).as_tool("scout")
    guide = ReAct("question -> answer", [scout], native=True)
    script = [
        ("scout", {"place": "Rome"}),
        ("finish", {"report": "sunny"}),
        ("finish", {"answer": "Go."}),
    ]
    answers = [
        Response("", (ToolCall(name=name, args=args),), usage=Usage(10, 5, 0, 1))
        for name, args in script
    ]
    with context(lm=ScriptedLM(answers), callbacks=[told.append]):
        call(guide, driver, question="Where?")
    assert [event.prediction.usage.calls for event in told if event.type == "RunFinished"] == [1, 3]


def test_usage_counts_what_a_program_has_spent_that_waits_inside_a_tool(driver: str) -> None:
    """The model was asked twice, and both were paid for; resumed, each call counts once."""
    pay = Tool(lambda: "paid", "pay", require_confirmation=True)
    inner = ReAct("task -> done", [pay], native=True)
    inner.set_lm(
        ScriptedLM(
            [
                Response("", native_step(*each).tool_calls, usage=Usage(10, 5, 0, 1))
                for each in (("p", "pay", {}), ("f", "finish", {"done": "so"}))
            ],
        ),
    )
    outer = ReAct("question -> answer", [inner.as_tool("helper")], native=True)
    outer.set_lm(
        ScriptedLM(
            [
                Response("", native_step(*each).tool_calls, usage=Usage(10, 5, 0, 1))
                for each in (("h", "helper", {"task": "t"}), ("f", "finish", {"answer": "a"}))
            ],
        ),
    )
    run = (
        asyncio.run(outer.astart(question="q")) if driver == "async" else outer.start(question="q")
    )
    assert (run.status, run.usage) == ("waiting", Usage(20, 10, 0, 2))
    run.answer(run.pending[0].approve())
    _ = asyncio.run(run.aresume()) if driver == "async" else run.resume()
    assert (run.status, run.usage) == ("done", Usage(40, 20, 0, 4))


def test_usage_counts_a_call_that_was_answered_after_the_run_was_given_up() -> None:
    """It is in the journal, and was paid for."""
    asked, release, over = threading.Event(), threading.Event(), threading.Event()

    class Slow(Module):
        def __init__(self) -> None:
            self.ask = Predict("a -> b")

        def forward(self, a: str) -> None:
            self.ask(a=a)
            asked.set()
            release.wait(60)
            try:
                self.ask(a="more")
            finally:
                over.set()

    run = Run(Slow(), (), {"a": "x"})

    async def main() -> None:
        task = asyncio.create_task(aexecute(run))
        while not asked.is_set():
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with context(lm=model()):
        asyncio.run(main())
        release.set()
        assert over.wait(60)
    assert run.usage == Usage(10, 5, 0, 1)
    assert run.status == "cancelled"


# -- memory


def test_a_tool_that_raised_keeps_nobody_alive(driver: str) -> None:
    """A traceback holds the frames of all callers, with all that is in them."""

    class Held:
        pass

    def bad() -> str:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    def caller() -> tuple[Any, weakref.ref[Held]]:
        local = Held()
        with context(
            lm=ScriptedLM(
                [native_step("b", "bad", {}), native_step("f", "finish", {"answer": "a"})],
            ),
        ):
            prediction = call(
                ReAct("question -> answer", [Tool(bad)], native=True),
                driver,
                question="q",
            )
        return prediction, weakref.ref(local)

    gc.disable()
    try:
        prediction, held = caller()
        assert held() is None
    finally:
        gc.enable()
    error = prediction.trajectory.steps[0].results[0].error
    assert isinstance(error, ValueError)
    assert error.__traceback__ is None
    assert isinstance(error.__cause__, KeyError)


def test_a_tool_that_raised_leaves_alone_what_its_caller_is_dealing_with(driver: str) -> None:
    """The caller's error keeps its places."""

    def bad() -> str:
        raise ValueError("bad")

    try:
        raise KeyError("mine")
    except KeyError as mine:
        with context(
            lm=ScriptedLM(
                [native_step("b", "bad", {}), native_step("f", "finish", {"answer": "a"})],
            ),
        ):
            call(ReAct("question -> answer", [Tool(bad)], native=True), driver, question="q")
        assert mine.__traceback__ is not None


def test_the_id_of_a_question_is_known_as_long_as_somebody_holds_its_run() -> None:
    """What was raised holds it."""
    from ferrule import get_confirmation_status, respond_to_confirmation
    from ferrule.errors import DecisionError

    pay = Tool(lambda: "paid", "pay", require_confirmation=True)
    with (
        context(lm=ScriptedLM([native_step("p", "pay", {})])),
        pytest.raises(ConfirmationRequired) as raised,
    ):
        ReAct("question -> answer", [pay], native=True)(question="q")
    key = raised.value.confirmation_id
    assert get_confirmation_status(key) == "pending"
    del raised
    gc.collect()
    assert get_confirmation_status(key) is None
    with pytest.raises(DecisionError, match="keep the run"):
        respond_to_confirmation(key)


def test_a_run_that_has_not_begun_has_no_prediction() -> None:
    """Reading it executes nothing."""
    lm = ScriptedLM([])
    run = Predict("question -> answer").stream(question="q", lm=lm).run
    with pytest.raises(RunError, match="it has no prediction yet"):
        run.prediction
    assert lm.requests == []


def test_a_resumed_run_has_the_items_of_a_generator_that_was_its_input() -> None:
    """The first execution had read them: the model was asked about an empty list from then on."""
    pay = Tool(lambda: "paid", "pay", "Pay.", require_confirmation=True)
    lm = ScriptedLM([native_step("p", "pay"), native_step("e", "finish", {"answer": "A"})])
    with context(lm=lm):
        run = ReAct("prices -> answer", [pay], native=True).start(prices=(each for each in (7, 8)))
        run.answer(run.pending[0].approve())
        run.resume()
    assert ["[7,8]" in request.messages[1].text for request in lm.requests] == [True, True]
    assert run.inputs == {"prices": [7, 8]}


def test_deep_copies_of_what_holds_a_run_share_it_and_a_pickle_says_what_to_use() -> None:
    """Python's own error named a lock: `BatchResults` and a `ConfirmationRequired` could not be
    copied.
    """
    pay = Tool(lambda: "paid", "pay", "Pay.", require_confirmation=True)
    agent = ReAct("a -> b", [pay], native=True)
    with (
        context(lm=ScriptedLM([native_step("p", "pay")])),
        pytest.raises(ConfirmationRequired) as raised,
    ):
        agent(a="A")
    assert copy.deepcopy(raised.value).run is raised.value.run
    with context(lm=model()):
        results = Predict("a -> b").batch([{"a": 1}, {"a": 2}])
    again = copy.deepcopy(results)
    assert (again, again.runs, again.usage, again.batch_id) == (
        results,
        results.runs,
        results.usage,
        results.batch_id,
    )
    for held in (raised.value, results):
        with pytest.raises(TypeError, match=r"cannot pickle a `Run`: .* Use `run.to_json\(\)`"):
            pickle.dumps(held)
