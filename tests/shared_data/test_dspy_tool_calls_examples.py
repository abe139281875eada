"""The code blocks of DSPy's ToolCalls reference, executed as printed, and what its printed source
promises.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from typing import Any

import pytest
from shared_files import shared_file

import ferrule
from ferrule import InputField, OutputField, Predict, Response, Signature, Tool, ToolCalls, Type
from ferrule.testing import ScriptedLM

PAGE = shared_file("seeds/002_56d3034a3c9c455f.txt")


def lines(first: int, last: int) -> str:
    return textwrap.dedent(
        "\n".join(PAGE.read_text(encoding="utf-8").splitlines()[first - 1 : last]),
    )


def printed(first: int, last: int) -> list[str]:
    """The parameters of a class method as the page prints it (its page lost the blank behind
    `def`).
    """
    code = lines(first, last).replace("def", "def ", 1) + "\n    ..."
    [found] = ast.parse(code).body
    assert isinstance(found, ast.FunctionDef)
    return [each.arg for each in found.args.args if each.arg != "cls"]


def test_the_example_makes_calls_of_a_list_of_dicts() -> None:
    """Lines 169-173."""
    namespace: dict[str, Any] = {"ToolCalls": ToolCalls}
    exec(lines(169, 173), namespace)
    calls = namespace["tool_calls"].tool_calls
    assert [(call.name, call.args) for call in calls] == [
        ("search", {"query": "hello"}),
        ("translate", {"text": "world"}),
    ]


METHODS = {
    "adapt_to_native_lm_feature": (62, 69),
    "extract_custom_type_from_annotation": (108, 109),
    "from_dict_list": (180, 181),
    "parse_lm_response": (238, 239),
    "parse_stream_chunk": (272, 273),
    "validate_input": (307, 308),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_printed_class_method_takes_the_printed_parameters(name: str) -> None:
    """Names and order."""
    assert list(inspect.signature(getattr(ToolCalls, name)).parameters) == printed(*METHODS[name])
    assert inspect.ismethod(getattr(ToolCalls, name))


def test_it_is_a_type_and_describes_itself() -> None:
    """Line 18 (`Bases: Type`), lines 93-98."""
    assert issubclass(ToolCalls, Type)
    description = ToolCalls.description()
    assert description.startswith("Tool calls information, including the name of the tools")
    assert "Arguments must be provided in JSON format" in description
    assert ToolCalls.is_streamable() is False
    assert ToolCalls.parse_lm_response("text") is None
    assert ToolCalls.parse_stream_chunk(object()) is None
    signature = Signature("question -> calls: ToolCalls")
    settings = {"temperature": 0}
    assert ToolCalls.adapt_to_native_lm_feature(signature, "calls", None, settings) is signature
    assert settings == {"temperature": 0}


def test_types_are_found_however_deep_they_stand() -> None:
    """Lines 110-114, with the printed `list[dict[str, Tool]]`."""
    annotation = eval("list[dict[str, Tool]]", {"Tool": Tool})
    assert Tool.extract_custom_type_from_annotation(annotation) == [Tool]
    assert Type.extract_custom_type_from_annotation(dict[str, list[ToolCalls | Tool]]) == [
        ToolCalls,
        Tool,
    ]


def test_format_is_compatible_with_openais_shape() -> None:
    """Lines 140-144; the same is dumped (lines 292-298)."""
    calls = ToolCalls.from_dict_list([{"name": "search", "args": {"query": "hello"}}])
    assert calls.format() == {
        "tool_calls": [
            {"type": "function", "function": {"name": "search", "arguments": '{"query":"hello"}'}},
        ],
    }
    assert calls.model_dump() == calls.format()
    assert ToolCalls.model_validate(json.loads(calls.model_dump_json())) == calls


CALL = {"name": "search", "args": {"query": "hello"}}
TAKEN = {
    "itself (311)": ToolCalls.from_dict_list([CALL]),
    "a list (315-316)": [CALL],
    "a dict with tool_calls (320-328)": {"tool_calls": [CALL]},
    "calls in it (326)": {"tool_calls": [ToolCalls.ToolCall(**CALL)]},
    "a single call (329-331)": CALL,
}


@pytest.mark.parametrize("data", TAKEN.values(), ids=TAKEN)
def test_every_printed_form_of_input_is_taken(data: Any) -> None:
    """Lines 308-331; D29: `ToolCalls.ToolCall` is `ToolCall`."""
    assert ToolCalls.model_validate(data) == ToolCalls(tool_calls=[ferrule.ToolCall(**CALL)])


@pytest.mark.parametrize(
    "data",
    [None, 5, "search", {"name": 5}, {"tool_calls": 5}, [5]],
    ids=range(6),
)
def test_anything_else_is_refused_in_the_printed_words(data: Any) -> None:
    """Line 333."""
    with pytest.raises(ValueError, match="Received invalid value for "):
        ToolCalls.model_validate(data)


def test_a_users_own_type_works_in_a_signature() -> None:
    """Described to the model, formatted in the prompt, read from the answer."""

    class Place(Type):
        city: str

        @classmethod
        def description(cls) -> str:
            return "somewhere on the map"

        def format(self) -> str:
            return f"<{self.city}>"

    class Move(Signature):
        """Move."""

        here: Place = InputField()
        there: Place = OutputField()

    lm = ScriptedLM(['[[ ## there ## ]]\n{"city": "Oslo"}\n\n[[ ## completed ## ]]'])
    assert Predict(Move)(here=Place(city="Rome"), lm=lm).there == Place(city="Oslo")
    prompt = "".join(message.text for message in lm.requests[0].messages)
    assert "somewhere on the map" in prompt
    assert "<Rome>" in prompt


def test_calls_are_an_output_of_a_signature() -> None:
    """The summary (line 8): signature adaptation and reading the model's response."""
    lm = ScriptedLM([Response(tool_calls=(ferrule.ToolCall(**CALL),))])
    program = Predict("question, tools: list[Tool] -> calls: ToolCalls", native=True)
    prediction = program(
        question="q",
        tools=[{"name": "search", "description": "", "parameters": {}}],
        lm=lm,
    )
    assert prediction.calls == ToolCalls.from_dict_list([CALL])


def test_calls_run_where_their_functions_are_named() -> None:
    """By name, or as a list of tools, which check; results in order."""

    def search(query: str) -> str:
        """Search."""
        return f"found {query}"

    calls = ToolCalls.from_dict_list([CALL, {"name": "nosuch", "args": {}}])
    assert (
        calls.tool_calls[0].execute({"search": search})
        == calls.tool_calls[0].execute([Tool(search)])
        == "found hello"
    )
    with pytest.raises(ValueError, match="nosuch"):
        calls.tool_calls[1].execute([Tool(search)])
    assert [result.is_error for result in calls.execute_all([search])] == [False, True]
