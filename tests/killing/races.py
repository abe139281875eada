"""Races: two live processes want one run, one is slow, or stopped for longer than its lease, two
persons decide, one cancels.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from ferrule import RunError
from ferrule.errors import DecisionError
from killing import stores
from killing.agents import Scenario, decide
from killing.judging import Expected, Fault, faults
from killing.kills import Result, carry_on, tail, undisturbed, world_in
from killing.processes import (
    DONE,
    PATIENCE_S,
    REFUSED,
    WAITS,
    Child,
    cancel,
    judge_questions,
    run_role,
    work,
    work_when_free,
)
from killing.world import RUN, Target, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TURNS = ("look 0", "refund 1", "pay 2", "fetch 3", "order 4", "pay 5", "look 6", "pay 7")
CONTESTED = Scenario("contested", TURNS)
DENIED = Scenario("contested, denied", TURNS, {"refund 1": "deny"})
AWAITED = Scenario(
    "contested, async",
    ("look 0", "refund 1", "pay_later 2", "fetch_later 3", "order 4", "pay_later 5"),
    is_async=True,
)
SHORT_LEASE_S = 0.3
SLOW_S = 0.02
_EARLY_WORDS, _LATE_WORDS = 12, 3
"""One that comes after an answer makes the model answer again, which counts as a strike."""


def plan(
    root: Path,
    count: int,
    only: str,
    chance: random.Random,
) -> Iterator[Callable[[], Result]]:
    """So many races, of every kind in turn."""
    wanted = [(name, race) for name, race in RACES.items() if only in name]
    if not wanted or not count:
        return
    expected: dict[str, Expected] = {}
    for scenario in (CONTESTED, DENIED, AWAITED):
        expected[scenario.name], _, first = undisturbed(root, scenario, "")
        yield lambda first=first: first
    kinds = cycle(
        (name, race, scenario) for name, race in wanted for scenario in (CONTESTED, AWAITED)
    )
    for name, race, scenario in islice(kinds, count):
        yield partial(_run, root, (name, race), scenario, expected, chance.random())


def _run(
    root: Path,
    named: tuple[str, Any],
    scenario: Scenario,
    expected: dict[str, Expected],
    moment: float,
) -> Result:
    """One race, then whatever processes the run needs to its end."""
    name, race = named
    with world_in(root, scenario, SLOW_S) as world:
        result = Result(f"{name}, {scenario.name}, at {moment:.3f}", races=1)
        scenario, strikes = race(world, scenario, moment, result)
        kills, _, stuck = carry_on(world, replace(scenario, roles=()), "")
        result.faults += (
            [stuck] if stuck else faults(world, scenario, expected[scenario.name], strikes + kills)
        )
        return result


# -- the races: each says what scenario it came to, and how many strikes there were
# ------------------------------


def heirs(world: World, scenario: Scenario, _moment: float, result: Result) -> tuple[Scenario, int]:
    """Three processes resume a run at once: one does, and is not disturbed."""
    _until_decided(world, scenario)
    ends = [each.ended() for each in [Child(world, partial(_work, scenario)) for _ in range(3)]]
    if DONE not in {each.code for each in ends}:
        result.faults.append(
            Fault("wrong", f"of three processes none could finish the run: {tail(world)}"),
        )
    return scenario, 0


def slow_owner(
    world: World,
    scenario: Scenario,
    moment: float,
    _result: Result,
) -> tuple[Scenario, int]:
    """A process takes long over an effect; another one wants its run meanwhile, and does not get
    it.

    If it did, it would find a call that began and did not end. It may repeat one that is
    idempotent, and a person who sees that nothing has happened yet approves any other: then it
    happens twice.
    """
    _until_decided(world, scenario)
    slow = [
        what
        for what, kind in scenario.calls.items()
        if kind in {"once", "idempotent"} and what not in scenario.questions
    ]
    what, is_after = slow[int(moment * len(slow))], int(moment * 1000) % 3 == 0
    second = Child(world, partial(_take_anyway, scenario, what))
    first = Child(
        world,
        lambda inner: work(_Slow(inner.place, inner.point, over=what, is_after=is_after), scenario),
    )
    first.ended()
    second.ended()
    return scenario, 0


def patient_heir(
    world: World,
    scenario: Scenario,
    moment: float,
    result: Result,
) -> tuple[Scenario, int]:
    """A process is killed while another one waits for its run, which it then carries on."""
    second = Child(world, partial(work_when_free, scenario))
    first = Child(world, partial(work_when_free, scenario), Target(int(moment * 60)))
    ends = [first.ended(), second.ended()]
    if ends[1].code not in {WAITS, DONE}:
        result.faults.append(Fault("stuck", f"the heir ended with {ends[1]}: {tail(world)}"))
    result.kills = int(ends[0].code is None)
    if result.kills:  # perhaps after the heir came to rest
        stores.wait_until_free(world)
    return scenario, result.kills


def stopped(
    world: World,
    scenario: Scenario,
    moment: float,
    result: Result,
) -> tuple[Scenario, int]:
    """A process stops for longer than its lease; another takes the run; the first one wakes, and
    may not write.
    """
    label = "act model" if moment < 0.3 else "aappend" if scenario.is_async else "append"
    target = Target(int(moment * 10), "stop", label)
    if int(moment * 1000) % 2:
        _until_decided(world, scenario)
    first = Child(world, partial(_work, scenario, lease_s=SHORT_LEASE_S), target)
    if not first.stopped():
        first.ended()  # the run ended or waits before that point
        return scenario, 0
    second = Child(world, partial(_take_over, scenario))
    taken = second.ended() if int(moment * 100) % 2 else None
    if taken is None:  # the first one wakes while the second is at work
        _until(world, f"taken by {second.pid}")
    first.signal(signal.SIGCONT)
    ends = [first.ended(), taken or second.ended()]
    if ends[0].code != REFUSED:
        result.faults.append(
            Fault("wrong", f"a process that had lost its lease went on: {ends[0]}"),
        )
    if ends[1].code not in {WAITS, DONE}:
        result.faults.append(
            Fault(
                "stuck",
                f"the run of a stopped process was not taken over: {ends[1]}, {tail(world)}",
            ),
        )
    return scenario, 1


def persons(
    world: World,
    scenario: Scenario,
    moment: float,
    result: Result,
) -> tuple[Scenario, int]:
    """Two persons decide differently at once: one is heard, the other one is told."""
    if scenario is not CONTESTED:
        return patient_heir(world, scenario, moment, result)
    run_role(world, scenario, "worker", "")
    both = [Child(world, partial(_contend, each)) for each in (CONTESTED, DENIED)]
    codes = [each.ended().code for each in both]
    if sorted(codes, key=str) != [DONE, REFUSED]:
        result.faults.append(Fault("wrong", f"two persons decided, and ended with {codes}"))
    return (CONTESTED if codes[0] == DONE else DENIED), 0


def canceller(
    world: World,
    scenario: Scenario,
    moment: float,
    result: Result,
) -> tuple[Scenario, int]:
    """A run is cancelled by another process while it works; it ends its call, and goes on when it
    is resumed.
    """
    _until_decided(world, scenario)
    worker = Child(world, partial(_work, scenario))
    time.sleep(moment * len(scenario.turns) * SLOW_S)
    other = Child(world, lambda inner: cancel(inner, scenario))
    codes = [worker.ended().code, other.ended().code]
    if None in codes or codes[1] != DONE:
        result.faults.append(
            Fault("stuck", f"worker and canceller ended with {codes}: {tail(world)}"),
        )
    return scenario, 0


def speaker(
    world: World,
    scenario: Scenario,
    moment: float,
    result: Result,
) -> tuple[Scenario, int]:
    """A process says things to a run while another one works on it, and is killed; also while the
    run ends.
    """
    _until_decided(world, scenario)
    target = None
    if int(moment * 1000) % 2:
        target = Target(int(moment * 80))
    worker = Child(world, partial(_work_and_linger, scenario), target)
    other = Child(world, partial(_speak, random.Random(moment)))
    ends = [worker.ended(), other.ended()]
    if ends[1].code != DONE:
        result.faults.append(Fault("stuck", f"the speaker ended with {ends[1]}: {tail(world)}"))
    result.kills = int(ends[0].code is None)
    if result.kills:
        stores.wait_until_free(world)
    return scenario, result.kills + _EARLY_WORDS + _LATE_WORDS


RACES = {
    "heirs": heirs, "slow owner": slow_owner, "patient heir": patient_heir, "stopped": stopped, "persons": persons, "canceller": canceller, "speaker": speaker,
}  # fmt: skip


# -- what their processes do
# -------------------------------------------------------------------------------------


def _until_decided(world: World, scenario: Scenario) -> None:
    """The run waits, and a person has decided: whoever resumes it now works to its end."""
    run_role(world, scenario, "worker", "")
    run_role(world, scenario, "person", "")


def _work(scenario: Scenario, world: World, **options: Any) -> int:
    return work(world, scenario, **options)


@dataclass(frozen=True)
class _Slow(World):
    """A world in which one effect lasts until another process has tried to take the run."""

    over: str = ""
    is_after: bool = False
    """Whether it takes long after the effect, not before."""

    def act(self, what: str, key: str = "") -> str:
        if what != self.over or self.has("tried"):
            return super().act(what, key)
        done = super().act(what, key) if self.is_after else ""
        self.note(f"slow over {what}")
        _until(self, "tried")
        return done or super().act(what, key)


def _take_anyway(scenario: Scenario, what: str, world: World) -> int:
    """Take the run while its owner is slow; a person decides on what it asks."""
    _until(world, f"slow over {what}")
    try:
        while (code := work(world, scenario)) == WAITS:
            judge_questions(world, scenario)
    except RunError:
        code = REFUSED
    world.note("tried")
    return code


def _take_over(scenario: Scenario, world: World) -> int:
    return work_when_free(
        scenario,
        _Telling(world.place, world.point, world.slow_s),
        lease_s=SHORT_LEASE_S,
    )


class _Telling(World):
    """A world that notes when its process begins to work on the run."""

    def act(self, what: str, key: str = "") -> str:
        if not self.has(f"taken by {os.getpid()}"):
            self.note(f"taken by {os.getpid()}")
        return super().act(what, key)


def _work_and_linger(scenario: Scenario, world: World) -> int:
    """Work on the run, and linger before each write that ends it, for another process to speak."""

    def point(label: str) -> None:
        if label == "release":
            words = _count(world, "word ")
            world.note("ends")
            end = time.monotonic() + 10 * SLOW_S
            while _count(world, "word ") == words and time.monotonic() < end:
                time.sleep(0.002)
        world.point(label)

    return work(replace(world, point=point), scenario)  # type: ignore[arg-type]


def _speak(chance: random.Random, world: World) -> int:
    """Say one thing after another: some at any time, some while the run ends."""
    store = world.store()
    for number in range(_EARLY_WORDS + _LATE_WORDS):
        if number < _EARLY_WORDS:
            time.sleep(chance.random() * SLOW_S)
        else:
            _until_counted(world, "ends", number - _EARLY_WORDS + 1)
        try:
            store.say(RUN, f"word {number}")
        except DecisionError:  # the run is done
            break
        world.note(f"word {number}")
    return DONE


def _count(world: World, start: str) -> int:
    return sum(what.startswith(start) for what, _ in world.noted())


def _until_counted(world: World, what: str, count: int) -> None:
    end = time.monotonic() + 1.0  # not longer: the worker may have been killed
    while _count(world, what) < count and time.monotonic() < end:
        time.sleep(0.002)


def _until(world: World, what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not world.has(what) and time.monotonic() < end:
        time.sleep(0.005)


def _contend(scenario: Scenario, world: World) -> int:
    """See the question; when both have seen it, decide."""
    store = world.store()
    [line] = store.list(status="waiting")
    decision = decide(world, scenario, line.questions[0])
    world.note(f"ready {scenario.name}")
    _until(world, f"ready {(DENIED if scenario is CONTESTED else CONTESTED).name}")
    store.decide(RUN, decision.signed(scenario.name, "kill-test"))
    return DONE
