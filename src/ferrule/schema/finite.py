"""NaN and the infinities inside values. JSON has neither, so no store keeps them as numbers."""

from __future__ import annotations

import math
import typing
from dataclasses import Field
from functools import lru_cache
from typing import Any, cast

from ferrule.schema.explain import Path, Problem, dotted_path
from ferrule.schema.iterables import model_fields_of
from ferrule.schema.nodes import is_object
from ferrule.schema.words import shorten_json

MODELS = frozenset({"model", "dataclass"})
"""The kinds of validators that may accept a NaN or an infinity."""
_UNKNOWN = frozenset({Any, object, list, dict, tuple, set, frozenset})
_Waiting = list[tuple[Path, Any, bool]]
"""Values to look at: the path, the value, and whether it may be any float."""


def allows_any_float(annotation: Any) -> bool:
    """Whether a type allows NaN and the infinities by name, with `allow_inf_nan=True`."""
    return _takes_any(annotation, frozenset())


def non_finite_in(value: Any) -> list[Problem]:
    """A problem for each NaN or infinity in a value, except where a model inside allows it."""
    return _problems([((), value, False)])


def find_non_finite(values: dict[str, Any]) -> list[Problem]:
    """A problem for each NaN or infinity in a field of a model that does not allow it.

    A field or a model allows it with `allow_inf_nan=True`. `values` are those that the caller
    passed; defaults of the function are not checked. Outside of models the validator refuses such
    floats; a model decides for itself, and pydantic's default accepts them.
    """
    return _problems([((name,), value, True) for name, value in values.items()])


def _problems(waiting: _Waiting) -> list[Problem]:
    problems: list[Problem] = []
    seen: set[int] = set()
    for path, value, is_allowed in waiting:  # grows meanwhile
        if isinstance(value, float):
            if not is_allowed and not math.isfinite(value):
                text = f"{shorten_json(value)} is not a finite number"
                problems.append((dotted_path(path), text))
        elif id(value) not in seen:
            seen.add(id(value))
            for step, child, is_child_allowed in _children_of(value, is_allowed=is_allowed):
                waiting.append(((*path, step), child, is_child_allowed))
    return problems


def _children_of(value: Any, *, is_allowed: bool) -> list[tuple[str | int, Any, bool]]:
    """The values inside a value, each with its step and whether it may be any float."""
    if is_object(value):
        return [(name, item, is_allowed) for name, item in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(i, item, is_allowed) for i, item in enumerate(cast("list[Any]", value))]
    kind = cast("Any", type(value))
    fields_allowed = _fields_of_any_float(kind)
    fields_set = getattr(value, "__pydantic_fields_set__", None)
    children: list[tuple[str | int, Any, bool]] = []
    for name, field in model_fields_of(kind).items():
        item = getattr(value, name, None)
        is_set = fields_set is None or name in fields_set
        # A default of the model is not the caller's mistake.
        if item is not None and is_set and item is not getattr(field, "default", None):
            alias = getattr(field, "validation_alias", None)
            shown_name = alias if isinstance(alias, str) else name
            children.append((shown_name, item, name in fields_allowed))
    return children


@lru_cache(maxsize=256)
def _fields_of_any_float(kind: Any) -> frozenset[str]:
    """The fields of a model or dataclass that may hold any float."""
    fields = model_fields_of(kind)
    config: Any = (
        getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
    )
    if config.get("allow_inf_nan"):
        return frozenset(fields)
    return frozenset(name for name, field in fields.items() if _takes_any(field, _UNKNOWN))


def _takes_any(annotation: Any, unknown: frozenset[Any]) -> bool:
    """Whether a field, its metadata or its type allows any float.

    `unknown` are the types that leave open what they hold, and so allow it.
    """
    if getattr(annotation, "allow_inf_nan", None):
        return True
    if any(annotation is kind for kind in unknown):  # by identity: metadata may be anything
        return True
    parts = [
        getattr(annotation, "annotation", None),
        *getattr(annotation, "metadata", ()),
        *typing.get_args(annotation),
        *getattr(annotation, "__metadata__", ()),
    ]
    if isinstance(annotation, Field):
        parts.append(cast("Any", annotation).type)
    return any(_takes_any(part, unknown) for part in parts if part is not None)
