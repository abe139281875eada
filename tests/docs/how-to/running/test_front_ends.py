"""The claims of docs/how-to/running/front-ends.md.

What it says of the encoders is proved in tests/front_ends.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra: pip install 'ferrule[ui]'")

ROOT = Path(__file__).parents[4]


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/running/front-ends.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/running/front-ends.md") == []


def test_the_page_shows_the_service_word_for_word() -> None:
    page = (ROOT / "docs" / "how-to" / "running" / "front-ends.md").read_text(encoding="utf-8")
    [(name, part)] = re.findall(
        r"<!-- (examples/apps/\w+\.py) -->\n```py\n(.*?)```\n",
        page,
        re.DOTALL,
    )
    assert part in (ROOT / name).read_text(encoding="utf-8")
