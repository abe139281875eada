"""The claims of docs/how-to/tools/skills.md; more is in tests/tools/skills."""

from __future__ import annotations

import pytest

pytest.importorskip("yaml", reason="skills need PyYAML")


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/tools/skills.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/skills.md") == []
