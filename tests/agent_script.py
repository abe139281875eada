"""Scripts for agents: the same turns in the text protocol and as native calls."""

from __future__ import annotations

import json
from typing import Any

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
