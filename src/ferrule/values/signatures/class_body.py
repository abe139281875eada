"""What the body of a signature's class may say."""

from __future__ import annotations

import inspect
import keyword
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ferrule.errors import SignatureError

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_MODELS = frozenset(name for name in dir(BaseModel) if not name.startswith("_"))
OUTDATED = frozenset(name for name in _OF_MODELS if not name.startswith("model_"))
"""Pydantic's old names (`json`, `copy`, `schema`, ...): a signature has no use for them, and fields are often called so."""


class Absent:
    """Hides an inherited attribute."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        raise AttributeError


def prepare(signature: str, namespace: dict[str, Any], *, taken: frozenset[str]) -> None:
    """Check the names in a class body, and let fields without an annotation be text. `taken` are names of a signature's own."""
    annotations = _annotations(namespace)
    fields = [name for name, value in namespace.items() if isinstance(value, FieldInfo)]
    annotated = [name for name in annotations if not name.startswith("_") and name != "model_config"]
    for name in dict.fromkeys([*fields, *annotated]):
        refuse_name(signature, name, taken)
    bare = [name for name in fields if name not in annotations]
    if bare:
        namespace["__annotations__"] = {**annotations, **dict.fromkeys(bare, str)}


def _annotations(namespace: dict[str, Any]) -> dict[str, Any]:
    annotate = namespace.get("__annotate_func__") or namespace.get("__annotate__")
    if "__annotations__" in namespace or annotate is None:
        return namespace.get("__annotations__") or {}
    return _annotated_late(annotate)


def _annotated_late(annotate: Any) -> dict[str, Any]:
    """What Python 3.14 keeps a function for."""
    annotationlib: Any = import_module("annotationlib")
    return dict(annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF))


def refuse_name(signature: str, name: str, taken: frozenset[str]) -> None:
    """Raise `SignatureError` for a name that no field can have."""
    if not name.isidentifier() or keyword.iskeyword(name):
        why = "a field is called like a Python variable"
    elif name.startswith("_"):
        why = "names of fields do not begin with an underscore"
    elif name in _OF_MODELS - OUTDATED:
        why = "the name is kept for pydantic's models"
    elif name in taken:
        why = "a signature has something of its own by that name"
    else:
        return
    msg = f"`{signature}` cannot have a field {name!r}: {why}."
    raise SignatureError(msg)


def written(bases: tuple[type, ...], namespace: Mapping[str, Any]) -> str | None:
    """The instructions of a class body: its docstring, or what it inherits."""
    written = namespace.get("__doc__")
    if isinstance(written, str):
        return inspect.cleandoc(written)
    return next((said for base in bases if (said := getattr(base, "__instructions__", None)) is not None), None)
