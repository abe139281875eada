from __future__ import annotations

import asyncio
import gc
import gzip
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from types import SimpleNamespace

import httpx2
import pytest
from raw_server import OK, Pieces, begin, end, hang_up, raw_server, reply, say_nothing

from ferrule.errors import (
    AuthenticationError,
    BadRequestError,
    ConfigurationError,
    ContextOverflowError,
    LMError,
    MissingContentError,
    RateLimitError,
    RefusalError,
    UnavailableError,
)
from ferrule.models.hosted import LM
from ferrule.net import connections, reading, retries
from ferrule.net import transport as http
from ferrule.net.connections import Clients, Timeouts
from ferrule.net.transport import HTTPTransport
from ferrule.values.conversation.exchange import Delta, Request, Response
from ferrule.values.conversation.message import Message, Messages

ASKED = Request(Messages([Message("user", "hi")]))
WAIT_S = retries.wait_s  # as it is, while these tests do not wait
KEY = "sk-very-secret-0123456789"


pytestmark = pytest.mark.usefixtures("retries_do_not_wait")


def lm_at(server, **settings) -> LM:
    return LM(server.base_url, **{"model": "m", "api_key": KEY, **settings})


async def collected(stream) -> list:
    return [item async for item in stream]


WAYS = {
    "complete": lambda lm, asked=ASKED: lm.complete(asked),
    "acomplete": lambda lm, asked=ASKED: asyncio.run(lm.acomplete(asked)),
    "stream": lambda lm, asked=ASKED: list(lm.stream(asked))[-1],
    "astream": lambda lm, asked=ASKED: asyncio.run(collected(lm.astream(asked)))[-1],
}
ways = pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS.keys())


@ways
def test_an_answer_is_read(ask):
    with raw_server(reply()) as server:
        assert ask(lm_at(server)).text == "hello"
        headers, body = server.requests[0]
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["content-type"] == "application/json"
    assert b'"messages":[{"role":"user","content":"hi"}]}' in body


@ways
@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "anthropic", "gemini"])
@pytest.mark.parametrize(
    "name",
    ["api_key", "base_url", "timeout_s", "max_retries", "num_retries", "timeout"],
)
def test_a_request_takes_settings_and_not_what_a_model_is_made_with(ask, wire, name):
    """Else the provider would get it in the body, a key too; nothing is sent, and no other key is
    asked for first.
    """
    asked = Request(ASKED.messages, settings={"temperature": 1, name: "sk-2"})
    with raw_server(reply()) as server:
        with pytest.raises(ConfigurationError, match=f"^`{name}` is not a setting of a ") as caught:
            ask(lm_at(server, wire=wire), asked)
        assert server.requests == []
    assert "sk-2" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=f"^`{name}` is not a setting of a "):
        ask(LM("openai/x", wire=wire), asked)


FAILURES = {
    "500": (
        reply('{"error": {"message": "oops"}}', "500 Internal Server Error"),
        UnavailableError,
        500,
        "oops",
    ),
    "502_html": (
        reply("<html><title>502 Bad\nGateway</title></html>", "502 Bad Gateway"),
        UnavailableError,
        502,
        "502 Bad Gateway",
    ),
    "529": (
        reply('{"error": {"type": "overloaded_error", "message": "busy"}}', "529 x"),
        UnavailableError,
        529,
        "busy",
    ),
    "429": (
        reply('{"error": {"message": "slow down"}}', "429 Too Many Requests"),
        RateLimitError,
        429,
        "slow down",
    ),
    "quota": (
        reply('{"error": {"message": "pay", "code": "insufficient_quota"}}', "429 x"),
        RateLimitError,
        429,
        "pay",
    ),
    "401": (
        reply('{"error": {"message": "bad key"}}', "401 Unauthorized"),
        AuthenticationError,
        401,
        "bad key",
    ),
    "403": (
        reply('{"detail": "not yours"}', "403 Forbidden"),
        AuthenticationError,
        403,
        "not yours",
    ),
    "403_moderated": (
        reply('{"error": {"message": "flagged by moderation"}}', "403 x"),
        RefusalError,
        403,
        "flagged",
    ),
    "filter": (
        reply('{"error": {"message": "no", "code": "content_filter"}}', "400 x"),
        RefusalError,
        400,
        "no",
    ),
    "overflow_code": (
        reply('{"error": {"message": "x", "code": "context_length_exceeded"}}', "400 x"),
        ContextOverflowError,
        400,
        "x",
    ),
    "overflow_words": (
        reply(
            '{"object": "error", "message": "This model\'s maximum context length is 8 tokens"}',
            "400 x",
        ),
        ContextOverflowError,
        400,
        "maximum context length",
    ),
    "404": (
        reply('{"error": "model not found"}', "404 Not Found"),
        BadRequestError,
        404,
        "model not found",
    ),
    "422": (reply('{"detail": [{"msg": "extra"}]}', "422 x"), BadRequestError, 422, "extra"),
    "302": (reply("", "302 Found", location="/elsewhere"), BadRequestError, 302, "HTTP 302"),
    "html": (
        reply("<!doctype html><p>Welcome", content_type="text/html"),
        BadRequestError,
        None,
        "HTML",
    ),
    "half": (reply(OK[:40]), BadRequestError, None, "not JSON"),
    "empty": (reply(""), BadRequestError, None, "empty"),
    "list": (reply("[]"), BadRequestError, None, "JSON object"),
    "no_choices": (reply('{"choices": []}'), MissingContentError, None, "no choices"),
    "no_message": (
        reply('{"choices": [{"message": null}]}'),
        MissingContentError,
        None,
        "without a message",
    ),
    "error_in_200": (
        reply('{"error": {"code": 429, "message": "later"}}'),
        RateLimitError,
        429,
        "later",
    ),
    "bad_gzip": (reply(b"junk", content_encoding="gzip"), BadRequestError, None, "exchange failed"),
}


