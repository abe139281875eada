"""One MCP client, on the background loop: its connection, its lists, and its calls.

A server may ask a question during a call, and the protocol knows two ways:

- Before 2026-07-28 it asks while the call is open, and does not say which call it means. So calls
  of a server that may ask a run are made one after another (`Questions.turn`).
- From 2026-07-28 on the question is the result of the call (`resultType: input_required`), and the
  call is made again with the answer.

Hooks answer if there are any. Otherwise the run that makes the call does: if it has no answer yet,
it waits for a person. The open call gets `cancel`, and is made again with the answer, perhaps in
another process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ferrule import settings
from ferrule.errors import (
    ConfigurationError,
    MCPError,
    MCPProtocolError,
    MCPToolError,
    UnknownToolError,
    shown,
)
from ferrule.mcp_bridge.client.catalog import Catalog
from ferrule.mcp_bridge.client.pinning import Guard
from ferrule.mcp_bridge.client.recording import RecordingLink, ReplayLink
from ferrule.mcp_bridge.client.tasks import TASK_STATE, TaskCall, task_in, task_wish
from ferrule.mcp_bridge.connection.callbacks import ELICITATION, Hooks, elicited
from ferrule.mcp_bridge.connection.channel import Endpoint
from ferrule.mcp_bridge.connection.handshake import wire_form
from ferrule.mcp_bridge.connection.link import Link
from ferrule.mcp_bridge.errors import Attempt, timeout_error
from ferrule.mcp_bridge.transport.http import check_remote
from ferrule.tools.mcp_definition import MCPDefinition

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from ferrule.mcp_bridge.client.options import ServerOptions
    from ferrule.mcp_bridge.connection.handshake import Handshake
    from ferrule.mcp_bridge.login.login import Login
    from ferrule.mcp_bridge.spec import ServerSpec

_MOST_ROUNDS = 10
"""How often one call may come back with questions."""
_STATE_WAIT_S = 0.05
"""How long to wait before a call is made again that came back with a state and no questions."""
_HEADER_MISMATCH = -32020
_READ_ONLY, _IDEMPOTENT = "readOnlyHint", "idempotentHint"
_ELICIT = "elicitation/create"


class _Call(Struct, kw_only=True):
    """One call of a tool, with all its requests."""

    name: str
    arguments: dict[str, Any]
    definition: MCPDefinition | None
    """From the last listing; None for a tool that was not listed."""
    timeout_s: float
    may_repeat: bool
    """Whether it may be sent again although it may have run."""
    needs_task: bool
    """Whether the tool can only be called as a task."""
    meta: Mapping[str, Any] | None
    run_call: Any
    """The place in a run that makes the call; None outside a run."""
    inputs: Any
    """Takes questions for that run; None outside a run, and if a hook takes them."""
    task: TaskCall | None = None
    is_left: bool = False
    """Whether the task goes on without this execution of the call."""

    @property
    def record(self) -> Any:
        """Journals the task for the run that makes the call."""
        return getattr(self.run_call, "inputs", None)


class Client:
    """One server, used from the background loop.

    `live` has what a spec cannot hold: the `auth`, `http_client` or `server` of an `Endpoint`, a
    `recording` to replay, and the values of `inputs` that a file with servers asks for.
    """

    def __init__(self, spec: ServerSpec, options: ServerOptions, live: Mapping[str, Any]) -> None:
        self.spec = spec
        self.options = options
        self._live = {name: value for name, value in live.items() if name != "inputs"}
        self._inputs: Mapping[str, str] = live.get("inputs", {})
        self._login: Login | None = None
        self._tools_in_use: list[str] = []
        self.questions = Questions(options)
        self.guard = Guard(spec, options)
        self.link = self._make_link()
        self.catalog = Catalog(spec.name, options, self.link, self.guard)

    # -- its connection

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
        if self.options.record is None:
            return link
        return RecordingLink(link, self.options.record, self.spec.name)

    def _hooks(self) -> Hooks:
        options = self.options
        return Hooks(
            changed=self.catalog.changed.add,
            logged=self._log if options.on_log is not None else None,
            elicit=self.questions.hook,
            sample=options.sample,
            roots=options.roots,
        )

    def _endpoint(self) -> Endpoint:
        spec = self.spec.expanded(inputs=self._inputs)
        check_remote(spec, allow_http=self.options.allow_http)
        live = dict(self._live)
        login = self._login_to(spec)
        if login is not None:
            live.update(auth=login.auth, login=login)
        return Endpoint(
            spec=spec,
            connect_timeout_s=self.options.connect_timeout_s,
            inherit=self.options.inherit,
            **live,
        )

    def _login_to(self, spec: ServerSpec) -> Login | None:
        if spec.oauth is None:
            return None
        if self._login is None:
            # Late: few servers have a log-in, and it needs the HTTP client.
            from ferrule.mcp_bridge.login.authorization import LoginTarget
            from ferrule.mcp_bridge.login.login import Login

            options = self.options
            self._login = Login(
                LoginTarget(url=spec.url, oauth=spec.oauth, allow_http=options.allow_http),
                timeout_s=options.login_timeout_s,
                open_browser=options.open_browser,
                enter_code=options.enter_code,
            )
        return self._login

    async def connect(self) -> Handshake:
        """Connect if need be, also after failures that make other requests wait."""
        self.link.forgive()
        if self._login is not None:
            self._login.forgive()
        return (await self.link.connected()).handshake

    async def ping(self) -> float:
        """Seconds of a round trip. Modern servers have no ping, and get `server/discover`."""
        handshake = (await self.link.connected()).handshake
        if handshake.is_modern:
            method = "server/discover"
        else:
            method = "ping"
        start = time.perf_counter()
        await self.catalog.request(method, None, phase="ping")
        return time.perf_counter() - start

    # -- calls

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
        if not isinstance(arguments, Mapping | None):
            raise ConfigurationError(
                f"The arguments of a tool are a mapping by name, found {shown(arguments)}."
            )
        self._refuse_blocked(name)
        definition = await self._allowed(name)
        if self.options.lock is not None or self.guard.expected is not None:
            definition = await self._unchanged(name, definition)
        if timeout_s is None:
            timeout_s = self.options.timeout_for(name)
        run_call = settings.scope().call
        inputs = self.questions.inputs_of(run_call)
        if inputs is not None and answers is None:
            answers, state = inputs.continuation()
        call = _Call(
            name=name,
            arguments=dict(arguments or {}),
            definition=definition,
            timeout_s=timeout_s,
            may_repeat=_may_repeat(definition),
            needs_task=definition is not None and definition.needs_task,
            meta=meta,
            run_call=run_call,
            inputs=inputs,
        )
        task_id = getattr(call.record, "task", None)
        if not task_id and state and state.startswith(TASK_STATE):
            task_id = state.removeprefix(TASK_STATE)
        if task_id:  # an earlier execution of this call began it
            call.task = self._task_call(call, {"taskId": task_id})
        try:
            return await self._ask_and_repeat(call, answers, state)
        finally:
            if call.task is not None and not call.is_left:
                call.task.cancel()

    async def _ask_and_repeat(
        self, call: _Call, answers: Mapping[str, Any] | None, state: str | None
    ) -> dict[str, Any]:
        """Make the call, again with answers while it comes back with questions."""
        inputs = call.inputs
        ends = time.monotonic() + (self.options.total_timeout_s or float("inf"))
        for _ in range(1 + _MOST_ROUNDS):  # the call, and its repetitions
            try:
                result = await self._attempt(call, answers, state)
            except MCPError:
                if inputs is None or inputs.wanted is None:
                    raise
                result = {}  # the tool failed because of the `cancel`
            if inputs is not None and inputs.wanted is not None:
                inputs.wait()  # it asked while the call was open, and got `cancel`
            if result.get("resultType") != "input_required":
                return result
            answered, unanswered = await self.questions.answer(result)
            if unanswered:
                call.is_left = True
                # None is a question for a hook that is not set, which no person can answer.
                can_ask_person = None not in unanswered.values()
                if inputs is not None and can_ask_person:
                    inputs.want(
                        unanswered,
                        state=result.get("requestState"),
                        answered=answered,
                        expires_s=self.options.input_expires_s,
                    )
                    inputs.wait()
                return result
            if time.monotonic() > ends:
                attempt = Attempt(server=self.spec.name, phase="input", tool=call.name)
                raise timeout_error(attempt, self.options.total_timeout_s or 0)
            answers, state = answered, result.get("requestState")
        attempt = self._attempt_of(call)
        raise MCPProtocolError(
            f"{attempt.subject} came back with questions {_MOST_ROUNDS} times.", **attempt.facts()
        )

    async def _attempt(
        self, call: _Call, answers: Mapping[str, Any] | None, state: str | None
    ) -> dict[str, Any]:
        """The result of one request, or of the task that the server made of it."""
        handshake = (await self.link.connected_for("call", call.name)).handshake
        if call.task is None:
            body: dict[str, Any] = {"name": call.name, "arguments": call.arguments}
            if answers:
                body["inputResponses"] = dict(answers)
            if state:
                body["requestState"] = state
            if call.needs_task:
                body |= task_wish(handshake, self.options.total_timeout_s)
            async with self.questions.turn(call.inputs, handshake):
                result = await self._request(call, body, handshake)
            # An older server makes a task only if it was asked to, and does not mark the result.
            if result.get("resultType") != "task" and "task" not in body:
                return result
            task = task_in(result, self._attempt_of(call))
            if task is None:
                return result
            call.task = self._task_call(call, task)
            if call.record is not None:
                await call.record.keep_task(call.task.id)
        return await call.task.outcome(answers, handshake)

    async def _request(
        self, call: _Call, body: dict[str, Any], handshake: Handshake
    ) -> dict[str, Any]:
        """Send `tools/call`.

        It is sent again if the server wants arguments in headers that were not known.
        """
        name, timeout_s, total_s = call.name, call.timeout_s, self.options.total_timeout_s
        if total_s is not None:
            timeout_s = min(timeout_s, total_s)
        request = partial(
            self.link.request,
            "tools/call",
            body,
            phase="call",
            tool=name,
            may_repeat=call.may_repeat,
            timeout_s=timeout_s,
            total_s=total_s,
            meta=self.questions.meta(call.inputs, handshake, call.meta),
            progress=self._progress(call),
        )
        self._tools_in_use.append(name)
        try:
            return await request(headers=self._headers(call.definition, call.arguments, handshake))
        except MCPProtocolError as error:
            if error.code != _HEADER_MISMATCH:
                raise
            # The schema says which arguments go into headers, and ours is missing or old. The call
            # did not run.
            await self.catalog.list_tools()
            definition = await self._allowed(name)
            return await request(headers=self._headers(definition, call.arguments, handshake))
        finally:
            self._tools_in_use.remove(name)

    def _headers(
        self, definition: MCPDefinition | None, arguments: dict[str, Any], handshake: Handshake
    ) -> dict[str, str]:
        """The arguments that a tool's schema wants in HTTP headers, too (`x-mcp-header`)."""
        if definition is None or not handshake.is_modern:
            return {}
        from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map

        header_map = self.catalog.headers.get(definition.name)
        if header_map is None:
            header_map = x_mcp_header_map(definition.input_schema)
            self.catalog.headers[definition.name] = header_map
        return mcp_param_headers(header_map, arguments)

    def _task_call(self, call: _Call, task: Mapping[str, Any]) -> TaskCall:
        def send(method: str, params: dict[str, Any], **more: Any) -> Awaitable[dict[str, Any]]:
            # Each request says which questions may be asked: the server may have been started again
            # meanwhile.
            meta = self.questions.meta(call.inputs, self.link.handshake, None)
            return self.link.request(method, params, meta=meta, **more)

        return TaskCall(
            task,
            self._attempt_of(call),
            send,
            partial(self.questions.turn, call.inputs),
            timeout_s=call.timeout_s,
            total_s=self.options.total_timeout_s,
            progress=self._progress(call),
        )

    def _attempt_of(self, call: _Call) -> Attempt:
        return Attempt(server=self.spec.name, phase="call", tool=call.name)

    # -- whether a tool may be called

    def _refuse_blocked(self, name: str) -> None:
        drift = self.guard.blocked.get(name)
        if drift is not None:
            raise self._pin_error(name, f", because it differs from its pin: {drift}")

    async def _allowed(self, name: str) -> MCPDefinition | None:
        """The definition of a tool that the filters let through. Raises `UnknownToolError`."""
        catalog, options = self.catalog, self.options
        if catalog.listing is None and (callable(options.allow) or callable(options.deny)):
            await catalog.list_tools()  # such a rule needs the definition
        definitions = {}
        if catalog.listing is not None:
            definitions = catalog.listing.definitions
        definition = definitions.get(name)
        is_removed = definition is None and name in catalog.removed
        if is_removed or not options.passes(definition or MCPDefinition(name, {})):
            usable = [known.name for known in definitions.values() if options.passes(known)]
            raise UnknownToolError(name, usable)
        return definition

    async def _unchanged(self, name: str, before: MCPDefinition | None) -> MCPDefinition | None:
        """The tool over the current connection.

        After a restart it must be the one that was approved.
        """
        await self.link.connected_for("call", name)
        if self.catalog.listing is None or self.catalog.listed_over != self.link.starts:
            await self.catalog.list_tools()
        self._refuse_blocked(name)
        now = await self._allowed(name)
        if before is not None and now != before and self.options.pins == "confirm":
            raise self._pin_error(name, ": the server was restarted, and the tool has changed.")
        return now

    def _pin_error(self, name: str, why: str) -> MCPToolError:
        return MCPToolError(
            f"`{name}` of the MCP server `{self.spec.name}` was not called{why}",
            server=self.spec.name,
            tool=name,
            phase="pins",
            may_have_run=False,
        )

    # -- what a call reports

    def _progress(self, call: _Call) -> Callable[[float, float | None, str | None], Any] | None:
        """What takes the progress of a call: observers of the run that makes it, and the hook."""
        hook, run_call, tool = self.options.on_progress, call.run_call, call.name
        if run_call is None:
            if hook is not None:
                return partial(hook, tool)
            return None

        def report(done: float, total: float | None, message: str | None) -> Any:
            if not run_call.cancelled:  # after that, the call is over for its run
                run_call.progress(message or "", done, total)
            if hook is not None:
                return hook(tool, done, total, message)
            return None

        return report

    def _log(self, params: dict[str, Any]) -> Any:
        """Pass on a log message. The protocol does not say which call it belongs to."""
        hook = self.options.on_log
        if hook is None:
            return None
        tools = set(self._tools_in_use)
        if len(tools) == 1:
            tool = tools.pop()
        else:
            tool = None
        return hook({**params, "server": self.spec.name, "tool": tool})


