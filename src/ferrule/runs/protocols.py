"""The protocols that runs depend on (`Store`, `Program`, `Persistence`), and their values.

A store knows nothing about programs: it keeps texts and leases. The texts of a run are the entries
of its journal, the decisions on its questions, and its *head*: everything else about it, as one
document. A *lease* is the right to write to one run; its token is checked at every write. So if a
process believed dead comes back, its next write is refused, and two processes never write to the
same run. A run is *at rest* while no process executes it: it is queued, waits, or has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, cast, get_args

from msgspec import Struct, field

from ferrule.approval.question import Question
from ferrule.encoding.encode import is_column_text
from ferrule.errors import ConfigurationError, InputError, StoreError, shown
from ferrule.runs.about import NOTHING, About
from ferrule.runs.outline import NO_OUTLINE, Outline
from ferrule.values.conversation.exchange import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from ferrule.acts import Flow
    from ferrule.approval.message import When
    from ferrule.approval.question import Decision
    from ferrule.runs.evaluations import EvaluationFigures, ItemScore
    from ferrule.runs.life import Execution
    from ferrule.runs.overview import Overview
    from ferrule.values.conversation.exchange import Request, Response
    from ferrule.values.outcome import Prediction


R = TypeVar("R")
S = TypeVar("S")
RunStatus = Literal["queued", "running", "waiting", "done", "failed", "cancelled"]


class Lease(Struct, weakref=True):
    """The right to write to one run, until another process takes it.

    An execution holds it; garbage collection releases it.
    """

    run_id: str
    token: int
    """The fencing token: it grows with every lease of the run.

    A deleted run and a later one with the same id share no token."""
    said: int = 0
    """How many messages and cancellations of calls the run had got when its holder last looked."""


class UnheardError(Exception):
    """An entry was not written, because something came to its run that it has not looked at."""


class Stored(Struct, frozen=True):
    """A run as read from a store."""

    status: str
    head: str
    entries: list[str]
    decisions: list[str]
    """Decisions and messages that the run has not used yet."""
    lease: Lease | None = None
    times: list[float | None] = field(default_factory=list["float | None"])
    """When each entry was written; None for entries written when the store kept no times."""


class Order(Struct, frozen=True, kw_only=True):
    """The options with which a run is queued."""

    priority: int | None = None
    """Runs with smaller numbers begin first; None is 0."""
    delay_s: float | None = None
    """Seconds before it may begin."""
    queue_key: str | None = None
    """The owner of the run, such as a tenant, for the queue's limits per key."""


class Summary(Struct, frozen=True, kw_only=True):
    """A run as `Store.list` returns it: status, questions, usage, but no journal."""

    id: str
    program: str
    status: str
    title: str = ""
    """The title that the run was started with."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The metadata that the run was started with."""
    created_at: float
    """Seconds since 1970, like all times here."""
    updated_at: float
    questions: tuple[Question, ...] = ()
    """Questions that wait for a person."""
    error: str | None = None
    recoveries: int = 0
    """How many times the run was recovered from a dead process since it was last at rest."""
    leased: bool = False
    """Whether a process is executing the run now."""
    decided: tuple[str, ...] = field(default_factory=tuple[str, ...])
    """Ids of questions that are decided but that the run, not resumed yet, has not used."""
    usage: Usage = Usage()
    """Tokens and cost so far. While a run executes, they are a second old, or older."""
    asked: str = ""
    """The first input of the run, on one line."""
    answered: str = ""
    """Its first output, on one line; empty if it is not done."""
    steps: int = 0
    """How often its program asked a model."""
    seconds: float = 0.0
    """How long it has executed, without the time in which it waited."""
    assigned: str = ""
    """The name of the person who looks at it; empty if it is not assigned."""
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """By metric, if an evaluation scored it."""
    feedback: str = ""
    """What the metrics said in words."""

    @property
    def cost(self) -> float | None:
        """The cost in US dollars so far; None if unknown."""
        return self.usage.cost


class RunNote(Struct, frozen=True, kw_only=True):
    """What a person wrote about a run, for other people. No model reads it."""

    text: str
    author: str
    at: float


