"""One call that became a task, as the protocol sees it: its state, its questions, and its outcome.

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
_at_work: set[asyncio.Task[Any]] = set()
"""A loop has only weak references to what runs on it."""
BUSY = "busy"
"""The `data` of the error of a run that another process executes."""


class ServedTask:
    """One task: a call, its questions and answers, and its outcome."""

    def __init__(
        self,
        task_id: str,
        served: ServedTool,
        request: Any,
        params: Any,
        ttl_s: float,
    ) -> None:
        self.id = task_id
        self.served = served
        self.request = request
        self.params = params
        """Of the call; with the answers to its last questions."""
        self.is_given = False
        """Whether the client has its id."""
        self.is_cancelled = False
        self.work: asyncio.Task[Any]
        self.created_at = self.updated_at = time.time()
        self._ttl_s = ttl_s
        self._message = ""
        self._rounds = 0
        self._asked: dict[str, tuple[str, Any]] = {}
        """The open questions: the tool's key and the request, by a key that is unique in the task."""
        self._answers: dict[str, Any] = {}
        self._state: str | None = None
        self._is_answered = asyncio.Event()

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start the work."""
        self.work = asyncio.get_running_loop().create_task(self._timed(work))
        self.work.add_done_callback(self._ended)
        _at_work.add(self.work)

    async def _timed(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The outcome of the work. Its time is noted before the work is done: a client that sees the end sees its time."""
        try:
            return await work
        finally:
            self.updated_at = time.time()

    def _ended(self, work: asyncio.Task[Any]) -> None:
        _at_work.discard(work)
        if not work.cancelled():
            work.exception()  # read it, or asyncio logs that it was never retrieved

    def say(self, message: str) -> None:
        """What the call reports, once the client has the id."""
        if message:
            self._message, self.updated_at = replace_surrogates(message), time.time()

    def cancel(self) -> None:
        """Stop the work, if it is not over."""
        if not self.work.done():
            self.is_cancelled = True
            self.work.cancel()

    # -- its state

    @property
    def status(self) -> str:
        """The protocol's word."""
        if self.is_cancelled or (self.work.done() and self.work.cancelled()):
            return "cancelled"
        if self.work.done():
            return "failed" if self.work.exception() is not None else "completed"
        return "input_required" if self._asked else "working"

    def is_expired(self, now: float) -> bool:
        """Whether it was over, or waited for answers, for its whole time to live."""
        return self.status != "working" and self.updated_at + self._ttl_s < now

    def as_json(self) -> dict[str, Any]:
        """The `Task` of the protocol."""
        until = (self.updated_at if self.work.done() else time.time()) + self._ttl_s
        said = {"statusMessage": self._message} if self._message else {}
        return {
            "taskId": self.id,
            "status": self.status,
            **said,
            "createdAt": _written(self.created_at),
            "lastUpdatedAt": _written(self.updated_at),
            "ttlMs": max(1, int((until - self.created_at) * 1000)),
            "pollIntervalMs": POLL_MS,
        }

    def in_detail(self) -> dict[str, Any]:
        """The `DetailedTask` of the protocol: with the result, the error or the questions."""
        about = self.as_json()
        match about["status"]:
            case "completed":
                return {**about, "result": _dumped(self.work.result())}
            case "failed":
                return {**about, "error": _error_of(self.work.exception())}
            case "input_required":
                return {
                    **about,
                    "inputRequests": {key: _dumped(each) for key, (_, each) in self._asked.items()},
                }
            case _:
                return about

    # -- questions

    async def ask(self, found: Any) -> None:
        """Wait for the answers to the questions of a result, and put them into the parameters of the call."""
        self._rounds += 1
        asked: dict[str, Any] = found.input_requests or {}
        self._asked = {f"{key}-{self._rounds}": (key, each) for key, each in asked.items()}
        self._answers, self._state = {}, found.request_state
        self._is_answered.clear()
        self.updated_at = time.time()
        if self._asked:
            await self._is_answered.wait()
        self.params = self.params.model_copy(
            update={"input_responses": self._answers, "request_state": self._state},
        )

    def answer(self, given: Mapping[str, Any]) -> None:
        """Take answers; others than those to open questions are ignored. Raises the SDK's `MCPError` for one that is malformed."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS, CallToolRequestParams
        from pydantic import ValidationError

        mine = {key: given[key] for key in self._asked if key in given}
        try:
            form = {
                "name": self.served.name,
                "inputResponses": {self._asked[key][0]: each for key, each in mine.items()},
            }
            self._answers |= CallToolRequestParams.model_validate(form).input_responses or {}
        except ValidationError as error:
            raise MCPError(
                INVALID_PARAMS,
                "An answer in `inputResponses` does not fit the form of its question.",
            ) from error
        for key in mine:
            del self._asked[key]
        self.updated_at = time.time()
        if not self._asked:
            self._is_answered.set()


def busy_error(error: StoreError) -> Exception:
    """The error of a run that another process executes."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import INTERNAL_ERROR

    return MCPError(INTERNAL_ERROR, str(error), BUSY)


def _written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def _dumped(found: Any) -> dict[str, Any]:
    return sdk_result(found).model_dump(by_alias=True, mode="json", exclude_none=True)


def _error_of(error: BaseException | None) -> dict[str, Any]:
    from mcp.shared.exceptions import MCPError
    from mcp_types import INTERNAL_ERROR

    if isinstance(error, MCPError):
        return make_serializable(error.error).model_dump(
            by_alias=True,
            mode="json",
            exclude_none=True,
        )
    log.error("a task failed", exc_info=error)
    return {"code": INTERNAL_ERROR, "message": "Internal error"}
