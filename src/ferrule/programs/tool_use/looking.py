"""Asks the conditions that look beyond a call, and records their answers.

A rule with a function in `when=` may ask a database, a service or another program, which may answer
otherwise the next time. So these functions are called once for each call, before the policies rule
on it, and a replay takes their answers from the journal.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule.acts import Once
from ferrule.approval.policy import CallCondition, Policy, Rule, is_of_server, policies_in
from ferrule.approval.provenance import tainted_arguments
from ferrule.approval.rulings import Looked, read_ruling, ruling_form
from ferrule.errors import naming_failure, refuse_awaitable
from ferrule.programs.tool_use.reviewing import CTX, reviewed
from ferrule.tools.definition.deps import context_parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ferrule.values.calls.call import CheckedCall
    from ferrule.values.calls.context import Context

_NAME = "conditions"


def look(
    calls: Sequence[CheckedCall], policies: Sequence[Policy]
) -> Generator[Once, Any, list[CheckedCall]]:
    """The calls with what the conditions found that look beyond them (`CheckedCall.looked`)."""
    if not any(_may_look(checked, policies) for checked in calls):
        return list(calls)
    here: list[Looked] = []  # stays empty in a replay

    async def look_at_all(call: Callable[..., Any]) -> list[Any]:
        for checked in calls:
            here.append(await _look_at(checked, policies, call))
        return list(map(_form, here))

    forms = yield Once(look_at_all, _NAME, runs_code=True)
    if not forms:  # the run went on without: the conditions stay in doubt
        return list(calls)
    every_looked = here or [_read(form) for form in forms]
    return [
        replace(checked, looked=looked) for checked, looked in zip(calls, every_looked, strict=True)
    ]


def _may_look(checked: CheckedCall, policies: Sequence[Policy]) -> bool:
    if checked.misfit:
        return False
    return any(policy.looks for policy in policies) or _own_rule(checked) is not None


def _own_rule(checked: CheckedCall) -> Rule | None:
    """The tool's own rule, if it looks."""
    requirement = checked.tool.require_confirmation
    if isinstance(requirement, Rule) and requirement.looks:
        return requirement
    return None


async def _look_at(
    checked: CheckedCall, policies: Sequence[Policy], call: Callable[..., Any]
) -> Looked:
    by_policy: list[tuple[tuple[Rule, ...], ...]] = []
    for policy in policies:
        in_force = policy.for_server() if is_of_server(checked.tool) else policy
        by_layer = [await _applying(layer.rules, checked, call) for layer in policies_in(in_force)]
        by_policy.append(tuple(by_layer))
    own_rule = _own_rule(checked)
    asking: list[Rule] = []
    if own_rule is not None:
        applying = await _applying([replace(own_rule, tool="*")], checked, call)
        asking = [rule for rule in applying if rule.verdict != "allow"]
    return Looked(tuple(by_policy), next(iter(asking), None))


async def _applying(
    rules: Sequence[Rule], checked: CheckedCall, call: Callable[..., Any]
) -> tuple[Rule, ...]:
    """Of the rules that look beyond a call, those that apply to it."""
    applying: list[Rule] = []
    for rule in rules:
        if not rule.looks:
            continue
        if not rule.may_cover(checked.tool.name, checked.arguments.shown, checked.call):
            continue
        if not await _holds(rule, checked, call):
            continue
        traced = await _traced(rule, checked, call)
        if traced is None:
            continue
        if rule.by is None:
            applying.append(traced)
        else:
            applying.append(await reviewed(traced, checked, call))
    return tuple(applying)


async def _holds(rule: Rule, checked: CheckedCall, call: Callable[..., Any]) -> bool:
    """What the function in `when=` says; a call that lacks an argument of it does not meet it."""
    condition = rule.condition
    if condition is None:
        return True
    arguments = condition.arguments(checked.arguments.shown)
    if arguments is None:
        return False
    what = f"The condition of {rule}"
    parameter = None
    if condition.context:
        # By its annotation, which may say what `deps` it needs; or by its name alone.
        parameter = context_parameter(condition.function) or replace(CTX, name=condition.context)
        parameter = replace(parameter, position=None)
    with naming_failure(lambda: f"In a call of `{checked.tool.name}`, the condition of {rule}"):
        answer = await call(
            partial(condition.function, **arguments),
            context=parameter,
            is_async=condition.is_async,
            what=what,
        )
    refuse_awaitable(answer, what)
    if answer is None:  # it cannot say
        return rule.verdict != "allow"
    return bool(answer)


async def _traced(rule: Rule, checked: CheckedCall, call: Callable[..., Any]) -> Rule | None:
    """The rule, with where the call's arguments come from in its reason; None if it does not hold.

    Unchanged if it does not ask where they come from.
    """
    when = rule.when
    if not isinstance(when, CallCondition) or not when.looks:
        return rule
    trace = partial(_trace, when, checked)
    origin: str | None = await call(trace, context=CTX, is_async=False, what=f"{rule}")
    if origin is None:
        return None
    reasons = [reason for reason in (rule.reason, origin) if reason]
    return replace(rule, reason="; ".join(reasons))


def _trace(when: CallCondition, checked: CheckedCall, *, ctx: Context[Any]) -> str | None:
    """Why a condition on what the run has read holds; None if it does not."""
    sources, reasons = ctx.sources, list[str]()
    if when.after is not None:
        if not sources:
            return None
        reasons.append(f"the run has read {sources[-1]}, which others may have written")
    if when.tainted is not None:
        arguments = {**checked.arguments.shown}
        for name in checked.arguments.secrets:
            arguments[name] = checked.call.args.get(name)
        schema = checked.tool.declaration["function"]["parameters"]
        in_prose = when.tainted != "values"
        tainted = tainted_arguments(arguments, schema, sources, ctx.user_words, in_prose=in_prose)
        if bool(tainted) != bool(when.tainted):
            return None
        if tainted:
            reasons.append(tainted)
    return "; ".join(reasons)


def _form(looked: Looked) -> dict[str, Any]:
    return {
        "rules": [
            [[ruling_form(rule) for rule in layer] for layer in layers] for layers in looked.rules
        ],
        "own": ruling_form(looked.own),
    }


def _read(form: Any) -> Looked:
    rules = tuple(
        tuple(tuple(_read_rule(rule) for rule in layer) for layer in layers)
        for layers in form["rules"]
    )
    return Looked(rules, read_ruling(form["own"]))


def _read_rule(form: Any) -> Rule:
    rule = read_ruling(form)
    if rule is None:
        raise ValueError("a rule is missing")
    return rule
