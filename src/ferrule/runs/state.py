"""The state and the frames of a run while it executes.

The driver works on these; `run.py` adds the public methods.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field

from ferrule import events
from ferrule.acts import Suspended, status_after
from ferrule.approval.tally import Tally
from ferrule.concurrency.forking import ForkLock
from ferrule.encoding.encode import digest_of
from ferrule.errors import (
    FerruleError,
    LimitReachedError,
    LMError,
    RunCancelledError,
    RunError,
    StoreError,
    checks_keywords,
)
from ferrule.observers import Observers
from ferrule.runs.about import NOTHING, About
from ferrule.runs.governing import Governing
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.journal import Journal
from ferrule.runs.journal.recall import entries_with_calls, reads_untrusted
from ferrule.runs.journal.spending import spending, spent
from ferrule.runs.life import CallPlace, Execution, cancelled_around
from ferrule.runs.limits import Budget, Limits
from ferrule.runs.protocols import check_run_id
from ferrule.settings import check_grace, check_limits
from ferrule.values.masked import masked_step
from ferrule.values.outcome import Prediction, Step, Trajectory
from ferrule.values.slot import Slot, child_path
from ferrule.values.snapshot import own_copy, snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping
    from types import EllipsisType, TracebackType

    from ferrule.approval.policy import Policy
    from ferrule.approval.provenance import Source
    from ferrule.approval.question import Decision, Question
    from ferrule.runs.journal.cut import ForkedFrom
    from ferrule.runs.observers import OpenCall
    from ferrule.runs.protocols import BatchRequests, Persistence, Program, RunStatus
    from ferrule.values.calls.secrets import Secrets
    from ferrule.values.conversation.message import Messages

_BEGINNING = ForkLock(threading.RLock)
"""Guards changes of a run's state.

