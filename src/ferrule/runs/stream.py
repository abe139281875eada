"""`EventStream`: a run's events as they happen, for `for` and `async for`.

With `for`, the run executes in a separate thread and events arrive through a queue; with `async
for`, it is a task on this event loop. Leaving the iteration or the `with` block early cancels the
run; its journal keeps the acts so far.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from bisect import bisect_right
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic_core import from_json, to_json

from ferrule import events, settings
from ferrule.adapters.streaming import JSONStrings
from ferrule.concurrency.halting import cancel_once
from ferrule.concurrency.offload import Aside, inherit_loop_wait, is_awaited_by_loop
from ferrule.encoding.pattern import pattern
from ferrule.errors import RunCancelledError, RunError
from ferrule.runs.driver.execution import aexecute, execute
from ferrule.runs.life import Execution
from ferrule.runs.observers import EventLog, from_any_thread
from ferrule.values.content.type import TEXTS
from ferrule.values.outcome import Prediction
from ferrule.values.signatures.fields import adapter_of, allows_none, without_none
from ferrule.values.tracebacks import callers_frames
from ferrule.values.typed import S, Typed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from pydantic import TypeAdapter

    from ferrule.events import Event
    from ferrule.runs.run import Run
    from ferrule.values.signatures.signature import Signature


_OPEN_WORD = pattern(r"[-+.\w]+\Z")
"""A number or a literal at the end of a JSON text, which may go on."""
_GRACE_S = 5.0
"""How long closing a stream waits for async tools that ignore their cancellation."""
_LISTENS_S = 0.2
"""How often a wait for an event is interrupted on Windows, so that Ctrl-C is handled."""


class EventStream(Typed[S]):
    """The events of a run.

    Iterate it once; afterwards `.prediction` is the program's result, or raises the run's error.
    The run has the settings that were in force when the stream was made.
    """

    def __init__(self, run: Run[S]) -> None:
        self.run = run
        self._settings = settings.all_in_force()
        self._outputs = _PartialOutputs(getattr(run.program, "signature", None))
        self._started = self._closed = False
        self._thread: threading.Thread | None = None
        """The thread of the run, if iterated with `for`."""
        self._task: asyncio.Task[None] | None = None
        """The task of the run, if iterated with `async for`, or followed."""
        self._log: EventLog | None = None
        """The events so far, if followed."""

    @property
    def prediction(self) -> Prediction[S]:
        """The program's result; see `Run.prediction`.

        Executes the run first if it was not iterated.
        """
        is_given_up = self._closed and self.run.status != "running"
        if not self._started and not is_given_up:
            for _ in self:
                pass
        return self.run.prediction

    def partial(self) -> dict[str, Any]:
        """The outputs so far, from the events iterated so far: typed, without missing ones.

        Text grows; a list or an object has the parts that are complete and fit its type; any other
        value appears when it is complete. A value never shrinks, until an event makes it void
        (`Preamble`, `AttemptFailed`, `StepFinished` with a refusal) or it comes again.
        """
        return self._outputs.read()

    def close(self) -> None:
        """Cancel the run and its running async tools, unless it has ended, and wait for its end.

        Its status is then final. Waits a few seconds at most: a sync tool that takes longer is
        abandoned. Does not wait when called in a tool or an observer of the same run, which would
        wait for itself.
        """
        ending = self._cancel_tasks()
        task = self._task
        if task is not None and not task.done():
            task.get_loop().call_soon_threadsafe(task.cancel)
        if is_awaited_by_loop() or _is_within(self.run):
            return
        wait(ending, _GRACE_S)
        if self._thread is not None and self._thread is not threading.current_thread():
            with Aside():
                self._thread.join(_GRACE_S)

    async def aclose(self) -> None:
        """`close` without blocking the loop; the run has ended when this returns."""
        ending = self._cancel_tasks()
        if self._task is not None:
            await _stop(self._task)
        if ending:
            futures = [asyncio.ensure_future(asyncio.wrap_future(future)) for future in ending]
            await asyncio.wait(futures, timeout=_GRACE_S)

    def _cancel_tasks(self) -> list[Future[None]]:
        """Cancel all running work.

        Returns futures that end with the async tools that sync code waits for.
        """
        self._closed = True
        if self.run.status == "running":
            self.run.cancel()
        life = None
        if self.run.root is not None:
            life = self.run.root.life
        if not isinstance(life, Execution):
            return []
        life.left = True
        ending: list[Future[None]] = []
        # Cancel all before waiting for any: one may wait for another.
        for task in life.stop():
            stopping = _stop(task)
            try:
                ending.append(asyncio.run_coroutine_threadsafe(stopping, task.get_loop()))
            except RuntimeError:  # the loop has ended, and the tool with it
                stopping.close()
        return ending

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"EventStream({self.run!r})"

    def _claim(self) -> None:
        if self._started:
            raise RunError(
                "A stream can be iterated once; start another with `program.stream(...)`."
            )
        # A run that begins raises its own cancellation error.
        if self._closed and self.run.status != "running":
            raise RunCancelledError(
                "This stream was closed before it was iterated: the run did not continue."
            )
        self._started = True

    def __iter__(self) -> Iterator[Event]:
        self._claim()
        queue: SimpleQueue[Event | None] = SimpleQueue()
        interrupts: list[BaseException] = []

        begin = inherit_loop_wait()

        def work() -> None:
            begin()
            try:
                with settings.overriding(self._settings):
                    execute(self.run, observers=(queue.put,), wants_deltas=True)
            except BaseException as error:  # noqa: BLE001  raised again in the thread that iterates
                interrupts.append(error)
            finally:
                queue.put(None)

        self._thread = thread = threading.Thread(
            target=copy_context().run, args=(work,), name="ferrule-stream", daemon=True
        )
        thread.start()
        try:
            while True:
                with Aside():
                    event = _next(queue)
                if event is None:
                    break
                self._outputs.take(event)
                yield event
        finally:
            self.close()
        if interrupts:
            raise interrupts[0]
        with callers_frames:
            self._raise_failure()

    async def __aiter__(self) -> AsyncIterator[Event]:
        self._claim()
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        with settings.overriding(self._settings):
            task = asyncio.create_task(
                aexecute(
                    self.run, observers=(from_any_thread(queue.put_nowait),), wants_deltas=True
                )
            )
        task.add_done_callback(lambda _: queue.put_nowait(None))
        self._task = task
        try:
            while (event := await queue.get()) is not None:
                self._outputs.take(event)
                yield event
        finally:
            await self.aclose()
        if not task.cancelled():
            error = task.exception()
            if error is not None:  # the run could not begin, or was interrupted
                raise error
        with callers_frames:
            self._raise_failure()

    async def follow(self, *, after: int = -1) -> AsyncIterator[Event]:
        """Follow the events with a `number` above `after`.

        First those so far, then each as it happens, until the run ends or waits.

        For clients that may lose their connection: any number of readers can follow at once, and
        leaving cancels nothing (`aclose()` does). The first reader starts the run as a task on this
        event loop. The run's error is in `RunFinished`, and not raised. All events stay in memory,
        even for a later stream of the same run: `EventStream(run).follow(after=...)` continues a
        run that waited.
        """
        if self._log is None:
            self._claim()
            self._log = log = EventLog(self._outputs.take, self._earlier_events())
            with settings.overriding(self._settings):
                self._task = asyncio.create_task(
                    aexecute(self.run, observers=(log,), wants_deltas=True)
                )
            self._task.add_done_callback(log.end)
        log = self._log
        position = bisect_right(log.events, after, key=attrgetter("number"))
        while True:
            changed, is_over = log.changed, log.is_over
            for event in log.events[position:]:
                position += 1
                yield event
            if is_over:
                break
            if self._task is not None and self._task.get_loop() is not asyncio.get_running_loop():
                raise RunError(
                    "A running stream is followed on the event loop of its first reader; "
                    "this is another loop."
                )
            await changed.wait()
        if log.error is not None:  # the run could not begin, or was interrupted
            raise log.error

    def _earlier_events(self) -> list[Event]:
        """The events that an earlier stream of this run kept."""
        if self.run.tell is not None:
            for observer in self.run.tell.observers:
                if isinstance(observer, EventLog):
                    return observer.events
        return []

    def _raise_failure(self) -> None:
        # If the stream simply ended, it would hide that the run failed. A run that waits for a
        # person did not fail.
        if self.run.error is not None:
            raise self.run.error.with_traceback(self.run.trace)


def _next(queue: SimpleQueue[Event | None]) -> Event | None:
    """The next event. On Windows the main thread gets Ctrl-C only between two waits."""
    while sys.platform == "win32":
        with suppress(Empty):
            return queue.get(timeout=_LISTENS_S)
    return queue.get()


class _PartialOutputs:
    """Collects the outputs of a program from its events."""

    def __init__(self, signature: type[Signature] | None) -> None:
        self._signature = signature
        self._fields = None
        if signature is not None:
            self._fields = signature.plan.outputs
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        self._call_id = ""
        self._pieces: dict[str, list[str]] = {}
        """The pieces of each field, in the order in which the fields began.

        Only the last one can be incomplete."""
        self._values: dict[str, Any] = {}
        """The values that `read` returned last.

        A value that fits its type no more will be refused; until then, it stays as it was."""
        self._is_answered = False
        self._prediction: Any = None

    def take(self, event: Event) -> None:
        if event.parent_id:
            return
        match event:
            case events.FieldDelta(call_id=call_id, field=name, text=text):
                if self._fields is not None and name not in self._fields:
                    return
                if call_id != self._call_id:
                    self._void()
                    self._call_id, self._is_answered = call_id, False
                self._pieces.setdefault(name, []).append(text)
            case events.Preamble(call_id=call_id, field=name):
                if call_id == self._call_id:
                    self._pieces.pop(name, None)
                    self._values.pop(name, None)
            case events.AttemptFailed():
                self._void()
            case events.StepFinished(step=step):
                if any(result.is_fault for result in step.results):
                    self._void()  # outputs that were refused
            case events.ModelAnswered(call_id=call_id):
                self._is_answered = self._is_answered or call_id == self._call_id
            case events.RunFinished(prediction=Prediction() as prediction, depth=0):
                self._prediction = prediction
            case _:
                pass

    def _void(self) -> None:
        self._pieces, self._values = {}, {}

    def read(self) -> dict[str, Any]:
        if self._prediction is not None:
            return dict(self._prediction.items())
        last = next(reversed(self._pieces), None)
        for name, pieces in self._pieces.items():
            is_complete = self._is_answered or name != last
            with suppress(ValueError):
                self._values[name] = self._value(name, "".join(pieces), is_complete=is_complete)
        return {name: self._values[name] for name in self._pieces if name in self._values}

    def _value(self, name: str, text: str, *, is_complete: bool) -> Any:
        if self._signature is None:
            return text  # a program without a signature of its own, such as one with a `forward`
        field = self._signature.plan.outputs[name]
        if is_complete:
            return self._signature.check_output(name, text)
        if without_none(field.annotation) in TEXTS:
            if allows_none(field.annotation) and "null".startswith(text.strip().lower()):
                raise ValueError(text)  # it may become None
            return text
        if text.lstrip()[:1] not in {"[", "{"}:
            raise ValueError(text)  # half a number is another number
        if name not in self._adapters:
            self._adapters[name] = adapter_of(field)
        return _value_so_far(self._adapters[name], text)


def _value_so_far(adapter: TypeAdapter[Any], text: str) -> Any:
    """The value of an incomplete JSON text; raises `ValueError` if no part of it fits the type.

    What has just begun may not fit yet, such as an object without its required fields. It is left
    out, from the innermost value outwards, and the rest stays.
    """
    strings = JSONStrings()
    strings.read(text, 0, len(text))
    if not strings.is_inside:
        text = _OPEN_WORD.sub("", text)  # half a number is another number
    value = from_json(text, allow_partial="trailing-strings")
    containers: list[Any] = []
    innermost = value
    while isinstance(innermost, (list, dict)) and innermost:
        containers.append(innermost)
        if isinstance(innermost, dict):
            innermost = cast("dict[str, Any]", innermost)
            innermost = innermost[next(reversed(innermost))]
        else:
            innermost = cast("Any", innermost)[-1]
    while True:
        try:
            return adapter.validate_json(to_json(value, inf_nan_mode="constants"))
        except ValueError:
            if not containers:
                raise
            container = containers.pop()
            if isinstance(container, dict):
                container.popitem()
            else:
                container.pop()


def _is_within(run: Run) -> bool:
    """Whether this code runs inside the run: in one of its tools, programs or observers."""
    here = settings.scope()
    life: Any = here.call
    if life is None and here.frame is not None:
        life = here.frame.life
    while life is not None:
        if run.root is not None and life is run.root.life:
            return True
        life = life.outer
    return False


async def _stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it ends, ignoring its error."""
    if not task.done():
        cancel_once(task)
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # marks the error as retrieved; otherwise the loop would log it