@ways
@pytest.mark.parametrize(("act", "kind", "status", "words"), FAILURES.values(), ids=FAILURES.keys())
def test_what_went_wrong_is_told_as_an_error_of_the_house(ask, act, kind, status, words):
    with raw_server(act) as server, pytest.raises(kind) as caught:
        ask(lm_at(server, max_retries=0))
    error = caught.value
    assert error.status == status
    assert words in str(error)
    assert error.provider == server.base_url.split("/")[2]


@ways
def test_a_byte_order_mark_before_an_answer_is_passed_over(ask):
    """RFC 8259, section 8.1: a parser may ignore it."""
    with raw_server(reply(b"\xef\xbb\xbf" + OK)) as server:
        assert ask(lm_at(server)).text == "hello"


STREAMS = {
    "openai_chat": [
        {"choices": [{"delta": {"content": "hello"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    ],
    "openai_responses": [
        {"type": "response.output_text.delta", "output_index": 0, "delta": "hello"},
        {"type": "response.completed", "response": {"status": "completed"}},
    ],
    "anthropic": [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": "hello"},
        },
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ],
    "gemini": [
        {"candidates": [{"content": {"parts": [{"text": "hello"}]}, "finishReason": "STOP"}]},
    ],
}


@ways
@pytest.mark.parametrize("wire", STREAMS)
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_a_stream_that_was_not_asked_for_or_is_called_json_is_read(ask, wire, kind):
    """Some gateways do nothing but stream (simonw/llm-gemini, issue 97)."""
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in STREAMS[wire])
    with raw_server(reply(body, content_type=kind)) as server:
        found = ask(lm_at(server, wire=wire))
    assert (found.text, found.finish_reason) == ("hello", "stop")


@ways
@pytest.mark.parametrize(
    "before",
    ["id: 1\n", "id:1\nevent: result\n", "retry: 10\n\n", "\ufeff", "\ufeff: hello\n\n"],
)
def test_a_stream_that_was_not_asked_for_may_begin_with_any_field(ask, before):
    """DashScope begins each event with its id."""
    body = before.encode() + b"".join(
        b"data: " + json.dumps(event).encode() + b"\n\n" for event in STREAMS["openai_chat"]
    )
    with raw_server(reply(body)) as server:
        assert ask(lm_at(server)).text == "hello"


def test_a_byte_order_mark_before_an_error_is_passed_over():
    """RFC 8259, section 8.1; the message and its code stand in the JSON behind it."""
    body = b'\xef\xbb\xbf{"error": {"message": "no", "code": "content_filter"}}'
    with (
        raw_server(reply(body, "400 x")) as server,
        pytest.raises(RefusalError, match=r": no \(status 400\)"),
    ):
        lm_at(server).complete(ASKED)


def test_html_in_place_of_json_names_the_likely_cause():
    with (
        raw_server(reply("<html>Welcome", content_type="text/html")) as server,
        pytest.raises(BadRequestError, match="base URL"),
    ):
        lm_at(server).complete(ASKED)


@ways
def test_the_request_id_is_told(ask):
    with (
        raw_server(reply("{}", "400 Bad Request", x_request_id="req_7")) as server,
        pytest.raises(BadRequestError, match="request req_7") as caught,
    ):
        ask(lm_at(server))
    assert caught.value.request_id == "req_7"


def test_an_answer_that_is_none_carries_the_request_id_of_its_headers():
    with (
        raw_server(reply("{}", x_request_id="req_8")) as server,
        pytest.raises(MissingContentError) as caught,
    ):
        lm_at(server).complete(ASKED)
    assert caught.value.request_id == "req_8"


@ways
def test_an_answer_that_is_none_is_kept_as_the_raw_value_of_its_error(ask):
    """L4, and the reference of errors."""
    with (
        raw_server(reply('{"choices": [], "id": "a"}')) as server,
        pytest.raises(MissingContentError) as caught,
    ):
        ask(lm_at(server))
    assert caught.value.raw == {"choices": [], "id": "a"}


@ways
@pytest.mark.parametrize(
    "act",
    [reply("{}", "500 x"), reply("{}", "429 x", retry_after="0"), hang_up],
    ids=["500", "429", "hang_up"],
)
def test_what_may_pass_is_tried_again(ask, act):
    with raw_server(act, act, reply()) as server:
        assert ask(lm_at(server, max_retries=2)).text == "hello"
        assert len(server.requests) == 3


@ways
def test_no_more_than_max_retries(ask):
    with raw_server(reply("{}", "503 x")) as server:
        with pytest.raises(UnavailableError):
            ask(lm_at(server, max_retries=3))
        assert len(server.requests) == 4


@ways
@pytest.mark.parametrize("status", ["408", "409"])
def test_a_conflict_and_a_request_that_came_too_slowly_are_tried_again(ask, status):
    with raw_server(reply("{}", f"{status} x"), reply()) as server:
        assert ask(lm_at(server)).text == "hello"
        assert len(server.requests) == 2


ERROR = {"code": 429, "message": "slow down"}
INSIDE = {
    "openai_chat": {
        "an error": {"error": ERROR},
        "a choice": {"choices": [{"error": ERROR, "finish_reason": "error"}]},
        "a code as text": {"error": {"code": "429", "message": "slow down"}},
        "a word": {"error": {"type": "rate_limit_error", "message": "slow down"}},
        "no field": {"status": 429, "message": "slow down"},
        "an object": {"object": "error", "code": 429, "message": "slow down"},
        "a status code": {"error": {"status_code": 429, "message": "slow down"}},
    },
    "openai_responses": {
        "an error": {"error": ERROR},
        "failed": {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "no"}},
    },
    "anthropic": {
        "an error": {"error": ERROR},
        "a type": {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}},
    },
    "gemini": {
        "an error": {"error": ERROR},
        "a word": {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "slow down"}},
    },
}
HELLO = {
    "openai_chat": json.loads(OK),
    "openai_responses": {
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "hello"}]}],
        "status": "completed",
    },
    "anthropic": {"content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"},
    "gemini": {"candidates": [{"content": {"parts": [{"text": "hello"}]}, "finishReason": "STOP"}]},
}
for forms in INSIDE.values():
    forms["a list of one"] = [forms["an error"]]  # as Google sends it
