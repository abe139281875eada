"""A call that the server carries out as a task: it answers with the task's id, and is asked for the state until there is a result.

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
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from ferrule.mcp_bridge.client.options import ServerOptions
    from ferrule.mcp_bridge.connection.handshake import Handshake

    Send = Callable[..., Awaitable[dict[str, Any]]]
    Progress = Callable[[float, float | None, str | None], Any]

log = logging.getLogger("ferrule.mcp")

TASK_STATE = "ferrule-task:"
"""Begins the `requestState` of a task's questions, so that a call with their answers continues the task."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0
"""Between two requests for the state, if the server names no interval: longer each time."""
_LEAST_WAIT_S = 0.02
_CANCEL_WITHIN_S = 5.0
_UNKNOWN_TASK = (-32602, -32002)  # both revisions name the first; servers send the second, too
_SERVER_ERROR, _TOO_MANY = 500, 429
_OPEN, _OVER = ("working", "input_required"), ("completed", "failed", "cancelled")
_leaving: set[asyncio.Task[None]] = set()
"""Requests and reports that no call waits for. The loop has only weak references to them."""


def task_wish(handshake: Handshake, total_s: float | None) -> dict[str, Any]:
    """The parameters that ask a server to make a task of a call. Empty if it has no tasks, or decides itself."""
    found: Any = handshake.capabilities
    for name in ("tasks", "requests", "tools", "call"):
        found = cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
    if handshake.is_modern or found is None:
        return {}
    return {"task": {} if total_s is None else {"ttl": int(total_s * 1000)}}


def task_in(result: Mapping[str, Any], attempt: Attempt) -> dict[str, Any] | None:
    """The task in the result of a call; None for another result. Raises `MCPProtocolError` for a task without an id."""
    is_task = result.get("resultType") == "task"
    task: Any = result if is_task else result.get("task")
    if task is None or ("content" in result and not is_task):
        return None
    found = cast("dict[str, Any]", task) if isinstance(task, dict) else {}
    if not isinstance(found.get("taskId"), str) or not found["taskId"]:
        msg = f"{attempt.subject} answered with a task without an id: {shown(result)}."
        raise MCPProtocolError(msg, **attempt.facts())
    return found


