"""Which fields of a signature a prompt shows, and the smaller signatures that follow from it.

Three kinds of fields are not written as text. An input of type `History` becomes messages of its
own. With native calls, the inputs that declare tools go into the request, and the output of type
`ToolCalls` is filled from the calls of the response.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

from msgspec import Struct

from ferrule.values.content.type import Type
from ferrule.values.conversation.history import History
from ferrule.values.signatures.compiled import derived
from ferrule.values.signatures.fields import SignatureField, calls_type, without_none
from ferrule.values.signatures.signature import Signature

_LISTS = frozenset({list, tuple, Sequence, Iterable})


class PromptFields(Struct, frozen=True):
    """The fields of a signature that a prompt shows."""

    inputs: Mapping[str, SignatureField]
    outputs: Mapping[str, SignatureField]
    histories: tuple[str, ...]
    """Inputs of type `History`, rendered as separate messages."""
    calls: str | None
    """The output whose values are native calls of an assistant's message, not text."""
    signature: type[Signature]


def prompt_fields(signature: type[Signature], *, native: bool = False) -> PromptFields:
    """The fields that a prompt shows: no histories, and in native mode neither tools nor calls."""
    return signature.cached_value(
        (prompt_fields, native), lambda: _select_fields(signature, native=native)
    )


def _select_fields(signature: type[Signature], *, native: bool) -> PromptFields:
    plan = signature.plan
    histories = tuple(name for name, field in plan.inputs.items() if is_history(field))
    hidden = set(histories)
    calls = None
    if native:
        hidden |= tool_inputs(signature).keys()
        calls = calls_output(signature)
    inputs = {name: field for name, field in plan.inputs.items() if name not in hidden}
    outputs = {name: field for name, field in plan.outputs.items() if name != calls}
    return PromptFields(inputs, outputs, histories, calls, signature)


def is_history(field: SignatureField) -> bool:
    """Whether a field holds a `History`."""
    return bool(History.extract_custom_type_from_annotation(field.annotation))


@derived
def tool_inputs(signature: type[Signature]) -> Mapping[str, bool]:
    """The inputs that declare tools, in order, and whether each is a list.

    Such an input has the type `Tool` or `list[Tool]`, or one of them or None.
    """
    declaring: dict[str, bool] = {}
    for name, field in signature.plan.inputs.items():
        annotation = without_none(field.annotation)
        if _is_tool(annotation):
            declaring[name] = False
        elif get_origin(annotation) in _LISTS and _is_tool(next(iter(get_args(annotation)), None)):
            declaring[name] = True
    return declaring


def _is_tool(annotation: Any) -> bool:
    # `adapters` does not import `tools`, so a tool is recognised by its attribute.
    return (
        isinstance(annotation, type)
        and issubclass(annotation, Type)
        and hasattr(annotation, "declaration")
    )


@derived
def calls_output(signature: type[Signature]) -> str | None:
    """The output for tool calls, if there is one."""
    for name, field in signature.plan.outputs.items():
        if calls_type(field.annotation):
            return name
    return None


# -- smaller signatures, for the pieces of a prompt that a subclass of an adapter overrides


def native_signature(
    signature: type[Signature], *, as_native_text: bool = False
) -> type[Signature]:
    """The signature without the inputs and the output that native calls replace.

    With `as_native_text`, `is_native_text` tells the pieces that get it to write plain text.
    """
    fields = prompt_fields(signature, native=True)

    def make() -> type[Signature]:
        reduced = _reduced(signature, fields, extra=fields.histories)
        if not as_native_text:
            return reduced
        if reduced is signature:  # the mark is for a copy: the signature has other uses
            reduced = signature.delete()
        return _marked(reduced)

    return signature.cached_value((native_signature, as_native_text), make)


_NATIVE_TEXT = "written as native text"


def is_native_text(signature: type[Signature]) -> bool:
    """Whether the fields are written as the texts of a native conversation."""
    return _NATIVE_TEXT in signature.plan.cache


def _marked(signature: type[Signature]) -> type[Signature]:
    # In the cache, because it is dropped with the signature and copies do not inherit it.
    signature.plan.cache[_NATIVE_TEXT] = True
    return signature


def signature_without_histories(signature: type[Signature]) -> type[Signature]:
    """The signature with only the fields that appear in the question and its answer."""
    return signature.cached_value(
        signature_without_histories, lambda: _reduced(signature, prompt_fields(signature))
    )


def _reduced(
    signature: type[Signature], fields: PromptFields, *, extra: Sequence[str] = ()
) -> type[Signature]:
    shown = {*fields.inputs, *fields.outputs, *extra}
    hidden = [name for name in signature.plan.fields if name not in shown]
    if not hidden:
        return signature
    reduced = signature.delete(*hidden)
    # The fields of the whole signature, not of the reduced one: turns of a history may still hold
    # native calls.
    reduced.plan.cache.setdefault((prompt_fields, False), fields)
    if is_native_text(signature):
        return _marked(reduced)
    return reduced


_WHOLE = "the signature of earlier turns"


def remember_whole(signature: type[Signature], whole: type[Signature] | None) -> None:
    """Remember the program's signature with that of one step of its loop.

    The step has other outputs, and a piece gets only the step's signature, while the demos and
    the turns of a history have the outputs of the program.
    """
    if whole is not None:
        signature.plan.cache.setdefault(_WHOLE, whole)


def whole_of(signature: type[Signature]) -> type[Signature] | None:
    """The signature that was passed to `remember_whole`, or None."""
    return signature.plan.cache.get(_WHOLE)
