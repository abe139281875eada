"""Seed 004's intention: asked for, kept with the call, never passed on (P34-P48;
`tools/definition/export.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
from agent_script import fields, text_step

from ferrule import (
    ChatAdapter,
    ConfirmationRequired,
    JSONAdapter,
    ReAct,
    Response,
    Tool,
    ToolCall,
    XMLAdapter,
    configure,
    context,
    tool,
)
from ferrule.errors import ToolDefinitionError, TooManyFaultsError
from ferrule.testing import ScriptedLM

GOT: list[dict[str, Any]] = []


@tool
def weigh(thing: str, times: int = 1) -> str:
    """Weigh a thing."""
    GOT.append({"thing": thing, "times": times})
    return f"{thing}: {times} kg"


def native(intention: str | None, name: str, **args: Any) -> Response:
    why = {} if intention is None else {"intention": intention}
    return Response("hm", (ToolCall(name=name, args={**why, **args}, id=f"c_{name}"),))


def text(intention: str, name: str, **args: Any) -> str:
    return fields(
        next_thought="hm",
        next_intention=intention,
        next_tool_name=name,
        next_tool_args=args,
    )


SCRIPTS = {
    "native": [
        native("to know its weight", "weigh", thing="apple"),
        native(None, "finish", answer="1 kg"),
    ],
    "text": [
        text("to know its weight", "weigh", thing="apple"),
        text("done", "finish"),
        fields(reasoning="r", answer="1 kg"),
    ],
}


@pytest.mark.parametrize("way", SCRIPTS)
def test_an_intention_is_asked_for_and_kept_and_never_passed_to_the_function(way):
    GOT.clear()
    lm = ScriptedLM(SCRIPTS[way])
    with context(lm=lm):
        run = ReAct("question -> answer", [weigh], native=way == "native", intention=True).start(
            question="How heavy?",
        )
    first = run.prediction.trajectory.steps[0].calls[0]
    assert (first.intention, first.args) == ("to know its weight", {"thing": "apple"})
    assert GOT == [{"thing": "apple", "times": 1}]
    assert (
        "intention" in lm.requests[0].messages[0].text
        or "intention" in lm.requests[0].tools[0]["function"]["parameters"]["required"]
    )
    assert (
        "to know its weight" in lm.requests[1].messages[-1 if way == "text" else -2].json.decode()
    )


def test_the_intention_is_declared_first_and_finish_needs_none():
    """The reason is written before the arguments."""
    lm = ScriptedLM(SCRIPTS["native"])
    with context(lm=lm):
        agent = ReAct(
            "question -> answer",
            [weigh],
            native=True,
            intention=True,
            enable_user_clarification=True,
        )
        agent(question="?")
    declared = {
        each["function"]["name"]: each["function"]["parameters"] for each in lm.requests[0].tools
    }
    assert list(declared["weigh"]["properties"]) == ["intention", "thing", "times"]
    assert declared["weigh"]["required"] == ["intention", "thing"]
    assert "intention" in declared["user_clarification"]["required"]
    assert list(declared["finish"]["properties"]) == ["answer"]
    assert "intention" not in weigh.parameters["properties"]  # the tool itself is as it was


@pytest.mark.parametrize("way", SCRIPTS)
def test_without_it_nothing_is_asked_and_nothing_is_taken_out(way):
    """Off by default; no request says a word of it."""
    written = [
        text_step("hm", "weigh", {"thing": "a"}),
        text_step("done", "finish"),
        fields(reasoning="r", answer="x"),
    ]
    lm = ScriptedLM(
        [native(None, "weigh", thing="a"), native(None, "finish", answer="x")]
        if way == "native"
        else written,
    )
    with context(lm=lm):
        found = ReAct("question -> answer", [weigh], native=way == "native")(question="?")
    assert found.trajectory.steps[0].calls[0].intention is None
    assert lm.requests
    for request in lm.requests:
        assert b"intention" not in b"".join(
            [request.tools.json, *(message.json for message in request.messages)],
        )


@pytest.mark.parametrize(
    "adapter",
    [ChatAdapter(), JSONAdapter(), XMLAdapter()],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("asks", [False, True])
def test_a_repair_names_it_only_where_it_was_asked_for(adapter, asks):
    """A model cannot mend what it was not asked for.

    In repair requests, in observations and in the error at the end.
    """
    lm = ScriptedLM(["junk"] * 30)
    with context(lm=lm, adapter=adapter), pytest.raises(TooManyFaultsError) as raised:
        ReAct("question -> answer", [weigh], native=False, intention=asks)(question="?")
    repairs = [
        request.messages[-1].text
        for request in lm.requests
        if "could not be read" in request.messages[-1].text
    ]
    assert repairs
    for repair in repairs:
        assert "`next_tool_name`: is missing" in repair
        assert ("`next_intention`: is missing" in repair) == asks
    told = "".join(
        [
            str(raised.value),
            *(message.text for request in lm.requests for message in request.messages),
        ],
    )
    assert ("intention" in told) == asks


def test_a_model_that_leaves_it_out_is_not_held_up():
    """Ours (api.md 15): it is optional on a call."""
    with context(
        lm=ScriptedLM([native(None, "weigh", thing="a"), native(None, "finish", answer="x")]),
    ):
        found = ReAct("question -> answer", [weigh], native=True, intention=True)(question="?")
    assert found.trajectory.steps[0].calls[0].intention is None
    assert not found.trajectory.steps[0].results[0].is_error


def test_a_person_is_shown_the_intention_with_the_call():
    asking = Tool(weigh.func, "weigh", require_confirmation=True)
    lm = ScriptedLM([native("to know", "weigh", thing="a"), native(None, "finish", answer="x")])
    with context(lm=lm), pytest.raises(ConfirmationRequired) as asked:
        ReAct("question -> answer", [asking], native=True, intention=True)(question="?")
    call = asked.value.tool_call
    assert (call.intention, call.args) == ("to know", {"thing": "a", "times": 1})


def test_a_tool_with_an_argument_of_that_name_is_refused():
    def plan(intention: str) -> str:
        """Plan."""
        return intention

    with pytest.raises(ToolDefinitionError, match="intention=False"):
        ReAct("question -> answer", [plan], intention=True)
    configure(lm=None)
    assert ReAct("question -> answer", [plan]).tools["plan"](intention="x") == "x"


def test_several_calls_of_one_text_step_have_their_own_intentions():
    step = fields(
        next_thought="both",
        next_intention=["first", "second"],
        next_tool_name=["weigh", "weigh"],
        next_tool_args=[{"thing": "a"}, {"thing": "b"}],
    )
    with context(lm=ScriptedLM([step, text("done", "finish"), fields(reasoning="r", answer="x")])):
        found = ReAct("question -> answer", [weigh], native=False, intention=True)(question="?")
    assert [call.intention for call in found.trajectory.steps[0].calls] == ["first", "second"]


def test_a_conversation_rendered_anew_shows_the_call_as_the_model_wrote_it():
    """Also after a resume, where the answers are no longer at hand."""
    asking = Tool(weigh.func, "weigh", require_confirmation=True)
    lm = ScriptedLM([native("to know", "weigh", thing="a"), native(None, "finish", answer="x")])
    with context(lm=lm):
        run = ReAct("question -> answer", [asking], native=True, intention=True).start(question="?")
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.prediction.answer == "x"
    assert lm.requests[1].messages[-2].tool_calls[0].args == {"intention": "to know", "thing": "a"}


@pytest.mark.parametrize("why", [None, ["x"], 5, "  "], ids=["null", "list", "number", "blank"])
def test_an_intention_that_is_no_text_holds_nothing_up(why: Any):
    """It is taken out all the same; the tool has no such argument."""
    GOT.clear()
    called = Response(
        "hm",
        (ToolCall(name="weigh", args={"intention": why, "thing": "apple"}, id="c1"),),
    )
    with context(lm=ScriptedLM([called, native(None, "finish", answer="1 kg")])):
        found = ReAct("question -> answer", [weigh], native=True, intention=True)(question="?")
    assert GOT == [{"thing": "apple", "times": 1}]
    assert found.trajectory.steps[0].calls[0].intention is None


def test_a_tool_of_several_closed_forms_can_be_called_with_an_intention():
    """Each form knows the argument."""
    forms = [
        {"type": "object", "properties": {name: {"type": "string"}}, "additionalProperties": False}
        for name in "ab"
    ]
    schema = {"type": "object", "properties": {}, "anyOf": forms}
    lm = ScriptedLM([native(None, "finish", answer="x")])
    with context(lm=lm):
        ReAct(
            "question -> answer",
            [Tool("either", "One of two.", str, schema)],
            native=True,
            intention=True,
        )(question="?")
    declared = next(
        each["function"]["parameters"]
        for each in lm.requests[0].tools
        if each["function"]["name"] == "either"
    )
    assert [list(form["properties"]) for form in declared["anyOf"]] == [
        ["intention", "a"],
        ["intention", "b"],
    ]