inside = pytest.mark.parametrize(
    ("wire", "form"), [(wire, form) for wire, forms in INSIDE.items() for form in forms]
)


@ways
@inside
@pytest.mark.parametrize("sends", ["json", "event"])
def test_an_error_inside_a_200_is_tried_again_as_its_status_would_be(ask, wire, form, sends):
    content = json.dumps(INSIDE[wire][form])
    act = reply(content)
    if sends == "event":
        act = reply(f"data: {content}\n\n", content_type="text/event-stream")
    with raw_server(act, reply(json.dumps(HELLO[wire]))) as server:
        assert ask(lm_at(server, wire=wire)).text == "hello"
        assert len(server.requests) == 2


@ways
@inside
def test_an_error_inside_a_200_that_stays_is_that_of_its_status(ask, wire, form):
    with raw_server(reply(json.dumps(INSIDE[wire][form]))) as server:
        with pytest.raises(RateLimitError, match=r"Tried 2 times.*max_retries"):
            ask(lm_at(server, wire=wire, max_retries=1))
        assert len(server.requests) == 2


PERMANENT = {
    "a bad request": ({"code": 400, "message": "no"}, BadRequestError),
    "a key": ({"code": 401, "message": "no"}, AuthenticationError),
    "a quota": ({"code": "insufficient_quota", "type": "rate_limit"}, RateLimitError),
    "a refusal": ({"code": "content_filter", "message": "no"}, RefusalError),
}


@ways
@pytest.mark.parametrize("name", PERMANENT)
def test_an_error_inside_a_200_that_stays_is_not_tried_again(ask, name):
    error, kind = PERMANENT[name]
    with raw_server(reply(json.dumps({"error": error}))) as server:
        with pytest.raises(kind):
            ask(lm_at(server, max_retries=3))
        assert len(server.requests) == 1


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_an_error_after_the_answer_has_begun_is_raised(way):
    """The pieces of the answer cannot be taken back."""
    piece = b'data: {"choices": [{"delta": {"content": "he"}}]}\n\n'
    error = b'data: {"error": {"code": 429, "message": "slow down"}}\n\n'
    with raw_server(begin(piece + error, end)) as server:
        with pytest.raises(RateLimitError):
            WAYS[way](lm_at(server))
        assert len(server.requests) == 1


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_the_next_attempt_at_a_stream_says_nothing_of_the_first(way):
    role = b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n'
    error = b'data: {"error": {"code": 503, "message": "busy"}}\n\n'
    text = b'data: {"choices": [{"delta": {"content": "hello"}, "finish_reason": "stop"}]}\n\n'
    with raw_server(begin(role + error, end), begin(role + text, end)) as server:
        lm = lm_at(server)
        if way == "stream":
            items = list(lm.stream(ASKED))
        else:
            items = asyncio.run(collected(lm.astream(ASKED)))
        assert len(server.requests) == 2
    assert items[0] == Delta("hello")
    assert items[-1].text == "hello"
    assert len(items) == 2


@ways
@pytest.mark.parametrize(
    ("wait", "attempts"), [("0", 2), ("3600", 1)], ids=["at once", "in an hour"]
)
def test_an_error_inside_a_200_waits_as_long_as_the_server_asks(ask, wait, attempts):
    error = reply(json.dumps({"error": ERROR}), retry_after=wait)
    with raw_server(error) as server:
        with pytest.raises(RateLimitError) as caught:
            ask(lm_at(server, max_retries=1))
        assert len(server.requests) == attempts
    assert caught.value.retry_after_s == float(wait)


@ways
@pytest.mark.parametrize("status", ["400", "401", "404", "422"])
def test_what_is_the_askers_fault_is_not_tried_again(ask, status):
    with raw_server(reply("{}", f"{status} x")) as server:
        with pytest.raises(LMError):
            ask(lm_at(server, max_retries=3))
        assert len(server.requests) == 1


def test_a_spent_quota_is_not_tried_again():
    with raw_server(
        reply('{"error": {"message": "pay", "code": "insufficient_quota"}}', "429 x"),
    ) as server:
        with pytest.raises(RateLimitError):
            lm_at(server).complete(ASKED)
        assert len(server.requests) == 1


@ways
def test_who_asks_for_too_much_patience_is_not_waited_for(ask):
    with raw_server(reply("{}", "429 x", retry_after="3600")) as server:
        with pytest.raises(RateLimitError) as caught:
            ask(lm_at(server))
        assert len(server.requests) == 1
    assert caught.value.retry_after_s == 3600


def test_retry_after_is_honoured_with_a_little_jitter():
    error = RateLimitError("x", retry_after_s=20)
    waits = {WAIT_S(error, 1) for _ in range(50)}
    assert len(waits) > 1
    assert all(20 <= wait <= 22 for wait in waits)


def test_a_wait_doubles_has_a_random_part_and_ends():
    error = UnavailableError("x")
    for number, least in ((1, 0.5), (2, 1), (3, 2), (4, 4)):
        waits = {WAIT_S(error, number) for _ in range(50)}
        assert len(waits) > 1
        assert all(least <= wait <= least + 0.5 for wait in waits)
    assert WAIT_S(error, 10) == WAIT_S(error, 100_000) == 20


