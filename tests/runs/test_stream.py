"""Streams of events, for `for` and for `async for`."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest
from agent_script import STEPS, fields, native_step, text_step

from ferrule import (
    ConfirmationRequired,
    Module,
    Predict,
    Prediction,
    ReAct,
    RunError,
    Tool,
    context,
    emit_event,
    events,
    is_cancelled,
    progress,
    tool,
)
from ferrule.errors import RunCancelledError
from ferrule.events import CallStarted
from ferrule.runs import stream as stream_module
from ferrule.runs.stream import EventStream
from ferrule.testing import ScriptedLM


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def collect(stream: EventStream, driver: str) -> list[events.Event]:
    if driver == "sync":
        return list(stream)

    async def main() -> list[events.Event]:
        return [event async for event in stream]

    return asyncio.run(main())


@pytest.mark.parametrize("mode", ["text", "native"])
def test_a_stream_tells_thoughts_calls_results_and_one_prediction(driver: str, mode: str) -> None:
    """Field deltas, tool start and end, exactly one final prediction."""
    lm = ScriptedLM(
        [
            STEPS[mode]("add them up", "add", {"a": 2, "b": 3}),
            STEPS[mode]("done", "finish", {"answer": 5}),
        ],
    )
    stream = ReAct("question -> answer: int", [add], native=mode == "native").stream(
        question="q",
        lm=lm,
    )
    told = collect(stream, driver)
    kinds = [type(event).__name__ for event in told]
    assert kinds[0] == "RunStarted"
    assert kinds[-1] == "RunFinished"
    assert kinds.count("RunFinished") == 1
    assert kinds.count("StepFinished") == 2
    started = next(event for event in told if isinstance(event, events.CallStarted))
    ended = next(event for event in told if isinstance(event, events.CallFinished))
    assert started.call.id == ended.call.id
    assert ended.result.content == "5"
    thoughts: dict[str, str] = {}
    for event in told:
        if isinstance(event, events.Preamble if mode == "native" else events.ThoughtDelta):
            thoughts[event.call_id] = thoughts.get(event.call_id, "") + event.text
    assert [thought.strip() for thought in thoughts.values()] == ["add them up", "done"]
    assert stream.prediction.answer == 5
    assert all(event.run_id == stream.run.id for event in told)


def test_field_deltas_join_to_the_value_without_markers(driver: str) -> None:
    lm = ScriptedLM([fields(answer="one two three")])
    told = collect(Predict("question -> answer").stream(question="q", lm=lm), driver)
    pieces = [
        event.text
        for event in told
        if isinstance(event, events.FieldDelta) and event.field == "answer"
    ]
    assert len(pieces) > 1
    assert "".join(pieces).strip() == "one two three"


def test_the_last_piece_of_a_value_is_told_when_the_text_ends(driver: str) -> None:
    """What might have become a marker is held back until then."""
    lm = ScriptedLM(["[[ ## answer ## ]]\nuse `x`"])
    told = collect(Predict("question -> answer").stream(question="q", lm=lm), driver)
    assert (
        "".join(event.text for event in told if isinstance(event, events.FieldDelta)) == "use `x`"
    )


def test_tools_tell_progress_and_anything_else(driver: str) -> None:
    """Custom events from tools, sync and async."""

    @tool
    def work(n: int) -> str:
        """Work."""
        progress("half", done=n / 2, total=n)
        emit_event("note", {"n": n})
        return "done"

    @tool
    async def awork(n: int) -> str:
        """Work."""
        progress("half", done=n / 2, total=n)
        return "done"

    turn = [
        native_step("w", "work", {"n": 4}),
        native_step("w", "awork", {"n": 6}),
        native_step("e", "finish", {"answer": "x"}),
    ]
    told = collect(
        ReAct("question -> answer", [work, awork], native=True).stream(
            question="q",
            lm=ScriptedLM(turn),
        ),
        driver,
    )
    found = [
        (event.call_id, event.message, event.done, event.total)
        for event in told
        if isinstance(event, events.CallProgress)
    ]
    calls = [event.call.id for event in told if isinstance(event, events.CallStarted)]
    assert found == [(calls[0], "half", 2.0, 4), (calls[1], "half", 3.0, 6)]
    assert [(event.name, event.payload) for event in told if isinstance(event, events.Custom)] == [
        ("note", {"n": 4}),
    ]


def test_progress_and_emit_outside_a_run_do_nothing() -> None:
    progress("nobody listens")
    emit_event("nobody", 1)


def test_a_failed_attempt_is_marked(driver: str) -> None:
    """What was streamed of it is void."""
    told = collect(
        Predict("question -> answer").stream(
            question="q",
            lm=ScriptedLM(["junk", fields(answer="fine")]),
        ),
        driver,
    )
    kinds = [type(event).__name__ for event in told]
    failed = kinds.index("AttemptFailed")
    assert kinds[failed:].count("FieldDelta") >= 1
    assert told[-1].prediction.answer == "fine"  # type: ignore[attr-defined]


def test_a_stream_of_a_run_that_fails_raises_its_error_at_the_end(driver: str) -> None:
    """A stream that just stopped would hide it."""
    stream = Predict("question -> answer").stream(question="q", lm=ScriptedLM([ValueError("odd")]))
    with pytest.raises(ValueError, match="odd"):
        collect(stream, driver)


def test_a_stream_that_waits_for_a_person_ends_with_the_question(driver: str) -> None:
    guarded = Tool(add, require_confirmation=True)
    lm = ScriptedLM([native_step("a", "add", {"a": 1, "b": 1})])
    stream = ReAct("question -> answer", [guarded], native=True).stream(question="q", lm=lm)
    told = collect(stream, driver)
    assert [type(event).__name__ for event in told][-2:] == ["QuestionAsked", "RunFinished"]
    assert stream.run.status == "waiting"


def _agent_that_waits(
    reached: threading.Event,
    release: threading.Event,
    ran: list[str],
) -> tuple[ReAct, ScriptedLM]:
    def first() -> str:
        """First."""
        reached.set()
        release.wait(60)
        return "first"

    def second() -> str:
        """Second."""
        ran.append("second")
        return "second"

    lm = ScriptedLM(
        [
            native_step("1", "first", {}),
            native_step("2", "second", {}),
            native_step("e", "finish", {"answer": "x"}),
        ],
    )
    return ReAct("question -> answer", [first, second], native=True), lm


@pytest.mark.parametrize("leave", ["break", "with", "close"])
def test_leaving_a_stream_cancels_the_run(leave: str) -> None:
    """Breaking out cancels."""
    reached, release, ran = threading.Event(), threading.Event(), []
    agent, lm = _agent_that_waits(reached, release, ran)
    stream = agent.stream(question="q", lm=lm)
    if leave == "with":
        with stream:
            for event in stream:
                if isinstance(event, events.CallStarted):
                    break
    else:
        for event in stream:
            if isinstance(event, events.CallStarted):
                if leave == "close":
                    stream.close()
                break
    gc.collect()
    release.set()
    _until(lambda: stream.run.status != "running")
    assert stream.run.status == "cancelled"
    assert ran == []
    assert isinstance(stream.run.error, RunCancelledError)


def _until(reached: Callable[[], bool]) -> None:
    for _ in range(2000):
        if reached():
            return
        threading.Event().wait(0.005)
    raise AssertionError("never reached")


def test_leaving_an_async_stream_cancels_the_run_and_its_tool() -> None:
    seen: list[str] = []

    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")
        return ""

    async def main() -> EventStream:
        lm = ScriptedLM([native_step("w", "wait", {})])
        stream = ReAct("question -> answer", [wait], native=True).astream(question="q", lm=lm)
        async for event in stream:
            if isinstance(event, events.CallStarted):
                break
        gc.collect()
        for _ in range(1000):
            if stream.run.status != "running":
                break
            await asyncio.sleep(0)
        return stream

    stream = asyncio.run(main())
    assert seen == ["cancelled"]
    assert stream.run.status == "cancelled"


class Waiting:
    """An async tool that waits to be cancelled."""

    def __init__(self) -> None:
        self.began, self.seen = threading.Event(), list[str]()

    async def wait(self) -> str:
        """Wait."""
        self.began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            self.seen.append("cancelled")
            raise
        return "too late"


@pytest.mark.parametrize("leave", ["break", "with", "close"])
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("nested", [False, True])
def test_leaving_a_stream_cancels_its_async_tools_and_waits_for_them(
    leave: str,
    calls: int,
    nested: bool,
) -> None:
    """Nothing goes on behind its back."""
    tools = [Waiting() for _ in range(calls)]
    own: list[Any] = [Tool(each.wait, f"wait_{i}") for i, each in enumerate(tools)]
    lm = ScriptedLM([[{"name": each.name, "args": {}} for each in own]])
    agent: Any = ReAct("question -> answer", own, native=True)
    agent.set_lm(lm)
    if nested:

        def ask() -> str:
            """Ask the inner agent."""
            return agent(question="q").answer

        outer = ReAct("question -> answer", [ask], native=True)
        outer.set_lm(ScriptedLM([native_step("a", "ask", {})]))
    stream = (outer if nested else agent).stream(question="q")
    for event in stream:
        if isinstance(event, events.CallStarted):
            for each in tools:
                assert each.began.wait(60)
            break
    if leave == "with":
        stream.__exit__(None, None, None)
    elif leave == "close":
        stream.close()
    assert [each.seen for each in tools] == [["cancelled"]] * calls
    _until(lambda: stream.run.status != "running")
    assert stream.run.status == "cancelled"
    assert {entry.kind for entry in stream.run.journal.entries} <= {"model", "begun", "spent"}


def test_leaving_a_stream_cancels_a_program_that_is_async_alone() -> None:
    waiting = Waiting()

    class Slow(Module):
        async def aforward(self) -> Prediction:
            emit_event("begun")
            return Prediction(answer=await waiting.wait())

    for _ in (stream := Slow().stream()):
        assert waiting.began.wait(60)
        break
    assert waiting.seen == ["cancelled"]
    _until(lambda: stream.run.status == "cancelled")


def test_leaving_the_block_of_an_async_stream_waits_until_the_run_is_over() -> None:
    """Also where the iterator itself lives on."""
    waiting = Waiting()

    async def main() -> tuple[str, list[str]]:
        agent = ReAct("question -> answer", [waiting.wait], native=True)
        async with agent.astream(
            question="q",
            lm=ScriptedLM([native_step("w", "wait", {})]),
        ) as stream:
            kept = aiter(stream)
            async for event in kept:
                if isinstance(event, events.CallStarted):
                    break
            await asyncio.sleep(0)
        return stream.run.status, waiting.seen

    assert asyncio.run(main()) == ("cancelled", ["cancelled"])


def _waits(waiting: Waiting) -> ReAct:
    agent = ReAct("question -> answer", [waiting.wait], native=True)
    agent.set_lm(ScriptedLM([native_step("w", "wait", {})]))
    return agent


def test_leaving_an_async_stream_cancels_the_async_tools_of_a_sync_program_too() -> None:
    """It runs in a thread, and waits there for the background loop."""
    waiting = Waiting()

    class Plain(Module):
        def __init__(self) -> None:
            self.agent = _waits(waiting)

        def forward(self) -> Prediction:
            return self.agent(question="q")

    async def main() -> tuple[str, list[str]]:
        async with Plain().astream() as stream:
            async for event in stream:
                if isinstance(event, events.CallStarted):
                    assert await asyncio.to_thread(waiting.began.wait, 10)
                    break
        return stream.run.status, waiting.seen

    assert asyncio.run(main()) == ("cancelled", ["cancelled"])


def test_leaving_a_stream_cancels_all_before_it_waits_for_one() -> None:
    """An async tool may itself wait, with its loop, for another one."""
    for _ in range(10):  # which of the two is looked at first is a matter of chance
        waiting = Waiting()
        inner = _waits(waiting)

        async def ask(inner: ReAct) -> str:
            return inner(question="q").answer

        agent = ReAct("question -> answer", [Tool(partial(ask, inner), "outer_tool")], native=True)
        agent.set_lm(ScriptedLM([native_step("o", "outer_tool", {})]))
        for event in agent.stream(question="q"):
            if isinstance(event, events.CallStarted):
                assert waiting.began.wait(60)
                break
        assert waiting.seen == ["cancelled"]


@pytest.mark.parametrize("where", ["thread", "observer", "tool"])
def test_a_stream_that_is_closed_while_it_is_iterated_ends_with_the_runs_own_cancellation(
    where: str,
) -> None:
    """Nobody's task is cancelled; and what is a part of the run does not wait for it."""
    waiting, stream = Waiting(), list[EventStream]()

    def close() -> str:
        """Close the stream."""
        assert waiting.began.wait(60)
        stream[0].close()
        return "closed"

    def observe(event: events.Event) -> None:
        if isinstance(event, events.CallFinished) and where == "observer":
            stream[0].close()

    def finish() -> str:
        """Finish once the other tool runs: an observer that waited for it would hold back the event
        that it begins.
        """
        assert waiting.began.wait(60)
        return "done"

    tools = [Tool(waiting.wait, "wait"), Tool(close if where == "tool" else finish, "other")]
    agent = ReAct("question -> answer", tools, native=True)
    agent.set_lm(ScriptedLM([[{"name": "wait", "args": {}}, {"name": "other", "args": {}}]]))
    with context(callbacks=[observe]):
        stream.append(agent.stream(question="q"))
        if where == "thread":
            threading.Thread(target=close, daemon=True).start()
        with pytest.raises(RunCancelledError):
            for _ in stream[0]:
                pass
    assert waiting.seen == ["cancelled"]
    with pytest.raises(RunCancelledError):
        _ = stream[0].prediction


