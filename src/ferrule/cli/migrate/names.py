"""The names of DSPy and udspy, with what the facades make of them.

They are in tables of docs/coming-from, of which a test tries each row: name by name on the page of
the library, and for programs of any kind on the page of differences. A wheel has a copy of the
pages beside this module (pyproject.toml); a checkout reads the pages themselves.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

Library = Literal["dspy", "udspy"]
LIBRARIES: tuple[Library, ...] = ("dspy", "udspy")
Status = Literal["works", "differs", "missing"]

_ROW = re.compile(r"\| `([\w.]+)` \| (same|facade|replacement) \| `([\w.]+)` \|(.*)\|")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ITEM = re.compile(r"^- (.*(?:\n  .*)*)", re.MULTILINE)
_CODE = re.compile(r"`([^`]*)`")
_CELL = re.compile(r"(?<!\\)\|")
_ESCAPE = re.compile(r"\\([_|*\[\]<>`])")
FACADES: dict[Library, str] = {"dspy": "DSPy: the facade", "udspy": "udspy: the facade"}
"""The headings of the page of differences."""
_NAME = re.compile(r"\w+")


class Name(Struct, frozen=True):
    """A public name of a library."""

    name: str
    status: Status
    """`missing`: the facade does not have it."""
    core: str
    """Its counterpart in `ferrule`."""
    note: str = ""
    """How it differs, or what to do instead."""


class Names(Struct, frozen=True):
    """What the pages say about a library."""

    by_name: Mapping[str, Name]
    not_called: Mapping[str, str]
    """Methods of adapters that ferrule does not call, with what to do instead."""
    general: tuple[str, ...]
    """What differs in programs of any kind: what the library does, and what the facade does."""


@cache
def names_of(library: Library) -> Names:
    """The names of a library, and what differs."""
    text = _page(library)
    by_name = {name.name: name for name in _rows(text)}
    return Names(by_name, dict(_methods(text)), tuple(_differences(library)))


def _page(name: str) -> str:
    here = Path(__file__)
    packed = here.with_name(f"{name}.md")
    in_checkout = here.parents[4] / "docs" / "coming-from" / f"{name}.md"
    page = packed if packed.is_file() else in_checkout
    return page.read_text(encoding="utf-8")


def _differences(library: Library) -> Iterator[str]:
    for line in _section(_page("differences"), f"## {FACADES[library]}").splitlines():
        cells = [_unescaped(_plain(cell)) for cell in _CELL.split(line)[1:-1]]
        if len(cells) == 3 and cells[0] not in {"there", "---"}:  # what it does, what we do, why
            yield f"{cells[0]}: {cells[1]}"


def _rows(text: str) -> Iterator[Name]:
    above = ""
    for line in text.splitlines():
        row = _ROW.fullmatch(line)
        if row is None:
            continue
        name, here, core, cell = row.groups()
        note = _plain(cell).replace("as above", above)  # a row of its own has nothing above it
        above = note
        status: Status = "works"
        if here == "replacement":
            status = "missing"
        elif here == "facade" and note:
            status = "differs"
        yield Name(name, status, core, note)


def _methods(text: str) -> Iterator[tuple[str, str]]:
    for item in _items(text, "## Methods of adapters"):
        names, colon, instead = item.partition(": ")
        if colon:
            for code in _CODE.findall(names):
                yield code, instead


def _items(text: str, heading: str) -> Iterator[str]:
    """The items of the list below a heading, each as one line."""
    for item in _ITEM.findall(_section(text, heading)):
        yield _plain(item)


def _section(text: str, heading: str) -> str:
    _, _, section = text.partition(f"\n{heading}")
    section, _, _ = section.partition("\n## ")
    return section


def _unescaped(cell: str) -> str:
    """The text of a cell of which Markdown must not read the signs."""
    return html.unescape(_ESCAPE.sub(r"\1", cell))


def _plain(cell: str) -> str:
    return " ".join(_LINK.sub(r"\1", cell).split())
