"""`PartlyCompared`: a struct of which some fields stay out of equality, hash and `repr`.

The values of ferrule are structs of msgspec, which compare and show all fields. A few values carry
something that is not part of what they say: who decided, when an event was sent, a secret.
"""

from __future__ import annotations

from typing import Any, ClassVar


class PartlyCompared:
    """A mixin for a `Struct`, listed before it: `class Answer(PartlyCompared, Struct)`.

    It goes before `Struct` because Python takes the first `__eq__` that it finds.
    """

    __slots__ = ()

    _not_compared: ClassVar[frozenset[str]] = frozenset()
    """The fields that equality and hash ignore."""
    _not_shown: ClassVar[frozenset[str]] = frozenset()
    """The fields that `repr` leaves out."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name in _fields(self)
            if name not in self._not_compared
        )

    def __hash__(self) -> int:
        if not _config(self).frozen:
            raise TypeError(f"unhashable type: {type(self).__name__!r}")
        compared = (name for name in _fields(self) if name not in self._not_compared)
        return hash(tuple(getattr(self, name) for name in compared))

    def __repr__(self) -> str:
        fields = (
            f"{name}={getattr(self, name)!r}"
            for name in _fields(self)
            if name not in self._not_shown
        )
        return f"{type(self).__qualname__}({', '.join(fields)})"


def _fields(struct: Any) -> tuple[str, ...]:
    return struct.__struct_fields__


def _config(struct: Any) -> Any:
    return struct.__struct_config__
