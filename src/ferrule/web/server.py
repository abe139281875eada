"""Serve the page: a free port, the people's links, and an end soon after Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from errno import EADDRINUSE
from typing import TYPE_CHECKING, Any

import uvicorn

from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.web.app import UIApp

_PORTS = 50


def serve_page(app: UIApp, *, host: str, port: int, on_listening: Callable[[dict[str, str]], Any]) -> None:
    """Serve until Ctrl-C. `on_listening` gets the link of each person."""

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.watch.close()  # open streams never end by themselves
            await super().shutdown(sockets)

    with _listening_socket(host, port) as taken:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{taken.getsockname()[1]}"
        on_listening({person: address + link for person, link in app.links.items()})
        # No access log: it would hold the tokens.
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            lifespan="off",
            proxy_headers=False,
        )
        asyncio.run(Server(config).serve(sockets=[taken]))


def _listening_socket(host: str, port: int) -> socket.socket:
    """A socket on this port, or on the next free one."""
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    for each in range(port, port + _PORTS) if port else (0,):
        try:
            return socket.create_server((bare, each), family=family)
        except (OSError, OverflowError) as error:
            if each in {0, port + _PORTS - 1} or getattr(error, "errno", None) != EADDRINUSE:
                raise ConfigurationError(f"Cannot listen on `{host}`, port {each}: {getattr(error, 'strerror', None) or error}.") from error
    raise AssertionError  # the last port returned or raised
