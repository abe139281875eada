"""Runs one program on many inputs, several at once, with progress on the terminal."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from ferrule import settings
from ferrule.concurrency import offload
from ferrule.encoding.encode import digest_of
from ferrule.errors import (
    ConfigurationError,
    InputError,
    LimitReachedError,
    check_flag,
    shown,
)
from ferrule.programs.asking.asker import check_positive
from ferrule.programs.calling import Bound, new_run, take_about
from ferrule.runs.about import NOTHING, About, about
from ferrule.runs.batch_budget import BatchBudget
from ferrule.runs.protocols import check_store
from ferrule.runs.run import (
    Run,
    acall_program,
    call_program,
    cancel_run_here,
    is_inside_run,
)
from ferrule.runs.stream import EventStream
from ferrule.settings import check_limits
from ferrule.values.conversation.exchange import Usage
from ferrule.values.typed import S, Typed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Never

    from typing_extensions import TypeVar

    from ferrule.programs.lifecycle.provider_batch import ProviderRequests
    from ferrule.runs.limits import Limits
    from ferrule.runs.protocols import Store, Summary
    from ferrule.values.outcome import Prediction

    E = TypeVar("E", default=Never)
else:
    E = None

_DEFAULT_CONCURRENCY = 8
_Item = dict[str, Any] | InputError


class BatchResults(Typed[S, E], list["Prediction[S] | E"]):
    """The predictions of a batch, in the order of the inputs.

    In place of a failed item there is its error with `return_exceptions=True`, and None with
    `return_failed_examples=True`. `E` is the type of these.
    """

    def __init__(
        self, results: Iterable[Any], batch_id: str, runs: Sequence[Run[S] | None]
    ) -> None:
        super().__init__(results)
        self.batch_id = batch_id
        """The id of the batch in its store: `batch(..., store=store, batch_id=...)` resumes it."""
        self.runs = tuple(runs)
        """The run of each item, including failed ones.

        None for an item that was not a mapping of inputs, and in a batch inside a run.
        """

    @property
    def usage(self) -> Usage:
        """Tokens and cost of all items; in a batch inside a run, without failed items.

        `usage.by_model` splits them by model.
        """
        total = Usage()
        for result, run in zip(list[Any](self), self.runs, strict=True):
            if run is not None:
                total += run.usage
            elif not _failed(result):
                total += result.usage
        return total

    @property
    def cost(self) -> float | None:
        """The cost of all items in US dollars; None if the cost of one answer is unknown."""
        return self.usage.cost


def run_batch(
    program: Any,
    inputs: Iterable[Mapping[str, Any] | Bound[Any, Any]],
    *,
    max_concurrency: int | None,
    **options: Any,
) -> Any:
    """See `Module.batch`. The first error ends the batch, unless errors are returned."""
    if options["via"] is not None:  # its runs all wait at once, which needs an event loop
        return offload.run_async(
            arun_batch(program, inputs, max_concurrency=max_concurrency, **options)
        )
    batch = _Batch(program, inputs, **options)

    def run(index: int) -> Any:
        if batch.error is not None:
            return None
        with batch.noting_errors(index):  # before this thread takes the next item
            if batch.is_nested:
                inputs = batch.inputs_of(index)
                about = batch.about(index)
                return batch.finished(index, call_program(program, (), inputs, batch.deps, about))
            item = batch.open(index)
            if batch.is_open(item):
                batch.resume(index, item)
                if batch.asks_anew(item):
                    batch.resume(index, item)
            return batch.finished(index, item.prediction)

    # A pool of its own: batches run whole programs, whose tools need the shared pool.
    pool = ThreadPoolExecutor(
        check_workers(max_concurrency),
        thread_name_prefix="ferrule-batch",
        initializer=offload.inherit_loop_wait(),
    )
    try:
        futures = [pool.submit(copy_context().run, run, index) for index in range(len(batch.items))]
        for future in futures:
            future.add_done_callback(batch.count)
        with offload.Aside():
            # Not in the inputs' order: a slow first item must not hide a failure behind it.
            for _ in as_completed(futures):
                if batch.error is not None:
                    raise batch.error
        results: list[Any] = []
        for future in futures:
            error = future.exception()
            results.append(future.result() if error is None else error)
        return batch.results(results)
    except BaseException as error:
        # Ctrl-C, too: the runs at work stop before their next call, and no other begins.
        batch.cancel(error)
        raise
    finally:
        with offload.Aside():
            pool.shutdown(wait=True, cancel_futures=True)
        batch.end()


async def arun_batch(
    program: Any,
    inputs: Iterable[Mapping[str, Any] | Bound[Any, Any]],
    *,
    max_concurrency: int | None,
    **options: Any,
) -> Any:
    """See `Module.abatch`."""
    if options["via"] is not None and max_concurrency is not None:
        raise ConfigurationError(
            '`via="provider"` sends all requests together: leave out `max_concurrency`.'
        )
    batch = _Batch(program, inputs, **options)
    workers = check_workers(max_concurrency)
    requests = batch.requests
    if requests is not None:
        workers = max(len(batch.items), 1)
    places = asyncio.Semaphore(workers)

    async def run(index: int) -> Any:
        async with places:
            if batch.error is not None:
                return None
            with batch.noting_errors(index):  # before the slot is free for the next item
                if batch.is_nested:
                    inputs = batch.inputs_of(index)
                    about = batch.about(index)
                    result = await acall_program(program, (), inputs, batch.deps, about)
                    return batch.finished(index, result)
                item = batch.open(index)
                if batch.is_open(item):
                    await _resume_in_time(batch, index, item)
                return batch.finished(index, item.prediction)

    tasks = [asyncio.create_task(run(index)) for index in range(len(batch.items))]
    carrier: asyncio.Task[None] | None = None
    if requests is not None:
        carrier = asyncio.create_task(_carry(batch, requests, tasks))
    for task in tasks:
        task.add_done_callback(batch.count)
    try:
        try:
            results = await asyncio.gather(*tasks, return_exceptions=batch.keeps_errors)
        finally:
            if carrier is not None:
                await _stop(carrier)
        if batch.error is not None:  # for example `Suspended`, which is not a result
            raise batch.error
        return batch.results(results)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        batch.end()


async def _resume_in_time(batch: _Batch, index: int, item: Run[Any]) -> None:
    """Execute the run of an item, on this event loop. Raises the error of one that is late."""
    limit = asyncio.timeout(batch.timeout)
    try:
        async with limit:
            await item.aresume(deps=batch.deps)
            if batch.asks_anew(item):
                await item.aresume(deps=batch.deps)
    except TimeoutError:
        if limit.expired():  # otherwise the error is the program's own
            raise batch.is_late(index) from None
        raise


async def _carry(batch: _Batch, requests: ProviderRequests, items: list[asyncio.Task[Any]]) -> None:
    """Carry the requests of the items. If that fails, no item can go on."""
    for item in items:
        item.add_done_callback(lambda _: requests.end_item())
    try:
        await requests.carry()
    except Exception as error:
        batch.error = batch.error or error
        for item in items:
            item.cancel()
        raise


async def _stop(carrier: asyncio.Task[None]) -> None:
    """End the carrying of requests; raises the error with which it ended by itself."""
    carrier.cancel()
    with suppress(asyncio.CancelledError):
        await carrier


class _Batch:
    """The items of a batch, the error that ends it, and its progress.

    Progress is shown as `12/40` on standard error, if that is a terminal.
    """

    def __init__(
        self,
        program: Any,
        inputs: Iterable[Mapping[str, Any] | Bound[Any, Any]],
        *,
        progress: bool,
        return_exceptions: bool,
        return_failed_examples: bool,
        timeout: float | None,
        deps: Any,
        store: Store | None,
        batch_id: str | None,
        on_result: Callable[[int, Any], object] | None,
        limits: Limits | None,
        retry_failed: bool,
        via: Any,
        poll_s: float | None,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        check_limits(limits)
        check_flag("return_exceptions", return_exceptions)
        check_flag("return_failed_examples", return_failed_examples)
        check_flag("retry_failed", retry_failed)
        if batch_id is not None and store is None:
            raise ConfigurationError("`batch_id` names a batch in a store: pass `store=` too.")
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
            raise ConfigurationError(
                f"`timeout` is a number of seconds above 0, or None; found {shown(timeout)}."
            )
        if store is not None:
            check_store(store)
        self.program = program
        self.given = _listed(inputs)
        self.keeps_errors = return_exceptions or return_failed_examples
        self.items = _items(self.given, program, keeps_errors=self.keeps_errors)
        self._abouts = _abouts(program, self.given, self.items, metadata)
        self.deps = deps
        self.timeout = timeout
        self.batch_id = batch_id or uuid4().hex
        self.error: BaseException | None = None
        """The error that happened first, not the first in the order of the inputs."""
        self.runs: list[Run[Any] | None] = [None] * len(self.items)
        self.is_nested = store is None and is_inside_run()
        """Whether the items are parts of the run that executes here, not separate runs."""
        if self.is_nested and timeout is not None:
            raise ConfigurationError(
                "A batch inside a run takes no `timeout`: a resumed run could not repeat what was "
                "late. Give tools a `timeout_s`."
            )
        self._check_via(via, poll_s)
        self._returns_failed = return_failed_examples
        self._retries_failed = retry_failed
        self._store = store
        self._stored: dict[str, Summary] = {}
        """The runs that the store had when the batch began, by their ids."""
        self._ids: list[str] | None = None
        if store is not None:
            self._ids = _run_ids(self.batch_id, self.items)
            self._stored = {run.id: run for run in store.list(limit=None)}
        self._budget: BatchBudget | None = None
        if limits is not None:
            stored = [self._stored[key] for key in self._ids or () if key in self._stored]
            self._budget = BatchBudget(limits, stored, is_inside_run=self.is_nested)
        self.requests: ProviderRequests | None = None
        """Sends the requests of the items through the provider's batch API; None without it."""
        if via is not None:
            # Late: few programs send batches, and it needs asyncio.
            from ferrule.programs.lifecycle.provider_batch import DEFAULT_POLL_S, ProviderRequests

            made_at = [
                self._stored[key].created_at for key in self._ids or () if key in self._stored
            ]
            self.requests = ProviderRequests(
                self.batch_id,
                size=len(self.items),
                since=min(made_at, default=None),
                poll_s=poll_s or DEFAULT_POLL_S,
                retries_failed=retry_failed,
            )
        self._on_result = on_result
        self._placed = (Exception,) if self.keeps_errors else ()
        """Types of errors that are returned among the results.

        Ctrl-C, or a question inside a run, ends the whole batch.
        """
        self._done = 0
        self._lock = threading.RLock()
        # `sys.stderr` is None under `pythonw`.
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_shown = progress and len(self.items) > 1 and is_terminal

    def _check_via(self, via: Any, poll_s: Any) -> None:
        """Check the options of a batch that goes through the provider, before anything is sent."""
        if via is None:
            if poll_s is not None:
                raise ConfigurationError('`poll_s` goes with `via="provider"`.')
            return
        if via != "provider":
            raise ConfigurationError(f'`via` is "provider" or None, found {shown(via)}.')
        if poll_s is not None and not (isinstance(poll_s, (int, float)) and poll_s > 0):
            raise ConfigurationError(
                f"`poll_s` is a number of seconds above 0, or None; found {shown(poll_s)}."
            )
        if is_inside_run():
            raise ConfigurationError(
                "A batch inside a run cannot go through a provider's batch API: it takes hours. "
                'Leave out `via="provider"`.'
            )
        if self.timeout is not None:
            raise ConfigurationError(
                "A provider's batch API answers within a day: leave out `timeout`."
            )
        from ferrule.programs.lifecycle.provider_batch import check_asks_once

        check_asks_once(self.program)

    def inputs_of(self, index: int) -> dict[str, Any]:
        item = self.items[index]
        if isinstance(item, InputError):
            raise item
        return item

    def about(self, index: int) -> About:
        about = self._abouts[index]
        if isinstance(about, InputError):
            raise about
        return about

    def open(self, index: int) -> Run[Any]:
        """The run of an item: the one in the store, or a new one that has not begun.

        Raises `LimitReachedError` in place of a new one at a limit of the batch.
        """
        inputs = self.inputs_of(index)
        run_id = None
        if self._ids is not None:
            run_id = self._ids[index]
        if self._store is not None and run_id in self._stored:
            run = Run[Any].load(self._store, run_id, self.program, deps=self.deps)
        else:
            if self._budget is not None:
                self._budget.check()
            run = new_run(
                self.program,
                (),
                inputs,
                run_id=run_id,
                deps=self.deps,
                about=self.about(index),
            )
            if self._store is not None:
                run.keep(self._store)
        run.batch_requests = self.requests
        self.runs[index] = run
        return run

    def is_open(self, run: Run[Any]) -> bool:
        """Whether a run must be executed: it is new, was interrupted, or is asked about again.

        A stored run that failed has its result, an error, unless it stopped at a limit.
        """
        if run.status == "done":
            return False
        has_failed = run.status == "failed" and not isinstance(run.error, LimitReachedError)
        if has_failed and not self._retries_failed:
            _ = run.trajectory  # the replay brings back the error's class and attributes
            if run.error is not None:
                run.error.add_note("It is stored with the batch: `retry_failed=True` asks again.")
            return False
        if self._budget is not None:
            self._budget.begin(run)
        return True

    def asks_anew(self, run: Run[Any]) -> bool:
        """Whether a run failed again, by its recorded answers alone: then its models are asked."""
        if not self._retries_failed or not run.ask_anew():
            return False
        if self._budget is not None:
            self._budget.begin(run)
        return True

    def cancel(self, error: BaseException) -> None:
        """End the batch, and cancel those of its runs that execute here.

        Loaded runs that another process executes go on.
        """
        self.error = self.error or error
        for run in self.runs:
            if run is not None and run.executing:
                run.cancel()
        if self.is_nested and isinstance(error, KeyboardInterrupt):
            cancel_run_here()  # Ctrl-C is meant for the run that the items belong to

    def finished(self, index: int, result: Any) -> Any:
        """Hand a result to `on_result`, one at a time; returns it.

        An error of `on_result` ends the batch.
        """
        if self._on_result is not None:
            with self._lock:
                try:
                    self._on_result(index, result)
                except BaseException as error:
                    if self.error is None:
                        self.error = error
                    raise
        return result

    def resume(self, index: int, run: Run[Any]) -> None:
        """Execute a run.

        With a time limit, it gets its own thread, which is abandoned when late: a thread cannot be
        stopped.
        """
        if self.timeout is None:
            run.resume(deps=self.deps)
            return
        ended: Future[None] = Future()
        begin = offload.inherit_loop_wait()

        def work() -> None:
            begin()
            try:
                ended.set_result(run.resume(deps=self.deps) and None)
            except BaseException as error:  # noqa: BLE001  raised again in the waiting thread
                ended.set_exception(error)

        threading.Thread(
            target=copy_context().run, args=(work,), name="ferrule-batch-item", daemon=True
        ).start()
        with offload.Aside():
            if not wait((ended,), self.timeout).done:
                EventStream(run).close()
                raise self.is_late(index)
        ended.result()

    def is_late(self, index: int) -> TimeoutError:
        error: Any = TimeoutError(
            f"Item {index} of the batch did not finish within {self.timeout:g} s. "
            "Its run was cancelled."
        )
        run = self.runs[index]
        if run is not None:  # as other errors of runs, it says what was spent
            error.usage, error.cost = run.usage, run.cost
        return error

    def results(self, results: Sequence[Any]) -> Any:
        if not self._returns_failed:
            return BatchResults[Any, Any](results, self.batch_id, self.runs)
        predictions: list[Any] = []
        failed_inputs: list[Any] = []
        errors: list[BaseException] = []
        for inputs, result in zip(self.given, results, strict=True):
            if isinstance(result, BaseException):
                predictions.append(None)
                failed_inputs.append(inputs)
                errors.append(result)
            else:
                predictions.append(result)
        batch_results = BatchResults[Any, None](predictions, self.batch_id, self.runs)
        return batch_results, failed_inputs, errors

    @contextmanager
    def noting_errors(self, index: int) -> Generator[None]:
        try:
            yield
        except BaseException as error:
            # Otherwise the batch has ended, perhaps by an error of `on_result`.
            is_of_item = self.error is None
            if self.error is None and not isinstance(error, self._placed):
                self.error = error
            if is_of_item and isinstance(error, Exception):
                self.finished(index, error)
            raise

    def count(self, _: object) -> None:
        with self._lock:
            self._done += 1
            if self._is_shown:
                filled = 30 * self._done // len(self.items)
                sys.stderr.write(
                    f"\r[{'#' * filled}{'.' * (30 - filled)}] {self._done}/{len(self.items)}"
                )
                sys.stderr.flush()

    def end(self) -> None:
        """End the line of the progress, and the budget of the batch."""
        if self._is_shown:
            sys.stderr.write("\n")
        if self._budget is not None:
            self._budget.end(self.runs)
        for run in self.runs:
            if run is not None:
                run.batch_requests = None


