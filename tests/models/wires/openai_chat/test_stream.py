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
from ferrule.models.wires.openai_chat import read
from ferrule.models.wires.openai_chat.stream import Assembly
from ferrule.net.sse import Events, WholeAnswer
from ferrule.testing.server.openai_chat import events
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import CallPiece, Delta, Response, Usage


def sent(*chunks: dict | str | bytes, newline: str = "\n", done: bool = True) -> bytes:
    lines = [
        f"data: {json.dumps(chunk, ensure_ascii=False)}" if isinstance(chunk, dict) else chunk
        for chunk in chunks
    ]
    lines += ["data: [DONE]"] if done else []
    return "".join(f"{line}{newline}{newline}" for line in lines).encode()


def delta(index: int = 0, finish: str | None = None, **fields) -> dict:
    return {
        "id": "chatcmpl-1",
        "model": "m",
        "choices": [{"index": index, "delta": fields, "finish_reason": finish}],
    }


def call(
    index: int | None,
    call_id: str | None = None,
    name: str | None = None,
    arguments: str | None = None,
) -> dict:
    function = {
        key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None
    }
    entry = {
        "function": function,
        **({"index": index} if index is not None else {}),
        **({"id": call_id, "type": "function"} if call_id else {}),
    }
    return delta(tool_calls=[entry])


def assembled(*pieces: bytes) -> tuple[list[Delta], Response]:
    assembly = Assembly()
    deltas = [item for piece in pieces for item in assembly.feed(piece)]
    deltas += assembly.end()
    return deltas, assembly.response()


def calls_of(*chunks: dict) -> list[tuple]:
    _, response = assembled(sent(*chunks, delta(finish="tool_calls")))
    return [(each.id, each.name, each.args) for each in response.tool_calls]


FULL = sent(
    ": OPENROUTER PROCESSING",
    delta(role="assistant", content=""),
    delta(reasoning_content="Hm, "),
    delta(content="Hellö "),
    delta(content="wörld 🌍"),
    call(0, "call_a", "get_", ""),
    call(1, "call_b", "get_", ""),
    call(0, None, "weather", '{"city"'),
    call(1, None, "time", '{"zone": '),
    call(0, None, None, ': "Paris"}'),
    call(1, None, None, '"CET"}'),
    delta(finish="tool_calls"),
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    },
)
WHOLE = Response(
    "Hellö wörld 🌍",
    (
        ToolCall(name="get_weather", args={"city": "Paris"}, id="call_a"),
        ToolCall(name="get_time", args={"zone": "CET"}, id="call_b"),
    ),
    "Hm, ",
    "tool_calls",
    None,
    Usage(5, 7, 3, 1),
    "m",
    extra={"openai_chat": {"reasoning": "reasoning_content"}},
)


def test_a_stream_gives_deltas_and_the_whole():
    """Interleaved calls, split names and arguments, ids in first chunks only, a usage chunk."""
    deltas, response = assembled(FULL)
    calls = [
        CallPiece(0, "call_a", "get_", ""),
        CallPiece(1, "call_b", "get_", ""),
        CallPiece(0, "call_a", "get_weather", '{"city"'),
        CallPiece(1, "call_b", "get_time", '{"zone": '),
        CallPiece(0, "call_a", "get_weather", ': "Paris"}'),
        CallPiece(1, "call_b", "get_time", '"CET"}'),
    ]
    assert deltas == [
        Delta("", "Hm, "),
        Delta("Hellö "),
        Delta("wörld 🌍"),
        *[Delta(call=each) for each in calls],
    ]
    assert response == WHOLE


