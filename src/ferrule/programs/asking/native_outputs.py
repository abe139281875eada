"""Outputs that use a native feature of the model: their types read them from the whole response, not from its text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule.errors import AdapterParseError
from ferrule.values.content.type import Reasoning, Type
from ferrule.values.signatures.fields import without_none

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.programs.asking.ask import Asker
    from ferrule.values.conversation.exchange import Response
    from ferrule.values.signatures.signature import Signature

NativeOutputs = tuple[tuple[str, Any], ...]
"""The outputs that the prompt does not ask for, each with the type that reads it."""


def adapt_to_model(
    signature: type[Signature],
    asker: Asker,
) -> tuple[type[Signature], Asker, NativeOutputs]:
    """Let the types of the outputs adapt signature and settings to the model (`Type.adapt_to_native_lm_feature`, as in DSPy)."""
    adapting = signature.kept(adapt_to_model, lambda: _adapting_types(signature))
    if not adapting:
        return signature, asker, ()
    settings = dict(asker.config)
    asked = signature
    for name, kind in adapting:
        asked = kind.adapt_to_native_lm_feature(asked, name, asker.lm, settings)
    taken_out = tuple((name, kind) for name, kind in adapting if name not in asked.plan.outputs)
    return asked, replace(asker, config=settings), taken_out


def _adapting_types(signature: type[Signature]) -> NativeOutputs:
    default = Type.adapt_to_native_lm_feature.__func__  # pyright: ignore[reportFunctionMemberAccess]  the function of a class method
    found: list[tuple[str, Any]] = []
    for name, field in signature.plan.outputs.items():
        if without_none(field.annotation) is Reasoning:
            found.append((name, Reasoning))
            continue
        kinds = Type.extract_custom_type_from_annotation(field.annotation)
        found += [
            (name, kind)
            for kind in kinds[:1]
            if kind.adapt_to_native_lm_feature.__func__ is not default
        ]  # pyright: ignore[reportFunctionMemberAccess]  as above
    return tuple(found)


def add_native_outputs(
    signature: type[Signature],
    outputs: Mapping[str, Any],
    native: NativeOutputs,
    response: Response,
    *,
    is_partial: bool = False,
) -> dict[str, Any]:
    """All outputs, in the signature's order: those parsed from the text, and those read from the response.

    Raises `AdapterParseError` if a required output is missing; with `is_partial`, it is None
    instead.
    """
    answer = {"text": response.text, "reasoning_content": response.reasoning, "raw": response.raw}
    found = {name: kind.parse_lm_response(answer) for name, kind in native}
    absent = [
        name
        for name, value in found.items()
        if value is None and name not in signature.plan.optional and not is_partial
    ]
    if absent:
        problems = [(name, "is missing") for name in absent]
        raise AdapterParseError(
            "parse_lm_response",
            response.text or "",
            problems,
            parsed=outputs,
            absent=absent,
            code="missing_required_outputs",
            signature=signature,
        )
    return {
        name: found[name] if name in found else outputs.get(name) for name in signature.plan.outputs
    }
