"""What becomes of calls before anybody runs them: whether they run, a person is asked, or the rules in force deny them.

In: calls that a program is about to make, its own policy, and what the tools themselves wish. Out: a ruling for each, kept in the journal,
so that a run that goes on takes the same way: what was asked stays asked, whatever a policy or a tool says by then. Only a denial of now
counts for what has not begun, and is carried out in the call's place (`CheckedCall.refused`), so that no other call moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ferrule import settings
from ferrule.runs.journal.journal import Entry
from ferrule.values.confirmation.policy import Policy, Rule, strictest
from ferrule.values.encoding.encode import json_text
from ferrule.values.record import Record
from ferrule.values.run import event as events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ferrule.runs.state import Frame
    from ferrule.values.calls.call import CheckedCall

_STRICTNESS = {"allow": 0, "ask": 2, "deny": 3}
_UNRULED = 1


class Ruling(Record):
    """What is to become of one call."""

    verdict: Literal["allow", "ask", "deny"]
    reason: str = ""
    expires_s: float | None = None


Rulings = list["Ruling | None"]
"""One for each call; None for one that runs because nobody says anything against it."""


def is_ruled(own: Policy | None) -> bool:
    """Whether anything but the tools has a say here: a policy is in force, or the run that is replayed was told something."""
    if own is not None or settings.setting("policy") is not None:
        return True
    frame = settings.scope().frame
    return frame is not None and frame.run.journal.replaying


def rulings(calls: Sequence[CheckedCall], own: Policy | None, wish: Callable[[CheckedCall], Ruling | None]) -> Rulings:
    """What becomes of each call. `wish` is what the tool itself wants; it is asked where no policy speaks.

    Once a question was asked, or a later act of the program was answered, what was ruled then is the ruling. Before that, a run that goes
    on is ruled anew, and of the two rulings the stricter counts.
    """
    frame: Frame | None = settings.scope().frame
    then: Rulings | None = None
    if frame is not None and frame.run.journal.replaying:
        slot = _slot(frame)
        entry = frame.run.journal.take(slot, "once", _digest(calls)) if frame.run.journal.has(slot) else None
        then = [Ruling(*each) if each is not None else None for each in entry.value] if entry is not None else None
        if frame.run.journal.ahead(frame.path, frame.acts) is not None:
            return then if then is not None else [None] * len(calls)  # those that nothing is written of ran unasked
        if then is not None and any(each is not None and each.verdict == "ask" for each in then):
            return then
    rules = _rules(calls, own)
    made = [Ruling(rule.verdict, rule.reason, rule.expires_s) if rule is not None else None for rule in rules]
    made = [ruling if ruling is not None else wish(checked) for ruling, checked in zip(made, calls, strict=True)]
    if then is not None:
        made = [max(pair, key=_strictness) for pair in zip(made, then, strict=True)]
    if frame is not None and any(made) and made != then:
        forms = [[each.verdict, each.reason, each.expires_s] if each is not None else None for each in made]
        frame.run.journal.add(Entry(_slot(frame), "once", _digest(calls), forms))
    if frame is not None and frame.tell is not None:
        for rule, checked in zip(rules, calls, strict=True):
            if rule is not None:
                frame.tell(events.RuleUsed(checked.call, rule.verdict, str(rule)))
    return made


def denials(calls: Sequence[CheckedCall], own: Policy | None) -> list[str | None]:
    """The reasons (which may be empty) for which the policies of now deny calls; None for those that they do not deny."""
    return [rule.reason if rule is not None and rule.verdict == "deny" else None for rule in _rules(calls, own)]


def _slot(frame: Frame) -> str:
    # Beside the acts, not among them: a policy that comes or goes while a run waits must not move their places.
    return f"{frame.path}{frame.acts}p"


def _digest(calls: Sequence[CheckedCall]) -> str:
    return f"policy {json_text([[each.tool.name, each.arguments.shown] for each in calls])}"


def _rules(calls: Sequence[CheckedCall], own: Policy | None) -> list[Rule | None]:
    policies = [each for each in (settings.setting("policy"), own) if each is not None]
    return [_rule(policies, each) for each in calls]


def _rule(policies: Sequence[Policy], checked: CheckedCall) -> Rule | None:
    found = [rule for each in policies if (rule := each.rule_for(checked.tool.name, checked.arguments.shown)) is not None]
    return strictest(found) if found else None


def _strictness(ruling: Ruling | None) -> int:
    return _STRICTNESS[ruling.verdict] if ruling is not None else _UNRULED
