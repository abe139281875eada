"""A run, or one call, ends at once, whatever its tools do: by any door, with a clear state, and
nothing is lost.
"""

from __future__ import annotations

import _thread
import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ferrule import (
    BaseLM,
    Context,
    Later,
    MemoryStore,
    Predict,
    ReAct,
    Request,
    Response,
    Run,
    SQLiteStore,
    Tool,
    ToolCall,
    configure,
    context,
    events,
    is_cancelled,
    tool,
)  # fmt: skip
from ferrule.concurrency.halting import Halt, HaltedError, cancelled_when_halted
from ferrule.errors import ConfigurationError, DecisionError, RunCancelledError
from ferrule.programs.calling import new_run
from ferrule.testing import ScriptedLM

FINISH = Response("", (ToolCall(name="finish", args={"answer": "over"}, id="end"),))


def turn(*names: str, ids: str = "c") -> Response:
    """An answer of a model with a call of each of these tools: `c0`, `c1`, ..."""
    calls = [ToolCall(name=name, args={}, id=f"{ids}{n}") for n, name in enumerate(names)]
    return Response("", tuple(calls))


HANGING = [
    "in_c",
    "in_lock",
    "in_subprocess",
    "in_generator",
    "asks",
    "awaits",
    "swallows",
    "streams",
]


class Stuck:
    """Tools that hang until `freed`, each in its own way.

    `reached` tells that all calls have begun.
    """

    def __init__(self, expected: int = 1) -> None:
        self.freed = threading.Event()
        self.reached = threading.Event()
        self.began: list[str] = []
        self.expected = expected
        self.lock = threading.Lock()
        self.lock.acquire()

    def begin(self, name: str) -> None:
        self.began.append(name)
        if len(self.began) >= self.expected:
            self.reached.set()

    def in_c(self) -> str:
        self.begin("in_c")
        while not self.freed.is_set():
            time.sleep(0.5)
        return "late"

    def in_lock(self) -> str:
        self.begin("in_lock")
        with self.lock:
            return "late"

    def in_subprocess(self) -> str:
        self.begin("in_subprocess")
        code = "import sys; sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
            self.freed.wait(60)
            process.kill()
        return "late"

    def in_generator(self) -> Iterator[str]:
        self.begin("in_generator")
        while True:
            yield "more"
            self.freed.wait(0.01)

    def asks(self) -> str:
        """Ends by itself, as it looks whether its result is needed."""
        self.begin("asks")
        while not is_cancelled():
            self.freed.wait(0.01)
        return "cut short"

    async def awaits(self) -> str:
        self.begin("awaits")
        await asyncio.sleep(600)
        return "late"

    async def swallows(self) -> str:
        self.begin("swallows")
        while not self.freed.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        return "late"

    async def streams(self) -> Any:
        self.begin("streams")
        while True:
            yield "more"
            await asyncio.sleep(0.01)

    def returns(self) -> str:
        self.begin("returns")
        return "on time"

    def pay(self) -> str:
        self.begin("pay")
        return "paid"

    def tools(self) -> dict[str, Tool]:
        made = [Tool(getattr(self, name), name, "Does something.") for name in HANGING]
        made.append(Tool(self.returns, "returns", "Returns."))
        made.append(Tool(lambda: "quick", "quick", "Is quick."))
        made.append(Tool(self.pay, "pay", "Pays.", require_confirmation=True))
        return {each.name: each for each in made}

    def free(self) -> None:
        self.freed.set()
        self.lock.release()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.free()


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def short_grace() -> Iterator[None]:
    configure(grace_s=0.05)
    yield
    configure(grace_s=1.0)


