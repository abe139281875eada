"""One server as used on the background loop: its connection, its lists, and calls of its tools.

A server may ask a question during a call. Before 2026-07-28 it asks while the call is open and does
not say which call it means; so calls of a server that may ask a run are made one after another.
From 2026-07-28 on the question is the result of the call, and the call is made again with the
answer. If a run has no answer yet, it waits: the open call gets `cancel`, and is made again when a
person has answered.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ferrule import settings
from ferrule.errors import MCPError, MCPProtocolError, MCPToolError, UnknownToolError
from ferrule.mcp_bridge.client.asking import Asking
from ferrule.mcp_bridge.client.catalog import Catalog
from ferrule.mcp_bridge.client.listing import Guard
from ferrule.mcp_bridge.client.recording import RecordingLink, ReplayLink
from ferrule.mcp_bridge.client.tasks import TASK_STATE, TaskCall, task_in, task_wish
from ferrule.mcp_bridge.connection.callbacks import Hooks
from ferrule.mcp_bridge.connection.channel import Endpoint
from ferrule.mcp_bridge.connection.reconnect import Link
from ferrule.mcp_bridge.errors import Attempt, timeout_error
from ferrule.mcp_bridge.transport.http import refuse_plain_http
from ferrule.record import MutableRecord, replace
from ferrule.tools.definition.mcp import MCPDefinition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ferrule.mcp_bridge.client.options import ServerOptions
    from ferrule.mcp_bridge.connection.handshake import Handshake
    from ferrule.mcp_bridge.login.login import Login
    from ferrule.mcp_bridge.spec import ServerSpec

_MOST_ROUNDS = 10
"""How often one call may come back with questions."""
_HEADER_MISMATCH = -32020
_READ_ONLY, _IDEMPOTENT = "readOnlyHint", "idempotentHint"


class _Call(MutableRecord, kw_only=True):
    """One call of a tool, with all its requests."""

    name: str
    arguments: dict[str, Any]
    known: MCPDefinition | None
    timeout_s: float | None
    meta: Mapping[str, Any] | None
    inputs: Any
    """Takes questions for the run that makes the call, and None outside a run."""
    record: Any
    """Journals the task for that run."""
    task: TaskCall | None = None
    is_left: bool = False
    """Whether the task goes on without this execution of the call."""


class Core:
    """One server, used from the background loop."""

    def __init__(self, spec: ServerSpec, options: ServerOptions, live: Mapping[str, Any]) -> None:
        self.spec = spec
        self.options = options
        self._live = {key: each for key, each in live.items() if key != "inputs"}
        self._inputs: Mapping[str, str] = live.get("inputs", {})
        self._login: Login | None = None
        self._calls: list[str] = []
        self.asking = Asking(options)
        self.guard = Guard(spec, options)
        self.link = self._make_link()
        self.catalog = Catalog(spec.name, options, self.link, self.guard)

    def _make_link(self) -> Link | RecordingLink | ReplayLink:
        if "recording" in self._live:
            return ReplayLink(self._live["recording"])
        link = Link(
            self.spec.name,
            self._endpoint,
            self._hooks,
            self.options.max_concurrency,
            self.options.mode,
        )
        return (
            link
            if self.options.record is None
            else RecordingLink(link, self.options.record, self.spec.name)
        )

    def _hooks(self) -> Hooks:
        options = self.options
        return Hooks(
            changed=self.catalog.changed.add,
            logged=self._log if options.on_log is not None else None,
            log_level=options.log_level,
            elicit=self.asking.hook,
            sample=options.sample,
            roots=options.roots,
        )

    def _endpoint(self) -> Endpoint:
        spec = self.spec.expanded(inputs=self._inputs)
        if spec.transport in {"http", "sse"}:
            refuse_plain_http(spec.url, spec.name, allowed=self.options.allow_http)
        login = self._login_to(spec)
        live = self._live if login is None else {**self._live, "auth": login.auth, "login": login}
        options = self.options
        return Endpoint(
            spec=spec,
            connect_timeout_s=options.connect_timeout_s,
            inherit=options.inherit,
            trace=options.trace,
            **live,
        )

    def _login_to(self, spec: ServerSpec) -> Login | None:
        if spec.oauth is None:
            return None
        if self._login is None:
            from ferrule.mcp_bridge.login.authorization import LoginTarget
            from ferrule.mcp_bridge.login.login import Login

            options = self.options
            target = LoginTarget(url=spec.url, oauth=spec.oauth, allow_http=options.allow_http)
            hooks = {"open_browser": options.open_browser, "enter_code": options.enter_code}
            self._login = Login(target, timeout_s=options.login_timeout_s, **hooks)
        return self._login

    async def connect(self) -> Handshake:
        """Connect if need be, also after failures that make other requests wait."""
        self.link.forgive()
        if self._login is not None:
            self._login.forgive()
        return (await self.link.connected()).handshake

    async def ping(self) -> float:
        """Seconds of a round trip. From 2026-07-28 on there is no ping, so it sends `server/discover`."""
        handshake = (await self.link.connected()).handshake
        start = time.perf_counter()
        await self.catalog.request(
            "server/discover" if handshake.is_modern else "ping",
            None,
            phase="ping",
        )
        return time.perf_counter() - start

    # -- calls
    # --------------------------------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, Any] | None = None,
        state: str | None = None,
    ) -> dict[str, Any]:
        """Call a tool by its name on the server; returns the raw result.

        Hooks answer a result with `resultType: input_required`, and the call is sent again, at most
        ten times and for at most `total_timeout_s`. If no hook answers, the run that made the call
        waits; outside a run the result is returned. Then call again with `answers` (by the keys of
        `inputRequests`) and `state` (`requestState`).
        """
        self._refuse_blocked(name)
        known = await self._allowed(name)
        if self.options.lock is not None or self.guard.expected is not None:
            known = await self._unchanged(name, known)
        inputs, record = self.asking.inputs(), getattr(settings.scope().call, "inputs", None)
        if inputs is not None and answers is None:
            answers, state = inputs.continuation()
        made = _Call(
            name=name,
            arguments=dict(arguments or {}),
            known=known,
            timeout_s=timeout_s,
            meta=meta,
            inputs=inputs,
            record=record,
        )
        begun = getattr(record, "task", None) or (
            state.removeprefix(TASK_STATE) if state and state.startswith(TASK_STATE) else None
        )
        made.task = self._task_call(made, {"taskId": begun}) if begun else None
        try:
            return await self._rounds(made, answers, state)
        finally:
            if made.task is not None and not made.is_left:
                made.task.cancel()

    async def _rounds(
        self,
        made: _Call,
        answers: Mapping[str, Any] | None,
        state: str | None,
    ) -> dict[str, Any]:
        """Make the call, again with answers while it comes back with questions."""
        inputs = made.inputs
        ends = time.monotonic() + (self.options.total_timeout_s or float("inf"))
        for _ in range(_MOST_ROUNDS + 1):
            try:
                result = await self._attempt(made, answers, state)
            except MCPError:
                if (
                    inputs is None or inputs.wanted is None
                ):  # otherwise the tool failed because of the `cancel`
                    raise
                result = {}
            if (
                inputs is not None and inputs.wanted is not None
            ):  # asked while the call was open, and got `cancel`
                inputs.wait()
            if result.get("resultType") != "input_required":
                return result
            found, rest = await self.asking.answer(result)
            made.is_left = bool(rest)
            if rest and inputs is not None and None not in rest.values():
                inputs.want(
                    rest,
                    state=result.get("requestState"),
                    answered=found,
                    expires_s=self.options.input_expires_s,
                )
                inputs.wait()
            if rest:
                return result
            if time.monotonic() > ends:
                raise timeout_error(
                    Attempt(server=self.spec.name, phase="input", tool=made.name),
                    self.options.total_timeout_s or 0,
                )
            answers, state = found, result.get("requestState")
        msg = f"`{made.name}` of MCP server `{self.spec.name}` came back with questions {_MOST_ROUNDS} times."
        raise MCPProtocolError(
            msg,
            server=self.spec.name,
            tool=made.name,
            phase="call",
            may_have_run=True,
        )

    async def _attempt(
        self,
        made: _Call,
        answers: Mapping[str, Any] | None,
        state: str | None,
    ) -> dict[str, Any]:
        """The result of one request, or of the task that the server made of it."""
        handshake = (await self.link.connected_for("call", made.name)).handshake
        if made.task is None:
            body: dict[str, Any] = {"name": made.name, "arguments": made.arguments}
            body |= {
                **({"inputResponses": dict(answers)} if answers else {}),
                **({"requestState": state} if state else {}),
            }
            if made.known is not None and made.known.needs_task:
                body |= task_wish(handshake, self.options.total_timeout_s)
            async with self.asking.turn(made.inputs, handshake):
                result = await self._call_once(
                    made,
                    body,
                    self.asking.meta(made.inputs, handshake, made.meta),
                )
            is_task = result.get("resultType") == "task" or "task" in body
            if (
                not is_task
                or (
                    task := task_in(
                        result,
                        Attempt(server=self.spec.name, phase="call", tool=made.name),
                    )
                )
                is None
            ):
                return result
            made.task = self._task_call(made, task)
            if made.record is not None:
                await made.record.keep_task(made.task.id)
        return await made.task.outcome(answers, handshake)

    def _task_call(self, made: _Call, task: Mapping[str, Any]) -> TaskCall:
        attempt = Attempt(server=self.spec.name, phase="call", tool=made.name)
        options = (
            self.options
            if made.timeout_s is None
            else replace(self.options, timeout_s=made.timeout_s, tool_timeouts_s={})
        )
        turn = partial(self.asking.turn, made.inputs)

        def send(method: str, params: dict[str, Any], **more: Any) -> Awaitable[dict[str, Any]]:
            # Each request says which questions may be asked: the server may have been started again
            # meanwhile.
            return self.link.request(
                method,
                params,
                meta=self.asking.meta(made.inputs, self.link.handshake, None),
                **more,
            )

        return TaskCall(task, attempt, send, options, turn, progress=self._progress(made.name))

    def _refuse_blocked(self, name: str) -> None:
        why = self.guard.blocked.get(name)
        if why is not None:
            msg = f"`{name}` of the MCP server `{self.spec.name}` was not called, because it differs from its pin: {why}"
            raise MCPToolError(
                msg,
                server=self.spec.name,
                tool=name,
                phase="pins",
                may_have_run=False,
            )

    async def _allowed(self, name: str) -> MCPDefinition | None:
        catalog = self.catalog
        if catalog.listing is None and (
            callable(self.options.allow) or callable(self.options.deny)
        ):
            await catalog.list_tools()  # such a rule needs the definition
        known = catalog.listing.definitions.get(name) if catalog.listing is not None else None
        if not self.options.passes(known or MCPDefinition(name, {})) or (
            known is None and name in catalog.removed
        ):
            listed = catalog.listing.definitions.values() if catalog.listing is not None else ()
            raise UnknownToolError(
                name,
                [each.name for each in listed if self.options.passes(each)],
            )
        return known

    async def _unchanged(self, name: str, known: MCPDefinition | None) -> MCPDefinition | None:
        """The tool over the current connection; after a restart it must be the one that was approved."""
        await self.link.connected_for("call", name)
        if self.catalog.listing is None or self.catalog.listed_over != self.link.starts:
            await self.catalog.list_tools()
        self._refuse_blocked(name)
        now = await self._allowed(name)
        if known is not None and now != known and self.options.pins == "confirm":
            msg = f"`{name}` of the MCP server `{self.spec.name}` was not called: the server was restarted, and the tool has changed."
            raise MCPToolError(
                msg,
                server=self.spec.name,
                tool=name,
                phase="pins",
                may_have_run=False,
            )
        return now

    async def _call_once(
        self,
        made: _Call,
        params: dict[str, Any],
        meta: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        name, known = made.name, made.known
        within = made.timeout_s if made.timeout_s is not None else self.options.timeout_for(name)
        total_s = self.options.total_timeout_s
        keywords: dict[str, Any] = {
            "phase": "call", "timeout_s": within if total_s is None else min(within, total_s), "total_s": total_s, "tool": name,
            "meta": meta, "progress": self._progress(name),
            "may_repeat": known is not None and bool(known.hint(_READ_ONLY) or known.hint(_IDEMPOTENT)),
        }  # fmt: skip
        self._calls.append(name)
        try:
            return await self.link.request(
                "tools/call",
                params,
                headers=self._headers(known, params["arguments"]),
                **keywords,
            )
        except MCPProtocolError as error:
            if error.code != _HEADER_MISMATCH:
                raise
            # The schema says which arguments go into headers, and ours is missing or old. The call
            # did not run.
            await self.catalog.list_tools()
            headers = self._headers(await self._allowed(name), params["arguments"])
            return await self.link.request("tools/call", params, headers=headers, **keywords)
        finally:
            self._calls.remove(name)

    def _progress(self, tool: str) -> Callable[[float, float | None, str | None], Any] | None:
        """What takes the progress of a call: the observers of the run that makes it, and the hook."""
        hook, place = self.options.on_progress, settings.scope().call
        if place is None:
            return None if hook is None else partial(hook, tool)

        def report(done: float, total: float | None, message: str | None) -> Any:
            if not place.cancelled:  # after that, the call is over for its run
                place.progress(message or "", done, total)
            return None if hook is None else hook(tool, done, total, message)

        return report

    def _headers(self, known: MCPDefinition | None, arguments: dict[str, Any]) -> dict[str, str]:
        handshake = self.link.handshake
        if known is None or handshake is None or not handshake.is_modern:
            return {}
        from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map

        places = self.catalog.headers.get(known.name)
        if places is None:
            places = self.catalog.headers[known.name] = x_mcp_header_map(known.input_schema)
        return mcp_param_headers(places, arguments)

    def _log(self, params: dict[str, Any]) -> Any:
        observer = self.options.on_log
        tool = self._calls[0] if len(set(self._calls)) == 1 else None
        return (
            observer({**params, "server": self.spec.name, "tool": tool})
            if observer is not None
            else None
        )
