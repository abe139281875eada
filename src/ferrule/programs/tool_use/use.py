"""Uses tools: turns calls as a model wrote them into results, through checks, policies and people.

The calls of a turn pass three stations:

1. **Check.** The name, the arguments and the model's JSON. What the model can repair becomes its
   result at once.
2. **Rule.** Policies, and the tool's own wish, decide what runs, what a person must decide, and
   what is denied.
3. **Run** them: those that need no decision at once, and each other one as soon as a person allowed
   it, whatever else waits. An edit that does not fit the tool's arguments asks again.

Every call gets exactly one result, in the order of the calls. A resumed run acts on the calls as it
did before, even if the program or its policies have changed since: `RecallCalls` tells what it did.
Where a run is only read, `RecallResults` gives the results of most turns without these stations.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule.acts import (
    Act,
    Allowing,
    CallTools,
    Conditions,
    Consent,
    Once,
    RecallCalls,
    RecallResults,
    RuleCalls,
    Tell,
)
from ferrule.approval.asking import loss_note, question_about, reason_note, subject_of
from ferrule.approval.decisions import allowed_call
from ferrule.approval.question import Decision, Question, Subject
from ferrule.approval.rulings import denial_reasons, guarded, may_need_person, tool_ruling
from ferrule.encoding.encode import json_text
from ferrule.errors import ToolArgumentsError, ToolCallError, UnknownToolError
from ferrule.events import CallRefused
from ferrule.programs.instructions import CLARIFY
from ferrule.programs.tool_use.looking import look
from ferrule.values.calls.call import (
    CheckedArguments,
    CheckedCall,
    StandIn,
    ToolCall,
    ToolResult,
    failure,
)
from ferrule.values.content.parts import Text

if TYPE_CHECKING:
    from ferrule.approval.policy import Policy, Rule
    from ferrule.tools.toolbox import Toolbox
    from ferrule.values.calls.call import ToolSpec

_LEFT_OUT = "This call did not fit when it was made"
_RULED_OUT = "A policy forbids this call"
_EDIT_RULED_OUT = "A policy forbids the call as it was edited"
_DENIED = "A person decided against this call"
_EXPIRED = "This call waited too long for a decision"
_OTHER_DEFINITION = "It was approved for another definition of the tool."
_NO_TURN_LEFT = "no turn left"
_IN_ORDER = "calls one at a time"
_REFUSED = "refused calls"
UsingTools = Generator[Act, Any, list[ToolResult]]


class _ReadyCall(Struct, frozen=True):
    """A call that may run."""

    index: int
    """Its number among the calls of the turn."""
    checked: CheckedCall


class _PendingCall(Struct, frozen=True):
    """A call that waits for a person's decision."""

    index: int
    checked: CheckedCall
    thought: str
    expires_s: float | None = None
    note: str = ""
    """Text before the question: what a person must know besides the call."""

    def subject(self) -> Subject:
        if self.checked.tool is CLARIFY:
            return self.question().subject
        return subject_of(self.checked)

    def question(self) -> Question:
        if self.checked.tool is CLARIFY:
            arguments = self.checked.arguments.shown
            call = self.checked.call.changed(args=arguments)
            text = str(arguments.get("question", ""))
            return Question("clarify", text, call, thought=self.thought)
        return question_about(
            self.checked, thought=self.thought, expires_s=self.expires_s, note=self.note
        )


def use_tools(
    toolbox: Toolbox,
    calls: Sequence[ToolCall],
    host: Any,
    conditions: Conditions,
    *,
    thought: str = "",
    policy: Policy | None = None,
    notes: Mapping[str | None, str] | None = None,
    records_refusals: bool = False,
) -> UsingTools:
    """Run the calls; returns one result for each.

    Each call runs as soon as it may, at the same time as the others. If `host.concurrent` is False,
    calls run one at a time: each waits for the ones before it, and for their decisions.

    Args:
        toolbox: The tools that are offered now.
        calls: The calls, as the model wrote them.
        host: Takes changes of the tools that the calls make.
        conditions: The settings of the run.
        thought: Shown to a person with a question.
        policy: The program's own policy.
        notes: By the id of a call, what a person must know besides the call.
        records_refusals: Record which calls did not fit their tools. A resumed run otherwise finds
            that out from what followed in the same turn, which does not tell the calls of a loop
            in code from one another.

    """
    turn = _Turn(
        toolbox,
        calls,
        host,
        conditions,
        thought=thought,
        policy=policy,
        notes=notes or {},
        records_refusals=records_refusals,
    )
    return turn.flow()


