"""The two drivers, fed flows by hand: whatever holds for one holds for the other."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agent_script import fields, text_step

from ferrule import settings
from ferrule.acts import AskPerson, CallModel, CallTools, Once, Tell, Within
from ferrule.approval.question import Question
from ferrule.concurrency.offload import POOL_SIZE
from ferrule.errors import (
    ConfigurationError,
    ContextOverflowError,
    LimitReachedError,
    ReplayMismatchError,
    RunCancelledError,
    RunError,
    ToolStop,
    UnavailableError,
)
from ferrule.events import Custom, Migrated
from ferrule.models.model import BaseLM
from ferrule.programs.predict import Predict
from ferrule.programs.react import ReAct
from ferrule.runs.driver.execution import aexecute, execute
from ferrule.runs.journal.entry import Entry
from ferrule.runs.limits import Limits
from ferrule.runs.run import Run
from ferrule.runs.store.sqlite.store import MemoryStore
from ferrule.testing.offline.model import AutoLM
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult
from ferrule.values.conversation.exchange import Request, Response
from ferrule.values.conversation.message import Message, Messages
from ferrule.values.outcome import Prediction


class Flow:
    """A generator function as a program."""

    is_flow = True
    is_async = False
    is_only_async = False
    name = "flow"

    def __init__(self, flow: Callable[..., Generator[Any, Any, Any]]) -> None:
        self.flow = flow

    def forward(self, *args: Any, **inputs: Any) -> Any:
        raise AssertionError

    async def aforward(self, *args: Any, **inputs: Any) -> Any:
        raise AssertionError


def carry(run: Run, driver: str, **keywords: Any) -> Run:
    if driver == "sync":
        execute(run, **keywords)
    else:
        asyncio.run(aexecute(run, **keywords))
    return run


def started(flow: Callable[..., Generator[Any, Any, Any]], driver: str, **keywords: Any) -> Run:
    return carry(Run(Flow(flow), (), {}), driver, **keywords)


def request(text: str = "hi") -> Request:
    return Request(Messages([Message("user", text)]))


def checked(tool: Tool, call_id: str | None = None, **args: Any) -> CheckedCall:
    return CheckedCall(ToolCall(name=tool.name, args=args, id=call_id), tool, tool.prepare(args))


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def test_a_flow_is_sent_the_answers_to_its_acts(driver: str) -> None:
    """Architecture: a program decides, one driver acts."""
    lm = ScriptedLM(["hello"])

    def flow() -> Generator[Any, Any, Any]:
        response = yield CallModel(request(), lm)
        results = yield CallTools((checked(Tool(add), "c1", a=2, b=3),))
        return Prediction(text=response.text, sum=results[0].content)

    run = started(flow, driver)
    assert run.status == "done"
    assert run.prediction == Prediction(text="hello", sum="5")
    assert run.usage.calls == lm_calls(lm)
    assert [entry.kind for entry in run.journal.entries] == ["model", "begun", "result"]


def lm_calls(lm: ScriptedLM) -> int:
    return len(lm.requests)


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (5, "found 5."),
        (None, "found None."),
        ("x", "found 'x'."),
        ((each for each in ()), "write `yield from` before a generator."),
    ],
    ids=["number", "None", "text", "generator"],
)
def test_a_flow_that_yields_anything_but_an_act_fails_with_what_it_yielded(
    act: Any,
    found: str,
    driver: str,
) -> None:
    def flow() -> Generator[Any, Any, Any]:
        yield act

    error = started(flow, driver).error
    assert isinstance(error, RunError)
    assert str(error).startswith("A flow yields acts, such as `CallModel(...)`; found ")
    assert str(error).endswith(found)


def test_a_flow_that_is_no_generator_fails_with_what_it_returned(driver: str) -> None:
    error = started(lambda: Prediction(a=1), driver).error  # type: ignore[arg-type, return-value]
    assert isinstance(error, RunError)
    assert (
        "returned Prediction(a=1), which is not a generator: write it as a generator that yields acts"
        in str(error)
    )


@pytest.mark.parametrize("lm", [None, "openai/gpt-5-mini"])
def test_a_model_call_without_a_model_says_where_the_set_one_is(driver: str, lm: Any) -> None:
    def flow() -> Generator[Any, Any, Any]:
        yield CallModel(request(), lm)

    error = started(flow, driver).error
    assert isinstance(error, ConfigurationError)
    assert f"`CallModel(request, lm)` needs a model, found {lm!r}." in str(error)


class Strict(BaseLM):
    """A model that reads its request, as those with a server do."""

    def complete(self, request: Request) -> Response:
        return Response(f"{request.messages[0].role} {request.tools.json!r}")


JUNK: dict[str, tuple[Any, str]] = {
    "text": (CallModel("hi", Strict()), "CallModel(Request(Messages([Message('user', text)]), "),  # type: ignore[arg-type]
    "text in a request": (CallModel(Request("hi"), Strict()), "CallModel(Request(Messages("),  # type: ignore[arg-type]
    "dicts": (
        CallModel(Request(Messages([{"role": "user"}])), Strict()),
        "CallModel(Request(Messages(",
    ),  # type: ignore[list-item]
    "functions": (
        CallModel(Request(Messages([Message("user", "hi")]), tools=[add]), Strict()),
        "CallModel(",
    ),  # type: ignore[arg-type]
    "no calls": (CallTools("add"), "CallTools((checked_call, ...))"),  # type: ignore[arg-type]
    "unchecked calls": (CallTools((ToolCall(name="add"),)), "CallTools((checked_call, ...))"),  # type: ignore[arg-type]
    "no questions": (AskPerson("really?"), "AskPerson((Question(...), ...))"),  # type: ignore[arg-type]
    "no function": (Once(5), "Once(function, name)"),  # type: ignore[arg-type]
    "no code": (Once(5, runs_code=True), "Once(function, name)"),  # type: ignore[arg-type]
    "no limits": (Within({"calls": 1}), "Within(Limits(...))"),
}


@pytest.mark.parametrize(("act", "form"), JUNK.values(), ids=JUNK)
def test_an_act_that_holds_something_else_fails_with_its_form(
    act: Any,
    form: str,
    driver: str,
) -> None:
    """Not with an error about an attribute, deep inside."""

    def flow() -> Generator[Any, Any, Any]:
        yield act

    error = started(flow, driver).error
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith(f"Write the act as `{form}")
    assert "; found " in str(error)


@pytest.mark.parametrize("kind", [AttributeError, TypeError])
def test_an_error_of_the_flow_itself_passes(kind: type[Exception], driver: str) -> None:
    def flow() -> Generator[Any, Any, Any]:
        yield Once(lambda: 7, "seven")
        raise kind("of the flow")

    error = started(flow, driver).error
    assert (type(error), str(error)) == (kind, "of the flow")


def test_sync_and_async_journals_are_equal() -> None:
    """Issue 2: equal journals; D27."""

    def flow() -> Generator[Any, Any, Any]:
        yield CallModel(request(), ScriptedLM(["hello"]))
        yield CallTools((checked(Tool(add), "c1", a=2, b=3), checked(Tool(add), "c2", a=4, b=5)))
        yield Once(lambda: 7, "seven")
        return Prediction()

    assert started(flow, "sync").journal == started(flow, "async").journal


def test_a_replay_asks_neither_model_nor_tool_and_gives_the_same(driver: str) -> None:
    """What is journalled is never executed again."""
    lm, ran, stop = ScriptedLM(["hello"]), [], [True]

    def note(word: str) -> str:
        """Note."""
        ran.append(word)
        return word.upper()

    def flow() -> Generator[Any, Any, Any]:
        response = yield CallModel(request(), lm)
        results = yield CallTools((checked(Tool(note), "c1", word=response.text),))
        moment = yield Once(lambda: object(), "moment")
        if stop[0]:
            raise RuntimeError("crash")
        return Prediction(text=results[0].content, moment=moment)

    run = started(flow, driver)
    assert run.status == "failed"
    with pytest.raises(RuntimeError, match="crash"):
        _ = run.prediction
    stop[0] = False
    carry(run, driver)
    assert run.prediction.text == "HELLO"
    assert ran == ["hello"]
    assert len(lm.requests) == 1


def test_a_program_that_changed_is_found_out_at_the_first_act_that_differs(driver: str) -> None:
    acts: list[Any] = [CallModel(request(), lm := ScriptedLM(["a", "b"]))]

    def flow() -> Generator[Any, Any, Any]:
        yield acts[-1]
        raise RuntimeError("crash")

    run = started(flow, driver)
    acts.append(Once(lambda: 1, "clock"))
    carry(run, driver)
    assert isinstance(run.error, ReplayMismatchError)
    assert len(lm.requests) == 1


def test_another_prompt_gets_the_recorded_answer_and_the_journal_says_so(driver: str) -> None:
    """A prompt is recorded, not compared; the note comes before what the new version does."""
    words = ["one"]
    lm = ScriptedLM(["a", "b"])

    def flow() -> Generator[Any, Any, Any]:
        first = yield CallModel(request(words[0]), lm)
        if words == ["one"]:
            raise RuntimeError("crash")
        second = yield CallModel(request("next"), lm)
        return Prediction(text=first.text + second.text)

    run = started(flow, driver)
    words[0] = "two"
    events: list[Any] = []
    with settings.context(callbacks=[events.append]):
        carry(run, driver)
    assert run.prediction.text == "ab"
    assert [entry.kind for entry in run.journal.entries] == ["model", "migrated", "model"]
    then, now = run.journal.entries[1].value["differs"]["model request"]
    assert (then, now) == (request("one").digest, request("two").digest)
    assert [each.differs for each in events if isinstance(each, Migrated)] == [
        {"model request": (then, now)},
    ]


def test_a_models_failure_is_thrown_into_the_flow_and_replayed_if_it_was_handled(
    driver: str,
) -> None:
    """A flow may mend a context overflow; the replay must take the same turn."""
    lm = ScriptedLM([ContextOverflowError("too long"), "short", "done"])
    crash = [True]

    def flow() -> Generator[Any, Any, Any]:
        try:
            response = yield CallModel(request("long"), lm)
        except ContextOverflowError:
            response = yield CallModel(request("short"), lm)
        if crash[0]:
            raise RuntimeError("crash")
        return Prediction(text=response.text)

    run = started(flow, driver)
    crash[0] = False
    carry(run, driver)
    assert run.prediction.text == "short"
    assert len(lm.requests) == 2


def test_a_models_failure_that_nobody_handles_fails_the_run_and_is_tried_again_on_resume(
    driver: str,
) -> None:
    """A server that was down is asked again."""
    lm = ScriptedLM([UnavailableError("down"), "up"])

    def flow() -> Generator[Any, Any, Any]:
        response = yield CallModel(request(), lm)
        return Prediction(text=response.text)

    run = started(flow, driver)
    assert isinstance(run.error, UnavailableError)
    assert len(run.journal) == 0
    assert carry(run, driver).prediction.text == "up"


def test_stop_iteration_from_a_model_is_not_taken_for_the_end_of_the_program() -> None:
    """Only the flow itself ends the flow."""

    def ask(_: Request) -> Response:
        raise StopIteration("odd")

    def flow() -> Generator[Any, Any, Any]:
        yield CallModel(request(), ScriptedLM(by=ask))
        return Prediction()

    assert started(flow, "sync").status == "failed"


def test_a_question_without_an_answer_suspends_and_its_decision_resumes(driver: str) -> None:
    """Resume neither asks the model again nor runs earlier tools."""
    lm = ScriptedLM(["go"])

    def flow() -> Generator[Any, Any, Any]:
        yield CallModel(request(), lm)
        decisions = yield AskPerson(
            (Question("confirm", "Sure?", ToolCall(name="rm", args={"path": "x"})),),
        )
        return Prediction(decision=decisions[0].kind)

    run = started(flow, driver)
    assert run.status == "waiting"
    (question,) = run.pending
    assert question.text == "Sure?"
    assert len(question.id) >= 16
    run.answer(question.deny("no"))
    assert carry(run, driver).prediction.decision == "deny"
    assert len(lm.requests) == 1


def test_question_ids_are_the_same_when_the_run_waits_again_and_differ_between_runs(
    driver: str,
) -> None:
    """U94, U100, api.md 10."""

    def flow() -> Generator[Any, Any, Any]:
        yield AskPerson(
            (
                Question("confirm", "Sure?", ToolCall(name="rm")),
                Question("confirm", "Sure?", ToolCall(name="rm")),
            ),
        )
        return Prediction()

    run, other = started(flow, driver), started(flow, driver)
    first = [question.id for question in run.pending]
    assert len({*first, *(question.id for question in other.pending)}) == 4
    assert [question.id for question in carry(run, driver).pending] == first


def test_observers_are_told_live_and_a_replay_is_silent(driver: str) -> None:
    """Architecture: replay is silent."""
    crash, told = [True], []

    def flow() -> Generator[Any, Any, Any]:
        yield Tell(Custom("before"))
        yield CallModel(request(), ScriptedLM(["x"]))
        if crash[0]:
            raise RuntimeError("crash")
        yield Tell(Custom("after"))
        return Prediction()

    run = started(
        flow,
        driver,
        observers=(lambda event: told.append(getattr(event, "name", type(event).__name__)),),
    )
    assert told == ["RunStarted", "before", "ModelCalled", "ModelAnswered", "RunFinished"]
    crash[0], told[:] = False, []
    carry(
        run,
        driver,
        observers=(lambda event: told.append(getattr(event, "name", type(event).__name__)),),
    )
    assert told == ["Resumed", "after", "RunFinished"]


@pytest.mark.parametrize("kind", ["sync tools", "async tools"])
def test_calls_of_one_turn_run_at_once_and_results_keep_their_order(driver: str, kind: str) -> None:
    """Eight calls that all wait for one another."""
    together = threading.Barrier(8)

    def meet(n: int) -> int:
        """Meet."""
        together.wait(timeout=60)
        return n

    on_the_loop = asyncio.Barrier(8)

    async def ameet(n: int) -> int:
        """Meet."""
        async with asyncio.timeout(20):
            await on_the_loop.wait()
        return n

    tool = Tool(meet if kind == "sync tools" else ameet, "meet")

    def flow() -> Generator[Any, Any, Any]:
        results: list[ToolResult] = yield CallTools(
            tuple(checked(tool, f"c{n}", n=n) for n in range(8)),
        )
        return Prediction(found=[(result.call_id, result.content) for result in results])

    assert started(flow, driver).prediction.found == [(f"c{n}", str(n)) for n in range(8)]


def test_tools_that_are_not_concurrent_run_one_after_another(driver: str) -> None:
    """Architecture: `concurrent=False`."""
    inside, most = [0], [0]

    def alone(n: int) -> int:
        """Alone."""
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.005)
        inside[0] -= 1
        return n

    tool = Tool(alone, concurrent=False)

    def flow() -> Generator[Any, Any, Any]:
        results = yield CallTools(tuple(checked(tool, f"c{n}", n=n) for n in range(4)))
        return Prediction(found=[result.content for result in results])

    assert started(flow, driver).prediction.found == ["0", "1", "2", "3"]
    assert most[0] == 1


colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tools_see_the_callers_context_variables_and_leave_them_alone(
    driver: str,
    kind: str,
    calls: int,
) -> None:
    """U60; architecture: one `copy_context()` a call."""

    def look() -> str:
        """Look."""
        seen = colour.get()
        colour.set("changed by a tool")
        return seen

    async def alook() -> str:
        """Look, and see one's own change after a wait."""
        seen = look()
        await asyncio.sleep(0)
        return seen if colour.get() == "changed by a tool" else "lost"

    def flow() -> Generator[Any, Any, Any]:
        tool = Tool(look if kind == "sync" else alook)
        results = yield CallTools(tuple(checked(tool, f"c{k}") for k in range(calls)))
        return Prediction(seen=[result.content for result in results], after=colour.get())

    token = colour.set("red")
    try:
        prediction = started(flow, driver).prediction
    finally:
        colour.reset(token)
    assert prediction.seen == ["red"] * calls
    assert prediction.after == "red"


