"""`Module`: the base class of all programs, and every way to call one.

A program is written as `def flow(self, **inputs)`, a generator of acts (`acts.py`), or as `def
forward(self, ...)` (and `async def aforward`) in plain Python that calls other programs. A run does
not change the instance. The code that runs programs is imported when one is called, so that
importing a program stays cheap.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self, cast

from ferrule.errors import ConfigurationError, refuse_async
from ferrule.programs import calling
from ferrule.programs.calling import Bound, ProgramName, take_deps, typed_call
from ferrule.programs.lifecycle.batching import Batches
from ferrule.values.tracebacks import callers_frames, trim
from ferrule.values.typed import D, P, S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ferrule.acts import Flow
    from ferrule.programs.lifecycle.saving import Predictor
    from ferrule.runs.protocols import Store
    from ferrule.runs.run import Run
    from ferrule.runs.stream import EventStream
    from ferrule.tools.tool import Tool
    from ferrule.values.outcome import Prediction


class Module(Batches[S, D, P]):
    """Base class of programs. Subclass it, make the programs you need in `__init__`, and write `forward` (or `flow`)."""

    is_flow: bool = False
    is_async: bool = False
    is_only_async: bool = False
    is_predictor: bool = False
    """Whether this program itself has demos, a model and a saved state, as `Predict` and its subclasses do."""
    name: str = cast("str", ProgramName())
    """The program's name in events and stored runs: the option `name` of `Predict` and `ReAct`, or the name of the class."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        refuse_async(vars(cls).get("forward"), f"`{cls.__name__}.forward`", "name it `aforward`")
        # The nearest definition counts: a subclass of ReAct with a `forward` of its own is a plain
        # program.
        written = [
            name
            for each in cls.__mro__
            if each is not Module
            for name in ("aforward", "forward", "flow")
            if name in vars(each)
        ]
        cls.is_flow = bool(written) and written[0] == "flow"
        cls.is_async = not cls.is_flow and "aforward" in written
        cls.is_only_async = cls.is_async and not {"forward", "flow"} & set(written)

    @property
    def fingerprint(self) -> str:
        """A digest (16 characters) of what a stored run checks of its program: class, signatures, tools. Computed at each access."""
        from ferrule.runs.store.fingerprint import program_digest

        return program_digest(self)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={each!r}' for name, each in self.named_predictors())})"

    # -- for subclasses to write
    # ------------------------------------------------------------------------------

    def flow(self, /, *args: Any, **inputs: Any) -> Flow:
        """The program as a generator of acts."""
        del args, inputs
        raise NotImplementedError(f"`{self.name}` has no `flow`; it is written as `forward`.")

    def forward(self, /, *args: Any, **inputs: Any) -> Any:
        """The program in plain Python. If it is written as a `flow`, this runs the flow; `resume_state=` resumes it."""
        from ferrule.programs.lifecycle.resume import resume_program

        if self.is_only_async:
            return self(*args, **inputs)
        if (state := inputs.pop("resume_state", None)) is not None:
            return resume_program(self, state, inputs, None)
        return calling.run_program(self._as_flow(), args, inputs)

    async def aforward(self, /, *args: Any, **inputs: Any) -> Any:
        """`forward` on an event loop."""
        from ferrule.programs.lifecycle.resume import aresume_program

        if (state := inputs.pop("resume_state", None)) is not None:
            return await aresume_program(self, state, inputs, None)
        return await calling.arun_program(self._as_flow(), args, inputs)

    def _as_flow(self) -> Any:
        if type(self).flow is Module.flow:
            raise NotImplementedError(
                f"`{self.name}` has neither `forward` nor `flow`: write one of them.",
            )
        return _FlowOnly(self)

    # -- calling
    # ---------------------------------------------------------------------------------------------

    @typed_call
    def __call__(self, /, *args: Any, **inputs: Any) -> Prediction[S]:
        """Run to the end and return the prediction. Raises `ConfirmationRequired`, which carries the run, if a person must decide.

        `resume_state=` resumes that run (also in `stream`): pass a `ResumeState`, or the exception
        itself for "yes"; None starts a new run. Tools find `deps=` in their `Context`; it is never
        stored. If the program has an input called `deps`, the keyword is that input, and
        `program.bind(deps=1)(deps=...)` passes both. Raises `ConfigurationError` if a tool declares
        `Context[X]` and gets no `deps`.
        """
        deps = take_deps(self, inputs) if "deps" in inputs else None
        try:  # `callers_frames`, at no cost
            if "resume_state" in inputs and (state := inputs.pop("resume_state")) is not None:
                from ferrule.programs.lifecycle.resume import resume_program

                return resume_program(self, state, inputs, deps)
            return calling.run_program(self, args, inputs, deps)
        except BaseException as error:
            trim(error)
            raise

    @typed_call
    async def acall(self, /, *args: Any, **inputs: Any) -> Prediction[S]:
        """`__call__` on an event loop."""
        deps = take_deps(self, inputs) if "deps" in inputs else None
        with callers_frames:
            if "resume_state" in inputs and (state := inputs.pop("resume_state")) is not None:
                from ferrule.programs.lifecycle.resume import aresume_program

                return await aresume_program(self, state, inputs, deps)
            return await calling.arun_program(self, args, inputs, deps)

    def resume(self, response: Any, state: Any, *, deps: D | None = None) -> Prediction[S]:
        """Resume a waiting run. `response` is "yes", "no", a JSON object of changed arguments, or text for the model.

        `state` is the `ConfirmationRequired` that was raised. Returns the prediction; raises the
        next `ConfirmationRequired`.
        """
        from ferrule.programs.lifecycle.resume import ResumeState, resume_program

        with callers_frames:
            return resume_program(self, ResumeState(state, response), {}, deps)

    async def aresume(self, response: Any, state: Any, *, deps: D | None = None) -> Prediction[S]:
        """`resume` on an event loop."""
        from ferrule.programs.lifecycle.resume import ResumeState, aresume_program

        with callers_frames:
            return await aresume_program(self, ResumeState(state, response), {}, deps)

    def bind(self, /, *args: P.args, **inputs: P.kwargs) -> Bound[S, D]:
        """The program with its inputs. Needed for inputs named like a keyword of `start`: `program.bind(run_id=7).start()`."""
        return Bound(self, args, inputs)

    def start(
        self,
        /,
        *,
        store: Store | None = None,
        run_id: str | None = None,
        deps: D | None = None,
        **inputs: Any,
    ) -> Run[S]:
        """Run until the program ends, asks a person or fails, and return the `Run`.

        With a `store` every answer is stored before the program sees it, so that any process can
        resume the run: `Run.load(store, id, program)`. For `deps`, see `__call__`. Raises
        `StoreError` if the run cannot be stored.
        """
        deps = take_deps(self, inputs, deps)
        with callers_frames:
            return Bound[S, D](self, (), inputs).start(store=store, run_id=run_id, deps=deps)

    async def astart(
        self,
        /,
        *,
        store: Store | None = None,
        run_id: str | None = None,
        deps: D | None = None,
        **inputs: Any,
    ) -> Run[S]:
        """`start` on an event loop."""
        deps = take_deps(self, inputs, deps)
        with callers_frames:
            return await Bound[S, D](self, (), inputs).astart(store=store, run_id=run_id, deps=deps)

    def submit(
        self, /, *, store: Store, run_id: str | None = None, priority: int | None = None, delay_s: float | None = None,
        queue_key: str | None = None, **inputs: Any,
    ) -> str:  # fmt: skip
        """Store a run with these inputs as `queued` and return its id. A worker starts it (docs/how-to/running/workers.md).

        Args:
            store: The store of the run.
            run_id: Its id; by default a new one.
            priority: Runs with smaller numbers begin first; None is 0.
            delay_s: Seconds before it may begin.
            queue_key: The owner of the run, such as a tenant, for the queue's limits per key.
            **inputs: The inputs of the program.

        Raises:
            StoreError: The id exists, or the store has no engine for `priority`, `delay_s` or
            `queue_key`. RunError: An input cannot be stored.

        """
        with callers_frames:
            return Bound[S, D](self, (), inputs).submit(
                store=store,
                run_id=run_id,
                priority=priority,
                delay_s=delay_s,
                queue_key=queue_key,
            )

    async def asubmit(
        self, /, *, store: Store, run_id: str | None = None, priority: int | None = None, delay_s: float | None = None,
        queue_key: str | None = None, **inputs: Any,
    ) -> str:  # fmt: skip
        """`submit` on an event loop."""
        bound = Bound[S, D](self, (), inputs)
        return await bound.asubmit(
            store=store,
            run_id=run_id,
            priority=priority,
            delay_s=delay_s,
            queue_key=queue_key,
        )

    def load_run(self, store: Store, run_id: str, *, deps: D | None = None) -> Run[S]:
        """A stored run of this program: `Run.load(store, run_id, program)`, with the types of its signature."""
        from ferrule.runs.run import Run

        return Run[S].load(store, run_id, self, deps=deps)

    def stream(
        self, /, *args: Any, store: Store | None = None, run_id: str | None = None, deps: D | None = None, **inputs: Any,
    ) -> EventStream[S]:  # fmt: skip
        """Stream the run's events with `for` (`astream`: `async for`); then read `.prediction`. Leaving the loop cancels the run."""
        deps = take_deps(self, inputs, deps)
        if "resume_state" in inputs and (state := inputs.pop("resume_state")) is not None:
            from ferrule.programs.lifecycle.resume import resume_stream

            return resume_stream(self, state, inputs, deps)
        return Bound[S, D](self, args, inputs).stream(store=store, run_id=run_id, deps=deps)

    astream = stream
    """The same stream, for `async for`."""

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        **keywords: Any,
    ) -> Tool:
        """The program as a tool: its arguments are the inputs of the signature, its result is the outputs.

        When an agent calls it, the program becomes part of that agent's run: it asks its questions
        there, and resumes where it stopped. The name defaults to that of the signature or class,
        the description to the instructions. `keywords` are those of `Tool`.
        """
        from ferrule.programs.lifecycle.as_tool import as_tool

        return as_tool(self, name, description, **keywords)

    # -- programs inside
    # ----------------------------------------------------------------------------------

    def named_sub_modules(self) -> Iterator[tuple[str, Module]]:
        """The program itself (`self`) and every program inside it, each once, depth first: `answer`, `agents[0].react`.

        Programs in attributes with a leading underscore come last.
        """
        return _walk(self)

    def named_predictors(self) -> list[tuple[str, Predictor]]:
        """Every `Predict` inside, with its path. Demos, models and saved state belong to these."""
        return [
            (name, cast("Predictor", each))
            for name, each in self.named_sub_modules()
            if each.is_predictor
        ]

    def predictors(self) -> list[Predictor]:
        """Every `Predict` inside."""
        return [predictor for _, predictor in self.named_predictors()]

    def tool_users(self) -> Sequence[Predictor]:
        """The predictors inside whose tools may be called in a run of this program."""
        return self.predictors()

    def set_lm(self, lm: Any) -> None:
        """Set the model of every predictor inside. It takes precedence over the one in the settings."""
        for predictor in self.predictors():
            predictor.lm = lm

    def get_lm(self) -> Any:
        """The model of all predictors inside; raises `ConfigurationError` if they differ."""
        found = {id(predictor.lm): predictor.lm for predictor in self.predictors()}
        if len(found) != 1:
            raise ConfigurationError(
                f"`{self.name}` has {len(found)} different models: read the `lm` of each of its predictors.",
            )
        return next(iter(found.values()))

    def deepcopy(self) -> Self:
        """A deep copy that shares models, tools, and attributes that cannot be copied, such as a lock."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        from ferrule.programs.lifecycle.copying import copied

        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        for _, predictor in self.named_predictors():
            memo[id(predictor.lm)] = predictor.lm
            memo.update((id(tool), tool) for tool in predictor.tools.values())
        vars(made).update({key: copied(value, memo) for key, value in vars(self).items()})
        return made

    # -- state
    # -----------------------------------------------------------------------------------------------

    def dump_state(self) -> dict[str, Any]:
        """Signatures, demos, settings and tool definitions of all predictors, as JSON data without functions, models and keys."""
        from ferrule.programs.lifecycle.saving import dump_state

        return dump_state(self)

    def load_state(self, state: Mapping[str, Any], *, tools: Iterable[Any] = ()) -> None:
        """Load a dumped state. `tools` are bound by name. A missing tool raises `ToolDefinitionError`; a changed one causes a warning."""
        from ferrule.programs.lifecycle.saving import load_state

        load_state(self, state, tools=tools)

    def save(self, path: str | Path) -> None:
        """Write the state to a JSON file."""
        from ferrule.programs.lifecycle.saving import write_program

        write_program(self, path)

    def load(self, path: str | Path, *, tools: Iterable[Any] = ()) -> None:
        """Load the state from a JSON file; see `load_state`."""
        from ferrule.programs.lifecycle.saving import read_program

        read_program(self, path, tools=tools)


class _FlowOnly:
    """A program's flow as a program: `super().forward(...)` runs it in a subclass that has its own `forward`."""

    is_flow = True
    is_async = False
    is_only_async = False

    def __init__(self, module: Module) -> None:
        self.name = f"{module.name}.flow"
        self.tool_users = module.tool_users
        self.flow = module.flow
        self.forward = module.forward
        self.aforward = module.aforward


