"""What a child process inherits: enough to reach the network as its parent does, and no secrets.
(M15)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule import MCPServer
from ferrule.errors import ConfigurationError, MCPConnectionError, MCPTimeoutError

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

SCRIPT = Path(__file__).parents[2] / "moody_server.py"
GIVEN = {
    "HTTPS_PROXY": "http://proxy.example:3128", "no_proxy": "localhost", "NODE_USE_ENV_PROXY": "1",
    "SSL_CERT_FILE": "/etc/ca.pem", "NODE_EXTRA_CA_CERTS": "/etc/more.pem", "REQUESTS_CA_BUNDLE": "/etc/ca.pem",
    "LANG": "de_DE.UTF-8", "LC_TIME": "C", "TZ": "Europe/Berlin",
    "MY_SECRET": "hunter2", "OPENAI_API_KEY": "hunter2", "HTTPS_PROXY_TOKEN": "hunter2", "SSL_CERT_PASSWORD": "hunter2", "MY_OWN": "own",
}  # fmt: skip
NETWORK = {
    "HTTPS_PROXY",
    "no_proxy",
    "NODE_USE_ENV_PROXY",
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
}
LOCALE = {"LANG", "LC_TIME", "TZ"}


@pytest.fixture
def inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The variables of ours that a child with these options has."""
    for name in (
        "HTTP_PROXY",
        "http_proxy",
        "https_proxy",
        "ALL_PROXY",
        "NO_PROXY",
        "LC_ALL",
        "PYTHONUTF8",
        "PYTHONIOENCODING",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)

    def of(**options: Any) -> set[str]:
        server = MCPServer.stdio(sys.executable, [str(SCRIPT), str(tmp_path)], **options)
        with server:
            return (
                json.loads(server.call("environment")["content"][0]["text"]).keys() & GIVEN.keys()
            )

    return of


@pytest.mark.skipif(sys.platform == "win32", reason="names there have no case")
def test_a_child_has_the_proxies_and_certificates_of_its_parent_and_no_secret(
    inherited: Any,
) -> None:
    assert inherited() == NETWORK
    assert inherited(inherit=[]) == set()
    assert inherited(inherit=["proxy", "certificates", "locale"]) == NETWORK | LOCALE
    assert inherited(inherit=["locale", "MY_OWN"]) == LOCALE | {"MY_OWN"}
    assert inherited(env={"MY_OWN": "x"}) == NETWORK | {"MY_OWN"}


@pytest.mark.skipif(sys.platform == "win32", reason="names there have no case")
def test_a_proxy_with_a_password_is_inherited_by_name_only(
    inherited: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hunter2@proxy.example:3128")
    assert inherited() == NETWORK - {"HTTPS_PROXY"}
    assert inherited(inherit=["proxy", "HTTPS_PROXY"]) == {
        "HTTPS_PROXY",
        "no_proxy",
        "NODE_USE_ENV_PROXY",
    }


def test_what_is_inherited_is_saved_and_checked() -> None:
    server = MCPServer.stdio("x", inherit=["locale"])
    assert server.dump_state()["options"] == {"inherit": ["locale"]}
    assert MCPServer.from_state(server.dump_state()).options.inherit == ["locale"]
    for wrong in ("proxy", ["proxies"], ["SECRET_*"], [3]):
        with pytest.raises(ConfigurationError, match=r"`inherit`.*proxy.*certificates.*locale"):
            MCPServer.stdio("x", inherit=wrong)


@pytest.mark.parametrize(
    "words",
    [
        "npm error code SELF_SIGNED_CERT_IN_CHAIN",
        "npm error unable to get local issuer certificate",
        "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate",
        "error sending request: invalid peer certificate: UnknownIssuer",
        "tls: failed to verify certificate: x509: certificate signed by unknown authority",
    ],
    ids=["npm", "node", "python", "uv", "go"],
)
def test_a_child_that_dies_of_a_certificate_gets_a_hint(tmp_path: Path, words: str) -> None:
    (tmp_path / "crash").write_text(words)
    with pytest.raises(MCPConnectionError, match=r"NODE_EXTRA_CA_CERTS.*SSL_CERT_FILE"):
        MCPServer.stdio(sys.executable, [str(SCRIPT), str(tmp_path)]).connect()


def test_one_that_waits_after_such_words_gets_it_too(tmp_path: Path) -> None:
    code = "import sys, time; print('certificate verify failed', file=sys.stderr, flush=True); time.sleep(600)"
    with pytest.raises(MCPTimeoutError, match="SSL_CERT_FILE"):
        MCPServer.stdio(sys.executable, ["-c", code], connect_timeout_s=2).connect()


def test_a_child_without_network_learns_of_the_proxy_that_it_did_not_get(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hunter2@proxy.example:3128")
    (tmp_path / "crash").write_text(
        "npm error network request to https://registry.example failed, reason: getaddrinfo ENOTFOUND",
    )
    with pytest.raises(
        MCPConnectionError,
        match=r"`HTTPS_PROXY` holds a password.*inherit=",
    ) as raised:
        MCPServer.stdio(sys.executable, [str(SCRIPT), str(tmp_path)]).connect()
    assert "hunter2" not in str(raised.value)
