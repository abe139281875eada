"""What a run is made of while it executes: its state and its frames.  (Floor 4.)

The drivers work on these; `run.py` puts the doors on top that people use.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast
from uuid import uuid4

from ferrule.errors import InputError, RunCancelled, RunError, Suspended
from ferrule.runs.journal import Journal
from ferrule.values import event as events
from ferrule.values.exchange import Usage
from ferrule.values.history import History
from ferrule.values.jsonable import json_bytes
from ferrule.values.outcome import Prediction, Step, Trajectory
from ferrule.values.record import Changing, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.runs.observe import Observers
    from ferrule.values.act import Flow
    from ferrule.values.question import Decision, Question

_BEGINNING = threading.Lock()
Status = Literal["running", "waiting", "done", "failed", "cancelled"]


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
        return Frame(self.run, path)

    def branches(self, count: int) -> list[Frame]:
        """Frames for branches that run at once: named by which `gather` of this frame it is, and their place in it."""
        which = self.children.get("gather", 0)
        self.children["gather"] = which + 1
        return [Frame(self.run, f"{self.path}gather#{which}.{i}/") for i in range(count)]

    def add_usage(self, usage: Usage) -> None:
        """Count the tokens of one model call, or of a child's."""
        tokens = self.tokens
        tokens[0] += usage.input_tokens
        tokens[1] += usage.output_tokens
        tokens[2] += usage.cached_tokens
        tokens[3] += usage.calls

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(*self.tokens)

    def left(self, child: Frame) -> None:
        """A child's execution ended."""
        self.add_usage(child.usage)
        for key, path in list(self.active.items()):
            if path == child.path:
                del self.active[key]


def held(value: Any) -> Any:
    """A value as it is now: containers are copied, down to what is in them. Raises `InputError` for one that holds itself."""
    try:
        return _copied(value)
    except RecursionError:
        msg = "An input holds itself, or is nested too deeply to be kept for a replay."
        raise InputError(msg) from None


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(each) for key, each in cast("dict[Any, Any]", value).items()}
    if type(value) is list:
        return [_copied(each) for each in cast("list[Any]", value)]
    return value.copy() if type(value) is History else value


class RunState:
    """One execution of one program, as its driver sees it."""

    __slots__ = (
        "_key", "answers", "args", "cancelled", "decisions", "error", "executing", "id", "inputs", "journal", "outcome", "pending",
        "program", "resuming", "root", "status", "steps", "tell", "wants_deltas",
    )  # fmt: skip

    def __init__(self, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any], *, run_id: str | None = None) -> None:
        self.id = run_id or uuid4().hex
        self.program = program
        self.args = args
        # What a flow was given is replayed: a list or a history that its caller goes on changing must not change it.
        self.inputs = {name: held(value) for name, value in inputs.items()} if program.is_flow else dict(inputs)
        self.journal = Journal()
        self.status: Status = "running"
        self.pending: tuple[Question, ...] = ()
        """Questions that wait for a person."""
        self.error: BaseException | None = None
        self.cancelled = False
        self.executing = False
        """Whether a driver is at work on it: one at a time, or an approved call would run twice."""
        self.resuming = False
        self.steps: list[Step] = []
        self.root = Frame(self)
        self.tell: Observers | None = None
        self.wants_deltas = False
        self.decisions: list[Decision] = []
        """Every decision made on this run, in order."""
        self.answers: dict[str, Decision] = {}
        self._key: bytes | None = None
        self.outcome: Any = None
        """What the program returned."""

    def question_id(self, slot: str) -> str:
        """An id for the question at a slot: not to be guessed, and the same in every replay of this run."""
        if self._key is None:
            self._key = secrets.token_bytes(16)
        return hmac.new(self._key, slot.encode(), sha256).hexdigest()[:20]

    def decision(self, question_id: str) -> Decision | None:
        """Take the decision on a question: it can be had once."""
        return self.answers.pop(question_id, None)

    def begin(self, tell: Observers | None, *, wants_deltas: bool) -> Frame:
        """Make ready for an execution, the first or a further one; returns its root frame."""
        with _BEGINNING:
            if self.executing or self.status == "done":
                msg = f"The run {self.id} is {'executing already; wait for it' if self.executing else 'done; start another one'}."
                raise RunError(msg)
            self.executing = True
        self.status, self.error, self.pending, self.steps, self.cancelled = "running", None, (), [], False
        self.root = Frame(self)
        self.tell = tell
        self.wants_deltas = wants_deltas
        self.journal.rewind()
        self.resuming = self.journal.replaying
        return self.root

    def check(self) -> None:
        """Before each act: raise if the run was cancelled from elsewhere, and say so when a replay has come to its end."""
        if self.cancelled or self.status != "running":  # the second: a branch that nobody waited for outlives its run
            msg = f"The run {self.id} {'was cancelled' if self.cancelled else f'is {self.status} already'}."
            raise RunCancelled(msg)
        if self.resuming and not self.journal.replaying:
            self.resuming = False
            if self.tell is not None:
                self.tell(events.Resumed(Trajectory(self.steps)))

    def cancel(self) -> None:
        """Stop before the next act. What was done is in the journal, and `resume()` can go on from there."""
        self.cancelled = True

    def done(self, prediction: Any) -> None:
        """The program returned."""
        if isinstance(prediction, Prediction):
            prediction.counted(self.root.usage)
        self.outcome = prediction
        self.status = "done"
        self.executing = False

    def stopped(self, error: BaseException) -> None:
        """The execution ended without a prediction."""
        if isinstance(error, Suspended):
            self.status, self.pending = "waiting", error.questions
        else:
            self.error = error
            self.status = "failed" if isinstance(error, Exception) and not isinstance(error, RunCancelled) else "cancelled"
        self.executing = False
