"""Names of tools on the wire.

Providers accept names that match `[A-Za-z0-9_-]{1,64}`. Other characters are escaped as `_dot_` or
`_x<hexadecimal>_`, and `own_name` reads them back. Only a name that is too long, empty or
unprintable has no wire form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.encoding.pattern import pattern
from ferrule.errors import ToolDefinitionError, shown

if TYPE_CHECKING:
    import re

LONGEST = 64
_SAFE = pattern(r"[A-Za-z0-9_-]+")
_ESCAPE = pattern(r"_(?:dot|x([0-9a-f]{2,5}|10[0-9a-f]{4}))_")


def wire_name(name: str) -> str:
    """The provider-safe form of a name. Raises `ToolDefinitionError` if there is none."""
    if _SAFE.fullmatch(name) and len(name) <= LONGEST and not _ESCAPE.search(name):
        return name
    if not name.strip() or not name.isprintable():
        raise ToolDefinitionError(
            f"{shown(name)} cannot be a tool's name: it must have letters that can be printed, "
            "and no line breaks."
        )
    wire = "".join(map(_safe_or_escaped, name))
    if own_name(wire) != name:  # the name itself looks like an escape somewhere
        wire = _escape_all(name)
    if len(wire) > LONGEST:
        written_out = ""
        if wire != name:
            written_out = f" (`{wire}` with its special characters written out)"
        raise ToolDefinitionError(
            f"`{name}`{written_out} is longer than the {LONGEST} characters that providers take "
            "for a tool's name. Give `name=` a shorter one."
        )
    return wire


def _escape_all(name: str) -> str:
    """The name with its underscores escaped, too, because they are part of every escape."""
    return "".join(
        _escape(character) if character == "_" else _safe_or_escaped(character)
        for character in name
    )


def _safe_or_escaped(character: str) -> str:
    if _SAFE.fullmatch(character):
        return character
    return _escape(character)


def _escape(character: str) -> str:
    if character == ".":
        return "_dot_"
    return f"_x{ord(character):02x}_"


def own_name(wire: str) -> str:
    """The inverse of `wire_name`: the tool's own name."""
    return _ESCAPE.sub(_unescape, wire)


def _unescape(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 16))
    return "."
