"""What a run looks like on the terminal."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest

from ferrule import Predict, Prediction, ReAct, Tool, emit_event, events, progress
from ferrule.cli.commands.ask import follow_stream
from ferrule.cli.screen import Screen, call_text, console_on, in_options
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


def text_step(thought: str, name: str, args: str = "{}") -> str:
    return f"[[ ## next_thought ## ]]\n{thought}\n\n[[ ## next_tool_name ## ]]\n{name}\n\n[[ ## next_tool_args ## ]]\n{args}\n"


def native_step(thought: str, name: str, **args: Any) -> dict[str, Any]:
    return {"text": thought, "tool_calls": [{"name": name, "args": args}]}


def drawn(paper, program: Any, **inputs: Any) -> str:
    screen = Screen(paper)
    run = follow_stream(program.stream(**inputs), on_event=screen.draw)
    if run.status == "done":
        screen.draw_outputs(run.prediction)
    return paper.file.getvalue()


SCRIPTS = {
    "native": (
        [native_step("I add.", "add", a=1, b=2), native_step("Done.", "finish", answer="It is 3.")],
        True,
    ),
    "text": (
        [
            text_step("I add.", "add", '{"a": 1, "b": 2}'),
            text_step("Done.", "finish"),
            "[[ ## reasoning ## ]]\nRead off.\n\n[[ ## answer ## ]]\nIt is 3.\n\n[[ ## completed ## ]]",
        ],
        False,
    ),
}


def test_a_message_to_the_run_is_drawn(paper) -> None:
    Screen(paper).draw(events.Said("Be quick.", by="ann"))
    assert "> Be quick." in paper.file.getvalue()


@pytest.mark.parametrize(("script", "native"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_thoughts_calls_results_and_the_answer_are_shown_in_order(
    paper,
    script: list[Any],
    native: bool,
) -> None:
    """The trajectory as it happens, then the answer."""
    text = drawn(
        paper,
        ReAct("question -> answer", [add], native=native),
        question="1 + 2?",
        lm=ScriptedLM(script),
    )
    places = [
        text.index(found)
        for found in (
            "• I add.",
            "add(a=1, b=2)",
            "→ 3",
            "• Done.",
            "answer",
            "It is 3.",
            "2 steps",
        )
    ]
    assert places == sorted(places)
    assert text.count("I add.") == text.count("add(a=1, b=2)") == 1
    assert "[[ ##" not in text
    assert "finish" not in text


def test_whose_result_it_is_stands_there_when_calls_run_together(paper) -> None:
    both = [{"name": "add", "args": {"a": 1, "b": 1}}, {"name": "fail", "args": {}}]
    text = drawn(
        paper, ReAct("question -> answer", [Tool(add, concurrent=False), Tool(fail, concurrent=False)]), question="?",
        lm=ScriptedLM([both, native_step("", "finish", answer="x")]),
    )  # fmt: skip
    assert "→ 2" in text
    assert "→ Execution error in fail: ValueError: no luck" in text
    screen = Screen(paper)
    calls = [
        events.CallStarted(call=call)
        for call in Prediction.of({}, calls=()).tool_calls.from_dict_list(both).tool_calls
    ]
    first, second = (started.call.with_id(str(number)) for number, started in enumerate(calls))
    screen.draw(events.CallStarted(call=first))
    screen.draw(events.CallStarted(call=second))
    screen.draw(events.CallFinished(call=first, result=_result("done")))
    assert "→ add: done" in paper.file.getvalue()


def _result(content: str) -> Any:
    from ferrule import ToolResult

    return ToolResult("add", content)


def test_a_call_that_was_not_run_is_shown_with_the_reason(paper) -> None:
    """An unknown tool and bad arguments start no call, but are part of the story."""
    script = [
        native_step("", "subtract", a=1),
        native_step("", "add", a="x", b=2),
        native_step("", "finish", answer="x"),
    ]
    text = drawn(paper, ReAct("question -> answer", [add]), question="?", lm=ScriptedLM(script))
    assert "There is no tool `subtract`" in text
    assert 'add(a="x", b=2)' in text
    assert "Call to `add` was not run" in text


def test_an_answer_that_could_not_be_used_is_told(paper) -> None:
    script = ["nonsense", "[[ ## answer ## ]]\n3\n"]
    text = drawn(paper, Predict("question -> answer: int"), question="?", lm=ScriptedLM(script))
    assert "could not be used" in text


def test_progress_and_custom_events_are_shown(paper) -> None:

    def work() -> str:
        progress("half", done=1, total=2)
        progress()
        emit_event("found", {"n": 1})
        return ""

    script = [native_step("", "work"), native_step("", "finish", answer="x")]
    text = drawn(paper, ReAct("question -> answer", [work]), question="?", lm=ScriptedLM(script))
    assert "· 1 of 2 half" in text
    assert "· working" in text
    assert '· found: {"n":1}' in text
    assert "→ (nothing)" in text


def test_what_runs_inside_a_tool_is_left_out(paper) -> None:
    """The call stands for it."""

    def inner() -> str:
        script = [
            native_step("hidden thought", "add", a=1, b=2),
            native_step("", "finish", answer="inside"),
        ]
        return ReAct("question -> answer", [add])(question="?", lm=ScriptedLM(script)).answer

    script = [native_step("", "inner"), native_step("", "finish", answer="x")]
    text = drawn(paper, ReAct("question -> answer", [inner]), question="?", lm=ScriptedLM(script))
    assert "→ inside" in text
    assert "hidden thought" not in text
    assert "add(" not in text


def test_markup_and_escapes_of_models_and_tools_are_text_or_gone(paper) -> None:
    """Escaped for rich, ANSI and control characters stripped."""

    def evil() -> str:
        return "[bold red]x[/bold red] \x1b[2J\x1b]0;owned\x07 :smile: [/nothing]"

    script = [
        native_step("[red]think[/red] \x1b[31m", "evil"),
        native_step("", "finish", answer="[link=http://x]y[/link]\x1b[0m\ud800"),
    ]
    text = drawn(paper, ReAct("question -> answer", [evil]), question="?", lm=ScriptedLM(script))
    assert "[red]think[/red]" in text
    assert "[bold red]x[/bold red]" in text
    assert ":smile: [/nothing]" in text
    assert "[link=http://x]y[/link]\ufffd" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


def test_a_long_result_is_shortened_and_a_long_answer_is_not(paper) -> None:
    """The answer is what one came for."""

    def much() -> str:
        return "x" * 10_000

    script = [native_step("", "much"), native_step("", "finish", answer="y" * 5_000)]
    text = drawn(paper, ReAct("question -> answer", [much]), question="?", lm=ScriptedLM(script))
    assert "more characters)" in text
    assert text.count("y") >= 5_000


def test_several_outputs_of_any_type_are_shown_by_name(paper) -> None:
    Screen(paper).draw_outputs(Prediction(title="T", scores=[1, 2], none=None, bad=float("nan")))
    text = paper.file.getvalue()
    assert all(
        found in text
        for found in ("title", "scores", "[1,2]", "null", "NaN", "0 steps, 0 model calls")
    )


def test_a_run_that_ended_early_says_so(paper) -> None:
    script = [native_step("", "add", a=1, b=2), "[[ ## reasoning ## ]]\nr\n[[ ## answer ## ]]\n3\n"]
    text = drawn(
        paper,
        ReAct("question -> answer", [add], max_iters=1),
        question="?",
        lm=ScriptedLM(script),
    )
    assert "ended early (max_iters)" in text


def test_a_call_is_written_as_one_writes_it() -> None:
    assert call_text("f", {}) == "f()"
    assert call_text("f", {"a": [1], "b": "x\ny"}) == 'f(a=[1], b="x\\ny")'
    assert len(call_text("f", {"a": "x" * 1000})) == 400


def test_a_terminal_without_columns_gets_the_text_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rich takes `COLUMNS=0` for a width, and prints nothing."""
    monkeypatch.setenv("COLUMNS", "0")
    console = console_on(StringIO())
    console.print("text")
    assert console.file.getvalue() == "text\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('To serve by itself it takes `transport="http"`.', "To serve by itself, add `--http`."),
        ("`login_timeout_s` of an MCP server must be a number", "`--timeout` must be a number"),
    ],
)
def test_an_error_names_the_option_of_the_command(text: str, shown: str) -> None:
    assert in_options(ConfigurationError(text)) == shown
