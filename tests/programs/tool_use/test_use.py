"""From calls as a model wrote them to results (`programs/tool_use/use.py`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ferrule import (
    MemoryStore,
    Question,
    ReAct,
    Response,
    Run,
    Tool,
    ToolCall,
    ToolCalls,
    context,
    tool,
)
from ferrule.events import CallFinished, CallStarted, Migrated
from ferrule.testing import ScriptedLM

RAN: list[int] = []
LOSSY, HARMLESS = '{"n": 5}}', "{'n': 5,}"
DONE = Response(None, (ToolCall(name="finish", args={"answer": "x"}),))


def pay(n: int) -> str:
    """Pay."""
    RAN.append(n)
    return "paid"


def started(made: Tool, *written: str) -> Any:
    RAN.clear()
    calls = tuple(
        ToolCall.read({"name": "pay", "arguments": each, "id": f"c{at}"})
        for at, each in enumerate(written)
    )
    return ReAct("question -> answer", [made], native=True).start(
        question="q",
        lm=ScriptedLM([Response(None, calls), DONE]),
    )


@pytest.mark.parametrize("others", [(), (HARMLESS,)], ids=["alone", "beside another"])
def test_a_call_that_lost_a_part_asks_first_where_it_must_happen_once(
    others: tuple[str, ...],
) -> None:
    """L11, api.md 7: only where the tool says `effect="once"` itself."""
    run = started(tool(effect="once")(pay), LOSSY, *others)
    [question] = run.pending
    assert "dropped to read this call (extra_closing_brace)" in question.text
    assert len(RAN) == len(others)
    run.answer(question.approve())
    run.resume()
    assert len(RAN) == 1 + len(others)


def test_nobody_is_asked_about_other_repairs_or_tools() -> None:
    """A repair that only rewrites is no loss, and `once` that is taken for granted was not said."""
    assert (started(tool(effect="once")(pay), HARMLESS).status, RAN) == ("done", [5])
    assert (started(Tool(pay), LOSSY).status, RAN) == ("done", [5])
    assert (started(tool(effect="idempotent")(pay), LOSSY).status, RAN) == ("done", [5])


def test_what_was_said_of_an_effect_survives_a_copy() -> None:
    for made, said in (
        (Tool(pay), False),
        (Tool(pay, effect="once"), True),
        (Tool(pay, effect="read"), False),
    ):
        assert made.says_once is said
        assert made.model_copy(update={"name": "other"}).says_once is said


def forecast(city: str, days: int = 1) -> str:
    """Forecast the weather."""
    return f"{city}: {days}"


def test_a_number_for_text_and_null_for_a_default_are_repairs_that_everybody_sees() -> None:
    """In the result of every way to call, and in events and stored runs."""
    named = ("number_to_string", "null_as_default")
    call = ToolCall(name="forecast", args={"city": 5, "days": None}, id="c")
    seen: list[Any] = []
    store = MemoryStore()
    agent = ReAct("question -> answer", [forecast], native=True)
    with context(callbacks=[seen.append], lm=ScriptedLM([Response(None, (call,)), DONE])):
        run = agent.start(question="q", store=store)
    [result] = run.trajectory.steps[0].results
    assert (result.content, result.repairs) == ("5: 1", named)
    assert [
        event.call.repairs for event in seen if isinstance(event, (CallStarted, CallFinished))
    ] == [named, named]
    with context(lm=ScriptedLM([])):
        assert Run.load(store, run.id, agent).trajectory.steps[0].results[0].repairs == named
    made = Tool(forecast)
    assert made.call_result(city=5, days=None).repairs == named
    assert ToolCalls(tool_calls=[call]).execute_all([made])[0].repairs == named
    assert asyncio.run(ToolCalls(tool_calls=[call]).aexecute_all([made]))[0].repairs == named


def quote(price: str, weights: list[str], count: float = 1) -> str:
    """Quote a price."""
    return f"{price} {weights} {count}"


DIGITS = '{"price": 3.10, "weights": [1e3, 0.10], "count": 2.50}'
QUOTED = "3.10 ['1e3', '0.10'] 2.5"
STEP = f'{{"next_thought": "t", "next_tool_name": "quote", "next_tool_args": {DIGITS}}}'
FIELDS = f"""[[ ## next_thought ## ]]
t

[[ ## next_tool_name ## ]]
quote

[[ ## next_tool_args ## ]]
{DIGITS}"""
IN_TAGS = f'<tool_call>{{"name": "quote", "arguments": {DIGITS}}}</tool_call>'
NATIVE = Response(None, (ToolCall.read({"name": "quote", "arguments": DIGITS}),))
ANSWERS: dict[str, tuple[bool, Any]] = {
    "native": (True, NATIVE),
    "rescued": (True, IN_TAGS),
    "prompted, fields": (False, FIELDS),
    "prompted, JSON": (False, STEP),
    "prompted, own form": (False, IN_TAGS),
}


@pytest.mark.parametrize("way", ANSWERS)
def test_a_number_for_text_keeps_the_digits_that_the_model_wrote(way: str) -> None:
    """Also in a run that waited, and was continued by another process."""
    native, answer = ANSWERS[way]
    store = MemoryStore()
    agent = ReAct("question -> answer", [tool(require_confirmation=True)(quote)], native=native)
    with context(lm=ScriptedLM([answer])):
        run = agent.start(question="q", store=store)
    [question] = Run.load(store, run.id, agent).pending
    assert question.call.args["price"] == "3.10"
    question.approve()
    seen: list[Any] = []
    with context(
        lm=ScriptedLM([Response("done")] if native else ["[[ ## x"]), callbacks=[seen.append]
    ):
        loaded = Run.load(store, run.id, agent)
        [question] = loaded.pending
        loaded.answer(question.approve())
        loaded.resume()
    [result, *_] = loaded.trajectory.steps[0].results
    assert result.content == QUOTED
    assert [event for event in seen if isinstance(event, Migrated)] == []


def test_a_number_for_a_text_output_of_finish_keeps_its_digits() -> None:
    finish = ToolCall.read({"name": "finish", "arguments": '{"price": 3.10, "count": 2.50}'})
    with context(lm=ScriptedLM([Response(None, (finish,))])):
        prediction = ReAct("question -> price, count: float", [quote], native=True)(question="q")
    assert dict(prediction) == {"price": "3.10", "count": 2.5}


@pytest.mark.parametrize("functions", [[Tool(quote)], {"quote": Tool(quote)}])
def test_a_call_that_is_executed_directly_keeps_the_digits(functions: Any) -> None:
    call = ToolCall.read({"name": "quote", "arguments": DIGITS})
    assert call.args == {"price": 3.1, "weights": [1000.0, 0.1], "count": 2.5}
    assert {type(value) for value in call.args.values()} == {float, list}
    assert call.execute(functions) == QUOTED
    assert asyncio.run(call.aexecute(functions)) == QUOTED
    for results in (
        ToolCalls(tool_calls=[call]).execute_all(functions),
        asyncio.run(ToolCalls(tool_calls=[call]).aexecute_all(functions)),
    ):
        assert [result.content for result in results] == [QUOTED]


def test_values_of_any_type_are_plain_floats() -> None:
    """Programs may write them with encoders that take only Python's own types."""
    kinds: list[type] = []

    def note(anything: Any, fields: dict[str, Any], rest: list[Any] | None = None) -> str:
        kinds.extend([type(anything), type(fields["a"]), *map(type, rest or ())])
        return "noted"

    text = '{"anything": 3.10, "fields": {"a": 1e3}, "rest": [0.10], "more": 2.50}'
    call = ToolCall.read({"name": "note", "arguments": text.replace(', "more": 2.50', "")})
    assert call.execute([Tool(note)]) == "noted"
    assert kinds == [float] * 3


def test_repairs_of_the_text_come_before_those_of_the_arguments() -> None:
    call = ToolCall.read({"name": "forecast", "arguments": "{'city': 5,}", "id": "c"})
    run = ReAct("question -> answer", [forecast], native=True).start(
        question="q",
        lm=ScriptedLM([Response(None, (call,)), DONE]),
    )
    [result] = run.trajectory.steps[0].results
    assert result.repairs == ("single_quotes", "trailing_comma", "number_to_string")


def test_arguments_that_fit_need_no_repair() -> None:
    assert Tool(forecast).call_result(city="5", days=2).repairs == ()


def test_a_question_holds_the_schema_and_the_effect_of_its_tool() -> None:
    """A door without the program can show a form."""

    @tool(require_confirmation=True, effect="once")
    def pay(to: str, euros: float = 5.0) -> str:
        """Pay."""
        return to

    store = MemoryStore()
    with context(lm=ScriptedLM([{"name": "pay", "args": {"to": "Ada"}}])):
        ReAct("task -> answer", [pay]).start(task="x", store=store, run_id="r")
    [line] = store.list()
    [question] = line.questions
    assert question.schema == pay.declaration["function"]["parameters"]
    assert question.effect == "once"


def test_the_schema_is_no_part_of_what_a_decision_is_bound_to() -> None:
    """The fingerprint covers it."""
    call = ToolCall(name="pay", args={"euros": 3})
    assert (
        Question("confirm", "?", call).digest
        == Question("confirm", "?", call, schema={"type": "object"}, effect="read").digest
    )
