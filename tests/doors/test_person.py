"""A person decides at the terminal; nothing is decided by accident."""

from __future__ import annotations

import pytest

from ferrule import Question, ToolCall
from ferrule.doors.person import ask_person

CONFIRM = Question(
    "confirm", "Confirm execution of [b]rm[/b] with args: \x1b[2J \u202e?", ToolCall(name="rm", args={"path": "[red]\x1b[2Jx"}), "q1"
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
    """Brief: y, n or text."""
    decision = ask_person(CONFIRM, paper, lines(said))
    assert (decision.question_id, decision.kind, decision.text) == ("q1", kind, text)


def test_an_empty_line_is_asked_again(paper) -> None:
    """Ours."""
    assert ask_person(CONFIRM, paper, lines("", "  ", "y")).kind == "approve"
    assert paper.file.getvalue().count("what to do instead") == 3


def test_the_end_of_input_decides_nothing(paper) -> None:
    """Ours."""
    assert ask_person(CONFIRM, paper, lines("")) is None


def test_a_question_of_the_model_is_answered_with_whatever_is_said(paper) -> None:
    """Ours: `yes` is an answer like any other."""
    decision = ask_person(CLARIFY, paper, lines("y"))
    assert (decision.question_id, decision.kind, decision.text) == ("q2", "reply", "y")
    assert "Which [b]file[/b]?" in paper.file.getvalue()


def test_the_person_sees_the_call_and_nothing_that_hides_it(paper) -> None:
    """Brief: markup escaped; ours: what cannot be seen is written out, because the decision is on exactly this text."""
    ask_person(CONFIRM, paper, lines("n"))
    shown = paper.file.getvalue()
    assert "[b]rm[/b] with args: \\u001b[2J \\u202e?" in shown
    assert "\x1b" not in shown
