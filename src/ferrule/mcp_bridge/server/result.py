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
    from collections.abc import Iterable

    from ferrule.values.calls.call import ToolResult
    from ferrule.values.content.parts import Content

M = TypeVar("M", bound=BaseModel)


def wire_result(
    result: ToolResult, output_schema: dict[str, Any] | None = None, *, wraps: bool = False
) -> Any:
    """The result for the wire: a model of the SDK, or a mapping under the protocol's names.

    With `wraps`, `structuredContent` is an object with the value as its `result`.
    """
    value = result.value
    if isinstance(value, MCPResult):
        return _passed_on(value)
    if result.is_error:
        return {"content": _blocks(result.content), "isError": True}
    if _is_of_sdk(value) and (hasattr(value, "content") or hasattr(value, "input_requests")):
        return value
    wire: dict[str, Any] = {"content": _content(value, result.content)}
    if wraps:
        structured = {"result": jsonable(value)}
    else:
        structured = _structured(value)
    if output_schema is not None:
        problems = _output_problems(structured, output_schema)
        if problems:
            return error_result(
                f"`{result.name}` returned a value that does not fit its output schema: "
                f"{'; '.join(problems)}"
            )
    if structured is not None:
        wire["structuredContent"] = structured
    return wire


def _passed_on(result: MCPResult) -> dict[str, Any]:
    """The result of another server's tool, as that server sent it."""
    wire: dict[str, Any] = {
        "content": [block.raw for block in result.blocks],
        "isError": result.is_error,
    }
    if result.has_structured:
        wire["structuredContent"] = result.structured
    return wire


def _output_problems(structured: Any, schema: dict[str, Any]) -> Iterable[str]:
    if structured is None:
        return ("the value is not an object",)
    return output_problems(structured, schema)


def make_serializable(result: M) -> M:
    """A model of the SDK, with lone surrogates and objects that JSON cannot hold replaced."""
    try:
        result.model_dump_json(by_alias=True)
    except (PydanticSerializationError, UnicodeEncodeError):
        plain = jsonable(result.model_dump(by_alias=True, exclude_unset=True))
        return type(result).model_validate(replace_surrogates(plain))
    return result


def sdk_result(result: Any) -> Any:
    """A result of a call, as a model of the SDK that JSON can hold.

    It may be a mapping under the protocol's names.
    """
    from mcp_types import CallToolResult

    if isinstance(result, dict):
        result = CallToolResult.model_validate(result)
    return make_serializable(result)


def replace_surrogates(value: Any) -> Any:
    """JSON data with lone surrogates replaced, which UTF-8 cannot hold."""
    match value:
        case str() if not value.isascii():
            # In UTF-16 two halves of a pair join to one character; only lone ones are replaced.
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case dict():
            return {
                replace_surrogates(key): replace_surrogates(part)
                for key, part in cast("dict[str, Any]", value).items()
            }
        case list():
            return [replace_surrogates(part) for part in cast("list[Any]", value)]
        case _:
            return value


def error_result(text: str) -> dict[str, Any]:
    """An error result with this text."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def _content(value: Any, shown: Content) -> list[Any]:
    if _is_of_sdk(value):
        return [value]
    if isinstance(value, (list, tuple)):
        parts = cast("list[Any]", value)
        if any(_is_of_sdk(part) for part in parts):
            return [part if _is_of_sdk(part) else _block(part) for part in parts]
    return _blocks(shown)


def _blocks(content: Content) -> list[Any]:
    if isinstance(content, str):
        return [_block(content)]
    return [_block(part) for part in content]


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
            if isinstance(value, File):
                name = value.name
            else:
                name = type(value).__name__.lower()
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
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    is_object = is_dataclass or isinstance(value, (Mapping, BaseModel, Struct))
    if not is_object or isinstance(value, Type):
        return None
    plain = jsonable(cast("object", value))
    if isinstance(plain, dict):
        return cast("dict[str, Any]", plain)
    return None


def _is_of_sdk(value: Any) -> bool:
    package = type(value).__module__.partition(".")[0]
    return isinstance(value, BaseModel) and package in {"mcp", "mcp_types"}
