"""Overrides in subclasses of adapters: ferrule calls them, or refuses them when the class is defined.

`adopt` runs once, when the class is defined. An adapter that overrides no piece keeps the faster
methods that render and read in one go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from inspect import iscoroutinefunction, isfunction
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ferrule.adapters.direct import observed, unobserved
from ferrule.adapters.parse import output_spec, parse_outputs
from ferrule.adapters.pieces import (
    Pieces,
    keep_whole,
    native_signature,
    prompt_fields,
    signature_without_histories,
)
from ferrule.adapters.render import as_read, join_pieces
from ferrule.errors import (
    AdapterParseError,
    ConfigurationError,
    FerruleError,
    InputError,
    ToolCallError,
    shown,
)
from ferrule.record import Record
from ferrule.values.content.convert import content_of, pieces_of
from ferrule.values.conversation.message import Message, Messages
from ferrule.values.signatures.fields import declare
from ferrule.values.signatures.signature import Signature

if TYPE_CHECKING:
    from ferrule.values.content.convert import Piece
    from ferrule.values.content.parts import Content
    from ferrule.values.conversation.exchange import Response

F = TypeVar("F", bound=Callable[..., None])
_USER, _ASSISTANT = "format_user_message_content", "format_assistant_message_content"
_OPENING = (
    "format", "format_system_message", "format_field_description", "format_field_structure", "format_task_description",
    "user_message_output_requirements", _USER, _ASSISTANT, "format_demos", "format_conversation_history",
)  # fmt: skip
_FIELDS = f"override `{_USER}` and `{_ASSISTANT}`"
_ASKS = "a program asks the model, not its adapter: override `format` for the messages, and `parse` for the answer"
REFUSED: Mapping[str, str] = {
    "__call__": _ASKS,
    "acall": _ASKS,
    "_call_preprocess": "override `format`, or `request` for tools and settings",
    "_call_postprocess": "override `parse`",
    "format_field_value": _FIELDS,
    "format_field_with_value": _FIELDS,
    "format_fields": _FIELDS,
    "format_turn": _FIELDS,
    "format_inputs": f"override `{_USER}`",
    "format_user_request": f"override `{_USER}`",
    "format_instructions": "override `format_system_message`",
    "format_output_instructions": "override `user_message_output_requirements`",
    "format_finetune_data": "ferrule makes no data for fine-tuning: write a function that takes the messages of `format`",
    "format_tool_schema": "tools are declared as they are: change the tool, as in `Tool(function, name, desc)`",
    "format_tool_schemas": "tools are declared as they are: change the tool, as in `Tool(function, name, desc)`",
    "parse_outputs": "override `parse`",
    "process_chunk": "override `reader`, which returns a parser for one streamed answer",
}
"""Methods of DSPy's and udspy's adapters that ferrule never calls, and what to do instead."""


_REFUSED_OPTIONS: Mapping[str, str] = {
    "callbacks": "observers are a setting, as in `configure(callbacks=[...])` or `with context(callbacks=[...])`",
    "use_json_adapter_fallback": "use `fallback=None`, or another adapter as `fallback`",
    "native_response_types": "give an output the type `Reasoning` or `ToolCalls`; it is native if the model supports it",
}


def without_others_options(init: F) -> F:
    """Wrap the `__init__` of an adapter: options of DSPy's adapters raise `ConfigurationError`, which says what to use."""

    @wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        for name in ("callbacks",) if args else options:
            if name in _REFUSED_OPTIONS:
                raise ConfigurationError(
                    f"`{type(self).__name__}` takes no `{name}`: {_REFUSED_OPTIONS[name]}.",
                )
        init(self, *args, **options)

    made: Any = checked
    return made


def adopt(cls: Any, base: Any) -> None:
    """Make ferrule call the pieces that a subclass overrides. Raises `ConfigurationError` for an override that would never be called."""
    for name, instead in REFUSED.items():
        if name not in cls.honoured and _found(cls, name) is not _found(base, name):
            raise ConfigurationError(f"`{cls.__name__}.{name}` would not be called: {instead}.")
    replaced = frozenset(
        name for name in (*_OPENING, "parse") if _found(cls, name) is not _found(base, name)
    )
    for name in sorted(replaced):
        if iscoroutinefunction(getattr(cls, name)):
            raise ConfigurationError(
                f"`{cls.__name__}.{name}` is async, and adapters do not wait: define it with `def`.",
            )
    cls.replaced = replaced
    own = cast("Mapping[str, Any]", vars(cls))
    if "read" in own:
        cls.plain_read = cls.read
    elif "parse" in replaced:
        cls.read = _read
    if replaced - {"parse"} and "opening" not in own:
        cls.opening = _compose_opening
    if _USER in replaced and "step_message" not in own:
        cls.step_message = _step_message
    if _ASSISTANT in replaced:
        cls.answer_content = _answer_content
    if "__init__" in own and cls.__module__.startswith(
        "ferrule.adapters.",
    ):  # a user's adapter may have such options
        cls.__init__ = without_others_options(own["__init__"])
    for name in ("format", "parse"):
        if isfunction(own.get(name)):
            setattr(cls, name, observed(own[name]))
    for name, (pieces, stub) in _STUBS.items():
        if pieces <= replaced and getattr(getattr(cls, name), "__isabstractmethod__", False):
            setattr(cls, name, stub)


