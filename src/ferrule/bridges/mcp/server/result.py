"""What a tool returned, as the result of an MCP call.

In: a `ToolResult` of ours. Out: content blocks in order and, for objects, `structuredContent`. A text is a text block; pictures and sounds
are blocks of their kind; a file is an embedded resource; what only has an address is a link. Blocks and results of the SDK pass as they
are. A request body is at most 4 MiB over HTTP (a limit of the SDK); what is returned has no limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from ferrule.tools.mcp.result import MCPResult
from ferrule.values.content.custom_type import Type
from ferrule.values.content.parts import Audio, File, Image, Text
from ferrule.values.encoding.encode import json_text, jsonable
from ferrule.values.record import Record

if TYPE_CHECKING:
    from ferrule.values.calls.call import ToolResult
    from ferrule.values.content.parts import Content

M = TypeVar("M", bound=BaseModel)

_PARTS = (Text, Image, Audio, File)


def wire_result(result: ToolResult, output_schema: dict[str, Any] | None = None) -> Any:
    """The result for the wire: a model of the SDK, or a mapping under the protocol's names."""
    value = result.value
    if isinstance(value, MCPResult):
        passed = {"content": [each.raw for each in value.blocks], "structuredContent": value.structured, "isError": value.is_error}
        return {key: each for key, each in passed.items() if each is not None}
    if result.is_error:
        return {"content": _blocks(result.content), "isError": True}
    if _is_of_sdk(value) and (hasattr(value, "content") or hasattr(value, "input_requests")):
        return value
    made: dict[str, Any] = {"content": _content(value, result.content)}
    structured = _structured(value)
    problem = _problem(structured, output_schema)
    if problem:
        return error_result(f"`{result.name}` returned what does not fit its output schema: {problem}")
    return made if structured is None else {**made, "structuredContent": structured}


def mended(result: M) -> M:
    """A model of the SDK as it is; or, where it holds what JSON cannot, with that replaced: halves of characters, foreign objects."""
    try:
        result.model_dump_json(by_alias=True)
    except (PydanticSerializationError, UnicodeEncodeError):
        return type(result).model_validate(whole(jsonable(result.model_dump(by_alias=True, exclude_unset=True))))
    return result


def whole(value: Any) -> Any:
    """JSON data, in which what is only half a character (a lone surrogate) is replaced: UTF-8 has no form for it."""
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case dict():
            return {whole(key): whole(each) for key, each in cast("dict[str, Any]", value).items()}
        case list():
            return [whole(each) for each in cast("list[Any]", value)]
        case _:
            return value


def error_result(text: str) -> dict[str, Any]:
    """A result that says what went wrong."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def _content(value: Any, shown: Content) -> list[Any]:
    if _is_of_sdk(value):
        return [value]
    if isinstance(value, (list, tuple)) and any(_is_of_sdk(each) for each in cast("list[Any]", value)):
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
            return {"type": "image" if isinstance(value, Image) else "audio", "data": value.data, "mimeType": value.media_type}
        case File() if value.data is not None:
            # It needs an address, and has none: nobody can read it there, it is here.
            resource = {"uri": f"attachment:///{quote(value.name)}", "mimeType": value.media_type, "blob": value.data}
            return {"type": "resource", "resource": resource}
        case Image() | Audio() | File():
            name = value.name if isinstance(value, File) else type(value).__name__.lower()
            return {"type": "resource_link", "uri": value.url, "name": name, "mimeType": value.media_type}
        case _:
            return {"type": "text", "text": json_text(value)}


def _structured(value: Any) -> dict[str, Any] | None:
    # Objects only: until 2025-11-25 there may be nothing else in this place, and a text says as much of a number or a list.
    is_object = isinstance(value, (Mapping, BaseModel, Record)) or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    if not is_object or isinstance(value, Type):
        return None
    found = jsonable(cast("object", value))
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _problem(structured: Any, schema: dict[str, Any] | None) -> str:
    if schema is None:
        return ""
    if structured is None:
        return "it is no object"
    from jsonschema import Draft202012Validator

    errors = Draft202012Validator(schema).iter_errors(structured)  # pyright: ignore[reportUnknownMemberType]  no stubs
    first = next(iter(errors), None)
    return "" if first is None else f"{first.message} at {'/'.join(map(str, first.absolute_path)) or 'the top'}"


def _is_of_sdk(value: Any) -> bool:
    return isinstance(value, BaseModel) and type(value).__module__.partition(".")[0] in {"mcp", "mcp_types"}