def _walk(root: Module) -> Iterator[tuple[str, Module]]:
    # Saved states use these paths: a program with a public path must get that path, even if private
    # attributes hold it, too.
    seen: set[int] = set()
    later: list[tuple[str, Any]] = [("self", root)]
    while later:
        stack, later = later[::-1], []
        while stack:
            name, found = stack.pop()
            if id(found) in seen:
                continue
            seen.add(id(found))  # containers, too: a cache may contain itself
            if not isinstance(found, Module):
                stack += [
                    (f"{name}[{key!r}]", value)
                    for key, value in _elements(found)[::-1]
                    if isinstance(value, _HOLDERS)
                ]
                continue
            yield name, found
            prefix = "" if found is root else f"{name}."
            attributes = [
                each for each in tuple(vars(found).items())[::-1] if isinstance(each[1], _HOLDERS)
            ]
            stack += [
                (f"{prefix}{key}", value) for key, value in attributes if not key.startswith("_")
            ]
            later += [
                (f"{prefix}{key}", value) for key, value in attributes[::-1] if key.startswith("_")
            ]


_HOLDERS = (Module, list, tuple, dict)
"""Types of values that are programs or may contain some."""


def _elements(found: Any) -> Sequence[tuple[Any, Any]]:
    # Copies: another thread may be filling a cache.
    if isinstance(found, dict):
        return tuple(cast("dict[Any, Any]", found).items())
    return tuple(enumerate(cast("list[Any]", found))) if isinstance(found, (list, tuple)) else ()
