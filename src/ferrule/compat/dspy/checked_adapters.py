"""DSPy's adapters over ferrule's: they refuse what ferrule would silently ignore.

A subclass of DSPy's adapters may override methods that ferrule never calls, or pass options that
ferrule's adapters do not have. Both raise `ConfigurationError`, which names what to use instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ferrule

if TYPE_CHECKING:
    from collections.abc import Mapping

_ASKS = (
    "a program asks the model, not its adapter: override `format` for the messages, "
    "and `parse` for the answer"
)
_FIELDS = "override `format_user_message_content` and `format_assistant_message_content`"
_INPUTS = "override `format_user_message_content`"
_TOOLS = "tools are declared as they are: change the tool, as in `Tool(function, name, desc)`"

REFUSED_METHODS: Mapping[str, str] = {
    "__call__": _ASKS,
    "acall": _ASKS,
    "_call_preprocess": "override `format`, or `request` for tools and settings",
    "_call_postprocess": "override `parse`",
    "format_field_value": _FIELDS,
    "format_field_with_value": _FIELDS,
    "format_fields": _FIELDS,
    "format_turn": _FIELDS,
    "format_inputs": _INPUTS,
    "format_user_request": _INPUTS,
    "format_instructions": "override `format_system_message`",
    "format_output_instructions": "override `user_message_output_requirements`",
    "format_finetune_data": (
        "ferrule makes no data for fine-tuning: write a function that takes the messages of "
        "`format`"
    ),
    "format_tool_schema": _TOOLS,
    "format_tool_schemas": _TOOLS,
    "parse_outputs": "override `parse`",
    "process_chunk": "override `reader`, which returns a parser for one streamed answer",
}
"""Methods of DSPy's adapters that ferrule never calls, and what to do instead."""

REFUSED_OPTIONS: Mapping[str, str] = {
    "callbacks": (
        "observers are a setting, as in `configure(callbacks=[...])` or "
        "`with context(callbacks=[...])`"
    ),
    "use_json_adapter_fallback": "use `fallback=None`, or another adapter as `fallback`",
    "native_response_types": (
        "give an output the type `Reasoning` or `ToolCalls`; it is native if the model supports it"
    ),
}


class Adapter(ferrule.Adapter):
    """`ferrule.Adapter`, which refuses DSPy's methods and options that it would ignore."""

    __slots__ = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        names = [*options]
        if args:  # DSPy's first positional argument is `callbacks`
            names.append("callbacks")
        for name in names:
            if name in REFUSED_OPTIONS:
                raise ferrule.errors.ConfigurationError(
                    f"`{type(self).__name__}` takes no `{name}`: {REFUSED_OPTIONS[name]}."
                )
        super().__init__(**options)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.writes_native_text = False  # DSPy's prompts have markers, also with native calls
        for name, instead in REFUSED_METHODS.items():
            if _definition(cls, name) is not _definition(ferrule.Adapter, name):
                raise ferrule.errors.ConfigurationError(
                    f"`{cls.__name__}.{name}` would not be called: {instead}."
                )


def _definition(cls: type, name: str) -> Any:
    # Not `getattr`, which finds the `__call__` of the metaclass on every class.
    for owner in cls.__mro__:
        if name in vars(owner):
            return vars(owner)[name]
    return None


# `Adapter` comes first among the bases, so that its checks run before the constructor of the other.


class ChatAdapter(Adapter, ferrule.ChatAdapter):
    """`ferrule.ChatAdapter`, which refuses what it would ignore."""

    __slots__ = ()


class JSONAdapter(Adapter, ferrule.JSONAdapter):
    """`ferrule.JSONAdapter`, which refuses what it would ignore."""

    __slots__ = ()


class XMLAdapter(Adapter, ferrule.XMLAdapter):
    """`ferrule.XMLAdapter`, which refuses what it would ignore."""

    __slots__ = ()
