"""Bounds of one tool: `Limits(per_tool=)` counts its calls, `@tool(retries=)` the model's mistakes."""

from __future__ import annotations

from typing import Any

import pytest

import ferrule
from ferrule import (
    Grant,
    Limits,
    ReAct,
    Run,
    Tool,
    Toolbox,
    ToolRetry,
    tool,
)
from ferrule.errors import ConfigurationError, ToolDefinitionError
from ferrule.testing import ScriptedLM

RAN: list[str] = []


@tool(effect="read")
def search(query: str) -> str:
    """Search."""
    RAN.append(query)
    return f"found {query}"


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


def searching(*queries: str) -> list[dict[str, Any]]:
    return [{"name": "search", "args": {"query": query}} for query in queries]


FINISH: dict[str, Any] = {"name": "finish", "args": {"answer": "done"}}
LOOK: dict[str, Any] = {"name": "look", "args": {}}


def contents(lm: ScriptedLM) -> list[str]:
    return [each.text for each in lm.requests[-1].messages if each.role == "tool"]


def run(*turns: Any, tools: Any = (search, look), **options: Any) -> tuple[Any, list[str]]:
    """A run of an agent that may search twice, and what its model read."""
    RAN.clear()
    lm = ScriptedLM([*turns, FINISH])
    options = {"limits": Limits(per_tool={"search": 2}), "native": True, **options}
    with ferrule.context(lm=lm):
        made = ReAct("question -> answer", tools, **options).start(question="?")
    assert made.error is None, made.error
    return made, contents(lm)


def test_calls_beyond_the_bound_do_not_run_and_the_run_goes_on() -> None:
    _, read = run(*searching("a", "b", "c"), LOOK)
    assert RAN == ["a", "b"]
    assert read[0].startswith("(Calls of `search` left: 1 of 2.)\nfound a")
    assert read[1].startswith("(Calls of `search` left: 0 of 2.)\nfound b")
    assert "was not run" in read[2]
    assert read[3] == "seen"


def test_calls_of_one_step_are_counted_in_their_order() -> None:
    _, read = run([*searching("a", "b"), LOOK, *searching("c")])
    assert RAN.count("c") == 0
    assert sorted(RAN) == ["a", "b"]
    assert [text.partition(" ")[0] for text in read] == ["(Calls", "(Calls", "seen", "Call"]


def test_a_call_that_did_not_run_counts_for_no_limit() -> None:
    limits = Limits(per_tool={"search": 1}, tool_calls=3)
    made, read = run(*searching("a", "b", "c"), LOOK, limits=limits, on_limit="extract")
    assert RAN == ["a"]
    assert read[-1] == "seen"
    assert made.prediction.reason is None


def test_an_agent_that_is_a_tool_counts_for_the_agent_around_it() -> None:
    inner = ReAct("topic -> answer", [search], native=True, name="inner")
    call = {"name": "inner", "args": {"topic": "t"}}
    made, read = run(
        *searching("a"),
        call,
        *searching("b", "c"),  # of the inner agent
        FINISH,
        *searching("d"),
        tools=[search, inner.as_tool()],
    )
    assert RAN == ["a", "b"]
    assert "was not run" in read[-1]
    del made


def test_the_tightest_bound_holds() -> None:
    with ferrule.context(limits=Limits(per_tool={"search": 1})):
        run(*searching("a", "b"))
    assert RAN == ["a"]


def test_code_that_calls_tools_is_bounded_and_reads_what_is_left() -> None:
    pytest.importorskip("pydantic_monty")
    code = (
        "for query in ['a', 'b', 'c']:\n"
        "    try:\n"
        "        print(await search(query=query))\n"
        "    except Exception as error:\n"
        "        print('no', error)\n"
    )
    _, [read] = run({"name": "run_code", "args": {"code": code}}, native=None, calls="code")
    assert RAN == ["a", "b"]
    assert "no" in read
    assert "(Calls of `search` left: 1 of 2.)" in read
    assert "found a" in read


