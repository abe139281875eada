"""What a tool says of its effects, checked where it is made."""

from __future__ import annotations

import asyncio
import pickle
import re
from typing import Any

import pytest

from ferrule.approval.policy import allow, deny
from ferrule.errors import ToolDefinitionError
from ferrule.tools.decorator import tool
from ferrule.tools.tool import Tool
from ferrule.values.calls.context import Context


def act(n: int) -> int:
    return n


def check(key: str, n: int) -> int:
    return n


def write(ctx: Context, n: int) -> int:
    return n


def test_a_tool_that_says_nothing_may_have_any_effect() -> None:
    made = Tool(act)
    assert (made.effect, made.reconcile, made.unknown) == ("once", None, "ask")


def test_a_tool_may_say_how_it_is_found_out_and_what_is_done_if_not() -> None:
    made = tool(effect="idempotent", reconcile=check, unknown="tell")(act)
    assert (made.effect, made.reconcile, made.unknown) == ("idempotent", check, "tell")
    assert made.model_copy(update={"name": "other"}).reconcile is check
    assert pickle.loads(pickle.dumps(made)) == made
    assert made.dump_state()["unknown"] == "tell"


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        pytest.param({"effect": "twice"}, "`effect` of `act`", id="effect"),
        pytest.param({"unknown": "guess"}, "`unknown` of `act`", id="unknown"),
        pytest.param({"reconcile": "check"}, "`reconcile` of `act`", id="reconcile"),
        pytest.param({"name": 5}, "name must be text, found 5", id="name"),
        pytest.param(
            {"require_confirmation": deny()},
            "`require_confirmation` of `act`",
            id="a rule that denies",
        ),
        pytest.param(
            {"require_confirmation": allow()},
            "`require_confirmation` of `act`",
            id="a rule that allows",
        ),
        pytest.param(
            {"require_confirmation": "destuctive"},
            "`require_confirmation` of `act` must be one of 'destructive', 'host'",
            id="a word",
        ),
        pytest.param(
            {"effect": "transactional"},
            "annotated `Context`",
            id="transactional without a context",
        ),
    ],
)
def test_what_it_says_is_checked(said: dict[str, Any], problem: str) -> None:
    with pytest.raises(ToolDefinitionError, match=problem):
        Tool(act, **said)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("require_confirm", "require_confirmation"), ("timeout", "timeout_s"), ("descr", "desc")],
)
def test_a_misspelled_option_is_refused_with_the_nearest_one(wrong: str, meant: str) -> None:
    given: dict[str, Any] = {wrong: 3}
    with pytest.raises(
        ToolDefinitionError,
        match=f"no option `{wrong}` \\(did you mean `{meant}`\\?\\)",
    ):
        Tool(act, **given)
    with pytest.raises(ToolDefinitionError, match="no option `colour`"):
        tool(colour=3)(act)


def test_a_transactional_tool_is_a_plain_function() -> None:
    """An async one would hold the database while it waits."""

    async def later(ctx: Context) -> None:
        await asyncio.sleep(0)

    assert Tool(write, effect="transactional").effect == "transactional"
    with pytest.raises(ToolDefinitionError, match="plain function"):
        Tool(later, effect="transactional")


@pytest.mark.parametrize("key", ["properties", "patternProperties", "$defs", "definitions"])
def test_a_place_of_schemas_by_name_in_a_given_schema_is_an_object(key: str) -> None:
    with pytest.raises(
        ToolDefinitionError,
        match=re.escape(f"it has 5 for `{key}`, which must be an object"),
    ):
        Tool("act", schema={key: 5})


@pytest.mark.parametrize("key", ["enum", "anyOf", "oneOf", "allOf"])
def test_alternatives_in_a_given_schema_are_a_list(key: str) -> None:
    with pytest.raises(
        ToolDefinitionError,
        match=f"properties/a has 5 for `{key}`, which must be a list",
    ):
        Tool("act", schema={"properties": {"a": {key: 5}}})


def test_a_function_is_given_once() -> None:
    """`func` and `callable` are two names of one option."""
    with pytest.raises(
        ToolDefinitionError, match=r"two values for `func`.*as `func`.*as `callable`"
    ):
        Tool(func=act, callable=check)


@pytest.mark.parametrize(
    "make",
    [
        Tool,
        lambda made: Tool(made, "pay"),
        lambda made: Tool("pay", None, made),
        tool,
        tool(name="pay"),
    ],
    ids=range(5),
)
def test_a_tool_is_not_made_of_a_tool(make: Any) -> None:
    """It would have the description of the class `Tool`, and neither the confirmation nor the
    effect of the first one.
    """
    with pytest.raises(ToolDefinitionError, match=r"`act` is a tool already.*model_copy"):
        make(Tool(act, require_confirmation=True))
    assert (
        Tool(act, require_confirmation=True).model_copy(update={"name": "pay"}).require_confirmation
        is True
    )


# -- results from outside


def stub(n: int) -> int:
    """Count."""


async def async_stub(n: int) -> int: ...


def passing(n: int) -> None:
    pass


@pytest.mark.parametrize("function", [stub, async_stub, passing, lambda n: None])
def test_the_function_of_a_result_from_outside_is_a_stub(function: Any) -> None:
    made = Tool(function, name="counted", result="outside", within_s=5)
    assert (made.result, made.within_s) == ("outside", 5.0)
    assert made.model_copy(update={"name": "other"}).result == "outside"
    assert made.dump_state()["result"] == "outside"


async def waiting(n: int) -> None:
    await asyncio.sleep(n)


@pytest.mark.parametrize("function", [act, check, waiting, lambda n: str(n), len])
def test_a_function_that_does_something_is_not_silently_left_uncalled(function: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="never called"):
        Tool(function, name="counted", args={"n": {}}, result="outside")


def test_a_tool_without_a_function_has_the_arguments_that_it_names() -> None:
    made = Tool(
        name="count",
        args={"n": "How many.", "unit": {"type": "string", "enum": ["m", "km"]}},
        arg_types={"n": int},
        result="outside",
        returns={"type": "object"},
    )
    assert made.schema["properties"]["n"] == {"type": "integer", "description": "How many."}
    assert made.schema["properties"]["unit"] == {"type": "string", "enum": ["m", "km"]}
    assert made.schema["required"] == ["n", "unit"]
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        pytest.param({"result": "elsewhere"}, "`result` of `stub`", id="unknown word"),
        pytest.param({"result": "outside", "within_s": 0}, "`within_s` of `stub`", id="no time"),
        pytest.param({"result": "outside", "returns": int}, "annotation", id="type given twice"),
        pytest.param({"within_s": 5}, "`within_s` of `stub`", id="deadline of a function"),
        pytest.param({"returns": int}, "`returns` of `stub`", id="type of a function"),
        pytest.param({"result": "outside", "effect": "transactional"}, "runs nothing", id="effect"),
    ],
)
def test_options_of_a_result_from_outside_that_contradict_are_refused(
    said: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ToolDefinitionError, match=problem):
        Tool(stub, **said)


@pytest.mark.parametrize("returns", ["int", 5, {"type": "number", "minimum": "0"}])
def test_the_declared_type_of_a_result_is_a_type_or_a_schema(returns: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=r"result|returns"):
        Tool(name="count", result="outside", returns=returns)


def test_a_decorator_that_decorates_nothing_is_not_a_tool() -> None:
    with pytest.raises(ToolDefinitionError, match="is a decorator"):
        Tool(tool(name="count", args={"n": {}}, result="outside"))
