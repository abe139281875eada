"""A call that a text quotes is not made; a call beside a quotation is."""

from __future__ import annotations

import pytest

from ferrule import ToolCalls

TOOLS = [
    {
        "name": name,
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    }
    for name in ("search", "quote")
]
JSON = '{"name": "search", "arguments": {"query": "cats"}}'
CALL = f"<tool_call>{JSON}</tool_call>"

QUOTED = {
    "a tag": f"> {CALL}",
    "a tag on lines of its own": f"> <tool_call>\n> {JSON}\n> </tool_call>\nI will not do that.",
    "a quotation in a quotation": f"The page says:\n> > {CALL}",
    "in a list": f"- > {CALL}\n1. > {CALL}",
    "indented": f"   > {CALL}",
    "a fence": f"> ```json\n> {JSON}\n> ```",
    "a named fence": f"> ```tool_call\n> {JSON}\n> ```",
    "an action": '> Action: search\n> Action Input: {"query": "cats"}',
    "functools": f"> functools[{JSON}]",
    "an invocation": '> <invoke name="search"><parameter name="query">cats</parameter></invoke>',
    "python": "> search(query='cats')",
    "a list of python": "> [search(query='cats')]",
    "a token": f"> [TOOL_CALLS] [{JSON}]",
    "a recipient": '> to=functions.search {"query": "cats"}',
    "opened in the quotation": f"> <tool_call>\n{JSON}\n</tool_call>",
    "said before": f"The following is quoted and must be ignored:\n{CALL}",
    "said on its line": f"Quoted text, ignored: {CALL}",
    "said before a fence": f"The user's message (quoted, to be ignored):\n```json\n{JSON}\n```",
    "said of this": f"I ignore this quoted call:\n\n{CALL}\n",
    "said in a clause": f"The document contains a quoted tool call which I am ignoring: {JSON}",
    "asked for": f"Ignore the following quote:\n{JSON}",
    "asked for in a sentence": f"Ignore the following.\n{CALL}",
    "not run": f"The page says the following, I only quote it and do not run it:\n{CALL}",
    "no call": f"This is a quotation, not a call: {CALL}",
    "a label": f"[quoted]\n{CALL}\n[/quoted]",
    "a tag for quotations": f"<quote>\n{CALL}\n</quote>\nI ignored the quote.",
    "a blockquote of HTML": f"<blockquote>{CALL}</blockquote>",
    "two": f"Quoting the page (this is to be ignored):\n\n{CALL}\n{CALL}",
    "said before a label": f"The page says:\n\nTool call:\n{CALL}",
    "an example before a label": f"For example:\n\n**Action:**\n\n{CALL}",
    "said behind": f'"{CALL}" is quoted from the page and ignored.',
}


@pytest.mark.parametrize("text", QUOTED.values(), ids=QUOTED)
def test_a_quoted_call_is_not_taken(text: str) -> None:
    assert ToolCalls.from_text(text, TOOLS).tool_calls == []


MEANT = {
    "a tool of that name": f"I'll fetch the stock quote:\n{CALL}",
    "a quoted price": f"I could not get the quoted price, so I search:\n{CALL}",
    "an ignored error": f"I will ignore the earlier error and search again:\n{CALL}",
    "an ignored result": f"I found two, and the second can be ignored.\n{CALL}",
    "ignored instructions": f"I'll ignore the quoted instructions and search for cats:\n{CALL}",
    "an ignored part": f"Ignoring the quoted part, I search:\n{CALL}",
    "after a sentence on a quotation": f"The quoted text told me to ignore the task. I won't. Now I search.\n{CALL}",
    "after a quotation": f"> quoted, to be ignored\n\nI ignore that. Now:\n\n{CALL}",
    "after a quoted call": f"> {CALL}\n\nThat was the page's. Mine:\n{CALL}",
    "an argument with a quotation": '<tool_call>{"name": "search", "arguments": {"query": "a\\n> b"}}</tool_call>',
    "an argument that is a quotation": "<function=search>\n<parameter=query>\n> quoted, ignored:\n</parameter>\n</function>",
    "three angles": '>>>search\n{"query": "cats"}',
    "an unclosed tag for quotations": f"<quote>\nAs the page says.\n{CALL}",
    "the tool's own tag": "<quote><query>cats</query></quote>",
}


@pytest.mark.parametrize("text", MEANT.values(), ids=MEANT)
def test_a_call_beside_a_quotation_is_taken(text: str) -> None:
    assert len(ToolCalls.from_text(text, TOOLS)) == 1


def test_words_in_the_arguments_of_a_call_say_nothing_of_the_next() -> None:
    calls = CALL.replace("cats", "quoted, to be ignored:") + CALL
    assert [call.args["query"] for call in ToolCalls.from_text(calls, TOOLS).tool_calls] == [
        "quoted, to be ignored:",
        "cats",
    ]


@pytest.mark.parametrize("size", [150_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "piece",
    [
        f"{CALL} ",
        f"> {CALL}\n",
        f"ignored: {CALL}",
        "\n>",
        f"quoted {JSON}",
        f"ignored, quoted\n{CALL}",
    ],
)
def test_quotations_are_looked_for_in_linear_time(piece: str, size: int) -> None:
    """By counting: no step of the search looks at more than its neighbourhood, so a megabyte ends."""
    ToolCalls.from_text(piece * (size // len(piece)), TOOLS)
