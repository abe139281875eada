"""What becomes of calls that a stop has cut off.

A stop is an exception that nothing catches, raised inside the tool; a new process is a new `Run`
over the entries that the old one wrote.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, Field

from ferrule import MemoryStore, ReAct, context, is_cancelled
from ferrule.acts import CallTools
from ferrule.approval.question import Decision
from ferrule.concurrency.offload import run_blocking
from ferrule.errors import (
    ConfigurationError,
    DecisionError,
    RunError,
    StoreError,
    ToolError,
    UnknownOutcomeError,
)
from ferrule.runs.driver.execution import aexecute, execute
from ferrule.runs.driver.tool_calls import call_tools
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.journal import Journal
from ferrule.runs.life import Execution
from ferrule.runs.run import Run
from ferrule.testing import ScriptedLM
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult
from ferrule.values.calls.context import Context, NotDone, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class Killed(BaseException):
    """What no wall stops."""


class Program:
    """Calls tools, one batch after another, and returns what each said."""

    is_flow = True
    is_async = False
    is_only_async = False
    name = "program"

    def __init__(self, *batches: list[CheckedCall]) -> None:
        self.batches = batches

    def flow(self) -> Generator[Any, Any, Any]:
        found: list[Any] = []
        for batch in self.batches:
            results: list[ToolResult] = yield CallTools(tuple(batch))
            found += [result.content for result in results]
        return found

    forward = aforward = None  # type: ignore[assignment]


class World:
    """What tools do to the world: how often each ran, by name; and whether a tool is killed before
    or after it has done it.
    """

    def __init__(self) -> None:
        self.done: list[str] = []
        self.keys: list[str] = []
        self.kill: dict[str, str] = {}
        """By tool: `before` or `after`. Used up by the killing."""

    def tool(self, name: str, **keywords: Any) -> Tool:
        def run(ctx: Context, n: int = 1) -> str:
            self.keys.append(ctx.key)
            when = self.kill.pop(name, "")
            if when == "before":
                raise Killed
            self.done.append(name)
            if when == "after":
                raise Killed
            return f"{name} {n}"

        return Tool(run, name, **keywords)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def call(tool: Tool, **args: Any) -> CheckedCall:
    return CheckedCall(ToolCall(name=tool.name, args=args), tool, tool.prepare(args))


def carry(run: Run, driver: str) -> Run:
    if driver == "sync":
        execute(run)
    else:
        asyncio.run(aexecute(run))
    return run


def killed(program: Program, driver: str, *, sink: Any = None) -> Run:
    run = Run(program, (), {}, run_id="run")
    run.journal.sink = sink
    with pytest.raises(Killed):
        carry(run, driver)
    return run


def again(run: Run, program: Program | None = None) -> Run:
    """The run in a new process: nothing of the old one but its journal."""
    new = Run(program or run.program, (), {}, run_id=run.id)
    new.journal = Journal(run.journal.entries, run.journal.sink)
    new.key = run.key
    return new


class TestWhatMayRunAgain:
    @pytest.mark.parametrize("effect", ["read", "idempotent"])
    def test_runs_again_with_the_same_key(self, world: World, driver: str, effect: str) -> None:
        world.kill = {"t": "after"}
        run = carry(again(killed(Program([call(world.tool("t", effect=effect))]), driver)), driver)
        assert run.prediction == ["t 1"]
        assert world.done == ["t", "t"]
        assert len(set(world.keys)) == 1

    def test_does_not_if_it_said_otherwise_when_it_began(self, world: World, driver: str) -> None:
        """What the call may have done is what the tool was when it began."""
        world.kill = {"t": "after"}
        old = killed(Program([call(world.tool("t", effect="once"))]), driver)
        run = carry(again(old, Program([call(world.tool("t", effect="read"))])), driver)
        assert (run.status, [question.kind for question in run.pending], world.done) == (
            "waiting",
            ["unknown"],
            ["t"],
        )

    def test_is_run_when_it_never_began(self, world: World, driver: str) -> None:
        """Unknown only between intent and record."""
        world.kill = {"a": "after"}
        run = carry(
            again(
                killed(
                    Program([call(world.tool("a", effect="read"))], [call(world.tool("b"))]),
                    driver,
                ),
            ),
            driver,
        )
        assert run.prediction == ["a 1", "b 1"]


class TestOnce:
    """Never a silent second execution."""

    @pytest.fixture(params=["before", "after"])
    def left(self, request: pytest.FixtureRequest, world: World, driver: str) -> Run:
        world.kill = {"t": request.param}
        return killed(Program([call(world.tool("t"), n=2)]), driver)

    def test_is_asked_about(self, left: Run, world: World, driver: str) -> None:
        before = list(world.done)
        run = carry(again(left), driver)
        assert run.status == "waiting"
        (question,) = run.pending
        assert (question.kind, question.call.name, question.call.args) == ("unknown", "t", {"n": 2})
        assert "may have run" in question.text
        assert world.done == before
        assert carry(run, driver).pending == (question,)  # as often as one looks

    def test_runs_when_a_person_says_so(self, left: Run, world: World, driver: str) -> None:
        count = len(world.done)
        run = carry(again(left), driver)
        run.answer(run.pending[0].approve())
        assert carry(run, driver).prediction == ["t 2"]
        assert len(world.done) == count + 1
        assert len(set(world.keys)) == 1

    def test_takes_a_result_that_a_person_knows(self, left: Run, world: World, driver: str) -> None:
        count = len(world.done)
        run = carry(again(left), driver)
        run.answer(run.pending[0].reply("order 17"))
        assert carry(run, driver).prediction == ["order 17"]
        assert len(world.done) == count

    def test_is_left_alone_when_a_person_denies_it(
        self,
        left: Run,
        world: World,
        driver: str,
    ) -> None:
        count = len(world.done)
        run = carry(again(left), driver)
        run.answer(run.pending[0].deny("leave it"))
        (said,) = carry(run, driver).prediction
        assert "not known" in said
        assert "leave it" in said
        assert len(world.done) == count

    def test_cannot_be_changed(self, left: Run, driver: str) -> None:
        """What may have run is the call as it was."""
        run = carry(again(left), driver)
        with pytest.raises(DecisionError, match="may have run already"):
            run.pending[0].approve(n=3)

    def test_is_not_run_on_an_edit_made_by_hand(self, left: Run, world: World, driver: str) -> None:
        count = len(world.done)
        run = carry(again(left), driver)
        made = Decision(run.pending[0].id, "edit", args={"n": 3})
        with pytest.raises(DecisionError, match="may have run already"):
            run.answer(made)
        run.answers[made.question_id] = made  # as a store of somebody's own may hand it over
        assert "not run again" in carry(run, driver).prediction[0]
        assert len(world.done) == count

    def test_is_asked_about_anew_when_it_is_cut_off_again(
        self,
        left: Run,
        world: World,
        driver: str,
    ) -> None:
        """The first approval was for the first second try."""
        run = carry(again(left), driver)
        first = run.pending[0]
        run.answer(first.approve())
        world.kill = {"t": "after"}
        with pytest.raises(Killed):
            carry(run, driver)
        count = len(world.done)
        run = carry(again(run), driver)
        assert [question.kind for question in run.pending] == ["unknown"]
        assert run.pending[0].id != first.id
        assert len(world.done) == count
        run.answer(run.pending[0].approve())
        assert carry(run, driver).prediction == ["t 2"]
        assert carry(again(run), driver).prediction == ["t 2"]  # and the replay asks nobody

    def test_a_replay_of_the_decision_asks_nobody(self, left: Run, driver: str) -> None:
        run = carry(again(left), driver)
        run.answer(run.pending[0].reply("17"))
        carry(run, driver)
        assert carry(again(run), driver).prediction == ["17"]

    def test_counts_the_decision_of_an_earlier_process_once(
        self,
        left: Run,
        world: World,
        driver: str,
    ) -> None:
        """Killed between the decision and the call, the decision still holds; nobody is asked
        again.
        """
        run = carry(again(left), driver)
        run.answer(run.pending[0].approve())
        count = len(world.done)

        def dies(entry: Entry) -> None:
            if entry.kind == "begun":
                raise Killed

        run.journal.sink = dies
        with pytest.raises(Killed):
            carry(run, driver)
        assert len(world.done) == count
        run.journal.sink = None
        resumed = carry(again(run), driver)
        assert resumed.prediction == ["t 2"]
        assert len(world.done) == count + 1
        assert [decision.kind for decision in resumed.decisions] == ["approve"]

    def test_is_logged_until_a_person_knows_of_it(
        self,
        left: Run,
        driver: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        run = carry(again(left), driver)
        [record] = caplog.records
        assert (record.name, record.levelname, record.getMessage()) == (
            "ferrule.tools",
            "WARNING",
            "It is not known whether t ran.",
        )
        run.answer(run.pending[0].reply("done"))
        carry(run, driver)
        assert caplog.records == [record]

    def test_tells_the_model_where_the_tool_says_so(self, world: World, driver: str) -> None:
        world.kill = {"t": "after"}
        (said,) = carry(
            again(killed(Program([call(world.tool("t", unknown="tell"))]), driver)),
            driver,
        ).prediction
        assert "not known" in said
        assert world.done == ["t"]

    def test_fails_where_the_tool_says_so(self, world: World, driver: str) -> None:
        world.kill = {"t": "after"}
        run = carry(
            again(killed(Program([call(world.tool("t", unknown="fail"), n=7)]), driver)),
            driver,
        )
        assert run.status == "failed"
        with pytest.raises(RunError, match=r"`t` ran with \{\"n\":7\}"):
            _ = run.prediction
        assert world.done == ["t"]

    def test_fails_the_whole_run_also_inside_an_agent_that_is_a_tool(self) -> None:
        """The outer model would take the error for a result, and call again."""

        def answer(request: Any) -> Any:
            if any(message.tool_calls for message in request.messages):
                return {"name": "finish", "args": {"answer": "done"}}
            names = [each["function"]["name"] for each in request.tools]
            return (
                {"name": "sub", "args": {"question": "q"}}
                if "sub" in names
                else {"name": "wire", "args": {}}
            )

        wire = Tool(lambda: "wired", "wire", "Wire money.", unknown="fail")
        agent = ReAct(
            "question -> answer",
            [ReAct("question -> answer", [wire], native=True).as_tool("sub")],
            native=True,
        )
        with context(lm=ScriptedLM(by=answer)):
            kept = json.loads(agent.start(question="q").to_json())
            at = next(
                k
                for k, entry in enumerate(kept["journal"])
                if entry["kind"] == "begun" and entry["digest"].startswith("wire")
            )
            cut = {**kept, "journal": kept["journal"][: at + 1], "status": "running"}
            run = Run.from_json(json.dumps(cut), agent).resume()
        assert run.status == "failed"
        assert isinstance(run.error, UnknownOutcomeError)
        assert "resume the run with `unknown='ask'`" in str(run.error)

    def test_is_what_a_tool_is_that_says_nothing(self) -> None:
        assert (
            Tool("remote", "A tool of a server.", None, {"type": "object", "properties": {}}).effect
            == "once"
        )

    def test_runs_once_in_one_execution(self) -> None:
        """The claim on a call is taken, not looked up: of many who dispatch it at once one may go
        on.
        """
        journal, passed = Journal(), []

        def dispatch() -> None:
            try:
                journal.dispatch("3.0")
            except RunError:
                return
            passed.append(1)

        threads = [threading.Thread(target=dispatch) for _ in range(40)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert passed == [1]
        assert journal.take_begun("3.0", "t") == ()

    def test_does_not_run_when_it_is_dispatched_again(self, world: World) -> None:
        """Whatever made the driver do that, the claim is gone."""
        run = Run(Program(), (), {})
        frame = run.begin(Execution(), None, wants_deltas=False)
        act = CallTools((call(world.tool("t")),))
        run_blocking(call_tools(frame, act))
        frame.acts = 0
        with pytest.raises(RunError, match="does not run a second time"):
            run_blocking(call_tools(frame, act))
        assert world.done == ["t"]

    def test_what_was_left_is_taken_not_looked_up(self) -> None:
        journal = Journal([Entry("3.0", "begun", "t {}")])
        journal.rewind()
        assert [entry.slot for entry in journal.take_begun("3.0", "t")] == ["3.0"]
        assert journal.take_begun("3.0", "t") == ()


class TestReconcile:
    """Asked before anything runs again."""

    def cut_off(self, world: World, driver: str, check: Callable[..., Any], **keywords: Any) -> Run:
        world.kill = {"t": "after"}
        run = killed(Program([call(world.tool("t", reconcile=check, **keywords), n=5)]), driver)
        return carry(again(run), driver)

    def test_its_result_is_recorded(self, world: World, driver: str) -> None:
        asked: list[Any] = []

        def check(key: str, n: int) -> dict[str, int]:
            asked.append((key, n))
            return {"order": 17}

        run = self.cut_off(world, driver, check)
        assert run.prediction == ['{"order":17}']
        assert asked == [(world.keys[0], 5)]
        assert world.done == ["t"]
        assert carry(again(run), driver).prediction == ['{"order":17}']
        assert len(asked) == 1

    def test_one_that_is_late_sees_that_its_result_is_not_needed(
        self,
        world: World,
        driver: str,
    ) -> None:
        """Its thread asks `is_cancelled`, as a tool's does."""
        told = threading.Event()

        def check(key: str, n: int) -> str:
            for _ in range(600):
                if is_cancelled():
                    told.set()
                    break
                time.sleep(0.01)
            return "late"

        assert self.cut_off(world, driver, check, timeout_s=0.05, effect="read").prediction == [
            "t 5",
        ]
        assert told.wait(60)

    def test_its_result_is_written_without_blocking_the_loop(self, world: World) -> None:
        world.kill = {"t": "after"}
        run = again(
            killed(Program([call(world.tool("t", reconcile=lambda key, n: "found"))]), "async"),
        )
        written: list[str] = []

        class Later:
            def __call__(self, entry: Entry) -> None:
                raise AssertionError(entry)

            async def later(self, entry: Entry) -> None:
                written.append(entry.kind)

        run.journal.sink = Later()
        assert carry(run, "async").prediction == ["found"]
        assert written == ["result"]

    def test_may_take_the_key_alone_or_some_of_the_arguments(
        self,
        world: World,
        driver: str,
    ) -> None:
        """A service is usually asked by the key."""
        assert self.cut_off(world, driver, lambda key: "found").prediction == ["found"]
        assert self.cut_off(world, driver, lambda key, *, m=3: f"found {m}").prediction == [
            "found 3",
        ]
        assert self.cut_off(
            world,
            driver,
            lambda key, **arguments: f"found {arguments}",
        ).prediction == ["found {'n': 5}"]
        assert self.cut_off(world, driver, "found {}".format).prediction == [
            f"found {world.keys[0]}",
        ]

    @pytest.mark.parametrize("said", [NotDone, NotDone()], ids=["class", "instance"])
    def test_what_was_not_done_is_run(self, world: World, driver: str, said: Any) -> None:
        run = self.cut_off(world, driver, lambda key, n: said)
        assert run.prediction == ["t 5"]
        assert world.done == ["t", "t"]

    @pytest.mark.parametrize("said", [Unknown, Unknown()], ids=["class", "instance"])
    def test_what_it_does_not_know_is_asked_of_a_person(
        self,
        world: World,
        driver: str,
        said: Any,
    ) -> None:
        run = self.cut_off(world, driver, lambda key, n: said)
        assert [question.kind for question in run.pending] == ["unknown"]
        assert world.done == ["t"]

    def test_one_that_fails_does_not_know(self, world: World, driver: str) -> None:
        def check(key: str, n: int) -> str:
            raise OSError(key)

        assert [question.kind for question in self.cut_off(world, driver, check).pending] == [
            "unknown",
        ]

    def test_may_be_async(self, world: World, driver: str) -> None:
        async def check(key: str, n: int) -> str:
            await asyncio.sleep(0)
            return f"found {n}"

        assert self.cut_off(world, driver, check).prediction == ["found 5"]

    def test_is_asked_of_repeatable_tools_too(self, world: World, driver: str) -> None:
        run = self.cut_off(world, driver, lambda key, n: "there", effect="idempotent")
        assert run.prediction == ["there"]
        assert world.done == ["t"]

    def test_is_asked_again_before_an_approved_second_run(self, world: World, driver: str) -> None:
        """What a person did not know may have come to light since."""
        known: list[Any] = [Unknown]
        run = self.cut_off(world, driver, lambda key, n: known[0])
        run.answer(run.pending[0].approve())
        known[0] = "it was there"
        assert carry(run, driver).prediction == ["it was there"]
        assert world.done == ["t"]

    def test_is_not_asked_of_a_call_that_begins(self, world: World, driver: str) -> None:
        asked: list[str] = []
        program = Program([call(world.tool("t", reconcile=lambda key, n: asked.append(key)))])
        assert carry(Run(program, (), {}), driver).prediction == ["t 1"]
        assert asked == []


