"""Who may use the page: a token in each person's link opens a session, which lives as long as the process."""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING

from ferrule.values.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_WRONG, _MINUTE_S = 5, 60.0
_MOST_SESSIONS = 1000


class BrowserSession(Record):
    """One browser of one person."""

    person: str
    csrf: str
    """What every form of this session holds, so that no other page can post one."""


class Sessions:
    """The tokens and the sessions of one app. Only digests are kept."""

    def __init__(self, people: Sequence[str]) -> None:
        self.links = {person: secrets.token_urlsafe(32) for person in people}
        """The token of each person's link."""
        self._people = [(_digest(token), person) for person, token in self.links.items()]
        self._open: dict[bytes, BrowserSession] = {}
        self._wrong: list[float] = []

    def enter(self, token: str) -> str | None:
        """The id of a new session for a token; None for a wrong one."""
        given, found = _digest(token), ""
        for digest, person in self._people:  # all of them, so that the time says nothing
            if hmac.compare_digest(digest, given):
                found = person
        if not found:
            now = monotonic()
            self._wrong = [*(at for at in self._wrong if now - at < _MINUTE_S), now][-_MOST_WRONG - 1 :]
            return None
        key = secrets.token_urlsafe(32)
        self._open[_digest(key)] = BrowserSession(found, secrets.token_urlsafe(32))
        while len(self._open) > _MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        return key

    @property
    def is_guessed(self) -> bool:
        """Whether more wrong tokens came in the last minute than a person mistypes."""
        return len(self._wrong) > _MOST_WRONG and monotonic() - self._wrong[0] < _MINUTE_S

    def find(self, key: str) -> BrowserSession | None:
        """The session of a cookie."""
        return self._open.get(_digest(key)) if key else None


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
