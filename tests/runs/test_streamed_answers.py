"""What a stream tells of an answer: each word once, as what it is, on every wire, with every
adapter, however the bytes are cut.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import pytest
from agent_script import fields, native_step, text_step
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_servers import anthropic, gemini, openai_responses

from ferrule import (
    Adapter,
    BaseLM,
    Capabilities,
    ChainOfThought,
    ChatAdapter,
    JSONAdapter,
    Predict,
    ReAct,
    Request,
    Response,
    Signature,
    XMLAdapter,
    context,
    events,
)
from ferrule.models.wires.streamed import assembly
from ferrule.programs.asking.native_reader import NativeReader
from ferrule.runs.stream import EventStream
from ferrule.testing import ScriptedLM
from ferrule.testing.server import openai_chat
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import CallPiece, Delta

SERVERS = {
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
ADAPTERS = {"chat": ChatAdapter(), "json": JSONAdapter(), "xml": XMLAdapter()}


class Streaming(BaseLM):
    """Streams scripted responses over a wire, cut at given places; whole answers take the same way
    in one piece.
    """

    def __init__(self, wire: str, answers: list[Response], cuts: list[int]) -> None:
        self._wire, self._answers, self._cuts = wire, iter(answers), cuts

    def _pieces(self) -> list[bytes]:
        response = next(self._answers)
        deltas = [Delta(reasoning=each) for each in response.reasoning or ""] + [
            Delta(each) for each in response.text or ""
        ]
        body = b"".join(SERVERS[self._wire].events([*deltas, response], model="m", with_usage=True))
        ends = [0, *sorted(min(cut, len(body)) for cut in self._cuts), len(body)]
        return [body[start:end] for start, end in pairwise(ends)]

    def complete(self, request: Request) -> Response:
        return list(self.stream(request))[-1]  # type: ignore[return-value]

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        answer = assembly(self._wire, request)
        for piece in self._pieces():
            yield from answer.feed(piece)
        yield from answer.end()
        yield answer.response()

    async def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        for item in self.stream(request):
            yield item


class Told:
    """The events of a stream, joined."""

    def __init__(self, stream: EventStream, driver: str = "sync") -> None:
        self.events: list[events.Event] = []
        self.partial: list[dict[str, Any]] = []
        if driver == "sync":
            for event in stream:
                self._take(event, stream)
        else:
            asyncio.run(self._read(stream))
        self.prediction = stream.prediction

    async def _read(self, stream: EventStream) -> None:
        async for event in stream:
            self._take(event, stream)

    def _take(self, event: events.Event, stream: EventStream) -> None:
        self.events.append(event)
        self.partial.append(stream.partial())

    def _joined(self, kind: Any) -> str:
        return "".join(event.text for event in self.events if isinstance(event, kind))

    @property
    def thoughts(self) -> str:
        return self._joined(events.ThoughtDelta)

    @property
    def text(self) -> str:
        return self._joined(events.TextDelta)

    @property
    def preambles(self) -> list[tuple[str, str]]:
        return [
            (event.field, event.text) for event in self.events if isinstance(event, events.Preamble)
        ]

    @property
    def fields(self) -> dict[str, str]:
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for event in self.events:
            if isinstance(event, events.FieldDelta):
                values = found[event.call_id]
                values[event.field] = values.get(event.field, "") + event.text
            elif isinstance(event, events.Preamble):
                found[event.call_id].pop(event.field, None)
        return next(reversed(found.values()), {})


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


TEXT = (
    st.text(
        st.characters(exclude_categories=["Cs"]) | st.sampled_from('\\"🌍é\n[]#<>/`'),
        min_size=1,
        max_size=30,
    )
    .map(str.strip)
    .filter(bool)
)
CUTS = st.lists(st.integers(0, 4000), max_size=20)


@pytest.mark.parametrize("wire", SERVERS)
@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
@settings(max_examples=settings().max_examples // 2)
@given(
    text=TEXT,
    number=st.integers(-9, 999),
    cuts=CUTS,
    thought=st.sampled_from(["", "<think>\nhm\n</think>\n", "[THINK]hm[/THINK]"]),
)
def test_the_pieces_of_a_field_join_to_its_value(
    wire: str,
    adapter: Adapter,
    text: str,
    number: int,
    cuts: list[int],
    thought: str,
) -> None:
    signature = Signature("q -> answer: str, n: int")
    written = adapter.format_assistant_message_content(signature, {"answer": text, "n": number})
    lm = Streaming(wire, [Response(f"{thought}{written}", finish_reason="stop")], cuts)
    with context(adapter=adapter):
        told = Told(Predict(signature).stream(q="q", lm=lm))
    assert told.prediction.answer == text
    assert told.fields == {"answer": told.prediction.answer, "n": str(number)}
    assert told.thoughts == ("hm" if thought else "")
    assert told.text == ""


@pytest.mark.parametrize("wire", SERVERS)
@given(text=TEXT, number=st.integers(-9, 999), cuts=CUTS)
def test_the_pieces_of_finish_join_to_its_values(
    wire: str,
    text: str,
    number: int,
    cuts: list[int],
) -> None:
    call = ToolCall(name="finish", args={"answer": text, "n": number}, id="c")
    lm = Streaming(wire, [Response("so it is", (call,), finish_reason="tool_calls")], cuts)
    told = Told(ReAct("q -> answer, n: int", [], native=True).stream(q="q", lm=lm))
    assert told.prediction.answer == text
    assert told.fields == {"answer": text, "n": str(number)}
    assert (told.thoughts, told.text, told.preambles) == ("", "so it is", [("", "so it is")])
    assert {
        (event.index, event.tool_call_id or "c", event.name)
        for event in told.events
        if isinstance(event, events.CallDelta)
    } == {(0, "c", "finish")}


@given(
    text=st.text(st.characters() | st.sampled_from('🌍\\"'), max_size=20),
    size=st.integers(1, 5),
)
def test_a_text_in_finish_is_decoded_wherever_its_json_is_cut(text: str, size: int) -> None:
    """Escapes and surrogate pairs."""
    for ascii_only in (True, False):
        written = json.dumps({"answer": text}, ensure_ascii=ascii_only)
        reader = NativeReader(
            lambda _: {}, lambda _: None, "answer", ("answer",), last_call="finish"
        )
        pieces = [
            CallPiece(0, "c", "finish", written[at : at + size])
            for at in range(0, len(written), size)
        ]
        assert "".join(piece for each in pieces for _, piece in reader.feed_call(each)) == text


# -- which event is what


def test_react_in_text_tells_thoughts_and_the_extracted_answer(driver: str) -> None:
    lm = ScriptedLM(
        [text_step("add them", "finish"), fields(reasoning="two and three", answer="five")],
    )
    told = Told(ReAct("q -> answer", [], native=False).stream(q="q", lm=lm), driver)
    assert told.thoughts == "add themtwo and three"
    assert (told.text, told.fields) == ("", {"answer": "five"})


def test_react_with_native_calls_tells_the_answer_of_finish_as_it_comes(driver: str) -> None:
    lm = ScriptedLM([native_step("let me see", "finish", {"answer": "one two three", "n": [1, 2]})])
    told = Told(ReAct("q -> answer, n: list[int]", [], native=True).stream(q="q", lm=lm), driver)
    assert (told.thoughts, told.text, told.fields) == (
        "",
        "let me see",
        {"answer": "one two three", "n": "[1,2]"},
    )
    assert (
        "".join(event.text for event in told.events if isinstance(event, events.CallDelta))
        == '{"answer":"one two three","n":[1,2]}'
    )
    assert {"answer": "one "} in told.partial
    assert told.partial[-1] == {"answer": "one two three", "n": [1, 2]}


def test_a_plain_answer_of_react_comes_as_a_field_from_its_first_token(driver: str) -> None:
    told = Told(
        ReAct("q -> answer", [], native=True).stream(q="q", lm=ScriptedLM(["It is five."])),
        driver,
    )
    assert (told.prediction.answer, told.fields, told.text) == (
        "It is five.",
        {"answer": "It is five."},
        "",
    )
    assert {"answer": "It "} in told.partial


def double(n: int) -> int:
    """Twice a number."""
    return 2 * n


def test_text_before_native_calls_of_predict_is_a_preamble(driver: str) -> None:
    lm = ScriptedLM([native_step("let me see", "double", {"n": 2}), fields(answer="four")])
    told = Told(Predict("q -> answer", tools=[double], native=True).stream(q="q", lm=lm), driver)
    assert (told.text, told.thoughts, told.fields) == ("", "", {"answer": "four"})
    assert told.preambles == [("answer", "let me see")]
    lm = ScriptedLM([native_step("let me see", "double", {"n": 2}), "It is four."])
    told = Told(Predict("q -> answer", tools=[double], native=True).stream(q="q", lm=lm), driver)
    assert (told.prediction.answer, told.fields) == ("It is four.", {"answer": "It is four."})


def test_a_reasoning_field_is_a_thought(driver: str) -> None:
    lm = ScriptedLM([fields(reasoning="two and three", answer="five")])
    told = Told(ChainOfThought("q -> answer").stream(q="q", lm=lm), driver)
    assert (told.thoughts, told.text, told.fields) == ("two and three", "", {"answer": "five"})


def test_an_answer_without_fields_is_text(driver: str) -> None:
    told = Told(
        Predict("q -> answer").stream(q="q", lm=ScriptedLM(["no idea", fields(answer="five")])),
        driver,
    )
    assert (told.text, told.fields) == ("no idea", {"answer": "five"})


@pytest.mark.parametrize("is_observed", [False, True])
@pytest.mark.parametrize(
    "written",
    [
        "<think>\nTwo and three.\n</think>\n\n{}",
        "Two and three.\n</think>\n\n{}",
        "Two and three.</think>{}",
    ],
    ids=["opened", "unopened", "lazy"],
)
def test_thoughts_in_the_text_are_thoughts_in_a_stream_too(
    driver: str,
    written: str,
    is_observed: bool,
) -> None:
    seen: list[events.Event] = []
    with context(callbacks=[seen.append] if is_observed else []):
        told = Told(
            Predict("q -> answer").stream(
                q="q",
                lm=ScriptedLM([written.format(fields(answer="five"))]),
            ),
            driver,
        )
    assert (told.thoughts, told.text, told.fields) == ("Two and three.", "", {"answer": "five"})
    assert told.prediction == Predict("q -> answer")(
        q="q",
        lm=ScriptedLM([written.format(fields(answer="five"))]),
    )
    response = next(
        event.response for event in told.events if isinstance(event, events.ModelAnswered)
    )
    assert response is not None
    assert response.reasoning == "Two and three."
    assert [type(event) for event in seen] == [type(event) for event in told.events] * is_observed


def test_a_draft_in_thoughts_without_an_opening_tag_is_void(driver: str) -> None:
    written = f"Perhaps:\n{fields(answer='four')}\nNo.\n</think>\n{fields(answer='five')}"
    told = Told(Predict("q -> answer").stream(q="q", lm=ScriptedLM([written])), driver)
    kinds = [type(event).__name__ for event in told.events]
    void = kinds.index("AttemptFailed")
    assert (
        "".join(event.text for event in told.events[void:] if isinstance(event, events.FieldDelta))
        == "five"
    )
    assert told.prediction.answer == "five"
    assert told.partial[void] == {}


@pytest.mark.parametrize(
    "written",
    [
        "Two and three.</think>",
        "Two and three.\n</think>\n",
        "Two and three.\n\n</think>",
        "<think>Two and three.</think>",
    ],
)
@pytest.mark.parametrize("wire", [None, "openai_chat"])
def test_thoughts_that_end_right_before_a_call_void_none_of_its_fields(
    driver: str,
    written: str,
    wire: str | None,
) -> None:
    """The closing tag was recognized at the end of the answer, and `AttemptFailed` took the fields
    of `finish` back for good.
    """
    answer = Response(
        written,
        (ToolCall(name="finish", args={"answer": "five, I think", "n": 5}, id="c"),),
    )
    lm = (
        ScriptedLM([answer]) if wire is None else Streaming(wire, [answer], list(range(0, 3000, 7)))
    )
    told = Told(ReAct("q -> answer, n: int", [], native=True).stream(q="q", lm=lm), driver)
    assert not any(isinstance(event, events.AttemptFailed) for event in told.events)
    assert all(event.text for event in told.events if isinstance(event, events.ThoughtDelta))
    assert (told.thoughts.strip(), told.fields) == (
        "Two and three.",
        {"answer": "five, I think", "n": "5"},
    )


def test_thoughts_that_were_cut_off_leave_no_text(driver: str) -> None:
    cut = Response("<think>\nLet me", finish_reason="length")
    told = Told(
        Predict("q -> answer").stream(q="q", lm=ScriptedLM([cut, fields(answer="five")])),
        driver,
    )
    assert (told.thoughts, told.text, told.fields) == ("Let me", "", {"answer": "five"})


def test_a_model_that_streams_nothing_but_its_response_tells_the_same() -> None:
    class Whole(BaseLM):
        capabilities = Capabilities()

        def complete(self, request: Request) -> Response:
            return Response(f"<think>hm</think>{fields(answer='five')}")

        def stream(self, request: Request) -> Iterator[Delta | Response]:
            yield self.complete(request)

    told = Told(Predict("q -> answer").stream(q="q", lm=Whole()))
    assert (told.thoughts, told.fields) == ("hm", {"answer": "five"})


# -- partial outputs


def test_partial_outputs_grow_and_are_typed(driver: str) -> None:
    signature = Signature("q -> title: str, tags: list[str], sizes: dict[str, int], count: int")
    values = {"title": "a b", "tags": ["x y", "z"], "sizes": {"m": 1, "l": 22}, "count": 345}
    told = Told(
        ReAct(signature, [], native=True).stream(
            q="q",
            lm=Streaming(
                "anthropic",
                [Response(None, (ToolCall(name="finish", args=values, id="c"),))],
                list(range(3000)),
            ),
        ),
        driver,
    )
    assert told.partial[0] == {}
    assert all(each.keys() <= values.keys() for each in told.partial)
    assert {"title": "a b", "tags": ["x y"]} in told.partial or {
        "title": "a b",
        "tags": ["x y", "z"],
    } in told.partial
    assert next(each["count"] for each in told.partial if "count" in each) == 345
    assert told.partial[-1] == values


def test_partial_outputs_begin_again_with_a_failed_attempt(driver: str) -> None:
    lm = ScriptedLM([fields(answer="a", n="x"), fields(answer="b", n=2)])
    told = Told(Predict("q -> answer, n: int").stream(q="q", lm=lm), driver)
    failed = [type(event).__name__ for event in told.events].index("AttemptFailed")
    assert told.partial[failed - 1] == {"answer": "a"}
    assert told.partial[failed] == {}
    assert told.partial[-1] == {"answer": "b", "n": 2}
