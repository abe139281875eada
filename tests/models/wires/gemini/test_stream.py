"""Streams of Gemini, after ai.google.dev/gemini-api/docs/text-generation ("Streaming responses")
and thought-signatures, July 2026.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import (
    LMError,
    MissingContentError,
    RateLimitError,
    RefusalError,
    UnavailableError,
)
from ferrule.models.wires.gemini import read, render
from ferrule.models.wires.gemini.stream import Assembly
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import CallPiece, Delta, Request, Response, Usage
from ferrule.values.conversation.message import Message, Messages


def sent(*chunks: dict | str, newline: str = "\n") -> bytes:
    lines = [
        f"data: {json.dumps(chunk, ensure_ascii=False)}" if isinstance(chunk, dict) else chunk
        for chunk in chunks
    ]
    return "".join(f"{line}{newline}{newline}" for line in lines).encode()


def chunk(*parts: dict, finish: str | None = None, usage: dict | None = None, **candidate) -> dict:
    found = {
        "content": {"role": "model", "parts": list(parts)},
        "index": 0,
        **({"finishReason": finish} if finish else {}),
        **candidate,
    }
    return {
        "candidates": [found],
        "modelVersion": "m",
        "responseId": "r",
        **({"usageMetadata": usage} if usage else {}),
    }


def assembled(*pieces: bytes) -> tuple[list[Delta], Response]:
    assembly = Assembly()
    deltas = [item for piece in pieces for item in assembly.feed(piece)]
    deltas += assembly.end()
    return deltas, assembly.response()


CALL = {
    "functionCall": {"id": "a", "name": "get_weather", "args": {"city": "Paris"}},
    "thoughtSignature": "c2ln",
}
OTHER = {"functionCall": {"name": "get_time", "args": {"zone": "CET"}}}
FULL = sent(
    ": a comment",
    chunk({"text": "Hm, ", "thought": True}, usage={"promptTokenCount": 5, "totalTokenCount": 5}),
    chunk({"text": "well.", "thought": True}),
    chunk({"text": "Hellö "}),
    chunk({"text": "wörld 🌍"}),
    chunk({"text": " now", "thoughtSignature": "dGV4dA=="}),
    chunk(CALL),
    chunk(OTHER),
    chunk({"text": ""}, finish="STOP"),
    {
        "usageMetadata": {
            "promptTokenCount": 5,
            "candidatesTokenCount": 7,
            "cachedContentTokenCount": 3,
            "thoughtsTokenCount": 2,
        },
    },
)
WHOLE = Response(
    "Hellö wörld 🌍 now",
    (
        ToolCall(name="get_weather", args={"city": "Paris"}, id="a"),
        ToolCall(name="get_time", args={"zone": "CET"}),
    ),
    "Hm, well.",
    "tool_calls",
    None,
    Usage(5, 9, 3, 1, 2),
    "m",
    extra={
        "gemini": {
            "parts": [
                {"text": "Hm, well.", "thought": True},
                {"text": "Hellö wörld 🌍"},
                {"text": " now", "thoughtSignature": "dGV4dA=="},
                {"functionCall": {}, "thoughtSignature": "c2ln"},
                {"functionCall": {}},
                {"text": ""},
            ],
        },
    },
)


def test_a_stream_gives_deltas_and_the_whole():
    """Text and thoughts in pieces, calls whole, a reason before the counts."""
    deltas, response = assembled(FULL)
    calls = [
        CallPiece(0, "a", "get_weather", '{"city":"Paris"}'),
        CallPiece(1, "", "get_time", '{"zone":"CET"}'),
    ]
    told = [
        Delta("", "Hm, "),
        Delta("", "well."),
        Delta("Hellö "),
        Delta("wörld 🌍"),
        Delta(" now"),
    ]
    assert deltas == [*told, *[Delta(call=each) for each in calls]]
    assert response == WHOLE


@given(st.lists(st.integers(0, len(FULL)), max_size=12), st.sampled_from(["\n", "\r\n", "\r"]))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts, newline):
    body = FULL.replace(b"\n", newline.encode())
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    deltas, response = assembled(*(body[start:stop] for start, stop in pairwise(places)))
    assert response == WHOLE
    assert "".join(each.text for each in deltas) == WHOLE.text


WORDS = st.text(max_size=4)
PARTS = st.lists(
    st.builds(lambda text: {"text": text}, WORDS)
    | st.builds(lambda text: {"text": text, "thought": True}, WORDS)
    | st.builds(lambda text: {"text": text, "thoughtSignature": "c2ln"}, WORDS)
    | st.sampled_from([CALL, OTHER]),
    max_size=6,
)


@given(PARTS)
def test_a_stream_says_what_the_whole_answer_says(parts):
    """Piece by piece or at once."""
    whole = chunk(*parts, finish="STOP", usage={"promptTokenCount": 2})
    pieces = [chunk(part) for part in parts]
    _, found = assembled(sent(*pieces, chunk(finish="STOP", usage={"promptTokenCount": 2})))
    assert found == Response(
        *(getattr(read(whole), name) for name in Response.__match_args__[:8]),
        found.extra,
    )
    assert assembled(sent(whole))[1].extra == found.extra


def test_signatures_go_back_after_a_stream():
    """On parts of their own."""
    _, response = assembled(FULL)
    body = json.loads(
        render(
            Request(Messages([Message("user", "hi"), response.message()])),
            model="m",
            settings={},
        ),
    )
    parts = body["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [
        None,
        None,
        "dGV4dA==",
        "c2ln",
        None,
        None,
    ]
    assert parts[3] == CALL


def test_a_call_and_the_reason_may_come_apart():
    """Thinking models send STOP in an event of its own."""
    assert (
        assembled(sent(chunk(CALL), {"candidates": [{"finishReason": "STOP"}]}))[1].finish_reason
        == "tool_calls"
    )


@pytest.mark.parametrize("index", [None, "0", "", True, -1, [1]])
def test_a_candidate_whose_index_is_no_number_is_the_first(index):
    """As in an answer that is not streamed."""
    assert assembled(sent(chunk({"text": "a"}, finish="STOP", index=index)))[1].text == "a"


def test_only_the_first_answer_is_read():
    other = chunk({"text": "b"}, finish="MAX_TOKENS", index=1)
    response = assembled(sent(chunk({"text": "a"}), other, chunk(finish="STOP")))[1]
    assert (response.text, response.finish_reason) == ("a", "stop")


def test_a_last_event_without_its_empty_line_counts():
    assert assembled(sent(chunk({"text": "a"}), chunk(finish="STOP")).rstrip(b"\n"))[1].text == "a"


def test_done_after_the_last_event_ends_an_answer():
    """Some gateways end every protocol as OpenAI does (antigravity2api-nodejs, issue 73)."""
    assert assembled(sent(chunk({"text": "a"}, finish="STOP"), "data: [DONE]"))[1].text == "a"


def test_events_of_other_kinds_are_passed_over():
    body = sent(
        "event: ping",
        "data: ",
        {},
        chunk({"text": "a"}, finish="STOP"),
        {"modelStatus": {"modelStage": "STABLE"}},
    )
    assert assembled(body)[1].text == "a"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", UnavailableError),
        (sent(chunk({"text": "a"})), UnavailableError),
        (sent(chunk(CALL, finish="FINISH_REASON_UNSPECIFIED")), UnavailableError),
        (sent(chunk({"text": "a"}), 'data: {"candidates"'), UnavailableError),
        (
            sent(
                chunk({"text": "a"}),
                {"error": {"code": 429, "message": "x", "status": "RESOURCE_EXHAUSTED"}},
            ),
            RateLimitError,
        ),
        (
            sent({"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}),
            UnavailableError,
        ),
        (sent({"promptFeedback": {"blockReason": "SAFETY"}}), RefusalError),
        (sent(chunk({"text": "hm", "thought": True}), chunk(finish="SAFETY")), RefusalError),
        (sent(chunk(finish="OTHER")), MissingContentError),
    ],
    ids=[
        "nothing",
        "text",
        "call",
        "half_json",
        "error",
        "error_first",
        "blocked",
        "withheld",
        "gave_up",
    ],
)
def test_a_stream_that_is_no_answer_is_an_error(body, kind):
    with pytest.raises(kind):
        assembled(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=3), x, max_size=2),
)
PIECE = (
    st.dictionaries(st.sampled_from(["text", "thought", "functionCall", "thoughtSignature"]), JSON)
    | JSON
)


@given(st.lists(st.lists(PIECE, max_size=3) | JSON, max_size=4), JSON)
def test_chunks_of_any_content_give_a_response_or_an_error_of_the_house(pieces, finish):
    chunks = [
        {
            "candidates": [{"content": {"parts": piece}, "finishReason": finish}],
            "usageMetadata": finish,
        }
        for piece in pieces
    ]
    try:
        assert isinstance(assembled(sent(*chunks))[1], Response)
    except LMError:
        return


@given(st.lists(JSON, max_size=3))
def test_chunks_of_any_shape_give_an_error_of_the_house(chunks):
    with pytest.raises(LMError):
        assembled("".join(f"data: {json.dumps(each)}\n\n" for each in chunks).encode())
