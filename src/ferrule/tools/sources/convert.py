"""Other kinds of tools as the arguments of `Tool(...)`: LangChain's tools, entries of an MCP list, declarations.

LangChain (`BaseTool` of langchain-core 1.x) is never imported here: the tool brings it along.
"""

from __future__ import annotations

from typing import Any

from ferrule.errors import ToolDefinitionError, shown
from ferrule.values.schema.inline import Generator, inline_definitions, strip_titles
from ferrule.values.schema.nodes import is_object


def is_langchain_tool(thing: Any) -> bool:
    """Whether a thing is a LangChain tool. Does not import LangChain."""
    return any(each.__name__ == "BaseTool" and each.__module__.startswith("langchain_core.") for each in type(thing).__mro__)


def is_mcp_entry(thing: Any) -> bool:
    """Whether a thing is an entry of `tools/list`, as a dict or as the SDK's object."""
    if is_object(thing):
        return "inputSchema" in thing
    return type(thing).__module__.startswith(("mcp.", "mcp_types")) and hasattr(thing, "name")


def tool_parts(thing: Any) -> dict[str, Any]:
    """The arguments of `Tool(...)` for a callable, a LangChain tool, an entry of an MCP list, or a declaration (canonical or flat)."""
    if is_langchain_tool(thing):
        return langchain_parts(thing)
    if is_mcp_entry(thing):
        from ferrule.tools.mcp.tool import mcp_tool_options

        return mcp_tool_options(thing)
    if is_object(thing):
        body: Any = thing.get("function", thing)
        if is_object(body) and isinstance(body.get("name"), str):
            said = body.get("description") or ""
            return {"name": body["name"], "description": said, "callable": None, "schema": body.get("parameters") or {}}
    if callable(thing):
        return {"func": thing}
    msg = f"A tool is a function, a `Tool`, or a declaration with `name`, `description` and `parameters`; found {shown(thing)}."
    raise ToolDefinitionError(msg)


def langchain_parts(tool: Any) -> dict[str, Any]:
    """The arguments of `Tool(...)` for a LangChain tool. Injected arguments, which LangChain fills itself, are not in the schema."""
    if not is_langchain_tool(tool):
        msg = f"`Tool.from_langchain` takes a LangChain `BaseTool`, found {shown(tool)}."
        raise ToolDefinitionError(msg)
    return {"func": _runner(tool), "name": tool.name, "description": tool.description or "", "schema": _schema(tool)}


def _schema(tool: Any) -> dict[str, Any]:
    model = tool.tool_call_schema
    if is_object(model):
        found = dict(model)
    elif hasattr(model, "model_json_schema"):
        found = strip_titles(model.model_json_schema(schema_generator=Generator))
    else:  # a model of pydantic 1, which LangChain still takes
        found = strip_titles(model.schema())
    schema = inline_definitions(found)
    for generated in ("title", "description"):
        schema.pop(generated, None)
    # LangChain drops unknown arguments silently; a model should learn of its mistake.
    return {**schema, "additionalProperties": schema.get("additionalProperties", False)}


def _runner(tool: Any) -> Any:
    """Wrap the tool in a function. Async if the tool has only an async form, so that a sync call raises a clear error."""
    if getattr(tool, "coroutine", None) is not None and getattr(tool, "func", None) is None:

        async def arun(**arguments: Any) -> Any:
            return await tool.ainvoke(arguments)

        return arun

    def run(**arguments: Any) -> Any:
        return tool.invoke(arguments)

    return run
