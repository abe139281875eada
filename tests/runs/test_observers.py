"""Observers and callbacks."""

from __future__ import annotations

import asyncio
from io import StringIO
from threading import Thread
from typing import Any

import pytest
from agent_script import native_step

from ferrule import (
    InputError,
    MemoryStore,
    Predict,
    ReAct,
    Response,
    Run,
    configure,
    context,
    events,
    inspect_history,
    progress,
    tool,
)
from ferrule.runs.observers import from_any_thread
from ferrule.testing import ScriptedLM
from ferrule.values.tracebacks import without_traces


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def lm() -> ScriptedLM:
    return ScriptedLM(
        [native_step("a", "add", {"a": 1, "b": 1}), native_step("e", "finish", {"answer": 2})],
    )


class Records:
    """A callback object as DSPy's and udspy's users write them."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.seen.append(("module start", inputs["question"]))

    def on_module_end(self, call_id: str, outputs: Any, exception: Any) -> None:
        self.seen.append(("module end", outputs.answer))

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.seen.append(("lm start", call_id))

    def on_lm_end(self, call_id: str, outputs: Any, exception: Any) -> None:
        self.seen.append(("lm end", call_id))

    def on_tool_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.seen.append(("tool start", inputs))

    def on_tool_end(self, call_id: str, outputs: Any, exception: Any) -> None:
        self.seen.append(("tool end", outputs.content))


def test_callbacks_are_told_of_programs_models_and_tools_in_order() -> None:
    records = Records()
    with context(callbacks=[records]):
        ReAct("question -> answer: int", [add], native=True)(question="q", lm=lm())
    assert [name for name, _ in records.seen] == [
        "module start", "lm start", "lm end", "tool start", "tool end", "lm start", "lm end", "module end",
    ]  # fmt: skip
    assert records.seen[3] == ("tool start", {"a": 1, "b": 1})
    assert records.seen[4] == ("tool end", "2")
    assert records.seen[1][1] == records.seen[2][1] != records.seen[5][1]


def test_a_failing_callback_never_changes_the_result() -> None:
    def fails(event: events.Event) -> None:
        raise ValueError("callback")

    with context(callbacks=[fails]), pytest.warns(RuntimeWarning, match="callback"):
        assert (
            ReAct("question -> answer: int", [add], native=True)(question="q", lm=lm()).answer == 2
        )


def test_inspect_history_prints_the_last_exchanges(capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 2: `inspect_history`."""
    ReAct("question -> answer: int", [add], native=True)(question="what is it?", lm=lm())
    inspect_history(2)
    shown = capsys.readouterr().out
    assert "what is it?" in shown
    assert 'add {"a":1,"b":1}' in shown
    assert "finish" in shown
    inspect_history(0)
    assert capsys.readouterr().out == ""


def test_configured_callbacks_hold_for_the_process() -> None:
    told: list[events.Event] = []
    configure(callbacks=[told.append])
    try:
        ReAct("question -> answer: int", [add], native=True)(question="q", lm=lm())
    finally:
        configure(callbacks=[])
    assert told


def test_inspect_history_prints_half_a_surrogate_pair_escaped() -> None:
    ScriptedLM(["answer \ud83d"])("question \ud83d")
    out = StringIO()
    inspect_history(1, file=out)
    assert out.getvalue().encode()
    assert "question \\ud83d" in out.getvalue()
    assert "answer \\ud83d" in out.getvalue()


def test_inspect_history_prints_thoughts_and_no_line_for_an_empty_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    thought = Response(None, native_step("", "add", {"a": 1, "b": 1}).tool_calls, "I count")
    script = ScriptedLM([thought, native_step("", "finish", {"answer": 2})])
    ReAct("question -> answer: int", [add], native=True)(question="q", lm=script)
    inspect_history(2)
    first = capsys.readouterr().out.partition("===")[2].partition("===")[0]
    answer = first.partition("--- answer\n")[2].splitlines()
    assert answer[0] == "(reasoning) I count"
    assert answer[1].startswith("  call ")


def test_progress_in_a_run_without_observers_goes_nowhere() -> None:
    def slow(n: int) -> int:
        """Take time."""
        progress("half", done=1, total=2)
        return n

    script = ScriptedLM(
        [native_step("s", "slow", {"n": 2}), native_step("e", "finish", {"answer": 2})],
    )
    done = ReAct("question -> answer: int", [slow], native=True)(question="q", lm=script)
    assert done.trajectory.steps[0].results[0].content == "2"


def test_the_errors_of_a_group_keep_no_frames_alive_either() -> None:
    """As an async tool with a task group raises them."""

    def failed() -> ValueError:
        try:
            raise ValueError("odd")
        except ValueError as error:
            return error

    group = ExceptionGroup("several", [failed(), ExceptionGroup("inside", [failed()])])
    without_traces(group)
    [first, inside] = group.exceptions
    assert isinstance(inside, ExceptionGroup)
    assert [each.__traceback__ for each in (first, *inside.exceptions)] == [None, None]


def test_every_event_has_its_time_and_the_end_says_the_status() -> None:
    seen: list[Any] = []
    with context(
        lm=ScriptedLM(["[[ ## a ## ]]\n1\n\n[[ ## completed ## ]]"]),
        callbacks=[seen.append],
    ):
        Predict("q -> a")(q="?")
        with pytest.raises(InputError):
            Predict("q -> a")(other="?")
    assert all(event.at > 1_700_000_000 for event in seen)
    assert [event.status for event in seen if isinstance(event, events.RunFinished)] == [
        "done",
        "failed",
    ]


