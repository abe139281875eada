"""Tools of the page: declared in its request, called by the model, and run in the browser.

A page may be anybody's, so it decides nothing alone. The server allows names or patterns. What the
page writes is untrusted: hidden characters are removed from descriptions and results, as from those
of MCP servers, and results are marked (`ToolResult.untrusted`).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import json_text
from ferrule.errors import ConfigurationError, DecisionError, InputError, ToolDefinitionError, shown
from ferrule.schema.nodes import is_object
from ferrule.tools.mcp.safety import scrub, scrub_schema
from ferrule.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.approval.question import Decision, Question
    from ferrule.schema.nodes import Schema

_MOST_TOOLS = 128
_MOST_CHARACTERS = 100_000
"""Of all declarations together: each request to the model has them."""


def check_allowed(allowed: Any) -> tuple[str, ...]:
    """The names and patterns of tools that a page may declare.

    Raises `ConfigurationError` for anything but a list of texts.
    """
    if isinstance(allowed, list | tuple):
        names = cast("Sequence[Any]", allowed)
        if all(isinstance(name, str) and name for name in names):
            return tuple(names)
    raise ConfigurationError(
        "`page_tools` lists the tools that a page may declare, by name or pattern: "
        f"page_tools=['get_location', 'ui_*']; found {shown(cast('object', allowed))}."
    )


def read_page_tools(declared: Iterable[Mapping[str, Any]], allowed: Sequence[str]) -> list[Tool]:
    """The tools of a page that the server allows.

    Others are left out. Raises `InputError` for one that a model could not call.
    """
    tools: list[Tool] = []
    size = 0
    for entry in declared:
        name = entry.get("name")
        if not isinstance(name, str) or not any(fnmatchcase(name, glob) for glob in allowed):
            continue
        tools.append(_page_tool(name, entry))
        size += len(json_text(tools[-1].declaration))
        if len(tools) > _MOST_TOOLS or size > _MOST_CHARACTERS:
            raise InputError(
                f"A page declares at most {_MOST_TOOLS} tools, in {_MOST_CHARACTERS:,} characters."
            )
    return tools


def _page_tool(name: str, entry: Mapping[str, Any]) -> Tool:
    description: Any = entry.get("description") or ""
    schema: Any = entry.get("parameters") or entry.get("inputSchema") or {}
    is_readable = isinstance(description, str) and scrub(name) == name
    if not is_readable or not is_object(schema):
        raise InputError(
            "A tool of the page has a name, a description and the schema of its parameters; "
            f"found {shown(entry)}."
        )
    full_schema: Schema = {"type": "object", "properties": {}, **schema}
    try:
        tool = Tool(
            name=name,
            description=scrub(description),
            schema=scrub_schema(full_schema),
            result="page",
        )
        _ = tool.declaration
    except ToolDefinitionError as error:
        raise InputError(f"The page's tool {shown(name)} cannot be used: {error}") from error
    return tool


def page_decision(question: Question, answer: Mapping[str, Any]) -> Decision:
    """The decision that brings the result of a page's tool: its `output`, or its `error`.

    Raises `DecisionError` for a call whose result is not the page's to give.
    """
    if not question.by_page:
        raise DecisionError(
            f"The result of `{question.call.name}` comes from outside, not from the page."
        )
    if "error" in answer:
        return question.deny(scrub(str(answer["error"])) or "The tool failed.")
    output = _scrubbed(answer.get("output"))
    if isinstance(output, str) and question.returns is not None:
        return question.decide(output)
    return question.deliver(output)


def _scrubbed(value: Any) -> Any:
    """JSON data without hidden characters, also in the names of its fields."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list):
        return [_scrubbed(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value).items()
        return {scrub(name): _scrubbed(item) for name, item in fields}
    return value
