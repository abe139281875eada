"""The life of what executes in a run: an execution, and the tool calls inside it.

Whatever works for a run holds the `Execution` or the `CallPlace` that it works in, and looks there
whether it may go on: after Ctrl-C, a timeout or a cancellation, threads and tasks are left that
nothing can stop. Lives lie around one another: a call is inside an execution, and a run that a
tool's function starts is inside that call. When one ends, everything inside it ends, too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field

from ferrule import events, settings
from ferrule.concurrency.cancellation import STOPPED
from ferrule.concurrency.halting import DEFAULT_GRACE_S, Halt, cancelled_by, is_halted
from ferrule.errors import ConfigurationError
from ferrule.observers import Observers
from ferrule.runs.journal.recall import ended_calls
from ferrule.runs.limits import Budget
from ferrule.runs.observers import named_inputs
from ferrule.runs.provenance import sources_before, users_words
from ferrule.values.calls.call import CheckedCall, ToolCall
from ferrule.values.calls.context import Context, key_of
from ferrule.values.calls.secrets import STARS
from ferrule.values.conversation.exchange import Usage
from ferrule.values.slot import Slot
from ferrule.values.snapshot import own_copy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Mapping, Sequence

    from ferrule.approval.provenance import Source
    from ferrule.approval.result_links import ResultLinks
    from ferrule.values.calls.call import CheckedArguments, ToolResult, ToolSpec

R = TypeVar("R")


class Execution(Struct):
    """One execution of a run. Abandoned work, such as a thread, checks here whether it is over."""

    outer: Any = None
    """The tool call in which this run was started; None if no tool started it."""
    over: bool = False
    """Whether it ended, even if threads and tasks still work for it."""
    left: bool = False
    """Whether the run's stream was closed early, which counts as cancelling the run."""
    is_stopped: bool = False
    """Whether the awaitables that sync code waits for were cancelled."""
    awaited: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])
    """Tasks on the background loop that sync code waits for."""
    halt: Halt = field(default_factory=Halt)
    """Ends all tool calls and requests of this execution at once."""
    grace_s: float | None = DEFAULT_GRACE_S
    """The setting `grace_s` of this execution."""

    def stop(self) -> list[asyncio.Task[Any]]:
        """Let no further awaitable begin; returns the tasks to cancel, on their loops."""
        self.is_stopped = True
        return list(self.awaited)


async def cancellable(life: Any, value: Awaitable[R]) -> R:
    """Await a value for sync code.

    Stopping this execution, or one around it, cancels the await (`CancelledError(STOPPED)`).
    """
    executions = [place for place in _around(life) if isinstance(place, Execution)]
    task: Any = asyncio.current_task()
    for execution in executions:
        execution.awaited.add(task)
    try:
        if any(execution.is_stopped for execution in executions):  # just now: do not begin
            if inspect.iscoroutine(value):
                value.close()
            raise asyncio.CancelledError
        return await value
    except asyncio.CancelledError:
        if any(execution.is_stopped for execution in executions):
            raise asyncio.CancelledError(STOPPED) from None
        raise
    finally:
        for execution in executions:
            execution.awaited.discard(task)


def _around(life: Any) -> Generator[Execution | CallPlace]:
    """An execution or a call, and all that are around it, innermost first."""
    while life is not None:
        yield life
        life = life.outer


def halts_of(life: Any) -> list[Halt]:
    """The halts that end what waits in an execution or a call: its own, and those around it."""
    return [place.halt for place in _around(life)]


class InnerSpending(Struct):
    """What a run has spent that a tool's function started."""

    budget: Budget
    usage: Callable[[], Usage]
    """Its usage; until it has ended or waits, what it is then."""
    untrusted: bool = False
    """Whether it has read untrusted results."""


class SoFar(Struct):
    """What a `Context` can read of its run, as the run is at one of its acts."""

    run: Any
    """The `RunState`."""
    frame: Any
    """The `Frame` in which it is read."""
    act: int
    """The number of the act before which it is read."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of the run; positional ones get the names of their parameters.

        A copy that takes no items: what a tool changes must not change what the run began with.
        """
        inputs = {name: own_copy(value) for name, value in self._inputs.items()}
        return MappingProxyType(inputs)

    @property
    def _inputs(self) -> Mapping[str, Any]:
        if not self.run.args:
            return self.run.inputs
        return named_inputs(self.run.program, self.run.args, self.run.inputs)

    @property
    def calls(self) -> Sequence[tuple[ToolCall, ToolResult]]:
        """The calls of the run that have ended, each with its result."""
        return ended_calls(self.run.journal.entries)

    def results_here(self) -> Sequence[ToolResult]:
        """The results of the program that makes this call, the latest first."""
        return [
            entry.value
            for entry in reversed(self.run.journal.entries)
            if entry.kind == "result" and Slot(entry.slot).path == self.frame.path
        ]

    @property
    def sources(self) -> Sequence[Source]:
        """The untrusted results that the program read before this act."""
        return sources_before(self.frame, self.act)

    @property
    def user_words(self) -> Sequence[str]:
        """What people said in the run."""
        return users_words(self.frame, self._inputs)


