from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from raw_server import raw_server, reply, say_nothing

from ferrule import LM
from ferrule.errors import ConfigurationError
from ferrule.values.conversation.exchange import Request
from ferrule.values.conversation.message import Message, Messages

ASKED = Request(Messages([Message("user", "hi")]))
VARIABLES = {"http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir"}


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    for name in list(os.environ):
        if name.lower() in VARIABLES:
            monkeypatch.delenv(name)


async def streamed(lm):
    return [each async for each in lm.astream(ASKED)]


WAYS = {
    "complete": lambda lm: lm.complete(ASKED),
    "acomplete": lambda lm: asyncio.run(lm.acomplete(ASKED)),
    "stream": lambda lm: list(lm.stream(ASKED)),
    "astream": lambda lm: asyncio.run(streamed(lm)),
}
ways = pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS.keys())


def refused(ask) -> str:
    """What is said, after a look at all errors of the chain for the password."""
    lm = LM("http://127.0.0.1:9/v1", model="m", max_retries=0)
    with pytest.raises(ConfigurationError) as caught:
        ask(lm)
    error, chain = caught.value, ""
    while error is not None:
        chain += f"{error!r} {error}"
        error = error.__cause__ or error.__context__
    assert "hunter2" not in chain
    assert "ada" not in chain
    return str(caught.value)


@ways
def test_a_socks_proxy_without_its_package_names_variable_and_package(ask, monkeypatch):
    """Ours: it was an `ImportError` that named `httpx`, which is another package."""
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://ada:hunter2@proxy.example:1080")
    said = refused(ask)
    assert "`ALL_PROXY`" in said
    assert "'socks5://proxy.example:1080'" in said
    assert "pip install 'httpx2[socks]'" in said


@ways
@pytest.mark.parametrize(
    ("name", "value", "public"),
    [
        ("HTTP_PROXY", "socks9://ada:hunter2@proxy.example:1", "'socks9://proxy.example:1'"),
        ("https_proxy", "http://ada:hunter2@proxy.example:port", "'http://proxy.example:port'"),
        ("All_Proxy", "http://ada:hun/hunter2@proxy.example?key=hunter2", "'http://proxy.example'"),
        ("HTTP_PROXY", "ada:hunter2://hunter2@proxy.example", "'proxy.example'"),
    ],
    ids=["scheme", "port", "password_with_a_slash", "all_wrong"],
)
def test_a_proxy_that_is_no_address_is_told_with_its_variable_and_without_its_password(ask, monkeypatch, name, value, public):
    """Ours: it was a `ValueError`, or blamed the address of the model."""
    monkeypatch.setenv(name, value)
    said = refused(ask)
    assert f"`{name}`" in said
    assert public in said
    assert f"or remove `{name}` from the environment" in said


def test_the_variable_that_is_wrong_is_named_and_no_other(monkeypatch):
    """Ours."""
    monkeypatch.setenv("HTTP_PROXY", "http://good.example:1")
    monkeypatch.setenv("HTTPS_PROXY", "good.example:1")
    monkeypatch.setenv("ALL_PROXY", "odd://bad.example")
    assert "`ALL_PROXY` names has an invalid address: 'odd://bad.example'" in refused(WAYS["complete"])


@ways
@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "odd"])
def test_certificates_that_cannot_be_read_are_told_with_their_variable(ask, monkeypatch, tmp_path, content):
    """Ours: it was a `FileNotFoundError` without a name."""
    path = tmp_path / "roots.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    said = refused(ask)
    assert f"`SSL_CERT_FILE` names cannot be read: {str(path)!r}: " in said
    assert "PEM" in said


FORKED = """
import asyncio, os, signal, sys
from ferrule import LM

lm = LM(sys.argv[1], model="m", max_retries=0)

def ask():
    return lm("hi"), asyncio.run(lm.acall("hi"))

ask()
if os.fork() == 0:
    signal.alarm(300)  # ends a child that hangs
    ask()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork")
def test_a_forked_process_asks_over_connections_of_its_own():
    """Ours: workers of gunicorn and Celery are forked after the program is loaded, and may have asked before."""
    with raw_server(reply()) as server:
        subprocess.run([sys.executable, "-c", FORKED, server.base_url], check=True)
        assert (server.accepted, len(server.requests)) == (4, 4)


INTERRUPTED = """
import asyncio, signal, sys
from ferrule import LM
from ferrule.values.conversation.exchange import Request
from ferrule.values.conversation.message import Message, Messages

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
lm, asked = LM(sys.argv[1], model="m"), Request(Messages([Message("user", "hi")]))

async def streamed():
    return [each async for each in lm.astream(asked)]

ways = {
    "complete": lambda: lm.complete(asked),
    "acomplete": lambda: asyncio.run(lm.acomplete(asked)),
    "stream": lambda: list(lm.stream(asked)),
    "astream": lambda: asyncio.run(streamed()),
}
try:
    ways[sys.argv[2]]()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_ends_a_request_at_once(way):
    """Ours: the server sees it too, while the process goes on."""
    with (
        raw_server(say_nothing) as server,
        subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, server.base_url, way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert server.waiting.wait(300)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert server.client_left.wait(60)
        assert len(server.requests) == 1


def test_a_model_works_once_the_variable_is_mended(monkeypatch):
    """Ours: nothing of the failed client is kept."""
    with raw_server(reply()) as server:
        lm = LM(server.base_url, model="m")
        monkeypatch.setenv("ALL_PROXY", "odd://bad.example")
        for ask in WAYS.values():
            with pytest.raises(ConfigurationError):
                ask(lm)
        monkeypatch.delenv("ALL_PROXY")
        for ask in WAYS.values():
            assert ask(lm)
