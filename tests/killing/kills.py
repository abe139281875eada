"""Kills: each process of a run is struck at its points and its system calls; fresh processes carry
the run to its end.
"""

from __future__ import annotations

import random
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from killing import stores, system_calls
from killing.judging import Expected, Fault, faults, forgotten, read
from killing.processes import DONE, WAITS, Ended, run_role
from killing.world import Target, World

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from killing.agents import Scenario

_MOST_PROCESSES = 24
_AGAIN_EVERY = 3
"""Every so many runs are struck two times more, while they recover."""


@dataclass
class Result:
    """What one disturbed run came to."""

    about: str
    kills: int = 0
    interrupts: int = 0
    races: int = 0
    faults: list[Fault] = field(default_factory=list[Fault])


@dataclass(frozen=True)
class Case:
    """A scenario, and where its processes are struck, one after another."""

    scenario: Scenario
    targets: tuple[Target | None, ...]

    def __str__(self) -> str:
        struck = (
            f"process {k} {each.how} at {each.at}"
            for k, each in enumerate(self.targets)
            if each is not None
        )
        return f"{self.scenario.name}: {', '.join(struck)}"


def carry_on(
    world: World,
    scenario: Scenario,
    server: str,
    targets: tuple[Target | None, ...] = (),
) -> tuple[int, list[Ended], Fault | None]:
    """Processes one after another, until the run is done: how many were killed, how each ended, and
    whether they got stuck.
    """
    kills, ends, roles, next_role = 0, list[Ended](), list(scenario.roles), "worker"
    for k in range(_MOST_PROCESSES):
        role = roles.pop(0) if roles else next_role
        ended = run_role(world, scenario, role, server, targets[k] if k < len(targets) else None)
        ends.append(ended)
        if ended.is_late:
            return kills, ends, Fault("stuck", f"the {role} {k} did not come to an end")
        if ended.code is None:
            kills += 1
            stores.wait_until_free(world)
        elif ended.code == DONE and (world.place / "answer").exists() and role == "worker":
            return kills, ends, None
        elif ended.code not in {DONE, WAITS}:
            return kills, ends, Fault("stuck", f"the {role} {k} failed: {tail(world)}")
        next_role = "person" if ended.code == WAITS else "worker"
    return (
        kills,
        ends,
        Fault("stuck", f"{_MOST_PROCESSES} processes were not enough: {tail(world)}"),
    )


def tail(world: World) -> str:
    """The last line that a process of this run wrote to its standard error."""
    file = world.place / "stderr"
    return (file.read_text().strip().splitlines() or [""])[-1][:300] if file.exists() else ""


def undisturbed(
    root: Path,
    scenario: Scenario,
    server: str,
) -> tuple[Expected, list[Ended], Result]:
    """The run that nothing disturbs, which must be faultless: what it leaves behind, and its
    processes.
    """
    with world_in(root, scenario) as world:
        _, ends, stuck = carry_on(world, scenario, server)
        expected = read(world) if not stuck else Expected("", ())
        found = [stuck, *forgotten(world)] if stuck else list(faults(world, scenario, expected, 0))
        return expected, ends, Result(f"{scenario.name}, undisturbed", faults=found)


@contextmanager
def world_in(root: Path, scenario: Scenario, slow_s: float = 0.0) -> Generator[World]:
    """The world of a scenario, in a folder of its own, until the block ends."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        (Path(folder) / "scenario").write_text(scenario.name)
        world = World(Path(folder), slow_s=slow_s, must_sync=scenario.full_sync)
        with stores.kept(world):
            yield world


def plan(
    scenario: Scenario,
    ends: list[Ended],
    count: int,
    chance: random.Random,
) -> Iterator[Case]:
    """So many kills, about, spread over all points and system calls of all processes."""
    count = -(-count * 3 // 4)
    points: list[tuple[Target | None, ...]] = []
    calls: list[tuple[Target | None, ...]] = []
    for k, ended in enumerate(ends):
        points += [(*[None] * k, Target(at)) for at in range(ended.points)]
        calls += [
            (*[None] * k, Target(at, how))
            for at in range(ended.calls)
            for how in system_calls.MODES[:3]
        ]
    halves = (points, calls) if calls else (points,)
    for n in range(count):
        among = halves[n % len(halves)]
        at = int((n + chance.random()) * len(among) / count) % len(among)
        targets = among[at]
        if n % _AGAIN_EVERY == 0:
            targets = (*targets, Target(chance.randrange(40)), Target(chance.randrange(20)))
        yield Case(scenario, targets)


def kill(root: Path, case: Case, expected: Expected, server: str) -> Result:
    """One run, struck as told."""
    with world_in(root, case.scenario) as world:
        kills, _, stuck = carry_on(world, case.scenario, server, case.targets)
        found = (
            [stuck, *forgotten(world)]
            if stuck
            else list(faults(world, case.scenario, expected, kills))
        )
        return Result(str(case), kills, faults=found)
