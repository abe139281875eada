"""`Module`: the base class of all programs, and every way to call one.

A program is written as `def flow(self, **inputs)`, a generator of acts (`acts.py`), or as `def
forward(self, ...)` (and `async def aforward`) in plain Python that calls other programs. A run does
not change the instance. The code that runs programs is imported when one is called, so that
importing a program stays cheap.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from ferrule.concurrency.offload import run_or_cancel
from ferrule.errors import ConfigurationError, refuse_async
from ferrule.models.model import as_model
from ferrule.programs.calling import (
    Bound,
    ProgramName,
    take_about,
    take_deps,
    take_named,
    take_state,
    typed_call,
    typed_start,
)
from ferrule.programs.lifecycle.batching import Batches
from ferrule.programs.lifecycle.resume import (
    ResumeState,
    aresume_program,
    resume_program,
    resume_stream,
)
from ferrule.runs.about import about, refuse_about
from ferrule.runs.run import Run, acall_program, call_program
from ferrule.runs.store.fingerprint import program_digest
from ferrule.settings import overriding_lm, with_settings_of_call
from ferrule.values.tracebacks import callers_frames
from ferrule.values.typed import D, P, S

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ferrule.acts import Flow
    from ferrule.programs.lifecycle.saving import Predictor
    from ferrule.runs.protocols import Store
    from ferrule.runs.stream import EventStream
    from ferrule.tools.tool import Tool
    from ferrule.values.outcome import Prediction


class Module(Batches[S, D, P]):
    """Base class of programs.

    Subclass it, make the programs you need in `__init__`, and write `forward` (or `flow`).
    """

    is_flow: bool = False
    """Whether the program is written as a generator of acts."""
    is_async: bool = False
    """Whether the program has an `aforward`."""
    is_only_async: bool = False
    """Whether the program has an `aforward` and no `forward`."""
    is_predictor: bool = False
    """Whether this program itself has demos, a model and a saved state, as `Predict` has."""
    name: str = cast("str", ProgramName())
    """The program's name in events and stored runs.

    It is the option `name` of `Predict` and `ReAct`, or the name of the class.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        refuse_async(vars(cls).get("forward"), f"`{cls.__name__}.forward`", "name it `aforward`")
        # The nearest definition counts: a subclass of ReAct with a `forward` of its own is a plain
        # program.
        written: list[str] = []
        for owner in cls.__mro__:
            if owner is not Module:
                names = vars(owner).keys()
                written += [name for name in ("aforward", "forward", "flow") if name in names]
        cls.is_flow = written[:1] == ["flow"]
        cls.is_async = not cls.is_flow and "aforward" in written
        cls.is_only_async = cls.is_async and not {"forward", "flow"} & set(written)

    @property
    def takes_messages(self) -> bool:
        """Whether a run of the program takes messages (`Run.say`): a loop in it reads them.

        A program whose `flow` yields `Listen`, or whose `forward` makes the agents that it calls,
        sets it to True.
        """
        return any(
            program.takes_messages for _, program in self.named_sub_modules() if program is not self
        )

    @property
    def why_not_batched(self) -> str:
        """Why a provider's batch API cannot take the program's requests; empty if it can.

        A batch answers after hours. So it takes programs that ask once, and then only for repairs.
        """
        return (
            "its code may make several requests, one after another, and a batch takes hours for "
            "each. It takes `Predict` and `ChainOfThought` without tools."
        )

    @property
    def fingerprint(self) -> str:
        """A digest (16 characters) of what a stored run checks of its program.

        That is the class, the signatures and the tools. It is computed at each access.
        """
        return program_digest(self)

    def __repr__(self) -> str:
        predictors = [f"{name}={predictor!r}" for name, predictor in self.named_predictors()]
        return f"{self.name}({', '.join(predictors)})"

    # -- for subclasses to write

    def flow(self, /, *args: Any, **inputs: Any) -> Flow:
        """The program as a generator of acts."""
        del args, inputs
        raise NotImplementedError(f"`{self.name}` has no `flow`; it is written as `forward`.")

    def forward(self, /, *args: Any, **inputs: Any) -> Any:
        """The program in plain Python.

        If it is written as a `flow`, this runs the flow; `resume_state=` resumes it.
        """
        if self.is_only_async:
            return self(*args, **inputs)
        state = take_state(self, inputs)
        if state is not None:
            return resume_program(self, state, inputs, None)
        return call_program(self._as_flow(), args, inputs)

    @with_settings_of_call
    async def aforward(self, /, *args: Any, **inputs: Any) -> Any:
        """`forward` on an event loop."""
        state = take_state(self, inputs)
        if state is not None:
            return await aresume_program(self, state, inputs, None)
        return await acall_program(self._as_flow(), args, inputs)

    def _as_flow(self) -> Any:
        if type(self).flow is Module.flow:
            raise NotImplementedError(
                f"`{self.name}` has neither `forward` nor `flow`: write one of them."
            )
        return _FlowOnly(self)

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Raise `InputError` for inputs with which a run could not begin.

        By default, they are only known when the program runs.
        """

    # -- calling

    @typed_call
    def __call__(self, /, *args: Any, **inputs: Any) -> Prediction[S]:
        """Run to the end and return the prediction.

        Raises `ConfirmationRequired`, which carries the run, if a person must decide.
        `resume_state=` resumes that run (also in `stream`): pass a `ResumeState`, or the exception
        itself for "yes"; None starts a new run. It also takes a `LimitReachedError`, with larger
        `limits=`. If the program has an input called `resume_state`, the keyword is that input, and
        `resume` and `Run.resume` resume a run. Tools find `deps=` in their `Context`; it is never
        stored. If the program has an input called `deps`, the keyword is that input, and
        `program.bind(deps=1)(deps=...)` passes both. Raises `ConfigurationError` if a tool declares
        `Context[X]` and gets no `deps`.

        `metadata=` and `title=` say who and what the run is for (docs/how-to/running/metadata.md);
        no model sees them. If the program has an input of that name, they are `run_metadata=` and
        `run_title=`.
        """
        deps = take_deps(self, inputs)
        options = take_about(self, inputs)
        state = take_state(self, inputs)
        with callers_frames:
            if state is None:
                return call_program(self, args, inputs, deps, about(**options))
            refuse_about(options)
            return resume_program(self, state, inputs, deps)

    @typed_call
    @with_settings_of_call
    async def acall(self, /, *args: Any, **inputs: Any) -> Prediction[S]:
        """`__call__` on an event loop."""
        deps = take_deps(self, inputs)
        options = take_about(self, inputs)
        state = take_state(self, inputs)
        with callers_frames:
            if state is None:
                return await acall_program(self, args, inputs, deps, about(**options))
            refuse_about(options)
            return await aresume_program(self, state, inputs, deps)

    def resume(self, response: Any, state: Any, *, deps: D | None = None) -> Prediction[S]:
        """Resume a waiting run.

        `response` is "yes", "no", a JSON object of changed arguments, or text for the model.
        `state` is the `ConfirmationRequired` that was raised. Returns the prediction; raises the
        next `ConfirmationRequired`.
        """
        with callers_frames:
            return resume_program(self, ResumeState(state, response), {}, deps)

    @with_settings_of_call
    async def aresume(self, response: Any, state: Any, *, deps: D | None = None) -> Prediction[S]:
        """`resume` on an event loop."""
        with callers_frames:
            return await aresume_program(self, ResumeState(state, response), {}, deps)

    def bind(self, /, *args: P.args, **inputs: P.kwargs) -> Bound[S, D]:
        """The program with its inputs.

        Needed for inputs named like a keyword of `start`: `program.bind(run_id=7).start()`.
        """
        return Bound(self, args, inputs)

    @typed_start
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
        resume the run: `Run.load(store, id, program)`. For `deps`, `metadata` and `title`, see
        `__call__`. Raises `StoreError` if the run cannot be stored.
        """
        store = take_named(self, inputs, "store", store)
        run_id = take_named(self, inputs, "run_id", run_id)
        deps = take_deps(self, inputs, deps)
        options = take_about(self, inputs)
        with callers_frames:
            bound = Bound[S, D](self, (), inputs)
            return bound.start(store=store, run_id=run_id, deps=deps, **options)

    @typed_start
    @with_settings_of_call
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
        store = take_named(self, inputs, "store", store)
        run_id = take_named(self, inputs, "run_id", run_id)
        deps = take_deps(self, inputs, deps)
        options = take_about(self, inputs)
        with callers_frames:
            bound = Bound[S, D](self, (), inputs)
            return await bound.astart(store=store, run_id=run_id, deps=deps, **options)

    def submit(
        self,
        /,
        *,
        store: Store,
        run_id: str | None = None,
        priority: int | None = None,
        delay_s: float | None = None,
        queue_key: str | None = None,
        **inputs: Any,
    ) -> str:
        """Store a run with these inputs as `queued` and return its id.

        A worker starts it (docs/how-to/running/workers.md).

        Args:
            store: The store of the run.
            run_id: Its id; by default a new one.
            priority: Runs with smaller numbers begin first; None is 0.
            delay_s: Seconds before it may begin.
            queue_key: The owner of the run, such as a tenant, for the queue's limits per key.
            **inputs: The inputs of the program.

        Raises:
            StoreError: The id exists, or the store has no engine for `priority`, `delay_s` or
                `queue_key`.
            RunError: An input cannot be stored.

        """
        options = take_about(self, inputs)
        with callers_frames:
            return Bound[S, D](self, (), inputs).submit(
                store=store,
                run_id=run_id,
                priority=priority,
                delay_s=delay_s,
                queue_key=queue_key,
                **options,
            )

    @with_settings_of_call
    async def asubmit(
        self,
        /,
        *,
        store: Store,
        run_id: str | None = None,
        priority: int | None = None,
        delay_s: float | None = None,
        queue_key: str | None = None,
        **inputs: Any,
    ) -> str:
        """`submit` on an event loop."""
        order: dict[str, Any] = {
            "priority": priority,
            "delay_s": delay_s,
            "queue_key": queue_key,
        }
        submit = partial(self.submit, store=store, run_id=run_id, **order, **inputs)
        return await run_or_cancel(submit)

    def load_run(self, store: Store, run_id: str, *, deps: D | None = None) -> Run[S]:
        """A stored run of this program: `Run.load(...)`, with the types of its signature."""
        return Run[S].load(store, run_id, self, deps=deps)

    @typed_start
    def stream(
        self,
        /,
        *args: Any,
        store: Store | None = None,
        run_id: str | None = None,
        deps: D | None = None,
        **inputs: Any,
    ) -> EventStream[S]:
        """Stream the run's events with `for` (`astream`: `async for`); then read `.prediction`.

        Leaving the loop cancels the run.
        """
        store = take_named(self, inputs, "store", store)
        run_id = take_named(self, inputs, "run_id", run_id)
        deps = take_deps(self, inputs, deps)
        options = take_about(self, inputs)
        state = take_state(self, inputs)
        if state is not None:
            refuse_about(options)
            return resume_stream(self, state, inputs, deps)
        bound = Bound[S, D](self, args, inputs)
        return bound.stream(store=store, run_id=run_id, deps=deps, **options)

    astream = stream
    """The same stream, for `async for`."""

    def as_tool(
        self, name: str | None = None, description: str | None = None, **keywords: Any
    ) -> Tool:
        """The program as a tool: its arguments are the inputs, its result is the outputs.

        When an agent calls it, the program becomes part of that agent's run: it asks its questions
        there, and resumes where it stopped. The name defaults to that of the signature or class,
        the description to the instructions. `keywords` are those of `Tool`.
        """
        from ferrule.programs.lifecycle.as_tool import as_tool

        return as_tool(self, name, description, **keywords)

    # -- programs inside

    def named_sub_modules(self) -> Iterator[tuple[str, Module]]:
        """The program itself (`self`) and every program inside it, each once, depth first.

        The names are paths, such as `answer` or `agents[0].react`. Programs in attributes with
        a leading underscore come last.
        """
        return _walk(self)

    def named_predictors(self) -> list[tuple[str, Predictor]]:
        """Every `Predict` inside, with its path. Demos, models and saved state belong to these."""
        return [
            (name, cast("Predictor", program))
            for name, program in self.named_sub_modules()
            if program.is_predictor
        ]

    def predictors(self) -> list[Predictor]:
        """Every `Predict` inside."""
        return [predictor for _, predictor in self.named_predictors()]

    def tool_users(self) -> Sequence[Predictor]:
        """The predictors inside whose tools may be called in a run of this program."""
        return self.predictors()

    def set_lm(self, lm: Any) -> None:
        """Set the model of every predictor inside.

        It takes precedence over the one in the settings.
        """
        for predictor in self.predictors():
            predictor.lm = lm

    @contextmanager
    def override(self, *, lm: Any) -> Generator[None]:
        """Replace every model in the runs of this program, for a `with` block.

        That is its own model, the `lm=` of a call, and the models of all programs that it calls,
        also those inside tools that are agents (`as_tool()`) and in the functions of tools. If a
        program inside has a block of its own, that one holds there. The block also applies to runs
        that are resumed in it. It does not reach threads of your own.

        Raises `ConfigurationError` for anything but a model.
        """
        with overriding_lm(self, as_model(lm)):
            yield

    def get_lm(self) -> Any:
        """The model of all predictors inside; raises `ConfigurationError` if they differ."""
        models = {id(predictor.lm): predictor.lm for predictor in self.predictors()}
        if len(models) != 1:
            raise ConfigurationError(
                f"`{self.name}` has {len(models)} different models: "
                "read the `lm` of each of its predictors."
            )
        return next(iter(models.values()))

    def deepcopy(self) -> Self:
        """A deep copy that shares models and tools.

        It also shares attributes that cannot be copied, such as a lock.
        """
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        for _, predictor in self.named_predictors():
            memo[id(predictor.lm)] = predictor.lm
            memo.update((id(tool), tool) for tool in predictor.tools.values())
        for key, value in vars(self).items():
            vars(copied)[key] = _deep_copy(value, memo)
        return copied

    # -- state

    def dump_state(self) -> dict[str, Any]:
        """Signatures, demos, settings and tool definitions of all predictors, as JSON data.

        The state has no functions, models and keys.
        """
        from ferrule.programs.lifecycle.saving import dump_state

        return dump_state(self)

    def load_state(self, state: Mapping[str, Any], *, tools: Iterable[Any] = ()) -> None:
        """Load a dumped state. `tools` are bound by name.

        A missing tool raises `ToolDefinitionError`; a changed one causes a warning.
        """
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


