"""The texts of a conversation with native calls.

The provider's format says who speaks, what is called and what its result is, so these texts have no
markers: a question of one input is its value, and an answer is its text. A model imitates the
answers that it is shown, and people see what it writes from the first token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ferrule.adapters.parse import output_spec
from ferrule.adapters.render import Verbatim, field_list, render_parts, render_text
from ferrule.adapters.tags import render_tags
from ferrule.encoding.encode import json_text
from ferrule.values.signatures.compiled import default_instructions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.adapters.fields import PromptFields
    from ferrule.values.content.convert import Piece
    from ferrule.values.signatures.fields import SignatureField
    from ferrule.values.signatures.signature import Signature


class NativeText(Struct, frozen=True):
    """Writes the fields of a signature as texts of a native conversation."""

    has_one_input: bool
    answers_in_json: bool = False
    """Whether an answer has the provider's format: a JSON object of all outputs."""

    def render_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """The value itself if the signature has one input; otherwise each between its tags."""
        if not self.has_one_input:
            return render_tags(fields)
        pieces: list[Piece] = []
        for name, value in fields.items():
            pieces += _render(name, value)
        return pieces

    def render_answer(self, fields: Mapping[str, Any]) -> list[Piece]:
        """The only output itself, or all as a JSON object."""
        values = {name: _without_marks(value) for name, value in fields.items()}
        if self.answers_in_json or len(values) != 1:
            return [json_text(values)]
        [(name, value)] = values.items()
        return _render(name, value)


def answers_in_text(signature: type[Signature]) -> bool:
    """Whether the text of an answer has no fields to tell apart.

    Besides calls, the signature has one output, which is a text, or none.
    """
    spec = output_spec(signature)
    has_only_calls = not {name for name, _ in spec.checks} - {spec.calls}
    return has_only_calls or bool(spec.text)


def text_output(signature: type[Signature]) -> str:
    """The output that the text of an answer is; empty if there are others, or none."""
    return output_spec(signature).text or ""


def native_text(fields: PromptFields, *, answers_in_json: bool = False) -> NativeText:
    """The writer for the fields that a prompt shows."""
    return NativeText(len(fields.inputs) == 1, answers_in_json)


def native_system(
    signature: type[Signature], fields: PromptFields, *, has_schema: bool = False
) -> str:
    """The system message. With `has_schema`, the provider shows the model what an answer is."""
    description = native_field_description(fields, has_schema=has_schema)
    task = _task(signature, fields, is_only_part=not description)
    return "\n\n".join(part for part in (description, task) if part)


def native_field_description(fields: PromptFields, *, has_schema: bool = False) -> str:
    """What the signature says about its fields, beyond a single value."""
    parts: list[str] = []
    if len(fields.inputs) > 1 or _are_described(fields.inputs):
        parts.append(f"Your inputs are:\n{field_list(fields.inputs, expected=False)}")
    if _are_described(fields.outputs) and not has_schema:
        parts.append(f"Your answer is:\n{field_list(fields.outputs, expected=True)}")
    return "\n\n".join(parts)


def native_task_description(signature: type[Signature], fields: PromptFields) -> str:
    """The instructions, under a heading if something precedes them."""
    return _task(signature, fields, is_only_part=not native_field_description(fields))


def _task(signature: type[Signature], fields: PromptFields, *, is_only_part: bool) -> str:
    task = signature.plan.author_instructions
    if task is None:
        task = default_instructions(fields.inputs, fields.outputs)
    if task and not is_only_part:
        return f"Your task:\n{task}"
    return task


def _are_described(fields: Mapping[str, SignatureField]) -> bool:
    return any(field.description for field in fields.values())


def _render(name: str, value: Any) -> list[Piece]:
    text = render_text(name, value, _unescaped, _unescaped)
    if text is not None:
        return [text]
    return list(render_parts(name, value, _unescaped))


def _unescaped(_name: str, text: str) -> str:
    return text


def _without_marks(value: Any) -> Any:
    """A text that would need marks in the form of an adapter, as it is."""
    if isinstance(value, Verbatim):
        return str(cast("str", value))
    return value
