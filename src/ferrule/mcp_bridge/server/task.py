"""One call that became a task, as the protocol sees it: its state, its questions, its outcome.

Questions come with the state, and the answers run the call again, as they do outside a task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ferrule.mcp_bridge.server.result import make_serializable, replace_surrogates, sdk_result

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from ferrule.errors import StoreError
    from ferrule.mcp_bridge.server.tools import ServedTool

log = logging.getLogger("ferrule.mcp")

POLL_MS = 500
"""How long clients should wait between two requests for the state."""
BUSY = "busy"
"""The `data` of the error of a run that another process executes."""
_running: set[asyncio.Task[Any]] = set()
"""A loop has only weak references to what runs on it."""


class ServedTask:
    """One task: a call, its questions and answers, and its outcome."""

    def __init__(
        self, task_id: str, served: ServedTool, request: Any, params: Any, ttl_s: float
    ) -> None:
        self.id = task_id
        self.served = served
        self.request = request
        self.params = params
        """The parameters of the call; with the answers to its last questions."""
        self.is_given = False
        """Whether the client has its id."""
        self.is_cancelled = False
        self.work: asyncio.Task[Any]
        self.created_at = self.updated_at = time.time()
        self._ttl_s = ttl_s
        self._message = ""
        self._rounds = 0
        self._questions: dict[str, tuple[str, Any]] = {}
        """The open questions: the tool's key and the request, by a key that is unique in the
        task."""
        self._answers: dict[str, Any] = {}
        self._state: str | None = None
        self._is_answered = asyncio.Event()

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start the work."""
        self.work = asyncio.get_running_loop().create_task(self._timed(work))
        self.work.add_done_callback(self._ended)
        _running.add(self.work)

    async def _timed(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The outcome of the work.

        Its time is noted before the work is done: a client that sees the end sees its time.
        """
        try:
            return await work
        finally:
            self.updated_at = time.time()

    def _ended(self, work: asyncio.Task[Any]) -> None:
        _running.discard(work)
        if not work.cancelled():
            work.exception()  # read it, or asyncio logs that it was never retrieved

    def report(self, message: str) -> None:
        """A report of the call, once the client has the id."""
        if message:
            self._message = replace_surrogates(message)
            self.updated_at = time.time()

    def cancel(self) -> None:
        """Stop the work, if it is not over."""
        if not self.work.done():
            self.is_cancelled = True
            self.work.cancel()

    # -- its state

    @property
    def status(self) -> str:
        """The protocol's word."""
        if self.is_cancelled:
            return "cancelled"
        if not self.work.done():
            if self._questions:
                return "input_required"
            return "working"
        if self.work.cancelled():
            return "cancelled"
        if self.work.exception() is None:
            return "completed"
        return "failed"

    def is_expired(self, now: float) -> bool:
        """Whether it was over, or waited for answers, for its whole time to live."""
        return self.status != "working" and self.updated_at + self._ttl_s < now

    def as_json(self) -> dict[str, Any]:
        """The `Task` of the protocol."""
        if self.work.done():
            lives_from = self.updated_at
        else:
            lives_from = time.time()
        ttl_s = lives_from + self._ttl_s - self.created_at
        task: dict[str, Any] = {"taskId": self.id, "status": self.status}
        if self._message:
            task["statusMessage"] = self._message
        task["createdAt"] = _written(self.created_at)
        task["lastUpdatedAt"] = _written(self.updated_at)
        task["ttlMs"] = max(1, int(ttl_s * 1000))
        task["pollIntervalMs"] = POLL_MS
        return task

    def in_detail(self) -> dict[str, Any]:
        """The `DetailedTask` of the protocol: with the result, the error or the questions."""
        task = self.as_json()
        match task["status"]:
            case "completed":
                task["result"] = _dumped(self.work.result())
            case "failed":
                task["error"] = _error_of(self.work.exception())
            case "input_required":
                task["inputRequests"] = {
                    key: _dumped(request) for key, (_, request) in self._questions.items()
                }
            case _:
                pass
        return task

    # -- questions

    async def ask(self, result: Any) -> None:
        """Wait for the answers to the questions of a result.

        They are put into the parameters of the call.
        """
        self._rounds += 1
        requests: dict[str, Any] = result.input_requests or {}
        # Keys of the tool may repeat, those of a task must not.
        self._questions = {
            f"{key}-{self._rounds}": (key, request) for key, request in requests.items()
        }
        self._answers = {}
        self._state = result.request_state
        self._is_answered.clear()
        self.updated_at = time.time()
        if self._questions:
            await self._is_answered.wait()
        self.params = self.params.model_copy(
            update={"input_responses": self._answers, "request_state": self._state}
        )

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Take answers; others than those to open questions are ignored.

        Raises the SDK's `MCPError` for one that is malformed.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS, CallToolRequestParams
        from pydantic import ValidationError

        answered = [key for key in self._questions if key in answers]
        responses = {self._questions[key][0]: answers[key] for key in answered}
        try:
            params = CallToolRequestParams.model_validate(
                {"name": self.served.name, "inputResponses": responses}
            )
        except ValidationError as error:
            raise MCPError(
                INVALID_PARAMS,
                "An answer in `inputResponses` does not fit the form of its question.",
            ) from error
        self._answers |= params.input_responses or {}
        for key in answered:
            del self._questions[key]
        self.updated_at = time.time()
        if not self._questions:
            self._is_answered.set()


def busy_error(error: StoreError) -> Exception:
    """The error of a run that another process executes."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import INTERNAL_ERROR

    return MCPError(INTERNAL_ERROR, str(error), BUSY)


def _written(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat().replace("+00:00", "Z")


def _dumped(result: Any) -> dict[str, Any]:
    return sdk_result(result).model_dump(by_alias=True, mode="json", exclude_none=True)


def _error_of(error: BaseException | None) -> dict[str, Any]:
    from mcp.shared.exceptions import MCPError
    from mcp_types import INTERNAL_ERROR

    if isinstance(error, MCPError):
        data = make_serializable(error.error)
        return data.model_dump(by_alias=True, mode="json", exclude_none=True)
    log.error("a task failed", exc_info=error)
    return {"code": INTERNAL_ERROR, "message": "Internal error"}
