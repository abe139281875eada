"""Many runs of one program, several at a time, with a line on the terminal that says how far they are."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextvars import copy_context
from typing import Any, Protocol, cast

from ferrule import settings
from ferrule.concurrency import offload
from ferrule.errors import InputError, shown

_AT_ONCE = 8


class _Callable(Protocol):
    def __call__(self, **inputs: Any) -> Any: ...
    async def acall(self, **inputs: Any) -> Any: ...


def batch(
    program: _Callable,
    inputs: Iterable[Mapping[str, Any]],
    *,
    max_concurrency: int | None,
    progress: bool,
    return_exceptions: bool,
) -> list[Any]:
    """See `Module.batch`. The first error ends the batch, unless `return_exceptions` puts errors in their places."""
    each = _items(inputs, return_exceptions=return_exceptions)
    line = _Line(len(each), shown=progress)
    end = _End(placed=Exception if return_exceptions else ())

    def run(one: dict[str, Any] | InputError) -> Any:
        if end.error is not None:
            return None
        try:
            return program(**_given(one))
        except BaseException as error:
            end.note(error)  # before this thread takes the next item
            raise

    # A pool of its own: batches carry whole programs, whose tools need the shared pool.
    pool = ThreadPoolExecutor(_at_once(max_concurrency), thread_name_prefix="ferrule-batch", initializer=offload.like_here())
    try:
        futures = [pool.submit(copy_context().run, run, one) for one in each]
        for future in futures:
            future.add_done_callback(line.one_more)
        with offload.Aside():
            for _ in as_completed(futures):  # not in the inputs' order: an early slow item must not hide a failure behind it
                if end.error is not None:
                    raise end.error
        return [_outcome(future) for future in futures]
    finally:
        with offload.Aside():
            pool.shutdown(wait=True, cancel_futures=True)
        line.end()


def _outcome(future: Future[Any]) -> Any:
    error = future.exception()
    return future.result() if error is None else error


async def abatch(
    program: _Callable,
    inputs: Iterable[Mapping[str, Any]],
    *,
    max_concurrency: int | None,
    progress: bool,
    return_exceptions: bool,
) -> list[Any]:
    """See `Module.abatch`."""
    import asyncio

    each = _items(inputs, return_exceptions=return_exceptions)
    line = _Line(len(each), shown=progress)
    end = _End(placed=(Exception, asyncio.CancelledError) if return_exceptions else ())  # Ctrl-C ends the loop itself
    places = asyncio.Semaphore(_at_once(max_concurrency))

    async def run(one: dict[str, Any] | InputError) -> Any:
        async with places:
            if end.error is not None:
                return None
            try:
                return await program.acall(**_given(one))
            except BaseException as error:
                end.note(error)  # before the place is free for the next item
                raise

    tasks = [asyncio.create_task(run(one)) for one in each]
    for task in tasks:
        task.add_done_callback(line.one_more)
    try:
        found = await asyncio.gather(*tasks, return_exceptions=return_exceptions)
        if end.error is not None:  # a wait for a person is no result
            raise end.error
        return found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        line.end()


class _End:
    """The error that ends a batch: the first one to happen, not the first in the inputs' order."""

    def __init__(self, *, placed: type[BaseException] | tuple[type[BaseException], ...]) -> None:
        self.error: BaseException | None = None
        self._placed = placed
        """Errors that stand among the results."""

    def note(self, error: BaseException) -> None:
        """Take an item's error for the end of the batch, if it is the first to have no place among the results."""
        if self.error is None and not isinstance(error, self._placed):
            self.error = error


def _items(inputs: Iterable[Mapping[str, Any]], *, return_exceptions: bool) -> list[dict[str, Any] | InputError]:
    """The inputs of each run. One that is no mapping is an `InputError`: raised before any run begins, or put in its place."""
    found = cast("object", inputs)  # users pass anything
    if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
        one = " Write `[{...}]` for a batch of one." if isinstance(found, Mapping) else ""
        msg = f"`batch` takes a list of mappings of inputs by name, found {shown(cast('object', found))}.{one}"
        raise InputError(msg)
    each = [_item(index, one) for index, one in enumerate(cast("Iterable[object]", found))]
    wrong = next((one for one in each if isinstance(one, InputError)), None)
    if wrong is not None and not return_exceptions:
        raise wrong
    return each


def _item(index: int, one: Any) -> dict[str, Any] | InputError:
    inputs: dict[Any, Any] | None = dict(one) if _is_mapping(one) else None
    if inputs is None or not all(isinstance(name, str) for name in inputs):
        return InputError(f"Item {index} of the batch must be a mapping of inputs by name, found {shown(one)}.")
    return inputs


def _is_mapping(one: Any) -> bool:
    # By what it can do: DSPy's examples are none by their class.
    return not isinstance(one, type) and callable(getattr(one, "keys", None)) and hasattr(one, "__getitem__")


def _given(one: dict[str, Any] | InputError) -> dict[str, Any]:
    if isinstance(one, InputError):
        raise one
    return one


def _at_once(max_concurrency: int | None) -> int:
    if max_concurrency is None:
        return settings.current().max_workers or _AT_ONCE
    if max_concurrency < 1:
        msg = f"`max_concurrency` must be at least 1, found {max_concurrency!r}."
        raise ValueError(msg)
    return max_concurrency


class _Line:
    """`12/40` on standard error, rewritten in place; silent where that is no terminal."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        self._shown = shown and total > 1 and sys.stderr.isatty()

    def one_more(self, _: object) -> None:
        with self._lock:
            self._done += 1
            if self._shown:
                filled = 30 * self._done // self._total
                sys.stderr.write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {self._done}/{self._total}")
                sys.stderr.flush()

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\n")