class _Turn:
    """The calls of one turn, on their way to their results."""

    def __init__(
        self,
        toolbox: Toolbox,
        calls: Sequence[ToolCall],
        host: Any,
        conditions: Conditions,
        *,
        thought: str,
        policy: Policy | None,
        notes: Mapping[str | None, str],
        records_refusals: bool,
    ) -> None:
        """See `use_tools`."""
        self.toolbox = toolbox
        self.calls = calls
        self.host = host
        self.conditions = conditions
        self.thought = thought
        self.policies = tuple(rules for rules in (conditions.policy, policy) if rules is not None)
        self.results: list[ToolResult | None] = [None] * len(calls)
        self.recalled: Sequence[bool | None] = ()
        """For each call, what an earlier execution did (see `RecallCalls`); empty if unknown."""
        self.notes = notes
        self.records_refusals = records_refusals

    def flow(self) -> UsingTools:
        recorded: list[ToolResult] | None = None
        if self.conditions.is_only_read and not self.records_refusals:
            recorded = yield RecallResults(tuple(self.calls))
        if recorded is None:
            yield from self._handle()
        else:
            self.results = [*recorded]
        self._count_faults()
        return cast("list[ToolResult]", self.results)  # every call has its result by now

    def _handle(self) -> Generator[Act, Any, None]:
        """Take the calls through the three stations."""
        checked = yield from self._check()
        ready, pending = yield from self._rule(checked)
        calls: list[_ReadyCall | _PendingCall] = [*ready, *pending]
        calls.sort(key=lambda call: call.index)
        if (yield from self._runs_in_order()):
            for call in calls:
                yield from self._run([call])
        else:
            yield from self._run(calls)

    # -- check

    def _check(self) -> Generator[Act, Any, list[_ReadyCall]]:
        """The calls that fit their tools. The others get their results here."""
        found = [self._check_one(call) for call in self.calls]
        if self.records_refusals:
            found = yield from self._as_recorded(found)
        elif self.conditions.is_resumed:
            # For calls of a recorded answer, the journal decides: whether a call fits the tools may
            # have changed since.
            fitting = tuple(
                [checked if isinstance(checked, CheckedCall) else None for checked in found]
            )
            self.recalled = (yield RecallCalls(tuple(self.calls), fitting)) or ()
        ready: list[_ReadyCall] = []
        for index, (call, checked) in enumerate(zip(self.calls, found, strict=True)):
            if isinstance(checked, CheckedCall):
                ready.append(_ReadyCall(index, checked))
            elif self.recalled and self.recalled[index]:
                misfit = _misfit(self.toolbox, call, checked, self.host)
                ready.append(_ReadyCall(index, misfit))
            else:
                self.results[index] = checked
                if self.conditions.is_observed:
                    yield Tell(CallRefused(call, checked))
        return ready

    def _check_one(self, call: ToolCall) -> CheckedCall | ToolResult:
        checked = check_call(self.toolbox, call, self.host)
        if self.host is None or not self.host.faults:
            return checked
        tool = self.toolbox.get(call.name)
        retries = getattr(tool, "retries", None)
        if tool is None or retries is None or self.host.faults.get(tool.name, 0) <= retries:
            return checked
        return ToolResult(
            call.name,
            f"Call to `{call.name}` was not run: {retries + 1} calls of it in a row were wrong. "
            "Go on without it.",
            call.id,
            is_error=True,
            is_fault=True,
        )

    def _count_faults(self) -> None:
        """Count the calls in a row that the model made wrong, of tools with `retries`."""
        if self.host is None:
            return
        faults = self.host.faults
        for index, result in enumerate(self.results):
            tool = self.toolbox.get(self.calls[index].name)
            retries = getattr(tool, "retries", None)
            if tool is None or retries is None or result is None:
                continue
            if not result.is_fault:
                faults.pop(tool.name, None)
                continue
            count = faults.get(tool.name, 0) + 1
            if count > retries + 1:
                continue  # it was not run, and its result says so
            faults[tool.name] = count
            note = f"(Tries of `{tool.name}` left: {retries + 1 - count} of {retries}.)\n"
            self.results[index] = _with_note(result, note)

    def _as_recorded(
        self, found: list[CheckedCall | ToolResult]
    ) -> Generator[Act, Any, list[CheckedCall | ToolResult]]:
        """The checked calls as the run recorded them: the tools may have changed since."""
        refusals = {
            str(index): str(refusal.content)
            for index, refusal in enumerate(found)
            if isinstance(refusal, ToolResult)
        }
        answer = yield Once(lambda: refusals, _REFUSED, only_if_true=True)
        recorded: Mapping[str, str] = answer or {}
        has_run = [str(index) not in recorded for index in range(len(self.calls))]
        if any(str(index) not in recorded for index in refusals):
            self.recalled = has_run  # a call that no longer fits: the tools have changed
        for index, call in enumerate(self.calls):
            if not has_run[index] and isinstance(found[index], CheckedCall):
                reason = recorded[str(index)]
                found[index] = ToolResult(call.name, reason, call.id, is_error=True, is_fault=True)
        return found

    # -- rule

    def _rule(
        self, calls: list[_ReadyCall]
    ) -> Generator[Act, Any, tuple[list[_ReadyCall], list[_PendingCall]]]:
        """The calls that may run, and those that need a decision. Denied ones get their results."""
        # A resumed run keeps the rulings that it recorded.
        is_ruled = self.conditions.is_resumed or bool(self.policies)
        if not is_ruled and not any(_may_ask(call.checked) for call in calls):
            return calls, []
        settled = None
        if self.recalled:
            settled = tuple([self.recalled[call.index] is not None for call in calls])
        calls = yield from self._look(calls)
        checked = tuple([call.checked for call in calls])
        rulings: list[Rule | None] = yield RuleCalls(checked, self.policies, _wish, settled)
        ready: list[_ReadyCall] = []
        pending: list[_PendingCall] = []
        for call, ruling in zip(calls, rulings, strict=True):
            is_clarification = call.checked.tool is CLARIFY  # no policy answers for the person
            verdict = "allow" if ruling is None else ruling.verdict
            if verdict == "deny" and ruling is not None and not is_clarification:
                self.results[call.index] = _denial(call.checked, _RULED_OUT, ruling.reason)
            elif self.recalled and self.recalled[call.index] is False:
                # The earlier execution continued without the call, and so does this one.
                self.results[call.index] = _denial(call.checked, _LEFT_OUT, "")
            elif is_clarification:
                pending.append(_PendingCall(call.index, call.checked, self.thought))
            elif verdict == "ask":
                pending.append(self._pending(call, ruling))
            else:
                ready.append(call)
        return ready, pending

    def _look(self, calls: list[_ReadyCall]) -> Generator[Act, Any, list[_ReadyCall]]:
        """The calls with what conditions found that look beyond them."""
        checked = yield from look([call.checked for call in calls], self.policies)
        return [replace(call, checked=looked) for call, looked in zip(calls, checked, strict=True)]

    def _pending(self, call: _ReadyCall, ruling: Rule | None) -> _PendingCall:
        checked = call.checked
        expires_s = ruling.expires_s if ruling is not None else None
        if not expires_s:
            expires_s = getattr(checked.tool.require_confirmation, "expires_s", None)
        note = self.notes.get(checked.call.id, "") + loss_note(checked) + reason_note(ruling)
        return _PendingCall(call.index, checked, self.thought, expires_s, note)

    def _runs_in_order(self) -> Generator[Act, Any, bool]:
        """Whether each call waits for the ones before it.

        A resumed turn continues as it began, even if the program has changed.
        """
        if len(self.calls) < 2:
            return False
        if self.host.concurrent and _IN_ORDER not in self.conditions.due:
            return False
        recalled = self.recalled
        host = self.host
        in_order = yield Once(
            lambda: not host.concurrent and True not in recalled, _IN_ORDER, only_if_true=True
        )
        return bool(in_order)

    # -- run

    def _run(self, calls: Sequence[_ReadyCall | _PendingCall]) -> Generator[Act, Any, None]:
        """Run the calls, except those that the policies deny, or a person, by now."""
        if not calls:
            return
        consents: list[Consent | None] = []
        checked: list[CheckedCall] = []
        for call in calls:
            if isinstance(call, _PendingCall):
                checked.append(call.checked)
                consents.append(self._consent(call))
            else:
                guarded_call = guarded(call.checked, self.policies)
                checked.append(self._with_denial(guarded_call, _RULED_OUT))
                consents.append(None)
        act = CallTools(tuple(checked))
        if any(consents):
            act.consents = tuple(consents)
        results: list[ToolResult] = yield act
        lefts = act.left or (None,) * len(calls)
        for call, consent, result, left in zip(calls, consents, results, lefts, strict=True):
            noted = result
            if consent is not None:
                noted = _note_edit(call.checked, consent, noted)
            if left is not None:
                noted = _note_left(call.checked.tool.name, left, noted)
            self.results[call.index] = noted

    def _with_denial(self, checked: CheckedCall, why: str) -> CheckedCall:
        """The call, refused if a policy denies it by now."""
        if not self.policies:
            return checked
        [reason] = denial_reasons([checked], self.policies)
        if reason is None:
            return checked
        return replace(checked, refused=_denial_text(why, reason))

    # -- ask

    def _consent(self, pending: _PendingCall) -> Consent:
        """The consent that a call needs. An edit that does not fit its tool asks again."""
        checked, subject = pending.checked, pending.subject()
        denial = None
        if self.policies and checked.tool is not CLARIFY:  # a question of the model has no policy
            [denial] = denial_reasons([checked], self.policies)

        def allow(decision: Decision, has_run: bool | None) -> Allowing:
            result = _result_of_decision(checked, decision)
            if result is not None:
                return result
            try:
                allowed = _allowed(checked, subject, decision, has_run)
            except ToolArgumentsError as error:
                note = f"The edited arguments do not fit. {error}\n"
                return replace(pending, note=note).question()
            if decision.kind == "edit":  # conditions that look beyond the call look at what runs
                [allowed] = yield from look([allowed], self.policies)
            return self._guarded(allowed, decision)

        return Consent(subject, pending.question, allow, denial)

    def _guarded(self, allowed: CheckedCall, decision: Decision) -> CheckedCall:
        grant = None
        if decision.via.startswith("grant:"):
            grant = decision.grant
        why = _RULED_OUT
        if decision.kind == "edit":
            why = _EDIT_RULED_OUT
        allowed = guarded(allowed, self.policies, by_person=True, grant=grant)
        return self._with_denial(allowed, why)


