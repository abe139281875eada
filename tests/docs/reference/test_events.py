"""The claims of docs/reference/events.md."""

from __future__ import annotations

import re
from pathlib import Path

import ferrule
from ferrule import events

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", PAGE, re.MULTILINE))
COMMON = set(re.findall(r"^\| `(\w+)` \|[^|]*\|$", PAGE, re.MULTILINE))
KINDS = {
    name: each
    for name, each in vars(events).items()
    if isinstance(each, type) and issubclass(each, events.Event) and each is not events.Event
}


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/reference/events.md")


def test_every_link_of_the_page_leads_somewhere(links) -> None:
    assert links("docs/reference/events.md") == []


def test_the_page_lists_every_event_with_its_fields() -> None:
    own = {name: list(kind.__match_args__) for name, kind in KINDS.items()}
    assert {name: re.findall(r"`(\w+)`", fields) for name, fields in ROWS.items()} == own


def test_the_page_lists_what_every_event_has() -> None:
    assert {"type", *events.Event.__struct_fields__} == COMMON  # pyright: ignore[reportAttributeAccessIssue]  made by the metaclass


def test_every_event_is_a_public_name() -> None:
    assert {"Event", *KINDS} <= set(ferrule.events.__all__)
