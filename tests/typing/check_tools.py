"""What type checkers say of tools: they keep their function's types. Checked by mypy; nothing here is executed."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from ferrule import Tool, Toolbox, ToolResult, tool


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