def test_a_server_that_is_down_is_unavailable():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lm = LM(f"http://127.0.0.1:{port}/v1", model="m", max_retries=1)
    for ask in WAYS.values():
        with pytest.raises(UnavailableError, match="connection failed") as caught:
            ask(lm)
        assert caught.value.__cause__ is not None


@ways
def test_a_server_that_is_down_is_named_with_what_to_do(ask):
    """The address without what may be secret in it, the model, and how often it was tried."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UnavailableError) as caught:
        ask(LM(f"http://127.0.0.1:{port}/v1?key={KEY}", model="m", api_key=KEY, max_retries=1))
    said = str(caught.value)
    assert f"Asked `m` at http://127.0.0.1:{port}/v1/chat/completions." in said
    assert "Is the server running" in said
    assert "`base_url=`" in said
    assert said.endswith("Tried 2 times (`max_retries` is 1).")
    assert KEY not in said


def test_a_connection_that_comes_too_late_names_its_limit():
    transport = HTTPTransport(
        "http://x/v1",
        provider="x",
        timeouts=Timeouts(connect_s=3),
        max_retries=0,
    )
    with pytest.raises(retries.RetryableError) as caught, transport._translated(None):
        raise httpx2.ConnectTimeout("")
    assert "ConnectTimeout (`connect_timeout_s` is 3)" in str(caught.value.error)


@ways
@pytest.mark.parametrize(("retries", "tried"), [(0, "once"), (2, "3 times")])
def test_a_server_that_fails_is_told_with_how_often_it_was_tried_and_what_may_help(
    ask,
    retries,
    tried,
):
    with (
        raw_server(reply('{"error": "oops"}', "500 x")) as server,
        pytest.raises(UnavailableError) as caught,
    ):
        ask(lm_at(server, max_retries=retries))
    said = str(caught.value)
    assert "oops (status 500). The server failed" in said
    assert (
        f"Asked `m` at {server.base_url}/chat/completions. Tried {tried} (`max_retries` is {retries})."
        in said
    )


@ways
def test_limits_of_time_are_told_by_the_names_they_are_given_by(ask):
    """They were `read_s` and `total_s`, which no model takes."""
    with raw_server(say_nothing) as server, pytest.raises(UnavailableError) as caught:
        ask(lm_at(server, read_timeout_s=0.3, timeout_s=50))
    said = str(caught.value)
    assert "(`read_timeout_s` is 0.3, `timeout_s` is 50)" in said
    assert "LM(..., read_timeout_s=..., timeout_s=...)" in said
    assert f"Asked `m` at {server.base_url}/chat/completions." in said


@ways
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("overflow_code", "Shorten the inputs"),
        ("half", "ask again"),
        ("empty", "Ask again"),
        ("no_choices", "`wire=`"),
        ("no_message", "`wire=`"),
        ("list", "`base_url=`"),
        ("bad_gzip", "`base_url=`"),
    ],
)
def test_what_is_no_answer_says_what_was_asked_and_what_to_do(ask, name, words):
    with raw_server(FAILURES[name][0]) as server, pytest.raises(LMError) as caught:
        ask(lm_at(server, max_retries=0))
    said = str(caught.value)
    assert words in said
    assert said.count(f"Asked `m` at {server.base_url}/chat/completions.") == 1


def test_an_answer_that_breaks_off_says_to_ask_again():
    """Only what fails before the first byte is tried again by itself."""
    with (
        raw_server(begin(STREAM[:60], hang_up)) as server,
        pytest.raises(UnavailableError, match="broke off in the middle: ask again"),
    ):
        list(lm_at(server).stream(ASKED))


NOTED = """
import logging, sys
{configure}
from ferrule import LM
from ferrule.net import retries
retries.wait_s = lambda error, number: 0.0
try:
    LM(sys.argv[1], model="m", max_retries=1)("hi")
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    "configure",
    ["", "logging.basicConfig()"],
    ids=["unconfigured", "configured"],
)
def test_retries_are_noted_on_stderr_only_where_logging_was_configured(configure):
    """Python's handler of last resort would print them to the stderr of every script."""
    with raw_server(reply("{}", "500 x")) as server:
        ended = subprocess.run(
            [sys.executable, "-c", NOTED.format(configure=configure), server.base_url],
            capture_output=True,
            text=True,
            check=True,
        )
    assert ended.stdout == "UnavailableError\n"
    assert ended.stderr.count("is asked again") == (1 if configure else 0)


@ways
@pytest.mark.parametrize("limit", ["read_timeout_s", "timeout_s"])
def test_a_slow_server_is_unavailable_and_not_asked_again(ask, limit):
    with raw_server(say_nothing) as server:
        with pytest.raises(UnavailableError, match="no answer in time"):
            ask(
                lm_at(server, **{limit: 0.6}),
            )  # long enough for a busy machine to have taken the question
        assert server.client_left.wait(60)
        assert len(server.requests) == 1


@ways
def test_a_server_that_drips_does_not_outlast_the_total(ask):
    def drip(connection):
        while not server.client_left.is_set():
            connection.send(b"1\r\n \r\n")
            server.client_left.wait(0.002)

    with raw_server(begin(b" ", drip)) as server:
        with pytest.raises(UnavailableError, match="no answer in time"):
            ask(lm_at(server, timeout_s=0.25))
        assert server.client_left.wait(60)


