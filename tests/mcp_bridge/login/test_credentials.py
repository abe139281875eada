"""Where the credentials of a log-in are kept.

`keyring` is an optional package: a module of its form stands in.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ferrule.mcp_bridge.login import credentials
from ferrule.mcp_bridge.login.credentials import Credentials, CredentialStore, data_folder

URL = "https://example.com/mcp"
FOUND = Credentials(
    tokens={"access_token": "hunter2", "refresh_token": "hunter3"},
    expires_at=1.0,
    client={"client_id": "x"},
)


class KeyringError(Exception):
    """As of the package."""


class Keyring(ModuleType):
    """As much of the package as is used."""

    def __init__(self, priority: float = 5, *, is_locked: bool = False) -> None:
        super().__init__("keyring")
        self.kept: dict[tuple[str, str], str] = {}
        self.errors = SimpleNamespace(KeyringError=KeyringError)
        self.is_locked = is_locked
        self._priority = priority

    def get_keyring(self) -> SimpleNamespace:
        return SimpleNamespace(priority=self._priority)

    def get_password(self, service: str, name: str) -> str | None:
        return self.kept.get((service, name))

    def set_password(self, service: str, name: str, text: str) -> None:
        if self.is_locked:
            raise KeyringError
        self.kept[service, name] = text

    def delete_password(self, service: str, name: str) -> None:
        del self.kept[service, name]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "keyring", None)


def kept() -> str:
    return "".join(each.read_text() for each in data_folder().glob("mcp/*.json"))


def test_without_a_keyring_a_file_holds_them() -> None:
    store = CredentialStore(URL)
    assert asyncio.run(store.read()) == Credentials()
    asyncio.run(store.write(FOUND))
    assert asyncio.run(CredentialStore(URL).read()) == FOUND
    assert asyncio.run(CredentialStore("https://example.com/other").read()) == Credentials()
    assert "hunter2" in kept()
    assert asyncio.run(store.delete())
    assert not asyncio.run(store.delete())
    assert asyncio.run(store.read()) == Credentials()


def test_a_keyring_holds_them_and_the_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = Keyring()
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    store = CredentialStore(URL)
    asyncio.run(store.write(FOUND))
    assert "hunter" not in kept()
    assert asyncio.run(store.read()) == FOUND
    assert asyncio.run(store.delete())
    assert keyring.kept == {}


@pytest.mark.parametrize(
    "keyring",
    [Keyring(0), Keyring(is_locked=True)],
    ids=["none_is_safe", "locked"],
)
def test_a_keyring_that_cannot_hold_them_leaves_them_to_the_file(
    keyring: Keyring,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    asyncio.run(CredentialStore(URL).write(FOUND))
    assert asyncio.run(CredentialStore(URL).read()) == FOUND
    assert keyring.kept == {}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"other": 1}', '{"in": "keyring"}', '{"tokens": "x"}', '{"expires_at": "x"}'],
)
def test_a_file_that_cannot_be_read_is_no_log_in(text: str) -> None:
    store = CredentialStore(URL)
    store.path.parent.mkdir(parents=True)
    store.path.write_text(text)
    assert asyncio.run(store.read()) == Credentials()


def test_what_cannot_be_stored_is_told_and_lasts_with_the_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))

    async def use() -> None:
        store = CredentialStore(URL)
        async with store.locked("refresh"):
            await store.write(FOUND)

    asyncio.run(use())
    assert "The log-in cannot be stored, and ends with this process" in caplog.text
    assert "hunter" not in caplog.text


def test_a_file_that_another_process_reads_is_replaced_when_it_is_free(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Windows an open file cannot be replaced; elsewhere the error is a real one."""
    real, refused = Path.replace, iter([True, True])

    def replace(draft: Path, path: Path) -> Path:
        if next(refused, False):
            raise PermissionError(13, "in use")
        return real(draft, path)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(credentials.time, "sleep", lambda _: None)
    place = tmp_path / "x.json"
    with pytest.raises(PermissionError):
        credentials._write_private(place, "a")
    monkeypatch.setattr(sys, "platform", "win32")
    credentials._write_private(place, "b")
    assert place.read_text() == "b"
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]


def test_credentials_show_nothing() -> None:
    assert "hunter" not in repr(FOUND)
