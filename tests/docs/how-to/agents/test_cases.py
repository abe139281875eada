"""The claims of docs/how-to/agents/cases.md."""

from __future__ import annotations

import re
from pathlib import Path

from ferrule import le
from ferrule.cases import called, in_order, never, read_cases

PAGE = "docs/how-to/agents/cases.md"


def test_every_block_of_the_page_runs(execute) -> None:
    execute(PAGE)


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links(PAGE) == []


def test_the_file_of_the_page_is_read(tmp_path) -> None:
    text = (Path(__file__).parents[4] / PAGE).read_text(encoding="utf-8")
    [form] = re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "cases.json").write_text(form, encoding="utf-8")
    [case] = read_cases(tmp_path / "cases.json")
    assert [*case.expect] == [
        in_order(called("find_order", order="A1"), called("refund", order="A1", euros=le(30))),
        never("delete*"),
    ]
