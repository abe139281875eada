"""How a program is called: its `deps`, and `Bound`, a program with the inputs of one run.

The code that runs programs is imported when one is called, so that naming a program stays cheap.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.runs.protocols import Program, Store
    from ferrule.runs.run import Run
    from ferrule.runs.stream import EventStream


class Bound:
    """A program and the inputs of one run. It is called and started as the program is, and every keyword is the call's own."""

    def __init__(self, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> None:
        self.program = program
        self.args = args
        self.inputs = dict(inputs)

    def __call__(self, *, deps: Any = None) -> Any:
        """Run to the end and return the prediction. See `Module.__call__`."""
        return call(self.program, self.args, self.inputs, deps)

    async def acall(self, *, deps: Any = None) -> Any:
        """`__call__` on an event loop."""
        return await acall(self.program, self.args, self.inputs, deps)

    def start(self, /, *, store: Store | None = None, run_id: str | None = None, deps: Any = None) -> Run:
        """See `Module.start`."""
        from ferrule.runs.driver.execution import execute

        run = self._run(store, run_id, deps)
        execute(run)
        return run

    async def astart(self, /, *, store: Store | None = None, run_id: str | None = None, deps: Any = None) -> Run:
        """See `Module.astart`."""
        from ferrule.runs.driver.execution import aexecute

        run = self._run(store, run_id, deps)
        await aexecute(run)
        return run

    def stream(self, /, *, store: Store | None = None, run_id: str | None = None, deps: Any = None) -> EventStream:
        """See `Module.stream`."""
        from ferrule.runs.stream import EventStream

        return EventStream(self._run(store, run_id, deps))

    def _run(self, store: Store | None, run_id: str | None, deps: Any) -> Run:
        from ferrule.runs.run import Run

        run = Run(self.program, self.args, self.inputs, run_id=run_id, deps=deps)
        if store is not None:
            run.keep(store)
        return run


def take_deps(program: Any, inputs: dict[str, Any], deps: Any = None) -> Any:
    """Take the run's `deps` from the keywords of a call. They stay among the inputs if the program has an input of that name."""
    if deps is not None:
        inputs["deps"] = deps
    return None if "deps" not in inputs or _has_input(program, "deps") else inputs.pop("deps")


def _has_input(program: Any, name: str) -> bool:
    fields = getattr(getattr(program, "signature", None), "input_fields", ())
    written = program.flow if program.is_flow else program.aforward if program.is_only_async else program.forward
    return name in fields or name in inspect.signature(written).parameters


def call(program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any], deps: Any = None) -> Any:
    """Execute a program and return its result."""
    from ferrule.runs.run import call_program

    return call_program(program, args, inputs, deps)


async def acall(program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any], deps: Any = None) -> Any:
    """`call` on an event loop."""
    from ferrule.runs.run import acall_program

    return await acall_program(program, args, inputs, deps)
