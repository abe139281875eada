"""Leases: the names of their owners, from which another process can tell whether the owner is dead; and the leases of this process.

A lease is *held* while its `Lease` object lives. The execution has that object; if it goes away
without giving the lease back (Ctrl-C, a coroutine that was never finished), the lease is *left*: no
work is done under it. It stays known until it is given back or taken again, because no process has
died.
"""

from __future__ import annotations

import math
import os
import platform
from collections import deque
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from ferrule.errors import ConfigurationError, RunTakenError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.runs.protocols import Lease


def check_leasing(lease_s: Any, max_recoveries: Any) -> None:
    """Raise `ConfigurationError` for options of a store with which no lease could be held, or no run be recovered."""
    if not (
        isinstance(lease_s, int | float)
        and not isinstance(lease_s, bool)
        and 0 < lease_s < math.inf
    ):
        raise ConfigurationError(
            f"`lease_s` is a number of seconds above 0; found {shown(lease_s)}.",
        )
    if type(max_recoveries) is not int or max_recoveries < 0:
        raise ConfigurationError(
            f"`max_recoveries` is a whole number, 0 or more; found {shown(max_recoveries)}.",
        )


def taken_by(owner: str, run_id: str, *, is_here: bool, own: str, for_s: float) -> RunTakenError:
    """The error for a run that its owner executes: another `Run` of this process (`is_here`), or another process. `own` is our name."""
    what = f"is at work on the run {run_id!r} ({owner})"
    if is_here:
        return RunTakenError(
            f"This process {what}, in another `Run` with this id. Wait until that one pauses or ends.",
        )
    whose = "An earlier process with the id of this one" if owner == own else "Another process"
    return RunTakenError(f"{whose} {what}; its lease ends in {for_s:.0f} s unless renewed.")


class Leases:
    """The leases of this process on the runs of one store."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], tuple[ref[Lease], Callable[[], float], float]] = {}
        self._left: dict[tuple[str, int], bool] = {}
        """Leases that are no longer held, and whether giving them back was tried."""
        self._dropped: deque[tuple[str, int]] = deque()
        """Leases whose `Lease` object is gone: a list, because the store's thread looks after every write, and must not check them all."""
        _EVERY.add(self)

    def hold(self, lease: Lease, clock: Callable[[], float], lease_s: float) -> None:
        """Count a lease as held. Call it before the lease is committed, so that no other thread takes it for one that was left."""
        key = (lease.run_id, lease.token)
        # Garbage collection may call this at any point of any thread.
        self._held[key] = (
            ref(lease, lambda _, key=key, dropped=self._dropped: dropped.append(key)),
            clock,
            lease_s,
        )

    def let_go(self, lease: Lease) -> None:
        """Count a lease as left: no longer held, and not given back yet."""
        self._left[lease.run_id, lease.token] = False
        self._held.pop((lease.run_id, lease.token), None)

    def forget(self, run_id: str, token: int) -> None:
        """Forget a lease that was given back, or taken again."""
        self._held.pop((run_id, token), None)
        self._left.pop((run_id, token), None)

    def held(self) -> list[tuple[str, int, float]]:
        """Run, token and new end of each lease to renew. Call `left()` first."""
        return [
            (run_id, token, clock() + lease_s)
            for (run_id, token), (_, clock, lease_s) in list(self._held.items())
        ]

    def left(self) -> list[tuple[str, int]]:
        """Run and token of each lease to give back. Each is returned only once; a later `take` of its run still finds it."""
        while self._dropped:
            key = self._dropped.popleft()
            if self._held.pop(key, None) is not None:
                self._left.setdefault(key, False)
        found = [key for key, is_tried in list(self._left.items()) if not is_tried]
        self._left.update(dict.fromkeys(found, True))
        return found

    def every_s(self) -> float:
        """The interval in seconds at which to renew the leases."""
        return min((lease_s for _, _, lease_s in list(self._held.values())), default=3.0) / 3

    def clear(self) -> None:
        """Called in the child of a fork: the leases are the parent's."""
        self._held.clear()
        self._left.clear()
        self._dropped.clear()

    def __bool__(self) -> bool:
        return bool(self._held) or not all(list(self._left.values()))

    def knows(self, run_id: str, token: int) -> bool | None:
        """Whether a lease is held; None if this process never had it."""
        found = self._held.get((run_id, token))
        return (
            found[0]() is not None
            if found is not None
            else False
            if (run_id, token) in self._left
            else None
        )


def is_held(run_id: str, token: int) -> bool | None:
    """Whether this process holds a lease, in any store; None if it never had it."""
    found = [known for each in tuple(_EVERY) if (known := each.knows(run_id, token)) is not None]
    return any(found) if found else None


_EVERY: WeakSet[Leases] = WeakSet()


def owner_name() -> str:
    """The name of this process: its machine and its process id. A fork has another name."""
    return _name_of(os.getpid())


@lru_cache(maxsize=1)
def _name_of(pid: int) -> str:
    return f"{_place()} pid {pid}"


def is_dead(owner: str) -> bool:
    """Whether an owner is certainly dead. Never true on another machine or in another container, or if its process id is in use again."""
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
    """Whether a process has ended but was not reaped by its parent yet (Linux: `man 5 proc_pid_stat`)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    state, *rest = stat.rpartition(")")[
        2
    ].split()  # the program name before it may contain any character
    return state in {"Z", "X"} and rest[16] in {
        "0",
        "1",
    }  # with more threads, only the main thread has ended


@lru_cache(maxsize=1)
def _place() -> str:
    """The scope of process ids: the machine, its boot, and on Linux the pid namespace."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(Path("/proc/self/ns/pid").readlink().name)
    return "/".join(parts)
