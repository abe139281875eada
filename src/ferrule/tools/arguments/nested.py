"""Values nested in arguments: iterators, and numbers that JSON Schema and Python read differently.

Several checks read the arguments before the function does, but an iterator yields its items only
once: so iterators are read into lists. Copies keep the recorded call unchanged, whatever a tool
does to its arguments.
"""

from __future__ import annotations

from collections import abc
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from ferrule.schema.explain import MOST_PROBLEMS, Path, Problem, dotted_path
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


_DEEPEST = 200
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
