"""Output types that a model has a feature of its own for: `Type.adapt_to_native_lm_feature` and `parse_lm_response` (seed 002).

Before the question such a type may take its field out of the signature and change the settings; what it took out is read from the whole
answer afterwards. `ToolCalls` is not among them: what it needs is more than settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors import AdapterParseError
from ferrule.values.content.custom_type import Type
from ferrule.values.record import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.programs.asking.ask import Asker
    from ferrule.values.conversation.exchange import Response
    from ferrule.values.signatures.signature import Signature

Taken = tuple[tuple[str, type[Type]], ...]
"""The outputs that are not asked for in text, each with what reads it."""


def adapted(signature: type[Signature], how: Asker) -> tuple[type[Signature], Asker, Taken]:
    """The signature and the settings as the types of its outputs want them for this model."""
    features = signature.kept(adapted, lambda: _features(signature))
    if not features:
        return signature, how, ()
    settings = dict(how.config)
    asked = signature
    for name, kind in features:
        asked = kind.adapt_to_native_lm_feature(asked, name, how.lm, settings)
    taken = tuple((name, kind) for name, kind in features if name not in asked.output_fields)
    return asked, replace(how, config=settings), taken


def _features(signature: type[Signature]) -> Taken:
    written = Type.adapt_to_native_lm_feature.__func__  # pyright: ignore[reportFunctionMemberAccess]  the function of a class method
    found: list[tuple[str, type[Type]]] = []
    for name, field in signature.output_fields.items():
        kinds = Type.extract_custom_type_from_annotation(field.annotation)
        found += [(name, kind) for kind in kinds[:1] if kind.adapt_to_native_lm_feature.__func__ is not written]  # pyright: ignore[reportFunctionMemberAccess]  as above
    return tuple(found)


def completed(
    signature: type[Signature], outputs: Mapping[str, Any], taken: Taken, response: Response, *, is_partial: bool = False
) -> dict[str, Any]:
    """All outputs, in order, those taken out read from the answer.

    Raises `AdapterParseError` for a required one that is not there; `is_partial`, it is None (E47).
    """
    answer = {"text": response.text, "reasoning_content": response.reasoning, "raw": response.raw}
    found = {name: kind.parse_lm_response(answer) for name, kind in taken}
    absent = [name for name, value in found.items() if value is None and name not in signature.plan.optional and not is_partial]
    if absent:
        problems = [(name, "is missing") for name in absent]
        raise AdapterParseError(
            "parse_lm_response", response.text or "", problems, parsed=outputs, absent=absent, code="missing_required_outputs"
        )
    return {name: found[name] if name in found else outputs.get(name) for name in signature.output_fields}