def test_an_async_stream_that_is_closed_while_it_is_iterated_cancels_the_run_and_not_the_consumer() -> (
    None
):
    waiting = Waiting()

    async def main() -> tuple[str, bool]:
        stream = _waits(waiting).astream(question="q")

        async def consume() -> str:
            with pytest.raises(RunCancelledError):
                async for _ in stream:
                    pass
            return "went on"

        consumer = asyncio.create_task(consume())
        assert await asyncio.to_thread(waiting.began.wait, 10)
        stream.close()
        return await consumer, consumer.cancelled()

    assert asyncio.run(main()) == ("went on", False)
    assert waiting.seen == ["cancelled"]


def test_a_stream_of_a_run_that_waits_does_not_go_on_once_it_is_closed() -> None:
    """The approved call does not run behind anybody's back."""
    did: list[str] = []
    pay = Tool(lambda: did.append("paid"), "pay", require_confirmation=True)
    agent = ReAct("question -> answer", [pay], native=True)
    agent.set_lm(
        ScriptedLM([native_step("p", "pay", {}), native_step("f", "finish", {"answer": "a"})]),
    )
    with pytest.raises(ConfirmationRequired) as asked:
        agent(question="q")
    with agent.stream(resume_state=asked.value) as stream:
        pass
    with pytest.raises(ConfirmationRequired):
        _ = stream.prediction
    with pytest.raises(RunCancelledError, match="closed before it was iterated"):
        list(stream)
    assert did == []


