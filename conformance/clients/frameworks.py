"""pydantic-ai, OpenAI Agents, LangChain and DSPy as drivers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

from sdks import (
    APPROVED,
    Seen,
    Session,
    fast_elicit,
    fast_mode,
    fast_transport,
    plain,
    schemas,
    sdk_2_client,
)


class PydanticSession(Session):
    """A toolset of pydantic-ai: what a model of it would be given."""

    async def list(self) -> dict[str, Any]:
        """Names and schemas."""
        return schemas(await self.inner.list_tools())

    async def call(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """One call."""
        import base64

        try:
            value = await self.inner.direct_call_tool(name, args)
        except Exception as error:  # noqa: BLE001  whatever it raises is its form of an error
            return {"error": True, "text": f"{error}"}
        images = [
            base64.b64encode(each.data).decode()
            for each in (value if isinstance(value, list) else [value])
            if hasattr(each, "data")
        ]
        return {
            "error": False,
            "text": value if isinstance(value, str) else f"{value}",
            "images": images,
            "structured": value,
        }


@asynccontextmanager
async def pydantic_ai(target: dict[str, Any], seen: Seen) -> Any:
    """`pydantic-ai`."""
    from fastmcp import Client
    from pydantic_ai.mcp import MCPToolset

    elicit = fast_elicit if target["elicit"] else None
    client = Client(
        fast_transport(target),
        elicitation_handler=elicit,
        progress_handler=seen.note,
        message_handler=seen.message,
        **fast_mode(target),
    )
    async with MCPToolset(client, tool_error_behavior="error", cache_tools=False) as toolset:
        yield PydanticSession(toolset, seen)


class OpenAISession(Session):
    """A server of the OpenAI Agents SDK."""

    async def list(self) -> dict[str, Any]:
        """Names and schemas."""
        self.inner.invalidate_tools_cache()
        return schemas(await self.inner.list_tools())

    async def call(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """One call."""
        return plain(await self.inner.call_tool(name, args))


@asynccontextmanager
async def openai_agents(target: dict[str, Any], seen: Seen) -> Any:
    """`openai-agents`."""
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

    command = target.get("command")
    options: Any = {"message_handler": seen.message, "client_session_timeout_seconds": 60}
    made: Any = (
        MCPServerStdio({"command": command[0], "args": command[1:]}, **options)
        if command
        else MCPServerStreamableHttp({"url": target["url"]}, **options)
    )
    async with made as server:
        yield OpenAISession(server, seen)


class LangChainSession(Session):
    """Tools of LangChain, over one session."""

    async def tools(self) -> dict[str, Any]:
        """The tools that an agent would be given."""
        from langchain_mcp_adapters.callbacks import Callbacks
        from langchain_mcp_adapters.tools import load_mcp_tools

        return {
            each.name: each
            for each in await load_mcp_tools(
                self.inner,
                callbacks=Callbacks(on_progress=self.seen.note),
            )
        }

    async def list(self) -> dict[str, Any]:
        """Names and schemas."""
        return {name: each.args_schema for name, each in (await self.tools()).items()}

    async def call(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """One call."""
        found = await (await self.tools())[name].ainvoke(
            {"type": "tool_call", "name": name, "args": args, "id": "1"},
        )
        blocks = (
            found.content
            if isinstance(found.content, list)
            else [{"type": "text", "text": found.content}]
        )
        return {
            "error": found.status == "error",
            "text": "\n".join(each["text"] for each in blocks if each["type"] == "text"),
            "images": [each["base64"] for each in blocks if each["type"] == "image"],
            "structured": (found.artifact or {}).get("structured_content"),
        }


@asynccontextmanager
async def langchain(target: dict[str, Any], seen: Seen) -> Any:
    """`langchain-mcp-adapters`."""
    from langchain_mcp_adapters.callbacks import Callbacks
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from mcp import types

    async def elicit(*_: Any) -> Any:
        return types.ElicitResult(action="accept", content=APPROVED)

    command = target.get("command")
    where = (
        {"transport": "stdio", "command": command[0], "args": command[1:]}
        if command
        else {"transport": "http", "url": target["url"]}
    )
    callbacks = Callbacks(on_elicitation=elicit) if target["elicit"] else Callbacks()
    client = MultiServerMCPClient(
        {"s": {**where, "session_kwargs": {"message_handler": seen.message}}},
        callbacks=callbacks,
    )
    async with client.session("s") as session:
        yield LangChainSession(session, seen)


class DSPySession(Session):
    """Tools of DSPy, over a client of the SDK."""

    async def call(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """One call, as an agent of DSPy makes it."""
        import dspy

        tools = {each.name: each for each in (await self.inner.list_tools()).tools}
        mode = "structured" if tools[name].output_schema else "text"
        try:
            value = await dspy.Tool.from_mcp_tool(self.inner, tools[name], result_mode=mode).acall(
                **args,
            )
        except Exception as error:  # noqa: BLE001  whatever it raises is its form of an error
            return {"error": True, "text": f"{error}"}
        blocks = value if isinstance(value, list) else [value]
        images = [each.data for each in blocks if getattr(each, "type", "") == "image"]
        return {"error": False, "text": f"{value}", "images": images, "structured": value}


@asynccontextmanager
async def dspy(target: dict[str, Any], seen: Seen) -> Any:
    """`dspy`."""
    async with sdk_2_client(target, seen) as client:
        yield DSPySession(client, seen)
