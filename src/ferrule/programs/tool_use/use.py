"""Using tools: from calls as a model wrote them to results, by way of checks and people.

What the model can mend becomes a `ToolResult`; every call gets exactly one, in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from ferrule.errors import ToolArgumentsError, ToolCallError, UnknownToolError
from ferrule.programs.instructions import CLARIFY
from ferrule.tools.execution.consent import needs_person
from ferrule.tools.sources.remote import origin
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult, failure
from ferrule.values.calls.edit import edited as edited_arguments
from ferrule.values.confirmation.policy import Rule, rule_for
from ferrule.values.confirmation.question import Decision, Question, confirmation_text, fingerprint
from ferrule.values.content.parts import Text
from ferrule.values.encoding.encode import json_text
from ferrule.values.encoding.repair import LOSSY
from ferrule.values.record import Record, replace
from ferrule.values.run.act import Act, AskPerson, CallTools, Conditions, RuleCalls

if TYPE_CHECKING:
    from ferrule.tools.toolbox import Toolbox
    from ferrule.values.confirmation.policy import Policy

_RULED_OUT = "The rules that hold here do not allow this call"
Used = Generator[Act, Any, list[ToolResult]]


def use(
    toolbox: Toolbox, calls: Sequence[ToolCall], host: Any, conditions: Conditions, *, thought: str = "", policy: Policy | None = None
) -> Used:
    """One result a call. Calls that need no decision run first, then those that a person decided on.

    `host` is what a change of tools is made on, `thought` what a person is shown beside a question, `policy` the program's own policy.
    """
    # A resumed run keeps the rulings that it recorded.
    is_ruled = conditions.is_resumed or policy is not None or conditions.policy is not None
    if len(calls) == 1 and not is_ruled:  # the usual turn, without the bookkeeping
        only = check(toolbox, calls[0], host)
        if isinstance(only, ToolResult):
            return [only]
        if not _may_ask(only):
            return (yield CallTools((only,)))
    results: list[ToolResult | None] = [None] * len(calls)
    good: list[tuple[int, CheckedCall]] = []
    for at, call in enumerate(calls):
        checked = check(toolbox, call, host)
        if isinstance(checked, ToolResult):
            results[at] = checked
        else:
            good.append((at, checked))
    policies = tuple(each for each in (conditions.policy, policy) if each is not None)
    ready, asked = good, []
    if is_ruled or any(_may_ask(checked) for _, checked in good):
        rules: list[Rule | None] = yield RuleCalls(tuple(checked for _, checked in good), policies, _wish)
        ready, asked = _sorted(good, rules, results, thought)
    yield from _run(ready, results, policies)
    if asked:
        yield from _decided(asked, results, policies)
    return results  # pyright: ignore[reportReturnType]  every call has its result by now


class _Asked(Record):
    """A call that a person is asked about."""

    at: int
    checked: CheckedCall
    thought: str
    expires_s: float | None = None
    why: str = ""
    """What a person is to know, beside the call."""

    def question(self) -> Question:
        call, arguments = self.checked.call, self.checked.arguments.shown
        shown = call.changed(args=arguments)
        raw = {name: arguments[name] if name in self.checked.arguments.secrets else value for name, value in call.args.items()}
        if self.checked.tool is CLARIFY:
            return Question("clarify", str(arguments.get("question", "")), shown, thought=self.thought)
        tool = self.checked.tool
        server, original = origin(tool)
        bound = fingerprint(tool.declaration, tool.effect)
        text = self.why + getattr(tool.func, "note", "") + confirmation_text(call.name, arguments, server, original)
        asked = Question("confirm", text, shown, "", bound, self.thought, raw, expires_s=self.expires_s)
        return replace(asked, server=server, original=original) if server else asked


def _sorted(
    calls: list[tuple[int, CheckedCall]], rules: Sequence[Rule | None], results: list[ToolResult | None], thought: str
) -> tuple[list[tuple[int, CheckedCall]], list[_Asked]]:
    """The calls that may run, and those to ask about; one that a policy denies has its result at once."""
    ready: list[tuple[int, CheckedCall]] = []
    asked: list[_Asked] = []
    for (at, checked), ruling in zip(calls, rules, strict=True):
        tool = checked.tool
        if tool is CLARIFY:  # no policy answers for a person
            asked.append(_Asked(at, checked, thought))
        elif ruling is not None and ruling.verdict == "deny":
            results[at] = _denied(checked, _RULED_OUT, ruling.reason)
        elif ruling is not None and ruling.verdict == "ask":
            lost = _lost(checked)
            why = f"A part of what the model wrote was dropped to read this call ({', '.join(sorted(lost))}).\n" if lost else ""
            asked.append(_Asked(at, checked, thought, ruling.expires_s or getattr(tool.require_confirmation, "expires_s", None), why))
        else:
            ready.append((at, checked))
    return ready, asked


def _may_ask(checked: CheckedCall) -> bool:
    """Whether `_wish` may want a person asked. It does not call a condition of the tool's own."""
    return bool(checked.tool.require_confirmation or checked.tool is CLARIFY or checked.call.repairs)


