"""Lists of a server: pages followed, bad entries left out, changes found."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import MCPProtocolError
from ferrule.mcp_bridge.client.listing import Listing, ToolChanges, all_pages, read_listing
from ferrule.schema import validator

GOOD = {"name": "good", "inputSchema": {"type": "object"}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "inputSchema", "type", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def pages_of(*pages: dict):
    asked: list = []

    async def ask(params):
        asked.append(params)
        return pages[min(len(asked), len(pages)) - 1]

    return ask, asked


def test_a_schema_that_would_take_for_ever_is_left_out_of_the_list() -> None:
    """The other tools stay."""
    doubling = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(24)}
    hostile = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/d0"}},
        "$defs": {**doubling, "d24": {}},
    }
    found = read_listing("s", [{"name": "bad", "inputSchema": hostile}, GOOD], None)
    assert [*found.definitions] == ["good"]
    assert [each.name for each in found.dropped] == ["bad"]


def test_pages_are_followed_to_the_end() -> None:
    """Five pages of five tools; the shortest time to live counts. (M56)"""
    pages = [
        {
            "tools": list(range(n * 5, n * 5 + 5)),
            "ttlMs": 9000 - n * 1000,
            **({"nextCursor": str(n)} if n < 4 else {}),
        }
        for n in range(5)
    ]
    ask, asked = pages_of(*pages)
    assert asyncio.run(all_pages(ask, "tools", "s")) == (list(range(25)), 5.0)
    assert asked == [None, {"cursor": "0"}, {"cursor": "1"}, {"cursor": "2"}, {"cursor": "3"}]


@pytest.mark.parametrize(
    "pages", [[{}], [{"tools": {}}]], ids=["no_list", "an_object"],
)  # fmt: skip
def test_a_page_without_a_list_is_an_error(pages: list[dict]) -> None:
    ask, _ = pages_of(*pages)
    with pytest.raises(MCPProtocolError, match="`s` sent"):
        asyncio.run(all_pages(ask, "tools", "s"))


def test_more_than_a_thousand_pages_are_an_error() -> None:
    count = iter(range(10_000))

    async def ask(params):
        return {"tools": [], "nextCursor": str(next(count))}

    with pytest.raises(MCPProtocolError, match="1000 pages"):
        asyncio.run(all_pages(ask, "tools", "s"))


@given(st.lists(JSON, max_size=4))
def test_junk_between_tools_costs_no_tool(junk: list) -> None:
    """Each bad entry is named with a reason."""
    found = read_listing("s", [*junk, GOOD], None)
    assert "good" in found.definitions
    assert len(found.dropped) + len(found.definitions) == len(junk) + 1
    assert all(each.reason for each in found.dropped)


def test_a_tool_whose_header_annotation_is_invalid_is_left_out() -> None:
    """The newer era's MUST (2026-07-28, basic/transports)."""
    found = read_listing("s", [GOOD], None, lambda schema: "bad header")
    assert (list(found.definitions), found.dropped[0].reason) == ([], "bad header")


def test_what_changed_is_found() -> None:
    before = read_listing("s", [GOOD, {**GOOD, "name": "old"}], None)
    after = read_listing("s", [{**GOOD, "description": "new"}, {**GOOD, "name": "new"}], None)
    assert after.since(before) == ToolChanges(("new",), ("old",), ("good",))
    assert not after.since(after)
    assert Listing({}).since(None) == ToolChanges()


def test_a_listing_prepares_each_schema_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list = []
    prepare = validator._own
    monkeypatch.setattr(
        validator, "_own", lambda schema: prepared.append(schema) or prepare(schema)
    )
    entries = [{**GOOD, "name": f"t{i}"} for i in range(20)]
    assert len(read_listing("s", entries, None).definitions) == 20
    assert len(prepared) == 20
