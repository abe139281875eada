"""The body of a request in every wire: each key once, whatever a program and its user set."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Message, Messages, Request, ToolCall
from ferrule.models.providers import Dialect
from ferrule.models.wires.wire import WIRES, wire
from ferrule.values.conversation.exchange import Shape

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "cache_control": {"type": "x"}}
wires = pytest.mark.parametrize("name", WIRES)


def read_once(body: bytes) -> Any:
    """The JSON of a body, in which no object has a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        assert len(names) == len(set(names)), names
        return dict(pairs)

    return json.loads(body, object_pairs_hook=once)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
SETTINGS = st.dictionaries(
    st.sampled_from(
        [
            "max_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            "temperature",
            "stop",
            "user",
            "metadata",
            "reasoning_effort",
            "reasoning",
            "thinking",
            "text",
            "verbosity",
            "output_config",
            "generation_config",
            "generationConfig",
            "stream_options",
            "store",
            "include",
        ]
    ),
    VALUES,
)
EXTRA = st.dictionaries(
    st.sampled_from(
        [
            "model",
            "messages",
            "input",
            "contents",
            "system",
            "systemInstruction",
            "tools",
            "tool_choice",
            "toolConfig",
            "stream",
            "stream_options",
            "max_tokens",
            "cache_control",
            "generationConfig",
            "response_format",
        ]
    ),
    VALUES | st.just([SEARCH]),
)
CALL = ToolCall(name="add", args={"a": 1}, id="c1")
CONVERSATION = [
    Message("system", "s"),
    Message("user", "q"),
    Message("assistant", "", (CALL,), reasoning="hm"),
    Message("tool", "1", tool_call_id="c1", name="add"),
]
DIALECTS = st.builds(
    Dialect,
    st.just({}) | st.just({"max_tokens": "max_completion_tokens"}),
    st.booleans(),
    st.sampled_from(["received", "always", "never"]),
)


@given(
    name=st.sampled_from(sorted(WIRES)),
    of_model=SETTINGS,
    of_request=SETTINGS,
    extra=EXTRA,
    length=st.integers(1, len(CONVERSATION)),
    tools=st.sampled_from([[], [ADD]]),
    choice=st.sampled_from([None, "auto", "required", "add"]),
    parallel=st.sampled_from([None, True, False]),
    shape=st.sampled_from([None, Shape("json_object"), Shape("json_schema", {"type": "object"})]),
    stream=st.booleans(),
    dialect=DIALECTS,
)
def test_no_key_is_written_twice(
    name, of_model, of_request, extra, length, tools, choice, parallel, shape, stream, dialect
):
    request = Request(
        Messages(CONVERSATION[:length]),
        tools,
        choice,
        parallel,
        shape,
        {**of_request, "extra": extra},
    )
    body = read_once(
        wire(name).render(request, model="m", settings=of_model, stream=stream, dialect=dialect)
    )
    merged = {"tools", "generationConfig", "toolConfig"}
    for field, value in extra.items():
        if field not in merged:
            assert body[field] == value


def names_of(tools: list[dict[str, Any]]) -> list[str]:
    names: list[str] = []
    for tool in tools:
        functions = tool.get("functionDeclarations") or [tool.get("function") or tool]
        names += [function["name"] for function in functions]
    return names


@wires
@pytest.mark.parametrize("declared", [[], [ADD]], ids=["without", "with"])
def test_tools_of_the_provider_are_added_to_those_of_the_program(name, declared):
    settings = {"extra": {"tools": [SEARCH]}}
    request = Request(Messages([Message("user", "q")]), declared)
    body = read_once(wire(name).render(request, model="m", settings=settings))
    assert body["tools"][0] == SEARCH
    assert names_of(body["tools"]) == ["web_search", *(["add"] if declared else [])]


@wires
def test_stream_options_are_those_that_are_set_and_only_of_a_stream(name):
    request = Request(Messages([Message("user", "q")]))
    bodies = {}
    for label, options in [("none", None), ("off", False), ("set", {"include_usage": False})]:
        for stream in (False, True):
            settings = {"stream_options": options}
            body = wire(name).render(request, model="m", settings=settings, stream=stream)
            bodies[label, stream] = read_once(body).get("stream_options")
    kept = {"include_usage": False} if name.startswith("openai") else None
    assert bodies == {
        ("none", False): None,
        ("none", True): None,
        ("off", False): None,
        ("off", True): None,
        ("set", False): None,
        ("set", True): kept,
    }
