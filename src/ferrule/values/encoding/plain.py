"""The plain types: `str`, `int`, `float`, `bool`.

Most parameters and outputs have one of these types, and most values match exactly. Such a value needs no validator: pydantic's first
validator costs a process 20 ms. All other values go to pydantic, which coerces and explains.
"""

from __future__ import annotations

from typing import Any

TYPE_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
"""The JSON Schema name of each plain type."""


def is_plain(annotation: Any) -> bool:
    """Whether a type is plain."""
    return isinstance(annotation, type) and annotation in TYPE_NAMES


def fits(kind: Any, value: Any) -> bool:
    """Whether a value has exactly that plain type and a JSON form. Otherwise pydantic decides."""
    return type(value) is kind and (kind is not float or value - value == 0.0)
