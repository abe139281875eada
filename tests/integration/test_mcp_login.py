"""Logging in to a protected MCP server: a real server, a real authorization server, and a program
in the place of the browser.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import forked
import httpx2
import pytest
from msgspec.structs import replace

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

from login_server import browse, follow, login_server
from mcp_servers import free_port

from ferrule import MCPServer, MemoryStore, ReAct, context, mcp
from ferrule.errors import MCPConnectionError
from ferrule.mcp_bridge import OAuth
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from login_server import LoginServer

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the credentials, on a machine without a browser and without a keyring."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    for each in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(each, raising=False)
    return tmp_path / "data" / "ferrule" / "mcp"


@pytest.fixture
def server() -> Iterator[LoginServer]:
    with login_server() as made:
        yield made


def greet(server: LoginServer, **options: Any) -> str:
    """A client of its own that logs in and calls a tool."""
    with mcp(
        server.url,
        auth=options.pop("auth", "oauth"),
        **{"open_browser": browse, "login_timeout_s": 30, **options},
    ) as tools:
        return tools["greet"](name="Ada")


def test_a_person_logs_in_once_and_the_next_start_uses_the_stored_token(
    server: LoginServer,
) -> None:
    assert greet(server) == "Hello, Ada!"
    assert (len(server.logins), server.registrations) == (1, 1)
    assert greet(server, open_browser=False) == "Hello, Ada!"
    assert (len(server.logins), server.registrations, server.refreshes) == (1, 1, 0)


# -- tokens


def test_an_expired_token_is_refreshed_also_after_a_restart(server: LoginServer) -> None:
    server.lives_s = 0
    greet(server)
    server.lives_s = 3600
    greet(server, open_browser=False)
    assert (len(server.logins), server.refreshes, server.refused_refreshes) == (
        1,
        server.refreshes,
        0,
    )
    assert server.refreshes > 0


def test_a_token_that_the_server_withdrew_is_refreshed(server: LoginServer) -> None:
    with mcp(server.url, auth="oauth", open_browser=browse) as tools:
        server.revoke()
        assert tools["greet"](name="Ada") == "Hello, Ada!"
    assert (len(server.logins), server.refreshes) == (1, 1)


def test_a_refused_refresh_is_a_new_log_in(server: LoginServer) -> None:
    with mcp(server.url, auth="oauth", open_browser=browse) as tools:
        server.revoke(renewals=True)
        assert tools["greet"](name="Ada") == "Hello, Ada!"
    assert (len(server.logins), server.refused_refreshes) == (2, 1)


def test_an_authorization_server_that_is_down_asks_nobody_to_log_in_again(
    server: LoginServer,
) -> None:
    greet(server)
    server.revoke()
    server.is_ill = True
    with pytest.raises(
        MCPConnectionError,
        match=r"the log-in was not renewed: 127\.0\.0\.1 answered with HTTP 503",
    ) as raised:
        greet(server)
    assert (raised.value.phase, raised.value.is_retryable, len(server.logins)) == (
        "login",
        False,
        1,
    )
    server.is_ill = False
    assert greet(server) == "Hello, Ada!"
    assert len(server.logins) == 1


def test_two_clients_that_refresh_at_once_use_one_refresh_token_once(server: LoginServer) -> None:
    greet(server)
    clients = [mcp(server.url, auth="oauth", open_browser=False) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: each.connect(), clients))
        server.revoke()
        assert (
            list(pool.map(lambda each: each.call("greet", {"name": "Ada"})["isError"], clients))
            == [False] * 4
        )
    for each in clients:
        each.close()
    assert (server.refreshes, server.refused_refreshes, len(server.logins)) == (1, 0, 1)


PROCESS = """
import os, sys, time
from ferrule import mcp
with mcp(sys.argv[1], auth="oauth", open_browser=False) as tools:
    print("ready", flush=True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    print(tools["greet"](name="Ada"))
"""


def test_two_processes_that_refresh_at_once_use_one_refresh_token_once(
    server: LoginServer, tmp_path: Path
) -> None:
    greet(server)
    processes = [forked.Forked("-c", PROCESS, server.url, tmp_path / "revoked") for _ in range(2)]
    while [process.output for process in processes] != ["ready\n"] * 2:
        assert [process.poll() for process in processes] == [None] * 2
        time.sleep(0.02)
    server.revoke()
    (tmp_path / "revoked").touch()
    assert [process.ended().stdout for process in processes] == ["ready\nHello, Ada!\n"] * 2
    assert (server.refreshes, server.refused_refreshes, len(server.logins)) == (1, 0, 1)


def test_a_tool_that_needs_more_scopes_asks_for_them_once_and_keeps_the_others(
    server: LoginServer,
) -> None:
    with mcp(server.url, auth="oauth", open_browser=browse) as tools:
        assert tools["greet"](name="Ada") == "Hello, Ada!"
        assert tools["erase"](name="Ada") == "Ada is gone"
        assert tools["erase"](name="Bob") == "Bob is gone"
    assert [set(each["scope"].split()) for each in server.logins] == [{"read"}, {"read", "write"}]


def test_two_clients_that_need_a_log_in_at_once_ask_once(server: LoginServer) -> None:
    clients = [mcp(server.url, auth="oauth", open_browser=browse) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: each.connect(), clients))
    for each in clients:
        each.close()
    assert len(server.logins) == 1


@pytest.mark.parametrize("transport", ["sse", "http"])
def test_a_server_of_the_older_transport_takes_a_log_in(transport: str) -> None:
    with login_server(is_old=True) as server:
        make = MCPServer.sse if transport == "sse" else MCPServer.http
        with make(server.url, auth="oauth", open_browser=browse, mode="2025-11-25") as tools:
            assert tools["greet"](name="Ada") == "Hello, Ada!"
            server.revoke(renewals=True)
            assert tools["greet"](name="Bob") == "Hello, Bob!"
        assert len(server.logins) == 2


def test_a_log_in_of_another_process_ends_an_earlier_refusal(server: LoginServer) -> None:
    server.person = "denies"
    client = mcp(server.url, auth="oauth", open_browser=browse)
    with pytest.raises(MCPConnectionError, match="denied"):
        client.call("greet", {"name": "Ada"})
    server.person = "approves"
    greet(server)
    assert client.call("greet", {"name": "Ada"})["isError"] is False
    client.close()


# -- the person


def test_a_denial_reads_as_a_denial_and_nobody_is_asked_again_until_connect(
    server: LoginServer,
) -> None:
    server.person = "denies"
    client = mcp(server.url, auth="oauth", open_browser=browse)
    for _ in range(2):
        with pytest.raises(
            MCPConnectionError,
            match=r"the log-in was denied \(access_denied: You said \[31m no\.\)\.$",
        ) as raised:
            client.call("greet", {"name": "Ada"})
    assert (
        raised.value.phase,
        raised.value.may_have_run,
        raised.value.is_retryable,
        len(server.logins),
    ) == ("login", False, False, 1)
    server.person = "approves"
    client.connect()
    assert client.call("greet", {"name": "Ada"})["isError"] is False
    client.close()


def test_nobody_who_logs_in_is_a_time_out_of_its_own(server: LoginServer) -> None:
    server.person = "leaves"
    with pytest.raises(
        MCPConnectionError,
        match=r"there was no log-in within 0\.3 s \(`login_timeout_s`\)\.$",
    ):
        greet(server, login_timeout_s=0.3)


def test_a_log_in_may_take_longer_than_a_connection(server: LoginServer) -> None:
    def slowly(address: str) -> bool:
        threading.Timer(3.5, browse, (address,)).start()
        return True

    assert greet(server, open_browser=slowly, connect_timeout_s=3, timeout_s=3) == "Hello, Ada!"


def test_an_answer_with_a_wrong_state_is_ignored_and_told(server: LoginServer) -> None:
    server.person = "is_mistaken"
    with pytest.raises(
        MCPConnectionError,
        match="An answer with the `state` of another log-in came, and was ignored",
    ):
        greet(server, open_browser=follow, login_timeout_s=3)


def test_a_stray_answer_does_not_end_the_log_in(server: LoginServer) -> None:
    def after_a_stray_one(address: str) -> bool:
        back = parse_qs(urlsplit(address).query)["redirect_uri"][0]
        assert httpx2.get(back, params={"code": "x", "state": "x"}).status_code == 400
        assert httpx2.get(back.replace("/callback", "/")).status_code == 404
        return browse(address)

    assert greet(server, open_browser=after_a_stray_one) == "Hello, Ada!"


def test_a_callback_port_in_use_is_named(server: LoginServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            MCPConnectionError,
            match=f"port {port}, for the browser's answer, is in use",
        ):
            greet(server, auth=OAuth(callback_port=port))


def test_without_a_browser_the_error_says_what_to_run(server: LoginServer) -> None:
    for options in ({"open_browser": None}, {"open_browser": False}):
        with pytest.raises(MCPConnectionError, match="no browser can be opened here") as raised:
            greet(server, **options)
        assert f"`ferrule mcp login {server.url}`" in str(raised.value)
    assert server.logins == []


def test_a_hook_that_opens_the_browser_may_be_async(server: LoginServer) -> None:
    async def later(address: str) -> None:
        browse(address)

    assert greet(server, open_browser=later) == "Hello, Ada!"


def test_closing_ends_a_log_in(server: LoginServer) -> None:
    server.person = "leaves"
    client = mcp(
        server.url,
        auth="oauth",
        open_browser=lambda address: threading.Timer(0.2, client.close).start(),
    )
    with pytest.raises(MCPConnectionError, match="it was closed while it waited for a log-in"):
        client.connect()


# Not `print`: Python aborts if it ends while the thread that asks still holds the lock of standard
# output.
INTERRUPTED = """
import os, sys
from ferrule import mcp
mcp(sys.argv[1], auth="oauth", open_browser=lambda address: os.write(1, b"asked\\n")).connect()
"""


def test_ctrl_c_ends_a_log_in(server: LoginServer) -> None:
    process = Popen(
        [sys.executable, "-c", INTERRUPTED, server.url],
        stdout=PIPE,
        stderr=PIPE,
        text=True,
    )
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, errors
    assert greet(server) == "Hello, Ada!"  # nothing is locked


# -- clients and codes


def test_a_registered_client_uses_its_id_secret_scopes_and_port(server: LoginServer) -> None:
    server.registers, port = False, free_port()
    uri = f"http://localhost:{port}/callback"
    server.clients["mine"] = {"redirect_uris": [uri], "client_secret": "hunter2"}
    mine = OAuth(
        client_id="mine",
        client_secret="hunter2",
        scopes=("read", "special"),
        callback_port=port,
    )
    assert greet(server, auth=mine) == "Hello, Ada!"
    assert (server.logins[0]["client_id"], server.logins[0]["scope"], server.registrations) == (
        "mine",
        "read special",
        0,
    )
    server.revoke()
    assert greet(server, auth=mine, open_browser=False) == "Hello, Ada!"
    with pytest.raises(MCPConnectionError, match="no browser can be opened"):
        greet(server, auth=OAuth(client_id="another"), open_browser=False)


def test_a_configured_secret_goes_only_to_the_issuer_of_the_user(server: LoginServer) -> None:
    """A hostile server names an authorization server of its own."""
    with login_server() as other:
        server.names_issuer = f"{other.origin}/auth"
        port = free_port()
        uri = f"http://localhost:{port}/callback"
        other.clients["mine"] = {"redirect_uris": [uri], "client_secret": "hunter2"}
        mine = OAuth(client_id="mine", client_secret="hunter2", callback_port=port)
        with pytest.raises(MCPConnectionError, match=r"client secret would go .*issuer="):
            greet(server, auth=mine)
        with pytest.raises(MCPConnectionError, match="issuer is pinned to"):
            greet(server, auth=replace(mine, issuer=f"{server.origin}/auth"))
        assert (other.logins, other.posts) == ([], [])
        server.access = other.access
        assert greet(server, auth=replace(mine, issuer=f"{other.origin}/auth")) == "Hello, Ada!"
        assert ["hunter2" in post for post in other.posts] == [True]


def test_a_pinned_issuer_holds_without_a_secret_too(server: LoginServer) -> None:
    pinned = OAuth(issuer="https://login.example.org")
    with pytest.raises(MCPConnectionError, match="issuer is pinned to"):
        greet(server, auth=pinned)
    assert (server.logins, server.registrations) == ([], 0)


def test_a_server_where_clients_cannot_register_says_so(server: LoginServer) -> None:
    server.registers = False
    with pytest.raises(
        MCPConnectionError,
        match=r"does not let clients register themselves .* pass auth=OAuth\(client_id=\.\.\.\)",
    ):
        greet(server)


def test_a_server_that_offers_no_log_in_says_that_it_wants_credentials() -> None:
    with (
        login_server(offers_login=False) as server,
        pytest.raises(MCPConnectionError, match="it requires credentials, and no log-in"),
    ):
        greet(server)


def test_a_device_code_logs_in_where_there_is_no_browser(server: LoginServer) -> None:
    server.offers_device, shown = True, []
    assert (
        greet(
            server,
            open_browser=False,
            enter_code=lambda address, code: shown.append((address, code)),
        )
        == "Hello, Ada!"
    )
    assert shown == [(f"{server.origin}/auth/enter", "ABCD-EFGH")]
    server.revoke()
    assert greet(server, open_browser=False) == "Hello, Ada!"
    assert server.refreshes == 1


def test_a_denied_device_code_and_a_server_without_any_say_so(server: LoginServer) -> None:
    with pytest.raises(MCPConnectionError, match="the server offers no device codes"):
        greet(server, open_browser=False, enter_code=print)
    server.offers_device, server.person = True, "denies"
    with pytest.raises(MCPConnectionError, match=r"the log-in was denied \(access_denied\)"):
        greet(server, open_browser=False, enter_code=print)
    server.person = "leaves"
    with pytest.raises(MCPConnectionError, match="there was no log-in within"):
        greet(server, open_browser=False, enter_code=print, login_timeout_s=1)


# -- secrets


def test_the_file_of_the_credentials_is_this_users_alone(server: LoginServer, home: Path) -> None:
    greet(server)
    files = [each for each in home.iterdir() if each.suffix == ".json"]
    assert [stat.S_IMODE(each.stat().st_mode) for each in files] == [0o600]
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert {each.suffix for each in home.iterdir()} == {".json", ".lock"}
    assert any(each in files[0].read_text() for each in server.access)


def test_no_token_is_shown_anywhere(server: LoginServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = mcp(server.url, auth=OAuth(client_id="", client_secret="hunter2"), open_browser=browse)
    store = MemoryStore()
    agent = ReAct("question -> answer", [client])
    script = ScriptedLM(
        [
            {"name": "greet", "args": {"name": "Ada"}},
            {"name": "finish", "args": {"answer": "done"}},
        ],
    )
    with context(lm=script):
        run = agent.start(question="x", store=store, run_id="r")
    server.person, texts = (
        "denies",
        [json.dumps(agent.dump_state()), repr(client), repr(client.client.__dict__), repr(run)],
    )
    server.revoke(renewals=True)
    with pytest.raises(MCPConnectionError) as raised:
        client.call("greet", {"name": "Ada"})
    client.close()
    texts += [
        "".join(traceback.format_exception(raised.value)),
        caplog.text,
        repr(store.__dict__),
        json.dumps(client.dump_state()),
    ]
    texts += [repr(vars(client.client._login)), repr(client.client._login._known)]
    assert [each for each in [*server.secrets, "hunter2"] for text in texts if each in text] == []
    assert len(server.secrets) > 2


def test_an_error_quotes_no_code(server: LoginServer, caplog: pytest.LogCaptureFixture) -> None:
    """The SDK's error and log quote the response of the token endpoint."""

    def forget(address: str) -> bool:
        server.clients["client-1"]["client_secret"] = "new"
        return browse(address)

    with pytest.raises(MCPConnectionError, match="gave no token: invalid_client") as raised:
        greet(server, open_browser=forget)
    shown = "".join(traceback.format_exception(raised.value)) + caplog.text
    assert [each for each in server.secrets if each in shown] == []