@given(
    st.lists(st.integers(0, len(FULL)), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
)
def test_it_does_not_matter_where_the_bytes_are_cut(cuts, newline, has_bom):
    body = (b"\xef\xbb\xbf" if has_bom else b"") + FULL.replace(b"\n", newline.encode())
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    deltas, response = assembled(*(body[start:stop] for start, stop in pairwise(places)))
    assert response == WHOLE
    assert "".join(each.text for each in deltas) == WHOLE.text


def test_byte_by_byte():
    assert assembled(*(FULL[i : i + 1] for i in range(len(FULL))))[1] == WHOLE


NAMES = st.text(st.characters(categories=["L", "Nd"], max_codepoint=0x2FF), min_size=1, max_size=8)
CALLS = st.lists(
    st.tuples(NAMES, st.dictionaries(NAMES, st.integers() | NAMES, max_size=3)),
    max_size=3,
)


@given(st.text(max_size=30), st.text(max_size=10), CALLS, st.booleans())
def test_what_the_server_writes_the_client_reads(text, reasoning, calls, has_refusal):
    """Both ends of the wire."""
    made = tuple(ToolCall(name=name, args=args, id=f"c{i}") for i, (name, args) in enumerate(calls))
    reason = "tool_calls" if made else "stop"
    refusal = "no" if has_refusal else None
    response = Response(
        text or None,
        made,
        reasoning or None,
        reason,
        refusal,
        Usage(1, 2, 1, 1),
        "m",
    )
    items = [
        *(Delta(each) for each in text),
        *([Delta("", reasoning)] if reasoning else []),
        response,
    ]
    _, found = assembled(*events(items, model="m", with_usage=True))
    assert (found.text or None) == response.text
    assert found == Response(
        found.text,
        made,
        response.reasoning,
        reason,
        refusal,
        response.usage,
        "m",
        extra=found.extra,
    )


def test_calls_come_in_the_order_of_their_indexes():
    found = calls_of(call(1, "b", "two", "{}"), call(0, "a", "one", "{}"))
    assert found == [("a", "one", {}), ("b", "two", {})]


def test_calls_without_an_index_are_told_apart_by_their_ids():
    """Gemini's compatible endpoint."""
    found = calls_of(
        call(None, "a", "one", '{"x":'),
        call(None, None, None, "1}"),
        call(None, "b", "two", "{}"),
    )
    assert found == [("a", "one", {"x": 1}), ("b", "two", {})]


def test_calls_that_all_have_index_0_are_told_apart_by_their_ids():
    assert calls_of(call(0, "a", "one", "{}"), call(0, "b", "two", "{}")) == [
        ("a", "one", {}),
        ("b", "two", {}),
    ]


def test_a_name_that_is_repeated_with_its_id_is_one_name():
    """Some servers repeat both in every chunk."""
    assert calls_of(call(0, "a", "one", '{"x": '), call(0, "a", "one", "1}")) == [
        ("a", "one", {"x": 1}),
    ]


def test_a_name_of_two_equal_pieces_is_both():
    assert calls_of(call(0, "a", "cou", ""), call(0, None, "cou", "{}")) == [("a", "coucou", {})]


@pytest.mark.parametrize(
    "where",
    [{}, {"index": 0}, {"index": 0, "id": ""}],
    ids=["nothing", "index", "empty_id"],
)
@pytest.mark.parametrize("names", [("a", "b"), ("a", "a")], ids=["two_tools", "one_tool"])
@pytest.mark.parametrize("together", [True, False], ids=["one_chunk", "two_chunks"])
def test_calls_without_ids_are_told_apart_by_what_is_whole(where, names, together):
    """Servers that are compatible with Gemini.

    A name behind whole arguments begins another call.
    """
    entries = [
        {**where, "function": {"name": name, "arguments": f'{{"x": {n}}}'}}
        for n, name in enumerate(names)
    ]
    chunks = (
        [delta(tool_calls=entries)]
        if together
        else [delta(tool_calls=[entry]) for entry in entries]
    )
    assert calls_of(*chunks) == [(None, name, {"x": n}) for n, name in enumerate(names)]


@pytest.mark.parametrize("last", [None, "", "1}"], ids=["no_arguments", "empty", "more"])
def test_a_name_that_is_repeated_without_its_id_is_one_name(last):
    """The id came in the first chunk alone."""
    begun = '{"x": ' if last else '{"x": 1}'
    assert calls_of(call(0, "a", "get", begun), call(0, None, "get", last)) == [
        ("a", "get", {"x": 1}),
    ]
    thrice = [call(0, "a", "get", ""), call(0, None, "get", begun), call(0, None, "get", last)]
    assert calls_of(*thrice) == [("a", "get", {"x": 1})]
    split = [call(0, "a", "ge", ""), call(0, None, "t", begun), call(0, None, "get", last)]
    assert calls_of(*split) == [("a", "get", {"x": 1})]


def test_calls_without_an_index_may_hold_half_a_character():
    """A server that cuts text by UTF-16 puts the halves of one character into two chunks."""
    chunks = [
        call(None, "a", "one", '{"x": "\ud83c'),
        call(None, None, "one", '\udf0d"}'),
        call(None, None, "two", "{}"),
        delta(finish="stop"),
    ]
    _, response = assembled(
        b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in chunks),
    )
    assert [each.name for each in response.tool_calls] == ["one", "two"]


