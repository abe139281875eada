"""Lease owners: process names from which another process can tell whether the owner is dead."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from functools import lru_cache
from pathlib import Path


def owner_name() -> str:
    """The name of this process: its machine and its process id. Not cached as a whole, because a fork has another id."""
    return f"{_place()} pid {os.getpid()}"


def is_dead(owner: str) -> bool:
    """Whether an owner is certainly dead. Never true for another machine or container, or if the process id is in use again."""
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
    """Whether a process has ended and waits to be reaped by its parent (Linux: `man 5 proc_pid_stat`)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    state, *rest = stat.rpartition(")")[2].split()  # the program name before it may contain any character
    return state in {"Z", "X"} and rest[16] in {"0", "1"}  # more threads: only the main thread ended, the others still run


@lru_cache(maxsize=1)
def _place() -> str:
    """The scope of process ids: the machine, its boot, and on Linux the pid namespace."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(Path("/proc/self/ns/pid").readlink().name)
    return "/".join(parts)
