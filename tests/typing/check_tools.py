"""What type checkers say of tools: they keep their function's types.

Checked by mypy; nothing here is executed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any, assert_type

from ferrule import Context, Tool, Toolbox, ToolResult, acall_tool, call_tool, tool


@tool
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


@tool(
    name="wipe",
    desc="Wipe.",
    require_confirmation=True,
    effect="once",
    timeout_s=3,
    concurrent=False,
)
def wipe(disk: str) -> bool:
    """Wipe."""
    return bool(disk)


@tool
async def fetch(url: str) -> bytes:
    """Fetch."""
    return url.encode()


def plain(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


@tool("renamed", "Another name.")
def other() -> None:
    """Other."""


async def what_must_check() -> None:
    assert_type(add(1), int)
    assert_type(add(a=1, b=2), int)
    assert_type(wipe("a"), bool)
    reading: Coroutine[Any, Any, bytes] = fetch("u")
    reading.close()
    assert_type(add.name, str)
    assert_type(await add.acall(1), int)
    assert_type(await fetch.acall("u"), bytes)
    assert_type(add.require_confirmation, Any)
    a_tool: Tool = add
    tools: list[Tool] = [add, wipe, fetch, other]
    Toolbox([*tools, len, lambda x: x, a_tool])
    Tool(len, name="length", arg_desc={"obj": "What to measure."})
    Tool("name", "description", len, {"type": "object"})
    Tool(name="name", callable=len)
    assert_type(Tool.load("folder", ["a", "b"]), list[Tool])
    assert_type(Tool.from_file("a.py"), Tool | None)
    ToolResult("name", "content", is_error=True)


class Shop:
    """What tools need."""


def first(ctx: Context[Shop], n: int) -> str:
    """Take a context in the first place."""
    return str(n)


@tool
def last(n: int, ctx: Context[Shop]) -> str:
    """Take a context in the last place."""
    return str(n)


async def pages(url: str) -> AsyncIterator[bytes]:
    """Read page by page."""
    yield url.encode()


async def calls_of_ones_own(remote: Tool, ctx: Context[Shop]) -> None:
    assert_type(call_tool(add, a=1), int)
    assert_type(call_tool(add, 1, b=2), int)
    assert_type(call_tool(plain, a=1), int)
    assert_type(call_tool(fetch, url="u"), bytes)
    assert_type(call_tool(pages, url="u"), list[bytes])
    assert_type(call_tool(first, n=1), str)
    assert_type(call_tool(last, n=1, ctx=ctx), str)
    assert_type(call_tool(remote, anything=1), Any)
    assert_type(await acall_tool(add, a=1), int)
    assert_type(await acall_tool(fetch, url="u"), bytes)
    assert_type(await acall_tool(pages, url="u"), list[bytes])
    assert_type(await acall_tool(first, n=1), str)
    assert_type(await acall_tool(remote, anything=1), Any)
    assert_type(add.call_result(a=1).text, str)


async def calls_that_do_not_fit() -> None:
    call_tool(add, a="one")  # type: ignore[call-overload]
    call_tool(add)  # type: ignore[call-overload]
    call_tool(plain, a=1, c=2)  # type: ignore[call-overload]
    call_tool(first, n="one")  # type: ignore[call-overload]
    await acall_tool(fetch, uri="u")  # type: ignore[call-overload]
    await acall_tool(add, a=1, b="two")  # type: ignore[call-overload]


def what_must_not() -> None:
    add("one")  # type: ignore[arg-type]
    add()  # type: ignore[call-arg]
    add(1, 2, 3)  # type: ignore[call-arg]
    add(a=1, c=2)  # type: ignore[call-arg]
    wipe(disk=1)  # type: ignore[arg-type]
    text: str = add(1)  # type: ignore[assignment]
    del text
    tool(effect="never")  # type: ignore[call-overload]
    tool(timeout_s="3")  # type: ignore[call-overload]
    Toolbox(3)  # type: ignore[arg-type]
    Tool(3)  # type: ignore[arg-type]
