"""One call of an MCP client, from its arguments to its result.

An error that a model can repair becomes an error result that says how. Tracebacks and local paths
never leave the process. Only an unknown name is an error of the protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from ferrule import settings
from ferrule.approval.asking import confirmation_text
from ferrule.approval.policy import rule_for
from ferrule.approval.rulings import guarded, needs_person
from ferrule.concurrency.cancellation import is_task_cancelled
from ferrule.concurrency.offload import in_worker_thread
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import parse_object
from ferrule.errors import (
    ConfirmationRequired,
    DecisionError,
    StoreError,
    ToolArgumentsError,
    ToolRetry,
    ToolStop,
    ToolTimeoutError,
)
from ferrule.mcp_bridge.server.context import EventSender, MCPCall
from ferrule.mcp_bridge.server.questions import (
    ANSWER,
    APPROVE,
    FORM,
    PersonAnswer,
    Tickets,
    ask_client,
    returned_state,
)
from ferrule.mcp_bridge.server.result import error_result, wire_result
from ferrule.mcp_bridge.server.task import busy_error
from ferrule.mcp_bridge.server.tools import program_runner
from ferrule.settings import Scope
from ferrule.tools.execution.run import arun_call, attempt
from ferrule.tools.mcp.result import MCPResult
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import CheckedArguments, CheckedCall, ToolCall, failure
from ferrule.values.calls.edit import edit_arguments, made_anew

if TYPE_CHECKING:
    from ferrule.approval.policy import Policy, Verdict
    from ferrule.approval.question import Question
    from ferrule.mcp_bridge.server.task import ServedTask
    from ferrule.mcp_bridge.server.tools import ServedTool
    from ferrule.values.calls.call import ToolResult

log = logging.getLogger("ferrule.mcp")

HOST = "host"
"""`require_confirmation="host"`: only the host's `confirm=` may approve.

A client may say anything about its user.
"""
_MOST_WAITING = 100
_RUN = "run:"


class CallRules(Struct, frozen=True, kw_only=True):
    """How to run calls; see `serve`."""

    timeout_s: float | None = None
    max_concurrency: int | None = None
    mask_errors: bool = False
    store: Any = None
    """A `Store` that keeps the runs of programs, or None."""
    confirm: Callable[[str, dict[str, Any]], Any] | None = None


class _Query(Struct, frozen=True):
    """A question to a person about a call."""

    name: str
    args: dict[str, Any]
    text: str
    state: str
    """Identifies the question; see `ask_client`."""
    wants: str = APPROVE
    only_host: bool = False
    """Whether the client's user may not answer it."""
    form: Mapping[str, Any] | None = None


