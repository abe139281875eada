"""The claims of docs/tutorial/chat.md."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="the page is a service")


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/tutorial/chat.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/tutorial/chat.md") == []
