"""The `deps` of a run: checks them before a program acts, and passes them to plain Python that takes a `Context`.

Each tool, each output validator and each `forward` gets the `deps` that it declares; so do the
tools of programs that are tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from ferrule.adapters.fields import calls_output
from ferrule.tools.definition.deps import check_deps, check_type, context_parameter
from ferrule.tools.toolbox import LiveToolbox
from ferrule.values.calls.context import Context

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ferrule.runs.protocols import Program
    from ferrule.runs.state import Frame
    from ferrule.tools.definition.deps import ContextParameter


def with_context(
    frame: Frame,
    parameter: ContextParameter,
    what: str,
    args: tuple[Any, ...],
    inputs: Mapping[str, Any],
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Add the `Context` to a function's arguments. Raises `ConfigurationError` if the function's `deps` are missing or of another type."""
    context: Context[Any] = Context(
        run_id=frame.run.id,
        deps=frame.deps,
        stopped=lambda: frame.run.cancelled,
    )
    parameter.check(what, context, frame.deps)
    return parameter.fill(args, inputs, context)


def for_forward(
    frame: Frame, program: Any, name: str, args: tuple[Any, ...], inputs: Mapping[str, Any],
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:  # fmt: skip
    """The arguments of a program's `forward` or `aforward`, with the `Context` that it may take. See `with_context`."""
    parameter = _context_of(program, name)
    return (
        (args, inputs)
        if parameter is None
        else with_context(frame, parameter, _what(program, name), args, inputs)
    )


def _what(program: Any, name: str) -> str:
    return f"`{program.name}.{name}`"


def _context_of(program: Any, name: str) -> ContextParameter | None:
    method = getattr(program, name, None)
    function = getattr(method, "__func__", None)
    if function is None:  # not a method of the class
        return context_parameter(method) if callable(method) else None
    if function not in _found:
        found = context_parameter(function)
        # `self` is passed already.
        _found[function] = (
            found if found is None or found.at is None else replace(found, at=found.at - 1)
        )
    return _found[function]


_found: WeakKeyDictionary[Any, ContextParameter | None] = WeakKeyDictionary()
"""The `Context` parameter of each `forward` seen so far. Weak, because a process may make classes for each request."""


def check_program_deps(program: Program, deps: Any) -> None:
    """Raise `ConfigurationError` if a tool, an output validator or a `forward` declares `Context[X]` and `deps` is not an `X`.

    Programs inside a `forward` are checked when it calls them, since it may pass other `deps` to
    them.
    """
    _check(program, deps, set())


def _check(program: Any, deps: Any, seen: set[int]) -> None:
    if id(program) in seen:
        return
    seen.add(id(program))  # an agent may be among its own tools
    if not program.is_flow:
        for name in ("forward", "aforward"):
            if (parameter := _context_of(program, name)) is not None:
                check_type(_what(program, name), parameter.deps_type, deps)
        return
    for tool in _tools(program):
        if tool.takes_context:
            check_deps(tool, deps)
        elif tool.is_program:
            _check(tool.func.program, deps, seen)
    for each in _validators(program):
        check_type(each.what, each.context.deps_type, deps)


def _predictors(program: Any) -> Sequence[Any]:
    find = getattr(program, "tool_users", None)
    return find() if find is not None else ()


def _validators(program: Any) -> Iterator[Any]:
    return (
        each
        for predictor in _predictors(program)
        for each in predictor.output_validators
        if each.context is not None
    )


def _tools(program: Any) -> Iterator[Any]:
    for predictor in _predictors(program):
        box = predictor.toolbox
        if isinstance(box, LiveToolbox):
            box.look_again()  # here, because every run with servers passes here once, before its first act
        if isinstance(box, LiveToolbox) and not box.is_listed:
            yield from box.local().values()  # the servers' own tools need no `deps`, so this does not list them
        elif (
            len(box) and predictor.auto_execute_tools and calls_output(predictor.signature) is None
        ):
            yield from box
            yield from box.shelf or ()
