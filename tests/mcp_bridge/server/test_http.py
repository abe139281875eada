"""Who may reach a server over HTTP. The application is asked in this process, without a socket."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import Any

import httpx2
import pytest
from mcp_talk import ERAS

from ferrule.errors import ConfigurationError
from ferrule.mcp_bridge import MCPApp

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": ERAS[0],
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
    },
}


def whoami() -> str:
    from mcp.server.auth.middleware.auth_context import get_access_token

    token = get_access_token()
    return token.client_id if token is not None else "nobody"


def status(headers: dict[str, str], body: Any = None, **options: Any) -> int:
    """The HTTP status of one request, by default the first of a client."""

    async def ask() -> int:
        app = MCPApp([whoami]).asgi(**options)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as client,
        ):
            sent = {"Accept": "application/json, text/event-stream", **headers}
            response = await client.post(
                "http://localhost/mcp",
                json=INITIALIZE if body is None else body,
                headers=sent,
            )
            return response.status_code

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({"Host": "localhost"}, 200, id="localhost"),
        pytest.param({"Host": "127.0.0.1:8000"}, 200, id="an address with a port"),
        pytest.param({"Host": "[::1]:8000"}, 200, id="version 6"),
        pytest.param({"Host": "evil.example.com"}, 421, id="another name"),
        pytest.param(
            {"Host": "localhost.evil.example.com"},
            421,
            id="a name that begins like ours",
        ),
        pytest.param(
            {"Host": "localhost", "Origin": "http://localhost:3000"},
            200,
            id="a page from here",
        ),
        pytest.param(
            {"Host": "localhost", "Origin": "https://evil.example.com"},
            403,
            id="a page from elsewhere",
        ),
    ],
)
def test_only_names_and_pages_of_this_machine_may_reach_it(headers: dict, expected: int) -> None:
    assert status(headers) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({"Host": "mcp.example.org"}, 200, id="its name"),
        pytest.param({"Host": "mcp.example.org:8443"}, 200, id="its name and a port"),
        pytest.param({"Host": "other.example.org"}, 421, id="another name"),
        pytest.param(
            {"Host": "mcp.example.org", "Origin": "https://app.example.org"},
            200,
            id="its page",
        ),
        pytest.param(
            {"Host": "mcp.example.org", "Origin": "http://localhost"},
            403,
            id="a page from here",
        ),
    ],
)
def test_other_names_and_pages_are_told(headers: dict, expected: int) -> None:
    open_to = {
        "host": "0.0.0.0",
        "allowed_hosts": ["mcp.example.org"],
        "allowed_origins": ["https://app.example.org"],
    }
    assert status(headers, **open_to) == expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2"])
def test_an_address_that_others_can_reach_needs_a_name(host: str) -> None:
    with pytest.raises(ConfigurationError, match="allowed_hosts"):
        MCPApp([whoami]).asgi(host=host)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_an_idle_timeout_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="idle_timeout_s"):
        MCPApp([whoami]).asgi(idle_timeout_s=seconds)


def test_an_option_that_nobody_takes_is_refused_with_the_nearest() -> None:
    """The error was Python's, about a method of the SDK."""
    app = MCPApp([whoami])
    for asked in (
        lambda: app.asgi(idle_timeout=5.0),
        lambda: app.run("http", port=0, idle_timeout=5.0),
    ):
        with pytest.raises(
            ConfigurationError,
            match=r"`MCPApp.asgi` has no option `idle_timeout`. Did you mean `idle_timeout_s`\?",
        ):
            asked()
    app.asgi(json_response=True)  # the SDK's


def test_sessions_may_last_for_ever() -> None:
    assert status({}, idle_timeout_s=math.inf) == 200


async def verify(token: str) -> Any:
    return {"good": True, "named": "ann"}.get(token, False)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param({"Authorization": "Bearer good"}, 200, id="good"),
        pytest.param({"Authorization": "Bearer bad"}, 401, id="bad"),
        pytest.param({"Authorization": "Basic good"}, 401, id="another scheme"),
        pytest.param({}, 401, id="none"),
    ],
)
@pytest.mark.parametrize("check", [verify, lambda token: token == "good"], ids=["async", "sync"])
def test_without_a_good_token_nothing_is_answered(header: dict, expected: int, check: Any) -> None:
    """Token verifier hook."""
    assert status(header, verify_token=check) == expected


def test_the_name_that_goes_with_a_token_reaches_the_tool() -> None:
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "whoami",
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": ERAS[1],
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }

    async def ask() -> str:
        app = MCPApp([whoami]).asgi(verify_token=verify, json_response=True)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as client,
        ):
            sent = {
                "Accept": "application/json, text/event-stream",
                "Authorization": "Bearer named",
                "MCP-Protocol-Version": ERAS[1],
                "Mcp-Method": "tools/call",
                "Mcp-Name": "whoami",
            }
            answer = (await client.post("http://localhost/mcp", json=call, headers=sent)).json()
            return answer["result"]["content"][0]["text"]

    assert asyncio.run(ask()) == "ann"


def test_a_body_of_more_than_4_mib_is_refused() -> None:
    """The documented limit."""
    assert status({}, {**INITIALIZE, "padding": "x" * (4 * 1024 * 1024)}) == 413


def test_a_client_that_leaves_within_its_body_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The SDK logged a traceback."""
    head = {
        "host": "localhost",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "query_string": b"",
        "scheme": "http",
        "server": ("localhost", 80),
    }
    events = [
        {"type": "http.request", "body": b'{"json', "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return events.pop(0)

    async def send(_: Any) -> None:
        pass

    async def ask() -> None:
        app = MCPApp([whoami]).asgi()
        async with app.router.lifespan_context(app):
            await app(
                {
                    **scope,
                    "headers": [(name.encode(), value.encode()) for name, value in head.items()],
                },
                receive,
                send,
            )

    asyncio.run(ask())
    assert events == []
    assert [each for each in caplog.records if each.exc_info] == []


def test_a_port_that_is_taken_is_told() -> None:
    """A web server that cannot start must not end the process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match="Cannot listen"):
            MCPApp([whoami]).run("http", port=taken.getsockname()[1])


def test_a_path_of_ones_own() -> None:
    assert status({}, path="/elsewhere") == 404
