"""Tools that are loaded during a run: the agent asks for a group and can use it from the next step on."""

from ferrule import Load, ReAct, Tool, Toolbox, configure
from ferrule.testing import ScriptedLM

refunded: list[str] = []


def refund(invoice: str) -> str:
    """Refund an invoice."""
    refunded.append(invoice)
    return f"{invoice} is refunded"


def status(service: str) -> str:
    """Say whether a service is up."""
    return f"{service} is up"


def load_tools(group: str) -> Load:
    """Load a group of tools: billing or ops."""
    return Load(f"{group}.*")


tools = Toolbox([load_tools], shelf=[Tool(refund, "billing.refund"), Tool(status, "ops.status")])
lm = ScriptedLM(
    [
        {"name": "load_tools", "args": {"group": "billing"}},
        {"name": "billing.refund", "args": {"invoice": "A-7"}},
        {"name": "finish", "args": {"answer": "Invoice A-7 is refunded."}},
    ],
)
configure(lm=lm)
support = ReAct("task -> answer", tools)
prediction = support(task="Refund invoice A-7.")

print(prediction.trajectory["observation_0"])
print(prediction.answer)

assert refunded == ["A-7"]
assert [len(request.tools) for request in lm.requests] == [2, 3, 3]  # with `finish`
assert "billing.refund" not in support.tools  # the agent itself does not change
