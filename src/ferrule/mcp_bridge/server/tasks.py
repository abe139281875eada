"""Calls that become tasks (the extension `io.modelcontextprotocol/tasks` of 2026-07-28).

The client gets an id, and asks for the state until there is a result. A call becomes a task if it
takes longer than a moment, the tool may be one, and the client declares the extension.

A task lives in this process. With a store, the task of a program is the run with its id, and any
process with the store continues it when it is asked for its state.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from fnmatch import fnmatchcase
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ferrule.concurrency.offload import in_worker_thread
from ferrule.errors import ConfigurationError, StoreError, shown
from ferrule.mcp_bridge.connection.handshake import TASKS
from ferrule.mcp_bridge.server.questions import is_modern
from ferrule.mcp_bridge.server.task import BUSY, POLL_MS, ServedTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.mcp_bridge.server.call import CallRunner
    from ferrule.mcp_bridge.server.tools import ServedTool

TaskSupport = Literal["optional", "required", "forbidden"]

log = logging.getLogger("ferrule.mcp")

_AT_ONCE_S = 0.5
"""A call that ends within this time is answered plainly."""


class Tasks:
    """The tasks of a server, and its methods `tasks/get`, `tasks/update` and `tasks/cancel`."""

    def __init__(
        self,
        calls: CallRunner,
        offered: Mapping[str, ServedTool],
        support: Mapping[str, TaskSupport] | None,
        ttl_s: float,
    ) -> None:
        for name, value in (support or {}).items():
            if value not in get_args(TaskSupport):
                words = ", ".join(map(repr, get_args(TaskSupport)))
                raise ConfigurationError(
                    f"`tasks` says {words} for each name; found {shown(value)} for {name!r}."
                )
        if not ttl_s > 0:
            raise ConfigurationError(
                f"`task_ttl_s` is a number of seconds above 0; found {shown(ttl_s)}."
            )
        self._calls = calls
        self._offered = offered
        self._support: dict[str, TaskSupport] = dict(support or {})
        self._ttl_s = ttl_s
        self._tasks: dict[str, ServedTask] = {}

    def support(self, served: ServedTool) -> TaskSupport:
        """Whether calls of a tool may become tasks.

        The first name in `tasks=` that matches decides; otherwise those of programs may.
        """
        for pattern, support in self._support.items():
            if fnmatchcase(served.name, pattern):
                return support
        if served.program is not None:
            return "optional"
        return "forbidden"

    def declare(self, server: Any) -> None:
        """Declare the extension if a tool has it."""
        if any(self.support(served) != "forbidden" for served in list(self._offered.values())):
            server.extensions[TASKS] = {}
        else:
            server.extensions.pop(TASKS, None)

    def install(self, server: Any) -> None:
        """Add the methods to the SDK's server, and declare the extension if a tool has it."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import METHOD_NOT_FOUND, RequestParams

        class TaskParams(RequestParams):
            task_id: str

        class UpdateParams(TaskParams):
            input_responses: dict[str, Any]

        def checked(act: Any) -> Any:
            async def handle(request: Any, params: Any) -> Any:
                if not is_modern(request) or TASKS not in server.extensions:
                    raise MCPError(METHOD_NOT_FOUND, "Method not found", request.method)
                if not _declares(request):
                    raise _missing_extension()
                _check_header(request, params.task_id)
                return await act(request, params)

            return handle

        server.add_request_handler("tasks/get", TaskParams, checked(self._get))
        server.add_request_handler("tasks/update", UpdateParams, checked(self._update))
        server.add_request_handler("tasks/cancel", TaskParams, checked(self._cancel))
        self.declare(server)

    # -- calls

    async def call(self, served: ServedTool, request: Any, params: Any) -> Any:
        """The result of a call; or a task, if it takes longer than a moment."""
        support = self.support(served)
        can_be_task = is_modern(request) and _declares(request)
        if support == "required" and not can_be_task:
            raise _missing_extension()
        if support == "forbidden" or not can_be_task:
            return await self._calls.run(served, request, params)
        self._sweep()
        # The id of a run that waits for this answer; its task continues under it.
        task_id = self._calls.run_of_state(params.request_state)
        if task_id is None:
            task_id = f"{token_hex(16)}{_owner()}.{served.name}"
        task = ServedTask(task_id, served, request, params, self._ttl_s)
        task.begin(self._run_call(task))
        try:
            await asyncio.wait((task.work,), timeout=_AT_ONCE_S)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task.work,))
            raise
        if task.work.done() and (support == "optional" or _has_plain_answer(task.work)):
            return task.work.result()
        self._tasks[task.id] = task
        task.is_given = True
        return {"resultType": "task", **task.as_json()}

    @staticmethod
    def is_task(result: Any) -> bool:
        """Whether the answer to a call is a task."""
        if not isinstance(result, dict):
            return False
        return cast("dict[str, Any]", result).get("resultType") == "task"

    async def _run_call(self, task: ServedTask, run: Any = None) -> Any:
        """Run the call, again with answers while it asks questions."""
        while True:
            result = await self._calls.run(task.served, task.request, task.params, task, run)
            run = None
            if not task.is_given or not hasattr(result, "input_requests"):
                return result
            await task.ask(result)

    # -- methods

    async def _get(self, request: Any, params: Any) -> Any:
        return (await self._find(request, params.task_id)).in_detail()

    async def _update(self, request: Any, params: Any) -> Any:
        (await self._find(request, params.task_id)).answer(params.input_responses)
        return {}

    async def _cancel(self, request: Any, params: Any) -> Any:
        task = await self._find(request, params.task_id)
        was_open = not task.work.done()
        task.cancel()
        if was_open and task.served.program is not None and self._calls.store is not None:
            # An execution that ends stores that it can be resumed. Only then the run is cancelled.
            await asyncio.wait((task.work,), timeout=_AT_ONCE_S)
            try:
                await in_worker_thread(partial(self._calls.store.cancel, task.id))
            except StoreError as error:
                log.info("the run `%s` could not be cancelled: %s", task.id, error)
        return {}

    async def _find(self, request: Any, task_id: str) -> ServedTask:
        """A task of this client. Raises the SDK's `MCPError` for an unknown one."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS

        self._sweep()
        random_and_owner, _, name = task_id.partition(".")
        if random_and_owner.endswith(_owner()):
            task = self._tasks.get(task_id) or await self._restored(request, task_id, name)
            if task is not None:
                return task
        raise MCPError(
            INVALID_PARAMS,
            "There is no such task: it never existed, has expired, or was lost when the server "
            "was restarted.",
        )

    async def _restored(self, request: Any, task_id: str, name: str) -> ServedTask | None:
        """The task of a stored run that began in another process.

        It is continued here unless another process does.
        """
        from mcp_types import CallToolRequestParams

        served = self._offered.get(name)
        if served is None:
            return None
        run = await self._calls.stored_run(served, task_id)
        if run is None:
            return None
        if task_id in self._tasks:  # another request was faster
            return self._tasks[task_id]
        params = CallToolRequestParams(name=name, arguments={})
        task = self._tasks[task_id] = ServedTask(task_id, served, request, params, self._ttl_s)
        task.is_given = True
        task.is_cancelled = run.status == "cancelled"
        task.begin(asyncio.sleep(0) if task.is_cancelled else self._run_call(task, run))
        await asyncio.wait((task.work,), timeout=_AT_ONCE_S)
        if _is_busy(task.work):
            # Works, elsewhere. The next request looks again.
            del self._tasks[task_id]
            task.begin(asyncio.sleep(POLL_MS / 1000))
        return task

    def _sweep(self) -> None:
        now = time.time()
        expired = [task for task in self._tasks.values() if task.is_expired(now)]
        for task in expired:
            task.cancel()
            del self._tasks[task.id]


def _is_busy(work: asyncio.Task[Any]) -> bool:
    if not work.done() or work.cancelled():
        return False
    return getattr(work.exception(), "data", None) == BUSY


def _has_plain_answer(work: asyncio.Task[Any]) -> bool:
    """Whether finished work is answered without a task, even if the tool requires one.

    A question is: the client answers it with its next call.
    """
    if work.cancelled():
        return True
    return work.exception() is None and hasattr(work.result(), "input_requests")


def _declares(request: Any) -> bool:
    """Whether the client declares the extension with this request."""
    capabilities = request.session.client_capabilities
    return capabilities is not None and TASKS in (capabilities.extensions or {})


def _missing_extension() -> Exception:
    from mcp.shared.exceptions import MCPError
    from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY

    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    return MCPError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"This needs a client with the extension `{TASKS}`.",
        needed,
    )


def _check_header(request: Any, task_id: str) -> None:
    """Over HTTP the header `Mcp-Name` says which task is meant.

    Revision 2026-07-28, tasks, "Routing Headers".
    """
    from mcp.shared.exceptions import MCPError
    from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
    from mcp_types import HEADER_MISMATCH

    if request.request is None:
        return
    header = request.request.headers.get(MCP_NAME_HEADER)
    if header is not None and decode_header_value(header) != task_id:
        raise MCPError(
            HEADER_MISMATCH, f"The header {MCP_NAME_HEADER} does not name the task in `taskId`."
        )


def _owner() -> str:
    """A digest of the client that has the token of this request; part of the ids of its tasks."""
    from mcp.server.auth.middleware.auth_context import get_access_token

    token = get_access_token()
    client_id = token.client_id if token is not None else ""
    return hashlib.sha256(client_id.encode()).hexdigest()[:16]
