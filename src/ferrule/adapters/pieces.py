"""`Pieces`: the parts of a prompt and of an answer, each a method that a subclass may override. Names and arguments are DSPy's.

The default of each piece calls the methods that define an adapter's form (`structure`,
`drawn_fields` and so on).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ferrule.adapters.direct import observed
from ferrule.adapters.render import (
    Shown,
    as_read,
    field_description,
    join_pieces,
    shown_fields,
    task_description,
)
from ferrule.errors import ToolCallError, shown
from ferrule.values.conversation.message import openai_message

if TYPE_CHECKING:
    from ferrule.values.content.convert import Piece
    from ferrule.values.conversation.exchange import FieldReader
    from ferrule.values.conversation.message import Messages
    from ferrule.values.signatures.signature import Signature


class Pieces(ABC):
    """Base class of `Adapter`: the pieces of its prompts, and the methods that define its form."""

    replaced: ClassVar[frozenset[str]] = frozenset()
    """The pieces that a subclass overrides. Prompts are then composed from the pieces; otherwise they are rendered in one go."""

    honoured: ClassVar[frozenset[str]] = frozenset()
    """Methods of DSPy's or udspy's adapters that this class calls itself, so that subclasses may override them."""

    __slots__ = ()

    # -- the form, which each adapter defines
    # -----------------------------------------------------------------------

    @abstractmethod
    def structure(self, shown: Shown) -> str:
        """Describe the form of messages and answers, for the system message."""

    @abstractmethod
    def reminder(self, outputs: Sequence[str]) -> str:
        """Return the last lines of a question: which outputs to write, and how. Empty if there are none."""

    @abstractmethod
    def drawn_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """Render fields with their values."""

    def drawn_answer(self, fields: Mapping[str, Any]) -> list[Piece]:
        """Render fields with their values as a complete answer."""
        return self.drawn_fields(fields)

    def unescape(self, name: str, text: str) -> str:
        """Remove the escapes of `drawn_fields` from the text of a field."""
        del name
        return text

    @abstractmethod
    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """Return the fields of an answer, unchecked: text, or values if `reads_values`."""

    @abstractmethod
    def reader(self, signature: type[Signature]) -> FieldReader:
        """Return a parser that splits one streamed answer into fields."""

    # -- the pieces
    # -------------------------------------------------------------------------------------------------

    @observed
    def format(
        self,
        signature: type[Signature],
        demos: Iterable[Any],
        inputs: Mapping[str, Any],
    ) -> list[dict[str, Any]]:
        """Return the messages of a question, in OpenAI's form."""
        return [openai_message(message) for message in self._opening(signature, demos, inputs)]

    @abstractmethod
    def _opening(
        self,
        signature: type[Signature],
        demos: Iterable[Any],
        inputs: Mapping[str, Any],
    ) -> Messages: ...

    def format_system_message(self, signature: type[Signature]) -> str:
        """Return the text of the system message: the three pieces below, without the second one if there are no outputs."""
        structure = (
            self.format_field_structure(signature) if prompt_fields(signature).outputs else ""
        )
        parts = [
            self.format_field_description(signature),
            structure,
            self.format_task_description(signature),
        ]
        return "\n\n".join(part for part in parts if part)

    def format_field_description(self, signature: type[Signature]) -> str:
        """List the fields with their types and descriptions."""
        return field_description(prompt_fields(signature))

    def format_field_structure(self, signature: type[Signature]) -> str:
        """Describe the form of messages and answers."""
        return self.structure(prompt_fields(signature))

    def format_task_description(self, signature: type[Signature]) -> str:
        """Return the instructions."""
        return task_description(signature, prompt_fields(signature))

    def user_message_output_requirements(self, signature: type[Signature]) -> str:
        """Return the request for the outputs, at the end of the question. Empty without outputs."""
        return self.reminder(list(prompt_fields(signature).outputs))

    def format_user_message_content(
        self,
        signature: type[Signature],
        inputs: Mapping[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """Render the given inputs between `prefix` and `suffix`; `main_request` adds the request for the outputs."""
        given = {name: inputs[name] for name in signature.plan.inputs if name in inputs}
        body = join_pieces(self.drawn_fields(given)) if given else ""
        asked = self.user_message_output_requirements(signature) if main_request else ""
        return "\n\n".join(part for part in (prefix, body, asked, suffix) if part).strip()

    def format_assistant_message_content(
        self,
        signature: type[Signature],
        outputs: Mapping[str, Any],
        missing_field_message: str | None = None,
    ) -> str:
        """Render an answer that `parse` reads as these outputs; a missing one is omitted, or gets `missing_field_message`."""
        given = {
            name: outputs.get(name, missing_field_message)
            for name in signature.plan.outputs
            if name in outputs or missing_field_message
        }
        return join_pieces(self.drawn_answer(as_read(signature, given)))

    def format_demos(
        self,
        signature: type[Signature],
        demos: Iterable[Any],
    ) -> list[dict[str, Any]]:
        """Return demos as messages in OpenAI's form."""
        from ferrule.adapters.demos import demo_messages, has_output

        fields, turn_fields = (
            prompt_fields(signature),
            prompt_fields(whole_of(signature) or signature),
        )
        shown_in = [(demo, fields if has_output(demo, fields) else turn_fields) for demo in demos]
        return [
            openai_message(message)
            for i, (demo, each) in enumerate(shown_in)
            for message in demo_messages(self, each, demo, i)
        ]

    def format_conversation_history(
        self,
        signature: type[Signature],
        history_field_name: str,
        inputs: Mapping[str, Any],
    ) -> list[dict[str, Any]]:
        """Return the history in one of the inputs as messages in OpenAI's form."""
        from ferrule.adapters.demos import history_messages

        history = inputs.get(history_field_name)
        return [
            openai_message(message)
            for message in history_messages(self, prompt_fields(signature), history)
        ]

    @abstractmethod
    def parse(self, signature: type[Signature], completion: str) -> dict[str, Any]:
        """Parse the text of an answer into typed outputs. Raises `AdapterParseError`."""

    def format_tool_schema(self, tool: Any) -> dict[str, Any]:
        """Return a copy of a tool's canonical declaration."""
        declaration: Any = (
            cast("Any", tool) if isinstance(tool, Mapping) else getattr(tool, "declaration", None)
        )
        if not isinstance(declaration, Mapping):
            msg = f"`format_tool_schema` takes a `Tool`, found {shown(cast('object', tool))}."
            raise ToolCallError("invalid_tool_spec", msg, raw=cast("object", tool))
        return deepcopy(dict(cast("Mapping[str, Any]", declaration)))


_SHOWN = "the fields that a prompt shows"
_WHOLE = "the signature of earlier turns"


def keep_whole(signature: type[Signature], whole: type[Signature] | None) -> None:
    """Remember the signature of earlier turns, for pieces that get only the signature of a loop's step, which has other outputs."""
    if whole is not None:
        signature.kept(_WHOLE, lambda: whole)


def whole_of(signature: type[Signature]) -> type[Signature] | None:
    """See `keep_whole`."""
    return signature.plan.kept.get(_WHOLE)


def prompt_fields(signature: type[Signature]) -> Shown:
    """The fields that the prompt of a signature shows."""
    return signature.kept(_SHOWN, lambda: shown_fields(signature, native=False))


def native_signature(signature: type[Signature]) -> type[Signature]:
    """The signature without the inputs and the output that native calls replace."""
    fields = shown_fields(signature, native=True)
    return signature.kept(native_signature, lambda: _reduced(signature, fields, fields.histories))


def signature_without_histories(signature: type[Signature]) -> type[Signature]:
    """The signature with only the fields that appear in the question and its answer."""
    return signature.kept(
        signature_without_histories,
        lambda: _reduced(signature, prompt_fields(signature)),
    )


def _reduced(
    signature: type[Signature],
    fields: Shown,
    beside: Sequence[str] = (),
) -> type[Signature]:
    hidden = [
        name
        for name in signature.plan.fields
        if name not in fields.inputs and name not in fields.outputs and name not in beside
    ]
    if not hidden:
        return signature
    reduced = signature.delete(*hidden)
    reduced.kept(_SHOWN, lambda: fields)  # turns of a history may still hold native calls
    return reduced
