"""The program of the workers: an agent that refunds orders once a person agrees. Its model is scripted, so no key is needed."""

import re
from typing import Any

import ferrule
from ferrule import ReAct, tool
from ferrule.testing import ScriptedLM


@tool(effect="read")
def find_order(order: str) -> str:
    """Find an order."""
    return f"{order}: paid 40 euros"


@tool(require_confirmation=True)
def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


class Script(ScriptedLM):
    """Plays the model. Put yours here: `ferrule.configure(lm=ferrule.LM("openai/..."))`."""

    def complete(self, request: Any) -> Any:
        """The next step."""
        said = sum(message.role == "assistant" for message in request.messages)
        order = {"order": re.search(r"order (\w+)", str(list(request.messages)))[1]}
        finish = {"name": "finish", "args": {"answer": "Refunded."}}
        return ScriptedLM(
            [
                [{"name": "find_order", "args": order}, {"name": "refund", "args": order}, finish][
                    said
                ],
            ],
        ).complete(request)


ferrule.configure(lm=Script([]))
agent = ReAct("task -> answer", [find_order, refund])
