"""udspy's way of going on: `ResumeState`, `agent.resume`, `resume_state=`, and the helper loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any, cast

import pytest
from agent_script import fields, native_step
from pydantic import BaseModel, Field, SecretStr

import ferrule
from ferrule import (
    ChainOfThought,
    ConfirmationRequired,
    Decision,
    Image,
    InputError,
    InputField,
    MemoryStore,
    Module,
    OutputField,
    Predict,
    ReAct,
    Response,
    ResumeState,
    Run,
    RunError,
    Signature,
    ToolCall,
    arun_until_done,
    context,
    events,
    module_callback,
    respond_to_confirmation,
    run_until_done,
    tool,
)
from ferrule.errors import DecisionError
from ferrule.testing import ScriptedLM

DONE = native_step("done", "finish", {"answer": "ok"})
RAN: list[str] = []


@tool(require_confirmation=True)
def rm(path: str) -> str:
    """Remove."""
    RAN.append(path)
    if path == "missing":
        raise FileNotFoundError(path)
    return f"removed {path}"


@tool
def look(path: str) -> str:
    """Look."""
    RAN.append(f"look {path}")
    return path


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def call(path: str) -> Response:
    return Response("thinking", (ToolCall(name="rm", args={"path": path}, id=f"c_{path}"),))


def react() -> ReAct:
    return ReAct("task -> answer", [rm, look])


PROGRAMS = {
    "react": (react, DONE),
    "predict": (lambda: Predict("task -> answer", tools=[rm, look]), "ok"),
    "chain": (
        lambda: ChainOfThought("task -> answer", tools=[rm, look]),
        fields(reasoning="so", answer="ok"),
    ),
}


def asked(agent: Any, lm: ScriptedLM, **inputs: Any) -> ConfirmationRequired:
    with context(lm=lm), pytest.raises(ConfirmationRequired) as raised:
        agent(**(inputs or {"task": "x"}))
    return raised.value


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> tuple[Any, ScriptedLM]:
    make, last = PROGRAMS[request.param]
    return make(), ScriptedLM([call("a"), last])


def test_what_is_raised_carries_the_question_and_the_models_call_id(
    program: tuple[Any, ScriptedLM],
) -> None:
    error = asked(*program)
    assert error.question == 'Confirm execution of rm with args: {"path":"a"}? (yes/no)'
    assert (error.tool_call.name, error.tool_call.args, error.tool_call.id) == (
        "rm",
        {"path": "a"},
        "c_a",
    )
    assert error.tool_call.call_id == "c_a"
    assert error.confirmation_id
    assert error.context == {"trajectory": error.run.trajectory, "input_args": {"task": "x"}}
    assert RAN == []


def test_the_context_of_a_question_has_the_steps_so_far_and_the_inputs() -> None:
    """As udspy's callers read them; copies, so that the run stays what it is."""
    look_first = Response("looking", (ToolCall(name="look", args={"path": "a"}, id="c_l"),))
    error = asked(react(), ScriptedLM([look_first, call("a")]), task="x")
    assert [step.thought for step in error.context["trajectory"].steps] == ["looking"]
    assert error.context["trajectory"]["observation_0"] == "a"
    error.context["input_args"]["task"] = "y"
    assert error.run.inputs == {"task": "x"}


@pytest.mark.parametrize("make", [react, PROGRAMS["predict"][0]], ids=["react", "predict"])
def test_the_inputs_in_the_context_of_a_question_are_those_of_the_signature(make: Any) -> None:
    """A module callback sees them without the options of the call, too."""
    with pytest.raises(ConfirmationRequired) as raised:
        make()(task="x", lm=ScriptedLM([call("a")]), config={"temperature": 0.5})
    assert raised.value.context["input_args"] == {"task": "x"}


WAYS = {
    "resume": lambda agent, error: agent.resume("yes", error),
    "state": lambda agent, error: agent(resume_state=ResumeState(error, "yes")),
    "raw": lambda agent, error: agent(resume_state=error),
    "with_inputs": lambda agent, error: agent(task="x", resume_state=error),
    "run": lambda agent, error: agent.resume("y", error.run),
    "aresume": lambda agent, error: asyncio.run(agent.aresume("yes", error)),
    "acall": lambda agent, error: asyncio.run(agent.acall(resume_state=error)),
    "stream": lambda agent, error: streamed(agent.stream(resume_state=error)),
    "astream": lambda agent, error: asyncio.run(
        astreamed(agent.astream(resume_state=ResumeState(error))),
    ),
    "forward": lambda agent, error: agent.forward(task="x", resume_state=error),
    "aforward": lambda agent, error: asyncio.run(agent.aforward(resume_state=error)),
}


