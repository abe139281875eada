"""Holds rules against what a store recorded: what a policy would have said, what people said.

`judge_calls` runs a policy over the recorded calls, and counts its verdicts beside the decisions of
people. `propose_rules` finds rules that agree with those decisions; a person must read them before
they apply.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from ferrule.approval.paths import looks_like_path, under
from ferrule.approval.policy import Policy, Rule, allow, le, policies_in, policy_rule
from ferrule.encoding.encode import json_text
from ferrule.runs.journal.encode import read_entry
from ferrule.runs.story import story
from ferrule.values.calls.call import FROM_TEXT, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ferrule.approval.question import Decision
    from ferrule.runs.protocols import Store
    from ferrule.runs.story import Beat, CallBeat

PersonsAnswer = Literal["approved", "edited", "denied", "answered"]
"""What a person decided about a call; `answered` is a reply in place of its result."""
_SAID: Mapping[str, PersonsAnswer] = {
    "approve": "approved",
    "edit": "edited",
    "deny": "denied",
    "reply": "answered",
}


class RecordedCall(Struct, frozen=True):
    """A call that ran, or that a person decided about."""

    run_id: str
    call: ToolCall
    """With the arguments that a policy judged, before a person edited them."""
    said: PersonsAnswer | None = None
    """What a person decided; None if nobody was asked."""


class ToolTally(Struct):
    """The calls of one tool, by what the policy says of them and what people said."""

    verdicts: Counter[str] = field(default_factory=Counter[str])
    """The number of calls by verdict; `own` where no rule applies."""
    said: Counter[str] = field(default_factory=Counter[str])
    """The number of calls by what people decided; `nobody` for the others."""


class JudgedCalls(Struct):
    """What a policy says of recorded calls."""

    tools: dict[str, ToolTally]
    differing: list[tuple[RecordedCall, str]]
    """The calls that it would let run and a person did not, or deny and a person approved."""
    in_doubt: int = 0
    """The calls about which a condition that looks beyond them would decide."""


def recorded_calls(store: Store, run_ids: Iterable[str]) -> Iterator[RecordedCall]:
    """The calls of these runs, also those of programs inside them, in the order of each run."""
    for run_id in run_ids:
        entries = [read_entry(text) for text in store.load(run_id).entries]
        yield from _calls_of(run_id, story(entries))


def _calls_of(run_id: str, beats: Sequence[Beat]) -> Iterator[RecordedCall]:
    for beat in beats:
        for call in beat.calls:
            said: PersonsAnswer | None = None
            for decision in call.decisions:
                if _is_by_person(decision):
                    said = _SAID[decision.kind]
            if call.begun or said is not None:
                yield RecordedCall(run_id, _as_judged(call, edited=said == "edited"), said)
            yield from _calls_of(run_id, call.inside)


def _is_by_person(decision: Decision) -> bool:
    is_automatic = decision.via in {"policy", "expiry"} or decision.via.startswith("grant:")
    return decision.kind in _SAID and not is_automatic


def _as_judged(call: CallBeat, *, edited: bool) -> ToolCall:
    args = dict(call.args or call.written or {})
    if edited and call.written is not None:
        args.update(call.written)
    repairs = (FROM_TEXT,) if call.is_rescued else ()
    return ToolCall.unchecked(call.name, args, repairs=repairs, confidence=call.confidence)


def judge_calls(policy: Policy, calls: Iterable[RecordedCall]) -> JudgedCalls:
    """Count what a policy says of recorded calls, beside what people said."""
    judged = JudgedCalls({}, [])
    for recorded in calls:
        call = recorded.call
        rule = policy_rule(policy, call.name, call.args, call)
        verdict = "own" if rule is None else rule.verdict
        tally = judged.tools.setdefault(call.name, ToolTally())
        tally.verdicts[verdict] += 1
        tally.said[recorded.said or "nobody"] += 1
        judged.in_doubt += _is_in_doubt(policy, call)
        let_through = verdict == "allow" and recorded.said in {"denied", "edited", "answered"}
        if let_through or (verdict == "deny" and recorded.said == "approved"):
            judged.differing.append((recorded, verdict))
    return judged


def _is_in_doubt(policy: Policy, call: ToolCall) -> bool:
    return any(
        rule.looks and rule.may_cover(call.name, call.args, call)
        for layer in policies_in(policy)
        for rule in layer.rules
    )


class Proposal(Struct, frozen=True):
    """A rule that agrees with what people decided."""

    rule: Rule
    approved: int
    """The approvals that it covers."""
    tool_approved: int
    """All approvals of the tool."""


def propose_rules(calls: Iterable[RecordedCall], *, least: int = 5) -> list[Proposal]:
    """Rules that allow what people approved at least `least` times, and nothing that they refused.

    One for a tool: each of its arguments is bounded by what was approved, paths by their folder,
    numbers by the largest one, a text by its only value. An argument whose values have no bound is
    free, so a rule is proposed only if another one is bounded.
    """
    by_tool: dict[str, list[RecordedCall]] = {}
    for recorded in calls:
        if recorded.said is not None:
            by_tool.setdefault(recorded.call.name, []).append(recorded)
    proposals: list[Proposal] = []
    for name, decided in sorted(by_tool.items()):
        approved = [recorded.call.args for recorded in decided if recorded.said == "approved"]
        refused = [recorded.call.args for recorded in decided if recorded.said != "approved"]
        if len(approved) < least:
            continue
        rule = allow(name, where=_bounds(approved))
        if not rule.where or any(rule.covers(name, args) for args in refused):
            continue
        covered = sum(rule.covers(name, args) for args in approved)
        proposals.append(Proposal(rule, covered, len(approved)))
    return proposals


def _bounds(approved: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each argument of all these calls, a condition that they meet, where there is one."""
    names = set(approved[0]).intersection(*approved)
    bounds: dict[str, Any] = {}
    for name in sorted(names):
        bound = _bound([args[name] for args in approved])
        if bound is not None:
            bounds[name] = bound
    return bounds


def _bound(values: Sequence[Any]) -> Any:
    if all(json_text(value) == json_text(values[0]) for value in values):
        is_literal = not isinstance(values[0], str) or not set(values[0]) & set("*?[")
        return values[0] if is_literal and isinstance(values[0], str | int | float | bool) else None
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return le(max(values))
    if all(isinstance(value, str) and looks_like_path(value) for value in values):
        folder = _common_folder([PurePath(value) for value in values])
        if folder is not None:
            return under(folder)
    return None


def _common_folder(paths: Sequence[PurePath]) -> str | None:
    """The folder of all these paths; None if only the root is, or if one has two readings."""
    if any(".." in path.parts for path in paths):
        return None
    for folder in paths[0].parents:
        is_above_all = all(path.is_relative_to(folder) for path in paths)
        if is_above_all and folder != PurePath(folder.anchor):
            return str(folder)
    return None
