"""A tool returns `Later`, and its run waits until the result is delivered: once, from anywhere, and
only if it fits.
"""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from agent_script import native_step
from pydantic import BaseModel

from ferrule import (
    ConfirmationRequired,
    Context,
    Later,
    MemoryStore,
    ReAct,
    Response,
    Run,
    SQLiteStore,
    ToolCall,
    advance,
    context,
    events,
    run_until_done,
    tool,
)
from ferrule.errors import ConfigurationError, DecisionError, RunCancelledError
from ferrule.programs.module import Module
from ferrule.testing import ScriptedLM

DONE = native_step("done", "finish", {"answer": "ok"})
REPORT = {"passed": True, "tests": 3}


class Report(BaseModel):
    passed: bool
    tests: int


class Site:
    """An agent whose tool begins a build, and how often it began one."""

    def __init__(self, *steps: Any, is_async: bool = False, **later: Any) -> None:
        self.begun: list[str] = []
        self.later = {"key": "build-7", **later}
        self.lm = ScriptedLM([*(steps or [native_step("go", "build", {"ref": "main"})]), DONE])
        self.told: list[events.Event] = []

        def begin(ref: str) -> Report | Later:
            """Build."""
            self.begun.append(ref)
            return Later(**self.later)

        async def abegin(ref: str) -> Report | Later:
            """Build."""
            return begin(ref)

        @tool
        def look() -> str:
            """Look."""
            self.begun.append("look")
            return "seen"

        build = tool(name="build")(abegin if is_async else begin)
        self.agent = ReAct("task -> answer", [build, look], lm=self.lm)

    def start(self, **keywords: Any) -> Run[Any]:
        with context(callbacks=[self.told.append]):
            return self.agent.start(task="x", **keywords)

    @property
    def read(self) -> str:
        """What the model read of the call."""
        return self.lm.requests[-1].messages[-1].text


@pytest.fixture
def store(tmp_path: Path) -> SQLiteStore:
    return SQLiteStore(tmp_path / "runs.db")


# -- the wait and its end


def test_a_run_waits_for_the_result_that_its_tool_announced() -> None:
    site = Site(note="See the build server.")
    run = site.start()
    [question] = run.pending
    assert (run.status, question.kind, question.key) == ("waiting", "result", "build-7")
    assert question.text.startswith("See the build server.")
    run.deliver("build-7", REPORT)
    assert run.resume().status == "done"
    assert site.begun == ["main"]
    assert '"tests":3' in site.read.replace(" ", "")


def test_a_run_resumed_without_its_result_waits_on() -> None:
    site = Site()
    run = site.start()
    question_id = run.pending[0].id
    assert run.resume().status == "waiting"
    assert [question.id for question in run.pending] == [question_id]
    assert site.begun == ["main"]


def test_other_calls_of_the_step_go_on() -> None:
    """They have their results when the run waits, and run no second time."""
    calls = (ToolCall(name="build", args={"ref": "main"}), ToolCall(name="look", args={}))
    site = Site(Response("both", calls))
    run = site.start()
    assert sorted(site.begun) == ["look", "main"]
    run.deliver("build-7", REPORT)
    run.resume()
    assert [result.name for result in run.trajectory.steps[0].results] == ["build", "look"]
    assert sorted(site.begun) == ["look", "main"]


@pytest.mark.parametrize("is_async", [False, True])
def test_async_runs_and_tools_wait_too(is_async: bool) -> None:
    site = Site(is_async=is_async)

    async def main() -> Run[Any]:
        run = await site.agent.astart(task="x")
        run.deliver("build-7", REPORT)
        return await run.aresume()

    assert asyncio.run(main()).prediction.answer == "ok"
    assert site.begun == ["main"]


def test_a_stream_ends_while_the_run_waits_and_its_run_continues() -> None:
    site = Site()

    async def main() -> tuple[list[events.Event], Run[Any]]:
        stream = site.agent.stream(task="x")
        told = [event async for event in stream]
        return told, stream.run

    told, run = asyncio.run(main())
    assert [event.question.key for event in told if isinstance(event, events.QuestionAsked)] == [
        "build-7"
    ]
    run.deliver("build-7", REPORT)
    assert run.resume().status == "done"


