"""`python -m killing.workers`: kill workers on Postgres at random moments, and look whether every
run is done and no effect was made twice.

`--kills N`: three workers and a stream of runs, until N workers were killed. `--rounds N`: N times
200 runs with an approval and two workers, of which one is killed every two seconds and replaced,
while people use every command and the page.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from postgres_server import PostgresServer
from worker_yard import Yard

from killing.people import FIRST, People

TOOL_S = 0.02
AT_ONCE = 40
PEOPLE_EVERY = 5
"""In every so many rounds there are people: they cost as much as the workers."""
PAUSE_S = 4.0
"""Between two kills at most.

The work of a dead worker is taken five seconds after its last heartbeat.
"""


def main() -> int:
    """Print a line for each part; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="killing.workers", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--runs", type=int, default=200, help="runs of a round")
    parser.add_argument("--seed", type=int, default=4)
    told = parser.parse_args()
    random.seed(told.seed)
    server, faults = PostgresServer(), 0
    try:
        if told.kills:
            faults += stream(server, told.kills)
        for number in range(told.rounds):
            faults += round_of(server, number, told.runs, has_people=number % PEOPLE_EVERY == 0)
    finally:
        server.close()
    return min(faults, 1)


def stream(server: PostgresServer, kills: int) -> int:
    """Three workers, runs as long as there are kills to make."""
    yard = new_yard(
        server,
        "stream",
        max_recoveries=kills,
    )  # of a thousand kills, six may hit one run
    began, submitted, killed = time.monotonic(), 0, 0
    for _ in range(3):
        yard.worker("--poll-s", "0.05", tool_s=TOOL_S)
    while killed < kills:
        open_ = decide(yard)
        if open_ < AT_ONCE:
            yard.submit(*[f"pays {n}" for n in range(submitted, submitted + 10)])
            submitted += 10
        time.sleep(random.uniform(0.2, PAUSE_S))
        ready = [k for k in range(3) if _is_ready(yard, k)]
        if not ready:
            continue
        which = random.choice(ready)
        yard.workers[which].kill()
        yard.workers[which].wait()
        killed += 1
        yard.start(which, "--poll-s", "0.05", tool_s=TOOL_S)
        if killed % 50 == 0:
            sys.stdout.write(
                f"{killed} kills, {submitted} runs, {time.monotonic() - began:.0f} s\n",
            )
            sys.stdout.flush()
    return judge(yard, submitted, f"{killed} kills", began)


def round_of(server: PostgresServer, number: int, runs: int, *, has_people: bool) -> int:
    """Two workers; one is killed every two seconds and replaced.

    People look and decide meanwhile.
    """
    yard = new_yard(server, f"round{number}")
    began, killed = time.monotonic(), 0
    for _ in range(2):
        yard.worker(tool_s=TOOL_S)
    yard.submit(*[f"pays {n}" for n in range(runs)])
    people = People(yard) if has_people else None
    if people is not None:
        people.start()
    next_kill = time.monotonic() + 2
    while decide(yard, FIRST) or (people is not None and people.is_alive()):
        time.sleep(0.1)
        which = killed % 2
        if time.monotonic() > next_kill and _is_ready(
            yard,
            1 - which,
        ):  # else, on a busy machine, none would ever get to work
            yard.workers[which].kill()
            yard.workers[which].wait()
            yard.start(which, tool_s=TOOL_S)
            killed += 1
            next_kill = time.monotonic() + 2
    return judge(yard, runs, f"round {number}: {killed} kills", began, people)


def new_yard(server: PostgresServer, name: str, **options: Any) -> Yard:
    """A store in a schema of its own, and a folder for what its workers do; `judge` removes it."""
    return Yard(server, name, Path(tempfile.mkdtemp(prefix="ferrule-workers-")), **options)


def _is_ready(yard: Yard, worker: int) -> bool:
    return "Ready" in (yard.folder / f"worker{worker}.log").read_text()


def decide(yard: Yard, below: int = sys.maxsize) -> int:
    """Answer questions of runs below a number: what was cut off is reported as done, as its effect
    is at most once.

    Returns how many runs are not done.
    """
    lines = yard.store.list(limit=None)
    for line in lines:
        is_ours = int(line.id.removeprefix("pays-")) < below
        for asked in line.questions:
            if asked.id not in line.decided and (is_ours or asked.kind == "unknown"):
                yard.store.decide(
                    line.id,
                    asked.reply("charged") if asked.kind == "unknown" else asked.approve(),
                )
    return sum(line.status != "done" for line in lines)


def judge(
    yard: Yard,
    runs: int,
    what: str,
    began: float,
    people: People | None = None,
    *,
    is_exact: bool = False,
) -> int:
    """Wait until all is done, and count what is wrong.

    With `is_exact`, an effect that was cut off before it happened is wrong too.
    """
    runs += len(people.runs) if people is not None else 0
    ends = time.monotonic() + 180
    while decide(yard, sys.maxsize if people is None else FIRST) and time.monotonic() < ends:
        time.sleep(0.2)
    while set(yard.tickets()) - {"SUCCESS", "CANCELLED", "ERROR"} and time.monotonic() < ends:
        time.sleep(0.2)
    lines: list[Any] = yard.store.list(limit=None)
    wrong = [f"{line.id} is {line.status}: {line.error}" for line in lines if line.status != "done"]
    wrong += [
        f"{effect} happened {count} times" for effect, count in yard.did().items() if count > 1
    ]
    wrong += [f"{runs} runs were submitted, {len(lines)} are there"] if len(lines) != runs else []
    tickets = yard.tickets()
    wrong += (
        [f"tickets: {dict(tickets)}"] if set(tickets) - {"SUCCESS", "CANCELLED", "ERROR"} else []
    )
    wrong += [f"stuck: {line}" for line in yard.command("runs", "--stuck").splitlines()]
    wrong += people.judge() if people is not None else []
    never = 2 * runs - len(yard.did()) - (len(people.refused) if people is not None else 0)
    wrong += [f"{never} effects did not happen"] if is_exact and never else []
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{what}, {runs} runs, {seconds:.0f} s: {len(wrong)} wrong; {never} effects were cut off before they happened; {dict(tickets)}"
        f"{f'; people used {people.did} commands and pages' if people is not None else ''}\n",
    )
    sys.stdout.write("".join(f"  {each}\n" for each in wrong[:20]))
    sys.stdout.flush()
    yard.close()
    shutil.rmtree(yard.folder, ignore_errors=True)
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