def streamed(stream: Any) -> Any:
    for _ in stream:
        pass
    return stream.prediction


async def astreamed(stream: Any) -> Any:
    async for _ in stream:
        pass
    return stream.prediction


@pytest.mark.parametrize("way", WAYS)
def test_a_run_goes_on_from_where_it_waited(program: tuple[Any, ScriptedLM], way: str) -> None:
    """The model is not asked again, the thought stays, inputs need not be repeated."""
    agent, lm = program
    error = asked(agent, lm)
    with context(lm=lm):
        found = WAYS[way](agent, error)
    assert found.answer == "ok"
    assert RAN == ["a"]
    assert len(lm.requests) == 2
    assert [found.trajectory[f"{each}_0"] for each in ("thought", "tool_name", "tool_args")] == [
        "thinking",
        "rm",
        {"path": "a"},
    ]
    assert found.trajectory["observation_0"] == "removed a"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_question_from_inside_a_tool_or_its_callback_is_no_observation(
    kind: str,
    is_async: bool,
) -> None:
    """No program takes it for a failure of the tool, and nothing runs."""

    def outer() -> str:
        """Remove by way of another tool."""
        return str(rm(path="a"))

    def load() -> Any:
        """Remove in a callback."""
        return module_callback(lambda _: rm(path="a"))

    for tool_ in (outer, load):
        program: Any = (
            ReAct("task -> answer", [tool_])
            if kind == "react"
            else type(PROGRAMS[kind][0]())("task -> answer", tools=[tool_])
        )
        calls = Response("", (ToolCall(name=tool_.__name__, args={}),))
        with (
            context(lm=ScriptedLM([calls])),
            pytest.raises(ConfirmationRequired, match="execution of rm"),
        ):
            asyncio.run(program.acall(task="x")) if is_async else program(task="x")
    assert RAN == []


@pytest.mark.parametrize(
    ("said", "ran", "observed"),
    [
        ("no", [], "decided against"),
        ("try b instead", [], "try b instead"),
        ('{"path": "b"}', ["b"], "removed b"),
        ('{"edit": {"name": "rm", "args": {"path": "b"}}}', ["b"], "removed b"),
        ('{"path": "missing"}', ["missing"], "FileNotFoundError"),
        (False, [], "decided against"),
    ],
    ids=["no", "feedback", "edit", "edit_form", "tool_fails", "false"],
)
def test_what_is_said_reaches_the_tool_or_the_model(
    said: Any,
    ran: list[str],
    observed: str,
) -> None:
    lm = ScriptedLM([call("a"), DONE])
    agent = react()
    error = asked(agent, lm)
    with context(lm=lm):
        found = agent.resume(said, error)
    assert ran == RAN
    assert observed in found.trajectory["observation_0"]
    assert found.trajectory["thought_0"] == "thinking"


def test_an_edit_that_does_not_fit_raises_again_and_nothing_runs() -> None:
    lm = ScriptedLM([call("a"), DONE])
    agent = react()
    error = asked(agent, lm)
    with context(lm=lm), pytest.raises(ConfirmationRequired, match="do not fit") as again:
        agent.resume({"path": {"no": "text"}}, error)
    with pytest.raises(DecisionError, match="changes nothing"):
        agent.resume("{}", again.value)
    assert RAN == []


def test_a_second_confirmation_raises_with_a_new_id_and_a_chain_of_them_ends() -> None:
    """A denial is for that call alone."""
    paths = ["a", "a", "b", "c"]
    lm = ScriptedLM([*map(call, paths), DONE])
    agent = react()
    error = asked(agent, lm)
    ids = [error.confirmation_id]
    with context(lm=lm):
        for said in ["no", "yes", "yes"]:
            with pytest.raises(ConfirmationRequired) as raised:
                agent.resume(said, error)
            error = raised.value
            ids.append(error.confirmation_id)
        assert agent.resume("yes", error).answer == "ok"
    assert len(set(ids)) == 4
    assert RAN == ["a", "b", "c"]


