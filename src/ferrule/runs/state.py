"""What a run is made of while it executes: its state and its frames.

The drivers work on these; `run.py` puts the doors on top that people use.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule.errors import InputError, RunCancelledError, RunError, shown
from ferrule.runs.journal.journal import Journal
from ferrule.runs.limits import Budget
from ferrule.runs.observers import Execution
from ferrule.values.confirmation.tally import Tally
from ferrule.values.conversation.exchange import Usage
from ferrule.values.conversation.history import History
from ferrule.values.encoding.encode import json_bytes
from ferrule.values.record import Changing, field
from ferrule.values.run import event as events
from ferrule.values.run.act import Suspended
from ferrule.values.run.outcome import Prediction, Step, Trajectory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from types import TracebackType

    from ferrule.runs.journal.journal import Entry
    from ferrule.runs.observers import CallPlace, Observers
    from ferrule.runs.protocols import Persistence, Program
    from ferrule.values.confirmation.question import Decision, Question
    from ferrule.values.conversation.message import Messages

_BEGINNING = threading.RLock()
"""May be taken twice by one thread: where memory is tidied up under it, a stream that nobody holds any more cancels its run."""
_COUNTING = threading.Lock()
"""Programs that run at once count in the frame around them, from threads of their own."""
RunStatus = Literal["running", "waiting", "done", "failed", "cancelled"]


class Frame(Changing):
    """One program's execution inside a run: the root program, or a child called from a `forward`."""

    run: RunState
    path: str = ""
    acts: int = 0
    tokens: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    """Input, output, cached, and model calls so far: added up in place, as every call adds to it."""
    children: dict[str, int] = field(default_factory=dict[str, int])
    """How many children of one key were started here."""
    active: dict[str, str] = field(default_factory=dict[str, str])
    """Keys of children that are executing right now, with their paths."""
    life: Execution | CallPlace = field(default_factory=Execution)
    """The execution, or the call of a program as a tool, that this frame ends with."""
    tell: Observers | None = None
    budget: Budget | None = None
    """What is left of the limits that hold here; None where there are none."""

    last_calls: int = -1
    """Model calls that may still be made after a limit was reached, so that the program can make an end; -1 as long as none was."""
    live: bool = True
    """Whether the latest act was answered now: then what the program tells of it was not told before."""
    outer: Frame | None = None
    """The frame inside which this one is: what is spent here is spent there."""
    blocks: bool = True
    """Whether the driver of this frame blocks its thread while it waits; else it awaits."""

    def check(self) -> None:
        """Before each act: raise `RunCancelledError` if the run was cancelled, or if this frame was abandoned."""
        self.check_alive()
        self.run.check()

    def check_alive(self) -> None:
        """Raise `RunCancelledError` if what this frame belongs to is over: a run that ended, a call that was given up."""
        life: Execution | CallPlace | None = self.life
        while life is not None:
            if life.over:
                raise RunCancelledError(f"This belongs to an execution of the run {self.run.id}, or to a call in it, that is over.")
            life = life.outer

    def write(self, entry: Entry) -> Awaitable[None]:
        """Journal an entry: durable once this is awaited."""
        return self.run.journal.write(entry, blocks=self.blocks)

    def slot(self) -> str:
        """The next act's position."""
        at = self.acts
        self.acts = at + 1
        return f"{self.path}{at}"

    def child(self, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Frame:
        """A frame for a program called from inside this one: named by program, inputs, and which call of these it is."""
        key = f"{program.name}:{sha256(json_bytes((args, dict(inputs)))).hexdigest()[:12]}"
        if key in self.active:
            msg = (
                f"Two calls of `{program.name}` with equal inputs run at once inside one program, so a replay could not tell them apart. "
                "Give each branch its own place with `ferrule.gather(...)`."
            )
            raise RunError(msg)
        occurrence = self.children.get(key, 0)
        self.children[key] = occurrence + 1
        self.active[key] = path = f"{self.path}{key}#{occurrence}/"
        return self.inner(path)

    def branches(self, count: int) -> list[Frame]:
        """Frames for branches that run at once: named by which `gather` of this frame it is, and their place in it."""
        which = self.children.get("gather", 0)
        self.children["gather"] = which + 1
        return [self.inner(f"{self.path}gather#{which}.{i}/") for i in range(count)]

    def inner(self, path: str) -> Frame:
        """A frame inside this one."""
        live = not self.run.journal.replaying
        return Frame(self.run, path, life=self.life, tell=self.tell, budget=self.budget, live=live, outer=self)

    def tool_frame(self, slot: str, name: str, place: CallPlace) -> Frame:
        """A frame for a program that is called as the tool `name`: its place in the journal is below the call's."""
        tell = self.tell.inside(place.call_id) if self.tell is not None else None
        live = not self.run.journal.has_begun(slot)
        return Frame(self.run, f"{slot}/{name}/", life=place, tell=tell, budget=Budget(outer=self.budget), live=live, outer=self)

    def add_usage(self, usage: Usage) -> None:
        """Count tokens, here and in every frame around this one: of a run that is cut short, what was spent inside counts too."""
        frame: Frame | None = self
        with _COUNTING:
            while frame is not None:
                tokens = frame.tokens
                tokens[0] += usage.input_tokens
                tokens[1] += usage.output_tokens
                tokens[2] += usage.cached_tokens
                tokens[3] += usage.calls
                frame = frame.outer

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(*self.tokens)

    def close_child(self, child: Frame) -> None:
        """A child's execution ended."""
        for key, path in list(self.active.items()):
            if path == child.path:
                del self.active[key]


def snapshot(value: Any) -> Any:
    """A value as it is now: containers are copied, down to what is in them. Raises `InputError` for one that holds itself."""
    try:
        return _copied(value)
    except RecursionError:
        raise InputError("An input holds itself, or is nested too deeply to be kept for a replay.") from None


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(each) for key, each in cast("dict[Any, Any]", value).items()}
    if type(value) is list:
        return [_copied(each) for each in cast("list[Any]", value)]
    return value.copy() if type(value) is History else value


