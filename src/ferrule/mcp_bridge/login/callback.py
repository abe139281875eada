"""Where the browser comes back to after a log-in: a small HTTP server on this machine, for one answer (RFC 8252, section 7.3)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import socket
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from ferrule.mcp_bridge.login.errors import LoginError, public_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PATH = "/callback"
_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_HIDDEN = "HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncache-control: no-store\r\nreferrer-policy: no-referrer\r\n"
_PAGE = "<!doctype html><title>ferrule</title><body style='font: 1.2em sans-serif; margin: 4em'><p>{text}</p>"
_READ_S = 10.0
_LONGEST_LINE = 16_384


class Callback:
    """The answer of the authorization server, as the browser brings it."""

    def __init__(self) -> None:
        self.port = 0
        self.had_wrong_state = False
        """Whether an answer came that belongs to no log-in of ours."""
        self._state: str | None = None
        self._answer: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    @classmethod
    @contextlib.asynccontextmanager
    async def listen(cls, port: int) -> AsyncGenerator[Callback]:
        """Listen on a port of this machine; 0 stands for a free one. Raises `LoginError` if another program has it."""
        made = cls()
        servers: list[asyncio.Server] = []
        try:
            for family, address in _ADDRESSES:
                try:
                    server = await asyncio.start_server(
                        made._serve,
                        address,
                        made.port or port,
                        family=family,
                        limit=_LONGEST_LINE,
                    )
                except OSError as error:
                    if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                        why = f"port {made.port or port}, for the browser's answer, is in use or not allowed"
                        raise LoginError(
                            f"{why}; free it, or choose another: auth=OAuth(callback_port=...)",
                        ) from None
                    if not servers and family != socket.AF_INET:
                        raise
                    continue  # a machine without IPv6, or without IPv4
                servers.append(server)
                made.port = server.sockets[0].getsockname()[1]
            if not servers:
                raise LoginError("no port of this machine can be opened for the browser's answer")
            yield made
        finally:
            for server in servers:
                server.close()

    @property
    def address(self) -> str:
        """The redirect address, as most authorization servers know it."""
        return f"http://localhost:{self.port}{PATH}"

    def expect(self, state: str) -> None:
        """Take only the answer with this state."""
        self._state = state

    async def answer(self) -> dict[str, str]:
        """The query of the answer. Raises `LoginError` if the log-in was refused."""
        found = await asyncio.shield(self._answer)
        if "error" in found:
            about = (
                f": {public_text(found['error_description'])}"
                if found.get("error_description")
                else ""
            )
            word = public_text(found["error"])
            raise LoginError(
                f"the log-in was denied ({word}{about})"
                if word == "access_denied"
                else f"the log-in failed ({word}{about})",
            )
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError,
            ValueError,
            TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            async with asyncio.timeout(_READ_S):
                line = (await reader.readuntil(b"\r\n")).decode("ascii").split(" ")
                while await reader.readuntil(b"\r\n") != b"\r\n":
                    pass
                status, text = self._take(line)
                body = _PAGE.format(text=text).encode()
                head = f"{_HIDDEN.format(status=status)}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()

    def _take(self, line: list[str]) -> tuple[str, str]:
        """Take an answer; returns the status and the text for the person."""
        parts = urlsplit(line[1]) if line[0] == "GET" and len(line) > 1 else None
        if parts is None or parts.path != PATH:
            return "404 Not Found", "There is nothing here."
        found = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if self._state is None or not hmac.compare_digest(
            found.get("state", "").encode(),
            self._state.encode(),
        ):
            self.had_wrong_state = True
            return "400 Bad Request", "This answer belongs to another log-in, and is ignored."
        if not ("code" in found or "error" in found):
            return "400 Bad Request", "This answer has no code."
        if not self._answer.done():
            self._answer.set_result(found)
        if "error" in found:
            return "200 OK", "You are not logged in. You can close this window."
        return "200 OK", "You are logged in. You can close this window."