def _wish(checked: CheckedCall) -> Rule | None:
    """What the tool itself wants, where no policy speaks."""
    tool = checked.tool
    asks = tool is not CLARIFY and (needs_person(tool, checked.arguments.shown) or bool(_lost(checked)))
    return Rule("ask") if asks else None


def _lost(checked: CheckedCall) -> frozenset[str]:
    """The repairs that may have lost a part of a call that must happen once (L11)."""
    return LOSSY.intersection(checked.call.repairs) if checked.tool.says_once else frozenset()


def _denied(checked: CheckedCall, told: str, reason: str) -> ToolResult:
    return ToolResult(checked.call.name, _denial(told, reason), checked.call.id, is_error=True)


def _denial(told: str, reason: str) -> str:
    return f"{told}; it was not run.{f' Reason: {reason}' if reason else ''}"


def check(toolbox: Toolbox, call: ToolCall, host: Any = None) -> CheckedCall | ToolResult:
    """The call ready to run, or what the model is told instead."""
    tool = toolbox.get(call.name)
    if call.fault is not None:
        return failure(call, ToolCallError(call.fault.code, f"Call to `{call.name}` was not run: {call.fault.reason}", raw=call.fault.raw))
    if tool is None:
        return failure(call, UnknownToolError(call.name, toolbox.names))
    try:
        return CheckedCall(call, tool, tool.prepare(call.args), host)
    except ToolArgumentsError as error:
        return failure(call, error)


def _run(
    ready: list[tuple[int, CheckedCall]],
    results: list[ToolResult | None],
    policies: tuple[Policy, ...],
    edited: AbstractSet[int] = frozenset(),
) -> Generator[Act, Any, None]:
    """Run calls, but for those that the rules of now deny. `edited` are the places of those that a person changed."""
    if not ready:
        return
    calls = [checked for _, checked in ready]
    if policies:
        for k, reason in enumerate(_denials(calls, policies)):
            if reason is not None:
                told = _RULED_OUT if ready[k][0] not in edited else "The rules that hold here do not allow the call as it was edited"
                calls[k] = replace(calls[k], refused=_denial(told, reason))
    found: list[ToolResult] = yield CallTools(tuple(calls))
    for (at, checked), result in zip(ready, found, strict=True):
        results[at] = result if at not in edited else _told_of_edit(checked, result)


def _told_of_edit(checked: CheckedCall, result: ToolResult) -> ToolResult:
    """A result with a word on what it is the result of: the model's own call stays as it wrote it."""
    word = f"A person changed the arguments to {json_text(checked.arguments.shown)}.\n"
    content = word + result.content if isinstance(result.content, str) else (Text(text=word), *result.content)
    return replace(result, content=content)


def _decided(asked: list[_Asked], results: list[ToolResult | None], policies: tuple[Policy, ...]) -> Generator[Act, Any, None]:
    """Ask, and do what was decided. An edit that does not fit the tool asks again: nothing runs, and nothing is lost."""
    while asked:
        ruled_out = _ruled_out(asked, policies) if policies else ()
        decisions: list[Decision] = yield AskPerson(tuple(each.question() for each in asked), ruled_out)
        approved: list[tuple[int, CheckedCall]] = []
        edited: set[int] = set()
        again: list[_Asked] = []
        for each, decision in zip(asked, decisions, strict=True):
            checked = each.checked
            if decision.kind == "deny":
                told = _RULED_OUT if decision.via == "policy" else "A person decided against this call"
                results[each.at] = _denied(checked, told, decision.text)
            elif decision.kind == "reply" or checked.tool is CLARIFY:  # a bare "approve" answers no question of the model's
                said = decision.text if decision.kind == "reply" else "yes"
                results[each.at] = ToolResult(checked.call.name, said, checked.call.id)
            elif decision.kind == "edit":
                try:
                    arguments = edited_arguments(checked.arguments, decision.args, checked.tool.prepare)
                    call = checked.call.changed(args=arguments.shown)  # what observers are told of
                    approved.append((each.at, replace(checked, call=call, arguments=arguments)))
                    edited.add(each.at)
                except ToolArgumentsError as error:
                    again.append(replace(each, why=f"The edited arguments do not fit. {error}\n"))
            else:
                approved.append((each.at, checked))
        yield from _run(approved, results, policies, edited)
        asked = again


def _denials(calls: Sequence[CheckedCall], policies: tuple[Policy, ...]) -> list[str | None]:
    """The reasons (which may be empty) for which the policies deny calls by now; None for those that they do not deny."""
    rules = [rule_for(policies, each.tool.name, each.arguments.shown) for each in calls]
    return [rule.reason if rule is not None and rule.verdict == "deny" else None for rule in rules]


def _ruled_out(asked: list[_Asked], policies: tuple[Policy, ...]) -> tuple[str | None, ...]:
    """The reasons for which the rules of now deny calls that a person is asked about; no rule answers for the person a model asks."""
    found = zip(_denials([each.checked for each in asked], policies), asked, strict=True)
    return tuple(reason if each.checked.tool is not CLARIFY else None for reason, each in found)