def _is_cancellation(error: BaseException) -> bool:
    import asyncio  # late: whatever is cancelled has it loaded

    return isinstance(error, asyncio.CancelledError)


def _checked_id(given: Any) -> str:
    """An id that any store can write; raises `InputError` for another one."""
    try:
        if given.encode():
            return given
    except (AttributeError, UnicodeEncodeError):
        pass
    msg = f"`run_id` is a text that is not empty and that UTF-8 can hold; found {shown(given)}. Without one a run gets an id of its own."
    raise InputError(msg)


class RunState:
    """One execution of one program, as its driver sees it."""

    __slots__ = (
        "__weakref__", "answers", "args", "cancelled", "decisions", "deps", "error", "executing", "extra_tools", "id",
        "inputs", "journal", "kept", "key", "outcome", "pending", "program", "resuming", "root", "said", "status", "steps", "tally",
        "tell", "tokens", "trace", "unread", "wants_deltas",
    )  # fmt: skip

    def __init__(self, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any], *, run_id: str | None = None) -> None:
        chance = secrets.token_bytes(32)
        self.id = chance[:16].hex() if run_id is None else _checked_id(run_id)
        self.program = program
        self.args = args
        # What a flow was given is replayed: a list or a history that its caller goes on changing must not change it.
        self.inputs = {name: snapshot(value) for name, value in inputs.items()} if program.is_flow else dict(inputs)
        self.journal = Journal()
        self.status: RunStatus = "running"
        self.pending: tuple[Question, ...] = ()
        """Questions that wait for a person."""
        self.error: BaseException | None = None
        self.cancelled = False
        self.executing = False
        """Whether a driver is at work on it: one at a time, or an approved call would run twice."""
        self.resuming = False
        self.steps: list[Step] = []
        self.root: Frame | None = None
        """The frame of the execution that is going on. Let go of with its end: a run and its frame hold each other, and memory is then
        given back at once, without waiting for the garbage collector."""
        self.said: Messages | None = None
        """What the program itself asked a model last."""
        self.tokens: list[int] = [0, 0, 0, 0]
        """Those of the latest execution's frame; a thread that it left behind may still count in them."""
        self.unread: Any = None
        """There as long as the run was done when it was loaded, and what it returned is not made of its journal yet."""
        self.trace: TracebackType | None = None
        """Where the error was raised; every time it is raised again, Python writes the place of that into the error itself."""
        self.tell: Observers | None = None
        self.wants_deltas = False
        self.decisions: list[Decision] = []
        """Every decision made on this run, in order."""
        self.tally = Tally()
        self.answers: dict[str, Decision] = {}
        self.key = chance[16:]
        """Makes the ids of this run's questions; kept with it."""
        self.deps: Any = None
        """What tools get beside their arguments (`Context.deps`); never kept."""
        self.kept: Persistence | None = None
        """The run's place in a store; None for one that lives in memory only."""
        self.outcome: Any = None
        """What the program returned."""
        self.extra_tools: tuple[Any, ...] = ()
        """Tools that were handed to `Run.load`: where those are found that the run had loaded (`programs/tool_use/dynamic.py`)."""

    def question_id(self, slot: str) -> str:
        """An id for the question at a slot: not to be guessed, and the same in every replay of this run."""
        return hmac.new(self.key, slot.encode(), sha256).hexdigest()[:20]

    def decision(self, question_id: str) -> Decision | None:
        """Take the decision on a question: it can be had once."""
        return self.answers.pop(question_id, None)

    def begin(self, tell: Observers | None, *, wants_deltas: bool, within: CallPlace | None = None) -> Frame:
        """Make ready for an execution, the first or a further one; returns its root frame. `within` is the tool call that starts it."""
        with _BEGINNING:
            if self.executing or self.status == "done":
                raise RunError(f"The run {self.id} is {'executing already; wait for it' if self.executing else 'done; start another one'}.")
            self.executing = True
        self.status, self.error, self.trace, self.pending, self.steps = "running", None, None, (), []
        budget = within.frame.budget if within and within.frame else None
        self.root = root = Frame(self, life=Execution(within), tell=tell, budget=budget)
        self.tokens = root.tokens
        self.tell = tell
        self.wants_deltas = wants_deltas
        self.journal.rewind()
        self.resuming = self.journal.replaying
        root.live = not self.resuming
        return root

    def check(self) -> None:
        """Before each act: raise if the run was cancelled from elsewhere, and say so when a replay has come to its end."""
        if self.cancelled or self.status != "running":  # the second: a branch that nobody waited for outlives its run
            raise RunCancelledError(f"The run {self.id} {'was cancelled' if self.cancelled else f'is {self.status} already'}.")
        if self.resuming and not self.journal.replaying:
            self.resuming = False
            if self.tell is not None:
                self.tell(events.Resumed(Trajectory(self.steps)))

    def cancel(self) -> None:
        """Stop before the next act; a run that waits for a person stops waiting. What was done is in the journal: `resume()` goes on."""
        self.cancelled = True
        with _BEGINNING:
            if self.executing or self.status != "waiting":
                return
            self.status, self.pending = "cancelled", ()
            self._forget_untaken()
            self.error = RunCancelledError(f"The run {self.id} was cancelled while it waited for a person.")
        if self.kept is not None:
            self.kept.store.cancel(self.id)

    def goes_on(self, *, resumed: bool = False) -> None:
        """Before an execution: a cancellation of an earlier one is over, and one that comes from now on holds.

        One of a run that did not begin yet holds as well, unless somebody resumes it.
        """
        with _BEGINNING:
            if not self.executing and (resumed or self.status != "running"):
                self.cancelled = False

    def _forget_untaken(self) -> None:
        """A decision that nothing was done on yet does not outlive a cancellation: what it allowed is asked about again."""
        untaken = {key for key, each in self.answers.items() if each.kind != "revoke"}
        self.answers = {key: each for key, each in self.answers.items() if key not in untaken}
        self.decisions = [each for each in self.decisions if each.question_id not in untaken]

    def _end(self) -> None:
        root = self.root
        if root is not None:
            root.life.over, self.root = True, None

    def done(self, prediction: Any) -> None:
        """The program returned."""
        self._end()
        if isinstance(prediction, Prediction):
            prediction.counted(Usage(*self.tokens))
        self.outcome = prediction
        self.status = "done"
        self.executing = False

    def stopped(self, error: BaseException) -> None:
        """The execution ended without a prediction."""
        life = self.root.life if self.root is not None else None
        if isinstance(life, Execution) and life.left and _is_cancellation(error):  # the run's own: nobody's task is cancelled
            error = RunCancelledError(f"The run {self.id} was cancelled: its stream was left.")
        self._end()
        if isinstance(error, Suspended):
            self.status, self.pending = "waiting", error.questions
        else:
            self.error, self.trace = error, error.__traceback__
            self.status = "failed" if isinstance(error, Exception) and not isinstance(error, RunCancelledError) else "cancelled"
            if self.cancelled:
                self._forget_untaken()
        self.executing = False
