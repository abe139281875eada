"""The plain types: text, whole number, number, boolean.

Most parameters and most outputs are of one of them, and most values are of exactly that type. Such a value needs no validator, and such a
type's JSON Schema is one word; so neither is asked of pydantic, whose first validator alone costs a process 20 ms (performance.md, F2).
Every other value still goes to pydantic, which coerces and explains.
"""

from __future__ import annotations

from typing import Any

TYPE_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
"""Each plain type by its name in JSON Schema."""


def is_plain(annotation: Any) -> bool:
    """Whether values of that type are plain."""
    return isinstance(annotation, type) and annotation in TYPE_NAMES


def fits(kind: Any, value: Any) -> bool:
    """Whether a value is of exactly that plain type, and has a JSON form: False says no more than "ask pydantic"."""
    return type(value) is kind and (kind is not float or value - value == 0.0)
