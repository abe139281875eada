"""A run that another process loads has what the run itself has, in every state."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BeforeValidator

from ferrule import (
    ConfirmationRejected,
    ConfirmationRequired,
    Limits,
    Load,
    MemoryStore,
    Module,
    Policy,
    ReAct,
    Run,
    Tool,
    ToolRetry,
    ToolStop,
    call_tool,
    configure,
    context,
    deny,
    gather,
    tool,
)
from ferrule.errors import ConfigurationError, LimitReachedError, StoreError, UnavailableError
from ferrule.net.errors import payload_error
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = (
    {"name": "look", "args": {"at": "the door"}},
    {"name": "pay", "args": {"euros": 3}},
    {"name": "finish", "args": {"answer": "paid"}},
)


def agent(**options: Any) -> ReAct:
    @tool(effect="read")
    def look(at: str) -> str:
        """Look."""
        return f"saw {at}"

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    return ReAct("task -> answer", [look, pay], **{"native": True, **options})


def waiting(store: MemoryStore, program: Any) -> Run:
    return program.start(task="Pay.", store=store)


def approved(store: MemoryStore, program: Any) -> Run:
    run = waiting(store, program)
    run.answer(run.pending[0].approve())
    return run


def cancelled(store: MemoryStore, program: Any) -> Run:
    run = waiting(store, program)
    run.cancel()
    return run


def failed(store: MemoryStore, program: Any) -> Run:
    with context(lm=ScriptedLM([STEPS[0], UnavailableError("down")])):
        return program.start(task="Pay.", store=store)


def left(store: MemoryStore, program: Any) -> Run:
    stream = program.stream(task="Pay.", store=store)
    for event in stream:
        if event.type == "step_finished":
            break
    stream.close()
    return stream.run


def limited(store: MemoryStore, program: Any) -> Run:
    return program.start(task="Pay.", store=store, limits=Limits(steps=1))


def done(store: MemoryStore, program: Any) -> Run:
    return approved(store, program).resume()


STATES: dict[str, Callable[[MemoryStore, Any], Run]] = {
    "waiting": waiting,
    "approved": approved,
    "cancelled": cancelled,
    "failed": failed,
    "left": left,
    "limited": limited,
    "done": done,
}


@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
@pytest.mark.parametrize("state", sorted(STATES))
def test_a_loaded_run_has_its_trajectory_and_messages(state: str, native: bool) -> None:
    store, program = MemoryStore(), agent(native=native)
    with context(lm=ScriptedLM(STEPS)):
        run = STATES[state](store, program)
    lm = ScriptedLM([])
    with context(lm=lm):
        loaded = Run.load(store, run.id, program)
        assert loaded.trajectory == run.trajectory
        assert len(loaded.trajectory.steps) >= 1
        assert loaded.messages == run.messages
        assert len(loaded.messages) >= 2
        assert loaded.status == run.status
    assert lm.requests == []
    assert Run.load(store, run.id, program).to_json() == loaded.to_json()


@pytest.mark.parametrize("state", sorted(STATES))
def test_a_loaded_run_has_an_error_of_the_same_class(state: str) -> None:
    """That it was cancelled is an error too, also if no process executed it then."""
    store, program = MemoryStore(), agent()
    with context(lm=ScriptedLM(STEPS)):
        run = STATES[state](store, program)
    loaded = Run.load(store, run.id, program)
    assert (type(loaded.error), loaded.error is None) == (type(run.error), run.error is None)


def test_the_error_of_a_loaded_run_says_as_it_did_whether_to_try_again() -> None:
    """A quota that is used up has the class of a rate limit, which passes, but does not."""
    store, program = MemoryStore(), agent()
    spent = payload_error({"error": {"code": "insufficient_quota", "message": "Pay first."}})
    passing = payload_error({"error": {"code": 429, "message": "Slower."}})
    for error, is_retryable in ((spent, False), (passing, True)):
        with context(lm=ScriptedLM([error])):
            run = program.start(task="Pay.", store=store)
        loaded = Run.load(store, run.id, program).error
        assert isinstance(run.error, UnavailableError)
        assert isinstance(loaded, type(run.error))
        assert (run.error.is_retryable, loaded.is_retryable) == (is_retryable, is_retryable)


def test_a_run_that_executes_is_read_as_far_as_it_is_recorded() -> None:
    """As a process that died leaves it: a call has begun, and its result is not written."""
    store, seen, ran = MemoryStore(), list[Run](), list[int]()

    def read(n: int) -> str:
        ran.append(n)
        if n == 2:
            loaded = Run.load(store, "r", program)
            assert [step.results[0].content for step in loaded.trajectory.steps] == ["read 1"]
            seen.append(loaded)
        return f"read {n}"

    program = ReAct("task -> answer", [Tool(read, reconcile=lambda key: 1 / 0)], native=True)
    calls = [{"name": "read", "args": {"n": n}} for n in (1, 2)]
    with context(lm=ScriptedLM([*calls, {"name": "finish", "args": {"answer": "x"}}])):
        run = program.start(task="x", store=store, run_id="r")
    [loaded] = seen
    assert loaded.status == "running"
    assert ran == [1, 2]
    assert [message.role for message in loaded.messages] == ["system", "user", "assistant", "tool"]
    assert run.prediction.answer == "x"


def test_a_loaded_run_whose_agent_inside_waits_has_the_steps_of_the_outer_one() -> None:
    inner = agent().as_tool("desk", "Asks the desk.")
    outer = ReAct("task -> answer", [inner], native=True)
    store, call = MemoryStore(), {"name": "desk", "args": {"task": "Pay."}}
    end = {"name": "finish", "args": {"answer": "paid"}}
    with context(lm=ScriptedLM([call, STEPS[0], end, call, *STEPS])):
        run = outer.start(task="Twice.", store=store)
        assert run.status == "waiting"
        loaded = Run.load(store, run.id, outer)
        assert loaded.trajectory == run.trajectory
        assert len(loaded.trajectory.steps) == 1
        assert loaded.messages == run.messages


def test_a_resumed_run_that_was_read_before_goes_on_as_if_it_had_not_been() -> None:
    store, program = MemoryStore(), agent()
    with context(lm=ScriptedLM(STEPS)):
        run = program.start(task="Pay.", store=store)
        loaded = Run.load(store, run.id, program)
        assert len(loaded.trajectory.steps) == 1
        loaded.answer(loaded.pending[0].approve())
        assert loaded.resume().prediction.answer == "paid"
        assert len(loaded.trajectory.steps) == 3


def test_the_question_of_a_loaded_run_has_the_steps_before_it() -> None:
    store, program = MemoryStore(), agent()
    with context(lm=ScriptedLM(STEPS)):
        run = program.start(task="Pay.", store=store)
        with pytest.raises(ConfirmationRequired) as asked:
            _ = Run.load(store, run.id, program).prediction
    assert asked.value.context["trajectory"] == run.trajectory


def test_the_limit_that_a_loaded_run_reached_has_its_steps() -> None:
    store, program = MemoryStore(), agent()
    with context(lm=ScriptedLM(STEPS)):
        run = limited(store, program)
        loaded = Run.load(store, run.id, program)
        with pytest.raises(LimitReachedError) as reached:
            _ = loaded.prediction
        assert reached.value.run is loaded
        assert reached.value.trajectory == run.trajectory
        assert len(reached.value.trajectory.steps) == 1


def test_the_limit_of_an_agent_inside_a_loaded_run_has_the_steps_of_that_agent() -> None:
    class Desk(Module):
        def __init__(self) -> None:
            self.first, self.second = agent(), agent(limits=Limits(steps=1))

        def forward(self, task: str) -> Any:
            self.first(task=task)
            return self.second(task=task)

    store, end = MemoryStore(), STEPS[2]
    with context(lm=ScriptedLM([STEPS[0], end, STEPS[0], end])):
        run = Desk().start(task="Look.", store=store)
        error = Run.load(store, run.id, Desk()).error
    assert isinstance(run.error, LimitReachedError)
    assert isinstance(error, LimitReachedError)
    with context(lm=ScriptedLM([])):
        assert error.trajectory == run.error.trajectory
    assert len(error.trajectory.steps) == 1


def test_a_loaded_run_is_read_under_the_limits_that_it_was_started_with() -> None:
    """They were those of a `context`: the reader's messages were others than the model's."""
    store, program = MemoryStore(), agent()
    limits = Limits(per_tool={"look": 1})
    with context(lm=ScriptedLM([STEPS[0], STEPS[0], *STEPS[1:]]), limits=limits):
        run = program.start(task="Pay.", store=store)
    with context(lm=ScriptedLM([])):
        loaded = Run.load(store, run.id, program)
        assert loaded.messages == run.messages
        assert loaded.trajectory == run.trajectory
    assert loaded.trajectory["observation_0"].startswith("(Calls of `look` left: 0 of 1.)")


def test_a_call_that_waits_has_no_result_for_a_reader_whose_program_lost_the_tool() -> None:
    """It read that there was no such tool, though the run asks a person what to do now."""
    store, program = MemoryStore(), agent()
    newer = ReAct("task -> answer", [program.tools["look"]], native=True)
    with context(lm=ScriptedLM(STEPS)):
        run = program.start(task="Pay.", store=store)
        loaded = Run.load(store, run.id, newer)
        assert (loaded.trajectory, loaded.messages) == (run.trajectory, run.messages)
        [question] = loaded.resume().pending
    assert question.kind == "migration"
    assert (loaded.trajectory, loaded.messages) == (run.trajectory, run.messages)


def test_steps_that_cannot_be_rebuilt_are_an_error_but_the_question_can_be_decided() -> None:
    store, program = MemoryStore(), agent()
    with context(lm=ScriptedLM(STEPS)):
        run = program.start(task="Pay.", store=store)
    other = ReAct("task -> answer", [Tool(lambda at: at, "pay")], native=True)
    with context(lm=ScriptedLM([])):
        loaded = Run.load(store, run.id, other, migrate=True)
        with pytest.raises(ConfirmationRequired):
            _ = loaded.prediction
    configure(lm=None)
    loaded = Run.load(store, run.id, program)
    for name in ("trajectory", "messages"):
        with pytest.raises(ConfigurationError):
            getattr(loaded, name)
    with pytest.raises(ConfirmationRequired):
        _ = loaded.prediction


def test_the_requests_of_a_loaded_run_are_those_that_were_sent() -> None:
    """No model is called again.

    An agent that is a tool is replayed by itself, also inside another.
    """
    innermost = agent(name="innermost").as_tool(name="look", description="Look.")
    asker = ReAct("task -> answer", [innermost], name="inner")
    inner = asker.as_tool(name="ask", description="Ask.")
    program = ReAct("task -> answer", [inner])
    answers = [
        {"name": "ask", "args": {"task": "Look."}},
        {"name": "look", "args": {"task": "Look closer."}},
        {"name": "finish", "args": {"answer": "closer"}},
        {"name": "finish", "args": {"answer": "seen"}},
        {"name": "finish", "args": {"answer": "done"}},
    ]
    store, asking = MemoryStore(), ScriptedLM(answers)
    with context(lm=asking):
        run = program.start(task="Pay.", store=store)
        made = Run.load(store, run.id, program).requests()
    assert run.status == "done"
    by_place = {slot: asking.requests.index(request) for slot, (_, request) in made.items()}
    assert sorted(by_place.values()) == [0, 1, 2, 3, 4]
    assert by_place["1.0/ask/1.0/look/0"] == 2
    assert all(lm is asking for lm, _ in made.values())
    assert len(asking.requests) == 5


def test_the_requests_of_an_agent_that_the_program_has_no_longer_are_missing() -> None:
    inner = agent(name="inner").as_tool(name="ask", description="Ask.")
    answers = [
        {"name": "ask", "args": {"task": "Look."}},
        {"name": "finish", "args": {"answer": "seen"}},
        {"name": "finish", "args": {"answer": "done"}},
    ]
    store = MemoryStore()
    with context(lm=ScriptedLM(answers)):
        run = ReAct("task -> answer", [inner]).start(task="Pay.", store=store)
        without = ReAct("task -> answer", [], name=run.program.name)
        requests = Run.load(store, run.id, without, migrate=True).requests()
    assert not any("ask" in slot for slot in requests)


def test_twice_the_calls_cost_a_reader_of_requests_twice_the_work() -> None:
    """By counting calls of Python's own functions.

    A look at all entries for each call costs more.
    """

    def work(calls: int) -> int:
        answers = [{"name": "look", "args": {"n": number}} for number in range(calls)]
        answers.append({"name": "finish", "args": {"answer": "done"}})
        look = Tool(lambda n: n, "look", desc="Look.")
        program = ReAct("task -> answer", [look], native=True, max_iters=calls + 1)
        run = program.start(task="Look.", lm=ScriptedLM(answers))
        count = 0

        def note(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal count
            count += event == "c_call"

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            assert len(run.requests()) == calls + 1
        finally:
            sys.setprofile(before)
        return count

    assert work(300) < 2.4 * work(150)


def test_a_reader_takes_the_results_of_a_turn_without_checking_its_calls_again() -> None:
    checked: list[Any] = []

    def note(value: Any) -> Any:
        checked.append(value)
        return value

    number = Annotated[int, BeforeValidator(note)]
    read = Tool(lambda n: f"read {n}", "read", arg_types={"n": number})
    program, store = ReAct("task -> answer", [read], native=True), MemoryStore()
    turns = [[{"name": "read", "args": {"n": 1}}, {"name": "read", "args": {"n": 2}}], STEPS[2]]
    with context(lm=ScriptedLM(turns)):
        run = program.start(task="x", store=store)
        assert 1 in checked
        checked.clear()
        assert Run.load(store, run.id, program).trajectory == run.trajectory
    assert checked == []


def a_tool_with_retries() -> ReAct:
    def read(n: int) -> str:
        """Read."""
        if n < 3:
            raise ToolRetry("too small")
        return f"read {n}"

    return ReAct("task -> answer", [Tool(read, retries=2)], native=True)


def a_tool_that_stops() -> ReAct:
    def read(n: int) -> str:
        """Read."""
        return f"read {n}"

    return ReAct("task -> answer", [read], native=True, stop_at_tools=["read"])


def a_limit_on_a_tool() -> ReAct:
    def read(n: int) -> str:
        """Read."""
        return f"read {n}"

    return ReAct("task -> answer", [read], native=True, limits=Limits(per_tool={"read": 2}))


def a_policy_that_denies() -> ReAct:
    def read(n: int) -> str:
        """Read."""
        return f"read {n}"

    return ReAct("task -> answer", [read], native=True, policy=Policy([deny("read", n=2)]))


def calls_one_at_a_time() -> ReAct:
    def read(n: int) -> str:
        """Read."""
        return f"read {n}"

    return ReAct("task -> answer", [Tool(read, concurrent=False)], native=True)


def a_tool_that_loads_tools() -> ReAct:
    def read(n: int) -> str:
        """Read again."""
        return f"now {n}"

    def first(n: int) -> Any:
        """Load."""
        return Load(Tool(read, name=f"read_{n}"))

    return ReAct("task -> answer", [Tool(first, name="read")], native=True)


@pytest.mark.parametrize(
    "make",
    [
        a_tool_with_retries,
        a_tool_that_stops,
        a_limit_on_a_tool,
        a_policy_that_denies,
        calls_one_at_a_time,
        a_tool_that_loads_tools,
    ],
)
@pytest.mark.parametrize("alone", [True, False], ids=["one by one", "together"])
def test_a_loaded_run_reads_the_same_results_however_its_calls_ended(
    make: Callable[[], ReAct], alone: bool
) -> None:
    calls = [{"name": "read", "args": {"n": n}} for n in (1, 2, 3)]
    turns: list[Any] = [*calls] if alone else [calls]
    store, program = MemoryStore(), make()
    with context(lm=ScriptedLM([*turns, STEPS[2]])):
        run = program.start(task="x", store=store)
        assert run.status == "done"
        loaded = Run.load(store, run.id, make())
        assert loaded.prediction == run.prediction
        assert loaded.trajectory == run.trajectory
        assert loaded.messages == run.messages


def test_a_reader_raises_where_a_forward_was_told_that_its_call_was_denied() -> None:
    class Desk(Module):
        def forward(self, task: str) -> str:
            try:
                return call_tool(Tool(lambda at: at, "pay"), at=task)
            except ConfirmationRejected:
                return "denied"

    store = MemoryStore()
    with context(policy=Policy([deny("pay")])):
        run = Desk().start(task="x", store=store)
        assert run.prediction == "denied"
        assert Run.load(store, run.id, Desk()).prediction == "denied"


class _OwnError(Exception):
    """No built-in exception, and none of ferrule's."""


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("error", [KeyError("k"), ToolStop("halt"), _OwnError("own")], ids=repr)
def test_a_loaded_run_that_a_validator_ended_has_no_step_that_the_run_had_not(
    error: Exception, native: bool
) -> None:
    store, program = MemoryStore(), agent(native=native)

    @program.output_validator
    def check(answer: Any) -> None:
        raise error

    with context(lm=ScriptedLM([STEPS[0], STEPS[2]])):
        run = program.start(task="Pay.", store=store)
        loaded = Run.load(store, run.id, program)
        assert run.status == loaded.status == "failed"
        assert list(loaded.trajectory.steps) == list(run.trajectory.steps)
        assert list(loaded.messages) == list(run.messages)
        assert len(run.trajectory.steps) == 1


