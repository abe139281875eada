"""The processes of one run: workers that carry it on, persons who decide, cancellers.

Each is a fork, or an interpreter of its own.

The parent of the forks starts no thread, and imports what they import, so that it is done once.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrule import Run, RunError
from ferrule.errors import StoreError
from killing import system_calls
from killing.agents import SCENARIOS, Scenario, agent_in, decide
from killing.tracing import trace_into
from killing.world import ABOUT, ORIGINAL, RUN, Points, Target, World

if TYPE_CHECKING:
    from collections.abc import Callable

DONE, WAITS, REFUSED, FAILED = 0, 3, 4, 5
PATIENCE_S = 60.0
"""How long a process may take before the run counts as stuck: far longer than it needs."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: its code (None: struck by SIGKILL), and the points and system calls that
    it passed.
    """

    code: int | None
    points: int = 0
    calls: int = 0
    is_late: bool = False


# -- what they do
# ------------------------------------------------------------------------------------------------


def work(
    world: World,
    scenario: Scenario,
    server: str = "",
    *,
    store: Any = None,
    **options: Any,
) -> int:
    """Begin the run or go on with it, until it is done or waits."""
    if store is None:
        with closing(world.store(full_sync=scenario.full_sync, **options)) as opened:
            return work(world, scenario, server, store=opened)
    agent, tools = agent_in(world, scenario, server)
    if scenario.is_fork and not _has(store, RUN):
        run = fork(world, scenario, store, agent)
    elif _has(store, RUN):
        run = Run.load(store, RUN, agent, tools=tools)
        if scenario.is_read:
            read(world, run)
        if run.status == "done":
            pass
        elif scenario.is_async:
            asyncio.run(run.aresume())
        else:
            run.resume()
    elif scenario.is_async:
        run = asyncio.run(agent.astart(store=store, run_id=RUN, task=world.place.name, **ABOUT))
    else:
        run = agent.start(store=store, run_id=RUN, task=world.place.name, **ABOUT)
    return settle(world, run)


def fork(world: World, scenario: Scenario, store: Any, agent: Any) -> Run:
    """Begin the run as a fork: of a run that waits for its first question, or that a kill cut off."""
    task = world.place.name
    if _has(store, ORIGINAL):
        original = Run.load(store, ORIGINAL, agent)
    elif scenario.is_async:
        original = asyncio.run(agent.astart(store=store, run_id=ORIGINAL, task=task, **ABOUT))
    else:
        original = agent.start(store=store, run_id=ORIGINAL, task=task, **ABOUT)
    if original.status == "waiting":  # nobody decides on it
        original.cancel()
    run = original.fork(run_id=RUN)
    if scenario.is_async:
        return asyncio.run(run.aresume())
    return run.resume()


def _has(store: Any, run_id: str) -> bool:
    return any(each.id == run_id for each in store.list())


def read(world: World, run: Run) -> None:
    """Read a loaded run as a service would: it has a step for each answer of its model, but for the
    last ones.

    A `StepFinished` is not recorded: a step is over when the model was asked again.
    """
    answers = sum(each.kind == "model" and "/" not in each.slot for each in run.journal.entries)
    steps = run.trajectory.steps
    if not 0 <= answers - len(steps) <= 1 or (answers and not run.messages):
        world.note("misread")
        raise RunError(f"{len(steps)} steps, {len(run.messages)} messages, {answers} answers")


def work_when_free(scenario: Scenario, world: World, **options: Any) -> int:
    """Work on the run as soon as no other process does."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            code = work(world, scenario, **options)
        except RunError:
            time.sleep(0.01)
        else:
            return code
    return REFUSED


def settle(world: World, run: Run) -> int:
    """What a run that came to rest means for its process; of one that is done, the answer is
    written down.
    """
    if run.status == "waiting":
        return WAITS
    if run.status != "done":
        sys.stderr.write(f"{run!r}: {run.error!r}\n")
        return REFUSED if isinstance(run.error, StoreError) else FAILED
    (world.place / "answer").write_text(run.prediction.answer)
    return DONE


def judge_questions(world: World, scenario: Scenario, _server: str = "", **options: Any) -> int:
    """Decide on what waits, in a process that has no program; what was accepted is noted."""
    with closing(world.store(full_sync=scenario.full_sync, **options)) as store:
        return _judge(world, scenario, store)


