"""The list of runs: its faces, filters, views and files."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import pytest
from page_server import Client, served

from ferrule import MemoryStore, SQLiteStore
from ferrule.runs.about import about
from ferrule.runs.outline import NameUse, Outline
from ferrule.web.finding import read_address
from ferrule.web.ui import ui_app


def keep(store: SQLiteStore, run_id: str, asked: str, *, answered: str = "", **more: Any) -> None:
    head = json.dumps({"questions": [], "error": None, "key": "00", "inputs": {}, "args": []})
    outline = Outline(asked=asked, answered=answered, words=tuple(asked.lower().split()), **more)
    lease = store.create(
        run_id, program="Support", head=head, about=about({"user": "ada"}, None), outline=outline
    )
    store.release(lease, status="done", head=head, outline=outline)


@pytest.fixture
def ann() -> Any:
    store = MemoryStore()
    use = NameUse("tool", "refund", calls=1, failed=1)
    keep(store, "r1", "Refund the kettle", answered="Paid back.", uses=(use,), steps=4, seconds=3.0)
    keep(store, "r2", "=HYPERLINK('x')", steps=2, seconds=9.0)
    app = ui_app(store, people=["ann"])
    with served(app) as address:
        yield Client(address, app.links["ann"])


def rows(page: str) -> list[str]:
    return re.findall(r'<tr data-item data-key="([^"]*)"', page)


def test_a_run_has_a_face(ann: Client) -> None:
    page = ann.get("/").text
    assert rows(page) == ["r2", "r1"]
    for text in ("Refund the kettle", "Paid back.", "user <b>ada</b>", "Support", "3.0 s"):
        assert text in page


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=kettle", ["r1"]),
        ("tool=refund&failed=1", ["r1"]),
        ("metadata=user%3Dada&order=time", ["r2", "r1"]),
        ("order=time&up=1", ["r1", "r2"]),
        ("period=day", ["r2", "r1"]),
        ("to=1999-01-01", []),
    ],
)
def test_an_address_says_which_runs_in_which_order(
    ann: Client, query: str, found: list[str]
) -> None:
    assert rows(ann.get(f"/?{query}").text) == found


def test_a_search_that_finds_nothing_says_what_was_searched(ann: Client) -> None:
    page = ann.get("/?q=toaster&tool=refund").text
    assert "No run matches" in page
    assert "Searched 2 runs for" in page
    assert "<b>words toaster</b>" in page
    assert "<b>tool refund</b>" in page


def test_links_keep_what_was_chosen_and_a_chip_takes_it_away(ann: Client) -> None:
    page = ann.get("/?q=refund&tool=refund&order=cost").text
    for link in (
        "/?q=refund&tool=refund&order=cost&status=failed",
        "/?q=refund&order=cost",
        "/?q=refund&tool=refund&order=cost&up=1",
        "/runs.csv?q=refund&tool=refund&order=cost",
    ):
        assert f'href="{link}"' in page, link


def test_tabs_count_the_runs_of_the_search(ann: Client) -> None:
    page = ann.get("/?q=kettle").text
    counts = dict(re.findall(r'data-key="t-(\w*)" data-v="(\d+)"', page))
    assert (counts[""], counts["done"], counts["failed"]) == ("1", "1", "0")


def test_a_list_is_a_file_without_formulas(ann: Client) -> None:
    lines = list(csv.DictReader(io.StringIO(ann.get("/runs.csv?order=steps").text)))
    assert [line["id"] for line in lines] == ["r1", "r2"]
    assert lines[1]["asked"] == "'=HYPERLINK('x')"
    assert lines[0]["metadata"] == '{"user":"ada"}'
    [run] = json.loads(ann.get("/runs.json?q=kettle").text)
    assert (run["answered"], run["steps"], run["seconds"]) == ("Paid back.", 4, 3.0)
    assert json.loads(ann.get("/runs.json?q=nothing").text) == []


def test_a_value_of_an_address_that_does_not_fit_is_left_out() -> None:
    asked = read_address({"min": "-1", "from": "soon", "q": " ", "before": "nan~x"}, now=0.0)
    assert (asked.wanted, asked.texts, asked.before) == ({}, {}, None)


@pytest.mark.parametrize("name", ["q", "program", "tool", "model", "evaluation", "assigned", "x"])
@pytest.mark.parametrize("text", ["%00", "a%00b", "%ED%A0%80"])
def test_a_text_that_no_store_keeps_finds_nothing_and_breaks_nothing(
    ann: Client, name: str, text: str
) -> None:
    for path in ("/", "/runs.json", "/runs.csv", "/overview"):
        assert ann.get(f"{path}?{name}={text}").status == 200


def test_the_overview_says_what_failed_what_it_cost_and_what_waits(ann: Client) -> None:
    page = ann.get("/overview?period=day").text
    for text in ("Support", "refund", "No run waits.", "100.0 %"):
        assert text in page
    assert ann.get("/overview?period=<b>").status == 200


def test_the_overview_compares_with_the_period_before_only_if_it_had_runs(ann: Client) -> None:
    page = ann.get("/overview?period=day").text
    assert "0 before" in page
    assert "% before" not in page


def test_a_view_is_saved_by_a_browser_and_forgotten(ann: Client) -> None:
    saved = ann.post("/views", {"name": "Kettles", "query": "q=kettle"})
    assert (saved.status, saved.headers["location"]) == (303, "/?q=kettle")
    cookie = saved.headers["set-cookie"].partition(";")[0]
    page = ann.get("/", cookie=f"{ann.cookie}; {cookie}").text
    assert '<a href="/?q=kettle">Kettles</a>' in page
    forgotten = ann.post("/views", {"forget": "Kettles"}, cookie=f"{ann.cookie}; {cookie}")
    cookie = forgotten.headers["set-cookie"].partition(";")[0]
    assert "Kettles" not in ann.get("/", cookie=f"{ann.cookie}; {cookie}").text
    assert ann.post("/views", {"name": " ", "query": "q=kettle"}).status == 409
