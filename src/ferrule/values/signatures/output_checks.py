"""Checks of outputs: of values parsed from JSON, and of the texts that models write for values.

Each check coerces a value or a text to the field's type, or raises `ValueError` with a message for
the model. A value is tried unchanged first, and parsed as text only if that fails. For a type that
accepts text, a text stays text; it is parsed as JSON only if it is `null`, an object or an array.

The order of the attempts matters. A lenient reading that comes too early changes valid answers: a
text `"1.0"` becomes a number, an identifier `"00123"` loses its zeros. So every check tries the
strictest reading first, and repairs a text only when nothing else fits.
"""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from enum import Enum
from html import unescape
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Union, get_args, get_origin

from pydantic import ValidationError

from ferrule.encoding.encode import json_bytes, json_text
from ferrule.encoding.repair import kind_of, read_json, strict_json
from ferrule.encoding.written import number_text, without_digits
from ferrule.errors import shown
from ferrule.schema.finite import allows_any_float, non_finite_in
from ferrule.schema.iterables import eager_validators
from ferrule.values.content.type import TEXTS
from ferrule.values.signatures.fields import adapter_of, explained, quick_field_check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import TypeAdapter

    from ferrule.values.signatures.fields import SignatureField

_QUOTES = "`\"'*"
_CONTAINER_STARTS = ("{", "[", "`")
"""The first characters of an object or an array, or of a code fence around one."""
_WORD_STARTS = frozenset("tfn")
_JSON_STARTS = frozenset('"-0123456789') | frozenset(_CONTAINER_STARTS) | _WORD_STARTS
_JSON_WORDS = frozenset({"true", "false", "null"})


AS_WRITTEN = "as written"
"""Metadata of an output of the type `Any` whose numbers keep their digits (`written.py`)."""


class OutputCheck(Protocol):
    """Coerces a value or a text to the field's type; raises `ValueError`."""

    def __call__(self, value: Any, *, is_value: bool = False) -> Any:
        """With `is_value`, a string is a JSON string; otherwise it is text that a model wrote."""
        ...


def output_check(field: SignatureField) -> OutputCheck:
    """The check for the values of an output, parsed or as text.

    Models write `NaN` and `1e999`, and pydantic reads them as floats. JSON has no such numbers: a
    prediction could not be stored. So they are refused, except where the type allows them by name.
    """
    check = reading_check(field)
    if allows_any_float(field.annotated):
        return check

    def check_finite(value: Any, *, is_value: bool = False) -> Any:
        result = check(value, is_value=is_value)
        if type(result) is not str:
            _refuse_non_finite(result)
        return result

    return check_finite


def _refuse_non_finite(result: Any) -> None:
    problems = non_finite_in(result)
    if problems:
        lines = [f"{path}: {problem}" if path else problem for path, problem in problems]
        raise ValueError("; ".join(lines))


def reading_check(field: SignatureField) -> OutputCheck:
    """`output_check` for values that code made, which may be any floats."""
    if field.annotation is str:
        adapter = None
        if field.metadata:
            adapter = adapter_of(field)
        return _text_check(adapter)
    if field.annotation is Any and not field.metadata:
        return _check_any
    if field.annotation is Any and AS_WRITTEN in field.metadata:
        return _check_any_as_written
    return quick_field_check(field, _TypedCheck)


def _text_check(adapter: TypeAdapter[Any] | None) -> OutputCheck:
    """The check of a text; `adapter` validates its constraints, if there are any."""

    def check(value: Any, *, is_value: bool = False) -> Any:
        del is_value
        if isinstance(value, str):
            text = str.__str__(value)  # a plain `str` for an instance of a subclass
        elif isinstance(value, (bool, int, float)):
            # A bare number in a JSON answer is accepted as text, as it is in a chat answer.
            text = number_text(value)
        else:
            raise ValueError(f"should be a text, got {kind_of(value)}")
        if adapter is None:
            return text
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            raise ValueError(explained(error)) from None

    return check