def check_call(toolbox: Toolbox, call: ToolCall, host: Any = None) -> CheckedCall | ToolResult:
    """Check a call: returns it ready to run, or a result that tells the model what is wrong."""
    tool = toolbox.get(call.name)
    if call.fault is not None:
        reason = f"Call to `{call.name}` was not run: {call.fault.reason}"
        return failure(call, ToolCallError(call.fault.code, reason, raw=call.fault.raw))
    if tool is None:
        return failure(call, UnknownToolError(call.name, toolbox.names))
    try:
        arguments = tool.prepare(call.args_as_written)
    except ToolArgumentsError as error:
        return failure(call, error)
    if arguments.repairs:
        call = call.changed(repairs=(*call.repairs, *arguments.repairs))
    return CheckedCall(call, tool, arguments, host)


def has_changes(results: Iterable[ToolResult]) -> bool:
    """Whether any of these results changes the tools."""
    return any(result.change is not None for result in results)


def has_no_turn_left(conditions: Conditions, turns_left: int) -> Generator[Act, Any, bool]:
    """Whether a program must stop before its next turn.

    This is recorded, so a run keeps the turns that it took, and the end that it reached, where a
    new version of its program has fewer turns or more.
    """
    if turns_left > 0 and _NO_TURN_LEFT not in conditions.due:
        return False
    return bool((yield Once(lambda: turns_left <= 0, _NO_TURN_LEFT, only_if_true=True)))


