"""An MCP server over streamable HTTP: the ASGI application, and the hosts and clients it accepts.

By default it answers only on loopback, under names of loopback: otherwise a web page could reach local tools by a name of its own (DNS
rebinding; specification, "Streamable HTTP", security warning).
"""

from __future__ import annotations

import inspect
import socket
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LAST_PORT = 65535
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def http_app(
    server: Any,
    *,
    host: str = "127.0.0.1",
    path: str = "/mcp",
    allowed_hosts: Sequence[str] | None = None,
    allowed_origins: Sequence[str] | None = None,
    verify_token: Callable[[str], Any] | None = None,
    **more: Any,
) -> Any:
    """The ASGI application. `verify_token` checks each request: see `serve`. `more` goes to the SDK's `streamable_http_app`.

    Raises `ConfigurationError` for a host that is not loopback, without `allowed_hosts`.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    bare = host.strip("[]")
    is_local = bare in {"127.0.0.1", "localhost", "::1"}
    if not is_local and allowed_hosts is None:
        msg = (
            f"A server on `{host}` can be reached from outside. Say under which names, `allowed_hosts=['mcp.example.org']`, "
            "and who may call, `verify_token=...`; or leave `host` at 127.0.0.1."
        )
        raise ConfigurationError(msg)
    names = [*_LOOPBACK, *(allowed_hosts or ())]
    origins = [f"http://{each}" for each in _LOOPBACK] if allowed_origins is None else list(allowed_origins)
    security = TransportSecuritySettings(
        allowed_hosts=[form for each in names for form in (each, f"{each}:*")],
        allowed_origins=[form for each in origins for form in (each, f"{each}:*")],
    )
    keywords: dict[str, Any] = {"streamable_http_path": path, "transport_security": security, "host": host, **more}
    if verify_token is None:
        return server.streamable_http_app(**keywords)
    return _with_tokens(server, verify_token, keywords)


def listening_socket(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `ConfigurationError` if that fails, where the web server would exit the process."""
    bare = host.strip("[]")
    if not 0 <= port <= _LAST_PORT:
        msg = f"Cannot listen on `{host}`, port {port}: ports go from 0 to {_LAST_PORT}."
        raise ConfigurationError(msg)
    try:
        return socket.create_server((bare, port), family=socket.AF_INET6 if ":" in bare else socket.AF_INET)
    except OSError as error:
        msg = f"Cannot listen on `{host}`, port {port}: {error.strerror or error}."
        raise ConfigurationError(msg) from error


def _with_tokens(server: Any, verify_token: Callable[[str], Any], keywords: dict[str, Any]) -> Any:
    from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
    from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend
    from mcp.server.auth.provider import AccessToken
    from starlette.middleware.authentication import AuthenticationMiddleware

    class Verifier:
        async def verify_token(self, token: str) -> Any:
            found = verify_token(token)
            found = await found if inspect.isawaitable(found) else found
            if isinstance(found, AccessToken):
                return found
            return AccessToken(token=token, client_id=found if isinstance(found, str) else "client", scopes=[]) if found else None

    verifier: Any = Verifier()
    app = server.streamable_http_app(**keywords, token_verifier=verifier)
    app.add_middleware(AuthContextMiddleware)  # the outermost is added last
    app.add_middleware(AuthenticationMiddleware, backend=BearerAuthBackend(verifier))
    return app
