"""A journal as a story for readers (`runs/story.py`): from real runs, and from any prefix of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import (
    Context,
    Limits,
    MemoryStore,
    Module,
    Predict,
    ReAct,
    Response,
    ToolCall,
    Usage,
    context,
    tool,
)
from ferrule.errors import UnavailableError
from ferrule.runs.journal.encode import read_entry
from ferrule.runs.journal.entry import Entry
from ferrule.runs.story import Beat, Story, story
from ferrule.testing import ScriptedLM


@tool
def look(order: str) -> str:
    """Look an order up."""
    if order == "?":
        raise ValueError("no such order")
    return f"order {order}"


@tool(require_confirmation=True)
def refund(order: str, euros: float = 1.0) -> str:
    """Refund an order."""
    return f"refunded {euros:g} of {order}"


def finish(answer: str = "done") -> dict[str, Any]:
    return {"name": "finish", "args": {"answer": answer}}


def entries_of(store: MemoryStore, run_id: str) -> list[Any]:
    return [read_entry(each) for each in store.load(run_id).entries]


def told(program: Any, lm: Any, *, decide: Any = None, **more: Any) -> tuple[Beat, ...]:
    return story(entries_in(program, lm, decide=decide, **more))


def entries_in(program: Any, lm: Any, *, decide: Any = None, **more: Any) -> list[Any]:
    store = MemoryStore()
    with context(lm=lm if hasattr(lm, "complete") else ScriptedLM(lm), **more):
        run = program.start(task="x", store=store, run_id="r")
        while run.status == "waiting" and decide is not None:
            for question in run.pending:
                run.answer(decide(question))
            run.resume()
    return entries_of(store, "r")


def agent(*tools: Any, **more: Any) -> ReAct:
    return ReAct("task -> answer", list(tools) or [look, refund], **more)


def test_a_turn_is_an_answer_with_its_calls_and_their_results() -> None:
    calls = (
        ToolCall(name="look", args={"order": "A"}, id="a", intention="see it"),
        ToolCall(name="look", args={"order": "?"}, id="b"),
    )
    first = Response("Let me see.", calls, "Hm.", usage=Usage(10, 5, calls=1), model="m", cost=0.5)
    beats = told(agent(), [first, finish()])
    assert [(each.number, each.slot, each.text, each.reasoning) for each in beats] == [
        (0, "0", "Let me see.", "Hm."),
        (1, "2", "", ""),
    ]
    assert (beats[0].usage.total_tokens, beats[0].model, beats[0].cost) == (15, "m", 0.5)
    one, two = beats[0].calls
    assert (one.name, one.intention, one.written, one.args, one.slot) == (
        "look",
        "see it",
        {"order": "A"},
        {"order": "A"},
        "1.0",
    )
    assert one.result is not None
    assert (one.result.content, one.result.is_error) == ("order A", False)
    assert two.result is not None
    assert two.result.is_error
    assert "no such order" in str(two.result.content)
    [ending] = beats[1].calls
    assert (ending.name, ending.written, ending.begun, ending.result) == (
        "finish",
        {"answer": "done"},
        False,
        None,
    )


def test_what_a_person_changed_stands_beside_what_the_model_wrote() -> None:
    written = {"name": "refund", "args": {"order": "A", "euros": "30"}}
    [first, _] = told(
        agent(),
        [written, finish()],
        decide=lambda asked: asked.approve(euros=12.0).signed("ann", "web"),
    )
    [call] = first.calls
    assert call.args == {"order": "A", "euros": 12.0}
    assert call.changes == {"euros": ("30", 12.0)}
    [decision] = call.decisions
    assert (decision.kind, decision.by, decision.via) == ("edit", "ann", "web")
    assert call.result is not None
    assert call.result.content == "refunded 12 of A"


def test_a_denied_call_has_its_decision_and_no_result() -> None:
    [first, _] = told(
        agent(),
        [{"name": "refund", "args": {"order": "A"}}, finish()],
        decide=lambda asked: asked.deny("no"),
    )
    [call] = first.calls
    assert (call.begun, call.result, [each.text for each in call.decisions], call.is_past) == (
        False,
        None,
        ["no"],
        True,
    )


def test_equal_calls_of_one_answer_are_told_apart_by_their_ids() -> None:
    calls = [
        {"name": "refund", "args": {"order": "A"}},
        {"name": "look", "args": {"order": "A"}},
        {"name": "refund", "args": {"order": "A"}},
    ]
    decide = lambda asked: (  # noqa: E731
        asked.deny("one is enough") if asked.call.id == "call_0" else asked.approve()
    )
    [first, _] = told(agent(), [calls, finish()], decide=decide)
    assert [each.name for each in first.calls] == ["refund", "look", "refund"]
    assert [[one.kind for one in each.decisions] for each in first.calls] == [
        ["deny"],
        [],
        ["approve"],
    ]
    assert [each.result is not None for each in first.calls] == [False, True, True]


def test_calls_written_as_text_have_no_arguments_of_the_models() -> None:
    [first, *_] = told(agent(calls="prompted"), ["I look.\nlook(order='A')", finish()])
    [call] = first.calls
    assert (call.written, call.args, call.changes) == (None, {"order": "A"}, {})


def test_what_an_agent_inside_a_call_did_is_folded_into_the_call() -> None:
    """Slots with `/`."""
    inner = ReAct(
        "question -> answer",
        [look],
        lm=ScriptedLM([{"name": "look", "args": {"order": "B"}}, finish("inside")]),
    )
    outer = agent(inner.as_tool(name="ask", description="Ask."))
    beats = told(outer, [{"name": "ask", "args": {"question": "q"}}, finish()])
    assert len(beats) == 2
    [call] = beats[0].calls
    assert call.result is not None
    assert call.result.content == "inside"
    assert [(each.number, each.owner, each.program) for each in call.inside] == [
        (0, call.key, ""),
        (1, call.key, ""),
    ]
    assert call.inside[0].calls[0].result is not None


def test_predictors_of_a_module_are_named() -> None:
    class Two(Module):
        def __init__(self) -> None:
            self.first, self.second = Predict("task -> answer"), Predict("task -> answer")

        def forward(self, task: str) -> Any:
            self.first(task=task)
            self.second(task=task)
            return self.first(task=task)

    beats = told(Two(), ScriptedLM(by=lambda request: {"outputs": {"answer": "x"}}))
    assert [each.program for each in beats] == ["Predict", "Predict", "Predict"]
    assert [each.owner for each in beats] == ["", "", ""]


def test_failures_and_limits_are_turns() -> None:
    [failed] = story([Entry("0", "failure", "digest", UnavailableError("away"))])
    assert failed.error == "UnavailableError: away"
    beats = told(
        agent(on_limit="extract"),
        ScriptedLM(
            by=lambda request: Response(
                None,
                (ToolCall(name="look", args={"order": "A"}),),
                usage=Usage(10, 0),
            ),
        ),
        limits=Limits(tokens=15),
    )
    assert any("tokens=15" in each.limit for each in beats)


def test_times_are_those_of_the_entries_and_may_be_unknown() -> None:
    """A turn begins when the entry before it was written."""
    entries = entries_in(agent(), [{"name": "look", "args": {"order": "A"}}, finish()])
    first, second = story(entries, [10.0, 11.0, 14.0, 16.0])
    assert (first.begun_at, first.at, second.begun_at, second.at) == (None, 10.0, 14.0, 16.0)
    assert (first.calls[0].begun_at, first.calls[0].ended_at) == (11.0, 14.0)
    assert [each.at for each in story(entries)] == [None, None]
    assert [each.at for each in story(entries, [None, 1.0])] == [None, None]


def rich() -> list[Any]:
    inner = ReAct(
        "question -> answer",
        [look],
        lm=ScriptedLM([{"name": "look", "args": {"order": "B"}}, finish("inside")]),
    )
    lm = [
        [{"name": "ask", "args": {"question": "q"}}, {"name": "refund", "args": {"order": "A", "euros": "2"}}, {"name": "look", "args": {"order": "?"}}],
        {"name": "nope", "args": {}},
        finish(),
    ]  # fmt: skip
    return entries_in(
        agent(look, refund, inner.as_tool(name="ask", description="Ask.")),
        lm,
        decide=lambda asked: asked.approve(),
    )


RICH = rich()


@given(st.integers(0, len(RICH)))
def test_a_story_that_grew_is_the_story_of_the_whole(cut: int) -> None:
    """`add` gives the same as telling it at once, and names the beat that it changed."""
    grown = Story()
    for number, entry in enumerate(RICH[:cut]):
        beat = grown.add(entry, float(number))
        assert beat is None or beat.first <= number
    assert tuple(grown.beats) == story(RICH[:cut], [float(number) for number in range(cut)])
    assert grown.entries == cut


@given(st.permutations(RICH))
def test_no_order_of_entries_breaks_it(entries: list[Any]) -> None:
    """Calls of one answer end in any order; and a damaged journal is still shown."""
    beats = story(entries)
    firsts = [each.first for each in _all(beats)]
    assert len(firsts) == len(set(firsts))


def test_a_message_to_the_run_is_a_beat_where_it_was_read() -> None:
    """And no decision on a call."""
    store = MemoryStore()

    @tool
    def tell(ctx: Context) -> str:
        """Tell the run something."""
        store.say(ctx.run_id, "Refund it all.", by="ann")
        return "told"

    agent = ReAct("task -> answer", [tell, refund])
    steps = [{"name": "tell", "args": {}}, {"name": "refund", "args": {"order": "A"}}, finish()]
    with context(lm=ScriptedLM(steps)):
        run = agent.start(task="x", store=store, run_id="r")
        run.answer(run.pending[0].approve())
        run.resume()
    beats = story(entries_of(store, "r"))
    assert [beat.message and beat.message.text for beat in beats] == [
        None,
        "Refund it all.",
        None,
        None,
    ]
    assert [decision.kind for decision in beats[2].calls[0].decisions] == ["approve"]


def _all(beats: Any) -> list[Beat]:
    return [
        found
        for beat in beats
        for found in (beat, *(each for call in beat.calls for each in _all(call.inside)))
    ]


@pytest.mark.parametrize("count", [50, 2_000])
def test_an_entry_costs_the_same_early_and_late(count: int) -> None:
    """Nothing in a story is walked again when it grows."""
    grown, steps = Story(), 0
    pair = entries_in(agent(), [{"name": "look", "args": {"order": "A"}}, finish()])[:3]

    def numbered(entry: Any, turn: int) -> Any:
        act = turn * 2 + (entry.kind != "model")
        return type(entry)(
            f"{act}.0" if entry.kind != "model" else str(act),
            entry.kind,
            entry.question,
            entry.value,
        )

    for turn in range(count):
        for entry in pair:
            grown.add(numbered(entry, turn))
    import sys

    def count_lines(frame: Any, event: str, arg: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count_lines

    before = sys.gettrace()
    sys.settrace(count_lines)
    for entry in pair:
        grown.add(numbered(entry, count))
    sys.settrace(before)
    assert steps < 250
