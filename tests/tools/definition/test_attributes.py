"""What a run fills of a tool's parameters: a `Context`, and in seed 004's form the caller."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

import ferrule.values.calls.context as place
from ferrule.errors import ToolArgumentsError, ToolDefinitionError
from ferrule.tools.decorator import tool
from ferrule.tools.tool import Tool
from ferrule.values.calls.context import Context
from ferrule.values.calls.context import Context as Ctx

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal  # known to type checkers only


def first(ctx: Context, a: int, b: int = 2) -> Any:
    return ctx, a, b


def last(a: int, b: int = 2, ctx: Context | None = None) -> Any:
    return ctx, a, b


def middle(a: int, ctx: Context[str], b: int = 2) -> Any:
    return ctx, a, b


def by_name(a: int, *, ctx: Optional[Context], b: int = 2) -> Any:
    return ctx, a, b


def by_position(a: int, ctx: Context, b: int = 2, /) -> Any:
    return ctx, a, b


def with_others(a: int, ctx: Context, b: int = 2, **others: Any) -> Any:
    assert not others
    return ctx, a, b


def by_another_name(a: int, ctx: Ctx, b: int = 2) -> Any:
    return ctx, a, b


def by_module(a: int, ctx: place.Context[Any], b: int = 2) -> Any:
    return ctx, a, b


def of_a_type_that_is_not_known(a: int, ctx: Context[Decimal], b: int = 2) -> Any:
    return ctx, a, b


def with_metadata(a: int, ctx: Annotated[Context, "not shown"], b: int = 2) -> Any:
    return ctx, a, b


async def waiting(a: int, ctx: Context, b: int = 2) -> Any:
    return ctx, a, b


class Shelf:
    def method(self, a: int, ctx: Context, b: int = 2) -> Any:
        return ctx, a, b


FORMS: list[Callable[..., Any]] = [
    first, last, middle, by_name, by_position, with_others, by_another_name, by_module, of_a_type_that_is_not_known, with_metadata,
    Shelf().method,
]  # fmt: skip


@pytest.mark.parametrize("function", FORMS, ids=lambda each: each.__name__)
class TestAnyForm:
    def test_a_model_does_not_see_it(self, function: Callable[..., Any]) -> None:
        """api.md, 4; P12."""
        made = Tool(function)
        assert list(made.args) == ["a", "b"]
        assert "ctx" not in str(made.declaration)
        assert made.takes_context

    def test_a_model_cannot_fill_it(self, function: Callable[..., Any]) -> None:
        """api.md, 4; P15: also not where other names are welcome."""
        with pytest.raises(ToolArgumentsError):
            Tool(function).prepare({"a": 1, "ctx": {"deps": "evil"}})
        with pytest.raises(ToolArgumentsError):
            Tool(function).prepare({"a": 1, "ctx": Context(deps="evil")})

    def test_a_call_outside_a_run_gets_a_bare_one(self, function: Callable[..., Any]) -> None:
        """Defaults are applied beside it."""
        context, *rest = Tool(function)(a=1)
        assert (type(context), context.run_id, rest) == (Context, "", [1, 2])

    def test_a_caller_may_hand_one_over(self, function: Callable[..., Any]) -> None:
        """A tool can be tested alone, and is called as its signature says."""
        mine = Context(deps="mine")
        assert Tool(function)(a=1, ctx=mine) == (mine, 1, 2)
        assert asyncio.run(Tool(function).acall(a=1, ctx=mine)) == (mine, 1, 2)


def test_one_may_be_handed_over_by_position() -> None:
    mine = Context()
    assert tool(first)(mine, 1, 3) == (mine, 1, 3)
    assert tool(middle)(1, mine, b=3) == (mine, 1, 3)


def test_invoke_gives_one() -> None:
    made = Tool(middle)
    context, *rest = made.invoke(made.prepare({"a": 1}))
    assert (type(context), rest) == (Context, [1, 2])


def test_an_async_tool_gets_one() -> None:
    context, *rest = asyncio.run(Tool(waiting).acall(1))
    assert (type(context), rest) == (Context, [1, 2])


def test_what_a_partial_has_bound_stays_bound() -> None:
    mine = Context()
    made = Tool(functools.partial(middle, ctx=mine), "middle")
    assert not made.takes_context
    assert made(a=1) == (mine, 1, 2)


def test_a_tool_without_one_is_left_alone() -> None:
    """A tool that does not ask for it never sees the run."""
    assert not Tool(lambda a: a, "plain").takes_context


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"args": {"ctx": "the context"}}, id="args"),
        pytest.param({"arg_desc": {"ctx": "the context"}}, id="arg_desc"),
        pytest.param({"arg_types": {"ctx": str}}, id="arg_types"),
        pytest.param(
            {"schema": {"type": "object", "properties": {"a": {}, "ctx": {"type": "string"}}}},
            id="schema",
        ),
    ],
)
def test_nothing_can_be_said_of_it_to_a_model(said: dict[str, Any]) -> None:
    """api.md, 4: least of all that it exists."""
    with pytest.raises(ToolDefinitionError, match="`ctx`"):
        Tool(with_others, **said)


class TestSeed004:
    """Seed 004, lines 22 and 53."""

    def test_call_gives_its_caller_and_a_context(self) -> None:
        def act(caller: Any, a: int, ctx: Context) -> Any:
            return caller, a, ctx

        made = Tool("act", "Act.", act)
        assert list(made.args) == ["a"]
        agent = object()
        caller, a, context = asyncio.run(made.call(agent, a=1))
        assert (caller, a, type(context)) == (agent, 1, Context)

    def test_a_caller_that_must_be_given_by_position_comes_before_it(self) -> None:
        def act(self: Any, ctx: Context, a: int, /) -> Any:
            return self, ctx, a

        caller, context, a = asyncio.run(Tool("act", "Act.", act).call("agent", a=1))
        assert (caller, type(context), a) == ("agent", Context, 1)

    def test_the_caller_may_be_the_context(self) -> None:
        """One that asks for a `Context` gets that, and no agent."""

        def act(caller: Context, a: int) -> Any:
            return caller, a

        made = Tool("act", "Act.", act)
        assert list(made.args) == ["a"]
        caller, _ = made(a=1)
        assert type(caller) is Context