@ways
def test_the_total_is_counted_for_each_attempt(ask, monkeypatch):
    """A wait before another attempt takes nothing of its time, though it be longer than the total."""
    waited_s = [0.0]

    def wait_s(error, number):
        waited_s[0] += 100  # all clocks here move as they would in such a wait
        return 0.0

    monkeypatch.setattr(retries, "wait_s", wait_s)
    monkeypatch.setattr(
        http,
        "time",
        SimpleNamespace(monotonic=lambda: time.monotonic() + waited_s[0]),
    )
    with raw_server(reply("{}", "429 x", retry_after="1"), reply()) as server:
        assert ask(lm_at(server, timeout_s=50)).text == "hello"
        assert (len(server.requests), waited_s) == (2, [100.0])


@ways
def test_a_head_that_drips_does_not_outlast_the_total(ask):
    """Bytes come faster than the limit for each of them runs out, and without end; on a connection
    that was used before, too.
    """

    def drip(connection):
        connection.send(b"HTTP/1.1 200 OK\r\n")
        while not server.client_left.is_set():
            connection.send(b"x: y\r\n")
            server.client_left.wait(0.002)

    with raw_server(reply(), drip) as server:
        lm = lm_at(server, timeout_s=2)
        lm.complete(ASKED)
        with pytest.raises(UnavailableError, match="no answer in time"):
            ask(lm)
        assert server.client_left.wait(60)
        assert len(server.requests) == 2


def test_a_stream_that_is_left_open_bounds_no_other_request_of_its_thread():
    """The deadline of one holds while it reads, and not between its pieces."""
    with raw_server(begin(STREAM[:60], say_nothing), reply()) as server:
        stream = lm_at(server, timeout_s=5).stream(ASKED)
        next(stream)
        assert reading._reading.deadline == reading.NEVER
        assert lm_at(server, timeout_s=None).complete(ASKED).text == "hello"
        stream.close()


@ways
def test_an_answer_that_breaks_off_is_unavailable(ask):
    with (
        raw_server(
            begin(b'data: {"choices": [{"delta": {"content": "he"}}]}\n\n', hang_up),
        ) as server,
        pytest.raises(UnavailableError),
    ):
        ask(lm_at(server, max_retries=0))


STREAM = b'data: {"choices": [{"delta": {"content": "he"}}]}\n\ndata: {"choices": [{"delta": {"content": "llo"}, "finish_reason": "stop"}]}\n\n'


def test_a_stream_that_broke_in_the_middle_is_not_begun_again():
    with raw_server(
        begin(b'data: {"choices": [{"delta": {"content": "he"}}]}\n\n', hang_up),
    ) as server:
        stream = lm_at(server).stream(ASKED)
        assert next(stream) == Delta("he")
        with pytest.raises(UnavailableError, match="connection failed"):
            next(stream)
        assert len(server.requests) == 1


def test_a_stream_that_ends_politely_but_too_early_is_unavailable():
    act = begin(b'data: {"choices": [{"delta": {"content": "he"}}]}\n\n', end)
    with (
        raw_server(act) as server,
        pytest.raises(UnavailableError, match="after a part of the answer"),
    ):
        list(lm_at(server).stream(ASKED))


def test_an_error_inside_a_stream_is_raised_with_its_provider():
    body = b'data: {"choices": [{"delta": {"content": "he"}}]}\n\ndata: {"error": {"code": 502, "message": "upstream gave up"}}\n\n'
    with (
        raw_server(begin(body, end)) as server,
        pytest.raises(UnavailableError, match=r"127\.0\.0\.1.*upstream gave up") as caught,
    ):
        list(lm_at(server).stream(ASKED))
    assert caught.value.status == 502


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "anthropic", "gemini"])
def test_an_event_that_is_no_json_is_a_broken_stream(wire):
    """So that a fallback model takes over; some gateways cut their chunks in the middle."""
    with (
        raw_server(begin(b'data: {"choices": [{"delta"\n\n', end)) as server,
        pytest.raises(UnavailableError, match="not JSON"),
    ):
        list(lm_at(server, wire=wire).stream(ASKED))


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "anthropic", "gemini"])
def test_an_error_that_is_no_event_of_its_stream_is_told(wire):
    """Gateways call the body of an error a stream, too, or write it between events."""
    error = b'{"error": {"code": "rate_limit_exceeded", "type": "rate_limit_error", "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}'
    for body in (error, b": ping\n\n" + error + b"\n"):
        with (
            raw_server(begin(body, end)) as server,
            pytest.raises(RateLimitError, match="slow down"),
        ):
            list(lm_at(server, wire=wire).stream(ASKED))


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_an_answer_that_was_whole_before_the_connection_broke_counts(way):
    """Some servers close after `[DONE]` without the end of the body."""
    with raw_server(begin(STREAM + b"data: [DONE]\n\n", hang_up)) as server:
        assert WAYS[way](lm_at(server, max_retries=0)).text == "hello"


@pytest.mark.parametrize("head", [{}, {"content-encoding": "gzip"}], ids=["as it is", "compressed"])
@pytest.mark.parametrize("status", ["200 OK", "500 Broken"])
@ways
def test_an_answer_without_an_end_is_left_at_a_limit(ask, status, head, monkeypatch):
    """It was read whole, into memory. It is not asked for again."""
    monkeypatch.setattr(reading, "_LARGEST", 1 << 20)
    body = b" " * (1 << 24)
    with raw_server(reply(gzip.compress(body) if head else body, status, **head)) as server:
        with pytest.raises(BadRequestError, match="the answer has more than 1 MiB"):
            ask(lm_at(server))
        assert len(server.requests) == 1


@ways
def test_an_answer_that_was_compressed_twice_is_not_read(ask):
    """What lies between the layers has no bound: a kilobyte of three layers may be a gigabyte."""
    body = gzip.compress(gzip.compress(OK))
    with raw_server(reply(body, content_encoding="gzip, gzip")) as server:
        with pytest.raises(BadRequestError, match="compressed more than once: gzip, gzip"):
            ask(lm_at(server))
        assert len(server.requests) == 1


