"""Tools that are loaded during a run are sent where they come, and the request before them stays as
it was.
"""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from typing import Any

import pytest
from pydantic import TypeAdapter
from wire_servers import anthropic, openai_responses

from ferrule import (
    LM,
    Load,
    Message,
    Predict,
    ReAct,
    Request,
    Tool,
    Toolbox,
    Unload,
)
from ferrule import Messages as Conversation
from ferrule.errors import BadRequestError
from ferrule.models.providers import PROVIDERS
from ferrule.models.wires import anthropic as anthropic_wire
from ferrule.net.transport import HTTPTransport
from ferrule.testing import ScriptedLM, serve
from ferrule.values.calls.call import ToolCall

LOADS = 20
WIRES = {
    "openai_responses": (
        "openai/gpt-5.6",
        {"wire": "openai_responses"},
        {"/responses": openai_responses},
    ),
    "anthropic": (
        "anthropic/claude-opus-4-8",
        {"prompt_cache": False},
        {"/messages": anthropic},
    ),
}


@cache
def check_of(wire: str) -> TypeAdapter[Any]:
    """The SDK's own type of a request. The SDKs are imported here, since that takes seconds."""
    if wire == "anthropic":
        from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming

        return TypeAdapter(MessageCreateParamsNonStreaming)
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    return TypeAdapter(ResponseCreateParamsNonStreaming)


MARK = re.compile(rb',"cache_control":\{[^}]*\}')


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    return request.param


def load(name: str) -> Load:
    """Load a tool."""
    return Load(name)


def unload(name: str) -> Unload:
    """Put a tool back."""
    return Unload(name)


def shelf(count: int = LOADS) -> Toolbox:
    tools = [Tool(lambda: "done", f"tool_{number}", f"Do {number}.") for number in range(count)]
    return Toolbox([load, unload], shelf=tools)


def call(tool: str, /, **args: Any) -> dict[str, Any]:
    return {"name": tool, "args": args}


def run(
    wire: str, steps: list[Any], *, program: Any = None, toolbox: Any = None, **settings: Any
) -> list[bytes]:
    """The bodies of the requests of a run."""
    name, options, protocols = WIRES[wire]
    script = ScriptedLM([*steps, call("finish", answer="ok")])
    with serve(script, protocols=protocols) as server:
        lm = LM(
            name, base_url=server.base_url, api_key="k", max_retries=0, **{**options, **settings}
        )
        agent = ReAct("task -> answer", toolbox or shelf(), max_iters=50, lm=lm)
        assert (program or agent)(task="Do it.").answer == "ok"
        for body in server.requests:
            check_of(wire).validate_python(body)
        return server.bodies


def without_end(body: bytes) -> bytes:
    """A body up to the last item of its conversation, which comes last."""
    return body.removesuffix(b"]}")


def test_twenty_loads_leave_every_earlier_byte_of_the_request_as_it_was(wire):
    steps: list[Any] = []
    for number in range(LOADS):
        steps += [call("load", name=f"tool_{number}"), call(f"tool_{number}")]
    bodies = run(wire, steps)
    assert len(bodies) == 2 * LOADS + 1
    for body, following in itertools.pairwise(bodies):
        assert following.startswith(without_end(body))
    assert b"tool_19" in bodies[-1]


def test_the_markers_of_the_cache_are_the_only_difference():
    steps = [call("load", name="tool_1"), call("tool_1"), call("load", name="tool_2")]
    bodies = [MARK.sub(b"", body) for body in run("anthropic", steps, prompt_cache=True)]
    for body, following in itertools.pairwise(bodies):
        assert following.startswith(without_end(body))


