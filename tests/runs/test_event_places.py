"""Where events come from: paths, programs inside a run, refused calls."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from agent_script import fields, native_step

from ferrule import (
    Module,
    Predict,
    Prediction,
    ReAct,
    Response,
    Run,
    ToolCall,
    context,
    emit_event,
    events,
    gather,
    progress,
    tool,
)
from ferrule.acts import Tell
from ferrule.testing import ScriptedLM


def _is_inner(request: Any) -> bool:
    """Whether the agent inside asks: the outer one has it as a tool."""
    names = {tool["function"]["name"] for tool in request.tools}
    return not names & {"sub", "worker"}


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def start(program: Module, driver: str, **inputs: Any) -> Run:
    return asyncio.run(program.astart(**inputs)) if driver == "async" else program.start(**inputs)


def look(n: int) -> str:
    """Look."""
    progress("looking")
    return f"saw {n}"


def nested() -> ReAct:
    """An agent with a sub-agent `sub`, which looks with a tool."""
    return ReAct(
        "question -> answer",
        [ReAct("job -> outcome", [look], native=True).as_tool("sub")],
        native=True,
    )


def answer(request: Any) -> Any:
    """What the agents say: the outer one calls `sub` twice in one turn; each of these looks once."""
    is_inside = _is_inner(request)
    if request.messages[-1].role == "tool":
        return native_step("e", "finish", {"outcome": "O"} if is_inside else {"answer": "A"})
    if is_inside:
        return native_step("l", "look", {"n": 1})
    return Response("two", tuple(ToolCall(name="sub", args={"job": each}) for each in "ab"))


def test_the_path_is_the_place_in_the_run(driver: str) -> None:
    told = list[events.Event]()
    with context(lm=ScriptedLM(by=answer), callbacks=[told.append]):
        run = start(nested(), driver, question="q")
    assert run.status == "done"
    assert {event.run_id for event in told} == {run.id}
    found = [(event.type, event.path, event.depth) for event in told if event.depth == 0]
    assert [each for each in found if each[0] not in {"Formatted", "ParseStarted", "ParseFinished"}] == [
        ("RunStarted", "", 0), ("ModelCalled", "0", 0), ("ModelAnswered", "0", 0),
        *[each for each in found if each[0] in {"CallStarted", "CallFinished"}],
        ("StepFinished", "1", 0), ("ModelCalled", "2", 0), ("ModelAnswered", "2", 0), ("StepFinished", "2", 0),
        ("RunFinished", "", 0),
    ]  # fmt: skip
    for inside in ("1.0", "1.1"):
        own = [
            event for event in told if event.path == inside or event.path.startswith(f"{inside}/")
        ]
        assert [(event.type, event.path, event.depth) for event in own if event.type in {
            "RunStarted", "CallStarted", "CallProgress", "CallFinished", "RunFinished", "ModelCalled",
        }] == [
            ("CallStarted", inside, 0), ("RunStarted", f"{inside}/sub", 1), ("ModelCalled", f"{inside}/sub/0", 1),
            ("CallStarted", f"{inside}/sub/1.0", 1), ("CallProgress", f"{inside}/sub/1.0", 1), ("CallFinished", f"{inside}/sub/1.0", 1),
            ("ModelCalled", f"{inside}/sub/2", 1), ("RunFinished", f"{inside}/sub", 1), ("CallFinished", inside, 0),
        ]  # fmt: skip


def test_events_are_numbered_in_the_order_in_which_they_are_sent(driver: str) -> None:
    told = list[events.Event]()
    with context(lm=ScriptedLM(by=answer), callbacks=[told.append]):
        start(nested(), driver, question="q")
    assert [event.number for event in told] == list(range(len(told)))


def test_the_start_and_the_end_of_a_program_inside_say_what_it_is_and_how_it_ended(
    driver: str,
) -> None:
    told = list[events.Event]()
    with context(lm=ScriptedLM(by=answer), callbacks=[told.append]):
        start(nested(), driver, question="q")
    started = [event for event in told if isinstance(event, events.RunStarted) and event.depth]
    ended = [event for event in told if isinstance(event, events.RunFinished) and event.depth]
    assert sorted(event.inputs["job"] for event in started) == ["a", "b"]
    assert [event.program.name for event in started] == ["ReAct", "ReAct"]
    assert [(event.prediction.outcome, event.status) for event in ended if event.prediction] == [
        ("O", "done"),
    ] * 2


def test_a_program_inside_that_waits_and_goes_on_says_so(driver: str) -> None:
    @tool(require_confirmation=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    told = list[events.Event]()

    def script(request: Any) -> Any:
        is_inside = _is_inner(request)
        if request.messages[-1].role == "tool":
            return native_step("e", "finish", {"outcome": "O"} if is_inside else {"answer": "A"})
        return native_step("p", "pay") if is_inside else native_step("s", "sub", {"job": "a"})

    agent = ReAct(
        "question -> answer",
        [ReAct("job -> outcome", [pay], native=True).as_tool("sub")],
        native=True,
    )
    with context(lm=ScriptedLM(by=script), callbacks=[told.append]):
        run = start(agent, driver, question="q")
        assert [(e.path, e.status) for e in told if isinstance(e, events.RunFinished)] == [
            ("1.0/sub", "waiting"),
            ("", "waiting"),
        ]
        assert [e.path for e in told if isinstance(e, events.QuestionAsked)] == ["1.0/sub/1.0"]
        told.clear()
        run.answer(run.pending[0].approve())
        asyncio.run(run.aresume()) if driver == "async" else run.resume()
    assert not any(isinstance(e, events.RunStarted) for e in told), "it was told when it began"
    assert [(e.path, e.status) for e in told if isinstance(e, events.RunFinished)] == [
        ("1.0/sub", "done"),
        ("", "done"),
    ]
    assert [e.path for e in told if isinstance(e, (events.Decided, events.CallStarted))] == [
        "1.0/sub/1.0",
        "1.0/sub/1.0",
    ]


def test_a_program_inside_that_raises_ends_with_its_error(driver: str) -> None:
    class Fails(Module):
        def forward(self) -> Prediction:
            return Inner()()

    class Inner(Module):
        def forward(self) -> Prediction:
            raise ValueError("odd")

    told = list[events.Event]()
    with context(callbacks=[told.append]):
        start(Fails(), driver)
    ended = [
        (event.depth, event.status, str(event.error))
        for event in told
        if isinstance(event, events.RunFinished)
    ]
    assert ended == [(1, "failed", "odd"), (0, "failed", "odd")]


def test_programs_called_in_a_forward_and_in_branches_have_paths_of_their_own() -> None:
    class Asks(Module):
        def __init__(self) -> None:
            self.ask = Predict("word -> upper")

        async def aforward(self) -> Prediction:
            emit_event("begin")
            first = await self.ask.acall(word="a")
            both = await gather(self.ask.acall(word="b"), self.ask.acall(word="b"))
            return Prediction(words=[first.upper, *(each.upper for each in both)])

    told = list[events.Event]()
    with context(lm=ScriptedLM(by=lambda _: fields(upper="U")), callbacks=[told.append]):
        asyncio.run(Asks().acall())
    started = [event for event in told if isinstance(event, events.RunStarted)]
    assert [event.depth for event in started] == [0, 1, 1, 1]
    assert len({event.path for event in started}) == 4
    ended = [event for event in told if isinstance(event, events.RunFinished)]
    assert Counter(event.path for event in started) == Counter(event.path for event in ended)
    assert [event.parent_id for event in told] == [""] * len(told)
    [begun] = [event for event in told if isinstance(event, events.Custom)]
    assert (begun.path, begun.depth) == ("", 0)


def test_the_run_of_a_program_that_a_tool_calls_has_paths_below_the_call() -> None:
    inner = Predict("word -> upper")

    def shout(word: str) -> str:
        """Shout."""
        return inner(word=word).upper

    told = list[events.Event]()
    model = ScriptedLM(
        [
            native_step("s", "shout", {"word": "a"}),
            fields(upper="A"),
            native_step("e", "finish", {"answer": "A"}),
        ],
    )
    with context(lm=model, callbacks=[told.append]):
        ReAct("question -> answer", [shout], native=True)(question="q")
    assert [(e.path, e.depth) for e in told if isinstance(e, events.RunFinished)] == [
        ("1.0/Predict", 1),
        ("", 0),
    ]
    assert [e.path for e in told if isinstance(e, events.ModelCalled)] == [
        "0",
        "1.0/Predict/0",
        "2",
    ]
    assert [event.number for event in told] == list(range(len(told)))


def test_callbacks_get_one_id_for_the_start_and_the_end_of_each_program() -> None:
    seen: list[tuple[str, str]] = []

    class Records:
        def on_module_start(self, call_id: str, instance: Any, inputs: Any) -> None:
            seen.append(("start", call_id))

        def on_module_end(self, call_id: str, outputs: Any, exception: Any) -> None:
            seen.append(("end", call_id))

    with context(lm=ScriptedLM(by=answer), callbacks=[Records()]):
        run = nested().start(question="q")
    ids = [call_id for what, call_id in seen if what == "start"]
    assert ids[0] == run.id
    assert len(set(ids)) == 3
    assert sorted(ids) == sorted(call_id for what, call_id in seen if what == "end")


def test_a_stream_is_not_misled_by_the_end_of_a_program_inside() -> None:
    class Asks(Module):
        def __init__(self) -> None:
            self.ask = Predict("word -> upper")

        def forward(self, word: str) -> Prediction:
            return Prediction(shout=self.ask(word=word).upper + "!")

    with context(lm=ScriptedLM([fields(upper="A")])), Asks().stream(word="a") as stream:
        seen = [
            (event.depth, stream.partial())
            for event in stream
            if isinstance(event, events.RunFinished)
        ]
    assert seen == [(1, {"upper": "A"}), (0, {"shout": "A!"})]


# --- refused calls


@pytest.mark.parametrize(
    "calls",
    [[("look", {"n": "x"})], [("nothing", {})], [("look", {"n": "x"}), ("look", {"n": 1})]],
    ids=["arguments", "no such tool", "beside another"],
)
def test_a_call_that_fits_no_tool_is_told_of(driver: str, calls: list[tuple[str, Any]]) -> None:
    told = list[events.Event]()
    wrong = Response("w", tuple(ToolCall(name=name, args=args) for name, args in calls))
    with context(
        lm=ScriptedLM([wrong, native_step("e", "finish", {"answer": "A"})]),
        callbacks=[told.append],
    ):
        run = start(ReAct("question -> answer", [look], native=True), driver, question="q")
    [refused] = [event for event in told if isinstance(event, events.CallRefused)]
    assert (refused.call.name, refused.call.args) == calls[0]
    assert refused.result == run.trajectory.steps[0].results[0]
    assert refused.result.is_fault
    assert (refused.path, refused.depth) == ("0", 0)
    assert len([event for event in told if isinstance(event, events.CallStarted)]) == len(calls) - 1


def test_outputs_of_finish_that_do_not_fit_are_a_refused_call() -> None:
    told = list[events.Event]()
    script = [
        native_step("e", "finish", {"answer": "x"}),
        native_step("e", "finish", {"answer": 7}),
    ]
    with context(lm=ScriptedLM(script), callbacks=[told.append]):
        assert ReAct("question -> answer: int", [look], native=True)(question="q").answer == 7
    [refused] = [event for event in told if isinstance(event, events.CallRefused)]
    assert refused.call.name == "finish"
    assert "answer" in str(refused.result.content)


def test_without_observers_no_event_is_made() -> None:
    """An event that is made is an argument of some function, at the latest in its act."""
    made: list[events.Event] = []

    def collect(frame: FrameType, what: str, _: object) -> None:
        if what != "call":
            return
        for value in frame.f_locals.values():
            event = value.event if isinstance(value, Tell) else value
            if isinstance(event, events.Event) and all(event is not other for other in made):
                made.append(event)

    script = [
        native_step("l", "look", {"n": "x"}),
        native_step("l", "look", {"n": 1}),
        native_step("e", "finish", {"answer": "A"}),
    ]
    agent = ReAct("question -> answer", [look], native=True)
    with context(lm=ScriptedLM(script)):
        sys.setprofile(collect)
        try:
            agent(question="q")
        finally:
            sys.setprofile(None)
    assert [event.type for event in made] == ["StepFinished"] * 3, "which also count steps"
