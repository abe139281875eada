"""The papers on safety name the tests behind their promises, and each of these tests exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAPERS = (
    "SECURITY.md",
    "docs/concepts/safety.md",
    "docs/how-to/running/web.md",
    "docs/how-to/tools/approval.md",
)
_NAMED = re.compile(r"`(test_\w+|tests/[\w/]+\.py)`")


@pytest.fixture(scope="module")
def tests() -> set[str]:
    """The names of all tests, and the paths of their files."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found.add(path.relative_to(ROOT).as_posix())
        found.update(re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_each_test_that_a_paper_names_exists(paper: str, tests: set[str]) -> None:
    named = set(_NAMED.findall((ROOT / paper).read_text(encoding="utf-8")))
    assert named
    assert named - tests == set()


def test_each_promise_names_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    promised = text.partition("## What is promised")[2].partition("\n## ")[0]
    promises = re.split(r"^- ", promised, flags=re.MULTILINE)[1:]
    assert len(promises) > 10
    assert [promise[:80] for promise in promises if not _NAMED.search(promise)] == []
