"""Uses tools: turns calls as a model wrote them into results, through checks, policies and people.

A fault that the model can repair becomes a `ToolResult`. Every call gets exactly one result, in the
order of the calls.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule.acts import (
    Act,
    AskPerson,
    CallTools,
    Conditions,
    Once,
    RecallCalls,
    RuleCalls,
    Tell,
)
from ferrule.approval.asking import loss_note, question_about
from ferrule.approval.decisions import allowed_call, call_as_decided
from ferrule.approval.question import Question
from ferrule.approval.rulings import denial_reasons, may_need_person, tool_ruling
from ferrule.encoding.encode import json_text
from ferrule.errors import ToolArgumentsError, ToolCallError, UnknownToolError
from ferrule.events import CallRefused
from ferrule.programs.instructions import CLARIFY
from ferrule.values.calls.call import CheckedArguments, CheckedCall, ToolCall, ToolResult, failure

if TYPE_CHECKING:
    from ferrule.approval.policy import Policy, Rule
    from ferrule.approval.question import Decision
    from ferrule.tools.toolbox import Toolbox
    from ferrule.values.calls.call import ToolSpec

_LEFT_OUT = "This call did not fit when it was made"
_RULED_OUT = "A policy forbids this call"
_IN_ORDER = "calls one at a time"
UsingTools = Generator[Act, Any, list[ToolResult]]


def use_tools(
    toolbox: Toolbox,
    calls: Sequence[ToolCall],
    host: Any,
    conditions: Conditions,
    *,
    thought: str = "",
    policy: Policy | None = None,
) -> UsingTools:
    """Run the calls; returns one result for each. Calls that need no decision run first, then those that a person decided on.

    If `host.concurrent` is False, calls run one at a time: each waits for the ones before it, and
    for their decisions. `host` takes changes of the tools, `thought` is shown to a person with a
    question, and `policy` is the program's own policy.
    """
    # A resumed run keeps the rulings that it recorded.
    is_ruled = conditions.is_resumed or policy is not None or conditions.policy is not None
    if len(calls) == 1 and not is_ruled:  # the usual turn, without the bookkeeping
        only = check_call(toolbox, calls[0], host)
        if not isinstance(
            only,
            CheckedCall,
        ):  # not `isinstance(only, ToolResult)`: a check of another class takes ten times as long
            if conditions.is_observed:
                yield Tell(CallRefused(calls[0], only))
            return [only]
        if not _may_ask(only):
            return (yield CallTools((only,)))
    results: list[ToolResult | None] = [None] * len(calls)
    good: list[tuple[int, CheckedCall]] = []
    found = [check_call(toolbox, call, host) for call in calls]
    # For calls of a recorded answer, the journal decides: whether a call fits the tools may have
    # changed since.
    did: Sequence[bool | None] = (
        ((yield _recall(calls, found)) or ()) if conditions.is_resumed else ()
    )
    for at, call in enumerate(calls):
        checked = found[at]
        if isinstance(checked, ToolResult) and did and did[at]:
            checked = _misfit(toolbox, call, checked, host)
        if isinstance(checked, ToolResult):
            results[at] = checked
            if conditions.is_observed:
                yield Tell(CallRefused(call, checked))
        else:
            good.append((at, checked))
    policies = tuple(each for each in (conditions.policy, policy) if each is not None)
    ready, asked = good, list[_Pending]()
    if is_ruled or any(_may_ask(checked) for _, checked in good):
        settled = tuple([did[at] is not None for at, _ in good]) if did else None
        rules: list[Rule | None] = yield RuleCalls(
            tuple(checked for _, checked in good),
            policies,
            _wish,
            settled,
        )
        ready, asked = _sort(good, rules, results, thought)
        if False in did:
            ready, asked = (
                [each for each in ready if did[each[0]] is not False],
                [each for each in asked if did[each.at] is not False],
            )
            for at, checked in good:
                results[at] = (
                    results[at] or _denial(checked, _LEFT_OUT, "")
                    if did[at] is False
                    else results[at]
                )
    batches: list[_Batch] = [(ready, asked)]
    # A resumed turn continues as it began, even if the program has changed.
    may_wait = len(calls) > 1 and (not host.concurrent or _IN_ORDER in conditions.due)
    if may_wait and (
        yield Once(
            lambda: not host.concurrent and True not in did,
            _IN_ORDER,
            only_if_true=True,
        )
    ):
        single: list[tuple[int, _Batch]] = [(at, ([(at, checked)], [])) for at, checked in ready]
        single += [(each.at, ([], [each])) for each in asked]
        batches = [batch for _, batch in sorted(single, key=itemgetter(0))]
    for ready, asked in batches:
        yield from _run(ready, results, policies)
        if asked:
            yield from _decide(asked, results, policies, is_resumed=conditions.is_resumed)
    return results  # pyright: ignore[reportReturnType]  every call has its result by now


def _recall(calls: Sequence[ToolCall], found: Sequence[CheckedCall | ToolResult]) -> RecallCalls:
    return RecallCalls(
        tuple(calls),
        tuple([each if isinstance(each, CheckedCall) else None for each in found]),
    )


def has_changes(results: Iterable[ToolResult]) -> bool:
    """Whether any of these results changes the tools."""
    for result in results:  # noqa: SIM110  a plain loop: every step of every run passes here
        if result.change is not None:
            return True
    return False


class _Pending(Struct, frozen=True):
    """A call that waits for a person's decision."""

    at: int
    checked: CheckedCall
    thought: str
    expires_s: float | None = None
    why: str = ""
    """Text before the question: what a person must know besides the call."""

    def question(self) -> Question:
        if self.checked.tool is not CLARIFY:
            return question_about(
                self.checked,
                thought=self.thought,
                expires_s=self.expires_s,
                note=self.why,
            )
        arguments = self.checked.arguments.shown
        shown = self.checked.call.changed(args=arguments)
        text = str(arguments.get("question", ""))
        return Question("clarify", text, shown, thought=self.thought)


