"""Scripts for agents: the same turns in the text protocol and as native calls."""

from __future__ import annotations

import json
from typing import Any

from ferrule import ReAct
from ferrule.testing import ScriptedLM
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import Response


def text_step(thought: str, name: str, args: Any = None) -> str:
    """A step as a model writes it in chat markers."""
    shown = args if isinstance(args, str) else json.dumps(args or {})
    return f"[[ ## next_thought ## ]]\n{thought}\n\n[[ ## next_tool_name ## ]]\n{name}\n\n[[ ## next_tool_args ## ]]\n{shown}\n\n[[ ## completed ## ]]"


def native_step(thought: str, name: str, args: Any = None) -> Response:
    """The same step as a native call."""
    return Response(thought, (ToolCall(name=name, args=args or {}),))


def fields(**values: Any) -> str:
    """An answer in chat markers."""
    shown = (
        f"[[ ## {name} ## ]]\n{value if isinstance(value, str) else json.dumps(value)}\n"
        for name, value in values.items()
    )
    return "\n".join([*shown, "[[ ## completed ## ]]"])


STEPS = {"text": text_step, "native": native_step}
WAYS = ("native", "text", "code")
"""The ways in which an agent calls its tools."""


def agent_calling(
    way: str, tools: Any, *calls: tuple[str, dict[str, Any]], **options: Any
) -> ReAct:
    """An agent whose model makes these calls, by name and arguments, and then finishes."""
    step = STEPS["text" if way == "text" else "native"]
    if way == "code":
        lines = [f"await {name}(**{args!r})" for name, args in calls]
        steps = [step("t", "run_code", {"code": line}) for line in lines]
        options["calls"] = "code"
    else:
        steps = [step("t", name, args) for name, args in calls]
    options.setdefault("native", way != "text")
    steps.append(step("f", "finish", {"answer": "ok"}))
    return ReAct("task -> answer", tools, lm=ScriptedLM(steps), **options)
