"""The signed webhook for questions (`web/webhook.py`), against a real receiver on loopback."""

from __future__ import annotations

import base64
import hmac
import json
import logging
import threading
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from page_store import REFUND, answer, call, start

from ferrule import MemoryStore, ReAct, SQLiteStore, Webhook, read_webhook
from ferrule.approval.result_links import ForgedTokenError
from ferrule.cli.main import main
from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "k3mv9Zr0T5nW1xq8JcLhYd2uEoPbSgAf"


class Receiver:
    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.arrived = threading.Semaphore(0)
        self.url = ""

    def messages(self) -> list[dict[str, Any]]:
        return [read_webhook(SECRET, headers, body) for headers, body in self.got]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = receiver.statuses.pop(0) if receiver.statuses else 204
            if status < 300:
                receiver.got.append((dict(self.headers.items()), body))
            self.send_response(status)
            self.send_header("content-length", "0")
            if status == 302:
                self.send_header("location", "http://127.0.0.1:9/")
            self.end_headers()
            receiver.arrived.release()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook?key=in-the-address"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def webhook(store: Any, receiver: Receiver, **options: Any) -> Webhook:
    return Webhook(store, receiver.url, secret=SECRET, page="https://runs.example.org/", **options)


def test_an_address_is_told_of_a_question_in_words_with_a_link() -> None:
    store = MemoryStore()
    start(store, "order-1", "x", REFUND)
    [question] = store.summary("order-1").questions
    with receiving() as receiver:
        hook = webhook(store, receiver)
        assert hook.send() == 1
        assert hook.send() == 0, "once"
        hook.close()
        [message] = receiver.messages()
    assert message["type"] == "question.waiting"
    data = message["data"]
    assert data["url"] == f"https://runs.example.org/runs/order-1#q-{question.id}"
    assert data["text"].startswith("refund: order A-1042, euros 29.9")
    assert data["card"].splitlines()[:3] == [
        "refund",
        "  Pay money back to the customer.",
        "  has an effect that cannot be undone, so the call is never repeated automatically",
    ]
    assert "  euros (number): 29.9" in data["card"]
    assert (data["question_id"], data["run_id"], data["tool"]) == (
        question.id,
        "order-1",
        "refund",
    )


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """As their libraries check it."""
    store = MemoryStore()
    start(store, "order-1", "x", REFUND)
    raw = b"0123456789abcdef0123456789abcdef"
    secret = "whsec_" + base64.b64encode(raw).decode()
    with receiving() as receiver:
        hook = Webhook(store, receiver.url, secret=secret, page="http://127.0.0.1:7300")
        assert hook.send() == 1
        hook.close()
        [(headers, body)] = receiver.got
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(raw, content, sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert read_webhook(secret, headers, body)["type"] == "question.waiting"


def test_no_secret_is_sent() -> None:
    store = MemoryStore()
    parcel = {"address": {"street": "x", "city": "y"}, "lines": [], "pin": "4711-secret"}
    start(store, "order-1", "x", answer("", call("send_parcel", **parcel), thought="4711-secret"))
    with receiving() as receiver:
        hook = webhook(store, receiver)
        hook.send()
        hook.close()
        [(headers, body)] = receiver.got
    assert b"4711" not in body
    assert b"**********" in body
    assert SECRET not in str(headers) + body.decode()
    assert SECRET not in repr(hook)
    assert "in-the-address" not in repr(hook)


def test_a_failure_is_tried_again_and_the_log_has_no_address(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    start(store, "order-1", "x", REFUND)
    now = [1_000_000.0]
    monkeypatch.setattr("ferrule.web.webhook.time", lambda: now[0])
    with receiving() as receiver, caplog.at_level(logging.WARNING, "ferrule.web"):
        hook = webhook(store, receiver)
        receiver.statuses = [500, 302]
        assert hook.send() == 0
        assert hook.send() == 0, "not at once"
        now[0] += 3
        assert hook.send() == 0, "a redirect is not followed"
        now[0] += 5
        assert hook.send() == 1
        hook.close()
        assert len(receiver.got) == 1
        down = Webhook(store, "http://127.0.0.1:9/in-the-address", secret=SECRET, page="http://x")
        assert down.send() == 0
        down.close()
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == [
        "status 500",
        "status 302",
        "ConnectError",
    ]
    assert "in-the-address" not in caplog.text


def test_a_question_that_is_decided_is_not_told_of_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    start(store, "order-1", "x", REFUND)
    [question] = store.summary("order-1").questions
    with receiving() as receiver:
        hook = webhook(store, receiver)
        receiver.statuses = [500]
        assert hook.send() == 0
        store.decide("order-1", question.deny("no"))
        monkeypatch.setattr("ferrule.web.webhook.time", lambda: 9e9)
        assert hook.send() == 0
        assert receiver.got == []
        hook.close()


def test_a_thread_tells_of_questions_as_they_come(tmp_path: Any) -> None:
    store = SQLiteStore(tmp_path / "runs.db", full_sync=False)
    with receiving() as receiver, webhook(store, receiver, poll_s=0.01):
        for number in range(2):
            start(store, f"order-{number}", "x", REFUND)
            assert receiver.arrived.acquire(timeout=30)
        clarifying = answer("", call("user_clarification", question="Which?"))
        start(store, "order-3", "x", clarifying)
        assert receiver.arrived.acquire(timeout=30)
        messages = receiver.messages()
    store.close()
    assert [each["data"]["run_id"] for each in messages] == ["order-0", "order-1", "order-3"]
    assert messages[2]["data"]["card"] == "Which?"


def test_what_was_changed_or_is_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    start(store, "order-1", "x", REFUND)
    with receiving() as receiver:
        hook = webhook(store, receiver)
        hook.send()
        hook.close()
        [(headers, body)] = receiver.got
    assert read_webhook(SECRET, {name.upper(): value for name, value in headers.items()}, body)
    changed = [
        (headers, body + b" "),
        ({**headers, "webhook-id": "another"}, body),
        ({**headers, "webhook-timestamp": "1"}, body),
        ({**headers, "webhook-signature": "v1,"}, body),
        ({**headers, "webhook-signature": "v1,é"}, body),
        ({}, body),
    ]
    for other_headers, other_body in changed:
        with pytest.raises(ForgedTokenError, match="not signed"):
            read_webhook(SECRET, {k.lower(): v for k, v in other_headers.items()}, other_body)
    with pytest.raises(ForgedTokenError, match="not signed"):
        read_webhook("x" * 40, headers, body)
    monkeypatch.setattr("ferrule.web.webhook.time", lambda: 9e9)
    with pytest.raises(ForgedTokenError, match="old"):
        read_webhook(SECRET, headers, body)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"url": "http://hooks.example.org/x"}, "https://"),
        ({"url": "ftp://x"}, "https://"),
        ({"url": ""}, "https://"),
        ({"url": None}, "https://"),
        ({"secret": "short"}, "at least 32"),
        ({"secret": None}, "at least 32"),
        ({"secret": "whsec_" + "é" * 32}, "not Base64"),
        ({"page": "runs.example.org"}, "`page`"),
    ],
)
def test_a_webhook_checks_what_it_is_given(wrong: dict[str, Any], problem: str) -> None:
    options = {"url": "https://x.example", "secret": SECRET, "page": "https://y.example", **wrong}
    with pytest.raises(ConfigurationError, match=problem):
        Webhook(MemoryStore(), **options)


def test_a_program_without_questions_sends_nothing() -> None:
    store = MemoryStore()
    start(
        store,
        "r",
        "x",
        answer("", call("finish", answer="x")),
        program=ReAct("message -> answer", []),
    )
    with receiving() as receiver:
        hook = webhook(store, receiver)
        assert hook.send() == 0
        hook.close()
    assert receiver.got == []
    assert json.dumps(receiver.messages()) == "[]"


def test_the_command_needs_a_secret_for_a_webhook(
    tmp_path: Any,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FERRULE_WEBHOOK_SECRET", raising=False)
    path = str(tmp_path / "runs.db")
    SQLiteStore(path).close()
    assert main(["ui", "--store", path, "--webhook", "https://x.example"]) != 0
    assert "FERRULE_WEBHOOK_SECRET" in capsys.readouterr().err
