"""`Type`, the base of values that define how a model sees them, and `Reasoning`.

A `Type` that shows itself as message parts (an image, a sound) may be deep inside a value that is
written as JSON. There its parts are *packed*: written as JSON text between two markers. The adapter
cuts the finished text at the markers, with `split_parts`, and so gets the parts at their places.
This is DSPy's method, and its subclasses of `Type` rely on it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict
from pydantic_core import core_schema

from ferrule.encoding.encode import json_text
from ferrule.errors import checks_keywords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T", bound="Type")

PART_START = "<<ferrule-part>>"
PART_END = "<</ferrule-part>>"
_MAX_STRINGS_AROUND = 4
"""A packed part may be in a JSON string, inside JSON in a string, up to this depth."""
_PACKED_PART = f"(?s){re.escape(PART_START)}(.*?){re.escape(PART_END)}"


class Type(BaseModel):
    """A value that defines how a model sees it, like DSPy's `Type`.

    Subclass it, and override `format` and `description`.

    It can be the type of a field, alone or nested (`list[dict[str, Image]]`). If `format()` returns
    a list of message parts, they are packed into text between two markers, and the adapter unpacks
    them when it builds the message.
    """

    # Built on first use, so that `import ferrule` stays fast.
    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, defer_build=True)

    @classmethod
    def description(cls) -> str:
        """The description of this type for a model, or an empty string."""
        return ""

    def format(self) -> Any:
        """The value as a model sees it: text, JSON data, or a list of parts in OpenAI's form."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    @classmethod
    def extract_custom_type_from_annotation(cls, annotation: Any) -> list[type[Self]]:
        """The subclasses of this type in an annotation: `[Tool]` for `list[dict[str, Tool]]`."""
        return list(_types_in(annotation, cls, []))

    @classmethod
    def adapt_to_native_lm_feature(
        cls, signature: Any, field_name: str, lm: Any, lm_kwargs: dict[str, Any]
    ) -> Any:
        """Return the signature without this field if the model has a native feature for it.

        May change `lm_kwargs` in place.
        """
        del field_name, lm, lm_kwargs
        return signature

    @classmethod
    def is_streamable(cls) -> bool:
        """Whether `parse_stream_chunk` can parse single chunks."""
        return False

    @classmethod
    def parse_stream_chunk(cls, chunk: Any) -> Self | None:
        """The value of one streamed chunk, or None if the chunk is not for this type."""
        del chunk
        return None

    @classmethod
    def parse_lm_response(cls, response: str | dict[str, Any]) -> Self | None:
        """The value of a model's answer, or None if this type does not read answers."""
        del response
        return None

    def serialize_model(self) -> Any:
        """`format()`, with a list of parts packed between the markers."""
        formatted: Any = self.format()
        if isinstance(formatted, list):
            return _packed(cast("list[Any]", formatted))
        return formatted

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return serialized_by(lambda value: value.serialize_model(), handler(source), handler)


def serialized_by(
    function: Callable[[Any], Any], schema: Any, handler: Any, returns: Any = None
) -> Any:
    """Add a serializer to a model's core schema.

    A subclass may have its own, by pydantic's `model_serializer`; it is left alone. The decorator
    itself would load a module that costs a process as much as ten of ferrule's.
    `returns` is the schema of the result.
    """
    written = core_schema.plain_serializer_function_ser_schema(
        function, return_schema=returns or core_schema.any_schema()
    )
    handler.resolve_ref_schema(schema).setdefault("serialization", written)
    return schema


def _types_in(annotation: Any, kind: type[T], aliases: list[Any]) -> Iterator[type[T]]:
    if isinstance(annotation, type) and not get_args(annotation):
        if issubclass(annotation, kind):
            yield annotation
        return
    # By name: there is one class in `typing`, and another in `typing_extensions`.
    if type(annotation).__name__ == "TypeAliasType":
        # An alias may name itself: `type Json = dict[str, Json] | str`.
        if annotation not in aliases:
            target = cast("Any", annotation).__value__
            yield from _types_in(target, kind, [*aliases, annotation])
        return
    if isinstance(annotation, list):  # the parameters of a `Callable`
        parts = cast("list[Any]", annotation)
    else:
        parts = get_args(annotation)
    for part in parts:
        yield from _types_in(part, kind, aliases)


def _packed(parts: list[Any]) -> str:
    # `<` is escaped (JSON has it only inside strings), so that no text of a part can end the
    # marking early.
    return f"{PART_START}{json_text(parts).replace('<', chr(92) + 'u003c')}{PART_END}"