class TestSeveralAtOnce:
    def test_each_call_has_its_own_fate(self, world: World, driver: str) -> None:
        """Three in flight, one done; results stay in the order of the calls."""
        tools = [
            world.tool("read", effect="read"),
            world.tool("once"),
            world.tool("done"),
            world.tool("never"),
        ]
        batch = [call(tool, n=k) for k, tool in enumerate(tools)]
        digests = [f'{tool.name} {{"n":{k}}}' for k, tool in enumerate(tools)]
        entries = [
            Entry("0.0", "begun", digests[0], {"key": "k", "effect": "read"}),
            Entry("0.1", "begun", digests[1], {"key": "k", "effect": "once"}),
            Entry("0.2", "begun", digests[2], {"key": "k", "effect": "once"}),
            Entry("0.2", "result", digests[2], ToolResult("done", "done before")),
        ]
        run = Run(Program(batch), (), {})
        run.journal = Journal(entries)
        carry(run, driver)
        assert [question.call.name for question in run.pending] == ["once"]
        assert sorted(world.done) == ["never", "read"]  # those that wait for nobody did not wait
        run.answer(run.pending[0].reply("it was done"))
        assert carry(run, driver).prediction == ["read 0", "it was done", "done before", "never 3"]
        assert sorted(world.done) == ["never", "read"]

    def test_questions_come_together(self, world: World, driver: str) -> None:
        """Each is answered by its id; what was decided first waits for the others."""
        batch = [call(world.tool("a")), call(world.tool("b"))]
        run = Run(Program(batch), (), {})
        run.journal = Journal(
            [Entry("0.0", "begun", 'a {"n":1}'), Entry("0.1", "begun", 'b {"n":1}')],
        )
        first, second = carry(run, driver).pending
        run.answer(second.reply("B"))
        assert [question.id for question in carry(run, driver).pending] == [first.id]
        run = again(run)
        (still,) = carry(run, driver).pending
        run.answer(still.approve())
        assert carry(run, driver).prediction == ["a 1", "B"]
        assert world.done == ["a"]


