"""What is known of models, tools and programs: found once for each, as long as it lives."""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from weakref import ref

V = TypeVar("V")
_MOST = 1000
"""At most this many values are kept, since those of objects that are gone stay too. Then all are dropped, and found again when needed."""


class Known(Generic[V]):
    """Values by objects, which may be unhashable or equal to others, and are not kept alive."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Any, V]] = {}

    def get(self, of: Any) -> V | None:
        """The value of this very object."""
        found = self._values.get(id(of))
        return found[1] if found is not None and found[0]() is of else None

    def put(self, of: Any, value: V) -> V:
        """Set the value of an object, if it can be known again; returns the value."""
        try:
            found = ref(of)
        except TypeError:  # without weak references
            return value
        if len(self._values) >= _MOST:
            self._values.clear()
        self._values[id(of)] = found, value
        return value
