"""The tool `finish`, whose arguments are the outputs, and when a call of it counts."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ferrule.encoding.repair import LOSSY
from ferrule.programs.instructions import finish_tool, native_instructions
from ferrule.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ferrule.values.calls.call import ToolCall, ToolResult
    from ferrule.values.signatures.compiled import CompiledSignature
    from ferrule.values.signatures.signature import Signature

Problems = list[tuple[str, str]]
"""Problems of outputs: for each, the field (or `""`) and a text for the model."""


@lru_cache(maxsize=256)
def asking_for_finish(signature: type[Signature]) -> type[Signature]:
    """The signature of a prompt without outputs: they are the arguments of `finish`."""
    inputs = signature.delete(*signature.plan.outputs)
    return inputs.with_instructions(native_instructions(signature))


def add_finish(toolbox: Toolbox, signature: type[Signature]) -> Toolbox:
    """These tools and `finish`."""
    return toolbox.cached_value(
        (add_finish, signature),
        lambda: Toolbox((*toolbox, finish_tool(signature, with_outputs=True))),
    )


def split_finish(
    calls: Iterable[ToolCall],
) -> tuple[tuple[ToolCall, ...], tuple[ToolCall, ...]]:
    """The calls of `finish`, and the others."""
    calls = tuple(calls)
    finishes = tuple(call for call in calls if call.name == "finish")
    return finishes, tuple(call for call in calls if call.name != "finish")


def outputs_in(finish: ToolCall, plan: CompiledSignature) -> tuple[dict[str, Any], Problems]:
    """The outputs in the arguments of `finish`, typed, and the problems with them."""
    if finish.fault is not None:
        return {}, [("", finish.fault.reason)]
    outputs: dict[str, Any] = {}
    problems: Problems = []
    written = finish.args_as_written
    for name in plan.outputs:
        if name in written:
            try:
                outputs[name] = plan.output_checks[name](written[name], is_value=True)
            except ValueError as error:
                problems.append((name, str(error)))
        elif name in plan.optional:
            outputs[name] = plan.output_default(name)
        else:
            problems.append((name, "is missing"))
    return outputs, problems


def text_is_not_read(signature: type[Signature]) -> str:
    """Why an answer in text does not count, for the model."""
    names = ", ".join(f"`{name}`" for name in signature.plan.outputs)
    return f"Your answer was text, which is not read: call `finish` with {names}."


def why_void(
    finishes: Sequence[ToolCall], others: Sequence[ToolCall], results: Sequence[ToolResult]
) -> str:
    """Why `finish` does not count with the other calls of its answer; empty if it does.

    The model writes all calls of an answer before it sees a result. What it says of them at the
    end ("I refunded 50 euros.") is true only if each of them succeeded as it was written. Values
    that were converted to the types of their parameters, and repairs that rewrite text, count as
    written.
    """
    if any(call.args != finishes[0].args for call in finishes):
        return (
            "Your answer was not accepted: `finish` was called several times, with different "
            "arguments. Call it once."
        )
    lines: list[str] = []
    for call, result in zip(others, results, strict=True):
        difference = _difference(result)
        if difference:
            lines.append(f"- `{call.name}`: {difference}")
    if not lines:
        return ""
    return "\n".join(
        [
            "Your answer was not accepted: you wrote it before you knew what came of these calls.",
            *lines,
            "Read their results, and go on from there.",
        ]
    )


def _difference(result: ToolResult) -> str:
    """How the result differs from that of the call as the model wrote it; empty if not at all."""
    if result.by_person:
        return "a person answered it, or changed its arguments"
    if result.is_error:
        return "it did not succeed"
    lost = LOSSY.intersection(result.repairs)
    if lost:
        return f"a part of what you wrote was dropped to read it ({', '.join(sorted(lost))})"
    return ""