def test_resuming_twice_does_not_run_the_call_twice() -> None:
    lm = ScriptedLM([call("a"), DONE])
    agent = react()
    error = asked(agent, lm)
    with context(lm=lm):
        first = agent.resume("yes", error)
        assert agent.resume("yes", error) is first
        with pytest.raises(DecisionError, match="decided already"):
            agent.resume("no", error)
    assert RAN == ["a"]


def test_a_decision_made_by_id_before_is_gone_on_with() -> None:
    """Decided elsewhere, resumed here."""
    lm = ScriptedLM([call("a"), DONE])
    agent = react()
    error = asked(agent, lm)
    respond_to_confirmation(error.confirmation_id, approved=False, data="not today")
    with pytest.raises(DecisionError, match="decided already"):
        agent.resume("yes", error)
    with context(lm=lm):
        assert "not today" in error.run.resume().trajectory["observation_0"]
    assert RAN == []


def test_calls_of_the_same_turn_that_ran_are_not_run_again() -> None:
    both = Response(
        "",
        (ToolCall(name="look", args={"path": "x"}), ToolCall(name="rm", args={"path": "a"})),
    )
    lm = ScriptedLM([both, DONE])
    agent = react()
    error = asked(agent, lm)
    assert RAN == ["look x"]
    with context(lm=lm):
        agent.resume("yes", error)
    assert RAN == ["look x", "a"]


def test_another_program_refuses_and_an_equal_one_goes_on() -> None:
    lm = ScriptedLM([call("a"), DONE])
    error = asked(react(), lm)
    for other in (
        ReAct("task -> answer", [look]),
        ReAct("task, more -> answer", [rm, look]),
        Predict("task -> answer", tools=[rm, look]),
    ):
        with pytest.raises(RunError, match="belongs to another program"):
            other.resume("yes", error)
    assert RAN == []
    with context(lm=lm):
        assert react().resume("yes", error).answer == "ok"


def test_other_inputs_than_at_the_start_are_refused() -> None:
    agent = react()
    error = asked(agent, ScriptedLM([call("a")]))
    with pytest.raises(InputError, match="`task` is 'y' now"):
        agent(task="y", resume_state=error)


def test_only_a_waiting_run_can_be_resumed() -> None:
    with pytest.raises(ConfirmationRequired) as raised:
        rm(path="a")
    with pytest.raises(DecisionError, match="made directly"):
        react().resume("yes", raised.value)
    with pytest.raises(DecisionError, match="no run to resume"):
        react()(resume_state="yes")


def test_a_waiting_run_survives_json_and_a_rebuilt_program() -> None:
    """And its question keeps its id (U100)."""
    lm = ScriptedLM([call("a"), DONE])
    error = asked(react(), lm)
    text = error.run.to_json()
    json.loads(text)
    agent = react()
    run = type(error.run).from_json(text, agent)
    assert run.pending == error.run.pending
    with context(lm=lm):
        assert agent.resume("yes", run).answer == "ok"
    assert RAN == ["a"]


def test_runs_of_one_agent_share_nothing() -> None:
    """The decision on one does not reach the other, in the same context."""
    agent = react()
    one, two = (asked(agent, ScriptedLM([call("a")])) for _ in range(2))
    with context(lm=ScriptedLM([DONE])):
        agent.resume("yes", one)
    assert two.run.status == "waiting"
    assert two.run.answers == {}
    assert RAN == ["a"]


def test_the_helper_loop_asks_each_question_and_returns_the_prediction() -> None:
    lm = ScriptedLM([call("a"), call("b"), call("c"), DONE])
    said = iter([True, "no", {"path": "d"}])
    with context(lm=lm):
        assert run_until_done(react(), {"task": "x"}, decide=lambda _: next(said)).answer == "ok"
    assert RAN == ["a", "d"]


@pytest.mark.parametrize("empty", ["", " \n"])
def test_after_an_empty_line_the_question_is_asked_again(empty: str) -> None:
    """A person who presses Enter has decided nothing: no empty result reaches the model."""
    said = iter([empty, empty, "yes"])
    with context(lm=ScriptedLM([call("a"), DONE])):
        found = run_until_done(react(), {"task": "x"}, decide=lambda _: next(said))
    assert (found.trajectory["observation_0"], RAN, list(said)) == ("removed a", ["a"], [])
    with context(lm=ScriptedLM([call("a"), DONE])), pytest.raises(ConfirmationRequired):
        run_until_done(react(), {"task": "x"}, decide=lambda _: empty, max_confirmations=3)


