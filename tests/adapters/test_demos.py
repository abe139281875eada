"""Demos and histories where tool calls travel beside the text."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import AwareDatetime, BaseModel, HttpUrl

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.demos import NOT_GIVEN
from ferrule.encoding.encode import jsonable
from ferrule.errors import InputError
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import ToolResult
from ferrule.values.calls.results import ToolCallResults
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import Image
from ferrule.values.conversation.exchange import Response
from ferrule.values.conversation.history import History
from ferrule.values.signatures.signature import InputField, OutputField, Signature

MADE = Signature(
    {
        "question": InputField(),
        "past": (History, InputField()),
        "calls": (ToolCalls, OutputField()),
        "answer": (str | None, OutputField()),
    },
)
CALLS = [{"name": "add", "args": {"a": 1}, "id": "theirs"}, {"name": "add", "args": {"a": 2}}]


def test_calls_of_a_demo_are_calls_with_results(adapter: Adapter) -> None:
    """Ids of this conversation, a result behind each call, no field that the model is not to write."""
    demos = [
        {"question": "d", "calls": CALLS},
        {"question": "e", "calls": ToolCalls.from_dict_list(CALLS), "answer": "beside"},
    ]
    messages = adapter.opening(MADE, {"question": "q", "past": History()}, demos=demos, native=True)
    assert [message.role for message in messages] == [
        "system",
        *["user", "assistant", "tool", "tool"] * 2,
        "user",
    ]
    first, second = messages[2], messages[6]
    assert [(call.name, call.args, call.id) for call in first.tool_calls] == [
        ("add", {"a": 1}, "demo_0_0"),
        ("add", {"a": 2}, "demo_0_1"),
    ]
    assert first.text == ""
    assert [call.id for call in second.tool_calls] == ["demo_1_0", "demo_1_1"]
    assert second.text == "beside"
    assert [(message.tool_call_id, message.text) for message in messages[3:5]] == [
        ("demo_0_0", NOT_GIVEN),
        ("demo_0_1", NOT_GIVEN),
    ]
    assert not any("calls" in message.text for message in messages)


def test_turns_look_the_same_after_they_were_stored_as_json(adapter: Adapter) -> None:
    """A resumed run and a loaded program would write a date of an earlier turn otherwise, and
    otherwise than the date of the question.
    """
    asked = Signature(
        {
            "past": (History, InputField(default_factory=History)),
            "day": (date, InputField()),
            "price": (Decimal | None, OutputField()),
            "note": (str, OutputField()),
        },
    )
    day = date(2024, 2, 29)
    turn = {"day": day, "price": Decimal("1.50"), "note": "2024-02-29"}
    stored = {"day": "2024-02-29", "price": "1.50", "note": "2024-02-29"}
    first, second = [
        adapter.opening(asked, {"day": day, "past": History([each])}, demos=[each])
        for each in (turn, stored)
    ]
    assert list(first) == list(second)
    assert [
        message.text
        for message in adapter.opening(asked, {"day": day}, demos=[{**stored, "day": "soon"}])
    ][1].count("soon") == 1


@pytest.mark.parametrize(
    "value",
    [
        HttpUrl("http://a.b/"),
        datetime(2026, 1, 2, tzinfo=UTC),
        Fraction(1, 3),
        complex(1, 2),
        re.compile("a+"),
        ZoneInfo("UTC"),
    ],
)
def test_any_value_whose_json_is_a_text_looks_the_same_after_it_was_stored(
    adapter: Adapter,
    value: Any,
) -> None:
    kind = AwareDatetime if isinstance(value, datetime) else type(value)
    asked = Signature({"given": (kind, InputField()), "found": (kind | None, OutputField())})
    stored = jsonable({"given": value, "found": value})
    assert isinstance(stored["found"], str)
    first, second = [
        adapter.opening(asked, {"given": value}, demos=[each])
        for each in ({"given": value, "found": value}, stored)
    ]
    assert list(first) == list(second)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (re.Match, "soon"),
        (Context, "soon"),
        (BaseModel, "soon"),
        (re.Pattern, "a{99999999999}"),
        (re.Pattern, "(" * 3_000),
    ],
)
def test_a_text_in_a_demo_stays_if_no_text_gives_a_value_of_the_type(
    adapter: Adapter,
    kind: type,
    text: str,
) -> None:
    asked = Signature({"given": (kind, InputField()), "found": (str, OutputField())})
    assert (
        text
        in adapter.opening(asked, {"given": "now"}, demos=[{"given": text, "found": "x"}])[1].text
    )


def test_calls_of_a_turn_of_the_history_are_calls_as_well(adapter: Adapter) -> None:
    """Two turns never share an id."""
    past = History([{"question": "a", "calls": CALLS, "answer": None}, {"calls": CALLS[:1]}])
    messages = adapter.opening(MADE, {"question": "q", "past": past}, native=True)
    assert [message.role for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
        "user",
    ]
    ids = [call.id for message in messages for call in message.tool_calls]
    assert len(set(ids)) == 3


def test_calls_of_a_demo_stand_in_the_text_where_calls_do(adapter: Adapter) -> None:
    messages = adapter.opening(
        MADE,
        {"question": "q", "past": History()},
        demos=[{"question": "d", "calls": CALLS, "answer": "x"}],
    )
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    shown = ToolCalls.from_dict_list(CALLS)
    text = adapter.format_assistant_message_content(MADE, {"calls": shown, "answer": "x"})
    assert adapter.parse(MADE, text)["calls"] == shown


def test_a_function_that_declares_a_tool_stands_in_an_earlier_turn_as_in_a_question(
    adapter: Adapter,
) -> None:
    """Not as `<function add>`."""

    def add(a: int) -> int:
        """Add one."""
        return a + 1

    asking = MADE.append("tools", InputField(), list[Tool])
    turn = {"question": "d", "tools": [add], "answer": "x"}
    messages = adapter.opening(
        asking,
        {"question": "q", "past": History([turn]), "tools": [Tool(add)]},
        demos=[turn],
    )
    assert [
        message.text.count("whose description is") for message in messages if message.role == "user"
    ] == [1, 1, 1]


@pytest.mark.parametrize("calls", [5, "words", [{"args": {}}]], ids=["number", "words", "nameless"])
def test_calls_that_cannot_be_shown_are_an_error(adapter: Adapter, calls: Any) -> None:
    with pytest.raises(InputError, match=r"`calls` of an earlier turn \(demo_0\)"):
        adapter.opening(
            MADE,
            {"question": "q", "past": History()},
            demos=[{"question": "d", "calls": calls}],
            native=True,
        )


RESULTS = [
    {"call_id": "theirs", "name": "add", "value": {"sum": 1}},
    {"name": "add", "value": "no such number", "is_error": True},
]


@pytest.mark.parametrize("form", ["calls", "dict", "loaded"])
def test_results_of_an_earlier_turn_follow_its_native_calls(adapter: Adapter, form: str) -> None:
    calls: Any = {"tool_calls": CALLS, "tool_call_results": RESULTS}
    if form != "dict":
        calls = ToolCalls(**calls)
    past = History([{"question": "a", "calls": calls}, {"calls": CALLS[:1]}])
    if form == "loaded":
        past = History.model_validate_json(past.model_dump_json())
    messages = adapter.opening(
        MADE,
        {"question": "q", "past": past},
        demos=[{"question": "d", "calls": calls}],
        native=True,
    )
    assert [message.role for message in messages] == [
        "system",
        *["user", "assistant", "tool", "tool"] * 2,
        "assistant",
        "tool",
        "user",
    ]
    for told in (messages[3:5], messages[7:9]):
        assert [(message.text, message.is_error) for message in told] == [
            ('{"sum":1}', False),
            ("no such number", True),
        ]
        assert [message.tool_call_id for message in told] == [
            call.id for call in messages[messages.index(told[0]) - 1].tool_calls
        ]
    assert messages[-2].text == NOT_GIVEN


def test_results_of_an_earlier_turn_follow_its_answer_in_text(adapter: Adapter) -> None:
    calls = ToolCalls(tool_calls=CALLS, tool_call_results=RESULTS)
    messages = adapter.opening(
        MADE,
        {"question": "q", "past": History([{"question": "a", "calls": calls, "answer": "x"}])},
    )
    assert [message.role for message in messages] == ["system", "user", "assistant", "user", "user"]
    assert adapter.read(MADE, Response(messages[2].text)) == {
        "calls": ToolCalls.from_dict_list(CALLS),
        "answer": "x",
    }
    told = [
        {"name": "add", "value": {"sum": 1}},
        {"name": "add", "value": "no such number", "is_error": True},
    ]
    assert messages[3].content == adapter.step_message({"tool_call_results": told}).content


def test_what_execute_all_returns_is_what_a_turn_takes(adapter: Adapter) -> None:
    def add(a: int) -> int:
        if a > 1:
            raise ValueError("too many")
        return a

    calls = ToolCalls.from_dict_list(CALLS)
    done = ToolCalls(tool_calls=calls.tool_calls, tool_call_results=calls.execute_all({"add": add}))
    first, second = done.tool_call_results.tool_call_results
    assert (first.value, first.is_error, second.is_error) == (1, False, True)
    assert second.value.startswith("Execution error in add: ValueError: too many")
    messages = adapter.opening(
        MADE,
        {"question": "q", "past": History([{"question": "a", "calls": done}])},
        native=True,
    )
    assert [message.text for message in messages if message.role == "tool"] == ["1", second.value]


def test_a_picture_among_the_results_is_a_picture_after_loading(adapter: Adapter) -> None:
    photo = Image(data="aGk=", media_type="image/png")
    calls = ToolCalls(
        tool_calls=CALLS[:1],
        tool_call_results=[ToolResult("add", (photo,), "theirs")],
    )
    past = History.model_validate_json(
        History([{"question": "a", "calls": calls}]).model_dump_json(),
    )
    messages = adapter.opening(MADE, {"question": "q", "past": past}, native=True)
    assert messages[3].content == (photo,)


def test_results_are_kept_in_every_form() -> None:
    """They were dropped."""
    calls = ToolCalls.from_dict_list(CALLS)
    results = ToolCallResults.from_tool_calls_and_values(calls, [{"sum": 1}, "no"], [False, True])
    assert results.format()["tool_call_results"][1] == {
        "call_id": None,
        "name": "add",
        "value": "no",
        "is_error": True,
    }
    done = calls.model_copy(update={"tool_call_results": results})
    assert ToolCalls.model_validate_json(done.model_dump_json()) == done
    assert ToolCalls.model_validate_json(done.model_dump_json()).tool_call_results == results
    assert done != calls
    assert len(results) == 2
    with pytest.raises(ValueError, match="There are 2 calls, 1 values and 1 marks of errors"):
        ToolCallResults.from_tool_calls_and_values(calls, [1])
    for wrong in (5, [5], "words", {"tool_call_results": None}):
        with pytest.raises(
            ValueError,
            match=r"Received invalid value for `ferrule\.ToolCallResults`|A result is a",
        ):
            ToolCalls(tool_calls=CALLS, tool_call_results=wrong)


def test_the_schema_of_calls_shows_what_a_model_writes() -> None:
    schema = ToolCalls.model_json_schema()
    assert list(schema["properties"]) == ["tool_calls"]
    [call] = schema["$defs"].values()
    assert (list(call["properties"]), call["required"]) == (["name", "args"], ["name", "args"])


@pytest.mark.parametrize(
    ("turn", "missing"),
    [
        ({"qestion": "a", "answer": "b"}, "question"),
        ({"question": "a", "answr": "b"}, "answer"),
        ({"question": "a", "ansewr": "b"}, "answer"),
        ({"question": "a", "Answer": "b"}, "answer"),
    ],
)
def test_a_turn_or_demo_with_a_misspelled_field_is_an_error(
    adapter: Adapter, turn: dict[str, Any], missing: str
) -> None:
    """Its value would be missing from the prompt, without a word."""
    for given in ({"demos": [turn]}, {"past": History([turn])}):
        inputs = {"question": "q", "past": given.get("past", History())}
        with pytest.raises(InputError, match=f"not the field `{missing}`"):
            adapter.opening(MADE, inputs, demos=given.get("demos", ()))


def test_a_turn_may_hold_the_fields_of_other_programs(adapter: Adapter) -> None:
    """Those that resemble no field, and those that resemble one that the turn has, too."""
    turn = {"question": "a", "questions": "c", "answer": "b", "reasoning": "r", "trajectory": {}}
    messages = adapter.opening(MADE, {"question": "q", "past": History([turn])})
    assert not any("questions" in message.text for message in messages)


def test_a_demo_may_have_keys_that_are_no_names(adapter: Adapter) -> None:
    inputs = {"question": "q", "past": History()}
    demos: list[Any] = [{"question": "a", 1: "b", None: "c"}]
    plain = adapter.opening(MADE, inputs, demos=[{"question": "a"}])
    assert adapter.opening(MADE, inputs, demos=demos) == plain
