"""`Type`, the base of values that define how a model sees them; and `Reasoning`, a text that a model may write natively."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict
from pydantic_core import core_schema

from ferrule.encoding.encode import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T", bound="Type")

PART_START = "<<ferrule-part>>"
PART_END = "<</ferrule-part>>"
_MOST_STRINGS_AROUND = 4
_PART = f"(?s){re.escape(PART_START)}(.*?){re.escape(PART_END)}"


class Type(BaseModel):
    """A value that defines how a model sees it, like DSPy's `Type`. Subclass it, and override `format` and `description`.

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
        """The value as a model sees it: text, JSON data, or a list of message parts in OpenAI's form."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    @classmethod
    def extract_custom_type_from_annotation(cls, annotation: Any) -> list[type[Self]]:
        """The subclasses of this type in an annotation, in order: `[Tool]` for `list[dict[str, Tool]]`."""
        return list(_named(annotation, cls, []))

    @classmethod
    def adapt_to_native_lm_feature(
        cls,
        signature: Any,
        field_name: str,
        lm: Any,
        lm_kwargs: dict[str, Any],
    ) -> Any:
        """Return the signature without this field if the model has a native feature for it. May change `lm_kwargs` in place."""
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
        return _packed(cast("list[Any]", formatted)) if isinstance(formatted, list) else formatted

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return serialized_by(lambda value: value.serialize_model(), handler(source), handler)


def serialized_by(
    function: Callable[[Any], Any],
    schema: Any,
    handler: Any,
    returns: Any = None,
) -> Any:
    """Add a serializer to a model's core schema, unless a subclass has one by pydantic's `model_serializer`.

    The decorator itself would load a module that costs a process as much as ten of ferrule's.
    `returns` is the schema of the result.
    """
    written = core_schema.plain_serializer_function_ser_schema(
        function,
        return_schema=returns or core_schema.any_schema(),
    )
    handler.resolve_ref_schema(schema).setdefault("serialization", written)
    return schema


def _named(annotation: Any, kind: type[T], aliases: list[Any]) -> Iterator[type[T]]:
    if isinstance(annotation, type) and not get_args(annotation):
        if issubclass(annotation, kind):
            yield annotation
        return
    if type(annotation).__name__ == "TypeAliasType":  # of `typing` or of `typing_extensions`
        if (
            annotation not in aliases
        ):  # an alias may name itself: `type Json = dict[str, Json] | str`
            yield from _named(cast("Any", annotation).__value__, kind, [*aliases, annotation])
        return
    # The parameters of a `Callable` are a list.
    for part in (
        cast("list[Any]", annotation) if isinstance(annotation, list) else get_args(annotation)
    ):
        yield from _named(part, kind, aliases)


def _packed(parts: list[Any]) -> str:
    # `<` is escaped (JSON has it only inside strings), so that no text of a part can end the
    # marking early.
    return f"{PART_START}{json_text(parts).replace('<', chr(92) + 'u003c')}{PART_END}"


def split_parts(text: str, *, in_json: bool = False) -> str | list[dict[str, Any]]:
    """Split text with packed parts into a list of parts in OpenAI's form. Text without packed parts is returned unchanged.

    With `in_json`, the text of a part cannot end the JSON string around it.
    """
    if PART_START not in text:
        return text
    parts: list[dict[str, Any]] = []
    for i, piece in enumerate(re.split(_PART, text)):
        if i % 2:
            parts.extend(_unpacked(piece, in_json=in_json))
        elif piece.strip():
            parts.append({"type": "text", "text": piece})
    return parts


def _unpacked(piece: str, *, in_json: bool) -> list[dict[str, Any]]:
    # A packed value inside JSON strings was escaped once for each of them.
    inside = piece
    for strings in range(_MOST_STRINGS_AROUND):
        try:
            found = json.loads(inside)
        except (ValueError, RecursionError):
            pass
        else:
            parts = (
                cast("list[dict[str, Any]]", found)
                if isinstance(found, list)
                else [{"type": "text", "text": piece}]
            )
            return [_in_strings(part, strings) for part in parts] if in_json else parts
        try:
            inside = json.loads(f'"{inside}"', strict=False)
        except ValueError:
            break
    return [{"type": "text", "text": piece}]


def _in_strings(part: dict[str, Any], strings: int) -> dict[str, Any]:
    text: Any = (
        part.get("text") if type(part) is dict else None
    )  # a user's `format` may return anything
    if not isinstance(text, str) or not ('"' in text or "\\" in text):
        return part  # a line feed cannot end the string
    for _ in range(strings):
        text = json_text(text)[1:-1]
    return {**part, "text": text}


class Reasoning(str):
    """The type of an output for the model's thoughts before its answer. The value is a `str`.

    If the provider returns the model's own reasoning, that is the value; otherwise the model writes
    the output as a field.
    """

    __slots__ = ()

    def __new__(cls, content: str = "") -> Self:
        """Make reasoning from a text."""
        return super().__new__(cls, content)

    @property
    def content(self) -> str:
        """The text."""
        return str.__str__(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        def unpacked(value: Any) -> Any:
            found: Any = value
            return found["content"] if isinstance(value, dict) and "content" in value else found

        inside = core_schema.no_info_before_validator_function(unpacked, core_schema.str_schema())
        return core_schema.no_info_after_validator_function(
            cls,
            inside,
            serialization=core_schema.to_string_ser_schema(),
        )

    @classmethod
    def adapt_to_native_lm_feature(
        cls,
        signature: Any,
        field_name: str,
        lm: Any,
        lm_kwargs: dict[str, Any],
    ) -> Any:
        """See `Type`: the field is dropped if the model's settings make it return its native thoughts."""
        told = (
            lm.thought_settings(lm_kwargs) if hasattr(lm, "thought_settings") else thinks(lm_kwargs)
        )
        if told is None:
            return signature
        lm_kwargs.update(told)
        return signature.delete(field_name)

    @classmethod
    def parse_lm_response(cls, response: Any) -> Self:
        """See `Type`; empty if the provider does not return the model's thoughts."""
        return cls(response.get("reasoning_content") or "")


TEXTS = (str, Reasoning)
"""The types whose values a model writes as plain text."""
_THINKING = (
    "reasoning_effort",
    "thinking",
    "reasoning",
    "thinkingConfig",
    "thinking_config",
    "enable_thinking",
    "think",
)
_OFF = (
    {"type": "disabled"},
    {"effort": "none"},
    {"enabled": False},
    {"thinkingBudget": 0},
    {"thinking_budget": 0},
)


def thinks(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """An empty dict if the settings have a model think before it answers, None otherwise."""
    extra: Mapping[str, Any] = settings.get("extra") or {}
    for found in (settings, extra):
        for name in _THINKING:
            value: Any = found.get(name)
            is_off = isinstance(value, dict) and any(
                off.items() <= cast("dict[str, Any]", value).items() for off in _OFF
            )
            if value and value != "none" and not is_off:
                return {}
    return None
