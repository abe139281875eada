"""Messages to a run, as decisions of the kinds `say` and `say_after`: how one is made and checked.

A message comes from outside, as a decision does: it has the same doors, is stored in the same
place, and is used once (docs/decisions/0024). It answers no question, so its id is a number, which
says in which order the messages of a run came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from ferrule.approval.question import Decision, check_author
from ferrule.encoding.encode import escape_surrogates
from ferrule.errors import DecisionError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

When = Literal["next", "after"]
"""When a program reads a message: before its next request, or when it has answered."""

_PREFIX = "say:"
_KINDS: dict[str, Literal["say", "say_after"]] = {"next": "say", "after": "say_after"}
_REACHABLE = frozenset({"queued", "running", "waiting"})


def unsent_message(text: Any, *, when: Any = "next", by: str = "", via: str = "api") -> Decision:
    """A message without its number.

    Raises `DecisionError` for a text that says nothing, an unknown time, and an author that is not
    text.
    """
    if not isinstance(text, str) or not text.strip():
        raise DecisionError(
            f"A message to a run is a text that says something; found {shown(text)}."
        )
    if not isinstance(when, str) or when not in _KINDS:
        raise DecisionError(
            f"`when` is one of {', '.join(map(repr, get_args(When)))}; found {shown(when)}."
        )
    author, source = check_author(by, via)
    return Decision(_PREFIX, _KINDS[when], escape_surrogates(text), by=author, via=source)


def refuse_message(run_id: str, status: str, *, takes_messages: bool) -> None:
    """Raise `DecisionError` if no request of the run could have a message."""
    if status not in _REACHABLE:
        raise DecisionError(
            f"The run {run_id!r} is {status}: it makes no more requests that could have a message. "
            "Continue its conversation in another run, with `history=prediction.history`."
        )
    if not takes_messages:
        raise DecisionError(
            f"The program of the run {run_id!r} has no loop of requests, so no message can reach "
            "it. Agents (`ReAct`) and `Predict` with tools have one."
        )


def said_before(decisions: Iterable[Decision], key: Any, message: Decision) -> Decision | None:
    """The message that was sent with this key before, or None.

    Raises `DecisionError` if it is another one.
    """
    if not isinstance(key, str):
        raise DecisionError(f"The `key` of a message is a text; found {shown(key)}.")
    if not key:
        return None
    for decision in decisions:
        if not is_message(decision) or key_of_message(decision) != escape_surrogates(key):
            continue
        if (decision.kind, decision.text) != (message.kind, message.text):
            raise DecisionError(
                f"Another message was sent with the key {key!r} before: {shown(decision.text)}."
            )
        return decision
    return None


def with_number(message: Decision, number: int, key: str, *, at: float) -> Decision:
    """The message as the `number`th of its run."""
    question_id = f"{_PREFIX}{number:06}"
    if key:
        question_id += f":{escape_surrogates(key)}"
    return Decision(question_id, message.kind, message.text, by=message.by, via=message.via, at=at)


def is_message(decision: Decision) -> bool:
    """Whether this is a message, not a decision on a question."""
    return decision.kind in _KINDS.values()


def number_of(message: Decision) -> int:
    """The number of a message in its run, from 1."""
    return int(message.question_id.removeprefix(_PREFIX).partition(":")[0])


def key_of_message(message: Decision) -> str:
    """The key with which a message was sent; empty without one."""
    return message.question_id.removeprefix(_PREFIX).partition(":")[2]


def is_for_after(message: Decision) -> bool:
    """Whether the program reads the message only when it has answered."""
    return message.kind == _KINDS["after"]
