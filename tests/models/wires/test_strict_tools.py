"""Strict function calling over real HTTP: lowered out, restored back (E15, L6)."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from wire_servers import serve

from ferrule import Limits, Predict, ReAct, Response, Tool, ToolCall, context, tool
from ferrule.errors import MaxTurnsReachedError, TooManyFaultsError
from ferrule.testing import ScriptedLM

GOT: list[dict[str, Any]] = []


@tool
def search(query: str, limit: int = 10, tags: list[str] | None = None) -> str:
    """Search."""
    GOT.append({"query": query, "limit": limit, "tags": tags})
    return "found"


@tool
def note(fields: dict[str, Any]) -> str:
    """Keep free fields, which no strict mode takes."""
    GOT.append(fields)
    return "kept"


SCRIPT = [
    Response(
        None,
        (
            ToolCall(name="search", args={"query": "q", "limit": None, "tags": None}),
            ToolCall(name="note", args={"fields": {"a": "b"}}),
        ),
    ),
    Response(None, (ToolCall(name="finish", args={"answer": "x"}),)),
]


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
@pytest.mark.parametrize("how", ["sync", "stream", "async"])
def test_optionals_come_back_as_left_out(wire, how):
    GOT.clear()
    with serve(ScriptedLM(SCRIPT)) as served, context(lm=served.lm(wire=wire, strict_tools=True)):
        agent = ReAct("question -> answer", [search, note], native=True)
        if how == "stream":
            with agent.stream(question="q?") as events:
                list(events)
            found = events.prediction
        else:
            found = (
                agent(question="q?") if how == "sync" else asyncio.run(agent.acall(question="q?"))
            )
    assert found.answer == "x"
    assert {"query": "q", "limit": 10, "tags": None} in GOT
    assert {"a": "b"} in GOT
    sent = {
        each.get("function", each)["name"]: each.get("function", each)
        for each in served.requests[0]["tools"]
    }
    assert sent["search"]["strict"] is True
    assert sent["search"]["parameters"]["required"] == ["query", "limit", "tags"]
    assert not sent["note"].get("strict")
    assert "limit" not in search.parameters["required"]  # on a copy (E15)


def test_what_comes_back_is_checked_as_if_there_were_no_strict_mode():
    """The same checks as for any model; what a decoder was told to keep to is not taken for kept."""
    GOT.clear()
    wrong = Response(
        None,
        (ToolCall(name="search", args={"query": ["q"], "limit": "many", "tags": None}),),
    )
    said = []
    for strict in (True, False):
        with (
            serve(ScriptedLM([wrong, SCRIPT[-1]])) as served,
            context(lm=served.lm(wire="openai_chat", strict_tools=strict)),
        ):
            found = ReAct("question -> answer", [search], native=True)(question="q?")
        assert found.trajectory.steps[0].results[0].is_fault
        said.append(found.trajectory["observation_0"])
    assert GOT == []
    assert said[0] == said[1]
    assert "Call to `search` was not run" in said[0]
    assert "limit" in said[0]


def test_anthropics_strict_mode_is_asked_for():
    with (
        serve(ScriptedLM(SCRIPT)) as served,
        context(lm=served.lm(wire="anthropic", strict_tools=True)),
    ):
        assert ReAct("question -> answer", [search], native=True)(question="q?").answer == "x"
    assert [tool.get("strict", False) for tool in served.requests[0]["tools"]][:1] == [True]


def test_without_it_schemas_go_as_they_are():
    with serve(ScriptedLM([Response("[[ ## answer ## ]]\nx")])) as served:
        served.lm()("hi")
        with context(lm=served.lm()):
            ReAct("question -> answer", [search], native=True)
    assert "strict" not in json.dumps(served.requests)


class Person(BaseModel):
    """Who travels."""

    name: str
    email: str | None = None


class Train(BaseModel):
    """By train."""

    kind: Literal["train"] = "train"
    seat: int


class Boat(BaseModel):
    """By boat."""

    kind: Literal["boat"] = "boat"
    deck: str = "upper"


@tool
def book(
    nights: dict[str, Annotated[int, Field(ge=1)]],
    traveller: Person,
    by: Annotated[Train | Boat, Field(discriminator="kind")],
    note: Annotated[str, Field(min_length=2)] = "none",
) -> str:
    """Book a journey."""
    GOT.append({"nights": nights, "traveller": traveller, "by": by, "note": note})
    return "booked"


PAIRS = [{"key": "Utrecht", "value": 2}, {"key": "Gent", "value": 1}]
WRITTEN: dict[str, dict[str, Any]] = {
    "openai_chat": {
        "nights": PAIRS,
        "traveller": {"name": "Ada", "email": None},
        "by": {"kind": "boat", "deck": None},
        "note": None,
    },
    "anthropic": {"nights": PAIRS, "traveller": {"name": "Ada"}, "by": {"kind": "boat"}},
    "gemini": {
        "nights": {"Utrecht": 2, "Gent": 1},
        "traveller": {"name": "Ada"},
        "by": {"kind": "boat"},
    },
}
"""What a model of each provider writes, as its strict mode allows no other form."""
WRITTEN["openai_responses"] = WRITTEN["openai_chat"]
FINISH = Response(None, (ToolCall(name="finish", args={"answer": "x"}),))


def written(**args: Any) -> Response:
    return Response(None, (ToolCall(name="book", args=args),))


def sent(body: Any) -> dict[str, Any]:
    """The tools of a request by name: their schemas."""
    listed = body["tools"][0].get("functionDeclarations", body["tools"])
    tools = [each.get("function", each) for each in listed]
    return {
        each["name"]: next(
            each[key]
            for key in ("parameters", "input_schema", "parametersJsonSchema")
            if key in each
        )
        for each in tools
    }


@pytest.mark.parametrize("how", ["sync", "stream", "async"])
@pytest.mark.parametrize("wire", WRITTEN)
def test_a_call_in_the_strict_form_of_a_provider_reaches_the_tool_in_its_own(wire, how):
    """A dictionary, an optional argument, a nested model and a union, over HTTP, in each protocol."""
    GOT.clear()
    with (
        serve(ScriptedLM([written(**WRITTEN[wire]), FINISH])) as served,
        context(lm=served.lm(wire=wire, strict_tools=True)),
    ):
        agent = ReAct("question -> answer", [book], native=True)
        if how == "stream":
            with agent.stream(question="q?") as events:
                list(events)
            found = events.prediction
        else:
            found = (
                agent(question="q?") if how == "sync" else asyncio.run(agent.acall(question="q?"))
            )
    assert [
        {
            "nights": {"Utrecht": 2, "Gent": 1},
            "traveller": Person(name="Ada"),
            "by": Boat(),
            "note": "none",
        },
    ] == GOT
    assert found.trajectory["observation_0"] == "booked"
    schema = sent(served.requests[0])["book"]
    Draft202012Validator(schema).validate(WRITTEN[wire])
    assert ("oneOf" in json.dumps(schema), "discriminator" in json.dumps(schema)) == (False, False)
    body = served.requests[0]
    if wire == "gemini":
        assert body["toolConfig"] == {"functionCallingConfig": {"mode": "VALIDATED"}}
    else:
        assert all(each.get("function", each)["strict"] for each in body["tools"])


@pytest.mark.parametrize("wire", WRITTEN)
def test_a_call_that_breaks_what_a_provider_does_not_enforce_goes_back_with_the_reason(wire):
    """The tool's own schema is checked; the model is asked again, and the faults can be counted."""
    GOT.clear()
    wrong = written(**{**WRITTEN[wire], "note": "x"})
    with (
        serve(ScriptedLM([wrong, written(**WRITTEN[wire]), FINISH])) as served,
        context(lm=served.lm(wire=wire, strict_tools=True)),
    ):
        found = ReAct("question -> answer", [book], native=True)(question="q?")
    assert len(GOT) == 1
    assert [result.is_fault for step in found.trajectory.steps for result in step.results] == [
        True,
        False,
        False,
    ]
    assert 'note: "x" has fewer than 2 characters' in found.trajectory["observation_0"]
    assert "has fewer than 2 characters" in json.dumps(served.requests[1])


