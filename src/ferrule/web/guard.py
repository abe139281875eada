"""Checks every request before a page sees it, and knows who may use the page.

Browsers attack servers on this machine: by a host name of their own (DNS rebinding), by forms of
other pages, by frames. So `Host` and `Origin` are checked before anything is read, and every POST
holds the secret of its session, which the token in a person's link opens.
"""

from __future__ import annotations

import asyncio
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
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    # Not `no-referrer`: with it, browsers would send `Origin: null` with forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_OUR_HEADERS = frozenset(name for name, _ in _HEADERS)
_MOST_WRONG_TOKENS = 5
"""In a minute. More of them are not mistyped but guessed."""
_MINUTE_S = 60.0
_MOST_SESSIONS = 1000
_MOST_LINKS = 1000
PATIENCE_S = 10.0
"""How long a request may take to arrive."""
_LOG_OUT = "/log-out"


class Refused(Exception):  # noqa: N818  an answer, not a fault
    """A request is answered with this status and this text."""

    def __init__(self, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text
        self.headers = headers


class BrowserSession(Struct, frozen=True):
    """One browser of one person."""

    person: str
    csrf: str
    """What every form of this session holds, so that no other page can post one."""


class Sessions:
    """The tokens and the sessions of one app. Only digests are kept."""

    def __init__(self, people: Sequence[str]) -> None:
        self._people = tuple(people)
        self._tokens: list[tuple[bytes, str]] = []
        """The digests of the tokens that were not used yet, with their persons."""
        self.on_entered: Callable[[str], None] | None = None
        """Called with the person who has just entered: that link is used up."""
        self._open: dict[bytes, BrowserSession] = {}
        self._wrong_at: list[float] = []
        """When the last wrong tokens came."""

    @property
    def links(self) -> dict[str, str]:
        """A new token for each person, for one use. Earlier ones that were not used stay valid."""
        links = {person: secrets.token_urlsafe(32) for person in self._people}
        self._tokens += [(_digest(token), person) for person, token in links.items()]
        del self._tokens[:-_MOST_LINKS]
        return links

    def enter(self, token: str) -> str | None:
        """The id of a new session for a token, which is used up; None for a wrong one."""
        person = self._take(token)
        if person is None:
            self._note_wrong_token()
            return None
        if self.on_entered is not None:
            self.on_entered(person)
        key = secrets.token_urlsafe(32)
        self._open[_digest(key)] = BrowserSession(person, secrets.token_urlsafe(32))
        while len(self._open) > _MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        return key

    def leave(self, key: str) -> None:
        """End the session of a cookie."""
        self._open.pop(_digest(key), None)

    def _take(self, token: str) -> str | None:
        digest = _digest(token)
        taken = None
        # All of them are compared, so that the time that it takes says nothing.
        for entry in self._tokens:
            if hmac.compare_digest(entry[0], digest):
                taken = entry
        if taken is None:
            return None
        self._tokens.remove(taken)
        return taken[1]

    def _note_wrong_token(self) -> None:
        now = monotonic()
        recent = [wrong_at for wrong_at in self._wrong_at if now - wrong_at < _MINUTE_S]
        recent.append(now)
        self._wrong_at = recent[-(_MOST_WRONG_TOKENS + 1) :]

    @property
    def is_guessed(self) -> bool:
        """Whether more wrong tokens came in the last minute than a person would mistype."""
        if len(self._wrong_at) <= _MOST_WRONG_TOKENS:
            return False
        return monotonic() - self._wrong_at[0] < _MINUTE_S

    def find(self, key: str) -> BrowserSession | None:
        """The session of a cookie."""
        if key:
            return self._open.get(_digest(key))
        return None


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
        self._allowed_hosts = frozenset(host.casefold() for host in allowed_hosts)
        self._is_read_only = is_read_only
        self._refusal_page = refuse
        self._error_numbers = count(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket, which a page of any host can ask for
            await send({"type": "websocket.close", "code": 1008})
            return
        has_begun = False

        async def send_with_headers(message: Any) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                others = [
                    header
                    for header in message.get("headers", ())
                    if header[0].lower() not in _OUR_HEADERS
                ]
                message["headers"] = [*others, *_HEADERS]
            await send(message)

        try:
            await self._check(scope, receive)
            await self._app(scope, receive, send_with_headers)
        except Refused as refused:
            await self._answer(send_with_headers, scope, refused)
        except HTTPException as error:
            refused = Refused(error.status_code, error.detail)
            await self._answer(send_with_headers, scope, refused)
        except StoreError as error:  # it says what is wrong with the file, and what to do
            await self._answer(send_with_headers, scope, Refused(503, str(error)))
        except Exception:
            number = next(self._error_numbers)
            method, path = scope["method"], quote(scope["path"])
            log.exception("Error %d of the page, at %s %s", number, method, path)
            if not has_begun:
                text = f"Something went wrong. The log of `ferrule ui` has it as error {number}."
                await self._answer(send_with_headers, scope, Refused(500, text))

    async def _answer(self, send: Any, scope: Any, refused: Refused) -> None:
        body = self._refusal_page(refused.status, refused.text)
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            *refused.headers,
        ]
        if scope["method"] == "HEAD":
            body = b""
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _check(self, scope: Any, receive: Any) -> None:
        headers = _Headers(scope["headers"])
        port = (scope.get("server") or ("", 0))[1]
        host = headers.one(b"host").casefold()
        if not self._is_our_host(host, port):
            raise Refused(421, "This server does not answer for the host that the request names.")
        is_reading = scope["method"] in _READING
        if not is_reading:
            _check_post(scope["method"], headers, host)
        cookie = f"ferrule-{port}"
        self._enter(scope, cookie)
        if scope["path"].startswith("/static/"):
            return
        key = headers.cookie(cookie)
        session = self._sessions.find(key)
        if session is None:
            raise Refused(
                401, "Open the page by a new link of `ferrule ui`. Each opens one browser."
            )
        scope["ferrule.session"] = session
        if not is_reading:
            is_log_out = scope["path"] == _LOG_OUT
            if self._is_read_only and not is_log_out:
                raise Refused(403, "This page only reads: it was opened with `--read-only`.")
            scope["ferrule.form"] = await _read_form(headers, receive, session)
            if is_log_out:
                self._sessions.leave(key)
                ended = f"{cookie}=; HttpOnly; SameSite=Lax; Path=/; Max-Age=0"
                text = "This browser is logged out. A new link of `ferrule ui` opens the page."
                raise Refused(200, text, (b"set-cookie", ended.encode()))

    def _is_our_host(self, host: str, port: int) -> bool:
        if host in self._allowed_hosts:
            return True
        for name in (*HOSTS, *self._allowed_hosts):
            # Browsers leave out port 80.
            if host == f"{name}:{port}" or (port == 80 and host == name):
                return True
        return False

    def _enter(self, scope: Any, cookie: str) -> None:
        """Turn a token in the address into a cookie, and redirect to the address without it."""
        query = scope["query_string"].decode("latin-1")
        if "token" not in parse_qs(query, keep_blank_values=True):
            return
        if scope["method"] != "GET":
            raise Refused(403, "A link is opened, not posted.")
        pairs = parse_qsl(query, keep_blank_values=True)
        key = self._sessions.enter(next(value for name, value in pairs if name == "token"))
        if key is None:
            if self._sessions.is_guessed:
                text = "Too many wrong links. Wait for a minute."
                raise Refused(429, text, (b"retry-after", b"60"))
            text = "This link is used up, or not valid. `ferrule ui` prints a new one."
            raise Refused(401, text)
        # One slash only: a browser takes `//name` for another host.
        location = quote("/" + scope["path"].lstrip("/\\"))
        rest = [(name, value) for name, value in pairs if name != "token"]
        if rest:
            location += "?" + urlencode(rest)
        # Not `Strict`: the page that `ferrule ui` opens is a file, which counts as another site,
        # and the cookie must come with the redirect. Forms are checked by origin and secret.
        set_cookie = f"{cookie}={key}; HttpOnly; SameSite=Lax; Path=/"
        raise Refused(
            303, "", (b"location", location.encode()), (b"set-cookie", set_cookie.encode())
        )


def _check_post(method: str, headers: _Headers, host: str) -> None:
    """Refuse a request that changes something, unless a page of ours sent it."""
    if method != "POST":
        allow = (b"allow", b"GET, HEAD, OPTIONS, POST")
        raise Refused(405, "This address takes GET and POST.", allow)
    if headers.one(b"origin").casefold() not in {f"http://{host}", f"https://{host}"}:
        raise Refused(403, "This form was sent from another page.")
    if headers.one(b"sec-fetch-site", "same-origin") != "same-origin":
        raise Refused(403, "This form was sent from another site.")


async def _read_form(headers: _Headers, receive: Any, session: BrowserSession) -> dict[str, str]:
    kind = headers.one(b"content-type").partition(";")[0].strip().casefold()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "This address takes a form.")
    length = headers.one(b"content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length) > MOST_BODY_BYTES:
        raise Refused(413, "The form is larger than 1 MiB.")
    try:
        async with asyncio.timeout(PATIENCE_S):
            body = await _read_body(receive)
    except TimeoutError:
        raise Refused(408, "The form did not arrive in time.", (b"connection", b"close")) from None
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


async def _read_body(receive: Any) -> bytearray:
    body = bytearray()
    has_more = True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "The form did not arrive.")
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
        # The header with the length may have lied.
        if len(body) > MOST_BODY_BYTES:
            raise Refused(413, "The form is larger than 1 MiB.")
    return body


class _Headers:
    """The headers of a request; one that comes twice counts as an empty one."""

    def __init__(self, pairs: Any) -> None:
        self._pairs = pairs

    def one(self, name: bytes, default: str = "") -> str:
        values = [value for key, value in self._pairs if key.lower() == name]
        match values:
            case []:
                return default
            case [value]:
                return value.decode("latin-1")
            case _:
                return ""

    def cookie(self, name: str) -> str:
        for pair in self.one(b"cookie").split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                return value
        return ""


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
