"""Read JSON that models write: strictly first, then with named repairs.

A repair corrects a known mistake without losing anything. Ambiguous text is an error, never a
guess.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from ferrule.encoding.loose import LooseReader, read_loosely, unfenced
from ferrule.encoding.pattern import pattern
from ferrule.encoding.written import may_hold_floats, read_with_digits
from ferrule.errors import ToolCallError

if TYPE_CHECKING:
    from collections.abc import Iterable

LOSSY = frozenset({"comments", "extra_closing_brace", "prose"})
"""The repairs that drop a part of the text. All others rewrite it."""

_MOST_CANDIDATES = 1000
_OBJECT_START = pattern(r"""\{\s*(?:["']|[\w$]+\s*:)""")


def read_json(text: str, *, layers: int = 8) -> tuple[Any, tuple[str, ...]]:
    """Parse a value. Returns it with the names of the repairs; its numbers keep their digits.

    Raises `ValueError` for two values, a truncated one, or other text.

    Names: `code_fence`, `comments`, `control_characters`, `doubly_encoded`, `escapes`,
    `extra_closing_brace`, `numbers`, `python_literals`, `single_quotes`, `trailing_comma`,
    `unquoted_keys`. At most `layers` wrappings, such as fences, are removed.
    """
    try:
        return strict_json(text), ()
    except ValueError as error:
        if not layers:
            raise
        if text.startswith("\ufeff"):
            # A byte order mark is not part of the JSON (RFC 8259, section 8.1).
            return read_json(text[1:], layers=layers - 1)
        inside = unfenced(text)
        if inside is not None:
            value, repairs = read_json(inside, layers=layers - 1)
            return value, ("code_fence", *repairs)
        if text.lstrip()[:2] in {"{\\", "[\\"} or text.lstrip().startswith('[{\\"'):
            return _escaped_once_more(text, error, layers)
        return read_loosely(text)


def strict_json(text: str) -> Any:
    """Parse JSON (RFC 8259, and `NaN`); raises `ValueError`.

    Numbers keep their digits: see `written.py`.
    """
    if may_hold_floats(text):
        with suppress(ValueError, RecursionError):
            return read_with_digits(text)
    try:
        return from_json(text)
    except (ValueError, TypeError):
        # The fast parser accepts neither lone surrogates nor deep nesting.
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def read_arguments(text: str, *, tool: str = "") -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parse the arguments of a call: `{}` for empty text and for `null`.

    A string with the object's JSON is parsed once more (`doubly_encoded`). Raises `ToolCallError`
    with the code `invalid_tool_call_arguments` and the text as `raw`.
    """
    if not text.strip():
        return {}, ()
    of = "the arguments"
    if tool:
        of = f"the arguments of `{tool}`"
    try:
        value, repairs = read_json(text)
        if isinstance(value, str) and value.strip():
            value, more = read_json(value)
            repairs = (*repairs, "doubly_encoded", *more)
    except ValueError as error:
        msg = f"{of} are not valid JSON: {error}"
        raise ToolCallError(
            "invalid_tool_call_arguments", msg, raw=text, tool=tool or None
        ) from None
    if value is None or value == "":
        return {}, repairs
    if not isinstance(value, dict):
        msg = f"{of} must be a JSON object, found {kind_of(value)}"
        raise ToolCallError("invalid_tool_call_arguments", msg, raw=text, tool=tool or None)
    return value, repairs  # pyright: ignore[reportUnknownVariableType]  JSON's keys are strings


def objects_in(text: str) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """The complete top-level objects in a text, in order, with the repairs of each."""
    objects: list[tuple[dict[str, Any], tuple[str, ...]]] = []
    failed: set[int] = set()
    start, tries_left = text.find("{"), _MOST_CANDIDATES
    while start >= 0 and tries_left > 0:
        end = start + 1
        if start not in failed:
            tries_left -= 1
            reader = LooseReader(text)
            try:
                value, end = reader.value(start, 0)
            except ValueError:
                failed.update(reader.open)  # not read again: each would end in the same error
            else:
                if isinstance(value, dict):
                    objects.append((cast("Any", value), ("prose", *reader.repairs)))
        start = text.find("{", end)
    return objects


def flaw_of_object(text: str, keys: Iterable[str]) -> str:
    """Why the first object in a text that cannot be read is not valid JSON; empty for none.

    Braces in prose are not an attempt at an object: only one that can have one of the keys counts.
    """
    names = "|".join(map(re.escape, keys))
    members = [member.start() for member in re.finditer(rf"""(["']?)\b(?:{names})\1\s*:""", text)]
    if not names or not members:
        return ""
    brace = _OBJECT_START.search(text)
    while brace is not None and brace.start() < members[-1]:
        try:
            _, end = LooseReader(text).value(brace.start(), 0)
        except ValueError as error:
            return str(error)
        brace = _OBJECT_START.search(text, end)
    return ""


def kind_of(value: object) -> str:
    """The JSON type of a value, with an article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, (list, tuple)):
        return "an array"
    return "an object"


def _escaped_once_more(text: str, error: ValueError, layers: int) -> tuple[Any, tuple[str, ...]]:
    # `{\"a\": 1}` is a JSON string without its quotes.
    try:
        inside = json.loads(f'"{text}"')
    except ValueError:
        raise error from None
    value, repairs = read_json(inside, layers=layers - 1)
    return value, ("doubly_encoded", *repairs)
