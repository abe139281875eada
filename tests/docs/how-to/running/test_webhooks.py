"""docs/how-to/running/webhooks.md holds."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


def test_every_block_of_the_page_runs(execute) -> None:
    pytest.importorskip("starlette")
    execute("docs/how-to/running/webhooks.md")


def test_the_receiver_has_twenty_lines() -> None:
    page = (ROOT / "docs/how-to/running/webhooks.md").read_text(encoding="utf-8")
    receiver = page.partition("## A receiver for Slack")[2].split("```python\n")[1]
    lines = [line for line in receiver.partition("\n```")[0].splitlines() if line.strip()]
    assert len(lines) <= 20