class CallRunner:
    """Runs calls, at most `max_concurrency` at once."""

    def __init__(self, rules: CallRules) -> None:
        self._rules = rules
        self._overrides = settings.scope().overrides
        """The settings at the time when the application was created."""
        self._limits: WeakKeyDictionary[Any, tuple[asyncio.Semaphore | None, asyncio.Lock]] = (
            WeakKeyDictionary()
        )
        """By event loop: the semaphore of all calls, and the lock of tools that run alone."""
        self._waiting: OrderedDict[str, Any] = OrderedDict()
        """Runs that wait for an answer, by the state that comes back with it."""
        self._tickets = Tickets()

    async def run(
        self,
        served: ServedTool,
        request: Any,
        params: Any,
        task: ServedTask | None = None,
        run: Any = None,
    ) -> Any:
        """Check the arguments, ask a person if need be, run the tool.

        Args:
            served: The tool to call.
            request: The SDK's context of the request.
            params: The SDK's parameters of the call.
            task: The task that the call may become.
            run: Its run that began in another process, to be continued.

        Returns:
            The result for the wire.

        """
        call = ToolCall.unchecked(served.name, params.arguments or {}, id=str(request.request_id))
        with settings.entered(Scope(self._overrides)):
            callbacks = settings.setting("callbacks")
        mcp_call = MCPCall(request, params, EventSender(request, task, callbacks))
        result = await self._guard(served, mcp_call, call, run)
        await mcp_call.tell.finish()
        return result

    @property
    def store(self) -> Any:
        """The store of the runs of programs, or None."""
        return self._rules.store

    async def stored_run(self, served: ServedTool, run_id: str) -> Any:
        """A run of a program from the store; None if there is none that can be read."""
        if self.store is None or served.program is None:
            return None
        try:
            return await in_worker_thread(partial(served.program.load_run, self.store, run_id))
        except StoreError as error:
            log.info("no run `%s` is continued: %s", run_id, error)
            return None

    @staticmethod
    def run_of_state(state: str | None) -> str | None:
        """The id of the run that waits for the answers which come with this state."""
        if state is None or not state.startswith(_RUN):
            return None
        return state.removeprefix(_RUN).rpartition(":")[0]

    async def _guard(self, served: ServedTool, mcp_call: MCPCall, call: ToolCall, run: Any) -> Any:
        """The result of a call.

        An exception of the tool that would end the task, the thread or the process ends only the
        call.
        """
        try:
            if run is not None:
                return await self._resume(served, mcp_call, call, run)
            return await self._dispatch(served, mcp_call, call)
        except ToolArgumentsError as error:
            return wire_result(failure(call, error))
        except BaseException as error:
            if _is_of_the_tool(error):
                return self._answer(served, call, failure(call, error))
            mcp_call.tell.drop()  # cancelled, or an error of the protocol
            raise
        finally:
            mcp_call.over = True

    async def _dispatch(self, served: ServedTool, mcp_call: MCPCall, call: ToolCall) -> Any:
        """Start a call; or continue the waiting run whose question this call answers."""
        state = returned_state(mcp_call)
        run_id = self.run_of_state(state)
        if state is not None and run_id is not None:
            run = self._waiting.pop(state, None)
            if run is None:
                run = await self.stored_run(served, run_id)
            return await self._resume(served, mcp_call, call, run)
        arguments = served.tool.prepare(call.args)
        earlier = _arguments_in(state, served.name)
        if earlier:
            arguments = edit_arguments(arguments, earlier, served.tool)
        checked = CheckedCall(call, served.tool, arguments)
        verdict, reason = self._verdict(served, checked)
        if verdict == "deny":
            return _not_run(served.name, reason)
        if verdict == "ask":
            refusal = await self._refusal(served, mcp_call, checked)
            if refusal is not None:
                return refusal
        checked = guarded(checked, self._policies(), by_person=verdict == "ask")
        return await self._perform(served, mcp_call, checked)

    # -- asking

    def _verdict(self, served: ServedTool, checked: CheckedCall) -> tuple[Verdict, str]:
        """What the policy and the tool say of a call, and the reason of a denial."""
        tool, shown = served.tool, checked.arguments.shown
        rule, error = attempt(partial(rule_for, self._policies(), checked))
        if error is None and rule is not None:
            return rule.verdict, rule.reason or "a rule forbids it"
        needs_consent = False
        if error is None:
            needs_consent, error = attempt(partial(needs_person, tool, shown, checked.call))
        if error is not None:
            log.error(
                "the rule that decides on consent for `%s` failed", served.name, exc_info=error
            )
            return "deny", "whether it needs consent could not be decided"
        if needs_consent:
            return "ask", ""
        return "allow", ""

    def _policies(self) -> tuple[Policy, ...]:
        with settings.entered(Scope(self._overrides)):
            policy = settings.setting("policy")
        if policy is None:
            return ()
        return (policy,)

    async def _refusal(self, served: ServedTool, mcp_call: MCPCall, checked: CheckedCall) -> Any:
        """Ask a person. None if the call may run; otherwise the result to answer with."""
        name, shown = served.name, checked.arguments.shown
        returned = returned_state(mcp_call) or ""
        prefix = f"call:{name}:"
        if returned.startswith(prefix):
            state = returned
        else:
            # The state holds what the check of the second call would make differently (a date of
            # today, say), so that the call runs as it was shown.
            differing = made_anew(checked.arguments, checked.call.args, served.tool.prepare)
            state = f"{prefix}{self._tickets.new()}{json_text(differing) if differing else ''}"
        query = _Query(
            name,
            shown,
            confirmation_text(name, shown),
            state,
            only_host=served.tool.require_confirmation == HOST,
        )
        answer = await self._ask(mcp_call, query)
        if state == returned and isinstance(answer, PersonAnswer):
            ticket = state.removeprefix(prefix).partition("{")[0]
            if not self._tickets.use(ticket):
                why = "the answer that came with it was used before. Call again for a new question"
                return _not_run(name, why)
        return _refusal_for(name, answer)

    async def _ask(self, mcp_call: MCPCall, query: _Query) -> PersonAnswer | Any:
        if self._rules.confirm is not None:
            return await self._ask_host(self._rules.confirm, query)
        if query.only_host:
            return PersonAnswer("host")
        return await ask_client(mcp_call, query.text, query.state, query.wants, query.form)

    async def _ask_host(
        self, confirm: Callable[[str, dict[str, Any]], Any], query: _Query
    ) -> PersonAnswer:
        # The host's own code, run like a tool: an exception counts as a no.
        schema = {"type": "object", "additionalProperties": True}
        decide = Tool("confirm", None, confirm, schema)
        arguments = CheckedArguments((query.name, dict(query.args)), {}, {})
        result = await arun_call(CheckedCall(ToolCall(name="confirm"), decide, arguments))
        if result.error is not None:
            log.error("the host could not decide on `%s`", query.name, exc_info=result.error)
        if result.value is True:
            return PersonAnswer("yes")
        return PersonAnswer("no")

    # -- running

    async def _perform(self, served: ServedTool, mcp_call: MCPCall, checked: CheckedCall) -> Any:
        if served.program is not None and self.store is not None:
            run_id = None
            if mcp_call.tell.task is not None:
                run_id = mcp_call.tell.task.id
            stored = program_runner(
                served.program, served.tool.func, store=self.store, run_id=run_id
            )
            checked = replace(checked, tool=served.tool.model_copy(update={"func": stored}))
        try:
            result = await self._within_limits(checked, mcp_call)
        except ConfirmationRequired as error:
            return await self._resume(served, mcp_call, checked.call, error.run)
        return self._answer(served, checked.call, result)

    async def _resume(self, served: ServedTool, mcp_call: MCPCall, call: ToolCall, run: Any) -> Any:
        """Ask the questions of a waiting program and resume it, until it has finished."""
        if run is None:
            # Starting again would repeat what ran before the question.
            return error_result(
                f"`{served.name}` is not waiting for an answer here: it was answered already, "
                "or runs in another process."
            )
        while True:
            for question in run.pending:
                if question.id in run.answers:
                    continue
                query = _query_of(run, question)
                answer = await self._ask(mcp_call, query)
                if not isinstance(answer, PersonAnswer):
                    self._keep(query.state, run)  # the answer comes with the next request
                    return answer
                _pass_on(answer, run, question)
            resumed = _resume_tool(served.tool, run)
            try:
                result = await self._within_limits(
                    CheckedCall(call, resumed, CheckedArguments((), {}, {})), mcp_call
                )
            except ConfirmationRequired as error:
                run = error.run
                continue
            return self._answer(served, call, result)

    def _keep(self, state: str, run: Any) -> None:
        self._waiting[state] = run
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)

    async def _within_limits(self, checked: CheckedCall, mcp_call: MCPCall) -> ToolResult:
        tool = checked.tool
        limit_s = None
        if tool.timeout_s is None:
            limit_s = self._rules.timeout_s
        semaphore, lock = self._limits_here()
        async with AsyncExitStack() as limits:
            if semaphore is not None:
                await limits.enter_async_context(semaphore)
            if not tool.concurrent:
                await limits.enter_async_context(lock)
            try:
                async with asyncio.timeout(limit_s):
                    with settings.entered(Scope(self._overrides, None, mcp_call)):
                        return await arun_call(checked)
            except TimeoutError:
                return failure(checked.call, ToolTimeoutError(tool.name, limit_s or 0))
            except ToolStop as stop:
                return failure(checked.call, stop)

    def _limits_here(self) -> tuple[asyncio.Semaphore | None, asyncio.Lock]:
        # By loop: an application may be served in memory on one and over HTTP on another.
        loop = asyncio.get_running_loop()
        if loop not in self._limits:
            semaphore = None
            if self._rules.max_concurrency is not None:
                semaphore = asyncio.Semaphore(self._rules.max_concurrency)
            self._limits[loop] = (semaphore, asyncio.Lock())
        return self._limits[loop]

    def _answer(self, served: ServedTool, call: ToolCall, result: ToolResult) -> Any:
        error = result.error
        if error is None or isinstance(result.value, MCPResult):
            return wire_result(result, served.output_schema, wraps=served.wraps_result)
        from mcp.shared.exceptions import MCPError

        if isinstance(error, MCPError):
            raise error  # the tool raised an error of the protocol
        is_for_model = isinstance(error, (ToolRetry, ToolTimeoutError))
        if not is_for_model:
            log.warning("the tool `%s` failed", served.name, exc_info=error)
        if self._rules.mask_errors and not is_for_model:
            return error_result(f"Execution error in {call.name}.")
        return wire_result(failure(call, error.with_traceback(None)))  # no file names in the text


