"""Leases: whose runs these are, and whether the owner is dead.

A lease is *held* while its `Lease` object lives. The execution has that object; if it goes away
without giving the lease back (Ctrl-C, a coroutine that was never finished), the lease is *left*: no
work is done under it. It stays known until it is given back or taken again, because no process has
died.

The name of an owner is the scope of its process id and the id itself, so that another process of
the same machine can tell whether the owner is dead.
"""

from __future__ import annotations

import math
import os
import platform
from collections import deque
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet, ref

from ferrule.errors import ConfigurationError, RunTakenError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.runs.protocols import Lease


def check_leasing(lease_s: Any, max_recoveries: Any) -> None:
    """Check the options of a store.

    Raises `ConfigurationError` for those with which no lease could be held, or no run be recovered.
    """
    is_number = isinstance(lease_s, int | float) and not isinstance(lease_s, bool)
    if not is_number or not 0 < lease_s < math.inf:
        raise ConfigurationError(
            f"`lease_s` is a number of seconds above 0; found {shown(lease_s)}."
        )
    if type(max_recoveries) is not int or max_recoveries < 0:
        raise ConfigurationError(
            f"`max_recoveries` is a whole number, 0 or more; found {shown(max_recoveries)}."
        )


def taken_error(
    owner: str, run_id: str, *, is_here: bool, this_process: str, for_s: float
) -> RunTakenError:
    """The error for a run that its owner executes.

    Args:
        owner: The owner of the run.
        run_id: The run.
        is_here: Whether another `Run` of this process executes it.
        this_process: The name of this process as an owner.
        for_s: The seconds until the lease ends.

    """
    what = f"is at work on the run {run_id!r} ({owner})"
    if is_here:
        msg = (
            f"This process {what}, in another `Run` with this id. "
            "Wait until that one pauses or ends."
        )
        return RunTakenError(msg)
    who = "Another process"
    if owner == this_process:
        who = "An earlier process with the id of this one"
    return RunTakenError(f"{who} {what}; its lease ends in {for_s:.0f} s unless renewed.")


# -- the leases of this process


class _Held(NamedTuple):
    lease: ref[Lease]
    clock: Callable[[], float]
    lease_s: float


class Leases:
    """The leases of this process on the runs of one store. Keys are the run's id and the token."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], _Held] = {}
        self._left: dict[tuple[str, int], bool] = {}
        """Leases that are no longer held, and whether giving them back was tried."""
        self._dropped: deque[tuple[str, int]] = deque()
        """Leases whose `Lease` object is gone.

        A list, because the store's thread looks after every write, and must not check them all.
        """
        _all_leases.add(self)

    def hold(self, lease: Lease, clock: Callable[[], float], lease_s: float) -> None:
        """Count a lease as held.

        Call it before the lease is committed, so that no other thread takes it for one that was
        left.
        """
        key = (lease.run_id, lease.token)
        dropped = self._dropped

        # Garbage collection may call this at any point of any thread: `append` is atomic.
        def drop(_: ref[Lease]) -> None:
            dropped.append(key)

        self._held[key] = _Held(ref(lease, drop), clock, lease_s)

    def let_go(self, lease: Lease) -> None:
        """Count a lease as left: no longer held, and not given back yet."""
        key = (lease.run_id, lease.token)
        self._left[key] = False
        self._held.pop(key, None)

    def forget(self, run_id: str, token: int) -> None:
        """Forget a lease that was given back, or taken again."""
        self._held.pop((run_id, token), None)
        self._left.pop((run_id, token), None)

    # Other threads change the dicts at any time, so the methods below walk over copies.

    def held(self) -> list[tuple[str, int, float]]:
        """Run, token and new end of each lease to renew. Call `left()` first."""
        return [
            (run_id, token, held.clock() + held.lease_s)
            for (run_id, token), held in list(self._held.items())
        ]

    def left(self) -> list[tuple[str, int]]:
        """Run and token of each lease to give back.

        Each is returned only once; a later `take` of its run still finds it.
        """
        while self._dropped:
            key = self._dropped.popleft()
            if self._held.pop(key, None) is not None:
                self._left.setdefault(key, False)
        untried = [key for key, is_tried in list(self._left.items()) if not is_tried]
        self._left.update(dict.fromkeys(untried, True))
        return untried

    def every_s(self) -> float:
        """The interval in seconds at which to renew the leases."""
        return min((held.lease_s for held in list(self._held.values())), default=3.0) / 3

    def clear(self) -> None:
        """Called in the child of a fork: the leases are the parent's."""
        self._held.clear()
        self._left.clear()
        self._dropped.clear()

    def __bool__(self) -> bool:
        return bool(self._held) or not all(list(self._left.values()))

    def knows(self, run_id: str, token: int) -> bool | None:
        """Whether a lease is held; None if this process never had it."""
        held = self._held.get((run_id, token))
        if held is not None:
            return held.lease() is not None
        if (run_id, token) in self._left:
            return False
        return None


_all_leases: WeakSet[Leases] = WeakSet()


def is_held(run_id: str, token: int) -> bool | None:
    """Whether this process holds a lease, in any store; None if it never had it."""
    answers = [leases.knows(run_id, token) for leases in tuple(_all_leases)]
    if True in answers:
        return True
    if False in answers:
        return False
    return None


# -- owners


def owner_name() -> str:
    """The name of this process: its machine and its process id. A fork has another name."""
    return _owner_name(os.getpid())


@lru_cache(maxsize=1)
def _owner_name(pid: int) -> str:
    return f"{_pid_scope()} pid {pid}"


def is_dead(owner: str) -> bool:
    """Whether an owner is certainly dead.

    Never true on another machine or in another container, or if its process id is in use again.
    """
    scope, _, pid = owner.rpartition(" pid ")
    if scope != _pid_scope() or not hasattr(os, "kill") or os.name == "nt":
        return False
    try:
        os.kill(int(pid), 0)  # signal 0 only asks whether the process exists
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return _is_zombie(pid)


def _is_zombie(pid: str) -> bool:
    """Whether a process has ended, but its parent has not asked for it yet.

    Linux: `man 5 proc_pid_stat`.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The second field is the program's name in parentheses, which may hold any character.
    _, _, after_name = stat.rpartition(")")
    state, *fields = after_name.split()
    thread_count = fields[16]
    # With more threads, only the main thread has ended.
    return state in {"Z", "X"} and thread_count in {"0", "1"}


@lru_cache(maxsize=1)
def _pid_scope() -> str:
    """The scope of process ids: the machine, its boot, and on Linux the pid namespace."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(Path("/proc/self/ns/pid").readlink().name)
    return "/".join(parts)
