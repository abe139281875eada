"""`Login`: the log-in to one server, as its connection uses it.

Requests carry the stored token, which is refreshed when it is due. A request that the server
refuses all the same stays refused: the connection then calls `log_in`, outside of all time limits
of requests, and sends it again. Everything here runs on the background loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from ferrule.concurrency.offload import in_worker_thread
from ferrule.mcp_bridge.login.authorization import Authorization, LoginTarget, Person, is_challenge
from ferrule.mcp_bridge.login.callback import Callback
from ferrule.mcp_bridge.login.credentials import Credentials, CredentialStore
from ferrule.mcp_bridge.login.errors import LoginError
from ferrule.mcp_bridge.transport.redact import public_url

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

log = logging.getLogger("ferrule.mcp")

_FORBIDDEN = 403


class Login:
    """The log-in to one server: its tokens, and how a person renews them."""

    def __init__(
        self,
        target: LoginTarget,
        *,
        timeout_s: float,
        open_browser: Any,
        enter_code: Any,
    ) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._open_browser = open_browser
        self._enter_code = enter_code
        self._store = CredentialStore(target.url)
        self._known: Credentials | None = None
        self._challenge: Any = None
        self._refused = Credentials()
        """With the token that got the challenge."""
        self._refreshing, self._asking = asyncio.Lock(), asyncio.Lock()
        self._asked: asyncio.Future[None] | None = None
        self._trouble: str | None = None
        """Why the last refresh or log-in failed. No person is asked again until the user calls `connect()`."""
        self.auth = _bearer(self)
        """Adds the token to requests: an `httpx2.Auth`."""

    @property
    def is_wanted(self) -> bool:
        """Whether the server has refused a request because of its token, and there was no log-in since."""
        return self._challenge is not None

    def forgive(self) -> None:
        """Forget an earlier failure."""
        self._trouble = None

    # -- tokens of requests
    # -------------------------------------------------------------------------------------

    async def token(self) -> str | None:
        """The token for a request, refreshed if it is due; None if there is none."""
        found = self._known if self._known is not None else await self._read()
        if found.expires_at is None or found.expires_at > time.time() or not found.can_refresh:
            return found.access_token
        return await self._renewed(found.access_token, may_refresh=True) or found.access_token

    async def token_after(self, challenge: Any, used: str | None) -> str | None:
        """Another token than the one that the server refused; None if a person must log in."""
        may_refresh = challenge.status_code != _FORBIDDEN  # a refresh adds no scopes
        found = (
            None if self._asking.locked() else await self._renewed(used, may_refresh=may_refresh)
        )
        if found is None:
            self._challenge, self._refused = challenge, Credentials(tokens={"access_token": used})
        return found

    async def _renewed(self, used: str | None, *, may_refresh: bool) -> str | None:
        async with self._refreshing, self._store.locked("refresh"):
            found = await self._read()  # another process may have refreshed it, or logged in
            if found.access_token == used and found.can_refresh and may_refresh:
                try:
                    self._known = found = await Authorization(self._target, found).refresh()
                except LoginError as error:
                    self._trouble = str(error)
                    return None
                await self._store.write(found)
                self._trouble = None  # a refused refresh is a new log-in
            if found.access_token in {None, used}:
                return None
            self._trouble = None
            return found.access_token

    async def _read(self) -> Credentials:
        found = await self._store.read()
        own = self._target.oauth.client_id
        self._known = (
            found if not own or (found.client or {}).get("client_id") == own else Credentials()
        )
        return self._known

    # -- the log-in
    # ---------------------------------------------------------------------------------------------

    async def log_in(self) -> None:
        """Have a person log in, unless one did meanwhile. Raises `LoginError`."""
        async with self._asking:
            if self._challenge is None:
                return
            if self._trouble is not None:
                raise LoginError(self._trouble)
            asked = self._asked = asyncio.ensure_future(self._ask(self._challenge))
            try:
                await asyncio.wait((asked,))
            finally:
                if not asked.done():  # given up by the caller
                    asked.cancel()
                    await asyncio.wait((asked,))
            if asked.cancelled():
                raise LoginError("it was closed while it waited for a log-in")
            try:
                asked.result()
            except LoginError as error:
                self._trouble = str(error)
                raise
            self._challenge = None

    def give_up(self) -> None:
        """End a log-in that waits for a person."""
        if self._asked is not None:
            self._asked.cancel()

    async def _ask(self, challenge: Any) -> None:
        opens, enter_code = self._choose_way()
        within = self._timeout_s
        callback: Callback | None = None
        try:
            async with asyncio.timeout(within), self._store.locked("login"):
                found = await self._read()
                if found.access_token not in {None, self._refused.access_token}:
                    return  # another process logged in
                # More scopes are asked for beside those of the tokens. The client is registered
                # anew, for the port of this log-in.
                found = Credentials(
                    tokens=found.tokens if challenge.status_code == _FORBIDDEN else None,
                )
                async with Callback.listen(self._target.oauth.callback_port) as callback:
                    person = Person(
                        redirect_uri=callback.address, show=partial(_show, callback, opens), answer=callback.answer,
                        enter_code=None if enter_code is None else partial(_called, enter_code),
                    )  # fmt: skip
                    found = await Authorization(self._target, found, person).log_in(challenge)
                async with self._store.locked("refresh"):
                    await self._store.write(found)
                self._known = found
        except TimeoutError:
            stray = (
                ". An answer with the `state` of another log-in came, and was ignored"
                if callback and callback.had_wrong_state
                else ""
            )
            raise LoginError(
                f"there was no log-in within {within:g} s (`login_timeout_s`){stray}",
            ) from None

    def _choose_way(self) -> tuple[Callable[[str], Any] | None, Callable[[str, str], Any] | None]:
        """How a person is asked: a function that opens a browser, or one that shows a code. Raises `LoginError` if there is none."""
        opens, enter_code = self._open_browser, self._enter_code
        if opens is None and has_browser():
            opens = _open_in_browser
        if callable(opens):
            return opens, None
        if enter_code is not None:
            return None, enter_code
        command = f"`ferrule mcp login {public_url(self._target.url)}`"
        raise LoginError(
            f"it requires a log-in, and no browser can be opened here. Log in once with {command}, or pass `open_browser=`",
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
    found = await in_worker_thread(partial(function, *values))
    return await found if isawaitable(found) else found


def has_browser() -> bool:
    """Whether a browser can be opened. On Linux without a display, only a browser in the terminal could be: it would take the terminal."""
    return not sys.platform.startswith("linux") or any(
        os.environ.get(each) for each in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )


def _open_in_browser(address: str) -> bool:
    import webbrowser

    return webbrowser.open(address)


def _bearer(login: Login) -> Any:
    import httpx2

    class Bearer(httpx2.Auth):
        async def async_auth_flow(
            self,
            request: httpx2.Request,
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            used = await login.token()
            if used is not None:
                request.headers["authorization"] = f"Bearer {used}"
            response = yield request
            if is_challenge(response):
                found = await login.token_after(response, used)
                if found is not None:
                    request.headers["authorization"] = f"Bearer {found}"
                    yield request

    return Bearer()