@pytest.mark.parametrize("call_id", [None, ""])
def test_an_empty_name_in_later_chunks_is_none(call_id):
    """Qwen's provider sends one beside each piece of the arguments."""
    chunks = [
        call(0, "a", "get", '{"x"'),
        *[call(0, None, "", piece) for piece in (": ", "[1, ", "2]", "}")],
    ]
    for chunk in chunks[1:]:
        chunk["choices"][0]["delta"]["tool_calls"][0]["id"] = call_id
    assert calls_of(*chunks) == [("a", "get", {"x": [1, 2]})]


def test_reasoning_under_other_names_is_streamed():
    """Databricks', GitHub Copilot's."""
    part = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm, "}]}
    deltas, response = assembled(
        sent(
            delta(content=[part]),
            delta(reasoning_text="so."),
            delta(content="4"),
            delta(finish="stop"),
        ),
    )
    assert deltas == [Delta("", "Hm, "), Delta("", "so."), Delta("4")]
    assert (response.text, response.reasoning) == ("4", "Hm, so.")


def test_arguments_as_an_object_are_taken():
    """Ollama."""
    chunk = delta(
        tool_calls=[{"index": 0, "id": "a", "function": {"name": "one", "arguments": {"x": 1}}}],
    )
    assert calls_of(chunk) == [("a", "one", {"x": 1})]


def test_calls_that_are_no_list_are_kept_and_marked():
    _, response = assembled(sent(delta(content="hi", tool_calls="add(1)"), delta(finish="stop")))
    [told] = response.tool_calls
    assert (told.fault.code, told.fault.raw) == ("invalid_tool_calls", '"add(1)"')
    assert response.text == "hi"


def test_the_deprecated_function_call_is_assembled():
    chunks = [
        delta(function_call={"name": "ad"}),
        delta(function_call={"name": "d", "arguments": '{"a"'}),
        delta(function_call={"arguments": ": 1}"}),
    ]
    _, response = assembled(sent(*chunks, delta(finish="function_call")))
    assert [(each.name, each.args) for each in response.tool_calls] == [("add", {"a": 1})]
    assert response.finish_reason == "tool_calls"


def test_a_refusal_is_assembled():
    _, response = assembled(sent(delta(refusal="I "), delta(refusal="won't"), delta(finish="stop")))
    assert response.refusal == "I won't"


def test_signatures_of_calls_survive():
    """Gemini."""
    chunk = call(0, "a", "one", "{}")
    chunk["choices"][0]["delta"]["tool_calls"][0]["extra_content"] = {
        "google": {"thought_signature": "sig"},
    }
    _, response = assembled(sent(chunk, delta(finish="tool_calls")))
    assert response.extra == {
        "openai_chat": {
            "calls": {"0": {"extra_content": {"google": {"thought_signature": "sig"}}}}
        },
    }


