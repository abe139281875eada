"""What a log-in produces: tokens and the registered client, kept in the system's keyring or in a file of this user alone.

The file is there in both cases: it holds the credentials, or says that the keyring does. `keyring`
is an optional package. A lock beside the file keeps two processes from refreshing at once: a
refresh token often works only once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from ferrule.concurrency.offload import in_worker_thread
from ferrule.record import Record, field, fields_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

log = logging.getLogger("ferrule.mcp")

_SERVICE = "ferrule-mcp"
_IN_KEYRING = {"in": "keyring"}
_POLL_S = 0.05
_TRIES = 20
_LONGEST_OF_WINDOWS = 1_200
"""Characters that an entry of the Windows Credential Manager holds."""


class Credentials(Record, kw_only=True):
    """What is known after a log-in, as JSON. Its `repr` shows nothing of it."""

    tokens: dict[str, Any] | None = field(default=None, repr=False)
    expires_at: float | None = field(default=None, repr=False)
    client: dict[str, Any] | None = field(default=None, repr=False)
    server: dict[str, Any] | None = field(default=None, repr=False)
    """Metadata of the authorization server: a refresh after a restart needs its address."""
    resource: dict[str, Any] | None = field(default=None, repr=False)
    """Metadata of the protected resource."""

    @property
    def access_token(self) -> str | None:
        """The access token."""
        return self.tokens.get("access_token") if self.tokens else None

    @property
    def can_refresh(self) -> bool:
        """Whether there is what a refresh needs."""
        return bool(self.tokens and self.tokens.get("refresh_token") and self.client)


class CredentialStore:
    """The credentials for one server."""

    def __init__(self, url: str) -> None:
        self._url = url.partition("#")[0]
        host = re.sub(r"[^a-z0-9.-]+", "-", (urlsplit(url).hostname or "server").lower())
        self.path = (
            data_folder()
            / "mcp"
            / f"{host}-{hashlib.sha256(self._url.encode()).hexdigest()[:16]}.json"
        )

    async def read(self) -> Credentials:
        """The stored credentials; empty ones if there are none that can be read."""
        return await in_worker_thread(self._read)

    async def write(self, found: Credentials) -> None:
        """Store credentials. A failure is logged: then they last as long as the process."""
        await in_worker_thread(lambda: self._write(found))

    async def delete(self) -> bool:
        """Forget them; returns whether there were any."""
        return await in_worker_thread(self._delete)

    @asynccontextmanager
    async def locked(self, what: str) -> AsyncGenerator[None]:
        """Keep others that do the same, here and in other processes, out."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.path.with_suffix(f".{what}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:  # no place to store anything, and so nothing to keep others from
            yield
            return
        try:
            while not _try_lock(lock):  # noqa: ASYNC110  another process has no event
                await asyncio.sleep(_POLL_S)
            yield
        finally:
            _unlock(lock)
            os.close(lock)

    def _read(self) -> Credentials:
        try:
            text = self.path.read_text(encoding="utf-8")
            found: Any = json.loads(text)
            if found == _IN_KEYRING:
                found = json.loads(_from_keyring(self._url) or "{}")
            read = Credentials(**found)
            time_fits = isinstance(read.expires_at, int | float | None)
            parts = (read.tokens, read.client, read.server, read.resource)
            return (
                read
                if time_fits and all(isinstance(each, dict | None) for each in parts)
                else Credentials()
            )
        except (OSError, ValueError, TypeError):
            return Credentials()

    def _write(self, found: Credentials) -> None:
        text = json.dumps(
            {key: value for key, value in fields_of(found).items() if value is not None},
        )
        try:
            _replace(self.path, json.dumps(_IN_KEYRING) if _to_keyring(self._url, text) else text)
        except OSError as error:
            log.warning(
                "The log-in cannot be stored, and ends with this process: %s: %s",
                type(error).__name__,
                error,
            )

    def _delete(self) -> bool:
        there = self.path.exists()
        if there:
            with contextlib.suppress(OSError, ValueError):
                if json.loads(self.path.read_text(encoding="utf-8")) == _IN_KEYRING:
                    _from_keyring(self._url, delete=True)
            self.path.unlink(missing_ok=True)
        return there


def data_folder() -> Path:
    """The user's folder for data of ferrule."""
    home = os.environ.get("XDG_DATA_HOME")
    if home:
        return Path(home) / "ferrule"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "ferrule"
    return (
        Path.home()
        / ("Library/Application Support" if sys.platform == "darwin" else ".local/share")
        / "ferrule"
    )


def _replace(path: Path, text: str) -> None:
    """Write a file that only this user can read; readers see the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(
            os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600),
            "w",
            encoding="utf-8",
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        move_over(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def move_over(draft: Path, path: Path) -> None:
    """Give a file the name of another one, which it replaces."""
    for left in range(_TRIES, -1, -1):
        try:
            draft.replace(path)
            break
        except PermissionError:  # on Windows while another process reads the file
            if not left or sys.platform != "win32":
                raise
            time.sleep(_POLL_S)


def _try_lock(lock: int) -> bool:
    """Lock an open file, unless another holds it. The system ends the lock with the process."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _unlock(lock: int) -> None:
    """Unlock it at once: Windows takes its time after a close."""
    if sys.platform == "win32":
        import msvcrt

        with contextlib.suppress(OSError):
            msvcrt.locking(lock, msvcrt.LK_UNLCK, 1)


def _keyring() -> Any:
    """The package `keyring`, if it is installed and has a safe place on this system."""
    try:
        import keyring  # pyright: ignore[reportMissingImports]  optional
    except ImportError:
        return None
    found = cast("Any", keyring)
    return found if found.get_keyring().priority >= 1 else None


def _to_keyring(url: str, text: str) -> bool:
    keyring = _keyring()
    if keyring is None or (sys.platform == "win32" and len(text) > _LONGEST_OF_WINDOWS):
        return False
    try:
        keyring.set_password(_SERVICE, url, text)
    except keyring.errors.KeyringError:
        return False
    return True


def _from_keyring(url: str, *, delete: bool = False) -> str | None:
    keyring = _keyring()
    if keyring is None:
        return None
    try:
        return (
            keyring.delete_password(_SERVICE, url)
            if delete
            else keyring.get_password(_SERVICE, url)
        )
    except keyring.errors.KeyringError:
        return None
