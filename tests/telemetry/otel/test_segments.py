"""Who resumes a run is the parent of its next span. (`test_golden_tree.py` shows a run over
processes.)
"""

from __future__ import annotations

from typing import Any

from otel_spans import Sent

from ferrule import MemoryStore, ReAct, Run, advance, context, tool
from ferrule.testing import ScriptedLM


def test_who_resumes_a_run_is_the_parent_of_its_segment() -> None:
    """The segment is in the trace of the caller, or a new one."""
    sent = Sent()

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        return "paid"

    agent = ReAct("task -> answer", [pay], native=True)
    script: list[Any] = [
        {"name": "pay", "args": {"euros": 3}},
        {"name": "finish", "args": {"answer": "x"}},
    ]
    tracer, store = sent.provider.get_tracer("mine"), MemoryStore()
    with context(callbacks=[sent.observer], lm=ScriptedLM(script)):
        with tracer.start_as_current_span("ask"):
            run_id = agent.start(task="x", store=store).id
        run = Run.load(store, run_id, agent)
        run.answer(run.pending[0].approve())
        with tracer.start_as_current_span("decide"):
            run.resume()
    assert [each[0] for each in sent.tree()] == ["ask", "decide"]
    first, second = [span for span in sent.spans if span.name == "invoke_agent ReAct"]
    assert first.context.trace_id != second.context.trace_id
    assert [link.context.span_id for link in second.links] == [first.context.span_id]


def test_the_segment_after_a_decision_is_linked_to_who_decided() -> None:
    """Each decider of the last rest, and no segment after it."""
    sent, store = Sent(), MemoryStore()

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        return "paid"

    agent = ReAct("task -> answer", [pay], native=True)
    pays: list[Any] = [
        [{"name": "pay", "args": {"euros": each}} for each in (1, 2)],
        {"name": "pay", "args": {"euros": 3}},
    ]
    tracer = sent.provider.get_tracer("mine")
    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM([*pays, {"name": "finish", "args": {"answer": "x"}}]),
    ):
        run_id = agent.submit(store=store, task="x")
        assert advance(store, run_id, agent) == "waiting"
        for who, question in zip(("ann", "bob"), store.summary(run_id).questions, strict=True):
            with tracer.start_as_current_span(who):
                store.decide(run_id, question.approve().signed(who))
        assert advance(store, run_id, agent) == "waiting"
        store.decide(run_id, store.summary(run_id).questions[0].approve())
        assert advance(store, run_id, agent) == "done"
    named = {span.context.span_id: span.name for span in sent.spans}
    segments = [span for span in sent.spans if span.name == "invoke_agent ReAct"]
    assert [[named[link.context.span_id] for link in span.links] for span in segments] == [
        [], ["invoke_agent ReAct", "ann", "bob"], ["invoke_agent ReAct"] * 2,
    ]  # fmt: skip


def test_the_first_segment_of_a_submitted_run_is_linked_to_who_submitted_it() -> None:
    """In the trace of the worker, not in that of the caller."""
    sent, agent, store = Sent(), ReAct("task -> answer", [], native=True), MemoryStore()
    tracer = sent.provider.get_tracer("mine")
    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM([{"name": "finish", "args": {"answer": "x"}}]),
    ):
        with tracer.start_as_current_span("request"):
            run_id = agent.submit(store=store, task="x")
        assert advance(store, run_id, agent) == "done"
    request, segment = [
        next(span for span in sent.spans if span.name == name)
        for name in ("request", "invoke_agent ReAct")
    ]
    assert segment.parent is None
    assert [link.context.span_id for link in segment.links] == [request.context.span_id]
