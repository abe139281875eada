"""Tool calls and their results.

In: what a model wrote, in any of the usual shapes. Out: `ToolCall`s with parsed arguments or a named fault, `ToolResult`s with content
that can be shown to a model. Nothing here runs a tool but `execute` and its like (values/calls/direct.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self, cast

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_serializer, model_validator

from ferrule.errors import ToolArgumentsError, ToolCallError, ToolRetry, UnknownToolError, shown
from ferrule.values.calls.shapes import CallFault, call_fields
from ferrule.values.content.custom_type import Type
from ferrule.values.encoding.encode import json_text, object_text
from ferrule.values.encoding.masked import is_masked
from ferrule.values.record import Record, field, fields_of, replace

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ferrule.values.calls.direct import Functions, Outcome
    from ferrule.values.content.parts import Content


def _arguments(value: Any) -> Any:
    return {} if value is None else value


class ToolCall(BaseModel):
    """One call a model asked for: `ToolCall(name="add", args={"a": 1})`, or with `arguments=` and `intention=` as in seed 004."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)

    name: str
    """The tool's name as the model wrote it."""
    args: Annotated[dict[str, Any], BeforeValidator(_arguments)] = Field(
        default_factory=dict[str, Any], validation_alias=AliasChoices("args", "arguments")
    )
    """Name to value, as JSON gave them: not yet checked against any tool."""
    id: str | None = None
    """The provider's id of the call; a run gives one where there is none."""
    intention: str | None = None
    """Why the model makes the call, in its own words; never passed to the tool."""
    fault: CallFault | None = None
    """Why it cannot be run; None for a well-formed call."""
    repairs: tuple[str, ...] = ()
    """Names of the repairs its text needed, in order."""

    @property
    def arguments(self) -> dict[str, Any]:
        """`args`, under seed 004's name."""
        return self.args

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text; as the model wrote them where they could not be read."""
        return self.fault.raw if self.fault and self.fault.raw else json_text(self.args)

    def format(self) -> dict[str, Any]:
        """OpenAI's shape: the arguments are JSON text."""
        shape: dict[str, Any] = {"type": "function", "function": {"name": self.name, "arguments": self.arguments_text}}
        return {"id": self.id, **shape} if self.id is not None else shape

    def to_dict(self) -> dict[str, Any]:
        """Intention, name and arguments: seed 004's shape."""
        head = {"intention": self.intention} if self.intention is not None else {}
        return {**head, "name": self.name, "arguments": self.args}

    def beside(self) -> dict[str, Any]:
        """What OpenAI's shape has no place for, as far as there is any: `intention`, `fault`, `repairs`."""
        fault = {key: value for key, value in asdict(self.fault).items() if value is not None} if self.fault is not None else None
        extras = {"intention": self.intention, "fault": fault, "repairs": self.repairs}
        return {key: value for key, value in extras.items() if value}

    @model_serializer()
    def _serialized(self) -> dict[str, Any]:
        head = {"id": self.id} if self.id is not None else {}
        return {"name": self.name, "args": self.args, **head, **self.beside()}

    def with_id(self, call_id: str) -> Self:
        """The same call under another id."""
        return self.changed(id=call_id)

    def changed(self, **fields: Any) -> Self:
        """The same call with other fields, of the right types."""
        own: dict[str, Any] = {**vars(self), **fields}
        return self.unchecked(**own)

    def __str__(self) -> str:
        return json_text(self.to_dict())

    def __hash__(self) -> int:
        # Of the arguments only their names: `1`, `1.0` and `True` are equal, as are two orders, and must hash alike.
        return hash((self.name, self.id, frozenset(self.args)))

    def execute(self, functions: Functions | None = None) -> Any:
        """Run the call on a function of that name, and return what it returns.

        `functions` is a dict by name or a list of tools; a tool checks the arguments first. Without it the caller's own functions and
        tools are looked through, never what they imported. Raises `UnknownToolError` (a `ValueError`) where there is none of that name,
        `ToolExecutionError` (a `RuntimeError`, with the cause) when it throws, `ToolCallError` for a call with a fault.
        """
        from ferrule.values.calls.direct import callers_own, invoke

        return invoke(self, functions if functions is not None else callers_own())

    def aexecute(self, functions: Functions | None = None) -> Coroutine[Any, Any, Any]:
        """As `execute`, for async functions and tools; a sync one runs in a thread."""
        from ferrule.values.calls.direct import ainvoke, callers_own

        # No coroutine function: the caller's frame is only in reach before the first `await`.
        return ainvoke(self, functions if functions is not None else callers_own())

    @classmethod
    def read(cls, entry: Any) -> ToolCall:
        """A call out of any of the usual shapes; raises `ToolCallError` for what is none.

        Accepts `{"name", "args"}`, `{"name", "arguments"}`, with `intention` and `id`; OpenAI's `{"id", "type": "function", "function":
        {...}}`; the flat `{"type": "function_call", "call_id", ...}`; and objects that carry the same as attributes. Arguments may be
        JSON text; text that is no JSON object gives a call with a `fault`, not an error.
        """
        if isinstance(entry, ToolCall):
            return entry
        return cls.unchecked(**call_fields(entry))

    @classmethod
    def unchecked(cls, name: str, args: dict[str, Any], id: str | None = None, **fields: Any) -> Self:
        """A call of values that are of the right types already, without asking pydantic: every step makes one or two."""
        call = cls.__new__(cls)
        own = {"name": name, "args": args, "id": id, "intention": None, "fault": None, "repairs": (), **fields}
        _put(call, "__dict__", own)
        _put(call, "__pydantic_fields_set__", _EVERY_FIELD)
        _put(call, "__pydantic_extra__", None)
        _put(call, "__pydantic_private__", None)
        return call


