"""Plain English: phrases that docs and source do not use, because they hide who acts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "decisions"]  # decisions stay as they were written
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS, *sorted((ROOT / "examples").rglob("*.py"))]
PHRASES = re.compile(
    r"\b(nobody|whoever|is told|are told|what came of|told of|what cannot be|what was not|counts for nothing)\b", re.IGNORECASE
)
NOT_YET = 1
"""How many docstrings and comments of the source still hold such a phrase, at most. The number only falls."""


def prose(path: Path) -> list[str]:
    """The comments and docstrings of a module."""
    text = path.read_text(encoding="utf-8")
    strings = [
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return [*strings, *re.findall(r"(?:^|\s)# .*", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_holds_no_such_phrase(page: Path) -> None:
    """Ours."""
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert [found[0] for found in PHRASES.finditer(text)] == []


def test_the_source_holds_ever_fewer_of_them() -> None:
    """Ours."""
    found = [
        f"{path.relative_to(ROOT)}: {' '.join(text.split())[:100]}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for text in prose(path)
        if PHRASES.search(" ".join(text.split()))
    ]
    assert len(found) <= NOT_YET, "\n".join(["", *found])
