"""Tool calls: read from any shape, written back without loss, run by hand."""

from __future__ import annotations

import copy
import json
import pickle
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_calls import calls, sound, texts
from pydantic import BaseModel, ValidationError, field_validator

from ferrule.errors import ConfigurationError, ToolCallError, ToolRetry
from ferrule.values.calls.call import (
    CallFault,
    StandIn,
    ToolCall,
    ToolResult,
    ToolSpec,
    check_last,
    failure,
    to_result,
)
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import Image, Text

WRITTEN = [
    {"name": "add", "args": {"a": 1}},
    {"name": "add", "args": '{"a": 1}'},
    {"name": "add", "arguments": {"a": 1}},
    {"name": "add", "arguments": b'{"a": 1}'},
    {"name": "add", "parameters": {"a": 1}},
    {"name": "add", "input": {"a": 1}},
    {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
    {"type": "function", "function": SimpleNamespace(name="add", arguments='{"a": 1}')},
    SimpleNamespace(name="add", args={"a": 1}),
    SimpleNamespace(type="function", function=SimpleNamespace(name="add", arguments='{"a": 1}')),
    ToolCall(name="add", args={"a": 1}),
]


# -- making one


def test_a_call_is_a_model_with_seed_004s_fields():
    """`ToolCall(intention, name, arguments)`, and `ToolCalls.ToolCall(name, args)` is the same
    class.
    """
    call = ToolCall(intention="to know the sum", name="add", arguments={"a": 1})
    assert issubclass(ToolCall, BaseModel)
    assert (call.intention, call.name, call.arguments, call.args, call.id) == (
        "to know the sum",
        "add",
        {"a": 1},
        {"a": 1},
        None,
    )
    assert ToolCalls.ToolCall(name="add", args={"a": 1}) == ToolCall(name="add", arguments={"a": 1})
    assert (
        ToolCall(name="add", call_id="c_1").call_id
        == ToolCall(name="add", call_id="c_1").id
        == "c_1"
    )


def test_arguments_that_are_none_are_none_at_all():
    """`None` arguments mean `{}`."""
    assert ToolCall(name="now", arguments=None).args == {}
    assert ToolCall(name="now", args=None).args == {}
    assert ToolCall(name="now").args == {}


@given(st.fixed_dictionaries({}, optional={
    "name": texts | st.none(), "args": st.none() | st.dictionaries(texts | st.integers(), st.integers(), max_size=2),
    "id": texts | st.none(), "call_id": texts, "intention": st.none() | texts,
}))  # fmt: skip
def test_a_call_that_needs_no_validator_is_as_pydantic_makes_it(fields):
    """Values that are exactly of the fields' types are taken without one."""

    def made(make):
        try:
            call = make()
        except ValidationError as error:
            return error.errors(include_url=False)
        return (
            call,
            list(vars(call).items()),
            call.model_fields_set,
            call.__pydantic_extra__,
            call.__pydantic_private__,
        )

    assert made(lambda: ToolCall(**fields)) == made(lambda: ToolCall.model_validate(fields))


def test_a_call_has_a_dict_of_its_own():
    """As of any model; a subclass is validated, and refuses what it adds."""
    args = {"a": 1}
    call = ToolCall(name="add", args=args, id="c")
    args["a"] = 2
    assert call.args == {"a": 1}

    class Short(ToolCall):
        @field_validator("name")
        @classmethod
        def short(cls, name: str) -> str:
            return name[:1]

    assert Short(name="add", args={}, id="c").name == "a"


@pytest.mark.parametrize(
    "fields",
    [
        {"args": {}},
        {"name": None},
        {"name": 5},
        {"name": "a", "args": [1]},
        {"name": "a", "args": "{}"},
        {"name": "a", "args": {1: 2}},
        {"name": "a", "intention": 5},
    ],
    ids=[
        "no_name",
        "none_name",
        "number_name",
        "list_args",
        "text_args",
        "number_key",
        "number_intention",
    ],
)
def test_a_call_of_the_wrong_form_is_refused(fields):
    """Missing name, non-dict arguments."""
    with pytest.raises(ValidationError):
        ToolCall(**fields)


def test_an_unknown_key_is_reported():
    """Code that misspells one reads which it is; data that has one is invalid."""
    with pytest.raises(ConfigurationError, match=r"`argumants`\. Did you mean `arguments`"):
        ToolCall(name="add", argumants={"a": 1})
    with pytest.raises(ValidationError, match="argumants"):
        ToolCall.model_validate({"name": "add", "argumants": {"a": 1}})


def test_a_call_does_not_change():
    call = ToolCall(name="add", args={"a": 1})
    with pytest.raises(ValidationError):
        call.name = "sub"
    assert call.with_id("x") == ToolCall(name="add", args={"a": 1}, id="x")
    assert call.id is None
    assert ToolCall.read(
        {"name": "", "fault": {"code": "invalid_tool_call", "reason": "r"}},
    ).with_id("x").fault == CallFault("invalid_tool_call", "r")


def test_a_call_as_text_and_as_dict_is_json():
    call = ToolCall(intention="why", name="add", args={"b": [1, "ü"], "a": None})
    assert call.to_dict() == {
        "intention": "why",
        "name": "add",
        "arguments": {"b": [1, "ü"], "a": None},
    }
    assert list(call.to_dict()) == ["intention", "name", "arguments"]
    assert json.loads(str(call)) == call.to_dict()
    assert ToolCall(name="now").to_dict() == {"name": "now", "arguments": {}}


@given(sound)
def test_what_to_dict_gives_makes_the_call_again(call):
    """What validates parses, and the other way round (the schema's half is `Tool.to_dict`'s)."""
    again = ToolCall(**call.to_dict())
    assert (again.name, again.args, again.intention) == (call.name, call.args, call.intention)


@given(calls, calls)
def test_equal_calls_hash_alike(one, other):
    """Also where arguments are equal in Python but not in JSON."""
    if one == other:
        assert hash(one) == hash(other)
    assert hash(one) == hash(copy.deepcopy(one))


def test_equal_arguments_in_another_order_or_kind_hash_alike():
    """`{"a": 1} == {"a": True} == {"a": 1.0}` in Python."""
    alike = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": True, "b": 2.0}]
    assert len({ToolCall(name="f", args=args) for args in alike}) == 1


# -- reading


@pytest.mark.parametrize("written", WRITTEN, ids=range(len(WRITTEN)))
def test_every_usual_shape_is_the_same_call(written):
    """Arguments as JSON text are decoded, as an object are kept."""
    assert ToolCall.read(written) == ToolCall(name="add", args={"a": 1})


def test_ids_are_kept_wherever_they_stand():
    function = {"name": "add", "arguments": "{}"}
    assert ToolCall.read({"id": "c1", "type": "function", "function": function}).id == "c1"
    assert (
        ToolCall.read({"type": "function_call", "id": "fc_1", "call_id": "c1", **function}).id
        == "c1"
    )
    assert ToolCall.read({"id": "c1", **function}).id == "c1"
    assert ToolCall.read({"id": 7, **function}).id == "7"
    assert [ToolCall.read({"id": odd, **function}).id for odd in (None, "", [], {}, True, 1.5)] == [
        None,
    ] * 6


def test_intentions_are_kept_wherever_they_stand():
    assert ToolCall.read({"name": "f", "args": {}, "intention": "why"}).intention == "why"
    assert ToolCall.read({"function": {"name": "f", "intention": "why"}}).intention == "why"
    assert ToolCall.read({"intention": "why", "function": {"name": "f"}}).intention == "why"
    assert ToolCall.read({"name": "f", "args": {"intention": "mine"}}) == ToolCall(
        name="f",
        args={"intention": "mine"},
    )
    assert ToolCall.read({"name": "f", "intention": 5}).intention is None


@pytest.mark.parametrize("raw", [None, "", "  ", "null", "{}", {}])
def test_absent_arguments_are_none_at_all(raw):
    """None, empty and `null`."""
    call = ToolCall.read({"name": "f", "arguments": raw})
    assert (call.args, call.fault) == ({}, None)


BAD_ARGUMENTS = [
    "{bad",
    '{"a": ',
    "[1]",
    "3",
    '"x"',
    "true",
    "[" * 100_000,
    '{"a": ' + "9" * 5000 + "}",
    '{"a": 1} {"a": 2}',
    [1],
    3,
    0,
    True,
    False,
    1.5,
    ["x"],
]


@pytest.mark.parametrize("raw", BAD_ARGUMENTS, ids=range(len(BAD_ARGUMENTS)))
def test_arguments_that_are_no_object_are_tagged_and_their_text_is_kept(raw):
    """Tagged with the tool's name, the raw text kept; never `{}` that would run."""
    call = ToolCall.read({"name": "add", "arguments": raw, "id": "c1"})
    assert call.fault is not None
    assert (call.fault.code, call.args, call.id) == ("invalid_tool_call_arguments", {}, "c1")
    assert "`add`" in call.fault.reason
    assert call.fault.raw == (raw if isinstance(raw, str) else json.dumps(raw))


def deep(levels: int) -> str:
    return '{"a": ' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    "raw",
    [
        deep(300),
        '{"a": NaN}',
        '{"a": [{"b": -Infinity}]}',
        '{"a": 1e999}',
        '{"a": nan_, }'.replace("nan_", "NaN"),
    ],
)
@pytest.mark.parametrize("as_text", [True, False], ids=["text", "object"])
def test_arguments_that_could_not_be_written_again_are_tagged(raw, as_text):
    """What goes back to the model, and into journals, is what it wrote, or a fault."""
    written = raw if as_text else json.loads(raw.replace(", }", "}"))
    call = ToolCall.read({"name": "add", "arguments": written, "id": "c1"})
    assert call.fault is not None
    assert (call.fault.code, call.args, call.repairs) == ("invalid_tool_call_arguments", {}, ())
    assert "`add`" in call.fault.reason
    assert not as_text or call.arguments_text == raw
    assert ToolCalls.model_validate_json(
        ToolCalls(tool_calls=[call]).model_dump_json(),
    ).tool_calls == [call]