_put = object.__setattr__
_EVERY_FIELD = set(ToolCall.model_fields)
"""One set for all calls: a copy of a call, the only way to change one, has a set of its own."""
_FAULTS = (ToolArgumentsError, ToolCallError, ToolRetry, UnknownToolError)


class ToolCalls(Type):
    """The calls of one answer, in order: the type of an output field that receives them (seed 002)."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    ToolCall: ClassVar[type[ToolCall]] = ToolCall

    tool_calls: list[ToolCall]

    @model_validator(mode="before")
    @classmethod
    def validate_input(cls, data: Any) -> Any:
        """Accept a list of calls, `{"tool_calls": [...]}`, or a single call, each in any shape `ToolCall.read` knows."""
        entries: Any = data
        if isinstance(data, Mapping) and "tool_calls" in data:
            found = cast("Mapping[str, Any]", data)["tool_calls"]
            entries = [] if found is None else found
        elif isinstance(data, (Mapping, ToolCall)):
            entries = [data]
        if not isinstance(entries, (list, tuple)):
            msg = f"Received invalid value for `ferrule.ToolCalls`: {shown(cast('object', data))}"
            raise ValueError(msg)  # noqa: TRY004  pydantic turns ValueError into a validation error
        calls: list[ToolCall] = []
        for index, entry in enumerate(cast("list[Any]", entries)):
            try:
                calls.append(ToolCall.read(entry))
            except ToolCallError as error:
                msg = f"Received invalid value for `ferrule.ToolCalls`: {shown(cast('object', data))}: call {index}: {error}"
                raise ValueError(msg) from error
        return {"tool_calls": calls}

    @classmethod
    def from_dict_list(cls, tool_calls_dicts: list[dict[str, Any]]) -> Self:
        """The calls of a list of `{"name": ..., "args": {...}}`."""
        return cls.model_validate(tool_calls_dicts)

    @classmethod
    def from_text(cls, text: str, tools: Any) -> Self:
        """The calls that a model wrote as text, in any of the usual forms; empty where there is none.

        `tools` are the tools offered: tools, or declarations in OpenAI's form. Only their calls are found, under their own names.
        """
        from ferrule.values.calls.text.find import find

        return cls(tool_calls=[ToolCall(**fields) for fields in find(text, tools)[0]])

    @classmethod
    def description(cls) -> str:
        """What a model should know of this type."""
        return 'Calls of tools: {"tool_calls": [{"name": the tool\'s name, "args": its arguments as a JSON object}]}.'

    def format(self) -> dict[str, Any]:
        """`{"tool_calls": [...]}`, each in OpenAI's shape, ids kept."""
        return {"tool_calls": [call.format() for call in self.tool_calls]}

    @model_serializer()
    def serialize_model(self) -> Any:
        """`format()`, and beside each call what OpenAI's shape has no place for: it reads back as it was."""
        return {"tool_calls": [{**call.format(), **call.beside()} for call in self.tool_calls]}

    def execute_all(self, functions: Functions | None = None, *, concurrent: bool = True) -> list[ToolResult]:
        """Run every call as `ToolCall.execute` does, at once unless told; results in order. What goes wrong with one is its result."""
        from ferrule.values.calls.direct import callers_own, invoke_all

        outcomes = invoke_all(self.tool_calls, functions if functions is not None else callers_own(), concurrent=concurrent)
        return [_result(*each) for each in zip(self.tool_calls, outcomes, strict=True)]

    def aexecute_all(self, functions: Functions | None = None, *, concurrent: bool = True) -> Coroutine[Any, Any, list[ToolResult]]:
        """As `execute_all`, for async functions and tools; sync ones run in threads."""
        from ferrule.values.calls.direct import callers_own

        return self._aexecute_all(functions if functions is not None else callers_own(), concurrent)

    async def _aexecute_all(self, functions: Functions, concurrent: bool) -> list[ToolResult]:
        from ferrule.values.calls.direct import ainvoke_all

        outcomes = await ainvoke_all(self.tool_calls, functions, concurrent=concurrent)
        return [_result(*each) for each in zip(self.tool_calls, outcomes, strict=True)]

    def __eq__(self, other: object) -> bool:
        # By what is called, like trajectories: ids, and what it took to read a call, differ between equal answers over different paths.
        if not isinstance(other, ToolCalls):
            return NotImplemented
        return list(map(_called, self.tool_calls)) == list(map(_called, other.tool_calls))

    def __hash__(self) -> int:
        return hash(tuple([call.name for call in self.tool_calls]))

    def __bool__(self) -> bool:
        return bool(self.tool_calls)

    def __len__(self) -> int:
        return len(self.tool_calls)


