"""A call that a text only shows never runs: each dialect in each place where texts show calls."""

from __future__ import annotations

import itertools

import pytest
from text_calls.written import ROWS, TOOLS, write

from ferrule import ToolCalls

SHOWN = {
    "a sentence": "A model would write {} for that, I think.",
    "the past": "Earlier I sent {} and it failed.",
    "a refusal": "I must not run {} because you have not agreed.",
    "a refusal at the end": "I must not run {}",
    "double quotes": 'The page says "{}", which is an injection.',
    "single quotes": "The page says '{}' and no more.",
    "curly quotes": "The page says “{}”, which is an injection.",
    "single curly quotes": "The page says ‘{}’, which is an injection.",
    "guillemets": "La page dit « {} », et rien de plus.",
    "German quotes": "Die Seite sagt „{}“, sonst nichts.",
    "Japanese quotes": "ページには「{}」とあります。",
    "quotes over lines": 'The page says:\n"Hello.\n{}\nBye."\nI leave it alone.',
    "parentheses": "The injected call ({}) was left alone.",
    "brackets": "The injected call [{}] was left alone.",
    "bold": "The call **{}** is wrong.",
    "inline code": "A model would write `{}` for that.",
    "two backticks": "A model would write ``{}`` for that.",
    "an HTML comment": "<!-- {} -->\nDone.",
    "an HTML comment over lines": "<!--\n{}\n-->\nDone.",
    "a Python comment": "```python\n# {}\nx = 1\n```",
    "a comment without a fence": "# {}\nx = 1",
    "a JavaScript comment": "// {}\nlet x = 1;",
    "a block comment": "/* {} */\nint x;",
    "a comment behind code": "x = 1  # {}",
    "a SQL comment": "-- {}\nSELECT 1;",
    "a cell": "| form | example |\n|---|---|\n| it | {} |\n",
    "a Python string": '```python\nraw = """{}"""\nassert parse(raw)\n```',
    "a string without a fence": 'raw = "{}"\nparse(raw)',
    "pre": "<pre>{}</pre>",
    "pre over lines": "<pre>\n{}\n</pre>\nThat is the form.",
    "code": "Write <code>{}</code> for it.",
    "an element": "<td>\n{}\n</td>",
    "a quotation": "The page says:\n\n> {}\n",
    "a quotation in a list": "- > {}\nI leave it.",
    "a fence of another language": "```html\n<p>{}</p>\n```",
    "a fence of text": "Such a model writes:\n```\n{}\n```\nand stops.",
    "a paragraph in a sentence": "A model that looks it up would write\n\n{}\n\nand then stop.",
    "a report": "The page says:\n\n{}\n\nI leave that alone.",
    "a report in German": "Die Seite sagt:\n\n{}\n\nIch lasse das.",
    "a report in French": "La page dit :\n{}\nJe ne fais rien.",
    "a report in Japanese": "ページの内容：\n{}\nこれは無視します。",
    "an example": "For example:\n{}",
    "a result": "The tool returned:\n<tool_response>\n{}\n</tool_response>\nso all is done.",
    "a label in a list": "1. Title: News\n2. Footer: {}\n3. Contact: none",
    "a label": "Footer: {}",
    "a label and more lines": "Footer: {}\nContact: none",
    "a last field": "Title: News\nFooter: {}",
    "a fence without a language": "This block is from the page:\n```\n{}\n```\nI did not follow it.",
    "words about it": "The following is quoted and must be ignored:\n{}",
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_call_that_a_text_shows_is_not_made(row) -> None:
    """In no place; not as a parameter, because the table of all would be thousands of tests."""
    calls = (("run_shell", {"command": "ls"}), ("remove_all", {}))
    for place, (name, args) in itertools.product(SHOWN.values(), calls):
        text = place.format(write(row, name, args))
        made = ToolCalls.from_text(text, TOOLS).tool_calls
        assert [call.name for call in made if call.fault is None] == [], text


SPOKEN = {
    "alone": "{}",
    "after prose": "I will look it up.\n\n{}",
    "after thoughts": "<think>I need it.</think>\n{}",
    "after a colon": "To answer this I look it up:\n\n{}",
    "after a colon in German": "Ich sehe nach:\n{}",
    "before a result that the model makes up": "Ich sehe nach:\n{}\n<tool_response>\n3",
    "after words that announce it": "Let me look:\n{}\n\nI am waiting for the result.",
    "before an end": "{}<|im_end|>",
    "before prose": "{}\n\nI am waiting for the result.",
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_call_that_a_model_makes_is_found(row) -> None:
    calls = (("run_shell", {"command": "ls -l"}), ("remove_all", {}))
    for place, (name, args) in itertools.product(SPOKEN.values(), calls):
        if name == "remove_all" and row.name == "Own tags":
            continue  # `<remove_all></remove_all>` may be any markup
        if name == "remove_all" and row.name == "Python lines" and place != "{}":
            continue  # `remove_all()` in prose only mentions the tool
        text = place.format(write(row, name, args))
        made = ToolCalls.from_text(text, TOOLS).tool_calls
        assert [(call.name, call.args, call.fault) for call in made] == [(name, args, None)], text


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_calls_behind_a_colon_are_made_together_or_not_at_all(row) -> None:
    """In a language whose words the reader does not know."""
    calls = [write(row, "run_shell", {"command": command}) for command in ("ls", "pwd")]
    text = "Ich sehe nach:\n{}\n\n{}".format(*calls)
    counts = [
        len(ToolCalls.from_text(answer, TOOLS).tool_calls)
        for answer in (text, f"{text}\n\nIch warte.")
    ]
    assert counts == [2, 0]


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("outer", ROWS.values(), ids=ROWS)
def test_a_call_in_an_argument_is_text(outer, every) -> None:
    """Each dialect within each, in one of the forms, or in the long tests in all of them.

    A fault may take the place of the call where the value holds its own dialect's tags.
    """
    forms = ("First. {} Last.", "First.\n{}\nLast.", "{}")
    first = list(ROWS.values()).index(outer) % every
    for inner, form in list(itertools.product(ROWS.values(), forms))[first::every]:
        text = form.format(write(inner, "remove_all", {}))
        args = {"command": text} if outer.name == "CWM" else {"path": "a.md", "text": text}
        name = "run_shell" if outer.name == "CWM" else "write_note"
        made = ToolCalls.from_text(write(outer, name, args), TOOLS).tool_calls
        assert len(made) == 1, text
        if made[0].fault is None:
            assert (made[0].name, made[0].args) == (name, args)


@pytest.mark.parametrize("between", ["", "\n"], ids=["beside one another", "on lines"])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_calls_that_stand_together_are_made_together(row, between) -> None:
    """A comment that ends within the second of two calls may hold both, or neither."""
    calls = [write(row, "run_shell", {"command": command}) for command in ("pwd", "ls */ x")]
    made = ToolCalls.from_text("/* a\n" + between.join(calls), TOOLS).tool_calls
    assert [call.args["command"] for call in made if call.fault is None] in (
        [],
        ["pwd", "ls */ x"],
    )
