"""Requests from strangers: whatever they hold, reading them raises `InputError` or succeeds, and
the response can be sent.
"""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ferrule import AGUI, InputError, ReAct, VercelAI
from ferrule.errors import DecisionError
from ferrule.testing import ScriptedLM

_NAMES = [
    "role",
    "content",
    "id",
    "toolCalls",
    "toolCallId",
    "type",
    "text",
    "source",
    "value",
    "mimeType",
    "function",
    "name",
    "arguments",
    "parts",
    "state",
    "approval",
    "approved",
    "output",
    "input",
    "url",
    "mediaType",
    "toolName",
    "providerMetadata",
    "ferrule",
    "toolMetadata",
    "subagentRunId",
    "errorText",
    "filename",
    "interruptId",
    "status",
    "payload",
]
_WORDS = [
    "user",
    "assistant",
    "tool",
    "system",
    "data",
    "image",
    "file",
    "text",
    "http://x",
    "data:image/png;base64,AA==",
    "approval-responded",
    "output-available",
    "output-error",
    "tool-x",
    "dynamic-tool",
    "step-start",
    "resolved",
    "cancelled",
    "{",
    "{}",
]
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.text(max_size=4)
    | st.sampled_from([*_WORDS, "\ud800"])
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
_MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", 5])},
    optional=dict.fromkeys(
        ("content", "toolCalls", "toolCallId", "id", "parts", "subagentRunId"),
        _VALUES,
    ),
)
EVENTS = list(
    ReAct("question -> answer", []).stream(
        question="q",
        lm=ScriptedLM([{"name": "finish", "args": {"answer": "x"}}]),
    ),
)


class Rested:
    id = "r"
    pending = ()


@given(st.lists(_MESSAGES, max_size=4) | _VALUES, _VALUES)
def test_reading_a_request_raises_an_input_error_or_succeeds(messages: Any, resume: Any) -> None:
    bodies: list[tuple[Any, dict[str, Any]]] = [
        (AGUI, {"threadId": "t", "runId": "r", "messages": messages, "resume": resume}),
        (VercelAI, {"id": "c", "messages": messages}),
    ]
    for kind, body in bodies:
        try:
            front = kind(body)
            assert isinstance(front.text, str)
            front.history.entries()
        except InputError:
            continue
        with contextlib.suppress(DecisionError):
            assert front.decisions(Rested()) == []
        "".join(front(EVENTS)).encode()
