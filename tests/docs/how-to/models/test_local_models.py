"""The claims of docs/how-to/models/local-models.md.

How such models answer is tested in tests/models/local.
"""

from __future__ import annotations

import pytest

pytest.importorskip("llguidance", reason="needs the extra: pip install 'ferrule[local]'")


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/models/local-models.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/local-models.md") == []
