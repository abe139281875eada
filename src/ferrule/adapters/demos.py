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

from ferrule.adapters.parse import read_calls
from ferrule.adapters.render import as_read, calls_output, tool_inputs, without_none
from ferrule.encoding.encode import jsonable
from ferrule.errors import InputError, shown
from ferrule.values.calls.tool_calls import ToolCalls, calls_and_results
from ferrule.values.content.convert import content_of, render
from ferrule.values.conversation.history import History, after_system
from ferrule.values.conversation.message import Message
from ferrule.values.signatures.fields import adapter_of

if TYPE_CHECKING:
    from ferrule.adapters.render import Shown
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.calls.results import ToolCallResult
    from ferrule.values.content.convert import Piece
    from ferrule.values.signatures.fields import SignatureField
    from ferrule.values.signatures.signature import Signature

_OF_TEXTS = frozenset(
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
    },
)
"""Packages whose types have values that are strings in JSON."""
NOT_GIVEN = "(not given in this example)"


class _FieldWriter(Protocol):
    """The part of `Adapter` that this module uses."""

    def drawn_fields(self, fields: Mapping[str, Any]) -> list[Piece]: ...
    def drawn_answer(self, fields: Mapping[str, Any]) -> list[Piece]: ...


def demo_messages(writer: _FieldWriter, fields: Shown, demo: Any, index: int) -> list[Message]:
    """Render a demo as messages. Raises `InputError` for a demo with none of the fields."""
    values = _mapping(demo)
    if values is None or not values.keys() & {*fields.inputs, *fields.outputs, fields.calls}:
        names = ", ".join(f"`{name}`" for name in (*fields.inputs, *fields.outputs))
        raise InputError(
            f"Demo {index} cannot be rendered: a demo is a mapping with some of the fields {names}, found {shown(demo)}.",
        )
    before: list[Message] = []
    for name in fields.histories:
        before += history_messages(writer, fields, values.get(name))
    calls, results = _calls(fields, values, f"demo_{index}")
    asked = {name: values.get(name, NOT_GIVEN) for name in fields.inputs}
    answered = {
        name: values.get(name, NOT_GIVEN)
        for name in fields.outputs
        if not calls or values.get(name) is not None
    }
    return [*before, *_turn(writer, fields, asked, answered, (calls, results))]


def has_output(demo: Any, fields: Shown) -> bool:
    """Whether a demo has any of these output fields."""
    values = _mapping(demo)
    return values is not None and not values.keys().isdisjoint(fields.outputs)


def history_messages(writer: _FieldWriter, fields: Shown, history: Any) -> list[Message]:
    """Render a history as messages, without its leading system message. Raises `InputError` for a turn with none of the fields."""
    if history is None:
        return []
    found = history
    if not isinstance(history, History):
        messages: Any = history
        if isinstance(history, Mapping):
            messages = cast("Mapping[str, Any]", history).get("messages")
        found = History(messages)
    turns = count()

    def render(turn: Mapping[str, Any]) -> list[Message]:
        calls, results = _calls(fields, turn, f"turn_{next(turns)}")
        asked = {name: turn[name] for name in fields.inputs if name in turn}
        answered = {
            name: turn[name]
            for name in fields.outputs
            if name in turn and (not calls or turn[name] is not None)
        }
        if not asked and not answered and not calls:
            names = ", ".join(f"`{name}`" for name in (*fields.inputs, *fields.outputs))
            msg = f"A turn of the history cannot be rendered: it has none of the fields {names} and is not a message: {shown(turn)}."
            raise InputError(msg)
        return _turn(writer, fields, asked, answered, (calls, results))

    return after_system(found.as_messages(render))


def _calls(
    fields: Shown,
    values: Mapping[str, Any],
    where: str,
) -> tuple[tuple[ToolCall, ...], tuple[ToolCallResult | None, ...]]:
    """The native calls of a turn, with ids unique in this conversation, and the known results; without native calls, only the results."""
    name = calls_output(fields.signature)
    given = values.get(name) if name is not None else None
    if given is None:
        return (), ()
    try:
        found = [*enumerate(read_calls(given, ToolCalls).tool_calls)]
        results = (
            calls_and_results(given)[1]
            if isinstance(given, Mapping)
            else getattr(given, "tool_call_results", None)
        )
    except ValueError as error:
        raise InputError(
            f"`{name}` of an earlier turn ({where}) cannot be rendered: {error}",
        ) from error
    known = [(index, call) for index, call in found if call.fault is None]
    given_results = tuple(
        [
            results.result_of(call.id, index) if results is not None else None
            for index, call in known
        ],
    )
    return (
        ()
        if fields.calls is None
        else tuple([call.with_id(f"{where}_{index}") for index, call in known])
    ), given_results


