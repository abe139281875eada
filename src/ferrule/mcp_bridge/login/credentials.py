"""Tokens and the registered client of a log-in, and where they are kept.

They are kept in the system's keyring, or in a file that only this user can read. `keyring` is an
optional package. The file is there in both cases: it holds the credentials, or says that the
keyring does. A second file, a lock, keeps two processes from refreshing at once: a refresh token
often works only once.
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

from msgspec import Struct
from msgspec.structs import asdict

from ferrule.concurrency.offload import in_worker_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

from ferrule.record import PartlyCompared

log = logging.getLogger("ferrule.mcp")

_SERVICE = "ferrule-mcp"
_IN_KEYRING = {"in": "keyring"}
_POLL_S = 0.05
_TRIES = 20
_LONGEST_OF_WINDOWS = 1_200
"""Characters that an entry of the Windows Credential Manager holds."""


class Credentials(PartlyCompared, Struct, frozen=True, kw_only=True):
    """What is known after a log-in, as JSON. Its `repr` shows nothing of it."""

    _not_shown = frozenset({"tokens", "expires_at", "client", "server", "resource"})

    tokens: dict[str, Any] | None = None
    expires_at: float | None = None
    client: dict[str, Any] | None = None
    server: dict[str, Any] | None = None
    """Metadata of the authorization server: a refresh after a restart needs its address."""
    resource: dict[str, Any] | None = None
    """Metadata of the protected resource."""

    @property
    def is_valid(self) -> bool:
        """Whether its fields have the right types: a stored file may hold anything."""
        parts = (self.tokens, self.client, self.server, self.resource)
        has_time = isinstance(self.expires_at, int | float | None)
        return has_time and all(isinstance(part, dict | None) for part in parts)

    @property
    def access_token(self) -> str | None:
        """The access token."""
        if self.tokens:
            return self.tokens.get("access_token")
        return None

    @property
    def can_refresh(self) -> bool:
        """Whether there is what a refresh needs."""
        return bool(self.tokens and self.tokens.get("refresh_token") and self.client)


class CredentialStore:
    """The credentials for one server."""

    def __init__(self, url: str) -> None:
        self._url = url.partition("#")[0]
        host = re.sub(r"[^a-z0-9.-]+", "-", (urlsplit(url).hostname or "server").lower())
        digest = hashlib.sha256(self._url.encode()).hexdigest()[:16]
        self.path = data_folder() / "mcp" / f"{host}-{digest}.json"

    async def read(self) -> Credentials:
        """The stored credentials; empty ones if there are none that can be read."""
        return await in_worker_thread(self._read)

    async def write(self, credentials: Credentials) -> None:
        """Store credentials. A failure is logged: then they last as long as the process."""
        await in_worker_thread(lambda: self._write(credentials))

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
            fields: Any = json.loads(self.path.read_text(encoding="utf-8"))
            if fields == _IN_KEYRING:
                fields = json.loads(_read_keyring(self._url) or "{}")
            credentials = Credentials(**fields)
        except (OSError, ValueError, TypeError):
            return Credentials()
        if credentials.is_valid:
            return credentials
        return Credentials()

    def _write(self, credentials: Credentials) -> None:
        fields = asdict(credentials)
        text = json.dumps({key: value for key, value in fields.items() if value is not None})
        if _write_keyring(self._url, text):
            text = json.dumps(_IN_KEYRING)
        try:
            _write_private(self.path, text)
        except OSError as error:
            log.warning(
                "The log-in cannot be stored, and ends with this process: %s: %s",
                type(error).__name__,
                error,
            )

    def _delete(self) -> bool:
        if not self.path.exists():
            return False
        with contextlib.suppress(OSError, ValueError):
            if json.loads(self.path.read_text(encoding="utf-8")) == _IN_KEYRING:
                _delete_from_keyring(self._url)
        self.path.unlink(missing_ok=True)
        return True


def data_folder() -> Path:
    """The user's folder for data of ferrule."""
    home = os.environ.get("XDG_DATA_HOME")
    if home:
        return Path(home) / "ferrule"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "ferrule"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "ferrule"
    return Path.home() / ".local" / "share" / "ferrule"


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read; readers see the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    try:
        # Never open to others, not even for the moment between creating it and a `chmod`.
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        move_over(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def move_over(draft: Path, path: Path) -> None:
    """Give a file the name of another one, which it replaces."""
    for tries_left in range(_TRIES, -1, -1):
        try:
            draft.replace(path)
            break
        except PermissionError:  # on Windows while another process reads the file
            if not tries_left or sys.platform != "win32":
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
    package = cast("Any", keyring)
    # Backends below 1 keep secrets in the clear, or only stand for a missing one.
    if package.get_keyring().priority >= 1:
        return package
    return None


def _write_keyring(url: str, text: str) -> bool:
    keyring = _keyring()
    if keyring is None or (sys.platform == "win32" and len(text) > _LONGEST_OF_WINDOWS):
        return False
    try:
        keyring.set_password(_SERVICE, url, text)
    except keyring.errors.KeyringError:
        return False
    return True


def _read_keyring(url: str) -> str | None:
    keyring = _keyring()
    if keyring is None:
        return None
    try:
        return keyring.get_password(_SERVICE, url)
    except keyring.errors.KeyringError:
        return None


def _delete_from_keyring(url: str) -> None:
    keyring = _keyring()
    if keyring is not None:
        with contextlib.suppress(keyring.errors.KeyringError):
            keyring.delete_password(_SERVICE, url)
