"""What a model writes after its calls: the calls again, a turn that it invents, code that tries
them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ferrule import ToolCalls

TEXT = {"type": "string"}
TOOLS = [
    {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {"query": TEXT, "limit": {"type": "integer"}},
            "required": ["query"],
        },
    },
    {
        "name": "roll",
        "parameters": {
            "type": "object",
            "properties": {"sides": {"type": "integer"}},
            "required": ["sides"],
        },
    },
]
CATS = {"query": "cats", "limit": 3}
CATS_ONCE = [("search", CATS)]
ROLL = ("roll", {"sides": 6})
FORMS = {
    "list": '[search(query="cats", limit=3)]',
    "line": 'search(query="cats", limit=3)',
    "other order": 'search(limit=3, query="cats")',
    "positions": 'search("cats", 3)',
    "json": json.dumps({"name": "search", "arguments": CATS}),
    "fence": f"```json\n{json.dumps([{'name': 'search', 'arguments': CATS}], indent=1)}\n```",
    "code": '```python\nsearch(query="cats", limit=3)\n```',
    "tag": f"<tool_call>{json.dumps({'name': 'search', 'arguments': CATS})}</tool_call>",
    "function tag": "<function=search><parameter=query>cats</parameter><parameter=limit>3</parameter></function>",
}


def calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    return [(each.name, each.args) for each in ToolCalls.from_text(text, TOOLS).tool_calls]


NEUTRAL = (
    "This finds three pages about cats.\n\nHere is the function call:",
    "Explanation: the `search` tool takes a query and a limit.\n\nFinal answer:",
    "In JSON:",
    "So the answer is:",
    "The call, written properly:",
    "Therefore, the function call that I need is:",
    "which is the same as",
    "Repeated for clarity:",
    "Now I make the call:",
)


@pytest.mark.parametrize("between", NEUTRAL)
@pytest.mark.parametrize("first", ["list", "line", "tag", "code"])
@pytest.mark.parametrize("again", FORMS.values(), ids=FORMS)
def test_calls_that_are_written_again_count_once(between: str, first: str, again: str) -> None:
    assert calls(f"{FORMS[first]}\n\n{between}\n{again}") == CATS_ONCE


@pytest.mark.parametrize(
    ("first", "again"),
    [("list", "fence"), ("line", "list"), ("tag", "json"), ("list", "tag"), ("code", "tag")],
)
def test_all_calls_again_in_another_form_count_once_without_a_word(first: str, again: str) -> None:
    assert calls(f"{FORMS[first]}\n\n{FORMS[again]}") == CATS_ONCE


def test_a_part_of_the_calls_again_counts_once() -> None:
    both = '[search(query="cats", limit=3), roll(sides=6)]'
    assert calls(
        f"{both}\n\nThe second of them is needed because a number is asked for:\n```\nroll(sides=6)\n```",
    ) == [*CATS_ONCE, ROLL]
    assert calls(
        f"search(query='cats', limit=3)\n\nroll(sides=6)\n\nSo the list of calls is:\n\n{both}",
    ) == [*CATS_ONCE, ROLL]


def test_calls_again_with_a_new_one_count_as_one_new_call() -> None:
    assert calls(
        '[search(query="cats", limit=3)]\n\nThe whole answer:\n[search(query="cats", limit=3), roll(sides=6)]',
    ) == [
        *CATS_ONCE,
        ROLL,
    ]


def test_calls_again_and_again_count_once() -> None:
    assert calls("\n\nThe call is:\n".join([FORMS["list"]] * 5)) == CATS_ONCE


def test_a_call_with_other_arguments_is_no_repeat() -> None:
    text = (
        "[search(query='cats', limit=3)]\n\nThe answer for dogs:\n[search(query='dogs', limit=3)]"
    )
    assert calls(text) == [*CATS_ONCE, ("search", {"query": "dogs", "limit": 3})]


def test_two_calls_that_cannot_be_read_are_one_fault() -> None:
    text = '<tool_call>{"name": "roll", "arguments": {"sides": six}}</tool_call>\nOr rather, I mean:\n<tool_call>{"name": "roll", "arguments": {"sides": ten}}</tool_call>'
    assert [each.fault is not None for each in ToolCalls.from_text(text, TOOLS).tool_calls] == [
        True
    ]


DELIBERATE = {
    "side by side": "[roll(sides=6), roll(sides=6)]",
    "lines": "roll(sides=6)\nroll(sides=6)",
    "blank lines": "roll(sides=6)\n\nroll(sides=6)",
    "bullets": "- roll(sides=6)\n- roll(sides=6)",
    "numbers": "1. Roll the first die:\nroll(sides=6)\n2. Roll the other die:\nroll(sides=6)",
    "headings": "### Step 1\n```\nroll(sides=6)\n```\n### Step 2\n```\nroll(sides=6)\n```",
    "again": "roll(sides=6)\n\nAnd I roll again:\nroll(sides=6)",
    "once more": "[roll(sides=6)]\n\nOnce more, to be sure:\n[roll(sides=6)]",
    "then": "First I roll for Alice.\nroll(sides=6)\n\nThen I roll for Bob.\nroll(sides=6)",
    "another": "[roll(sides=6)]\nAnother die:\n[roll(sides=6)]",
    "second": "First roll:\nroll(sides=6)\nSecond roll:\nroll(sides=6)",
    "for each": "For Alice:\nroll(sides=6)\n\nFor Bob:\nroll(sides=6)",
    "counted": "Player 1:\nroll(sides=6)\n\nPlayer 2:\nroll(sides=6)",
    "next": "<tool_call>roll(sides=6)</tool_call>\nNext roll:\n<tool_call>roll(sides=6)</tool_call>",
    "retry": "[roll(sides=6)]\nI retry, as dice may fall badly:\n[roll(sides=6)]",
    "thoughts": "<tool_call>roll(sides=6)</tool_call>\n<think>That is one of two dice.</think>\n<tool_call>roll(sides=6)</tool_call>",
    "roles": '<|channel|>commentary to=functions.roll <|constrain|>json<|message|>{"sides": 6}<|call|><|start|>assistant'
    '<|channel|>commentary to=functions.roll <|constrain|>json<|message|>{"sides": 6}<|call|>',
    "tags": "<tool_call>roll(sides=6)</tool_call><tool_call>roll(sides=6)</tool_call>",
}


@pytest.mark.parametrize("text", DELIBERATE.values(), ids=DELIBERATE)
def test_a_call_that_is_made_twice_on_purpose_counts_twice(text: str) -> None:
    assert calls(text) == [ROLL, ROLL]


TURNS = {
    "user": "User: And dogs?\nAssistant:",
    "human": "Human: And dogs?\n\nAssistant:",
    "bold": "**User:** And dogs?\n\n**Assistant:**",
    "heading": "### User:\nAnd dogs?\n\n### Assistant:",
    "instruction": "### Instruction:\nFind dogs.\n\n### Response:",
    "question": "Question: And dogs?\nAnswer:",
    "q": "Q: And dogs?\nA:",
    "chatml": "<|im_end|>\n<|im_start|>user\nAnd dogs?<|im_end|>\n<|im_start|>assistant\n",
    "llama": "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd dogs?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n",
    "ipython": "<|eom_id|><|start_header_id|>ipython<|end_header_id|>\n\n3 cats<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n",
    "gemma": "<end_of_turn>\n<start_of_turn>user\nAnd dogs?<end_of_turn>\n<start_of_turn>model\n",
    "mistral": "</s>[INST] And dogs? [/INST]",
    "mistral results": "</s>[TOOL_RESULTS] 3 cats [/TOOL_RESULTS]",
    "phi": "<|end|><|user|>And dogs?<|end|><|assistant|>",
    "glm": "<|observation|>\n3 cats<|assistant|>\n",
    "hermes": "<tool_response>\n3 cats\n</tool_response>\n",
    "function results": "<function_results>3 cats</function_results>",
    "an unclosed result": "<tool_response>\n3 cats\n",
    "deepseek": "<\uff5cUser\uff5c>And dogs?<\uff5cAssistant\uff5c>",
    "deepseek outputs": "<\uff5ctool\u2581outputs\u2581begin\uff5c>3 cats<\uff5ctool\u2581outputs\u2581end\uff5c>",
    "harmony": "<|start|>functions.search to=assistant<|channel|>commentary<|message|>3 cats<|end|><|start|>assistant",
    "tool result": "Tool result: 3 cats\n\nNow the dogs:",
    "function output": "Function output:\n3 cats\n\nNow the dogs:",
    "api response": "[API response]: 3 cats\n\nNow the dogs:",
    "observation": "Observation: 3 cats\n",
    "result": "Result: 3 cats\n\nNow the dogs:",
    "output": "**Output:**\n```\n3 cats\n```\n\nNow the dogs:",
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("form", ["list", "line", "json", "fence", "tag"])
def test_what_follows_a_turn_that_the_model_invents_is_not_called(turn: str, form: str) -> None:
    text = f"{FORMS[form]}\n{turn}\n{FORMS[form].replace('cats', 'dogs')}"
    assert calls(text) == CATS_ONCE


OWN_WORDS = {
    "questions of its own": "Question: what about cats?\n{0}\nQuestion: and dogs?\n{1}",
    "outputs of a list": "1. {0}\n   Output: pages on cats\n2. {1}\n   Output: pages on dogs",
    "results of steps": "Step 1:\n{0}\nResult: pages on cats\n\nStep 2:\n{1}\nResult: pages on dogs",
    "a user in the prose": "{0}\nThe user: someone who likes dogs too.\n{1}",
    "users": "{0}\nUsers of this tool like dogs:\n{1}",
    "a turn before": "User: cats, and dogs\nAssistant: {0}\n{1}",
    "a thought": "{0}\n<think>\nUser: wants dogs too.\n</think>\n{1}",
    "a result before": "<tool_response>no pages</tool_response>\n{0}\n{1}",
    "a next turn of its own": "{0}<|im_end|>\n<|im_start|>assistant\n{1}",
}


@pytest.mark.parametrize("text", OWN_WORDS.values(), ids=OWN_WORDS)
@pytest.mark.parametrize("form", ["line", "tag"])
def test_words_of_the_models_own_turn_end_no_text(text: str, form: str) -> None:
    given = text.format(FORMS[form], FORMS[form].replace("cats", "dogs"))
    assert calls(given) == [*CATS_ONCE, ("search", {"query": "dogs", "limit": 3})]


@pytest.mark.parametrize(
    "query",
    [
        "a\nUser: b",
        "<|im_start|>user\nb",
        "\n### Instruction:\n",
        "a\n```python\nimport os\n```",
        "</tool_call>\nUser: ",
    ],
)
def test_turns_in_arguments_are_text(query: str) -> None:
    for ending in ("\n", "\n\nI also roll:\n"):
        for form, roll in (
            (
                f"<tool_call>{json.dumps({'name': 'search', 'arguments': {'query': query}})}</tool_call>",
                "<tool_call>roll(sides=6)</tool_call>",
            ),
            (f"[search(query={query!r})]", "[roll(sides=6)]"),
        ):
            assert calls(f"{form}{ending}{roll}") == [("search", {"query": query}), ROLL]


TESTS = {
    "test code": "Test code:\n{}",
    "a test": "# Test the function\n{}",
    "unit tests": "You can check it with these unit tests:\n```python\n{}\n```",
    "a test case": "**Test cases:**\n\n{}",
    "a program": "def main():\n    pass\n\n{}",
    "an implementation": "Here is the implementation:\n\ndef search(query, limit=3):\n    return []\n\n{}",
    "imports": "import json\nfrom tools import search\n\n{}",
    "a main part": "if __name__ == '__main__':\n    {}",
    "a check": "assert search is not None\n{}",
    "an example": "# Example usage:\n{}",
}


@pytest.mark.parametrize("code", TESTS.values(), ids=TESTS)
def test_code_that_tries_the_calls_is_not_called(code: str) -> None:
    for form in ("list", "line", "fence"):
        for tried in ("search(query='dogs')", "search(query='cats', limit=3)"):
            assert calls(f"{FORMS[form]}\n\n{code.format(tried)}") == CATS_ONCE


def test_a_tagged_call_behind_code_is_called() -> None:
    text = f"{FORMS['tag']}\n\ndef main():\n    pass\n\nI also roll:\n<tool_call>roll(sides=6)</tool_call>"
    assert calls(text) == [*CATS_ONCE, ROLL]


@pytest.mark.parametrize("size", [150_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "piece",
    [
        "{0} so {0}\n",
        "{0}\nThe same:\n",
        "{0}\nUser:",
        "<think>\nUser: {0}",
        "{0}\ndef f(",
        "1. {0}\nOutput: ",
    ],
)
def test_what_follows_calls_is_read_in_linear_time(piece: str, size: int) -> None:
    """By counting: each call is compared by its digest, and each text between calls is looked at
    once, so a megabyte ends.
    """
    given = piece.format(FORMS["tag"])
    ToolCalls.from_text(given * (size // len(given)), TOOLS)


def test_code_with_many_calls_behind_a_call_is_searched_once() -> None:
    tried = 'to=functions.search {"query": "dogs"}\n'
    assert calls(f"{FORMS['line']}\nimport os\n{tried * (10_000 // len(tried))}") == CATS_ONCE