RunOrder = Literal["updated", "created", "duration", "steps", "tokens", "cost"]
"""By what a list of runs is sorted."""
NameKind = Literal["program", "tool", "model", "evaluation"]


class RunFilter(TypedDict, total=False):
    """Which runs a list shows. A missing value, or None, does not restrict it."""

    status: str | None
    program: str | None
    metadata: Mapping[str, Any] | None
    """Runs that were started with each of these values, and perhaps others."""
    search: str | None
    """Runs that have each of these words, or words that begin so (three letters or more).

    In their id, program, title, metadata, inputs, outputs, errors, tools and arguments of calls.
    """
    tool: str | None
    """Runs that called this tool."""
    tool_failed: bool | None
    """True: a call of `tool`, or of any tool, failed."""
    model: str | None
    """Runs that this model answered."""
    evaluation: str | None
    """Runs that this evaluation scored, by its `evaluation_id`."""
    assigned: str | None
    """Runs that are assigned to this person."""
    since: float | None
    """Runs that changed at this time or later, in seconds since 1970."""
    until: float | None
    """Runs that changed before this time, and not since."""
    min_cost: float | None
    """Runs that cost so many US dollars or more."""
    max_cost: float | None


class Store(Protocol):
    """Keeps runs. A method that fails raises `StoreError` and changes nothing."""

    def create(
        self,
        run_id: str,
        *,
        program: str,
        head: str,
        about: About = NOTHING,
        outline: Outline = NO_OUTLINE,
        entries: Sequence[str] = (),
        said: int = 0,
    ) -> Lease:
        """Store a new run and lease it. Raises `StoreError` if the id exists.

        `list` finds it by the metadata in `about`, which its head has, too, and by the words of
        `outline`. `entries` are those of the run that it is a fork of, in which `said` messages
        came.
        """
        ...

    def submit(
        self,
        run_id: str,
        *,
        program: str,
        head: str,
        order: Order,
        about: About = NOTHING,
        outline: Outline = NO_OUTLINE,
        entries: Sequence[str] = (),
        said: int = 0,
        messages: Sequence[Decision] = (),
    ) -> None:
        """Store a new run with the status `queued`, without a lease.

        It is put into the store's queue, if there is one. `entries` and `said` are as for `create`,
        and `messages` those that came to a fork since. All is stored at once: a worker never finds
        a part of it.

        Raises `StoreError` if the id exists, or if the store has no queue that can do what `order`
        asks.
        """
        ...

    def put_off(self, run_id: str, why: str) -> None:
        """Note on a run that no process executes why a worker did not take it. Its status stays."""
        ...

    def take(self, run_id: str, *, after: int) -> Stored:
        """Lease a run; returns it with its entries from number `after` on.

        Raises `RunTakenError` while another process executes it.
        """
        ...

    def append(
        self,
        lease: Lease,
        entry: str,
        *,
        starts: bool = False,
        consumes: str | None = None,
        heard: int | None = None,
    ) -> bool:
        """Write one entry, durable on return.

        False if the run was cancelled meanwhile: an entry that `starts` an effect is not written.
        `consumes` is the id of the question whose decision the entry uses, or of a message. Sets
        `lease.said`. Raises `StoreError` if the lease was lost. With `heard`: only if the run has
        got no more messages and cancellations; otherwise raises `UnheardError`.
        """
        ...

    async def aappend(
        self,
        lease: Lease,
        entry: str,
        *,
        starts: bool = False,
        consumes: str | None = None,
        heard: int | None = None,
    ) -> bool:
        """`append` without blocking the event loop.

        Raises a cancellation only after the write; if that failed, its error is the cause.
        """
        ...

    def transact(self, lease: Lease, work: Callable[[Any], R]) -> R:
        """Call `work` with a connection, in a transaction.

        Its changes and the entries written meanwhile are committed when it returns, and undone if
        it raises. `ctx.db` uses its `execute`, `executemany`, `in_transaction` and (from another
        thread) `interrupt`, as in `sqlite3.Connection`.
        """
        ...

    def note(self, lease: Lease, head: str) -> None:
        """Replace the head of a run that executes. Raises `StoreError` if the lease was lost."""
        ...

    def report(self, lease: Lease, outline: Outline) -> None:
        """Store what happened in a run that executes. Raises `StoreError` if the lease was lost."""
        ...

    def release(
        self,
        lease: Lease,
        *,
        status: str,
        head: str,
        heard: int | None = None,
        outline: Outline | None = None,
    ) -> bool:
        """Store the final status, head and outline of an execution, and give the lease back.

        The run is then at rest. With `heard`: only if the run has got so many messages; otherwise
        returns False, sets `lease.said`, and changes nothing.
        """
        ...

    def load(self, run_id: str, *, after: int = 0) -> Stored:
        """Read a run, with its entries from number `after` on, without leasing it."""
        ...

    def decide(self, run_id: str, decision: Decision) -> Decision:
        """Record a `Decision` on a question of a run; returns it with its time.

        The run may already continue with the decision on another question. A second decision that
        is equal to the first changes nothing, and the first is returned. Raises `DecisionError` if
        there is no such question, or if it is decided otherwise.
        """
        ...

    def deliver(self, run_id: str, key: str, value: Any, *, by: str = "") -> None:
        """Record the result of the calls that wait for it with this key, as `decide` does.

        Raises `DecisionError` as `Run.deliver` does.
        """
        ...

    def say(
        self,
        run_id: str,
        text: str,
        *,
        when: When = "next",
        by: str = "",
        via: str = "api",
        key: str = "",
    ) -> Decision:
        """Record a message to a run that is queued, executes or waits; see `Run.say`.

        Returns it as a `Decision` of the kind `say` or `say_after`. Raises `DecisionError` as
        `Run.say` does.
        """
        ...

    def cancel(self, run_id: str) -> None:
        """Cancel a run at once. The process that executes it learns of it within a second.

        Deletes its questions and unused decisions.
        """
        ...

    def cancel_call(
        self, run_id: str, call_id: str, *, result: Any = None, by: str = "", via: str = "api"
    ) -> Decision:
        """Cancel one call of a run that executes or waits; see `Run.cancel_call`.

        Returns the `Decision`. Raises `DecisionError` as `Run.cancel_call` does.
        """
        ...

    def look(self, leases: Sequence[Lease]) -> list[bool]:
        """Whether each of these runs was cancelled. Sets `lease.said` of those that are leased.

        It is cheap, so that a process can call it several times a second.
        """
        ...

    def list(
        self,
        *,
        limit: int | None = 100,
        before: tuple[float, str] | None = None,
        order: RunOrder = "updated",
        ascending: bool = False,
        **wanted: Unpack[RunFilter],
    ) -> list[Summary]:
        """The runs that are wanted, most recently changed first, or in another order.

        All of them with `limit=None`. `before` is the last line of the previous page: the value by
        which the list is sorted, such as `updated_at`, and the id. The `error` of a damaged run
        says so.
        """
        ...

    def count(self, **wanted: Unpack[RunFilter]) -> dict[str, int]:
        """How many runs are wanted, by their status."""
        ...

    def names(self, kind: NameKind) -> Sequence[str]:
        """The names of the programs, tools, models or evaluations of all runs, sorted.

        At most 500.
        """
        ...

    def count_questions(self) -> dict[str, int]:
        """How many questions wait for a decision, by the program of their runs. It is cheap."""
        ...

    def overview(self, *, since: float, until: float) -> Overview:
        """The runs that changed last in a period, in figures; times are seconds since 1970."""
        ...

    def assign(self, run_id: str, person: str) -> None:
        """Assign a run to a person, or to none with an empty name. The run does not change."""
        ...

    def add_note(self, run_id: str, text: str, *, author: str = "") -> RunNote:
        """Write a note on a run, for other people. No model reads it, and no search finds it."""
        ...

    def notes(self, run_id: str) -> Sequence[RunNote]:
        """The notes on a run, the oldest first."""
        ...

    def score(self, evaluation: str, items: Mapping[str, ItemScore]) -> None:
        """Keep how an evaluation scored runs, by their ids; ids without a run are left out."""
        ...

    def evaluations(self) -> Sequence[EvaluationFigures]:
        """The 50 evaluations that were scored last, the latest first."""
        ...

    def summary(self, run_id: str) -> Summary:
        """The summary of one run. Raises `StoreError` if it is damaged."""
        ...

    def now(self) -> float:
        """The time by the store's clock, in seconds since 1970, by which questions expire."""
        ...

    def changes(self) -> int:
        """A number that changes whenever any process writes to the store.

        It is cheap, so that a process can poll it several times a second.
        """
        ...

    def delete(self, run_id: str) -> None:
        """Remove a run and all its data."""
        ...

    def redact(self, run_id: str) -> None:
        """Remove the inputs, journal, questions and decisions of an ended run.

        The fact that it ran, and its status, stay.
        """
        ...

    def prune(
        self, *, older_than_s: float, statuses: Iterable[str] = ("done", "failed", "cancelled")
    ) -> int:
        """Delete runs with these statuses that have not changed for `older_than_s`.

        Returns how many.
        """
        ...