def test_a_tool_stop_ends_the_whole_run_with_that_error(driver: str) -> None:
    """api.md: `raise ToolStop(...)` ends the run with the error, also out of several calls."""

    def stop() -> str:
        """Stop."""
        raise ToolStop("enough")

    for several in (1, 2):

        def flow(several: int = several) -> Generator[Any, Any, Any]:
            yield CallTools(tuple(checked(Tool(stop), f"c{k}") for k in range(several)))
            return Prediction()

        run = started(flow, driver)
        with pytest.raises(ToolStop, match="enough"):
            _ = run.prediction


def test_a_tool_that_fails_gives_a_result_not_an_error(driver: str) -> None:
    def fail() -> str:
        """Fail."""
        raise ValueError("no such file")

    def flow() -> Generator[Any, Any, Any]:
        results = yield CallTools((checked(Tool(fail), "c"),))
        return Prediction(result=results[0])

    result = started(flow, driver).prediction.result
    assert result.is_error
    assert result.content.startswith("Execution error in fail: ValueError: no such file")


def test_programs_inside_tools_inside_programs_never_wait_for_the_pool_forever() -> None:
    """Architecture: a nested driver inside a pool worker runs its tools inline."""

    def inner_flow() -> Generator[Any, Any, Any]:
        results = yield CallTools(tuple(checked(Tool(add), f"i{k}", a=k, b=1) for k in range(3)))
        return Prediction(total=sum(int(result.content) for result in results))

    def nest(n: int) -> int:
        """Nest."""
        return started(inner_flow, "sync").prediction.total

    def flow() -> Generator[Any, Any, Any]:
        results = yield CallTools(tuple(checked(Tool(nest), f"c{n}", n=n) for n in range(80)))
        return Prediction(found=[result.content for result in results])

    assert started(flow, "sync").prediction.found == ["6"] * 80