@pytest.mark.parametrize("wire", WRITTEN)
def test_a_model_that_never_keeps_to_the_schema_ends_the_run_with_a_typed_error(wire):
    """Bounded by `Limits(same_error=)`."""
    GOT.clear()
    wrong = written(**{**WRITTEN[wire], "note": "x"})
    with (
        serve(ScriptedLM([wrong] * 3)) as served,
        context(lm=served.lm(wire=wire, strict_tools=True)),
    ):
        agent = ReAct("question -> answer", [book], native=True, limits=Limits(same_error=3))
        with pytest.raises(TooManyFaultsError, match="3 faulty steps in a row") as caught:
            agent(question="q?")
    assert len(caught.value.faults) == len(served.requests) == 3
    assert GOT == []


def test_predict_asks_again_as_often_as_it_has_turns():
    wrong = written(**{**WRITTEN["anthropic"], "note": "x"})
    with (
        serve(ScriptedLM([wrong] * 3)) as served,
        pytest.raises(MaxTurnsReachedError, match="after 3 turns"),
    ):
        Predict("question -> answer", tools=[book], native=True, max_turns=3)(
            question="q?",
            lm=served.lm(wire="anthropic", strict_tools=True),
        )
    assert len(served.requests) == 3


def test_a_key_that_comes_twice_goes_back_and_nothing_is_dropped():
    """No strict mode can forbid it in the list that stands for a dictionary."""
    GOT.clear()
    twice = written(**{**WRITTEN["anthropic"], "nights": [*PAIRS, {"key": "Gent", "value": 5}]})
    with (
        serve(ScriptedLM([twice, FINISH])) as served,
        context(lm=served.lm(wire="anthropic", strict_tools=True)),
    ):
        found = ReAct("question -> answer", [book], native=True)(question="q?")
    assert GOT == []
    assert found.trajectory.steps[0].results[0].is_fault
    told = "Call to `book` was not run: a list of keys and values has the key 'Gent' twice. Write each key once."
    assert found.trajectory["observation_0"] == told
    assert '"value":5' in json.dumps(served.requests[1]["messages"][1]).replace("\\", "")


