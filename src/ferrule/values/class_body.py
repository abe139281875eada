"""What the body of a signature's class may say.  (Floor 2.)"""

from __future__ import annotations

import keyword
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ferrule.errors import SignatureError

_OF_MODELS = frozenset(name for name in dir(BaseModel) if not name.startswith("_"))
OUTDATED = frozenset(name for name in _OF_MODELS if not name.startswith("model_"))
"""Pydantic's old names (`json`, `copy`, `schema`, ...): a signature has no use for them, and fields are often called so."""


class Absent:
    """Hides an inherited attribute."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        raise AttributeError


def prepare(name: str, namespace: dict[str, Any]) -> None:
    """Check the names in a class body, and let fields without an annotation be text."""
    annotations = _annotations(namespace)
    for field, value in list(namespace.items()):
        if isinstance(value, FieldInfo):
            refuse_name(name, field)
            if field not in annotations:
                annotations[field] = str
    for field in annotations:
        if not field.startswith("_") and field != "model_config":
            refuse_name(name, field)


def _annotations(namespace: dict[str, Any]) -> dict[str, Any]:
    if "__annotations__" not in namespace:
        annotate = namespace.get("__annotate_func__") or namespace.get("__annotate__")
        if annotate is not None:  # Python 3.14 keeps a function that makes them
            import annotationlib  # pyright: ignore[reportMissingImports]  # ty: not in older Pythons

            found = annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF)  # pyright: ignore
            if all(name in found for name, value in namespace.items() if isinstance(value, FieldInfo)):  # pyright: ignore
                return dict(found)  # pyright: ignore
            namespace["__annotations__"] = dict(found)  # pyright: ignore
        else:
            namespace["__annotations__"] = {}
    return namespace["__annotations__"]


def refuse_name(signature: str, name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        why = "a field is called like a Python variable"
    elif name.startswith("_"):
        why = "names of fields do not begin with an underscore"
    elif name in _OF_MODELS - OUTDATED:
        why = "the name is kept for pydantic's models"
    else:
        return
    msg = f"`{signature}` cannot have a field {name!r}: {why}."
    raise SignatureError(msg)
