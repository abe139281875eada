"""The claims of docs/how-to/tools/tool-calls.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.errors import AdapterParseError, BoundaryError, MissingContentError, ToolCallError
from ferrule.programs.tool_use import inputs as tool_inputs

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "tools" / "tool-calls.md"


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test; E63."""
    execute("docs/how-to/tools/tool-calls.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/tool-calls.md") == []


@pytest.mark.parametrize(
    "kind",
    [ToolCallError, AdapterParseError, MissingContentError],
    ids=lambda kind: kind.__name__,
)
def test_the_classes_of_the_table_are_one_family(kind: type) -> None:
    assert issubclass(kind, BoundaryError)
    assert issubclass(BoundaryError, ValueError)


def test_every_code_and_every_reason_stands_on_the_page() -> None:
    """The docstrings that name them, and the page, agree."""
    page = PAGE.read_text(encoding="utf-8")
    for source in (BoundaryError.__doc__, tool_inputs.__doc__):
        words = {word for word in (source or "").split("`")[1::2] if "_" in word}
        assert words
        assert [word for word in words if f"`{word}`" not in page] == []


def test_the_page_tells_types_tags_adapter_behaviour_and_non_goals() -> None:
    headings = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("## ")
    ]
    assert headings == [
        "## Run the calls, and continue",
        "## Types",
        "## Native calls, or calls in text",
        "## Invalid calls",
        "## Events",
        "## Not included",
    ]
