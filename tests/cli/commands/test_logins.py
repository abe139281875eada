"""`ferrule mcp login` and `logout`, and what other commands do with a server that wants a log-in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

from login_server import browse, login_server

from ferrule.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from login_server import LoginServer


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoginServer]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    monkeypatch.setenv("BROWSER", "a-browser")
    monkeypatch.setattr("webbrowser.open", browse)
    with login_server() as made:
        yield made


def test_who_logged_in_once_uses_the_server_until_logout(
    server: LoginServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tools", "--mcp", server.url, "--json"]) == 1
    assert f"Log in once with `ferrule mcp login {server.url}`" in capsys.readouterr().err
    assert main(["mcp", "login", server.url]) == 0
    err = capsys.readouterr().err
    assert f"Log in here, if no browser opens:\n  {server.origin}/auth/authorize?" in err
    assert "You are logged in to 127.0.0.1" in err
    assert main(["tools", "--mcp", server.url, "--json"]) == 0
    assert [each["function"]["name"] for each in json.loads(capsys.readouterr().out)] == [
        "greet",
        "erase",
    ]
    assert main(["mcp", "logout", server.url]) == 0
    assert main(["mcp", "logout", server.url]) == 0
    assert ["You are logged out" in line for line in capsys.readouterr().err.splitlines()] == [
        True,
        False,
    ]
    assert main(["tools", "--mcp", server.url]) == 1


def test_a_device_code_is_shown(server: LoginServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.offers_device = True
    assert main(["mcp", "login", server.url, "--device"]) == 0
    assert (
        f"To log in, open {server.origin}/auth/enter on any device and enter the code ABCD-EFGH"
        in capsys.readouterr().err
    )


def test_a_server_of_a_file_logs_in_by_its_name(
    server: LoginServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(
        json.dumps(
            {
                "mcpServers": {
                    "locked": {"type": "http", "url": server.url},
                    "key": {"command": "x"},
                }
            },
        ),
    )
    assert main(["mcp", "login", f"{file}:locked"]) == 0
    assert "You are logged in to locked." in capsys.readouterr().err
    for words, why in (
        (f"{file}:key", "has no server 'key' to log in to; it has ['locked']"),
        ("here", "takes an address or FILE:NAME"),
    ):
        assert main(["mcp", "login", words]) == 2
        assert why in capsys.readouterr().err


def test_a_denial_is_told_in_one_line(
    server: LoginServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.person = "denies"
    assert main(["mcp", "login", server.url]) == 1
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("the log-in was denied (access_denied: You said [31m no.).")
    )