def _turn(
    writer: _FieldWriter,
    fields: Shown,
    asked: Mapping[str, Any],
    answered: Mapping[str, Any],
    made: tuple[tuple[ToolCall, ...], tuple[ToolCallResult | None, ...]],
) -> list[Message]:
    calls, results = made
    asked, answered = (
        _as_declared(fields.signature.plan.inputs, asked),
        _as_declared(fields.signature.plan.outputs, answered),
    )
    messages = (
        [Message("user", content_of(writer.drawn_fields(_with_tools(fields.signature, asked))))]
        if asked
        else []
    )
    if answered or calls:
        written = {
            name: _without_results(value)
            for name, value in as_read(fields.signature, answered).items()
        }
        messages.append(
            Message(
                "assistant", content_of(writer.drawn_answer(written)) if written else "", calls
            ),
        )
    if calls:  # providers reject a call without a result
        return [*messages, *map(_result, calls, results)]
    if any(results):
        shown = [
            {
                "name": each.name,
                "value": each.value,
                **({"is_error": True} if each.is_error else {}),
            }
            for each in results
            if each
        ]
        messages.append(
            Message("user", content_of(writer.drawn_fields({"tool_call_results": shown}))),
        )
    return messages


def _as_declared(
    fields: Mapping[str, SignatureField],
    values: Mapping[str, Any],
) -> Mapping[str, Any]:
    """The values, with strings read as dates and the like where the field says so: a turn stored as JSON renders as before."""
    made = dict(values)
    for name, text in values.items():
        if (
            type(text) is str
            and name in fields
            and (read := _reader_of_text(fields[name].annotation)) is not None
        ):
            with suppress(
                ValueError,
                OverflowError,
                RecursionError,
            ):  # the last two: a regular expression that Python cannot compile
                value = read(text)
                made[name] = value if jsonable(value) == text else text
    return made


@lru_cache(maxsize=256)
def _reader_of_text(annotation: Any) -> Callable[[Any], Any] | None:
    """A reader for a type whose values are strings in JSON; None for types that take any string, or are not strings in JSON."""
    kind = without_none(annotation)
    if not isinstance(kind, type) or (
        kind not in {bytes, complex} and kind.__module__.partition(".")[0] not in _OF_TEXTS
    ):
        return None
    from pydantic import BaseModel, ConfigDict, TypeAdapter  # late: few turns have such values

    if not {BaseModel, dict}.isdisjoint(kind.__mro__):  # any model
        return None
    return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True)).validate_python


def _with_tools(signature: type[Signature], asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs of a turn, with functions and dicts converted to the tools they declare, as in a question."""
    made = dict(asked)
    for name in tool_inputs(signature).keys() & asked.keys():
        with suppress(ValueError):  # it declares no tool: it is rendered unchanged
            made[name] = adapter_of(signature.plan.inputs[name]).validate_python(asked[name])
    return made


def _result(call: ToolCall, result: ToolCallResult | None) -> Message:
    if result is None:
        return Message("tool", NOT_GIVEN, tool_call_id=call.id, name=call.name)
    return Message(
        "tool",
        render(result.value),
        tool_call_id=call.id,
        name=call.name,
        is_error=result.is_error,
    )


def _without_results(value: Any) -> Any:
    """A value as the model writes it: calls without their results."""
    return (
        value.model_copy(update={"tool_call_results": None})
        if isinstance(value, ToolCalls)
        else value
    )


def _mapping(demo: Any) -> Mapping[str, Any] | None:
    if isinstance(demo, Mapping):
        return cast("Mapping[str, Any]", demo)
    as_dict = getattr(demo, "toDict", None)
    return as_dict() if callable(as_dict) else None  # pyright: ignore[reportReturnType]  DSPy's examples
