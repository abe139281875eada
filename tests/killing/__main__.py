"""`python -m killing`: disturb runs as told, and count what is wrong with them."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from killing import interrupts, kills, races, system_calls
from killing.agents import SCENARIOS, served
from killing.judging import CLASSES
from killing.stores import DSN
from killing.tracing import FLAG

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from killing.kills import Result
PROGRESS_S = 10


def main() -> int:
    """Disturb runs; print the faults and one line of figures. Returns whether there was a fault."""
    parser = argparse.ArgumentParser(prog="killing", description=__doc__)
    parser.add_argument("--kills", type=int, default=800, help="how many kills to aim at")
    parser.add_argument("--races", type=int, default=60, help="how many races of two processes")
    parser.add_argument("--interrupts", type=int, default=500, help="how many Ctrl-C")
    parser.add_argument(
        "--only",
        default="",
        help="only scenarios and races whose name contains this",
    )
    parser.add_argument("--seed", type=int, default=4, help="where chance begins")
    parser.add_argument(
        "--workers",
        type=int,
        default=0,
        help="processes that do it; 2, or 8 where they mostly wait for leases to end",
    )
    parser.add_argument(
        "--until",
        choices=CLASSES,
        default="",
        help="stop at the first fault of this class",
    )
    parser.add_argument(
        "--otel",
        action="store_true",
        help="with OpenTelemetry's SDK on in every process, and the traces judged too",
    )
    parser.add_argument(
        "--postgres",
        action="store_true",
        help="keep the runs in a Postgres of this system, which it starts",
    )
    parser.add_argument(
        "--share",
        type=int,
        help=argparse.SUPPRESS,
    )  # set for a worker: which part is its own
    told = parser.parse_args()
    told.workers = told.workers or (8 if told.postgres else 2)
    return lead(told) if told.share is None else follow(told)


def lead(told: argparse.Namespace) -> int:
    """Start the workers, and add up what they print."""
    began = time.monotonic()
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder, _server(told.postgres) as dsn:
        preload, reason = system_calls.build(Path(folder))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            **preload,
            **({FLAG: "1"} if told.otel else {}),
            **dsn,
        }
        command = [sys.executable, "-m", "killing", *sys.argv[1:], "--share"]
        # In sessions of their own, so that their children end with them; in this folder they leave
        # nothing.
        workers = [
            subprocess.Popen(
                [*command, str(k)],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
            for k in range(told.workers)
        ]
        try:
            sums, found = _collect(workers, told)
        finally:
            for worker in workers:
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)
        codes = [worker.wait() for worker in workers]
    if reason is not None:
        sys.stdout.write(f"skipped: strikes at system calls, because {reason}\n")
    figures = ", ".join(f"{name}: {found[name]}" for name in CLASSES)
    sys.stdout.write(
        f"kills: {sums['kills']}, Ctrl-C: {sums['interrupts']}, races: {sums['races']}, {figures} ({time.monotonic() - began:.0f} s)\n",
    )
    return 1 if found or any(codes) else 0


@contextmanager
def _server(is_wanted: bool) -> Generator[dict[str, str]]:
    """The Postgres, until the block ends: what tells the workers of it."""
    if not is_wanted:
        yield {}
        return
    from postgres_server import PostgresServer

    server = PostgresServer()
    try:
        yield {DSN: server.dsn}
    finally:
        server.close()


def _collect(
    workers: list[subprocess.Popen[str]],
    told: argparse.Namespace,
) -> tuple[Counter[str], Counter[str]]:
    """What the workers did, in sum, and how many faults of each class there were."""
    sums, found, last = Counter[str](), Counter[str](), time.monotonic()
    for line in _lines(workers):
        result = json.loads(line)
        sums += Counter({name: result[name] for name in ("kills", "interrupts", "races")})
        for fault in result["faults"]:
            found[fault["kind"]] += 1
            sys.stdout.write(f"{fault['kind']}: {fault['text']} ({result['about']})\n")
        if time.monotonic() - last > PROGRESS_S:
            last = time.monotonic()
            sys.stderr.write(
                f"  {sums['kills']} kills, {sums['interrupts']} Ctrl-C, {sums['races']} races\n",
            )
        if found[told.until]:
            break
    return sums, found


def _lines(workers: list[subprocess.Popen[str]]) -> Iterator[str]:
    """The lines of all workers, as they come."""
    lines: SimpleQueue[str | None] = SimpleQueue()

    def read(worker: subprocess.Popen[str]) -> None:
        for line in worker.stdout or ():
            lines.put(line)
        worker.wait()
        lines.put(None)

    for worker in workers:
        threading.Thread(target=read, args=(worker,), daemon=True).start()
    for _ in workers:
        yield from iter(lines.get, None)


def follow(told: argparse.Namespace) -> int:
    """A worker: do one share of everything, a line of JSON for each disturbed run."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, served(Path(folder)) as server:
        system_calls.check(Path(folder))
        for work in _own(told, Path(folder), server):
            sys.stdout.write(json.dumps(asdict(work())) + "\n")
            sys.stdout.flush()
    return 0


def _own(told: argparse.Namespace, root: Path, server: str) -> Iterator[Callable[[], Result]]:
    """The share of one worker."""
    chance = random.Random(f"{told.seed} {told.share}")
    wanted = [each for each in SCENARIOS if told.only in each.name]
    for scenario in wanted[told.share :: told.workers] if told.kills else ():
        expected, ends, first = kills.undisturbed(root, scenario, server)
        yield lambda first=first: first
        if first.faults:
            continue
        count = -(-told.kills // len(wanted))
        for case in kills.plan(
            scenario,
            ends,
            -(-count // 4) if scenario.is_spawned else count,
            chance,
        ):
            yield lambda case=case, expected=expected: kills.kill(root, case, expected, server)
    yield from islice(
        races.plan(root, told.races, told.only, chance),
        told.share,
        None,
        told.workers,
    )
    interrupted = -(-told.interrupts // told.workers)
    yield from interrupts.plan(root, interrupted, told.only, chance, server)


if __name__ == "__main__":
    sys.exit(main())