@pytest.mark.parametrize("way", [run_until_done, arun_until_done])
def test_the_helper_loop_takes_inputs_by_name(way: Any) -> None:
    with pytest.raises(InputError, match="takes the inputs by name"):
        asyncio.run(way(react(), "x", decide=lambda _: "yes"))


def test_the_helper_loop_stops_after_so_many_questions_or_where_nobody_answers() -> None:
    """What is left can be gone on with."""
    lm = ScriptedLM([call("a"), call("b"), call("c"), DONE])
    with context(lm=lm), pytest.raises(ConfirmationRequired) as raised:
        run_until_done(react(), {"task": "x"}, decide=lambda _: "yes", max_confirmations=2)
    assert raised.value.context == {"confirmations": 2, "max_confirmations": 2}
    assert RAN == ["a", "b"]
    with context(lm=lm):
        assert react().resume("yes", raised.value).answer == "ok"
    with context(lm=ScriptedLM([call("a")])), pytest.raises(ConfirmationRequired):
        run_until_done(react(), {"task": "x"}, decide=lambda _: None)


@pytest.mark.parametrize("is_async", [True, False])
def test_the_helper_loop_on_an_event_loop(is_async: bool) -> None:
    async def later(_: Any) -> str:
        return "yes"

    with context(lm=ScriptedLM([call("a"), call("b"), DONE])):
        found = asyncio.run(
            arun_until_done(react(), {"task": "x"}, decide=later if is_async else lambda _: "yes"),
        )
    assert found.answer == "ok"
    assert RAN == ["a", "b"]
    with context(lm=ScriptedLM([call("a")])), pytest.raises(ConfirmationRequired):
        asyncio.run(arun_until_done(react(), {"task": "x"}, decide=later, max_confirmations=0))


def test_an_empty_reply_is_no_consent() -> None:
    with context(lm=ScriptedLM([call("a"), DONE])):
        run = react().start(task="x")
        run.answer(run.pending[0].reply(""))
        assert not run.resume().trajectory["observation_0"]
    assert RAN == []


def test_a_question_of_the_model_is_answered_with_words_and_never_with_an_edit() -> None:
    """An edit would tell the model "yes"; the built-in tool is never executed."""
    lm = ScriptedLM([native_step("", "user_clarification", {"question": "Which?"}), DONE])
    with context(lm=lm):
        agent = ReAct("task -> answer", [rm], enable_user_clarification=True)
        run = agent.start(task="x")
        question = run.pending[0]
        for said in (
            lambda: question.approve(question="Other?"),
            lambda: question.decide({"answer": "Paris"}),
        ):
            with pytest.raises(DecisionError, match="reply"):
                said()
        with pytest.raises(DecisionError, match="reply"):
            run.answer(Decision(question.id, "edit", args={"answer": "Paris"}))
        run.answer(question.approve())
        assert run.resume().trajectory["observation_0"] == "yes"


@pytest.mark.parametrize("where", ["run", "store"])
def test_a_run_that_is_decided_is_streamed_on_as_it_was_decided(where: str) -> None:
    """A run itself means "yes" only where nothing was decided."""
    agent, store = react(), MemoryStore()
    with context(lm=ScriptedLM([call("a"), DONE])):
        run = agent.start(task="x", store=store)
        denied = run.pending[0].deny("leave it")
        run.answer(denied) if where == "run" else store.decide(run.id, denied)
        for _ in agent.stream(resume_state=run):
            pass
    assert "leave it" in run.prediction.trajectory["observation_0"]
    assert RAN == []


def test_a_run_with_one_of_two_questions_decided_still_waits_for_the_other() -> None:
    """No "yes" is read into a run that somebody has begun to decide."""
    agent = react()
    with context(
        lm=ScriptedLM([Response("", (call("a").tool_calls[0], call("b").tool_calls[0])), DONE]),
    ):
        run = agent.start(task="x")
        run.answer(run.pending[0].deny())
        with pytest.raises(ConfirmationRequired):
            agent(resume_state=run)
        assert [each.call.args["path"] for each in run.pending] == ["b"]
        assert agent(resume_state=ResumeState(run, "yes")).answer == "ok"
    assert RAN == ["b"]