def test_agents_that_tools_call_from_threads_of_their_own_never_wait_for_the_pool_forever() -> None:
    """Every worker waits for such a thread, which does itself what no worker comes to."""
    inner = Tool(lambda number: number, "inner", args={"number": {"type": "integer"}})

    def ask() -> str:
        calls = tuple(ToolCall(name="inner", args={"number": i}) for i in range(2))
        lm = ScriptedLM(
            [
                Response(tool_calls=calls),
                Response(tool_calls=(ToolCall(name="finish", args={"answer": "a"}),)),
            ],
        )
        with ThreadPoolExecutor(1) as pool:
            return (
                pool.submit(ReAct("question -> answer", [inner], native=True), question="q", lm=lm)
                .result()
                .answer
            )

    outer = ReAct("question -> answer", [Tool(ask)], native=True)
    calls = tuple(ToolCall(name="ask", args={}) for _ in range(POOL_SIZE + 8))
    lm = ScriptedLM(
        [
            Response(tool_calls=calls),
            Response(tool_calls=(ToolCall(name="finish", args={"answer": "b"}),)),
        ],
    )
    assert [
        result.content for result in outer(question="q", lm=lm).trajectory.steps[0].results
    ] == ["a"] * (POOL_SIZE + 8)


def test_a_cancelled_run_acts_no_more_and_can_go_on_later(driver: str) -> None:
    """Cancelling leaves a resumable run."""
    lm = ScriptedLM(["one", "two"])
    runs: list[Run] = []

    def stop() -> str:
        """Stop."""
        runs[0].cancel()
        return "stopped"

    def flow() -> Generator[Any, Any, Any]:
        yield CallTools((checked(Tool(stop), "c"),))
        response = yield CallModel(request(), lm)
        return Prediction(text=response.text)

    runs.append(Run(Flow(flow), (), {}))
    carry(runs[0], driver)
    assert runs[0].status == "cancelled"
    assert len(lm.requests) == 0
    assert carry(runs[0], driver).prediction.text == "one"


