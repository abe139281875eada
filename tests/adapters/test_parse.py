"""The calls of one answer: good ones are kept, bad ones are marked, nothing is run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.chat import ChatAdapter
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.parse import CUT_OFF, read_calls, with_ids
from ferrule.adapters.xml_tags import XMLAdapter
from ferrule.errors import AdapterParseError, BoundaryError, ToolCallError
from ferrule.values.calls.call import CallFault, ToolCall, call_at
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.conversation.exchange import Response
from ferrule.values.signatures.signature import Signature

GOOD = {"name": "add", "args": {"a": 1}}
BAD = {"name": "add", "arguments": '{"a": 1, bad'}
NAMELESS = {"args": {}}

SHAPES: dict[str, Any] = {
    "a list": [GOOD],
    "a tuple of calls": (ToolCall(**GOOD),),
    "DSPy's dict": {"tool_calls": [GOOD]},
    "a single call": GOOD,
    "a call": ToolCall(**GOOD),
    "calls": ToolCalls(tool_calls=[ToolCall(**GOOD)]),
    "JSON text": json.dumps({"tool_calls": [GOOD]}),
    "text of a list": json.dumps([GOOD]),
    "text in a fence": f"```json\n{json.dumps(GOOD)}\n```",
    "text with slips": "[{'name': 'add', 'args': {'a': 1,},}]",
    "OpenAI's shape": [
        {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
    ],
}


@pytest.mark.parametrize("found", SHAPES.values(), ids=SHAPES)
def test_calls_are_read_from_every_shape(found: Any) -> None:
    """List, dict, single call, and their JSON."""
    assert read_calls(found, ToolCalls) == ToolCalls(tool_calls=[ToolCall(**GOOD)])


@pytest.mark.parametrize(
    "found",
    [None, [], (), {"tool_calls": []}, {"tool_calls": None}, "", "  ", "[]", "null"],
    ids=range(9),
)
def test_no_calls_are_no_calls(found: Any) -> None:
    """`[]` and None are equal."""
    assert len(read_calls(found, ToolCalls)) == 0


def test_good_calls_are_kept_and_a_bad_one_is_marked_with_its_place_and_reason() -> None:
    """E39, api.md 16: one rule; E38: the order stays."""
    calls = read_calls([GOOD, BAD, NAMELESS, GOOD], ToolCalls).tool_calls
    assert [(call.name, call.fault.code if call.fault else None) for call in calls] == [
        ("add", None),
        ("add", "invalid_tool_call_arguments"),
        ("", "invalid_tool_call"),
        ("add", None),
    ]
    assert [call.fault.index for call in calls if call.fault] == [1, 2]
    assert calls[1].fault.reason.startswith("call 1: the arguments of `add`")
    assert calls[1].fault.raw == '{"a": 1, bad'
    assert calls[1].args == {}


def test_without_a_good_call_the_first_bad_one_is_the_error() -> None:
    """Code, tool, place and raw text."""
    with pytest.raises(ToolCallError, match=r"call 0: .*`add`.*call 1: ") as raised:
        read_calls([BAD, NAMELESS], ToolCalls)
    error = raised.value
    assert isinstance(error, BoundaryError)
    assert (error.code, error.raw, error.index, error.tool) == (
        "invalid_tool_call_arguments",
        '{"a": 1, bad',
        0,
        "add",
    )


@pytest.mark.parametrize(
    "found",
    [5, "words", '"text"', {"tool_calls": "x"}, {"tool_calls": {}}, "[1", True],
    ids=range(7),
)
def test_what_is_no_list_of_calls_is_reported_with_what_was_found(found: Any) -> None:
    with pytest.raises(ToolCallError) as raised:
        read_calls(found, ToolCalls)
    assert (raised.value.code, raised.value.raw) == ("invalid_tool_calls", found)


def test_a_fault_that_knows_its_place_keeps_it() -> None:
    """What a wire marked stays as it is, wherever it is read again."""
    marked = call_at(BAD, 3)
    assert call_at(marked, 0) is marked
    assert ToolCall.read(marked.model_dump()).fault == marked.fault
    wires = ToolCall(name="", fault=CallFault("invalid_tool_call", "call 2: no name"))
    good = {"name": "f"}
    assert read_calls([good, good, wires], ToolCalls).tool_calls[2].fault == CallFault(
        "invalid_tool_call",
        "call 2: no name",
        "",
        2,
    )


def test_ids_are_kept_and_made_unique() -> None:
    calls = with_ids(
        [
            ToolCall(name="f", id="x"),
            ToolCall(name="f"),
            ToolCall(name="f", id="x"),
            ToolCall(name="f", id="call_1"),
        ],
    )
    assert [call.id for call in calls] == ["x", "call_1", "x_2", "call_1_3"]


def test_a_nameless_call_keeps_its_id() -> None:
    assert call_at({"id": "n", "function": {}}, 0).id == "n"


class MyCalls(ToolCalls):
    """A user's own."""


