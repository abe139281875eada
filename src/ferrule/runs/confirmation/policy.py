"""Rulings on calls before they run: allow, ask, or deny.

In: the act `RuleCalls`. Out: a rule for each call, recorded in the journal. A resumed run therefore
takes the same path: a question stays a question, even if the policy or the tool has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule import events
from ferrule.approval.policy import rule_for
from ferrule.approval.rulings import read_ruling, ruling_form, stricter_ruling
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import reading
from ferrule.runs.journal.entry import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.acts import RuleCalls
    from ferrule.approval.rulings import Ruling
    from ferrule.runs.journal.journal import Journal
    from ferrule.runs.state import Frame

Rulings = list["Ruling"]


async def rule_calls(frame: Frame, act: RuleCalls) -> Rulings:
    """Rule on calls: apply the policies, and record their rulings.

    The recorded rulings are final once a question was asked, a call began, or a later act of the
    program was answered. If there is no record then, settled calls go on without a ruling: one
    could hide that they may have run. In all other cases a resumed run rules again, and the
    stricter of the two rulings applies.
    """
    journal = frame.run.journal
    # Beside the acts, not among them: a policy added or removed while a run waits must not shift
    # their slots.
    slot = f"{frame.path}{frame.acts}~policy"
    digest = f"policy {json_text([[each.tool.name, each.arguments.shown] for each in act.calls])}"
    recorded: Rulings | None = None
    is_underway = journal.has_begun_from(frame.path, frame.acts)
    if journal.replaying:
        if journal.has(slot) and (entry := journal.take(slot, "once", digest)) is not None:
            with reading(f"The rulings at {slot} of the journal"):
                recorded = (
                    [read_ruling(each) for each in entry.value]
                    if len(entry.value) == len(act.calls)
                    else None
                )
        is_underway = is_underway or journal.ahead(frame.path, frame.acts) is not None
        if recorded is not None and (
            is_underway or any(each is not None and each.verdict == "ask" for each in recorded)
        ):
            return recorded
    rules = [rule_for(act.policies, each.tool, each.arguments.shown) for each in act.calls]
    made = [
        rule if rule is not None else act.wish(checked)
        for rule, checked in zip(rules, act.calls, strict=True)
    ]
    if recorded is not None:
        made = [stricter_ruling(*pair) for pair in zip(made, recorded, strict=True)]
    if is_underway:
        settled = act.settled if act.settled is not None else (True,) * len(made)
        made = [
            None if is_settled else rule for is_settled, rule in zip(settled, made, strict=True)
        ]
    if journal.kept:  # they have run, so a denial would be untrue
        made = [
            None if has_result else rule
            for has_result, rule in zip(_kept_results(journal, act), made, strict=True)
        ]
    forms = [ruling_form(each) for each in made]
    if any(forms) and (recorded is None or forms != [ruling_form(each) for each in recorded]):
        await frame.write(Entry(slot, "once", digest, forms))
    if frame.tell is not None:
        for rule, each in zip(rules, act.calls, strict=True):
            if rule is not None:
                frame.tell(events.RuleUsed(each.call, rule.verdict, str(rule)))
    return made


def _kept_results(journal: Journal, act: RuleCalls) -> Iterator[bool]:
    """For each call, whether a restart kept the result of an equal call."""
    used: dict[str, int] = {}
    for each in act.calls:
        digest = each.digest
        kept, at = journal.kept.get(digest, ()), used.get(digest, 0)
        used[digest] = at + 1
        yield at < len(kept) and kept[at].kind == "result"
