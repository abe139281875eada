"""The programs of the tests with workers, as a file that `ferrule worker` loads.

What their tools do stands in a file, a line each time.

The model is scripted by how far the conversation is, so every process answers alike.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrule import Later, ReAct, ask, tool
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(os.environ.get("EFFECTS", "."))
TOOL_S = float(os.environ.get("TOOL_S", "0"))
SCRIPTS = {
    "pays": ["look", "charge", "pay"],
    "charges": ["charge"],
    "waits": ["linger"],
    "expires": ["soon"],
    "blocks": ["block"],
    "builds": ["build", "charge"],
    "leaves": ["leave"],
}


def did(what: str) -> None:
    with (FOLDER / "effects").open("a") as file:
        file.write(f"{what}\n")


@contextmanager
def in_flight(n: int) -> Iterator[None]:
    """Counts itself among the files of a folder, and notes how many there are."""
    mark = FOLDER / "flying" / f"{n}"
    mark.touch()
    with (FOLDER / "most").open("a") as file:
        file.write(f"{len(list(mark.parent.iterdir()))}\n")
    try:
        yield
    finally:
        mark.unlink()


@tool(effect="read")
def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


@tool
def charge(n: int) -> str:
    """Charge."""
    did(f"charge {n}")
    (FOLDER / "flying").mkdir(exist_ok=True)
    with in_flight(n):
        time.sleep(TOOL_S)
    return "charged"


@tool(require_confirmation=True)
def pay(n: int) -> str:
    """Pay."""
    did(f"pay {n}")
    return "paid"


@tool
def build(n: int) -> Later:
    """Begin a build, whose result comes later."""
    did(f"build {n}")
    return Later(key=f"build {n}")


@tool(effect="read")
async def linger(n: int) -> str:
    """Linger."""
    did(f"linger {n}")
    await asyncio.sleep(TOOL_S)
    return "over"


@tool(require_confirmation=ask(expires_s=1.0))
def soon(n: int) -> str:
    """Do it soon."""
    did(f"soon {n}")
    return "done"


@tool
async def block(n: int) -> str:
    """Block the event loop."""
    did(f"block {n}")
    time.sleep(TOOL_S)
    return "over"


@tool(effect="idempotent")
def leave(n: int) -> str:
    """Leave."""
    did(f"leave {n}")
    raise SystemExit(3)


class ByProgress(ScriptedLM):
    """Answers by the number of answers in the request, and by the task, `charges 7`."""

    def complete(self, request: Any) -> Any:
        """The next call of the script."""
        said = sum(message.role == "assistant" for message in request.messages)
        found = re.search(
            r"(pays|charges|waits|expires|blocks|builds|leaves) (\d+)", str(list(request.messages))
        )
        assert found is not None
        script = SCRIPTS[found[1]]
        step = (
            {"name": script[said], "args": {"n": int(found[2])}}
            if said < len(script)
            else {"name": "finish", "args": {"answer": "ok"}}
        )
        return ScriptedLM([step]).complete(request)


agent = ReAct("task -> answer", [look, charge, pay, build, linger, soon, block, leave])
agent.set_lm(ByProgress([]))
