"""The error of a log-in, and what may be shown of another server's answer."""

from __future__ import annotations

import json
import re
from typing import Any, cast

_LONGEST = 200


class LoginError(Exception):
    """Why there is no log-in; the message has no subject."""


def public_text(text: str) -> str:
    """Another server's text on one line, shortened, without control characters."""
    return re.sub(r"[^\x20-\x7e\u00a0-\u1fff\u3000-\ufaff]+", " ", text).strip()[:_LONGEST]


def json_of(response: Any) -> dict[str, Any]:
    """The JSON object of a response; empty if it holds none."""
    try:
        found = json.loads(response.content)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def error_of(response: Any) -> str:
    """The error of an authorization server's response (RFC 6749, section 5.2), and nothing else from it."""
    found = json_of(response)
    texts = [found.get(key) for key in ("error", "error_description")]
    return (
        ": ".join(public_text(each) for each in texts if isinstance(each, str))
        or f"HTTP {response.status_code}"
    )
