"""The names of DSPy and udspy, with what the facades make of them.

There is one table for each library: that of its page in docs/coming-from, of which a test tries
each row. A wheel has a copy of the pages beside this module (pyproject.toml); a checkout reads the
pages themselves.
"""

from __future__ import annotations

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
    """What the page about a library says."""

    by_name: Mapping[str, Name]
    not_called: Mapping[str, str]
    """Methods of adapters that ferrule does not call, with what to do instead."""
    general: tuple[str, ...]
    """What differs in programs of any kind, sentence by sentence."""


@cache
def names_of(library: Library) -> Names:
    """The names of a library, from its page."""
    text = _page(library)
    by_name = {name.name: name for name in _rows(text)}
    return Names(by_name, dict(_methods(text)), tuple(_items(text, "## What still differs")))


def _page(library: Library) -> str:
    here = Path(__file__)
    packed = here.with_name(f"{library}.md")
    in_checkout = here.parents[4] / "docs" / "coming-from" / f"{library}.md"
    page = packed if packed.is_file() else in_checkout
    return page.read_text(encoding="utf-8")


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
    _, _, section = text.partition(f"\n{heading}")
    section, _, _ = section.partition("\n## ")
    for item in _ITEM.findall(section):
        yield _plain(item)


def _plain(cell: str) -> str:
    return " ".join(_LINK.sub(r"\1", cell).split())