def _may_ask(checked: CheckedCall) -> bool:
    """Whether a person may be asked about a call. Does not call a condition that the tool has."""
    return checked.tool is CLARIFY or may_need_person(checked)


def _wish(checked: CheckedCall) -> Rule | None:
    """The rule that the tool itself wants, if no policy rules on the call."""
    if checked.tool is CLARIFY:
        return None
    return tool_ruling(checked)


def _misfit(toolbox: Toolbox, call: ToolCall, fault: ToolResult, host: Any) -> CheckedCall:
    """A call on which the run has acted, but whose tool or arguments no longer fit."""
    tool: Any = toolbox.get(call.name)
    why = f"The arguments no longer fit. {fault.content}"
    if tool is None:
        tool = cast("ToolSpec", StandIn(call.name))
        why = f"It no longer has the tool `{call.name}`."
    return CheckedCall(call, tool, CheckedArguments((), {}, call.args), host, misfit=why)


# -- decisions


def _result_of_decision(checked: CheckedCall, decision: Decision) -> ToolResult | None:
    """The result of a call that a decision keeps from running; None if the call may run."""
    if decision.kind == "deny":
        if decision.via == "expiry":
            return _denial(checked, _EXPIRED, "")
        if decision.via == "policy":
            why = _RULED_OUT
        else:
            why = _DENIED
        return _denial(checked, why, decision.text)
    if decision.kind == "reply":
        return ToolResult(checked.call.name, decision.text, checked.call.id, by_person=True)
    if checked.tool is CLARIFY:  # "approve" alone is a yes to the model's question
        return ToolResult(checked.call.name, "yes", checked.call.id, by_person=True)
    return None


