"""Code that calls tools: the model writes one piece of Python for 200 orders, and a person is asked about each refund in it."""

from __future__ import annotations

from ferrule import MemoryStore, ReAct, configure, tool
from ferrule.testing import ScriptedLM

refunded: list[int] = []


@tool
def list_orders() -> list[dict[str, int]]:
    """List all orders: their numbers, cents, and days late."""
    return [{"number": n, "cents": 100 * n, "late": 9 * (n in {66, 132, 199})} for n in range(200)]


@tool(require_confirmation=True)
def refund(order: int, cents: int) -> str:
    """Refund an order."""
    refunded.append(order)
    return f"refunded {cents} cents for order {order}"


CODE = """
for order in await list_orders():
    if order["late"] > 7:
        try:
            print(await refund(order["number"], order["cents"]))
        except ToolDeniedError as error:
            print("denied:", error)
"""
configure(
    lm=ScriptedLM(
        [
            {"name": "run_code", "args": {"code": CODE}},
            {"name": "finish", "args": {"answer": "Two of three late orders are refunded."}},
        ],
    ),
)
agent = ReAct("task -> answer", [list_orders, refund], calls="code")
run = agent.start(task="Refund all orders that came more than a week late.", store=MemoryStore())

asked = []
while run.status == "waiting":
    [question] = run.pending
    asked.append(question.call.args["order"])
    if asked[-1] == 132:
        run.answer(question.deny("This customer has been paid already."))
    else:
        run.answer(question.approve())
    run.resume()  # here, or days later in another process

print(question.text)
print(run.prediction.trajectory.steps[0].results[0].text)
assert asked == [66, 132, 199]
assert refunded == [66, 199]
