"""`Login`: the log-in to one server, as its connection uses it.

Requests carry the stored token, which is refreshed when it is due. A request that the server
refuses all the same stays refused: the connection then calls `log_in`, outside of all time limits
of requests, and sends it again. Everything here runs on the background loop.

The browser comes back to `Callback`, a small HTTP server on this machine, for one answer (RFC 8252,
section 7.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import logging
import os
import socket
import sys
import time
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from ferrule.concurrency.offload import in_worker_thread
from ferrule.mcp_bridge.login.authorization import (
    Authorization,
    LoginError,
    LoginTarget,
    Person,
    is_challenge,
    public_text,
)
from ferrule.mcp_bridge.login.credentials import Credentials, CredentialStore
from ferrule.mcp_bridge.redact import public_url
from ferrule.values.display import Concealed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

log = logging.getLogger("ferrule.mcp")

_FORBIDDEN = 403


class Login:
    """The log-in to one server: its tokens, and how a person renews them."""

    def __init__(
        self, target: LoginTarget, *, timeout_s: float, open_browser: Any, enter_code: Any
    ) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._open_browser = open_browser
        self._enter_code = enter_code
        self._store = CredentialStore(target.url)
        self._known: Credentials | None = None
        self._challenge: Any = None
        """The response that refused a request; None since the last log-in."""
        self._refused_token: Concealed | None = None
        """The token that got the challenge."""
        self._refreshing = asyncio.Lock()
        self._logging_in = asyncio.Lock()
        self._attempt: asyncio.Future[None] | None = None
        self._trouble: str | None = None
        """Why the last refresh or log-in failed. No person is asked again until the user calls
        `connect()`."""
        self.auth = _bearer(self)
        """Adds the token to requests: an `httpx2.Auth`."""

    @property
    def is_wanted(self) -> bool:
        """Whether the server refused a request because of its token, with no log-in since."""
        return self._challenge is not None

    def forgive(self) -> None:
        """Forget an earlier failure."""
        self._trouble = None

    # -- tokens of requests

    async def token(self) -> str | None:
        """The token for a request, refreshed if it is due; None if there is none."""
        if self._known is not None:
            known = self._known
        else:
            known = await self._read()
        is_due = known.expires_at is not None and known.expires_at <= time.time()
        if not is_due or not known.can_refresh:
            return known.access_token
        return await self._renewed(known.access_token, may_refresh=True) or known.access_token

    async def token_after(self, challenge: Any, used: str | None) -> str | None:
        """Another token than the one that the server refused; None if a person must log in."""
        token: str | None = None
        if not self._logging_in.locked():
            may_refresh = challenge.status_code != _FORBIDDEN  # a refresh adds no scopes
            token = await self._renewed(used, may_refresh=may_refresh)
        if token is None:
            self._challenge = challenge
            # Concealed: a `repr` of this object, as in a traceback, must not show it.
            self._refused_token = None if used is None else Concealed(used)
        return token

    async def _renewed(self, used: str | None, *, may_refresh: bool) -> str | None:
        """A token that is not `used`: another process's, or a refreshed one."""
        async with self._refreshing, self._store.locked("refresh"):
            known = await self._read()  # another process may have refreshed it, or logged in
            if known.access_token == used and known.can_refresh and may_refresh:
                try:
                    known = await Authorization(self._target, known).refresh()
                except LoginError as error:
                    self._trouble = str(error)
                    return None
                self._known = known
                await self._store.write(known)
                self._trouble = None  # if the refresh was refused, a person may log in
            if known.access_token in {None, used}:
                return None
            self._trouble = None
            return known.access_token

    async def _read(self) -> Credentials:
        """The stored credentials, unless they are those of another client than the user's."""
        stored = await self._store.read()
        client_id = self._target.oauth.client_id
        if client_id and (stored.client or {}).get("client_id") != client_id:
            stored = Credentials()
        self._known = stored
        return stored

    # -- the log-in

    async def log_in(self) -> None:
        """Have a person log in, unless one did meanwhile. Raises `LoginError`."""
        async with self._logging_in:
            if self._challenge is None:
                return
            if self._trouble is not None:
                raise LoginError(self._trouble)
            attempt = self._attempt = asyncio.ensure_future(self._ask_person(self._challenge))
            try:
                await asyncio.wait((attempt,))
            finally:
                if not attempt.done():  # given up by the caller
                    attempt.cancel()
                    await asyncio.wait((attempt,))
            if attempt.cancelled():
                raise LoginError("it was closed while it waited for a log-in")
            try:
                attempt.result()
            except LoginError as error:
                self._trouble = str(error)
                raise
            self._challenge = None

    def give_up(self) -> None:
        """End a log-in that waits for a person."""
        if self._attempt is not None:
            self._attempt.cancel()

    async def _ask_person(self, challenge: Any) -> None:
        opens, enter_code = self._choose_way()
        callback: Callback | None = None
        try:
            async with asyncio.timeout(self._timeout_s), self._store.locked("login"):
                stored = await self._read()
                if stored.access_token not in {None, self._refused_token}:
                    return  # another process logged in
                async with Callback.listen(self._target.oauth.callback_port) as callback:
                    person = Person(
                        redirect_uri=callback.address,
                        show=partial(_show, callback, opens),
                        answer=callback.answer,
                        enter_code=partial(_called, enter_code) if enter_code else None,
                    )
                    # More scopes are asked for in addition to those of the tokens. The client is
                    # registered again, for the port of this log-in.
                    is_step_up = challenge.status_code == _FORBIDDEN
                    before = Credentials(tokens=stored.tokens if is_step_up else None)
                    authorization = Authorization(self._target, before, person)
                    credentials = await authorization.log_in(challenge)
                async with self._store.locked("refresh"):
                    await self._store.write(credentials)
                self._known = credentials
        except TimeoutError:
            why = f"there was no log-in within {self._timeout_s:g} s (`login_timeout_s`)"
            if callback is not None and callback.had_wrong_state:
                why += ". An answer with the `state` of another log-in came, and was ignored"
            raise LoginError(why) from None

    def _choose_way(self) -> tuple[Callable[[str], Any] | None, Callable[[str, str], Any] | None]:
        """How a person is asked: a function that opens a browser, or one that shows a code.

        Raises `LoginError` if there is neither.
        """
        opens = self._open_browser
        if opens is None and has_browser():
            opens = _open_in_browser
        if callable(opens):
            return opens, None
        if self._enter_code is not None:
            return None, self._enter_code
        command = f"`ferrule mcp login {public_url(self._target.url)}`"
        raise LoginError(
            "it requires a log-in, and no browser can be opened here. "
            f"Log in once with {command}, or pass `open_browser=`"
        )


