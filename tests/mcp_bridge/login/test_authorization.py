"""What a log-in refuses, and what it shows of another server's answer. The log-ins themselves are in `tests/integration`."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

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
