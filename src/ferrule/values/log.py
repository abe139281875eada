"""`Log`: an append-only sequence, the type of trajectories and conversations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar, cast, overload

T = TypeVar("T")


class Log(Sequence[T], Generic[T]):
    """An immutable sequence with cheap appending: a view of the first items of a shared list.

    `then` returns a longer view and leaves this one unchanged. If this view ends where the shared
    list ends, the list grows in place; otherwise another view was extended first, and the list is
    copied (a fork). No lock is needed: if two threads extend one view at once, each checks whether
    the list grew by its own items only, and otherwise copies.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = list(items)
        self._length = len(self._items)

    def then(self, *items: T) -> Self:
        """A view of these items followed by `items`."""
        shared, length = self._items, self._length
        if len(shared) == length:
            shared.extend(items)
            end = length + len(items)
            # If it is longer, another thread appended, too, before these items or after them.
            if len(shared) == end:
                return self._view(end)
        longer = self._view(length)
        longer._fork(items)  # noqa: SLF001  another object of this class
        return longer

    def _view(self, length: int) -> Self:
        view = object.__new__(type(self))
        view._items, view._length = self._items, length
        return view

    def _fork(self, items: tuple[T, ...]) -> None:
        """Continue with a separate list."""
        self._items = [*self._items[: self._length], *items]
        self._length = len(self._items)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return self._items[: self._length][index]
        if not -self._length <= index < self._length:
            raise IndexError(f"index {index} is outside a log of {self._length}")
        return self._items[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[T]:
        items = self._items
        return (items[i] for i in range(self._length))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return False
        return list(self) == list(cast("Sequence[Any]", other))

    # Compared by content, and views of one list differ.
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (list(self),))
