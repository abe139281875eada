"""Which way the outputs of an answer travel.

Typed outputs travel in the provider's own format for structured answers, if it enforces one: then
an answer cannot have another form, and the prompt needs no markers. All others are text below
markers, as the adapter writes them. One plain text stays text: a format around it would only keep
it from streaming as it is. What a user chose comes first: an adapter, a `response_format`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ferrule.adapters.fields import calls_output
from ferrule.adapters.structured import StructuredAdapter, can_hold
from ferrule.programs.asking.refusals import reminded_of_format

if TYPE_CHECKING:
    from ferrule.programs.asking.asker import Asker
    from ferrule.schema.lowering.rules import ProviderTarget
    from ferrule.values.signatures.signature import Signature

_FORMATS = frozenset(
    {
        "format",
        "generationConfig",
        "generation_config",
        "grammar",
        "guided_json",
        "json_schema",
        "output_config",
        "output_format",
        "response_format",
        "response_json_schema",
        "response_mime_type",
        "response_schema",
        "structured_outputs",
        "text",
    }
)
"""Settings with which a user describes the form of answers, under the names of the providers."""


def enforcing(asker: Asker, signature: type[Signature], *, has_tools: bool = False) -> Asker | None:
    """The asker that lets the provider enforce the form of the outputs; None to ask in text.

    `has_tools`: the request declares tools, which a model with the format may still call.
    """
    target = asker.capabilities.schema_target
    if target is None or asker.conditions.adapter is not None:
        return None
    if has_tools and (asker.constrained or not asker.capabilities.schema_with_tools):
        return None
    if not _FORMATS.isdisjoint(asker.config) or "extra" in asker.config:
        return None
    annotations = [field.annotation for field in signature.plan.outputs.values()]
    if not annotations or annotations == [str] or calls_output(signature) is not None:
        return None
    if not can_hold(signature, target):
        return None
    lm = reminded_of_format(asker.lm)
    return replace(asker, lm=lm, adapter=_adapter_for(target))


@cache
def _adapter_for(target: ProviderTarget) -> StructuredAdapter:
    return StructuredAdapter(target)
