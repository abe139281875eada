"""Display values to people: as a table in a notebook, and in rich's output.

A class lists its rows with `display_rows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST = 5_000
"""The most characters shown of one value: a page must be readable, and a notebook stores them."""


class Displayed:
    """Base class of values that notebooks and rich can display. Imports neither."""

    __slots__ = ()

    def display_rows(self) -> Iterable[tuple[str, Any]]:
        """The names and values to display, in order. Must not block or have side effects."""
        raise NotImplementedError

    def __rich_repr__(self) -> Iterable[tuple[str, Any]]:
        return self.display_rows()

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th{_STYLE}>{_text(name)}</th><td{_STYLE}>{_cell(value)}</td></tr>"
            for name, value in self.display_rows()
        )
        heading = f"<tr><th{_STYLE} colspan='2'>{_text(type(self).__name__)}</th></tr>"
        return f"<table>{heading}{rows}</table>"


_STYLE = " style='text-align:left;vertical-align:top;white-space:pre-wrap'"


def _cell(value: Any) -> str:
    if isinstance(value, Displayed):
        return value._repr_html_()  # pyright: ignore[reportPrivateUsage]  the name is Jupyter's
    return _text(value if isinstance(value, str) else shown(value, _LONGEST))


def _text(text: str) -> str:
    from html import escape  # late: its table of entities takes longer to import than this module

    if len(text) <= _LONGEST:
        cut = text
    else:
        cut = f"{text[:_LONGEST]}… ({len(text)} characters)"
    return escape(cut.encode(errors="replace").decode())  # a page cannot hold a lone surrogate


class Concealed(str):
    """A secret string: it is sent unchanged, but its `repr` does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"
