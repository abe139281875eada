from __future__ import annotations

import asyncio
import gzip
import ipaddress
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from asyncio import sslproto
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from raw_server import OK, hang_up, raw_server, reply, say_nothing

from ferrule import LM
from ferrule.errors import BadRequestError, ConfigurationError, UnavailableError
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
    """It was an `ImportError` that named `httpx`, which is another package."""
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
def test_a_proxy_that_is_no_address_is_told_with_its_variable_and_without_its_password(
    ask,
    monkeypatch,
    name,
    value,
    public,
):
    """It was a `ValueError`, or blamed the address of the model."""
    monkeypatch.setenv(name, value)
    said = refused(ask)
    assert f"`{name}`" in said
    assert public in said
    assert f"or remove `{name}` from the environment" in said


def test_the_variable_that_is_wrong_is_named_and_no_other(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://good.example:1")
    monkeypatch.setenv("HTTPS_PROXY", "good.example:1")
    monkeypatch.setenv("ALL_PROXY", "odd://bad.example")
    assert "`ALL_PROXY` names has an invalid address: 'odd://bad.example'" in refused(
        WAYS["complete"],
    )


@ways
@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "odd"])
def test_certificates_that_cannot_be_read_are_told_with_their_variable(
    ask,
    monkeypatch,
    tmp_path,
    content,
):
    """It was a `FileNotFoundError` without a name."""
    path = tmp_path / "roots.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    said = refused(ask)
    assert f"`SSL_CERT_FILE` names cannot be read: {str(path)!r}: " in said
    assert "PEM" in said


def test_all_models_share_the_certificates_that_were_read(monkeypatch):
    """Each model read them anew, for 50 ms, in which its event loop stood still."""
    read = []
    monkeypatch.setenv("SSL_CERT_DIR", "/none")  # other tests have read those without it
    monkeypatch.setattr(
        httpx2,
        "create_ssl_context",
        lambda make=httpx2.create_ssl_context: read.append(1) or make(),
    )
    with raw_server(*[reply()] * len(WAYS)) as server:
        for ask in WAYS.values():
            assert ask(LM(server.base_url, model="m", max_retries=0))
    assert len(read) == 1


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
    """Workers of gunicorn and Celery are forked after the program is loaded, and may have asked
    before.
    """
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


def await_sleep(pid: int) -> None:
    """Wait until a process waits for its server, where the system tells.

    A signal that comes between Python's last look for one and the system call that waits is not
    heard before that call returns: no library can mend that.
    """
    status = Path(f"/proc/{pid}/stat")
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "S":
        os.sched_yield()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_ends_a_request_at_once(way):
    """The server sees it too, while the process goes on."""
    with (
        raw_server(say_nothing) as server,
        subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, server.base_url, way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert server.waiting.wait(300)
        await_sleep(process.pid)
        process.send_signal(signal.SIGINT)
        said = process.stdout.readline()
        assert said == "interrupted\n"
        assert server.client_left.wait(60)
        assert len(server.requests) == 1


def test_a_model_works_once_the_variable_is_mended(monkeypatch):
    """Nothing of the failed client is kept."""
    with raw_server(reply()) as server:
        lm = LM(server.base_url, model="m")
        monkeypatch.setenv("ALL_PROXY", "odd://bad.example")
        for ask in WAYS.values():
            with pytest.raises(ConfigurationError):
                ask(lm)
        monkeypatch.delenv("ALL_PROXY")
        for ask in WAYS.values():
            assert ask(lm)


# -- what a request keeps, whatever connection carries it


@ways
def test_a_request_goes_to_the_proxy_of_the_environment(ask, monkeypatch):
    with raw_server(reply()) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.base_url.removesuffix("/v1"))
        assert ask(LM("http://model.example/v1", model="m", api_key="x", max_retries=0))
        assert [headers["host"] for headers, _ in proxy.requests] == ["model.example"]


@ways
def test_a_host_that_no_proxy_names_is_asked_itself(ask, monkeypatch):
    with raw_server(reply()) as server:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.0/8")
        assert ask(LM(server.base_url, model="m", max_retries=0))


@ways
def test_a_server_on_this_machine_is_asked_itself_where_the_proxy_is_of_the_system_s_settings(
    ask,
    monkeypatch,
):
    """As on macOS and Windows, whose list of exceptions Python does not read."""
    for place in ("urllib.request", "httpx2._utils"):
        monkeypatch.setattr(f"{place}.getproxies", lambda: {"http": "http://127.0.0.1:9"})
    with raw_server(reply()) as server:
        assert ask(LM(server.base_url, model="m", max_retries=0))