def _called(call: ToolCall) -> tuple[Any, ...]:
    return (call.name, call.args, call.intention, call.fault)


class ToolResult(Record):
    """What came of one call, as the model will see it."""

    name: str
    """The tool's name as the call said it."""
    content: Content
    """Text, or parts where the tool returned pictures and the like."""
    call_id: str | None = None
    is_error: bool = False
    """The tool failed, or was not run."""
    is_fault: bool = False
    """The call itself was at fault (no such tool, bad arguments, `ToolRetry`): a bad step of the model."""
    value: Any = field(default=None, compare=False, repr=False)
    """What the function returned; never journalled, and None after a replay."""
    error: BaseException | None = field(default=None, compare=False, repr=False)
    """What the function raised, without its traceback once observers were told; never journalled, and None after a replay."""
    change: Mapping[str, Any] | None = None
    """What the call changed in the tools of its run, as JSON (`tools/execution/tool_changes.py`); None for nothing. Journalled."""

    def __getstate__(self) -> list[Any]:
        """What is pickled: neither `value` nor `error`, which may hold anything."""
        return [None if name in {"value", "error"} else found for name, found in fields_of(self).items()]

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # frozen; and what a function returned is not ours to copy


def _result(call: ToolCall, outcome: Outcome) -> ToolResult:
    from ferrule.values.calls.direct import shown_to_model

    value, error = outcome
    if error is not None:
        is_fault = isinstance(error, _FAULTS)
        return ToolResult(call.name, object_text(error), call.id, is_error=True, is_fault=is_fault, error=error)
    if isinstance(value, ToolResult):
        return replace(value, name=call.name, call_id=call.id)
    return ToolResult(call.name, shown_to_model(value), call.id, value=value)


class ToolSpec(Protocol):
    """What the loop needs of a tool."""

    name: str
    wire_name: str
    require_confirmation: Any
    effect: str
    says_once: bool
    reconcile: Any
    unknown: str
    takes_context: bool
    timeout_s: float | None
    concurrent: bool
    func: Any

    @property
    def declaration(self) -> dict[str, Any]:
        """The canonical `{"type": "function", "function": {...}}`, shared and not to be changed."""
        ...

    def prepare(self, args: dict[str, Any]) -> CheckedArguments:
        """Coerce and check; raises `ToolArgumentsError` with every problem."""
        ...

    def with_context(self, arguments: CheckedArguments, context: Any, caller: Any) -> CheckedArguments:
        """Checked arguments with what the run fills (a `Context`, a caller) in its places."""
        ...


class CheckedArguments(Record):
    """Arguments that fit their tool."""

    positional: tuple[Any, ...]
    """Values for parameters that Python takes by position only."""
    named: dict[str, Any]
    """Values by parameter name, models as instances."""
    shown: dict[str, Any]
    """The same as JSON, defaults filled in: what a person is asked about and what the journal keeps."""
    repairs: tuple[str, ...] = ()

    @property
    def secrets(self) -> dict[str, Any]:
        """Arguments that are shown with stars, by name: pydantic's `SecretStr` and `SecretBytes`, and what holds one."""
        return {name: value for name, value in self.named.items() if name in self.shown and is_masked(self.shown[name])}


class CheckedCall(Record):
    """A call that may run: its tool was found and its arguments fit."""

    call: ToolCall
    tool: ToolSpec
    arguments: CheckedArguments
    host: Any = None
    """What a change of tools that the call returns is made on (`programs/tool_use/dynamic.py`); None where tools cannot be changed."""
    refused: str | None = None
    """What the model is told in place of a result, where the rules of now deny the call: it does not begin, but keeps its place."""
