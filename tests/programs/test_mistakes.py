"""Mistakes of users at the definition of a program: one short error each, which says what to write."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule import Context, Predict, ReAct, Tool, Toolbox, configure, context, mcp, tool
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

    @staticmethod
    def glance(place: str) -> str:
        """Glance."""
        return place


MISTAKES: dict[str, tuple[Any, str]] = {
    "a method without its object": (
        lambda: ReAct("q -> a", [Guide.look]),
        r"`Guide\.look` is a method without its object: pass `Guide\(\.\.\.\)\.look`\.",
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


def test_a_function_becomes_a_tool_with_options_in_one_call():
    """As `tool` does as a decorator, bare, with a name or with keywords."""
    assert [
        tool(look, name="glance").name,
        tool(look, description="See.").description,
        tool("glance")(look).name,
        tool(name="glance")(look).name,
        tool(look).name,
    ] == ["glance", "See.", "glance", "glance", "look"]