Reentrant: garbage collection may meanwhile finalize a stream, which cancels its run."""

saying = ForkLock()
"""Held while a run in memory gets a message, or ends: it does one after the other."""


class Frame(Struct):
    """One program's execution inside a run: the root program, or one that it calls."""

    run: RunState
    path: str = ""
    life: Execution | CallPlace = field(default_factory=Execution)
    """The execution, or the tool call of this program, that this frame belongs to.

    When it ends, so does the frame."""
    tell: Observers | None = None
    budget: Budget | None = None
    """The budget that applies here; None without limits."""
    deps: Any = None
    """The value that tools called here find in `Context.deps`; None if none was passed."""

    acts: int = 0
    children: dict[str, int] = field(default_factory=dict[str, int])
    """The last number given out here for each key: a child, `gather`, a value of `once`."""
    active: dict[str, str] = field(default_factory=dict[str, str])
    """The keys of the children that are executing now, with their paths."""
    answers_at_limit: bool = False
    """Whether the program may call a model once more after a limit was reached."""
    last_calls: int = -1
    """Model calls left after a limit was reached; -1 before that."""
    live: bool = True
    """Whether the latest act was answered live, not from the journal.

    Then its events were not sent before."""
    outer: Frame | None = None
    """The enclosing frame: spending here counts there, too."""
    lm: Any = None
    """The model of this call of the program; tools called here find it in the settings."""
    lm_override: Any = None
    """The model that replaces all others here and in what is called from here, or None.

    It is the model of the settings here, too."""
    blocks: bool = True
    """How the driver of this frame waits: True blocks its thread, False awaits."""
    is_flow: bool = False
    """Whether its program is a flow of acts, not plain Python."""
    messages_before: str = ""
    """The place before an act where messages to the run were read last."""
    messages: int = 0
    """How many were read there: a program may listen twice before one act."""
    given: tuple[Any, ...] = ()
    """The values with which code of the run called its program."""
    failures: list[tuple[Any, Entry]] | None = None
    """In plain Python: failures of models and of the user's checks that the code may still catch.

    Each with the task or thread that saw it."""

    @property
    def is_told(self) -> bool:
        """Whether observers have not got the events of this moment yet.

        The frame is live, though another branch may still be replaying; or the replay has ended.
        """
        if self.live:
            return True
        return not self.run.journal.unread and not self.run.goes_on_at_end

    def check(self) -> None:
        """Before each act: raise if this frame may not go on. Tells when a replay has ended."""
        run, journal, life = self.run, self.run.journal, self.life
        if life.over:
            raise self._has_ended()
        if run.cancelled:  # perhaps from elsewhere
            raise RunCancelledError(f"The run {run.id} was cancelled.")
        if run.status != "running":  # a branch that was not awaited outlives its run
            raise RunCancelledError(f"The run {run.id} is {run.status} already.")
        if journal.mismatch is not None:  # the program caught it and went on
            raise journal.mismatch
        if run.resuming and not journal.unread:
            run.replay_has_ended()
        if life.outer is None:
            return
        self.check_alive()
        around = cancelled_around(life)
        if around is not None:
            raise RunCancelledError(
                f"The call {around.call_id!r} of the run {around.run_id}, inside which this "
                "happens, was cancelled."
            )

    def check_alive(self) -> None:
        """Raise `RunCancelledError` if this frame's run has ended or its call was abandoned."""
        life: Execution | CallPlace | None = self.life
        while not life.over:
            if (life := life.outer) is None:
                return
        raise self._has_ended()

    def _has_ended(self) -> RunCancelledError:
        return RunCancelledError(
            f"This belongs to an execution of the run {self.run.id}, or to a call in it, that has "
            "ended."
        )

    def tell_at(self, slot: str) -> Observers | None:
        """The observers, for events about a place in this frame; None if there are none."""
        if self.tell is None:
            return None
        return self.tell.inside(slot)

    def write(self, entry: Entry) -> Awaitable[None]:
        """Journal an entry: durable once this is awaited.

        Raises `RunCancelledError` in a thread that an interrupt abandoned.
        """
        self.check_alive()
        return self.run.journal.write(entry, blocks=self.blocks)

    def slot(self) -> Slot:
        """The slot of the next act: its position in the run."""
        slot = Slot.of_act(self.path, self.acts)
        self.acts += 1
        if self.tell is not None:
            self.tell.enter(slot)
        return slot

    def child(self, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Frame:
        """A frame for a program called from this one.

        It is named by the program, a digest of its inputs, and a number for equal calls.
        """
        key = f"{program.name}:{digest_of((args, dict(inputs)), 12)}"
        if key in self.active:
            raise RunError(
                f"Two calls of `{program.name}` with equal inputs run at once inside one program, "
                "so a replay could not tell them apart. Give each branch its own place with "
                "`ferrule.gather(...)`."
            )
        self.active[key] = path = f"{self.numbered(key)}/"
        child = self.inner(path, depth=1)
        child.given = (*args, *inputs.values())
        return child

    def branches(self, count: int) -> list[Frame]:
        """Frames for concurrent branches.

        They are named by the number of the `gather` in this frame and their position in it.
        """
        gather = self.numbered("gather")
        return [self.inner(f"{gather}.{position}/") for position in range(count)]

    def numbered(self, key: str) -> str:
        """The path of the next item with this key in this frame: `key#0`, then `key#1`."""
        self.children[key] = number = self.children.get(key, -1) + 1
        return child_path(self.path, key, number)

    def inner(self, path: str, *, depth: int = 0) -> Frame:
        """A frame inside this one, of the same program or (`depth=1`) of another."""
        tell = None
        if self.tell is not None:
            tell = self.tell.inside(path, depth=depth)
        return Frame(
            self.run,
            path,
            self.life,
            tell,
            self.budget,
            self.deps,
            live=not self.run.journal.unread,
            outer=self,
            lm_override=self.lm_override,
            blocks=self.blocks,
        )

    def tool_frame(self, slot: Slot, name: str, place: CallPlace) -> Frame:
        """A frame for a program called as the tool `name`, below the call's slot."""
        path = slot.inside(name)
        tell = None
        if self.tell is not None:
            tell = self.tell.inside(path, depth=1, call_id=place.call_id)
        return Frame(
            self.run,
            path,
            place,
            tell,
            Budget(outer=self.budget),  # counts what the program spends, for the call's result
            self.deps,
            # A program that began before replays first, whatever its caller does.
            live=not self.run.journal.has_begun(slot),
            outer=self,
            lm_override=self.lm_override,
        )

    def close_child(self, child: Frame) -> None:
        """Free the key of a child whose execution has ended."""
        for key, path in list(self.active.items()):
            if path == child.path:
                del self.active[key]


class RunState:
    """The state of a run, on which its driver works. `Run` adds the public methods."""

    @checks_keywords
    def __init__(
        self,
        program: Program,
        args: tuple[Any, ...],
        inputs: Mapping[str, Any],
        *,
        run_id: str | None = None,
        deps: Any = None,
        about: About = NOTHING,
    ) -> None:
        random_bytes = os.urandom(32)
        self.id = random_bytes[:16].hex()
        if run_id is not None:
            self.id = check_run_id(run_id)
        self.program = program
        self.about = about
        self.args = args
        self.inputs = dict(inputs)
        self.given_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        """What the caller passed to a `forward`, until it is executed for the first time.

        A `forward` may change an input in place, as any function may, and the caller sees it. A
        resumed run begins with the inputs as they were, so the run keeps a copy.
        """
        if not program.is_flow:
            self.given_inputs = self.args, self.inputs
            self.args = tuple(map(own_copy, args))
            self.inputs = {name: own_copy(value) for name, value in inputs.items()}
        else:
            # A flow's inputs are replayed: if the caller changes a list or a history later, that
            # must not affect them.
            self.inputs = {name: snapshot(value) for name, value in inputs.items()}
        self.journal = Journal()
        self.status: RunStatus = "running"
        self.pending: tuple[Question, ...] = ()
        """Questions that wait for a person."""
        self.asked: tuple[Question, ...] = ()
        """The questions of the run's last pause."""
        self.changed: Mapping[str, tuple[str, str]] = {}
        """How the program differs from the one stored with the run.

        For each part that does, its value then and now."""
        self.error: BaseException | None = None
        self.cancelled = False
        self.executing: Execution | None = None
        """The current execution. Only one at a time, or an approved call would run twice."""
        self.resuming = False
        self.goes_on_at_end = False
        """Whether a message came as the run ended, and its program has not taken one since.

        Observers saw all that is replayed. A program that takes none is not replayed again."""
        self.steps: list[Step] = []
        self.open_calls: dict[str, OpenCall] = {}
        """By slot, the tool calls that observers saw start, and not end."""
        self.calls_at_work: dict[str, CallPlace] = {}
        """By slot, the tool calls that this execution waits for."""
        self.secrets: Secrets = {}
        """By tool, the arguments that observers see as stars; of all tools offered so far."""
        self.root: Frame | None = None
        """The root frame of the current execution.

        Dropped at its end: run and frame form a cycle, which waits for garbage collection."""
        self.latest_messages: Messages | None = None
        """The messages of the program's own latest model request."""
        self.governing: Governing | None = None
        """The limits and the policy that the run was started with.

        None before its start."""
        self.structured_callers: set[str] = set()
        """The names of the models that made a structured call in this run."""
        self.prices: Any = None
        """The setting `prices` during the current execution."""
        self.replay_lock: Any = None
        """Held by the replay that rebuilds the outcome, steps and messages of a loaded run.

        None if there is nothing to rebuild."""
        self.replay_error: BaseException | None = None
        """Why that replay could not follow the journal of a run that is not done."""
        self.trace: TracebackType | None = None
        """The traceback of the first raise; each further raise changes the error's own."""
        self.tell: Observers | None = None
        self.wants_deltas = False
        self.decisions: list[Decision] = []
        self._tally: Tally | None = None
        self.answers: dict[str, Decision] = {}
        """The decisions that were given and are not in the journal yet, by question."""
        self.sources: dict[str, Source] = {}
        """The untrusted results that conditions of rules have looked at, by slot."""
        self.said = 0
        """How many messages came to a run in memory; a store counts those to its runs."""
        self.heard = 0
        """How many of the messages to the run its execution has looked at."""
        self.key = random_bytes[16:]
        """The secret from which the ids of this run's questions are made; stored with the run."""
        self.deps = deps
        """Dependencies passed to tools (`Context.deps`); never stored."""
        self.batch_budget: Budget | None = None
        """The budget of the batch that executes this run; None outside a batch."""
        self.batch_requests: BatchRequests | None = None
        """Sends the requests of this run through a provider's batch API; None: they go directly."""
        self.asks_anew = False
        """Whether the next execution drops the answers that led to the run's error."""
        self.limits: Limits | None = None
        """The limits with which the run was resumed; None for those of its program and settings."""
        self.forked_from: ForkedFrom | None = None
        """What this run is a fork of; None for most runs."""
        self.notes: Mapping[str, str] = {}
        """The observers' notes, stored with the run (`Observers.open_run`)."""
        self.persistence: Persistence | None = None
        """The run's place in a store; None for a run in memory only."""
        self.outcome: Any = None
        self.extra_tools: tuple[Any, ...] = ()
        """Tools passed to `Run.load`, to look up the tools that the run had loaded."""

    def starter_of(self, slot: str) -> str:
        """The id of the run that began the call at a slot: its idempotency key is made of it."""
        starter = None
        if self.forked_from is not None:
            starter = self.forked_from.starter(slot)
        return starter or self.id

    @property
    def is_new_fork(self) -> bool:
        """Whether this is a fork that has recorded nothing of its own yet."""
        return self.forked_from is not None and len(self.journal) == self.forked_from.entries

    def question_id(self, slot: str) -> str:
        """An unguessable id for the question at a slot, the same in every replay.

        After a decision on it is dropped, there is a new id.
        """
        import hmac  # late: it loads OpenSSL

        question_id = hmac.new(self.key, slot.encode(), "sha256").hexdigest()[:20]
        if question_id in self.journal.void_questions:
            return self.question_id(f"{slot} {question_id}")
        return question_id

    @property
    def tally(self) -> Tally:
        """Counts the decisions. Created at first use, as most runs have no question."""
        if self._tally is None:
            with _BEGINNING.lock:  # branches in two threads may read it at once
                self._tally = self._tally or Tally()
        return self._tally

    def decided(self, decision: Decision) -> None:
        """Drop a decision that is now in the journal, and count it.

        Not earlier: after an interrupt, it must still be there to use.
        """
        self.answers.pop(decision.question_id, None)
        self.tally.note(self.decisions, decision)

    def hear(self, messages: Iterable[Decision]) -> None:
        """Keep messages to the run until its program listens. Known ones change nothing."""
        for message in messages:
            if self.tally.first(self.decisions, message.question_id) is None:
                self.answers[message.question_id] = message
                self.decisions.append(message)

    def inputs_to_perform(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs for one execution; see `given_inputs`."""
        given, self.given_inputs = self.given_inputs, None
        if self.program.is_flow:
            return self.args, self.inputs
        if given is not None:
            return given
        return (
            tuple(map(own_copy, self.args)),
            {name: own_copy(value) for name, value in self.inputs.items()},
        )

    def begin(self, execution: Execution, tell: Observers | None, *, wants_deltas: bool) -> Frame:
        """Begin the first or a later execution; returns its root frame."""
        with _BEGINNING.lock:
            if self.executing is not None and self.executing is not execution:
                raise RunError(f"The run {self.id} is executing already; wait for it.")
            if self.status == "done":
                raise RunError(f"The run {self.id} is done; start another one.")
            self.executing = execution
        # A run that was interrupted since its last pause has nothing pending, but the decisions on
        # what it asked then still count.
        self.asked = self.pending or self.asked
        self.status, self.error, self.trace = "running", None, None
        self.pending, self.steps = (), []
        self.replay_lock = self.replay_error = None  # this execution replays the journal itself
        budget, lm_override = self.batch_budget, None
        if execution.outer and execution.outer.frame:  # a tool of another run started this one
            usage = partial(spent, self.journal.entries)
            budget = execution.outer.budget_of_run(self.id, usage, budget)
            lm_override = execution.outer.frame.lm_override
        self.root = root = Frame(
            self, "", execution, tell, budget, self.deps, lm_override=lm_override
        )
        self.tell = tell
        self.wants_deltas = wants_deltas
        self.resuming = self.journal.rewind()
        if self.asks_anew:
            self.asks_anew = False
            self.journal.drop_latest_answers()
        root.live = not self.resuming
        for what, (then, now) in self.changed.items():
            self.journal.note_drift(what, then, now)
        self.journal.on_note = None
        if tell is not None:
            self.journal.on_note = lambda differs: tell(events.Migrated(differs))
        return root

    def replay_has_ended(self) -> None:
        """From now on, the acts of a resumed run are performed."""
        self.resuming = False
        if self.tell is not None:
            steps = [masked_step(step, self.secrets) for step in self.steps]
            self.tell.inside("")(events.Resumed(Trajectory(steps), self.program))

    def cancel(self, *, grace_s: float | EllipsisType | None = ...) -> None:
        """End the run at once, also in another process, or while it waits.

        Async tools are cancelled. Sync ones can look at `ctx.cancelled`; they are left behind after
        `grace_s`, because a thread cannot be stopped. What has no result then is unknown, as after
        a crash. The journal is kept, so `resume()` continues the run.

        Args:
            grace_s: For how many seconds a tool may end by itself. Not given: the setting `grace_s`
                of the execution. None: the run ends before its next act, and waits for what runs.

        """
        if grace_s is not ...:
            check_grace(grace_s)
        was_cancelled, self.cancelled = self.cancelled, True
        with _BEGINNING.lock:
            self._halt(grace_s)
            if self.executing or self.status not in {"waiting", "queued", "running"}:
                return
        store = None
        if self.persistence is not None and not self.persistence.is_new:
            store = self.persistence.store
            try:
                store.cancel(self.id)
            except StoreError:  # nothing was cancelled: another process may have ended the run
                self.cancelled = was_cancelled
                raise
        with _BEGINNING.lock:
            if self.executing:
                return
            if self.status in {"waiting", "queued"}:
                self.status, self.pending = "cancelled", ()
                self.forget_untaken()
                self.error = RunCancelledError(f"The run {self.id} was cancelled.")
        if store is None or self.status != "running":
            return
        if store.summary(self.id).status == "cancelled":
            self.status = "cancelled"  # no process executed it

    def _halt(self, grace_s: float | EllipsisType | None) -> None:
        """End what the current execution waits for, if there is one."""
        execution = self.executing  # read once: its thread may end it meanwhile
        if execution is None:
            return
        if grace_s is ...:
            grace_s = execution.grace_s
        if grace_s is not None:
            execution.halt.set(grace_s)

    def goes_on(
        self,
        *,
        resumed: bool = False,
        deps: Any = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
    ) -> None:
        """Before an execution: clear the cancellation of an earlier execution.

        Later cancellations apply to this one. A cancellation before the first execution also
        applies, unless the run is resumed. `deps`, `limits` and `policy` replace those of the run,
        unless None.
        """
        if deps is not None:
            self.deps = deps
        if limits is not None:
            check_limits(limits)
            self.limits = limits
        if policy is not None:
            if self.governing is None:
                self.governing = Governing()
            self.governing.replace_policy(policy)
        if resumed or self.status != "running":
            with _BEGINNING.lock:
                if not self.executing:
                    self.cancelled = False

    def forget_untaken(self) -> None:
        """Drop unused decisions after a cancellation: their questions are asked again."""
        untaken = {key for key, decision in self.answers.items() if decision.kind != "revoke"}
        if not untaken:
            return
        for key in untaken:
            del self.answers[key]
        # A new list, which tells the tally to count again.
        self.decisions = [
            decision for decision in self.decisions if decision.question_id not in untaken
        ]

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C, a task's cancellation or an exit ended the run.

        Such an error is not only recorded but raised again.
        """
        return self.error is not None and not isinstance(self.error, Exception)

    def _end(self) -> None:
        root = self.root
        if root is None:
            return
        root.life.over, self.root = True, None
        outer = root.life.outer
        if outer is not None and outer.frame is not None:
            # Summed when it is needed, without the journal.
            inner = outer.inner_runs[self.id]
            inner.usage = spending(self.journal.entries)
            inner.untrusted = reads_untrusted(self.journal.entries)

    def done(self, prediction: Any) -> bool:
        """Record what the program returned.

        Returns False, and records nothing, if a message came to a run in memory since its program
        listened last: the program must go on. For a run in a store, `release` finds that out.
        """
        with saying.lock:
            is_news = self.persistence is None and self.said != self.heard
            if is_news and not self.goes_on_at_end:
                return False
            self._record_outcome(prediction)
        return True

    def _record_outcome(self, prediction: Any) -> None:
        self._end()
        if isinstance(cast("object", prediction), Prediction):
            entries = self.journal.entries
            prediction = prediction.counted(spending(entries), entries_with_calls(entries))
        self.outcome = prediction
        self.status = "done"
        self.executing = None

    def reopen(self, execution: Execution) -> None:
        """Undo `done`: a message came to its store before the run ended there."""
        self.outcome, self.status, self.executing = None, "running", execution

    def stopped(self, error: BaseException) -> None:
        """Record that the execution ended without a prediction.

        The run waits, has failed, or was cancelled.
        """
        life = None
        if self.root is not None:
            life = self.root.life
        stream_was_left = isinstance(life, Execution) and life.left
        if stream_was_left and isinstance(error, asyncio.CancelledError):
            # The run was cancelled, not the caller's task.
            error = RunCancelledError(f"The run {self.id} was cancelled: its stream was left.")
        self._end()
        if isinstance(error, Suspended):
            self.status, self.pending = "waiting", error.questions
        else:
            self.error, self.trace = error, error.__traceback__
            self.status = status_after(error)
            self.describe_error()
            # An agent inside a `forward` sets its own steps.
            if isinstance(error, LimitReachedError) and self.steps:
                error.trajectory = Trajectory(self.steps)
            if self.cancelled:
                self.forget_untaken()
        self.executing = None

    def ask_anew(self) -> bool:
        """Let the next execution drop the answers that led to the run's error.

        Returns whether it does: only if the last one failed by recorded answers alone. A request
        that failed is not recorded, so it was made again.
        """
        if self.status != "failed" or isinstance(self.error, (LMError, LimitReachedError)):
            return False
        recorded = self.journal.recorded
        self.asks_anew = recorded > 0 and recorded == len(self.journal)
        return self.asks_anew

    def describe_error(self) -> None:
        """Give the error what the run has spent; and one about a limit, the run to continue."""
        error = self.error
        if not isinstance(error, Exception):
            return
        if isinstance(error, LimitReachedError):
            error.run = self
        is_ours = isinstance(error, FerruleError)
        if not is_ours and (hasattr(type(error), "usage") or hasattr(type(error), "cost")):
            return  # attributes of its own class
        usage, annotated = spent(self.journal.entries), cast("FerruleError", error)
        with suppress(AttributeError):  # a class with `__slots__`
            annotated.usage, annotated.cost = usage, usage.cost
