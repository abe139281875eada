"""What can be asked of an MCP server, and what is known of it between questions.

In: names and arguments. Out: raw results of the protocol. Everything here runs on the background loop; `mcp_client` is its face for all
other loops and threads.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from ferrule.bridges.mcp.client.elicitation import MOST_ROUNDS, Asking
from ferrule.bridges.mcp.client.listing import Changes, Listing, all_pages, listing
from ferrule.bridges.mcp.client.pinning import Guard
from ferrule.bridges.mcp.client.recording import PlayingLink, RecordingLink
from ferrule.bridges.mcp.connection.callbacks import Hooks
from ferrule.bridges.mcp.connection.reconnect import Link
from ferrule.bridges.mcp.connection.session import Way
from ferrule.bridges.mcp.errors import Asked, timed_out
from ferrule.bridges.mcp.transport.http import refuse_plain_http
from ferrule.errors import MCPConnectionError, MCPError, MCPProtocolError, MCPToolError, UnknownToolError
from ferrule.tools.definition.mcp import MCPDefinition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.bridges.mcp.client.options import ServerOptions
    from ferrule.bridges.mcp.connection.handshake import Wire
    from ferrule.bridges.mcp.spec import ServerSpec

LEAST_HOLD_S = 5.0
"""How long a list holds at least: `ttlMs: 0` is what servers send that have not thought of it, and would be a request before every turn."""
_HEADER_MISMATCH = -32020
_READ_ONLY, _IDEMPOTENT = "readOnlyHint", "idempotentHint"


class Core:
    """One server, used from the background loop."""

    def __init__(self, spec: ServerSpec, options: ServerOptions, live: Mapping[str, Any]) -> None:
        self.spec = spec
        self.options = options
        self._live = live
        self.listing: Listing | None = None
        """The tools as they were last listed; it stands still until `refresh` or `changes`."""
        self._passing: tuple[Listing, dict[str, MCPDefinition]] | None = None
        self._listed_over = 0
        """Which connection, counted, the listing came over: over another one it may be another."""
        self._stale: set[str] = set()
        self._listed_at = 0.0
        self._gone: set[str] = set()
        self._headers: dict[str, Any] = {}
        self._under_way: list[str] = []
        self.asking = Asking(options)
        self.guard = Guard(spec, options)
        self.link = self._linked()

    def _linked(self) -> Link | RecordingLink | PlayingLink:
        if "recording" in self._live:
            return PlayingLink(self._live["recording"])
        link = Link(self._way, self._hooks, self.options.max_concurrency)
        return link if self.options.record is None else RecordingLink(link, self.options.record, self.spec.name)

    def _hooks(self) -> Hooks:
        options = self.options
        return Hooks(
            changed=self._stale.add,
            logged=self._logged if options.on_log is not None else None,
            log_level=options.log_level,
            elicit=self.asking.hook,
            sample=options.sample,
            roots=options.roots,
        )

    def _way(self) -> Way:
        spec = self.spec.expanded()
        if spec.transport in {"http", "sse"}:
            refuse_plain_http(spec.url, spec.name, allowed=self.options.allow_http)
        return Way(spec=spec, connect_timeout_s=self.options.connect_timeout_s, **self._live)

    # -- connecting ---------------------------------------------------------------------------------------------

    async def connect(self) -> Wire:
        """Connect if need be, whatever went wrong before."""
        self.link.forgive()
        return (await self.link.connected()).wire

    async def ping(self) -> float:
        """Seconds for one way there and back. The newer era has no ping: there it asks the server what it is."""
        wire = (await self.link.connected()).wire
        start = time.perf_counter()
        await self._ask("server/discover" if wire.is_modern else "ping", None, phase="ping")
        return time.perf_counter() - start

    async def _ask(self, method: str, params: dict[str, Any] | None, *, phase: str) -> dict[str, Any]:
        return await self.link.request(method, params, phase=phase, may_repeat=True, timeout_s=self.options.timeout_s)

    # -- tools --------------------------------------------------------------------------------------------------

    async def list_tools(self) -> Changes:
        """List the tools anew; what is different from before."""
        self._stale.discard("tools")  # before: a change while it lists counts

        async def page(params: dict[str, Any] | None) -> dict[str, Any]:
            return await self._ask("tools/list", params, phase="list")

        entries, ttl_s = await all_pages(page, "tools", self.spec.name)
        found = listing(self.spec.name, entries, ttl_s, self._header_rule())
        before, self.listing = self.listing, self.guard.passed(found, self.link.wire)
        self._listed_at, self._listed_over = time.monotonic(), self.link.starts
        self._headers.clear()
        changes = self.listing.since(before)
        self._gone = (self._gone | set(changes.removed)) - set(changes.added)
        if before is not None and changes and self.options.on_tools_changed is not None:
            self.options.on_tools_changed(changes.added, changes.removed, changes.changed)
        return changes

    async def pin(self) -> None:
        """Write what is listed now into the lock file."""
        try:
            await self.list_tools()
        except MCPConnectionError as error:
            if error.phase != "pins":
                raise
        self.guard.pin()
        await self.list_tools()

    def _header_rule(self) -> Callable[[Any], str | None] | None:
        wire = self.link.wire
        if wire is None or not wire.is_modern:
            return None
        from mcp.shared.inbound import find_invalid_x_mcp_header

        return find_invalid_x_mcp_header

    async def changes(self) -> Changes:
        """List anew only where the server said that its tools changed, or its list ran out; otherwise nothing is sent."""
        if self.listing is None:
            await self.list_tools()
            return Changes()
        return await self.list_tools() if self.is_stale() else Changes()

    def is_stale(self) -> bool:
        """Whether the listing is known, or said, to be out of date."""
        known = self.listing
        if known is None or "tools" in self._stale or self._listed_over != self.link.starts:
            return True
        holds_s = None if known.ttl_s is None else max(known.ttl_s, LEAST_HOLD_S)
        limits = [each for each in (holds_s, self.options.poll_s) if each is not None]
        return any(time.monotonic() - self._listed_at >= each for each in limits)

    async def definitions(self) -> dict[str, MCPDefinition]:
        """The tools that pass the filters."""
        if self.listing is None:
            await self.list_tools()
        return cast("dict[str, MCPDefinition]", self.known_definitions())

    def known_definitions(self) -> dict[str, MCPDefinition] | None:
        """`definitions` as far as they are known: the same object as long as they are the same; None before the first listing."""
        known = self.listing
        if known is None:
            return None
        if self._passing is None or self._passing[0] is not known:
            self._passing = known, {name: each for name, each in known.definitions.items() if self.options.passes(each)}
        return self._passing[1]

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
        """Call a tool by its name on the server; the raw result.

        A result with `resultType: input_required` is answered by the hooks, and the call sent again, at most ten times and for at most
        `total_timeout_s`. What no hook answers makes the run wait that the call is a part of; outside any, the result is what is returned:
        call again with `answers` (by the keys of `inputRequests`) and `state` (`requestState`).
        """
        self.guard.refuse_blocked(name)
        known = await self._allowed(name)
        if self.guard.is_on:
            known = await self._still(name, known)
        inputs = self.asking.inputs()
        if inputs is not None and answers is None:
            answers, state = inputs.continuation()
        params: dict[str, Any] = {"name": name, "arguments": dict(arguments or {})}
        ends = time.monotonic() + (self.options.total_timeout_s or float("inf"))
        for _ in range(MOST_ROUNDS + 1):
            asked = {**params, **({"inputResponses": dict(answers)} if answers else {}), **({"requestState": state} if state else {})}
            wire = (await self.link.connected_for("call", name)).wire
            try:
                async with self.asking.turn(inputs, wire):
                    result = await self._call_once(name, asked, known, timeout_s, self.asking.meta(inputs, wire, meta))
            except MCPError:
                if inputs is None or inputs.wanted is None:  # else it took the `cancel` for one
                    raise
                result = {}
            if inputs is not None and inputs.wanted is not None:  # asked while the call was open, and told `cancel`
                inputs.wait()
            if result.get("resultType") != "input_required":
                return result
            found, left = await self.asking.answered(result)
            if left and inputs is not None and self.asking.takes(left):
                inputs.want(left, state=result.get("requestState"), answered=found, expires_s=self.options.input_expires_s)
                inputs.wait()
            if left:
                return result
            if time.monotonic() > ends:
                raise timed_out(Asked(server=self.spec.name, phase="input", tool=name), self.options.total_timeout_s or 0)
            answers, state = found, result.get("requestState")
        msg = f"`{name}` of MCP server `{self.spec.name}` came back with questions {MOST_ROUNDS} times."
        raise MCPProtocolError(msg, server=self.spec.name, tool=name, phase="call", may_have_run=True)

    async def _allowed(self, name: str) -> MCPDefinition | None:
        if self.listing is None and (callable(self.options.allow) or callable(self.options.deny)):
            await self.list_tools()  # a rule that looks at more than the name must see it
        known = self.listing.definitions.get(name) if self.listing is not None else None
        if not self.options.passes(known or MCPDefinition(name, {})) or (known is None and name in self._gone):
            listed = self.listing.definitions.values() if self.listing is not None else ()
            raise UnknownToolError(name, [each.name for each in listed if self.options.passes(each)])
        return known

    async def _still(self, name: str, known: MCPDefinition | None) -> MCPDefinition | None:
        """The tool over the connection that there is now: over a new one it must be what it was (M62)."""
        await self.link.connected_for("call", name)
        if self.listing is None or self._listed_over != self.link.starts:
            await self.list_tools()
        self.guard.refuse_blocked(name)
        now = await self._allowed(name)
        if known is not None and now != known and self.options.pins == "confirm":
            msg = f"`{name}` of the MCP server `{self.spec.name}` was not called: the server was started again, and the tool has changed."
            raise MCPToolError(msg, server=self.spec.name, tool=name, phase="pins", may_have_run=False)
        return now

    async def _call_once(
        self, name: str, params: dict[str, Any], known: MCPDefinition | None, timeout_s: float | None, meta: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        within = timeout_s if timeout_s is not None else self.options.timeout_for(name)
        total_s = self.options.total_timeout_s
        keywords: dict[str, Any] = {
            "timeout_s": within if total_s is None else min(within, total_s), "total_s": total_s, "tool": name, "meta": meta,
            "progress": self._teller(name),
        }  # fmt: skip
        may_repeat = known is not None and bool(known.hint(_READ_ONLY) or known.hint(_IDEMPOTENT))
        self._under_way.append(name)
        try:
            headers = self._param_headers(known, params["arguments"])
            return await self.link.request("tools/call", params, phase="call", may_repeat=may_repeat, headers=headers, **keywords)
        except MCPProtocolError as fault:
            if fault.code != _HEADER_MISMATCH:
                raise
            # Its schema says which arguments go into headers, and ours is missing or old: nothing ran.
            await self.list_tools()
            headers = self._param_headers(await self._allowed(name), params["arguments"])
            return await self.link.request("tools/call", params, phase="call", may_repeat=may_repeat, headers=headers, **keywords)
        finally:
            self._under_way.remove(name)

    def _teller(self, tool: str) -> Callable[[float, float | None, str | None], Any] | None:
        told = self.options.on_progress
        if told is None:
            return None

        def tell(done: float, of: float | None, message: str | None) -> Any:
            return told(tool, done, of, message)

        return tell

    def _param_headers(self, known: MCPDefinition | None, arguments: dict[str, Any]) -> dict[str, str]:
        wire = self.link.wire
        if known is None or wire is None or not wire.is_modern:
            return {}
        from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map

        places = self._headers.get(known.name)
        if places is None:
            places = self._headers[known.name] = x_mcp_header_map(known.input_schema)
        return mcp_param_headers(places, arguments)

    def _logged(self, params: dict[str, Any]) -> Any:
        told = self.options.on_log
        tool = self._under_way[0] if len(set(self._under_way)) == 1 else None
        return told({**params, "server": self.spec.name, "tool": tool}) if told is not None else None

    # -- resources and prompts ----------------------------------------------------------------------------------

    async def list_of(self, method: str, key: str) -> list[dict[str, Any]]:
        """All entries of another list; none where the server says that it has no such thing."""
        wire = (await self.link.connected()).wire
        kind = "prompts" if key == "prompts" else "resources"
        self._stale.discard(kind)
        if wire.capabilities.get(kind) is None:
            return []

        async def page(params: dict[str, Any] | None) -> dict[str, Any]:
            return await self._ask(method, params, phase="list")

        entries, _ = await all_pages(page, key, self.spec.name)
        return [cast("dict[str, Any]", each) for each in entries if isinstance(each, dict)]

    async def read(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """One resource, or one prompt with its arguments filled in."""
        return await self._ask(method, params, phase="read")
