"""The programs inside a program, by path: `answer`, `agents[0].react`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

P = TypeVar("P")


def walk_submodules(root: P, kind: type[P]) -> Iterator[tuple[str, P]]:
    """The program itself (`self`) and every `kind` inside it, each once, depth first.

    Those that only attributes with a leading underscore lead to come last: saved states use these paths, so a program that has a public
    path must get that one, whatever private attributes hold it too.
    """

    def is_walked(value: Any) -> bool:
        return isinstance(value, (kind, list, tuple, dict))

    seen: set[int] = set()
    later: list[tuple[str, Any]] = [("self", root)]
    while later:
        stack, later = later[::-1], []
        while stack:
            name, found = stack.pop()
            if id(found) in seen:
                continue
            seen.add(id(found))  # containers too: a cache may hold itself
            if not isinstance(found, kind):
                stack += [(f"{name}[{key!r}]", value) for key, value in _elements(found)[::-1] if is_walked(value)]
                continue
            yield name, found
            prefix = "" if found is root else f"{name}."
            attributes = tuple(vars(found).items())[::-1]
            stack += [(f"{prefix}{key}", value) for key, value in attributes if not key.startswith("_")]
            later += [(f"{prefix}{key}", value) for key, value in attributes[::-1] if key.startswith("_")]


def _elements(found: Any) -> Sequence[tuple[Any, Any]]:
    # Copies: another thread may be filling a cache.
    if isinstance(found, dict):
        return tuple(cast("dict[Any, Any]", found).items())
    return tuple(enumerate(cast("list[Any]", found))) if isinstance(found, (list, tuple)) else ()