def split_parts(text: str, *, in_json: bool = False) -> str | list[dict[str, Any]]:
    """Split text with packed parts into a list of parts in OpenAI's form.

    Text without packed parts is returned unchanged. With `in_json`, the text of a part cannot end
    the JSON string around it.
    """
    if PART_START not in text:
        return text
    parts: list[dict[str, Any]] = []
    # With a group in the pattern, `split` returns text and packed parts by turns.
    for i, piece in enumerate(re.split(_PACKED_PART, text)):
        is_packed = i % 2 == 1
        if is_packed:
            parts.extend(_unpacked(piece, in_json=in_json))
        elif piece.strip():
            parts.append({"type": "text", "text": piece})
    return parts


def _unpacked(piece: str, *, in_json: bool) -> list[dict[str, Any]]:
    """The parts of a packed part; a text part if it cannot be read."""
    as_text = [{"type": "text", "text": piece}]
    # A packed value inside JSON strings was escaped once for each of them.
    packed = piece
    for strings_around in range(_MAX_STRINGS_AROUND):
        try:
            parts = json.loads(packed)
        except (ValueError, RecursionError):
            pass
        else:
            if not isinstance(parts, list):
                parts = as_text
            if not in_json:
                return cast("list[dict[str, Any]]", parts)
            return [_escaped(part, strings_around) for part in cast("list[Any]", parts)]
        try:
            packed = json.loads(f'"{packed}"', strict=False)
        except ValueError:
            break
    return as_text


def _escaped(part: Any, strings_around: int) -> Any:
    """A part whose text is escaped once for each JSON string around it."""
    if type(part) is not dict:  # a user's `format` may return anything
        return part
    fields = cast("dict[str, Any]", part)
    text = fields.get("text")
    # Only a quote, or a backslash before one, could end the string. Other text, such as a line
    # feed, stays readable for the model.
    if not isinstance(text, str) or not ('"' in text or "\\" in text):
        return fields
    for _ in range(strings_around):
        text = json_text(text)[1:-1]
    return {**fields, "text": text}


class Reasoning(str):
    """The type of an output for the model's thoughts before its answer. The value is a `str`.

    If the provider returns the model's own reasoning, that is the value; otherwise the model writes
    the output as a field.
    """

    __slots__ = ()

    @checks_keywords
    def __new__(cls, content: str = "") -> Self:
        """Make reasoning from a text."""
        return super().__new__(cls, content)

    @property
    def content(self) -> str:
        """The text."""
        return str.__str__(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        def text_of(value: Any) -> Any:
            # DSPy's form of reasoning is an object.
            if isinstance(value, dict) and "content" in value:
                return cast("dict[str, Any]", value)["content"]
            return cast("Any", value)

        inside = core_schema.no_info_before_validator_function(text_of, core_schema.str_schema())
        return core_schema.no_info_after_validator_function(
            cls, inside, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def adapt_to_native_lm_feature(
        cls, signature: Any, field_name: str, lm: Any, lm_kwargs: dict[str, Any]
    ) -> Any:
        """See `Type`.

        The field is dropped if the model's settings make it return its native thoughts.
        """
        if hasattr(lm, "thought_settings"):
            settings = lm.thought_settings(lm_kwargs)
        else:
            settings = thinks(lm_kwargs)
        if settings is None:
            return signature
        lm_kwargs.update(settings)
        return signature.delete(field_name)

    @classmethod
    def parse_lm_response(cls, response: Any) -> Self:
        """See `Type`; empty if the provider does not return the model's thoughts."""
        return cls(response.get("reasoning_content") or "")


TEXTS = (str, Reasoning)
"""The types whose values a model writes as plain text."""
_THINKING_SETTINGS = (
    "reasoning_effort",
    "thinking",
    "reasoning",
    "thinkingConfig",
    "thinking_config",
    "enable_thinking",
    "think",
)
"""The settings by which providers and servers turn thinking on or off."""
_OFF = (
    {"type": "disabled"},
    {"effort": "none"},
    {"enabled": False},
    {"thinkingBudget": 0},
    {"thinking_budget": 0},
)
"""Values of these settings that turn it off, apart from false values and `"none"`."""


def thinks(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """An empty dict if the settings have a model think before it answers, None otherwise.

    The dict has the form of `LM.thought_settings`: settings to add.
    """
    extra: Mapping[str, Any] = settings.get("extra") or {}
    for source in (settings, extra):
        if any(_turns_on(source.get(name)) for name in _THINKING_SETTINGS):
            return {}
    return None


def _turns_on(value: Any) -> bool:
    if not value or value == "none":
        return False
    if not isinstance(value, dict):
        return True
    options = cast("dict[str, Any]", value)
    return not any(off.items() <= options.items() for off in _OFF)