def test_deep_arguments_come_back_as_they_were():
    call = ToolCall.read({"name": "add", "arguments": deep(200), "id": "c1"})
    assert call.fault is None
    assert json.loads(call.arguments_text) == json.loads(deep(200))
    assert ToolCalls.model_validate_json(
        ToolCalls(tool_calls=[call]).model_dump_json(),
    ).tool_calls == [call]


def test_arguments_that_hold_one_thing_many_times_are_read_in_no_time():
    """Of Python's objects: two to the hundredth places."""
    args: dict[str, Any] = {}
    for _ in range(100):
        args = {"a": args, "b": args}
    assert ToolCall.read({"name": "add", "args": args}).fault is None


def test_a_byte_order_mark_before_arguments_is_skipped():
    """RFC 8259, section 8.1."""
    call = ToolCall.read({"name": "add", "arguments": '\ufeff{"a": 1}'})
    assert (call.args, call.fault, call.repairs) == ({"a": 1}, None, ())


def test_arguments_whose_names_are_no_text_are_tagged():
    """JSON's names are text; a Python dict may have others."""
    call = ToolCall.read({"name": "add", "args": {1: 2}})
    assert call.fault == CallFault(
        "invalid_tool_call_arguments",
        "the arguments of `add` need names that are text, found 1",
        '{"1":2}',
    )
    assert "found None" in str(ToolCall.read({"name": "add", "args": {None: 2}}).fault)