def test_an_async_tool_does_not_begin_once_its_stream_is_left() -> None:
    """An observer may leave it just before."""
    began: list[str] = []

    async def tool_() -> str:
        """Begin."""
        began.append("began")
        return ""

    stream = list[EventStream]()

    def observe(event: events.Event) -> None:
        if isinstance(event, events.CallStarted):
            stream[0].close()

    agent = ReAct("question -> answer", [Tool(tool_, "tool")], native=True)
    agent.set_lm(ScriptedLM([native_step("t", "tool", {})]))
    with context(callbacks=[observe]):
        stream.append(agent.stream(question="q"))
        with pytest.raises(RunCancelledError):
            list(stream[0])
    assert began == []


def test_progress_that_nobody_listens_to_any_more_is_dropped() -> None:
    """The loop of the stream may be closed by then, and a sync tool goes on."""
    began, left, told = threading.Event(), threading.Event(), threading.Event()

    def slow() -> str:
        """Tell after the end."""
        began.set()
        assert left.wait(60)
        progress("still here")
        told.set()
        return ""

    async def main() -> None:
        agent = ReAct("question -> answer", [slow], native=True)
        async with agent.astream(
            question="q",
            lm=ScriptedLM([native_step("s", "slow", {})]),
        ) as stream:
            async for event in stream:
                if isinstance(event, events.CallStarted):
                    assert await asyncio.to_thread(began.wait, 10)
                    break

    asyncio.run(main())
    left.set()
    assert told.wait(60)


