"""What reading a text costs grows as the text grows, whatever it repeats: by counting steps."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
from text_calls.written import ROWS, TOOLS, write

from ferrule.text_calls.find import find
from ferrule.text_calls.marks import tag_pattern

OTHERS = ["```json\n", "```tool_code\n", "<tool_code>\n", '"', "(", "\n", "{", "[", "find_book(", "add(a=[", '"add(a=[', '\\"find_book(title=[', "<think>", "</think>",
          "to=find_book", "call:find_book{", '<|"|>', "<pre>", "<!--", "`", "find_book\n{", '{"name": "find_book", "arguments": {', ">>>find_book\n",
          "Action: find_book\nAction Input: {", "<find_book>", "<title>", "<|channel|>analysis<|message|>", "<tool_response>", "“", "'", "/*", "# ", "> ",
          "| ", "*", "a.b("]  # fmt: skip
"""Signs that are no tags, and beginnings that never end."""


def signs() -> list[str]:
    found: set[str] = set()
    for row in ROWS.values():
        call = write(row, "find_book", {"title": "x"})
        found |= {call, *tag_pattern().findall(call)}
    return sorted(found | set(OTHERS))


def steps(text: str) -> int:
    """How many functions are called to read a text."""
    count = 0

    def step(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        del frame, argument
        count += event.endswith("call")

    before = sys.getprofile()
    sys.setprofile(step)
    try:
        find(text, TOOLS)
    finally:
        sys.setprofile(before)
    return count


def assert_linear(sign: str, most: float = 2.5) -> None:
    find(sign, TOOLS)  # what is compiled and cached on first use
    once, twice = (steps(sign * (size // len(sign) + 1)) for size in (2_000, 4_000))
    assert twice <= most * once + 500, (sign, once, twice)


@pytest.mark.parametrize("sign", signs())
def test_twice_the_text_costs_twice_the_steps(sign: str) -> None:
    assert_linear(sign)


PAIRS = list(itertools.product(signs(), repeat=2))


@pytest.mark.parametrize(
    "part", [0, *[pytest.param(part, marks=pytest.mark.long) for part in range(1, 5)]]
)
def test_pairs_of_signs_cost_no_more(part: int) -> None:
    """Every 205th pair, and in the long tests every 41st: all of them would take minutes.

    At these sizes some pairs still cost more than twice as much: the budget bounds larger texts.
    """
    for first, second in PAIRS[part::205]:
        assert_linear(first + second, 3.5)
