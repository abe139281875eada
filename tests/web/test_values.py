"""Values for a reader (`web/values.py`): JSON as trees and tables, Markdown without anything
active.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from ferrule.web.values import json_tree, markdown_html


def leaves(node: Any) -> list[str]:
    if not node.items:
        return [node.text]
    return [text for _, item in node.items for text in leaves(item)]


def test_numbers_keep_their_digits() -> None:
    tree = json_tree('{"a": 1.10, "b": 12345678901234567890.0, "c": [1e400, -0, true, null, "x"]}')
    assert leaves(tree) == ["1.10", "12345678901234567890.0", "1e400", "-0", "true", "null", "x"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "12",
        '"text"',
        "{}",
        "[]",
        "{broken",
        '{"a": 1, "a": 2}',
        "[NaN]",
        "[" * 5_000 + "]" * 5_000,
        "[" + "1," * 20_000 + "1]",
        '{"a": 1} and more',
    ],
    ids=lambda text: text[:12],
)
def test_what_a_tree_would_change_or_not_show_stays_text(text: str) -> None:
    assert json_tree(text) is None


def test_a_list_of_equal_records_is_a_table() -> None:
    tree = json_tree('[{"a": 1, "b": "x"}, {"a": 2, "b": null}]')
    assert tree is not None
    assert (tree.kind, tree.columns) == ("table", ["a", "b"])
    for other in ('[{"a": 1}, {"b": 1}]', '[{"a": 1}, {"a": [1]}]', '[{"a": 1}, 2]', '[{"a": 1}]'):
        tree = json_tree(other)
        assert tree is not None
        assert tree.kind == "list"


def test_long_and_deep_parts_begin_folded() -> None:
    tree = json_tree('{"many": [' + "1," * 30 + '1], "deep": {"er": {"est": {"x": 1}}}}')
    assert tree is not None
    many, deep = (item for _, item in tree.items)
    assert (tree.is_open, many.is_open, many.size) == (True, False, "31 items")
    assert [deep.is_open, deep.items[0][1].is_open] == [True, False]


@pytest.mark.parametrize(
    "text",
    ["plain", "two\nlines", "a paragraph\n\nand another, 2 < 3 & so on", "&lt;b&gt;", ""],
)
def test_a_text_without_markdown_stays_as_it_was_written(text: str) -> None:
    assert markdown_html(text, has_links=True) is None


HOSTILE = [
    "**x** <script>alert(1)</script>",
    "**x** <img src=x onerror=alert(1)>",
    "[a](javascript:alert(1)) **x**",
    "[a](vbscript:x) **x**",
    "[a](data:text/html,<b>) **x**",
    "[a](/log-out) [b](//evil.example/x)",
    "![a](https://evil.example/pixel.png)",
    "[a](https://evil.example 'onmouseover=alert(1)')",
    "<https://evil.example>",
    "<javascript:alert(1)>",
    "[a]: javascript:alert(1)\n\n[a] **x**",
    "| a |\n|:-:|\n| <b> |",
    "```html onload=x\n<script>\n```",
    "**x** &#x202e;gpj.exe \u202e &#0;",
    "# <h1 onclick=x>",
    '[a](https://e.example/"onclick="x)',
    "[a](http://[bad)",
]


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_in_markdown_acts_loads_or_hides(text: str, has_links: bool) -> None:
    html = markdown_html(text, has_links=has_links) or ""
    tags = re.findall(r"<([a-z0-9]+)([^>]*)>", html)
    allowed = {"a", "p", "strong", "em", "br", "code", "pre", "table", "thead", "tbody", "tr"}
    assert {tag for tag, _ in tags} <= allowed | {"th", "td"}
    for tag, attributes in tags:
        if tag == "a":
            assert has_links
            assert re.fullmatch(
                r' href="https?://[^"\s]*" rel="noopener noreferrer nofollow"',
                attributes,
            )
        else:
            assert re.fullmatch(r'|\s/| class="[\w -]*"', attributes), attributes
    assert "\u202e" not in html
    assert "\x00" not in html


def test_a_link_shows_where_it_leads() -> None:
    html = markdown_html("[your bank](https://evil.example/bank)", has_links=True)
    assert html is not None
    assert ">your bank</a> (evil.example)" in html
    html = markdown_html("[your bank](https://evil.example/bank)", has_links=False)
    assert html == "<p>your bank (https://evil.example/bank)</p>\n"


def test_headings_do_not_change_the_outline_of_the_page() -> None:
    assert markdown_html("# One", has_links=True) == '<p class="heading">One</p>\n'