def _check_any(value: Any, *, is_value: bool = False) -> Any:
    """The check of an output of the type `Any`: a text that is JSON becomes its value."""
    return without_digits(_check_any_as_written(value, is_value=is_value))


def _check_any_as_written(value: Any, *, is_value: bool = False) -> Any:
    if not isinstance(value, str):
        return value
    if is_value or type(value) is not str:
        return str.__str__(value)
    text = value.strip()
    if not _may_be_json(text):
        return value
    try:
        return strict_json(text)
    except ValueError:
        pass
    # Only objects and arrays are repaired. A sentence that begins with a digit is text.
    if not text.startswith(_CONTAINER_STARTS):
        return value
    try:
        repaired, _ = read_json(text)
    except ValueError:
        return value
    if isinstance(repaired, (dict, list)):
        return repaired  # pyright: ignore[reportUnknownVariableType]
    return value


def _may_be_json(text: str) -> bool:
    """Whether a text begins as JSON does. Most texts do not, and need not be parsed."""
    if not text or text[0] not in _JSON_STARTS:
        return False
    return text[0] not in _WORD_STARTS or text in _JSON_WORDS


class _TypedCheck:
    """The check of any type except text and `Any`."""

    __slots__ = (
        "_accepts_more",
        "_accepts_text",
        "_is_decimal",
        "_refuses_booleans",
        "_validate",
        "_validate_json",
        "_words",
    )

    def __init__(self, field: SignatureField) -> None:
        self._validate, self._validate_json = eager_validators(adapter_of(field))
        members = list(members_of(field.annotation))
        members_except_none = [member for member in members if member is not NoneType]
        self._accepts_text = any(member in TEXTS for member in members)
        self._accepts_more = not all(member in TEXTS for member in members_except_none)
        # Pydantic accepts true as 1; here a boolean is never a number.
        self._refuses_booleans = any(member is int or member is float for member in members)
        if any(_accepts_booleans(member) for member in members):
            self._refuses_booleans = False
        self._words = _words(members)
        self._is_decimal = bool(members_except_none) and all(
            member is Decimal for member in members_except_none
        )

    def __call__(self, value: Any, *, is_value: bool = False) -> Any:
        if self._refuses_booleans and _is_boolean(value):
            if not self._accepts_text:
                raise ValueError(f"should be a number, got {shown(value)}")
            if not isinstance(value, str):
                value = json_text(value)
        if is_value or type(value) is not str:
            return self._check_value(value)
        return self._check_written(value)

    def _check_value(self, value: Any) -> Any:
        plain = without_digits(value)
        try:
            return self._validate(plain)
        except ValidationError as error:
            problem = explained(error)
        # A strict model may accept values as JSON that it refuses as Python objects.
        with suppress(ValueError, TypeError):
            return self._validate_json(json_bytes(plain))
        if isinstance(value, str):
            return self._check_written(value)
        if self._accepts_text and isinstance(value, (bool, int, float)):
            # A bare number is accepted as text, as in `_text_check`.
            return self._check_written(number_text(value))
        raise ValueError(problem)

    def _check_written(self, text: str) -> Any:
        """Check a text that a model wrote for the value."""
        if self._accepts_text:
            return self._check_text_or_container(text)
        if text in self._words:
            return self._words[text]
        if self._is_decimal:
            # The JSON reader takes a number for a float, which has 17 digits and no trailing zeros.
            with suppress(ValueError):
                return self._validate(text.strip())
        problem = ""
        try:
            return self._validate_json(text)
        except ValidationError as error:
            # JSON of a wrong type has its own error. For other texts, the error of the repaired
            # reading is the most helpful.
            if not _is_invalid_json(error):
                problem = explained(error)
        except (ValueError, TypeError):
            pass
        stripped = text.strip()
        problem = problem or _flaw_of_json(stripped)
        for reading in _readings(stripped, self._words):
            try:
                return self._validate(reading)
            except ValidationError as error:
                problem = problem or explained(error)
        raise ValueError(problem)

    def _check_text_or_container(self, text: str) -> Any:
        """Check a text for a type that accepts text, such as `str | list[str] | None`."""
        stripped = text.strip()
        readings: list[Any] = []
        if stripped == "null":
            readings = [None]
        if self._accepts_more and stripped.startswith(_CONTAINER_STARTS):
            try:
                return self._validate_json(stripped)
            except (ValueError, TypeError):
                readings = [
                    reading
                    for reading in _readings(stripped, {})
                    if isinstance(reading, (dict, list))
                ]
        for reading in readings:
            with suppress(ValidationError):
                return self._validate(reading)
        try:
            return self._validate(text)
        except ValidationError as error:
            raise ValueError(explained(error)) from None


