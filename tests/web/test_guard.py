"""Attacks on the page, over raw HTTP (`web/guard.py`)."""

from __future__ import annotations

import logging
import re
import socket
from typing import Any

import pytest
from page_server import Client, served

from ferrule import SQLiteStore
from ferrule.cli.main import main
from ferrule.web import guard
from ferrule.web.ui import ui_app

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
PATHS = [
    "/", "/?status=waiting&q=order", "/inbox", "/runs/order-1042", "/runs/order-1009/text/0/0.result", "/runs/order-1001/picture/3/0/0", "/runs/nowhere",
    "/static/page.js", "/nothing",
]  # fmt: skip


def contents(store: SQLiteStore) -> list[Any]:
    tables = ("ferrule_runs", "ferrule_entries", "ferrule_decisions")
    return store._file.read(
        lambda db: [
            db.execute(f"SELECT * FROM {each} ORDER BY 1, 2").fetchall() for each in tables
        ],
    )


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost",
        "",
        "127.0.0.1.evil.example:PORT",
        "evil.example:PORT",
        "[::1]:1",
    ],
)
@pytest.mark.parametrize("path", ["/", "/static/page.css"])
def test_a_foreign_host_is_refused_before_anything_is_read(ann: Any, host: str, path: str) -> None:
    """DNS rebinding."""
    answer = ann.get(path, host=host.replace("PORT", ann.host.split(":")[1]))
    assert answer.status == 421
    assert "order-1042" not in answer.text


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_the_names_of_this_machine_are_answered(ann: Any, name: str) -> None:
    assert ann.get("/", host=f"{name}:{ann.host.split(':')[1]}").status == 200


def test_a_request_without_host_or_with_two_is_refused(ann: Any) -> None:
    assert ann.get("/", host=None).status in {400, 421}
    with socket.create_connection(("127.0.0.1", int(ann.host.split(":")[1]))) as raw:
        raw.sendall(
            f"GET / HTTP/1.1\r\nHost: {ann.host}\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode(),
        )
        assert raw.recv(100).split()[1] in {b"400", b"421"}


def test_a_name_that_is_allowed_is_answered_with_and_without_its_port(store: SQLiteStore) -> None:
    app = ui_app(store, people=["ann"], allowed_hosts=["runs.example.org"])
    with served(app) as address:
        client = Client(address, app.links["ann"])
        port = client.host.split(":")[1]
        assert [
            client.get("/", host=host).status
            for host in ("runs.example.org", f"runs.example.org:{port}", "example.org")
        ] == [
            200,
            200,
            421,
        ]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": None}, {"origin": "null"}, {"origin": "http://evil.example"}, {"origin": "http://127.0.0.1:1"}, {"origin": ""},
        {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}, {"sec_fetch_site": "none"},
    ],
    ids=str,
)  # fmt: skip
def test_a_form_of_another_page_is_refused(
    ann: Any,
    store: SQLiteStore,
    headers: dict[str, Any],
) -> None:
    """`Origin` and `Sec-Fetch-Site`; without a body read."""
    before = contents(store)
    assert ann.post("/runs/order-1042/cancel", **headers).status == 403
    assert contents(store) == before


def test_a_form_needs_the_secret_of_its_own_session(ann: Any, bob: Any, store: SQLiteStore) -> None:
    """CSRF."""
    before = contents(store)
    bob.post("/nothing")
    for csrf in ("", "x", bob.csrf, "\u00e9"):
        assert ann.post("/runs/order-1042/cancel", {"csrf": csrf}).status == 403
    assert contents(store) == before
    assert ann.post("/runs/order-1042/cancel").status == 303


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reading_changes_nothing_and_every_answer_has_the_headers(
    ann: Any,
    store: SQLiteStore,
    method: str,
    path: str,
) -> None:
    """Under any server."""
    before = contents(store)
    for client in (ann, Client(ann.address)):
        answer = client.send(method, path)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert not [name for name in answer.headers if name.startswith("access-control")]
        if client is not ann and not path.startswith("/static/"):
            assert answer.status == 401
    assert contents(store) == before


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "BREW"])
def test_other_methods_are_refused(ann: Any, method: str) -> None:
    assert ann.send(method, "/runs/order-1042/cancel", origin=ann.address).status == 405


