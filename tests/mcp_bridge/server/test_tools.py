"""Entries of `tools/list`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field
from typing_extensions import TypedDict

import ferrule
from ferrule import ChainOfThought, Image, Module, Predict, ReAct, Tool
from ferrule.encoding.encode import jsonable
from ferrule.mcp_bridge.server.tools import program_tool, serve_one, served_tools
from ferrule.testing import ScriptedLM
from ferrule.tools.mcp.result import output_problems
from ferrule.values.signatures.fields import InputField, OutputField
from ferrule.values.signatures.signature import Signature


class Point(BaseModel):
    x: int
    name: str = Field(serialization_alias="label", default="")


@dataclass
class Pair:
    left: int


class Row(TypedDict):
    cell: str


class Tree(BaseModel):
    children: list[Tree] = []


def returning(kind: object) -> Tool:
    def tool() -> object: ...

    tool.__annotations__["return"] = kind
    return Tool(tool)


@pytest.mark.parametrize(
    ("options", "annotations"),
    [
        pytest.param({}, None, id="nothing said"),
        pytest.param({"effect": "read"}, {"readOnlyHint": True}, id="reads"),
        pytest.param({"require_confirmation": True}, {"destructiveHint": True}, id="asks"),
        pytest.param(
            {"require_confirmation": lambda args: True},
            {"destructiveHint": True},
            id="asks at times",
        ),
        pytest.param({"effect": "idempotent"}, {"idempotentHint": True}, id="idempotent"),
        pytest.param(
            {"effect": "idempotent", "require_confirmation": True},
            {"destructiveHint": True, "idempotentHint": True},
            id="idempotent and asks",
        ),
    ],
)
def test_flags_become_hints_and_what_they_do_not_say_stays_open(
    options: dict,
    annotations: object,
) -> None:
    assert serve_one(Tool(lambda: 1, "t", **options)).entry["annotations"] == annotations


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        pytest.param(Point, ["x", "label"], id="model"),
        pytest.param(Pair, ["left"], id="dataclass"),
        pytest.param(Row, ["cell"], id="typed dict"),
        pytest.param(dict, None, id="dict"),
        pytest.param(dict[str, Any], None, id="dict of anything"),
        pytest.param(list, None, id="list"),
        pytest.param(list[Any], None, id="list of anything"),
        pytest.param(list[str | Image], None, id="list with parts"),
        pytest.param(Image, None, id="part"),
        pytest.param(Any, None, id="anything"),
        pytest.param(None, None, id="nothing"),
        pytest.param(Iterator[int], None, id="iterator"),
        pytest.param("Missing", None, id="unknown name"),
    ],
)
def test_objects_with_known_fields_promise_their_schema(
    kind: object,
    properties: list[str] | None,
) -> None:
    schema = serve_one(returning(kind)).entry.get("outputSchema")
    assert (list(schema["properties"]) if schema else None) == properties


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        pytest.param(int, {"type": "integer"}, id="int"),
        pytest.param(str, {"type": "string"}, id="str"),
        pytest.param(float | None, {"anyOf": [{"type": "number"}, {"type": "null"}]}, id="perhaps"),
        pytest.param(Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, id="choice"),
        pytest.param(
            list[Point],
            {"type": "array", "items": {"$ref": "#/$defs/Point"}},
            id="list of models",
        ),
        pytest.param(
            dict[str, list[int]],
            {
                "type": "object",
                "additionalProperties": {"type": "array", "items": {"type": "integer"}},
            },
            id="dict",
        ),
        pytest.param(
            Annotated[int, Field(ge=1)],
            {"type": "integer", "minimum": 1},
            id="annotated",
        ),
    ],
)
def test_plain_results_promise_an_object_with_the_result(
    kind: object,
    schema: dict[str, Any],
) -> None:
    """As the SDK's and FastMCP's servers do."""
    promised = serve_one(returning(kind)).entry["outputSchema"]
    assert (promised["type"], promised["required"], list(promised["properties"])) == (
        "object",
        ["result"],
        ["result"],
    )
    assert {**promised["properties"]["result"], "title": ""} == {**schema, "title": ""}


class Tagged(BaseModel):
    tags: set[str] = {f"tag {i}" for i in range(20)}
    limit: float = float("inf")


@dataclass
class Total:
    parts: list[int]
    sum: int = field(init=False, default=0)


def test_a_default_in_a_promised_schema_is_json_and_equal_in_every_process() -> None:
    """A client that pins definitions saw another one at each start of the server."""
    properties = serve_one(returning(Tagged)).entry["outputSchema"]["properties"]
    assert properties["tags"]["default"] == sorted(Tagged().tags)
    assert properties["limit"]["default"] == "Infinity"
    assert list(serve_one(returning(Total)).entry["outputSchema"]["properties"]) == ["parts", "sum"]


def test_a_schema_whose_top_is_a_reference_is_not_promised() -> None:
    """Until 2025-11-25 an output schema is an object at its top."""
    assert serve_one(returning(Tree)).output_schema is None


def test_a_schema_given_by_hand_goes_out_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$anchor": "x", "type": "string"}},
        "if": {"required": ["a"]},
        "then": {},
    }
    assert serve_one(Tool("t", "d", lambda **given: given, schema)).entry["inputSchema"] == schema


def test_an_object_is_an_object_even_where_a_schema_does_not_say_so() -> None:
    """`type: object` guaranteed."""
    assert (
        serve_one(Tool("t", "d", lambda **given: given, {"properties": {}})).entry["inputSchema"][
            "type"
        ]
        == "object"
    )


def test_a_tool_of_another_server_goes_out_as_that_server_gave_it() -> None:
    entry = {
        "name": "read-page",
        "title": "Read",
        "description": "Reads.",
        "inputSchema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"n": {"type": ["integer", "null"]}},
        },
        "outputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
        "_meta": {"a": 1},
    }
    assert serve_one(Tool.from_mcp_tool(entry, "book")).entry == entry


@pytest.mark.parametrize(
    ("given", "on_wire"),
    [pytest.param("a.b", "a.b", id="dotted"), pytest.param("größer als", None, id="foreign")],
)
def test_names_that_the_protocol_does_not_know_go_out_as_wire_names(
    given: str,
    on_wire: str | None,
) -> None:
    tool = Tool(lambda: 1, given)
    assert serve_one(tool).name == (on_wire or tool.wire_name)


class QA(Signature):
    """Answer the question."""

    question: str = InputField(desc="what is asked")
    k: int = InputField(default=3)
    answer: str = OutputField()
    score: float = OutputField()


@pytest.mark.parametrize(
    "make",
    [Predict, ChainOfThought, lambda signature: ReAct(signature, [])],
    ids=["Predict", "ChainOfThought", "ReAct"],
)
def test_a_program_is_a_tool_whose_arguments_are_its_inputs(make) -> None:
    one = serve_one(make(QA), "ask")
    entry = one.entry
    assert (entry["name"], entry["description"]) == ("ask", "Answer the question.")
    assert entry["inputSchema"]["required"] == ["question"]
    assert entry["inputSchema"]["properties"]["question"] == {
        "type": "string",
        "description": "what is asked",
    }
    assert entry["inputSchema"]["properties"]["k"] == {"type": "integer", "default": 3}
    assert {"answer", "score"} <= set(entry["outputSchema"]["properties"])


class Shout(Module):
    """Says it loudly."""

    def forward(self, text: str, times: int = 1) -> str:
        return text.upper() * times


def test_a_program_in_plain_python_promises_what_its_forward_returns() -> None:
    assert serve_one(Shout()).entry["outputSchema"]["properties"]["result"]["type"] == "string"


class Later(Module):
    async def aforward(self, text: str) -> str:
        """Says it later."""
        return text


@pytest.mark.parametrize(
    ("program", "description", "names"),
    [
        pytest.param(Shout(), "Says it loudly.", ["text", "times"], id="sync"),
        pytest.param(Later(), "Says it later.", ["text"], id="async"),
    ],
)
def test_a_program_in_plain_python_takes_the_parameters_of_its_forward(
    program: Module,
    description: str,
    names: list[str],
) -> None:
    tool = program_tool(program)
    assert tool.name == type(program).__name__.lower()
    assert tool.desc == description
    assert list(tool.parameters["properties"]) == names


def test_what_is_served_already_stays_what_it_is() -> None:
    one = serve_one(ferrule.Tool(lambda: 1, "t"))
    assert served_tools([one]) == {"t": one}


def test_a_program_that_is_a_tool_already_is_served_under_its_name() -> None:
    """All outputs by name, as of any served program."""
    one = serve_one(Predict(QA).as_tool("ask", "Asks.", timeout_s=5))
    assert (one.name, one.tool.desc, one.tool.timeout_s) == ("ask", "Asks.", 5)
    assert one.entry["inputSchema"]["required"] == ["question"]
    assert set(one.entry["outputSchema"]["properties"]) == {"answer", "score"}


ADA = {"person": {"name": "Ada"}}


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(serialization_alias="label")

    @computed_field
    @property
    def letters(self) -> int:
        return len(self.name)


def test_the_outputs_of_a_program_fit_the_schema_that_they_promise() -> None:
    """Each result was an error if a model writes other names than it reads, or more."""
    program = Predict(
        Signature({"text": InputField(), "person": (Person, OutputField())}),
        lm=ScriptedLM([{"outputs": ADA}]),
    )
    entry = serve_one(program).entry
    assert (
        output_problems({"person": jsonable(program(text="Ada").person)}, entry["outputSchema"])
        == ()
    )
    assert entry["outputSchema"]["required"] == []


def test_a_program_is_named_by_its_signature_or_by_its_class() -> None:
    """As `as_tool()` does."""
    assert serve_one(Predict(QA)).name == "qa"
    assert serve_one(ChainOfThought("question -> answer")).name == "chain_of_thought"
    assert (
        serve_one(Predict(QA, name="look-Up")).name
        == Predict(QA, name="look-Up").as_tool().name
        == "look-Up"
    )
