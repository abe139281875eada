"""What a person sees of a value: `repr`, a table in a notebook, rich's output."""

from __future__ import annotations

import io
import re

from rich.console import Console

import ferrule
from ferrule import (
    ChainOfThought,
    MemoryStore,
    Module,
    Predict,
    Prediction,
    ReAct,
    Run,
    Tool,
    ToolCall,
    ToolResult,
)
from ferrule.testing import ScriptedLM
from ferrule.values.outcome import Step, Trajectory


def add(a: int, b: int) -> int:
    """Add <two> numbers."""
    return a + b


class Research(Module):
    def __init__(self) -> None:
        self.find = Predict("topic -> facts")
        self.parts = [ChainOfThought("facts -> answer")]

    def forward(self, topic: str):
        return self.find(topic=topic)


STEPS = Trajectory(
    [
        Step(
            "I add.",
            (ToolCall(name="add", args={"a": 1, "b": 2}),),
            (ToolResult("add", "<b>3</b>"),),
        ),
    ],
)


def run() -> Run:
    script = [
        {"name": "add", "args": {"a": 1, "b": 2}},
        {"name": "finish", "args": {"answer": "<script>3"}},
    ]
    with ferrule.context(lm=ScriptedLM(script)):
        return ReAct("question -> answer", [add]).start(question="1 + 2?")


def on_rich(value: object) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(value)
    return out.getvalue()


def test_a_program_shows_its_signature_its_tools_and_the_programs_inside():
    assert repr(Predict("question -> answer")) == "Predict('question -> answer')"
    assert repr(ReAct("question -> answer", [add])) == "ReAct('question -> answer', tools=[add])"
    assert repr(ChainOfThought("question -> answer")) == "ChainOfThought('question -> answer')"
    assert repr(ChainOfThought("q -> a", tools=[add])) == "ChainOfThought('q -> a', tools=[add])"
    assert (
        repr(Research())
        == "Research(find=Predict('topic -> facts'), parts[0].predict=Predict('facts -> reasoning, answer'))"
    )


def test_no_repr_shows_an_address_in_memory():
    agent = ReAct("question -> answer", [add])
    bound = agent.bind(question="1 + 2?")
    assert repr(bound) == "ReAct('question -> answer', tools=[add]).bind(question='1 + 2?')"
    for value in (
        agent,
        Research(),
        Tool(add),
        bound,
        bound.stream(),
        MemoryStore(),
        STEPS,
        run(),
        ScriptedLM([]),
    ):
        assert not re.search("0x[0-9a-f]{6}", repr(value)), repr(value)


def test_a_trajectory_is_shown_by_what_its_steps_called():
    assert repr(STEPS) == "<Trajectory of 1 step: add>"
    assert repr(Trajectory()) == "<Trajectory of 0 steps>"
    assert repr(Trajectory([Step("?"), *STEPS.steps])) == "<Trajectory of 2 steps: no call, add>"


def test_a_notebook_shows_a_prediction_with_its_steps_and_escapes_everything():
    page = run().prediction._repr_html_()
    assert "Prediction" in page
    assert "&lt;script&gt;3" in page
    assert "<script>" not in page
    assert "add(a=1, b=2)\n→ 3" in page
    assert "2 model calls" in page


def test_a_notebook_shows_a_trajectory_a_run_and_a_tool():
    assert "&lt;b&gt;3&lt;/b&gt;" in STEPS._repr_html_()
    page = run()._repr_html_()
    assert "done" in page
    assert "&lt;script&gt;3" in page
    page = Tool(add, require_confirmation=True, effect="read")._repr_html_()
    assert "Add &lt;two&gt; numbers." in page
    assert "always" in page
    assert "read" in page


def test_an_output_named_like_an_attribute_is_displayed_as_the_output():
    assert "mine" in Prediction(trajectory="mine", answer=1)._repr_html_()


def test_a_long_value_and_text_that_is_no_unicode_are_shown_shortened():
    page = Prediction(text="x" * 100_000, half="\ud800")._repr_html_()
    assert len(page) < 10_000
    assert "(100000 characters)" in page
    page.encode()


def test_rich_prints_names_and_values_and_reads_no_markup():
    assert on_rich(Prediction(answer="[bold]42[/bold]")) == "Prediction(answer='[bold]42[/bold]')\n"
    assert "add(a=1, b=2)" in on_rich(STEPS)
    assert "status='done'" in on_rich(run())
    assert "effect='once'" in on_rich(Tool(add))


def test_a_run_that_was_loaded_is_displayed_without_a_replay():
    store = MemoryStore()
    agent = ReAct("question -> answer", [add])
    with ferrule.context(lm=ScriptedLM([{"name": "finish", "args": {"answer": "3"}}])):
        agent.start(question="?", store=store, run_id="r")
    assert "done" in Run.load(store, "r", agent)._repr_html_()