def test_a_connection_to_a_proxy_that_closes_under_a_request_is_replaced(monkeypatch):
    """As a connection to the server itself."""

    async def main(lm):
        return [(await lm.acomplete(ASKED)).text for _ in range(2)]

    with raw_server(reply(), hang_up, reply(), reply(), hang_up, reply()) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.base_url.removesuffix("/v1"))
        lm = LM("http://model.example/v1", model="m", max_retries=0)
        assert [lm.complete(ASKED).text for _ in range(2)] == ["hello", "hello"]
        lm.close()
        assert asyncio.run(main(LM("http://model.example/v1", model="m", max_retries=0))) == [
            "hello",
            "hello",
        ]


@ways
def test_a_compressed_answer_is_read(ask):
    with raw_server(reply(gzip.compress(OK), content_encoding="gzip")) as server:
        assert "hello" in str(ask(LM(server.base_url, model="m", max_retries=0)))


@ways
def test_a_redirect_is_not_followed(ask):
    """The key would go to another server."""
    with (
        raw_server(reply()) as other,
        raw_server(reply("", "307 Elsewhere", location=other.base_url)) as server,
    ):
        with pytest.raises(BadRequestError):
            ask(LM(server.base_url, model="m", api_key="x", max_retries=0))
        assert other.accepted == 0


def private_tls(folder, *, host="127.0.0.1", days=9):
    """The TLS of a server whose certificate is its own authority, and the file of that certificate."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ours")]),
    )
    now, place = (
        datetime.now(UTC),
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]),
    )
    made = x509.CertificateBuilder(
        name,
        name,
        key.public_key(),
        1,
        now - timedelta(9),
        now + timedelta(days),
    )
    certificate = made.add_extension(place, critical=False).add_extension(
        x509.BasicConstraints(ca=True, path_length=0),
        critical=True,
    )
    path = folder / "both.pem"
    form, raw = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(
        certificate.sign(key, hashes.SHA256()).public_bytes(form)
        + key.private_bytes(form, raw, serialization.NoEncryption()),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context, path


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    return private_tls(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(
    ("given", "why"),
    [({"days": -1}, "expired"), ({"host": "127.0.0.2"}, "(?i)ip address mismatch|not valid for")],
)
@ways
def test_a_certificate_of_a_known_authority_that_is_expired_or_of_another_host_is_refused(
    ask,
    monkeypatch,
    tmp_path,
    given,
    why,
):
    """And nothing was sent, no key either."""
    context, path = private_tls(tmp_path, **given)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with raw_server(reply(), tls=context) as server:
        with pytest.raises(UnavailableError, match=why):
            ask(LM(server.base_url, model="m", api_key="sk-secret", max_retries=0))
        assert not server.requests


@ways
def test_a_server_of_a_private_authority_is_asked_once_its_certificate_is_named(
    ask,
    monkeypatch,
    private,
):
    context, path = private
    with raw_server(reply(), tls=context) as server:
        with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            ask(LM(server.base_url, model="m", max_retries=0))
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        lm = LM(server.base_url, model="m", max_retries=0)
        assert ask(lm)
        assert ask(lm)


def test_a_request_that_is_cancelled_when_its_handshake_ends_leaves_no_socket_to_the_next(
    monkeypatch,
    private,
):
    """Its transport waited for the server's farewell on a socket that was closed, whose number the
    next connection got.
    """
    context, path = private
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    complete, over = sslproto.SSLProtocol._on_handshake_complete, threading.Event()

    def shake_hands(listener):
        """And say nothing more."""
        with (
            listener,
            listener.accept()[0] as accepted,
            context.wrap_socket(accepted, server_side=True),
        ):
            over.wait()

    async def main(lm):
        left = []
        asking = asyncio.ensure_future(lm.acomplete(ASKED))

        def completed(protocol, *error):
            left.append(protocol._transport)
            complete(protocol, *error)
            asking.cancel()

        monkeypatch.setattr(sslproto.SSLProtocol, "_on_handshake_complete", completed)
        await asyncio.wait([asking])
        return [each.is_closing() for each in left]

    listener = socket.create_server(("127.0.0.1", 0))
    server = threading.Thread(target=shake_hands, args=[listener])
    server.start()
    try:
        assert asyncio.run(
            main(LM(f"https://127.0.0.1:{listener.getsockname()[1]}/v1", model="m", max_retries=0)),
        ) == [True]
    finally:
        over.set()
        server.join()
