"""A person decides at the terminal; nothing is decided by accident."""

from __future__ import annotations

import pytest

from ferrule import Question, ToolCall, under
from ferrule.cli.prompt import ask_at_terminal

CONFIRM = Question(
    "confirm",
    "Confirm execution of [b]rm[/b] with args: \x1b[2J \u202e?",
    ToolCall(name="rm", args={"path": "[red]\x1b[2Jx"}),
    "q1",
)
CLARIFY = Question("clarify", "Which [b]file[/b]?", ToolCall(name="user_clarification"), "q2")


def lines(*said: str):
    waiting = iter(said)

    def read() -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    return read


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        ("y", "approve", ""),
        (" YES ", "approve", ""),
        ("n", "deny", ""),
        ("No", "deny", ""),
        ("not that one", "deny", "not that one"),
        ("yeah", "deny", "yeah"),
    ],
)
def test_only_a_clear_yes_runs_the_call(paper, said: str, kind: str, text: str) -> None:
    """`y`, `n` or text."""
    decision = ask_at_terminal(CONFIRM, paper, lines(said))
    assert (decision.question_id, decision.kind, decision.text) == ("q1", kind, text)


def test_an_empty_line_is_asked_again(paper) -> None:
    assert ask_at_terminal(CONFIRM, paper, lines("", "  ", "y")).kind == "approve"
    assert paper.file.getvalue().count("what to do instead") == 3


def test_the_end_of_input_decides_nothing(paper) -> None:
    assert ask_at_terminal(CONFIRM, paper, lines("")) is None


def test_a_question_of_the_model_is_answered_with_whatever_is_said(paper) -> None:
    """`yes` is an answer like any other."""
    decision = ask_at_terminal(CLARIFY, paper, lines("y"))
    assert (decision.question_id, decision.kind, decision.text) == ("q2", "reply", "y")
    assert "Which [b]file[/b]?" in paper.file.getvalue()


def test_the_person_sees_the_call_and_nothing_that_hides_it(paper) -> None:
    """Markup escaped; what cannot be seen is written out, because the decision is on exactly this
    text.
    """
    ask_at_terminal(CONFIRM, paper, lines("n"))
    shown = paper.file.getvalue()
    assert "[b]rm[/b] with args: \\u001b[2J \\u202e?" in shown
    assert "\x1b" not in shown


def edited(said: str, paper) -> dict[str, object]:
    asked = Question(
        "confirm",
        "?",
        ToolCall(name="cp", args={"path": "a", "count": 1, "note": "x"}),
        "q1",
        "f",
    )
    decision = ask_at_terminal(asked, paper, lines(said, "n"))
    return decision.args if decision.kind == "edit" else {}


@pytest.mark.parametrize(
    ("said", "args"),
    [
        ("edit path=b.txt", {"path": "b.txt"}),
        ("edit count=3 note='two words'", {"count": 3, "note": "two words"}),
        ("edit note=3", {"note": "3"}),
        ('{"count": 4}', {"count": 4}),
        ("edit", {}),
        ("edit count", {}),
        ("edit note='open", {}),
        ("edit the other file instead", {}),
    ],
    ids=["one", "two", "text_stays_text", "json", "nothing", "no_value", "open_quote", "words"],
)
def test_an_edit_changes_named_arguments(paper, said: str, args: dict[str, object]) -> None:
    """What cannot be read decides nothing."""
    assert edited(said, paper) == args


@pytest.mark.parametrize(
    ("said", "args", "removed"),
    [
        ("edit without note", {}, ("note",)),
        ("edit count=3 without note path", {"count": 3}, ("note", "path")),
        ("edit note=x2 without note", None, ()),  # changed and removed
        ("edit without", None, ()),
        ("edit without other", None, ()),  # the call has no such argument
    ],
)
def test_an_edit_removes_the_arguments_after_the_word_without(
    paper, said: str, args: dict[str, object] | None, removed: tuple[str, ...]
) -> None:
    call = ToolCall(name="cp", args={"path": "a", "count": 1, "note": "x"})
    asked = Question("confirm", "?", call, "q1", "f")
    decision = ask_at_terminal(asked, paper, lines(said, "n"))
    if args is None:
        assert decision.kind == "deny"
    else:
        assert (decision.kind, decision.args, decision.removed) == ("edit", args, removed)


