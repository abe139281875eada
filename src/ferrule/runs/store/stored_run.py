"""`StoredRun`: a run's place in a store, and the right to write to it while it executes.

It is the sink of the run's journal: an entry is on disk before the program sees the answer. After a failed write, that execution writes
nothing more, so the stored journal is always a prefix of the acts, without gaps.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import ref

from ferrule.errors import RunCancelledError, RunError, StoreError
from ferrule.runs.journal.encode import entry_text, parse_object, read_decision, read_entry
from ferrule.runs.store.document import head_form, inputs_form
from ferrule.values.encoding.encode import json_text

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ferrule.runs.journal.journal import Entry
    from ferrule.runs.protocols import Lease, Store
    from ferrule.runs.state import RunState


_A_MOMENT_S = 5.0


class StoredRun:
    """The link between one `Run` in this process and one run in a store."""

    __slots__ = ("_broken", "_executing", "_given", "_lease", "_run_ref", "_unsure", "_waiting_head", "_wrote", "is_new", "store")

    def __init__(self, store: Store, run: RunState, *, is_new: bool) -> None:
        self.store = store
        self.is_new = is_new
        self._run_ref = ref(run)  # weak, because the run references this: its memory is freed without the garbage collector
        self._lease: Lease | None = None
        self._given: dict[str, Any] = {}
        """The inputs as they were when the run started, before any change by the program."""
        self._waiting_head: str | None = None
        """The head of the run if it waited for a person when this execution opened it."""
        self._wrote = False
        self._broken: StoreError | None = None
        self._unsure = False
        """Whether a write was abandoned midway: the store and the memory may differ."""
        self._executing = threading.Lock()

    @property
    def _run(self) -> RunState:
        run = self._run_ref()
        assert run is not None  # noqa: S101  every user of the run holds a reference to it
        return run

    # -- one execution -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Lease the run and load the changes made by other processes. Raises `StoreError` while one of them executes it."""
        run = self._run
        # A caller that sees the run at rest may get here before the previous execution has released the lease.
        if run.executing or run.status == "done" or not self._executing.acquire(timeout=_A_MOMENT_S):
            msg = f"The run {run.id} is {'done; start another one' if run.status == 'done' else 'executing already; wait for it'}."
            raise RunError(msg)
        try:
            self._broken, self._waiting_head, self._wrote = None, None, False
            if self.is_new:
                self._given = inputs_form(run)
                self._lease = self.store.create(run.id, program=run.program.name, head=self._head())
                self.is_new = False
            else:
                self._take()
        except BaseException:
            self._executing.release()
            raise
        run.journal.sink = self

    def _take(self) -> None:
        run = self._run
        stored = self.store.take(run.id, after=0 if self._unsure else len(run.journal.entries))
        assert stored.lease is not None  # noqa: S101  `take` always returns a lease
        head = parse_object(stored.head, "the head of a run")
        if head["key"] != run.key.hex() or head.get("redacted"):
            self.store.release(stored.lease, status=stored.status, head=stored.head)
            raise StoreError(f"The run {run.id} was {'redacted' if head.get('redacted') else 'deleted, and another one has its id'}.")
        if stored.status == "cancelled" != run.status or stored.status == "done":
            self.store.release(stored.lease, status=stored.status, head=stored.head)
            if stored.status == "cancelled":
                run.status = "cancelled"
                msg = f"The run {run.id} was cancelled from elsewhere; nothing was done. To go on all the same, resume it once more."
                raise RunCancelledError(msg)
            raise RunError(f"The run {run.id} was carried to its end elsewhere. Load it for its prediction.")
        self._lease = stored.lease
        self._given = {name: head[name] for name in ("args", "inputs")}
        self._waiting_head = stored.head if stored.status == "waiting" else None
        if self._unsure:
            run.journal.entries.clear()
            self._unsure = False
        run.journal.entries.extend(map(read_entry, stored.entries))
        for decision in map(read_decision, map(_decision_form, stored.decisions)):
            if decision.question_id not in run.answers:
                run.answers[decision.question_id] = decision
                run.decisions.append(decision)

    @property
    def is_open(self) -> bool:
        """Whether the lease is held."""
        return self._lease is not None

    def close(self) -> None:
        """Store the run's state at rest and give the lease back. If two threads close it at once, the first one does it."""
        run, lease = self._run, self._lease
        self._lease = None
        if lease is None:
            return
        run.journal.sink = None
        try:
            if self._waiting_head is not None and not self._wrote and run.status not in {"waiting", "done"} and not run.cancelled:
                self.store.release(lease, status="waiting", head=self._waiting_head)  # no progress: it waits as before
            else:
                self.store.release(lease, status=run.status, head=self._head())
        finally:
            self._executing.release()

    def _head(self) -> str:
        return json_text(head_form(self._run, self._given))

    # -- the journal's sink --------------------------------------------------------------------------------------

    def __call__(self, entry: Entry) -> None:
        """Keep one entry."""
        lease, text, more = self._prepare(entry)
        try:
            going_on = self.store.append(lease, text, **more)
        except StoreError as error:
            self._broken = error
            raise
        self._check_cancelled(entry, going_on=going_on)

    async def later(self, entry: Entry) -> None:
        """`__call__` without blocking the event loop."""
        lease, text, more = self._prepare(entry)
        try:
            going_on = await self.store.aappend(lease, text, **more)
        except StoreError as error:
            self._broken = error
            raise
        except BaseException:  # cancelled during the write: the entry may or may not be on disk
            self._unsure = self._wrote = True
            raise
        self._check_cancelled(entry, going_on=going_on)

    def _prepare(self, entry: Entry) -> tuple[Lease, str, dict[str, Any]]:
        if self._broken is not None:
            raise self._broken
        if self._lease is None:
            raise StoreError(f"The run {self._run.id} is at rest; the later result of {entry.slot} is not kept.")
        consumes = entry.value.question_id if entry.kind == "decision" else None
        return self._lease, entry_text(entry), {"starts": entry.kind == "begun", "consumes": consumes}

    def _check_cancelled(self, entry: Entry, *, going_on: bool) -> None:
        """Stop a run that was cancelled from elsewhere before its next act; no further tool starts."""
        self._wrote = True
        if going_on:
            return
        self._run.cancel()
        if entry.kind == "begun":
            raise RunCancelledError(f"The run {self._run.id} was cancelled.")

    def transaction(self) -> AbstractContextManager[Any]:
        """See `Store.transaction`."""
        if self._lease is None:
            raise StoreError(f"The run {self._run.id} is at rest.")
        return self.store.transaction(self._lease)


def _decision_form(text: str) -> dict[str, Any]:
    return parse_object(text, "a decision")
