"""A tool accepts what its schema allows and refuses the rest, as the package `jsonschema` judges,
whichever way the tool was made.

Repairs are the exception: what a tool changes to fit is named in `repairs`, and fits. `make fuzz`
tries more examples.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from generated_schemas import (
    functions_with_arguments,
    schemas_with_arguments,
    schemas_with_fitting_arguments,
)
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from ferrule import Tool
from ferrule.errors import ToolArgumentsError


def by_hand(schema: dict[str, Any]) -> Tool:
    def act(**given: Any) -> str:
        return str(given)

    return Tool(act, name="act", description="Act.", schema=schema)


def of_a_server(schema: dict[str, Any]) -> Tool:
    return Tool.from_mcp_tool(
        {"name": "act", "description": "Act.", "inputSchema": schema},
        "server",
    )


def assert_as_jsonschema_says(
    tool: Tool,
    schema: dict[str, Any],
    args: dict[str, Any],
    *,
    has_models: bool = False,
) -> None:
    judge = validator_for(schema, default=Draft202012Validator)(schema)
    is_valid = judge.is_valid(args)
    given = json.loads(json.dumps(args))
    try:
        found = tool.prepare(given)
    except ToolArgumentsError as error:
        assert not is_valid, f"refused: {error}"
        return
    if is_valid:
        assert found.repairs == ()
        assert has_models or found.shown == args, "changed"
    else:
        assert found.repairs, [each.message for each in judge.iter_errors(args)]
        assert judge.is_valid(found.shown), "repaired, and does not fit"


@pytest.mark.parametrize("made", [by_hand, of_a_server])
@settings(suppress_health_check=list(HealthCheck))
@given(schemas_with_arguments())
def test_arguments_for_a_schema_are_judged_as_jsonschema_does(
    made: Any,
    given: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    schema, several = given
    Draft202012Validator.check_schema(schema)
    tool = made(schema)
    for args in several:
        assert_as_jsonschema_says(tool, schema, args)


@pytest.mark.skipif(
    settings().max_examples < 1000,
    reason="hypothesis-jsonschema takes minutes for some schemas: `make fuzz` runs it",
)
@pytest.mark.parametrize("made", [by_hand, of_a_server])
@settings(max_examples=settings().max_examples // 4, suppress_health_check=list(HealthCheck))
@given(schemas_with_fitting_arguments())
def test_arguments_of_hypothesis_jsonschema_are_judged_as_jsonschema_does(
    made: Any,
    given: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    schema, several = given
    tool = made(schema)
    for args in several:
        assert_as_jsonschema_says(tool, schema, args)


@settings(suppress_health_check=list(HealthCheck))
@given(functions_with_arguments())
def test_arguments_for_types_are_judged_as_jsonschema_judges_the_schema_that_the_model_sees(
    given: tuple[Any, list[dict[str, Any]]],
) -> None:
    function, several = given
    tool = Tool(function, name="act", description="Act.")
    # A function takes no argument that it does not declare.
    schema = {**tool.declaration["function"]["parameters"], "additionalProperties": False}
    for args in several:
        assert_as_jsonschema_says(tool, schema, args, has_models=True)
