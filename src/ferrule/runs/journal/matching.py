"""Whether a journal entry answers an act, if their digests differ.

A digest names an act: `pay {"to": "ada"}` is a call, `confirm pay {"to": "ada"}` a question about it, `clock` a value. The digest of a
model request says nothing about the act: prompts may change while a run waits.
"""

from __future__ import annotations

from ferrule.values.encoding.pattern import pattern

_ARGUMENTS = pattern(r" (?=[\[{])")


def answers_act(recorded: str, then: str, kind: str, now: str, *, is_same_call: bool) -> bool:
    """Whether an entry of the kind `recorded` with the digest `then` answers an act of this kind with the digest `now`.

    Another call of the same tool is another act, unless both are one call of the model, whose arguments are read otherwise now.
    """
    if kind == "model":
        return recorded in {"model", "failure", "limit"}
    if recorded != kind:
        return False
    return then == now or (_name_of(then) == _name_of(now) and (kind != "result" or is_same_call))


def names_call(digest: str, name: str) -> bool:
    """Whether a digest is that of a call of this tool, or of a question about one."""
    return name in {found := _name_of(digest), found.partition(" ")[2]}


def _name_of(digest: str) -> str:
    found = _ARGUMENTS.split(digest, maxsplit=1)[0]
    # A call that waited for consent may no longer fit its tool, which makes a question of another kind.
    return found.replace("migration ", "confirm ", 1) if found.startswith("migration ") else found
