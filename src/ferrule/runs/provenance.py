"""What a run has read that others may have written, and what its user said.

Conditions of rules look at both (`approval/provenance.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from ferrule.approval.message import is_message
from ferrule.approval.provenance import Source
from ferrule.encoding.encode import jsonable
from ferrule.schema.nodes import is_object, is_sequence
from ferrule.tools.toolbox import LiveToolbox
from ferrule.values.content.convert import content_text
from ferrule.values.conversation.history import History
from ferrule.values.conversation.message import Message
from ferrule.values.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ferrule.approval.question import Decision
    from ferrule.runs.journal.entry import Entry

_NUMBER = re.compile(r"[0-9]+")
_BRANCH = re.compile(r"gather#[0-9]+\.")
_RECORDED_STEPS = re.compile(r"observation_\d|^Results of your calls:")
"""In a user message that ferrule wrote, with results of calls that a model made as text."""
_NOT_BY_PERSON = ("policy", "expiry", "delivery", "grant:")
"""The beginnings of `Decision.via` where a person did not write the decision for this question."""


# -- what others may have written


def sources_before(frame: Any, act: int) -> list[Source]:
    """The untrusted results that this act of a frame can have been made from.

    They are those of the acts before it in its own program and in the programs around it, with
    everything inside them, and those of earlier turns. Calls of one answer were made together, and
    so know nothing of one another; neither do the branches of one `gather`.
    """
    run = frame.run
    sources = [source for history in _histories(frame) for source in _in_history(run, history)]
    number = 0
    for entry in run.journal.entries:
        if entry.kind != "result":
            continue
        number += 1
        if entry.value.untrusted and _is_before(entry.slot, f"{frame.path}{act}"):
            sources.append(_source(run, entry, number))
    return sources


def _source(run: Any, entry: Entry, number: int) -> Source:
    """The source that an entry is. It is kept with its run: its text is prepared once."""
    source = run.sources.get(entry.slot)
    if source is None or source.content is not entry.value.content:
        source = Source(entry.value.name, number, entry.value.content)
        run.sources[entry.slot] = source
    return source


def _is_before(slot: str, act: str) -> bool:
    """Whether what was recorded at a slot came before an act, as far as the slots tell.

    In plain Python they do not: code may use a value anywhere after it was recorded.
    """
    for theirs, ours in zip(slot.split("/"), act.split("/"), strict=False):
        if theirs == ours:
            continue
        their_act, our_act = _NUMBER.match(theirs), _NUMBER.match(ours)
        if their_act is not None and our_act is not None:
            return int(their_act[0]) < int(our_act[0])
        branch = _BRANCH.match(theirs)
        return branch is None or not ours.startswith(branch[0])
    return True


# -- what the user said


def users_words(frame: Any, inputs: Mapping[str, Any]) -> list[str]:
    """What people said in this run: its inputs, messages, replies, edits and earlier turns."""
    run = frame.run
    words: list[str] = []
    for value in inputs.values():
        if not isinstance(value, History):
            words += _texts(jsonable(value))
    for history in _histories(frame):
        words += _said_in(history, _input_names(run.program))
    for entry in run.journal.entries:
        if entry.kind == "decision" and not Slot(entry.slot).is_of_wait:
            words += _said_by(entry.value)
    return words


def _said_by(decision: Decision) -> list[str]:
    if is_message(decision):
        return [decision.text]
    if decision.via.startswith(_NOT_BY_PERSON):
        return []
    words = [decision.text]
    if decision.kind == "edit":
        words += _texts(decision.args)
    return words


def _texts(value: Any) -> Iterator[str]:
    """The texts and numbers in JSON data."""
    if is_object(value):
        for item in value.values():
            yield from _texts(item)
    elif is_sequence(value):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value
    elif value is not None and not isinstance(value, bool):
        yield str(value)


# -- earlier turns


def _histories(frame: Any) -> list[History]:
    """The histories that code gave to this program and to the programs around it."""
    run, histories = frame.run, list[History]()
    given = [*run.args, *run.inputs.values()]
    while frame is not None:
        given += frame.given
        frame = frame.outer
    for value in given:
        if isinstance(value, History) and not any(value is known for known in histories):
            histories.append(value)
    return histories


def _in_history(run: Any, history: History) -> Iterator[Source]:
    """The results in a history, without those of tools that the program has, and trusts."""
    trusted: set[str] | None = None
    names: dict[str | None, str] = {}
    for entry in history.entries():
        if not isinstance(entry, Message):
            continue
        names |= {call.id: call.name for call in entry.tool_calls}
        name = names.get(entry.tool_call_id, entry.name or "?")
        if entry.role == "user" and _RECORDED_STEPS.search(entry.text):
            yield Source("?", 0, entry.text)
        elif entry.role == "tool":
            if trusted is None:
                trusted = _trusted_tools(run.program)
            if name not in trusted:
                yield Source(name, 0, entry.content)


def _said_in(history: History, input_names: frozenset[str]) -> Iterator[str]:
    for entry in history.entries():
        if isinstance(entry, Message):
            if entry.role == "user" and not _RECORDED_STEPS.search(entry.text):
                yield content_text(entry.content)
            continue
        turn = cast("Mapping[str, Any]", entry)
        yield from _texts(jsonable({key: turn[key] for key in turn if key in input_names}))


def _trusted_tools(program: Any) -> set[str]:
    trusted = {"finish"}
    users = getattr(program, "tool_users", tuple)
    for user in users():
        toolbox = user.toolbox
        tools = toolbox.local().values() if isinstance(toolbox, LiveToolbox) else toolbox
        trusted |= {tool.name for tool in tools if not tool.untrusted}
    return trusted


def _input_names(program: Any) -> frozenset[str]:
    signature = getattr(program, "program_signature", None)
    if signature is None:
        return frozenset()
    return frozenset(signature.input_fields)
