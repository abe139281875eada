"""The Python SDK and FastMCP as drivers: sessions that list and call, in the environment of the client, without ferrule."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

CANCEL_AFTER_S = 0.5
APPROVED = {"approve": True}


class Seen:
    """What the server sent beside its answers."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.progress: list[Any] = []

    async def message(self, message: Any) -> None:
        """A notification, in whatever object the client passes it."""
        if (
            "ToolListChanged"
            in f"{type(message).__name__} {type(getattr(message, 'root', None)).__name__}"
        ):
            self.changed.set()

    async def note(self, done: float, *_: Any) -> None:
        """Progress."""
        self.progress.append(done)


def plain(result: Any) -> dict[str, Any]:
    """A result of any SDK: text, pictures, structured value, error."""
    blocks = [each.model_dump(by_alias=True) for each in result.content]
    found = {
        key: getattr(result, key)
        for key in ("is_error", "isError", "structured_content", "structuredContent")
        if hasattr(result, key)
    }
    return {
        "text": "\n".join(each["text"] for each in blocks if each["type"] == "text"),
        "images": [each["data"] for each in blocks if each["type"] == "image"],
        "structured": found.get("structured_content", found.get("structuredContent")),
        "error": bool(found.get("is_error", found.get("isError"))),
    }


def schemas(tools: Any) -> dict[str, Any]:
    """The tools of any SDK, with their schemas."""
    return {
        each.name: getattr(each, "inputSchema", None) or getattr(each, "input_schema", None)
        for each in tools
    }


class Session:
    """One session of the Python SDK; other clients override what is theirs."""

    def __init__(self, inner: Any, seen: Seen) -> None:
        self.inner, self.seen = inner, seen

    async def list(self) -> dict[str, Any]:
        """Names and schemas."""
        return schemas((await self.inner.list_tools()).tools)

    async def call(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """One call."""
        return plain(await self.inner.call_tool(name, args, progress_callback=self.seen.note))

    async def cancel(self, name: str, args: dict[str, Any]) -> None:
        """Give up a call: the task that waits for it is cancelled."""
        calling = asyncio.ensure_future(self.call(name, args))
        await asyncio.sleep(CANCEL_AFTER_S)
        calling.cancel()
        await asyncio.wait((calling,))


# -- the SDKs
# ------------------------------------------------------------------------------------------------------


class Session1(Session):
    """SDK 1.x: cancelling a task tells the server nothing, so that the client must send the notification."""

    async def cancel(self, name: str, args: dict[str, Any]) -> None:
        """As its documentation of cancellation has it."""
        from mcp import types

        number = self.inner._request_id  # noqa: SLF001  the SDK tells it nowhere else
        calling = asyncio.ensure_future(self.call(name, args))
        await asyncio.sleep(CANCEL_AFTER_S)
        params = types.CancelledNotificationParams(requestId=number, reason="given up")
        await self.inner.send_notification(
            types.ClientNotification(
                types.CancelledNotification(method="notifications/cancelled", params=params),
            ),
        )
        calling.cancel()
        await asyncio.wait((calling,))


@asynccontextmanager
async def python_sdk_1(target: dict[str, Any], seen: Seen) -> Any:
    """`mcp` 1.x."""
    from mcp import ClientSession, StdioServerParameters, types
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamablehttp_client

    async def elicit(*_: Any) -> Any:
        return types.ElicitResult(action="accept", content=APPROVED)

    command = target.get("command")
    opened = (
        stdio_client(StdioServerParameters(command=command[0], args=command[1:]))
        if command
        else streamablehttp_client(target["url"])
    )
    hooks = {
        "elicitation_callback": elicit if target["elicit"] else None,
        "message_handler": seen.message,
    }
    async with opened as streams, ClientSession(streams[0], streams[1], **hooks) as session:
        await session.initialize()
        yield Session1(session, seen)


@asynccontextmanager
async def sdk_2_client(target: dict[str, Any], seen: Seen) -> Any:
    """The `Client` of `mcp` 2.x, which also listens for changes."""
    import mcp_types as types
    from mcp import Client, StdioServerParameters

    async def elicit(*_: Any) -> Any:
        return types.ElicitResult(action="accept", content=APPROVED)

    async def listen(client: Any) -> None:
        async with client.listen(tools_list_changed=True) as changes:
            async for _ in changes:
                seen.changed.set()

    command = target.get("command")
    where: Any = (
        StdioServerParameters(command=command[0], args=command[1:]) if command else target["url"]
    )
    hooks: Any = {
        "elicitation_callback": elicit if target["elicit"] else None,
        "message_handler": seen.message,
    }
    async with Client(where, **hooks) as client:
        listening = asyncio.ensure_future(listen(client))
        yield client
        listening.cancel()
        await asyncio.wait((listening,))


@asynccontextmanager
async def python_sdk_2(target: dict[str, Any], seen: Seen) -> Any:
    """`mcp` 2.x."""
    async with sdk_2_client(target, seen) as client:
        yield Session(client, seen)


# -- FastMCP
# -------------------------------------------------------------------------------------------------------


async def fast_elicit(*_: Any) -> Any:
    """Say yes."""
    from fastmcp.client.elicitation import ElicitResult

    return ElicitResult(action="accept", content=APPROVED)


def fast_transport(target: dict[str, Any]) -> Any:
    """To a process or an address."""
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

    command = target.get("command")
    return (
        StdioTransport(command[0], command[1:])
        if command
        else StreamableHttpTransport(target["url"])
    )


def fast_mode(target: dict[str, Any]) -> dict[str, Any]:
    """FastMCP 4 opens no stream of changes in 2026-07-28: it learns of them in the older revisions only."""
    import fastmcp

    return {"mode": "legacy"} if target["growing"] and fastmcp.__version__ > "4" else {}


class FastSession(Session):
    """FastMCP's client."""

    async def list(self) -> dict[str, Any]:
        """Names and schemas."""
        return schemas(await self.inner.list_tools())

    async def call(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """One call."""
        return plain(
            await self.inner.call_tool(
                name,
                args,
                raise_on_error=False,
                progress_handler=self.seen.note,
            ),
        )


class FastSession2(FastSession):
    """FastMCP 2, on `mcp` 1.x."""

    async def cancel(self, name: str, args: dict[str, Any]) -> None:
        """Its method takes the id of the request."""
        number = self.inner.session._request_id  # noqa: SLF001  told nowhere else
        calling = asyncio.ensure_future(self.call(name, args))
        await asyncio.sleep(CANCEL_AFTER_S)
        await self.inner.cancel(number, "given up")
        calling.cancel()
        await asyncio.wait((calling,))


async def _fast(target: dict[str, Any], seen: Seen, kind: type[Session]) -> Any:
    from fastmcp import Client

    elicit = fast_elicit if target["elicit"] else None
    async with Client(
        fast_transport(target),
        elicitation_handler=elicit,
        message_handler=seen.message,
        **fast_mode(target),
    ) as client:
        yield kind(client, seen)


@asynccontextmanager
async def fastmcp_2(target: dict[str, Any], seen: Seen) -> Any:
    """`fastmcp` 2.x."""
    async for session in _fast(target, seen, FastSession2):
        yield session


@asynccontextmanager
async def fastmcp_4(target: dict[str, Any], seen: Seen) -> Any:
    """`fastmcp` 4.x."""
    async for session in _fast(target, seen, FastSession):
        yield session
