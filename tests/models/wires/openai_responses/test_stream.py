"""The recorded stream has the shape of OpenAI's API reference, "Streaming events" of responses, as
of November 2026.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ferrule.errors import (
    ContextOverflowError,
    LMError,
    MissingContentError,
    RateLimitError,
    RefusalError,
    UnavailableError,
)
from ferrule.models.wires.openai_responses import read
from ferrule.models.wires.openai_responses.stream import Assembly
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import CallPiece, Delta, Response, Usage


def sent(*events: dict | str, newline: str = "\n") -> bytes:
    lines = []
    for number, each in enumerate(events):
        if isinstance(each, dict):
            data = json.dumps({"sequence_number": number, **each}, ensure_ascii=False)
            lines += [f"event: {each.get('type')}{newline}data: {data}"]
        else:
            lines += [each]
    return "".join(f"{line}{newline}{newline}" for line in lines).encode()


def assembled(*pieces: bytes) -> tuple[list[Delta], Response]:
    assembly = Assembly()
    deltas = [item for piece in pieces for item in assembly.feed(piece)]
    deltas += assembly.end()
    return deltas, assembly.response()


def ev(kind: str, index: int | None = None, **fields) -> dict:
    return {
        "type": f"response.{kind}",
        **({} if index is None else {"output_index": index}),
        **fields,
    }


def call(index: int, name: str, arguments: str = "", **fields) -> dict:
    return {
        "type": "function_call",
        "id": f"fc_{index}",
        "call_id": f"call_{index}",
        "name": name,
        "arguments": arguments,
        **fields,
    }


THOUGHT = {
    "type": "reasoning",
    "id": "rs_0",
    "summary": [{"type": "summary_text", "text": "Hm, "}, {"type": "summary_text", "text": "so."}],
    "encrypted_content": "gAAA",
}
SPOKEN = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hellö wörld 🌍", "annotations": []}],
}
CALLS = [call(2, "get_weather", '{"city": "Paris"}'), call(3, "get_time", '{"zone": "CET"}')]
USAGE = {"input_tokens": 5, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 3}}
HEAD = {"id": "resp_1", "model": "m", "status": "in_progress", "output": [], "error": None}
BODY = {**HEAD, "status": "completed", "output": [THOUGHT, SPOKEN, *CALLS], "usage": USAGE}
BEGINNING = [ev("created", response=HEAD), ev("in_progress", response=HEAD), {"type": "keepalive"}]
THINKING = [
    ev("output_item.added", 0, item={**THOUGHT, "summary": [], "encrypted_content": None}),
    ev(
        "reasoning_summary_part.added",
        0,
        item_id="rs_0",
        summary_index=0,
        part={"type": "summary_text", "text": ""},
    ),
    ev("reasoning_summary_text.delta", 0, item_id="rs_0", summary_index=0, delta="Hm, "),
    ev("reasoning_summary_text.done", 0, item_id="rs_0", summary_index=0, text="Hm, "),
    ev("reasoning_summary_text.delta", 0, item_id="rs_0", summary_index=1, delta="so."),
    ev("output_item.done", 0, item=THOUGHT),
]
SPEAKING = [
    ev("output_item.added", 1, item={**SPOKEN, "content": [], "status": "in_progress"}),
    ev(
        "content_part.added",
        1,
        item_id="msg_1",
        content_index=0,
        part={"type": "output_text", "text": ""},
    ),
    ev("output_text.delta", 1, item_id="msg_1", content_index=0, delta="Hellö ", obfuscation="xyz"),
    ev("output_text.delta", 1, item_id="msg_1", content_index=0, delta="wörld 🌍"),
    ev("output_text.done", 1, item_id="msg_1", content_index=0, text="Hellö wörld 🌍"),
    ev("output_text.annotation.added", 1, item_id="msg_1", annotation={}),
]
CALLING = [
    ev("output_item.added", 3, item=call(3, "get_time", status="in_progress")),
    ev("output_item.added", 2, item=call(2, "get_weather", status="in_progress")),
    ev("function_call_arguments.delta", 2, item_id="fc_2", delta='{"city"'),
    ev("function_call_arguments.delta", 3, item_id="fc_3", delta='{"zone": '),
    ev("function_call_arguments.delta", 2, item_id="fc_2", delta=': "Paris"}'),
    ev("function_call_arguments.delta", 3, item_id="fc_3", delta='"CET"}'),
]
FULL = sent(*BEGINNING, *THINKING, *SPEAKING, *CALLING, ev("completed", response=BODY))
WHOLE = read(BODY)


def test_a_stream_gives_deltas_and_the_whole():
    deltas, response = assembled(FULL)
    calls = [  # in the order in which they began
        CallPiece(0, "call_3", "get_time", ""),
        CallPiece(1, "call_2", "get_weather", ""),
        CallPiece(1, "call_2", "get_weather", '{"city"'),
        CallPiece(0, "call_3", "get_time", '{"zone": '),
        CallPiece(1, "call_2", "get_weather", ': "Paris"}'),
        CallPiece(0, "call_3", "get_time", '"CET"}'),
    ]
    told = [Delta("", "Hm, "), Delta("", "\n\nso."), Delta("Hellö "), Delta("wörld 🌍")]
    assert deltas == [*told, *[Delta(call=each) for each in calls]]
    assert response == WHOLE
    assert (response.text, response.reasoning) == (
        "".join(each.text for each in deltas),
        "".join(each.reasoning for each in deltas),
    )
    assert response.usage == Usage(5, 7, 3, 1)


@pytest.mark.parametrize("ending", ["output_left_out", "done_in_its_stead"])
def test_items_are_put_together_where_the_last_event_does_not_carry_them(ending):
    """Interleaved calls, pieces of arguments, the whole item in its last event or not at all."""
    last = (
        ev("completed", response={**BODY, "output": []})
        if ending == "output_left_out"
        else "data: [DONE]"
    )
    _, response = assembled(sent(*BEGINNING, *THINKING, *SPEAKING, *CALLING, last))
    assert replace(response, usage=WHOLE.usage) == replace(WHOLE, extra=response.extra)
    kept = response.extra["openai_responses"]["output"]
    assert kept[0] == THOUGHT
    assert [item["arguments"] for item in kept[2:]] == [item["arguments"] for item in CALLS]


@given(
    st.lists(st.integers(0, len(FULL)), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
)
def test_it_does_not_matter_where_the_bytes_are_cut(cuts, newline, is_left_out):
    last = (
        ev("completed", response={**BODY, "output": []})
        if is_left_out
        else ev("completed", response=BODY)
    )
    events = [
        *BEGINNING,
        *THINKING,
        *SPEAKING,
        *CALLING,
        ev("output_item.done", 2, item=CALLS[0]),
        ev("output_item.done", 3, item=CALLS[1]),
    ]
    body = sent(*events, ev("output_item.done", 1, item=SPOKEN), last, newline=newline)
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    deltas, response = assembled(*(body[start:stop] for start, stop in pairwise(places)))
    assert response == WHOLE
    assert "".join(each.text for each in deltas) == WHOLE.text


def test_byte_by_byte():
    assert assembled(*(FULL[i : i + 1] for i in range(len(FULL))))[1] == WHOLE


END = ev("completed", response={"status": "completed"})


def test_pieces_without_an_index_belong_to_the_item_of_their_id():
    """Servers that leave it out."""
    one, two = ({**call(k, name), "id": f"fc_{k}"} for k, name in enumerate(["one", "two"]))
    events = [
        ev("output_item.added", item=one),
        ev("output_item.added", item=two),
        ev("function_call_arguments.delta", item_id="fc_0", delta='{"x":'),
        ev("function_call_arguments.delta", item_id="fc_1", delta="{}"),
        ev("function_call_arguments.delta", item_id="fc_0", delta="1}"),
    ]
    _, response = assembled(sent(*events, END))
    assert response.tool_calls == (
        ToolCall(name="one", args={"x": 1}, id="call_0"),
        ToolCall(name="two", id="call_1"),
    )


def test_arguments_that_come_only_at_the_end_are_taken():
    """Servers that send no pieces."""
    events = [
        ev("output_item.added", 0, item=call(0, "one")),
        ev("function_call_arguments.done", 0, arguments='{"x":1}'),
    ]
    assert [each.args for each in assembled(sent(*events, END))[1].tool_calls] == [{"x": 1}]


def test_text_that_comes_only_at_the_end_of_its_part_is_told():
    """Servers that send no pieces, or not all of them."""
    deltas, response = assembled(sent(ev("output_text.done", 0, text="all"), END))
    assert (deltas, response.text) == ([Delta("all")], "all")
    deltas, response = assembled(
        sent(ev("output_text.delta", 0, delta="a"), ev("output_text.done", 0, text="all"), END),
    )
    assert (deltas, response.text) == ([Delta("a"), Delta("ll")], "all")


def test_parts_of_a_message_come_in_the_order_of_their_indexes():
    events = [
        ev("output_text.delta", 0, content_index=k, delta=text)
        for k, text in ((1, "b"), (0, "a"), (1, "c"))
    ]
    refused = [ev("refusal.delta", 1, content_index=0, delta=text) for text in ("I ", "won't")]
    _, response = assembled(sent(*events, *refused, END))
    assert (response.text, response.refusal) == ("abc", "I won't")


def test_thoughts_of_open_models_are_told():
    """VLLM and others send the reasoning itself."""
    events = [
        ev("reasoning_text.delta", 0, content_index=0, delta=text) for text in ("Think", " hard.")
    ]
    deltas, response = assembled(
        sent(*events, ev("output_text.delta", 1, content_index=0, delta="42"), END),
    )
    assert deltas == [Delta("", "Think"), Delta("", " hard."), Delta("42")]
    assert (response.reasoning, response.text) == ("Think hard.", "42")


def test_a_cut_off_answer_says_so():
    last = ev(
        "incomplete",
        response={
            **BODY,
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "output": [SPOKEN],
        },
    )
    assert assembled(sent(*SPEAKING, last))[1].finish_reason == "length"


def test_what_follows_the_end_is_not_read():
    assert assembled(FULL + b"data: [DONE]\n\ndata: junk\n\n")[1] == WHOLE


def test_a_last_event_without_its_empty_line_counts():
    assert assembled(FULL.rstrip(b"\n"))[1] == WHOLE


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", UnavailableError),
        (sent(*BEGINNING), UnavailableError),
        (sent(*BEGINNING, *SPEAKING), UnavailableError),
        (sent("data: [DONE]"), MissingContentError),
        (sent(*BEGINNING, ev("completed", response={**BODY, "output": []})), MissingContentError),
        (sent("data: {half"), UnavailableError),
        (
            sent(
                *BEGINNING,
                {"type": "error", "code": "rate_limit_exceeded", "message": "x", "param": None},
            ),
            RateLimitError,
        ),
        (
            sent(
                {
                    "type": "error",
                    "error": {
                        "type": "invalid_request_error",
                        "code": "context_length_exceeded",
                        "message": "x",
                    },
                },
            ),
            ContextOverflowError,
        ),
        (sent({"error": {"message": "x", "code": 500}}), UnavailableError),
        (
            sent(
                ev(
                    "failed",
                    response={
                        **HEAD,
                        "status": "failed",
                        "error": {"code": "server_error", "message": "x"},
                    },
                ),
            ),
            UnavailableError,
        ),
        (
            sent(
                ev(
                    "incomplete",
                    response={
                        "status": "incomplete",
                        "incomplete_details": {"reason": "content_filter"},
                    },
                ),
            ),
            RefusalError,
        ),
    ],
    ids=[
        "nothing",
        "begun",
        "broken_off",
        "only_done",
        "empty",
        "half_json",
        "error",
        "inner_error",
        "gateway",
        "failed",
        "filtered",
    ],
)
def test_a_stream_that_is_no_answer_is_an_error(body, kind):
    with pytest.raises(kind) as caught:
        assembled(body)
    assert type(caught.value) is kind


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3),
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=3), x, max_size=2),
)
KINDS = [
    *(
        "created",
        "completed",
        "incomplete",
        "failed",
        "output_item.added",
        "output_item.done",
        "output_text.delta",
        "output_text.done",
    ),
    *(
        "refusal.delta",
        "reasoning_text.delta",
        "reasoning_summary_text.delta",
        "function_call_arguments.delta",
        "content_part.added",
    ),
    *("function_call_arguments.done", "refusal.done", "unheard_of.delta"),
]
EVENT = st.fixed_dictionaries(
    {"type": st.sampled_from([f"response.{kind}" for kind in KINDS]) | JSON},
    optional=dict.fromkeys(
        [
            "output_index",
            "item_id",
            "content_index",
            "summary_index",
            "delta",
            "text",
            "refusal",
            "arguments",
            "item",
            "response",
            "part",
        ],
        JSON,
    )
    | {
        "item": st.fixed_dictionaries(
            {"type": JSON | st.sampled_from(["message", "function_call"])},
            optional={"content": JSON, "id": JSON},
        ),
    },
)


@given(st.lists(EVENT, max_size=6), st.booleans())
def test_events_of_any_content_give_a_response_or_an_error_of_the_house(events, is_ended):
    try:
        assert isinstance(assembled(sent(*events, *([END] if is_ended else [])))[1], Response)
    except LMError:
        return


@given(st.lists(JSON, max_size=3))
def test_events_of_any_shape_give_a_response_or_an_error_of_the_house(events):
    try:
        assembled("".join(f"data: {json.dumps(each)}\n\n" for each in events).encode())
    except LMError:
        return
