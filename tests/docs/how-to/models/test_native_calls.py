"""The claims of docs/how-to/models/native-calls.md.

What it says of templates is proved in tests/models/.
"""

from __future__ import annotations

from ferrule.testing import block_network


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test; nothing leaves the machine."""
    with block_network():
        execute("docs/how-to/models/native-calls.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/native-calls.md") == []