def test_arguments_inside_a_json_string_are_opened_and_it_is_noted():
    """A string that holds the object's JSON text."""
    call = ToolCall.read({"name": "add", "arguments": json.dumps(json.dumps({"a": 1}))})
    assert (call.args, call.fault) == ({"a": 1}, None)
    assert call.repairs == ("doubly_encoded",)


def test_odd_but_valid_arguments_have_one_meaning():
    """Large integers keep every digit, the last of duplicate keys counts, unicode is untouched."""
    assert ToolCall.read({"name": "f", "args": '{"a": 123456789012345678901234567890}'}).args == {
        "a": 123456789012345678901234567890,
    }
    assert ToolCall.read({"name": "f", "args": '{"a": 1, "a": 2}'}).args == {"a": 2}
    assert ToolCall.read(
        {"name": "f", "args": '{"a": "\\ud83d\\ude00", "b": "\\ud800", "ü": "ü"}'},
    ).args == {
        "a": "😀",
        "b": "\ud800",
        "ü": "ü",
    }


class Unspeakable:
    def __repr__(self) -> str:
        raise KeyError


NO_CALLS = [None, 1, "x", b"x", [], {}, {"name": ""}, {"name": "  "}, {"name": 5}, {"name": None}, {"args": {}}, {"function": {}}, {"function": 5, "name": "f"},
            {"function": "f"}, {"function": []}, object(), int, len, Unspeakable(), {"name": Unspeakable()}, [{"name": "f"}], float("nan"), {"fault": 1}]  # fmt: skip


@pytest.mark.parametrize("entry", NO_CALLS, ids=range(len(NO_CALLS)))
def test_what_is_no_call_is_tagged(entry):
    """No name, empty name, entry not a mapping."""
    with pytest.raises(ToolCallError, match="A tool call needs a name; found") as caught:
        ToolCall.read(entry)
    assert (caught.value.code, caught.value.raw) == ("invalid_tool_call", entry)


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.binary(max_size=3)
    | st.builds(Unspeakable),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts | st.integers(), inner, max_size=3)
        | st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(
                (
                    "name",
                    "args",
                    "arguments",
                    "function",
                    "id",
                    "call_id",
                    "intention",
                    "fault",
                    "repairs",
                    "code",
                    "reason",
                    "raw",
                    "type",
                    "tool_calls",
                ),
                inner,
            ),
        )
        | st.dictionaries(st.sampled_from(["name", "args", "function", "id", "fault"]), inner).map(
            lambda found: SimpleNamespace(**found),
        )
    ),
    max_leaves=15,
)


