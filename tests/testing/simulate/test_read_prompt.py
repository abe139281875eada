from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.testing.offline.model import OfflineLM
from ferrule.testing.scripted import AutoLM
from ferrule.testing.simulate.read_prompt import Seen, SeenTool, fields_in, read_prompt
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import Declarations, Request, Shape
from ferrule.values.conversation.message import Message, Messages

TOOLS = """Take steps. There are these tools and no others:

(1) add, whose description is <desc>Add two numbers.</desc>. It takes arguments {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}}.
(2) now. It takes no arguments.
(3) user_clarification, whose description is <desc>Ask.</desc>. It takes arguments {"question": {"type": "string"}}.
(4) finish, whose description is <desc>End.</desc>. It takes no arguments.
"""
CHAT = """
[[ ## question ## ]]
{question}

[[ ## next_thought ## ]]
{next_thought}

[[ ## next_tool_name ## ]]
{next_tool_name}

[[ ## next_tool_args ## ]]
{next_tool_args}

[[ ## completed ## ]]
"""
XML = "<question>\n{question}\n</question>\n<next_thought>\n{next_thought}\n</next_thought>\n<next_tool_name>\n{x}\n</next_tool_name>"
JSON = 'Answer with a JSON object with the fields {"next_thought": "...", "next_tool_name": "...", "next_tool_args": {}}'
STEP = {"thought_0": "hm", "tool_name_0": "add", "tool_args_0": {"a": 1}, "observation_0": "42"}
FORMS = {
    "chat": (CHAT, lambda fields: "\n\n".join(f"[[ ## {k} ## ]]\n{v if isinstance(v, str) else json.dumps(v)}" for k, v in fields.items())),
    "xml": (XML, lambda fields: "\n".join(f"<{k}>\n{v if isinstance(v, str) else json.dumps(v)}\n</{k}>" for k, v in fields.items())),
    "json": (JSON, json.dumps),
}
forms = pytest.mark.parametrize("form", FORMS)


def step_request(form: str, *steps: dict) -> Request:
    system, written = FORMS[form]
    users = [Message("user", written(fields)) for fields in ({"question": "What is 1 + 1?"}, *steps)]
    return Request(Messages([Message("system", TOOLS + system), *users]))


@forms
def test_a_step_of_react_is_recognised_in_every_form(form):
    """L8, L9, D18."""
    asked = read_prompt(step_request(form, STEP))
    assert (asked.form, asked.wants_step, asked.is_native) == (form, True, False)
    assert asked.question == "What is 1 + 1?"
    assert asked.calls == (Seen("add", {"a": 1}, "42"),)
    assert asked.tools == (
        SeenTool(
            "add",
            "Add two numbers.",
            {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}}, "required": ["a"]},
        ),
        SeenTool("now", "", {"type": "object", "properties": {}, "required": []}),
    )


@forms
def test_a_step_is_written_in_its_form(form):
    """L8."""
    text = AutoLM().complete(step_request(form)).text or ""
    found = fields_in(text)
    assert found["next_tool_name"] == "add"
    assert json.loads(found["next_tool_args"]) == {"a": 1}
    later = fields_in(AutoLM().complete(step_request(form, STEP)).text or "")
    assert later["next_tool_name"] == "now"
    done = {"thought_1": "", "tool_name_1": "now", "tool_args_1": {}, "observation_1": "late"}
    assert fields_in(AutoLM().complete(step_request(form, STEP, done)).text or "")["next_tool_name"] == "finish"


EXTRACT = """Your inputs are:
1. `question` (str)
2. `trajectory` (str): what was done

Your outputs are:
1. `reasoning` (str)
2. `answer` (str)
3. `score` (int)
4. `kind` (Literal['good', 'bad'])
5. `tags` (list[str])
"""