def members_of(annotation: Any) -> Iterator[Any]:
    """The members of a union without their constraints; of any other type, the type itself."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from members_of(get_args(annotation)[0])
    elif origin in {Union, UnionType}:
        for member in get_args(annotation):
            yield from members_of(member)
    else:
        yield annotation


def _is_boolean(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in {"true", "false"}
    return isinstance(value, bool)


def _accepts_booleans(member: Any) -> bool:
    if get_origin(member) is Literal:
        return any(isinstance(literal, bool) for literal in get_args(member))
    return member is bool or member is Any


def _accepts_none(member: Any) -> bool:
    if get_origin(member) is Literal:
        return None in get_args(member)
    return member is NoneType


def _words(members: list[Any]) -> dict[str, Any]:
    """The texts that stand for a value of these types, with their values.

    These are the texts of every `Literal` and every text `Enum`, and the names of the members of
    every `Enum`. Where a name equals the text of another value, the text counts.
    """
    names: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for member in members:
        if get_origin(member) is Literal:
            for literal in get_args(member):
                # Pydantic does not read a member of an `Enum` in a `Literal`.
                if isinstance(literal, Enum):
                    names[literal.name] = literal
                    if isinstance(literal.value, str):
                        texts[literal.value] = literal
            texts |= {literal: literal for literal in get_args(member) if type(literal) is str}
        elif isinstance(member, type) and issubclass(member, Enum):
            names |= member.__members__
            if all(isinstance(enum_member.value, str) for enum_member in member):
                texts |= {enum_member.value: enum_member for enum_member in member}
    words = names | texts
    # Where None is possible, `null` means None.
    if any(_accepts_none(member) for member in members):
        words.pop("null", None)
    return words


def _readings(text: str, words: dict[str, Any]) -> list[Any]:
    """The possible values of a text that is not the JSON of a valid value, likeliest first."""
    repaired: list[Any] = []
    for variant in dict.fromkeys((text, unescape(text))):
        with suppress(ValueError):
            repaired.append(without_digits(read_json(variant)[0]))
    if text.startswith(_CONTAINER_STARTS):
        readings = [*repaired, text]
    else:
        readings = [text, *repaired]
    # A word in other case, in quotes or before a full stop counts, if it can mean one value only.
    bare = text.strip(_QUOTES + " .").casefold()
    similar = {id(value): value for word, value in words.items() if word.casefold() == bare}
    if len(similar) == 1:
        readings = [*similar.values(), *readings]
    return readings


def _flaw_of_json(text: str) -> str:
    """Why a text that begins as an object or array is not JSON; empty if it is, or is repaired."""
    if not text.lstrip("`").removeprefix("json").lstrip().startswith(("{", "[")):
        return ""
    try:
        read_json(text)
    except ValueError as error:
        return f"is not valid JSON: {error}"
    return ""


def _is_invalid_json(error: ValidationError) -> bool:
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return details[0]["type"] in {"json_invalid", "string_unicode"}
