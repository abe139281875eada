"""Asking the person at the terminal what a run waits for.  (Floor 6.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.panel import Panel
from rich.text import Text

from ferrule.doors.plain_text import revealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from ferrule.values.question import Decision, Question

_YES, _NO = frozenset({"y", "yes"}), frozenset({"n", "no"})


def ask_person(question: Question, console: Console, read_line: Callable[[], str] = input) -> Decision | None:
    """The person's decision; None where the input ends without one. An empty line is asked again: nothing is decided by accident."""
    console.print(_panel(question))
    hint = "y, n, or what to do instead: " if question.kind == "confirm" else "your answer: "
    while True:
        console.print(Text(hint, "bold"), end="")
        try:
            said = read_line().strip()
        except EOFError:
            console.print()
            return None
        if said:
            return _decision(question, said)


def _decision(question: Question, said: str) -> Decision:
    if question.kind == "clarify":
        return question.reply(said)
    if said.casefold() in _YES:
        return question.approve()
    # Anything but a clear yes runs nothing; what was said instead is the reason that the model is given.
    return question.deny() if said.casefold() in _NO else question.deny(said)


def _panel(question: Question) -> Panel:
    title = "May this run?" if question.kind == "confirm" else "The model asks"
    return Panel(Text(revealed(question.text)), title=Text(title), title_align="left", border_style="yellow")