@pytest.mark.parametrize("error", [KeyError("k"), ToolStop("halt"), ValueError()], ids=repr)
def test_an_error_of_a_validator_that_a_forward_caught_is_raised_in_each_replay(
    error: Exception,
) -> None:
    store, asked = MemoryStore(), []

    class Careful(Module):
        def __init__(self) -> None:
            self.agent = agent()

            @self.agent.output_validator
            def check(answer: Any) -> None:
                asked.append(answer)
                raise error

        def forward(self, task: str) -> str:
            try:
                return self.agent(task=task).answer
            except type(error) as caught:
                call_tool(Tool(lambda: "done", "ask", require_confirmation=True))
                return f"caught {caught}"

    program = Careful()
    with context(lm=ScriptedLM([STEPS[2]])):
        run = program.start(task="Pay.", store=store)
        loaded = Run.load(store, run.id, program)
        loaded.answer(loaded.pending[0].approve())
        assert loaded.resume().prediction == f"caught {error}"
        assert Run.load(store, run.id, program).prediction == f"caught {error}"
        assert len(asked) == 1


@pytest.mark.parametrize("has_loaded", [False, True])
def test_a_run_that_was_cancelled_while_it_waited_says_the_same_everywhere(
    has_loaded: bool,
) -> None:
    store, program = MemoryStore(), agent()
    with context(lm=ScriptedLM(STEPS)):
        run = waiting(store, program)
        if has_loaded:
            run = Run.load(store, run.id, program)
        run.cancel()
        loaded = Run.load(store, run.id, program)
        assert (loaded.status, str(loaded.error)) == (run.status, str(run.error))