class Rows:
    """A journal's sink over an SQLite file, and its transactions: what a store gives."""

    def __init__(self, path: Any) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("CREATE TABLE entries (slot TEXT, kind TEXT)")
        self.db.execute("CREATE TABLE orders (n INTEGER)")
        self.fails_to_commit = False

    def __call__(self, entry: Entry) -> None:
        self.db.execute("INSERT INTO entries VALUES (?, ?)", (entry.slot, entry.kind))

    def transact(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        self.db.execute("BEGIN IMMEDIATE")
        try:
            found = work(self.db)
            if self.fails_to_commit:
                msg = "full"
                raise StoreError(msg)
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise
        return found

    def count(self, table: str) -> int:
        return self.db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


class TestTransactional:
    """The effect and the record of it are one."""

    @pytest.fixture
    def rows(self, tmp_path: Any) -> Generator[Rows]:
        rows = Rows(tmp_path / "rows.db")
        yield rows
        rows.db.close()

    def order(self, kill: list[str]) -> Tool:
        def order(ctx: Context, n: int = 1) -> str:
            ctx.db.execute("INSERT INTO orders VALUES (?)", (n,))
            if kill:
                problem = kill.pop()
                if problem == "kill":
                    raise Killed
                raise ValueError(problem)
            return f"order {n}"

        return Tool(order, effect="transactional")

    def test_is_committed_with_its_result(self, rows: Rows, driver: str) -> None:
        run = Run(Program([call(self.order([]))]), (), {})
        run.journal.sink = rows
        assert carry(run, driver).prediction == ["order 1"]
        assert (rows.count("orders"), rows.count("entries"), len(run.journal)) == (1, 2, 2)

    def test_is_undone_by_a_stop_and_then_runs(self, rows: Rows, driver: str) -> None:
        kill = ["kill"]
        run = killed(Program([call(self.order(kill))]), driver, sink=rows)
        assert (rows.count("orders"), rows.count("entries")) == (0, 1)
        assert carry(again(run), driver).prediction == ["order 1"]
        assert rows.count("orders") == 1

    def test_is_undone_where_the_tool_fails_and_the_model_is_told(
        self,
        rows: Rows,
        driver: str,
    ) -> None:
        run = Run(Program([call(self.order(["no stock"]))]), (), {})
        run.journal.sink = rows
        assert "no stock" in carry(run, driver).prediction[0]
        assert (rows.count("orders"), rows.count("entries")) == (0, 2)

    def test_is_not_in_the_journal_where_it_could_not_be_committed(
        self,
        rows: Rows,
        driver: str,
    ) -> None:
        rows.fails_to_commit = True
        run = Run(Program([call(self.order([]))]), (), {})
        run.journal.sink = rows
        assert carry(run, driver).status == "failed"
        assert [entry.kind for entry in run.journal.entries] == ["begun"]
        rows.fails_to_commit = False
        assert carry(run, driver).prediction == ["order 1"]
        assert rows.count("orders") == 1

    def test_needs_a_store(self, driver: str) -> None:
        run = carry(Run(Program([call(self.order([]))]), (), {}), driver)
        with pytest.raises(ConfigurationError, match="needs a run with a store"):
            _ = run.prediction
        assert len(run.journal) == 0

    def test_a_cancelled_task_waits_until_it_is_committed_or_undone(self, rows: Rows) -> None:
        """Else a second try could meet the first one."""
        begun, go_on = threading.Event(), threading.Event()

        def slow(ctx: Context) -> str:
            ctx.db.execute("INSERT INTO orders VALUES (1)")
            begun.set()
            assert go_on.wait(60)
            return "slow"

        run = Run(Program([call(Tool(slow, effect="transactional"))]), (), {})
        run.journal.sink = rows

        async def cancelled() -> None:
            task = asyncio.ensure_future(aexecute(run))
            await asyncio.to_thread(begun.wait, 10)
            task.cancel()
            asyncio.get_running_loop().call_later(0, go_on.set)
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        assert (rows.count("orders"), rows.count("entries")) == (1, 2)
        execute(run)
        assert (run.prediction, rows.count("orders")) == (["slow"], 1)

    def test_what_a_timeout_gave_up_writes_nothing_later(self, rows: Rows, driver: str) -> None:
        """ "timed out" is on record, so nothing of it is there: neither what was written, nor the
        rest, which a thread still wants to.
        """
        go_on, gone = threading.Event(), threading.Event()

        def slow(ctx: Context) -> str:
            def numbers() -> Generator[tuple[int]]:
                yield (1,)
                go_on.wait(60)
                yield from ((n,) for n in range(2, 8))

            try:
                ctx.db.execute("INSERT INTO orders VALUES (0)")
                ctx.db.executemany("INSERT INTO orders VALUES (?)", numbers())
            finally:
                gone.set()
            return "slow"

        run = Run(Program([call(Tool(slow, effect="transactional", timeout_s=0.05))]), (), {})
        run.journal.sink = rows
        assert "ToolTimeoutError" in carry(run, driver).prediction[0]
        go_on.set()
        assert gone.wait(60)
        assert (rows.count("orders"), rows.count("entries")) == (0, 2)

    def test_a_statement_that_undoes_the_transaction_fails_the_call(
        self,
        rows: Rows,
        driver: str,
    ) -> None:
        """Also where the tool catches what the statement raised, and returns as if nothing were."""

        def order(ctx: Context, again: bool) -> str:
            ctx.db.execute("INSERT INTO orders VALUES (1)")
            with suppress(sqlite3.IntegrityError):
                ctx.db.execute("INSERT OR ROLLBACK INTO orders VALUES (1)")
            if again:
                with suppress(ToolError):
                    ctx.db.execute("INSERT INTO orders VALUES (2)")
            return "ordered"

        rows.db.execute("CREATE UNIQUE INDEX once_each ON orders (n)")
        tool = Tool(order, effect="transactional")
        run = Run(
            Program([call(tool, again=True)], [call(tool, again=False)], [call(self.order([]))]),
            (),
            {},
        )
        run.journal.sink = rows
        *undone, kept = carry(run, driver).prediction
        assert all("has rolled back its transaction" in each for each in undone)
        assert kept == "order 1"
        assert (rows.count("orders"), rows.count("entries")) == (1, 6)


class Order(BaseModel):
    """What its factory makes differs at every check."""

    number: UUID = Field(default_factory=uuid4)
    article: str


@pytest.mark.parametrize("effect", ["idempotent", "once", "read"])
def test_a_call_that_was_cut_off_keeps_the_defaults_with_which_it_began(effect: str) -> None:
    """The number of an order is made at each check: the second attempt is for the same order, with
    the same key.
    """
    seen: list[tuple[str, str]] = []

    def order(what: Order, ctx: Context) -> str:
        seen.append((str(what.number), ctx.key))
        if len(seen) == 1:
            raise Killed
        return "ordered"

    call = {"name": "order", "args": {"what": {"article": "ink"}}}
    lm = ScriptedLM([call, {"name": "finish", "args": {"answer": "done"}}])
    agent = ReAct("task -> answer", [Tool(order, effect=effect)], lm=lm)
    store = MemoryStore()
    with suppress(Killed):
        agent.start(task="x", store=store, run_id="r")
    run = Run.load(store, "r", agent).resume()
    if effect == "once":
        assert seen[0][0] in run.pending[0].text
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.status == "done"
    assert seen == [seen[0]] * 2
