"""Where things are next in a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Ahead:
    """Searches forwards in a text, and remembers what it found.

    No stretch of the text is searched twice for the same thing, as long as the questions go
    forwards, too. So a reader may ask at every bracket where it closes, and its time still grows as
    the text does.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._known: dict[str, tuple[int, int]] = {}
        """For each thing, from where it was searched, and where it is: -1 if nowhere."""

    def find(self, literal: str, offset: int) -> int:
        """As `str.find`."""
        return self.search(literal, offset, lambda start: self._text.find(literal, start))

    def search(self, thing: str, offset: int, search: Callable[[int], int]) -> int:
        """The next position of a thing, which `search` finds from an offset; -1 for none.

        A position must be the next one from all offsets between the one that was asked and itself.
        """
        if thing in self._known:
            start, position = self._known[thing]
            if start <= offset and (position < 0 or offset <= position):
                return position
        position = search(offset)
        self._known[thing] = (offset, position)
        return position
