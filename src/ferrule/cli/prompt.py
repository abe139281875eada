"""Ask the person at the terminal for a decision.

A confirmation takes `y`, `n`, `edit NAME=VALUE ... without NAME ...`, `always`, `folder` (always in
this folder, if the call has a path), `why`, or what to do instead. After an empty line or an
unreadable edit the question is asked again. Anything but a clear yes denies the call.
"""

from __future__ import annotations

import getpass
import json
from time import time
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from ferrule.approval.call_view import refuse_unseen, view_call
from ferrule.approval.decisions import accept
from ferrule.approval.input_form import form_fields
from ferrule.approval.policy import Grant, describe_folders
from ferrule.encoding.safe_text import one_line, reveal
from ferrule.errors import DecisionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from ferrule.approval.question import Decision, Question

_YES = frozenset({"y", "yes"})
_NO = frozenset({"n", "no"})
_WITHOUT = "without"
"""The word before the names of arguments that an edit removes."""
_HINTS = {
    "confirm": "y, n, edit NAME=VALUE without NAME, always, why, or what to do instead: ",
    "clarify": "your answer: ",
    "unknown": "y (run it), n (skip it), or its result: ",
    "migration": "its result, edit NAME=VALUE ... (all arguments), n (leave it): ",
    "input": "the value, or a JSON object of the fields; "
    "y (accept the defaults, or confirm), n (decline): ",
    "result": "its result, or deny REASON: ",
}
_TITLES = {
    "confirm": "May this run?",
    "clarify": "The program asks",
    "unknown": "Did this run?",
    "migration": "The program has changed",
    "input": "A server asks",
    "result": "A result comes from outside",
}


def ask_at_terminal(
    question: Question, console: Console, read_line: Callable[[], str] = input
) -> Decision | None:
    """The person's decision, or None at the end of input."""
    console.print(_panel(question))
    hint = _HINTS[question.kind]
    if question.kind == "migration" and not question.takes_edit:
        hint = "its result, n (leave it): "
    grant = question.grant_for_folder()
    if grant is not None:
        console.print(Text(f"folder: further calls with {describe_folders(grant)}", "dim"))
        hint = hint.replace("always,", "always, folder,")
    while True:
        console.print(Text(hint, "bold"), end="")
        try:
            text = read_line().strip()
        except EOFError:
            console.print()
            return None
        if question.kind == "confirm" and text.casefold() == "why":
            console.print(_explain(question))
        elif text:
            try:
                decision = accept(question, _decision(question, text), now=time())
                return decision.signed(user_name(), "terminal")
            except DecisionError as error:
                console.print(Text(reveal(str(error)), "red"))


def _decision(question: Question, text: str) -> Decision:
    if question.kind == "clarify":
        return question.reply(text)
    if question.kind == "input":
        return question.decide(text)
    if question.kind == "result":
        command, _, reason = text.partition(" ")
        if command.casefold() == "deny":
            return question.deny(reason)
        return question.reply(text)
    return _decision_on_call(question, text)


def _decision_on_call(question: Question, text: str) -> Decision:
    """The decision on a call that has not run, or may have run."""
    word = text.casefold()
    grant = None
    if word == "folder" and question.kind == "confirm":
        grant = question.grant_for_folder()
        if grant is None:
            raise DecisionError("This call has no path that lies in one folder without doubt.")
    is_approval = (
        word in _YES or word == "always" or grant is not None or word.startswith(("edit", "{"))
    )
    if is_approval:
        refuse_unseen(question)
    if word in _YES:
        return question.approve()
    if question.kind == "unknown":
        if word in _NO:
            return question.deny()
        return question.reply(text)
    if word == "always":
        return question.approve(always=Grant())
    if grant is not None:
        return question.approve(always=grant)
    is_edit = word.startswith("edit ") and ("=" in text or word.startswith(f"edit {_WITHOUT} "))
    if word == "edit" or is_edit:
        edits, removed = read_edit(question, _words(text.partition(" ")[2]))
        return question.edit(edits, removed=removed)
    if text.startswith("{"):
        return question.decide(text)
    if question.kind == "migration" and word not in _NO:
        return question.reply(text)
    if word in _NO:
        return question.deny()
    return question.deny(text)


def _words(text: str) -> list[str]:
    from ferrule.mcp_bridge.spec import split_words

    try:
        return split_words(text)
    except ValueError as error:
        raise DecisionError(
            f"This edit cannot be read ({error}). "
            "Write: edit name=value other='two words' without third."
        ) from error


def read_edit(question: Question, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Read `path=b.txt without note` as changed arguments and names to remove."""
    # An argument of this name is changed by `without=...`, which is another word.
    if _WITHOUT not in words:
        return read_edits(question, words), []
    start = words.index(_WITHOUT)
    removed = list(words[start + 1 :])
    if not removed or any("=" in name for name in removed):
        raise DecisionError(
            f"The names of arguments to remove come after {_WITHOUT!r}, at the end; "
            f"found {' '.join(removed)!r}."
        )
    return read_edits(question, words[:start]), removed


def read_edits(question: Question, words: Sequence[str]) -> dict[str, Any]:
    """Read `path=b.txt`, `count=3` as arguments.

    A value is JSON if it parses and the argument is not a text; otherwise it is text.
    """
    edits: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise DecisionError(
                f"This edit cannot be read at {word!r}. Write: edit name=value other='two words'."
            )
        edits[name] = value if _is_text(question, name) else json_or_text(value)
    return edits


def _is_text(question: Question, name: str) -> bool:
    """Whether an argument, or a field of a form, is a text."""
    if question.kind == "input":
        return form_fields(question.form).get(name, {}).get("type") == "string"
    return isinstance(question.call.args.get(name), str)


def json_or_text(value: str) -> Any:
    """The JSON value of a text, or the text if it is not JSON."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def _panel(question: Question) -> Panel:
    title = _TITLES[question.kind]
    text = question.text
    if question.kind == "confirm" and question.fingerprint:
        text = question.note  # the rest of the text repeats the call
    parts: list[Text] = []
    if text:
        parts.append(Text(reveal(text.rstrip("\n"))))
    if question.kind != "clarify":
        parts.append(Text("\n".join(view_call(question).lines())))
    if question.call.intention:
        parts.append(Text(f"because: {reveal(question.call.intention)}", "dim"))
    return Panel(Group(*parts), title=Text(title), title_align="left", border_style="yellow")


def _explain(question: Question) -> Text:
    """Why the model made the call, and which definition of the tool it calls."""
    facts = {
        "the model thought": question.thought,
        "its intention": question.call.intention or "",
        "in the nested program": question.path,
        "the tool's definition": question.fingerprint,
    }
    lines = [f"{name}: {one_line(reveal(value))}" for name, value in facts.items() if value]
    return Text("\n".join(lines) or "The model gave no reason.", "dim")


def user_name() -> str:
    """The name of the user, or an empty string."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # the system knows no name
        return ""
