"""The table of docs/coming-from/differences.md: made from `tests/differences.py`, and each row is
tried.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from differences import DIFFERENCES, DOCUMENTS, Difference, section
from facade_differences import FACADES

PAGE = "docs/coming-from/differences.md"
PATH = Path(__file__).parents[3] / PAGE


def test_every_block_of_the_page_runs(execute) -> None:
    execute(PAGE)


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links(PAGE) == []


def test_the_page_is_made_from_the_table() -> None:
    """`FERRULE_GOLDEN=write` writes it again."""
    text = PATH.read_text(encoding="utf-8")
    introduction = text.partition("\n## ")[0]
    page = "\n".join([f"{introduction.rstrip()}\n", *map(section, [*DOCUMENTS, *FACADES])])
    if os.environ.get("FERRULE_GOLDEN") == "write":
        PATH.write_text(page, encoding="utf-8")
        return
    assert page == text


@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: row.shown_by.__name__)
def test_a_difference_is_real(row: Difference) -> None:
    row.shown_by()


def test_every_document_and_every_statement_has_one_row() -> None:
    assert {row.document for row in DIFFERENCES} == {*DOCUMENTS, *FACADES}
    statements = [(row.document, row.statement) for row in DIFFERENCES]
    assert len(statements) == len(set(statements))
