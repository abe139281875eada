"""Checks of outputs: of values parsed from JSON, and of the texts that models write for values.

Each check coerces a value or a text to the field's type, or raises `ValueError` with a message for
the model. A value is tried unchanged first, and parsed as text only if that fails. For a type that
accepts text, a text stays text; it is parsed as JSON only if it is `null`, an object or an array.
"""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Union, get_args, get_origin

from pydantic import ValidationError

from ferrule.encoding.encode import json_bytes, json_text
from ferrule.encoding.repair import kind_of, read_json, strict_json
from ferrule.errors import shown
from ferrule.schema.iterables import eager_validators
from ferrule.values.content.type import TEXTS
from ferrule.values.signatures.fields import adapter_of, explained, quick_field_check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import TypeAdapter

    from ferrule.values.signatures.fields import SignatureField

_QUOTES = "`\"'*"
_FIRST_OF_WORDS = frozenset("tfn")
_FIRST_OF_JSON = frozenset('{["-0123456789`') | _FIRST_OF_WORDS
"""The backtick stands for a fence around the JSON."""
_FIRST_OF_MANY = ("{", "[", "`")
"""The first characters of an object or an array, or of a fence around one."""
_JSON_WORDS = frozenset({"true", "false", "null"})


class OutputCheck(Protocol):
    """Coerces a value or a text to the field's type; raises `ValueError`."""

    def __call__(self, value: Any, *, is_value: bool = False) -> Any:
        """With `is_value`, a string is a JSON string; otherwise it is the text that a model wrote."""
        ...


def output_check(field: SignatureField) -> OutputCheck:
    """The check for the values of an output, parsed or as text."""
    if field.annotation is str:
        return _check_text(adapter_of(field) if field.metadata else None)
    if field.annotation is Any and not field.metadata:
        return _check_anything
    return quick_field_check(field, _Typed)


def _check_text(adapter: TypeAdapter[Any] | None) -> OutputCheck:
    def check(value: Any, *, is_value: bool = False) -> Any:
        del is_value
        if type(value) is not str:
            # A bare number in a JSON answer is accepted as text, as it is in a chat answer.
            if not isinstance(value, (str, bool, int, float)):
                raise ValueError(f"should be a text, got {kind_of(value)}")
            value = str.__str__(value) if isinstance(value, str) else json_text(value)
        if adapter is None:
            return value
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            raise ValueError(explained(error)) from None

    return check


def _check_anything(value: Any, *, is_value: bool = False) -> Any:
    if is_value or type(value) is not str:
        return str.__str__(value) if isinstance(value, str) else value
    text = value.strip()
    if not text:
        return value
    first = text[0]
    if first not in _FIRST_OF_JSON or (first in _FIRST_OF_WORDS and text not in _JSON_WORDS):
        return value
    try:
        return strict_json(text)
    except ValueError:
        if first not in _FIRST_OF_MANY:
            return value
    try:
        found, _ = read_json(text)
    except ValueError:
        return value
    return found if isinstance(found, (dict, list)) else value  # pyright: ignore[reportUnknownVariableType]


