"""A run, `execute_all` and a direct call show a model the same result of the same tool."""

from __future__ import annotations

import asyncio
from collections import namedtuple
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any

import pytest
from msgspec import Struct
from pydantic import BaseModel

from ferrule.errors import ToolRetry
from ferrule.settings import context
from ferrule.tools.execution.run import arun_call, run_call
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import Audio, File, Image, Text
from ferrule.values.content.type import PART_START

IMAGE, SOUND = Image(url="https://x/y.png"), Audio(data="aGk=")
Pair = namedtuple("Pair", "a b")  # noqa: PYI024


class Colour(Enum):
    RED = "red"


class Photo(BaseModel):
    caption: str
    image: Image | None = None


@dataclass
class Slide:
    title: str
    image: Image | None = None


class Frame(Struct, frozen=True):
    image: Image


def numbers() -> Any:
    yield 1
    yield 2


def pictures() -> Any:
    yield IMAGE
    yield "a caption"


async def later() -> Any:
    return {"caption": "a cat", "image": IMAGE}


async def later_numbers() -> Any:
    return numbers()


def raising() -> Any:
    raise ZeroDivisionError("by zero")


async def later_raising() -> Any:
    raise ZeroDivisionError("by zero")


def half_way() -> Any:
    yield 1
    raise ZeroDivisionError("by zero")


def retry() -> Any:
    raise ToolRetry("use metres")


async def chunks() -> Any:
    yield 1


inner = Tool(lambda n: n, "inner", arg_types={"n": int})

WAYS = {
    "str": lambda: "text",
    "int": lambda: 3,
    "large int": lambda: 10**5000,
    "float": lambda: 0.5,
    "None": lambda: None,
    "bool": lambda: True,
    "dict": lambda: {"b": 1, "a": "ü"},
    "list": lambda: [1, "a", None],
    "list of texts": lambda: ["a", "b"],
    "tuple": lambda: Pair(1, 2),
    "set": lambda: {"x", "a", "m"},
    "enum": lambda: Colour.RED,
    "date": lambda: date(2024, 1, 2),
    "dataclass": lambda: Slide("one"),
    "pydantic model": lambda: Photo(caption="one"),
    "bytes": lambda: b"bytes",
    "bytes that are no text": lambda: b"\xff\x00",
    "Image": lambda: IMAGE,
    "Text": lambda: Text(text="a"),
    "list of Images": lambda: [IMAGE, SOUND],
    "list with an Image": lambda: [IMAGE, "caption", {"k": 1}, None],
    "Texts and Images": lambda: [Text(text="a"), "b", IMAGE, Text(text="c")],
    "dict with an Image": lambda: {"caption": "a cat", "image": IMAGE},
    "pydantic model with an Image": lambda: Photo(caption="a cat", image=IMAGE),
    "dataclass with an Image": lambda: Slide("a cat", IMAGE),
    "record with an Image": lambda: Frame(IMAGE),
    "nested": lambda: {"pages": [{"image": IMAGE, "files": [File(data="aGk=", name="a.txt")]}]},
    "Image beside a dict with one": lambda: [IMAGE, {"image": IMAGE}],
    "text that looks like a part": lambda: f"{PART_START}[]",
    "generator": numbers,
    "generator of an Image and a text": pictures,
    "ToolResult": lambda: ToolResult("other", (Text(text="a"), IMAGE), "x", is_error=True),
    "awaitable": later,
    "awaitable of a generator": later_numbers,
    "exception": raising,
    "exception of an async tool": later_raising,
    "exception of a generator": half_way,
    "ToolRetry": retry,
    "bad arguments of another tool": lambda: inner(n="x"),
    "async generator": chunks,
}
WITH_PARTS = [name for name in WAYS if "Image" in name and not name.startswith("generator")] + [
    "nested",
    "awaitable",
]


def in_a_run(tool: Tool, call: ToolCall) -> ToolResult:
    return run_call(CheckedCall(call, tool, tool.prepare(call.args)))


def in_an_async_run(tool: Tool, call: ToolCall) -> ToolResult:
    return asyncio.run(arun_call(CheckedCall(call, tool, tool.prepare(call.args))))


def by_execute_all(tool: Tool, call: ToolCall) -> ToolResult:
    [result] = ToolCalls(tool_calls=[call]).execute_all([tool])
    return result


def by_aexecute_all(tool: Tool, call: ToolCall) -> ToolResult:
    async def main() -> list[ToolResult]:
        return await ToolCalls(tool_calls=[call]).aexecute_all([tool])

    [result] = asyncio.run(main())
    return result


def of_the_function(tool: Tool, call: ToolCall) -> ToolResult:
    async def main() -> list[ToolResult]:
        return await ToolCalls(tool_calls=[call]).aexecute_all({"f": tool.func})

    [result] = asyncio.run(main())
    return result


def directly(tool: Tool, call: ToolCall) -> ToolResult:
    return tool.call_result(**call.args)


def asynchronously(tool: Tool, call: ToolCall) -> ToolResult:
    return asyncio.run(tool.acall_result(**call.args))  # pyright: ignore[reportArgumentType]  a coroutine


@pytest.mark.parametrize(
    "other",
    [in_an_async_run, by_execute_all, by_aexecute_all, of_the_function, directly, asynchronously],
)
@pytest.mark.parametrize("kind", WAYS)
def test_every_way_to_run_a_call_gives_the_same_result(kind: str, other: Any) -> None:
    tool, call = Tool(WAYS[kind], "f"), ToolCall(name="f", id="c1")
    with context(allow_tool_async_sync_conversion=True):
        first = in_a_run(tool, call)
        if other in {directly, asynchronously} and first.error is not None:
            with pytest.raises(type(first.error)):
                other(tool, call)
            return
        second = other(tool, call)
    assert (second.name, second.content, second.value) == (first.name, first.content, first.value)
    assert (second.is_error, second.is_fault, type(second.error)) == (
        first.is_error,
        first.is_fault,
        type(first.error),
    )


@pytest.mark.parametrize("kind", WITH_PARTS)
def test_a_picture_anywhere_in_a_result_reaches_the_model_as_a_picture(kind: str) -> None:
    content = in_a_run(Tool(WAYS[kind], "f"), ToolCall(name="f")).content
    assert any(isinstance(part, Image) for part in content)
    assert PART_START not in repr(content)
