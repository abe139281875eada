"""`ToolCalls`: the calls of one answer."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_calls import calls

from ferrule.values.calls.call import CallFault, ToolCall
from ferrule.values.calls.tool_calls import ToolCalls


@pytest.mark.parametrize(
    "given_as",
    [
        [{"name": "add", "args": {"a": 1}}],
        ({"name": "add", "args": {"a": 1}},),
        {"tool_calls": [{"name": "add", "args": {"a": 1}}]},
        {"name": "add", "args": {"a": 1}},
        ToolCall(name="add", args={"a": 1}),
        {
            "tool_calls": [
                {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
            ],
        },
        ToolCalls(tool_calls=[ToolCall(name="add", args={"a": 1})]),
    ],
    ids=["list", "tuple", "dict", "single", "call", "openai", "itself"],
)
def test_calls_are_made_of_a_list_a_dict_or_a_single_call(given_as):
    assert ToolCalls.model_validate(given_as) == ToolCalls(
        tool_calls=[ToolCall(name="add", args={"a": 1})],
    )


def test_calls_are_made_of_a_list_of_dicts():
    made = ToolCalls.from_dict_list(
        [{"name": "a", "args": {}}, {"name": "b", "args": {"x": 1}, "id": "c"}],
    )
    assert made == ToolCalls(
        tool_calls=[ToolCall(name="a"), ToolCall(name="b", args={"x": 1}, id="c")],
    )


def test_no_calls_are_false():
    """`tool_calls: []` and None are equal."""
    assert (
        ToolCalls(tool_calls=[])
        == ToolCalls.model_validate({"tool_calls": None})
        == ToolCalls.model_validate([])
    )
    assert not ToolCalls(tool_calls=[])
    assert ToolCalls(tool_calls=[{"name": "f"}])
    assert len(ToolCalls(tool_calls=[{"name": "f"}, {"name": "g"}])) == 2


NOT_CALLS = [
    None,
    1,
    "x",
    "[]",
    {},
    {"tool_calls": 5},
    {"tool_calls": "x"},
    {"tool_calls": {}},
    {"tool_calls": False},
    [5],
    [None],
    [[]],
    {"args": {}},
    object(),
]


@pytest.mark.parametrize("data", NOT_CALLS, ids=range(len(NOT_CALLS)))
def test_anything_else_is_no_calls(data):
    """`ValueError("Received invalid value for ...")`."""
    with pytest.raises(ValueError, match=r"Received invalid value for `ferrule\.ToolCalls`"):
        ToolCalls.model_validate(data)


def test_a_bad_call_among_good_ones_is_named_by_its_place():
    """A value made by hand is refused as a whole; a model's answer keeps the good ones (lms)."""
    with pytest.raises(ValueError, match=r"call 1: A tool call needs a name; found \{'args'"):
        ToolCalls(tool_calls=[{"name": "f"}, {"args": {}}])


def test_order_and_duplicates_are_kept():
    names = ["b", "a", "b", "b"]
    assert [
        call.name
        for call in ToolCalls.from_dict_list([{"name": name} for name in names]).tool_calls
    ] == names


def test_calls_format_as_openai_writes_them():
    """Ids kept; what OpenAI's shape has no place for is left out."""
    made = ToolCalls.from_dict_list(
        [
            {"name": "f", "args": {"a": "ü"}, "id": "c1", "intention": "why"},
            {"name": "g", "args": "{bad"},
        ],
    )
    assert made.format() == {
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":"ü"}'}},
            {"type": "function", "function": {"name": "g", "arguments": "{bad"}},
        ],
    }


def test_calls_of_names_and_arguments_alone_are_dumped_as_they_format():
    """`serialize_model` gives what `format` gives."""
    made = ToolCalls.from_dict_list([{"name": "f", "args": {"a": 1}, "id": "c1"}, {"name": "g"}])
    assert made.model_dump() == made.format()


def test_calls_describe_themselves():
    assert '"tool_calls"' in ToolCalls.description()


@pytest.mark.parametrize("raw", ["None", "{'a': 1}", "[1,]", "{}"])
def test_a_call_with_a_fault_gains_no_repairs_when_it_is_loaded(raw):
    """The text of a fault is kept, not parsed again."""
    before = ToolCall(name="f", fault=CallFault("invalid_tool_call_arguments", "why", raw))
    [after] = ToolCalls.model_validate(ToolCalls(tool_calls=[before]).model_dump()).tool_calls
    assert (after, after.repairs) == (before, ())


@given(st.lists(calls, max_size=4))
def test_calls_survive_every_dump_and_load(made):
    """Ids survive every dump and load; P42: so do intentions, and a fault never becomes a call that
    runs (E34).
    """
    before = ToolCalls(tool_calls=made)
    for after in (
        ToolCalls.model_validate(before.model_dump()),
        ToolCalls.model_validate_json(before.model_dump_json())
        if "\\ud" not in ascii(before)
        else before,
        ToolCalls.model_validate(json.loads(json.dumps(before.model_dump()))),
        ToolCalls.model_validate([call.model_dump() for call in made]),
        copy.copy(before),
        copy.deepcopy(before),
        pickle.loads(pickle.dumps(before)),
        before.model_copy(deep=True),
    ):
        assert after == before
        assert [(call.id, call.repairs) for call in after.tool_calls] == [
            (call.id, call.repairs) for call in before.tool_calls
        ]
    for call in made:
        assert ToolCall.model_validate(call.model_dump()) == call


def test_calls_are_equal_that_call_the_same():
    """Ids, and the repairs a text needed, differ between equal answers over different paths; what
    is called does not.
    """
    one = ToolCalls.from_dict_list([{"name": "f", "args": {"a": 1}, "id": "x"}])
    other = ToolCalls(
        tool_calls=[ToolCall(name="f", args={"a": 1}, id="y", repairs=("code_fence",))],
    )
    assert one == other
    assert hash(one) == hash(other)
    for differs in (
        [{"name": "g", "args": {"a": 1}}],
        [{"name": "f", "args": {"a": 2}}],
        [],
        [{"name": "f", "args": "{"}],
    ):
        assert one != ToolCalls.from_dict_list(differs)
    assert one != one.tool_calls


def test_calls_are_taken_as_they_are() -> None:
    """As DSPy's validator does, and of another class too."""

    class Own(ToolCalls):
        pass

    calls = ToolCalls.from_dict_list([{"name": "add", "args": {"a": 1}}])
    assert ToolCalls.validate_input(calls) is calls
    assert ToolCalls.model_validate(calls) is calls
    assert type(Own.model_validate(calls)) is Own
    assert Own.model_validate(calls).tool_calls == calls.tool_calls
