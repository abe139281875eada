"""Tools whose calls become tasks, as the extension `io.modelcontextprotocol/tasks` has it."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from questions import form, once

LONG_S = 1.0
"""Long enough that a call becomes a task."""


def greet(name: str) -> str:
    """Greet, at once."""
    return f"Hello, {name}!"


async def slow_compute(seconds: float = 0, label: str = "") -> str:
    """Take its time."""
    await asyncio.sleep(seconds)
    return f"{label} took {seconds:g} s"


async def failing_job() -> str:
    """Fail after a while."""
    await asyncio.sleep(LONG_S)
    msg = "This job intentionally fails"
    raise RuntimeError(msg)


async def protocol_error_job() -> str:
    """Fail with an error of the protocol."""
    await asyncio.sleep(LONG_S)
    raise MCPError(INTERNAL_ERROR, "This job intentionally breaks")


async def confirm_delete(filename: str) -> Any:
    """Ask after a while."""
    await asyncio.sleep(LONG_S)
    found = once({"confirm": form(f"Delete {filename}?", "confirm", "boolean")})
    return f"{filename} is gone" if isinstance(found, dict) else found


async def multi_input() -> Any:
    """Ask two things after a while."""
    await asyncio.sleep(LONG_S)
    found = once({"first": form("Who?", "name"), "second": form("Sure?", "confirm", "boolean")})
    return "all answered" if isinstance(found, dict) else found


async def test_tool_with_task() -> Any:
    """Ask at once, and work with the answer."""
    found = once({"user_name": form("What is your name?", "name")})
    if not isinstance(found, dict):
        return found
    await asyncio.sleep(LONG_S)
    return f"Hello, {(found['user_name'].content or {}).get('name')}!"


LONG = [
    greet,
    slow_compute,
    failing_job,
    protocol_error_job,
    confirm_delete,
    multi_input,
    test_tool_with_task,
]
SUPPORT = {each.__name__: "optional" for each in LONG[1:]} | {
    "failing_job": "required",
    "test_tool_with_task": "required",
}
