"""Calls of programs: their types, their `deps` and names, and `Bound`.

The code that runs programs is imported when one is called, so that importing a program stays cheap.
"""

# The overloads of `Call` differ in one required keyword, which pyright does not see.
# pyright: reportOverlappingOverload=false

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ferrule.concurrency.offload import run_or_cancel
from ferrule.errors import ConfigurationError, InputError, shown
from ferrule.runs.about import NOTHING, About, about
from ferrule.runs.driver.execution import aexecute, execute
from ferrule.runs.protocols import Order, check_store
from ferrule.runs.run import Run, acall_program, begun_here, call_program
from ferrule.runs.store.stored_run import submit_run
from ferrule.runs.stream import EventStream
from ferrule.settings import with_settings_of_call
from ferrule.tools.definition.deps import context_parameter
from ferrule.values.tracebacks import callers_frames
from ferrule.values.typed import D, P, S, Typed, plan_of


class ProgramTypes(Typed[S, D, P]):
    """The types of a program for type checkers: its signature, its `deps`, and its inputs."""


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol, TypeVar, overload

    from ferrule.runs.protocols import Program, Store
    from ferrule.values.outcome import Prediction

    R_co = TypeVar("R_co", covariant=True)
    R = TypeVar("R")

    # `object` in the overloads marks programs without a type of `deps`.
    class Call(Protocol[R_co, D, P]):  # pyright: ignore[reportInvalidTypeVarUse]
        """A call of a program, with the signature's inputs, which are type-checked, and options.

        Python's typing cannot add a keyword to a `ParamSpec`, so an option turns off the check of
        the inputs; `bind` keeps it.
        """

        @overload
        def __call__(self: Call[R_co, object, P], /, *args: P.args, **inputs: P.kwargs) -> R_co: ...
        @overload
        def __call__(self, /, *args: Any, deps: D, **inputs: Any) -> R_co: ...
        @overload
        def __call__(self: Call[R_co, object, P], /, *, lm: Any, **inputs: Any) -> R_co: ...
        @overload
        def __call__(
            self: Call[R_co, object, P], /, *, config: Mapping[str, Any], **inputs: Any
        ) -> R_co: ...
        @overload
        def __call__(self: Call[R_co, object, P], /, *, demos: Any, **inputs: Any) -> R_co: ...
        @overload
        def __call__(self: Call[R_co, object, P], /, *, max_turns: int, **inputs: Any) -> R_co: ...
        @overload
        def __call__(self: Call[R_co, object, P], /, *, max_iters: int, **inputs: Any) -> R_co: ...
        @overload
        def __call__(self: Call[R_co, object, P], /, *, limits: Any, **inputs: Any) -> R_co: ...
        @overload
        def __call__(self: Call[R_co, object, P], /, *, on_limit: str, **inputs: Any) -> R_co: ...
        @overload
        def __call__(
            self: Call[R_co, object, P], /, *, metadata: Mapping[str, Any], **inputs: Any
        ) -> R_co: ...
        @overload
        def __call__(self: Call[R_co, object, P], /, *, title: str, **inputs: Any) -> R_co: ...
        @overload
        def __call__(
            self: Call[R_co, object, P], /, *, resume_state: Any, **inputs: Any
        ) -> R_co: ...

    class Start(Protocol[R_co, D, P]):  # pyright: ignore[reportInvalidTypeVarUse]
        """`start`, `astart` and `stream`: without options, the inputs are type-checked."""

        @overload
        def __call__(
            self: Start[R_co, object, P], /, *args: P.args, **inputs: P.kwargs
        ) -> R_co: ...
        @overload
        def __call__(
            self,
            /,
            *args: Any,
            deps: D,
            store: Store | None = None,
            run_id: str | None = None,
            **inputs: Any,
        ) -> R_co: ...
        @overload
        def __call__(
            self: Start[R_co, object, P],
            /,
            *args: Any,
            store: Store | None,
            run_id: str | None = None,
            **inputs: Any,
        ) -> R_co: ...
        @overload
        def __call__(
            self: Start[R_co, object, P], /, *args: Any, run_id: str | None, **inputs: Any
        ) -> R_co: ...
        @overload
        def __call__(self: Start[R_co, object, P], /, *, lm: Any, **inputs: Any) -> R_co: ...
        @overload
        def __call__(
            self: Start[R_co, object, P], /, *, config: Mapping[str, Any], **inputs: Any
        ) -> R_co: ...
        @overload
        def __call__(self: Start[R_co, object, P], /, *, demos: Any, **inputs: Any) -> R_co: ...
        @overload
        def __call__(self: Start[R_co, object, P], /, *, max_turns: int, **inputs: Any) -> R_co: ...
        @overload
        def __call__(self: Start[R_co, object, P], /, *, max_iters: int, **inputs: Any) -> R_co: ...
        @overload
        def __call__(self: Start[R_co, object, P], /, *, limits: Any, **inputs: Any) -> R_co: ...
        @overload
        def __call__(self: Start[R_co, object, P], /, *, on_limit: str, **inputs: Any) -> R_co: ...
        @overload
        def __call__(
            self: Start[R_co, object, P], /, *, metadata: Mapping[str, Any], **inputs: Any
        ) -> R_co: ...
        @overload
        def __call__(self: Start[R_co, object, P], /, *, title: str, **inputs: Any) -> R_co: ...
        @overload
        def __call__(
            self: Start[R_co, object, P], /, *, resume_state: Any, **inputs: Any
        ) -> R_co: ...

    class typed_start(Typed[R]):  # noqa: N801  a decorator
        """A method of `Module` that type checkers see as a `Start`."""

        def __init__(self, method: Callable[..., R]) -> None: ...
        def __get__(
            self, program: ProgramTypes[Any, D, P], owner: Any = None
        ) -> Start[R, D, P]: ...

    class typed_call(Typed[R]):  # noqa: N801  a decorator
        """A method of `Module` that type checkers see as a `Call`."""

        def __init__(self, method: Callable[..., R]) -> None: ...
        def __get__(self, program: ProgramTypes[Any, D, P], owner: Any = None) -> Call[R, D, P]: ...
