"""The addresses to which the world sends results: one for each call, with a signed token.

A token says which call of which run it is for, and until when it holds, and is signed with the
secret that the settings have. So nothing is stored for it, any process with the secret can check
it, and it opens nothing but the result of its one call. Anyone who has it can deliver that
result. So no journal, event or trace has it: `runs/driver/outside.py` removes it from what the tool
returns, and `runs/life.py` from what it says while it works. The server that takes it keeps it out
of its log (`web/results.py`).
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from time import time
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from ferrule.errors import ConfigurationError, DecisionError, FerruleError, checks_keywords, shown
from ferrule.values.calls.context import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ferrule.values.calls.call import ToolCall

_WEEK_S = 7 * 24 * 3600.0
_SHORTEST_SECRET = 32
_LONGEST_TOKEN = 4096
_PURPOSE = b"ferrule result\0"
"""Signed with each token: a signature for another use of the same secret is none here."""


class ForgedTokenError(FerruleError):
    """A token was not made with a secret of these settings, or was changed."""


class ResultToken(Struct, frozen=True, array_like=True):
    """What a token says: which call it is for, and until when it holds."""

    run_id: str
    slot: str
    call_key: str
    """The first digits of a key of the call: another call at this place is another purpose."""
    expires_at: float

    def is_for(self, call: ToolCall) -> bool:
        """Whether the token was made for this call at its place."""
        return self.call_key == _key_of(self.run_id, self.slot, call.name, call.args)


class ResultLinks:
    """Where results from outside are sent: the setting `result_links`.

    Tools then have `Context.result_url`, and `result_route` and `ui_app` take what is posted there.

    Args:
        base_url: The public address of the server that has the route, such as
            `"https://agents.example.org"`.
        secret: At least 32 characters that nobody else knows: `secrets.token_urlsafe(32)`, made
            once, and the same in every process. Of several, the first signs, and all are accepted.
        valid_s: For how many seconds an address takes a result; a week by default.

    Raises:
        ConfigurationError: The address is not one of HTTP, or a secret is short.

    """

    @checks_keywords
    def __init__(
        self, base_url: str, *, secret: str | Sequence[str], valid_s: float = _WEEK_S
    ) -> None:
        self._secrets = _read_secrets(secret)
        given: Any = base_url
        if not isinstance(given, str) or not given.startswith(("https://", "http://")):
            raise ConfigurationError(
                "`ResultLinks` takes the public address of the server, such as "
                f"'https://agents.example.org'; found {shown(given)}."
            )
        self.base_url = base_url.rstrip("/")
        seconds: Any = valid_s
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 < seconds < float("inf"):
            raise ConfigurationError(
                "`valid_s` of `ResultLinks` is a number of seconds above 0, found "
                f"{shown(seconds)}."
            )
        self.valid_s = float(valid_s)

    def __repr__(self) -> str:
        return f"ResultLinks({self.base_url!r}, secret=..., valid_s={self.valid_s:g})"

    def token(self, run_id: str, slot: str, name: str, args: Mapping[str, Any]) -> str:
        """A token for the result of one call. `args` are its arguments as JSON data."""
        key = _key_of(run_id, slot, name, args)
        content = msgspec.json.encode(ResultToken(run_id, str(slot), key, time() + self.valid_s))
        return f"{_text_of(content)}.{_text_of(_signature(self._secrets[0], content))}"

    def url(self, token: str) -> str:
        """The address with a token."""
        return f"{self.base_url}/results/{token}"

    def read(self, token: str) -> ResultToken:
        """What a token says.

        Raises `ForgedTokenError` for one that was not made here, and `DecisionError` for one that
        has expired.
        """
        content, signature = _parts(token)
        # All of them are compared, so that the time that it takes says nothing.
        matches = [
            hmac.compare_digest(_signature(secret, content), signature) for secret in self._secrets
        ]
        if not any(matches):
            raise ForgedTokenError("This address was not made here.")
        read = msgspec.json.decode(content, type=ResultToken)
        if time() > read.expires_at:
            raise DecisionError("This address has expired: it takes no result.", reason="expired")
        return read


def _read_secrets(secret: Any) -> tuple[bytes, ...]:
    secrets: tuple[Any, ...] = (secret,)
    if isinstance(secret, list | tuple):
        secrets = tuple(cast("Sequence[Any]", secret))
    if not secrets or not all(isinstance(text, str) for text in secrets):
        raise ConfigurationError(
            "`secret` of `ResultLinks` is a text, or several, the first of which signs."
        )
    if any(len(text) < _SHORTEST_SECRET for text in secrets):
        raise ConfigurationError(
            f"`secret` of `ResultLinks` has at least {_SHORTEST_SECRET} characters. Make one with "
            "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`, and keep it where "
            "the keys of your models are."
        )
    return tuple(text.encode() for text in secrets)


def _parts(token: str) -> tuple[bytes, bytes]:
    """The content and the signature of a token."""
    content, mark, signature = token.partition(".")
    if not mark or len(token) > _LONGEST_TOKEN:
        raise ForgedTokenError("This address was not made here.")
    try:
        return _bytes_of(content), _bytes_of(signature)
    except ValueError:
        raise ForgedTokenError("This address was not made here.") from None


def _signature(secret: bytes, content: bytes) -> bytes:
    return hmac.new(secret, _PURPOSE + content, "sha256").digest()


def _key_of(run_id: str, slot: str, name: str, args: Mapping[str, Any]) -> str:
    return key_of(run_id, slot, name, args)[:16]


def _text_of(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _bytes_of(text: str) -> bytes:
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _text_of(data) != text:  # one token has one spelling
        raise ValueError("not the base64 of a token")
    return data
