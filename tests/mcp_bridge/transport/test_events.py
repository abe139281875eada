"""Server-sent events are heard before the SDK reads them. (M20, M21)"""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest

from ferrule.mcp_bridge.transport.http import GuardedClient

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {}}
GOOD = {"jsonrpc": "2.0", "id": 7, "result": {}}
KIND = {"content-type": "text/event-stream"}


def streamed(
    text: str,
    method: str = "POST",
    *,
    waits_for: int | None = None,
    **options,
) -> tuple[GuardedClient, list]:
    """The guard, and the events that the SDK reads."""

    async def go():
        answer = httpx2.MockTransport(
            lambda request: httpx2.Response(200, content=text.encode(), headers=KIND),
        )
        async with httpx2.AsyncClient(transport=answer) as client:
            guarded = GuardedClient(client, **options)
            guarded.waits_for = lambda number: number == waits_for
            body = {"json": CALL} if method == "POST" else {}
            response = await guarded.send(
                guarded.build_request(method, "http://localhost/mcp", **body),
                stream=True,
            )
            return guarded, [each async for each in httpx2.EventSource(response)]

    return asyncio.run(go())


def test_good_events_pass_as_they_are_and_leave_no_note() -> None:
    data = json.dumps(GOOD)
    guarded, events = streamed(f": ping\n\nid: 3\nretry: 5\n\ndata: {data}\n\n")
    assert guarded.notes == {}
    assert [(each.event, each.id, each.retry) for each in events] == [
        ("message", "3", 5),
        ("message", "3", None),
    ]
    assert [each.data and json.loads(each.data) for each in events] == ["", GOOD]


@pytest.mark.parametrize(
    ("text", "was_answered"),
    [('data: {"jso\n\n', True), (": ping\n\n", False)],
    ids=["an_event_that_is_no_message", "an_end_without_one"],
)
def test_a_stream_without_an_answer_is_noted(text: str, was_answered: bool) -> None:
    guarded, _ = streamed(text)
    assert (guarded.notes[7].was_answered, guarded.notes[7].status) == (was_answered, None)


def test_a_broken_answer_on_a_stream_of_its_own_is_an_error_of_ours_where_it_is_waited_for() -> (
    None
):
    broken = 'data: {"jsonrpc":"2.0","id":7,"result":null}\n\n'
    guarded, events = streamed(broken, "GET", waits_for=7)
    assert guarded.notes[7].was_answered
    assert json.loads(events[0].data)["error"]["code"] == -32700
    assert streamed(broken, "GET")[0].notes == {}


def test_an_endpoint_of_another_origin_is_refused_at_once() -> None:
    text = "event: endpoint\ndata: {}\n\n"
    assert streamed(text.format("/messages"), "GET", answers_apart=True)[1][0].data == "/messages"
    with pytest.raises(httpx2.SSEError, match=r"another origin, http://evil\.example"):
        streamed(text.format("http://evil.example/messages"), "GET", answers_apart=True)
