"""Events are those of platform.claude.com, "Streaming messages", read in November 2026, made short."""

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
from ferrule.models.wires.anthropic import read
from ferrule.models.wires.anthropic.stream import Assembly
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import CallPiece, Delta, Response, Usage

HEAD = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}


def sent(*events: dict, newline: str = "\n") -> bytes:
    lines = [
        f"event: {event.get('type')}{newline}data: {json.dumps(event, ensure_ascii=False)}"
        for event in events
    ]
    return "".join(f"{line}{newline}{newline}" for line in lines).encode()


def start(**usage: int) -> dict:
    return {
        "type": "message_start",
        "message": {**HEAD, "content": [], "stop_reason": None, "usage": usage},
    }


def opened(index: int, kind: str, **fields) -> dict:
    return {
        "type": "content_block_start",
        "index": index,
        "content_block": {"type": kind, **fields},
    }


def piece(index: int, kind: str, **fields) -> dict:
    return {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": f"{kind}_delta", **fields},
    }


def closed(index: int) -> dict:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str = "end_turn", **usage: int) -> dict:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": usage,
    }


STOP = {"type": "message_stop"}


def assembled(*pieces: bytes) -> tuple[list[Delta], Response]:
    assembly = Assembly()
    deltas = [item for piece in pieces for item in assembly.feed(piece)]
    deltas += assembly.end()
    return deltas, assembly.response()