class TaskCall:
    """One task, until it is over. Runs on the background loop."""

    def __init__(
        self,
        task: Mapping[str, Any],
        attempt: Attempt,
        send: Send,
        options: ServerOptions,
        turn: Callable[[Handshake], AbstractAsyncContextManager[None]],
        *,
        progress: Progress | None = None,
    ) -> None:
        self.id: str = task["taskId"]
        self._state: Mapping[str, Any] = task if "status" in task else {}
        """As the server last said; empty for a task of an earlier process."""
        self.is_over = False
        """Whether the server has ended or forgotten it."""
        self._attempt = attempt
        self._send = send
        self._timeout_s = options.timeout_for(attempt.tool)
        self._total_s = options.total_timeout_s
        self._ends = time.monotonic() + (float("inf") if self._total_s is None else self._total_s)
        self._turn = turn
        self._progress = progress
        self._heard = time.monotonic()
        self._wait_s = _FIRST_WAIT_S
        self._answered: set[str] = set()
        self._said: tuple[int, Any] = (0, None)

    async def outcome(
        self,
        answers: Mapping[str, Any] | None,
        handshake: Handshake,
    ) -> dict[str, Any]:
        """The result of the call; or its questions, in the form of a call's result, with the state that continues the task."""
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
                    return (
                        self._result(state)
                        if handshake.is_modern
                        else await self._request("tasks/result", phase="call")
                    )
                case "input_required" if handshake.is_modern:
                    asked = await self._answer(state, answers or {})
                    if asked:
                        return {
                            "resultType": "input_required",
                            "inputRequests": asked,
                            "requestState": f"{TASK_STATE}{self.id}",
                        }
                case "input_required":
                    found = await self._await_result(handshake)
                    if found is not None:
                        self.is_over = True
                        return found
                case _:
                    pass

    def cancel(self) -> None:
        """Ask the server to cancel the task, without waiting for its answer."""
        if not self.is_over:
            self.is_over = True
            run_beside(self._cancel())

    async def _cancel(self) -> None:
        try:
            await self._request("tasks/cancel", timeout_s=_CANCEL_WITHIN_S)
        except MCPError as fault:
            log.info("the task `%s` could not be cancelled: %s", self.id, fault)

    # -- its state
    # ------------------------------------------------------------------------------------------------

    async def _read_state(self) -> dict[str, Any]:
        """The state. A server that is away or does not answer with one is asked again, for at most `timeout_s`."""
        while True:
            fault: MCPError
            try:
                found = await self._request("tasks/get")
            except (MCPConnectionError, MCPTimeoutError) as error:
                if (
                    error.status is not None
                    and error.status < _SERVER_ERROR
                    and error.status != _TOO_MANY
                ):
                    raise
                fault = error
            except MCPProtocolError as error:
                if error.code not in _UNKNOWN_TASK:
                    raise
                self.is_over = True
                raise self._error(
                    "the server no longer knows the task, and its result is lost",
                    {},
                ) from error
            else:
                if found.get("status") in (*_OPEN, *_OVER):
                    self._heard = time.monotonic()
                    return found
                fault = self._wrong("a state of a task", found)
            if time.monotonic() - self._heard >= self._timeout_s:
                raise fault
            await self._pause()

    async def _pause(self) -> None:
        """Wait as long as the server wants. Raises `MCPTimeoutError` when the total time is over."""
        given: Any = self._state.get("pollIntervalMs", self._state.get("pollInterval"))
        if isinstance(given, int | float) and not isinstance(given, bool) and given > 0:
            wait_s = max(given / 1000, _LEAST_WAIT_S)
        else:
            wait_s, self._wait_s = self._wait_s, min(self._wait_s * 1.5, _LONGEST_WAIT_S)
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            raise timeout_error(self._attempt, self._total_s or 0)
        await asyncio.sleep(min(wait_s, left_s))

    def _report(self, message: Any) -> None:
        number, last = self._said
        if self._progress is None or not isinstance(message, str) or not message or message == last:
            return
        self._said = number + 1, message
        progress = self._progress

        async def report() -> None:
            waiting = progress(number + 1, None, message)
            if waiting is not None:
                await waiting

        run_beside(report())

    # -- questions and the result
    # -----------------------------------------------------------------------------------

    async def _answer(self, state: Mapping[str, Any], answers: Mapping[str, Any]) -> dict[str, Any]:
        """Send the answers that there are; returns the questions that have none yet."""
        asked: Any = state.get("inputRequests")
        if not isinstance(asked, dict):
            raise self._wrong("questions", state)
        rest = {
            key: each
            for key, each in cast("dict[str, Any]", asked).items()
            if key not in self._answered
        }
        ready = {key: answers[key] for key in rest if key in answers}
        if ready:
            await self._request("tasks/update", inputResponses=ready)
            self._answered |= ready.keys()
        return {} if ready else rest

    def _result(self, state: Mapping[str, Any]) -> dict[str, Any]:
        found: Any = state.get("result" if state["status"] == "completed" else "error")
        if not isinstance(found, dict):
            raise self._wrong("a result of a task", state)
        found = cast("dict[str, Any]", found)
        if state["status"] == "failed":
            code = found.get("code")
            raise error_answer(
                self._attempt,
                code if isinstance(code, int) else 0,
                str(found.get("message", "")),
                found.get("data"),
            )
        return {**found, "resultType": "complete"}

    async def _await_result(self, handshake: Handshake) -> dict[str, Any] | None:
        """The result, during the request for which the server asks its questions; None if it takes longer."""
        async with self._turn(handshake):
            try:
                return await self._request("tasks/result", phase="call")
            except MCPTimeoutError:
                return None

    # -- requests
    # -----------------------------------------------------------------------------------------------

    async def _request(
        self,
        method: str,
        *,
        phase: str = "task",
        timeout_s: float | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        within_s = (
            timeout_s
            if timeout_s is not None
            else max(min(self._timeout_s, self._ends - time.monotonic()), _LEAST_WAIT_S)
        )
        params = {"taskId": self.id, **more}
        try:
            return await self._send(
                method,
                params,
                phase=phase,
                may_repeat=True,
                timeout_s=within_s,
                tool=self._attempt.tool,
            )
        except MCPError as fault:
            fault.may_have_run = True  # the call, of which the server made the task
            raise

    def _wrong(self, what: str, found: Mapping[str, Any]) -> MCPProtocolError:
        return MCPProtocolError(
            f"{self._attempt.subject} answered with what is not {what}: {shown(found)}.",
            **self._attempt.facts(),
        )

    def _error(self, why: str, state: Mapping[str, Any]) -> MCPToolError:
        said = state.get("statusMessage")
        text = f"{self._attempt.subject}: {why}{f' ({said})' if isinstance(said, str) and said else ''}. It may have been executed."
        return MCPToolError(scrub(text), **self._attempt.facts())


def run_beside(work: Any) -> asyncio.Task[None]:
    """Run a coroutine whose end changes no call. Its exception is logged."""

    def done(task: asyncio.Task[None]) -> None:
        _leaving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a hook of an MCP server raised", exc_info=error)

    task = asyncio.get_running_loop().create_task(work)
    _leaving.add(task)
    task.add_done_callback(done)
    return task
