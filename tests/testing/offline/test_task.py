from __future__ import annotations

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.adapters.chat import ChatAdapter
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.xml_tags import XMLAdapter
from ferrule.testing.offline.model import AutoLM
from ferrule.testing.offline.task import OfferedTool, PastCall, read_task
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import Declarations, Request, Shape
from ferrule.values.conversation.message import Message, Messages
from ferrule.values.signatures.signature import InputField, OutputField, Signature

ADAPTERS = {"chat": ChatAdapter(), "json": JSONAdapter(), "xml": XMLAdapter()}
adapters = pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS.keys())


class Extract(Signature):
    """Extract."""

    question: str = InputField()
    reasoning: str = OutputField()
    score: int = OutputField()
    kind: Literal["good", "bad"] = OutputField()
    tags: list[str] = OutputField()


def request_of(adapter, signature: type[Signature], **inputs) -> Request:
    return adapter.request(signature, adapter.opening(signature, inputs))


@adapters
def test_outputs_come_from_the_signature_and_are_written_in_the_adapters_form(adapter):
    request = request_of(adapter, Extract, question="What is bad about 1 + 1?")
    task = read_task(request)
    assert list(task.outputs["properties"]) == ["reasoning", "score", "kind", "tags"]
    automatic = adapter.read(Extract, AutoLM({"score": 7}).complete(request))
    assert automatic == {"reasoning": "text", "score": 7, "kind": "good", "tags": []}


@adapters
def test_a_following_request_keeps_the_form(adapter):
    request = request_of(adapter, Extract, question="?")
    following = request.following(request.messages.then(Message("user", "again")))
    assert following.form is request.form
    assert adapter.read(Extract, AutoLM().complete(following))["score"] == 1


def test_the_form_is_no_part_of_a_request():
    """Recordings and stored runs find a request by its digest."""
    request = request_of(ChatAdapter(), Extract, question="?")
    bare = Request(request.messages)
    assert (request, request.digest, repr(request)) == (bare, bare.digest, repr(bare))


@adapters
def test_a_step_in_text_ends_the_loop(adapter):
    """Tools that a prompt describes in its text are not declared."""
    step = Signature(
        "question -> next_thought, next_tool_name: Literal['add', 'finish'], next_tool_args: dict[str, Any]",
    )
    found = adapter.read(step, AutoLM().complete(request_of(adapter, step, question="1 and 1")))
    assert (found["next_tool_name"], found["next_tool_args"]) == ("finish", {})


def test_native_calls_are_read_with_their_results():
    messages = Messages(
        [
            Message("user", "hi"),
            Message("assistant", "", (ToolCall(name="add", args={"a": 1}, id="x"),)),
            Message("tool", "2", tool_call_id="x"),
        ],
    )
    tools = Declarations(
        [{"type": "function", "function": {"name": name}} for name in ("add", "finish")],
    )
    task = read_task(Request(messages, tools))
    assert (task.calls, task.position) == ((PastCall("add", {"a": 1}, "2"),), 3)
    assert (task.finish, task.tools) == (
        OfferedTool("finish", "", {}),
        (OfferedTool("add", "", {}),),
    )


def test_a_schema_of_the_answer_names_the_fields():
    shape = Shape(
        "json_schema",
        {"properties": {"a": {}, "b": {"$ref": "#/$defs/B"}}, "$defs": {"B": {"const": 4}}},
    )
    request = Request(Messages([Message("user", "hi")]), shape=shape)
    assert json.loads(AutoLM("x").complete(request).text or "") == {"a": "x", "b": 4}


def test_plain_conversations_get_plain_answers():
    task = read_task(Request(Messages([Message("system", "Be nice."), Message("user", "hi")])))
    assert (task.outputs, task.tools) == ({}, ())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["system", "user", "assistant", "tool"]),
            st.text() | st.sampled_from(["{", '{"a": [1]}', "[[ ## a ## ]]", "<a>"]),
        ),
        max_size=4,
    ),
)
def test_any_conversation_gets_an_answer(conversation):
    request = Request(Messages([Message(role, text) for role, text in conversation]))
    assert AutoLM().complete(request) == AutoLM().complete(request)