@pytest.mark.parametrize("way", ["sync", "async"])
def test_what_is_compressed_expands_in_pieces(way):
    """A piece from the network became its whole expansion at once: 256 KiB, and so 256 MiB."""
    sizes: list[int] = []

    def read(transport: http.HTTPTransport) -> None:
        with transport.stream(b"{}", {}, None, Pieces) as (beginning, pieces):
            sizes.append(len(beginning.first))
            sizes.extend(len(piece) for piece in pieces)

    async def read_async(transport: http.HTTPTransport) -> None:
        async with transport.astream(b"{}", {}, None, Pieces) as (beginning, pieces):
            sizes.append(len(beginning.first))
            sizes.extend([len(piece) async for piece in pieces])

    body = gzip.compress(b" " * (20 << 20))
    with raw_server(reply(body, content_encoding="gzip")) as server:
        transport = http.HTTPTransport(f"{server.base_url}/x", provider="p", max_retries=0)
        if way == "sync":
            read(transport)
        else:
            asyncio.run(read_async(transport))
    assert sum(sizes) == 20 << 20
    assert max(sizes) <= 1 << 20


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_a_server_that_keeps_a_finished_stream_open_is_not_waited_for(way, monkeypatch):
    """Gateways close theirs minutes after the last event (earendil-works/pi, issue 5592).

    Comments between do not count.
    """

    def chatter(connection):
        with suppress(OSError):
            while not connection.server.client_left.wait(0.01):
                connection.send(b"8\r\n: ping\n\n\r\n")

    monkeypatch.setattr(reading, "END_S", 0.05)
    for last in (say_nothing, chatter):
        with raw_server(begin(STREAM + b"data: [DONE]\n\n", last)) as server:
            begun = time.monotonic()
            assert WAYS[way](lm_at(server, timeout_s=20)).text == "hello"
            assert time.monotonic() - begun < 20


def answering_once(connection):
    """The server closes the connection while the next request is on its way."""
    reply()(connection)
    connection.socket.recv(1)
    connection.close()


def test_a_connection_that_closes_under_a_request_is_replaced():
    """That request is sent again, on another connection, and is no retry."""
    with raw_server(answering_once, reply(), answering_once, reply()) as server:
        lm = lm_at(server, max_retries=0)
        assert [lm.complete(ASKED).text for _ in range(3)] == ["hello"] * 3
        assert [list(lm.stream(ASKED))[-1].text for _ in range(3)] == ["hello"] * 3


def test_a_connection_that_closes_under_an_async_request_is_replaced():
    async def main(lm):
        whole = [(await lm.acomplete(ASKED)).text for _ in range(3)]
        streamed = [(await collected(lm.astream(ASKED)))[-1].text for _ in range(3)]
        return whole + streamed

    with raw_server(answering_once, reply(), answering_once, reply()) as server:
        assert asyncio.run(main(lm_at(server, max_retries=0))) == ["hello"] * 6


@ways
def test_a_new_connection_that_closes_is_not_replaced_in_silence(ask):
    """Only `max_retries` allows that."""
    with raw_server(hang_up) as server:
        with pytest.raises(UnavailableError):
            ask(lm_at(server, max_retries=0))
        assert len(server.requests) <= 1


@ways
def test_the_cost_is_read_from_the_headers_of_a_gateway(ask):
    """LiteLLM's proxy reports it there."""
    with raw_server(reply(x_litellm_response_cost="0.00125")) as server:
        assert ask(lm_at(server)).cost == 0.00125
    for odd in ("None", "nan", "inf", "-1", "1e999", "1e300"):
        with raw_server(reply(x_litellm_response_cost=odd)) as server:
            assert ask(lm_at(server)).cost is None


def test_breaking_out_of_a_stream_closes_the_request():
    with raw_server(begin(STREAM[:60], say_nothing)) as server:
        for item in (stream := lm_at(server).stream(ASKED)):
            assert item == Delta("he")
            break
        stream.close()
        assert server.client_left.wait(60)


def test_breaking_out_of_an_async_stream_closes_the_request():
    async def main(lm):
        stream = lm.astream(ASKED)
        assert await anext(stream) == Delta("he")
        await stream.aclose()
        assert await asyncio.to_thread(server.client_left.wait, 10)

    with raw_server(begin(STREAM[:60], say_nothing)) as server:
        asyncio.run(main(lm_at(server)))


def test_cancelling_closes_the_request():
    async def main(lm):
        task = asyncio.create_task(lm.acomplete(ASKED))
        assert await asyncio.to_thread(server.waiting.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.client_left.wait, 10)

    with raw_server(say_nothing) as server:
        asyncio.run(main(lm_at(server)))
        assert len(server.requests) == 1


def test_cancelling_while_a_stream_waits_closes_the_request():
    async def main(lm):
        task = asyncio.create_task(collected(lm.astream(ASKED)))
        assert await asyncio.to_thread(server.waiting.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.client_left.wait, 10)

    with raw_server(begin(STREAM[:60], say_nothing)) as server:
        asyncio.run(main(lm_at(server)))


def test_a_connection_is_used_again():
    with raw_server(reply()) as server:
        lm = lm_at(server)
        for _ in range(3):
            lm.complete(ASKED)
            assert list(lm.stream(ASKED))[-1].text == "hello"
        lm.copy(temperature=1).complete(ASKED)
        assert (server.accepted, len(server.requests)) == (1, 7)

        async def several():
            for _ in range(3):
                await lm.acomplete(ASKED)
                await collected(lm.astream(ASKED))

        asyncio.run(several())
        assert server.accepted == 2


