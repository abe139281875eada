"""Render earlier turns as messages: demos and history inputs.

The adapter renders the fields of a turn as a question and an answer. With native tool calls, the
calls of a turn become calls of the assistant's message, each followed by its result, as providers
require. Otherwise the results follow the answer as a field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct

from ferrule.adapters.fields import calls_output, tool_inputs
from ferrule.adapters.parse import read_calls
from ferrule.adapters.render import as_read
from ferrule.encoding.encode import jsonable
from ferrule.errors import InputError, nearest, shown
from ferrule.values.calls.call import ToolCall
from ferrule.values.calls.results import ToolCallResult
from ferrule.values.calls.tool_calls import ToolCalls, calls_and_results
from ferrule.values.content.convert import content_of, render
from ferrule.values.conversation.history import History, after_system
from ferrule.values.conversation.message import Message
from ferrule.values.signatures.fields import adapter_of, without_none

if TYPE_CHECKING:
    from ferrule.adapters.fields import PromptFields
    from ferrule.values.content.convert import Piece
    from ferrule.values.signatures.fields import SignatureField
    from ferrule.values.signatures.signature import Signature

_PACKAGES_OF_TEXTS = frozenset(
    {
        "datetime",
        "decimal",
        "fractions",
        "ipaddress",
        "pathlib",
        "pydantic",
        "pydantic_core",
        "re",
        "uuid",
        "zoneinfo",
    }
)
"""Packages whose types have values that are strings in JSON."""
NOT_GIVEN = "(not given in this example)"
"""Stands for a field that a demo lacks, or for the result of a call."""
_MISSPELLED = 0.82
"""How similar a misspelled name is: `ansewr` to `answer`, but not `reason` to `reasoning`."""


class FieldWriter(Protocol):
    """Writes the fields of questions and answers: an adapter, or `NativeText`."""

    def render_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        ...

    def render_answer(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        ...


class _Turn(Struct, frozen=True):
    """One question and its answer, with the calls of the answer and their results."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    calls: tuple[ToolCall, ...]
    """The native calls; empty if calls are written as text."""
    results: tuple[ToolCallResult | None, ...]
    """The result of each valid call, as far as it is known."""


def demo_messages(
    writer: FieldWriter, fields: PromptFields, demo: Any, index: int
) -> list[Message]:
    """Render a demo as messages.

    Raises `InputError` for a demo with none of the fields, or with a misspelled one.
    """
    values = _as_mapping(demo)
    if values is None or not values.keys() & {*fields.inputs, *fields.outputs, fields.calls}:
        raise InputError(
            f"Demo {index} cannot be rendered: a demo is a mapping with some of the fields "
            f"{_names(fields)}, found {shown(demo)}."
        )
    _refuse_misspelled(f"Demo {index}", values, fields)
    messages: list[Message] = []
    for name in fields.histories:
        messages += history_messages(writer, fields, values.get(name))
    calls, results = _calls_and_results(fields, values, f"demo_{index}")
    inputs = {name: values.get(name, NOT_GIVEN) for name in fields.inputs}
    # An answer with native calls may have no other outputs.
    outputs = {
        name: values.get(name, NOT_GIVEN)
        for name in fields.outputs
        if not calls or values.get(name) is not None
    }
    return messages + _turn_messages(writer, fields, _Turn(inputs, outputs, calls, results))


def has_output(demo: Any, fields: PromptFields) -> bool:
    """Whether a demo has any of these output fields."""
    values = _as_mapping(demo)
    return values is not None and not values.keys().isdisjoint(fields.outputs)


def history_messages(writer: FieldWriter, fields: PromptFields, history: Any) -> list[Message]:
    """Render a history as messages, without its leading system message.

    Raises `InputError` for a turn with none of the fields, or with a misspelled one.
    """
    if history is None:
        return []
    if not isinstance(history, History):
        messages: Any = history
        if isinstance(history, Mapping):
            messages = cast("Mapping[str, Any]", history).get("messages")
        history = History(messages)
    turn_indices = count()

    def render_turn(turn: Mapping[str, Any]) -> list[Message]:
        calls, results = _calls_and_results(fields, turn, f"turn_{next(turn_indices)}")
        inputs = {name: turn[name] for name in fields.inputs if name in turn}
        outputs = {
            name: turn[name]
            for name in fields.outputs
            if name in turn and (not calls or turn[name] is not None)
        }
        if not inputs and not outputs and not calls:
            raise InputError(
                f"A turn of the history cannot be rendered: it has none of the fields "
                f"{_names(fields)} and is not a message: {shown(turn)}."
            )
        _refuse_misspelled("A turn of the history", turn, fields)
        return _turn_messages(writer, fields, _Turn(inputs, outputs, calls, results))

    return after_system(history.as_messages(render_turn))


def _refuse_misspelled(what: str, values: Mapping[str, Any], fields: PromptFields) -> None:
    """Raise `InputError` for a name that is nearly the name of a field without a value.

    Its value would be missing from the prompt. Any other unknown name is ignored, as in DSPy: a
    turn may hold the fields of another program.
    """
    missing = [name for name in (*fields.inputs, *fields.outputs) if name not in values]
    plan = fields.signature.plan
    for name in map(str, values):  # a dict may have anything as its keys
        if name in plan.inputs or name in plan.outputs:
            continue
        near = nearest(name, missing, cutoff=_MISSPELLED)
        if near is not None:
            raise InputError(
                f"{what} cannot be rendered: it has `{name}`, but not the field `{near}`. "
                "Rename the one to the other, or leave it out."
            )


