"""Ctrl-C at random times and at random system calls, again and again in one process, which lives
on.

After each one the store must be free for other processes, and the run must go on: here, or in
another process.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import time
from contextlib import suppress
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

from killing import stores, system_calls
from killing.agents import INTERRUPTED
from killing.judging import Expected, Fault, faults
from killing.kills import Result, carry_on, tail, undisturbed, world_in
from killing.processes import (
    DONE,
    PATIENCE_S,
    REFUSED,
    WAITS,
    Child,
    run_role,
    work,
    work_when_free,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from killing.agents import Scenario
    from killing.world import World

MOST_ROUNDS = 60
MOST_FAULTS = 10
"""After so many, a store that others find locked has cost enough time."""
GOES_ON, BY_ITSELF, INTERRUPT, WAIT, END, REFUSAL = b"g", b"s", b"i", b"w", b"d", b"r"
"""What it says: it works, and the parent sends the Ctrl-C; it works, and a system call does; then
how the work ended.
"""


def plan(
    root: Path,
    count: int,
    only: str,
    chance: random.Random,
    server: str,
) -> Iterator[Callable[[], Result]]:
    """Runs that are interrupted, until there were so many interrupts in all."""
    wanted = [each for each in INTERRUPTED if only in each.name]
    if not wanted or not count:
        return
    known: dict[str, tuple[Expected, float]] = {}
    results: list[Result] = []
    for scenario in cycle(wanted):
        if scenario.name not in known:
            began = time.monotonic()
            expected, _, first = undisturbed(root, scenario, server)
            known[scenario.name] = expected, time.monotonic() - began
            yield lambda first=first: first
        yield partial(
            _run,
            root,
            scenario,
            known[scenario.name],
            chance.randrange(1 << 30),
            server,
            results,
        )
        if (
            sum(each.interrupts for each in results) >= count
            or sum(len(each.faults) for each in results) >= MOST_FAULTS
        ):
            return


def _run(
    root: Path,
    scenario: Scenario,
    known: tuple[Expected, float],
    seed: int,
    server: str,
    results: list[Result],
) -> Result:
    """One process, interrupted again and again, and its run, carried to its end."""
    expected, span_s = known
    with world_in(root, scenario) as world:
        talk = _Talk(world, scenario, seed, server)
        results.append(result := talk.result)
        for _ in range(MOST_ROUNDS):
            if not talk.go_on(span_s):
                break
        talk.end()
        if not result.faults:
            kills, _, stuck = carry_on(talk.world, scenario, server)
            result.faults += (
                [stuck]
                if stuck
                else faults(talk.world, scenario, expected, result.interrupts + kills)
            )
        return result


class _Talk:
    """With the process that is interrupted: in each round it says how it is struck, then how it
    took it.
    """

    def __init__(self, world: World, scenario: Scenario, seed: int, server: str) -> None:
        self.world = world
        self.result = Result(f"{scenario.name}, seed {seed}")
        self._scenario = scenario
        self._server = server
        self._chance = random.Random(seed)
        self._says, say = os.pipe()
        told, self._tell = os.pipe()
        self._child = Child(world, partial(_live, scenario, seed, server, say, told))
        os.close(say)
        os.close(told)

    def go_on(self, span_s: float) -> bool:
        """One Ctrl-C and what follows; false if it was the last one."""
        word = self._hear()
        if word == GOES_ON:
            time.sleep(self._chance.random() * span_s / 4)
            self._child.signal(signal.SIGINT)
        if word in {GOES_ON, BY_ITSELF}:
            with suppress(BrokenPipeError):  # it died: the next word says so
                os.write(self._tell, b".")
            word = self._hear()
        if word == INTERRUPT:
            self.result.interrupts += 1
            self.world.note(
                "cancelled",
            )  # as Ctrl-C does: it discards decisions that were not used yet
            self.result.faults += _blocked(
                self.world,
                self._scenario,
                self._server,
                elsewhere=self._chance.random() < 0.2,
            )
        elif word == WAIT:
            run_role(self.world, self._scenario, "person", self._server)
        elif word != END:
            self.result.faults.append(
                Fault("stuck", f"the interrupted process could not go on: {tail(self.world)}"),
            )
        if self.result.faults or word == END or (self.world.place / "answer").exists():
            return False
        os.write(self._tell, b".")
        return True

    def _hear(self) -> bytes:
        return os.read(self._says, 1) if select.select([self._says], [], [], PATIENCE_S)[0] else b""

    def end(self) -> None:
        """End the process."""
        self._child.signal(signal.SIGKILL)
        self._child.ended()
        os.close(self._says)
        os.close(self._tell)


def _blocked(world: World, scenario: Scenario, server: str, *, elsewhere: bool) -> Iterator[Fault]:
    """What an interrupted process keeps others from doing, while it lives and rests."""
    if held := stores.is_held(world):
        yield Fault("stuck", f"an interrupted process keeps the store: {held}")
        return
    if elsewhere:
        ended = Child(world, partial(work_when_free, scenario, server=server)).ended()
        if ended.code not in {DONE, WAITS}:
            yield Fault("stuck", f"no other process could go on: {ended}, {tail(world)}")


# -- in the process that is interrupted
# --------------------------------------------------------------------------


def _live(scenario: Scenario, seed: int, server: str, say: int, told: int, world: World) -> int:
    """Work on the run until it is done.

    One Ctrl-C comes in each round, from the parent or at a system call.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chance = random.Random(seed)
    store = stores.plain(world, full_sync=scenario.full_sync)
    while True:
        by_itself, code = system_calls.is_loaded() and chance.random() < 0.4, -1
        try:
            if by_itself:
                system_calls.arm(chance.randrange(60), "interrupt")
            os.write(say, BY_ITSELF if by_itself else GOES_ON)
            code = work(world, scenario, server, store=store)
            _heard(told)
        except KeyboardInterrupt:
            _heard(told)
        except asyncio.CancelledError as error:
            if not _is_before_the_first_line(error):
                raise
            _heard(told)
        os.write(say, {DONE: END, WAITS: WAIT, REFUSED: REFUSAL}.get(code, INTERRUPT))
        if code == DONE:
            return DONE
        _heard(told)


def _is_before_the_first_line(error: asyncio.CancelledError) -> bool:
    """Whether a task was cancelled before it began.

    So ends a Ctrl-C just after `asyncio.Runner.run` of Python 3.11 took the signal over.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_lineno == trace.tb_frame.f_code.co_firstlineno


def _heard(told: int) -> None:
    """Wait for the parent's next word. A signal that comes before it lands in here."""
    while True:
        try:
            system_calls.arm(-1, "before")
            select.select([told], [], [])
            for _ in range(
                100,
            ):  # a signal that came together with the word lands here, before the word is read
                pass
            break
        except KeyboardInterrupt:
            continue
    os.read(told, 1)
