"""Many runs of one program, several at a time, with a line on the terminal that says how far they are.  (Floor 5.)"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ferrule import settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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
    each = [dict(one) for one in inputs]
    line = _Line(len(each), shown=progress)
    # A pool of its own: batches carry whole programs, whose tools need the shared pool.
    pool = ThreadPoolExecutor(_at_once(max_concurrency), thread_name_prefix="ferrule-batch")
    try:
        futures = [pool.submit(copy_context().run, partial(program, **one)) for one in each]
        for future in futures:
            future.add_done_callback(line.one_more)
        return [_outcome(future, return_exceptions=return_exceptions) for future in futures]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        line.end()


def _outcome(future: Future[Any], *, return_exceptions: bool) -> Any:
    error = future.exception()
    return error if return_exceptions and isinstance(error, Exception) else future.result()


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

    each = [dict(one) for one in inputs]
    line = _Line(len(each), shown=progress)
    places = asyncio.Semaphore(_at_once(max_concurrency))

    async def run(one: dict[str, Any]) -> Any:
        async with places:
            return await program.acall(**one)

    tasks = [asyncio.create_task(run(one)) for one in each]
    for task in tasks:
        task.add_done_callback(line.one_more)
    try:
        return await asyncio.gather(*tasks, return_exceptions=return_exceptions)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        line.end()


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