def _listed(inputs: Iterable[Any]) -> list[Any]:
    value = cast("object", inputs)  # users pass anything
    if isinstance(value, Mapping):
        problem = f"found {shown(cast('object', value))}. Write `[{{...}}]` for a batch of one."
    elif isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        problem = f"found {shown(value)}."
    else:
        return list(cast("Iterable[Any]", value))
    raise InputError(f"`batch` takes a list of mappings of inputs by name, {problem}")


def _items(inputs: Sequence[Any], program: Any, *, keeps_errors: bool) -> list[_Item]:
    """The inputs of each run.

    For an item that is not a mapping, an `InputError` is raised before any run begins, or takes its
    place.
    """
    items = [_item(index, value, program) for index, value in enumerate(inputs)]
    fault = next((item for item in items if isinstance(item, InputError)), None)
    if fault is not None and not keeps_errors:
        raise fault
    return items


def _item(index: int, value: Any, program: Any) -> _Item:
    if isinstance(value, Bound):
        bound = cast("Bound[Any, Any]", value)
        if bound.program is program and not bound.args:
            return dict(bound.inputs)
        return InputError(
            f"Item {index} of the batch is not bound to this program by names, found {bound!r}."
        )
    # Duck typing: DSPy's examples are not instances of `Mapping`.
    is_mapping = (
        not isinstance(value, type)
        and callable(getattr(value, "keys", None))
        and hasattr(value, "__getitem__")
    )
    if is_mapping:
        inputs: dict[Any, Any] = dict(cast("Any", value))
        if all(isinstance(name, str) for name in inputs):
            return inputs
    return InputError(
        f"Item {index} of the batch must be a mapping of inputs by name, found {shown(value)}."
    )


