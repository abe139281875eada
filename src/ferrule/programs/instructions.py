"""The prompts of the built-in programs, and their built-in tools."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ferrule.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.values.signatures.signature import Signature


def _ask_user(question: str) -> str:
    return question


_WHEN_TO_ASK = "Ask the user a question when something needed for the task is missing or unclear; the result is their answer."
CLARIFY = Tool(
    _ask_user,
    "user_clarification",
    _WHEN_TO_ASK,
    effect="read",
)  # no docstring: `python -OO` would drop it
"""The tool that asks a person: a call becomes a question of the run, and is never executed."""


@lru_cache(maxsize=256)
def finish_tool(signature: type[Signature], *, with_outputs: bool) -> Tool:
    """The tool that ends the loop. Its arguments are the signature's outputs; with `with_outputs=False` it has none."""
    names = ", ".join(f"`{name}`" for name in signature.plan.outputs)
    description = f"Call this when all information for the outputs ({names}) is at hand."
    schema: dict[str, Any] = (
        signature.output_schema()
        if with_outputs
        else {"type": "object", "properties": {}, "required": []}
    )
    return Tool(
        "finish",
        description + (" Its arguments are these outputs." if with_outputs else ""),
        _finish,
        schema,
        effect="read",
    )


def is_builtin(tool: Tool) -> bool:
    """Whether the tool is one of `ReAct`'s built-in tools."""
    return tool is CLARIFY or tool.func is _finish


def describe_new_tools(added: Iterable[Tool], removed: Iterable[str]) -> str:
    """Describe a change of the tools to a model that has its tools in the prompt, so that the earlier prompt can stay the same."""
    lines = [f"- {tool.format()}" for tool in added]
    gone = _names(removed)
    if lines:
        lines = ["From now on there are these tools too:", *lines]
    return "\n".join([*lines, f"No longer there: {gone}"] if gone != "nothing" else lines)


def _finish(**outputs: Any) -> str:
    del outputs
    return "Completed."


def _names(fields: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in fields) or "nothing"


def loop_instructions(signature: type[Signature], tools: Iterable[Tool], *, native: bool) -> str:
    """The prompt of the loop. It lists the tools only in text mode; native mode declares them."""
    lines = [
        signature.instructions,
        "",
        (
            f"You solve this step by step. You are given {_names(signature.plan.inputs)} and in the end "
            f"{_names(signature.plan.outputs)} must be known. In every step you call tools and are shown what came of it."
        ),
    ]
    outputs = [
        f"- `{name}`: {found}"
        for name, field in signature.plan.outputs.items()
        if (found := field.description)
    ]
    if outputs:
        lines += ["What is wanted in the end:", *outputs]
    if native:
        lines += [
            "Say briefly what you think before each call. Call `finish` with the outputs as soon as you know them.",
        ]
        return "\n".join(lines)
    lines += [
        "",
        (
            "Each of your answers is one step: `next_thought` says where things stand and what to do next, `next_tool_name` names the tool "
            f"to call, `next_tool_args` holds its arguments as a JSON object. {_list_tools(tools)}"
        ),
    ]
    return "\n".join(lines)


def extract_instructions(signature: type[Signature]) -> str:
    """The prompt of the extractor."""
    return (
        f"{signature.instructions}\n\nThe work is done and recorded in `trajectory`. "
        f"From it, and from {_names(signature.plan.inputs)}, produce {_names(signature.plan.outputs)}."
    )


SUMMARIZE = (
    "The conversation below is the earlier part of an agent's work on the task. It will be replaced by your summary, and the agent goes on "
    "with that alone. Keep what the rest of the task may need: facts, numbers, names, identifiers, decisions, what was tried and failed, "
    "and what is still to do. Leave out greetings, repetitions and what no longer matters."
)
"""The prompt of the program that summarizes the part of a long conversation that is left out."""


def answer_or_call_instructions(signature: type[Signature], tools: Iterable[Tool]) -> str:
    """The prompt of `Predict` for one answer that may hold calls, in text mode."""
    return f"{signature.instructions}\n\n{_list_tools(tools)}"


def call_first_instructions(signature: type[Signature], tools: Iterable[Tool]) -> str:
    """The prompt of `Predict` for calls before the answer, in text mode."""
    return (
        f"{signature.instructions}\n\nBefore you answer you may call tools: put the calls into `tool_calls` and leave the other fields "
        f"out; you will be shown the results. When you know enough, leave `tool_calls` empty and fill in the other fields. "
        f"{_list_tools(tools)}"
    )


def _list_tools(tools: Iterable[Tool]) -> str:
    return "There are these tools and no others:\n\n" + "\n".join(
        f"({i}) {tool.format()}" for i, tool in enumerate(tools, 1)
    )