def test_a_connection_that_the_server_closed_meanwhile_is_replaced():
    def once(connection):
        reply()(connection)
        connection.close()

    with raw_server(once, reply()) as server:
        lm = lm_at(server)
        assert [lm.complete(ASKED).text for _ in range(2)] == ["hello", "hello"]


@ways
def test_an_answer_that_came_before_its_request_is_not_taken_for_its_answer(ask):
    """RFC 9112, section 9.3: what follows an answer on its connection may belong to another
    request.
    """

    def with_another(connection):
        content = OK.replace(b"hello", b"forged")
        connection.send(
            b"".join(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(each), each)
                for each in (OK, content)
            ),
        )

    async def twice():
        return [(await lm.acomplete(ASKED)).text for _ in range(2)]

    with raw_server(with_another, reply()) as server:
        lm = lm_at(server)
        found = (
            asyncio.run(twice()) if ask is WAYS["acomplete"] else [ask(lm).text for _ in range(2)]
        )
    assert found == ["hello", "hello"]


@ways
@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", ""])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "anthropic", "gemini"])
def test_a_whole_answer_needs_no_content_type(ask, kind, indent, wire):
    """A stream was asked for, but some servers do not stream, and do not say so."""
    bodies = {
        "openai_chat": json.loads(OK),
        "openai_responses": {"output": [{"type": "message", "content": "hello"}]},
        "anthropic": {"content": "hello"},
        "gemini": {
            "candidates": [{"content": {"parts": [{"text": "hello"}]}, "finishReason": "STOP"}],
        },
    }
    with raw_server(
        reply(b"\n " + json.dumps(bodies[wire], indent=indent).encode(), content_type=kind),
    ) as server:
        assert ask(lm_at(server, wire=wire)).text == "hello"


def test_loops_come_and_go():
    """A warning about an unclosed connection would fail this test."""
    with raw_server(reply()) as server:
        lm = lm_at(server)
        for _ in range(3):
            asyncio.run(lm.acomplete(ASKED))
        assert len(lm._transport._clients._loops) == 1
        gc.collect()
        lm.close()
        assert lm.complete(ASKED).text == "hello"


def test_closing_by_hand_is_allowed_twice_and_before_any_request():
    async def main():
        await lm.aclose()
        await lm.acomplete(ASKED)
        await lm.aclose()
        await lm.aclose()
        return await lm.acomplete(ASKED)

    with raw_server(reply()) as server:
        lm = lm_at(server)
        lm.close()
        lm.close()
        assert asyncio.run(main()).text == "hello"


def test_a_model_that_is_forgotten_closes_its_connections():
    with raw_server(reply()) as server:
        lm = lm_at(server)
        lm.complete(ASKED)
        del lm
        gc.collect()
        assert server.client_left.wait(60)