def test_the_calls_are_of_the_type_asked_for() -> None:
    """Subclasses."""
    assert type(read_calls([GOOD], MyCalls)) is MyCalls


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "args", "arguments", "id", "function", "tool_calls"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(junk | junk.map(json.dumps))
def test_any_answer_gives_calls_with_unique_ids_or_one_tagged_error(found: Any) -> None:
    try:
        calls = read_calls(found, ToolCalls).tool_calls
    except ToolCallError as error:
        assert error.code in {
            "invalid_tool_calls",
            "invalid_tool_call",
            "invalid_tool_call_arguments",
        }
        return
    assert len({call.id for call in calls}) == len(calls)
    assert not calls or any(call.fault is None for call in calls)


class Invoice(BaseModel):
    """An output with members."""

    note: str
    total: int


BROKEN = {
    "a damaged escape": r'{"invoice": {"note": "\u12", "total": 1}}',
    "an unescaped quote": '{"invoice": {"note": "the "big" one", "total": 1}}',
    "a lost brace": '{"invoice": {"note": "x", "total": 1}',
    "a lost comma": '{"invoice": {"note": "x" "total": 1}}',
}
ADAPTERS = (ChatAdapter(), JSONAdapter(), XMLAdapter())


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: type(adapter).__name__)
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_an_answer_of_broken_json_gets_the_reason_that_a_call_gets(
    adapter: Adapter, text: str
) -> None:
    signature = Signature("text -> invoice: Invoice", custom_types={"Invoice": Invoice})
    fault = call_at({"name": "finish", "arguments": text}, 0).fault
    assert fault is not None
    _, reason = fault.reason.split("JSON: ")
    with pytest.raises(AdapterParseError) as caught:
        adapter.read(signature, Response(text))
    [(field, problem)] = caught.value.problems
    assert (field, problem.split("JSON: ")[1]) == ("", reason)
    assert caught.value.absent == {"invoice"}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_field_of_broken_json_gets_the_reason_that_a_call_gets(text: str) -> None:
    value = text.removeprefix('{"invoice": ').removesuffix("}")
    signature = Signature("text -> invoice: Invoice", custom_types={"Invoice": Invoice})
    fault = call_at({"name": "finish", "arguments": value}, 0).fault
    if fault is None:
        pytest.skip("without the object around it, the value is complete")
    _, reason = fault.reason.split("JSON: ")
    with pytest.raises(AdapterParseError) as caught:
        ChatAdapter().read(signature, Response(f"[[ ## invoice ## ]]\n{value}"))
    [(field, problem)] = caught.value.problems
    assert (field, problem.split("JSON: ")[1]) == ("invoice", reason)


def test_a_cut_answer_of_json_says_that_it_was_cut_and_where() -> None:
    signature = Signature("text -> invoice: Invoice", custom_types={"Invoice": Invoice})
    response = Response('{"invoice": {"note": "x', finish_reason="length")
    with pytest.raises(AdapterParseError) as caught:
        JSONAdapter().read(signature, response)
    assert [field for field, _ in caught.value.problems] == ["", ""]
    assert caught.value.problems[0] == ("", CUT_OFF)


@pytest.mark.parametrize(
    "text", [r"Half of it: \frac{1}{2}.", "Use {name} there.", "no braces", '{"other": "a"b"}']
)
def test_text_that_is_not_an_attempt_at_the_answer_is_not_called_broken_json(text: str) -> None:
    with pytest.raises(AdapterParseError) as caught:
        JSONAdapter().read(Signature("question -> answer, score: int"), Response(text))
    assert caught.value.problems == (("answer", "is missing"), ("score", "is missing"))


def test_an_object_inside_a_broken_answer_is_not_taken_for_the_answer() -> None:
    text = '{"answer": "a "b"", "sources": [{"answer": "inner"}]}'
    with pytest.raises(AdapterParseError) as caught:
        JSONAdapter().read(Signature("question -> answer, sources: list"), Response(text))
    assert [field for field, _ in caught.value.problems] == [""]


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: type(adapter).__name__)
def test_a_pattern_with_single_backslashes_is_read(adapter: Adapter) -> None:
    signature = Signature("text -> invoice: Invoice", custom_types={"Invoice": Invoice})
    value = r'{"note": "\d+ in C:\Users", "total": 1}'
    written = {
        "ChatAdapter": f"[[ ## invoice ## ]]\n{value}",
        "JSONAdapter": f'{{"invoice": {value}}}',
        "XMLAdapter": f"<invoice>{value}</invoice>",
    }[type(adapter).__name__]
    outputs = adapter.read(signature, Response(written))
    assert outputs["invoice"] == Invoice(note=r"\d+ in C:\Users", total=1)


@pytest.mark.parametrize("digits", ["3.10", "1e3", "2.50", "7", "0.1", "-1.0E+2"])
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: type(adapter).__name__)
def test_a_number_for_a_text_output_keeps_its_digits(adapter: Adapter, digits: str) -> None:
    written = {
        "ChatAdapter": f"[[ ## price ## ]]\n{digits}\n\n[[ ## count ## ]]\n2.50",
        "JSONAdapter": f'{{"price": {digits}, "count": 2.50}}',
        "XMLAdapter": f"<price>{digits}</price><count>2.50</count>",
    }[type(adapter).__name__]
    outputs = adapter.read(Signature("text -> price: str, count: float"), Response(written))
    assert outputs == {"price": digits, "count": 2.5}