def test_a_cancellation_that_is_refused_changes_nothing() -> None:
    """Another process has approved the call, and ended the run."""
    store, program = MemoryStore(), agent()
    with context(lm=ScriptedLM(STEPS)):
        run = waiting(store, program)
        other = Run.load(store, run.id, program)
        other.answer(other.pending[0].approve())
        other.resume()
        before = run.status, run.pending, run.error, run.cancelled
        with pytest.raises(StoreError, match="done already"):
            run.cancel()
        assert (run.status, run.pending, run.error, run.cancelled) == before


def test_the_result_of_a_call_that_ended_the_run_is_the_same_for_each_reader() -> None:
    """An exception collects the frames of all that raise it again."""
    store = MemoryStore()

    @tool
    def stop() -> str:
        """Stop."""
        raise ToolStop("halt")

    program = ReAct("task -> answer", [stop])
    with context(lm=ScriptedLM([{"name": "stop", "args": {}}])):
        run = program.start(task="Stop.", store=store)
        loaded = Run.load(store, run.id, program)

        def results(reader: Run) -> list[Any]:
            return [
                event.result.content for event in reader.events() if event.type == "CallFinished"
            ]

        for _ in range(2):
            assert results(run) == results(loaded) == ["Execution error in stop: ToolStop: halt"]
            for reader in (run, loaded):
                with pytest.raises(ToolStop):
                    _ = reader.prediction