def test_added_tools_have_the_providers_own_form(wire):
    bodies = run(wire, [call("load", name="tool_1"), call("tool_1")])
    second = json.loads(bodies[1])
    if wire == "anthropic":
        [block] = second["messages"][-1]["content"]
        assert second["messages"][-1]["role"] == "system"
        assert block["type"] == "tool_addition"
        assert block["tool"]["type"] == "tool_definition"
        assert block["tool"]["definition"]["name"] == "tool_1"
    else:
        item = second["input"][-1]
        assert (item["type"], item["role"]) == ("additional_tools", "developer")
        assert [tool["name"] for tool in item["tools"]] == ["tool_1"]
    assert "tool_1" not in [tool["name"] for tool in second["tools"]]


def test_several_tools_at_once_are_one_addition(wire):
    second = json.loads(run(wire, [call("load", name="tool_*"), call("tool_3")])[1])
    if wire == "anthropic":
        added = [each for each in second["messages"] if each["role"] == "system"]
        assert [len(message["content"]) for message in added] == [LOADS]
    else:
        added = [each for each in second["input"] if each["type"] == "additional_tools"]
        assert [len(item["tools"]) for item in added] == [LOADS]


COMES_AND_GOES = [
    call("load", name="tool_1"),
    call("unload", name="tool_1"),
    call("load", name="tool_2"),
    call("load", name="tool_1"),
    call("tool_1"),
]


def test_a_tool_that_is_removed_leaves_every_earlier_byte_where_the_provider_has_a_form_for_it():
    bodies = run("anthropic", COMES_AND_GOES)
    for body, following in itertools.pairwise(bodies):
        assert following.startswith(without_end(body))
    changes = [
        [(block["type"], block["tool"]["type"]) for block in entry["content"]]
        for entry in json.loads(bodies[-1])["messages"]
        if entry["role"] == "system"
    ]
    assert changes == [
        [("tool_addition", "tool_definition")],
        [("tool_removal", "tool_reference")],
        [("tool_addition", "tool_definition")],
        [("tool_addition", "tool_reference")],  # it is known from before
    ]


def test_elsewhere_a_removed_tool_begins_the_prompt_again_and_later_ones_are_added():
    bodies = [json.loads(body) for body in run("openai_responses", COMES_AND_GOES)]
    for body in bodies:
        names = [tool["name"] for tool in body["tools"]]
        assert names == ["load", "unload", "finish"]
    added = [
        [tool["name"] for tool in item["tools"]]
        for item in bodies[-1]["input"]
        if item["type"] == "additional_tools"
    ]
    assert added == [["tool_2"], ["tool_1"]]
    assert "additional_tools" not in json.dumps(bodies[2])  # after `unload`


def test_a_tool_with_another_declaration_begins_the_prompt_again(wire):
    def declared(name: str, description: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "description": description}}

    question = Conversation([Message("user", "a")])
    first = Request(question, [declared("f", "old")])
    more = Request(question, [declared("f", "old"), declared("g", "G.")]).continuing(first)
    assert [change.after for change in more.tool_changes] == [1]
    without = Request(question, [declared("g", "G.")]).continuing(more)
    assert without.tool_changes[-1].removed == ("f",)
    other = Request(question, [declared("g", "G."), declared("f", "new")]).continuing(without)
    assert (other.tool_changes, other.first_tools) == ((), None)


def test_a_message_to_the_run_comes_before_the_change_of_its_turn():
    """The provider takes a change of tools only at the end of a turn."""
    look = {"type": "function", "function": {"name": "look", "parameters": {}}}
    late = {"type": "function", "function": {"name": "late", "parameters": {}}}
    looked = ToolCall(name="look", args={}, id="c1")
    turn = [
        Message("user", "Look."),
        Message("assistant", "", (looked,)),
        Message("tool", "seen", tool_call_id="c1"),
    ]
    first = Request(Conversation(turn), [look])
    changed = Request(Conversation(turn), [look, late]).continuing(first)
    said = changed.following(changed.messages.then(Message("user", "Be quick.")))
    body = json.loads(
        anthropic_wire.render(said, model="m", settings={}, dialect=PROVIDERS["anthropic"].dialect)
    )
    check = check_of("anthropic")
    check.dump_python(check.validate_python(body))
    *_, message, change = body["messages"]
    assert message["content"][-1]["text"] == "Be quick."
    assert [block["type"] for block in change["content"]] == ["tool_addition"]


