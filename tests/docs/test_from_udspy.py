"""The table of docs/from-udspy.md is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import ferrule

PAGE = "docs/from-udspy.md"
_LINES = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8").splitlines()
_TABLE = [[cell.strip() for cell in line.strip("|").split("|")] for line in _LINES if line.startswith("|")]
HEAD, ROWS = _TABLE[0], _TABLE[2:]

EXPORTED = frozenset(
    re.findall(
        r"\w+",
        """
    settings LM OpenAILM Signature InputField OutputField make_signature Module Predict Prediction ChainOfThought ReAct BaseCallback with_callbacks
    ACTIVE_CALL_ID module_callback ModuleCallback ModuleContext PredictContext ReactContext ConfirmationRequired ConfirmationRejected
    ConfirmationStatus ApprovalData ResumeState confirm_first get_confirmation_status respond_to_confirmation ChatAdapter History StreamEvent
    OutputStreamChunk emit_event Tool tool Tools ToolCall ToolCalls
""",
    )
)
"""The names that `import *` brings from udspy 0.1.8."""


def _double(name: str) -> str:
    return name


def _sample(cls: type) -> Any:
    """An object of a class some of whose attributes are made with the object, or by the metaclass for its subclasses."""
    match cls:
        case ferrule.Signature:
            return ferrule.Signature("question -> answer")
        case ferrule.Predict | ferrule.ReAct:
            return cls("question -> answer", tools=[_double])
        case ferrule.Tool:
            return cls(_double)
        case ferrule.ToolCall:
            return cls(name="_double", args={})
        case ferrule.ToolCalls:
            return cls(tool_calls=[])
        case ferrule.LM:
            return cls("openai/gpt", api_key="key")
        case _:
            return cls()


def _resolve(dotted: str) -> Any:
    found: Any = ferrule
    for name in dotted.split("."):
        owner = _sample(found) if isinstance(found, type) and not hasattr(found, name) else found
        found = getattr(owner, name)
    return found


def _code(cell: str) -> str:
    found = re.fullmatch(r"`([A-Za-z_][\w.]*)`", cell)
    assert found, f"{cell!r} is not one name in backticks"
    return found[1]


def test_the_page_has_one_table_of_three_columns() -> None:
    """U170."""
    assert HEAD == ["udspy", "ferrule", "note"]
    assert [row for row in ROWS if len(row) != 3] == []


def test_no_name_is_told_twice() -> None:
    """U170."""
    names = [_code(row[0]) for row in ROWS]
    assert len(names) == len(set(names))


def test_every_name_udspy_exports_is_in_the_table() -> None:
    """U170."""
    assert EXPORTED - {_code(row[0]) for row in ROWS} == set()


@pytest.mark.parametrize(("old", "new"), [pytest.param(row[0], row[1], id=row[0].strip("`")) for row in ROWS])
def test_every_row_tells_the_truth(old: str, new: str) -> None:
    """U170: what is `same` resolves under its own name, a replacement under its name, and what comes `later` is not there yet."""
    name = _code(old)
    if new == "later":
        with pytest.raises(AttributeError):
            _resolve(name)
    else:
        _resolve(name if new == "same" else _code(new))


def test_no_link_of_the_page_is_broken(links) -> None:
    """Ours."""
    assert links(PAGE) == []
