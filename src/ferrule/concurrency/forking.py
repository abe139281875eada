"""What a forked child may use of its parent: nothing that a thread or a peer shares.

`os.fork` copies the memory, but only the thread that called it. So in the child:

- a **lock** may be held by a thread that no longer exists, and would never be released;
- a **thread or an event loop** is gone, though the object that stands for it is still there;
- a **socket, file or database connection** belongs to the parent too: two processes would read each
  other's answers, and closing it says goodbye in the parent's name.

Workers of gunicorn, Celery and `multiprocessing` are forked after the program is loaded, and often
after it ran something. Hence the policy, for every module that keeps such a thing:

1. A lock of a module is a `ForkLock`. The child gets a new one before any of its code runs. Locks
   of objects need nothing, unless the object itself is shared through a module.
2. Threads, loops and pools of a module are forgotten by a function given to `run_in_child`.
3. An object that holds a connection asks its `ForkGuard` before it uses the connection, and then
   starts from nothing without closing anything. It works too if the fork was made by C code that
   does not run Python's hooks.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def run_in_child(forget: Callable[[], object]) -> None:
    """Run a function in each forked child before any other of its code."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
        os.register_at_fork(after_in_child=forget)


class ForkLock:
    """A lock of a module, which is new in a forked child: `with guard.lock: ...`.

    It is not a context manager itself: Ctrl-C could interrupt an `__enter__` written in Python
    after it has acquired the lock, and then `__exit__` would never release it.
    """

    def __init__(
        self, make: Callable[[], threading.Lock | threading.RLock] = threading.Lock
    ) -> None:
        self._make = make
        self.lock = make()
        _fork_locks.add(self)

    def renew(self) -> None:
        """Replace the lock, in the child."""
        self.lock = self._make()


class ForkGuard:
    """Knows the process in which the connections of an object were opened."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def has_forked(self) -> bool:
        """Whether this process is a child of that one; true once, for the caller that resets."""
        pid = os.getpid()
        if pid == self._pid:
            return False
        self._pid = pid
        return True


_fork_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_locks() -> None:
    for fork_lock in list(_fork_locks):
        fork_lock.renew()


run_in_child(_renew_locks)
