"""Secrets in what is shown."""

from __future__ import annotations

from ferrule.values.encoding.encode import json_text

_STARS = "**********"
"""What pydantic writes for a `SecretStr`."""


def is_masked(shown: object) -> bool:
    """Whether a secret stands in what is shown, as stars."""
    return _STARS in json_text(shown)