def _may_repeat(definition: MCPDefinition | None) -> bool:
    if definition is None:
        return False
    return bool(definition.hint(_READ_ONLY) or definition.hint(_IDEMPOTENT))


class Questions:
    """Passes a server's questions to a hook, or to the run that made the call."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self.in_runs = options.ask_in_runs
        """Whether runs take questions. An older server learns that when it is connected."""
        self._turn = asyncio.Lock()
        self._inputs: Any = None

    @property
    def hook(self) -> Any:
        """Answers `elicitation/create` while a call is open. None: that is not declared."""
        if self._options.elicit is not None:
            return self._options.elicit
        return self._pass_on if self.in_runs else None

    def inputs_of(self, run_call: Any) -> Any:
        """Takes questions for the run that makes a call.

        It is None outside a run, and if a hook takes the questions.
        """
        if self._options.elicit is not None or self._options.rules.on_input is not None:
            return None
        return getattr(run_call, "inputs", None)

    @asynccontextmanager
    async def turn(self, inputs: Any, handshake: Handshake | None) -> AsyncGenerator[None]:
        """Wait for this call's turn, if calls must be made one after another."""
        is_modern = handshake is None or handshake.is_modern
        if is_modern or self._options.elicit is not None or not self.in_runs:
            yield
            return
        async with self._turn:
            self._inputs = inputs
            try:
                yield
            finally:
                self._inputs = None

    async def _pass_on(self, params: dict[str, Any]) -> dict[str, Any]:
        if self._inputs is None:  # a call outside a run
            return {"action": "decline"}
        return self._inputs.pushed(params, self._options.input_expires_s)

    def meta(
        self, inputs: Any, handshake: Handshake | None, meta: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """The `_meta` of a call, with the questions that may be asked: in a run, elicitation.

        Older servers learn that from the handshake.
        """
        if self._options.elicit is not None or handshake is None or not handshake.is_modern:
            return meta
        capabilities = dict(handshake.client_capabilities)
        capabilities.pop("elicitation", None)
        if inputs is not None:
            capabilities |= ELICITATION
        if capabilities == handshake.client_capabilities:
            return meta
        from mcp_types import CLIENT_CAPABILITIES_META_KEY

        return {CLIENT_CAPABILITIES_META_KEY: capabilities, **(meta or {})}

    async def answer(self, result: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The hooks' answers to the questions of a result, and the questions left, by their keys.

        Of a question that is left, the parameters are returned; None if a person cannot answer it.
        """
        questions = result.get("inputRequests")
        if not isinstance(questions, dict) or not questions:
            await asyncio.sleep(_STATE_WAIT_S)  # only a state: the server wants the call again
            return {}, {}
        answers: dict[str, Any] = {}
        unanswered: dict[str, Any] = {}
        for key, question in cast("dict[str, dict[str, Any]]", questions).items():
            method: str = question.get("method", "")
            params: dict[str, Any] = question.get("params") or {}
            answer = await self._by_hook(method, params)
            if answer is not None:
                answers[key] = answer
            elif method == _ELICIT:
                unanswered[key] = params
            else:
                unanswered[key] = None
        return answers, unanswered

    async def _by_hook(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        options = self._options
        if method == _ELICIT and options.elicit is not None:
            return wire_form(await elicited(options.elicit, params))
        if method == "sampling/createMessage" and options.sample is not None:
            return await options.sample(params)
        if method == "roots/list" and options.roots is not None:
            return {"roots": await options.roots()}
        return None