class Working:
    """An agent at work in another thread, or on another thread's event loop."""

    def __init__(
        self, stuck: Stuck, *turns: Any, store: Any = None, driver: str = "sync", **options: Any
    ) -> None:
        self.requests: list[Any] = []
        self.answers = iter(turns)
        self.events: list[events.Event] = []
        self.lm = ScriptedLM(by=self.answer)
        tools = options.pop("tools", None) or list(stuck.tools().values())
        self.agent = ReAct("task -> answer", tools, lm=self.lm, native=True)
        self.store, self.stuck, self.driver = store, stuck, driver
        self.stream = self.agent.stream(task="t", **({"store": store} if store else {}), **options)
        self.run = self.stream.run
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self.work, args=(self.iterate,), daemon=True)
        self.thread.start()

    def answer(self, request: Any) -> Any:
        self.requests.append(request)
        return next(self.answers)

    def iterate(self) -> None:
        if self.driver == "sync":
            for event in self.stream:
                self.events.append(event)
        else:
            asyncio.run(self.aiterate())

    async def aiterate(self) -> None:
        async for event in self.stream:
            self.events.append(event)

    def work(self, what: Callable[[], None]) -> None:
        try:
            what()
        except BaseException as error:
            self.failure = error

    def at_work(self) -> Working:
        assert self.stuck.reached.wait(60)
        return self

    def ended(self) -> str:
        """The run's status, once its caller has control again, although its tools hang."""
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.run.status

    @property
    def read(self) -> list[str]:
        """What the model reads in its latest request as results of calls."""
        return [m.text for m in self.requests[-1].messages if m.role == "tool"]


@pytest.mark.parametrize("how", HANGING)
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_cancelled_run_ends_although_its_tool_hangs(
    stuck: Stuck, driver: str, how: str, is_stored: bool
) -> None:
    """And what the call did is unknown, unless it ended in time."""
    store = MemoryStore() if is_stored else None
    working = Working(stuck, turn(how), store=store, driver=driver).at_work()
    working.run.cancel()
    assert working.ended() == "cancelled"
    assert isinstance(working.failure, RunCancelledError)
    kinds = [entry.kind for entry in working.run.journal.entries]
    assert kinds == ["model", "begun", *(["result"] if how == "asks" else [])]
    if store is not None:
        summary = store.summary(working.run.id)
        assert (summary.status, summary.leased) == ("cancelled", False)
    finished = [each for each in working.events if isinstance(each, events.CallFinished)]
    assert len(finished) == 1


@pytest.mark.parametrize("how", HANGING)
def test_a_run_that_its_store_cancels_ends_although_its_tool_hangs(
    stuck: Stuck, driver: str, how: str, tmp_path: Path
) -> None:
    """A store with other options has its own connection: nothing but the file tells of it."""
    with SQLiteStore(tmp_path / "runs.db") as store:
        working = Working(stuck, turn(how), store=store, driver=driver).at_work()
        SQLiteStore(store.path, full_sync=False).cancel(working.run.id)
        assert working.ended() == "cancelled"
        assert store.summary(working.run.id).status == "cancelled"


def test_all_calls_of_a_step_have_their_grace(driver: str) -> None:
    """One that ends at once does not cut off one that is about to return."""
    stuck = Stuck(expected=4)
    with context(grace_s=60.0):
        calls = turn("awaits", "asks", "returns", "asks")
        working = Working(stuck, calls, driver=driver).at_work()
    working.run.cancel()
    assert working.ended() == "cancelled"
    results = [e.value.content for e in working.run.journal.entries if e.kind == "result"]
    assert sorted(results) == ["cut short", "cut short", "on time"]
    stuck.free()


def test_no_grace_and_all_the_time(driver: str) -> None:
    """`grace_s=0` waits for nothing; `grace_s=None` for everything that runs."""
    stuck = Stuck()
    working = Working(stuck, turn("in_c"), driver=driver).at_work()
    working.run.cancel(grace_s=0)
    working.run.cancel(grace_s=60)  # a second time: it cannot become longer
    assert working.ended() == "cancelled"
    stuck.free()

    patient = Stuck()
    working = Working(patient, turn("in_c"), driver=driver).at_work()
    working.run.cancel(grace_s=None)
    patient.free()
    assert working.ended() == "cancelled"
    assert [entry.kind for entry in working.run.journal.entries] == ["model", "begun", "result"]


@pytest.mark.parametrize("grace_s", [-1, "1", True, float("nan"), float("inf"), ...])
def test_a_grace_is_a_number_of_seconds(grace_s: Any) -> None:
    with pytest.raises(ConfigurationError):
        configure(grace_s=grace_s)


def test_a_run_that_was_cancelled_asks_about_the_call_when_it_goes_on(stuck: Stuck) -> None:
    store = MemoryStore()
    working = Working(stuck, turn("in_c"), FINISH, store=store).at_work()
    working.run.cancel()
    assert working.ended() == "cancelled"
    run = Run.load(store, working.run.id, working.agent).resume()
    [question] = run.pending
    assert (run.status, question.kind, question.call.id) == ("waiting", "unknown", "c0")
    run.answer(question.reply("done by hand"))
    assert run.resume().prediction.answer == "over"
    assert working.read == ["done by hand"]


