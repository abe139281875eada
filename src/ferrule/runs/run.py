"""`Run`: a run of a program, as a value; and calls of programs inside a run.

Resuming a run replays its journal into a new execution of the program, which continues where the
last one stopped.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar

from msgspec.structs import replace

from ferrule.concurrency import offload
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import parse_object, reading
from ferrule.errors import (
    ConfigurationError,
    ConfirmationRequired,
    InputError,
    LimitReachedError,
    ReplayMismatchError,
    RunCancelledError,
    RunError,
    shown,
)
from ferrule.events import QuestionAsked, RunFinished
from ferrule.runs.about import NOTHING, About
from ferrule.runs.cancelling import cancel_call_of
from ferrule.runs.decisions import (
    deliver_result,
    open_grants,
    put_decision,
    register,
    results_awaited,
    revoke_grant,
)
from ferrule.runs.driver.deps import check_program_deps
from ferrule.runs.driver.drive import perform
from ferrule.runs.driver.execution import aexecute, execute
from ferrule.runs.journal.cut import (
    ForkedFrom,
    begun_calls,
    first_entries,
    messages_in,
    place_of_cut,
    with_own_ids,
)
from ferrule.runs.journal.encode import entry_form, read_entry
from ferrule.runs.journal.journal import ClosedJournal
from ferrule.runs.journal.recall import named_call, recalled_events
from ferrule.runs.journal.spending import spent
from ferrule.runs.observers import started
from ferrule.runs.protocols import Order, check_store
from ferrule.runs.state import Frame, RunState
from ferrule.runs.steering import say_to
from ferrule.runs.store.document import (
    check_head,
    check_inputs,
    head_form,
    inputs_form,
    read_inputs,
    restore,
)
from ferrule.runs.store.fingerprint import differences, program_fingerprint
from ferrule.runs.store.listing import decisions_of, head_of
from ferrule.runs.store.stored_run import StoredRun, submit_run
from ferrule.settings import Scope, check_grace, entered, scope, with_settings_of_call
from ferrule.values.conversation.message import Messages
from ferrule.values.display import Displayed
from ferrule.values.outcome import Trajectory
from ferrule.values.slot import programs_in
from ferrule.values.tracebacks import callers_frames
from ferrule.values.typed import S, Typed

if TYPE_CHECKING:
    import builtins
    from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
    from typing import Unpack

    from ferrule.approval.message import When
    from ferrule.approval.policy import Grant, Policy
    from ferrule.approval.question import Decision, Question
    from ferrule.events import Event
    from ferrule.runs.journal.entry import Entry
    from ferrule.runs.limits import Limits
    from ferrule.runs.protocols import (
        Program,
        RunFilter,
        RunOrder,
        Store,
        Stored,
        Summary,
        TypedProgram,
    )
    from ferrule.values.conversation.exchange import Request, Usage
    from ferrule.values.outcome import Prediction

T = TypeVar("T")


class Run(Displayed, RunState, Typed[S]):
    """One run of a program, as a value: it can wait for a person, be stored, and be resumed.

    Made by `program.start(...)`. `status` is `running`, `waiting` (see `pending`), `done`, `failed`
    (see `error`) or `cancelled`.
    """

    @property
    def prediction(self) -> Prediction[S]:
        """The program's result.

        Raises the run's error if it failed, `ConfirmationRequired` if it waits.
        """
        if self.status == "done":
            self._rebuild()
            return self.outcome
        if self.status == "waiting":
            raise self.confirmation()
        if self.error is not None:
            with callers_frames:
                raise self.error.with_traceback(self.trace)
        raise RunError(f"The run is {self.status}; it has no prediction yet.")

    @property
    def trajectory(self) -> Trajectory:
        """The program's steps so far; of a loaded run, rebuilt from its journal on first use."""
        self._rebuild()
        if self.replay_error is not None:
            raise self.replay_error
        trajectory = getattr(self.outcome, "trajectory", None)
        if isinstance(trajectory, Trajectory):
            return trajectory
        return Trajectory(self.steps)

    @property
    def messages(self) -> Messages:
        """The conversation so far; of a loaded run, rebuilt from its journal on first use.

        In an unfinished run: the program's own latest request, not that of a program inside.
        """
        self._rebuild()
        if self.replay_error is not None:
            raise self.replay_error
        messages = getattr(self.outcome, "messages", None)
        if isinstance(messages, Messages):
            return messages
        return self.latest_messages or Messages()

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that the run was started with, as a copy; no model sees it."""
        return dict(self.about.metadata)

    @property
    def title(self) -> str:
        """The title that the run was started with; empty without one."""
        return self.about.title

    @property
    def usage(self) -> Usage:
        """Tokens and cost of the models' answers so far; `usage.by_model` splits them by model."""
        return spent(self.journal.entries)

    @property
    def cost(self) -> float | None:
        """The cost of the models' answers so far, in US dollars; None if any of it is unknown."""
        return self.usage.cost

    def events(self, *, after: str = "") -> list[Event]:
        """The run's events, rebuilt from its journal, for clients that reconnect.

        Those after the last event with the path `after`, or all if no event has it. See
        docs/reference/events.md.
        """
        run_events: list[Event] = [
            started(
                self.program,
                self.args,
                self.inputs,
                self.about,
                forked_from=self.forked_from.run_id if self.forked_from is not None else "",
            ),
            *recalled_events([*self.journal.entries], self._reason_of_end()),
        ]
        for question in self.pending:
            path, depth = question.path.removesuffix("/"), len(programs_in(question.path))
            run_events.append(QuestionAsked(question, path=path, depth=depth))
        if self.status != "running":
            prediction = None
            if self.status == "done":
                prediction = self.prediction
            run_events.append(RunFinished(prediction, self.error, self.status))
        first = 0
        for number, event in enumerate(run_events):
            event.run_id, event.root_id, event.number = self.id, self.id, number
            if after and event.path == after:
                first = number + 1
        return run_events[first:]

    @property
    def awaited(self) -> list[Question]:
        """The questions of all calls that waited, or still wait, for a result from outside."""
        return results_awaited(self.journal.entries)

    def confirmation(self) -> ConfirmationRequired:
        """The first pending question as the exception that a plain call raises."""
        self._rebuild()
        first = self.pending[0]
        fields = getattr(getattr(self.program, "signature", None), "input_fields", self.inputs)
        # Without options of the call, such as `lm`.
        inputs = {name: value for name, value in self.inputs.items() if name in fields}
        return ConfirmationRequired(
            first.text,
            confirmation_id=first.id,
            tool_call=first.call,
            run=self,
            context={"trajectory": Trajectory(self.steps), "input_args": inputs},
            ways=first.ways,
        )

    def answer(self, decision: Decision) -> None:
        """Record one decision on a pending question; repeating your own decision has no effect.

        Raises `DecisionError` if the question does not exist, has another decision, or has expired,
        or if the decision is invalid.
        """
        put_decision(self, decision)

    def deliver(self, key: str, value: Any, *, by: str = "") -> None:
        """Record the result of a call whose tool returned `Later(key=...)`; `resume` uses it.

        `value` is JSON data of the tool's return type. The same result again has no effect. Raises
        `DecisionError` for a key that no call waits for, another result, one that is too late, and
        a value that does not fit.
        """
        deliver_result(self, key, value, by=by)

    def say(
        self,
        text: str,
        *,
        when: When = "next",
        by: str = "",
        via: str = "api",
        key: str = "",
    ) -> None:
        """Say something to the agent while the run executes or waits, from any thread.

        Its next request has the message, as one of the user. See docs/how-to/agents/steering.md.

        Args:
            text: The message.
            when: `"next"`: before the next request; also after an answer that comes first.
                `"after"`: when the agent has answered.
            by: Who says it, for the record.
            via: Where it was said, for the record.
            key: Names the message, if it may be sent twice: the second time has no effect.

        Raises:
            DecisionError: The text says nothing; the run has ended; its program has no loop of
                requests; or another message has this key.

        """
        say_to(self, text, when=when, by=by, via=via, key=key)

    def cancel_call(
        self,
        call_id: str,
        *,
        result: Any = None,
        by: str = "",
        via: str = "api",
        grace_s: float | None = None,
    ) -> None:
        """End one call of the run at once, from any thread; the other calls go on.

        A call at work ends as those of a cancelled run do (`cancel`). One that waits for a person,
        or for its result from outside, waits no longer. See docs/how-to/agents/limits.md.

        Args:
            call_id: The model's id of the call (`Context.call_id`), or its place in the run.
            result: What the model reads as its result: a text or other JSON data. None: that the
                call was cancelled, or what the tool returned in time all the same.
            by: Who cancels it, for the record.
            via: Where it was cancelled, for the record.
            grace_s: For how many seconds the tool may end by itself. None: the setting `grace_s`.

        Raises:
            DecisionError: No such call is at work or waits: it has not begun, or it has ended. Or
                it was cancelled with another result before, or the result is not JSON data.

        """
        if grace_s is not None:
            check_grace(grace_s)
        cancel_call_of(self, call_id, result=result, by=by, via=via, grace_s=grace_s)

    @property
    def grants(self) -> dict[str, Grant]:
        """The valid grants (see `Grant`), by the id of the question that each was given with.

        `calls` is how many calls remain.
        """
        return open_grants(self)

    def revoke(self, grant_id: str, *, by: str = "") -> None:
        """End a grant: later calls ask again. Raises `DecisionError` for an unknown id.

        Takes effect here at once; a store is updated when the run next waits or ends.
        """
        revoke_grant(self, grant_id, by=by)

    def resume(
        self,
        *,
        deps: Any = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
    ) -> Self:
        """Continue the run: replay the journal, then go on live.

        Returns this run, which may wait again. `deps` replace those of the run. `limits` replace
        those of the settings, of the call and of the run's own program, but not those of programs
        inside; they are not stored. `policy` replaces that of the settings that the run was started
        with. Raises `ConfigurationError`, before executing anything, if a tool needs `deps` and
        there are none, or if the policy that the run was started with is not found here.
        """
        self.goes_on(resumed=True, deps=deps, limits=limits, policy=policy)
        execute(self)
        return self

    @with_settings_of_call
    async def aresume(
        self,
        *,
        deps: Any = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
    ) -> Self:
        """`resume` on this event loop."""
        self.goes_on(resumed=True, deps=deps, limits=limits, policy=policy)
        await aexecute(self)
        return self

    def fork(
        self,
        *,
        at_step: int | None = None,
        at: str = "",
        inputs: Mapping[str, Any] | None = None,
        messages: Iterable[str] = (),
        program: Program | None = None,
        run_id: str | None = None,
        deps: Any = None,
    ) -> Self:
        """A new run that begins with the first steps of this one, to try another way from there.

        Nothing is executed here: `resume()` of the new run replays these steps, which does nothing
        a second time, and goes on live, with other settings if you like. See
        docs/how-to/running/forks.md.

        Args:
            at_step: How many steps of the trajectory to keep: the step with this number is done
                again. By default all of them.
            at: Keep what was recorded before this place instead: the `path` of an event, or a place
                that `ferrule show` lists, also in an agent that is a tool.
            inputs: Inputs in place of those of this run, by name.
            messages: Messages to the agent, as `say` sends them, for its next request.
            program: The program of the new run, such as one with other instructions. By default
                that of this run.
            run_id: The id of the new run; by default a new one.
            deps: The value that tools find in `Context.deps`; by default that of this run.

        Returns:
            The new run. It is kept in the store of this run, if there is one, from its first
            execution on, or from `submit()` on, which leaves that to a worker.

        Raises:
            InputError: There is no such step or place, or an input does not fit the program.
            DecisionError: The program takes no messages.
            RunError: This run is executing.

        """
        self._refuse_fork_while_executing()
        if isinstance(messages, str):
            raise InputError(f"`messages` is a list of texts; found {shown(messages)}.")
        if at_step is not None and at:
            raise InputError("A fork begins `at_step` or `at` a place; found both.")
        end = len(self.journal)
        if at_step is not None:
            end = self._end_of_steps(at_step)
        elif at:
            end = place_of_cut(self.journal.entries, at)
        if program is not None:
            _check_is_program(program, "forked")
        if deps is None:
            deps = self.deps
        forked = type(self)(
            program or self.program,
            self.args,
            {**self.inputs, **(inputs or {})},
            run_id=run_id,
            deps=deps,
            about=self.about,
        )
        forked.given_inputs = None  # they are this run's own, which stay as they are
        if inputs or program is not None:
            _check_inputs(forked)
        _begin_fork(forked, self, end)
        if forked.program.is_flow:
            forked.replay_lock = RLock()  # it has steps and messages to read
        for message in messages:
            say_to(forked, message)
        if self.persistence is not None:
            forked.keep(self.persistence.store)
        return forked

    def submit(
        self,
        *,
        priority: int | None = None,
        delay_s: float | None = None,
        queue_key: str | None = None,
    ) -> str:
        """Put a fork into the queue of its store, and return its id. A worker executes it.

        Args:
            priority: Runs with smaller numbers begin first; None is 0.
            delay_s: Seconds before it may begin.
            queue_key: The owner of the run, such as a tenant, for the queue's limits per key.

        Raises:
            RunError: The run has no store, or has begun.
            StoreError: The id exists, or the store has no engine for `priority`, `delay_s` or
                `queue_key`.

        """
        stored = self.persistence
        if not isinstance(stored, StoredRun) or not stored.is_new:
            why = "has begun: `resume()` continues it"
            if stored is None:
                why = "has no store: fork a run that was started with `store=`"
            raise RunError(
                f"Only a new fork of a stored run can be submitted, and the run {self.id} {why}."
            )
        order = Order(priority=priority, delay_s=delay_s, queue_key=queue_key)
        with callers_frames:
            submit_run(self, stored.store, order)
        stored.is_new = False
        return self.id

    async def asubmit(self, **options: Any) -> str:
        """`submit` without blocking the loop."""
        return await offload.run_or_cancel(partial(self.submit, **options))

    def _refuse_fork_while_executing(self) -> None:
        is_executing = self.executing is not None
        if self.persistence is not None and not self.persistence.is_new:
            is_executing = is_executing or self.persistence.store.summary(self.id).leased
        if is_executing:
            raise RunError(
                f"The run {self.id} is executing: what it does now has no record yet. Wait until "
                "it pauses or ends, or cancel it, and fork it then."
            )

    def _end_of_steps(self, count: int) -> int:
        """The number of the first entry after so many steps of the trajectory."""
        if type(count) is not int or count < 0:
            raise InputError(f"`at_step` is a number of steps, 0 or more; found {shown(count)}.")
        if count == 0:
            return 0
        journal = ClosedJournal(self.journal.entries, is_whole=self.status == "done")
        journal.most_steps = count
        again = self._replayed_in(journal)
        if journal.after_steps is None and journal.end is None and again.error is not None:
            raise again.error  # such as that no model is set
        if journal.after_steps is None:
            raise InputError(
                f"`at_step` is a step of the run; found {count}, and the run {self.id} has "
                f"{len(again.steps)} steps of its own. Name a place with `at`, as `ferrule show` "
                "lists them, to fork it inside a program that it calls."
            )
        return journal.after_steps

    # -- stores and JSON

    def keep(self, store: Store) -> None:
        """Keep this run in a store, starting with its next execution.

        Called by `program.start(store=...)`.
        """
        check_store(store)
        self.persistence = StoredRun(store, self, is_new=True)

    @classmethod
    def load(
        cls,
        store: Store,
        run_id: str,
        program: TypedProgram[T],
        *,
        tools: Iterable[Any] = (),
        migrate: bool = False,
        deps: Any = None,
    ) -> Run[T]:
        """Load a run from a store, in any process; `resume()` continues it.

        Nothing is executed here. If the program then takes other steps than the journal has, the
        run fails with `ReplayMismatchError`.

        Args:
            store: The store that has the run.
            run_id: The run's id.
            program: The program that started the run, or a newer version of it.
            tools: The tools that the run got as inputs or loaded.
            migrate: Load the run even if the program is of another class, or no longer takes the
                inputs.
            deps: The value that tools find in `Context.deps`.

        Raises:
            ReplayMismatchError: The program is another one, and `migrate` is false.
            StoreError: There is no such run.

        """
        check_store(store)
        run: Any = cls._of(
            store.load(run_id), store, program, tools=tools, migrate=migrate, deps=deps
        )
        return run

    @classmethod
    def _of(
        cls,
        stored: Stored,
        store: Store,
        program: Program,
        *,
        tools: Iterable[Any] = (),
        migrate: bool = False,
        deps: Any = None,
    ) -> Self:
        head = {**head_of(stored), "status": stored.status}
        head["asked"] = head.get("questions", [])
        if stored.status != "waiting":  # questions from before it resumed are outdated
            head["questions"] = []
        run = cls._from_head(head, stored.entries, program, tools, migrate=migrate, deps=deps)
        # The decisions that the run has not used are in rows of their own; its head has only
        # revocations, which no question uses.
        run.answers = {
            key: decision for key, decision in run.answers.items() if decision.kind == "revoke"
        }
        counted = {decision.question_id for decision in run.decisions}
        for decision in decisions_of(stored):
            run.answers[decision.question_id] = decision
            if decision.question_id not in counted:
                run.decisions.append(decision)
        # By time, as in the process that took them: the journal has them in the order of their use.
        run.decisions.sort(key=lambda decision: decision.at or 0.0)
        run.persistence = StoredRun(store, run, is_new=False)
        return run

    @staticmethod
    def list(
        store: Store,
        *,
        limit: int | None = 100,
        before: tuple[float, str] | None = None,
        order: RunOrder = "updated",
        ascending: bool = False,
        **wanted: Unpack[RunFilter],
    ) -> builtins.list[Summary]:
        """The runs of a store that are wanted, most recently changed first. See `Store.list`.

        Each with its id, title, metadata, status, pending questions, first input and output,
        tokens and cost.
        """
        check_store(store)
        return store.list(limit=limit, before=before, order=order, ascending=ascending, **wanted)

    def to_json(self) -> str:
        """The whole run as one JSON document; `Run.from_json` restores an equal run.

        Raises `RunError` while it executes.
        """
        if self.executing:
            raise RunError(f"The run {self.id} is executing. Wait until it pauses or ends.")
        form = head_form(self, inputs_form(self))
        form["journal"] = [entry_form(entry) for entry in self.journal.entries]
        return json_text(form)

    @classmethod
    def from_json(
        cls,
        text: str,
        program: Program,
        *,
        tools: Iterable[Any] = (),
        migrate: bool = False,
        deps: Any = None,
    ) -> Self:
        """Restore a run from `to_json`. For `program`, `tools` and `migrate`, see `load`."""
        head = parse_object(text, "a run")
        entries = head.get("journal", ())
        return cls._from_head(head, entries, program, tools, migrate=migrate, deps=deps)

    @classmethod
    def _from_head(
        cls,
        head: dict[str, Any],
        entries: Iterable[Any],
        program: Program,
        tools: Iterable[Any],
        *,
        migrate: bool,
        deps: Any,
    ) -> Self:
        if not isinstance(migrate, bool):
            raise InputError(f"`migrate` is True or False; found {shown(migrate)}.")
        _check_is_program(program, "loaded")
        changed = check_head(head, program, migrate=migrate)
        tools = tuple(tools)
        args, inputs = read_inputs(head, program, tools)
        if not migrate:
            check_inputs(program, args, inputs)
        run = cls(program, args, inputs, run_id=head["id"], deps=deps)
        run.extra_tools, run.changed = tools, changed
        with reading("The journal of a run"):
            run.journal.entries.extend(map(read_entry, entries))
        restore(run, head)
        # A `forward` has no steps and messages of its own, and its code runs again in a replay: so
        # only if there is something to find.
        has_steps = program.is_flow or isinstance(run.error, LimitReachedError)
        if run.status == "done" or (has_steps and (run.status != "queued" or run.journal.entries)):
            run.replay_lock = RLock()
        register(run, run.pending)
        return run

    def _rebuild(self) -> None:
        """At the first access, rebuild the outcome, the steps and the messages of a loaded run.

        Its journal is replayed, as far as it goes. Raises an error if the replay of a run that is
        done cannot follow the journal: no model is configured (none is called), or the program is
        another one. For any other run, that is `replay_error`.
        """
        lock = self.replay_lock
        if lock is None:
            return
        # A replay may need the background loop, so that loop must not wait for another thread's
        # replay: it runs its own.
        with nullcontext() if offload.is_awaited_by_loop() else lock:
            if self.replay_lock is lock:  # no other thread rebuilt or resumed it meanwhile
                self._replay(lock)

    def _replay(self, lock: Any) -> None:
        journal = ClosedJournal(self.journal.entries, is_whole=self.status == "done")
        again = self._replayed_in(journal)
        if self.status == "done" and again.error is not None:
            raise again.error
        if self.replay_lock is not lock:  # resumed meanwhile
            return
        if self.status == "done":
            self.outcome = again.outcome
        elif journal.end is None and (
            isinstance(again.error, ReplayMismatchError)
            or (again.error is not None and journal.unread)
        ):
            self.replay_error = again.error
        elif _is_same_error(self.error, again.error):
            self.error = again.error  # with its class and attributes, which a store does not keep
        if isinstance(self.error, LimitReachedError) and journal.end is not None:
            # Those of the program that reached the limit, which asked for another answer then.
            self.error.trajectory = Trajectory(journal.steps.get(journal.end.path, again.steps))
        self.steps, self.latest_messages = again.steps, again.messages
        self.replay_lock = None

    def _replayed_in(self, journal: ClosedJournal) -> Run[Any]:
        """A run like this one, after a replay that performs nothing.

        It begins with all that this run would go on with: a reader sees what the program sees.
        """
        again = Run[Any](
            self.program,
            self.args,
            self.inputs,
            run_id=self.id,
            deps=self.deps,
            about=self.about,
        )
        again.key, again.extra_tools = self.key, self.extra_tools
        again.given_inputs = None  # they are this run's own, which stay as they are
        again.answers, again.decisions = dict(self.answers), list(self.decisions)
        again.asked = self.asked
        if self.governing is not None:
            again.governing = self.governing.copied()
        again.journal = journal
        # Outside the reader's frame: the replay costs the reader, perhaps a tool, nothing of its
        # budget.
        with entered(Scope(scope().overrides)):
            execute(again, is_silent=True)
        return again

    def requests(self) -> dict[str, tuple[Any, Request]]:
        """By slot, the model and the request of each recorded model call of the run.

        A journal has only the digests of requests. So the journal is replayed, as far as it goes:
        no model is called and no tool runs, but the code of a `forward` runs again. A call that
        has a result is not made again, so an agent that is a tool of the program is replayed by
        itself, with the part of the journal below its call; one that the program has no longer, or
        that an ordinary function calls, is missing.
        """
        journal = ClosedJournal(self.journal.entries, keeps_requests=True)
        self._replayed_in(journal)
        recorded = {entry.slot for entry in self.journal.entries}
        requests = {slot: sent for slot, sent in journal.requests.items() if slot in recorded}
        for path, agent in self._agents_that_are_tools():
            for slot, sent in agent.requests().items():
                requests.setdefault(f"{path}{slot}", sent)
        return requests

    def _agents_that_are_tools(self) -> Iterator[tuple[str, Run[Any]]]:
        """Each call of an agent that is a tool, as a run of that agent: its path, and the run."""
        entries = self.journal.entries
        calls: dict[str, tuple[Program, dict[str, Any]]] = {}
        for entry in entries:
            if entry.kind == "begun":
                with reading(f"The call at {entry.slot} of the journal"):
                    name, args = named_call(entry.digest)
                program = _program_of_tool(self.program, name)
                if program is not None:
                    calls[entry.slot] = program, args
        for call_slot, inside in _entries_inside(calls, entries).items():
            program, args = calls[call_slot]
            # The path of the agent's frame, such as `3.0/Clerk:8f0e/`.
            slot = inside[0].slot
            path = slot[: slot.index("/", len(call_slot) + 1) + 1]
            agent = Run[Any](program, (), args, deps=self.deps)
            agent.journal.entries.extend(
                [
                    replace(entry, slot=entry.slot.removeprefix(path))
                    for entry in inside
                    if entry.slot.startswith(path)
                ]
            )
            yield path, agent

    def _reason_of_end(self) -> BaseException | None:
        """The error of a run that has ended without a prediction; None for any other run."""
        if self.status not in {"failed", "cancelled"}:
            return None
        return self.error or RunCancelledError(f"The run {self.id} is {self.status}.")

    def display_rows(self) -> Iterator[tuple[str, Any]]:
        """Id, program, status and outcome, as far as they are known without a replay."""
        yield "id", self.id
        yield "program", self.program
        if self.title:
            yield "title", self.title
        yield "status", self.status
        for question in self.pending:
            yield "pending", question.text
        if self.error is not None:
            yield "error", f"{type(self.error).__name__}: {self.error}"
        if self.outcome is not None:
            yield "prediction", self.outcome
        elif self.steps:
            yield "trajectory", Trajectory(self.steps)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # There is only one such run: copies of objects that hold it, such as `BatchResults`, share
        # it.
        return self

    def __getstate__(self) -> Never:
        raise TypeError(
            "cannot pickle a `Run`: it holds its program. Use `run.to_json()` and "
            "`Run.from_json(text, program)`."
        )

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.program.name}: {self.status}>"


