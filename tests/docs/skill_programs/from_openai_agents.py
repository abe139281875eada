"""The program of docs/coming-from/openai-agents.md: async, with a loop over what waits."""

import asyncio
from typing import Literal

from ferrule import InputField, OutputField, Prediction, ReAct, Signature, configure, tool
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
agent = ReAct(Answer, tools=[refund], name="desk")


async def main() -> Prediction:
    run = await agent.astart(ticket="The lamp of order 17 is broken.")
    while run.status == "waiting":
        for question in run.pending:
            assert refunds == []
            run.answer(question.approve())
        await run.aresume()
    return run.prediction


assert asyncio.run(main()).toDict() == {"reply": "Refunded.", "mood": "polite"}
assert refunds == [(17, 80)]
