"""Several readers follow one run, leave and come back."""

from __future__ import annotations

import asyncio
import json

import pytest
from agent_script import native_step

from ferrule import Event, EventStream, ReAct, RunError, context, progress, tool
from ferrule.events import QuestionAsked, RunFinished
from ferrule.testing import ScriptedLM


class Desk:
    """An agent that looks (in a thread, until it is let go) and pays after a person agreed."""

    def __init__(self) -> None:
        self.looking = asyncio.Event()
        self.go = asyncio.Event()

        async def look(n: int) -> str:
            """Look."""
            progress("begin")
            self.looking.set()
            await self.go.wait()
            return f"saw {n}"

        @tool(require_confirmation=True)
        def pay() -> str:
            """Pay."""
            progress("from a thread")
            return "paid"

        self.agent = ReAct("question -> answer", [look, pay], native=True)
        self.lm = ScriptedLM(
            [
                native_step("l", "look", {"n": 1}),
                native_step("p", "pay"),
                native_step("e", "finish", {"answer": "A"}),
            ],
        )


async def read(stream: EventStream, after: int = -1) -> list[Event]:
    return [event async for event in stream.follow(after=after)]


def test_a_reader_that_left_sees_the_rest_and_nothing_twice() -> None:
    async def main() -> tuple[list[Event], list[Event], list[Event]]:
        desk, first = Desk(), list[Event]()
        with context(lm=desk.lm):
            stream = desk.agent.astream(question="q")
            async for event in stream.follow():
                first.append(event)
                if desk.looking.is_set():
                    break  # the connection is lost
            other = asyncio.create_task(read(stream))
            await asyncio.sleep(0)
            desk.go.set()
            return first, await read(stream, first[-1].number), await other

    first, rest, whole = asyncio.run(main())
    assert [*first, *rest] == whole
    assert [event.number for event in whole] == list(range(len(whole)))
    assert isinstance(whole[-1], RunFinished)
    assert whole[-1].status == "waiting"


def test_a_run_that_waited_goes_on_with_its_numbers_and_its_earlier_events() -> None:
    async def main() -> tuple[list[Event], list[Event], list[Event], str]:
        desk = Desk()
        desk.go.set()
        with context(lm=desk.lm):
            stream = desk.agent.astream(question="q")
            before = await read(stream)
            stream.run.answer(stream.run.pending[0].approve())
            resumed = EventStream(stream.run)
            after = await read(resumed, before[-1].number)
            return before, after, await read(resumed, 3), resumed.prediction.answer

    before, after, since, answer = asyncio.run(main())
    assert answer == "A"
    assert [event.number for event in [*before, *after]] == list(range(len(before) + len(after)))
    assert since == [*before, *after][4:]
    assert [event.status for event in since if isinstance(event, RunFinished)] == [
        "waiting",
        "done",
    ]


def test_leaving_cancels_nothing_and_closing_does() -> None:
    async def main() -> tuple[str, str]:
        desk = Desk()
        with context(lm=desk.lm):
            stream = desk.agent.astream(question="q")
            async for _ in stream.follow():
                break
            await desk.looking.wait()
            left = stream.run.status
            await stream.aclose()
            assert await read(stream, 10**9) == []
            return left, stream.run.status

    assert asyncio.run(main()) == ("running", "cancelled")


def test_the_error_of_the_run_is_in_its_last_event() -> None:
    async def main() -> Event:
        return (
            await read(
                ReAct("question -> answer", [], native=True).astream(
                    question="q",
                    lm=ScriptedLM([]),
                ),
            )
        )[-1]

    last = asyncio.run(main())
    assert isinstance(last, RunFinished)
    assert last.status == "failed"
    assert last.error is not None


def test_a_stream_is_iterated_or_followed() -> None:
    async def main() -> None:
        desk = Desk()
        desk.go.set()
        with context(lm=desk.lm):
            stream = desk.agent.astream(question="q")
            async for _ in stream:
                pass
            await read(stream)

    with pytest.raises(RunError, match="iterated once"):
        asyncio.run(main())


def test_a_followed_run_tells_the_outputs_so_far_and_any_event_as_json() -> None:
    async def main() -> None:
        desk = Desk()
        desk.go.set()
        with context(lm=desk.lm):
            stream = desk.agent.astream(question="q")
            events = await read(stream)
            assert [event.question for event in events if isinstance(event, QuestionAsked)] == list(
                stream.run.pending,
            )
            assert (
                json.loads(json.dumps([event.as_json() for event in events]))[-1]["status"]
                == "waiting"
            )
            stream.run.answer(stream.run.pending[0].approve())
            resumed = EventStream(stream.run)
            await read(resumed)
            assert resumed.partial() == {"answer": "A"}

    asyncio.run(main())


def test_a_reader_on_another_event_loop_is_told_so_while_the_run_goes_on() -> None:
    async def main() -> EventStream:
        desk = Desk()
        with context(lm=desk.lm):
            stream = desk.agent.astream(question="q")
            async for _ in stream.follow():
                if desk.looking.is_set():
                    break
            with pytest.raises(RunError, match="event loop of its first reader"):
                await asyncio.to_thread(asyncio.run, read(stream))
            desk.go.set()
            assert await read(stream)
            return stream

    assert isinstance(
        asyncio.run(read(asyncio.run(main())))[-1],
        RunFinished,
    )  # events that are there can be read anywhere