def _names(fields: PromptFields) -> str:
    return ", ".join(f"`{name}`" for name in (*fields.inputs, *fields.outputs))


def _calls_and_results(
    fields: PromptFields, values: Mapping[str, Any], prefix: str
) -> tuple[tuple[ToolCall, ...], tuple[ToolCallResult | None, ...]]:
    """The calls of a turn, with ids unique in this conversation, and the known results.

    Without native calls, only the results.
    """
    name = calls_output(fields.signature)
    if name is None:
        return (), ()
    output = values.get(name)
    if output is None:
        return (), ()
    try:
        calls = read_calls(output, ToolCalls).tool_calls
        if isinstance(output, Mapping):
            results = calls_and_results(output)[1]
        else:
            results = getattr(output, "tool_call_results", None)
    except ValueError as error:
        raise InputError(
            f"`{name}` of an earlier turn ({prefix}) cannot be rendered: {error}"
        ) from error
    # The index counts invalid calls, too: results without an id belong to a call by its index.
    valid = [(index, call) for index, call in enumerate(calls) if call.fault is None]
    valid_results: list[ToolCallResult | None] = [None] * len(valid)
    if results is not None:
        valid_results = [results.result_of(call.id, index) for index, call in valid]
    if fields.calls is None:
        return (), tuple(valid_results)
    identified = [call.with_id(f"{prefix}_{index}") for index, call in valid]
    return tuple(identified), tuple(valid_results)


def _turn_messages(writer: FieldWriter, fields: PromptFields, turn: _Turn) -> list[Message]:
    signature = fields.signature
    messages: list[Message] = []
    inputs = _as_declared(signature.plan.inputs, turn.inputs)
    if inputs:
        content = content_of(writer.render_fields(_with_tools(signature, inputs)))
        messages.append(Message("user", content))
    outputs = _as_declared(signature.plan.outputs, turn.outputs)
    if outputs or turn.calls:
        written = {
            name: _without_results(value) for name, value in as_read(signature, outputs).items()
        }
        content = ""
        if written:
            content = content_of(writer.render_answer(written))
        messages.append(Message("assistant", content, turn.calls))
    if turn.calls:
        # Providers reject a call without a result.
        messages += map(_result_message, turn.calls, turn.results)
    elif any(turn.results):
        shown_results = [_result_form(result) for result in turn.results if result]
        content = content_of(writer.render_fields({"tool_call_results": shown_results}))
        messages.append(Message("user", content))
    return messages


def _result_form(result: ToolCallResult) -> dict[str, Any]:
    form = {"name": result.name, "value": result.value}
    if result.is_error:
        form["is_error"] = True
    return form


def _as_declared(
    fields: Mapping[str, SignatureField], values: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The values, with strings read as dates and the like where the field says so.

    A turn that was stored as JSON then renders as before.
    """
    declared = dict(values)
    for name, text in values.items():
        if type(text) is not str or name not in fields:
            continue
        read = _reader_of_text(fields[name].annotation)
        if read is None:
            continue
        # The last two errors: a regular expression that Python cannot compile.
        with suppress(ValueError, OverflowError, RecursionError):
            value = read(text)
            if jsonable(value) == text:
                declared[name] = value
    return declared


@lru_cache(maxsize=256)
def _reader_of_text(annotation: Any) -> Callable[[Any], Any] | None:
    """A reader for a type whose values are strings in JSON.

    None for types that take any string, or are not strings in JSON.
    """
    kind = without_none(annotation)
    if not isinstance(kind, type):
        return None
    package = kind.__module__.partition(".")[0]
    if kind not in {bytes, complex} and package not in _PACKAGES_OF_TEXTS:
        return None
    from pydantic import BaseModel, ConfigDict, TypeAdapter  # late: few turns have such values

    # These packages also have types whose values are objects in JSON, such as `BaseModel` itself.
    if issubclass(cast("type[Any]", kind), (BaseModel, dict)):
        return None
    return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True)).validate_python


def _with_tools(signature: type[Signature], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs of a turn, with functions and dicts converted to tools, as in a question."""
    converted = dict(inputs)
    for name in tool_inputs(signature).keys() & inputs.keys():
        with suppress(ValueError):  # it declares no tool: it is rendered unchanged
            converted[name] = adapter_of(signature.plan.inputs[name]).validate_python(inputs[name])
    return converted


def _result_message(call: ToolCall, result: ToolCallResult | None) -> Message:
    if result is None:
        return Message("tool", NOT_GIVEN, tool_call_id=call.id, name=call.name)
    return Message(
        "tool", render(result.value), tool_call_id=call.id, name=call.name, is_error=result.is_error
    )


def _without_results(value: Any) -> Any:
    """A value as the model writes it: calls without their results."""
    if isinstance(value, ToolCalls):
        return value.model_copy(update={"tool_call_results": None})
    return value


def _as_mapping(demo: Any) -> Mapping[str, Any] | None:
    """The fields of a demo, by name; None if it is not one."""
    if isinstance(demo, Mapping):
        return cast("Mapping[str, Any]", demo)
    as_dict: Any = getattr(demo, "toDict", None)  # DSPy's examples
    if not callable(as_dict):
        return None
    return cast("Mapping[str, Any]", as_dict())