@pytest.mark.parametrize("waits_after", [0, 1, 2])
def test_a_resumed_run_counts_the_same(waits_after: int, any_store: Any) -> None:
    RAN.clear()

    @tool(require_confirmation=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    queries = searching("a", "b", "c")
    queries.insert(waits_after, {"name": "pay", "args": {}})
    store = any_store
    program = ReAct(
        "question -> answer",
        [search, pay],
        native=True,
        limits=Limits(per_tool={"search": 2}),
    )
    with ferrule.context(lm=ScriptedLM(queries[: waits_after + 1])):
        waiting = program.start(question="?", store=store)
    loaded = Run.load(store, waiting.id, program)
    loaded.answer(loaded.pending[0].approve())
    lm = ScriptedLM([*queries[waits_after + 1 :], FINISH])
    with ferrule.context(lm=lm):
        loaded.resume()
    assert loaded.error is None
    assert RAN == ["a", "b"]
    whole = [step.results[0].content for step in loaded.trajectory.steps if step.calls]
    with ferrule.context(lm=ScriptedLM([])):
        again = Run.load(store, waiting.id, program)
        assert [step.results[0].content for step in again.trajectory.steps if step.calls] == whole


def test_a_resumed_run_counts_what_an_agent_inside_has_called(any_store: Any) -> None:
    """The agent has ended: a replay uses its result, and what the run recorded of its calls."""
    RAN.clear()

    @tool(require_confirmation=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    inner = ReAct("topic -> answer", [search], native=True, name="inner")
    program = ReAct(
        "question -> answer",
        [search, inner.as_tool(), pay],
        native=True,
        limits=Limits(per_tool={"search": 2}),
    )
    store = any_store
    script = [
        {"name": "inner", "args": {"topic": "t"}},
        *searching("a"),  # of the inner agent
        FINISH,
        {"name": "pay", "args": {}},
    ]
    with ferrule.context(lm=ScriptedLM(script)):
        waiting = program.start(question="?", store=store)
    loaded = Run.load(store, waiting.id, program)
    loaded.answer(loaded.pending[0].approve())
    with ferrule.context(lm=ScriptedLM([*searching("b", "c"), FINISH])):
        loaded.resume()
    assert loaded.error is None
    assert RAN == ["a", "b"]


def test_a_run_resumed_with_a_larger_bound_calls_again(any_store: Any) -> None:
    RAN.clear()
    store = any_store
    program = ReAct(
        "question -> answer", [search], native=True, limits=Limits(per_tool={"search": 1}, steps=2)
    )
    with ferrule.context(lm=ScriptedLM(searching("a", "b"))):
        stopped = program.start(question="?", store=store)
    assert RAN == ["a"]
    loaded = Run.load(store, stopped.id, program)
    with ferrule.context(lm=ScriptedLM([*searching("c"), FINISH])):
        loaded.resume(limits=Limits(per_tool={"search": 2}))
    assert loaded.error is None
    assert RAN == ["a", "c"]


# -- calls over a limit that need a person


def answer_or_finish(request: Any) -> Any:
    """The end of a run: at a limit of all calls, the outputs are extracted."""
    return FINISH if request.tools else {"outputs": {"answer": "done", "reasoning": ""}}


def paying(*euros: int) -> list[dict[str, Any]]:
    return [{"name": "pay", "args": {"euros": each}} for each in euros]


def payer(limits: Limits) -> ReAct[Any]:
    RAN.clear()

    @tool(require_confirmation=lambda args: args["euros"] > 1)
    def pay(euros: int) -> str:
        """Pay."""
        RAN.append(f"paid {euros}")
        return "paid"

    return ReAct("question -> answer", [pay], native=True, limits=limits, on_limit="extract")


def refusals(run: Any) -> list[str]:
    results = [result for step in run.trajectory.steps for result in step.results]
    return [result.text for result in results if "was not run" in result.text]


@pytest.mark.parametrize("limits", [Limits(per_tool={"pay": 1}), Limits(tool_calls=1)])
@pytest.mark.parametrize("euros", [[1, 5], [5, 1]])
def test_no_person_is_asked_about_a_call_that_a_limit_refuses(
    limits: Limits, euros: list[int], any_store: Any
) -> None:
    program = payer(limits)
    with ferrule.context(lm=ScriptedLM([paying(*euros), answer_or_finish])):
        made = program.start(question="?", store=any_store)
    assert made.pending == ()
    assert RAN == ["paid 1"]
    assert len(refusals(made)) == 1
    with ferrule.context(lm=ScriptedLM([])):
        again = Run.load(any_store, made.id, program)
        assert refusals(again) == refusals(made)
        assert again.status == "done"


def test_no_person_is_asked_about_a_later_call_over_the_limit(any_store: Any) -> None:
    program = payer(Limits(per_tool={"pay": 1}))
    with ferrule.context(lm=ScriptedLM([*paying(1, 5), FINISH])):
        made = program.start(question="?", store=any_store)
    assert made.status == "done", made.error
    assert len(refusals(made)) == 1


@pytest.mark.parametrize("is_approved", [True, False])
def test_calls_that_wait_take_no_place_in_a_limit(*, is_approved: bool, any_store: Any) -> None:
    """Both are asked about, as the first may be denied; once it has run, the other is refused."""
    program = payer(Limits(per_tool={"pay": 1}))
    with ferrule.context(lm=ScriptedLM([paying(5, 6)])):
        waiting = program.start(question="?", store=any_store)
    first, second = waiting.pending
    waiting = Run.load(any_store, waiting.id, program)
    waiting.answer(first.approve() if is_approved else first.deny())
    with ferrule.context(lm=ScriptedLM([FINISH])):
        waiting.resume()
    if not is_approved:
        assert [question.id for question in waiting.pending] == [second.id]
        waiting = Run.load(any_store, waiting.id, program)
        waiting.answer(second.approve())
        with ferrule.context(lm=ScriptedLM([FINISH])):
            waiting.resume()
    assert waiting.status == "done", waiting.error
    if is_approved:
        assert RAN == ["paid 5"]
    else:
        assert RAN == ["paid 6"]
    with ferrule.context(lm=ScriptedLM([])):
        again = Run.load(any_store, waiting.id, program)
        assert refusals(again) == refusals(waiting)


def test_a_call_that_a_limit_refuses_uses_up_no_grant(any_store: Any) -> None:
    program = payer(Limits(per_tool={"pay": 1}))
    with ferrule.context(lm=ScriptedLM(paying(5))):
        waiting = program.start(question="?", store=any_store)
    waiting.answer(waiting.pending[0].approve(always=Grant(args="any", calls=1)))
    with ferrule.context(lm=ScriptedLM([*paying(6), FINISH])):
        waiting.resume()
    assert waiting.status == "done", waiting.error
    assert RAN == ["paid 5"]
    assert len(refusals(waiting)) == 1
    assert not any(decision.via.startswith("grant:") for decision in waiting.decisions)
    with ferrule.context(lm=ScriptedLM([])):
        assert refusals(Run.load(any_store, waiting.id, program)) == refusals(waiting)


def test_a_question_of_the_model_is_asked_at_any_limit() -> None:
    """The answer of the person is the result of the call, which runs nothing."""
    asking = {"name": "user_clarification", "args": {"question": "Which one?"}}
    program = ReAct(
        "question -> answer",
        [search],
        native=True,
        limits=Limits(tool_calls=1),
        enable_user_clarification=True,
    )
    with ferrule.context(lm=ScriptedLM([[*searching("a"), asking]])):
        waiting = program.start(question="?")
    assert [question.kind for question in waiting.pending] == ["clarify"]


def test_a_name_that_no_tool_has_is_an_error_at_definition() -> None:
    with pytest.raises(ConfigurationError, match=r"'serach_the_web'.*search"):
        ReAct("question -> answer", [search], limits=Limits(per_tool={"serach_the_web": 1}))
    agent = ReAct("question -> answer", [search])
    with ferrule.context(lm=ScriptedLM([FINISH])):
        made = agent.start(question="?", limits=Limits(per_tool={"serach_the_web": 1}))
    assert isinstance(made.error, ConfigurationError)
    shelf = Toolbox([look], shelf=[Tool(search.func, "on_the_shelf")])
    ReAct("question -> answer", shelf, limits=Limits(per_tool={"on_the_shelf": 1}))


@pytest.mark.parametrize(
    "wrong", [{"search": 0}, {"search": 1.5}, {"search": True}, {1: 2}, 5, "x"]
)
def test_anything_but_numbers_by_name_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="per_tool"):
        Limits(per_tool=wrong)


# -- retries


@pytest.mark.parametrize("native", [True, False])
def test_a_tool_that_was_called_wrong_too_often_is_not_run_any_more(*, native: bool) -> None:
    @tool(retries=1)
    def book(seat: int) -> str:
        """Book a seat."""
        RAN.append(str(seat))
        if seat < 3:
            raise ToolRetry("That seat is taken.")
        return "booked"

    def booking(*seats: Any) -> list[dict[str, Any]]:
        return [{"name": "book", "args": {"seat": seat}} for seat in seats]

    made, _ = run(*booking(1, 2, 3), LOOK, tools=[book, look], limits=None, native=native)
    results = [step.results[0] for step in made.trajectory.steps[:4]]
    assert RAN == ["1", "2"]
    assert "(Tries of `book` left: 1 of 1.)\nThat seat is taken." in results[0].text
    assert "left: 0 of 1" in results[1].text
    assert results[2].text.startswith("Call to `book` was not run")
    assert results[3].text == "seen"
    # Arguments that do not fit count, and a call that succeeds begins anew.
    made, _ = run(*booking("x", 5, 1, 6), tools=[book, look], limits=None, native=native)
    assert RAN == ["5", "1", "6"]
    assert [step.results[0].is_error for step in made.trajectory.steps[:4]] == [
        True,
        False,
        True,
        False,
    ]


def test_an_exception_of_the_tool_is_not_a_mistake_of_the_model() -> None:
    @tool(retries=0)
    def fragile() -> str:
        """Break."""
        RAN.append("x")
        raise OSError("the service is down")

    call: dict[str, Any] = {"name": "fragile", "args": {}}
    run(call, call, tools=[fragile, look], limits=None)
    assert RAN == ["x", "x"]


def test_a_resumed_run_counts_mistakes_the_same(any_store: Any) -> None:
    RAN.clear()

    @tool(retries=0)
    def book(seat: int) -> str:
        """Book a seat."""
        RAN.append(str(seat))
        raise ToolRetry("That seat is taken.")

    @tool(require_confirmation=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    store = any_store
    program = ReAct("question -> answer", [book, pay], native=True)
    call: dict[str, Any] = {"name": "book", "args": {"seat": 1}}
    with ferrule.context(lm=ScriptedLM([call, {"name": "pay", "args": {}}])):
        waiting = program.start(question="?", store=store)
    loaded = Run.load(store, waiting.id, program)
    loaded.answer(loaded.pending[0].approve())
    with ferrule.context(lm=ScriptedLM([call, FINISH])):
        loaded.resume()
    assert loaded.error is None
    assert RAN == ["1"]
    # A version of the tool without the bound reads the same run.
    lenient = book.model_copy(update={"retries": None})
    with ferrule.context(lm=ScriptedLM([])):
        again = Run.load(
            store, waiting.id, ReAct("question -> answer", [lenient, pay], native=True)
        )
        assert again.trajectory.steps[2].results[0].is_error
    assert RAN == ["1"]


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", True])
def test_anything_but_a_number_of_retries_is_refused(wrong: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="retries"):
        Tool(look.func, "again", retries=wrong)