def check_store(store: Any) -> None:
    """Raise `ConfigurationError` if `store` is not a store but, for example, the path of one."""
    if hasattr(store, "append") and hasattr(store, "load") and not isinstance(store, type):
        return
    example, description = "SQLiteStore('ferrule.db')", shown(store)
    if isinstance(store, str) and ("://" in store or "=" in store):
        # The address of a database. It is not shown: it may hold a password.
        example, description = "PostgresStore(...)", "the address of one"
    elif isinstance(store, str | Path):
        example = f"SQLiteStore({str(store)!r})"
    raise ConfigurationError(f"`store` takes a store, such as {example}; found {description}.")


def check_run_id(run_id: Any) -> str:
    """Check that every store can write this id; raises `InputError` otherwise."""
    if run_id and is_column_text(run_id):
        return run_id
    raise InputError(
        "`run_id` is a text that is not empty, and valid UTF-8 without NUL; "
        f"found {shown(run_id)}. Leave it out, and the run gets an id."
    )


def check_status(status: str | None, name: str = "status") -> str | None:
    """The status of a run, or None.

    Raises `ConfigurationError` for anything else; `name` is the option's name.
    """
    if status is not None and status not in get_args(RunStatus):
        raise ConfigurationError(
            f"`{name}` is one of {', '.join(get_args(RunStatus))}; found {shown(status)}."
        )
    return status