def test_a_plain_call_raises_with_the_run_that_waits() -> None:
    site = Site()
    with pytest.raises(ConfirmationRequired) as raised:
        site.agent(task="x")
    run = raised.value.run
    assert run is not None
    run.deliver("build-7", REPORT)
    assert run.resume().prediction.answer == "ok"


def test_a_result_reaches_a_stored_run_through_the_store(store: SQLiteStore) -> None:
    site = Site()
    run_id = site.start(store=store).id
    store.deliver(run_id, "build-7", REPORT, by="ci")
    assert advance(store, run_id, site.agent) == "done"
    run = Run.load(store, run_id, site.agent)
    assert run.prediction.answer == "ok"
    assert [(decision.by, decision.via) for decision in run.decisions] == [("ci", "delivery")]
    assert site.begun == ["main"]


def test_a_result_may_come_before_the_run_rests(store: SQLiteStore) -> None:
    """A build may end while another call of the step runs."""
    is_waiting = threading.Event()

    @tool
    def build() -> str | Later:
        """Build."""
        return Later(key="b")

    @tool(concurrent=False)
    def hurry(ctx: Context) -> str:
        """Deliver."""
        assert is_waiting.wait(60)
        store.deliver(ctx.run_id, "b", "built")
        return "hurried"

    def note(event: events.Event) -> None:
        if isinstance(event, events.QuestionAsked):
            is_waiting.set()

    both = Response("", (ToolCall(name="build", args={}), ToolCall(name="hurry", args={})))
    agent = ReAct("task -> answer", [build, hurry], lm=ScriptedLM([both, DONE]))
    with context(callbacks=[note]):
        run = agent.start(task="x", store=store)
    assert run.status == "waiting"
    assert store.summary(run.id).decided == (run.pending[0].id,)
    assert run.resume().trajectory.steps[0].results[0].content == "built"


def test_an_agent_that_is_a_tool_waits_inside_the_run() -> None:
    site = Site()
    outer = ReAct(
        "task -> answer",
        [site.agent.as_tool("builder", "Builds.")],
        lm=ScriptedLM([native_step("", "builder", {"task": "x"}), DONE]),
    )
    run = outer.start(task="y")
    assert run.pending[0].inside == "builder"
    run.deliver("build-7", REPORT)
    assert run.resume().status == "done"
    assert site.begun == ["main"]


def test_a_forward_waits_for_a_tool_that_it_calls() -> None:
    import ferrule

    @tool
    def build() -> str | Later:
        """Build."""
        return Later(key="b")

    class Shop(Module):
        def forward(self) -> Any:
            return ferrule.call_tool(build)

    run = Shop().start()
    run.deliver("b", "built")
    assert run.resume().prediction == "built"


def test_a_run_of_a_batch_waits_by_itself() -> None:
    site, store = Site(), MemoryStore()
    results = site.agent.batch([{"task": "x"}], store=store, return_failed_examples=True)
    del results
    [summary] = store.list()
    store.deliver(summary.id, "build-7", REPORT)
    assert advance(store, summary.id, site.agent) == "done"


def test_a_transactional_tool_commits_its_writes_with_the_wait(store: SQLiteStore) -> None:
    @tool(effect="transactional")
    def order(ctx: Context) -> str | Later:
        """Order."""
        ctx.db.execute("CREATE TABLE orders (name TEXT)")
        ctx.db.execute("INSERT INTO orders VALUES ('ink')")
        return Later(key="order")

    agent = ReAct("task -> answer", [order], lm=ScriptedLM([native_step("", "order", {}), DONE]))
    run = agent.start(task="x", store=store)
    assert run.status == "waiting"
    store.deliver(run.id, "order", "shipped")
    assert Run.load(store, run.id, agent).resume().status == "done"


def test_a_transactional_tool_of_an_async_run_has_a_deadline(store: SQLiteStore) -> None:
    @tool(effect="transactional")
    def order(ctx: Context) -> str | Later:
        """Order."""
        ctx.db.execute("CREATE TABLE orders (name TEXT)")
        return Later(key="order", within_s=60)

    agent = ReAct("task -> answer", [order], lm=ScriptedLM([native_step("", "order", {}), DONE]))

    async def main() -> Run[Any]:
        run = await agent.astart(task="x", store=store)
        assert run.pending[0].expires_at is not None
        store.deliver(run.id, "order", "shipped")
        return await run.aresume()

    assert asyncio.run(main()).status == "done"


