"""`serve` and `MCPApp`: tools and programs as an MCP server, over stdio or HTTP.

Clients may speak any revision from 2024-11-05 to 2026-07-28. A call is checked, coerced and
executed as it is inside a run of ferrule.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
from typing import TYPE_CHECKING, Any, Literal, assert_never

from ferrule.errors import (
    ConfigurationError,
    UnknownToolError,
    checks_keywords,
    refuse_unknown,
    shown,
)
from ferrule.mcp_bridge.connection.handshake import client_info
from ferrule.mcp_bridge.errors import missing_extra
from ferrule.mcp_bridge.server.call import CallRules, CallRunner
from ferrule.mcp_bridge.server.context import connection_of, set_log_level
from ferrule.mcp_bridge.server.http import http_app, serve_http
from ferrule.mcp_bridge.server.notifications import ChangeNotifier
from ferrule.mcp_bridge.server.result import make_serializable, sdk_result
from ferrule.mcp_bridge.server.stdio import streams
from ferrule.mcp_bridge.server.tasks import Tasks
from ferrule.mcp_bridge.server.tools import serve_one, served_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ferrule.mcp_bridge.server.notifications import ListKind
    from ferrule.mcp_bridge.server.tasks import TaskSupport
    from ferrule.mcp_bridge.server.tools import ServedTool

log = logging.getLogger("ferrule.mcp")

ServeTransport = Literal["stdio", "http"]


class MCPApp:
    """Tools and programs, served.

    `MCPApp([tool, program]).run()` serves; `.asgi()` is for a web server; in tests, connect to it
    with `MCPServer.in_memory(app.server)`. `serve` describes the options.

    Tools may be added and removed while serving, from any thread; clients are notified. Raises
    `ConfigurationError`, also an `ImportError`, if the extra `ferrule[mcp]` is missing.
    """

    @checks_keywords
    def __init__(
        self,
        tools: Iterable[Any] | Mapping[str, Any] = (),
        *,
        name: str = "ferrule",
        version: str = "",
        instructions: str | None = None,
        timeout_s: float | None = None,
        max_concurrency: int | None = None,
        mask_errors: bool = False,
        confirm: Callable[[str, dict[str, Any]], Any] | None = None,
        state_keys: Sequence[str | bytes] | None = None,
        state_ttl_s: float = 600,
        tasks: Mapping[str, TaskSupport] | None = None,
        task_ttl_s: float = 3600,
        store: Any = None,
    ) -> None:
        self._served = served_tools(tools)
        self._changes = ChangeNotifier()
        rules = CallRules(
            timeout_s=timeout_s,
            max_concurrency=max_concurrency,
            mask_errors=mask_errors,
            confirm=confirm,
            store=store,
        )
        self.name = name
        self._tasks = Tasks(CallRunner(rules), self._served, tasks, task_ttl_s)
        self.server: Any = _build_server(
            self._served,
            self._tasks,
            self._changes,
            name=name,
            version=version or client_info()["version"],
            instructions=instructions,
        )
        """The SDK's low-level server, for resources, prompts and everything else it offers."""
        self.server.middleware.append(_sealing_of_states(state_keys, state_ttl_s, audience=name))

    # -- tools

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools, in order."""
        return tuple(self._served)

    def add(self, thing: Any, name: str | None = None) -> None:
        """Serve a tool or program; it replaces one of the same name."""
        served = serve_one(thing, name)
        self._served[served.name] = served
        self._tasks.declare(self.server)
        self.changed("tools")

    def remove(self, name: str) -> None:
        """Stop serving a tool. Running calls continue. Raises `UnknownToolError`."""
        if self._served.pop(name, None) is None:
            raise UnknownToolError(name, self.names)
        self._tasks.declare(self.server)
        self.changed("tools")

    def changed(self, what: ListKind) -> None:
        """Notify clients that a list changed.

        Call it after you change prompts or resources that you serve through `server`.
        """
        self._changes.tell(what)

    def updated(self, uri: str) -> None:
        """Notify subscribed clients (2026-07-28 or later) of a changed resource."""
        from mcp.server.subscriptions import ResourceUpdated

        self._changes.tell_streams(ResourceUpdated(uri=uri))

    # -- serving

    def asgi(self, **options: Any) -> Any:
        """The ASGI application, for your own web server. Takes the HTTP options of `serve`."""
        return http_app(self.server, **options)

    async def arun(
        self,
        transport: ServeTransport = "stdio",
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        **options: Any,
    ) -> None:
        """Serve until the client disconnects (stdio) or until cancelled (HTTP).

        HTTP options are those of `asgi`, and `on_listening`, which is called with the address once
        the server listens. Raises `ConfigurationError` if it cannot listen there, or without
        standard input or output.
        """
        match transport:
            case "stdio":
                if options:
                    names = ", ".join(f"`{name}`" for name in options)
                    raise ConfigurationError(
                        f"Over stdio there is no {names}: it is an option of HTTP."
                    )
                await self._over_stdio()
            case "http":
                await serve_http(self.server, host, port, **options)
            case _:
                if isinstance(transport, str):
                    raise ConfigurationError(
                        f"`transport` is 'stdio' or 'http', found {shown(transport)}."
                    )
                assert_never(transport)

    def run(self, transport: ServeTransport = "stdio", **options: Any) -> None:
        """`arun` for sync code."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass  # none is running, as it should be
        else:
            raise ConfigurationError(
                "An event loop is running in this thread: `await app.arun(...)` serves on it."
            )
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self.arun(transport, **options))

    async def _over_stdio(self) -> None:
        try:
            async with streams() as (reading, writing):
                await self.server.run(reading, writing, self.server.create_initialization_options())
        except* BrokenPipeError:
            log.info("the client closed the connection")


