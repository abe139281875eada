"""A signed webhook: posts each question that waits for a person to an address.

The form is that of Standard Webhooks (standardwebhooks.com), for which many languages have a
library: `webhook-id`, `webhook-timestamp`, and `webhook-signature`, an HMAC-SHA256 of both and the
body. The body has the call in words, as a person reads it, and a link to the page. A secret
argument is stars there, too, and an address that a server wants to have opened is left out.

Nothing is stored: what was sent is known to this process only. So a question that still waits is
sent again by the next process, with the same `webhook-id`, and a receiver that must not hear of it
twice keeps the ids. A failure is tried again for as long as the question waits.
"""

from __future__ import annotations

import hmac
import logging
import threading
from base64 import b64decode, b64encode
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from ferrule.approval.call_view import view_call
from ferrule.approval.result_links import ForgedTokenError
from ferrule.encoding.encode import json_text
from ferrule.encoding.safe_text import printable
from ferrule.encoding.stored import parse_object
from ferrule.errors import ConfigurationError, StoreError, checks_keywords, shown
from ferrule.net.connections import Clients, Timeouts
from ferrule.net.loopback import is_loopback
from ferrule.net.reading import send
from ferrule.runs.protocols import check_store
from ferrule.web import reading
from ferrule.web.inbox import brief_of, why_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.runs.protocols import Store

_log = logging.getLogger("ferrule.web")
_SHORTEST_SECRET = 32
_PREFIX = "whsec_"
"""Begins a secret in the form of Standard Webhooks: the rest is Base64."""
_TIMEOUT_S = 10.0
_LONGEST_PAUSE_S = 300.0
_MOST_CARD = 4_000
"""Characters of a card."""


