"""`Store`: where runs are kept, as a port.

A store knows nothing of programs. It keeps texts (the head of a run, the entries of its journal, decisions), and who may write: a *lease*
is the right to write to one run, and its token is checked at every write. So a process that was thought dead and comes back finds its
next write refused, and two processes never write to one run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ferrule.values.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from ferrule.values.confirmation.question import Decision, Question
    from ferrule.values.run.act import Flow


class Lease(Record):
    """The right to write to one run, until another one takes it."""

    run_id: str
    token: int
    """Grows with every lease of the run, from a number that no other run of its id began at: the fencing token."""


class Stored(Record):
    """One run as a store keeps it."""

    status: str
    head: str
    entries: list[str]
    decisions: list[str]
    """Those made and not yet taken up by the run."""
    lease: Lease | None = None


class Summary(Record, kw_only=True):
    """One line of a list of runs."""

    id: str
    program: str
    status: str
    created_at: float
    """Seconds since 1970, as all times here."""
    updated_at: float
    questions: tuple[Question, ...] = ()
    """What waits for a person."""
    error: str | None = None
    recoveries: int = 0
    """How many times the run was taken over from a process that died, without having come to a rest since."""
    leased: bool = False
    """Whether a process is at work on it right now."""
    decided: tuple[str, ...] = field(default_factory=tuple[str, ...])
    """Ids of the questions that are decided, and wait for the run to be resumed."""


class Store(Protocol):
    """Keeps runs. Every method raises `StoreError` where it cannot do its work, and then has changed nothing."""

    def create(self, run_id: str, *, program: str, head: str) -> Lease:
        """Keep a new run, and lease it. Raises `StoreError` if there is one of that id."""
        ...

    def take(self, run_id: str, *, after: int) -> Stored:
        """Lease a run: its entries from number `after` on. Raises `StoreError` while another process is at work on it."""
        ...

    def append(self, lease: Lease, entry: str, *, starts: bool = False, consumes: str | None = None) -> bool:
        """Write one entry, durable on return. False if the run was cancelled meanwhile: then one that `starts` an effect is not written.

        `consumes` is the id of the question whose decision the entry takes up. Raises `StoreError` if the lease was lost.
        """
        ...

    async def aappend(self, lease: Lease, entry: str, *, starts: bool = False, consumes: str | None = None) -> bool:
        """`append` without blocking the event loop."""
        ...

    def transaction(self, lease: Lease) -> AbstractContextManager[Any]:
        """A connection whose changes are committed together with the entries written inside the block, or not at all.

        `ctx.db` uses its `execute`, `executemany`, `in_transaction` and (from another thread) `interrupt`: those of `sqlite3.Connection`.
        """
        ...

    def release(self, lease: Lease, *, status: str, head: str) -> None:
        """Give the lease back: the run came to a rest."""
        ...

    def load(self, run_id: str) -> Stored:
        """A run, to be read."""
        ...

    def decide(self, run_id: str, decision: Decision) -> None:
        """Put a `Decision` on a waiting question. Raises `DecisionError` if none of that id waits, or it is decided."""
        ...

    def cancel(self, run_id: str) -> None:
        """Cancel a run: before its next step, or at once if nobody is at work on it; then its questions and open decisions are gone."""
        ...

    def list(self, *, status: str | None = None, limit: int | None = None) -> list[Summary]:
        """Runs, those changed last first."""
        ...

    def delete(self, run_id: str) -> None:
        """Remove a run with all that is kept of it."""
        ...

    def redact(self, run_id: str) -> None:
        """Remove inputs, journal, questions and decisions of a run that ended; that it was, and how it ended, stays."""
        ...

    def prune(self, *, older_than_s: float, statuses: Iterable[str] = ("done", "failed", "cancelled")) -> int:
        """Delete runs of these statuses that did not change for so long; returns how many."""
        ...


class Program(Protocol):
    """What a run needs of a program: a flow of acts, or a plain `forward`."""

    @property
    def is_flow(self) -> bool:
        """Whether `flow` yields acts; else `forward` and `aforward` are plain Python."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether there is an `aforward`."""
        ...

    @property
    def is_only_async(self) -> bool:
        """Whether there is an `aforward` and no `forward`."""
        ...

    @property
    def name(self) -> str:
        """What journals and events call it."""
        ...

    def flow(self, *args: Any, **inputs: Any) -> Flow:
        """The program as a generator of acts."""
        ...

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """The program in plain Python."""
        ...

    async def aforward(self, *args: Any, **inputs: Any) -> Any:
        """`forward` on an event loop."""
        ...


class Persistence(Protocol):
    """A run's place in a store (`runs/store/stored_run.py`)."""

    store: Store

    @property
    def is_open(self) -> bool:
        """Whether the lease is held."""
        ...

    def open(self) -> None:
        """Lease the run, before an execution."""
        ...

    def close(self) -> None:
        """Write down how it rests, and give the lease back."""
        ...