def serve(
    tools: Iterable[Any] | Mapping[str, Any],
    *,
    transport: ServeTransport = "stdio",
    host: str = "127.0.0.1",
    port: int = 8000,
    path: str = "/mcp",
    allowed_hosts: Sequence[str] | None = None,
    allowed_origins: Sequence[str] | None = None,
    verify_token: Callable[[str], Any] | None = None,
    idle_timeout_s: float | None = None,
    **options: Any,
) -> None:
    """Serve tools and programs to MCP clients until the client disconnects.

    `serve([add, agent], name="mine", transport="http")`.

    Over HTTP it listens on loopback, unless `host` says otherwise. `allowed_hosts` are further host
    names, `allowed_origins` the web pages that may call. `verify_token` gets the bearer token of
    each request, sync or async; it returns True, the name of the client, or the SDK's `AccessToken`
    if the token is valid. A session that has no request for `idle_timeout_s` ends, by default after
    30 minutes.

    `options` are those of `MCPApp`: `name`, `version` (otherwise ferrule's), `instructions`,
    `timeout_s` for tools without one of their own, `max_concurrency`, `mask_errors` (clients see
    only that a tool failed), `confirm` (the host confirms calls instead of the client's user),
    `state_keys` (the state of a question travels through the client, encrypted with the first of
    these keys; the same in all workers, at least 32 bytes each), `state_ttl_s` (how long this state
    is valid, by default ten minutes), `tasks` (by tool name, with `*` and `?`, whether calls become
    tasks: "optional", "required" or "forbidden"; by default optional for programs, forbidden for
    tools), `task_ttl_s` (how long a finished task is kept), `store` (keeps the runs of programs, so
    that their tasks continue after a restart).
    """
    http_options: dict[str, Any] = {
        "path": path if transport == "http" else None,
        "allowed_hosts": allowed_hosts,
        "allowed_origins": allowed_origins,
        "verify_token": verify_token,
        "idle_timeout_s": idle_timeout_s,
    }
    # Only those that were passed: over stdio they are refused.
    passed = {name: value for name, value in http_options.items() if value is not None}
    known = [*(serve.__kwdefaults__ or ()), *inspect.signature(MCPApp).parameters]
    refuse_unknown("serve", options, known)
    MCPApp(tools, **options).run(transport, host=host, port=port, **passed)


# -- the SDK's server


def _build_server(
    offered: Mapping[str, ServedTool], tasks: Tasks, changes: ChangeNotifier, **about: Any
) -> Any:
    """An `mcp.server.Server` for all revisions. `offered` may change while it serves."""
    server_class = _changing_server()
    import mcp_types as types
    from mcp.server.subscriptions import ListenHandler
    from mcp.shared.exceptions import MCPError

    async def list_tools(context: Any, params: Any) -> Any:
        del context, params
        entries = [types.Tool.model_validate(served.entry) for served in list(offered.values())]
        return make_serializable(types.ListToolsResult(tools=entries))

    async def call_tool(context: Any, params: Any) -> Any:
        served = offered.get(params.name)
        if served is None:
            raise MCPError(types.INVALID_PARAMS, str(UnknownToolError(params.name, list(offered))))
        try:
            result: Any = await tasks.call(served, context, params)
        except MCPError as error:
            error.error = make_serializable(error.error)
            raise
        if tasks.is_task(result):
            return result
        return sdk_result(result)

    async def set_level(context: Any, params: Any) -> Any:
        set_log_level(context, params.level)
        return types.EmptyResult()

    async def initialized(context: Any, params: Any) -> None:
        del params
        changes.add_session(connection_of(context))

    def input_schema_of(tool: str) -> dict[str, Any] | None:
        if tool in offered:
            return offered[tool].entry["inputSchema"]
        return None

    server = server_class(
        **about,
        get_tool_input_schema=input_schema_of,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(changes),
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    server.add_notification_handler(
        "notifications/initialized", types.NotificationParams, initialized
    )
    tasks.install(server)
    return server


def _sealing_of_states(keys: Sequence[str | bytes] | None, ttl_s: float, *, audience: str) -> Any:
    """Middleware that encrypts the state of a question, which travels through the client.

    An answer that comes after `ttl_s` is refused.
    """
    from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

    if not 0 < ttl_s < math.inf:
        raise ConfigurationError(
            f"`state_ttl_s` is a number of seconds above 0; found {shown(ttl_s)}."
        )
    if keys is None:
        security = RequestStateSecurity.ephemeral(ttl=ttl_s)
    else:
        security = RequestStateSecurity(keys=list(keys), ttl=ttl_s)
    return RequestStateBoundary(security, default_audience=audience)


def _changing_server() -> Any:
    """A subclass of the SDK's server that says that its lists may change.

    Raises an error that names the extra if the SDK is missing.
    """
    try:
        from mcp.server import NotificationOptions, Server
    except ImportError as error:
        raise missing_extra(error) from error

    class ChangingServer(Server[Any]):
        def create_initialization_options(
            self, notification_options: Any = None, *args: Any, **more: Any
        ) -> Any:
            # Transports pass no options, and the default declares that lists never change.
            if not notification_options:
                notification_options = NotificationOptions(
                    prompts_changed=True, resources_changed=True, tools_changed=True
                )
            return super().create_initialization_options(notification_options, *args, **more)

    return ChangingServer
