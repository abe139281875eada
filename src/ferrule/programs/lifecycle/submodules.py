"""The programs inside a program, by what they are called: `answer`, `agents[0].react`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

P = TypeVar("P")


def parts(root: P, kind: type[P]) -> Iterator[tuple[str, P]]:
    """The program itself (`self`) and every one of its `kind` inside it, each once, depth first.

    Those that only attributes with a leading underscore lead to come last. So a program with a public path goes by that path, whatever
    private attributes hold it too: saved states use these names.
    """

    def is_walked(value: Any) -> bool:
        return isinstance(value, (kind, list, tuple, dict))

    seen: set[int] = set()
    begin: list[tuple[str, Any]] = [("self", root)]
    while begin:
        waiting, begin = begin[::-1], []
        while waiting:
            name, found = waiting.pop()
            if id(found) in seen:
                continue
            seen.add(id(found))  # containers too: a cache may hold itself
            if not isinstance(found, kind):
                waiting += [(f"{name}[{key!r}]", value) for key, value in _elements(found)[::-1] if is_walked(value)]
                continue
            yield name, found
            prefix = "" if found is root else f"{name}."
            attributes = tuple(vars(found).items())[::-1]
            waiting += [(f"{prefix}{key}", value) for key, value in attributes if not key.startswith("_")]
            begin += [(f"{prefix}{key}", value) for key, value in attributes[::-1] if key.startswith("_")]


def _elements(found: Any) -> Sequence[tuple[Any, Any]]:
    # Copied before they are walked through: another thread may be filling a cache.
    if isinstance(found, dict):
        return tuple(cast("dict[Any, Any]", found).items())
    return tuple(enumerate(cast("list[Any]", found))) if isinstance(found, (list, tuple)) else ()
