"""The claims of docs/how-to/agents/retrieval.md."""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/agents/retrieval.md")


def test_every_link_of_the_page_leads_somewhere(links) -> None:
    assert links("docs/how-to/agents/retrieval.md") == []