class Choosy:
    """An observer that names the events that it needs of a run."""

    def __init__(self, *needed: type[events.Event]) -> None:
        self.needed: Any = needed
        self.seen: list[str] = []

    def __call__(self, event: events.Event) -> None:
        self.seen.append(event.type)

    def open_run(self, _: events.RunStarted, notes: dict[str, str]) -> Any:
        return self.needed


def test_an_observer_receives_what_it_said_it_needs_of_a_run_and_what_others_need() -> None:
    agent = ReAct("question -> answer: int", [add], native=True)
    one, other = Choosy(events.CallStarted), Choosy(events.RunFinished)
    with context(callbacks=[one, other]):
        agent(question="q", lm=lm())
    assert one.seen == other.seen == ["CallStarted", "RunFinished"]
    with context(callbacks=[one, seen := Records()]):
        agent(question="q", lm=lm())
    assert len(seen.seen) == 8
    assert {"ModelCalled", "StepFinished"} <= {*one.seen}


def test_an_observer_whose_answer_cannot_be_used_receives_all_events() -> None:
    observer = Choosy()
    observer.needed = True
    with (
        context(callbacks=[observer]),
        pytest.warns(RuntimeWarning, match="at the start of a run and was skipped"),
    ):
        ReAct("question -> answer: int", [add], native=True)(question="q", lm=lm())
    assert {"ModelCalled", "StepFinished", "RunFinished"} <= {*observer.seen}


def test_an_observer_that_needs_nothing_of_a_run_receives_that_of_a_run_in_its_tools() -> None:
    """Each run asks for itself, with its own answer."""

    class OnlyInside(Choosy):
        def open_run(self, event: events.RunStarted, notes: dict[str, str]) -> Any:
            return {events.RunFinished} if event.depth else set()

    def ask() -> str:
        """Ask another program."""
        return Predict("question -> answer")(
            question="x",
            lm=ScriptedLM(["[[ ## answer ## ]]\nx"]),
        ).answer

    observer = OnlyInside()
    with context(callbacks=[observer]):
        ReAct("question -> answer: int", [ask], native=True)(
            question="q",
            lm=ScriptedLM([native_step("a", "ask", {}), native_step("e", "finish", {"answer": 2})]),
        )
    assert observer.seen == ["RunFinished"]


class Careful:
    """An object with hooks and with what else an observer may have."""

    wants_details = False

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.opened: list[str] = []

    def open_run(self, event: events.RunStarted, notes: dict[str, str]) -> None:
        self.opened.append(event.run_id)
        notes["mine"] = "1"

    def on_event(self, event: events.Event) -> None:
        self.seen.append(event.type)


def test_an_object_with_hooks_has_the_rest_of_an_observer_too() -> None:
    """`open_run` was never called, and `wants_details` not read."""
    one = Careful()
    with context(callbacks=[one]):
        ReAct("question -> answer: int", [add], native=True)(question="q", lm=lm())
    assert len(one.opened) == 1
    assert "Formatted" not in one.seen
    assert "RunFinished" in one.seen


class Broken:
    """Each of its attributes fails, and so does each event."""

    def __init__(self) -> None:
        self.told = 0

    @property
    def is_idle(self) -> bool:
        raise ValueError("idle")

    def open_run(self, *_: Any) -> None:
        raise ValueError("open")

    def note_caller(self, _: dict[str, str]) -> None:
        raise ValueError("caller")

    def __call__(self, _: events.Event) -> None:
        self.told += 1


def test_whatever_fails_in_an_observer_changes_neither_a_run_nor_a_decision() -> None:
    """Only its events and `open_run` were behind the wall."""
    pay = tool(require_confirmation=True)(add)
    program, one, store = (
        ReAct("question -> answer: int", [pay], native=True),
        Broken(),
        MemoryStore(),
    )

    def decide() -> Any:
        program.start(question="q", store=store, run_id="r")
        run = Run.load(store, "r", program)
        run.answer(run.pending[0].approve())
        return run.resume()

    with (
        context(callbacks=[one], lm=lm()),
        pytest.warns(RuntimeWarning, match=r"an observer failed .* and was skipped") as warned,
    ):
        run = decide()
    assert run.prediction.answer == 2
    assert one.told > 0
    assert {str(each.message).rpartition("ValueError")[2] for each in warned} == {
        "('idle')",
        "('open')",
        "('caller')",
    }


def test_an_idle_observer_receives_nothing_of_direct_calls_either() -> None:
    class Idle:
        is_idle = True
        seen: list[str] = []

        def __call__(self, event: events.Event) -> None:
            self.seen.append(event.type)

    with context(callbacks=[Idle()]):
        tool(add)(a=1, b=2)
        ScriptedLM(["hello"])("hi")
        ReAct("question -> answer: int", [add], native=True)(question="q", lm=lm())
    assert Idle.seen == []


def test_many_events_of_another_thread_wake_the_loop_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = [events.Custom("at", i) for i in range(500)]
    told: list[Any] = []
    wakes: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        tell = from_any_thread(told.append)
        with monkeypatch.context() as patched:
            patched.setattr(
                loop, "call_soon_threadsafe", lambda *work: wakes.append(work) or wake(*work)
            )
            for half in (sent[:250], sent[250:]):
                thread = Thread(target=lambda half=half: [tell(event) for event in half])
                thread.start()
                thread.join()  # blocks the loop
                await asyncio.sleep(0)
                assert told[-1] is half[-1]

    asyncio.run(main())
    assert told == sent
    assert len(wakes) == 2


def test_events_for_a_closed_loop_are_dropped() -> None:
    told: list[Any] = []

    async def main() -> Any:
        return from_any_thread(told.append)

    tell = asyncio.run(main())
    thread = Thread(target=lambda: [tell(events.Custom("late", i)) for i in range(3)])
    thread.start()
    thread.join()
    assert told == []
