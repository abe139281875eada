"""The program of docs/coming-from/langgraph.md: a refund that a person approves, kept under an id."""

from ferrule import MemoryStore, ReAct, Run, configure, tool
from ferrule.testing import ScriptedLM

refunds: list[tuple[int, int]] = []


@tool(require_confirmation=True)
def refund(order: int, euros: int) -> str:
    """Refund an order."""
    refunds.append((order, euros))
    return f"We refunded {euros} euros."


configure(
    lm=ScriptedLM(
        [
            {"name": "refund", "args": {"order": 17, "euros": 80}},
            {"name": "finish", "args": {"reply": "Refunded."}},
        ]
    )
)
graph = ReAct("message -> reply", [refund])
store = MemoryStore()

run = graph.start(message="The lamp of order 17 is broken.", store=store, run_id="ticket-1")
assert run.pending[0].call.args == {"order": 17, "euros": 80}
assert refunds == []

later = Run.load(store, "ticket-1", graph)
later.answer(later.pending[0].decide("yes"))
later.resume()
assert later.prediction.reply == "Refunded."
assert refunds == [(17, 80)]
