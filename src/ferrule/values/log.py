"""An append-only sequence whose views share one list, so that appending costs the same at any length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import is_
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class Log(Sequence[T], Generic[T]):
    """A view of the first `len(self)` items of a shared list.

    `then` returns a longer view and leaves this one unchanged. The shared list grows in place if this view ends at its end; otherwise
    another view was extended first, and the list is copied (a fork). No lock is needed: of two threads that extend one view at once, each
    checks whether its own items follow the view's end, and the other one copies.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = list(items)
        self._length = len(self._items)

    def then(self, *items: T) -> Self:
        """A view of these items followed by `items`."""
        shared, length = self._items, self._length
        end = length + len(items)
        longer = self._view()
        if len(shared) == length:
            shared.extend(items)
            # By identity: another thread may have appended first.
            if all(map(is_, items, shared[length:end])):
                longer._length = end  # noqa: SLF001  another object of this class
                return longer
        longer._fork(items)  # noqa: SLF001
        return longer

    def _view(self) -> Self:
        view = object.__new__(type(self))
        view._items, view._length = self._items, self._length
        return view

    def _fork(self, items: tuple[T, ...]) -> None:
        """Continue with a list of its own."""
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
            msg = f"index {index} is outside a log of {self._length}"
            raise IndexError(msg)
        return self._items[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[T]:
        items = self._items
        return (items[i] for i in range(self._length))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str) and list(self) == list(other)  # pyright: ignore[reportUnknownArgumentType]

    __hash__ = None  # pyright: ignore[reportAssignmentType]  compared by content, and views of one list differ

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (list(self),))
