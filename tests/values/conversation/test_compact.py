"""`History.compacted`, and the sizes that a compaction goes by."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import History, Image, Message, Predict, Text, ToolCall
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.compact import estimate_content, estimate_messages


def call(i: int, result: str) -> list[Message]:
    return [
        Message("assistant", "", (ToolCall(name="look", args={"n": i}, id=f"c{i}"),)),
        Message("tool", result, tool_call_id=f"c{i}", name="look"),
    ]


def talk(turns: int, result: str = "r" * 2_000) -> History:
    messages: list[Any] = []
    for i in range(turns):
        messages += [
            Message("user", f"question {i}"),
            *call(i, result),
            Message("assistant", f"answer {i}"),
        ]
    return History(messages)


def size(history: History) -> int:
    return estimate_messages(history.entries())


def test_a_short_history_is_returned_as_a_copy() -> None:
    history = talk(3)
    copy = history.compacted(10_000)
    assert copy == history
    assert copy is not history
    assert copy.messages is not history.messages


def test_long_results_are_cut_first_the_oldest_first() -> None:
    history = talk(6)
    shorter = history.compacted(2_000)
    results = [message.text for message in shorter if message.role == "tool"]
    assert ["left out" in text for text in results] == [True, True, True, False, False, False]
    assert size(shorter) <= 2_000
    assert size(history) > 3_000


def test_then_the_oldest_messages_go_and_a_note_of_the_user_stands_in_their_place() -> None:
    shorter = talk(40).compacted(1_000)
    assert size(shorter) <= 1_050
    assert shorter[0] == Message("user", "(Earlier messages of this conversation were left out.)")
    assert shorter[-1].text == "answer 39"


def test_drop_leaves_what_stays_unchanged() -> None:
    shorter = talk(10).compacted(2_000, "drop")
    assert all(message in talk(10).messages for message in shorter.messages[1:])


def test_the_newest_messages_stay_even_if_they_are_too_long() -> None:
    shorter = talk(10).compacted(10, keep=3)
    assert [message.role for message in shorter] == [
        "user",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert "r" * 2_000 in shorter[3].text


def test_turns_of_fields_are_dropped_whole_and_the_rest_is_asked_with_them() -> None:
    turns = [{"question": f"q{i} {'x' * 400}", "answer": str(i)} for i in range(30)]
    shorter = History([{"role": "system", "content": "Be brief."}, *turns]).compacted(1_000)
    assert shorter[0].role == "system"
    assert shorter.messages[2:] == turns[-len(shorter.messages) + 2 :]
    lm = ScriptedLM(["[[ ## answer ## ]]\nyes\n[[ ## completed ## ]]"])
    assert (
        Predict("history: History, question -> answer")(history=shorter, question="?", lm=lm).answer
        == "yes"
    )
    assert [message.role for message in lm.requests[0].messages[:3]] == ["system", "user", "user"]


@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.integers(1, 2_000),
    st.integers(0, 5),
    st.sampled_from(["shorten", "drop"]),
)
def test_calls_and_results_stay_together_whatever_is_left_out(
    shape: list[int],
    most: int,
    keep: int,
    strategy: str,
) -> None:
    messages: list[Any] = []
    for i, calls in enumerate(shape):
        messages.append(Message("user", f"question {i}"))
        ids = [f"c{i}_{k}" for k in range(calls)]
        messages.append(
            Message(
                "assistant",
                "so",
                tuple(ToolCall(name="look", args={}, id=each) for each in ids),
            ),
        )
        messages += [Message("tool", "r" * 900, tool_call_id=each, name="look") for each in ids]
    history = History(messages)
    shorter = history.compacted(most, strategy, keep=keep)
    shorter.as_messages(
        lambda turn: [],
    )  # raises for a call without a result, and for a result without a call
    assert size(shorter) <= max(size(history), 0) + 20
    assert (
        History.model_validate(json.loads(json.dumps(shorter.format()))).compacted(10**6) == shorter
    )


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="An agent can summarize"):
        talk(3).compacted(10, "summarize")


def test_sizes_count_bytes_and_a_picture_by_a_flat_rate() -> None:
    picture = Image.from_bytes(b"x" * 100_000, "image/png")
    assert estimate_content("x" * 4_000) == 1_004
    assert estimate_content("日" * 4_000) == 3_004
    assert 1_000 < estimate_content((picture, Text(text="what is this?"))) < 1_020
    assert estimate_content("", calls=[ToolCall(name="look", args={"n": "y" * 400})]) > 100
