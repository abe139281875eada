"""Strikes at system calls: `system_calls.c`, built when the test begins, and preloaded into the
processes under test.

Only on Linux, and with a C compiler; otherwise `build` says why not.
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

from killing import stores

MODES = ("before", "half", "after", "interrupt")
_LIBRARY = "FERRULE_KILLING_LIBRARY"


def build(folder: Path) -> tuple[dict[str, str], str | None]:
    """Build the library: the environment of a process into which it is preloaded, and why there is
    none.
    """
    if not sys.platform.startswith("linux"):
        return {}, f"LD_PRELOAD is not tried on {sys.platform}"
    if shutil.which("cc") is None:
        return {}, "there is no C compiler (cc)"
    library = folder / "system_calls.so"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        str(library),
        str(Path(__file__).with_suffix(".c")),
        "-ldl",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {}, f"the C compiler says: {done.stderr.strip()[:300]}"
    others = filter(None, [os.environ.get("LD_PRELOAD")])
    return {"LD_PRELOAD": ":".join([str(library), *others]), _LIBRARY: str(library)}, None


def check(folder: Path) -> None:
    """Raise if a library was built, and counts nothing here: a test without strikes must not pass
    for one with them.
    """
    if not is_loaded():
        return
    arm(-1, "before")
    stores.touch(folder)
    if passed() == 0:
        msg = f"{os.environ[_LIBRARY]} is loaded, and counted no system call on {stores.name()}"
        raise RuntimeError(msg)


@cache
def _library() -> Any:
    path = os.environ.get(_LIBRARY)
    return ctypes.CDLL(path) if path else None


def is_loaded() -> bool:
    """Whether this process can be struck at its system calls."""
    return _library() is not None


def arm(at: int, how: str) -> None:
    """Count the calls of this process on the store from here on; strike it at the `at`-th, or never
    (-1).
    """
    if _library() is not None:
        _library().strike_at(stores.name().encode(), ctypes.c_long(at), MODES.index(how))


def passed() -> int:
    """How many calls were counted."""
    return int(_library().strike_passed()) if _library() is not None else 0


def unsynced() -> int:
    """How many writes to the store's files this process has not synced."""
    return int(_library().strike_unsynced()) if _library() is not None else 0
