"""The claims of docs/how-to/agents/agents-as-tools.md."""

from __future__ import annotations

from ferrule import MemoryStore, Module, Prediction, ReAct, Run, context, tool
from ferrule.testing import ScriptedLM


def test_every_block_of_the_page_runs(execute) -> None:
    """A14, A16; style: a page's claims have a test."""
    execute("docs/how-to/agents/agents-as-tools.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/agents/agents-as-tools.md") == []


@tool(require_confirmation=True)
def pay(name: str) -> str:
    """Pay somebody."""
    return f"paid {name}"


def payments(request):
    last = request.messages[-1]
    if last.role == "tool":
        return {"name": "finish", "args": {"receipt": last.text}}
    return {"name": "pay", "args": {"name": last.text[-3:]}}


class Payday(Module):
    def __init__(self) -> None:
        self.pay = ReAct("name -> receipt", [pay])

    def forward(self) -> Prediction:
        paid = self.pay.batch([{"name": name} for name in ("ann", "bob", "eve")], progress=False)
        return Prediction(receipts=[each.receipt for each in paid])


def test_a_batch_in_a_forward_asks_one_after_another_and_repeats_no_recorded_call() -> None:
    store, lm = MemoryStore(), ScriptedLM(by=payments, record=True)
    with context(lm=lm):
        run = Payday().start(store=store, run_id="may")
        asked = []
        while run.status == "waiting":
            run = Run.load(store, "may", Payday())
            [question] = run.pending
            asked.append(question.call.args["name"])
            run.answer(question.approve())
            run.resume()
    assert run.prediction.receipts == ["paid ann", "paid bob", "paid eve"]
    assert sorted(asked) == ["ann", "bob", "eve"]
    assert run.usage.calls == 6