def test_observers_learn_of_the_wait_and_of_its_end() -> None:
    site = Site()
    run = site.start()
    run.deliver("build-7", REPORT)
    with context(callbacks=[site.told.append]):
        run.resume()
    about_call = [
        type(event).__name__
        for event in site.told
        if isinstance(
            event,
            events.CallStarted | events.QuestionAsked | events.Decided | events.CallFinished,
        )
    ]
    assert about_call[:4] == ["CallStarted", "QuestionAsked", "Decided", "CallFinished"]


def test_the_key_is_that_of_the_call_if_the_tool_names_none() -> None:
    keys: list[str] = []

    @tool
    def build(ctx: Context) -> str | Later:
        """Build."""
        keys.append(ctx.key)
        return Later()

    agent = ReAct("task -> answer", [build], lm=ScriptedLM([native_step("", "build", {}), DONE]))
    run = agent.start(task="x")
    run.deliver(keys[0], "built")
    assert run.resume().status == "done"


# -- what is taken, and what is refused


@pytest.mark.parametrize(
    "value", [5, {"passed": "perhaps", "tests": 3}, {"passed": True}, None, float("nan")]
)
def test_a_result_that_does_not_fit_the_return_type_is_refused(value: Any) -> None:
    run = Site().start()
    with pytest.raises(DecisionError, match="`build`"):
        run.deliver("build-7", value)
    run.deliver("build-7", REPORT)
    assert run.resume().status == "done"


@pytest.mark.parametrize("declared", [Annotated[int, []], Later, Any, "Unknown", Report])
def test_every_declared_type_lets_a_run_wait(declared: Any) -> None:
    """Also one that is not hashable, and one that says nothing of the result."""

    def build() -> Any:
        """Build."""
        return Later(key="b")

    build.__annotations__["return"] = declared
    agent = ReAct("task -> answer", [build], lm=ScriptedLM([native_step("", "build", {}), DONE]))
    run = agent.start(task="x")
    run.deliver("b", REPORT if declared is Report else 5)
    assert run.resume().status == "done"


def test_an_object_is_not_delivered() -> None:
    with pytest.raises(DecisionError, match="JSON data"):
        Site().start().deliver("build-7", Report(passed=True, tests=3))


@pytest.mark.parametrize("is_used", [False, True])
def test_the_same_result_again_has_no_effect_and_another_is_refused(
    store: SQLiteStore, is_used: bool
) -> None:
    """Before the run took it, and after."""
    site = Site()
    run = site.start(store=store)
    store.deliver(run.id, "build-7", REPORT)
    if is_used:
        run.resume()
    for deliver in (run.deliver, lambda key, value: store.deliver(run.id, key, value)):
        deliver("build-7", REPORT)
        with pytest.raises(DecisionError, match="decided already"):
            deliver("build-7", {"passed": False, "tests": 0})
    if not is_used:
        run.resume()
    assert '"passed":true' in site.read.replace(" ", "")


def test_a_result_with_another_key_is_refused_with_the_keys_of_the_run(store: SQLiteStore) -> None:
    run = Site().start(store=store)
    for deliver in (run.deliver, lambda key, value: store.deliver(run.id, key, value)):
        with pytest.raises(DecisionError, match="'build-7'"):
            deliver("build-8", REPORT)


def test_a_result_for_a_cancelled_run_is_refused(store: SQLiteStore) -> None:
    stored, kept = Site().start(store=store), Site().start()
    store.cancel(stored.id)
    kept.cancel()
    with pytest.raises(DecisionError, match="it is cancelled"):
        store.deliver(stored.id, "build-7", REPORT)
    with pytest.raises(DecisionError, match="waits"):
        kept.deliver("build-7", REPORT)
    with pytest.raises(RunCancelledError):
        _ = kept.prediction