def test_many_requests_at_once_from_a_loop_and_from_threads():
    """More at once than one pool holds."""
    with raw_server(reply()) as server:
        lm = lm_at(server)

        async def main():
            return await asyncio.gather(*(lm.acomplete(ASKED) for _ in range(60)))

        assert {answer.text for answer in asyncio.run(main())} == {"hello"}
        texts: list[str | None] = []
        threads = [
            threading.Thread(target=lambda: texts.append(lm.complete(ASKED).text))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == ["hello"] * 20


def test_an_async_request_waits_for_a_free_connection_as_long_as_an_attempt_may_take(monkeypatch):
    """In the order of asking, and a request that is cancelled while it waits takes no place."""
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 1)

    async def main(lm):
        stream, clients = lm.astream(ASKED), lm._transport._clients
        assert await anext(stream) == Delta("he")
        lm._transport.timeouts = Timeouts(total_s=0.01)
        for ask in (lm.acomplete(ASKED), collected(lm.astream(ASKED))):
            with pytest.raises(UnavailableError, match="no answer in time"):
                await ask
        lm._transport.timeouts = Timeouts()
        waiting = [asyncio.create_task(lm.acomplete(ASKED)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await stream.aclose()
        return [(await each).text for each in waiting[1:]], len(
            clients._loops[asyncio.get_running_loop()][0].open,
        )

    with raw_server(begin(STREAM[:60], say_nothing), reply()) as server:
        assert asyncio.run(main(lm_at(server, max_retries=0))) == (["hello", "hello"], 1)


def test_connections_of_a_crowd_are_closed_when_they_have_been_idle_for_long(monkeypatch):
    """Else a process that once asked 200 times at once would hold 200 file descriptors."""

    async def main(lm):
        await asyncio.gather(*(lm.acomplete(ASKED) for _ in range(5)))
        clients = lm._transport._clients._loops[asyncio.get_running_loop()][0]
        before = len(clients.open)
        monkeypatch.setattr(connections, "_LONGEST_IDLE_S", 0.0)
        for _ in range(5):
            await lm.acomplete(ASKED)
        return before, len(clients.open)

    with raw_server(reply()) as server:
        assert asyncio.run(main(lm_at(server))) == (5, 1)
        assert server.client_left.wait(60)


def test_a_fork_opens_connections_of_its_own(monkeypatch):
    """Two processes on one socket would read each other's answers."""
    with raw_server(reply()) as server:
        lm = lm_at(server)
        lm.complete(ASKED)
        pid = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: pid + 1)
        lm.complete(ASKED)
        assert server.accepted == 2


@ways
def test_a_key_that_a_server_echoes_is_not_shown(ask):
    body = f'{{"error": {{"message": "Incorrect API key provided: {KEY}. See our page."}}}}'
    with (
        raw_server(reply(body, "401 x")) as server,
        pytest.raises(AuthenticationError, match=r"\[key\]") as caught,
    ):
        ask(lm_at(server))
    chain, error = "", caught.value
    while error is not None:
        chain += f"{error!r} {error} {vars(error)}"
        error = error.__cause__ or error.__context__
    assert KEY not in chain


def spoken(content: bytes):
    """Bytes that need be no HTTP, and the end."""

    def act(connection):
        connection.send(content)
        connection.close()

    return act


SLASHED = KEY.replace("-", "/")
ESCAPED = SLASHED.replace("/", "\\/")  # as some servers write JSON
ECHOES = {
    "status_line": spoken(f"HTTP/1.1 {SLASHED} x\r\n\r\n".encode()),
    "header": spoken(f"HTTP/1.1 200 OK\r\n{SLASHED}\r\n\r\n".encode()),
    "chunk": spoken(f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{SLASHED}\r\n".encode()),
    "body": reply(SLASHED),
    "shortened": reply("x" * 180 + SLASHED),
    "html": reply(f"<p>{SLASHED}"),
    "escaped": reply(f'{{"error": {{"message": "bad key {ESCAPED}"}}}}', "401 x"),
    "escaped_and_cut": reply(f'{{"error": {{"message": "{"y" * 985} {ESCAPED}"}}}}', "401 x"),
    "error_in_200": reply(f'{{"error": {{"message": "bad key {ESCAPED}"}}}}'),
    "request_id": reply("{}", "400 x", x_request_id=SLASHED),
    "request_id_in_200": reply("{}", x_request_id=SLASHED),
}


@ways
@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("act", ECHOES.values(), ids=ECHOES.keys())
def test_no_error_of_a_chain_shows_a_key_that_a_server_echoes(ask, act, retries):
    """A traceback shows the causes too, which are errors of `httpx2`, h11 and the JSON parser."""
    with raw_server(act) as server, pytest.raises(LMError) as caught:
        ask(lm_at(server, api_key=SLASHED, max_retries=retries))
    chain, waiting = "".join(traceback.format_exception(caught.value)), [caught.value]
    while waiting:
        error = waiting.pop()
        chain += f"{error!r} {error} {vars(error)}"
        waiting += [each for each in (error.__cause__, error.__context__) if each is not None]
    assert SLASHED[:8] not in chain


@ways
def test_the_causes_of_an_error_are_kept(ask):
    """Only the key is taken out of what they say."""
    with raw_server(ECHOES["status_line"]) as server, pytest.raises(UnavailableError) as caught:
        ask(lm_at(server, api_key=SLASHED, max_retries=0))
    cause = caught.value.__cause__
    assert isinstance(cause, httpx2.RemoteProtocolError)
    assert str(cause) == "illegal status line: bytearray(b'HTTP/1.1 [key] x')"


def test_a_key_in_an_answer_with_success_is_not_shown():
    with raw_server(reply(f"<html>{KEY}")) as server, pytest.raises(BadRequestError) as caught:
        lm_at(server).complete(ASKED)
    assert KEY not in str(caught.value)


def test_the_answer_of_a_server_that_does_not_stream_is_one_delta():
    with raw_server(reply()) as server:
        first, last = list(lm_at(server).stream(ASKED))
    assert first == Delta("hello")
    assert isinstance(last, Response)


@pytest.mark.parametrize("bad", [0, -1, True, "5", float("nan")])
def test_a_timeout_is_a_number_above_zero(bad):
    with pytest.raises(ConfigurationError, match="seconds above 0"):
        Timeouts(read_s=bad)


@pytest.mark.parametrize("bad", [-1, 1.5, True, "2", None])
def test_retries_are_counted_in_whole_numbers(bad):
    with pytest.raises(ConfigurationError, match="max_retries"):
        HTTPTransport("http://x", provider="x", max_retries=bad)


def test_the_read_timeout_is_never_longer_than_the_total():
    assert Timeouts(read_s=300, total_s=5).next_bytes_s == 5
    assert Timeouts(read_s=None, total_s=None).next_bytes_s is None


def test_connections_are_not_pickled():
    clients = Clients(Timeouts(read_s=5))
    again = pickle.loads(pickle.dumps(clients))
    assert again._timeouts == Timeouts(read_s=5)
    assert again._client is None


@pytest.mark.parametrize(
    "field",
    [
        ("X", "a\r\nb: c"),
        ("X", "é"),
        ("X", "€"),
        ("X é", "a"),
        ("a b", "c"),
        ("", "b"),
        ("X", "a\n"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_when_the_model_is_made(field):
    with pytest.raises(ConfigurationError, match="characters that headers do not allow"):
        LM("openai/m", headers=dict([field]))


@pytest.mark.parametrize("field", [("X", None), ("X", 3), ("X", b"a"), (None, "a")])
def test_a_header_that_is_not_text_is_refused_without_its_value(field):
    with pytest.raises(ConfigurationError, match="names and values as text"):
        LM("openai/m", headers=dict([field]))


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding"])
def test_a_header_that_says_how_long_a_request_is_cannot_be_given(name):
    with pytest.raises(ConfigurationError, match="ferrule sets it for each request"):
        LM("openai/m", headers={name: "3"})


@ways
def test_a_host_of_the_user_replaces_that_of_the_address(ask):
    with raw_server(reply()) as server:
        ask(lm_at(server, headers={"Host": "model.example"}))
        assert server.requests[0][0]["host"] == "model.example"


@ways
@pytest.mark.parametrize("key", ["a\r\nb: c", "\0"])
def test_a_key_that_would_end_its_line_is_not_sent(ask, key):
    with raw_server(reply()) as server:
        with pytest.raises((LMError, ConfigurationError)):
            ask(lm_at(server, api_key=key, max_retries=0))
        assert server.requests == []