def _abouts(
    program: Any, given: Sequence[Any], items: Sequence[_Item], metadata: Mapping[str, Any] | None
) -> list[About | InputError]:
    """What the run of each item is about; takes these options out of the item."""
    shared = about(metadata, None)
    abouts: list[About | InputError] = []
    for value, item in zip(given, items, strict=True):
        own = NOTHING
        # Every keyword of `bind` is an input.
        if not isinstance(value, Bound) and not isinstance(item, InputError):
            try:
                own = about(**take_about(program, item))
            except InputError as error:
                abouts.append(error)
                continue
        abouts.append(own.inside(shared))
    return abouts


def _run_ids(batch_id: str, items: Sequence[_Item]) -> list[str]:
    """An id for the run of each item, made from its inputs.

    So a resumed batch may have its items in another order.
    """
    seen: Counter[str] = Counter()
    ids: list[str] = []
    for item in items:
        # A faulty item has an id too, so that the ids stay in step with the items.
        if isinstance(item, InputError):
            content = str(item)
        else:
            content = item
        digest = digest_of(content, 24)
        ids.append(f"{batch_id}.{digest}.{seen[digest]}")
        seen[digest] += 1
    return ids


def _failed(result: Any) -> bool:
    return isinstance(result, BaseException) or not isinstance(
        getattr(result, "usage", None), Usage
    )


def check_workers(max_concurrency: int | None) -> int:
    """How many items run at once; raises `ConfigurationError` for anything but a number above 0."""
    if max_concurrency is None:
        return settings.current().max_workers or _DEFAULT_CONCURRENCY
    return check_positive("max_concurrency", max_concurrency)