@pytest.mark.parametrize("index", [None, "0", "", True, -1, 0.0, [1], {"a": 1}])
def test_a_choice_whose_index_is_no_number_is_the_first(index):
    """As in an answer that is not streamed."""
    assert assembled(sent(delta(index, "stop", content="a")))[1].text == "a"


def test_only_the_first_choice_is_read():
    assert (
        assembled(sent(delta(content="a"), delta(1, content="b"), delta(finish="stop")))[1].text
        == "a"
    )


def test_a_last_event_without_its_empty_line_counts():
    body = sent(delta(content="a"), delta(finish="stop"), done=False).rstrip(b"\n")
    assert assembled(body)[1].text == "a"


def test_what_follows_the_end_is_not_read():
    assert (
        assembled(sent(delta(content="a"), delta(finish="stop")) + b"data: junk\n\n")[1].text == "a"
    )


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", UnavailableError),
        (sent(delta(content="a"), done=False), UnavailableError),
        (sent(call(0, "a", "one", '{"x":'), done=False), UnavailableError),
        (sent(), MissingContentError),
        (sent("data: {half"), UnavailableError),
        (sent({"error": {"code": 429, "message": "x"}}), RateLimitError),
        (sent({"choices": [{"error": {"code": 500, "message": "x"}}]}), UnavailableError),
        (sent(delta(finish="content_filter")), RefusalError),
        (
            sent(delta(content="a"), {"object": "error", "message": "x", "code": 429}),
            RateLimitError,
        ),
    ],
    ids=[
        "nothing",
        "text",
        "call",
        "no_choices",
        "half_json",
        "error",
        "error_in_choice",
        "filtered",
        "error_object",
    ],
)
def test_a_stream_that_is_no_answer_is_an_error(body, kind):
    with pytest.raises(kind):
        assembled(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=2) | st.dictionaries(st.text(max_size=3), x, max_size=2),
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "index": JSON,
        "id": JSON,
        "function": JSON | st.fixed_dictionaries({}, optional={"name": JSON, "arguments": JSON}),
    },
)
PIECE = st.dictionaries(
    st.sampled_from(["content", "refusal", "reasoning", "function_call", "reasoning_details"]),
    JSON,
) | st.fixed_dictionaries({"tool_calls": st.lists(ENTRY, max_size=3) | JSON})


@given(st.lists(PIECE, max_size=4), JSON)
def test_chunks_of_any_content_give_a_response_or_an_error_of_the_house(pieces, finish):
    chunks = [{"choices": [{"delta": piece, "finish_reason": finish}]} for piece in pieces]
    try:
        assert isinstance(assembled(sent(*chunks))[1], Response)
    except LMError:
        return


@given(st.lists(JSON, max_size=3))
def test_chunks_of_any_shape_give_a_response_or_an_error_of_the_house(chunks):
    try:
        assembled("".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode())
    except LMError:
        return


def test_events_of_several_lines_are_joined():
    """The format's own rule."""
    found = Events()
    assert [
        *found.feed(b"event: x\ndata: a\ndata:b\nid: 3\n\n:comment\n\ndata\n\n"),
        *found.end(),
    ] == [b"a\nb"]


def test_a_line_in_many_pieces_is_joined_once():
    """A server that sends byte by byte cost minutes."""
    found, text = Events(), b"x" * 1_000_000
    assert not any(list(found.feed(text[at : at + 1])) for at in range(len(text)))
    assert [*found.feed(b"\ndata: "), *found.feed(b"a\n"), *found.feed(b"\n"), *found.end()] == [
        b"a",
    ]


def test_an_answer_that_came_at_once_is_read_as_a_stream():
    payload = json.dumps(
        {"choices": [{"message": {"content": "hi", "reasoning": "hm"}, "finish_reason": "stop"}]},
    ).encode()
    whole = WholeAnswer(read)
    assert [*whole.feed(payload[:9]), *whole.feed(payload[9:]), *whole.end()] == [Delta("hi", "hm")]
    assert whole.response() == read(payload)
