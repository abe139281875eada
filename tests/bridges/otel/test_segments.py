"""A run over several processes: each segment is a span, linked to the one before and to the first."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from otel_spans import Sent

from ferrule import MemoryStore, ReAct, Run, ScriptedLM, SQLiteStore, context, tool

PROGRAM = '''
import os, signal, sys
sys.path.insert(0, {tests!r})
from otel_spans import Sent
from ferrule import ReAct, Run, ScriptedLM, SQLiteStore, context, tool

path, how = sys.argv[1:]

@tool(effect="idempotent")
def step(number: int) -> int:
    """One step."""
    if how == "die" and number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number

@tool(require_confirmation=True)
def pay(euros: int) -> str:
    """Pay."""
    return "paid"

agent = ReAct("task -> answer", [step, pay], native=True)
sent = Sent()
store = SQLiteStore(path)
steps = [{{"name": "step", "args": {{"number": k}}}} for k in (1, 2)]
script = {{"die": steps, "wait": [{{"name": "pay", "args": {{"euros": 3}}}}], "end": [{{"name": "finish", "args": {{"answer": "x"}}}}]}}[how]
with context(callbacks=[sent.observer], lm=ScriptedLM(script)):
    if how == "die":
        agent.start(task="x", store=store, run_id="r")
    else:
        run = Run.load(store, "r", agent)
        for question in run.pending:
            run.answer(question.approve())
        run.resume()
        print(run.status)
for span in sent.spans:
    if span.name.startswith("invoke"):
        print(format(span.context.trace_id, "032x"), format(span.context.span_id, "016x"), span.attributes["ferrule.run.segment"],
              ",".join(format(link.context.span_id, "016x") for link in span.links))
'''


def kept(path: Path) -> dict[str, str]:
    store = SQLiteStore(path)
    notes = json.loads(store.load("r").head)["notes"]
    store.close()
    return notes


@pytest.mark.integration
def test_the_chain_of_segments_is_whole_after_a_kill(tmp_path: Path) -> None:
    """O12: what links the next segment was in the store before the process was killed."""
    code = PROGRAM.format(tests=str(Path(__file__).parents[2]))

    def process(how: str) -> list[str]:
        ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "r.db"), how], capture_output=True, text=True, check=False)
        assert ended.returncode == (-signal.SIGKILL if how == "die" else 0), ended.stderr
        return ended.stdout.splitlines()

    assert process("die") == []  # it sent nothing, not even its span
    notes = kept(tmp_path / "r.db")
    first = notes["traceparent"].split("-")[2]
    assert notes == {"traceparent": notes["traceparent"], "first_traceparent": notes["traceparent"], "segment": "1"}
    waiting, second = process("wait")
    trace, span, segment, links = second.split()
    assert (waiting, segment, links) == ("waiting", "2", first)
    assert kept(tmp_path / "r.db")["traceparent"].startswith(f"00-{trace}-{span}-")
    done, third = process("end")
    assert (done, *third.split()[2:]) == ("done", "3", f"{span},{first}")


def test_who_resumes_a_run_is_the_parent_of_its_segment() -> None:
    """O12: the segment is in the trace of the caller, or a new one."""
    sent = Sent()

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        return "paid"

    agent = ReAct("task -> answer", [pay], native=True)
    script: list[Any] = [{"name": "pay", "args": {"euros": 3}}, {"name": "finish", "args": {"answer": "x"}}]
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