def _judge(world: World, scenario: Scenario, store: Any) -> int:
    for line in store.list(status="waiting"):
        for question in reversed(line.questions):
            if question.id not in line.decided:
                if world.has(f"decided {question.id}"):
                    world.note(f"forgotten {question.id}")
                if question.call.name == "build":
                    tell(store, line.id, f"build {question.call.args['n']}")
                if question.kind == "result":
                    deliver(store, line.id, question.key)
                    world.note(f"decided {question.id}")
                    continue
                store.decide(line.id, decide(world, scenario, question).signed("ann", "kill-test"))
                world.note(f"decided {question.id}")
                if scenario.decides_singly:
                    break
    return DONE


def tell(store: Any, run_id: str, what: str) -> None:
    """Say that something has ended: twice, as a webhook may."""
    for _ in range(2):
        store.say(run_id, f"{what} ends", key=what)


def deliver(store: Any, run_id: str, key: str) -> None:
    """Deliver a result: twice, as a webhook may."""
    for _ in range(2):
        store.deliver(run_id, key, f"{key} done")


def cancel(world: World, scenario: Scenario, _server: str = "", **options: Any) -> int:
    """Cancel the run, if there is one that can be."""
    store = world.store(full_sync=scenario.full_sync, **options)
    with suppress(StoreError):
        store.cancel(RUN)
        world.note("cancelled")
    return DONE


ROLES: dict[str, Callable[..., int]] = {
    "worker": work,
    "person": judge_questions,
    "canceller": cancel,
}


# -- forks
# -------------------------------------------------------------------------------------------------------


class Child:
    """A fork that does one thing. Ask `ended()`, once."""

    def __init__(
        self,
        world: World,
        does: Callable[[World], int],
        target: Target | None = None,
    ) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            _live(world, does, target, write)
        os.close(write)

    def signal(self, which: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, which)

    def stopped(self) -> bool:
        """Wait until the process stops (true) or ends (false)."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self._status = status
        return False

    _status: int | None = None

    def ended(self) -> Ended:
        """Wait for the end. A process that is late is killed."""
        is_late = not select.select([self._read], [], [], PATIENCE_S)[0]
        if is_late:
            self.signal(signal.SIGKILL)
        with os.fdopen(self._read) as pipe:
            points, calls, modules = json.loads(pipe.read() or "[0, 0, []]")
        for name in modules:  # here once, so that not every child has to
            if name not in sys.modules:
                with suppress(ImportError):
                    import_module(name)
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
        return Ended(
            None if os.WIFSIGNALED(self._status) else os.WEXITSTATUS(self._status),
            points,
            calls,
            is_late,
        )


def _live(world: World, does: Callable[[World], int], target: Target | None, write: int) -> None:
    code = FAILED
    os.dup2(os.open(world.place / "stderr", os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
    try:
        points = Points(target)
        is_call = target is not None and target.how in system_calls.MODES
        trace_into(world)
        system_calls.arm(
            target.at if target and is_call else -1,
            target.how if target and is_call else "before",
        )
        code = does(World(world.place, points, world.slow_s, world.must_sync))
        os.write(write, json.dumps([points.passed, system_calls.passed(), [*sys.modules]]).encode())
    except RunError:  # of which `StoreError` and `DecisionError` are kinds
        traceback.print_exc()
        code = REFUSED
    except BaseException:  # a child of a fork must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def run_role(
    world: World,
    scenario: Scenario,
    role: str,
    server: str,
    target: Target | None = None,
) -> Ended:
    """One process in a role, until it ends."""
    if scenario.is_spawned:
        return _spawn(world, scenario, role, target)
    return Child(world, lambda inner: ROLES[role](inner, scenario, server), target).ended()


# -- interpreters of their own
# -----------------------------------------------------------------------------------


def _spawn(world: World, scenario: Scenario, role: str, target: Target | None) -> Ended:
    told = json.dumps([str(world.place), scenario.name, role, asdict(target) if target else None])
    with (world.place / "stderr").open("a") as errors:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "killing.processes", told],
                stdout=subprocess.PIPE,
                stderr=errors,
                check=False,
                timeout=PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            return Ended(None, is_late=True)
    points, calls = json.loads(done.stdout or "[0, 0]")
    return Ended(None if done.returncode < 0 else done.returncode, points, calls)


def _main(told: str) -> int:
    place, name, role, aim = json.loads(told)
    target = Target(**aim) if aim else None
    points = Points(target)
    is_call = target is not None and target.how in system_calls.MODES
    trace_into(World(Path(place)))
    system_calls.arm(
        target.at if target and is_call else -1,
        target.how if target and is_call else "before",
    )
    code = ROLES[role](
        World(Path(place), points),
        next(each for each in SCENARIOS if each.name == name),
    )
    sys.stdout.write(json.dumps([points.passed, system_calls.passed()]))
    return code


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
