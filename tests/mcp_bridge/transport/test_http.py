"""The client under the SDK's transports: it notes, and does not raise. (M20, M21)"""

from __future__ import annotations

import asyncio
import gzip
import json
import os

import httpx2
import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

from ferrule.mcp_bridge.transport.http import GuardedClient, _new_client

CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {}}


def sent(answer, body: object = CALL, **options) -> tuple[GuardedClient, httpx2.Response]:
    async def go():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            guarded = GuardedClient(client, **options)
            return guarded, await guarded.send(
                guarded.build_request("POST", "http://localhost/mcp", json=body),
                stream=True,
            )

    return asyncio.run(go())


def test_a_server_on_this_machine_is_not_asked_by_way_of_a_proxy_of_the_system_s_settings(
    monkeypatch,
) -> None:
    """As on macOS and Windows; with variables, `NO_PROXY` decides."""
    for name in [each for each in os.environ if each.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for place in ("urllib.request", "httpx2._utils"):
        monkeypatch.setattr(f"{place}.getproxies", lambda: {"http": "http://127.0.0.1:9"})

    def is_direct(host: str) -> bool:
        client = _new_client({}, None)
        return client._transport_for_url(httpx2.URL(f"http://{host}:8000/mcp")) is client._transport

    assert [is_direct(host) for host in ("localhost", "127.0.0.1", "[::1]", "tools.example")] == [
        True,
        True,
        True,
        False,
    ]
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert not is_direct("localhost")


def raising(error: Exception):
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise error

    return answer


def test_a_good_answer_leaves_no_note() -> None:
    guarded, response = sent(
        lambda request: httpx2.Response(200, json={"jsonrpc": "2.0", "id": 7, "result": {}}),
    )
    assert (response.status_code, guarded.notes) == (200, {})


@pytest.mark.parametrize(
    ("error", "was_sent"),
    [
        (httpx2.ConnectError("refused"), False),
        (httpx2.ConnectTimeout("slow"), False),
        (httpx2.ReadError("gone"), True),
        (OSError("odd"), True),
    ],
    ids=["refused", "connect_timeout", "read", "os"],
)
def test_a_broken_connection_is_noted_with_whether_it_was_sent(
    error: Exception,
    was_sent: bool,
) -> None:
    guarded, response = sent(raising(error))
    assert response.status_code == 503
    assert (guarded.notes[7].was_sent, guarded.notes[7].status, guarded.notes[7].cause) == (
        was_sent,
        None,
        error,
    )


def test_a_status_is_noted_with_when_to_come_again() -> None:
    guarded, response = sent(
        lambda request: httpx2.Response(429, text="slow down", headers={"retry-after": "3"}),
    )
    assert response.status_code == 429
    assert (guarded.notes[7].status, guarded.notes[7].retry_after_s, guarded.notes[7].text) == (
        429,
        3.0,
        "slow down",
    )


def test_what_is_no_json_rpc_is_raised_as_it_is() -> None:
    """An OAuth flow's own requests are the flow's business."""
    with pytest.raises(httpx2.ConnectError):
        sent(raising(httpx2.ConnectError("refused")), body={"client_name": "me"})


def test_where_answers_come_apart_a_failed_post_is_told_and_says_202() -> None:
    failed: list = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(500, text="no")

    async def go() -> httpx2.Response:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            guarded = GuardedClient(client, answers_apart=True)
            guarded.failed = failed.append
            return await guarded.send(
                guarded.build_request("POST", "http://localhost/messages", json=CALL),
                stream=True,
            )

    assert asyncio.run(go()).status_code == 202
    assert failed == [7]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3", 3.0),
        ("-1", None),
        ("inf", None),
        ("", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
    ids=["3", "negative", "endless", "none", "word", "date"],
)
def test_retry_after_is_read_in_both_forms(text: str, seconds: float | None) -> None:
    guarded, _ = sent(
        lambda request: httpx2.Response(429, text="slow down", headers={"retry-after": text}),
    )
    assert guarded.notes[7].retry_after_s == seconds


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, content=b"", headers={"content-type": "application/json"}),
        httpx2.Response(200, json={"jsonrpc": "2.0", "id": 7, "result": [1]}),
        httpx2.Response(200, json={"jsonrpc": "2.0", "id": 8, "result": {}}),
        httpx2.Response(202, content=b"", headers={"content-type": "application/json"}),
        httpx2.Response(204, headers={"content-type": "application/json"}),
    ],
    ids=["empty", "list", "another_id", "accepted", "no_content"],
)
def test_what_is_no_answer_is_noted_as_such(answer: httpx2.Response) -> None:
    """The SDK makes errors of these itself, with codes that say that nothing ran. (M21, M24)"""
    guarded, _ = sent(lambda request: answer)
    assert (guarded.notes[7].was_answered, guarded.notes[7].has_error) == (True, False)


