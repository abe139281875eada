from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.tools import word_search as module
from ferrule.tools.execution.tool_changes import Load
from ferrule.tools.shelf import Shelf
from ferrule.tools.tool import Tool


def create_invoice(customer: str, due_date: str) -> str:
    """Make a bill."""
    return ""


SHELF = Shelf(
    [
        Tool(create_invoice, "billing.createInvoice"),
        Tool(lambda: "", "billing.refund", "Pay the money of an order back."),
        Tool(lambda: "", "crm.find_customer", "Look somebody up by name."),
        Tool(
            lambda: "",
            "ops.status",
            "Say which orders of the shop are late, and whether the shop is up.",
        ),
        Tool(lambda: "", "odd[name]", "A name with brackets."),
    ],
)


def names(query: str, limit: int = 5) -> list[str]:
    return [tool.name for tool in SHELF.search(query, limit)]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("refund", "billing.refund"),
        ("create invoice", "billing.createInvoice"),
        ("INVOICES", "billing.createInvoice"),
        ("customers", "crm.find_customer"),
        ("due date", "billing.createInvoice"),
        ("is the shop up?", "ops.status"),
    ],
)
def test_a_tool_is_found_by_its_name_its_description_and_its_parameters(
    query: str,
    first: str,
) -> None:
    """F6; names in any spelling, and more important than the rest."""
    assert names(query)[0] == first


def test_the_best_come_first_and_no_more_than_asked_for() -> None:
    """A rare word counts for more than one that several tools share; equals stay in the shelf's
    order.
    """
    assert names("money order") == ["billing.refund", "ops.status"]
    assert names("money order", 1) == ["billing.refund"]
    assert names("billing") == ["billing.createInvoice", "billing.refund"] or names("billing") == [
        "billing.refund",
        "billing.createInvoice",
    ]
    same = Shelf([Tool(lambda: "", name, "The same.") for name in ("b", "a")])
    assert [tool.name for tool in same.search("same", 5)] == ["b", "a"]


@pytest.mark.parametrize(
    ("tools", "query", "first"),
    [
        (
            {
                "status": "Say what is up, what is down, and what is late today.",
                "other": "The status.",
            },
            "status",
            "status",
        ),
        ({"a": "alpha alpha alpha", "b": "beta", "c": "alpha", "d": "alpha"}, "alpha beta", "b"),
        (
            {"a": "send and then do very many other things of all kinds", "b": "send it"},
            "send",
            "b",
        ),
    ],
    ids=[
        "a_name_beats_a_description",
        "a_rare_word_beats_a_frequent_one",
        "a_short_text_beats_a_long_one",
    ],
)
def test_what_says_more_comes_first(tools: dict[str, str], query: str, first: str) -> None:
    shelf = Shelf([Tool(lambda: "", name, text) for name, text in tools.items()])
    assert shelf.search(query, 1)[0].name == first


@pytest.mark.parametrize(
    "query",
    ["", "zzz", "?!", "的"],
    ids=["nothing", "unknown", "no_words", "other_script"],
)
def test_what_shares_no_word_is_not_found(query: str) -> None:
    assert names(query) == []
    assert Shelf().search(query, 5) == []


@given(st.text())
def test_any_query_is_answered(query: str) -> None:
    """At most what is asked for, each tool once."""
    found = names(query, 3)
    assert len(found) <= 3
    assert len(set(found)) == len(found)


@given(st.sampled_from(list(SHELF)))
def test_every_tool_is_found_by_its_own_name(tool: Tool) -> None:
    assert SHELF.search(tool.name, 1) == [tool]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("billing.*", ["billing.createInvoice", "billing.refund"]),
        ("billing.refund", ["billing.refund"]),
        ("*.st?tus", ["ops.status"]),
        ("BILLING.*", []),
        ("odd[name]", ["odd[name]"]),
        ("nothing", []),
    ],
)
def test_names_and_globs_are_matched(pattern: str, found: list[str]) -> None:
    """The exact name first, even where it looks like a glob."""
    assert [tool.name for tool in SHELF.matching(pattern)] == found


def test_the_search_tool_loads_what_it_finds() -> None:
    """At least one and at most twenty, whatever the model asks for."""
    many = Shelf([Tool(lambda: "", f"thing_{i}", "A thing.") for i in range(30)])
    assert len(many.search_tools("thing", 100).names) == 20
    assert len(many.search_tools("thing", 0).names) == 1
    assert isinstance(many.search_tools("thing"), Load)
    assert many.search_tools("zzz") == "No tool fits 'zzz'. Try other words, or fewer."


def test_a_shelf_is_a_set_of_tools() -> None:
    assert len(SHELF) == 5
    assert SHELF.get("ops.status") is list(SHELF)[3]
    assert SHELF.get("nothing") is None
    assert repr(Shelf(list(SHELF)[:2])) == "Shelf([billing.createInvoice, billing.refund])"


def test_a_search_while_the_tools_are_replaced_leaves_no_old_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shelf belongs to all runs of a program: one may list its servers again while another
    searches.
    """
    old, new = Tool(lambda: "", "alpha", "Find birds."), Tool(lambda: "", "beta", "Find birds.")
    shelf, split = Shelf([old]), module.words_of

    def replacing(text: str) -> list[str]:
        if text == "alpha":
            shelf.replace([new])
        return split(text)

    monkeypatch.setattr(module, "words_of", replacing)
    assert shelf.search("birds", 5) == [old]
    assert shelf.search("birds", 5) == [new]