def _deep_copy(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy; or the value itself, if it holds something that cannot be copied.

    Locks, sockets and generators cannot be copied.
    """
    attempt = dict(memo)  # a separate memo: a copy that fails leaves unfinished objects there
    try:
        copied = copy.deepcopy(value, attempt)
    except TypeError as error:
        if "cannot pickle" not in str(error):
            raise
        return value
    # `copy` keeps the originals alive in a list under the memo's own id. That id is free once
    # `attempt` is gone, so the list must move to the id of `memo`.
    originals = attempt.pop(id(attempt), [])
    memo.update(attempt)
    cast("Any", memo).setdefault(id(memo), []).extend(originals)
    return copied


class _FlowOnly:
    """A program's flow as a program.

    `super().forward(...)` runs it in a subclass that has its own `forward`.
    """

    is_flow = True
    is_async = False
    is_only_async = False

    def __init__(self, module: Module) -> None:
        self.name = f"{module.name}.flow"
        self.tool_users = module.tool_users
        self.flow = module.flow
        self.forward = module.forward
        self.aforward = module.aforward


_HOLDERS = (Module, list, tuple, dict)
"""Types of values that are programs or may contain some."""


def _walk(root: Module) -> Iterator[tuple[str, Module]]:
    """The programs inside `root`, each with its path.

    Depth first, along public attributes, then those that only private attributes hold. Saved states
    use the paths: a program with a public path must get that path, even if private attributes hold
    it, too.
    """
    seen: set[int] = set()
    private: list[tuple[str, Any]] = [("self", root)]
    while private:
        # A stack: its last element is next, so that elements are pushed in reverse order.
        stack, private = private[::-1], []
        while stack:
            path, holder = stack.pop()
            identity = id(holder)
            if identity in seen or not isinstance(holder, _HOLDERS):
                continue
            seen.add(identity)  # containers, too: a cache may contain itself
            if isinstance(holder, Module):
                yield path, holder
                prefix = ""
                if holder is not root:
                    prefix = f"{path}."
                # A copy: another thread may be filling a cache.
                attributes = tuple(vars(holder).items())
                private += [(prefix + key, value) for key, value in attributes if key[:1] == "_"]
                inside = [(prefix + key, value) for key, value in attributes if key[:1] != "_"]
            elif isinstance(holder, dict):
                members = tuple(cast("dict[Any, Any]", holder).items())
                inside = [(f"{path}[{key!r}]", value) for key, value in members]
            else:
                items = enumerate(cast("Sequence[Any]", holder))
                inside = [(f"{path}[{index}]", value) for index, value in items]
            stack += inside[::-1]