def check_filter(wanted: Mapping[str, Any]) -> RunFilter:
    """Check which runs a list shows. Raises `ConfigurationError` for what is not a filter."""
    unknown = wanted.keys() - RunFilter.__annotations__.keys()
    if unknown:
        raise ConfigurationError(
            f"A list of runs is filtered by {', '.join(RunFilter.__annotations__)}; "
            f"found {', '.join(sorted(unknown))}."
        )
    check_status(wanted.get("status"))
    for name in ("program", "search", "tool", "model", "evaluation", "assigned"):
        value = wanted.get(name)
        # A search reads only words, so it may be any text.
        is_text = isinstance(value, str) if name == "search" else is_column_text(value)
        if value is not None and not is_text:
            raise ConfigurationError(
                f"`{name}` is a text, valid UTF-8 without NUL; found {shown(value)}."
            )
    for name in ("since", "until", "min_cost", "max_cost"):
        if wanted.get(name) is not None:
            check_number(wanted[name], name)
    if wanted.get("tool_failed") is not None:
        check_switch(wanted["tool_failed"], "tool_failed")
    return cast("RunFilter", wanted)


def check_number(value: Any, name: str) -> None:
    """Raise `ConfigurationError` for what is not a number, such as NaN."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value != value:
        raise ConfigurationError(f"`{name}` is a number; found {shown(value)}.")


def check_switch(value: Any, name: str) -> None:
    """Raise `ConfigurationError` for anything but True and False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"`{name}` is True or False; found {shown(value)}.")


def check_start(after: Any) -> None:
    """Raise `ConfigurationError` for what is not the number of an entry of a journal."""
    if not (type(after) is int and 0 <= after < 1 << 62):
        raise ConfigurationError(f"`after` is a whole number, 0 or more; found {shown(after)}.")