def test_of_two_results_at_once_one_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    site = Site()
    run = site.start(store=SQLiteStore(path))
    barrier = threading.Barrier(2)

    def deliver(tests: int) -> bool:
        with SQLiteStore(path) as store:
            barrier.wait(60)
            try:
                store.deliver(run.id, "build-7", {"passed": True, "tests": tests})
            except DecisionError:
                return False
            return True

    with ThreadPoolExecutor(2) as pool:
        taken = list(pool.map(deliver, [1, 2]))
    assert sorted(taken) == [False, True]
    run.resume()
    assert f'"tests":{taken.index(True) + 1}' in site.read.replace(" ", "")


def test_a_key_whose_result_came_names_no_second_call() -> None:
    """A repeated delivery of the first result would answer the second call."""
    again = native_step("", "build", {"ref": "main"})
    site = Site(again, again)
    run = site.start()
    run.deliver("build-7", REPORT)
    run.resume()
    assert run.status == "done"
    assert "came already" in run.trajectory.steps[1].results[0].content


def test_two_calls_that_wait_with_one_key_get_one_result() -> None:
    calls = tuple(ToolCall(name="build", args={"ref": name}) for name in "ab")
    run = Site(Response("both", calls)).start()
    assert len(run.pending) == 2
    run.deliver("build-7", REPORT)
    results = run.resume().trajectory.steps[0].results
    assert [result.is_error for result in results] == [False, False]


# -- without a result


def test_a_person_may_say_that_no_result_comes() -> None:
    site = Site()
    run = site.start()
    run.answer(run.pending[0].deny("The build server is down."))
    assert run.resume().status == "done"
    [result] = run.trajectory.steps[0].results
    assert result.is_error
    assert "The build server is down." in site.read


@pytest.mark.parametrize("decide", ["approve", "edit"])
def test_a_call_that_has_begun_is_not_approved_or_edited(decide: str) -> None:
    run = Site().start()
    with pytest.raises(DecisionError, match="has begun"):
        run.answer({"approve": run.pending[0].approve, "edit": _edit(run)}[decide]())


def _edit(run: Run[Any]) -> Any:
    return lambda: run.pending[0].edit({"ref": "other"})


def test_after_the_deadline_the_model_reads_that_no_result_came() -> None:
    now = [1e9]
    store = MemoryStore(clock=lambda: now[0])
    site = Site(within_s=60)
    run = site.start(store=store)
    assert run.resume().status == "waiting"
    now[0] += 61
    with pytest.raises(DecisionError, match="expired"):
        store.deliver(run.id, "build-7", REPORT)
    assert run.resume().status == "done"
    assert "60 seconds" in site.read
    with pytest.raises(DecisionError, match="expired"):
        store.deliver(run.id, "build-7", REPORT)


def test_a_result_in_time_counts_though_the_run_is_resumed_late() -> None:
    now = [1e9]
    store = MemoryStore(clock=lambda: now[0])
    site = Site(within_s=60)
    run = site.start(store=store)
    store.deliver(run.id, "build-7", REPORT)
    now[0] += 3600
    assert run.resume().status == "done"
    assert '"tests":3' in site.read.replace(" ", "")


