"""DSPy's adapters over ferrule's: they refuse what ferrule would silently ignore.

A subclass of DSPy's adapters may override methods that ferrule never calls, or pass options that
ferrule's adapters do not have. Both raise `ConfigurationError`, which names what to use instead.
Some of these methods can be called, such as `adapter(lm, ...)`.
"""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_origin

import ferrule
from ferrule.adapters.composing import overridden_pieces
from ferrule.adapters.render import join_pieces, read_verbatim
from ferrule.adapters.streaming import Unescaped
from ferrule.adapters.tags import end_tag
from ferrule.compat.dspy.errors import under_dspys_names
from ferrule.values.content.type import TEXTS
from ferrule.values.signatures.fields import without_none

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


class FieldInfoWithName(NamedTuple):
    """A field of a signature: a key of `format_field_with_value`."""

    name: str
    info: Any


class Adapter(ferrule.Adapter):
    """`ferrule.Adapter`, which refuses DSPy's methods and options that it would ignore."""

    parallel_tool_calls: bool | None = None
    """Whether one answer may hold several calls, unless the program says so; None: either."""

    def __init__(self, *args: Any, parallel_tool_calls: bool | None = None, **options: Any) -> None:
        names = [*options]
        if args:  # DSPy's first positional argument is `callbacks`
            names.append("callbacks")
        for name in names:
            if name in REFUSED_OPTIONS:
                raise ferrule.errors.ConfigurationError(
                    f"`{type(self).__name__}` takes no `{name}`: {REFUSED_OPTIONS[name]}."
                )
        super().__init__(**options)
        if parallel_tool_calls is None:  # an adapter without attributes shares its prompts
            return
        vars(self)["parallel_tool_calls"] = parallel_tool_calls
        if self.fallback is not None and "fallback" not in options:
            fallback = JSONAdapter(parallel_tool_calls=parallel_tool_calls)
            object.__setattr__(self, "fallback", fallback)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # This class is a part of the facade: what it overrides is not a user's piece.
        cls.overridden = overridden_pieces(cls, Adapter)
        cls.writes_native_text = False  # DSPy's prompts have markers, also with native calls
        for name, instead in REFUSED_METHODS.items():
            if _definition(cls, name) is not _definition(Adapter, name):
                raise ferrule.errors.ConfigurationError(
                    f"`{cls.__name__}.{name}` would not be called: {instead}."
                )

    # -- what users call

    def __call__(self, lm, lm_kwargs, signature, demos, inputs):
        with under_dspys_names(), ferrule.context(adapter=self):
            return _outputs_of(self._program(lm, lm_kwargs, signature, demos)(**inputs))

    async def acall(self, lm, lm_kwargs, signature, demos, inputs):
        with under_dspys_names(), ferrule.context(adapter=self):
            return _outputs_of(await self._program(lm, lm_kwargs, signature, demos).acall(**inputs))

    def _program(self, lm: Any, settings: Any, signature: Any, demos: Any) -> ferrule.Predict[Any]:
        settings = dict(settings)
        if not self.use_native_function_calling:
            for name in ("tools", "tool_choice", "parallel_tool_calls"):
                settings.pop(name, None)
        return ferrule.Predict(signature, lm=lm, demos=demos, **settings)

    def format_field_with_value(self, fields_with_values, role="user"):
        """Fields as text; `fields_with_values` maps each `FieldInfoWithName` to its value."""
        values = {field.name: value for field, value in fields_with_values.items()}
        if role == "assistant":
            return join_pieces(self.render_answer(values))
        return join_pieces(self.render_fields(values))

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        with under_dspys_names():
            return super().parse(signature, completion)

    # -- what programs call

    def request(self, signature, messages, *, parallel=None, **options):
        if parallel is None:
            parallel = self.parallel_tool_calls
        return super().request(signature, messages, parallel=parallel, **options)


Adapter.overridden = frozenset()


_CHOICE = re.compile(r"(?:Literal|str)\[(.*)\]")
"""A choice as some models write it: with the name of its type."""