@forms
def test_outputs_are_extracted_from_a_trajectory(form):
    """L9."""
    _, written = FORMS[form]
    layout = written({name: f"{{{name}}}" for name in ("question", "trajectory", "reasoning", "answer", "score", "kind", "tags")})
    system = EXTRACT + ("Answer with a JSON object with these fields." if form == "json" else layout)
    user = written({"question": "What is good about 1 + 1?", "trajectory": written(STEP)})
    request = Request(Messages([Message("system", system), Message("user", user)]))
    assert read_prompt(request).fields == ("reasoning", "answer", "score", "kind", "tags")
    found = fields_in(OfflineLM().complete(request).text or "")
    assert (found["answer"], found["score"], found["kind"], json.loads(found["tags"])) == ("42", "42", "good", ["42"])
    assert "add" in found["reasoning"]
    automatic = fields_in(AutoLM({"score": 7}).complete(request).text or "")
    assert (automatic["score"], automatic["kind"], automatic["tags"]) == ("7", "good", "[]")


def test_calls_in_the_text_of_predict_are_made_and_followed():
    """L8: `tool_calls` as an output."""
    system = TOOLS + "Your outputs are:\n1. `tool_calls` (ToolCalls)\n2. `answer` (str)\n\n[[ ## tool_calls ## ]]\n[[ ## answer ## ]]"
    request = Request(Messages([Message("system", system), Message("user", "[[ ## question ## ]]\nWhat is 1 + 1?")]))
    names = []
    for turn in range(3):
        response = AutoLM().complete(request)
        fields = fields_in(response.text or "")
        calls = json.loads(fields["tool_calls"])["tool_calls"]
        names.append([call["name"] for call in calls])
        request = request.following(request.messages.then(response.message(), Message("user", f"[[ ## observation_{turn} ## ]]\nok")))
    assert names == [["add"], ["now"], []]
    assert fields["answer"] == "done"


def test_native_calls_are_seen_with_their_results():
    """L8."""
    messages = Messages(
        [
            Message("user", "hi"),
            Message("assistant", "", (ToolCall(name="add", args={"a": 1}, id="x"),)),
            Message("tool", "2", tool_call_id="x"),
        ]
    )
    tools = Declarations([{"type": "function", "function": {"name": name}} for name in ("add", "finish")])
    asked = read_prompt(Request(messages, tools))
    assert (asked.question, asked.calls, asked.is_native) == ("hi", (Seen("add", {"a": 1}, "2"),), True)
    assert asked.finish == SeenTool("finish", "", {})
    assert asked.tools == (SeenTool("add", "", {}),)


def test_a_schema_names_the_fields():
    """L2."""
    request = Request(Messages([Message("user", "hi")]), shape=Shape("json_schema", {"properties": {"a": {}, "b": {}}}))
    assert read_prompt(request).fields == ("a", "b")
    assert json.loads(AutoLM("x").complete(request).text or "") == {"a": "x", "b": "x"}


def test_the_question_is_the_last_one_asked():
    """L9: not an earlier turn, not a complaint about an answer."""
    chat = FORMS["chat"][1]
    messages = [
        Message("system", "x"),
        Message("user", chat({"question": "old"})),
        Message("assistant", chat({"answer": "old"})),
        Message("user", chat({"question": "new"})),
        Message("assistant", "junk"),
        Message("user", "That could not be read. Write the fields."),
    ]
    assert read_prompt(Request(Messages(messages))).question == "new"


def test_plain_conversations_get_plain_answers():
    """L9."""
    asked = read_prompt(Request(Messages([Message("system", "Be nice."), Message("user", "hi")])))
    assert (asked.form, asked.fields, asked.question) == ("plain", (), "hi")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["system", "user", "assistant", "tool"]),
            st.text() | st.sampled_from([CHAT, XML, JSON, TOOLS, "{", "[[ ## a ## ]]"]),
        ),
        max_size=4,
    )
)
def test_any_conversation_gets_an_answer(conversation):
    """L8, L9."""
    request = Request(Messages([Message(role, text) for role, text in conversation]))
    for lm in (AutoLM(), OfflineLM()):
        assert lm.complete(request) == lm.complete(request)
