"""What type checkers say of `Context`. Checked by mypy; nothing here is executed."""

from __future__ import annotations

from typing import Any, assert_type

from ferrule import Context, NotDone, Unknown, tool


class Shop:
    """What the tools of a run need."""

    owner: str = "ann"


def check(key: str, n: int) -> int | type[NotDone | Unknown]:
    """Look for an order."""
    return n if key else NotDone


@tool(effect="idempotent", reconcile=check, unknown="tell")
def order(n: int, ctx: Context[Shop]) -> str:
    """Order."""
    assert_type(ctx.deps, Shop)
    assert_type(ctx.key, str)
    assert_type(ctx.cancelled, bool)
    return ctx.deps.owner * n


@tool(effect="transactional")
def write(n: int, ctx: Context) -> None:
    """Write."""
    assert_type(ctx.deps, Any)
    ctx.db.execute("INSERT INTO orders VALUES (?)", (n,))
    ctx.progress("half", done=1, total=2)


def what_must_check() -> None:
    assert_type(order(1, Context(deps=Shop())), str)


def what_must_not() -> None:
    tool(unknown="guess")  # type: ignore[call-overload]
    order(1, Context(deps="no shop"))  # type: ignore[arg-type]