def test_strict_tools_are_strict_where_they_come():
    [before, after] = run("anthropic", [call("load", name="tool_1")], strict_tools=True)
    assert after.startswith(without_end(before))
    [block] = json.loads(after)["messages"][-1]["content"]
    assert block["tool"]["definition"]["strict"] is True


def test_predict_sends_them_in_the_same_way(wire):
    name, options, protocols = WIRES[wire]
    script = ScriptedLM([call("load", name="tool_1"), call("tool_1"), "ok"])
    with serve(script, protocols=protocols) as server:
        lm = LM(name, base_url=server.base_url, api_key="k", **options)
        assert Predict("task -> answer", tools=shelf(), lm=lm)(task="Do it.").answer == "ok"
        for body in server.requests:
            check_of(wire).validate_python(body)
        bodies = server.bodies
    for body, following in itertools.pairwise(bodies):
        assert following.startswith(without_end(body))


def test_a_choice_of_one_tool_finds_it_declared(wire):
    name, options, protocols = WIRES[wire]
    script = ScriptedLM([call("load", name="tool_1"), call("finish", answer="ok")])
    with serve(script, protocols=protocols) as server:
        lm = LM(name, base_url=server.base_url, api_key="k", **options)
        agent = ReAct("task -> answer", shelf(), lm=lm, tool_choice="load")
        agent(task="Do it.")
        assert "tool_1" in [tool["name"] for tool in server.requests[1]["tools"]]


def test_other_servers_get_all_tools_declared():
    script = ScriptedLM([call("load", name="tool_1"), call("finish", answer="ok")])
    with serve(script, protocols=WIRES["openai_responses"][2]) as server:
        lm = LM(server.base_url, model="own", wire="openai_responses")
        ReAct("task -> answer", shelf(), lm=lm)(task="Do it.")
        assert "tool_1" in [tool["name"] for tool in server.requests[1]["tools"]]


def test_a_server_that_refuses_additions_gets_all_tools_declared(wire):
    name, options, protocols = WIRES[wire]
    [(path, protocol)] = protocols.items()

    class Older:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(protocol, attribute)

        def receive(self, body: dict[str, Any], where: str) -> Any:
            if "tool_addition" in str(body) or "additional_tools" in str(body):
                raise BadRequestError(
                    "Invalid 'input': additional_tools, tool_addition: unknown", status=400
                )
            return protocol.receive(body, where)

    script = ScriptedLM([call("load", name="tool_1"), call("tool_1"), call("finish", answer="ok")])
    with serve(script, protocols={path: Older()}) as server:
        lm = LM(name, base_url=server.base_url, api_key="k", max_retries=0, **options)
        assert ReAct("task -> answer", shelf(), lm=lm)(task="Do it.").answer == "ok"
        assert "tool_1" in [tool["name"] for tool in server.requests[1]["tools"]]


@pytest.mark.parametrize(("own", "sent"), [(None, "ours-2"), ("own-1", "ours-2,own-1")])
def test_the_beta_of_the_user_is_kept_beside_ours(own, sent):
    headers = {} if own is None else {"Anthropic-Beta": own}
    transport = HTTPTransport("http://h/", provider="p", headers=headers)
    assert transport.all_headers({"anthropic-beta": "ours-2"})["anthropic-beta"] == sent


def test_options_of_the_cache_of_openai_are_settings():
    options = {"mode": "implicit", "ttl": "30m"}
    bodies = run("openai_responses", [], prompt_cache_options=options, prompt_cache_key="desk")
    first = json.loads(bodies[0])
    assert (first["prompt_cache_options"], first["prompt_cache_key"]) == (options, "desk")