def _allowed(
    checked: CheckedCall, subject: Subject, decision: Decision, has_run: bool | None
) -> CheckedCall:
    """The call as a person allowed it. Raises `ToolArgumentsError` if an edit does not fit."""
    if decision.kind == "edit" or decision.args:
        # An approval with arguments allows those that were shown, not those of this check.
        return allowed_call(checked, decision, has_run=has_run)
    if decision.shown not in {"", subject.digest}:
        # The run has acted on the decision, which was for another definition of the tool.
        return replace(checked, misfit=_OTHER_DEFINITION)
    return checked


def _denial(checked: CheckedCall, why: str, reason: str) -> ToolResult:
    return ToolResult(checked.call.name, _denial_text(why, reason), checked.call.id, is_error=True)


def _denial_text(why: str, reason: str) -> str:
    text = f"{why}; it was not run."
    if reason:
        text += f" Reason: {reason}"
    return text


def _note_edit(checked: CheckedCall, consent: Consent, result: ToolResult) -> ToolResult:
    """The result with a note on the edit: the model's own call stays unchanged in the messages."""
    allowed, decision = consent.allowed, consent.decision
    if allowed is None or decision is None or decision.kind != "edit":
        return result
    if allowed.arguments is checked.arguments:  # a form that came back as it was shown
        return result
    note = f"A person changed the arguments to {json_text(allowed.arguments.shown)}.\n"
    return replace(_with_note(result, note), by_person=True)


def _note_left(name: str, left: tuple[int, int], result: ToolResult) -> ToolResult:
    """The result with a note on how often the model may call the tool again."""
    count, most = left
    return _with_note(result, f"(Calls of `{name}` left: {max(count, 0)} of {most}.)\n")


def _with_note(result: ToolResult, note: str) -> ToolResult:
    """The result with a note as its first line, where code that calls tools looks for it."""
    if isinstance(result.content, str):
        return replace(result, content=note + result.content)
    return replace(result, content=(Text(text=note), *result.content))
