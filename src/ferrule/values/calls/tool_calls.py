"""`ToolCalls`: the calls of one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from pydantic import ConfigDict, model_validator

from ferrule.errors import ToolCallError, shown
from ferrule.execute_calls import ainvoke_all, callers_functions, invoke_all
from ferrule.record import CheckedModel
from ferrule.text_calls.find import find
from ferrule.values.calls.call import ToolCall, failure, to_result
from ferrule.values.calls.results import ToolCallResults
from ferrule.values.calls.shapes import schema_of
from ferrule.values.content.type import Type

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ferrule.execute_calls import Ended, Functions
    from ferrule.values.calls.call import ToolResult


class ToolCalls(CheckedModel, Type):
    """The calls of one answer, in order: the type of an output field that receives them."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, json_schema_extra=schema_of("tool_calls")
    )

    ToolCall: ClassVar[type[ToolCall]] = ToolCall
    tool_calls: list[ToolCall]
    tool_call_results: Any = None
    """The `ToolCallResults` of these calls in a demo or a turn of a history, or None.

    Takes what `execute_all` returns.
    """

    @model_validator(mode="before")
    @classmethod
    def validate_input(cls, data: Any) -> Any:
        """Accept a list of calls, `{"tool_calls": [...]}`, one call, or `ToolCalls`.

        Each call has any shape that `ToolCall.read` accepts.
        """
        if isinstance(data, cls):
            return data
        if isinstance(data, ToolCalls):  # a sibling class, such as a facade's
            return {"tool_calls": data.tool_calls, "tool_call_results": data.tool_call_results}
        if isinstance(data, ToolCall):
            data = [data]
        entries, results = calls_and_results(data)
        calls: list[ToolCall] = []
        for index, entry in enumerate(entries):
            try:
                calls.append(ToolCall.read(entry))
            except ToolCallError as error:
                value = shown(cast("object", data))
                raise ValueError(
                    f"Received invalid value for `ferrule.ToolCalls`: {value}: "
                    f"call {index}: {error}"
                ) from error
        return {"tool_calls": calls, "tool_call_results": results}

    @classmethod
    def from_dict_list(cls, tool_calls_dicts: list[dict[str, Any]]) -> Self:
        """Make `ToolCalls` from a list of `{"name": ..., "args": {...}}`."""
        return cls.model_validate(tool_calls_dicts)

    @classmethod
    def from_text(cls, text: str, tools: Any) -> Self:
        """Find the calls that a model wrote as text, in any of the usual forms.

        `tools` are the offered tools, or their declarations in OpenAI's form. Only calls to these
        are found.
        """
        return cls(tool_calls=[ToolCall(**fields) for fields in find(text, tools)[0]])

    @classmethod
    def description(cls) -> str:
        """The description of this type for a model."""
        return (
            "Tool calls information, including the name of the tools and the arguments to be "
            "passed to it. Arguments must be provided in JSON format: "
            '{"tool_calls": [{"name": the name of a tool, "args": its arguments as an object}]}.'
        )

    def format(self) -> dict[str, Any]:
        """`{"tool_calls": [...]}`, with each call in OpenAI's shape, and with its id."""
        return {"tool_calls": [call.format() for call in self.tool_calls]}

    def serialize_model(self) -> Any:
        """`format()` with the fields that OpenAI's shape lacks, so that calls load unchanged."""
        results: dict[str, Any] = {}
        if self.tool_call_results is not None:
            results = self.tool_call_results.format()
        return {
            "tool_calls": [{**call.format(), **call.more_fields()} for call in self.tool_calls],
            **results,
        }

    def execute_all(
        self, functions: Functions | None = None, *, concurrent: bool = True
    ) -> list[ToolResult]:
        """Run every call as `ToolCall.execute` does, by default all at once.

        Returns the results in order, including failures.
        """
        ended = invoke_all(
            self.tool_calls,
            functions if functions is not None else callers_functions(),
            concurrent=concurrent,
        )
        return list(map(_result, self.tool_calls, ended))

    def aexecute_all(
        self, functions: Functions | None = None, *, concurrent: bool = True
    ) -> Coroutine[Any, Any, list[ToolResult]]:
        """As `execute_all`, for async functions and tools; sync ones run in threads."""
        return self._aexecute_all(
            functions if functions is not None else callers_functions(), concurrent
        )

    async def _aexecute_all(self, functions: Functions, concurrent: bool) -> list[ToolResult]:
        ended = await ainvoke_all(self.tool_calls, functions, concurrent=concurrent)
        return list(map(_result, self.tool_calls, ended))

    def __eq__(self, other: object) -> bool:
        # As for trajectories: ids and repairs differ between equal answers of different providers.
        if not isinstance(other, ToolCalls):
            return NotImplemented
        if self.tool_call_results != other.tool_call_results:
            return False
        return list(map(_called, self.tool_calls)) == list(map(_called, other.tool_calls))

    def __hash__(self) -> int:
        return hash(tuple([call.name for call in self.tool_calls]))

    def __len__(self) -> int:
        return len(self.tool_calls)


def _called(call: ToolCall) -> tuple[Any, ...]:
    return (call.name, call.args, call.intention, call.fault)


def _result(call: ToolCall, ended: Ended) -> ToolResult:
    if ended.error is not None:
        return failure(call, ended.error, is_raised=ended.is_raised)
    return to_result(call, ended.value)


def calls_and_results(data: Any) -> tuple[list[Any], Any]:
    """The entries of a list of calls, `{"tool_calls": [...]}` or one call, and the results."""
    entries: Any = data
    results: Any = None
    if isinstance(data, Mapping):
        fields = cast("Mapping[str, Any]", data)
        entries = fields.get("tool_calls", [data])
        if entries is None:  # as OpenAI's message without calls has it
            entries = []
        results = fields.get("tool_call_results")
    if not isinstance(entries, (list, tuple)):
        msg = f"Received invalid value for `ferrule.ToolCalls`: {shown(cast('object', data))}"
        raise ValueError(msg)
    if results is not None:
        results = ToolCallResults.model_validate(results)
    return list(cast("list[Any]", entries)), results