def test_decisions_are_in_the_order_in_which_they_were_given() -> None:
    store, program = MemoryStore(), agent()
    pays = [{"name": "pay", "args": {"euros": euros}} for euros in (1, 2)]
    with context(lm=ScriptedLM([pays, STEPS[2]])):
        run = waiting(store, program)
        first, second = run.pending
        store.decide(run.id, second.deny("No.").signed("ann"))
        store.decide(run.id, first.approve().signed("bob"))
        resumed = Run.load(store, run.id, program).resume()
        loaded = Run.load(store, run.id, program)
        assert [decision.by for decision in resumed.decisions] == ["ann", "bob"]
        assert [decision.by for decision in loaded.decisions] == ["ann", "bob"]


def test_events_of_programs_at_once_are_in_the_order_in_which_they_were_written(
    any_store: Any,
) -> None:
    """A client that comes back asks for the events after the last one that it has."""

    class Three(Module):
        def __init__(self) -> None:
            self.agent = agent()

        async def aforward(self, task: str) -> list[str]:
            found = await gather(*(self.agent.acall(task=task) for _ in range(3)))
            return [each.answer for each in found]

    program = Three()
    with context(lm=ScriptedLM([STEPS[2]] * 3)):
        stream = program.stream(task="Pay.", store=any_store)
        live = [event.path for event in stream if event.type == "ModelAnswered"]
        loaded = Run.load(any_store, stream.run.id, program)
        for reader in (stream.run, loaded):
            paths = [event.path for event in reader.events() if event.type == "ModelAnswered"]
            assert paths == live
