"""The claims of docs/coming-from/pydantic-ai.md."""

from __future__ import annotations

import importlib.util

import pytest

PAGE = "docs/coming-from/pydantic-ai.md"


def test_the_program_here_runs(execute) -> None:
    execute(PAGE)


@pytest.mark.skipif(
    importlib.util.find_spec("pydantic_ai") is None,
    reason="the other library is not among the pins for development",
)
def test_the_program_there_runs(run_before) -> None:
    run_before(PAGE)


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links(PAGE) == []
