"""How a door opens: output that no terminal refuses, and one clear line where the extra `ferrule[cli]` is missing."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_EXTRA = frozenset({"typer", "rich", "click"})
MISSING_EXTRA = "This needs ferrule's extra for the terminal: pip install 'ferrule[cli]'"


def entered(load: Callable[[], Callable[[], int]]) -> int:
    """Load a door and go through it; returns its exit code. `load` imports what stands behind, which may need the extra."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without this or that character is no reason to fail
    try:
        door = load()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(MISSING_EXTRA, file=sys.stderr)
        return 1
    return door()
