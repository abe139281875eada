"""The `deps` of a run: checked before a program acts, and passed to plain Python with a `Context`.

Each tool, each output validator and each `forward` gets the `deps` that it declares; so do the
tools of programs that are tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from ferrule.adapters.fields import calls_output
from ferrule.runs.life import SoFar
from ferrule.tools.definition.deps import check_deps, check_type, context_parameter
from ferrule.tools.toolbox import LiveToolbox
from ferrule.values.calls.context import Context

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ferrule.runs.protocols import Program
    from ferrule.runs.state import Frame
    from ferrule.tools.definition.deps import ContextParameter


_parameters: WeakKeyDictionary[Any, ContextParameter | None] = WeakKeyDictionary()
"""The `Context` parameter of each `forward` seen so far.

Weak, because a process may make classes for each request."""


def with_context(
    frame: Frame,
    parameter: ContextParameter,
    what: str,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Add the `Context` to a function's arguments.

    Raises `ConfigurationError` if the function's `deps` are missing or of another type.
    """
    context: Context[Any] = Context(
        run_id=frame.run.id,
        deps=frame.deps,
        stopped=lambda: frame.run.cancelled,
        so_far=SoFar(frame.run, frame, frame.acts),
    )
    parameter.check(what, context, frame.deps)
    return parameter.fill(args, inputs, context)


def for_forward(
    frame: Frame, program: Any, method: str, args: tuple[Any, ...], inputs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of `forward` or `aforward`, with the `Context` that it may take."""
    parameter = _context_of(program, method)
    if parameter is None:
        return args, inputs
    return with_context(frame, parameter, _name_of(program, method), args, inputs)


def check_program_deps(program: Program, deps: Any) -> None:
    """Raise `ConfigurationError` if anything declares `Context[X]` and `deps` is not an `X`.

    Tools, output validators and the `forward` are checked. Programs inside a `forward` are checked
    when it calls them, since it may pass other `deps` to them.
    """
    _check(program, deps, set())


def _check(program: Any, deps: Any, seen: set[int]) -> None:
    if id(program) in seen:
        return
    seen.add(id(program))  # an agent may be among its own tools
    if not program.is_flow:
        for method in ("forward", "aforward"):
            parameter = _context_of(program, method)
            if parameter is not None:
                check_type(_name_of(program, method), parameter.deps_type, deps)
        return
    for tool in _tools(program):
        if tool.takes_context:
            check_deps(tool, deps)
        elif tool.is_program:
            _check(tool.func.program, deps, seen)
    for predictor in _predictors(program):
        for function in (*predictor.output_validators, *predictor.choices.functions):
            if function.context is not None:
                check_type(function.what, function.context.deps_type, deps)


def _tools(program: Any) -> Iterator[Any]:
    """The tools that a program may call, by the latest lists of its servers."""
    for predictor in _predictors(program):
        toolbox = predictor.toolbox
        if isinstance(toolbox, LiveToolbox):
            # Here, because every run with servers passes here once, before its first act.
            toolbox.look_again()
            if not toolbox.is_listed:
                # The servers' own tools need no `deps`, so this does not list them.
                yield from toolbox.local().values()
                continue
        returns_calls = calls_output(predictor.program_signature) is not None
        if len(toolbox) and predictor.auto_execute_tools and not returns_calls:
            yield from toolbox
            yield from toolbox.shelf or ()


def _predictors(program: Any) -> Sequence[Any]:
    tool_users = getattr(program, "tool_users", None)
    if tool_users is None:
        return ()
    return tool_users()


def _name_of(program: Any, method: str) -> str:
    return f"`{program.name}.{method}`"


def _context_of(program: Any, name: str) -> ContextParameter | None:
    method = getattr(program, name, None)
    function = getattr(method, "__func__", None)
    if not callable(method):
        return None
    if function is None:  # not a method of the class
        return context_parameter(method)
    if function not in _parameters:
        parameter = context_parameter(function)
        if parameter is not None and parameter.position is not None:
            # `self` is passed already.
            parameter = replace(parameter, position=parameter.position - 1)
        _parameters[function] = parameter
    return _parameters[function]