def test_cancelling_the_task_cancels_the_run_and_its_tool() -> None:
    """CancelledError is never an observation."""
    seen: list[str] = []

    async def wait() -> str:
        """Wait."""
        seen.append("started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "never"

    def flow() -> Generator[Any, Any, Any]:
        yield CallTools((checked(Tool(wait), "c"),))
        return Prediction()

    run = Run(Flow(flow), (), {})

    async def main() -> None:
        task = asyncio.create_task(aexecute(run))
        while not seen:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["started", "cancelled"]
    assert run.status == "cancelled"


def test_ctrl_c_in_a_tool_goes_through_and_leaves_the_run_resumable() -> None:
    def interrupt() -> str:
        """Interrupt."""
        raise KeyboardInterrupt

    def flow() -> Generator[Any, Any, Any]:
        yield CallTools((checked(Tool(interrupt), "c"),))
        return Prediction()

    run = Run(Flow(flow), (), {})
    with pytest.raises(KeyboardInterrupt):
        execute(run)
    assert run.status == "cancelled"


def test_an_execution_that_was_interrupted_writes_nothing_more(driver: str) -> None:
    """Its thread may come back when the run goes on already, and hold the journal of that
    execution.
    """
    runs: list[Run] = []

    def late() -> int:
        root = runs[0].root
        assert root is not None
        root.life.over = True
        return 7

    def flow() -> Generator[Any, Any, Any]:
        yield Once(late, "clock")
        return Prediction()

    runs.append(Run(Flow(flow), (), {}))
    carry(runs[0], driver)
    assert isinstance(runs[0].error, RunCancelledError)
    assert runs[0].journal.entries == []


def test_a_done_run_is_not_carried_again(driver: str) -> None:
    def flow() -> Generator[Any, Any, Any]:
        return Prediction()
        yield

    run = started(flow, driver)
    with pytest.raises(RunError, match="done"):
        carry(run, driver)


def test_calls_without_ids_get_ids_by_position(driver: str) -> None:
    """Generated ids are unique in the message and the same in every replay."""
    response = Response(
        tool_calls=(ToolCall(name="a"), ToolCall(name="b", id="x"), ToolCall(name="c", id="x")),
    )

    class Careless(BaseLM):
        def complete(self, request: Request) -> Response:
            return response

    def flow() -> Generator[Any, Any, Any]:
        found = yield CallModel(request(), Careless())
        return Prediction(ids=[call.id for call in found.tool_calls])

    assert started(flow, driver).prediction.ids == ["call_0_0", "x", "call_0_2"]


class LaterOnly:
    """A sink that must not be waited for: a write that would block the loop fails."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def __call__(self, entry: Entry) -> None:
        msg = f"{entry.kind} at {entry.slot} was written on the loop"
        raise AssertionError(msg)

    async def later(self, entry: Entry) -> None:
        await asyncio.sleep(0)
        self.kinds.append(entry.kind)


IN_TEXT = {
    ReAct: [
        text_step("t", "clock"),
        text_step("t", "finish"),
        fields(reasoning="r", answer="well"),
    ],
    Predict: [
        fields(tool_calls={"tool_calls": [{"name": "clock", "args": {}}]}),
        fields(answer="well"),
    ],
}


def holders(value: Any, depth: int = 8) -> str:
    """What refers to a value, and what to that, for the message of a failed test.

    And where each thread is: its variables may hold the value, too.
    """
    lines: list[str] = []
    level = [value]
    seen = {id(lines), id(level)}
    for _ in range(depth):
        referrers = [
            each
            for each in gc.get_referrers(*level)
            if id(each) not in seen and not isinstance(each, types.FrameType)
        ]
        seen |= {id(referrers), *(id(each) for each in referrers)}
        lines += [f"{type(each)} {each!r:.200}" for each in referrers[:20]]
        lines.append("-- held by")
        level = referrers[:20]
    for frame in sys._current_frames().values():
        lines += ["-- a thread is at", *traceback.format_stack(frame)]
    return "\n".join(lines)


@pytest.mark.parametrize("kind", [ReAct, Predict])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("store", [None, MemoryStore])
def test_a_run_that_ended_leaves_nothing_to_the_garbage_collector(
    driver: str,
    kind: Any,
    native: bool,
    store: Any,
) -> None:
    """Its memory is given back with the last name of it."""
    held: list[weakref.ref[Any]] = []

    def clock() -> str:
        held.append(weakref.ref(settings.scope().call.checked.host.owner))
        return "noon"

    def carried() -> None:
        run = Run(
            kind("question -> answer", tools=[Tool(clock)], native=native),
            (),
            {"question": "q"},
        )
        if store is not None:
            run.keep(store())
        with settings.context(lm=AutoLM("well") if native else ScriptedLM(IN_TEXT[kind])):
            carry(run, driver)
        assert run.prediction.answer == "well"
        held.append(weakref.ref(run))

    gc.disable()
    try:
        carried()
        for _ in range(12_000):  # the worker thread of a tool lets go of it last
            if all(each() is None for each in held):
                break
            threading.Event().wait(0.005)
        assert [each() for each in held] == [None, None], holders(held[-1]())
    finally:
        gc.enable()


def test_an_async_run_writes_without_blocking_the_loop() -> None:
    """Architecture: answers, failures, limits, values of `Once`, and what calls were begun and
    became.
    """

    def flow() -> Generator[Any, Any, Any]:
        found = [(yield Once(lambda: 7, "clock"))]
        with pytest.raises(UnavailableError):
            yield CallModel(request("a"), lm)
        yield CallModel(request("b"), lm)
        yield Within(Limits(tool_calls=1), answers_at_limit=True)
        found += [each.content for each in (yield CallTools((checked(Tool(add), a=1, b=2),)))]
        with pytest.raises(LimitReachedError):
            yield CallModel(request("c"), lm)
        try:
            yield CallModel(request("d"), lm)
        except UnavailableError:  # the program ends on a failure
            return found

    lm = ScriptedLM([UnavailableError("down"), "one", UnavailableError("down")])
    run = Run(Flow(flow), (), {})
    run.journal.sink = sink = LaterOnly()
    assert carry(run, "async").prediction == [7, "3"]
    assert sink.kinds == ["once", "failure", "model", "begun", "result", "limit", "failure"]
