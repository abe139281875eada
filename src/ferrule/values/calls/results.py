"""`ToolCallResults`: the results of earlier calls, in demos and in turns of a history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self, cast

from pydantic import BaseModel, ConfigDict, field_serializer, model_validator

from ferrule.encoding.encode import jsonable
from ferrule.errors import shown
from ferrule.values.content.convert import marked_parts, read_marked
from ferrule.values.content.type import Type


class ToolCallResult(BaseModel):
    """The result of one call."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    call_id: str | None = None
    """The id of the call; without one, the result belongs to the call at its position."""
    name: str = ""
    """The tool's name."""
    value: Any = None
    """The value that the tool returned, or the content that the model saw."""
    is_error: bool = False
    """The tool failed, or did not run."""

    @field_serializer("value")
    def _written(self, value: Any) -> Any:
        return jsonable(marked_parts(value))

    @classmethod
    def of(cls, result: Any) -> ToolCallResult:
        """Read a result from a mapping, or from a `ToolResult` as `ToolCalls.execute_all` returns it."""
        if isinstance(result, ToolCallResult):
            return result
        if isinstance(result, Mapping):
            found = dict(cast("Mapping[str, Any]", result))
            return cls.model_validate({**found, "value": read_marked(found.get("value"))})
        if not hasattr(result, "content") or not hasattr(result, "call_id"):
            msg = f"A result is a `ToolResult` or a mapping with `value`, found {shown(result)}"
            raise ValueError(msg)
        seen = result.value if result.value is not None and not result.is_error else result.content
        return cls(call_id=result.call_id, name=result.name, value=seen, is_error=result.is_error)


class ToolCallResults(Type):
    """The results of the calls of one answer: `ToolCalls(tool_calls=calls, tool_call_results=results)` in a turn of a `History`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    ToolCallResult: ClassVar[type[ToolCallResult]] = ToolCallResult
    tool_call_results: list[ToolCallResult]

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        found: Any = data
        if isinstance(data, Mapping) and "tool_call_results" in data:
            found = cast("Mapping[str, Any]", data)["tool_call_results"]
        if isinstance(found, ToolCallResults):
            return {"tool_call_results": found.tool_call_results}
        if not isinstance(found, (list, tuple)):
            msg = f"Received invalid value for `ferrule.ToolCallResults`: {shown(cast('object', data))}"
            raise ValueError(msg)
        return {"tool_call_results": [ToolCallResult.of(each) for each in cast("list[Any]", found)]}

    @classmethod
    def from_tool_calls_and_values(
        cls,
        tool_calls: Any,
        values: Iterable[Any],
        is_errors: Iterable[bool] | None = None,
    ) -> Self:
        """Make the results of these `ToolCalls` from one value for each call, in order. Raises `ValueError` if the numbers differ."""
        values, calls = list(values), tool_calls.tool_calls
        failed = [False] * len(values) if is_errors is None else list(is_errors)
        if not len(calls) == len(values) == len(failed):
            raise ValueError(
                f"There are {len(calls)} calls, {len(values)} values and {len(failed)} marks of errors.",
            )
        made = [
            ToolCallResult(call_id=call.id, name=call.name, value=each, is_error=is_error)
            for call, each, is_error in zip(calls, values, failed, strict=True)
        ]
        return cls(tool_call_results=made)

    @classmethod
    def description(cls) -> str:
        """The description of this type for a model."""
        return (
            "Results of tool calls: the tool's name, the value it returned, and whether it failed."
        )

    def result_of(self, call_id: str | None, index: int) -> ToolCallResult | None:
        """The result of the call with this id or, where ids are missing, at this position."""
        results = self.tool_call_results
        if call_id is not None and (
            found := next((each for each in results if each.call_id == call_id), None)
        ):
            return found
        at = results[index] if index < len(results) else None
        return at if at is not None and (at.call_id is None or call_id is None) else None

    def format(self) -> dict[str, Any]:
        """`{"tool_call_results": [...]}`, as JSON data."""
        return {"tool_call_results": [each.model_dump() for each in self.tool_call_results]}

    def __len__(self) -> int:
        return len(self.tool_call_results)
