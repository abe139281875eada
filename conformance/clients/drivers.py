"""Foreign clients of Python by remote control: `python drivers.py CLIENT TARGET`, in the environment of that client, without ferrule.

Requests are lines of JSON on stdin, and each is answered with one line on stdout; see `serve`. Each
client is used as its documentation has it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import frameworks
import sdks

CHANGES_WITHIN_S = 10


async def answer(session: sdks.Session, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request."""
    match request["do"]:
        case "list":
            return {"tools": await session.list()}
        case "call":
            session.seen.progress.clear()
            return {
                **await session.call(request["name"], request["args"]),
                "progress": list(session.seen.progress),
            }
        case "cancel":
            await session.cancel(request["name"], request["args"])
            return {}
        case _:
            async with asyncio.timeout(CHANGES_WITHIN_S):
                await session.seen.changed.wait()
            return {}


async def serve(client: str, target: dict[str, Any]) -> None:
    """Connect, and answer requests until stdin ends."""
    loop = asyncio.get_running_loop()
    async with (getattr(sdks, client, None) or getattr(frameworks, client))(
        target,
        sdks.Seen(),
    ) as session:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                found = await answer(session, json.loads(line))
            except Exception as error:  # noqa: BLE001  the other side judges it
                found = {"raised": f"{type(error).__name__}: {error}"}
            ANSWERS.write(json.dumps(found, default=str) + "\n")
            ANSWERS.flush()


ANSWERS = sys.stdout

if __name__ == "__main__":
    sys.stdout = sys.stderr
    asyncio.run(serve(sys.argv[1], json.loads(sys.argv[2])))
