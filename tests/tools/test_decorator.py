"""udspy's decorator."""

from __future__ import annotations

import asyncio
import pydoc

import pytest
from agent_script import native_step

from ferrule import (
    ConfirmationRejected,
    ConfirmationRequired,
    ReAct,
    Tool,
    confirm_first,
    context,
    respond_to_confirmation,
    tool,
)
from ferrule.errors import ToolDefinitionError
from ferrule.testing import ScriptedLM
from ferrule.tools.definition.options import DecoratorOptions, ToolOptions

RAN: list[str] = []


@confirm_first
def rm(path: str, deep: bool = False) -> str:
    """Remove."""
    RAN.append(f"{path} {deep}")
    return path


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def test_a_function_asks_before_it_runs_and_stays_a_function() -> None:
    assert rm.__name__ == "rm"
    with pytest.raises(
        ConfirmationRequired,
        match=r'Confirm execution of rm with args: \{"path":"a","deep":false\}',
    ) as raised:
        rm("a")
    assert RAN == []
    respond_to_confirmation(raised.value.confirmation_id, data={"deep": True})
    assert rm("a") == "a"
    assert RAN == ["a True"]
    with pytest.raises(ConfirmationRequired) as again:
        rm("a")
    respond_to_confirmation(again.value.confirmation_id, approved=False)
    with pytest.raises(ConfirmationRejected):
        rm("a")


def test_an_async_function_stays_async() -> None:
    @confirm_first
    async def fetch(url: str) -> str:
        """Fetch."""
        return url

    async def carry() -> str:
        with pytest.raises(ConfirmationRequired) as raised:
            await fetch("a")
        respond_to_confirmation(raised.value.confirmation_id)
        return await fetch("a")

    assert asyncio.run(carry()) == "a"


@pytest.mark.parametrize(
    "make",
    [tool(), Tool, lambda f: confirm_first(tool(rm.__wrapped__))],
    ids=["decorator", "constructor", "tool"],
)
def test_a_tool_made_of_it_asks_by_itself(make) -> None:
    """In a program the question is the run's, as with `require_confirmation=True`."""
    made = make(rm)
    assert made.require_confirmation is True
    with context(
        lm=ScriptedLM(
            [native_step("", "rm", {"path": "a"}), native_step("", "finish", {"answer": "ok"})],
        ),
    ):
        agent = ReAct("task -> answer", [made])
        with pytest.raises(ConfirmationRequired) as raised:
            agent(task="x")
        assert agent.resume("yes", raised.value).answer == "ok"
    assert RAN == ["a False"]


OPTIONS = [
    *("name", "description", "args", "arg_types", "arg_desc", "desc", "schema", "mcp_server"),
    *("require_confirmation", "effect", "reconcile", "unknown", "timeout_s", "concurrent"),
    "retries",
    *("result", "within_s", "untrusted"),
]


@pytest.mark.parametrize(
    ("made", "options"),
    [(Tool, ["func_or_name", "func", "callable", "mcp", "returns", *OPTIONS]), (tool, OPTIONS)],
)
def test_help_describes_every_option(made, options):
    """`help(ferrule.Tool)` and `help(ferrule.tool)`."""
    page = pydoc.render_doc(made, renderer=pydoc.plaintext)
    _, _, described = page.partition("Args:")
    described = described.partition("Raises:")[0]
    assert [name for name in options if f" {name}: " not in described] == []


def test_a_decorated_function_takes_every_option_that_a_tool_takes():
    of_tool, of_decorator = ToolOptions.__annotations__, DecoratorOptions.__annotations__
    others = {"name", "description", "func", "callable", "mcp", "returns"}
    assert of_tool.keys() - of_decorator.keys() == others
    assert all(of_decorator[name] == of_tool[name] for name in of_decorator)
    assert {*OPTIONS} == of_decorator.keys() | {"name", "description"}
    with pytest.raises(ToolDefinitionError, match="`confirm`"):
        tool(confirm=True)(len)
