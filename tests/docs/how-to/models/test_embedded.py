"""The claims of docs/how-to/models/embedded.md.

More are tested in tests/embedded and tests/models/local.
"""

from __future__ import annotations

import pytest

from ferrule.embedded.engine import has_needle


@pytest.mark.needle
@pytest.mark.skipif(not has_needle(), reason="needs the extra: pip install 'ferrule[embedded]'")
def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/models/embedded.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/embedded.md") == []
