"""`batch` and `abatch` of a program, with their return types.

Every program has these methods, and few programs call them: the code that runs batches is imported
when one is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from ferrule.errors import refuse_unknown
from ferrule.programs.calling import Bound, ProgramTypes
from ferrule.programs.lifecycle.batch import arun_batch, run_batch
from ferrule.settings import with_settings_of_call
from ferrule.values.tracebacks import callers_frames
from ferrule.values.typed import D, P, S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Generic, Literal, TypedDict

    from typing_extensions import TypeVar, Unpack

    from ferrule.programs.lifecycle.batch import BatchResults
    from ferrule.runs.limits import Limits
    from ferrule.runs.protocols import Store

    Deps = TypeVar("Deps")
    Items = Iterable[Mapping[str, Any] | Bound[S, D]]
    Failed = tuple[BatchResults[S, None], list[Mapping[str, Any]], list[BaseException]]
    """The return type with `return_failed_examples=True`: results, failed inputs, their errors."""

    class Options(TypedDict, Generic[Deps], total=False):
        """The keywords that do not change the return type of a batch."""

        progress: bool
        timeout: float | None
        deps: Deps | None
        store: Store | None
        batch_id: str | None
        on_result: Callable[[int, Any], object] | None
        limits: Limits | None
        retry_failed: bool
        via: Literal["provider"] | None
        poll_s: float | None
        metadata: Mapping[str, Any] | None


_OPTIONS = (
    "max_concurrency",
    "progress",
    "return_exceptions",
    "return_failed_examples",
    "timeout",
    "deps",
    "store",
    "batch_id",
    "on_result",
    "limits",
    "retry_failed",
    "via",
    "poll_s",
    "metadata",
)


class Batches(ProgramTypes[S, D, P]):
    """Runs a program on many inputs."""

    @overload
    def batch(
        self,
        inputs: Items[S, D],
        max_concurrency: int | None = None,
        *,
        return_exceptions: Literal[False] = False,
        return_failed_examples: Literal[False] = False,
        **options: Unpack[Options[D]],
    ) -> BatchResults[S]: ...
    @overload
    def batch(
        self,
        inputs: Items[S, D],
        max_concurrency: int | None = None,
        *,
        return_exceptions: bool,
        return_failed_examples: Literal[False] = False,
        **options: Unpack[Options[D]],
    ) -> BatchResults[S, BaseException]: ...
    @overload
    def batch(
        self,
        inputs: Items[S, D],
        max_concurrency: int | None = None,
        *,
        return_exceptions: bool = False,
        return_failed_examples: Literal[True],
        **options: Unpack[Options[D]],
    ) -> Failed[S]: ...
    def batch(
        self,
        inputs: Iterable[Mapping[str, Any] | Bound[S, D]],
        max_concurrency: int | None = None,
        *,
        progress: bool = True,
        return_exceptions: bool = False,
        return_failed_examples: bool = False,
        timeout: float | None = None,
        deps: D | None = None,
        store: Store | None = None,
        batch_id: str | None = None,
        on_result: Callable[[int, Any], object] | None = None,
        limits: Limits | None = None,
        retry_failed: bool = False,
        via: Literal["provider"] | None = None,
        poll_s: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> Any:
        """Run the program once for each mapping of inputs, several at once in threads.

        An item may also be `program.bind(...)`, whose inputs type checkers check.

        An item may have `metadata` and `title` of its run, as a call has them; `metadata` of the
        batch is that of every item.

        Returns the predictions in the order of the inputs.

        At most `max_concurrency` run at once; None means the setting `max_workers`, or 8 without
        that setting. Every run has the same `deps`. The list has the totals (`usage`, `cost`) and
        the `runs` of all items, including failed ones.

        An item that takes longer than `timeout` seconds from its own start fails with a
        `TimeoutError`; its run is cancelled. The first failure ends the batch. With
        `return_exceptions=True`, the error takes the place of each failed item. With
        `return_failed_examples=True`, None does, and the method returns `(results, failed inputs,
        their errors)`.

        `limits` hold for all items together, failed ones included: at one, no further model call is
        made, and the items that are left fail with a `LimitReachedError`. A resumed batch counts
        the tokens and the cost of its earlier calls.

        With a `store`, every run is stored. A batch with the same `store` and `batch_id` is
        resumed: finished items do not run again, unfinished ones continue. An item that failed has
        its error as its result, unless it was stopped by a limit; with `retry_failed=True` it
        continues, and asks its models again. `on_result(index, result)` gets each prediction or
        error as it comes, one at a time. Any other option raises `ConfigurationError`.

        With `via="provider"`, the requests go through the batch API of OpenAI or Anthropic: at half
        the price, within a day. It is asked every `poll_s` seconds (default: 30). Only for programs
        that ask once (`Predict` and `ChainOfThought` without tools); repairs go into the next
        batch. A resumed batch sends no request twice. See docs/how-to/models/batches.md.
        """
        with callers_frames:
            refuse_unknown("batch", unknown, _OPTIONS)
            return run_batch(
                self,
                inputs,
                max_concurrency=max_concurrency,
                progress=progress,
                return_exceptions=return_exceptions,
                return_failed_examples=return_failed_examples,
                timeout=timeout,
                deps=deps,
                store=store,
                batch_id=batch_id,
                on_result=on_result,
                limits=limits,
                retry_failed=retry_failed,
                via=via,
                poll_s=poll_s,
                metadata=metadata,
            )

    @overload
    async def abatch(
        self,
        inputs: Items[S, D],
        max_concurrency: int | None = None,
        *,
        return_exceptions: Literal[False] = False,
        return_failed_examples: Literal[False] = False,
        **options: Unpack[Options[D]],
    ) -> BatchResults[S]: ...
    @overload
    async def abatch(
        self,
        inputs: Items[S, D],
        max_concurrency: int | None = None,
        *,
        return_exceptions: bool,
        return_failed_examples: Literal[False] = False,
        **options: Unpack[Options[D]],
    ) -> BatchResults[S, BaseException]: ...
    @overload
    async def abatch(
        self,
        inputs: Items[S, D],
        max_concurrency: int | None = None,
        *,
        return_exceptions: bool = False,
        return_failed_examples: Literal[True],
        **options: Unpack[Options[D]],
    ) -> Failed[S]: ...
    @with_settings_of_call
    async def abatch(
        self,
        inputs: Iterable[Mapping[str, Any] | Bound[S, D]],
        max_concurrency: int | None = None,
        *,
        progress: bool = True,
        return_exceptions: bool = False,
        return_failed_examples: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109  DSPy's name
        deps: D | None = None,
        store: Store | None = None,
        batch_id: str | None = None,
        on_result: Callable[[int, Any], object] | None = None,
        limits: Limits | None = None,
        retry_failed: bool = False,
        via: Literal["provider"] | None = None,
        poll_s: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> Any:
        """`batch` as tasks on this event loop."""
        with callers_frames:
            refuse_unknown("abatch", unknown, _OPTIONS)
            return await arun_batch(
                self,
                inputs,
                max_concurrency=max_concurrency,
                progress=progress,
                return_exceptions=return_exceptions,
                return_failed_examples=return_failed_examples,
                timeout=timeout,
                deps=deps,
                store=store,
                batch_id=batch_id,
                on_result=on_result,
                limits=limits,
                retry_failed=retry_failed,
                via=via,
                poll_s=poll_s,
                metadata=metadata,
            )