@pytest.mark.parametrize(
    "wrong", [{"key": 7}, {"note": None}, {"within_s": 0}, {"within_s": True}, {"within_s": "1"}]
)
def test_later_checks_what_it_is_given(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Later(**wrong)


# -- new versions, and other ways to answer


def test_a_result_reaches_its_call_after_the_tool_has_changed(store: SQLiteStore) -> None:
    """The world does not send it a second time."""
    site = Site()
    run_id = site.start(store=store).id
    store.deliver(run_id, "build-7", REPORT)

    @tool
    def build(ref: str, fast: bool = False) -> str:
        """Build anew, in another way."""
        raise AssertionError

    lm = ScriptedLM([DONE])
    changed = ReAct("task -> answer", [build], lm=lm)
    assert Run.load(store, run_id, changed).resume().status == "done"
    assert '"tests":3' in lm.requests[-1].messages[-1].text.replace(" ", "")


def test_a_run_survives_its_json() -> None:
    site = Site()
    run = Run.from_json(site.start().to_json(), site.agent)
    run.deliver("build-7", REPORT)
    assert run.resume().status == "done"
    assert site.begun == ["main"]


@pytest.mark.parametrize(
    ("words", "value"), [("built", "built"), ("5", "5"), ('"5"', "5"), ("yes", "yes")]
)
def test_words_are_the_result_of_a_tool_that_returns_text(words: str, value: str) -> None:
    @tool
    def build() -> str | Later:
        """Build."""
        return Later(key="b")

    agent = ReAct("task -> answer", [build], lm=ScriptedLM([native_step("", "build", {}), DONE]))
    run = agent.start(task="x")
    run.answer(run.pending[0].decide(words))
    assert run.resume().trajectory.steps[0].results[0].content == value


def test_run_until_done_takes_the_result_from_its_function() -> None:
    prediction = run_until_done(Site().agent, {"task": "x"}, decide=lambda _: REPORT)
    assert prediction.answer == "ok"


# -- crashes


class Begun:
    """An agent with a build and a look in one step, and what of it the world saw."""

    def __init__(self, *, nested: bool) -> None:
        self.begun: list[str] = []

        @tool
        def build(ref: str) -> str | Later:
            """Build."""
            self.begun.append(f"build {ref}")
            return Later(key="b")

        @tool(effect="read")
        def look() -> str:
            """Look."""
            self.begun.append("look")
            return "seen"

        calls = (
            ToolCall(name="build", args={"ref": "main"}, id="c1"),
            ToolCall(name="look", args={}, id="c2"),
        )
        steps = [Response("both", calls), DONE]

        def next_step(request: Any) -> Response:
            return steps[sum(message.role == "assistant" for message in request.messages)]

        agent = ReAct("task -> answer", [build, look], lm=ScriptedLM(by=next_step))
        if nested:
            inner = agent.as_tool("builder", "Builds.")
            outer_steps = [native_step("", "builder", {"task": "y"}), DONE]

            def next_outer(request: Any) -> Response:
                return outer_steps[sum(m.role == "assistant" for m in request.messages)]

            agent = ReAct("task -> answer", [inner], lm=ScriptedLM(by=next_outer))
        self.agent = agent

    def goes_on(self, run: Run[Any]) -> None:
        """Resume until the run is done: a person lets interrupted calls run, the world delivers."""
        run.resume()
        for _ in range(4):
            if run.status != "waiting":
                break
            question = run.pending[0]
            if question.kind == "result":
                run.deliver("b", "built")
            else:
                run.answer(question.approve())
            run.resume()
        assert run.status == "done", run.error

    def crashed(self, document: str, count: int) -> Run[Any]:
        """The run whose process died when its journal had so many entries."""
        form = json.loads(document)
        used = {entry["value"]["question_id"] for entry in decisions_in(form["journal"][:count])}
        unused = [
            entry["value"]
            for entry in decisions_in(form["journal"])
            if entry["value"]["question_id"] not in used
        ]
        form |= {"status": "running", "questions": [], "answers": unused}
        form["journal"] = form["journal"][:count]
        return Run.from_json(json.dumps(form), self.agent)


def decisions_in(journal: list[Any]) -> list[Any]:
    return [entry for entry in journal if entry["kind"] == "decision"]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dies_in", [None, 1, 2, 3, 4, 5, 6])
def test_a_crash_after_any_entry_loses_no_result_and_takes_none_twice(
    nested: bool, dies_in: int | None
) -> None:
    """Also a second crash, in a run that a person let go on after the first."""
    world = Begun(nested=nested)
    run = world.agent.start(task="x")
    world.goes_on(run)
    documents = [run.to_json()]
    if dies_in is not None:
        again = world.crashed(documents[0], dies_in)
        world.goes_on(again)
        documents = [again.to_json()]
    for document in documents:
        journal = json.loads(document)["journal"]
        for count in range(len(journal) + 1):
            world.begun.clear()
            run = world.crashed(document, count)
            world.goes_on(run)
            results = [entry for entry in run.journal.entries if entry.kind == "result"]
            assert [entry.value.content for entry in results if entry.value.name == "build"] == [
                "built"
            ]
            is_waiting = any(entry["slot"].endswith("?later") for entry in journal[:count])
            assert ("build main" in world.begun) is not is_waiting
