"""`Known`: facts about models, tools and programs, worked out once for each of them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from weakref import ref

V = TypeVar("V")
_NOTHING = object()
_MOST = 1000
"""The most values that are kept: those of objects that are gone stay, too. Then all are dropped,
and made again when they are needed."""


class Known(Generic[V]):
    """Values by the identity of objects, which may be unhashable or equal to others.

    The objects are not kept alive. An id may be given to another object later, so that a weak
    reference says whose value it is.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[Any, V]] = {}

    def get(self, of: Any) -> V | None:
        """The value of this very object; None if there is none."""
        reference, value = self._values.get(id(of), (_no_object, None))
        if reference() is of:
            return value
        return None

    def put(self, of: Any, value: V) -> V:
        """Keep the value of an object, unless it takes no weak references; returns the value."""
        try:
            reference = ref(of)
        except TypeError:
            return value
        if len(self._values) >= _MOST:
            self._values.clear()
        self._values[id(of)] = reference, value
        return value


def _no_object() -> object:
    return _NOTHING