def test_an_edited_call_is_told_as_it_ran() -> None:
    """Observers see the call that ran; the model, whose own call stays as it wrote it, is told of
    the change.
    """
    told: list[Any] = []
    with context(lm=ScriptedLM([call("a"), DONE]), callbacks=[told.append]):
        run = react().start(task="x")
        run.answer(run.pending[0].approve(path="b"))
        run.resume()
    calls = [
        each.call for each in told if isinstance(each, (events.CallStarted, events.CallFinished))
    ]
    assert [each.args for each in calls] == [{"path": "b"}] * 2
    step = run.trajectory.steps[0]
    assert step.calls[0].args == {"path": "a"}
    assert step.calls[0].id == step.results[0].call_id == calls[0].id
    assert step.results[0].content == 'A person changed the arguments to {"path":"b"}.\nremoved b'


@pytest.mark.parametrize(
    "form",
    [{"euros": 5}, {"card": "**********"}, {"euros": 5, "card": "**********", "day": "2026-12-24"}],
)
def test_a_form_that_comes_back_as_it_was_shown_is_told_as_no_change(form: dict[str, Any]) -> None:
    """The person pressed another button; the arguments are those that the model wrote."""

    @tool(require_confirmation=True)
    def pay(euros: int, card: SecretStr, day: date) -> str:
        """Pay."""
        return f"paid {euros} with {card.get_secret_value()} on {day:%d.%m.}"

    args = {"euros": 5, "card": "1234", "day": "2026-12-24"}
    with context(lm=ScriptedLM([{"name": "pay", "args": args}, DONE])):
        run = ReAct("task -> answer", [pay], native=True).start(task="x")
        run.answer(run.pending[0].edit(form))
        run.resume()
    assert run.trajectory.steps[0].results[0].content == "paid 5 with 1234 on 24.12."


def test_decided_calls_run_in_the_order_of_the_calls() -> None:
    """An edited one keeps its place."""
    both = Response("", tuple(ToolCall(name="rm", args={"path": path}) for path in "abc"))
    with context(lm=ScriptedLM([both, DONE])):
        agent = ReAct("task -> answer", [rm.model_copy(update={"concurrent": False})])
        run = agent.start(task="x")
        for question, decision in zip(
            run.pending,
            [{"path": "A"}, "yes", {"path": "C"}],
            strict=True,
        ):
            run.answer(question.decide(decision))
        run.resume()
    assert RAN == ["A", "b", "C"]


STARTS = {
    "call": lambda agent, state: agent(task="x", resume_state=state),
    "acall": lambda agent, state: asyncio.run(agent.acall(task="x", resume_state=state)),
    "forward": lambda agent, state: agent.forward(task="x", resume_state=state),
    "aforward": lambda agent, state: asyncio.run(agent.aforward(task="x", resume_state=state)),
    "stream": lambda agent, state: streamed(agent.stream(task="x", resume_state=state)),
}


@pytest.mark.parametrize("way", STARTS)
def test_one_loop_starts_with_no_state_and_goes_on_with_what_was_raised(
    way: str,
    program: tuple[Any, ScriptedLM],
) -> None:
    """`resume_state=None` starts a run."""
    agent, lm = program
    state: Any = None
    with context(lm=lm):
        while True:
            try:
                found = STARTS[way](agent, state)
            except ConfirmationRequired as error:
                assert state is None
                state = error
            else:
                break
    assert found.answer == "ok"
    assert RAN == ["a"]


DECIDED = {
    "approved": ((), ["a"], "removed a"),
    "edited": ((True, {"path": "b"}), ["b"], "removed b"),
    "denied": ((False,), [], "decided against"),
    "denied with a reason": ((False, "not today"), [], "not today"),
    "feedback": ((True, "ask Ada first", "feedback"), [], "ask Ada first"),
}


