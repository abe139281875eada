"""A tool's result as the result of an MCP call.

A text is a text block; images and audio are blocks of their types; a file is an embedded resource;
a part with only a URL is a link. Objects also become `structuredContent`, and so do other values
whose type the tool declares, as `{"result": value}`. Blocks and results of the SDK pass unchanged.
The SDK limits request bodies over HTTP to 4 MiB; results have no limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

from msgspec import Struct
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from ferrule.encoding.encode import json_text, jsonable
from ferrule.tools.mcp.result import MCPResult, output_problems
from ferrule.values.content.parts import Audio, File, Image, Text
from ferrule.values.content.type import Type

if TYPE_CHECKING:
    from ferrule.values.calls.call import ToolResult
    from ferrule.values.content.parts import Content

M = TypeVar("M", bound=BaseModel)


def wire_result(
    result: ToolResult,
    output_schema: dict[str, Any] | None = None,
    *,
    wraps: bool = False,
) -> Any:
    """The result for the wire: a model of the SDK, or a mapping under the protocol's names.

    With `wraps`, `structuredContent` is an object with the value as its `result`.
    """
    value = result.value
    if isinstance(value, MCPResult):
        passed: dict[str, Any] = {
            "content": [each.raw for each in value.blocks],
            "isError": value.is_error,
        }
        return {**passed, "structuredContent": value.structured} if value.has_structured else passed
    if result.is_error:
        return {"content": _blocks(result.content), "isError": True}
    if _is_of_sdk(value) and (hasattr(value, "content") or hasattr(value, "input_requests")):
        return value
    made: dict[str, Any] = {"content": _content(value, result.content)}
    structured = {"result": jsonable(value)} if wraps else _structured(value)
    if output_schema is not None:
        problems = (
            ("the value is not an object",)
            if structured is None
            else output_problems(structured, output_schema)
        )
        if problems:
            return error_result(
                f"`{result.name}` returned a value that does not fit its output schema: {'; '.join(problems)}",
            )
    return made if structured is None else {**made, "structuredContent": structured}


def make_serializable(result: M) -> M:
    """A model of the SDK, with lone surrogates and objects that JSON cannot hold replaced."""
    try:
        result.model_dump_json(by_alias=True)
    except (PydanticSerializationError, UnicodeEncodeError):
        return type(result).model_validate(
            replace_surrogates(jsonable(result.model_dump(by_alias=True, exclude_unset=True))),
        )
    return result


def sdk_result(found: Any) -> Any:
    """A result of a call, or a mapping under the protocol's names, as a model of the SDK that JSON can hold."""
    from mcp_types import CallToolResult

    return make_serializable(
        CallToolResult.model_validate(found) if isinstance(found, dict) else found,
    )


def replace_surrogates(value: Any) -> Any:
    """JSON data with lone surrogates replaced, which UTF-8 cannot hold."""
    match value:
        case str():
            return (
                value
                if value.isascii()
                else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            )
        case dict():
            return {
                replace_surrogates(key): replace_surrogates(each)
                for key, each in cast("dict[str, Any]", value).items()
            }
        case list():
            return [replace_surrogates(each) for each in cast("list[Any]", value)]
        case _:
            return value


def error_result(text: str) -> dict[str, Any]:
    """An error result with this text."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def _content(value: Any, shown: Content) -> list[Any]:
    if _is_of_sdk(value):
        return [value]
    if isinstance(value, (list, tuple)) and any(
        _is_of_sdk(each) for each in cast("list[Any]", value)
    ):
        return [each if _is_of_sdk(each) else _block(each) for each in cast("list[Any]", value)]
    return _blocks(shown)


def _blocks(content: Content) -> list[Any]:
    return [_block(content)] if isinstance(content, str) else [_block(each) for each in content]


def _block(value: Any) -> dict[str, Any]:
    match value:
        case str():
            return {"type": "text", "text": value}
        case Text():
            return {"type": "text", "text": value.text}
        case Image() | Audio() if value.data is not None:
            return {
                "type": "image" if isinstance(value, Image) else "audio",
                "data": value.data,
                "mimeType": value.media_type,
            }
        case File() if value.data is not None:
            # A resource must have a URI; nothing can be read there.
            resource = {
                "uri": f"attachment:///{quote(value.name)}",
                "mimeType": value.media_type,
                "blob": value.data,
            }
            return {"type": "resource", "resource": resource}
        case Image() | Audio() | File():
            name = value.name if isinstance(value, File) else type(value).__name__.lower()
            return {
                "type": "resource_link",
                "uri": value.url,
                "name": name,
                "mimeType": value.media_type,
            }
        case _:
            return {"type": "text", "text": json_text(value)}


def _structured(value: Any) -> dict[str, Any] | None:
    # Objects only: until 2025-11-25 nothing else is allowed here.
    is_object = isinstance(value, (Mapping, BaseModel, Struct)) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )
    if not is_object or isinstance(value, Type):
        return None
    found = jsonable(cast("object", value))
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _is_of_sdk(value: Any) -> bool:
    return isinstance(value, BaseModel) and type(value).__module__.partition(".")[0] in {
        "mcp",
        "mcp_types",
    }