# -- one call


@pytest.mark.parametrize("how", HANGING)
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_cancelled_call_ends_and_the_model_reads_the_result_that_was_given(
    stuck: Stuck, driver: str, how: str, is_stored: bool
) -> None:
    store = MemoryStore() if is_stored else None
    working = Working(stuck, turn("quick", how), FINISH, store=store, driver=driver).at_work()
    working.run.cancel_call("c1", result="Take the train.", by="ann")
    assert working.ended() == "done"
    assert working.read == ["quick", "Take the train."]
    step = working.run.prediction.trajectory.steps[0]
    assert [result.by_person for result in step.results] == [False, True]
    [decision] = [e.value for e in working.run.journal.entries if e.kind == "decision"]
    assert (decision.kind, decision.by, decision.at is not None) == ("cancel", "ann", True)
    if store is not None:
        again = Run.load(store, working.run.id, working.agent)
        assert again.prediction == working.run.prediction
        assert again.trajectory == working.run.trajectory


@pytest.mark.parametrize("how", HANGING)
def test_a_cancelled_call_without_a_result_says_what_is_known(
    stuck: Stuck, driver: str, how: str
) -> None:
    """What the tool returned in time is its result."""
    working = Working(stuck, turn(how), FINISH, driver=driver).at_work()
    working.run.cancel_call("c0")
    assert working.ended() == "done"
    if how == "asks":
        assert working.read == ["cut short"]
    else:
        assert "cancelled" in working.read[0]
        assert "not known" in working.read[0]


def test_a_call_is_cancelled_from_another_process(
    stuck: Stuck, driver: str, tmp_path: Path
) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        working = Working(
            stuck, turn("in_c", "quick"), FINISH, store=store, driver=driver
        ).at_work()
        code = (
            "import sys, ferrule; "
            "ferrule.SQLiteStore(sys.argv[1]).cancel_call(sys.argv[2], 'c0', result={'ok': 1})"
        )
        subprocess.run([sys.executable, "-c", code, store.path, working.run.id], check=True)
        assert working.ended() == "done"
        assert working.read == ['{"ok":1}', "quick"]
        assert store.load(working.run.id).decisions == []  # it was used


