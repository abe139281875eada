"""What can become a tool: functions, LangChain's tools, entries of MCP lists, declarations.

LangChain (`BaseTool` of langchain-core 1.x) is never imported here: a LangChain tool has imported
it already.
"""

from __future__ import annotations

import inspect
from typing import Any

from ferrule.errors import ToolDefinitionError, shown
from ferrule.schema.inline import SchemaGenerator, inline_definitions, strip_titles
from ferrule.schema.nodes import is_object
from ferrule.tools.mcp.tool import mcp_tool_options
from ferrule.values.provider_tools import ProviderTool


def tool_options(thing: Any) -> dict[str, Any]:
    """The options of `Tool(...)` for anything that can become a tool.

    A declaration is a dict in OpenAI's form, `{"type": "function", "function": {...}}`, or only its
    inner part.

    Raises `ToolDefinitionError` for anything else.
    """
    if isinstance(thing, ProviderTool):
        raise ToolDefinitionError(
            f"`{type(thing).__name__}` cannot be run here: the model's provider runs it. Pass it "
            "in the list of a program's tools, `Predict(..., tools=[...])` or `ReAct(...)`."
        )
    if is_langchain_tool(thing):
        return langchain_options(thing)
    if is_mcp_entry(thing):
        return mcp_tool_options(thing)
    if is_object(thing):
        function: Any = thing.get("function", thing)
        if is_object(function) and isinstance(function.get("name"), str):
            return {
                "name": function["name"],
                "description": function.get("description") or "",
                "schema": function.get("parameters") or function.get("input_schema") or {},
            }
    if callable(thing):
        return {"func": thing}
    hint = ""
    if hasattr(thing, "name"):
        hint = (
            " If it is a tool of another library, pass the function behind it, "
            "or a function that calls it."
        )
    raise ToolDefinitionError(
        "A tool is a function, a `Tool`, or a declaration with `name`, `description` and "
        f"`parameters`; found {shown(thing)}.{hint}"
    )


def refuse_without_object(thing: Any) -> None:
    """Raise `ToolDefinitionError` for a program's class, and for a method of a class.

    Both can be called, but a model cannot pass the object that they need.
    """
    if isinstance(thing, type) and callable(getattr(thing, "as_tool", None)):
        raise ToolDefinitionError(
            f"`{thing.__name__}` is a class, and a tool needs one of its objects: "
            f"`{thing.__name__}(...).as_tool('name', 'What it does.')`."
        )
    if not inspect.isfunction(thing):
        return
    outer, _, name = thing.__qualname__.rpartition(".")
    if outer and not outer.endswith("<locals>") and next(iter(_parameters(thing)), "") == "self":
        class_name = outer.rpartition(".")[2]
        raise ToolDefinitionError(
            f"`{class_name}.{name}` is a method without its object: "
            f"pass `{class_name}(...).{name}`."
        )


def _parameters(function: Any) -> tuple[str, ...]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def is_mcp_entry(thing: Any) -> bool:
    """Whether an object is an entry of `tools/list`, as a dict or as the SDK's object."""
    if is_object(thing):
        return "inputSchema" in thing
    return type(thing).__module__.startswith(("mcp.", "mcp_types")) and hasattr(thing, "name")


# -- LangChain


def is_langchain_tool(thing: Any) -> bool:
    """Whether an object is a LangChain tool. Does not import LangChain."""
    return any(
        kind.__name__ == "BaseTool" and kind.__module__.startswith("langchain_core.")
        for kind in type(thing).__mro__
    )


def langchain_options(tool: Any) -> dict[str, Any]:
    """The options of `Tool(...)` for a LangChain tool.

    The schema leaves out injected arguments, which LangChain itself fills in.
    """
    if not is_langchain_tool(tool):
        raise ToolDefinitionError(
            f"`Tool.from_langchain` takes a LangChain `BaseTool`, found {shown(tool)}."
        )
    # LangChain's own schema for models: `args_schema` without the injected arguments. Either is a
    # pydantic model, or a JSON Schema, which has no injected arguments.
    schema_for_models = tool.tool_call_schema
    fields: dict[str, Any] = getattr(tool.args_schema, "model_fields", {})
    fields_for_models = getattr(schema_for_models, "model_fields", fields)
    injected = [
        f"`{name}`"
        for name, field in fields.items()
        if field.is_required() and name not in fields_for_models
    ]
    if injected:
        raise ToolDefinitionError(
            f"`{tool.name}` needs {', '.join(injected)}, which LangGraph or your own code passes "
            "to LangChain's tools, and ferrule does not. Write a function that calls it; it can "
            "take `ctx: Context`, with the values in `ctx.deps`."
        )
    return {
        "func": _make_runner(tool),
        "name": tool.name,
        "description": tool.description or "",
        "schema": _langchain_schema(schema_for_models),
    }


def _langchain_schema(model: Any) -> dict[str, Any]:
    if is_object(model):
        schema = dict(model)
    elif hasattr(model, "model_json_schema"):
        schema = strip_titles(model.model_json_schema(schema_generator=SchemaGenerator))
    else:  # a pydantic 1 model, which LangChain still accepts
        schema = strip_titles(model.schema())
    schema = inline_definitions(schema)
    # They repeat the tool's name and description.
    schema.pop("title", None)
    schema.pop("description", None)
    # LangChain silently drops unknown arguments, but a model should see its mistake.
    return {**schema, "additionalProperties": schema.get("additionalProperties", False)}


def _make_runner(tool: Any) -> Any:
    """A function that runs the tool.

    It is async if the tool has only an async form, so that a sync call raises a clear error.
    """
    if getattr(tool, "coroutine", None) is not None and getattr(tool, "func", None) is None:

        async def arun(**arguments: Any) -> Any:
            return await tool.ainvoke(arguments)

        return arun

    def run(**arguments: Any) -> Any:
        return tool.invoke(arguments)

    return run
