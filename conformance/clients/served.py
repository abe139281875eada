"""What the foreign clients are pointed at: `ferrule serve served.py served.py:wise`; and `python served.py [PORT]`, whose list grows."""

from __future__ import annotations

import asyncio
import itertools
import sys

from pydantic import BaseModel

import ferrule
from ferrule import Predict, tool
from ferrule.mcp_bridge import MCPApp
from ferrule.testing import ScriptedLM

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
_LONG_S = 120
_cancelled: set[str] = set()
_numbers = itertools.count(1)


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    city: str


class Customer(BaseModel):
    """Who orders."""

    name: str
    address: Address
    tags: list[str] = []


class Book(BaseModel):
    """A book."""

    title: str
    pages: int


@tool
def order(customer: Customer, count: int) -> str:
    """Order some books."""
    return f"{count} for {customer.name} in {customer.address.city}: {', '.join(customer.tags)}"


@tool
def fail(number: int) -> str:
    """Fail."""
    msg = f"there is no order {number}"
    raise ValueError(msg)


@tool(require_confirmation=True)
def delete(title: str) -> str:
    """Delete a book."""
    return f"{title} is gone"


@tool
async def count(to: int) -> str:
    """Count, and report each number."""
    for number in range(1, to + 1):
        ferrule.progress(f"at {number}", done=number, total=to)
        await asyncio.sleep(0.05)
    return str(to)


@tool
async def wait(key: str) -> str:
    """Wait for two minutes."""
    try:
        await asyncio.sleep(_LONG_S)
    except asyncio.CancelledError:
        _cancelled.add(key)
        raise
    return "waited"


@tool
def was_cancelled(key: str) -> bool:
    """Whether a call of `wait` was cancelled."""
    return key in _cancelled


@tool
def picture() -> ferrule.Image:
    """Show a pixel."""
    return ferrule.Image(data=PIXEL)


@tool
def look_up(title: str) -> Book:
    """Find a book."""
    return Book(title=title, pages=474)


@tool
def pages(title: str) -> int:
    """Count the pages of a book."""
    return 100 * len(title)


wise = Predict("question -> answer")
ferrule.configure(
    lm=ScriptedLM(by=lambda _: "[[ ## answer ## ]]\nForty-two\n\n[[ ## completed ## ]]"),
)


def growing() -> MCPApp:
    """A server with a tool that adds tools."""
    app = MCPApp(name="growing")

    def grow() -> str:
        """Serve one tool more; returns its name."""
        name = f"grown_{next(_numbers)}"
        app.add(look_up, name)
        return name

    app.add(grow)
    return app


if __name__ == "__main__":
    if len(sys.argv) > 1:
        growing().run("http", port=int(sys.argv[1]))
    else:
        growing().run()
