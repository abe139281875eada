"""Numbers in models that are none in JSON: NaN and the infinities.

In: values that pydantic took. Out: where one of them holds such a float in a model's field. What stands outside of models, or in
dataclasses without a configuration of their own, is refused by the validator of the arguments; a model decides for itself, and pydantic's
default is to take them.
"""

from __future__ import annotations

import math
import typing
from dataclasses import Field
from functools import lru_cache
from typing import Any

from ferrule.tools.arguments.iterators import fields_of_model
from ferrule.tools.arguments.problems import Problem, dotted_path
from ferrule.values.schema.nodes import is_object
from ferrule.values.schema.words import shorten_json

MODELS = frozenset({"model", "dataclass"})
"""The kinds of validators that may take such a float."""
_UNKNOWN = frozenset({Any, object, list, dict, tuple, set, frozenset})


def find_non_finite(values: dict[str, Any]) -> list[Problem]:
    """A problem for each float in a model that is no finite number, where neither the field nor the model says `allow_inf_nan=True`.

    `values` are those that were given: a default of the function's own is its own business.
    """
    found: list[Problem] = []
    waiting: list[tuple[tuple[str | int, ...], Any, bool]] = [((name,), value, True) for name, value in values.items()]
    seen: set[int] = set()
    for path, value, is_free in waiting:
        if isinstance(value, float):
            if not is_free and not math.isfinite(value):
                found.append((dotted_path(path), f"{shorten_json(value)} is no finite number"))
        elif id(value) not in seen:
            seen.add(id(value))
            waiting.extend(((*path, place), each, free) for place, each, free in _inside(value, is_free))
    return found


def _inside(value: Any, is_free: bool) -> list[tuple[str | int, Any, bool]]:
    if is_object(value):
        return [(name, each, is_free) for name, each in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(i, each, is_free) for i, each in enumerate(typing.cast("list[Any]", value))]
    kind = typing.cast("Any", type(value))
    free, chosen = _free(kind), getattr(value, "__pydantic_fields_set__", None)
    return [
        (_name(field, name), each, name in free)
        for name, field in fields_of_model(value).items()
        # What nobody gave, a default of the model's own, is nobody's mistake.
        if (each := getattr(value, name, None)) is not None
        and (chosen is None or name in chosen)
        and each is not getattr(field, "default", None)
    ]


def _name(field: Any, name: str) -> str:
    alias = getattr(field, "validation_alias", None)
    return alias if isinstance(alias, str) else name


@lru_cache(maxsize=256)
def _free(kind: Any) -> frozenset[str]:
    """The fields of a model or a dataclass that may hold any float."""
    fields: dict[str, Any] = getattr(kind, "__pydantic_fields__", None) or getattr(kind, "__dataclass_fields__", {})
    config: Any = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
    if config.get("allow_inf_nan"):
        return frozenset(fields)
    return frozenset(name for name, each in fields.items() if _takes_any(each))


def _takes_any(said: Any) -> bool:
    """Whether a field, a piece of its metadata, or its type says so, or says nothing of what it holds."""
    if getattr(said, "allow_inf_nan", None) or any(said is each for each in _UNKNOWN):  # by identity: metadata may be anything
        return True
    inside = [getattr(said, "annotation", None), *getattr(said, "metadata", ()), *typing.get_args(said), *getattr(said, "__metadata__", ())]
    if isinstance(said, Field):
        inside.append(typing.cast("Any", said).type)
    return any(_takes_any(each) for each in inside if each is not None)