class CallPlace(Struct):
    """The tool call that is executing; the scope carries it into the tool."""

    tell: Observers | None
    call_id: str
    run_id: str
    frame: Any = None
    """The `Frame` that made the call: programs inside the tool share its budget and its end.

    Untyped, because `runs/state.py` imports this module.
    """
    slot: str = ""
    checked: CheckedCall | None = None
    db: Any = None
    """The database of a transactional tool, inside a transaction of the store."""
    inputs: Any = None
    """The `Inputs` of the call: questions that the tool's MCP server asks a person during it.

    None for local tools. Untyped like `frame`: `driver/elicitation.py` needs `runs/state.py`.
    """
    over: bool = False
    """Whether the call ended, even if its thread still runs after a timeout."""
    halt: Halt = field(default_factory=Halt)
    """Ends this call at once."""
    cancellation_id: str = ""
    """The id of the decision that cancels it (`approval/cancellation.py`)."""
    direct_calls: int = 0
    """How many tools that take a `Context` the tool's function has called directly."""
    inner_runs: dict[str, InnerSpending] = field(default_factory=dict[str, "InnerSpending"])
    """What the runs have spent that the tool's function started, by their ids."""
    token: str = ""
    """The token in the `result_url` that the tool has read; empty if it has not read it.

    Anyone who has it can deliver the result: records, events and pages must not show it.
    """

    @property
    def outer(self) -> Any:
        """The execution or call in which this call was made; None for a direct call."""
        if self.frame is not None:
            return self.frame.life
        return None

    @property
    def caller(self) -> Any:
        """The calling program; None for a direct call."""
        if self.frame is not None:
            return self.frame.run.program
        return None

    def budget_of_run(
        self, run_id: str, usage: Callable[[], Usage], around: Budget | None
    ) -> Budget:
        """A budget for another run that the tool's function starts or resumes.

        `around` is that of its batch, if it has one. A resumed run counts its recorded answers
        again, so what it counted here before is taken back.
        """
        before = self.inner_runs.get(run_id)
        if before is not None:
            before.budget.take_back()
        if around is None:
            around = self.frame.budget
        budget = Budget(outer=around)
        self.inner_runs[run_id] = InnerSpending(budget, usage)
        return budget

    async def cancellable(self, value: Awaitable[R]) -> R:
        """Await what the tool returned: cancelled at once if this call, or one around it, ends.

        Raises `CancelledError(STOPPED)` then, by which sync code that waits knows it.
        """
        halts = halts_of(self)
        try:
            with cancelled_by(halts):
                return await cancellable(self, value)
        except asyncio.CancelledError:
            if is_halted(halts):
                raise asyncio.CancelledError(STOPPED) from None
            raise

    def context(self, tool: ToolSpec, arguments: CheckedArguments) -> Context[Any]:
        """The `Context` of a tool that takes one.

        The tool is this call's own, or another one that its function calls directly.
        """
        slot, db = self.slot, self.db
        is_own = self.checked is not None and self.checked.arguments is arguments
        if not is_own:
            # A key of its own for each direct call. The transaction belongs to the call of the run.
            slot, db = f"{slot}>{self.direct_calls}", None
            self.direct_calls += 1
        # Read now: the tool may ask for its address in a thread of its own, without settings.
        links = settings.setting("result_links")
        starter = self.run_id
        if self.frame is not None:
            starter = self.frame.run.starter_of(slot)
        return Context(
            run_id=self.run_id,
            call_id=self.call_id,
            key=key_of(starter, slot, tool.name, arguments.shown),
            deps=self.frame.deps if self.frame is not None else None,
            db=db,
            tell=self.progress if self.tell is not None else None,
            stopped=lambda: self.cancelled,
            so_far=self._so_far(),
            result_url=partial(self._result_url, links, is_own=is_own),
        )

    def _result_url(self, links: ResultLinks | None, *, is_own: bool) -> str:
        """The address to which the result of this call is posted."""
        if links is None:
            raise ConfigurationError(
                "`ctx.result_url` needs to know where results are sent: "
                "configure(result_links=ResultLinks('https://...', secret=...))."
            )
        checked = self.checked
        if not is_own or checked is None or self.frame is None:
            raise ConfigurationError(
                "`ctx.result_url` is the address of the result of the call that the run makes; "
                "a tool that another tool calls has none."
            )
        if self.frame.run.persistence is None:
            raise ConfigurationError(
                "`ctx.result_url` needs a run in a store, where a server finds it: "
                "program.start(store=SQLiteStore(...), ...)."
            )
        if not self.token:
            args = checked.arguments.shown
            self.token = links.token(self.run_id, self.slot, checked.call.name, args)
        return links.url(self.token)

    def _so_far(self) -> SoFar | None:
        if self.frame is None:
            return None
        _, act = Slot(self.slot).position
        return SoFar(self.frame.run, self.frame, act)

    @property
    def cancelled(self) -> bool:
        """Whether the call or the run was cancelled, its time limit passed, or it has ended."""
        if self.over or self.halt.is_set:
            return True
        return self.frame is not None and self.frame.run.cancelled

    def progress(self, message: str, done: float | None, total: float | None) -> None:
        """Report the call's progress to the run's observers."""
        if self.token:
            message = message.replace(self.token, STARS)
        if self.tell is not None:
            self.tell(events.CallProgress(self.call_id, message, done, total))


def cancelled_around(life: Any) -> CallPlace | None:
    """The innermost cancelled call around an execution or a call, or None.

    Everything that a cancelled tool call started stops with it.
    """
    for place in _around(life.outer):
        if isinstance(place, CallPlace) and place.cancelled:
            return place
    return None