EVENTS = (
    start(input_tokens=5, cache_read_input_tokens=3, output_tokens=1),
    opened(0, "thinking", thinking="", signature=""),
    {"type": "ping"},
    piece(0, "thinking", thinking="Hm, "),
    piece(0, "thinking", thinking="ja"),
    piece(0, "signature", signature="EqQB"),
    closed(0),
    {"type": "added_next_year", "index": 0},
    opened(1, "text", text=""),
    piece(1, "text", text="Hellö "),
    piece(1, "text", text="wörld 🌍"),
    closed(1),
    opened(2, "tool_use", id="toolu_a", name="get_weather", input={}),
    opened(3, "tool_use", id="toolu_b", name="get_time", input={}),
    piece(2, "input_json", partial_json=""),
    piece(2, "input_json", partial_json='{"city"'),
    piece(3, "input_json", partial_json='{"zone": '),
    piece(2, "input_json", partial_json=': "Paris"}'),
    piece(3, "input_json", partial_json='"CET"}'),
    closed(2),
    closed(3),
    ended("tool_use", output_tokens=7),
    STOP,
)
BODY = {
    **HEAD,
    "content": [
        {"type": "thinking", "thinking": "Hm, ja", "signature": "EqQB"},
        {"type": "text", "text": "Hellö wörld 🌍"},
        {"type": "tool_use", "id": "toolu_a", "name": "get_weather", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": "toolu_b", "name": "get_time", "input": {"zone": "CET"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 7},
}
FULL = sent(*EVENTS)
WHOLE = read(BODY)


def test_a_stream_gives_deltas_and_what_the_whole_body_gives():
    """Interleaved calls, arguments in pieces, a signature, pings and unknown events between."""
    deltas, response = assembled(FULL)
    calls = [
        CallPiece(0, "toolu_a", "get_weather", ""),
        CallPiece(1, "toolu_b", "get_time", ""),
        CallPiece(0, "toolu_a", "get_weather", '{"city"'),
        CallPiece(1, "toolu_b", "get_time", '{"zone": '),
        CallPiece(0, "toolu_a", "get_weather", ': "Paris"}'),
        CallPiece(1, "toolu_b", "get_time", '"CET"}'),
    ]
    assert deltas == [
        Delta("", "Hm, "),
        Delta("", "ja"),
        Delta("Hellö "),
        Delta("wörld 🌍"),
        *[Delta(call=each) for each in calls],
    ]
    assert response == WHOLE
    assert response.raw == BODY
    assert response.usage == Usage(8, 7, 3, 1)


@given(st.lists(st.integers(0, len(FULL)), max_size=12), st.sampled_from(["\n", "\r\n", "\r"]))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts, newline):
    body = FULL.replace(b"\n", newline.encode())
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    deltas, response = assembled(*(body[begin:end] for begin, end in pairwise(places)))
    assert response == WHOLE
    assert "".join(each.text for each in deltas) == WHOLE.text
    assert "".join(each.reasoning for each in deltas) == WHOLE.reasoning


def test_a_call_without_arguments_has_none():
    for pieces in ([], [piece(0, "input_json", partial_json="")]):
        _, response = assembled(
            sent(
                start(),
                opened(0, "tool_use", id="a", name="now", input={}),
                *pieces,
                ended("tool_use"),
                STOP,
            ),
        )
        assert response.tool_calls == (ToolCall(name="now", id="a"),)


def test_arguments_that_broke_off_are_a_fault_of_the_call():
    """As they do at max_tokens."""
    call = opened(0, "tool_use", id="a", name="add", input={})
    _, response = assembled(
        sent(
            start(),
            call,
            piece(0, "input_json", partial_json='{"a": "x'),
            ended("max_tokens"),
            STOP,
        ),
    )
    assert response.finish_reason == "length"
    assert response.tool_calls[0].fault.raw == '{"a": "x'


def test_text_that_comes_with_the_start_of_a_block_counts():
    deltas, response = assembled(
        sent(start(), opened(0, "text", text="a"), piece(0, "text", text="b"), ended(), STOP),
    )
    assert (deltas, response.text) == ([Delta("a"), Delta("b")], "ab")


def test_citations_come_with_their_text():
    """They go back with it."""
    cited = {"type": "char_location", "cited_text": "x"}
    _, response = assembled(
        sent(
            start(),
            opened(0, "text", text=""),
            piece(0, "text", text="a"),
            piece(0, "citations", citation=cited),
            ended(),
            STOP,
        ),
    )
    assert response.extra == {
        "anthropic": {"content": [{"type": "text", "text": "a", "citations": [cited]}]},
    }


def test_the_providers_own_tools_come_whole():
    """They go back as they came."""
    search = opened(0, "server_tool_use", id="s", name="web_search", input={})
    _, response = assembled(
        sent(start(), search, piece(0, "input_json", partial_json='{"query": "x"}'), ended(), STOP),
    )
    assert response.extra["anthropic"]["content"] == [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
    ]
    assert response.tool_calls == ()


def test_blocks_come_in_the_order_of_their_indexes():
    body = sent(start(), opened(1, "text", text="b"), opened(0, "text", text="a"), ended(), STOP)
    assert assembled(body)[1].text == "ab"


@pytest.mark.parametrize("index", [0, None])
def test_blocks_that_all_have_one_index_are_told_apart_by_their_beginnings(index):
    """As a server that is not the provider's may number them."""
    events = [
        opened(index, "text", text=""),
        piece(index, "text", text="a"),
        closed(index),
        opened(index, "tool_use", id="a", name="one", input={}),
        piece(index, "input_json", partial_json='{"x": 1}'),
        closed(index),
        opened(index, "tool_use", id="b", name="two", input={}),
    ]
    deltas, response = assembled(sent(start(), *events, events[-1], ended("tool_use"), STOP))
    assert response.text == "a"
    assert [(call.name, call.args) for call in response.tool_calls] == [
        ("one", {"x": 1}),
        ("two", {}),
    ]
    assert {each.call.index for each in deltas if each.call} == {0, 1}


def test_counts_that_a_later_event_leaves_out_are_kept():
    """Some gateways say null for them."""
    end = ended()
    end["usage"] = {"input_tokens": None, "output_tokens": 9}
    assert assembled(sent(start(input_tokens=5, output_tokens=1), end, STOP))[1].usage == Usage(
        5,
        9,
        0,
        1,
    )


def test_what_follows_the_end_is_not_read():
    assert (
        assembled(sent(start(), opened(0, "text", text="a"), ended(), STOP) + b"data: junk\n\n")[
            1
        ].text
        == "a"
    )


def test_done_in_place_of_the_last_event_ends_an_answer():
    """Some gateways end every protocol as OpenAI does (huggingface/tau, pull request 692)."""
    assembly = Assembly()
    events = (start(input_tokens=5), opened(0, "text", text="a"), ended(output_tokens=2))
    assert list(assembly.feed(sent(*events) + b"data: [DONE]\n\n")) == [Delta("a")]
    assert assembly.is_done
    assert assembly.response() == assembled(sent(*events, STOP))[1]


def test_arguments_with_half_a_character_are_read():
    """A server that cuts text by UTF-16 puts the halves of one character into two events."""
    call = opened(0, "tool_use", id="a", name="add", input={})
    halves = [
        piece(0, "input_json", partial_json='{"a": "\ud83c'),
        piece(0, "input_json", partial_json='\udf0d"}'),
    ]
    body = b"".join(
        b"data: %b\n\n" % json.dumps(each).encode()
        for each in (start(), call, *halves, ended("tool_use"), STOP)
    )
    assert assembled(body)[1].tool_calls[0].args.keys() == {"a"}


def test_a_refusal_says_why():
    end = ended("refusal")
    end["delta"]["stop_details"] = {"type": "refusal", "category": None, "explanation": "Declined."}
    _, response = assembled(sent(start(), end, STOP))
    assert (response.refusal, response.finish_reason) == ("Declined.", "content_filter")


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
LIMIT = {"type": "error", "error": {"type": "rate_limit_error", "message": "slower"}}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", UnavailableError),
        (sent(start()), UnavailableError),
        (sent(*EVENTS[:11]), UnavailableError),
        (sent(*EVENTS[:17]), UnavailableError),
        (sent(STOP), MissingContentError),
        (b"data: {half\n\n", UnavailableError),
        (sent(start(), OVERLOADED), UnavailableError),
        (sent(*EVENTS[:11], LIMIT), RateLimitError),
        (sent(start(), ended("refusal"), STOP), RefusalError),
    ],
    ids=[
        "nothing",
        "start",
        "in_text",
        "in_call",
        "only_end",
        "half_json",
        "overloaded",
        "limit",
        "refused",
    ],
)
def test_a_stream_that_is_no_answer_is_an_error(body, kind):
    with pytest.raises(kind):
        assembled(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=3), x, max_size=2),
)


@given(st.data())
def test_events_with_anything_in_one_place_give_a_response_or_an_error_of_the_house(data):
    events = json.loads(json.dumps(EVENTS))
    holder = data.draw(st.sampled_from(events))
    while True:
        key = data.draw(st.sampled_from(sorted(holder)))
        if not (isinstance(holder[key], dict) and holder[key] and data.draw(st.booleans())):
            break
        holder = holder[key]
    holder[key] = data.draw(JSON)
    try:
        assert isinstance(assembled(sent(*events))[1], Response)
    except LMError:
        return


@given(st.lists(JSON, max_size=3))
def test_events_of_any_shape_give_a_response_or_an_error_of_the_house(events):
    try:
        assembled("".join(f"data: {json.dumps(event)}\n\n" for event in events).encode())
    except LMError:
        return