_Batch = tuple[list[tuple[int, CheckedCall]], list[_Pending]]
"""The calls to run, and the calls to ask about."""


def _sort(
    calls: list[tuple[int, CheckedCall]],
    rules: Sequence[Rule | None],
    results: list[ToolResult | None],
    thought: str,
) -> tuple[list[tuple[int, CheckedCall]], list[_Pending]]:
    """The calls that may run, and those that need a decision. A call that a policy denies gets its result here."""
    ready: list[tuple[int, CheckedCall]] = []
    asked: list[_Pending] = []
    for (at, checked), ruling in zip(calls, rules, strict=True):
        tool = checked.tool
        if tool is CLARIFY:  # no policy answers in place of the person
            asked.append(_Pending(at, checked, thought))
        elif ruling is not None and ruling.verdict == "deny":
            results[at] = _denial(checked, _RULED_OUT, ruling.reason)
        elif ruling is not None and ruling.verdict == "ask":
            asked.append(
                _Pending(
                    at,
                    checked,
                    thought,
                    ruling.expires_s or getattr(tool.require_confirmation, "expires_s", None),
                    loss_note(checked),
                ),
            )
        else:
            ready.append((at, checked))
    return ready, asked


def _may_ask(checked: CheckedCall) -> bool:
    """Whether a person may be asked about a call. Does not call a condition that the tool has."""
    return checked.tool is CLARIFY or may_need_person(checked)


def _wish(checked: CheckedCall) -> Rule | None:
    """The rule that the tool itself wants, if no policy rules on the call."""
    return tool_ruling(checked) if checked.tool is not CLARIFY else None


def _denial(checked: CheckedCall, why: str, reason: str) -> ToolResult:
    return ToolResult(checked.call.name, _denial_text(why, reason), checked.call.id, is_error=True)


def _denial_text(why: str, reason: str) -> str:
    return f"{why}; it was not run.{f' Reason: {reason}' if reason else ''}"


class _GoneTool(Struct, frozen=True):
    """Stands for a tool that a run used and that the program no longer has. Its calls keep their recorded results, and none runs."""

    name: str
    require_confirmation: bool = False
    effect: str = "once"
    says_once: bool = False
    reconcile: None = None
    unknown: str = "ask"
    is_program: bool = False
    func: None = None

    @property
    def declaration(self) -> dict[str, Any]:
        return {
            "function": {"parameters": None},
        }  # without a schema, a question offers nothing to edit

    def prepare(self, _args: Any) -> Any:
        raise ToolArgumentsError(self.name, [("", "the program no longer has this tool")])


def _misfit(toolbox: Toolbox, call: ToolCall, fault: ToolResult, host: Any) -> CheckedCall:
    """A call on which the run has acted, but whose tool or arguments no longer fit."""
    tool: Any = toolbox.get(call.name)
    why = (
        f"It no longer has the tool `{call.name}`."
        if tool is None
        else f"The arguments no longer fit. {fault.content}"
    )
    return CheckedCall(
        call,
        tool if tool is not None else cast("ToolSpec", _GoneTool(call.name)),
        CheckedArguments((), {}, call.args),
        host,
        misfit=why,
    )


def check_call(toolbox: Toolbox, call: ToolCall, host: Any = None) -> CheckedCall | ToolResult:
    """Check a call: returns it ready to run, or a result that tells the model what is wrong with it."""
    tool = toolbox.get(call.name)
    if call.fault is not None:
        return failure(
            call,
            ToolCallError(
                call.fault.code,
                f"Call to `{call.name}` was not run: {call.fault.reason}",
                raw=call.fault.raw,
            ),
        )
    if tool is None:
        return failure(call, UnknownToolError(call.name, toolbox.names))
    try:
        arguments = tool.prepare(call.args)
    except ToolArgumentsError as error:
        return failure(call, error)
    if arguments.repairs:
        call = call.changed(repairs=(*call.repairs, *arguments.repairs))
    return CheckedCall(call, tool, arguments, host)


