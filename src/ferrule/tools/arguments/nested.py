"""Values nested in arguments: iterators, and numbers that JSON Schema and Python read differently.

Several checks read the arguments before the function does, but an iterator yields its items only
once: so iterators are read into lists. Copies keep the recorded call unchanged, whatever a tool
does to its arguments.
"""

from __future__ import annotations

import math
import typing
from collections import abc
from dataclasses import Field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from ferrule.schema.explain import MOST_PROBLEMS, Path, Problem, dotted_path
from ferrule.schema.iterables import model_fields_of
from ferrule.schema.nodes import (
    Schema,
    SharedAlternatives,
    alternatives,
    is_object,
    is_sequence,
    item_schemas,
    property_schemas,
)
from ferrule.schema.words import describe_expected, shorten_json
from ferrule.tools.definition.parameters import Reread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from collections.abc import Set as AbstractSet


MODELS = frozenset({"model", "dataclass"})
"""The kinds of validators that may accept a NaN or an infinity."""
_DEEPEST = 200
_UNKNOWN = frozenset({Any, object, list, dict, tuple, set, frozenset})
_NOTHING_MORE = frozenset({"builtins", "itertools"})
"""The modules of classes that are iterators and nothing more."""


def copy_arguments(args: dict[str, Any], takes_items: Callable[[str], bool]) -> dict[str, Any]:
    """Copy the lists and dicts among the arguments, and read iterators into lists.

    Generators, `map` and the like are always read; any other iterator only if the argument's type
    `takes_items`.
    """
    copied: dict[str, Any] = {}
    try:
        for name, value in args.items():
            if _is_read(value, name, takes_items):
                copied[name] = Reread(value)
            else:
                copied[name] = _copied(value, name, takes_items)
    except RecursionError:  # nested deeper than any JSON text: the checks report it
        return args
    return copied


def _is_read(value: Any, name: str, takes_items: Callable[[str], bool]) -> TypeGuard[Iterator[Any]]:
    # A file or a cursor is more than an iterator: the function reads it, unless its parameter takes
    # a list.
    if not isinstance(value, abc.Iterator):
        return False
    return cast("Any", type)(value).__module__ in _NOTHING_MORE or takes_items(name)


def _copied(value: Any, name: str, takes_items: Callable[[str], bool]) -> Any:
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is dict:
        return {key: _copied(item, name, takes_items) for key, item in value.items()}
    if kind is list or _is_read(value, name, takes_items):
        return [_copied(item, name, takes_items) for item in value]
    return value


def iterate_again(items: Reread) -> Generator[Any]:
    """A generator over the items."""
    yield from items


# -- numbers


def fit_numbers(args: dict[str, Any], schema: Schema) -> tuple[dict[str, Any], list[Problem]]:
    """Read numbers as JSON Schema does, not as Python does.

    Integral floats become integers where only an integer fits (`7.0`; JSON Schema, 6.1.1).
    Booleans in the place of numbers are problems: pydantic would take `True` for 1. Returns new
    arguments and the problems.
    """
    if not _has_number(args):
        return args, []
    fitted = dict(args)
    problems: list[Problem] = []
    forms = SharedAlternatives(schema)
    # Each entry: the path, the new container, the value in it, and the schemas that it must fit.
    waiting: list[tuple[Path, Any, Any, list[Any]]] = []
    for name, value in args.items():
        schemas = property_schemas(alternatives(schema, schema), name)
        waiting.append(((name,), fitted, value, schemas))
    while waiting:
        path, container, value, schemas = waiting.pop()
        if len(path) > _DEEPEST or not _may_hold_number(value):
            continue
        spread, admitted = forms(schemas)
        if not any(map(is_object, spread)):
            continue
        if isinstance(value, bool):
            if _wants_number(admitted) and len(problems) < MOST_PROBLEMS:
                expected = describe_expected({"anyOf": spread}, schema)
                text = f"expected {expected}, got {shorten_json(value)}"
                problems.append((dotted_path(path), text))
        elif isinstance(value, float):
            if _wants_integer(admitted) and value.is_integer():
                container[path[-1]] = int(value)
        elif is_object(value):
            copied = dict(value)
            container[path[-1]] = copied
            for name, item in value.items():
                waiting.append(((*path, name), copied, item, property_schemas(spread, name)))
        else:
            items = list(value)
            if isinstance(value, list):  # a tuple or a set stays what it is
                container[path[-1]] = items
            # Reversed, because the last one is taken first: problems come in order.
            for i in reversed(range(len(items))):
                waiting.append(((*path, i), items, items[i], item_schemas(spread, i)))
    return fitted, problems


def _may_hold_number(value: Any) -> bool:
    return isinstance(value, (bool, float)) or is_object(value) or is_sequence(value)


def _wants_number(admitted: AbstractSet[str] | None) -> bool:
    """Whether types admit a number but no boolean; None for any type."""
    if admitted is None or "boolean" in admitted:
        return False
    return "integer" in admitted or "number" in admitted


def _wants_integer(admitted: AbstractSet[str] | None) -> bool:
    return admitted is not None and "integer" in admitted and "number" not in admitted


def _has_number(args: dict[str, Any]) -> bool:
    """Whether there is a boolean or a float anywhere in the arguments."""
    waiting: list[Any] = list(args.values())
    seen: set[int] = set()  # a value that Python code passes may contain itself
    while waiting:
        value = waiting.pop()
        if isinstance(value, (bool, float)):
            return True
        if isinstance(value, (str, int)) or id(value) in seen:
            continue
        if is_object(value):
            seen.add(id(value))
            waiting.extend(value.values())
        elif is_sequence(value):
            seen.add(id(value))
            waiting.extend(value)
    return False


# -- NaN and the infinities, in models


def find_non_finite(values: dict[str, Any]) -> list[Problem]:
    """A problem for each NaN or infinity in a field of a model that does not allow it.

    A field or a model allows it with `allow_inf_nan=True`. `values` are those that the caller
    passed; defaults of the function are not checked. Outside of models the validator refuses such
    floats; a model decides for itself, and pydantic's default accepts them.
    """
    problems: list[Problem] = []
    waiting: list[tuple[Path, Any, bool]] = []
    for name, value in values.items():
        waiting.append(((name,), value, True))
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
    return frozenset(name for name, field in fields.items() if _takes_any(field))


def _takes_any(annotation: Any) -> bool:
    """Whether a field, its metadata or its type allows any float, or leaves open what it holds."""
    if getattr(annotation, "allow_inf_nan", None):
        return True
    if any(annotation is kind for kind in _UNKNOWN):  # by identity: metadata may be anything
        return True
    parts = [
        getattr(annotation, "annotation", None),
        *getattr(annotation, "metadata", ()),
        *typing.get_args(annotation),
        *getattr(annotation, "__metadata__", ()),
    ]
    if isinstance(annotation, Field):
        parts.append(cast("Any", annotation).type)
    return any(_takes_any(part) for part in parts if part is not None)
