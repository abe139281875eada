"""Long results: what the model sees of them, and what it reads later (`tools/read_result.py`)."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import ferrule
from ferrule import (
    Context,
    Image,
    Later,
    Limits,
    Predict,
    ReAct,
    Run,
    Tool,
    Toolbox,
    module_callback,
    tool,
)
from ferrule.errors import DuplicateToolError, ToolDefinitionError
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.compact import estimate_messages


def numbered_lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(count))


TEXT = numbered_lines(20_000)
"""Over 200 KB."""
CALLS = [0]


@tool(effect="read")
def fetch(url: str = "") -> str:
    """Fetch a page."""
    CALLS[0] += 1
    return TEXT


def print_it(text: str) -> str:
    """A function that can be pickled."""
    return text


def read(**args: Any) -> dict[str, Any]:
    return {"name": "read_result", "args": args}


FETCH: dict[str, Any] = {"name": "fetch", "args": {}}
FINISH: dict[str, Any] = {"name": "finish", "args": {"answer": "done"}}


def run(*turns: Any, tools: Any = (fetch,), spill_over: int = 20_000, **options: Any) -> Any:
    """The run of an agent, and the contents of its results as the model saw them."""
    lm = ScriptedLM([*turns, FINISH])
    box = Toolbox(tools, spill_over=spill_over)
    program = ReAct("question -> answer", box, **{"native": True, **options})
    with ferrule.context(lm=lm):
        made = program.start(question="?")
    assert made.error is None
    last = lm.requests[-1].messages
    return made, [each.content for each in last if each.role == "tool"], lm


def test_ten_megabytes_cost_under_two_thousand_tokens_and_any_slice_is_readable() -> None:
    text = numbered_lines(1_000_000)
    assert len(text) > 10_000_000
    made, [excerpt, part, rest], lm = run(
        FETCH,
        read(call="call_0", start=5_000_000, length=30),
        read(call="call_0", start=len(text) - 5),
        tools=[Tool(lambda: text, "fetch", "Fetch.", effect="read")],
    )
    assert excerpt.endswith(text[-300:])
    assert text[:1_200] in excerpt
    assert "read_result(call='call_0', start=1200)" in excerpt
    assert part.endswith(text[5_000_000:5_000_030])
    assert rest == f"[Characters {len(text) - 5} to {len(text)} of {len(text)}.]\n{text[-5:]}"
    grown = estimate_messages(lm.requests[1].messages) - estimate_messages(lm.requests[0].messages)
    assert grown < 2_000
    assert made.trajectory.steps[0].results[0].content == text


def test_the_prompt_begins_the_same_from_the_first_request_on() -> None:
    _, _, lm = run(FETCH, read(call="call_0", start=10))
    first = lm.requests[0]
    assert [each["function"]["name"] for each in first.tools] == ["fetch", "read_result", "finish"]
    for request in lm.requests:
        assert list(request.tools) == list(first.tools)
        assert request.messages[: len(first.messages)] == first.messages[:]


@pytest.mark.parametrize("native", [True, False])
def test_a_result_of_a_script_that_takes_a_token_a_character_is_small_too(*, native: bool) -> None:
    dense = Tool(lambda: "字" * 1_000_000, "fetch", "Fetch.")
    _, _, lm = run(FETCH, tools=[dense], native=native)
    grown = estimate_messages(lm.requests[1].messages) - estimate_messages(lm.requests[0].messages)
    assert grown < 2_000


def test_a_result_that_fits_is_shown_whole() -> None:
    exact = Tool(lambda: "x" * 20_000, "fetch", "Fetch.")
    _, [content], _ = run(FETCH, tools=[exact])
    assert content == "x" * 20_000


@pytest.mark.parametrize("most", [1, 7, 1_000])
def test_a_smaller_limit_of_the_run_holds(most: int) -> None:
    small = Tool(lambda: "x" * 2_000, "fetch", "Fetch.")
    _, [content], _ = run(FETCH, tools=[small], limits=Limits(observation_chars=most))
    assert len(content) < 1_000


def test_a_text_is_found_where_it_occurs() -> None:
    _, contents, _ = run(
        FETCH,
        read(call="call_0", search="LINE 19999"),
        read(call="fetch", search="line 7", length=400),
        read(call="fetch", search="no such"),
    )
    place = TEXT.index("line 19999")
    assert f"[at {place}] " in contents[1]
    assert "line 19999" in contents[1]
    assert "more from start=" in contents[2]
    assert len(contents[2]) < 600
    assert "does not occur" in contents[3]


def test_a_slice_is_no_longer_than_a_result_may_be() -> None:
    _, contents, _ = run(FETCH, read(call="call_0", length=10**9), spill_over=1_000)
    assert contents[1].endswith(TEXT[:1_000])
    assert len(contents[1]) < 1_100


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"call": "lie"}, "'call_0' (fetch)"),
        ({"call": "call_0", "start": -1}, "counted from 0"),
        ({"call": "call_0", "start": 10**12}, f"{len(TEXT):,} characters"),
        ({"call": "call_0", "length": 0}, "length=0"),
        ({"call": "call_0", "part": 3}, "0 parts"),
        ({"call": "read_result"}, "'call_0' (fetch)"),
    ],
)
def test_a_wrong_call_is_an_error_that_says_what_there_is(args: Any, says: str) -> None:
    made, contents, _ = run(FETCH, read(**args))
    assert says in contents[1]
    assert made.trajectory.steps[1].results[0].is_fault


def test_a_call_before_any_result_says_that_there_is_none() -> None:
    _, [content], _ = run(read(call="call_0"))
    assert "none" in content


def test_a_slice_of_what_others_may_have_written_is_untrusted() -> None:
    theirs = Tool(lambda: TEXT, "fetch", "Fetch.", untrusted=True)
    made, _, _ = run(
        FETCH, read(call="call_0"), read(call="call_0", search="line 9"), tools=[theirs]
    )
    assert [step.results[0].untrusted for step in made.trajectory.steps[:3]] == [True] * 3
    made, _, _ = run(FETCH, read(call="call_0"))
    assert not made.trajectory.steps[1].results[0].untrusted


def test_a_large_picture_is_a_reference_until_it_is_read() -> None:
    large, small = Image(data="A" * 40_000), Image(data="B" * 400)

    @tool
    def look() -> list[Any]:
        """Look."""
        return ["a photo", large, small]

    _, [shown, seen], lm = run(
        {"name": "look", "args": {}}, read(call="look", part=1), tools=[look], native=True
    )
    assert large not in shown
    assert small in shown
    [number] = [part for part in lm.requests[1].messages[-1].text.split() if part == "1"]
    assert number == "1"
    assert large in seen


def test_only_the_calls_of_the_same_program_can_be_read() -> None:
    inner = ReAct("topic -> answer", Toolbox([fetch], spill_over=1_000), native=True, name="inner")
    lm = ScriptedLM(
        [
            FETCH,
            {"name": "inner", "args": {"topic": "t"}},
            read(call="call_0"),  # of the inner agent: the outer one has a call of this id
            FINISH,
            read(call="call_0", start=3, length=4),
            FINISH,
        ]
    )
    outer = ReAct(
        "question -> answer", Toolbox([fetch, inner.as_tool()], spill_over=1_000), native=True
    )
    with ferrule.context(lm=lm):
        made = outer.start(question="?")
    assert made.error is None
    [refused] = [each.text for each in lm.requests[3].messages if each.role == "tool"]
    assert "There is no result of a call 'call_0'" in refused
    assert lm.requests[5].messages[-1].text.endswith(TEXT[3:7])


def test_predict_with_tools_shows_and_reads_them_too() -> None:
    for native in (True, False):
        answer: Any = {"outputs": {"answer": "done"}}
        lm = ScriptedLM([FETCH, read(call="fetch", start=7, length=6), answer])
        program = Predict(
            "question -> answer", tools=Toolbox([fetch], spill_over=1_000), native=native
        )
        with ferrule.context(lm=lm):
            program(question="?")
        text = "\n".join(each.text for each in lm.requests[-1].messages)
        assert TEXT[7:13] in text
        assert "read_result(call=" in text
        assert len(text) < 10_000


def test_code_reads_results_by_the_name_of_their_tool() -> None:
    pytest.importorskip("pydantic_monty")
    code = "await fetch()\nprint(len(await read_result(call='fetch', start=0, length=50)))"
    lm = ScriptedLM([{"name": "run_code", "args": {"code": code}}, FINISH])
    program = ReAct("question -> answer", Toolbox([fetch], spill_over=1_000), calls="code")
    with ferrule.context(lm=lm):
        made = program.start(question="?")
    assert made.error is None
    said = [each.text for each in lm.requests[-1].messages if each.role == "tool"]
    assert "Error" not in said[0]


def test_a_run_in_another_process_reads_a_result_without_a_second_call(open_store: Any) -> None:
    @tool(require_confirmation=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    program = ReAct("question -> answer", Toolbox([fetch, pay], spill_over=1_000), native=True)
    CALLS[0] = 0
    with ferrule.context(lm=ScriptedLM([FETCH, {"name": "pay", "args": {}}])):
        waiting = program.start(question="?", store=open_store())
    again = open_store()
    loaded = Run.load(again, waiting.id, program)
    loaded.answer(loaded.pending[0].approve())
    lm = ScriptedLM([read(call="call_0", start=100_000, length=20), FINISH])
    with ferrule.context(lm=lm):
        loaded.resume()
    assert loaded.error is None
    assert lm.requests[-1].messages[-1].text.endswith(TEXT[100_000:100_020])
    assert CALLS[0] == 1
    with ferrule.context(lm=ScriptedLM([])):  # a replay asks no model, and runs no tool
        replayed = Run.load(again, waiting.id, program)
        assert replayed.trajectory.steps[0].results[0].content == TEXT
        assert replayed.trajectory.steps[2].results[0].content == lm.requests[-1].messages[-1].text
    assert CALLS[0] == 1


def test_a_result_from_outside_is_read_like_any_other(any_store: Any) -> None:
    @tool
    def build() -> str:
        """Build."""
        return Later(key="b", note="at work")  # pyright: ignore[reportReturnType]

    program = ReAct("question -> answer", Toolbox([build], spill_over=1_000), native=True)
    with ferrule.context(lm=ScriptedLM([{"name": "build", "args": {}}])):
        made = program.start(question="?", store=any_store)
    made.deliver("b", TEXT)
    lm = ScriptedLM([read(call="build", start=100, length=9), FINISH])
    with ferrule.context(lm=lm):
        made.resume()
    assert made.error is None
    assert len(lm.requests[0].messages[-1].text) < 1_500
    assert lm.requests[1].messages[-1].text.endswith(TEXT[100:109])


def test_the_reader_stays_when_a_callback_changes_the_tools() -> None:
    @tool
    def only_this() -> Any:
        """Change the tools."""

        @module_callback
        def change(context: Any) -> str:
            context.module.init_module(tools=[only_this])
            return "changed"

        return change

    _, contents, _ = run(
        FETCH,
        {"name": "only_this", "args": {}},
        read(call="call_0", start=1, length=3),
        tools=[fetch, only_this],
    )
    assert contents[2].endswith(TEXT[1:4])


def test_the_extractor_reads_excerpts() -> None:
    lm = ScriptedLM([FETCH, {"outputs": {"reasoning": "r", "answer": "done"}}])
    program = ReAct("question -> answer", Toolbox([fetch], spill_over=1_000), 1, native=True)
    with ferrule.context(lm=lm):
        program(question="?")
    assert len(str(lm.requests[-1].messages)) < 10_000


def test_a_toolbox_with_it_is_copied_pickled_and_made_again() -> None:
    box = Toolbox([fetch], spill_over=1_000)
    assert box.names == ("fetch", "read_result")
    assert Toolbox(box).spill_over == 1_000
    assert Toolbox(box) == box == copy.deepcopy(box)
    assert Toolbox(box, spill_over=2_000).names == ("fetch", "read_result")
    assert Toolbox([fetch]).spill_over is None
    plain = Toolbox([Tool(print_it, "length", "Length.")], spill_over=1_000)
    assert pickle.loads(pickle.dumps(plain)).spill_over == 1_000


@pytest.mark.parametrize("wrong", [0, 499, 1.5, "20k", True])
def test_anything_but_a_large_enough_number_is_refused(wrong: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="spill_over"):
        Toolbox([fetch], spill_over=wrong)


def test_a_tool_of_its_name_is_refused() -> None:
    with pytest.raises(DuplicateToolError):
        Toolbox([Tool(print_it, "read_result", "Mine.")], spill_over=1_000)


def test_a_direct_call_of_a_context_has_no_results() -> None:
    assert list(Context().results_here()) == []
