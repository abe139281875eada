"""The command `ferrule worker`: executes the queued runs of a Postgres store.

The command line names the programs.
"""

from __future__ import annotations

import logging
import random
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferrule import settings
from ferrule.cli.arguments import find_program, make_deps, model_setting
from ferrule.cli.commands.tools import DEPS  # noqa: TC001  typer reads annotations at run time
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.screen import say
from ferrule.cli.stores import (
    DEFAULT_QUEUE,
    DEFAULT_STORE,
    QueueName,
    StorePlace,
    is_dsn,
    postgres_store,
    read_dsn,
)
from ferrule.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

_SWEEP_INTERVAL_S = 1.0
_log = logging.getLogger("ferrule.worker")


def run_worker(
    programs: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM", help="The programs: module:attribute, or file.py:attribute."
        ),
    ],
    store: StorePlace = DEFAULT_STORE,
    concurrency: Annotated[
        int, typer.Option(min=1, help="How many runs this worker executes at once.")
    ] = 4,
    total: Annotated[
        int | None,
        typer.Option("--total", min=1, help="How many all workers together execute at once."),
    ] = None,
    per_key: Annotated[
        int | None, typer.Option("--per-key", min=1, help="How many of one `queue_key` at once.")
    ] = None,
    per_minute: Annotated[
        int | None,
        typer.Option(
            "--per-minute", min=1, help="How many all workers together begin in a minute."
        ),
    ] = None,
    poll_s: Annotated[
        float, typer.Option("--poll-s", min=0.01, help="How often to look for work.")
    ] = 0.1,
    drain_s: Annotated[
        float,
        typer.Option(
            "--drain-s", min=0, help="After SIGTERM or Ctrl-C: how many seconds runs may continue."
        ),
    ] = 30,
    queue: QueueName = DEFAULT_QUEUE,
    requeue: Annotated[
        bool,
        typer.Option(
            "--requeue",
            help="First put every run with pending work into the queue again, "
            "for when the queue was lost.",
        ),
    ] = False,
    any_version: Annotated[
        bool,
        typer.Option(
            "--any-version",
            help="Also take runs that another version of a program began, "
            "and continue with this one.",
        ),
    ] = False,
    lm: Annotated[
        str | None,
        typer.Option(
            help="The model, as provider/model. Default: the model that each program sets."
        ),
    ] = None,
    deps: DEPS = None,
) -> int:
    """Execute the runs of a Postgres store. A worker runs until SIGTERM or Ctrl-C."""
    from ferrule.concurrency.pool import ThreadPool
    from ferrule.programs.lifecycle.advance import advance_in_thread
    from ferrule.runs.store.postgres.tickets import sweep

    if not is_dsn(store):
        msg = (
            "Workers need a Postgres store: --store postgresql://..., or FERRULE_STORE. "
            "A process on SQLite resumes its runs itself."
        )
        raise ConfigurationError(msg)
    loaded_programs = [find_program(place) for place in programs]
    loaded_deps = make_deps(deps)
    opened = postgres_store(
        store,
        queue=queue,
        worker_concurrency=concurrency,
        concurrency=total,
        key_concurrency=per_key,
        poll_s=poll_s,
        rate=None if per_minute is None else (per_minute, 60.0),
    )
    stopping = _stop_at_signals()
    lm_setting = model_setting(lm)
    threads = ThreadPool(concurrency, runs_tools=False)

    async def advance(run_id: str) -> str:
        with settings.context(**lm_setting):
            status = await advance_in_thread(
                threads, opened, run_id, loaded_programs, any_version=any_version, deps=loaded_deps
            )
        _log.info("The run %s is %s", run_id, status, extra={"run_id": run_id, "status": status})
        return status

    with _joined(opened, store, advance, drain_s) as engine:
        if requeue:
            say(f"{sweep(opened, every=True)} runs are queued again.")
        names = ", ".join(program.name for program in loaded_programs)
        say(f"Ready: {names}; {concurrency} at once.")
        _sweep_until(stopping, opened)
        say(f"Stopping; {engine.working} runs are still active.")
    return ExitCode.DONE


def _stop_at_signals() -> threading.Event:
    """An event that is set when this process is to end."""
    stopping = threading.Event()

    def stop(*_: object) -> None:
        stopping.set()

    for name in ("SIGTERM", "SIGINT", "SIGBREAK"):  # Windows sends the last instead of the first
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop)
    return stopping


@contextmanager
def _joined(
    store: Any, place: str, advance: Callable[[str], Awaitable[str]], drain_s: float
) -> Generator[Any]:
    """Register as a worker of the store for the block.

    Yields the engine, which hands out queued runs.
    """
    dsn, liveness = read_dsn(place)
    store.join()
    store.engine.start(dsn, store.owner, advance, is_direct=liveness == "session")
    try:
        yield store.engine
    finally:
        store.engine.stop(drain_s)
        store.leave()
        store.close()


def _sweep_until(stopping: threading.Event, store: Any) -> None:
    """Queue again the runs with work that are missing in the queue, about every second."""
    from ferrule.runs.store.postgres.tickets import sweep

    # Random, so that workers do not sweep in step.
    while not stopping.wait(_SWEEP_INTERVAL_S * random.uniform(0.75, 1.25)):  # noqa: S311
        try:
            count = sweep(store)
        except StoreError as error:  # Postgres cannot be reached; the next sweep tries again
            _log.warning("The sweep failed: %s", error)
        else:
            if count:
                _log.info("%d runs were missing in the queue, and are queued again", count)
