"""Prompts and answers of adapters whose class overrides a piece.

A piece is a method with DSPy's name and arguments (`format_user_message_content`, `parse`, ...). It
takes and returns plain text, or messages in OpenAI's form, so a prompt that is composed of pieces
takes a detour: images and other parts are encoded in the text and put back afterwards, and a
signature is made for the fields of a single step. An adapter that overrides no piece avoids this
and renders its fields directly (`Adapter.opening`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ferrule.adapters.demos import demo_messages, has_output, history_messages
from ferrule.adapters.fields import (
    native_signature,
    prompt_fields,
    remember_whole,
    signature_without_histories,
)
from ferrule.adapters.parse import output_spec, parse_outputs
from ferrule.adapters.render import as_read, join_pieces
from ferrule.errors import (
    AdapterParseError,
    ConfigurationError,
    FerruleError,
    InputError,
    ToolCallError,
    shown,
)
from ferrule.values.content.convert import content_of, pieces_of
from ferrule.values.conversation.history import History
from ferrule.values.conversation.message import Message, Messages
from ferrule.values.signatures.fields import declare
from ferrule.values.signatures.signature import Signature

if TYPE_CHECKING:
    from ferrule.values.content.convert import Piece
    from ferrule.values.content.parts import Content
    from ferrule.values.conversation.exchange import Response

_Adapter = Any
"""`ferrule.adapters.adapter.Adapter`, which imports this module."""
USER, ASSISTANT = "format_user_message_content", "format_assistant_message_content"
PIECES = (
    "format",
    "format_system_message",
    "format_field_description",
    "format_field_structure",
    "format_task_description",
    "user_message_output_requirements",
    USER,
    ASSISTANT,
    "format_demos",
    "format_conversation_history",
    "parse",
)
"""The methods that a subclass may override to change a part of the prompt, or the parser."""


def overridden_pieces(cls: type[Any], base: type[Any]) -> frozenset[str]:
    """The pieces that a class does not inherit from `base`. Raises for an async one."""
    names = [name for name in PIECES if getattr(cls, name) is not getattr(base, name)]
    for name in names:
        if iscoroutinefunction(getattr(cls, name)):
            raise ConfigurationError(
                f"`{cls.__name__}.{name}` is async, and adapters do not wait: define it with `def`."
            )
    return frozenset(names)


# -- rendering


def compose_opening(
    adapter: _Adapter,
    signature: type[Signature],
    inputs: Mapping[str, Any],
    *,
    demos: Iterable[Any],
    native: bool,
    whole: type[Signature] | None,
) -> Messages:
    """`Adapter.opening` for an adapter that overrides pieces."""
    if native:
        as_native_text = adapter.writes_as_native_text(signature)
        signature = native_signature(signature, as_native_text=as_native_text)
        if whole is not None:
            whole = native_signature(whole, as_native_text=as_native_text)
    if "format" not in adapter.overridden:
        return compose(adapter, signature, demos, inputs, whole)
    remember_whole(signature, whole)
    messages = adapter.format(signature, list(demos), dict(inputs))
    return Messages(_read_messages(adapter, "format", messages))


def compose(
    adapter: _Adapter,
    signature: type[Signature],
    demos: Iterable[Any],
    inputs: Mapping[str, Any],
    whole: type[Signature] | None = None,
) -> Messages:
    """Compose the messages of a question from the pieces. `whole` is as in `Adapter.opening`."""
    fields = prompt_fields(signature)
    asked = signature_without_histories(signature)
    writer = PieceWriter(adapter, asked)
    # Turns of a history, and demos that are not steps, have the outputs of the whole program.
    turn_writer, turn_fields = writer, fields
    if whole is not None:
        turn_writer = PieceWriter(adapter, signature_without_histories(whole))
        turn_fields = prompt_fields(whole)
    remember_whole(asked, whole)

    messages: list[Message] = []
    system = adapter.format_system_message(asked)
    if _checked_text(adapter, "format_system_message", system):
        messages.append(Message("system", system))
    if "format_demos" in adapter.overridden:
        formatted = adapter.format_demos(asked, list(demos))
        messages += _read_messages(adapter, "format_demos", formatted)
    else:
        for index, demo in enumerate(demos):
            if has_output(demo, fields):
                messages += demo_messages(writer, fields, demo, index)
            else:
                messages += demo_messages(turn_writer, turn_fields, demo, index)
    for name in fields.histories:
        if "format_conversation_history" in adapter.overridden:
            signature_of_turn = turn_writer.signature
            formatted = adapter.format_conversation_history(signature_of_turn, name, dict(inputs))
            messages += _read_messages(adapter, "format_conversation_history", formatted)
        else:
            messages += history_messages(turn_writer, turn_fields, inputs.get(name))

    values = {name: inputs[name] for name in asked.plan.inputs if name in inputs}
    question = adapter.format_user_message_content(
        asked, values, main_request=bool(asked.plan.outputs)
    )
    content = content_of(_unpack_parts(_checked_text(adapter, USER, question), values))
    if content or not messages or messages[-1].role != "user":
        messages.append(Message("user", content or "Begin."))
    return Messages(messages)


class PieceWriter(Struct, frozen=True):
    """Renders fields with the pieces that an adapter overrides, in a signature that has them."""

    adapter: _Adapter
    signature: type[Signature]

    def render_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        if USER not in self.adapter.overridden:
            return self.adapter.writer_of(self.signature).render_fields(fields)
        text = self.adapter.format_user_message_content(self.signature, fields)
        return _unpack_parts(_checked_text(self.adapter, USER, text), fields)

    def render_answer(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        if ASSISTANT not in self.adapter.overridden:
            return self.adapter.writer_of(self.signature).render_answer(fields)
        text = self.adapter.format_assistant_message_content(self.signature, fields)
        return _unpack_parts(_checked_text(self.adapter, ASSISTANT, text), fields)


def compose_fields(adapter: _Adapter, fields: Mapping[str, Any]) -> list[Piece]:
    """Render fields as `format_user_message_content` does, as the inputs of a signature."""
    declared: dict[str, Any] = {name: (Any, declare("input")) for name in fields}
    signature: Any = Signature({**declared, "next": declare("output")})
    return PieceWriter(adapter, signature).render_fields(fields)


def compose_answer(
    adapter: _Adapter, signature: type[Signature], outputs: Mapping[str, Any]
) -> Content:
    """`Adapter.answer_content` for an adapter that overrides the piece for answers."""
    writer = PieceWriter(adapter, signature)
    return content_of(writer.render_answer(as_read(signature, outputs)))


def _checked_text(adapter: _Adapter, piece: str, text: Any) -> str:
    if not isinstance(text, str):
        raise ConfigurationError(
            f"`{type(adapter).__name__}.{piece}` returns text, found {shown(text)}."
        )
    return text


def _unpack_parts(text: str, values: Mapping[str, Any]) -> list[Piece]:
    """Put the parts of these values (images, files) back where a text has them encoded."""
    parts = {
        join_pieces([piece]): piece
        for piece in pieces_of(dict(values)) or ()
        if not isinstance(piece, str)
    }
    if not parts:
        return [text]
    encoded = "|".join(map(re.escape, parts))
    return [parts.get(piece, piece) for piece in re.split(f"({encoded})", text)]


def _read_messages(adapter: _Adapter, piece: str, messages: Any) -> list[Message]:
    """The messages that a piece returned; raises `ToolCallError` (`invalid_request`) for others."""

    def refuse(turn: Any) -> list[Message]:
        raise InputError(f"{shown(turn)} is not a message")

    try:
        if type(messages) not in {list, tuple}:
            refuse(messages)
        return History(messages).as_messages(refuse)
    except ValueError as error:
        raise ToolCallError(
            "invalid_request",
            f"`{type(adapter).__name__}.{piece}` returns a list of messages in OpenAI's form, "
            f"found {shown(messages)}: {error}",
            raw=messages,
        ) from error


# -- reading

ReadOwnForm = Callable[..., dict[str, Any]]


def read_with_override(
    adapter: _Adapter,
    read_own_form: ReadOwnForm,
    signature: type[Signature],
    response: Response,
    *,
    lenient: bool,
    tools: Iterable[Any],
) -> dict[str, Any]:
    """`Adapter.read` for an adapter that overrides `parse`: its outputs are checked.

    Where an answer needs no fields (plain text, calls), `read_own_form` is tried as well: it reads
    the adapter's own form.
    """
    if not response.text:
        return read_own_form(signature, response, lenient=lenient, tools=tools)
    try:
        outputs = _parse_with_override(adapter, signature, response)
    except AdapterParseError as error:
        if not (lenient or tools or response.tool_calls):
            raise
        try:
            return read_own_form(signature, response, lenient=lenient, tools=tools)
        except AdapterParseError:
            raise error from error.__cause__
    calls = output_spec(signature).calls
    if calls is not None and tools and not outputs[calls]:
        with suppress(AdapterParseError):  # a call in the model's own form, next to the answer
            plain = read_own_form(signature, response, lenient=lenient, tools=tools)
            outputs[calls] = plain[calls]
    return outputs


def _parse_with_override(
    adapter: _Adapter, signature: type[Signature], response: Response
) -> dict[str, Any]:
    name, text = type(adapter).__name__, response.text or ""
    try:
        outputs: Any = adapter.parse(signature, text)
    except FerruleError:
        raise
    except ValueError as error:
        raise AdapterParseError(name, text, [("", str(error))], signature=signature) from error
    if not isinstance(outputs, Mapping):
        raise ConfigurationError(
            f"`{name}.parse` returns a dict of outputs, found {shown(outputs)}."
        )
    outputs = cast("Mapping[str, Any]", outputs)
    return parse_outputs(name, signature, outputs, response, is_value=True)
