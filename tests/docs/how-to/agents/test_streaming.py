"""The claims of docs/how-to/agents/streaming.md."""

from __future__ import annotations

from ferrule import Module, Predict, ReAct, context
from ferrule.events import FieldDelta, ThoughtDelta
from ferrule.testing import ScriptedLM


def test_every_block_of_the_page_runs_and_prints_what_the_page_says(execute, printed) -> None:
    execute("docs/how-to/agents/streaming.md")
    printed("docs/how-to/agents/streaming.md")


def test_every_link_of_the_page_leads_somewhere(links) -> None:
    assert links("docs/how-to/agents/streaming.md") == []


class Desk(Module):
    def __init__(self) -> None:
        self.check = Predict("message -> reply", name="check")
        self.billing = ReAct("message -> reply", [], name="billing")

    def forward(self, message: str):
        self.check(message=message)
        return self.billing(message=message)


def test_the_fields_of_one_program_inside_are_found_by_its_name() -> None:
    with context(
        lm=ScriptedLM(
            [{"outputs": {"reply": "fine"}}, {"name": "finish", "args": {"reply": "Refunded."}}],
        ),
    ):
        found = [event for event in Desk().stream(message="x") if isinstance(event, FieldDelta)]
    assert (
        "".join(event.text for event in found if event.path.startswith("billing:")) == "Refunded."
    )
    assert "".join(event.text for event in found) == "fineRefunded."


def test_an_answer_in_plain_text_arrives_as_a_field() -> None:
    found = list(
        ReAct("question -> answer", []).stream(question="x", lm=ScriptedLM(["It is sunny."])),
    )
    texts = {
        kind: "".join(event.text for event in found if isinstance(event, kind))
        for kind in (ThoughtDelta, FieldDelta)
    }
    assert texts == {ThoughtDelta: "", FieldDelta: "It is sunny."}
