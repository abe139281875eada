"""The tables of docs/coming-from/dspy.md and docs/coming-from/udspy.md: every public name of a
library, and where it is here.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import FunctionType
from typing import Any

import ferrule


def rows_of(page: str) -> tuple[list[str], list[list[str]]]:
    """The head of a page's only table, and its rows."""
    lines = (Path(__file__).parents[1] / page).read_text(encoding="utf-8").splitlines()
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    return table[0], table[2:]


def name_in(cell: str) -> str:
    """The one name that a cell holds."""
    found = re.fullmatch(r"`([A-Za-z_][\w.]*)`", cell)
    assert found, f"{cell!r} is not one name in backticks"
    return found[1]


def resolve(root: Any, dotted: str) -> Any:
    """An object by its path; some attributes are those of an object of the class.

    The names of ferrule may be in one of its public submodules.
    """
    first, *rest = dotted.split(".")
    homes = [root]
    if root is ferrule:
        homes += [ferrule.errors, ferrule.events, ferrule.acts, ferrule.testing, ferrule.mcp_bridge]
    found = next((getattr(home, first) for home in homes if hasattr(home, first)), None)
    if found is None:
        found = getattr(_sample(root) if isinstance(root, type) else root, first)
    for name in rest:
        owner = (
            _sample(found)
            if isinstance(found, (type, FunctionType)) and not hasattr(found, name)
            else found
        )
        found = getattr(owner, name)
    return found


def _double(x: int) -> int:
    return 2 * x


def _sample(cls: Any) -> Any:
    """An object of a class some of whose attributes are made with the object, or by the metaclass
    for its subclasses.
    """
    if isinstance(cls, FunctionType):  # udspy's `LM`
        return cls("gpt", api_key="key")
    if issubclass(cls, ferrule.Signature):
        return type(
            "Made",
            (cls,),
            {
                "__annotations__": {"a": str, "b": str},
                "a": ferrule.InputField(),
                "b": ferrule.OutputField(),
            },
        )
    if issubclass(cls, (ferrule.Predict, ferrule.ChainOfThought, ferrule.ReAct)):
        return cls("question -> answer", tools=[_double])
    if issubclass(cls, ferrule.LM):
        return cls("openai/gpt", api_key="key")
    if issubclass(cls, ferrule.ToolCall):
        return cls(name="_double", args={})
    if issubclass(cls, ferrule.ToolCalls):
        return cls(tool_calls=[])
    if issubclass(cls, ferrule.Tool):
        return cls(_double)
    if cls.__name__.endswith("StreamChunk"):
        return cls(None, "answer", "a", "a", is_complete=False)
    if cls.__name__ == "Tools":
        return cls([])
    if issubclass(cls, ferrule.Run):
        return ferrule.Predict("question -> answer").start(
            question="?", lm=ferrule.testing.ScriptedLM(["[[ ## answer ## ]]\n42"])
        )
    return cls()
