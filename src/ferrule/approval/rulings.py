"""Who decides about a call: a policy, a person, or neither.

Three sources have a say, and the strictest rule of the policies wins over the tool's own wish:

1. The policies in force: that of the settings and that of the program (`rule_for`).
2. The tool itself, where no policy has a rule: its `require_confirmation` (`needs_person`), and
   repairs of the model's text that may have dropped a part of the call (`lossy_repairs`).
3. The rulings that a resumed run recorded before it waited (`stricter_ruling`): a question that was
   asked stays a question, even if the policy has become more lenient since.

This module decides; it neither asks nor records. Runs record rulings, and programs act on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ferrule.approval.paths import conditions_on_server
from ferrule.approval.policy import Policy, Rule, check_arguments, is_of_server, rule_for
from ferrule.encoding.repair import LOSSY
from ferrule.encoding.stored import check_fields
from ferrule.errors import ConfirmationRejected, naming_failure, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.approval.policy import Grant
    from ferrule.values.calls.call import CheckedCall, ToolCall, ToolSpec

Ruling = Rule | None
"""The rule for one call; None for a call that runs because no rule matches it."""
# No ruling ranks between `allow` and `ask`: a policy that allows a call on which an earlier
# execution did not rule changes nothing, one that now asks does.
_STRICTNESS = {"allow": 0, "ask": 2, "deny": 3}
_NO_RULING = 1


class Looked(Struct, frozen=True):
    """The rules with conditions that look whose conditions held for one call."""

    rules: tuple[tuple[tuple[Rule, ...], ...], ...] = ()
    """For each policy in force, for it and each one around it: the rules that apply."""
    own: Rule | None = None
    """The tool's own rule, its `require_confirmation`, if it applies."""

    def of_policy(self, number: int) -> tuple[tuple[Rule, ...], ...] | None:
        """The rules of one of the policies; None if it was not in force when they were found."""
        if number < len(self.rules):
            return self.rules[number]
        return None


def needs_person(
    tool: ToolSpec,
    args: dict[str, Any],
    tool_call: ToolCall | None = None,
    *,
    looked: Looked | None = None,
) -> bool:
    """Whether the tool itself requires a person's consent to a call with these arguments.

    `require_confirmation` says: always, never, depending on the arguments, or (`"destructive"`)
    unless the tool only reads. `args` are the checked arguments as JSON. Without `tool_call`, a
    condition on the call itself is in doubt, and a person is asked; so is one that looks beyond
    the call, without `looked`.
    """
    requirement = tool.require_confirmation
    if requirement == "destructive":
        return tool.effect != "read"
    if isinstance(requirement, Rule):
        check_arguments(requirement, tool, args)
        if requirement.looks and looked is not None:
            return requirement.verdict == "ask" and looked.own is not None
        if is_of_server(tool):
            requirement = replace(requirement, where=conditions_on_server(requirement.where))
        return requirement(args, tool_call, tool=tool.name)
    if callable(requirement):
        with naming_failure(lambda: f"The function `require_confirmation` of `{tool.name}`"):
            return bool(requirement(args))
    return bool(requirement)


def may_need_person(checked: CheckedCall) -> bool:
    """Whether `tool_ruling` may ask for a person; it does not call the tool's own condition."""
    return bool(checked.tool.require_confirmation) or bool(lossy_repairs(checked))


def tool_ruling(checked: CheckedCall) -> Ruling:
    """The tool's own ruling on a call, which applies if no policy has a rule for it."""
    if checked.misfit:
        # Whether it needs consent cannot be known. If it has no result, the driver asks.
        return None
    tool, args = checked.tool, checked.arguments.shown
    if needs_person(tool, args, checked.call, looked=checked.looked) or lossy_repairs(checked):
        looked: Looked | None = checked.looked
        if looked is not None and looked.own is not None:
            return Rule("ask", reason=looked.own.reason)
        return Rule("ask")
    return None


def lossy_repairs(checked: CheckedCall) -> frozenset[str]:
    """The repairs that may have dropped a part of the call, if its tool must run only once.

    A call that may be repeated can be corrected by another call, so its repairs need no question.
    """
    if not checked.tool.says_once:
        return frozenset()
    return LOSSY.intersection(checked.call.repairs)


def denial_reasons(calls: Sequence[CheckedCall], policies: Sequence[Policy]) -> list[str | None]:
    """For each call, the reason (perhaps empty) if the policies deny it now; None otherwise."""
    reasons: list[str | None] = []
    for checked in calls:
        rule = rule_for(policies, checked)
        if rule is not None and rule.verdict == "deny":
            reasons.append(rule.reason)
        else:
            reasons.append(None)
    return reasons


def guarded(
    checked: CheckedCall,
    policies: Sequence[Policy],
    *,
    by_person: bool = False,
    grant: Grant | None = None,
) -> CheckedCall:
    """The call with a guard that rules on its paths once more, right before the tool runs.

    A link may have changed since: another call of the same answer may have made it. Only rules that
    follow paths can then differ, so a call without one has no guard. `by_person` says that a person
    decided on this call, `grant` that a grant did.
    """
    requirement = checked.tool.require_confirmation
    follows_paths = any(policy.judges_paths for policy in policies)
    if isinstance(requirement, Rule) and requirement.judges_paths:
        follows_paths = True
    if grant is not None and grant.judges_paths:
        follows_paths = True
    if not follows_paths:
        return checked

    def guard(now: CheckedCall) -> None:
        reason = _objection(now, policies, by_person=by_person, grant=grant)
        if reason is not None:
            text = (
                "The path no longer leads where it led when the call was allowed; it was not run."
            )
            if reason:
                text += f" Reason: {reason}"
            raise ConfirmationRejected(text, tool_call=now.call)

    return replace(checked, guard=guard)


def _objection(
    checked: CheckedCall, policies: Sequence[Policy], *, by_person: bool, grant: Grant | None
) -> str | None:
    """The reason (perhaps empty) why a call that was allowed is denied or would ask now."""
    rule = rule_for(policies, checked)
    if rule is not None and rule.verdict == "deny":
        return rule.reason
    if grant is not None and grant.judges_paths:
        if grant.fits(checked.arguments.shown, on_server=is_of_server(checked.tool)):
            return None
        return ""
    if by_person or grant is not None:
        return None
    if rule is None:
        rule = tool_ruling(checked)
    if rule is not None and rule.verdict == "ask":
        return ""
    return None


# -- recorded rulings


def stricter_ruling(ruling: Ruling, recorded: Ruling) -> Ruling:
    """The stricter of two rulings on one call; the first of equally strict ones."""
    return max(ruling, recorded, key=_strictness)


def ruling_form(ruling: Ruling) -> list[Any] | None:
    """A ruling as JSON, for the journal: only what is needed to act on it again."""
    if ruling is None:
        return None
    return [ruling.verdict, ruling.reason, ruling.expires_s]


def read_ruling(form: Any) -> Ruling:
    """Read a ruling from `ruling_form`; raises `ValueError` or `TypeError` for anything else."""
    if form is None:
        return None
    verdict, reason, expires_s = form
    if verdict not in _STRICTNESS:
        raise ValueError(f"{shown(verdict)} is not a verdict")
    return check_fields(Rule(verdict, reason=reason, expires_s=expires_s))


def _strictness(ruling: Ruling) -> int:
    if ruling is None:
        return _NO_RULING
    return _STRICTNESS[ruling.verdict]
