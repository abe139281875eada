"""The words that built-in programs say to models, and their built-in tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.values.signatures.signature import Signature


def _answered_by_a_person(question: str) -> str:
    """Ask the user a question when something needed for the task is missing or unclear; the result is their answer."""
    return question


CLARIFY = Tool(_answered_by_a_person, "user_clarification", effect="read")
"""The tool whose answer a person gives: its call becomes a question of the run and is never executed."""


def finish_tool(signature: type[Signature], *, with_outputs: bool) -> Tool:
    """The tool that ends the loop. With outputs, its arguments are the signature's outputs; else it takes none."""
    names = ", ".join(f"`{name}`" for name in signature.output_fields)
    description = f"Call this when all information for the outputs ({names}) is at hand."
    schema: dict[str, Any] = signature.output_schema() if with_outputs else {"type": "object", "properties": {}, "required": []}
    return Tool("finish", description + (" Its arguments are these outputs." if with_outputs else ""), _finished, schema, effect="read")


def is_builtin(tool: Tool) -> bool:
    """Whether it is one of the tools that every `ReAct` has."""
    return tool is CLARIFY or tool.func is _finished


def new_tools(added: Iterable[Tool], removed: Iterable[str]) -> str:
    """What a model that reads its tools in the prompt is told of a change, so that the prompt before it can stay as it was."""
    lines = [f"- {tool.format()}" for tool in added]
    gone = _names(removed)
    return "\n".join(
        [
            *(["From now on there are these tools too:", *lines] if lines else []),
            *([f"No longer there: {gone}"] if gone != "nothing" else []),
        ]
    )


def _finished(**outputs: Any) -> str:
    del outputs
    return "Completed."


def _names(fields: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in fields) or "nothing"


def loop_instructions(signature: type[Signature], tools: Iterable[Tool], *, native: bool) -> str:
    """What a model is told about the loop; the tools themselves are listed for text mode only (native mode declares them)."""
    lines = [
        signature.instructions,
        "",
        (
            f"You solve this step by step. You are given {_names(signature.input_fields)} and in the end "
            f"{_names(signature.output_fields)} must be known. In every step you call tools and are shown what came of it."
        ),
    ]
    outputs = [f"- `{name}`: {found}" for name, field in signature.output_fields.items() if (found := field.description)]
    if outputs:
        lines += ["What is wanted in the end:", *outputs]
    if native:
        lines += ["Say briefly what you think before each call. Call `finish` with the outputs as soon as you know them."]
        return "\n".join(lines)
    lines += [
        "",
        (
            "Each of your answers is one step: `next_thought` says where things stand and what to do next, `next_tool_name` names the tool "
            "to call, `next_tool_args` holds its arguments as a JSON object. There are these tools and no others:"
        ),
        "",
        *(f"({i}) {tool.format()}" for i, tool in enumerate(tools, 1)),
    ]
    return "\n".join(lines)


def extract_instructions(signature: type[Signature]) -> str:
    """What the extractor is told."""
    return (
        f"{signature.instructions}\n\nThe work is done and recorded in `trajectory`. "
        f"From it, and from {_names(signature.input_fields)}, produce {_names(signature.output_fields)}."
    )


def listed_tools(signature: type[Signature], tools: Iterable[Tool]) -> str:
    """The instructions with the tools that the answer may call, for a model without native calls."""
    listed = "\n".join(f"({i}) {tool.format()}" for i, tool in enumerate(tools, 1))
    return f"{signature.instructions}\n\nThere are these tools and no others:\n\n{listed}"


def tools_instructions(signature: type[Signature], tools: Iterable[Tool]) -> str:
    """What a model without native calls is told about the tools of `Predict`."""
    listed = "\n".join(f"({i}) {tool.format()}" for i, tool in enumerate(tools, 1))
    return (
        f"{signature.instructions}\n\nBefore you answer you may call tools: put the calls into `tool_calls` and leave the other fields "
        f"out; you will be shown the results. When you know enough, leave `tool_calls` empty and fill in the other fields. "
        f"There are these tools and no others:\n\n{listed}"
    )