def test_a_large_body_is_refused_however_it_is_sent(ann: Any) -> None:
    assert ann.post("/runs/order-1042/cancel", {"x": "y" * (1 << 20)}).status == 413
    form = {"origin": ann.address, "content_type": "application/x-www-form-urlencoded"}
    assert ann.send(
        "POST",
        "/runs/order-1042/cancel",
        b"",
        content_length="9" * 30,
        **form,
    ).status in {400, 413}
    with socket.create_connection(("127.0.0.1", int(ann.host.split(":")[1]))) as raw:
        head = f"POST /runs/order-1042/cancel HTTP/1.1\r\nHost: {ann.host}\r\nOrigin: {ann.address}\r\nCookie: {ann.cookie}\r\n"
        raw.sendall(
            f"{head}Content-Type: application/x-www-form-urlencoded\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode(),
        )
        for _ in range(16):
            raw.sendall(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")
        raw.sendall(
            b"1\r\na\r\n",
        )  # one byte too many, and nothing after it that a closed connection would refuse
        assert raw.recv(100).split()[1] == b"413"


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "multipart/form-data; boundary=x", "application/json", None],
)
def test_only_a_form_is_read(ann: Any, kind: str | None) -> None:
    assert ann.post("/runs/order-1042/cancel", content_type=kind).status == 415


@pytest.mark.parametrize(
    "body",
    [b"csrf=%ff", b"csrf", b"\xff=1", b"&".join(b"a=1" for _ in range(6000))],
)
def test_a_form_that_cannot_be_read_is_refused(ann: Any, body: bytes) -> None:
    answer = ann.send(
        "POST",
        "/runs/order-1042/cancel",
        body,
        origin=ann.address,
        content_type="application/x-www-form-urlencoded",
    )
    assert answer.status in {400, 403}


def test_a_link_opens_a_session_and_its_token_is_seen_nowhere_after(
    app: Any,
    address: str,
    caplog: Any,
    capfd: Any,
) -> None:
    token = app.sessions.links["ann"]
    assert len(token) >= 43  # 256 bits
    client = Client(address)
    with caplog.at_level(logging.DEBUG):
        answer = client.get(f"/runs/order-1042?token={token}&x=1")
        cookie = answer.headers["set-cookie"]
        assert (answer.status, answer.headers["location"], answer.body) == (
            303,
            "/runs/order-1042?x=1",
            answer.body,
        )
        assert re.fullmatch(
            rf"ferrule-{client.host.split(':')[1]}=[\w-]{{43,}}; HttpOnly; SameSite=Lax; Path=/",
            cookie,
        )
        client.cookie = cookie.partition(";")[0]
        pages = [client.get(path) for path in PATHS]
    everything = (
        caplog.text
        + "".join(capfd.readouterr())
        + "".join(page.text for page in pages)
        + str([page.headers for page in pages])
        + answer.text
    )
    assert token not in everything
    assert cookie.split("=")[1].split(";")[0] not in everything


def test_a_link_opens_one_browser(app: Any, address: str) -> None:
    """Whoever reads it later, in a history or a log, gets nothing."""
    link = app.links["ann"]
    assert [Client(address).get(link).status for _ in range(2)] == [303, 401]
    assert Client(address).get(app.links["ann"]).status == 303