def _found(cls: type, name: str) -> Any:
    """The attribute that a class or one of its bases defines; `getattr` would find `__call__` on every class."""
    return next((vars(each)[name] for each in cls.__mro__ if name in vars(each)), None)


# -- rendering
# ----------------------------------------------------------------------------------------------------


def _compose_opening(
    self: Any,
    signature: type[Signature],
    inputs: Mapping[str, Any],
    *,
    demos: Iterable[Any] = (),
    native: bool = False,
    whole: type[Signature] | None = None,
) -> Messages:
    """`Adapter.opening` for an adapter that overrides pieces."""
    if native:
        signature, whole = (
            native_signature(signature),
            None if whole is None else native_signature(whole),
        )
    if "format" not in self.replaced:
        return compose(self, signature, demos, inputs, whole)
    keep_whole(signature, whole)
    return Messages(
        _read_messages(
            self,
            "format",
            unobserved(self, "format")(signature, list(demos), dict(inputs)),
        ),
    )


def compose(
    adapter: Pieces,
    signature: type[Signature],
    demos: Iterable[Any],
    inputs: Mapping[str, Any],
    whole: type[Signature] | None = None,
) -> Messages:
    """Compose the messages of a question from the pieces. `whole` is as in `Adapter.opening`."""
    from ferrule.adapters.demos import demo_messages, has_output, history_messages

    fields = prompt_fields(signature)
    asked = signature_without_histories(signature)
    step, turn = (
        _Writer(adapter, asked),
        _Writer(adapter, asked if whole is None else signature_without_histories(whole)),
    )
    turn_fields = fields if whole is None else prompt_fields(whole)
    keep_whole(asked, whole)
    system = _text(adapter, "format_system_message", adapter.format_system_message(asked))
    messages = [Message("system", system)] if system else []
    if "format_demos" in adapter.replaced:
        messages += _read_messages(
            adapter,
            "format_demos",
            adapter.format_demos(asked, list(demos)),
        )
    else:
        for i, demo in enumerate(demos):
            is_step = has_output(demo, fields)
            messages += demo_messages(
                step if is_step else turn,
                fields if is_step else turn_fields,
                demo,
                i,
            )
    for name in fields.histories:
        if "format_conversation_history" in adapter.replaced:
            found = adapter.format_conversation_history(turn.signature, name, dict(inputs))
            messages += _read_messages(adapter, "format_conversation_history", found)
        else:
            messages += history_messages(turn, turn_fields, inputs.get(name))
    given = {name: inputs[name] for name in asked.plan.inputs if name in inputs}
    said = adapter.format_user_message_content(asked, given, main_request=bool(asked.plan.outputs))
    content = content_of(_pieces(_text(adapter, _USER, said), given))
    if content or not messages or messages[-1].role != "user":
        messages.append(Message("user", content or "Begin."))
    return Messages(messages)


class _Writer(Record):
    """Renders demos and turns of a history with the pieces that an adapter overrides."""

    adapter: Any
    signature: type[Signature]

    def drawn_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        if _USER not in self.adapter.replaced:
            return self.adapter.drawn_fields(fields)
        return _pieces(
            _text(
                self.adapter,
                _USER,
                self.adapter.format_user_message_content(self.signature, fields),
            ),
            fields,
        )

    def drawn_answer(self, fields: Mapping[str, Any]) -> list[Piece]:
        if _ASSISTANT not in self.adapter.replaced:
            return self.adapter.drawn_answer(fields)
        return _pieces(
            _text(
                self.adapter,
                _ASSISTANT,
                self.adapter.format_assistant_message_content(self.signature, fields),
            ),
            fields,
        )


def _step_message(self: Any, fields: Mapping[str, Any]) -> Message:
    """`Adapter.step_message` for an adapter that overrides pieces, with a signature whose inputs are the step's fields."""
    return Message("user", content_of(_Writer(self, _signature_of(fields)).drawn_fields(fields)))


def _answer_content(self: Any, signature: type[Signature], outputs: Mapping[str, Any]) -> Content:
    """`Adapter.answer_content` for an adapter that overrides pieces."""
    return content_of(_Writer(self, signature).drawn_answer(as_read(signature, outputs)))


