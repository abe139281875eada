"""An argument as it is shown: to a person, in the journal, to who watches.

In: a value that a function is to be called with. Out: the same as JSON, equal in every process.
"""

# Any Python value passes here: nothing is known of what it holds.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ferrule.values.encoding.encode import json_text, jsonable, object_text

_DEEPEST = 60
_SCALARS = frozenset({int, str, bool, type(None)})


def json_view(value: Any, depth: int = 0) -> Any:
    """A value as JSON. Sets are sorted: their order differs from process to process, and what is shown is compared across them."""
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _SCALARS or (kind is float and value - value == 0.0):
        return value
    if depth > _DEEPEST:
        return jsonable(value)  # which cuts what is too deep, or contains itself
    if kind is list or kind is tuple:
        if _SCALARS.issuperset(map(type, value)):
            return list(value)
        return [json_view(each, depth + 1) for each in value]
    if kind is dict:
        return {name if isinstance(name, str) else json_text(name).strip('"'): json_view(each, depth + 1) for name, each in value.items()}
    if kind is set or kind is frozenset:
        return sorted((json_view(each, depth + 1) for each in value), key=json_text)
    if isinstance(value, Iterator):  # a file, say: to show what is in it would be to read it
        return object_text(value)
    return jsonable(value)
