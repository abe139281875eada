"""`StructuredAdapter`: the provider enforces the form of the outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ferrule.adapters.chat import ChatAdapter
from ferrule.adapters.fields import prompt_fields
from ferrule.adapters.json_object import JSONAdapter, is_closed
from ferrule.adapters.native_text import native_text
from ferrule.schema.lowering.lower import LoweredSchema, lower_schema
from ferrule.values.conversation.exchange import NO_TOOLS, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.adapters.demos import FieldWriter
    from ferrule.schema.lowering.rules import ProviderTarget
    from ferrule.values.conversation.exchange import Capabilities, Declarations, Request
    from ferrule.values.conversation.message import Messages
    from ferrule.values.signatures.signature import Signature

_MARKS = ChatAdapter(use_native_function_calling=None, fallback=None)


class StructuredAdapter(JSONAdapter):
    """A `JSONAdapter` whose schema is in the dialect that a provider enforces.

    An answer written under that schema is converted back, before its fields are checked: strict
    modes require every property, so null stands for one that is left out.
    """

    target: ProviderTarget
    describes: bool
    """Whether the prompt describes the outputs: not if the provider shows the schema itself."""

    def __init__(self, target: ProviderTarget, *, describes: bool = True) -> None:
        super().__init__(use_native_function_calling=None, fallback=_MARKS)
        self.target = target
        self.describes = describes

    def writer(self, signature: type[Signature], *, native: bool) -> FieldWriter:
        """See `Adapter`."""
        if self.describes:
            return super().writer(signature, native=native)
        return native_text(prompt_fields(signature, native=native), answers_in_json=True)

    def request(
        self,
        signature: type[Signature],
        messages: Messages,
        *,
        tools: Declarations = NO_TOOLS,
        **options: Any,
    ) -> Request:
        """See `Adapter`. With tools, the shape holds for an answer without calls."""
        request = super().request(signature, messages, tools=tools, **options)
        if len(tools):
            request.shape = self.shape(signature, options.get("capabilities"))
        return request

    def shape(self, signature: type[Signature], capabilities: Capabilities | None) -> Shape:
        """See `Adapter`."""
        del capabilities
        return Shape("json_schema", lowered_outputs(signature, self.target).schema, strict=True)

    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """See `Adapter`."""
        fields = super().raw_fields(signature, text)
        lowered = lowered_outputs(signature, self.target)
        return cast("Mapping[str, Any]", lowered.restored(fields))


def can_hold(signature: type[Signature], target: ProviderTarget) -> bool:
    """Whether a provider can enforce the outputs of a signature as they are.

    It cannot if its dialect admits more than the schema, or has another form of it: a stream would
    then show a list of keys and values in the place of a dictionary.
    """
    lowered = lowered_outputs(signature, target)
    return lowered.level != "partial" and not lowered.pairs and is_closed(lowered.schema)


def lowered_outputs(signature: type[Signature], target: ProviderTarget) -> LoweredSchema:
    """The schema of a signature's outputs in a provider's dialect."""
    return signature.cached_value(
        (lowered_outputs, target), lambda: lower_schema(signature.plan.output_schema(), target)
    )
