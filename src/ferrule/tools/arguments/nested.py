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


MODELS = frozenset({"model", "dataclass"})
"""The kinds of validators that may accept a NaN or an infinity."""
_DEEPEST = 200
_UNKNOWN = frozenset({Any, object, list, dict, tuple, set, frozenset})
_SCALARS = frozenset({int, str, bool, float, type(None)})
_CONTAINERS = frozenset({list, dict})
_NOTHING_MORE = frozenset({"builtins", "itertools"})
"""The modules of classes that are iterators and nothing more."""


def copy_arguments(args: Any, takes_items: Callable[[str], bool]) -> Any:
    """Copy the lists and dicts among the arguments, and read iterators into lists.

    Generators, `map` and the like are always read; any other iterator only if the argument's type
    `takes_items`.
    """
    if not is_object(args):
        return args
    copied = dict(args)
    try:
        for name, value in args.items():
            kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
            if kind is list and _SCALARS.issuperset(map(type, value)):
                copied[name] = list(value)
            elif kind not in _SCALARS:
                # A list or a dict is not an iterator, and `isinstance` with an abstract class costs
                # a tenth of a checked call.
                is_read = kind not in _CONTAINERS and _is_read(value, name, takes_items)
                copied[name] = Reread(value) if is_read else _copied(value, name, takes_items)
    except RecursionError:  # nested deeper than any JSON text: the checks report it
        return args
    return copied


def _is_read(value: Any, name: str, takes_items: Callable[[str], bool]) -> TypeGuard[Iterator[Any]]:
    # A file or a cursor is more than an iterator: the function reads it, unless its parameter takes
    # a list.
    return isinstance(value, abc.Iterator) and (
        cast("Any", type)(value).__module__ in _NOTHING_MORE or takes_items(name)
    )


def _copied(value: Any, name: str, takes_items: Callable[[str], bool]) -> Any:
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _SCALARS:
        return value
    if kind is dict:
        return {key: _copied(each, name, takes_items) for key, each in value.items()}
    if kind is list:
        return (
            list(value)
            if _SCALARS.issuperset(map(type, value))
            else [_copied(each, name, takes_items) for each in value]
        )
    return (
        [_copied(each, name, takes_items) for each in value]
        if _is_read(value, name, takes_items)
        else value
    )


def iterate_again(items: Reread) -> Generator[Any]:
    """A generator over the items."""
    yield from items


# -- numbers
# --------------------------------------------------------------------------------------------------------


def fit_numbers(args: dict[str, Any], schema: Schema) -> tuple[dict[str, Any], list[Problem]]:
    """Make integral floats integers where only an integer fits (`7.0`; JSON Schema, 6.1.1), and report booleans in the place of numbers.

    pydantic would take `True` for 1. Returns new arguments and the problems.
    """
    if not _has_number(args):
        return args, []
    made = dict(args)
    problems: list[Problem] = []
    waiting: list[tuple[Path, Any, Any, list[Any]]] = [
        ((name,), made, value, property_schemas(alternatives(schema, schema), name))
        for name, value in args.items()
    ]
    forms = SharedAlternatives(schema)
    while waiting:
        path, owner, value, schemas = waiting.pop()
        if len(path) > _DEEPEST or not (
            isinstance(value, (bool, float)) or is_object(value) or is_sequence(value)
        ):
            continue
        spread, admitted = forms(schemas)
        if not any(map(is_object, spread)):
            continue
        if isinstance(value, bool):
            wants_number = (
                admitted is not None
                and "boolean" not in admitted
                and not admitted.isdisjoint({"integer", "number"})
            )
            if wants_number and len(problems) < MOST_PROBLEMS:
                expected = describe_expected({"anyOf": spread}, schema)
                problems.append(
                    (dotted_path(path), f"expected {expected}, got {shorten_json(value)}"),
                )
        elif isinstance(value, float):
            if (
                admitted is not None
                and "integer" in admitted
                and "number" not in admitted
                and value.is_integer()
            ):
                owner[path[-1]] = int(value)
        elif is_object(value):
            inside = dict(value)
            owner[path[-1]] = inside
            waiting.extend(
                ((*path, name), inside, each, property_schemas(spread, name))
                for name, each in value.items()
            )
        else:
            items = list(value)
            if isinstance(value, list):
                owner[path[-1]] = items
            waiting.extend(
                ((*path, i), items, items[i], item_schemas(spread, i))
                for i in reversed(range(len(items)))
            )
    return made, problems


def _has_number(args: dict[str, Any]) -> bool:
    """Whether there is a boolean or a float anywhere in the arguments."""
    waiting: list[Any] = list(args.values())
    seen: set[int] = set()  # a value that Python code passes may contain itself
    while waiting:
        each = waiting.pop()
        if isinstance(each, (bool, float)):
            return True
        if (is_object(each) or is_sequence(each)) and id(each) not in seen:
            seen.add(id(each))
            waiting.extend(each.values() if is_object(each) else each)
    return False


# -- NaN and the infinities, in models
# ------------------------------------------------------------------------------


def find_non_finite(values: dict[str, Any]) -> list[Problem]:
    """A problem for each NaN or infinity in a field of a model, unless the field or the model sets `allow_inf_nan=True`.

    `values` are those that the caller passed; defaults of the function are not checked. Outside of
    models the validator refuses such floats; a model decides for itself, and pydantic's default
    accepts them.
    """
    found: list[Problem] = []
    waiting: list[tuple[Path, Any, bool]] = [
        ((name,), value, True) for name, value in values.items()
    ]
    seen: set[int] = set()
    for path, value, is_free in waiting:
        if isinstance(value, float):
            if not is_free and not math.isfinite(value):
                found.append((dotted_path(path), f"{shorten_json(value)} is not a finite number"))
        elif id(value) not in seen:
            seen.add(id(value))
            waiting.extend(
                ((*path, place), each, free) for place, each, free in _children_of(value, is_free)
            )
    return found


def _children_of(value: Any, is_free: bool) -> list[tuple[str | int, Any, bool]]:
    if is_object(value):
        return [(name, each, is_free) for name, each in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(i, each, is_free) for i, each in enumerate(cast("list[Any]", value))]
    kind = cast("Any", type(value))
    free, chosen = _free(kind), getattr(value, "__pydantic_fields_set__", None)
    return [
        (_name(field, name), each, name in free)
        for name, field in model_fields_of(kind).items()
        # A default of the model is not the caller's mistake.
        if (each := getattr(value, name, None)) is not None
        and (chosen is None or name in chosen)
        and each is not getattr(field, "default", None)
    ]


def _name(field: Any, name: str) -> str:
    alias = getattr(field, "validation_alias", None)
    return alias if isinstance(alias, str) else name


@lru_cache(maxsize=256)
def _free(kind: Any) -> frozenset[str]:
    """The fields of a model or dataclass that may hold any float."""
    fields = model_fields_of(kind)
    config: Any = (
        getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
    )
    if config.get("allow_inf_nan"):
        return frozenset(fields)
    return frozenset(name for name, each in fields.items() if _takes_any(each))


def _takes_any(said: Any) -> bool:
    """Whether a field, its metadata or its type allows any float, or leaves open what it holds."""
    if getattr(said, "allow_inf_nan", None) or any(
        said is each for each in _UNKNOWN
    ):  # by identity: metadata may be anything
        return True
    inside = [
        getattr(said, "annotation", None),
        *getattr(said, "metadata", ()),
        *typing.get_args(said),
        *getattr(said, "__metadata__", ()),
    ]
    if isinstance(said, Field):
        inside.append(cast("Any", said).type)
    return any(_takes_any(each) for each in inside if each is not None)