class _Typed:
    """The check of any type except text and `Any`."""

    __slots__ = (
        "_has_more",
        "_in_json",
        "_in_python",
        "_is_decimal",
        "_no_booleans",
        "_takes_text",
        "_words",
    )

    def __init__(self, field: SignatureField) -> None:
        self._in_python, self._in_json = eager_validators(adapter_of(field))
        members = list(members_of(field.annotation))
        self._takes_text = any(each in TEXTS for each in members)
        self._has_more = not all(each in TEXTS or each is type(None) for each in members)
        # pydantic accepts true as 1; here a boolean is never a number.
        self._no_booleans = any(each is int or each is float for each in members) and not any(
            map(_holds_booleans, members),
        )
        self._words = _words(members)
        self._is_decimal = Decimal in members and all(
            each is Decimal or each is type(None) for each in members
        )

    def __call__(self, value: Any, *, is_value: bool = False) -> Any:
        if self._no_booleans and _is_boolean(value):
            if not self._takes_text:
                raise ValueError(f"should be a number, got {shown(value)}")
            value = value if isinstance(value, str) else json_text(value)
        if is_value or type(value) is not str:
            return self._of_value(value)
        return self._of_text(value)

    def _of_value(self, value: Any) -> Any:
        try:
            return self._in_python(value)
        except ValidationError as error:
            problem = explained(error)
        # A strict model may accept values as JSON that it refuses as Python objects.
        try:
            return self._in_json(json_bytes(value))
        except (ValueError, TypeError):
            pass
        if isinstance(value, str):
            return self._of_text(value)
        if self._takes_text and isinstance(value, (bool, int, float)):
            return self._of_text(json_text(value))  # as `_check_text`
        raise ValueError(problem)

    def _of_text(self, text: str) -> Any:
        if self._takes_text:
            return self._text_itself(text)
        if text in self._words:
            return self._words[text]
        if (
            self._is_decimal
        ):  # the JSON reader takes a number for a float, which has 17 digits and no trailing zeros
            with suppress(ValueError):
                return self._in_python(text.strip())
        problem = ""
        try:
            return self._in_json(text)
        except ValidationError as error:
            # JSON of a wrong type has its own error. For other texts, the error of the repaired
            # reading is the most helpful.
            problem = "" if _is_bad_json(error) else explained(error)
        except (ValueError, TypeError):
            pass
        for candidate in _readings(text.strip(), self._words):
            try:
                return self._in_python(candidate)
            except ValidationError as error:
                problem = problem or explained(error)
        raise ValueError(problem)

    def _text_itself(self, text: str) -> Any:
        bare = text.strip()
        others: list[Any] = [None] if bare == "null" else []
        if self._has_more and bare.startswith(_FIRST_OF_MANY):
            try:
                return self._in_json(bare)
            except (ValueError, TypeError):
                others = [each for each in _readings(bare, {}) if isinstance(each, (dict, list))]
        for each in others:
            try:
                return self._in_python(each)
            except ValidationError:
                continue
        try:
            return self._in_python(text)
        except ValidationError as error:
            raise ValueError(explained(error)) from None


def _is_boolean(value: Any) -> bool:
    return (
        value.strip().lower() in {"true", "false"}
        if isinstance(value, str)
        else isinstance(value, bool)
    )


def members_of(annotation: Any) -> Iterator[Any]:
    """The members of a union without their constraints; of any other type, the type itself."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from members_of(get_args(annotation)[0])
    elif origin in {Union, UnionType}:
        for each in get_args(annotation):
            yield from members_of(each)
    else:
        yield annotation


def _holds_booleans(member: Any) -> bool:
    if get_origin(member) is Literal:
        return any(isinstance(each, bool) for each in get_args(member))
    return member is bool or member is Any


def _words(members: list[Any]) -> dict[str, Any]:
    """The texts of every `Literal` and every text `Enum`, with their values, and the names of the members of every `Enum`."""
    words: dict[str, Any] = {}
    names: dict[str, Any] = {}
    for each in members:
        if get_origin(each) is Literal:
            ones = [
                one for one in get_args(each) if isinstance(one, Enum)
            ]  # pydantic reads no member of an `Enum` in a `Literal`
            names |= {one.name: one for one in ones}
            words |= {one.value: one for one in ones if isinstance(one.value, str)}
            words |= {word: word for word in get_args(each) if type(word) is str}
        elif isinstance(each, type) and issubclass(each, Enum):
            names |= each.__members__
            if all(isinstance(one.value, str) for one in each):
                words |= {one.value: one for one in each}
    words = names | words
    if "null" in words and any(
        each is type(None) or (get_origin(each) is Literal and None in get_args(each))
        for each in members
    ):
        del words["null"]  # it is None
    return words


def _readings(text: str, words: dict[str, Any]) -> list[Any]:
    """The possible values of a text that is not the JSON of a valid value, likeliest first."""
    bare = text.strip(_QUOTES + " .").casefold() if words else ""
    alike = list(
        {id(value): value for word, value in words.items() if word.casefold() == bare}.values(),
    )
    from html import unescape

    repaired: list[Any] = []
    for each in dict.fromkeys((text, unescape(text) if "&" in text else text)):
        try:
            repaired.append(read_json(each)[0])
        except ValueError:
            continue
    readings = [*repaired, text] if text.startswith(_FIRST_OF_MANY) else [text, *repaired]
    return [*alike, *readings] if len(alike) == 1 else readings


def _is_bad_json(error: ValidationError) -> bool:
    return error.errors(include_url=False, include_input=False, include_context=False)[0][
        "type"
    ] in {"json_invalid", "string_unicode"}
