"""Decides in a replay whether a recorded entry answers the program's current act.

The digest of the act may have changed. It is short text: `pay {"to": "ada"}` for a call,
`confirm pay {"to": "ada"}` for the question whether it may run, `clock` for the time that was read.
The digest of a model request is not compared: prompts may change while a run waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from ferrule.encoding.pattern import pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

_ARGUMENTS = pattern(r" (?=[\[{])")


def answers_act(recorded: str, then: str, kind: str, now: str, *, is_same_call: bool) -> bool:
    """Whether an entry answers an act.

    The entry has the kind `recorded` and the digest `then`, the act `kind` and `now`. A call of the
    same tool with other arguments is another act, unless it is the same call of the model
    (`is_same_call`): then only the way in which its arguments are read has changed.
    """
    if kind == "model":
        return recorded in {"model", "failure", "limit"}
    if recorded != kind:
        return False
    return then == now or (_name_of(then) == _name_of(now) and (kind != "result" or is_same_call))


def names_call(digest: str, name: str) -> bool:
    """Whether a digest belongs to a call of the tool `name`, or to a question about one."""
    named = _name_of(digest)
    return name != "" and name in {named, named.partition(" ")[2]}


def equal_arguments(digest: str, args: Mapping[str, Any]) -> int:
    """How many of these arguments are equal in the digest of a call, or of a question about one.

    Repaired and secret ones differ.
    """
    _, _, written = digest.partition(" {")
    try:
        recorded = from_json(f"{{{written}".encode())
    except ValueError:  # not about a call
        return 0
    return sum(name in recorded and recorded[name] == value for name, value in args.items())


def _name_of(digest: str) -> str:
    name = _ARGUMENTS.split(digest, maxsplit=1)[0]
    # A call that waits for approval may no longer fit its tool: the question then asks how to
    # migrate it.
    if name.startswith("migration "):
        return name.replace("migration ", "confirm ", 1)
    return name
