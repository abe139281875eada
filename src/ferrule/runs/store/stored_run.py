"""`StoredRun`: a run's place in a store, and the right to write to it while it executes.

It is the sink of the run's journal: an entry is on disk before the program sees the answer. After a
failed write, that execution writes nothing more, so the stored journal is always a prefix of the
acts, without gaps.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from ferrule.approval.cancellation import is_cancellation, slot_of
from ferrule.approval.decisions import read_decision
from ferrule.approval.message import is_message
from ferrule.concurrency.offload import run_or_cancel
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import parse_object
from ferrule.errors import RunCancelledError, RunError, StoreError
from ferrule.runs.cancelling import halt_calls
from ferrule.runs.decisions import caller_notes
from ferrule.runs.governing import Governing
from ferrule.runs.journal.cut import messages_in
from ferrule.runs.journal.encode import entry_text, error_form, read_entry
from ferrule.runs.protocols import UnheardError
from ferrule.runs.steering import send_again, untaken_messages
from ferrule.runs.store.document import head_form, inputs_form
from ferrule.runs.store.listing import NO_ENTRIES, decisions_of
from ferrule.runs.store.outliner import Outliner, first_outline
from ferrule.runs.store.watching import unwatch, watch
from ferrule.settings import current
from ferrule.values.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.runs.journal.entry import Entry
    from ferrule.runs.life import Execution
    from ferrule.runs.outline import Outline
    from ferrule.runs.protocols import Lease, Order, Store
    from ferrule.runs.state import RunState


R = TypeVar("R")

_LONGEST_WAIT_S = 5.0
"""How long an execution waits for an earlier one that has ended to release the lease."""
_POLL_S = 0.001


def submit_run(run: RunState, store: Store, order: Order) -> None:
    """Store a new run for workers to start.

    Raises `RunError` if an input cannot be stored, `StoreError` if the store refuses the run.
    """
    status_before, run.status = run.status, "queued"
    run.notes = caller_notes()
    if run.governing is None:  # a fork has what governs its original
        run.governing = Governing.of(current())
    try:
        _store_queued(run, store, order)
    except BaseException:
        run.status = status_before  # it can still be executed here
        raise


def _store_queued(run: RunState, store: Store, order: Order) -> None:
    entries = run.journal.entries
    inputs = inputs_form(run)
    store.submit(
        run.id,
        program=run.program.name,
        head=json_text(head_form(run, inputs)),
        order=order,
        about=run.about,
        outline=first_outline(run, inputs),
        entries=list(map(entry_text, entries)),  # those of a fork
        said=messages_in(entries),
        messages=untaken_messages(run, ends=True),
    )


class StoredRun:
    """The link between one `Run` in this process and one run in a store."""

    __slots__ = (
        "__weakref__",
        "_before",
        "_inputs",
        "_is_closing",
        "_is_open",
        "_outliner",
        "_queue",
        "_run_ref",
        "_unsure",
        "_wrote",
        "broken",
        "is_new",
        "lease",
        "requeues",
        "requeues_exits",
        "store",
    )

    def __init__(self, store: Store, run: RunState, *, is_new: bool) -> None:
        self.store = store
        self.is_new = is_new
        # Weak, because the run references this: its memory is freed without the garbage collector.
        self._run_ref = ref(run)
        self.requeues = False
        """Whether an interrupted run goes back to the queue.

        Otherwise it counts as cancelled until a person resumes it.
        """
        self.requeues_exits = True
        """Whether `SystemExit` and `KeyboardInterrupt` are such interrupts.

        Not where no signal raises them: then code of the run did, and would do it each time.
        """
        self.lease: Lease | None = None
        self._outliner = Outliner()
        self._inputs: dict[str, Any] = {}
        """The inputs as they were when the run started, before any change by the program."""
        self._before: tuple[str, str] | None = None
        """The run's status and head when this execution opened it."""
        self._wrote = False
        """Whether this execution wrote an entry, or may have."""
        self.broken: StoreError | None = None
        """See `Persistence`."""
        self._unsure = False
        """Whether the journal in memory may differ from the store's.

        A write was abandoned midway.
        """
        self._queue: dict[int, Execution] = {}
        """First the execution that has the run open, or is opening or closing it.

        Then those that wait behind it for a moment. Only plain assignments change it, so that an
        interrupt cannot leave it in doubt.
        """
        self._is_open = False
        self._is_closing = False

    @property
    def _run(self) -> RunState:
        run = self._run_ref()
        assert run is not None  # noqa: S101  the code that executes the run holds a reference to it
        return run

    # -- one execution

    def open(self, execution: Execution) -> None:
        """Lease the run and load the changes made by other processes.

        Raises `StoreError` while one of them executes it.

        The execution must call `close`, even after an interrupt that came before this returned.
        """
        run = self._run
        self._await_turn(run, execution)
        self.broken = None
        self._before = None
        self._wrote = False
        self._is_open = False
        self._is_closing = False
        if self.is_new:
            self._inputs = inputs_form(run)
            self._before = "running", self._head()
            self.lease = self.store.create(
                run.id,
                program=run.program.name,
                head=self._before[1],
                about=run.about,
                outline=self._outliner.outline(run, self._inputs),
                entries=list(map(entry_text, run.journal.entries)),  # those of a fork
                said=messages_in(run.journal.entries),
            )
            self.is_new = False
            self._send_messages(run)
        else:
            self._take()
        run.journal.sink = self
        self._is_open = True
        self._outliner.begin()
        watch(self)
        if execution.over:  # the execution was abandoned while a thread opened the run for it
            self._queue.setdefault(id(execution), execution)
            self.close(execution)

    def _send_messages(self, run: RunState) -> None:
        """Store the messages that came before the run was in the store."""
        messages = untaken_messages(run, ends=True)
        for message in messages:
            send_again(self.store, run.id, message)
        run.heard = messages_in(run.journal.entries) + len(messages)
        self.note_message(run.heard)

    def _await_turn(self, run: RunState, execution: Execution) -> None:
        # A caller that sees the run pause or end may get here before the previous execution has
        # released the lease.
        ends_at = monotonic() + _LONGEST_WAIT_S
        self._queue[id(execution)] = execution
        while True:
            is_over = run.executing is not None or run.status == "done"
            if not is_over and self._is_first(execution):
                return
            has_waited = monotonic() > ends_at
            if has_waited and self.lease is None:
                # Executions that ended without `close`, after repeated interrupts.
                self._queue = {
                    key: waiting for key, waiting in self._queue.items() if not waiting.over
                }
            if is_over or (has_waited and not self._is_first(execution)):
                del self._queue[id(execution)]
                if run.status == "done":
                    raise RunError(f"The run {run.id} is done; start another one.")
                raise RunError(f"The run {run.id} is executing already; wait for it.")
            sleep(_POLL_S)

    def _is_first(self, execution: Execution) -> bool:
        return next(iter(self._queue), None) == id(execution)

    def holds(self, execution: Execution) -> bool:
        """Whether this execution has the lease."""
        return self.lease is not None and self._is_first(execution)

    def _take(self) -> None:
        run = self._run
        after = len(run.journal.entries)
        if self._unsure:
            after = 0
        stored = self.store.take(run.id, after=after)
        assert stored.lease is not None  # noqa: S101  `take` always returns a lease
        self._before = (stored.status, stored.head)
        self.lease = stored.lease
        head = parse_object(stored.head, "the head of a run")
        if head.get("redacted"):
            raise StoreError(f"The run {run.id} was redacted.")
        if head["key"] != run.key.hex():
            raise StoreError(f"The run {run.id} was deleted, and another one has its id.")
        if stored.status == "cancelled" and run.status != "cancelled":
            run.status = "cancelled"
            msg = (
                f"The run {run.id} was cancelled elsewhere; nothing was done. "
                "To continue anyway, resume it once more."
            )
            raise RunCancelledError(msg)
        if stored.status == "done":
            raise RunError(f"The run {run.id} was finished elsewhere. Load it for its prediction.")
        self._inputs = {name: head[name] for name in ("args", "inputs")}
        run.notes = head.get("notes", {})
        if self._unsure:
            run.journal.entries.clear()
            self._unsure = False
        run.journal.entries.extend(map(read_entry, stored.entries))
        self._take_decisions(run, stored.decisions)
        run.heard = stored.lease.said

    def _take_decisions(self, run: RunState, decisions: list[str]) -> None:
        # The store has the current ones: another process may have used, discarded or made some.
        run.forget_untaken()
        callers: list[Any] = []
        for text in decisions:
            form = parse_object(text, "a decision")
            if "caller" in form:
                callers.append(form["caller"])
            decision = read_decision(form)
            run.answers[decision.question_id] = decision
            run.decisions.append(decision)
        if callers:
            run.notes = {**run.notes, "deciders": json_text(callers)}

    def note(self) -> None:
        """Store the run's notes at once.

        The rest of its head stays as it was when this execution began.
        """
        assert self._before is not None  # noqa: S101  set by `open`
        assert self.lease is not None  # noqa: S101  taken by `open`
        status, head = self._before
        form = {**parse_object(head, "the head of a run"), "notes": dict(self._run.notes)}
        self._before = status, json_text(form)
        self.store.note(self.lease, self._before[1])

    # -- messages and cancellations of calls

    @property
    def has_news(self) -> bool:
        """See `Persistence`."""
        return self.lease is not None and self.lease.said != self._run.heard

    def note_message(self, number: int) -> None:
        """See `Persistence`."""
        lease = self.lease
        if lease is not None:
            lease.said = max(lease.said, number)

    def hear(self) -> None:
        """See `Persistence`."""
        lease, run = self.lease, self._run
        if lease is None:
            return
        said = lease.said  # before they are read: a later one is news
        decisions = decisions_of(self.store.load(run.id, after=NO_ENTRIES))
        run.hear([news for news in decisions if is_message(news) or is_cancellation(news)])
        run.heard = max(run.heard, said)
        halt_calls(run)

    def heed(self, *, cancelled: bool) -> None:
        """See `Persistence`."""
        run = self._run_ref()
        if self.lease is None or run is None:
            return
        if cancelled and not run.cancelled:
            run.cancel()
        if self.has_news:
            self.hear()

    # -- the end of an execution

    def close(self, execution: Execution) -> None:
        """See `Persistence`. If a call is interrupted, a second one completes it."""
        if id(execution) not in self._queue:
            return
        run = self._run_ref()
        if self.holds(execution):
            try:
                # If the run was garbage-collected first, its dropped lease is given back.
                if run is not None and not self._release(run):
                    run.reopen(execution)
                    return
            except StoreError:
                self.lease = None
                del self._queue[id(execution)]
                raise
            self.lease = None
        self._queue.pop(id(execution), None)

    def _release(self, run: RunState) -> bool:
        """Give the lease back. False if a message came: then the run must go on."""
        is_again = self._is_closing
        self._is_closing = True
        unwatch(self)
        run.journal.sink = None
        if run.status not in {"waiting", "done"}:
            self._unsure = True  # an interrupt may have come between store and memory
        status, head = self._state_at_rest(run)
        if self.lease is None:
            return True
        heard = None
        if status == "done" and not run.goes_on_at_end:
            heard = run.heard
        try:
            is_released = self.store.release(
                self.lease, status=status, head=head, heard=heard, outline=self._outline()
            )
        except StoreError:
            # An interrupted first call may have given the lease back already.
            if not is_again:
                raise
            return True
        if not is_released:
            self.hear()
            self._is_closing = False
            run.journal.sink = self
            watch(self)
        return is_released

    def _state_at_rest(self, run: RunState) -> tuple[str, str]:
        """The status and the head to store when this execution ends."""
        before = self._before or (run.status, "")
        if not self._is_open:
            return before
        head = head_form(run, self._inputs)
        has_exited = isinstance(run.error, KeyboardInterrupt | SystemExit)
        if self.requeues and has_exited and not self.requeues_exits and not run.cancelled:
            error = error_form(RunError(f"its code exited with {run.error!r}"))
            return "failed", json_text({**head, "status": "failed", "error": error})
        if self._is_without_progress(run, before[0]):
            return before
        if self.requeues and run.is_interrupted and not run.cancelled:
            return "queued", json_text({**head, "status": "queued", "error": None})
        return run.status, json_text(head)

    def _is_without_progress(self, run: RunState, status_before: str) -> bool:
        """Whether a run that waited was interrupted before it wrote anything: it waits on."""
        return (
            status_before in {"waiting", "queued"}
            and not self._wrote
            and run.status not in {"waiting", "done"}
            and not run.cancelled
        )

    def give_up(self) -> None:
        """Put the run back into the queue although a thread still executes it.

        Later writes of that thread are refused.
        """
        lease, before = self.lease, self._before
        if lease is not None and before is not None:
            head: dict[str, Any] = {
                **parse_object(before[1], "the head of a run"),
                "status": "queued",
                "questions": [],
                "error": None,
            }
            with suppress(StoreError):  # the run has just come to rest
                self.store.release(lease, status="queued", head=json_text(head))

    def _outline(self) -> Outline | None:
        """What a list learns of this execution; None if it did not begin."""
        if not self._is_open:
            return None
        return self._outliner.outline(self._run, self._inputs)

    def _report(self) -> None:
        """Let lists know of what happened while the run executes."""
        if self.lease is not None and self._is_open:
            # If the lease is lost, the next entry finds that out.
            with suppress(StoreError):
                self.store.report(self.lease, self._outliner.outline(self._run, self._inputs))
            self._outliner.told()

    def _head(self) -> str:
        return json_text(head_form(self._run, self._inputs))

    # -- the journal's sink

    def __call__(self, entry: Entry) -> None:
        """Write one entry; see `Store.append`."""
        lease, text, options = self._prepare(entry)
        try:
            goes_on = self.store.append(lease, text, **options)
            self._wrote = True
        except UnheardError:
            self.hear()
            self._refuse_end_of_cancelled(entry)
            self(entry)
            return
        except BaseException as error:
            # After Ctrl-C during the write, the entry may or may not be on disk.
            self._note_failure(lease, error)
            raise
        self._check_written(lease, entry, goes_on=goes_on)
        if self._outliner.is_due_after(entry):
            self._report()

    async def later(self, entry: Entry) -> None:
        """`__call__` without blocking the event loop."""
        lease, text, options = self._prepare(entry)
        try:
            goes_on = await self.store.aappend(lease, text, **options)
            self._wrote = True
        except UnheardError:
            await run_or_cancel(self.hear)
            self._refuse_end_of_cancelled(entry)
            await self.later(entry)
            return
        except BaseException as error:
            # After a cancellation, the entry is on disk, unless its write failed.
            self._note_failure(lease, error)
            raise
        self._check_written(lease, entry, goes_on=goes_on)
        if self._outliner.is_due_after(entry):
            await run_or_cancel(self._report)

    def _refuse_end_of_cancelled(self, entry: Entry) -> None:
        """Raise `UnheardError` if the call that this entry ends was cancelled just now."""
        for decision in list(self._run.answers.values()):
            if is_cancellation(decision) and slot_of(decision) == Slot(entry.slot).call:
                raise UnheardError

    def _note_failure(self, lease: Lease, error: BaseException) -> None:
        if lease is not self.lease:  # a late write of a thread that an interrupt left behind
            return
        store_error: BaseException | None = error
        if not isinstance(error, StoreError):
            self._unsure = self._wrote = True
            store_error = error.__cause__
        if isinstance(store_error, StoreError):
            self.broken = store_error

    def _prepare(self, entry: Entry) -> tuple[Lease, str, dict[str, Any]]:
        if self.broken is not None:
            raise self.broken
        if self.lease is None:
            msg = (
                f"The run {self._run.id} has paused or ended; "
                f"the late result of {entry.slot} is not stored."
            )
            raise StoreError(msg)
        consumes = None
        if entry.kind == "decision":
            consumes = entry.value.question_id
        heard = None
        is_wait = entry.kind == "once" and Slot(entry.slot).is_later
        if entry.kind == "result" or is_wait:  # it ends a call
            heard = self._run.heard
        return (
            self.lease,
            entry_text(entry),
            {"starts": entry.kind == "begun", "consumes": consumes, "heard": heard},
        )

    def _check_written(self, lease: Lease, entry: Entry, *, goes_on: bool) -> None:
        """After a write: if the run was cancelled from elsewhere, stop it before its next act."""
        if lease is not self.lease:
            msg = (
                f"The run {self._run.id} has paused or ended; "
                f"{entry.slot} is in the store, and is read when it goes on."
            )
            raise StoreError(msg)
        if goes_on:
            return
        self._run.cancel()
        if entry.kind == "begun":  # its tool must not start
            raise RunCancelledError(f"The run {self._run.id} was cancelled.")

    def transact(self, work: Callable[[Any], R]) -> R:
        """See `Store.transact`."""
        lease = self.lease
        if lease is None:
            raise StoreError(f"The run {self._run.id} has paused or ended.")
        try:
            return self.store.transact(lease, work)
        except StoreError as error:
            if lease is self.lease:
                self.broken = error
            raise
