"""The claims of docs/how-to/running/services.md.

What it says of examples/apps/service.py is proved in tests/integration/test_service.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra: pip install 'ferrule[ui]'")

ROOT = Path(__file__).parents[4]


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/running/services.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/running/services.md") == []


def test_the_page_shows_the_service_word_for_word() -> None:
    page = (ROOT / "docs" / "how-to" / "running" / "services.md").read_text(encoding="utf-8")
    parts = re.findall(r"<!-- (examples/apps/\w+\.py) -->\n```py\n(.*?)```\n", page, re.DOTALL)
    assert len(parts) == page.count("<!-- examples/apps/")
    assert [
        name for name, part in parts if part not in (ROOT / name).read_text(encoding="utf-8")
    ] == []
    service = (ROOT / "examples" / "apps" / "service.py").read_text(encoding="utf-8")
    assert f"in {len(service.splitlines())} lines" in page
