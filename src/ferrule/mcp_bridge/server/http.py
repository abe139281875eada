"""A server over HTTP: who may reach it, how long sessions last, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfigurationError, refuse_unknown, shown
from ferrule.net.loopback import HOSTS, ORIGINS, is_loopback, with_ports
from ferrule.net.sockets import listening_socket, url_host

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

_GRACE_S = 2
"""How long open requests may delay the end of a server.

Clients that listen for changes never disconnect.
"""
_IDLE_TIMEOUT_S = 1800


async def serve_http(
    server: Any,
    host: str,
    port: int,
    *,
    on_listening: Callable[[str], Any] | None = None,
    **options: Any,
) -> None:
    """Serve until cancelled or interrupted; see `MCPApp.arun`."""
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Before uvicorn does it itself, with an error in the log.
            asyncio.get_running_loop().call_later(_GRACE_S, self._cancel_requests)
            await super().shutdown(sockets)

        def _cancel_requests(self) -> None:
            for task in self.server_state.tasks:
                task.cancel()

    app = http_app(server, host=host, **options)
    with listening_socket(host, port) as taken:
        if on_listening is not None:
            listening_port = taken.getsockname()[1]
            on_listening(f"http://{url_host(host)}:{listening_port}{options.get('path', '/mcp')}")
        config = uvicorn.Config(
            _ended_cleanly(app), log_level="warning", timeout_graceful_shutdown=2 * _GRACE_S
        )
        await Server(config).serve(sockets=[taken])


def _ended_cleanly(app: Any) -> Any:
    """An application whose responses are complete also when the server ends.

    Otherwise uvicorn logs a traceback for each open call.
    """

    async def complete(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        is_started = is_complete = False

        async def sending(message: Any) -> None:
            nonlocal is_started, is_complete
            is_started = True
            is_complete = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        # Only the end of the server cancels a request.
        with contextlib.suppress(asyncio.CancelledError):
            await app(scope, receive, sending)
        if not is_started:
            headers = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
        if not is_complete:
            await send({"type": "http.response.body"})

    return complete


def http_app(
    server: Any,
    *,
    host: str = "127.0.0.1",
    path: str = "/mcp",
    allowed_hosts: Sequence[str] | None = None,
    allowed_origins: Sequence[str] | None = None,
    verify_token: Callable[[str], Any] | None = None,
    idle_timeout_s: float = _IDLE_TIMEOUT_S,
    **more: Any,
) -> Any:
    """The ASGI application.

    `verify_token` checks each request: see `serve`. `more` goes to the SDK's `streamable_http_app`.

    Raises `ConfigurationError` for a host that is not loopback, without `allowed_hosts`, for an
    `idle_timeout_s` that is not a time, and for an option that neither of them has.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    known = [
        *(http_app.__kwdefaults__ or ()),
        *inspect.signature(server.streamable_http_app).parameters,
    ]
    refuse_unknown("MCPApp.asgi", more, known)
    if not is_loopback(host) and allowed_hosts is None:
        raise ConfigurationError(
            f"A server on `{host}` can be reached from outside. Say under which names, "
            "`allowed_hosts=['mcp.example.org']`, and who may call, `verify_token=...`; "
            "or leave `host` at 127.0.0.1."
        )
    if not idle_timeout_s > 0:
        raise ConfigurationError(
            "`idle_timeout_s` is a number of seconds above 0, or `math.inf` for no limit; "
            f"found {shown(idle_timeout_s)}."
        )
    security = TransportSecuritySettings(
        allowed_hosts=with_ports([*HOSTS, *(allowed_hosts or ())]),
        allowed_origins=with_ports(ORIGINS if allowed_origins is None else allowed_origins),
    )
    # Logging adds the same filter only once.
    logging.getLogger("mcp.server.streamable_http").addFilter(_is_worth_logging)
    keywords: dict[str, Any] = {
        "streamable_http_path": path,
        "transport_security": security,
        "host": host,
        "session_idle_timeout": idle_timeout_s if idle_timeout_s < math.inf else None,
        **more,
    }
    if verify_token is None:
        return server.streamable_http_app(**keywords)
    return _with_tokens(server, verify_token, keywords)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Whether the SDK reports more than a client that left during its request.

    The SDK logs that with a traceback.
    """
    return record.exc_info is None or type(record.exc_info[1]).__name__ != "ClientDisconnect"


def _with_tokens(server: Any, verify_token: Callable[[str], Any], keywords: dict[str, Any]) -> Any:
    from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
    from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend
    from mcp.server.auth.provider import AccessToken
    from starlette.middleware.authentication import AuthenticationMiddleware

    class Verifier:
        async def verify_token(self, token: str) -> Any:
            owner = verify_token(token)
            if inspect.isawaitable(owner):
                owner = await owner
            if isinstance(owner, AccessToken):
                return owner
            if not owner:
                return None
            client_id = owner if isinstance(owner, str) else "client"
            return AccessToken(token=token, client_id=client_id, scopes=[])

    verifier: Any = Verifier()
    app = server.streamable_http_app(**keywords, token_verifier=verifier)
    app.add_middleware(AuthContextMiddleware)  # the outermost is added last
    app.add_middleware(AuthenticationMiddleware, backend=BearerAuthBackend(verifier))
    return app
