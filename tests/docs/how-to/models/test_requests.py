"""The claims of docs/how-to/models/requests.md.

What it says of clients is proved in tests/models/test_client.py.
"""

from __future__ import annotations

import pytest

from ferrule.testing import block_network


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test; nothing leaves the machine."""
    pytest.importorskip("openai", reason="needs openai")
    with block_network():
        execute("docs/how-to/models/requests.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/requests.md") == []
