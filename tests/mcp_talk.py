"""The SDK's own client, talking to an `MCPApp` in this process: what a server says is not judged by
a client of ours.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

ERAS = ("2025-11-25", "2026-07-28")


def client(app: Any, era: str, **callbacks: Any) -> Any:
    """A client that is not connected yet, of one era."""
    from mcp import Client

    return Client(app.server, mode="legacy" if era == ERAS[0] else "auto", **callbacks)


def talk(app: Any, era: str, act: Any, **callbacks: Any) -> Any:
    """Connect, do what is to be done with the client, and give what came of it."""

    async def run() -> Any:
        async with asyncio.timeout(30):
            async with client(app, era, **callbacks) as connected:
                return await act(connected)

    return asyncio.run(run())


def call(
    app: Any,
    era: str,
    name: str,
    arguments: dict[str, Any] | None = None,
    **callbacks: Any,
) -> Any:
    """One call and its result."""

    async def act(connected: Any) -> Any:
        return await connected.call_tool(name, arguments or {})

    return talk(app, era, act, **callbacks)


def refusal(
    app: Any,
    era: str,
    name: str,
    arguments: dict[str, Any] | None = None,
    **callbacks: Any,
) -> Any:
    """The error of the protocol that a call is answered with."""
    from mcp.shared.exceptions import MCPError

    async def act(connected: Any) -> Any:
        with pytest.raises(MCPError) as raised:
            await connected.call_tool(name, arguments or {})
        return raised.value.error

    return talk(app, era, act, **callbacks)


def text(result: Any) -> str:
    """The text of a result that is one text block."""
    (block,) = result.content
    return block.text