@pytest.mark.parametrize("read_only", [False, True])
def test_a_person_logs_out(store: SQLiteStore, read_only: bool) -> None:
    app = ui_app(store, people=["ann"], read_only=read_only)
    with served(app) as address:
        ann, other = (Client(address, app.links["ann"]) for _ in range(2))
        assert 'action="/log-out"' in ann.get("/").text
        assert ann.post("/log-out", {"csrf": "wrong"}).status == 403
        answer = ann.post("/log-out")
        assert (answer.status, "Max-Age=0" in answer.headers["set-cookie"]) == (200, True)
        assert (ann.get("/").status, other.get("/").status) == (401, 200)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        (
            b"POST /inbox HTTP/1.1\r\nHost: HOST\r\nOrigin: http://HOST\r\nCookie: COOKIE\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\na="
        ),
    ],
)
def test_a_request_that_does_not_arrive_is_closed(
    app: Any, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(guard, "PATIENCE_S", 0.1)
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        host, _, port = ann.host.partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            request = sent.replace(b"HOST", ann.host.encode())
            connection.sendall(request.replace(b"COOKIE", ann.cookie.encode()))
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer[:12] in {b"", b"HTTP/1.1 408"}
        assert ann.get("/").status == 200


def test_a_link_leads_to_no_other_host(app: Any, address: str) -> None:
    """An open redirect."""
    for path in (
        "//evil.example/",
        "/\\evil.example",
        "/%5cevil.example",
        "///evil.example",
        "/%0d%0aSet-Cookie:x",
    ):
        answer = Client(address).get(f"{path}?token={app.sessions.links['ann']}")
        if answer.status == 303:
            assert re.match(r"/(?![/\\])", answer.headers["location"])
            assert "\r" not in answer.headers["location"]


def test_wrong_tokens_are_slowed_down_and_the_right_one_is_not(app: Any, address: str) -> None:
    client = Client(address)
    statuses = [client.get(f"/?token=wrong{number}").status for number in range(8)]
    assert statuses == [401] * 5 + [429] * 3
    assert client.get(app.links["bob"]).status == 303
    assert client.get("/?token=").status == 429


@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_a_token_is_only_for_opening(app: Any, address: str, method: str) -> None:
    answer = Client(address).send(method, app.links["ann"], origin=address)
    assert answer.status == 403
    assert "set-cookie" not in answer.headers


def test_a_websocket_is_refused_without_an_error_in_the_log(ann: Any, caplog: Any) -> None:
    """A page of any host can ask for one."""
    asked = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec_websocket_version": "13",
        "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert ann.get("/", origin="http://evil.example", **asked).status == 403
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


def test_without_a_session_nothing_is_shown(address: str) -> None:
    client = Client(address)
    for cookie in (
        "",
        "ferrule-1=x",
        f"ferrule-{client.host.split(':')[1]}=wrong",
        f"ferrule-{client.host.split(':')[1]}=",
    ):
        client.cookie = cookie
        for path in (
            "/",
            "/inbox",
            "/live",
            "/inbox/live",
            "/runs/order-1042",
            "/runs/order-1042/live",
        ):
            answer = client.get(path)
            assert answer.status == 401
            assert "order-" not in answer.text


def test_sessions_and_tokens_die_with_the_app(ann: Any, store: SQLiteStore) -> None:
    again = ui_app(store, people=["ann"])
    with served(again) as address:
        other = Client(address)
        other.cookie = f"ferrule-{other.host.split(':')[1]}={ann.cookie.partition('=')[2]}"
        assert other.get("/").status == 401


def test_a_page_that_only_reads_refuses_every_form(store: SQLiteStore) -> None:
    app = ui_app(store, people=["ann"], read_only=True)
    before = contents(store)
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        assert "read only" in ann.get("/").text
        assert '<button class="go"' not in ann.get("/inbox").body.decode()
        ann.csrf = "any"
        for path in ("/runs/order-1042/cancel", "/runs/order-1042/questions/x", "/", "/nothing"):
            assert ann.post(path).status == 403
    assert contents(store) == before


def test_an_error_shows_a_number_and_the_log_has_the_rest(
    ann: Any,
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    monkeypatch.setattr(SQLiteStore, "list", lambda *_, **__: 1 / 0)
    answer = ann.get("/")
    assert (answer.status, "error 1" in answer.text, "ZeroDivision" in answer.text) == (
        500,
        True,
        False,
    )
    assert "ZeroDivisionError" in caplog.text
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def test_a_host_without_a_name_is_refused_by_the_command(tmp_path: Any, capsys: Any) -> None:
    assert main(["ui", "--host", "0.0.0.0", "--store", str(tmp_path / "x.db")]) == 2
    assert "--allowed-host NAME, and put a proxy with TLS" in capsys.readouterr().err


def test_a_store_that_is_not_there_is_said_so(tmp_path: Any, capsys: Any) -> None:
    assert main(["ui", "--store", str(tmp_path / "x.db")]) == 2
    assert "There is no file" in capsys.readouterr().err


def test_a_page_whose_person_has_no_name_opens_by_its_link(store: Any) -> None:
    """The default of `ui_app`."""
    app = ui_app(store)
    with served(app) as address:
        ann = Client(address, app.links[""])
        assert ann.get("/inbox").status == 200
        question = store.summary("order-1042").questions[0]
        form = {"do": "deny", "digest": question.digest, "words": "no"}
        assert ann.post(f"/runs/order-1042/questions/{question.id}", form).status == 303
        page = ann.get("/inbox").text
        assert "Denied: <code>refund</code>" in page
        assert "Decided via web at" in page


def test_a_refusal_shows_commands_as_code(app: Any, address: str) -> None:
    page = Client(address).send("GET", "/").body.decode()
    assert "<code>ferrule ui</code>" in page
    assert "`" not in page
