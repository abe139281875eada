"""The claims of docs/how-to/agents/multi-turn.md."""

from __future__ import annotations


def test_every_block_of_the_page_runs_and_prints_what_the_page_says(execute, printed) -> None:
    execute("docs/how-to/agents/multi-turn.md")
    printed("docs/how-to/agents/multi-turn.md")


def test_every_link_of_the_page_leads_somewhere(links) -> None:
    assert links("docs/how-to/agents/multi-turn.md") == []