def _run(
    ready: list[tuple[int, CheckedCall]],
    results: list[ToolResult | None],
    policies: tuple[Policy, ...],
    edited: AbstractSet[int] = frozenset(),
) -> Generator[Act, Any, None]:
    """Run the calls, except those that the policies deny by now. `edited` holds the places of calls that a person changed."""
    if not ready:
        return
    calls = [checked for _, checked in ready]
    if policies:
        for k, reason in enumerate(denial_reasons(calls, policies)):
            if reason is not None:
                why = (
                    _RULED_OUT
                    if ready[k][0] not in edited
                    else "A policy forbids the call as it was edited"
                )
                calls[k] = replace(calls[k], refused=_denial_text(why, reason))
    found: list[ToolResult] = yield CallTools(tuple(calls))
    for (at, checked), result in zip(ready, found, strict=True):
        results[at] = result if at not in edited else _note_edit(checked, result)


def _note_edit(checked: CheckedCall, result: ToolResult) -> ToolResult:
    """The result with a note on the edit, because the model's own call stays unchanged in the conversation."""
    from ferrule.values.content.parts import Text

    note = f"A person changed the arguments to {json_text(checked.arguments.shown)}.\n"
    content = (
        note + result.content
        if isinstance(result.content, str)
        else (Text(text=note), *result.content)
    )
    return replace(result, content=content)


def _decide(
    asked: list[_Pending],
    results: list[ToolResult | None],
    policies: tuple[Policy, ...],
    *,
    is_resumed: bool,
) -> Generator[Act, Any, None]:
    """Ask, then do what was decided. If an edit does not fit the tool's arguments, nothing runs, and the question is asked again."""
    while asked:
        ruled_out = _ruled_out(asked, policies) if policies else ()
        decisions: list[Decision] = yield AskPerson(
            tuple(each.question() for each in asked),
            ruled_out,
        )
        ran: dict[int, bool | None] = (
            (yield from _recall_allowed(asked, decisions)) if is_resumed else {}
        )
        approved, edited, again = list[tuple[int, CheckedCall]](), set[int](), list[_Pending]()
        for each, decision in zip(asked, decisions, strict=True):
            checked = each.checked
            if decision.kind == "deny":
                results[each.at] = _denial(checked, *_why_denied(decision))
            elif (
                decision.kind == "reply" or checked.tool is CLARIFY
            ):  # "approve" alone is a yes to the model's question
                said = decision.text if decision.kind == "reply" else "yes"
                results[each.at] = ToolResult(checked.call.name, said, checked.call.id)
            elif (
                decision.kind == "edit" or decision.args
            ):  # an approval with arguments: those that were shown, not those of this check
                try:
                    approved.append(
                        (each.at, allowed_call(checked, decision, has_run=ran.get(each.at))),
                    )
                    if decision.kind == "edit":
                        edited.add(each.at)
                except ToolArgumentsError as error:
                    again.append(replace(each, why=f"The edited arguments do not fit. {error}\n"))
            else:
                if decision.shown not in {
                    "",
                    each.question().digest,
                }:  # the run has acted on it, for another definition of the tool
                    checked = replace(
                        checked,
                        misfit="It was approved for another definition of the tool.",
                    )
                approved.append((each.at, checked))
        yield from _run(approved, results, policies, edited)
        asked = again


def _recall_allowed(
    asked: list[_Pending],
    decisions: Sequence[Decision],
) -> Generator[Act, Any, dict[int, bool | None]]:
    """For each call that a person allowed, whether it ran in an earlier execution, by place: edits may no longer fit the tool."""
    allowed = [
        pair
        for pair in zip(asked, decisions, strict=True)
        if pair[1].kind in {"approve", "edit"} and pair[0].checked.tool is not CLARIFY
    ]
    if not any(decision.args for _, decision in allowed):
        return {}
    calls = tuple([call_as_decided(each.checked, decision) for each, decision in allowed])
    ran = yield RecallCalls(calls, tuple([each.checked for each, _ in allowed]), edited=True)
    return dict(zip([each.at for each, _ in allowed], ran, strict=True))


def _why_denied(decision: Decision) -> tuple[str, str]:
    """Text on who or what denied a call, and the reason given."""
    if decision.via == "expiry":
        return "This call waited too long for a decision", ""
    return (
        _RULED_OUT if decision.via == "policy" else "A person decided against this call"
    ), decision.text


def _ruled_out(asked: list[_Pending], policies: tuple[Policy, ...]) -> tuple[str | None, ...]:
    """`denial_reasons` for calls that wait for a person; None for a question of the model, which no policy answers."""
    found = zip(denial_reasons([each.checked for each in asked], policies), asked, strict=True)
    return tuple(reason if each.checked.tool is not CLARIFY else None for reason, each in found)