def parse_value(value, annotation):
    """A value of an answer, as text or decoded, in a type. Raises `ValueError`."""
    if annotation is str:
        return str(value)
    if get_origin(annotation) is Literal and isinstance(value, str):
        value = _CHOICE.sub(r"\1", value)
    signature = ferrule.Signature({"value": (annotation, ferrule.OutputField())})
    return signature.output_checks["value"](value, is_value=not isinstance(value, str))


def _outputs_of(prediction: Any) -> list[dict[str, Any]]:
    return [dict(completion) for completion in prediction.completions]


def _definition(cls: type, name: str) -> Any:
    # Not `getattr`, which finds the `__call__` of the metaclass on every class.
    for owner in cls.__mro__:
        if name in vars(owner):
            return vars(owner)[name]
    return None


# `Adapter` comes first among the bases, so that its checks run before the constructor of the other.


class ChatAdapter(Adapter, ferrule.ChatAdapter):
    """`ferrule.ChatAdapter`, which refuses what it would ignore."""


class JSONAdapter(Adapter, ferrule.JSONAdapter):
    """`ferrule.JSONAdapter`, which refuses what it would ignore."""


_CDATA = re.compile(r"(?s)<!\[CDATA\[(.*?)\]\]>")
_CDATA_ONLY = re.compile(r"(?s)\A\s*<!\[CDATA\[((?:(?!\]\]>).)*)\]\]>\s*\Z")
_ENTITY = re.compile(r"&(amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_INCOMPLETE = re.compile(
    r"(?s)<(?:!(?:\[(?:C(?:D(?:A(?:T(?:A(?:\[(?!.*\]\]>).*)?)?)?)?)?)?)?)?\Z|&[#\w]{0,8}\Z"
)
"""An entity or a section that is incomplete at the end of a text."""


class XMLAdapter(Adapter, ferrule.XMLAdapter):
    """`ferrule.XMLAdapter` with DSPy's texts: outputs are escaped as in XML.

    So a text may be in a CDATA section, and may have entities.
    """

    def structure(self, fields):
        return (
            super()
            .structure(fields)
            .replace(
                "text as it is without any escaping",
                "text as it is, in answers with `&amp;` for `&` and `&lt;` for `<`",
            )
        )

    def render_answer(self, fields):
        escaped = {name: _escaped(value) for name, value in fields.items()}
        return super().render_answer(escaped)

    def raw_fields(self, signature, text):
        texts = _text_outputs(signature)
        values: dict[str, Any] = {}
        for name, value in super().raw_fields(signature, text).items():
            if name in texts:
                values[name] = _unescaped(name, value)
            elif isinstance(value, str):
                values[name] = _CDATA_ONLY.sub(r"\1", value)
            else:
                values[name] = value
        return values

    def unescape(self, name, text):
        return read_verbatim(text)  # the rest is done

    def reader(self, signature):
        texts = _text_outputs(signature)

        def unescaped(name: str, text: str) -> str:
            if name in texts:
                return _unescaped(name, text)
            return text

        return Unescaped(super().reader(signature), unescaped, _INCOMPLETE)


def _text_outputs(signature: Any) -> set[str]:
    outputs = signature.plan.outputs
    return {name for name, field in outputs.items() if without_none(field.annotation) in TEXTS}


def _escaped(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return type(value)(value.replace("&", "&amp;").replace("<", "&lt;"))


def _unescaped(name: str, text: str) -> str:
    """A text of XML without CDATA marks, and without entities outside of them."""
    pieces: list[str] = []
    for number, piece in enumerate(_CDATA.split(end_tag(name).unescape(text))):
        is_in_section = number % 2 == 1
        if is_in_section:
            pieces.append(piece)
        else:
            pieces.append(_ENTITY.sub(_character, piece))
    return "".join(pieces)


def _character(entity: re.Match[str]) -> str:
    name = entity[1]
    if name in _ENTITIES:
        return _ENTITIES[name]
    digits = name.removeprefix("#")
    if digits.startswith("x"):
        code = int(f"0{digits}", 0)
    else:
        code = int(digits)
    if code > sys.maxunicode:
        return entity[0]
    return chr(code)
