"""Strikes at system calls: `system_calls.c`, built when the test begins, and preloaded into the processes under test.

Only on Linux, and with a C compiler: `skipped()` says why not, otherwise.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

MODES = ("before", "half", "after", "interrupt")
_LIBRARY = "FERRULE_KILLING_LIBRARY"
_STORE = "/runs.db"


def skipped() -> str | None:
    """Why there are no strikes at system calls; None if there are."""
    if not sys.platform.startswith("linux"):
        return f"LD_PRELOAD is not tried on {sys.platform}"
    return None if shutil.which("cc") else "there is no C compiler (cc)"


def build(folder: Path) -> dict[str, str]:
    """Build the library; returns the environment of a process into which it is preloaded, empty if there is none."""
    if skipped() is not None:
        return {}
    library = folder / "system_calls.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(Path(__file__).with_suffix(".c")), "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library), _LIBRARY: str(library)}


@cache
def _library() -> Any:
    path = os.environ.get(_LIBRARY)
    return ctypes.CDLL(path) if path else None


def is_loaded() -> bool:
    """Whether this process can be struck at its system calls."""
    return _library() is not None


def arm(at: int, how: str) -> None:
    """Count the calls of this process on the store's files from here on; strike it at the `at`-th, or never (-1)."""
    if _library() is not None:
        _library().strike_at(_STORE.encode(), ctypes.c_long(at), MODES.index(how))


def passed() -> int:
    """How many calls were counted."""
    return int(_library().strike_passed()) if _library() is not None else 0


def unsynced() -> int:
    """How many writes to the store's files this process has not synced."""
    return int(_library().strike_unsynced()) if _library() is not None else 0
