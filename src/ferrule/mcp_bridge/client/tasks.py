"""A call that the server carries out as a task.

The server answers with the task's id, and is asked for the state until there is a result.

From 2026-07-28 on (the extension `io.modelcontextprotocol/tasks`) the server decides which calls
become tasks, its questions come with the state, and so does the result. In 2025-11-25 the client
decides, and asks for the result by `tasks/result`, during which the server asks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import (
    MCPConnectionError,
    MCPError,
    MCPProtocolError,
    MCPTimeoutError,
    MCPToolError,
    shown,
)
from ferrule.mcp_bridge.errors import Attempt, error_answer, timeout_error
from ferrule.tools.mcp.safety import scrub

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from contextlib import AbstractAsyncContextManager

    from ferrule.mcp_bridge.connection.handshake import Handshake

    Send = Callable[..., Awaitable[dict[str, Any]]]
    Progress = Callable[[float, float | None, str | None], Any]

log = logging.getLogger("ferrule.mcp")

TASK_STATE = "ferrule-task:"
"""Begins the `requestState` of a task's questions.

With it, a call with their answers continues the task.
"""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0
"""Between two requests for the state, if the server names no interval: longer each time."""
_LEAST_WAIT_S = 0.02
_CANCEL_WITHIN_S = 5.0
_UNKNOWN_TASK = (-32602, -32002)  # both revisions name the first; servers send the second, too
_SERVER_ERROR, _TOO_MANY = 500, 429
_STATUSES = ("working", "input_required", "completed", "failed", "cancelled")
_leaving: set[asyncio.Task[None]] = set()
"""Requests and reports that no call waits for. The loop has only weak references to them."""


def task_wish(handshake: Handshake, total_s: float | None) -> dict[str, Any]:
    """The parameters that ask a server to make a task of a call.

    They are empty if the server has no tasks, or decides itself.
    """
    capability: Any = handshake.capabilities
    for name in ("tasks", "requests", "tools", "call"):
        if not isinstance(capability, dict):
            return {}
        capability = cast("dict[str, Any]", capability).get(name)
    if handshake.is_modern or capability is None:
        return {}
    return {"task": {} if total_s is None else {"ttl": int(total_s * 1000)}}


def task_in(result: Mapping[str, Any], attempt: Attempt) -> dict[str, Any] | None:
    """The task in the result of a call; None for another result.

    Raises `MCPProtocolError` for a task without an id.
    """
    task: Any
    if result.get("resultType") == "task":
        task = result
    elif "content" in result:
        return None
    else:
        task = result.get("task")
    if task is None:
        return None
    task_id: Any = cast("dict[str, Any]", task).get("taskId") if isinstance(task, dict) else None
    if not isinstance(task_id, str) or not task_id:
        text = f"{attempt.subject} answered with a task without an id: {shown(result)}."
        raise MCPProtocolError(text, **attempt.facts())
    return cast("dict[str, Any]", task)


class TaskCall:
    """One task, until it is over. Runs on the background loop."""

    def __init__(
        self,
        task: Mapping[str, Any],
        attempt: Attempt,
        send: Send,
        turn: Callable[[Handshake], AbstractAsyncContextManager[None]],
        *,
        timeout_s: float,
        total_s: float | None,
        progress: Progress | None = None,
    ) -> None:
        self.id: str = task["taskId"]
        self._state: Mapping[str, Any] = task if "status" in task else {}
        """The last one that the server sent; empty for a task of an earlier process."""
        self.is_over = False
        """Whether the server has ended or forgotten it."""
        self._attempt = attempt
        self._send = send
        self._turn = turn
        self._timeout_s = timeout_s
        self._total_s = total_s
        self._ends = time.monotonic() + (float("inf") if total_s is None else total_s)
        self._heard_at = time.monotonic()
        self._wait_s = _FIRST_WAIT_S
        self._answered: set[str] = set()
        """The keys of questions whose answers were sent."""
        self._progress = progress
        self._reports = 0
        self._last_message: str | None = None

    async def outcome(
        self, answers: Mapping[str, Any] | None, handshake: Handshake
    ) -> dict[str, Any]:
        """The result of the call; or its questions, in the form of a call's result.

        Questions come with the state that continues the task.
        """
        while True:
            if self._state:
                await self._pause()
            state = self._state = await self._read_state()
            self._report(state.get("statusMessage"))
            match state["status"]:
                case "cancelled":
                    self.is_over = True
                    raise self._error("the server cancelled the task", state)
                case "completed" | "failed":
                    self.is_over = True
                    if handshake.is_modern:
                        return self._result(state)
                    return await self._request("tasks/result", phase="call")
                case "input_required" if handshake.is_modern:
                    questions = await self._answer(state, answers or {})
                    if questions:
                        return {
                            "resultType": "input_required",
                            "inputRequests": questions,
                            "requestState": f"{TASK_STATE}{self.id}",
                        }
                case "input_required":
                    result = await self._await_result(handshake)
                    if result is not None:
                        self.is_over = True
                        return result
                case _:
                    pass

    def cancel(self) -> None:
        """Ask the server to cancel the task, without waiting for its answer."""
        if not self.is_over:
            self.is_over = True
            _run_unattended(self._cancel())

    async def _cancel(self) -> None:
        try:
            await self._request("tasks/cancel", timeout_s=_CANCEL_WITHIN_S)
        except MCPError as fault:
            log.info("the task `%s` could not be cancelled: %s", self.id, fault)

    # -- its state

    async def _read_state(self) -> dict[str, Any]:
        """The state.

        A server that is away or does not answer with one is asked again, for at most `timeout_s`.
        """
        while True:
            fault: MCPError
            try:
                state = await self._request("tasks/get")
            except (MCPConnectionError, MCPTimeoutError) as error:
                if _is_refusal(error):
                    raise
                fault = error
            except MCPProtocolError as error:
                if error.code not in _UNKNOWN_TASK:
                    raise
                self.is_over = True
                why = "the server no longer knows the task, and its result is lost"
                raise self._error(why, {}) from error
            else:
                if state.get("status") in _STATUSES:
                    self._heard_at = time.monotonic()
                    return state
                fault = self._wrong("a state of a task", state)
            if time.monotonic() - self._heard_at >= self._timeout_s:
                raise fault
            await self._pause()

    async def _pause(self) -> None:
        """Wait as long as the server wants. Raises `MCPTimeoutError` when the total time is over.

        The two revisions spell the name of the interval differently.
        """
        interval_ms: Any = self._state.get("pollIntervalMs", self._state.get("pollInterval"))
        is_number = isinstance(interval_ms, int | float) and not isinstance(interval_ms, bool)
        if is_number and interval_ms > 0:
            wait_s = max(interval_ms / 1000, _LEAST_WAIT_S)
        else:
            wait_s = self._wait_s
            self._wait_s = min(self._wait_s * 1.5, _LONGEST_WAIT_S)
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            raise timeout_error(self._attempt, self._total_s or 0)
        await asyncio.sleep(min(wait_s, left_s))

    def _report(self, message: Any) -> None:
        progress = self._progress
        if progress is None or not isinstance(message, str) or not message:
            return
        if message == self._last_message:
            return
        self._last_message = message
        self._reports += 1
        number = self._reports

        async def report() -> None:
            waiting = progress(number, None, message)
            if waiting is not None:
                await waiting

        _run_unattended(report())

    # -- questions and the result

    async def _answer(self, state: Mapping[str, Any], answers: Mapping[str, Any]) -> dict[str, Any]:
        """Send the answers that there are; returns the questions that have none yet."""
        questions: Any = state.get("inputRequests")
        if not isinstance(questions, dict):
            raise self._wrong("questions", state)
        open_questions = {
            key: question
            for key, question in cast("dict[str, Any]", questions).items()
            if key not in self._answered
        }
        ready = {key: answers[key] for key in open_questions if key in answers}
        if not ready:
            return open_questions
        await self._request("tasks/update", inputResponses=ready)
        self._answered |= ready.keys()
        return {}

    def _result(self, state: Mapping[str, Any]) -> dict[str, Any]:
        has_failed = state["status"] == "failed"
        outcome: Any = state.get("error" if has_failed else "result")
        if not isinstance(outcome, dict):
            raise self._wrong("a result of a task", state)
        outcome = cast("dict[str, Any]", outcome)
        if not has_failed:
            return {**outcome, "resultType": "complete"}
        code = outcome.get("code")
        raise error_answer(
            self._attempt,
            code if isinstance(code, int) else 0,
            str(outcome.get("message", "")),
            outcome.get("data"),
        )

    async def _await_result(self, handshake: Handshake) -> dict[str, Any] | None:
        """The result, during the request for which the server asks its questions.

        None if it takes longer.
        """
        async with self._turn(handshake):
            try:
                return await self._request("tasks/result", phase="call")
            except MCPTimeoutError:
                return None

    # -- requests

    async def _request(
        self, method: str, *, phase: str = "task", timeout_s: float | None = None, **more: Any
    ) -> dict[str, Any]:
        if timeout_s is None:
            left_s = self._ends - time.monotonic()
            timeout_s = max(min(self._timeout_s, left_s), _LEAST_WAIT_S)
        try:
            return await self._send(
                method,
                {"taskId": self.id, **more},
                phase=phase,
                may_repeat=True,
                timeout_s=timeout_s,
                tool=self._attempt.tool,
            )
        except MCPError as fault:
            fault.may_have_run = True  # the call, of which the server made the task
            raise

    def _wrong(self, wanted: str, answer: Mapping[str, Any]) -> MCPProtocolError:
        text = f"{self._attempt.subject} answered with what is not {wanted}: {shown(answer)}."
        return MCPProtocolError(text, **self._attempt.facts())

    def _error(self, why: str, state: Mapping[str, Any]) -> MCPToolError:
        message = state.get("statusMessage")
        if isinstance(message, str) and message:
            why = f"{why} ({message})"
        text = f"{self._attempt.subject}: {why}. It may have been executed."
        return MCPToolError(scrub(text), **self._attempt.facts())


def _is_refusal(error: MCPError) -> bool:
    """Whether asking again will not help: an HTTP status that blames the request."""
    status = error.status
    return status is not None and status < _SERVER_ERROR and status != _TOO_MANY


def _run_unattended(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine whose end changes no call. Its exception is logged."""

    def done(task: asyncio.Task[None]) -> None:
        _leaving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a hook of an MCP server raised", exc_info=error)

    task = asyncio.get_running_loop().create_task(work)
    _leaving.add(task)
    task.add_done_callback(done)