class Webhook:
    """Tells an address of each question of a store that waits for a person, from a thread.

    ```text
    address, page = "https://hooks.example.org/ferrule", "https://runs.example.org"
    with Webhook(store, address, secret=..., page=page):
        ...
    ```

    Args:
        store: The store with the runs.
        url: Where the questions are posted: `https://`, or `http://` on this machine.
        secret: At least 32 characters that only the receiver knows: `secrets.token_urlsafe(32)`,
            or `whsec_` and Base64.
        page: The address of the page (`ferrule ui`), to which the links lead.
        poll_s: After how many seconds to look for new questions.

    Raises:
        ConfigurationError: An address is not one of HTTP, or the secret is short.

    """

    @checks_keywords
    def __init__(
        self, store: Store, url: str, *, secret: str, page: str, poll_s: float = 1.0
    ) -> None:
        check_store(store)
        self._store = store
        self._url = _checked_address(url)
        self._host = urlsplit(url).netloc.rpartition("@")[2]
        self._key = _key_of(secret)
        self._page = _checked_page(page)
        self._poll_s = poll_s
        self._sent: set[str] = set()
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        """By question, the time before which it is not tried again."""
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._clients = Clients(Timeouts(_TIMEOUT_S, _TIMEOUT_S, _TIMEOUT_S))

    def __repr__(self) -> str:
        return f"Webhook({self._host!r}, secret=...)"

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def start(self) -> None:
        """Begin to look for questions, in a thread that does not keep the process alive."""
        if self._thread is None:
            self._end.clear()
            self._thread = threading.Thread(target=self._run, name="ferrule-webhook", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop. A request that is under way ends first."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(_TIMEOUT_S + 1)
            self._thread = None
        self._clients.close()

    def send(self) -> int:
        """Post the questions that were not posted by this object; returns how many arrived."""
        waiting = [asked for asked in reading.inbox(self._store)[0] if asked.decision is None]
        ids = {asked.question.id for asked in waiting}
        self._sent &= ids
        for forgotten in self._failures.keys() - ids:
            del self._failures[forgotten], self._not_before[forgotten]
        arrived = 0
        for asked in waiting:
            question_id = asked.question.id
            if question_id in self._sent or time() < self._not_before.get(question_id, 0.0):
                continue
            problem = self._post(asked)
            if not problem:
                arrived += 1
                self._sent.add(question_id)
                self._failures.pop(question_id, None)
                self._not_before.pop(question_id, None)
                continue
            failures = self._failures[question_id] = self._failures.get(question_id, 0) + 1
            self._not_before[question_id] = time() + min(_LONGEST_PAUSE_S, 2.0**failures)
            _log.warning(
                "The webhook at %s was not told of the question %s, and will be again: %s",
                self._host,
                question_id,
                problem,
            )
        return arrived

    def _run(self) -> None:
        seen: Any = None
        while not self._end.is_set():
            try:
                changes = self._store.changes()
                if changes != seen or self._not_before:
                    self.send()
                    seen = changes
            except StoreError as error:
                _log.warning("The webhook at %s cannot read the store: %s", self._host, error)
            self._end.wait(self._poll_s)

    def _post(self, asked: reading.AskedQuestion) -> str:
        """Post one question; returns what went wrong."""
        import httpx2  # late: only a webhook that has something to say needs it

        body = json_text(message_of(asked, self._page)).encode()
        headers = _headers(self._key, asked.question.id, body)
        deadline = monotonic() + _TIMEOUT_S
        client = self._clients.of_threads()
        try:
            # The answer says all by its status: its body is never read.
            with closing(send(client, httpx2.URL(self._url), headers, body, deadline)) as response:
                if response.is_success:
                    return ""
                return f"status {response.status_code}"
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            return type(error).__name__  # its text may have the address, which may be a secret


def message_of(asked: reading.AskedQuestion, page: str) -> dict[str, Any]:
    """What a webhook says of a question: in words, with a link, and without a secret."""
    run, question = asked.run, asked.question
    card = view_call(question).lines()
    if question.kind in {"clarify", "input"}:
        card = [printable(question.text)]
    link = f"{page}/runs/{reading.id_in_path(run.id)}#q-{question.id}"
    return {
        "type": "question.waiting",
        "timestamp": _iso(run.updated_at),
        "data": {
            "question_id": question.id,
            "run_id": run.id,
            "program": run.program,
            "title": run.title,
            "metadata": dict(run.metadata),
            "kind": question.kind,
            "tool": question.call.name,
            "text": brief_of(question),
            "reason": why_of(question),
            "card": "\n".join(card)[:_MOST_CARD],
            "expires_at": _iso(question.expires_at),
            "url": link,
        },
    }


@checks_keywords
def read_webhook(
    secret: str, headers: Mapping[str, str], body: bytes, *, tolerance_s: float = 300.0
) -> dict[str, Any]:
    """The message of a webhook, once its signature is checked.

    Args:
        secret: The secret of the `Webhook`.
        headers: The headers of the request; names in any case.
        body: The body of the request, as it came.
        tolerance_s: How old, or how far in the future, it may be.

    Raises:
        ForgedTokenError: The request was not signed with this secret, was changed, or is old.

    """
    lower = {name.lower(): value for name, value in headers.items()}
    message_id = lower.get("webhook-id", "")
    timestamp = lower.get("webhook-timestamp", "")
    expected = _signature(_key_of(secret), message_id, timestamp, body)
    matches = [
        hmac.compare_digest(signature.encode(), expected.encode())
        for signature in lower.get("webhook-signature", "").split(" ")
    ]
    if not any(matches):
        raise ForgedTokenError("This request was not signed with the secret of the webhook.")
    # Signed, so it is a number that a `Webhook` wrote.
    if abs(time() - float(timestamp)) > tolerance_s:
        raise ForgedTokenError("This request is old: it may have been recorded and sent again.")
    return parse_object(body.decode(), "the message of a webhook")


def signed_headers(secret: str, message_id: str, body: bytes) -> dict[str, str]:
    """The headers of a message, for a test of a receiver."""
    return _headers(_key_of(secret), message_id, body)


def _headers(key: bytes, message_id: str, body: bytes) -> dict[str, str]:
    timestamp = str(int(time()))
    return {
        "content-type": "application/json",
        "user-agent": "ferrule",
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": _signature(key, message_id, timestamp, body),
    }


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    content = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + b64encode(hmac.new(key, content, sha256).digest()).decode()


def _key_of(secret: Any) -> bytes:
    if isinstance(secret, str) and len(secret) >= _SHORTEST_SECRET:
        if not secret.startswith(_PREFIX):
            return secret.encode()
        try:
            return b64decode(secret.removeprefix(_PREFIX), validate=True)
        except ValueError:
            raise ConfigurationError(
                "`secret` of `Webhook` begins with `whsec_`, and the rest is not Base64."
            ) from None
    raise ConfigurationError(
        f"`secret` of `Webhook` has at least {_SHORTEST_SECRET} characters. Make one with "
        "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`."
    )


def _checked_address(url: Any) -> str:
    """The address of a receiver. Its host is named in errors, the rest may be a secret."""
    parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
    is_private = parts.scheme == "https" or (
        parts.scheme == "http" and is_loopback(parts.hostname or "")
    )
    if not is_private or not parts.hostname:
        raise ConfigurationError(
            "`url` of `Webhook` is an address that begins with https://, or with http:// on this "
            f"machine; found one with the scheme {parts.scheme!r} and the host {parts.hostname!r}."
        )
    return str(url)


def _checked_page(page: Any) -> str:
    if not isinstance(page, str) or not page.startswith(("https://", "http://")):
        raise ConfigurationError(
            "`page` of `Webhook` is the address of the page, such as 'https://runs.example.org'; "
            f"found {shown(page)}."
        )
    return page.rstrip("/")


def _iso(at: float | None) -> str | None:
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # an expiry beyond the year 9999
        return None
