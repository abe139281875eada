"""What a tool says of its effects, checked where it is made."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

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
    """R8, A10."""
    made = Tool(act)
    assert (made.effect, made.reconcile, made.unknown) == ("once", None, "ask")


def test_a_tool_may_say_how_it_is_found_out_and_what_is_done_if_not() -> None:
    """A10, R7, R9."""
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
        pytest.param({"effect": "transactional"}, "annotated `Context`", id="transactional without a context"),
    ],
)
def test_what_it_says_is_checked(said: dict[str, Any], problem: str) -> None:
    """Ours."""
    with pytest.raises(ToolDefinitionError, match=problem):
        Tool(act, **said)


def test_a_transactional_tool_is_a_plain_function() -> None:
    """A10: an async one would hold the database while it waits."""

    async def later(ctx: Context) -> None:
        await asyncio.sleep(0)

    assert Tool(write, effect="transactional").effect == "transactional"
    with pytest.raises(ToolDefinitionError, match="plain function"):
        Tool(later, effect="transactional")