@pytest.mark.parametrize("way", STARTS)
@pytest.mark.parametrize(("said", "ran", "observed"), DECIDED.values(), ids=DECIDED)
def test_a_decision_made_by_id_is_taken_by_the_loop_that_passes_the_exception(
    way: str,
    said: Any,
    ran: list[str],
    observed: str,
) -> None:
    """The bare exception means "yes" only where nothing was decided."""
    agent, lm = react(), ScriptedLM([call("a"), DONE])
    error = asked(agent, lm, task="x")
    respond_to_confirmation(error.confirmation_id, *said)
    with context(lm=lm):
        found = STARTS[way](agent, error)
    assert observed in found.trajectory["observation_0"]
    assert ran == RAN


def test_the_exception_of_a_decided_run_can_be_passed_again() -> None:
    """The prediction again, and nothing runs twice."""
    agent, lm = react(), ScriptedLM([call("a"), DONE])
    error = asked(agent, lm, task="x")
    respond_to_confirmation(error.confirmation_id, approved=False)
    with context(lm=lm):
        assert agent(resume_state=error) is agent(resume_state=ResumeState(error))
    assert RAN == []


def test_a_state_takes_udspys_keyword_and_tells_what_is_asked() -> None:
    agent, lm = react(), ScriptedLM([call("a"), DONE])
    error = asked(agent, lm, task="x")
    state = ResumeState(error, user_response="no")
    assert (state.response, state.user_response, state.exception) == ("no", "no", error)
    assert (state.question, state.tool_call, state.context) == (
        error.question,
        error.tool_call,
        error.context,
    )
    with context(lm=lm):
        assert "decided against" in agent(resume_state=state).trajectory["observation_0"]
    assert RAN == []


def test_no_response_is_made_from_none() -> None:
    """A form without the field must not approve. Left out, a response is yes, as in udspy."""
    agent, lm = react(), ScriptedLM([call("a"), DONE])
    error = asked(agent, lm, task="x")
    doors: dict[str, Callable[[], Any]] = {
        "state": lambda: ResumeState(error, cast("Any", None)),
        "keyword": lambda: ResumeState(error, user_response=cast("Any", None)),
        "resume": lambda: agent.resume(None, error),
        "aresume": lambda: asyncio.run(agent.aresume(None, error)),
    }
    with context(lm=lm):
        for name, door in doors.items():
            with pytest.raises(DecisionError, match="None"):
                door()
            assert (RAN, error.run.status) == ([], "waiting"), name
        agent(resume_state=ResumeState(error))
    assert RAN == ["a"]


def test_a_state_of_a_run_tells_its_first_question() -> None:
    """And none once it is done."""
    agent, lm = react(), ScriptedLM([call("a"), DONE])
    error = asked(agent, lm, task="x")
    state = ResumeState(error.run)
    assert (state.question, state.tool_call) == (error.question, error.tool_call)
    with context(lm=lm):
        agent(resume_state=state)
    assert (state.exception, state.question, state.tool_call, state.context) == (None, "", None, {})


class Timed(Signature):
    """Answer in time."""

    question: str = InputField()
    now: datetime = InputField(default_factory=lambda: next(NOW))
    answer: str = OutputField()


NOW: Iterator[datetime] = (datetime(2026, 11, day, tzinfo=UTC) for day in range(1, 31))


@pytest.mark.parametrize("is_inner", [False, True], ids=["top", "inner"])
def test_what_the_factory_of_an_input_made_is_kept_when_the_run_resumes(is_inner: bool) -> None:
    seen: list[str] = []

    def answer(request: Any) -> Response:
        seen.append(str(request.messages[1].content))
        return Response(
            tool_calls=(
                ToolCall(name="rm", args={"path": "a"})
                if len(seen) == 1
                else ToolCall(name="finish", args={"answer": "ok"}),
            ),
        )

    agent = ReAct(Timed, tools=[rm], lm=ScriptedLM(by=answer))

    class Outer(Module):
        def forward(self, question: str) -> Any:
            return agent(question=question)

    store, program = MemoryStore(), Outer() if is_inner else agent
    program.start(question="?", store=store, run_id="r")
    run = Run.load(store, "r", program)
    run.answer(run.pending[0].approve())
    assert run.resume().prediction.answer == "ok"
    assert seen[0] == seen[1]
    assert "2026-11-" in seen[0]