@given(junk)
def test_junk_is_a_call_or_a_tagged_error_and_nothing_else(entry):
    """Whatever a provider sends."""
    try:
        call = ToolCall.read(entry)
    except ToolCallError:
        return
    again = ToolCall.read(call.model_dump())
    assert again == call or "nan" in repr(call.args)  # NaN is not even equal to itself


def test_names_nobody_knows_and_arguments_nobody_takes_are_representable():
    """Nothing is checked against a tool at this boundary."""
    assert ToolCall.read({"name": "no.such/tool", "args": {"x": "y"}}).name == "no.such/tool"


@given(sound)
def test_openais_shape_reads_back(call):
    """The round trip over OpenAI's wire."""
    again = ToolCall.read(json.loads(json.dumps(call.format())))
    assert (again.name, again.args, again.id, again.fault) == (call.name, call.args, call.id, None)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_the_last_call_of_an_answer_that_was_cut_off_has_a_fault_unless_it_is_whole(reason):
    """`pay()` ran with its defaults, because the answer ended before the arguments came."""
    pay, none = ToolCall(name="pay", args={"euros": 5}), ToolCall(name="pay", args={}, id="b")
    first, cut = check_last((none, none), reason)
    assert (first, cut.name, cut.id, cut.args) == (none, "pay", "b", {})
    assert (cut.fault.code, cut.fault.index) == ("invalid_tool_call_arguments", 1)
    assert check_last((none, pay), reason) == (none, pay)  # a text of arguments that ends
    [cut] = check_last((pay,), reason, is_object=True)
    assert (cut.args, cut.fault.raw) == ({}, '{"euros":5}')
    assert check_last((), reason) == ()
    for whole in ("tool_calls", "stop", None):
        assert check_last((none,), whole, is_object=True) == (none,)


# -- results


def test_results_are_compared_and_pickled_by_what_a_model_sees():
    """The value and the error are never journalled; they may be anything, and may not be copied."""
    unpicklable = (each for each in "ab")
    result = ToolResult("f", "text", "c1", is_error=True, value=unpicklable, error=KeyError("x"))
    assert result == ToolResult("f", "text", "c1", is_error=True)
    assert copy.copy(result).value is copy.deepcopy(result).value is unpicklable
    loaded = pickle.loads(pickle.dumps(result))
    assert loaded == result
    assert (loaded.value, loaded.error) == (None, None)


def test_a_result_keeps_its_parts_when_pickled():
    from ferrule.values.content.parts import Image

    result: Any = ToolResult("f", (Image(url="https://x/y"),), "c1")
    assert pickle.loads(pickle.dumps(result)).content == (Image(url="https://x/y"),)


@given(calls)
def test_an_unchecked_call_is_the_call_that_pydantic_makes(call):
    """What is read already is not checked again, and nobody can tell."""
    again = ToolCall.unchecked(**dict(call))
    assert again == call
    assert again.model_dump() == call.model_dump()
    assert again.model_fields_set >= call.model_fields_set
    assert copy.deepcopy(pickle.loads(pickle.dumps(again))) == call


def test_the_text_of_a_result_names_what_is_no_text():
    assert ToolResult("f", "found").text == "found"
    content = (Text(text="see"), Image(url="https://x/y"))
    assert ToolResult("f", content).text == "see\n[Image(https://x/y, image/png)]"


@pytest.mark.parametrize(
    "failed",
    [
        ToolResult("f", "", is_error=True),
        ToolResult("f", " \n", is_error=True),
        ToolRetry(""),
        ToolRetry(" \n"),
        ValueError(""),
    ],
)
def test_a_failed_call_always_has_words(failed):
    """Most wires have no mark for an error: without words, a failure would pass for a result."""
    call = ToolCall(name="f", args={})
    if isinstance(failed, ToolResult):
        result = to_result(call, failed)
    else:
        result = failure(call, failed, is_raised=True)
    assert result.is_error
    assert result.text.strip()


def test_a_stand_in_has_all_that_a_run_uses_of_a_tool() -> None:
    stand_in = StandIn("gone")
    used = [*get_type_hints(ToolSpec), *(name for name in vars(ToolSpec) if name[0] != "_")]
    assert [name for name in used if not hasattr(stand_in, name)] == []
