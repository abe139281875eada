"""Asking the person at the terminal what a run waits for.

A confirmation takes `y`, `n`, `edit NAME=VALUE ...`, `always`, `why`, or what to do instead. Nothing is decided by accident: an empty line
and an edit that cannot be read are asked again, and whatever is not clearly yes runs nothing.
"""

from __future__ import annotations

import getpass
import json
import shlex
from time import time
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from ferrule.cli.safe_text import one_line, revealed
from ferrule.errors import DecisionError
from ferrule.runs.confirmation.decisions import fitting
from ferrule.values.confirmation.form import fields
from ferrule.values.confirmation.policy import Grant
from ferrule.values.encoding.encode import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from ferrule.values.confirmation.question import Decision, Question

_YES, _NO, _ALWAYS, _WHY = frozenset({"y", "yes"}), frozenset({"n", "no"}), frozenset({"always"}), frozenset({"why"})
_HINTS = {
    "confirm": "y, n, edit NAME=VALUE, always, why, or what to do instead: ",
    "clarify": "your answer: ",
    "unknown": "y (run it), n (leave it), or what came of it: ",
    "input": "the value, or a JSON object of the fields; y (the defaults; or: it is done), n (decline): ",
}
_TITLES = {"confirm": "May this run?", "clarify": "The model asks", "unknown": "Did this run?", "input": "A server asks"}


def ask_person(question: Question, console: Console, read_line: Callable[[], str] = input) -> Decision | None:
    """The person's decision; None where the input ends without one."""
    console.print(_panel(question))
    hint = _HINTS[question.kind]
    while True:
        console.print(Text(hint, "bold"), end="")
        try:
            said = read_line().strip()
        except EOFError:
            console.print()
            return None
        if question.kind == "confirm" and said.casefold() in _WHY:
            console.print(_why(question))
        elif said:
            try:
                return fitting(question, _decision(question, said), now=time()).signed(user_name(), "terminal")
            except DecisionError as error:
                console.print(Text(revealed(str(error)), "red"))


def _decision(question: Question, said: str) -> Decision:
    if question.kind == "clarify":
        return question.reply(said)
    if question.kind == "input":
        return question.decide(said)
    word = said.casefold()
    if word in _YES:
        return question.approve()
    if question.kind == "unknown":
        return question.deny() if word in _NO else question.reply(said)
    if word in _ALWAYS:
        return question.approve(always=Grant())
    if word == "edit" or (word.startswith("edit ") and "=" in said):
        return question.edit(edits(question, _words(said.partition(" ")[2])))
    if said.startswith("{"):
        return question.decide(said)
    # Anything but a clear yes runs nothing; what was said instead is the reason that the model is given.
    return question.deny() if word in _NO else question.deny(said)


def _words(said: str) -> list[str]:
    try:
        return shlex.split(said)
    except ValueError as error:
        msg = f"This edit cannot be read ({error}). Write: edit name=value other='two words'."
        raise DecisionError(msg) from error


def edits(question: Question, words: Sequence[str]) -> dict[str, Any]:
    """`path=b.txt`, `count=3` as arguments: JSON where it reads as such and the argument is no text, else text."""
    found: dict[str, Any] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not given or not name:
            msg = f"This edit cannot be read at {word!r}. Write: edit name=value other='two words'."
            raise DecisionError(msg)
        is_text = isinstance(question.call.args.get(name), str) if question.kind != "input" else _is_text(question, name)
        found[name] = value if is_text else _read(value)
    return found


def _is_text(question: Question, name: str) -> bool:
    return fields(question.form).get(name, {}).get("type") == "string"


def _read(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _panel(question: Question) -> Panel:
    title = _TITLES[question.kind]
    parts = [Text(revealed(question.text))]
    if question.call.intention:
        parts.append(Text(f"because: {revealed(question.call.intention)}", "dim"))
    for name, (written, prepared) in question.changes.items():
        if question.raw is not None and name in question.raw:  # a default that was filled in is no change of what the model wrote
            parts.append(Text(revealed(f"- {name}: {one_line(json_text(written))}"), "red"))
            parts.append(Text(revealed(f"+ {name}: {one_line(json_text(prepared))}"), "green"))
    return Panel(Group(*parts), title=Text(title), title_align="left", border_style="yellow")


def _why(question: Question) -> Text:
    """What is known of why the call was made, and of what it is."""
    known = {
        "the model thought": question.thought,
        "it says it wants to": question.call.intention or "",
        "asked inside": question.path,
        "the tool's definition": question.fingerprint,
    }
    lines = [f"{name}: {revealed(one_line(value))}" for name, value in known.items() if value]
    return Text("\n".join(lines) or "The model gave no reason.", "dim")


def user_name() -> str:
    """Who sits here, as far as it is known."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no name is known for this user here
        return ""
