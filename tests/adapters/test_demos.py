"""Demos and histories where tool calls travel beside the text."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.demos import NOT_GIVEN
from ferrule.errors import InputError
from ferrule.values.calls.call import ToolCalls
from ferrule.values.conversation.exchange import Response
from ferrule.values.conversation.history import History
from ferrule.values.signatures.signature import InputField, OutputField, Signature

MADE = Signature(
    {"question": InputField(), "past": (History, InputField()), "calls": (ToolCalls, OutputField()), "answer": (str | None, OutputField())}
)
CALLS = [{"name": "add", "args": {"a": 1}, "id": "theirs"}, {"name": "add", "args": {"a": 2}}]


def test_calls_of_a_demo_are_calls_with_results(adapter: Adapter) -> None:
    """E54, E32: ids of this conversation, a result behind each call, no field that the model is not to write."""
    demos = [{"question": "d", "calls": CALLS}, {"question": "e", "calls": ToolCalls.from_dict_list(CALLS), "answer": "beside"}]
    messages = adapter.opening(MADE, {"question": "q", "past": History()}, demos=demos, native=True)
    assert [message.role for message in messages] == ["system", *["user", "assistant", "tool", "tool"] * 2, "user"]
    first, second = messages[2], messages[6]
    assert [(call.name, call.args, call.id) for call in first.tool_calls] == [("add", {"a": 1}, "demo_0_0"), ("add", {"a": 2}, "demo_0_1")]
    assert first.text == ""
    assert [call.id for call in second.tool_calls] == ["demo_1_0", "demo_1_1"]
    assert adapter.read(MADE.delete("calls"), Response(second.text)) == {"answer": "beside"}
    assert [(message.tool_call_id, message.text) for message in messages[3:5]] == [("demo_0_0", NOT_GIVEN), ("demo_0_1", NOT_GIVEN)]
    assert not any("calls" in message.text for message in messages)


def test_calls_of_a_turn_of_the_history_are_calls_as_well(adapter: Adapter) -> None:
    """E54, D37: two turns never share an id."""
    past = History([{"question": "a", "calls": CALLS, "answer": None}, {"calls": CALLS[:1]}])
    messages = adapter.opening(MADE, {"question": "q", "past": past}, native=True)
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool", "tool", "assistant", "tool", "user"]
    ids = [call.id for message in messages for call in message.tool_calls]
    assert len(set(ids)) == 3


def test_calls_of_a_demo_stand_in_the_text_where_calls_do(adapter: Adapter) -> None:
    """E12."""
    messages = adapter.opening(MADE, {"question": "q", "past": History()}, demos=[{"question": "d", "calls": CALLS, "answer": "x"}])
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    shown = ToolCalls.from_dict_list(CALLS)
    text = adapter.format_assistant_message_content(MADE, {"calls": shown, "answer": "x"})
    assert adapter.parse(MADE, text)["calls"] == shown


@pytest.mark.parametrize("calls", [5, "words", [{"args": {}}]], ids=["number", "words", "nameless"])
def test_calls_that_cannot_be_shown_are_an_error(adapter: Adapter, calls: Any) -> None:
    """D37."""
    with pytest.raises(InputError, match=r"`calls` of an earlier turn \(demo_0\)"):
        adapter.opening(MADE, {"question": "q", "past": History()}, demos=[{"question": "d", "calls": calls}], native=True)
