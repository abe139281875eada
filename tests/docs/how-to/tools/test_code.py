"""The claims of docs/how-to/tools/code.md; what code may do is in tests/programs/code_mode."""

from __future__ import annotations

import pytest

pytest.importorskip("pydantic_monty")


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/tools/code.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/code.md") == []


def test_the_page_names_the_bounds() -> None:
    from pathlib import Path

    from ferrule import CodeMode

    page = Path("docs/how-to/tools/code.md").read_text(encoding="utf-8")
    for name in CodeMode.__struct_fields__:
        assert f"| `{name}` | {getattr(CodeMode(), name):,.0f} |" in page
