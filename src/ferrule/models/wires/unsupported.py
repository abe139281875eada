"""What a wire has no place for: said in its stead to the model, and once in the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ferrule.values.content.parts import Part

_log = logging.getLogger("ferrule.models")
_told: set[tuple[str, str, str]] = set()


def left_out(part: Part, wire: str, place: str) -> str:
    """The text that stands for a part which `wire` cannot carry in `place` ("tool results", say)."""
    kind = type(part).__name__.lower()
    if (wire, kind, place) not in _told:
        _told.add((wire, kind, place))
        _log.warning("%s: %s carry no %s; the model is told in words that one was left out", wire, place, kind)
    return f"[{part!r} was left out: it cannot be sent here]"