def test_an_error_of_the_server_is_told_from_one_that_the_sdk_makes() -> None:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "no"}}
    guarded, _ = sent(lambda request: httpx2.Response(400, json=error))
    assert guarded.notes[7].has_error
    guarded, response = sent(lambda request: httpx2.Response(200, json=error))
    assert (guarded.notes, response.json()["id"]) == ({}, 7)
    guarded, _ = sent(lambda request: httpx2.Response(400, json={"detail": "odd"}))
    assert (guarded.notes[7].has_error, guarded.notes[7].text) == (False, '{"detail":"odd"}')


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_without_measure_is_cut_off_also_if_it_is_small_on_the_wire(
    monkeypatch,
    status: int,
) -> None:
    """A body of JSON had no limit, and 300 KB of gzip became 300 MB."""
    monkeypatch.setattr("ferrule.mcp_bridge.transport.http.LARGEST", 100_000)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"content": "A" * 200_000}}).encode()
    guarded, response = sent(
        lambda request: httpx2.Response(status, headers=headers, content=gzip.compress(body)),
    )
    assert (response.status_code, guarded.notes[7].status, guarded.notes[7].was_sent) == (
        503,
        None,
        True,
    )
    assert "more than 100000 bytes" in guarded.notes[7].text
    guarded, response = sent(
        lambda request: httpx2.Response(
            status,
            headers=headers,
            content=gzip.compress(body[:50] + body[-50_000:]),
        ),
    )
    assert (response.status_code, "content-encoding" in response.headers) == (status, False)


EVENTS = "text/event-stream"


@pytest.mark.parametrize(
    ("method", "status", "content_type"),
    [
        ("POST", 307, "text/plain"),
        ("POST", 200, "application/json"),
        ("POST", 500, EVENTS),
        ("GET", 200, "application/json"),
        ("GET", 405, "text/html"),
        ("DELETE", 200, "application/json"),
        ("DELETE", 308, EVENTS),
    ],
)
@pytest.mark.parametrize("fault", ["large", "compressed twice"])
def test_no_answer_of_a_server_reaches_the_sdk_without_bounds(
    monkeypatch, fault: str, method: str, status: int, content_type: str
) -> None:
    """The SDK reads redirects, and answers to GET and DELETE, whole and without a limit."""
    monkeypatch.setattr("ferrule.mcp_bridge.transport.http.LARGEST", 100_000)
    body, encoding = gzip.compress(b" " * 200_000), "gzip"
    if fault == "compressed twice":
        body, encoding = gzip.compress(gzip.compress(b"{}")), "gzip, gzip"
    headers = {"content-type": content_type, "content-encoding": encoding, "location": "/mcp2"}

    async def go() -> tuple[GuardedClient, httpx2.Response]:
        def answer(request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(status, headers=headers, content=pieces())

        async def pieces():
            yield body

        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            guarded = GuardedClient(client)
            content = CALL if method == "POST" else None
            request = guarded.build_request(method, "http://localhost/mcp", json=content)
            return guarded, await guarded.send(request, stream=True)

    why = "more than 100000 bytes" if fault == "large" else "compressed more than once"
    if method == "POST":
        guarded, response = asyncio.run(go())
        assert response.status_code == 503
        assert why in guarded.notes[7].text
        return
    with pytest.raises(httpx2.RequestError, match=why):
        asyncio.run(go())


def test_an_answer_that_nothing_waits_for_has_a_deadline(monkeypatch) -> None:
    """A server that drips its answer to a notification held back all that came after it."""
    monkeypatch.setattr("ferrule.mcp_bridge.transport.http._SIDE_TIMEOUT_S", 0.05)

    async def go() -> httpx2.Response:
        def answer(request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, content=drip())

        async def drip():
            while True:
                yield b" "
                await asyncio.sleep(0)

        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            guarded = GuardedClient(client)
            message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            request = guarded.build_request("POST", "http://localhost/mcp", json=message)
            return await guarded.send(request, stream=True)

    assert asyncio.run(go()).status_code == 503


def test_events_that_were_compressed_twice_are_not_read() -> None:
    headers = {"content-type": EVENTS, "content-encoding": "gzip, gzip"}
    body = gzip.compress(gzip.compress(b"data: {}\n\n"))

    async def go() -> GuardedClient:
        def answer(request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, headers=headers, content=body)

        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            guarded = GuardedClient(client)
            request = guarded.build_request("POST", "http://localhost/mcp", json=CALL)
            response = await guarded.send(request, stream=True)
            with pytest.raises(httpx2.DecodingError, match="compressed more than once"):
                await response.aread()
            return guarded

    assert "compressed more than once" in asyncio.run(go()).notes[7].text


def test_a_redirect_that_is_followed_leaves_no_note() -> None:
    """The body of the second request is a stream that nobody has read."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/mcp":
            return httpx2.Response(307, headers={"location": "/mcp2"})
        return httpx2.Response(200, json={"jsonrpc": "2.0", "id": 7, "result": {}})

    async def go() -> tuple[GuardedClient, httpx2.Response]:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            guarded = GuardedClient(client)
            first = await guarded.send(
                guarded.build_request("POST", "http://localhost/mcp", json=CALL),
                stream=True,
            )
            assert guarded.notes[7].status == 307
            return guarded, await guarded.send(first.next_request, stream=True)

    guarded, response = asyncio.run(go())
    assert (response.status_code, guarded.notes) == (200, {})
