"""What a log-in refuses, and what it shows of another server's answer.

The log-ins themselves are in `tests/integration`.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

from ferrule.mcp_bridge.login import authorization
from ferrule.mcp_bridge.login.authorization import (
    Authorization,
    LoginError,
    LoginTarget,
    Person,
    error_of,
)
from ferrule.mcp_bridge.login.credentials import Credentials
from ferrule.mcp_bridge.login.oauth import OAuth

PLAIN, LOCAL, SAFE = (
    "http://example.org/login?state=x",
    "http://localhost:1/login?state=x",
    "https://example.org/login?state=x",
)


def shown(url: str, address: str, *, allow_http: bool = False) -> list[str]:
    """The addresses that a person is sent to for a log-in to a server."""
    found: list[str] = []

    async def show(address: str) -> None:
        found.append(address)

    async def answer() -> dict[str, str]:
        return {}

    person = Person(redirect_uri="http://localhost:1/callback", show=show, answer=answer)
    flow = Authorization(
        LoginTarget(url=url, oauth=OAuth(), allow_http=allow_http),
        Credentials(),
        person,
    )
    asyncio.run(flow._show(address))
    return found


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://example.com/mcp", PLAIN),
        ("https://example.com/mcp", LOCAL),
        ("http://127.0.0.1:1/mcp", PLAIN),
    ],
)
def test_a_log_in_over_plain_http_is_refused(url: str, address: str) -> None:
    with pytest.raises(LoginError, match="would go over plain http to "):
        shown(url, address)


def test_a_log_in_by_https_or_on_this_machine_is_shown() -> None:
    assert shown("https://example.com/mcp", SAFE) == [SAFE]
    assert shown("http://127.0.0.1:1/mcp", LOCAL) == [LOCAL]
    assert shown("http://example.com/mcp", PLAIN, allow_http=True) == [PLAIN]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"error": "invalid_grant", "access_token": "hunter2"}', "invalid_grant"),
        (b'{"error": "x", "error_description": "a\\u001b[1m\\n\\u202eb"}', "x: a [1m b"),
        (b'{"error": 1}', "HTTP 400"),
        (b"<html>hunter2", "HTTP 400"),
        (b"[1]", "HTTP 400"),
    ],
)
def test_only_the_fields_for_people_of_an_error_are_shown(content: bytes, text: str) -> None:
    assert error_of(httpx2.Response(400, content=content)) == text


ISSUER = {
    "issuer": "https://login.example.com/tenant",
    "authorization_endpoint": "https://login.example.com/tenant/authorize?version=2",
    "token_endpoint": "https://tokens.example.com/",
}


@pytest.mark.parametrize(
    ("metadata", "origin", "url"),
    [
        ({}, "", "https://evil.example/token"),
        (ISSUER, "https://evil.example:443", "https://tokens.example.com"),
        (ISSUER, "https://login.example.com:443", "https://evil.example/token"),
        (ISSUER, "https://login.example.com:443", "https://tokens.example.com/other"),
        (ISSUER, "https://login.example.com:443", "https://tokens.example.com.evil.example/"),
        (ISSUER, "https://login.example.com:443", "https://tokens.example.com@evil.example/"),
        (
            {**ISSUER, "issuer": "https://login.example.com/other"},
            "https://login.example.com:443",
            "https://tokens.example.com/",
        ),
    ],
)
def test_a_secret_goes_only_to_an_endpoint_that_the_pinned_issuer_names(
    metadata: dict[str, str], origin: str, url: str
) -> None:
    oauth = OAuth(client_id="mine", client_secret="hunter2", issuer=ISSUER["issuer"])
    flow = Authorization(LoginTarget(url="https://evil.example/mcp", oauth=oauth), Credentials())

    async def send(address: str) -> Any:
        def answer(request: httpx2.Request) -> httpx2.Response:
            sent.append(str(request.url))
            return httpx2.Response(200, json={})

        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            return await flow._send(client, httpx2.Request("POST", address))

    sent: list[str] = []
    if metadata:
        flow._read_metadata(metadata, origin, SimpleNamespace(client_info=None))
    with pytest.raises(LoginError, match="the log-in would go to"):
        asyncio.run(send(url))
    assert sent == []
    flow._read_metadata(ISSUER, "https://login.example.com:443", SimpleNamespace(client_info=None))
    for right in ("https://tokens.example.com", "https://login.example.com/tenant/authorize?x=1"):
        asyncio.run(send(right))
    assert len(sent) == 2


def fetched(pieces: Callable[[], AsyncIterator[bytes]], **headers: str) -> Any:
    """What a request of a log-in gets from a server that sends these pieces."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=headers, content=pieces())

    async def fetch() -> Any:
        flow = Authorization(
            LoginTarget(url="https://example.com/mcp", oauth=OAuth()), Credentials()
        )
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            return await flow._send(client, httpx2.Request("GET", "https://example.com/x"))

    return asyncio.run(fetch())


def test_an_answer_of_a_log_in_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait is short; the whole has a deadline."""
    monkeypatch.setattr(authorization, "_TIMEOUT_S", 0.05)

    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0)

    monkeypatch.setattr(authorization, "_LARGEST", 1 << 60)
    with pytest.raises(LoginError, match="no whole answer"):
        fetched(drip)


@pytest.mark.parametrize("is_compressed", [True, False])
def test_an_answer_of_a_log_in_that_expands_is_given_up_early(is_compressed: bool) -> None:
    blank = b" " * (1 << 20)
    compressor = zlib.compressobj(wbits=31)
    sent: list[int] = []

    async def bomb() -> AsyncIterator[bytes]:
        for number in range(1000):
            sent.append(number)
            piece = blank
            if is_compressed:
                piece = compressor.compress(blank) + compressor.flush(zlib.Z_SYNC_FLUSH)
            yield piece

    headers = {"content-encoding": "gzip"} if is_compressed else {}
    with pytest.raises(LoginError, match="more than 1 MiB"):
        fetched(bomb, **headers)
    assert len(sent) < 5


def test_an_answer_of_a_log_in_that_was_compressed_twice_is_not_read() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield gzip.compress(gzip.compress(b"{}"))

    with pytest.raises(LoginError, match=r"example\.com sent an answer that cannot be read"):
        fetched(pieces, **{"content-encoding": "gzip, gzip"})


def test_an_answer_within_the_bounds_arrives_whole() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield gzip.compress(b'{"issuer": "https://example.com"}')

    response = fetched(pieces, **{"content-encoding": "gzip"})
    assert response.json() == {"issuer": "https://example.com"}
