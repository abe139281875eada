"""Outputs that use a native feature of the model, such as its reasoning.

Their types read them from the whole response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule.errors import AdapterParseError
from ferrule.values.content.type import Reasoning, Type
from ferrule.values.signatures.fields import without_none

if TYPE_CHECKING:
    from ferrule.programs.asking.asker import Asker
    from ferrule.values.conversation.exchange import Response
    from ferrule.values.signatures.signature import Signature

NativeOutputs = tuple[tuple[str, Any], ...]
"""The outputs that the prompt does not ask for, each with the type that reads it."""


def adapt_to_model(
    signature: type[Signature], asker: Asker
) -> tuple[type[Signature], Asker, NativeOutputs]:
    """Let the types of the outputs adapt signature and settings to the model.

    They do so with `Type.adapt_to_native_lm_feature`, as in DSPy.
    """
    adapting = signature.cached_value(adapt_to_model, lambda: _adapting_outputs(signature))
    if not adapting:
        return signature, asker, ()
    settings = dict(asker.config)
    adapted = signature
    for name, kind in adapting:
        adapted = kind.adapt_to_native_lm_feature(adapted, name, asker.lm, settings)
    native = tuple((name, kind) for name, kind in adapting if name not in adapted.plan.outputs)
    return adapted, replace(asker, config=settings), native


def _adapting_outputs(signature: type[Signature]) -> NativeOutputs:
    adapting: list[tuple[str, Any]] = []
    for name, field in signature.plan.outputs.items():
        if without_none(field.annotation) is Reasoning:
            adapting.append((name, Reasoning))
            continue
        kinds = Type.extract_custom_type_from_annotation(field.annotation)
        if kinds and _adapts(kinds[0]):
            adapting.append((name, kinds[0]))
    return tuple(adapting)


def _adapts(kind: type[Type]) -> bool:
    """Whether a type overrides `adapt_to_native_lm_feature`."""
    own: Any = kind.adapt_to_native_lm_feature
    default: Any = Type.adapt_to_native_lm_feature
    return own.__func__ is not default.__func__  # the functions of the class methods


def add_native_outputs(
    signature: type[Signature],
    outputs: dict[str, Any],
    native: NativeOutputs,
    response: Response,
    *,
    is_partial: bool = False,
) -> dict[str, Any]:
    """All outputs, in the signature's order: those parsed from the text, and the native ones.

    Raises `AdapterParseError` if a required output is missing; with `is_partial`, it is None
    instead.
    """
    if not native:
        return outputs
    answer = {"text": response.text, "reasoning_content": response.reasoning, "raw": response.raw}
    values = {name: kind.parse_lm_response(answer) for name, kind in native}
    absent = [
        name
        for name, value in values.items()
        if value is None and name not in signature.plan.optional
    ]
    if absent and not is_partial:
        raise AdapterParseError(
            "parse_lm_response",
            response.text or "",
            [(name, "is missing") for name in absent],
            parsed=outputs,
            absent=absent,
            code="missing_required_outputs",
            signature=signature,
        )
    values = {**outputs, **values}
    return {name: values.get(name) for name in signature.plan.outputs}