def _program_of_tool(program: Any, name: str) -> Program | None:
    """The program that is the tool of this name; None if there is none."""
    for user in getattr(program, "tool_users", tuple)():
        tool: Any = user.tools.get(name)
        if tool is not None and tool.is_program:
            return tool.func.program
    return None


def _entries_inside(calls: Container[str], entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The entries inside of these calls, by the slot of the outermost one."""
    inside: dict[str, list[Entry]] = {}
    for entry in entries:
        end = entry.slot.find("/")
        while end >= 0:
            if entry.slot[:end] in calls:
                inside.setdefault(entry.slot[:end], []).append(entry)
                break
            end = entry.slot.find("/", end + 1)
    return inside


def begun_here(
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    *,
    run_id: str | None = None,
    deps: Any = None,
    about: About = NOTHING,
) -> Run[Any]:
    """A run that has not begun. If a tool of another run begins it, it has its metadata, too."""
    call = scope().call
    if call is not None and call.frame is not None:
        about = about.inside(call.frame.run.about)
    run: Run[Any] = Run(program, args, inputs, run_id=run_id, deps=deps, about=about)
    return run


def call_program(
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    deps: Any = None,
    about: About = NOTHING,
) -> Any:
    """Execute a program and return its result.

    In a child frame of the run that executes here, otherwise as a run of its own.
    """
    frame = _running_frame()
    if frame is None:
        run = begun_here(program, args, inputs, deps=deps, about=about)
        execute(run)
        return run.prediction
    _refuse_about(frame, program, about)
    with _child(frame, program, args, inputs, deps) as child:
        return offload.run_blocking(perform(child, program, args, inputs, blocks=True))


async def acall_program(
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    deps: Any = None,
    about: About = NOTHING,
) -> Any:
    """`call_program` on this event loop."""
    frame = _running_frame()
    if frame is None:
        run = begun_here(program, args, inputs, deps=deps, about=about)
        await aexecute(run)
        return run.prediction
    _refuse_about(frame, program, about)
    with _child(frame, program, args, inputs, deps) as child:
        return await perform(child, program, args, inputs, blocks=False)


def _refuse_about(frame: Frame, program: Program, about: About) -> None:
    if about is NOTHING:
        return
    raise InputError(
        f"This call of `{program.name}` is a part of the run {frame.run.id}, which has begun with "
        "its own `metadata` and `title`. Give them to the program that you start."
    )


def _check_is_program(program: Any, what: str) -> None:
    if isinstance(program, type) or not hasattr(program, "is_flow"):
        raise ConfigurationError(
            f"A run is {what} with a program, such as `ReAct(...)`; found {shown(program)}."
        )


def _check_inputs(run: Run[Any]) -> None:
    """Raise `InputError` if the program of a run does not take its inputs."""
    program = run.program
    if program.is_flow:
        check_of_program = getattr(program, "check_inputs", None)
        if check_of_program is not None:
            check_of_program(run.inputs)
        return
    try:
        check_inputs(program, run.args, run.inputs)
    except ReplayMismatchError as error:
        raise InputError(f"The inputs of the fork do not fit: {error.found}.") from None


def _begin_fork(fork: RunState, original: RunState, end: int) -> None:
    """Give a new run the first entries of another one, and what governs it."""
    entries = original.journal.entries
    first_left_out = ""
    if end < len(entries):
        first_left_out = entries[end].slot
    copied = with_own_ids(first_entries(entries, end), fork.question_id)
    fork.journal.entries.extend(copied)
    began = {slot: original.starter_of(slot) for slot in begun_calls(copied)}
    fork.forked_from = ForkedFrom(original.id, first_left_out, len(copied), began)
    if original.governing is not None:
        fork.governing = original.governing.copied()
    fork.extra_tools = original.extra_tools
    fork.changed = original.changed
    if fork.program is not original.program:
        changes = differences(program_fingerprint(original.program), fork.program)
        fork.changed = {**original.changed, **changes}
    fork.decisions = [entry.value for entry in copied if entry.kind == "decision"]
    fork.said = fork.heard = messages_in(copied)


def _is_same_error(stored: BaseException | None, replayed: BaseException | None) -> bool:
    """Whether a replay raised the error that a run is stored with, as its type and text."""
    if replayed is None or not isinstance(stored, RunError):
        return False
    return str(stored) == f"{type(replayed).__name__}: {replayed}"


@contextmanager
def _child(
    frame: Frame, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any], deps: Any
) -> Generator[Frame]:
    child = frame.child(program, args, inputs)
    try:
        if deps is not None:
            child.deps = deps
        check_program_deps(program, child.deps)
        with entered(Scope(scope().overrides, child)):
            yield child
    finally:
        frame.close_child(child)


def is_inside_run() -> bool:
    """Whether this code runs inside a run: a program called here then becomes a part of it."""
    return _running_frame() is not None


def cancel_run_here() -> None:
    """Cancel the run that executes this code."""
    frame = _running_frame()
    if frame is not None:
        frame.run.cancel()


def _running_frame() -> Frame | None:
    frame = scope().frame
    if frame is None or frame.run.status != "running":
        return None
    return frame
