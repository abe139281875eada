"""The claims of docs/how-to/tools/result-urls.md; what is answered when is in
tests/web/test_results.py.
"""

from __future__ import annotations


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/tools/result-urls.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/result-urls.md") == []