def check_name_kind(kind: Any) -> None:
    """Raise `ConfigurationError` for anything but a kind of names."""
    if kind not in get_args(NameKind):
        raise ConfigurationError(
            f"`kind` is one of {', '.join(get_args(NameKind))}; found {shown(kind)}."
        )


def check_page(limit: Any, before: Any) -> tuple[float, str] | None:
    """The last line of the previous page.

    Raises `ConfigurationError` for an invalid `limit` or `before`.
    """
    if limit is not None and not (type(limit) is int and 0 <= limit < 1 << 63):
        raise ConfigurationError(
            f"`limit` is a whole number, 0 or more, or None for all runs; found {shown(limit)}."
        )
    match before:
        case None:
            return None
        case [int() | float() as value, str() as run_id] if value == value:
            if is_column_text(run_id):
                return value, run_id
        case _:
            pass
    raise ConfigurationError(
        "`before` is the value and the id of a line, such as `(line.updated_at, line.id)`; "
        f"found {shown(before)}."
    )


def check_pruning(older_than_s: Any, statuses: Any) -> set[str]:
    """The statuses of the runs to delete.

    Raises `ConfigurationError` for anything that is not a run status, and for what is not a number
    of seconds: NaN would compare with no run's age, and a run is never younger than 0 seconds.
    """
    if isinstance(statuses, str) or not isinstance(statuses, Iterable):
        raise ConfigurationError(f"`statuses` is a list of statuses; found {shown(statuses)}.")
    wanted: set[str] = set()
    for status in cast("Iterable[Any]", statuses):
        if check_status(status, "statuses") is not None:
            wanted.add(status)
    check_number(older_than_s, "older_than_s")
    if older_than_s < 0:
        raise ConfigurationError(
            f"`older_than_s` is a number of seconds, 0 or more; found {shown(older_than_s)}."
        )
    return wanted


class Program(Protocol):
    """The attributes of a program that a run uses: it is a flow of acts, or a plain `forward`."""

    @property
    def is_flow(self) -> bool:
        """Whether `flow` yields acts; otherwise `forward` and `aforward` are plain Python."""
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
        """The name in journals and events."""
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


class TypedProgram(Program, Protocol[S]):
    """A program that says, for type checkers, of what signature its predictions are."""

    def resume(self, response: Any, state: Any) -> Prediction[S]:
        """Continue a run that was raised."""
        ...


class BatchRequests(Protocol):
    """Sends the requests of runs through a provider's batch API (`lifecycle/provider_batch.py`)."""

    price_factor: float
    """The part of its price that a request costs there."""

    async def answer(self, mark: bytes, lm: Any, request: Request) -> Response:
        """The answer to a request of a run. It may take hours.

        `mark` tells the request from those of other runs, and from earlier ones of its own run. It
        is the same when the run is resumed, and a secret.
        """
        ...


class Persistence(Protocol):
    """A run's place in a store (`runs/store/stored_run.py`)."""

    store: Store
    lease: Lease | None
    """The lease of the current execution."""
    is_new: bool
    """Whether the store does not have the run yet."""
    broken: StoreError | None
    """The error of the write that failed in this execution."""

    def holds(self, execution: Execution) -> bool:
        """Whether this execution has the lease."""
        ...

    def open(self, execution: Execution) -> None:
        """Lease the run before an execution."""
        ...

    def note(self) -> None:
        """Store the run's notes."""
        ...

    @property
    def has_news(self) -> bool:
        """Whether messages or cancellations came to the run that this process has not read."""
        ...

    def note_message(self, number: int) -> None:
        """Note that the run has got its `number`th message or cancellation."""
        ...

    def hear(self) -> None:
        """Read the messages and cancellations that the run has not used."""
        ...

    def heed(self, *, cancelled: bool) -> None:
        """Act on what came to the run while it executes: end it, or calls of it."""
        ...

    def close(self, execution: Execution) -> None:
        """Store the state of a run that pauses or ends, and give the lease back.

        Does nothing if this execution does not hold it. If a message came before the run was done
        there, the run is reopened (`RunState.reopen`), and keeps its lease.
        """
        ...