async def _show(callback: Callback, opens: Callable[[str], Any] | None, address: str) -> None:
    """Open the address of the log-in in a browser."""
    callback.expect(parse_qs(urlsplit(address).query)["state"][0])
    assert opens is not None  # noqa: S101  otherwise a code is shown
    if await _called(opens, address) is False:
        raise LoginError("no browser could be opened")
    log.info("Waiting for a log-in at %s in the browser.", public_url(address.partition("?")[0]))


async def _called(function: Callable[..., Any], *values: str) -> Any:
    """What a hook returns. It is called in a thread: a sync one may wait for the person."""
    result = await in_worker_thread(partial(function, *values))
    if isawaitable(result):
        return await result
    return result


def has_browser() -> bool:
    """Whether a browser can be opened.

    On Linux without a display, only a browser in the terminal could be: it would take the terminal.
    """
    if not sys.platform.startswith("linux"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _open_in_browser(address: str) -> bool:
    import webbrowser

    return webbrowser.open(address)


def _bearer(login: Login) -> Any:
    import httpx2

    class Bearer(httpx2.Auth):
        async def async_auth_flow(
            self, request: httpx2.Request
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            used = await login.token()
            if used is not None:
                request.headers["authorization"] = f"Bearer {used}"
            response = yield request
            if is_challenge(response):
                token = await login.token_after(response, used)
                if token is not None:
                    request.headers["authorization"] = f"Bearer {token}"
                    yield request

    return Bearer()


# -- where the browser comes back to

_PATH = "/callback"
_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_HEAD = (
    "HTTP/1.1 {status}\r\n"
    "content-type: text/html; charset=utf-8\r\n"
    "cache-control: no-store\r\n"
    "referrer-policy: no-referrer\r\n"
    "content-length: {size}\r\n"
    "connection: close\r\n\r\n"
)
_PAGE = (
    "<!doctype html><title>ferrule</title>"
    "<body style='font: 1.2em sans-serif; margin: 4em'><p>{text}</p>"
)
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
        """Listen on a port of this machine; 0 stands for a free one.

        Raises `LoginError` if another program has it.
        """
        callback = cls()
        servers: list[asyncio.Server] = []
        try:
            for family, address in _ADDRESSES:
                wanted = callback.port or port
                try:
                    server = await asyncio.start_server(
                        callback._serve, address, wanted, family=family, limit=_LONGEST_LINE
                    )
                except OSError as error:
                    if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                        raise LoginError(
                            f"port {wanted}, for the browser's answer, is in use or not allowed; "
                            "free it, or choose another: auth=OAuth(callback_port=...)"
                        ) from None
                    if not servers and family != socket.AF_INET:
                        raise
                    continue  # a machine without IPv6, or without IPv4
                servers.append(server)
                callback.port = server.sockets[0].getsockname()[1]
            if not servers:
                raise LoginError("no port of this machine can be opened for the browser's answer")
            yield callback
        finally:
            for server in servers:
                server.close()

    @property
    def address(self) -> str:
        """The redirect address, as most authorization servers know it."""
        return f"http://localhost:{self.port}{_PATH}"

    def expect(self, state: str) -> None:
        """Take only the answer with this state."""
        self._state = state

    async def answer(self) -> dict[str, str]:
        """The query of the answer. Raises `LoginError` if the log-in was refused."""
        answer = await asyncio.shield(self._answer)
        if "error" not in answer:
            return answer
        error = public_text(answer["error"])
        if error == "access_denied":
            what = "the log-in was denied"
        else:
            what = "the log-in failed"
        if answer.get("error_description"):
            error += f": {public_text(answer['error_description'])}"
        raise LoginError(f"{what} ({error})")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError,
            ValueError,
            TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            async with asyncio.timeout(_READ_S):
                request_line = (await reader.readuntil(b"\r\n")).decode("ascii").split(" ")
                while await reader.readuntil(b"\r\n") != b"\r\n":
                    pass  # the headers say nothing that matters here
                status, text = self._take(request_line)
                body = _PAGE.format(text=text).encode()
                writer.write(_HEAD.format(status=status, size=len(body)).encode() + body)
                await writer.drain()
        writer.close()

    def _take(self, request_line: list[str]) -> tuple[str, str]:
        """Take an answer; returns the status and the text for the person."""
        if request_line[0] != "GET" or len(request_line) < 2:
            return "404 Not Found", "There is nothing here."
        parts = urlsplit(request_line[1])
        if parts.path != _PATH:
            return "404 Not Found", "There is nothing here."
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if not self._is_expected(query.get("state", "")):
            self.had_wrong_state = True
            return "400 Bad Request", "This answer belongs to another log-in, and is ignored."
        if "code" not in query and "error" not in query:
            return "400 Bad Request", "This answer has no code."
        if not self._answer.done():
            self._answer.set_result(query)
        if "error" in query:
            return "200 OK", "You are not logged in. You can close this window."
        return "200 OK", "You are logged in. You can close this window."

    def _is_expected(self, state: str) -> bool:
        if self._state is None:
            return False
        return hmac.compare_digest(state.encode(), self._state.encode())
