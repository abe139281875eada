"""The claims of docs/how-to/agents/limits.md.

What it says of stopping is proved in tests/runs/test_cancelling.py.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ferrule import BaseLM, Limits, Predict, Response

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "agents" / "limits.md"


def test_every_block_of_the_page_runs_and_prints_what_the_page_says(execute, printed) -> None:
    """A14; style: a page's claims have a test."""
    execute("docs/how-to/agents/limits.md")
    printed("docs/how-to/agents/limits.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/agents/limits.md") == []


def test_every_limit_stands_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in asdict(Limits()) if f"| `{name}` |" not in page] == []


class Hung(BaseLM):
    def complete(self, request: Any) -> Response:
        raise NotImplementedError

    async def acomplete(self, request: Any) -> Response:
        await asyncio.Event().wait()
        raise NotImplementedError


def test_a_timeout_around_a_run_cancels_a_model_that_hangs() -> None:
    """The page: `wall_s` does not."""

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await Predict("question -> answer", lm=Hung()).acall(question="x")

    asyncio.run(main())