def _is_of_the_tool(error: BaseException) -> bool:
    """Whether the tool raised a `BaseException` itself, as by `sys.exit`.

    An `Exception` is a result already, and a cancellation from outside is not the tool's.
    """
    if isinstance(error, Exception):
        return False
    return not (isinstance(error, asyncio.CancelledError) and is_task_cancelled())


def _query_of(run: Any, question: Question) -> _Query:
    if question.form is not None:
        wants = FORM
    elif question.kind == "clarify":
        wants = ANSWER
    else:
        wants = APPROVE
    return _Query(
        question.call.name,
        question.call.args,
        question.text,
        f"{_RUN}{run.id}:{question.id}",
        wants,
        form=question.form,
    )


def _pass_on(answer: PersonAnswer, run: Any, question: Question) -> None:
    """Answer a run's question. Content that does not fit the form counts as a no."""
    if answer.verdict != "yes":
        run.answer(question.deny())
    elif question.kind == "result":
        log.info("the run goes on waiting for a result from outside")
    elif question.form is not None:
        try:
            run.answer(question.fill(answer.content))
        except DecisionError as misfit:
            log.warning("the client's answer does not fit the form: %s", misfit)
            run.answer(question.deny())
    elif question.kind == "clarify":
        run.answer(question.reply(answer.text))
    else:
        run.answer(question.approve())


