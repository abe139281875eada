"""Look for what comes to runs from other processes while they execute: a cancellation, a message.

A run learns of it when it writes its next entry. But a tool that hangs writes none, so one thread
for each store looks a few times a second, at all runs that execute here in one statement. It ends
with the last of them.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet, ref

from ferrule.concurrency.forking import ForkLock, run_in_child
from ferrule.errors import StoreError

if TYPE_CHECKING:
    from ferrule.runs.protocols import Lease, Persistence, Store

LOOKS_EVERY_S = 0.2


class _Watch:
    """The runs of one store that execute in this process. The references to all are weak."""

    def __init__(self, store: Store) -> None:
        self._store = ref(store)
        self._runs: WeakSet[Persistence] = WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, stored_run: Persistence) -> None:
        with self._lock:
            self._runs.add(stored_run)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="ferrule-watch", daemon=True)
                thread.start()
                self._thread = thread

    def remove(self, stored_run: Persistence) -> None:
        with self._lock:
            self._runs.discard(stored_run)

    def _work(self) -> None:
        try:
            time.sleep(LOOKS_EVERY_S)  # most runs have ended by then
            while self._look_at_all():
                time.sleep(LOOKS_EVERY_S)
        except BaseException:
            # A fault ends this thread, and Python reports it; the next run has another thread.
            with self._lock:
                self._thread = None
            raise

    def _look_at_all(self) -> bool:
        """Look once; False if there is nothing to look at any more."""
        with self._lock:
            leases = [(ref(stored_run), stored_run.lease) for stored_run in self._runs]
            if not leases:
                self._thread = None
                return False
        with suppress(StoreError):  # it cannot be reached: the next look may succeed
            self._look([(stored_run, lease) for stored_run, lease in leases if lease is not None])
        return True

    def _look(self, leases: list[tuple[ref[Persistence], Lease]]) -> None:
        store = self._store()
        if store is None or not leases:
            return
        # While this waits for the store, it holds no run: one that nobody else refers to is freed.
        were_cancelled = store.look([lease for _, lease in leases])
        for (stored_run_ref, lease), cancelled in zip(leases, were_cancelled, strict=True):
            stored_run = stored_run_ref()
            if stored_run is not None and stored_run.lease is lease:
                stored_run.heed(cancelled=cancelled)


_watches: WeakKeyDictionary[Store, _Watch] = WeakKeyDictionary()
_watching = ForkLock()


def watch(stored_run: Persistence) -> None:
    """Look for what comes to a run, until `unwatch`."""
    with _watching.lock:
        store_watch = _watches.get(stored_run.store)
        if store_watch is None:
            store_watch = _watches[stored_run.store] = _Watch(stored_run.store)
    store_watch.add(stored_run)


def unwatch(stored_run: Persistence) -> None:
    """Look no more."""
    with _watching.lock:
        store_watch = _watches.get(stored_run.store)
    if store_watch is not None:
        store_watch.remove(stored_run)


def _forget_threads() -> None:
    """In the child of a fork, no thread watches, and the leases are the parent's."""
    _watches.clear()


run_in_child(_forget_threads)
