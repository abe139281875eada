"""JSON as models write it: read strictly first, and then with repairs that each have a name.

In: text. Out: the value and the names of the repairs it needed, in the order of the text. A repair undoes a known slip of the pen and
loses nothing; what could be meant in two ways is an error, never a guess.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from ferrule.errors import ToolCallError

LOSSY = frozenset({"comments", "extra_closing_brace", "prose"})
"""Repairs that drop a part of the text; all others only rewrite it."""

_MOST_CANDIDATES = 1000


def read_json(text: str) -> tuple[Any, tuple[str, ...]]:
    """The value a text stands for, and the names of the repairs needed. Raises `ValueError` for two values, a cut value, or junk.

    Names: `code_fence`, `comments`, `control_characters`, `doubly_encoded`, `escapes`, `extra_closing_brace`, `numbers`,
    `python_literals`, `single_quotes`, `trailing_comma`, `unquoted_keys`.
    """
    try:
        return strict_json(text), ()
    except ValueError as error:
        if text.startswith("\ufeff"):  # a byte order mark is no part of the JSON (RFC 8259, section 8.1)
            return read_json(text[1:])
        from ferrule.values.encoding.loose import read_loosely, unfenced

        inside = unfenced(text)
        if inside is not None:
            value, repairs = read_json(inside)
            return value, ("code_fence", *repairs)
        if text.lstrip()[:2] in {"{\\", "[\\"} or text.lstrip().startswith('[{\\"'):
            return _escaped_once_more(text, error)
        return read_loosely(text)


def strict_json(text: str) -> Any:
    """The value of JSON text (RFC 8259, and `NaN`); raises `ValueError`."""
    try:
        return from_json(text)
    except (ValueError, TypeError):
        # The fast reader takes neither lone surrogates nor deep nesting.
        try:
            return json.loads(text)
        except RecursionError:
            msg = "nested too deeply"
            raise ValueError(msg) from None


def read_object(text: str, *, tool: str = "") -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments a text stands for: `{}` for an empty text and for `null`.

    A string that holds the object's JSON is opened once (`doubly_encoded`). Raises `ToolCallError` with the code
    `invalid_tool_call_arguments`, the text as `raw`.
    """
    if not text.strip():
        return {}, ()
    of = f"the arguments of `{tool}`" if tool else "the arguments"
    try:
        value, repairs = read_json(text)
        if isinstance(value, str) and value.strip():
            value, more = read_json(value)
            repairs = (*repairs, "doubly_encoded", *more)
    except ValueError as error:
        msg = f"{of} are not valid JSON: {error}"
        raise ToolCallError("invalid_tool_call_arguments", msg, raw=text, tool=tool or None) from None
    if value is None or value == "":
        return {}, repairs
    if not isinstance(value, dict):
        msg = f"{of} must be a JSON object, found {kind_of(value)}"
        raise ToolCallError("invalid_tool_call_arguments", msg, raw=text, tool=tool or None)
    return value, repairs  # pyright: ignore[reportUnknownVariableType]  JSON's keys are strings


def objects_in(text: str) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """The complete objects that stand in a text, whatever is written around them, in order; those inside another are not listed."""
    from ferrule.values.encoding.loose import LooseReader

    found: list[tuple[dict[str, Any], tuple[str, ...]]] = []
    at = text.find("{")
    for _ in range(_MOST_CANDIDATES):
        if at < 0:
            break
        reader = LooseReader(text)
        try:
            value, end = reader.value(at, 0)
        except ValueError:
            end = at + 1
        else:
            if isinstance(value, dict):
                found.append((value, ("prose", *reader.repairs)))  # pyright: ignore[reportUnknownArgumentType]
        at = text.find("{", end)
    return found


def kind_of(value: object) -> str:
    """What JSON calls a value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, (list, tuple)) else "an object"


def _escaped_once_more(text: str, error: ValueError) -> tuple[Any, tuple[str, ...]]:
    # `{\"a\": 1}`: the inside of a JSON string whose quotes were lost.
    try:
        inside = json.loads(f'"{text}"')
    except ValueError:
        raise error from None
    value, repairs = read_json(inside)
    return value, ("doubly_encoded", *repairs)
