"""Which way the outputs of an answer travel.

Typed outputs travel in the provider's own format for structured answers, if it enforces one: then
an answer cannot have another form, and the prompt needs no markers. If the request declares tools,
and the provider does not take both, they are the arguments of a tool, `finish`. All others are text
below markers, as the adapter writes them. One plain text stays text: a format around it would only
keep it from streaming as it is. What a user chose comes first: an adapter, a `response_format`.
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
    from ferrule.tools.toolbox import Toolbox
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
    """The asker that lets the provider enforce the form of the outputs; None to ask otherwise.

    `has_tools`: the request declares tools, which a model with the format may still call.
    """
    if has_tools and not _takes_both(asker):
        return None
    target = _enforced_dialect(asker, signature)
    if target is None:
        return None
    lm = reminded_of_format(asker.lm)
    adapter = _adapter_for(target, describes=not asker.capabilities.shows_schema)
    return replace(asker, lm=lm, adapter=adapter)


def finishing(asker: Asker, signature: type[Signature], tools: Toolbox) -> Asker | None:
    """The asker for outputs that are the arguments of the tool `finish`; None to ask in text.

    That is for declared tools, where the provider does not take the format besides. It needs
    `tool_choice` to allow the call, and no other tool of that name.
    """
    if _takes_both(asker) or asker.tool_choice not in {None, "auto", "required"}:
        return None
    if "finish" in tools or _enforced_dialect(asker, signature) is None:
        return None
    if asker.constrained and asker.tool_choice is None:
        return replace(asker, tool_choice="required")
    return asker


def _takes_both(asker: Asker) -> bool:
    """Whether a request may have tools and the format."""
    return asker.capabilities.schema_with_tools and not asker.constrained


def _enforced_dialect(asker: Asker, signature: type[Signature]) -> ProviderTarget | None:
    """The dialect of JSON Schema in which the provider enforces these outputs.

    None if it cannot, if it need not for one plain text, and if the user chose another form.
    """
    target = asker.capabilities.schema_target
    if target is None or asker.conditions.adapter is not None:
        return None
    if not _FORMATS.isdisjoint(asker.config) or "extra" in asker.config:
        return None
    annotations = [field.annotation for field in signature.plan.outputs.values()]
    if not annotations or annotations == [str] or calls_output(signature) is not None:
        return None
    if not can_hold(signature, target):
        return None
    return target


@cache
def _adapter_for(target: ProviderTarget, *, describes: bool) -> StructuredAdapter:
    return StructuredAdapter(target, describes=describes)
