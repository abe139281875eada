"""Who holds a lease: a process, named so that another one can tell whether it is dead."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from functools import lru_cache
from pathlib import Path


def owner_name() -> str:
    """The name of this process: where it runs, and its id there. Not cached as a whole, as a fork has another id."""
    return f"{_place()} pid {os.getpid()}"


def is_dead(owner: str) -> bool:
    """Whether an owner is surely dead. One on another machine, or in another container, never is; nor is one whose id lives again."""
    place, _, pid = owner.rpartition(" pid ")
    if place != _place() or not hasattr(os, "kill") or os.name == "nt":
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return _is_zombie(pid)


def _is_zombie(pid: str) -> bool:
    """Whether a process ended, and only waits for its parent to hear of it (Linux: `man 5 proc_pid_stat`)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    state, *rest = stat.rpartition(")")[2].split()  # the name of the program before it may hold anything
    return state in {"Z", "X"} and rest[16] in {"0", "1"}  # more threads: the first one ended, and the others are at work


@lru_cache(maxsize=1)
def _place() -> str:
    """What must be equal for process ids to mean the same: the machine, its boot, and on Linux the space that ids are counted in."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(Path("/proc/self/ns/pid").readlink().name)
    return "/".join(parts)
