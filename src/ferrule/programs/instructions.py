"""The prompts of the built-in programs, and their built-in tools."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ferrule.adapters.parse import output_spec
from ferrule.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.values.signatures.signature import Signature


def _ask_user(question: str) -> str:
    return question


# Not the function's docstring: `python -OO` would drop it.
_WHEN_TO_ASK = (
    "Ask the user a question when something needed for the task is missing or unclear; "
    "the result is their answer."
)
CLARIFY = Tool(_ask_user, "user_clarification", _WHEN_TO_ASK, effect="read")
"""The tool that asks a person: a call becomes a question of the run, and is never executed."""


_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "required": []}


@lru_cache(maxsize=256)
def finish_tool(signature: type[Signature], *, with_outputs: bool) -> Tool:
    """The tool that ends the loop.

    Its arguments are the signature's outputs; with `with_outputs=False` it has none.
    """
    if with_outputs:
        description = "Give the final answer."
        schema = signature.output_schema()
    else:
        outputs = _names(signature.plan.outputs)
        description = f"Call this when all information for the outputs ({outputs}) is at hand."
        schema = _NO_ARGUMENTS
    return Tool("finish", description, _finish, schema, effect="read")


def is_builtin(tool: Tool) -> bool:
    """Whether the tool is one of `ReAct`'s built-in tools."""
    return tool is CLARIFY or tool.func is _finish


def describe_new_tools(added: Iterable[Tool], removed: Iterable[str]) -> str:
    """Describe a change of the tools to a model that has its tools in the prompt.

    So the earlier prompt can stay the same.
    """
    lines: list[str] = []
    added_lines = [f"- {tool.format()}" for tool in added]
    if added_lines:
        lines += ["From now on there are these tools too:", *added_lines]
    removed = list(removed)
    if removed:
        lines.append(f"No longer there: {_names(removed)}")
    return "\n".join(lines)


def _finish(**outputs: Any) -> str:
    del outputs
    return "Completed."


def _names(fields: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in fields) or "nothing"


def native_instructions(signature: type[Signature]) -> str:
    """The prompt of the loop with native calls.

    The request declares the tools, and `finish` has the outputs. An answer in text is an answer if
    the only output is a text; otherwise the model must know how to end.
    """
    if output_spec(signature).text is not None:
        return signature.instructions
    return f"{signature.instructions}\nTo answer, call `finish`."


LOOP_BEGINS = "You solve this step by step. You are given"
"""The beginning of the text that `loop_instructions` adds to the agent's own."""


def loop_instructions(signature: type[Signature], tools: Iterable[Tool]) -> str:
    """The prompt of the loop with calls in text, which lists the tools."""
    introduction = (
        f"{LOOP_BEGINS} {_names(signature.plan.inputs)} and in the end "
        f"{_names(signature.plan.outputs)} must be known. In every step you call tools and are "
        "shown what came of it."
    )
    lines = [signature.instructions, "", introduction]
    described = [
        f"- `{name}`: {field.description}"
        for name, field in signature.plan.outputs.items()
        if field.description
    ]
    if described:
        lines += ["What is wanted in the end:", *described]
    step = (
        "Each of your answers is one step: `next_thought` says where things stand and what to do "
        "next, `next_tool_name` names the tool to call, `next_tool_args` holds its arguments as a "
        f"JSON object. {_list_tools(tools)}"
    )
    return "\n".join([*lines, "", step])


def extract_instructions(signature: type[Signature]) -> str:
    """The prompt of the extractor."""
    return (
        f"{signature.instructions}\n\nThe work is done and recorded in `trajectory`. "
        f"From it, and from {_names(signature.plan.inputs)}, "
        f"produce {_names(signature.plan.outputs)}."
    )


SUMMARIZE = (
    "The conversation below is the earlier part of an agent's work on the task. It will be "
    "replaced by your summary, and the agent goes on with that alone. Keep what the rest of the "
    "task may need: facts, numbers, names, identifiers, decisions, what was tried and failed, "
    "and what is still to do. Leave out greetings, repetitions and what no longer matters."
)
"""The prompt of the program that summarizes the part of a long conversation that is left out."""


def answer_or_call_instructions(signature: type[Signature], tools: Iterable[Tool]) -> str:
    """The prompt of `Predict` for one answer that may hold calls, in text mode."""
    return f"{signature.instructions}\n\n{_list_tools(tools)}"


def call_first_instructions(signature: type[Signature], tools: Iterable[Tool]) -> str:
    """The prompt of `Predict` for calls before the answer, in text mode."""
    return (
        f"{signature.instructions}\n\nBefore you answer you may call tools: put the calls into "
        "`tool_calls` and leave the other fields out; you will be shown the results. When you know "
        "enough, leave `tool_calls` empty and fill in the other fields. "
        f"{_list_tools(tools)}"
    )


def _list_tools(tools: Iterable[Tool]) -> str:
    lines = [f"({number}) {tool.format()}" for number, tool in enumerate(tools, 1)]
    return "There are these tools and no others:\n\n" + "\n".join(lines)
