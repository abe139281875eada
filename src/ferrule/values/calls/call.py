"""A tool call, its result, and `ToolSpec`: the part of a tool that a run uses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self

from msgspec import Struct
from msgspec.structs import astuple, replace
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import core_schema

from ferrule.encoding.encode import is_masked, json_text, opaque_text
from ferrule.encoding.written import with_digits
from ferrule.errors import (
    ConfirmationRejected,
    ConfirmationRequired,
    ToolArgumentsError,
    ToolCallError,
    ToolRetry,
    UnknownToolError,
)
from ferrule.execute_calls import ainvoke, callers_functions, invoke
from ferrule.record import CheckedModel, CheckedStruct, PartlyCompared
from ferrule.text_calls.drafts import CallFault
from ferrule.values.calls.error_text import error_text
from ferrule.values.calls.shapes import call_fields, fields_at, schema_of
from ferrule.values.content.convert import content_text, render
from ferrule.values.content.parts import Content
from ferrule.values.content.type import serialized_by

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ferrule.execute_calls import Functions


FROM_TEXT = "from_text"
"""The repair of a call that was read from the text of an answer.

The model did not make it as a structured call, so it may also be a text that the model repeats,
such as an example in a page that it was asked to summarize.
"""


class ToolCall(CheckedModel, BaseModel):
    """One call that a model asked for: `ToolCall(name="add", args={"a": 1})`.

    `arguments=` is an alias of `args=`.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        defer_build=True,
        json_schema_extra=schema_of("name", "args"),
    )

    name: str
    """The tool's name, as the model wrote it."""
    args: Annotated[
        dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)
    ] = Field(default_factory=dict[str, Any], validation_alias=AliasChoices("args", "arguments"))
    """Arguments by name, as parsed from JSON; not yet checked against a tool."""
    id: str | None = Field(default=None, validation_alias=AliasChoices("id", "call_id"))
    """The provider's id of the call; a run assigns one if there is none."""
    intention: str | None = None
    """Why the model makes the call, in its own words. Not passed to the tool."""
    fault: CallFault | None = None
    """Why the call cannot run; None for a well-formed call."""
    repairs: tuple[str, ...] = ()
    """The names of the repairs that its text needed, in order.

    In events, also those of the repairs of its arguments.
    """
    confidence: float | None = None
    """How sure the model is of the call, from 0 to 1; None if it does not say."""
    written: str | None = Field(default=None, repr=False)
    """The arguments as JSON text, if it has digits that `args` has not, such as `3.10`."""

    @property
    def is_rescued(self) -> bool:
        """Whether the call was read from the text of an answer (`"from_text"` in `repairs`)."""
        return FROM_TEXT in self.repairs

    @property
    def arguments(self) -> dict[str, Any]:
        """Alias of `args`."""
        return self.args

    @property
    def call_id(self) -> str | None:
        """Alias of `id`."""
        return self.id

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text; the model's own text if it could not be parsed."""
        if self.fault is not None and self.fault.raw:
            return self.fault.raw
        if self.written is not None and self.args_as_written is not self.args:
            return self.written
        return json_text(self.args)

    @property
    def args_as_written(self) -> dict[str, Any]:
        """The arguments for a tool's check. Where text is wanted, a number has its own digits."""
        return with_digits(self.args, self.written)

    def format(self) -> dict[str, Any]:
        """The call in OpenAI's shape, with the arguments as JSON text."""
        shape: dict[str, Any] = {}
        if self.id is not None:
            shape["id"] = self.id
        shape["type"] = "function"
        shape["function"] = {"name": self.name, "arguments": self.arguments_text}
        return shape

    def to_dict(self) -> dict[str, Any]:
        """Intention (if any), name and arguments."""
        shape: dict[str, Any] = {}
        # First, as the model writes it: it says why before it says what.
        if self.intention is not None:
            shape["intention"] = self.intention
        shape["name"] = self.name
        shape["arguments"] = self.args
        return shape

    def more_fields(self) -> dict[str, Any]:
        """The fields that OpenAI's shape lacks, if set.

        They are `intention`, `fault`, `repairs` and `confidence`.
        """
        fields: dict[str, Any] = {}
        if self.intention:
            fields["intention"] = self.intention
        if self.fault is not None:
            fault = {key: value for key, value in asdict(self.fault).items() if value is not None}
            if fault:
                fields["fault"] = fault
        if self.repairs:
            fields["repairs"] = self.repairs
        if self.confidence is not None:
            fields["confidence"] = self.confidence
        return fields

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return serialized_by(
            cls._serialized,
            handler(source),
            handler,
            core_schema.dict_schema(core_schema.str_schema()),
        )

    def _serialized(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": self.name, "args": self.args}
        if self.id is not None:
            fields["id"] = self.id
        if self.written is not None:
            fields["written"] = self.written
        return {**fields, **self.more_fields()}

    def with_id(self, call_id: str) -> Self:
        """A copy with another id."""
        return self.changed(id=call_id)

    def changed(self, **fields: Any) -> Self:
        """A copy with some fields changed. The values are not checked."""
        return self.model_copy(update=fields)

    def __str__(self) -> str:
        return json_text(self.to_dict())

    def __hash__(self) -> int:
        # Only the names of the arguments: `1`, `1.0` and `True` are equal, and must hash alike.
        return hash((self.name, self.id, frozenset(self.args)))

    def execute(self, functions: Functions | None = None) -> Any:
        """Run the call on the function of that name, and return the function's value.

        `functions` is a dict by name or a list of tools; a tool checks the arguments first. The
        default is the functions and tools that the caller's module defines, but not imported ones.
        Raises `UnknownToolError` (a `ValueError`) if there is no such function,
        `ToolExecutionError` (a `RuntimeError`, with the cause) if it raises, `ToolCallError` for a
        call with a fault. For arguments that do not fit, a tool raises `ToolArgumentsError` (a
        `ValueError`) before its function runs; a plain function raises `TypeError`, which becomes
        the cause of a `ToolExecutionError`.
        """
        if functions is None:
            functions = callers_functions()
        return invoke(self, functions)

    def aexecute(self, functions: Functions | None = None) -> Coroutine[Any, Any, Any]:
        """As `execute`, for async functions and tools; a sync one runs in a thread."""
        # Not a coroutine function: the caller's frame is only in reach before the first `await`.
        if functions is None:
            functions = callers_functions()
        return ainvoke(self, functions)

    @classmethod
    def read(cls, entry: Any) -> ToolCall:
        """Read a call in any of the usual shapes; raises `ToolCallError` for anything else.

        Accepts `{"name", "args"}` and `{"name", "arguments"}`, with `intention` and `id`; OpenAI's
        `{"id", "type": "function", "function": {...}}`; the flat `{"type": "function_call",
        "call_id", ...}`; and objects with these attributes. Arguments may be JSON text; text that
        is not a JSON object gives a call with a `fault`, not an error.
        """
        if isinstance(entry, ToolCall):
            return entry
        return cls.unchecked(**call_fields(entry))

    @classmethod
    def unchecked(
        cls, name: str, args: dict[str, Any], id: str | None = None, **fields: Any
    ) -> Self:
        """Make a call without checks. The values must have the right types."""
        return cls.model_construct(name=name, args=args, id=id, **fields)


_NO_REASON = "The call was not accepted: change it and try again."
"""The result of a call whose tool raised `ToolRetry` without a text."""
_FAULTS = (ToolArgumentsError, ToolCallError, ToolRetry, UnknownToolError)
"""The errors of a call that the model must change. Any other error is the tool's."""


def call_at(entry: Any, index: int) -> ToolCall:
    """The call at a position of an answer, as `ToolCall.read` reads it.

    Anything that is not a call becomes one with a fault, which the model then reads.
    """
    if isinstance(entry, ToolCall):
        return entry
    return ToolCall.unchecked(**fields_at(entry, index))


_CUT_SHORT = frozenset({"length", "content_filter"})


def check_last(
    calls: tuple[ToolCall, ...], finish_reason: str | None, *, is_object: bool = False
) -> tuple[ToolCall, ...]:
    """The calls that end an answer. The last one has a fault if its arguments may be cut off.

    An answer that reached its maximum length, or that a filter stopped, ends anywhere. Arguments
    that came as a text show where they end, unless none had come yet. An object (`is_object`) holds
    those that had come. Without the others, another call than the model meant would run.
    """
    if finish_reason not in _CUT_SHORT or not calls:
        return calls
    *others, last = calls
    if last.fault is not None or (last.args and not is_object):
        return calls
    reason = "the answer ended before all of its arguments had come"
    fault = CallFault("invalid_tool_call_arguments", reason, json_text(last.args), len(others))
    return (*others, last.changed(args={}, fault=fault))


class ToolResult(PartlyCompared, Struct, metaclass=CheckedStruct, frozen=True):
    """The result of one call.

    The model sees `content`; the function returned `value` (None in a loaded run). With
    `is_error`, the call failed or did not run; with `is_fault`, by the model's mistake: an unknown
    tool, bad arguments, `ToolRetry`.
    """

    _not_compared = _not_shown = frozenset({"value", "error", "repairs"})

    name: str
    """The tool's name, as the call gave it."""
    content: Content
    """Text, or parts if the tool returned images or other media."""
    call_id: str | None = None
    is_error: bool = False
    """The tool failed, or did not run."""
    is_fault: bool = False
    """The call itself was wrong (no such tool, bad arguments, `ToolRetry`)."""
    value: Any = None
    """The function's value. Not journalled: None after a replay."""
    error: BaseException | None = None
    """The function's exception. Not journalled: None after a replay.

    Its traceback is dropped after the observers have seen it.
    """
    change: Mapping[str, Any] | None = None
    """How the call changed the tools of its run, as JSON, or None. Journalled.

    See `tools/execution/tool_changes.py`.
    """
    repairs: tuple[str, ...] = ()
    """Names of the repairs that the call needed: of its text, then of its arguments."""
    by_person: bool = False
    """A person wrote the content, or changed the arguments of the call."""
    untrusted: bool = False
    """Others than the user may have written the content. Journalled.

    The tool says so (`untrusted=`); or it is a program, which read such a result itself.
    """

    @property
    def text(self) -> str:
        """The content as plain text: of images and other media, their names."""
        if isinstance(self.content, str):
            return self.content
        return content_text(self.content)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all fields but `value` and `error`, which may hold anything."""
        return type(self), astuple(replace(self, value=None, error=None))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # frozen, and the function's value may not be copyable


def to_result(call: ToolCall, value: Any) -> ToolResult:
    """The result of a call that returned `value`."""
    if isinstance(value, ToolResult):
        content = value.content
        if value.is_error and isinstance(content, str) and not content.strip():
            # Most wires have no mark for an error: without words, it would pass for a result.
            content = f"`{call.name}` failed, and gave no reason."
        return ToolResult(
            call.name,
            content,
            call.id,
            is_error=value.is_error,
            is_fault=value.is_fault,
            value=value.value,
            error=value.error,
            repairs=(*call.repairs, *value.repairs),
            untrusted=value.untrusted,
        )
    if isinstance(value, AsyncGeneratorType):
        msg = (
            f"`{call.name}` returned an async generator, which cannot be shown to a model. "
            "Collect its values and return a list."
        )
        return failure(call, TypeError(msg), is_raised=True)
    if type(value) is str:
        content = value
    else:
        content = render(value)
        if isinstance(content, str) and "<" in content:
            _warn_without_json(call.name, value)
    return ToolResult(call.name, content, call.id, value=value, repairs=call.repairs)


def _warn_without_json(name: str, value: Any) -> None:
    """Warn of an object in a result of which a model sees no more than `<Name object>`."""
    if not getattr(value, "is_shown_to_a_model", True):  # an answer of `reconcile=`
        return
    opaque = opaque_text(value)
    if opaque is not None:
        warnings.warn(
            f"The tool `{name}` returned an object that has no form in JSON: the model sees only "
            f"{opaque!r}. Return a text, a dict, a dataclass or a pydantic model.",
            RuntimeWarning,
            stacklevel=3,
        )


def failure(call: ToolCall, error: BaseException, *, is_raised: bool = False) -> ToolResult:
    """The result of a call that did not run, or whose tool raised `error` (`is_raised`).

    An error in the call itself is the model's fault. Of the errors that a tool raises, only
    `ToolRetry` is: the others may come from calls that the tool made.
    """
    if is_raised:
        is_fault = isinstance(error, ToolRetry)
    else:
        is_fault = isinstance(error, _FAULTS)
    if isinstance(error, ConfirmationRequired):  # raised by a direct call: a run waits instead
        text = "This call waits for a person's decision; it was not run."
    elif is_fault or isinstance(error, ConfirmationRejected):
        text = str(error)
        if not text.strip():
            text = _NO_REASON
    else:
        # The error of a run gets a frame from each reader that raises it, and loses all frames in
        # a store.
        text = error_text(call.name, call.args, error, shows_frames=is_raised)
    return ToolResult(
        call.name,
        text,
        call.id,
        is_error=True,
        is_fault=is_fault,
        error=error,
        repairs=call.repairs,
    )


class ToolSpec(Protocol):
    """The part of a tool that a run uses."""

    name: str
    wire_name: str
    require_confirmation: Any
    effect: str
    says_once: bool
    reconcile: Any
    unknown: str
    takes_context: bool
    is_program: bool
    timeout_s: float | None
    concurrent: bool
    func: Any
    result: str
    within_s: float | None
    returns: Any
    untrusted: bool

    @property
    def declaration(self) -> dict[str, Any]:
        """The canonical `{"type": "function", "function": {...}}`. Shared: do not change it."""
        ...

    def prepare(self, args: dict[str, Any]) -> CheckedArguments:
        """Coerce and check arguments; raises `ToolArgumentsError` with every problem."""
        ...

    def with_context(
        self, arguments: CheckedArguments, context: Any, caller: Any
    ) -> CheckedArguments:
        """Checked arguments with the values that the run fills in: a `Context`, a caller."""
        ...


class StandIn(Struct, frozen=True):
    """Takes the place of a tool, with the options of a plain one: a `ToolSpec`.

    Of a tool that a run used and that the program no longer has, whose calls keep their recorded
    results; or of a function that runs as a tool does.
    """

    name: str
    func: Any = None
    timeout_s: float | None = None
    require_confirmation: Any = False
    effect: str = "once"
    says_once: bool = False
    reconcile: Any = None
    unknown: str = "ask"
    takes_context: bool = False
    is_program: bool = False
    concurrent: bool = True
    result: str = "function"
    within_s: float | None = None
    returns: Any = None
    untrusted: bool = False

    @property
    def wire_name(self) -> str:
        """Its name: no model sees it."""
        return self.name

    @property
    def declaration(self) -> dict[str, Any]:
        """Without a schema: a question offers nothing to edit."""
        return {"function": {"parameters": None}}

    def prepare(self, args: dict[str, Any]) -> CheckedArguments:
        """Raise `ToolArgumentsError`: there is no tool that could take arguments."""
        del args
        raise ToolArgumentsError(self.name, [("", "the program no longer has this tool")])

    def with_context(
        self, arguments: CheckedArguments, context: Any, caller: Any
    ) -> CheckedArguments:
        """The arguments, unchanged."""
        del context, caller
        return arguments


class CheckedArguments(Struct):
    """Arguments that passed their tool's check."""

    positional: tuple[Any, ...]
    """Values of positional-only parameters."""
    named: dict[str, Any]
    """Values by parameter name, models as instances."""
    shown: dict[str, Any]
    """The arguments as JSON, with defaults: shown to a person who must agree, and journalled."""
    repairs: tuple[str, ...] = ()

    @property
    def secrets(self) -> dict[str, Any]:
        """Arguments that are shown as stars, by name.

        They are pydantic's `SecretStr` and `SecretBytes`, and values that hold one.
        """
        return {
            name: value
            for name, value in self.named.items()
            if name in self.shown and is_masked(self.shown[name])
        }


class CheckedCall(Struct):
    """A call that may run: its tool was found and its arguments fit."""

    call: ToolCall
    tool: ToolSpec
    arguments: CheckedArguments
    host: Any = None
    """Applies a change of tools that the call returns; None where tools cannot change.

    See `programs/tool_use/dynamic.py`.
    """
    refused: str | None = None
    """The observation of a call that a policy denies, and that does not run; else None."""
    misfit: str = ""
    """Why a recorded call no longer fits the program.

    Such a call does not run. If it has no result, a person is asked.
    """
    looked: Any = None
    """What conditions found that look beyond the call: `Looked` of `approval/rulings.py`.

    None if they have not looked.
    """
    guard: Callable[[CheckedCall], None] | None = None
    """Called with the call right before its tool runs; raises `ConfirmationRejected` to stop it.

    See `guarded` in `approval/rulings.py`.
    """

    @property
    def digest(self) -> str:
        """The tool and its arguments as text; equal calls have equal digests."""
        return f"{self.tool.name} {json_text(self.arguments.shown)}"
