"""Whatever may become a `Tool`, LangChain's tools among it, as what a `Tool` is made of.

In: a `BaseTool` of langchain-core 1.x. Out: the arguments for `Tool(...)`. Nothing of LangChain is imported: the tool brings it along.
"""

from __future__ import annotations

from typing import Any

from ferrule.errors import ToolDefinitionError, shown
from ferrule.tools.sources.remote import is_mcp_entry
from ferrule.values.schema.inline import Generator, inline_definitions, strip_titles
from ferrule.values.schema.nodes import is_object


def is_langchain_tool(thing: Any) -> bool:
    """Whether a thing is a LangChain tool, found without importing LangChain."""
    return any(each.__name__ == "BaseTool" and each.__module__.startswith("langchain_core.") for each in type(thing).__mro__)


def tool_parts(thing: Any) -> dict[str, Any]:
    """The arguments for `Tool(...)` of a callable, a LangChain tool, an entry of an MCP list, or a declaration, canonical or flat."""
    if is_langchain_tool(thing):
        return langchain_parts(thing)
    if is_mcp_entry(thing):
        from ferrule.tools.mcp.tool import mcp_parts

        return mcp_parts(thing)
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
    """The arguments for `Tool(...)`. Injected arguments, which LangChain fills itself, are left out of the schema."""
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
    # LangChain drops unknown arguments without a word; a model should be told.
    return {**schema, "additionalProperties": schema.get("additionalProperties", False)}


def _runner(tool: Any) -> Any:
    """A function over the tool: async where the tool has nothing else, so that a sync caller is told so."""
    if getattr(tool, "coroutine", None) is not None and getattr(tool, "func", None) is None:

        async def arun(**arguments: Any) -> Any:
            return await tool.ainvoke(arguments)

        return arun

    def run(**arguments: Any) -> Any:
        return tool.invoke(arguments)

    return run
