"""`serve` and `MCPApp`: tools and programs as an MCP server, over stdio or HTTP, for clients of revisions 2024-11-05 to 2026-07-28.

Each call is checked, coerced and run as in a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Literal, assert_never

from ferrule.bridges.mcp.server.build import build_server
from ferrule.bridges.mcp.server.call import CallRules, CallRunner
from ferrule.bridges.mcp.server.http import http_app, listening_socket
from ferrule.bridges.mcp.server.notifications import ChangeNotifier
from ferrule.bridges.mcp.server.stdio import streams
from ferrule.bridges.mcp.server.tools import serve_one, served_tools
from ferrule.errors import ConfigurationError, UnknownToolError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ferrule.bridges.mcp.server.notifications import ListKind

log = logging.getLogger("ferrule.mcp")

ServeTransport = Literal["stdio", "http"]

_GRACE_S = 2
"""How long open streams may delay the end of an HTTP server. Clients that listen for changes never disconnect."""


class MCPApp:
    """Tools and programs, served: `MCPApp([tool, program]).run()`, `.asgi()` for a web server, `MCPServer.in_memory(app.server)` in tests.

    Tools may be added and removed while it serves, from any thread; clients are notified. Raises `ConfigurationError`, also an
    `ImportError`, if the extra `ferrule[mcp]` is missing.
    """

    def __init__(
        self,
        tools: Iterable[Any] | Mapping[str, Any] = (),
        *,
        name: str = "ferrule",
        version: str = "",
        title: str | None = None,
        instructions: str | None = None,
        timeout_s: float | None = None,
        max_concurrency: int | None = None,
        mask_errors: bool = False,
        confirm: Callable[[str, dict[str, Any]], Any] | None = None,
        state_keys: Sequence[str | bytes] | None = None,
        list_ttl_s: float = 0,
    ) -> None:
        self._served = served_tools(tools)
        self._changes = ChangeNotifier()
        rules = CallRules(timeout_s=timeout_s, max_concurrency=max_concurrency, mask_errors=mask_errors, confirm=confirm)
        about = {"name": name, "version": version, "title": title, "instructions": instructions}
        self.name = name
        self.server: Any = build_server(about, self._served, CallRunner(rules), self._changes, keys=state_keys, list_ttl_s=list_ttl_s)
        """The SDK's low-level server, for resources, prompts and everything else it offers."""

    # -- tools ----------------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools, in order."""
        return tuple(self._served)

    def add(self, thing: Any, name: str | None = None) -> None:
        """Serve a tool or program; it replaces one of the same name."""
        one = serve_one(thing, name)
        self._served[one.name] = one
        self.changed("tools")

    def remove(self, name: str) -> None:
        """Stop serving a tool. Running calls continue. Raises `UnknownToolError`."""
        if self._served.pop(name, None) is None:
            raise UnknownToolError(name, self.names)
        self.changed("tools")

    def changed(self, what: ListKind) -> None:
        """Notify clients of a changed list: for prompts and resources that you serve through `server`."""
        self._changes.tell(what)

    def updated(self, uri: str) -> None:
        """Notify subscribed clients (2026-07-28 or later) of a changed resource."""
        from mcp.server.subscriptions import ResourceUpdated

        self._changes.tell_streams(ResourceUpdated(uri=uri))

    # -- serving --------------------------------------------------------------------------------------------------

    def asgi(self, **options: Any) -> Any:
        """The ASGI application, for your own web server. Takes the HTTP options of `serve`."""
        return http_app(self.server, **options)

    async def arun(self, transport: ServeTransport = "stdio", *, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> None:
        """Serve until the client disconnects (stdio) or until cancelled (HTTP).

        HTTP options are those of `asgi`, and `on_listening`, which is called with the address once the server listens. Raises
        `ConfigurationError` if it cannot listen there, or without standard input or output.
        """
        match transport:
            case "stdio":
                if options:
                    msg = f"Over stdio there is no {', '.join(f'`{each}`' for each in options)}: it is an option of HTTP."
                    raise ConfigurationError(msg)
                await self._over_stdio()
            case "http":
                await self._over_http(host, port, **options)
            case _:
                if isinstance(transport, str):
                    msg = f"`transport` is 'stdio' or 'http', found {shown(transport)}."
                    raise ConfigurationError(msg)
                assert_never(transport)

    def run(self, transport: ServeTransport = "stdio", **options: Any) -> None:
        """`arun` for sync code."""
        if asyncio._get_running_loop() is not None:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the public one raises instead
            msg = "An event loop is running in this thread: `await app.arun(...)` serves on it."
            raise ConfigurationError(msg)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self.arun(transport, **options))

    async def _over_stdio(self) -> None:
        try:
            async with streams() as (reading, writing):
                await self.server.run(reading, writing, self.server.create_initialization_options())
        except* BrokenPipeError:
            log.info("the client closed the connection")

    async def _over_http(self, host: str, port: int, *, on_listening: Callable[[str], Any] | None = None, **options: Any) -> None:
        import uvicorn

        app = self.asgi(host=host, **options)
        with listening_socket(host, port) as taken:
            if on_listening is not None:
                on_listening(f"http://{host}:{taken.getsockname()[1]}{options.get('path', '/mcp')}")
            await uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_GRACE_S)).serve(sockets=[taken])


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
    **options: Any,
) -> None:
    """Serve tools and programs to MCP clients until the client disconnects: `serve([add, agent], name="mine", transport="http")`.

    Over HTTP it listens on loopback. `allowed_hosts` are further host names, `allowed_origins` the web pages that may call. `verify_token`
    gets the bearer token of each request, sync or async; it returns True, the name of the client, or the SDK's `AccessToken` if the token
    is valid. `options` are those of `MCPApp`: `name`, `version`, `instructions`, `timeout_s` for tools without one of their own,
    `max_concurrency`, `mask_errors` (clients see only that a tool failed), `confirm` (the host confirms calls instead of the client's
    user), `state_keys` (the same in all workers, at least 32 bytes each; the first one seals).
    """
    app = MCPApp(tools, **options)
    given = {"allowed_hosts": allowed_hosts, "allowed_origins": allowed_origins, "verify_token": verify_token}
    http = {name: value for name, value in given.items() if value is not None}  # over stdio they raise
    app.run(transport, host=host, port=port, **({"path": path} if transport == "http" else {}), **http)
