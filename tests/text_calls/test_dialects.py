"""The table of dialects: each row has a golden file, and the page lists all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from text_calls.written import ROWS, TEXT, TOOLS, declared, write

from ferrule import ToolCalls
from ferrule.encoding.written import number_text
from ferrule.text_calls import marks
from ferrule.text_calls.dialects import DIALECTS, TextForm

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).parent / "golden"
PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "adapters-and-dialects.md"


def file_of(row: TextForm) -> Path:
    return GOLDEN / (re.sub(r"\W+", "-", row.name.lower()).strip("-") + ".txt")


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_golden_answer_of_each_row_is_read(row: TextForm) -> None:
    """The first line of a golden file is the expected calls as JSON; the answer follows it."""
    expected, _, answer = file_of(row).read_text(encoding="utf-8").partition("\n")
    calls = ToolCalls.from_text(answer, TOOLS).tool_calls
    assert [[call.name, call.args] for call in calls] == json.loads(expected)
    assert [call.fault for call in calls] == [None] * len(calls)


def test_each_golden_file_belongs_to_a_row() -> None:
    assert sorted(GOLDEN.iterdir()) == sorted(map(file_of, ROWS.values()))


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_several_calls_of_a_row_are_read_in_order(row: TextForm) -> None:
    calls = [("run_shell", {"command": "ls"}), ("run_shell", {"command": "pwd"})]
    text = "\n".join(write(row, name, args) for name, args in calls)
    found = ToolCalls.from_text(text, TOOLS).tool_calls
    assert [(call.name, call.args) for call in found] == calls


def test_the_page_lists_each_row() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [row.name for row in ROWS.values() if f"| {row.name} | {row.models} |" not in page] == []


QUOTE = declared("quote", {"price": TEXT, "rates": {"type": "array", "items": TEXT}}, ["price"])


@pytest.mark.parametrize("digits", ["3.10", "1e3"])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_number_for_text_keeps_its_digits_in_every_dialect(row: TextForm, digits: str) -> None:
    text = write(row, "quote", {"price": 987.5}).replace("987.5", digits)
    [call] = ToolCalls.from_text(text, [QUOTE]).tool_calls
    price = call.args_as_written["price"]
    assert (price if isinstance(price, str) else number_text(price)) == digits


MADE_UP = (
    TextForm("Zephyr", "", "", "<|begin_action|>{name}<|action_input|>{json}<|end_action|>"),
    TextForm("Brook", "", "", "<step>{name}{arguments}</step>",
            "<slot>{key}</slot><content>{value}</content>"),
    TextForm("Quartz", "", "", '<action tool="{name}">{arguments}</action>',
            '<field id="{key}">{value}</field>'),
)  # fmt: skip


@pytest.fixture
def _made_up_dialects(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The table with more rows, and without what was derived from it."""
    derived = (marks._vocabulary, marks._naming_attributes, marks.mark_of)
    monkeypatch.setattr(marks, "DIALECTS", (*DIALECTS, *MADE_UP))
    for cached in derived:
        cached.cache_clear()
    yield
    for cached in derived:
        cached.cache_clear()


@pytest.mark.usefixtures("_made_up_dialects")
@pytest.mark.parametrize("row", MADE_UP, ids=[row.name for row in MADE_UP])
def test_a_new_form_needs_only_a_row(row: TextForm) -> None:
    args = {"title": "The Salt Road", "year": 1987}
    [call] = ToolCalls.from_text(write(row, "find_book", args), TOOLS).tool_calls
    assert (call.name, call.args, call.fault) == ("find_book", args, None)
