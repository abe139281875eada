"""The async driver never writes to a store on the event loop, however slow the store is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest
from agent_script import fields, native_step

from ferrule import (
    Context,
    Grant,
    Limits,
    Policy,
    ReAct,
    Response,
    Run,
    Tool,
    ToolCall,
    allow,
    ask,
    context,
    deny,
    tool,
)
from ferrule.errors import UnavailableError
from ferrule.runs.store.sqlite.store import MemoryStore
from ferrule.testing import ScriptedLM

LOOK, PAY = native_step("l", "look", {"room": 7}), native_step("p", "pay", {"room": 7})
TWO_LOOKS = Response(
    tool_calls=tuple(ToolCall(name="look", args={"room": n}, id=f"l{n}") for n in range(2)),
)
FINISH = native_step("f", "finish", {"answer": "yes"})


class SlowStore(MemoryStore):
    """Every write lasts until the event loop has turned once more, and notes on which thread it
    happened.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loops_thread = 0
        self.wrote_on_loop: list[str] = []
        self.writes = 0
        self._ticked = threading.Condition()
        self._at_once, self._file.write = self._file.write, self._slowly

    def _slowly(self, work: Callable[[Any], Any]) -> Any:
        if threading.get_ident() == self.loops_thread:
            self.wrote_on_loop.append("a write")
        elif self.loops_thread:
            with self._ticked:
                assert self._ticked.wait(60), "the event loop stands still"
        self.writes += 1
        return self._at_once(work)

    async def _tick(self) -> None:
        self.loops_thread = threading.get_ident()
        while True:
            with self._ticked:
                self._ticked.notify_all()
            await asyncio.sleep(0)

    def on_loop(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run something on an event loop that ticks meanwhile."""

        async def main() -> Any:
            ticking = asyncio.create_task(self._tick())
            await asyncio.sleep(0)
            try:
                return await work()
            finally:
                ticking.cancel()
                self.loops_thread = 0

        return asyncio.run(main())

    def start(self, program: Any, *script: Any, **settings: Any) -> Run:
        """Start a program on the loop, and prove that it wrote something, and nothing there."""
        with context(lm=ScriptedLM(list(script)), **settings):
            return self.checked(lambda: program.astart(task="x", store=self, run_id="r"))

    def resume(self, run: Run, *script: Any, **settings: Any) -> Run:
        with context(lm=ScriptedLM(list(script)), **settings):
            return self.checked(run.aresume)

    def checked(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        before = self.writes
        found = self.on_loop(work)
        assert self.writes > before
        assert self.wrote_on_loop == []
        return found


@pytest.fixture
def store() -> Generator[SlowStore]:
    store = SlowStore()
    yield store
    store.close()


def look(room: int) -> str:
    """See a room."""
    return f"nice {room}"


@tool(require_confirmation=True)
def pay(room: int) -> str:
    """Pay."""
    return f"paid {room}"


AGENT = ReAct("task -> answer", [look, pay], native=True)


def test_answers_of_models_and_tools(store: SlowStore) -> None:
    assert store.start(AGENT, LOOK, FINISH).prediction.answer == "yes"


def test_a_failed_model_call(store: SlowStore) -> None:
    run = store.start(AGENT, LOOK, UnavailableError("down"))
    assert run.status == "failed"


def test_decisions(store: SlowStore) -> None:
    run = store.start(AGENT, PAY)
    run.answer(run.pending[0].approve())
    assert store.resume(run, FINISH).prediction.answer == "yes"


def test_decisions_by_a_grant(store: SlowStore) -> None:
    """Its last call is used once."""
    run = store.start(AGENT, PAY)
    run.answer(run.pending[0].approve(always=Grant(calls=1)))
    store.resume(run, PAY, PAY, FINISH)
    assert (run.status, len(run.pending)) == ("waiting", 1)


def test_a_question_that_expires(store: SlowStore) -> None:
    agent = ReAct(
        "task -> answer",
        [look],
        native=True,
        policy=Policy([ask("look", expires_s=1e-9)]),
    )
    run = store.start(agent, LOOK)
    assert store.resume(run, FINISH).prediction.answer == "yes"


def test_rulings_of_a_policy(store: SlowStore) -> None:
    policy = Policy([deny("look"), allow("pay")])
    assert store.start(AGENT, LOOK, PAY, FINISH, policy=policy).prediction.answer == "yes"


def test_calls_that_a_limit_refuses(store: SlowStore) -> None:
    agent = ReAct(
        "task -> answer", [look], native=True, limits=Limits(tool_calls=1), on_limit="extract"
    )
    run = store.start(agent, TWO_LOOKS, fields(reasoning="r", answer="yes"))
    assert run.prediction.answer == "yes"


def test_a_program_that_is_called_as_a_tool(store: SlowStore) -> None:
    worker = ReAct("job -> outcome", [look], native=True).as_tool("worker")
    outer = ReAct("task -> answer", [worker], native=True)
    inner_end = native_step("f", "finish", {"outcome": "seen"})
    assert (
        store.start(
            outer,
            native_step("w", "worker", {"job": "j"}),
            LOOK,
            inner_end,
            FINISH,
        ).prediction.answer
        == "yes"
    )


def test_a_call_that_a_crash_cut_off(store: SlowStore) -> None:
    """The question about it, and its decision."""

    def crash() -> str:
        """Crash."""
        raise KeyboardInterrupt

    agent = ReAct("task -> answer", [Tool(crash, unknown="ask")], native=True)
    with pytest.raises(KeyboardInterrupt), context(lm=ScriptedLM([native_step("c", "crash")])):
        agent.start(task="x", store=store, run_id="r")
    run = Run.load(store, "r", agent)
    store.resume(run)
    run.answer(run.pending[0].reply("it ran"))
    assert store.resume(run, FINISH).prediction.answer == "yes"


def test_a_transaction(store: SlowStore) -> None:
    def order(ctx: Context, room: int) -> str:
        """Order."""
        ctx.db.execute("CREATE TABLE orders (room INTEGER)")
        return f"ordered {room}"

    agent = ReAct("task -> answer", [Tool(order, "look", effect="transactional")], native=True)
    assert store.start(agent, LOOK, FINISH).prediction.answer == "yes"


def test_several_calls_at_once(store: SlowStore) -> None:
    assert store.start(AGENT, TWO_LOOKS, FINISH).prediction.answer == "yes"


def test_a_run_whose_task_is_cancelled(store: SlowStore) -> None:
    """That it rests is written as well."""
    reached: list[asyncio.Event] = []

    async def wait() -> str:
        """Wait."""
        reached[0].set()
        await asyncio.Event().wait()
        raise AssertionError

    agent = ReAct("task -> answer", [wait], native=True)

    async def work() -> None:
        reached.append(asyncio.Event())
        task = asyncio.ensure_future(agent.astart(task="x", store=store, run_id="r"))
        await reached[0].wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with context(lm=ScriptedLM([native_step("w", "wait")])):
        store.checked(work)
    assert store.load("r").status == "cancelled"