def test_a_call_is_cancelled_once(stuck: Stuck) -> None:
    """The same again has no effect; another result is refused, also from two threads at once."""
    store = MemoryStore()
    stuck.expected = 2
    working = Working(stuck, turn("in_c", "in_lock"), FINISH, store=store).at_work()
    taken, refused = list[str](), list[str]()

    def cancel(result: str) -> None:
        try:
            store.cancel_call(working.run.id, "c0", result=result)
            taken.append(result)
        except DecisionError:
            refused.append(result)

    threads = [threading.Thread(target=cancel, args=(f"by {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 7)
    for _ in range(2):
        working.run.cancel_call("c1", result="x")
    assert working.ended() == "done"
    assert working.read == [taken[0], "x"]
    with pytest.raises(DecisionError):  # it has ended
        store.cancel_call(working.run.id, "c0", result=taken[0])


@pytest.mark.parametrize("is_stored", [False, True])
def test_calls_that_are_not_at_work_are_named_in_a_refusal(stuck: Stuck, is_stored: bool) -> None:
    store = MemoryStore() if is_stored else None
    working = Working(stuck, turn("quick", ids="q"), turn("in_c"), FINISH, store=store).at_work()
    for call_id in ("q0", "nope", "", None, 7, "c0\0", "\ud800", "x" * 10_000):
        with pytest.raises(DecisionError, match=r"c0 .in_c"):
            working.run.cancel_call(call_id)  # pyright: ignore[reportArgumentType]
    working.run.cancel_call("c0")
    assert working.ended() == "done"
    with pytest.raises(DecisionError, match="done"):
        working.run.cancel_call("c0")


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "junk",
    [
        object(),
        float("nan"),
        {1, 2},
        b"bytes",
        {"a": object()},
        10**5000,
        lambda: 1,
        {1: "a"},
        LOOP,
    ],
    ids=["object", "nan", "set", "bytes", "inside", "digits", "function", "keys", "loop"],
)
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_result_that_is_no_json_is_refused_and_the_call_goes_on(
    stuck: Stuck, junk: Any, is_stored: bool
) -> None:
    store = MemoryStore() if is_stored else None
    working = Working(stuck, turn("in_c"), FINISH, store=store).at_work()
    with pytest.raises(DecisionError):
        working.run.cancel_call("c0", result=junk)
    assert working.run.status == "running"
    working.run.cancel_call("c0", result="")
    assert working.ended() == "done"
    assert working.read == [""]


@pytest.mark.parametrize(
    "result", ["", "\ud800", "a\0b", "x" * 100_000, 0, False, [], {}, [1, {"a": None}]], ids=repr
)
@pytest.mark.parametrize("is_stored", [False, True])
def test_any_json_is_a_result(stuck: Stuck, result: Any, is_stored: bool) -> None:
    store = MemoryStore() if is_stored else None
    working = Working(stuck, turn("in_c"), FINISH, store=store).at_work()
    try:
        working.run.cancel_call("c0", result=result)
    except DecisionError:
        assert result == "\ud800"  # half a character is no text
        working.run.cancel_call("c0")
    assert working.ended() == "done"
    if isinstance(result, str) and result != "\ud800":
        assert working.read == [result]


# -- calls that wait


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("result", [None, "no need"])
def test_a_call_that_waits_for_a_person_can_be_cancelled(
    stuck: Stuck, is_stored: bool, result: str | None
) -> None:
    store = MemoryStore() if is_stored else None
    working = Working(stuck, turn("pay"), FINISH, store=store)
    assert working.ended() == "waiting"
    working.run.cancel_call("c0", result=result)
    assert working.run.resume().prediction.answer == "over"
    assert stuck.began == []
    assert (result or "cancelled") in working.read[0]


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("result", [None, "never mind"])
def test_a_call_that_waits_for_its_result_from_outside_can_be_cancelled(
    stuck: Stuck, is_stored: bool, result: str | None
) -> None:
    """Its tool declares that it returns a number; the canceller may say anything."""

    @tool
    def build() -> int:
        """Build."""
        return Later(key="k")  # pyright: ignore[reportReturnType]

    store = MemoryStore() if is_stored else None
    working = Working(stuck, turn("build"), FINISH, store=store, tools=[build])
    assert working.ended() == "waiting"
    working.run.cancel_call("c0", result=result)
    with pytest.raises(DecisionError):
        working.run.deliver("k", 7)
    assert working.run.resume().prediction.answer == "over"
    assert (result or "cancelled") in working.read[0]


def test_a_call_from_outside_can_be_cancelled_while_another_call_works(stuck: Stuck) -> None:
    @tool
    def build() -> int:
        """Build."""
        return Later(key="k")  # pyright: ignore[reportReturnType]

    store = MemoryStore()
    tools = [build, *stuck.tools().values()]
    working = Working(stuck, turn("build", "in_c"), FINISH, store=store, tools=tools).at_work()
    while not any("?later" in entry.slot for entry in working.run.journal.entries):
        threading.Event().wait(0.001)
    store.cancel_call(working.run.id, "c0", result="no build")
    store.cancel_call(working.run.id, "c1", result="no work")
    assert working.ended() == "waiting"
    assert Run.load(store, working.run.id, working.agent).resume().prediction.answer == "over"
    assert working.read == ["no build", "no work"]


# -- programs


def nested(stuck: Stuck, how: str) -> tuple[list[Any], Any]:
    inner = ReAct("job -> outcome", list(stuck.tools().values()), native=True)
    inner.set_lm(
        ScriptedLM(
            [
                turn(how, ids="inner"),
                Response("", (ToolCall(name="finish", args={"outcome": "o"}, id="e"),)),
            ]
        )
    )
    return [inner.as_tool("worker", "Works.")], inner


@pytest.mark.parametrize("how", ["in_c", "awaits", "swallows"])
@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("call_id", ["inner0", "w"])
def test_a_call_inside_an_agent_and_the_agent_itself_can_be_cancelled(
    stuck: Stuck, driver: str, how: str, is_stored: bool, call_id: str
) -> None:
    tools, _ = nested(stuck, how)
    step = Response("", (ToolCall(name="worker", args={"job": "j"}, id="w"),))
    store = MemoryStore() if is_stored else None
    working = Working(stuck, step, FINISH, store=store, driver=driver, tools=tools).at_work()
    working.run.cancel_call(call_id, result="enough")
    assert working.ended() == "done"
    if call_id == "w":
        assert working.read == ["enough"]
    else:
        assert "o" in working.read[0]
    if store is not None:
        assert Run.load(store, working.run.id, working.agent).trajectory == working.run.trajectory


def test_a_cancelled_run_ends_at_once_also_in_a_nested_agent(stuck: Stuck, driver: str) -> None:
    tools, _ = nested(stuck, "in_c")
    step = Response("", (ToolCall(name="worker", args={"job": "j"}, id="w"),))
    working = Working(stuck, step, driver=driver, tools=tools).at_work()
    working.run.cancel()
    assert working.ended() == "cancelled"


def test_a_call_inside_a_batch_is_cancelled_in_its_own_run() -> None:
    stuck, store, ids = Stuck(expected=2), MemoryStore(), list[str]()

    @tool
    def hang(ctx: Context) -> str:
        """Hang."""
        ids.append(ctx.run_id)
        stuck.begin("hang")
        stuck.freed.wait(60)
        return "late"

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "tool":
            return Response("", (ToolCall(name="finish", args={"answer": last.text}, id="e"),))
        return turn("hang")

    agent = ReAct("task -> answer", [hang], lm=ScriptedLM(by=answer), native=True)

    def cancel() -> None:
        assert stuck.reached.wait(60)
        store.cancel_call(ids[0], "c0", result="skipped")
        store.cancel(ids[1])

    threading.Thread(target=cancel, daemon=True).start()
    outcomes = agent.batch([{"task": "1"}, {"task": "2"}], store=store, return_exceptions=True)
    kinds = sorted(getattr(outcome, "answer", type(outcome).__name__) for outcome in outcomes)
    assert kinds == ["RunCancelledError", "skipped"]
    stuck.free()


# -- across a crash


def test_a_cancellation_survives_the_death_of_the_process(tmp_path: Path) -> None:
    """The call was cancelled, and its process died before it knew: nobody is asked about it."""
    store = SQLiteStore(tmp_path / "runs.db")
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    with subprocess.Popen(
        [sys.executable, program, store.path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.kill()
        process.wait()
    store.cancel_call("r", "c0", result="cancelled by ann")
    agent = ReAct("task -> answer", [Tool(lambda: "", "hang", "Hangs.")], native=True)
    agent.set_lm(lm := ScriptedLM([FINISH]))
    run = Run.load(store, "r", agent).resume()
    assert (run.status, run.prediction.answer) == ("done", "over")
    assert [m.text for m in lm.requests[-1].messages if m.role == "tool"] == ["cancelled by ann"]
    store.close()


_PROGRAM = """
import sys, time
from ferrule import ReAct, Response, SQLiteStore, ToolCall
from ferrule.testing import ScriptedLM

def hang():
    "Hang."
    print("at work", flush=True)
    time.sleep(600)

lm = ScriptedLM([Response("", (ToolCall(name="hang", args={}, id="c0"),))])
ReAct("task -> answer", [hang], lm=lm, native=True).start(
    task="t", store=SQLiteStore(sys.argv[1]), run_id="r"
)
"""


def test_the_main_thread_of_a_script_gets_control_back(tmp_path: Path) -> None:
    """A stored run can be ended by other processes, so its tools do not run in the main thread."""
    store = SQLiteStore(tmp_path / "runs.db")
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM + "print('over', flush=True)\n")
    with subprocess.Popen(
        [sys.executable, program, store.path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        store.cancel("r")
        assert process.stdout.readline() == "over\n"
        assert process.wait(60) == 0
    store.close()


# -- models


class Silent(BaseLM):
    """A model that never answers, whole or in a stream."""

    def __init__(self, stuck: Stuck) -> None:
        super().__init__()
        self.stuck = stuck

    def complete(self, request: Request) -> Response:
        self.stuck.begin("complete")
        self.stuck.freed.wait(60)
        return FINISH

    async def acomplete(self, request: Request) -> Response:
        self.stuck.begin("acomplete")
        await asyncio.sleep(600)
        return FINISH

    def stream(self, request: Request) -> Iterator[Any]:
        yield self.complete(request)

    async def astream(self, request: Request) -> AsyncIterator[Any]:
        yield await self.acomplete(request)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_cancelled_run_does_not_wait_for_its_model(
    stuck: Stuck, driver: str, is_streamed: bool
) -> None:
    store, ended = MemoryStore(), threading.Event()
    program = Predict("task -> answer", lm=Silent(stuck))

    def work() -> None:
        with suppress(RunCancelledError):
            if is_streamed and driver == "sync":
                list(program.stream(task="t", store=store, run_id="r"))
            elif is_streamed:
                asyncio.run(read())
            elif driver == "sync":
                program.start(task="t", store=store, run_id="r")
            else:
                asyncio.run(program.astart(task="t", store=store, run_id="r"))
        ended.set()

    async def read() -> None:
        async for _ in program.astream(task="t", store=store, run_id="r"):
            pass

    threading.Thread(target=work, daemon=True).start()
    assert stuck.reached.wait(60)
    store.cancel("r")
    assert ended.wait(60)
    assert store.summary("r").status == "cancelled"


@pytest.mark.parametrize("is_stored", [False, True])
def test_without_a_bound_of_the_grace_a_tool_stays_in_the_thread_of_its_run(
    is_stored: bool,
) -> None:
    """For what must stay in one thread, such as a connection of `sqlite3`."""
    threads: list[int] = []

    @tool
    def where() -> str:
        """Note the thread."""
        threads.append(threading.get_ident())
        return "here"

    agent = ReAct("task -> answer", [where], lm=ScriptedLM([turn("where"), FINISH]), native=True)
    with context(grace_s=None):
        agent.start(task="t", **({"store": MemoryStore()} if is_stored else {}))
    assert threads == [threading.get_ident()]


def test_an_interrupt_of_the_wait_cancels_what_the_call_awaits(stuck: Stuck) -> None:
    """Ctrl-C in the main thread reaches a tool that runs in another one."""
    cancelled = threading.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        stuck.begin("wait")
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.set()
        return "late"

    def interrupt() -> None:
        assert stuck.reached.wait(60)
        _thread.interrupt_main()

    agent = ReAct("task -> answer", [wait], lm=ScriptedLM([turn("wait")]), native=True)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        agent.start(task="t", store=MemoryStore())
    assert cancelled.wait(60)


def test_a_halt_that_comes_when_the_wait_has_ended_cancels_nothing_later() -> None:
    async def main() -> str:
        halt = Halt()
        loop = asyncio.get_running_loop()

        async def answer() -> str:
            # Set at the last moment: the cancellation is on its way when the answer is there.
            loop.call_soon(halt.set, 1.0)
            return "answer"

        answered = await cancelled_when_halted(answer(), (halt,))
        await asyncio.sleep(0.01)
        return answered

    assert asyncio.run(main()) == "answer"


@pytest.mark.parametrize("is_cancelled_too", [False, True])
def test_a_halt_ends_an_await_in_place_and_keeps_a_cancellation_by_others(
    is_cancelled_too: bool,
) -> None:
    async def main() -> str:
        halt, task = Halt(), asyncio.current_task()
        loop = asyncio.get_running_loop()
        loop.call_soon(halt.set, 1.0)
        if is_cancelled_too:
            loop.call_soon(task.cancel)
        try:
            await cancelled_when_halted(asyncio.sleep(60), (halt,))
        except HaltedError:
            await asyncio.sleep(0)  # the task goes on
            return "halted"
        return "answered"

    if is_cancelled_too:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main())
    else:
        assert asyncio.run(main()) == "halted"


def test_without_a_bound_of_the_grace_a_cancelled_call_is_not_left_behind() -> None:
    """As the setting says: as long as it takes."""
    ended: list[str] = []

    @tool
    async def work() -> str:
        """Work."""
        run.cancel_call("c0")
        await asyncio.sleep(0.2)
        ended.append("work")
        return "worked"

    call_it = Response(None, (ToolCall(name="work", args={}, id="c0"),))
    agent = ReAct("task -> answer", [work], lm=ScriptedLM([call_it, FINISH]), native=True)
    with context(grace_s=None):
        run = new_run(agent, (), {"task": "t"})
        asyncio.run(run.aresume())
    assert ended == ["work"]
    assert run.trajectory["observation_0"] == "worked"
