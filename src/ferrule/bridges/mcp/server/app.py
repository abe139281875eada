"""`serve`: tools and programs of ours as an MCP server; and `MCPApp`, the same as an object.

In: tools, functions, programs. Out: a server over stdio or HTTP, that clients of all revisions from 2024-11-05 to 2026-07-28 can use. Each
call is checked, coerced and run as in a run of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Literal, assert_never

from ferrule.bridges.mcp.server.build import build
from ferrule.bridges.mcp.server.call import CallRules, Calls
from ferrule.bridges.mcp.server.http import http_app, listening_on
from ferrule.bridges.mcp.server.notifications import Changes
from ferrule.bridges.mcp.server.stdio import streams
from ferrule.bridges.mcp.server.tools import serve_one, served
from ferrule.errors import ConfigurationError, UnknownToolError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ferrule.bridges.mcp.server.notifications import What

log = logging.getLogger("ferrule.mcp")

Transport = Literal["stdio", "http"]

_GRACE_S = 2
"""How long open streams may keep an HTTP server from ending; clients that listen for changes never leave by themselves."""


class MCPApp:
    """Tools and programs, served: `MCPApp([tool, program]).run()`, `.asgi()` for a web server, `MCPServer.in_memory(app.server)` in tests.

    What is served may change while it serves, from any thread; clients are told. Raises `ConfigurationError`, also an `ImportError`, where
    the extra `ferrule[mcp]` is missing.
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
        self._served = served(tools)
        self._changes = Changes()
        rules = CallRules(timeout_s=timeout_s, max_concurrency=max_concurrency, mask_errors=mask_errors, confirm=confirm)
        about = {"name": name, "version": version, "title": title, "instructions": instructions}
        self.name = name
        self.server: Any = build(about, self._served, Calls(rules), self._changes, keys=state_keys, list_ttl_s=list_ttl_s)
        """The SDK's low-level server: for resources, prompts, and whatever else it can."""

    # -- what is served -------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools, in order."""
        return tuple(self._served)

    def add(self, thing: Any, name: str | None = None) -> None:
        """Serve one more tool or program, or another one under a name that is served."""
        one = serve_one(thing, name)
        self._served[one.name] = one
        self.changed("tools")

    def remove(self, name: str) -> None:
        """Serve it no longer. Calls that run go on. Raises `UnknownToolError`."""
        if self._served.pop(name, None) is None:
            raise UnknownToolError(name, self.names)
        self.changed("tools")

    def changed(self, what: What) -> None:
        """Tell clients that a list has changed: for prompts and resources that you serve through `server`."""
        self._changes.tell(what)

    def updated(self, uri: str) -> None:
        """Tell clients of the newer era that listen for it that a resource has changed."""
        from mcp.server.subscriptions import ResourceUpdated

        self._changes.tell_streams(ResourceUpdated(uri=uri))

    # -- serving --------------------------------------------------------------------------------------------------

    def asgi(self, **options: Any) -> Any:
        """The ASGI application, for a web server of yours. Options as `serve` has them for HTTP."""
        return http_app(self.server, **options)

    async def arun(self, transport: Transport = "stdio", *, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> None:
        """Serve until the client leaves (stdio), or until cancelled (HTTP).

        Options of HTTP are those of `asgi`, and `on_listening`, which is called with the address once it is taken. Raises
        `ConfigurationError` where it cannot be taken, or where there is no standard input or output.
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

    def run(self, transport: Transport = "stdio", **options: Any) -> None:
        """`arun` for sync code: serves until it is over."""
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
            log.info("the client reads no more")

    async def _over_http(self, host: str, port: int, *, on_listening: Callable[[str], Any] | None = None, **options: Any) -> None:
        import uvicorn

        app = self.asgi(host=host, **options)
        with listening_on(host, port) as taken:
            if on_listening is not None:
                on_listening(f"http://{host}:{taken.getsockname()[1]}{options.get('path', '/mcp')}")
            await uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_GRACE_S)).serve(sockets=[taken])


def serve(
    tools: Iterable[Any] | Mapping[str, Any],
    *,
    transport: Transport = "stdio",
    host: str = "127.0.0.1",
    port: int = 8000,
    path: str = "/mcp",
    allowed_hosts: Sequence[str] | None = None,
    allowed_origins: Sequence[str] | None = None,
    verify_token: Callable[[str], Any] | None = None,
    **options: Any,
) -> None:
    """Serve tools and programs to MCP clients, and return when that is over: `serve([add, agent], name="mine", transport="http")`.

    Over HTTP it listens on loopback. `allowed_hosts` are the names it may be reached by besides, `allowed_origins` the web pages that may
    call. `verify_token` gets the bearer token of each request and returns whether it is good: True, the name of whoever has it, or the
    SDK's `AccessToken`; it may be async. `options` are those of `MCPApp`: `name`, `version`, `instructions`, `timeout_s` for tools without
    one of their own, `max_concurrency`, `mask_errors` (tell clients only that a tool failed), `confirm` (the host decides on calls that
    need consent, instead of the client's user), `state_keys` (the same in all workers, at least 32 bytes each; the first one seals).
    """
    app = MCPApp(tools, **options)
    given = {"allowed_hosts": allowed_hosts, "allowed_origins": allowed_origins, "verify_token": verify_token}
    http = {name: value for name, value in given.items() if value is not None}  # over stdio they are refused, not passed over
    app.run(transport, host=host, port=port, **({"path": path} if transport == "http" else {}), **http)
