"""Mistakes of users at the definition of a program: one short error each, which says what to write."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from ferrule import (
    Context,
    Limits,
    Predict,
    ReAct,
    Tool,
    Toolbox,
    ask,
    configure,
    context,
    deny,
    mcp,
    tool,
)
from ferrule.errors import ConfigurationError, FerruleError, ToolDefinitionError
from ferrule.testing import ScriptedLM

LONGEST = 250
"""The most characters of a short message."""


def look(place: str) -> str:
    """Look."""
    return place


def untyped(ctx, place: str) -> str:
    """Look."""
    return place


class Guide:
    def look(self, place: str) -> str:
        """Look."""
        return place

    @tool
    def watch(self, place: str) -> str:
        """Watch."""
        return place

    @staticmethod
    def glance(place: str) -> str:
        """Glance."""
        return place


MISTAKES: dict[str, tuple[Any, str]] = {
    "a method without its object": (
        lambda: ReAct("q -> a", [Guide.look]),
        r"`Guide\.look` is a method without its object: pass `Guide\(\.\.\.\)\.look`\.",
    ),
    "a tool of a class without its object": (
        lambda: ReAct("q -> a", [Guide.watch]),
        r"`Guide\.watch` is a method without its object",
    ),
    "a tool of a method without its object": (
        lambda: Toolbox([Tool(Guide.look)]),
        r"`Guide\.look` is a method without its object",
    ),
    "a condition of a tool without an argument": (
        lambda: Tool(look, require_confirmation=lambda: True),
        "`require_confirmation` of `look` takes one argument, the arguments of the call",
    ),
    "a condition of a tool with two arguments": (
        lambda: tool(look, require_confirmation=lambda args, call: True),
        r"which takes `\(args, call\)`",
    ),
    "a condition of a rule without an argument": (
        lambda: ask("look", place=lambda: True),
        "The condition on `place` takes one argument, the value",
    ),
    "a condition of a rule with two arguments": (
        lambda: deny("look", place=lambda place, other: True),
        "The condition on `place` takes one argument",
    ),
    "a filter of a server with two arguments": (
        lambda: mcp("http://localhost/mcp", allow=lambda tool, server: True),
        "takes one argument, the definition of a tool",
    ),
    "an observer without an argument": (
        lambda: configure(callbacks=[lambda: None]),
        "An observer in `callbacks` takes one argument, the event",
    ),
    "another library's way to choose tools": (
        lambda: ReAct("q -> a", [look], prepare_tools=lambda ctx, tools: tools),
        r"`prepare_tools` is not a setting of a model\. .*`tools_for=`.*`Load\(",
    ),
    "another library's way to pause": (
        lambda: ReAct("q -> a", [look], interrupt_before=["look"]),
        "`interrupt_before` is not a setting of a model.*require_confirmation",
    ),
    "the class of an agent": (
        lambda: ReAct("q -> a", [ReAct]),
        r"`ReAct` is a class, .*`ReAct\(\.\.\.\)\.as_tool\(",
    ),
    "the class of a predictor": (lambda: ReAct("q -> a", [Predict]), "`Predict` is a class"),
    "a context without a type": (lambda: Tool(untyped), "`untyped`: `ctx` has no type.*Context`"),
    "an option of a toolbox": (
        lambda: Toolbox([look], serach="bm25"),
        "`Toolbox` has no option `serach`. Did you mean `search`?",
    ),
    "a model without a name": (
        lambda: configure(ScriptedLM([])),
        r"`configure` takes settings by their names, such as `configure\(lm=\.\.\.\)`",
    ),
    "a model without a name, for a block": (
        lambda: context(ScriptedLM([])).__enter__(),
        "`context` takes settings by their names",
    ),
    "an option of a server": (
        lambda: mcp("http://localhost/mcp", timeout=3),
        "no option `timeout`. Did you mean `timeout_s`?",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_short_error_when_it_is_made(name):
    make, words = MISTAKES[name]
    with pytest.raises(FerruleError, match=words) as caught:
        make()
    assert isinstance(caught.value, (ConfigurationError, ToolDefinitionError))
    assert len(str(caught.value)) < LONGEST


def test_what_looks_like_a_mistake_and_is_none_works():
    def local(self: str) -> str:
        """Take an argument that is called self."""
        return self

    def typed(ctx: Context, place: str) -> str:
        """Look."""
        return place

    names = [
        each.name for each in ReAct("q -> a", [Guide().look, Guide.glance, local, typed]).toolbox
    ]
    assert names[:4] == ["look", "glance", "local", "typed"]


class Opaque:
    """An object without a form in JSON."""


class Told(Opaque):
    def __str__(self) -> str:
        return "told"


@pytest.mark.parametrize(
    ("value", "warns"),
    [
        (Opaque(), True),
        ([{"found": Opaque()}], True),
        (open, True),
        (Told(), False),
        ({"<b>": "<i>"}, False),
        ("<html>", False),
        (Limits(tool_calls=1), False),
    ],
    ids=["object", "inside", "function", "own text", "mapping", "text", "dataclass"],
)
def test_a_result_without_a_form_in_json_is_a_warning_that_names_the_tool(value, warns):
    def find() -> Any:
        """Find."""
        return value

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent = ReAct("q -> a", [find])
        agent(q="?", lm=ScriptedLM([{"name": "find"}, {"name": "finish", "args": {"a": "x"}}]))
    assert [str(each.message).partition(" returned")[0] for each in caught] == [
        "The tool `find`"
    ] * warns


def test_a_function_becomes_a_tool_with_options_in_one_call():
    """As `tool` does as a decorator, bare, with a name or with keywords."""
    assert [
        tool(look, name="glance").name,
        tool(look, description="See.").description,
        tool("glance")(look).name,
        tool(name="glance")(look).name,
        tool(look).name,
    ] == ["glance", "See.", "glance", "glance", "look"]
