"""DSPy's listeners agree with the prediction: text before calls is `next_thought`, not the output."""

from __future__ import annotations

from typing import Any

import ferrule.compat.dspy as dspy
from ferrule.testing import ScriptedLM


def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: a knife"


def heard(script: list[Any], *fields: str) -> dict[str, str]:
    """What a listener for each field gets."""
    agent = dspy.ReAct("question -> answer", [look])
    listeners = [
        dspy.streaming.StreamListener(signature_field_name=name, predict=agent.react)
        for name in fields
    ]
    chunks = dict.fromkeys(fields, "")
    with dspy.context(lm=ScriptedLM(script)):
        run = dspy.streamify(agent, stream_listeners=listeners, async_streaming=False)
        for item in run(question="Who did it?"):
            if isinstance(item, dspy.streaming.StreamResponse):
                chunks[item.signature_field_name] += item.chunk
            elif isinstance(item, dspy.Prediction):
                assert item.answer == chunks["answer"]
    return chunks


def test_text_before_a_call_is_a_thought_and_the_last_text_the_answer() -> None:
    call = {"name": "look", "args": {"place": "library"}}
    script = [{"text": "I look there.", "tool_calls": [call]}, "The butler did it."]
    assert heard(script, "answer", "next_thought") == {
        "answer": "The butler did it.",
        "next_thought": "I look there.",
    }


def test_text_before_finish_is_not_the_answer() -> None:
    call = {"name": "finish", "args": {"answer": "The butler."}}
    assert heard([{"text": "Done.", "tool_calls": [call]}], "answer") == {"answer": "The butler."}
