"""Checks every request before a page sees it, adds headers to every answer, and knows who may use the page.

Browsers attack servers on this machine: by a host name of their own (DNS rebinding), by forms of
other pages, by frames. So `Host` and `Origin` are checked before anything is read, and every POST
holds the secret of its session, which the token in a person's link opens.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from hashlib import sha256
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, parse_qsl, quote, urlencode

from msgspec import Struct
from starlette.exceptions import HTTPException

from ferrule.errors import StoreError
from ferrule.net.loopback import HOSTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger("ferrule.web")

MOST_BODY_BYTES = 1 << 20
_MOST_FIELDS = 5_000
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    b"base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (
        b"referrer-policy",
        b"same-origin",
    ),  # `no-referrer` would make browsers send `Origin: null` with forms
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_OURS = frozenset(name for name, _ in _HEADERS)
_MOST_WRONG, _MINUTE_S = 5, 60.0
_MOST_SESSIONS = 1000


class Refused(Exception):  # noqa: N818  an answer, not a fault
    """A request is answered with this status and this text."""

    def __init__(self, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(status, text)
        self.status, self.text, self.headers = status, text, headers


class BrowserSession(Struct, frozen=True):
    """One browser of one person."""

    person: str
    csrf: str
    """What every form of this session holds, so that no other page can post one."""


class Sessions:
    """The tokens and the sessions of one app. Only digests are kept."""

    def __init__(self, people: Sequence[str]) -> None:
        self.links = {person: secrets.token_urlsafe(32) for person in people}
        """The token of each person's link."""
        self._people = [(_digest(token), person) for person, token in self.links.items()]
        self._open: dict[bytes, BrowserSession] = {}
        self._wrong: list[float] = []

    def enter(self, token: str) -> str | None:
        """The id of a new session for a token; None for a wrong one."""
        given, found = _digest(token), None
        for digest, person in self._people:  # all of them, so that the time says nothing
            if hmac.compare_digest(digest, given):
                found = person
        if found is None:
            now = monotonic()
            self._wrong = [*(at for at in self._wrong if now - at < _MINUTE_S), now][
                -_MOST_WRONG - 1 :
            ]
            return None
        key = secrets.token_urlsafe(32)
        self._open[_digest(key)] = BrowserSession(found, secrets.token_urlsafe(32))
        while len(self._open) > _MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        return key

    @property
    def is_guessed(self) -> bool:
        """Whether more wrong tokens came in the last minute than a person would mistype."""
        return len(self._wrong) > _MOST_WRONG and monotonic() - self._wrong[0] < _MINUTE_S

    def find(self, key: str) -> BrowserSession | None:
        """The session of a cookie."""
        return self._open.get(_digest(key)) if key else None


