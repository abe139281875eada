"""The documents in `../shared/seeds` say what docs/coming-from/differences.md quotes."""

from __future__ import annotations

import re

import pytest
from differences import DIFFERENCES, Difference
from shared_files import shared_file

shared_file("seeds/000_01a079996dd01e17.txt")
"""Skips this module where the documents are not beside the checkout."""
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2022": " "})


def as_one_line(text: str) -> str:
    """A text without its line breaks, code marks and typographic quotes."""
    return re.sub(r"\s+", " ", text.translate(_QUOTES).replace("`", ""))


@pytest.mark.parametrize(
    "row",
    [row for row in DIFFERENCES if row.document.file],  # the others are about libraries
    ids=lambda row: row.shown_by.__name__,
)
def test_a_statement_is_in_its_document(row: Difference) -> None:
    document = as_one_line(shared_file(f"seeds/{row.document.file}").read_text(encoding="utf-8"))
    assert as_one_line(row.statement) in document