def test_always_is_for_the_same_arguments_in_this_run_and_why_only_tells(paper) -> None:
    asked = Question(
        "confirm",
        "?",
        ToolCall(name="rm", args={"path": "a"}, intention="to tidy \x1b[2J"),
        "q1",
        "f",
        "It is old.",
    )
    decision = ask_at_terminal(asked, paper, lines("why", "always"))
    assert decision.kind == "approve"
    assert decision.grant is not None
    assert decision.grant.args == "same"
    assert decision.via == "terminal"
    shown = paper.file.getvalue()
    assert "the model thought: It is old." in shown
    assert "\x1b" not in shown


def test_folder_is_for_further_calls_in_the_folder_of_the_path(paper) -> None:
    asked = Question(
        "confirm", "?", ToolCall(name="rm", args={"path": "src/a.py", "n": 1}), "q1", "f"
    )
    decision = ask_at_terminal(asked, paper, lines("folder"))
    assert decision.kind == "approve"
    assert decision.grant is not None
    assert decision.grant.args == {"path": under("src")}
    shown = paper.file.getvalue()
    assert "folder: further calls with path in src, and any other arguments" in shown
    assert "always, folder, why" in shown


def test_folder_is_not_offered_for_a_path_in_doubt(paper) -> None:
    asked = Question("confirm", "?", ToolCall(name="rm", args={"path": "src/../a.py"}), "q1", "f")
    assert ask_at_terminal(asked, paper, lines("folder", "n")).kind == "deny"
    shown = paper.file.getvalue()
    assert "always, folder" not in shown
    assert "no path that lies in one folder" in shown


def test_the_panel_shows_every_argument_and_what_the_model_wrote_differently(paper) -> None:
    asked = Question(
        "confirm",
        "Confirm execution of f with args: ...? (yes/no)",
        ToolCall(name="f", args={"n": 7, "d": 1, "note": "one\ntwo\u3164"}),
        "q1",
        "f",
        raw={"n": "8", "note": "one\ntwo\u3164"},
        note="The server differs from its pin.\n",
    )
    ask_at_terminal(asked, paper, lines("n"))
    shown = paper.file.getvalue()
    for part in (
        "The server differs from its pin.",
        'n (number, the model wrote "8"): 7',
        "d (number, the default: the model left it out): 1",
        "| one",
        "| two\\u3164",
    ):
        assert part in shown


@pytest.mark.parametrize("said", ["y", "always", "edit note=x", '{"note": "x"}'])
def test_a_call_that_is_not_shown_whole_is_not_approved(paper, said: str) -> None:
    asked = Question(
        "confirm", "?", ToolCall(name="f", args={"note": "x" * 300_000, "n": 1}), "q1", "f"
    )
    assert ask_at_terminal(asked, paper, lines(said)) is None
    assert "'note' has 300,000 characters" in paper.file.getvalue()
    assert "cannot be approved" in " ".join(paper.file.getvalue().split())


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [("y", "approve", ""), ("no", "deny", ""), ("order 17", "reply", "order 17")],
)
def test_a_call_that_may_have_run_is_run_or_left_or_has_its_result_told(
    paper,
    said: str,
    kind: str,
    text: str,
) -> None:
    decision = ask_at_terminal(
        Question("unknown", "pay may have run", ToolCall(name="pay", args={"n": 1}), id="q"),
        paper,
        lines(said),
    )
    assert decision is not None
    assert (decision.kind, decision.text) == (kind, text)


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [("7", "reply", "7"), ("seven", "reply", '"seven"'), ("deny it broke", "deny", "it broke")],
)
def test_a_result_from_outside_is_typed_or_denied(paper, words: str, kind: str, text: str) -> None:
    question = Question("result", "", ToolCall(name="build"), "q1", key="b")
    decision = ask_at_terminal(question, paper, lines(words))
    assert (decision.kind, decision.text) == (kind, text)