class PageGuard:
    """An ASGI application around another one."""

    def __init__(
        self,
        app: Any,
        sessions: Sessions,
        *,
        allowed_hosts: Sequence[str],
        is_read_only: bool,
        refuse: Callable[[int, str], bytes],
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._allowed = frozenset(each.casefold() for each in allowed_hosts)
        self._is_read_only = is_read_only
        self._page = refuse
        self._errors = count(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket, which a page of any host can ask for
            await send({"type": "websocket.close", "code": 1008})
            return
        begun = False

        async def sending(message: Any) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [
                    *(each for each in message.get("headers", ()) if each[0].lower() not in _OURS),
                    *_HEADERS,
                ]
            await send(message)

        try:
            await self._check(scope, receive)
            await self._app(scope, receive, sending)
        except Refused as refused:
            await self._answer(sending, scope, refused)
        except HTTPException as error:
            await self._answer(sending, scope, Refused(error.status_code, error.detail))
        except StoreError as error:  # it says what is wrong with the file, and what to do
            await self._answer(sending, scope, Refused(503, str(error)))
        except Exception:
            number = next(self._errors)
            log.exception(
                "Error %d of the page, at %s %s",
                number,
                scope["method"],
                quote(scope["path"]),
            )
            if not begun:
                await self._answer(
                    sending,
                    scope,
                    Refused(
                        500,
                        f"Something went wrong here. The log of `ferrule ui` has it as error {number}.",
                    ),
                )

    async def _answer(self, send: Any, scope: Any, refused: Refused) -> None:
        body = self._page(refused.status, refused.text)
        sized = (b"content-length", str(len(body)).encode())
        headers = [(b"content-type", b"text/html; charset=utf-8"), sized, *refused.headers]
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body},
        )

    async def _check(self, scope: Any, receive: Any) -> None:
        headers = _Headers(scope["headers"])
        port = (scope.get("server") or ("", 0))[1]
        host = headers.one(b"host").casefold()
        if not self._is_ours(host, port):
            raise Refused(421, "This server does not answer for the host that the request names.")
        is_reading = scope["method"] in _READING
        if not is_reading:
            if scope["method"] != "POST":
                raise Refused(
                    405,
                    "This address takes GET and POST.",
                    (b"allow", b"GET, HEAD, OPTIONS, POST"),
                )
            if headers.one(b"origin").casefold() not in {f"http://{host}", f"https://{host}"}:
                raise Refused(403, "This form was sent from another page.")
            if headers.one(b"sec-fetch-site", "same-origin") != "same-origin":
                raise Refused(403, "This form was sent from another site.")
        cookie = f"ferrule-{port}"
        self._enter(scope, cookie)
        if scope["path"].startswith("/static/"):
            return
        session = self._sessions.find(headers.cookie(cookie))
        if session is None:
            raise Refused(401, "Open the link that `ferrule ui` printed in its terminal.")
        scope["ferrule.session"] = session
        if not is_reading:
            if self._is_read_only:
                raise Refused(403, "This page only reads: it was opened with `--read-only`.")
            scope["ferrule.form"] = await _read_form(headers, receive, session)

    def _is_ours(self, host: str, port: int) -> bool:
        if host in self._allowed:
            return True
        names = {*HOSTS, *self._allowed}
        return any(host == f"{name}:{port}" or (port == 80 and host == name) for name in names)

    def _enter(self, scope: Any, cookie: str) -> None:
        """Turn a token in the address into a cookie."""
        query = scope["query_string"].decode("latin-1")
        if "token" not in parse_qs(query, keep_blank_values=True):
            return
        if scope["method"] != "GET":
            raise Refused(403, "A link is opened, not posted.")
        pairs = parse_qsl(query, keep_blank_values=True)
        key = self._sessions.enter(next(value for name, value in pairs if name == "token"))
        if key is None:
            if self._sessions.is_guessed:
                raise Refused(
                    429,
                    "Too many wrong links. Wait for a minute.",
                    (b"retry-after", b"60"),
                )
            raise Refused(
                401,
                "This link is not valid. `ferrule ui` prints a new one at each start.",
            )
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        place = quote("/" + scope["path"].lstrip("/\\")) + (
            f"?{rest}" if rest else ""
        )  # `//name` would be another host
        set_cookie = f"{cookie}={key}; HttpOnly; SameSite=Strict; Path=/"
        raise Refused(303, "", (b"location", place.encode()), (b"set-cookie", set_cookie.encode()))


async def _read_form(headers: _Headers, receive: Any, session: BrowserSession) -> dict[str, str]:
    kind = headers.one(b"content-type").partition(";")[0].strip().casefold()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "This address takes a form.")
    length = headers.one(b"content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length) > MOST_BODY_BYTES:
        raise Refused(413, "The form is larger than 1 MiB.")
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "The form did not arrive.")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MOST_BODY_BYTES:
            raise Refused(413, "The form is larger than 1 MiB.")
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError as error:
        raise Refused(400, "The form cannot be read.") from error
    form = dict(pairs)
    if not hmac.compare_digest(form.pop("csrf", "").encode(), session.csrf.encode()):
        raise Refused(403, "This form is from an earlier session. Reload its page.")
    return form


class _Headers:
    """The headers of a request; one that comes twice counts as an empty one."""

    def __init__(self, pairs: Any) -> None:
        self._pairs = pairs

    def one(self, name: bytes, default: str = "") -> str:
        found = [value for key, value in self._pairs if key.lower() == name]
        return found[0].decode("latin-1") if len(found) == 1 else ("" if found else default)

    def cookie(self, name: str) -> str:
        pairs = (each.strip().partition("=") for each in self.one(b"cookie").split(";"))
        return next((value for key, _, value in pairs if key == name), "")


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