def test_a_stream_may_be_read_inside_an_async_tool() -> None:
    """The loop that waits for it is not the one its async tools run on."""

    async def leaf() -> str:
        """Answer."""
        return "leaf"

    inner = ReAct("question -> answer", [leaf], native=True)
    inner.set_lm(
        ScriptedLM([native_step("l", "leaf", {}), native_step("f", "finish", {"answer": "inner"})]),
    )

    async def ask() -> str:
        """Ask the inner agent."""
        return inner.stream(question="q").prediction.answer

    outer = ReAct("question -> answer", [ask], native=True)
    outer.set_lm(
        ScriptedLM([native_step("a", "ask", {}), native_step("f", "finish", {"answer": "outer"})]),
    )
    assert outer(question="q").trajectory["observation_0"] == "inner"


def test_two_streams_of_one_program_do_not_mix() -> None:
    program = Predict("question -> answer")

    def answer(request: Any) -> str:
        return fields(answer=request.messages[-1].text.split("question ## ]]")[1].split()[0])

    async def one(n: int) -> tuple[str, str]:
        text = ""
        stream = program.astream(question=str(n))
        async for event in stream:
            if isinstance(event, events.FieldDelta):
                text += event.text
        return text.strip(), stream.prediction.answer

    async def main() -> list[tuple[str, str]]:
        return await asyncio.gather(*(one(n) for n in range(50)))

    with context(lm=ScriptedLM(by=answer)):
        assert asyncio.run(main()) == [(str(n), str(n)) for n in range(50)]


