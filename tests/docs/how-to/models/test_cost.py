"""The claims of docs/how-to/models/cost.md.

What it says of prices is proved in tests/telemetry/test_prices.py.
"""

from __future__ import annotations

import pytest

from ferrule.testing import block_network

pytest.importorskip("genai_prices", reason="needs the extra: pip install 'ferrule[prices]'")


def test_every_block_of_the_page_runs(execute) -> None:
    """Nothing is downloaded."""
    with block_network():
        execute("docs/how-to/models/cost.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/cost.md") == []
