"""`ToolCallResults`: the results of earlier calls, in demos and in turns of a history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self, cast

from pydantic import BaseModel, ConfigDict, field_serializer, model_validator

from ferrule.encoding.encode import jsonable
from ferrule.errors import shown
from ferrule.record import CheckedModel
from ferrule.values.content.convert import marked_parts, read_marked
from ferrule.values.content.type import Type


class ToolCallResult(CheckedModel, BaseModel):
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
        """Read a result from a mapping, or from a `ToolResult` of `ToolCalls.execute_all`."""
        if isinstance(result, ToolCallResult):
            return result
        if isinstance(result, Mapping):
            fields = dict(cast("Mapping[str, Any]", result))
            return cls.model_validate({**fields, "value": read_marked(fields.get("value"))})
        if not hasattr(result, "content") or not hasattr(result, "call_id"):
            msg = f"A result is a `ToolResult` or a mapping with `value`, found {shown(result)}"
            raise ValueError(msg)
        # The value is the better demo, but a failed call and a loaded run have only the content.
        value = result.content
        if result.value is not None and not result.is_error:
            value = result.value
        return cls(call_id=result.call_id, name=result.name, value=value, is_error=result.is_error)


class ToolCallResults(CheckedModel, Type):
    """The results of the calls of one answer.

    In a turn of a `History`: `ToolCalls(tool_calls=calls, tool_call_results=results)`.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    ToolCallResult: ClassVar[type[ToolCallResult]] = ToolCallResult
    tool_call_results: list[ToolCallResult]

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        results: Any = data
        if isinstance(data, Mapping) and "tool_call_results" in data:
            results = cast("Mapping[str, Any]", data)["tool_call_results"]
        if isinstance(results, ToolCallResults):
            return {"tool_call_results": results.tool_call_results}
        if not isinstance(results, (list, tuple)):
            value = shown(cast("object", data))
            raise ValueError(f"Received invalid value for `ferrule.ToolCallResults`: {value}")
        entries = cast("list[Any]", results)
        return {"tool_call_results": [ToolCallResult.of(entry) for entry in entries]}

    @classmethod
    def from_tool_calls_and_values(
        cls, tool_calls: Any, values: Iterable[Any], is_errors: Iterable[bool] | None = None
    ) -> Self:
        """Make the results of these `ToolCalls`, or of a list of calls, from their values in order.

        Raises `ValueError` if the numbers differ.
        """
        calls = list(getattr(tool_calls, "tool_calls", tool_calls))
        values = list(values)
        if is_errors is None:
            failed = [False] * len(values)
        else:
            failed = list(is_errors)
        if not len(calls) == len(values) == len(failed):
            raise ValueError(
                f"There are {len(calls)} calls, {len(values)} values "
                f"and {len(failed)} marks of errors."
            )
        results = [
            ToolCallResult(call_id=call.id, name=call.name, value=value, is_error=is_error)
            for call, value, is_error in zip(calls, values, failed, strict=True)
        ]
        return cls(tool_call_results=results)

    @classmethod
    def description(cls) -> str:
        """The description of this type for a model."""
        return (
            "Results of tool calls: the tool's name, the value it returned, and whether it failed."
        )

    def result_of(self, call_id: str | None, index: int) -> ToolCallResult | None:
        """The result of the call with this id or, where ids are missing, at this position."""
        results = self.tool_call_results
        if call_id is not None:
            for result in results:
                if result.call_id == call_id:
                    return result
        if index >= len(results):
            return None
        result = results[index]
        # A result with another call's id belongs to that call, wherever it is.
        if result.call_id is not None and call_id is not None:
            return None
        return result

    def format(self) -> dict[str, Any]:
        """`{"tool_call_results": [...]}`, as JSON data."""
        return {"tool_call_results": [result.model_dump() for result in self.tool_call_results]}

    def __len__(self) -> int:
        return len(self.tool_call_results)
