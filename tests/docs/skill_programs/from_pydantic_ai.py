"""The program of docs/coming-from/pydantic-ai.md: a typed answer, and a refund that a person
approves.
"""

from typing import Literal

from ferrule import InputField, OutputField, ReAct, Signature, configure, tool
from ferrule.testing import ScriptedLM

refunds: list[tuple[int, int]] = []


class Answer(Signature):
    """Answer the customer's ticket."""

    ticket: str = InputField()
    reply: str = OutputField()
    mood: Literal["polite", "angry"] = OutputField()


@tool(require_confirmation=True)
def refund(order: int, euros: int) -> str:
    """Refund an order."""
    refunds.append((order, euros))
    return f"We refunded {euros} euros."


configure(
    lm=ScriptedLM(
        [
            {"name": "refund", "args": {"order": 17, "euros": 80}},
            {"name": "finish", "args": {"reply": "Refunded.", "mood": "polite"}},
        ]
    )
)
agent = ReAct(Answer, tools=[refund])

first = agent.start(ticket="The lamp of order 17 is broken.")
assert first.status == "waiting"
assert refunds == []

for question in first.pending:
    first.answer(question.approve())
first.resume()
assert first.prediction.toDict() == {"reply": "Refunded.", "mood": "polite"}
assert refunds == [(17, 80)]
