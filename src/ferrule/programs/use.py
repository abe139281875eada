"""Using tools: from calls as a model wrote them to results, by way of checks and people.  (Floor 5.)

What the model can mend becomes a `ToolResult`; every call gets exactly one, in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from ferrule.errors import ToolArgumentsError, ToolCallError, UnknownToolError
from ferrule.programs.instructions import CLARIFY
from ferrule.tools.run_calls import failure
from ferrule.values.act import Act, AskPerson, CallTools
from ferrule.values.call import CheckedCall, ToolCall, ToolResult
from ferrule.values.jsonable import json_text
from ferrule.values.question import Decision, Question
from ferrule.values.record import replace

if TYPE_CHECKING:
    from ferrule.tools.toolbox import Toolbox

Used = Generator[Act, Any, list[ToolResult]]


def use(toolbox: Toolbox, calls: Sequence[ToolCall]) -> Used:
    """One result a call. Those that need nobody run first, then those that a person decided on."""
    if len(calls) == 1:  # the usual turn, without the bookkeeping
        only = check(toolbox, calls[0])
        if isinstance(only, ToolResult):
            return [only]
        if not only.tool.require_confirmation and only.tool is not CLARIFY:
            return (yield CallTools((only,)))
    results: list[ToolResult | None] = [None] * len(calls)
    ready: list[tuple[int, CheckedCall]] = []
    asked: list[tuple[int, CheckedCall]] = []
    for at, call in enumerate(calls):
        checked = check(toolbox, call)
        if isinstance(checked, ToolResult):
            results[at] = checked
        else:
            (asked if _needs_person(checked) else ready).append((at, checked))
    yield from _run(ready, results)
    if asked:
        yield from _decided(asked, results)
    return results  # pyright: ignore[reportReturnType]  every call has its result by now


def check(toolbox: Toolbox, call: ToolCall) -> CheckedCall | ToolResult:
    """The call ready to run, or what the model is told instead."""
    tool = toolbox.get(call.name)
    if call.fault is not None:
        return failure(call, ToolCallError(call.fault.code, f"Call to `{call.name}` was not run: {call.fault.reason}", raw=call.fault.raw))
    if tool is None:
        return failure(call, UnknownToolError(call.name, toolbox.names))
    try:
        return CheckedCall(call, tool, tool.prepare(call.args))
    except ToolArgumentsError as error:
        return failure(call, error)


def _needs_person(checked: CheckedCall) -> bool:
    needs = checked.tool.require_confirmation
    if callable(needs):
        return bool(needs(checked.arguments.shown))
    return bool(needs) or checked.tool is CLARIFY


def _run(ready: list[tuple[int, CheckedCall]], results: list[ToolResult | None]) -> Generator[Act, Any, None]:
    if ready:
        found: list[ToolResult] = yield CallTools(tuple(checked for _, checked in ready))
        for (at, _), result in zip(ready, found, strict=True):
            results[at] = result


def _decided(asked: list[tuple[int, CheckedCall]], results: list[ToolResult | None]) -> Generator[Act, Any, None]:
    """Ask, and do what was decided. An edit that does not fit the tool asks again: nothing runs, and nothing is lost."""
    why = ""
    while asked:
        decisions: list[Decision] = yield AskPerson(tuple(_question(checked, why) for _, checked in asked))
        approved: list[tuple[int, CheckedCall]] = []
        again: list[tuple[int, CheckedCall]] = []
        for (at, checked), decision in zip(asked, decisions, strict=True):
            match decision.kind:
                case "approve":
                    approved.append((at, checked))
                case "edit":
                    try:
                        arguments = checked.tool.prepare({**checked.arguments.shown, **decision.args})
                        approved.append((at, replace(checked, arguments=arguments)))
                    except ToolArgumentsError as error:
                        why = f"The edited arguments do not fit. {error}\n"
                        again.append((at, checked))
                case "deny":
                    reason = f" Reason: {decision.text}" if decision.text else ""
                    told = f"A person decided against this call; it was not run.{reason}"
                    results[at] = ToolResult(checked.call.name, told, checked.call.id, is_error=True)
                case "reply":
                    results[at] = ToolResult(checked.call.name, decision.text, checked.call.id)
        clarified = [(at, checked) for at, checked in approved if checked.tool is CLARIFY]
        for at, checked in clarified:  # a bare "approve" answers no question of the model's
            results[at] = ToolResult(checked.call.name, "yes", checked.call.id)
        yield from _run([each for each in approved if each not in clarified], results)
        asked = again


def _question(checked: CheckedCall, why: str) -> Question:
    shown = checked.call.changed(args=checked.arguments.shown)
    if checked.tool is CLARIFY:
        return Question("clarify", str(checked.arguments.shown.get("question", "")), shown)
    return Question("confirm", why + confirmation_text(checked.call.name, checked.arguments.shown), shown)


def confirmation_text(name: str, args: dict[str, Any]) -> str:
    """The question a person is asked, as seed 001 words it."""
    return f"Confirm execution of {name} with args: {json_text(args)}? (yes/no)"