def test_a_picture_that_a_factory_made_is_kept_as_a_picture() -> None:
    pages = iter("abcd")

    class Seen(Signature):
        """Look."""

        question: str = InputField()
        pictures: list[Image] = InputField(
            default_factory=lambda: [Image(url=f"https://example.org/{next(pages)}.png")],
        )
        more: Any = InputField(
            default_factory=lambda: Image(url=f"https://example.org/{next(pages)}.png"),
        )
        answer: str = OutputField()

    lm = ScriptedLM([call("a"), DONE])
    store, agent = MemoryStore(), ReAct(Seen, tools=[rm], lm=lm)
    agent.start(question="?", store=store, run_id="r")
    run = Run.load(store, "r", agent)
    run.answer(run.pending[0].approve())
    assert run.resume().status == "done"
    first, last = (request.messages[1] for request in lm.requests)
    assert [part.url for part in first.content if isinstance(part, Image)] == [
        "https://example.org/a.png",
        "https://example.org/b.png",
    ]
    assert first.content == last.content


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("now", {"default": None}),
        ("now", {"default_factory": list}),
        ("later", {"default_factory": lambda: next(NOW)}),
    ],
    ids=["no factory", "another type", "another name"],
)
def test_what_the_factory_of_an_earlier_version_made_is_left_out(
    name: str,
    options: dict[str, Any],
) -> None:
    kind = list[int] if options.get("default_factory") is list else datetime | None
    changed = Signature(
        {
            "question": (str, InputField()),
            name: (kind, InputField(**options)),
            "answer": (str, OutputField()),
        },
    )
    lm = ScriptedLM([call("a"), DONE])
    store = MemoryStore()
    ReAct(Timed, tools=[rm], lm=lm).start(question="?", store=store, run_id="r")
    run = Run.load(store, "r", ReAct(changed, tools=[rm], lm=lm))
    run.answer(run.pending[0].approve())
    assert run.resume().error is None


def test_an_input_with_a_factory_is_made_for_each_call_of_the_program_as_a_tool() -> None:
    seen: list[str] = []

    def answer(request: Any) -> Response:
        seen.append(str(request.messages[1].content))
        return Response(
            tool_calls=(ToolCall(name="rm", args={"path": "a"}),)
            if len(seen) in {1, 3}
            else (ToolCall(name="finish", args={"answer": "ok"}),),
        )

    clock = ReAct(Timed, tools=[rm], lm=ScriptedLM(by=answer)).as_tool("clock")
    once, twice = ({"name": "clock", "args": {"question": "?"}} for _ in range(2))
    outer, store = (
        ReAct(
            "task -> answer",
            [clock],
            lm=ScriptedLM([once, twice, {"name": "finish", "args": {"answer": "ok"}}]),
        ),
        MemoryStore(),
    )
    run = outer.start(task="?", store=store, run_id="r")
    for _ in range(2):
        run = Run.load(store, "r", outer)
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.status == "done"
    assert "default" not in clock.parameters["properties"]["now"]
    assert (seen[0], seen[2]) == (seen[1], seen[3])
    assert seen[0] != seen[2]


def test_a_response_is_given_once() -> None:
    error = asked(react(), ScriptedLM([call("a")]), task="x")
    with pytest.raises(InputError, match="`user_response` is another name of `response`"):
        ResumeState(error, "yes", user_response="no")


class Asks(Module):
    """A program as in udspy: it raises its question, and resumes by a method of its own."""

    async def aforward(self, **inputs: Any) -> Any:
        raise ConfirmationRequired(
            "Which city?",
            confirmation_id="mine",
            context={"inputs": inputs},
        )

    async def asuspend(self, exception: ConfirmationRequired) -> Any:
        return exception

    async def aresume(self, response: Any, state: Any, *, deps: Any = None) -> Any:
        del state, deps
        return f"in {response}"


@pytest.mark.parametrize("way", sorted(STARTS.keys() - {"aforward"}))
def test_a_program_that_raises_its_question_itself_is_told_how_to_ask(way: str) -> None:
    """Nothing waits where no act asked."""
    with pytest.raises(ConfirmationRequired) as raised:
        STARTS[way](Asks(), None)
    assert raised.value.context == {"inputs": {"task": "x"}}
    with pytest.raises(DecisionError, match=r"raised itself.*`ferrule\.ask_person`"):
        STARTS[way](Asks(), raised.value)
    with pytest.raises(DecisionError, match=r"`ferrule\.ask_person`"):
        ResumeState(raised.value, "Rome")
    assert asyncio.run(Asks().aresume("Rome", raised.value)) == "in Rome"


