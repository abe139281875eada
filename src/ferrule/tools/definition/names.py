"""Names of tools on the wire.

Providers take `[A-Za-z0-9_-]{1,64}`. A name made of these goes as it is; other characters are written `_dot_` or `_x<hexadecimal>_`, and
`own_name` reads them back. Only what is too long, empty or unprintable cannot be mapped.
"""

from __future__ import annotations

import re

from ferrule.errors import ToolDefinitionError, shown

LONGEST = 64
_SAFE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPE = re.compile(r"_(?:dot|x([0-9a-f]{2,5}|10[0-9a-f]{4}))_")


def wire_name(name: str) -> str:
    """The provider-safe form of a name. Raises `ToolDefinitionError` where there is none."""
    if _SAFE.fullmatch(name) and len(name) <= LONGEST and not _ESCAPE.search(name):
        return name
    if not name.strip() or not name.isprintable():
        msg = f"{shown(name)} cannot be a tool's name: it must have letters that can be printed, and no line breaks."
        raise ToolDefinitionError(msg)
    made = "".join(each if _SAFE.fullmatch(each) else _escape(each) for each in name)
    if own_name(made) != name:  # the name itself looks like an escape somewhere
        made = "".join(each if _SAFE.fullmatch(each) and each != "_" else _escape(each) for each in name)
    if len(made) > LONGEST:
        also = f" (`{made}` with its special characters written out)" if made != name else ""
        msg = f"`{name}`{also} is longer than the {LONGEST} characters that providers take for a tool's name. Give `name=` a shorter one."
        raise ToolDefinitionError(msg)
    return made


def own_name(wire: str) -> str:
    """The name that a wire name stands for."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else ".", wire)


def _escape(character: str) -> str:
    return "_dot_" if character == "." else f"_x{ord(character):02x}_"