def test_the_prediction_of_a_stream_nobody_iterated_runs_it() -> None:
    stream = Predict("question -> answer").stream(question="q", lm=ScriptedLM([fields(answer="a")]))
    assert stream.prediction == Prediction(answer="a")
    with pytest.raises(RunError, match="once"):
        list(stream)


def test_a_streamed_text_step_has_no_marker_in_its_thoughts() -> None:
    lm = ScriptedLM([text_step("a [[ b", "finish", {"answer": "x"})])
    told = list(ReAct("question -> answer", [add], native=False).stream(question="q", lm=lm))
    assert (
        "".join(event.text for event in told if isinstance(event, events.ThoughtDelta)).strip()
        == "a [[ b"
    )


def test_a_sync_stream_that_was_left_has_a_settled_status() -> None:
    def work() -> str:
        """Work until the run is cancelled."""
        while not is_cancelled():
            threading.Event().wait(0.001)
        return "stopped"

    agent = ReAct("question -> answer", [work])
    for _ in range(20):
        stream = agent.stream(question="?", lm=ScriptedLM([{"name": "work", "args": {}}]))
        for event in stream:
            if isinstance(event, CallStarted):
                break
        stream.close()
        assert (stream.run.status, type(stream.run.error)) == ("cancelled", RunCancelledError)


def test_an_async_stream_whose_block_is_left_before_it_is_iterated_asks_no_model() -> None:
    lm = ScriptedLM([])

    async def main() -> EventStream:
        async with Predict("question -> answer").astream(question="q", lm=lm) as stream:
            return stream

    stream = asyncio.run(main())
    with pytest.raises(RunCancelledError):
        _ = stream.prediction
    assert lm.requests == []


def test_on_windows_the_wait_for_an_event_ends_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that Ctrl-C is noticed: there it does not end a wait."""
    waits: list[float | None] = []

    class Watched(stream_module.SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            waits.append(timeout)
            if len(waits) == 1:
                raise Empty  # nothing came in that time
            return super().get(block, timeout)

    monkeypatch.setattr(stream_module, "SimpleQueue", Watched)
    monkeypatch.setattr(stream_module, "sys", SimpleNamespace(platform="win32"))
    stream = Predict("question -> answer").stream(
        question="?",
        lm=ScriptedLM(["[[ ## answer ## ]]\n42"]),
    )
    assert isinstance(list(stream)[-1], events.RunFinished)
    assert None not in waits