def _signature_of(fields: Mapping[str, Any]) -> type[Signature]:
    made: Any = Signature(
        {**{name: (Any, declare("input")) for name in fields}, "next": declare("output")},
    )
    return made


def _text(adapter: Any, piece: str, found: Any) -> str:
    if not isinstance(found, str):
        raise ConfigurationError(
            f"`{type(adapter).__name__}.{piece}` returns text, found {shown(found)}.",
        )
    return found


def _pieces(text: str, values: Mapping[str, Any]) -> list[Piece]:
    """Text, with the images and other parts of these values in place of their encoded form in the text."""
    parts = {
        join_pieces([piece]): piece
        for piece in pieces_of(dict(values)) or ()
        if not isinstance(piece, str)
    }
    if not parts:
        return [text]
    return [
        parts.get(piece, piece) for piece in re.split(f"({'|'.join(map(re.escape, parts))})", text)
    ]


def _read_messages(adapter: Any, piece: str, found: Any) -> list[Message]:
    """The messages that a piece returned. Raises `ToolCallError` (`invalid_request`) for anything else."""
    from ferrule.values.conversation.history import History

    what = f"`{type(adapter).__name__}.{piece}` returns a list of messages in OpenAI's form"

    def refuse(turn: Any) -> list[Message]:
        raise InputError(f"{shown(turn)} is no message")

    try:
        return History(found if type(found) in {list, tuple} else refuse(found)).as_messages(refuse)
    except ValueError as error:
        raise ToolCallError(
            "invalid_request",
            f"{what}, found {shown(found)}: {error}",
            raw=found,
        ) from error


# -- reading
# ------------------------------------------------------------------------------------------------------


def _read(
    self: Any,
    signature: type[Signature],
    response: Response,
    *,
    lenient: bool = False,
    tools: Iterable[Any] = (),
) -> dict[str, Any]:
    """`Adapter.read` for an adapter that overrides `parse`: the outputs are checked against the signature.

    Where an answer needs no fields (plain text, calls), the adapter's own form is tried as well.
    """
    if not response.text:
        return self.plain_read(signature, response, lenient=lenient, tools=tools)
    try:
        outputs = _parsed(self, signature, response)
    except AdapterParseError as error:
        if not (lenient or tools or response.tool_calls):
            raise
        try:
            return self.plain_read(signature, response, lenient=lenient, tools=tools)
        except AdapterParseError:
            raise error from error.__cause__
    calls = output_spec(signature).calls
    if calls is not None and tools and not outputs[calls]:
        with suppress(AdapterParseError):  # a call in the model's own form, next to the answer
            outputs[calls] = self.plain_read(signature, response, lenient=lenient, tools=tools)[
                calls
            ]
    return outputs


def _parsed(adapter: Any, signature: type[Signature], response: Response) -> dict[str, Any]:
    name, text = type(adapter).__name__, response.text or ""
    try:
        found = unobserved(adapter, "parse")(signature, text)
    except FerruleError:
        raise
    except ValueError as error:
        raise AdapterParseError(name, text, [("", str(error))], signature=signature) from error
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"`{name}.parse` returns a dict of outputs, found {shown(found)}.")
    return parse_outputs(
        name,
        signature,
        output_spec(signature),
        cast("Mapping[str, Any]", found),
        response,
        is_value=True,
    )


# -- stubs, for adapters that override all pieces
# -------------------------------------------------------------------


class _NoFields:
    """A `FieldReader` that finds no fields."""

    def feed(self, _text: str) -> list[tuple[str, str]]:
        return []

    def finish(self) -> list[tuple[str, str]]:
        return []


def _no_text(_self: Any, _fields: Any) -> str:
    return ""


def _drawn_fields(self: Any, fields: Mapping[str, Any]) -> list[Piece]:
    return _Writer(self, _signature_of(fields)).drawn_fields(fields)


def _raw_fields(_self: Any, _signature: Any, _text: str) -> dict[str, Any]:
    return {}


def _reader(_self: Any, _signature: Any) -> _NoFields:
    return _NoFields()


_STUBS: Mapping[str, tuple[frozenset[str], Any]] = {
    "structure": (frozenset({"format_field_structure"}), _no_text),
    "reminder": (frozenset({_USER}), _no_text),
    "drawn_fields": (frozenset({_USER, _ASSISTANT}), _drawn_fields),
    "raw_fields": (frozenset({"parse"}), _raw_fields),
    "reader": (frozenset({"parse"}), _reader),
}
"""Abstract methods of `Adapter`, each with the pieces whose override makes it unnecessary, and its stub."""