def test_a_run_resumes_with_an_array_that_it_was_started_with() -> None:
    """An array compares its elements: `ValueError`, its truth is ambiguous."""

    class Array:
        def __ne__(self, other: object) -> Any:
            return self

        def __bool__(self) -> bool:
            raise ValueError("The truth value of an array with more than one element is ambiguous.")

    class Sum(Module):
        def forward(self, table: Array) -> str:
            return ferrule.ask_person("Sum it up?")

    program, table = Sum(), Array()
    with pytest.raises(ConfirmationRequired) as raised:
        program(table=table)
    assert program(resume_state=ResumeState(raised.value, "yes"), table=table) == "yes"


class Continued(Module):
    def forward(self, resume_state: str) -> Any:
        return ferrule.Prediction(answer=f"from {resume_state}")


@pytest.mark.parametrize(
    "call",
    [
        lambda program: program(resume_state="page 3"),
        lambda program: asyncio.run(program.acall(resume_state="page 3")),
        lambda program: program.start(resume_state="page 3").prediction,
        lambda program: program.bind(resume_state="page 3")(),
        lambda program: _to_its_end(program.stream(resume_state="page 3")).prediction,
    ],
    ids=["call", "acall", "start", "bind", "stream"],
)
def test_an_input_called_resume_state_is_that_input(call: Any) -> None:
    """As inputs that are called as other options are."""
    with context(lm=ScriptedLM([{"outputs": {"answer": "from page 3"}}])):
        assert call(Predict("resume_state -> answer")).answer == "from page 3"
    assert call(Continued()).answer == "from page 3"


@pytest.mark.parametrize("name", ["store", "run_id", "deps", "metadata", "title", "resume_state"])
@pytest.mark.parametrize(
    "call",
    [
        lambda program, inputs: program.start(**inputs),
        lambda program, inputs: asyncio.run(program.astart(**inputs)),
        lambda program, inputs: program.bind(**inputs).start(),
        lambda program, inputs: _to_its_end(program.stream(**inputs)).run,
    ],
    ids=["start", "astart", "bind", "stream"],
)
def test_an_input_that_is_called_as_an_option_of_a_run_wins(name: str, call: Any) -> None:
    with context(lm=ScriptedLM([{"outputs": {"answer": "ok"}}])):
        run = call(Predict(f"{name} -> answer"), {name: "mine"})
    assert run.error is None
    assert run.inputs == {name: "mine"}


def test_a_program_with_such_an_input_is_resumed_by_its_method() -> None:
    @tool(require_confirmation=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = ReAct("resume_state -> answer", [pay], native=True)
    steps = [native_step("t", "pay", {}), native_step("t", "finish", {"answer": "ok"})]
    with context(lm=ScriptedLM(steps)):
        with pytest.raises(ConfirmationRequired) as waiting:
            agent(resume_state="page 3")
        assert agent.resume("yes", waiting.value).answer == "ok"


def _to_its_end(stream: Any) -> Any:
    for _ in stream:
        pass
    return stream


NUMBERS = iter(range(100))


class Card(BaseModel):
    owner: str
    number: SecretStr
    id: int = Field(default_factory=lambda: next(NUMBERS))


def test_a_call_with_a_secret_and_a_made_id_runs_as_it_was_approved_after_a_load() -> None:
    """The id was made again, so the run asked again, and again."""
    paid: list[Any] = []

    @tool(require_confirmation=True)
    def pay(cards: list[Card]) -> str:
        """Pay."""
        paid.extend((card.owner, card.number.get_secret_value(), card.id) for card in cards)
        return "paid"

    cards = [{"owner": "ann", "number": "1111"}, {"owner": "bob", "number": "2222"}]
    lm = ScriptedLM([{"name": "pay", "args": {"cards": cards}}, DONE])
    store, agent = MemoryStore(), ReAct("task -> answer", [pay], lm=lm)
    agent.start(task="x", store=store, run_id="r")
    run = Run.load(store, "r", agent)
    shown = run.pending[0].call.args["cards"]
    run.answer(run.pending[0].approve())
    assert run.resume().status == "done"
    assert paid == [
        (given["owner"], given["number"], seen["id"])
        for given, seen in zip(cards, shown, strict=True)
    ]