@pytest.mark.parametrize(
    ("choice", "mode"),
    [(None, "VALIDATED"), ("auto", "VALIDATED"), ("required", "ANY"), ("none", "NONE")],
)
def test_geminis_modes_that_hold_calls_to_their_schemas_are_asked_for(choice, mode):
    with (
        serve(ScriptedLM([FINISH])) as served,
        context(lm=served.lm(wire="gemini", strict_tools=True)),
    ):
        ReAct("question -> answer", [search], native=True, tool_choice=choice)(question="q?")
    assert served.requests[0]["toolConfig"] == {"functionCallingConfig": {"mode": mode}}


@pytest.mark.parametrize("wire", ["openai_chat", "anthropic"])
def test_a_tool_that_goes_without_strict_mode_is_logged_with_the_reason_once(wire, caplog):
    @tool(name=f"keep_for_{wire}")  # tools are lowered once in a process
    def keep(fields: dict[str, Any]) -> str:
        """Keep free fields."""
        return str(fields)

    caplog.set_level(logging.WARNING, "ferrule.models")
    script = [{"name": keep.name, "args": {"fields": {"a": 1}}}, FINISH]
    with serve(ScriptedLM(script)) as served, context(lm=served.lm(wire=wire, strict_tools=True)):
        ReAct("question -> answer", [search, keep], native=True)(question="q?")
    [record] = caplog.records
    assert (
        f"sent without strict mode: `{keep.name}` (/properties/fields: properties with names that the model chooses"
        in record.message
    )


def test_anthropics_limits_are_counted_before_anything_is_sent(caplog):
    schema = {"type": "object", "properties": {each: {"type": "string"} for each in "abcdefg"}}
    wide = [
        Tool(
            lambda **given: str(given),
            name=f"wide_{i}",
            description="Seven options.",
            schema=schema,
        )
        for i in range(5)
    ]
    caplog.set_level(logging.WARNING, "ferrule.models")
    with (
        serve(ScriptedLM([FINISH])) as served,
        context(lm=served.lm(wire="anthropic", strict_tools=True)),
    ):
        ReAct("question -> answer", wide, native=True, enable_user_clarification=False)(
            question="q?",
        )
    strict = [each["name"] for each in served.requests[0]["tools"] if each.get("strict")]
    assert strict == ["wide_0", "wide_1", "wide_2", "finish"]
    assert (
        "`wide_3` (the whole: other tools use up the limits of strict mode for one request"
        in caplog.text
    )
