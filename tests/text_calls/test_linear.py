"""What reading a text costs grows as the text grows, whatever it repeats: by counting steps."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import pytest
from text_calls.written import ROWS, TOOLS, write

from ferrule.text_calls.drafts import Effort
from ferrule.text_calls.find import find
from ferrule.text_calls.marks import TAG

OTHERS = ["```json\n", "```tool_code\n", "<tool_code>\n", '"', "(", "\n", "{", "[", "find_book(", "add(a=[", '"add(a=[', '\\"find_book(title=[', "<think>", "</think>",
          "to=find_book", "call:find_book{", '<|"|>', "<pre>", "<!--", "`", "find_book\n{", '{"name": "find_book", "arguments": {', ">>>find_book\n",
          "Action: find_book\nAction Input: {", "<find_book>", "<title>", "<|channel|>analysis<|message|>", "<tool_response>", "“", "'", "/*", "# ", "> ",
          "| ", "*", "a.b("]  # fmt: skip
"""Signs that are no tags, and beginnings that never end."""


def signs() -> list[str]:
    found: set[str] = set()
    for row in ROWS.values():
        call = write(row, "find_book", {"title": "x"})
        found |= {call, *TAG.findall(call)}
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


def assert_linear(sign: str) -> None:
    find(sign, TOOLS)  # what is compiled and cached on first use
    once, twice = (steps(sign * (size // len(sign) + 1)) for size in (1_000, 2_000))
    assert twice <= 2.5 * once + 250, (sign, once, twice)


@pytest.mark.parametrize("sign", signs())
def test_twice_the_text_costs_twice_the_steps(sign: str) -> None:
    assert_linear(sign)


PAIRS = list(itertools.product(signs(), repeat=2))


@pytest.mark.parametrize(
    "part", [0, *[pytest.param(part, marks=pytest.mark.long) for part in range(41, 410, 41)]]
)
def test_pairs_of_signs_cost_no_more(part: int) -> None:
    """Every 410th pair, and in the long tests every 41st: all of them would take minutes."""
    for first, second in PAIRS[part::410]:
        assert_linear(first + second)


ESCAPED = ['call:find_book{\\"find_book(title=[', '\\"find_book(title=[', "<tool_code>\n", "find_book(", '{"a\\"', "[1, '", "{ /* ", "{# ", "{'x': 1 y}\n"]  # fmt: skip
"""Texts that were searched to their end from each sign."""


READ_ALL = """
import json, sys
from ferrule.text_calls.find import find

texts, tools = json.load(sys.stdin)
for text in texts:
    find(text, tools)
"""


@pytest.mark.parametrize("size", [200_000, pytest.param(800_000, marks=pytest.mark.long)])
def test_no_sign_searches_the_rest_of_the_text_again(size: int) -> None:
    """Searches are no steps, so another process reads the texts, and is given up after minutes.

    It needs seconds. With a search to the end at each sign, one of the larger texts alone took
    minutes.
    """
    texts = [sign * (size // len(sign)) for sign in ESCAPED]
    subprocess.run(
        [sys.executable, "-c", READ_ALL],
        input=json.dumps([[*texts, f"The page says: {texts[0]}"], TOOLS]),
        text=True,
        check=True,
        timeout=180,
    )


PAGES = {
    "HTML": '<div class="item"><a href="/it">It\'s <b>one</b> of {many}</a> (find_book)</div>\n',
    "JavaScript": "const it = { a: [1, 'x\\'s'], b: f(`{${x}}`) }; // don't { stop\n",
    "log": "10:00 [INFO] worker(id=7) did {'a': 7} in find_book(path=\"/a/7\")\n",
    "JSON": '{"items": [{"name": "find_book", "tags": ["<b>", "it\'s"]}, {"name": oops}]}\n',
    "C": 'int f(int a, char *b) { if (a > 1) { printf("%d\\n", a); } return g(a, b[1]); }\n',
}
CALL = '<tool_call>{"name": "find_book", "arguments": {"title": "Momo"}}</tool_call>'


@pytest.mark.parametrize("line", PAGES.values(), ids=PAGES)
def test_a_call_after_a_long_page_is_read(line: str) -> None:
    calls, _ = find(line * (100_000 // len(line)) + f"\nI look it up.\n\n{CALL}", TOOLS)
    assert [(call["name"], call["args"]) for call in calls] == [("find_book", {"title": "Momo"})]


def test_what_reading_may_cost_does_not_grow_without_end() -> None:
    assert Effort(10**9).left == Effort(500_000).left > Effort(50_000).left


HARD = "<name>" * 100_000


def test_the_model_is_told_of_what_was_not_read() -> None:
    [call], rest = find(f"{HARD}\n\n{CALL}", TOOLS)
    assert (call["name"], call["args"], rest) == ("find_book", {}, f"{HARD}\n\n{CALL}")
    assert "too long to be read" in call["fault"].reason


def test_what_was_not_read_and_names_no_tool_holds_no_call() -> None:
    assert find(HARD, TOOLS) == ([], HARD)


QUOTED = '"add(a=['


def test_a_quoted_list_that_is_no_call_costs_no_more_than_a_call_that_is_none() -> None:
    """Its text is read twice, as a string and as calls: both are paid for."""
    assert steps(QUOTED * 5_000) <= 1.3 * steps(QUOTED[1:] * 5_000)