else:

    def typed_call(method: Any) -> Any:
        """Return the method unchanged: the types above are only for type checkers."""
        return method

    typed_start = typed_call


class Bound(Typed[S, D]):
    """A program and the inputs of one run.

    Call or start it like the program; here every keyword is an option, not an input.
    """

    def __init__(self, program: Program, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> None:
        self.program = program
        self.args = args
        self.inputs = dict(inputs)

    def __repr__(self) -> str:
        arguments = [repr(argument) for argument in self.args]
        arguments += [f"{name}={value!r}" for name, value in self.inputs.items()]
        return f"{self.program!r}.bind({', '.join(arguments)})"

    def __call__(
        self,
        *,
        deps: D | None = None,
        metadata: Mapping[str, Any] | None = None,
        title: str | None = None,
    ) -> Prediction[S]:
        """Run to the end and return the prediction. See `Module.__call__`."""
        with callers_frames:
            return call_program(self.program, self.args, self.inputs, deps, about(metadata, title))

    @with_settings_of_call
    async def acall(
        self,
        *,
        deps: D | None = None,
        metadata: Mapping[str, Any] | None = None,
        title: str | None = None,
    ) -> Prediction[S]:
        """`__call__` on an event loop."""
        with callers_frames:
            return await acall_program(
                self.program, self.args, self.inputs, deps, about(metadata, title)
            )

    def start(
        self,
        /,
        *,
        store: Store | None = None,
        run_id: str | None = None,
        deps: D | None = None,
        metadata: Mapping[str, Any] | None = None,
        title: str | None = None,
    ) -> Run[S]:
        """See `Module.start`."""
        with callers_frames:
            run = self._run(store, run_id, deps, about(metadata, title))
            execute(run)
        return run

    @with_settings_of_call
    async def astart(
        self,
        /,
        *,
        store: Store | None = None,
        run_id: str | None = None,
        deps: D | None = None,
        metadata: Mapping[str, Any] | None = None,
        title: str | None = None,
    ) -> Run[S]:
        """See `Module.astart`."""
        with callers_frames:
            run = self._run(store, run_id, deps, about(metadata, title))
            await aexecute(run)
        return run

    def submit(
        self,
        /,
        *,
        store: Store,
        run_id: str | None = None,
        priority: int | None = None,
        delay_s: float | None = None,
        queue_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        title: str | None = None,
    ) -> str:
        """See `Module.submit`."""
        with callers_frames:
            check_store(store)
            run = self._run(None, run_id, None, about(metadata, title))
            submit_run(run, store, Order(priority=priority, delay_s=delay_s, queue_key=queue_key))
        return run.id

    @with_settings_of_call
    async def asubmit(self, /, *, store: Store, **options: Any) -> str:
        """See `Module.submit`."""
        return await run_or_cancel(partial(self.submit, store=store, **options))

    def stream(
        self,
        /,
        *,
        store: Store | None = None,
        run_id: str | None = None,
        deps: D | None = None,
        metadata: Mapping[str, Any] | None = None,
        title: str | None = None,
    ) -> EventStream[S]:
        """See `Module.stream`."""
        return EventStream(self._run(store, run_id, deps, about(metadata, title)))

    def _run(self, store: Store | None, run_id: str | None, deps: Any, about: About) -> Run[S]:
        run: Run[S] = new_run(
            self.program, self.args, self.inputs, run_id=run_id, deps=deps, about=about
        )
        if store is not None:
            run.keep(store)
        return run


def new_run(
    program: Program,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
    *,
    run_id: str | None = None,
    deps: Any = None,
    about: About = NOTHING,
) -> Run[Any]:
    """A run that has not begun. Raises `InputError` for inputs with which it could not.

    Once it is stored, a run with wrong inputs would have taken its id, and failed.
    """
    run = begun_here(program, args, inputs, run_id=run_id, deps=deps, about=about)
    check_inputs = getattr(program, "check_inputs", None)
    if check_inputs is not None and program.is_flow:
        check_inputs(run.inputs)
    return run


def give_name(program: object, name: str | None) -> None:
    """Name a program, unless `name` is None.

    Raises `ConfigurationError` for anything but a word: slots in journals contain the name.
    """
    if name is None:
        return
    is_text = isinstance(cast("Any", name), str)  # users pass anything
    if not is_text or not name.replace("-", "_").isidentifier():
        raise ConfigurationError(
            f"The name of a program is a word of letters, digits, `_` and `-`; found {shown(name)}."
        )
    vars(program)["name"] = name


class ProgramName:
    """Descriptor of a program's name: the one that it got, otherwise that of its class.

    A subclass may have an attribute `name` instead.
    """

    def __get__(self, program: object | None, owner: type) -> str:
        if program is None:
            return owner.__name__
        return vars(program).get("name", owner.__name__)

    def __set__(self, program: object, name: str) -> None:
        give_name(program, name)


def take_deps(program: Any, inputs: dict[str, Any], deps: Any = None) -> Any:
    """Take the run's `deps` out of the keywords of a call.

    They stay there if the program has an input called `deps`.
    """
    if deps is not None:
        inputs["deps"] = deps
    if "deps" not in inputs or _has_input(program, "deps"):
        return None
    return inputs.pop("deps")


def take_state(program: Any, inputs: dict[str, Any]) -> Any:
    """Take the run to resume, `resume_state`, out of the keywords of a call.

    It stays there if the program has an input of that name. A parameter of `forward` that may be
    left out is the option itself: udspy's modules write `resume_state=None`.
    """
    if "resume_state" not in inputs:
        return None
    if _has_input(program, "resume_state") and not _names_option(program, "resume_state"):
        return None
    return inputs.pop("resume_state")


def _names_option(program: Any, name: str) -> bool:
    parameter = inspect.signature(_written(program)).parameters.get(name)
    return parameter is not None and parameter.default is None


def take_named(program: Any, inputs: dict[str, Any], name: str, value: Any) -> Any:
    """An option that `start` and `stream` name among their parameters.

    None, and the value is an input, if the program has an input of that name.
    """
    if value is None or not _has_input(program, name):
        return value
    inputs[name] = value
    return None


def take_about(program: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Take `metadata` and `title` of the run out of the keywords of a call.

    An input of the program with that name wins; then the options are `run_metadata` and
    `run_title`, which are always read. Returns the two options, for `Bound` and for `about`.

    Raises `InputError` for an option with both of its names.
    """
    return {name: _take_option(program, inputs, name) for name in ("metadata", "title")}


def _take_option(program: Any, inputs: dict[str, Any], name: str) -> Any:
    long_name = f"run_{name}"
    value = None
    if long_name in inputs and not _has_input(program, long_name):
        value = inputs.pop(long_name)
    if name not in inputs or _has_input(program, name) or _takes_any_input(program):
        return value
    if value is not None:
        raise InputError(f"`{name}` and `{long_name}` are the same option of a run: pass one.")
    return inputs.pop(name)


def _takes_any_input(program: Any) -> bool:
    """Whether a program without a signature has `**inputs`: any name may be one of them."""
    if plan_of(program) is not None:
        return False
    parameters = inspect.signature(_written(program)).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def _has_input(program: Any, name: str) -> bool:
    plan = plan_of(program)
    if plan is not None and name in plan.inputs:
        return True
    written = _written(program)
    if name not in inspect.signature(written).parameters:
        return False
    # A parameter of the type `Context` gets the context of the run, not an input.
    context = context_parameter(written)
    return context is None or context.name != name


def _written(program: Any) -> Any:
    """The method that holds the program's code."""
    if program.is_flow:
        return program.flow
    if program.is_only_async:
        return program.aforward
    return program.forward
