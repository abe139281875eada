"""From calls as a model wrote them to results (`programs/tool_use/use.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule import ReAct, Response, ScriptedLM, Tool, ToolCall, tool

RAN: list[int] = []
LOSSY, HARMLESS = '{"n": 5}}', "{'n': 5,}"
DONE = Response(None, (ToolCall(name="finish", args={"answer": "x"}),))


def pay(n: int) -> str:
    """Pay."""
    RAN.append(n)
    return "paid"


def started(made: Tool, *written: str) -> Any:
    RAN.clear()
    calls = tuple(ToolCall.read({"name": "pay", "arguments": each, "id": f"c{at}"}) for at, each in enumerate(written))
    return ReAct("question -> answer", [made], native=True).start(question="q", lm=ScriptedLM([Response(None, calls), DONE]))


@pytest.mark.parametrize("others", [(), (HARMLESS,)], ids=["alone", "beside another"])
def test_a_call_that_lost_a_part_asks_first_where_it_must_happen_once(others: tuple[str, ...]) -> None:
    """L11, api.md 7: only where the tool says `effect="once"` itself."""
    run = started(tool(effect="once")(pay), LOSSY, *others)
    [question] = run.pending
    assert "dropped to read this call (extra_closing_brace)" in question.text
    assert len(RAN) == len(others)
    run.answer(question.approve())
    run.resume()
    assert len(RAN) == 1 + len(others)


def test_nobody_is_asked_about_other_repairs_or_tools() -> None:
    """L11: a repair that only rewrites is no loss, and `once` that is taken for granted was not said."""
    assert (started(tool(effect="once")(pay), HARMLESS).status, RAN) == ("done", [5])
    assert (started(Tool(pay), LOSSY).status, RAN) == ("done", [5])
    assert (started(tool(effect="idempotent")(pay), LOSSY).status, RAN) == ("done", [5])


def test_what_was_said_of_an_effect_survives_a_copy() -> None:
    for made, said in ((Tool(pay), False), (Tool(pay, effect="once"), True), (Tool(pay, effect="read"), False)):
        assert made.says_once is said
        assert made.model_copy(update={"name": "other"}).says_once is said
