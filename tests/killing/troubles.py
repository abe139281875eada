"""`python -m killing.troubles`: what befalls a whole installation while two workers carry on 100
runs with an approval.

Postgres is away for 20 seconds; a proxy cuts every connection, again and again; everything goes
through PgBouncer; workers are upgraded. No worker is killed, so each effect happens exactly once,
and each run is done.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from cutting_proxy import CuttingProxy
from postgres_server import Pooler, PostgresServer, no_pooler_here
from worker_yard import TESTS

from killing.people import FIRST
from killing.workers import TOOL_S, decide, judge, new_yard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from worker_yard import Yard

RUNS = 100
OUTAGE_S = 20.0
CUTS = 10


def main() -> int:
    """Print a line for each; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="killing.troubles", description=__doc__)
    parser.add_argument("--only", default="", help="only those whose name contains this")
    parser.add_argument("--runs", type=int, default=RUNS)
    told = parser.parse_args()
    faults = 0
    for name, befalls in TROUBLES.items():
        if told.only in name:
            server = PostgresServer()
            try:
                faults += befalls(server, name, told.runs)
            finally:
                server.close()
    return min(faults, 1)


def _carried_on(
    yard: Yard,
    name: str,
    runs: int,
    steps: Iterable[Callable[[], object]],
    *,
    breaks: bool,
) -> int:
    """Submit runs, and let things happen while a half of them goes on: the first step after some
    effects, others a second apart.

    The other half waits for a person meanwhile. Tickets fail only if a connection `breaks`.
    """
    began = time.monotonic()
    try:
        yard.submit(
            *[f"pays {n}" for n in (*range(runs // 2), *range(FIRST, FIRST + runs - runs // 2))],
        )
        yard.until(lambda: decide(yard, FIRST) and len(yard.did()) >= runs // 5)
        for step in steps:
            step()
            for _ in range(5):
                decide(yard, FIRST)
                time.sleep(0.2)
        yard.until(lambda: not decide(yard))
    except BaseException:
        yard.close()
        raise
    failed = 0 if breaks else yard.tickets()["ERROR"]
    return judge(yard, runs, name, began, is_exact=True) + failed


def outage(server: PostgresServer, name: str, runs: int) -> int:
    """Postgres stops, and starts again after a while."""
    yard = new_yard(server, "outage")
    for _ in range(2):
        yard.worker(tool_s=TOOL_S)

    def away() -> None:
        server.stop("fast")
        time.sleep(OUTAGE_S)
        server.start()

    return _carried_on(yard, name, runs, [away], breaks=True)


def cuts(server: PostgresServer, name: str, runs: int) -> int:
    """All connections of the workers break, once a second."""
    yard, proxy = new_yard(server, "cuts"), CuttingProxy(server.port)
    for _ in range(2):
        yard.worker(tool_s=TOOL_S, dsn=server.dsn_at(proxy.port))
    try:
        return _carried_on(yard, name, runs, [proxy.cut] * CUTS, breaks=True)
    finally:
        proxy.close()


def pooled(server: PostgresServer, name: str, runs: int) -> int:
    """Workers, and whoever submits and decides, reach Postgres through a pooler that shares
    sessions.
    """
    if why := no_pooler_here():
        sys.stdout.write(f"skipped: {name}, because {why}\n")
        return 0
    pooler = Pooler(server, size=20)
    try:
        yard = new_yard(server, "pooled", pooler=pooler.dsn)
        for _ in range(2):
            yard.worker(tool_s=TOOL_S)
        return _carried_on(yard, name, runs, [], breaks=False)
    finally:
        pooler.close()


def upgrade(server: PostgresServer, name: str, runs: int) -> int:
    """Workers of a second version join; those of the first are told to end, one after another.

    Runs wait meanwhile.
    """
    yard = new_yard(server, "upgrade")
    newer = yard.folder / "newer.py"
    newer.write_text((TESTS / "worker_program.py").read_text().replace("soon, block]", "soon]"))
    older = [yard.worker(tool_s=TOOL_S) for _ in range(2)]

    def replace(which: int) -> None:
        yard.worker("--any-version", program=newer, tool_s=TOOL_S)
        older[which].send_signal(signal.SIGTERM)

    def ended() -> None:
        codes = [each.wait(120) for each in older]
        assert codes == [0, 0], codes

    return _carried_on(
        yard,
        name,
        runs,
        [partial(replace, 0), partial(replace, 1), ended],
        breaks=False,
    )


TROUBLES: dict[str, Callable[[PostgresServer, str, int], int]] = {
    "an outage of 20 s": outage, "cuts": cuts, "a pooler": pooled, "an upgrade": upgrade,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
