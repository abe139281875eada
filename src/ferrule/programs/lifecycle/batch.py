"""Many runs of one program, several at once, with progress on the terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast

from ferrule import settings
from ferrule.concurrency import offload
from ferrule.errors import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Generator

_DEFAULT_CONCURRENCY = 8
_Item = dict[str, Any] | InputError


def run_batch(
    program: Any,
    inputs: Iterable[Mapping[str, Any]],
    *,
    max_concurrency: int | None,
    progress: bool,
    return_exceptions: bool,
    deps: Any,
) -> list[Any]:
    """See `Module.batch`. The first error ends the batch, unless `return_exceptions` puts errors in their places."""
    batch = _Batch(inputs, progress=progress, placed=(Exception,) if return_exceptions else ())

    def run(item: _Item) -> Any:
        if batch.error is not None:
            return None
        with batch.noting_errors():  # before this thread takes the next item
            return program.bind(**_inputs_of(item))(deps=deps)

    # A pool of its own: batches run whole programs, whose tools need the shared pool.
    pool = ThreadPoolExecutor(_workers(max_concurrency), thread_name_prefix="ferrule-batch", initializer=offload.inherit_loop_wait())
    try:
        futures = [pool.submit(copy_context().run, run, item) for item in batch.items]
        for future in futures:
            future.add_done_callback(batch.count)
        with offload.Aside():
            for _ in as_completed(futures):  # not in the inputs' order: a slow first item must not hide a failure behind it
                if batch.error is not None:
                    raise batch.error
        return [future.result() if (error := future.exception()) is None else error for future in futures]
    finally:
        with offload.Aside():
            pool.shutdown(wait=True, cancel_futures=True)
        batch.end_line()


async def arun_batch(
    program: Any,
    inputs: Iterable[Mapping[str, Any]],
    *,
    max_concurrency: int | None,
    progress: bool,
    return_exceptions: bool,
    deps: Any,
) -> list[Any]:
    """See `Module.abatch`."""
    import asyncio

    # Of `BaseException`, a cancelled item has a place, too; Ctrl-C ends the loop itself.
    batch = _Batch(inputs, progress=progress, placed=(Exception, asyncio.CancelledError) if return_exceptions else ())
    places = asyncio.Semaphore(_workers(max_concurrency))

    async def run(item: _Item) -> Any:
        async with places:
            if batch.error is not None:
                return None
            with batch.noting_errors():  # before the place is free for the next item
                return await program.bind(**_inputs_of(item)).acall(deps=deps)

    tasks = [asyncio.create_task(run(item)) for item in batch.items]
    for task in tasks:
        task.add_done_callback(batch.count)
    try:
        found = await asyncio.gather(*tasks, return_exceptions=return_exceptions)
        if batch.error is not None:  # `Suspended`, say, which is no result
            raise batch.error
        return found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        batch.end_line()


class _Batch:
    """The items of a batch, the error that ends it, and its progress: `12/40` on standard error, if that is a terminal."""

    def __init__(self, inputs: Iterable[Mapping[str, Any]], *, progress: bool, placed: tuple[type[BaseException], ...]) -> None:
        self.items = _items(inputs, return_exceptions=bool(placed))
        self.error: BaseException | None = None
        """The first error to happen, not the first in the inputs' order."""
        self._placed = placed
        """Errors that stand among the results."""
        self._done = 0
        self._lock = threading.Lock()
        self._is_shown = progress and len(self.items) > 1 and sys.stderr.isatty()

    @contextmanager
    def noting_errors(self) -> Generator[None]:
        try:
            yield
        except BaseException as error:
            if self.error is None and not isinstance(error, self._placed):
                self.error = error
            raise

    def count(self, _: object) -> None:
        with self._lock:
            self._done += 1
            if self._is_shown:
                filled = 30 * self._done // len(self.items)
                sys.stderr.write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {self._done}/{len(self.items)}")
                sys.stderr.flush()

    def end_line(self) -> None:
        if self._is_shown:
            sys.stderr.write("\n")


def _items(inputs: Iterable[Mapping[str, Any]], *, return_exceptions: bool) -> list[_Item]:
    """The inputs of each run. One that is no mapping is an `InputError`: raised before any run begins, or put in its place."""
    found = cast("object", inputs)  # users pass anything
    if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
        hint = " Write `[{...}]` for a batch of one." if isinstance(found, Mapping) else ""
        raise InputError(f"`batch` takes a list of mappings of inputs by name, found {shown(cast('object', found))}.{hint}")
    items = [_item(index, one) for index, one in enumerate(cast("Iterable[object]", found))]
    fault = next((item for item in items if isinstance(item, InputError)), None)
    if fault is not None and not return_exceptions:
        raise fault
    return items


def _item(index: int, one: Any) -> _Item:
    # A mapping by what it can do: DSPy's examples are not of that class.
    is_mapping = not isinstance(one, type) and callable(getattr(one, "keys", None)) and hasattr(one, "__getitem__")
    inputs: dict[Any, Any] | None = dict(cast("Any", one)) if is_mapping else None
    if inputs is None or not all(isinstance(name, str) for name in inputs):
        return InputError(f"Item {index} of the batch must be a mapping of inputs by name, found {shown(one)}.")
    return inputs


def _inputs_of(item: _Item) -> dict[str, Any]:
    if isinstance(item, InputError):
        raise item
    return item


def _workers(max_concurrency: int | None) -> int:
    if max_concurrency is None:
        return settings.current().max_workers or _DEFAULT_CONCURRENCY
    if max_concurrency < 1:
        raise ValueError(f"`max_concurrency` must be at least 1, found {max_concurrency!r}.")
    return max_concurrency
