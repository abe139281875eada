"""Several MCP servers at once."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Literal, Self

from msgspec import Struct

from ferrule.concurrency.offload import run_async
from ferrule.errors import ConfigurationError, MCPError, checks_keywords
from ferrule.mcp_bridge.client.mcp_server import MCPServer

if TYPE_CHECKING:
    from collections.abc import Iterable


log = logging.getLogger("ferrule.mcp")


class Skipped(Struct, frozen=True):
    """A server that could not be connected, and why."""

    server: MCPServer
    error: MCPError | ConfigurationError


class Connected(Struct, frozen=True):
    """Connected servers, and those that failed.

    A context manager, sync and async, that closes them all.
    """

    servers: tuple[MCPServer, ...]
    skipped: tuple[Skipped, ...] = ()

    async def aclose(self) -> None:
        """Close them all at once."""
        await asyncio.gather(*(server.aclose() for server in self.servers))

    def close(self) -> None:
        """`aclose` for sync code."""
        run_async(self.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


# "raise" by default: these servers were named in code, and a missing one is a mistake there. The
# servers of an editor's file are what a person set up for other programs, and some may not run
# here, so `MCPServer.load` skips by default.
async def aconnect_all(
    servers: Iterable[MCPServer], *, on_error: Literal["raise", "skip"] = "raise"
) -> Connected:
    """Connect servers and list their tools, all at the same time.

    If one fails, `raise` closes the others and raises its error; `skip` logs a warning and
    continues without it (`Connected.skipped`).
    """
    servers = tuple(servers)
    outcomes = await asyncio.gather(
        *(_connect_and_list(server) for server in servers), return_exceptions=True
    )
    skipped: list[Skipped] = []
    connected: list[MCPServer] = []
    for server, outcome in zip(servers, outcomes, strict=True):
        if outcome is None:
            connected.append(server)
        elif isinstance(outcome, MCPError | ConfigurationError) and on_error == "skip":
            log.warning("MCP server `%s` is left out: %s", server.name, outcome)
            skipped.append(Skipped(server, outcome))
        else:
            await asyncio.gather(*(started.aclose() for started in servers))
            raise outcome
    return Connected(tuple(connected), tuple(skipped))


@checks_keywords
def connect_all(
    servers: Iterable[MCPServer], *, on_error: Literal["raise", "skip"] = "raise"
) -> Connected:
    """`aconnect_all` for sync code."""
    return run_async(aconnect_all(servers, on_error=on_error))


async def _connect_and_list(server: MCPServer) -> None:
    await server.aconnect()
    await server.atools()