def _resume_tool(tool: Tool, run: Any) -> Tool:
    """A waiting run as a tool without arguments.

    It raises `ConfirmationRequired` if the run waits again.
    """

    async def resume() -> Any:
        if run.status in {"done", "failed"}:  # in another process: a replay
            return await in_worker_thread(lambda: run.prediction)
        try:
            return (await run.aresume()).prediction
        except StoreError as error:
            raise busy_error(error) from error

    return Tool(
        tool.name,
        None,
        resume,
        {"type": "object"},
        timeout_s=tool.timeout_s,
        concurrent=tool.concurrent,
    )


def _arguments_in(state: str | None, name: str) -> dict[str, Any]:
    """The arguments in the state of a question about this call; see `CallRunner._refusal`."""
    prefix = f"call:{name}:"
    if state is None or not state.startswith(prefix):
        return {}
    _, brace, rest = state.removeprefix(prefix).partition("{")
    if brace:
        return parse_object(brace + rest, "the arguments of a question")
    return {}


def _refusal_for(name: str, answer: PersonAnswer | Any) -> Any:
    """None for a yes; otherwise the result to answer with."""
    if not isinstance(answer, PersonAnswer):
        return answer
    match answer.verdict:
        case "yes":
            return None
        case "no":
            return _not_run(name, "it was not approved. Do not repeat it unless asked to")
        case "cannot":
            return _not_run(name, "it needs a person's consent, and this client cannot ask for it")
        case "host":
            return _not_run(name, "only the host of this server may allow it")


def _not_run(name: str, why: str) -> dict[str, Any]:
    return error_result(f"The call to `{name}` was not run: {why}.")
