"""What is said to a run reaches the next request of its agent: once, in order, from anywhere, and
across a crash.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from agent_script import native_step

import ferrule
from ferrule import (
    ChainOfThought,
    Context,
    MemoryStore,
    Module,
    Predict,
    ReAct,
    Request,
    Response,
    Run,
    SQLiteStore,
    context,
    events,
    tool,
)
from ferrule.acts import Listen, Once, Tell, Within
from ferrule.errors import (
    DecisionError,
    FerruleError,
    LimitReachedError,
    RunCancelledError,
    UnavailableError,
)
from ferrule.runs.limits import Limits
from ferrule.testing import ScriptedLM

DONE = native_step("done", "finish", {"answer": "ok"})
LOOK = native_step("look", "look", {})


class Talk:
    """An agent whose model and tool say things to its run while they work.

    `said` has what is said and by whom: the model before its nth answer (`"model 0"`), or the
    tool (`"look"`).
    """

    def __init__(
        self, *steps: Any, said: dict[str, Callable[[Run[Any]], None]] | None = None, **options: Any
    ) -> None:
        self.steps = steps or (LOOK, DONE)
        self.said = dict(said or {})
        self.requests: list[Request] = []
        self.events: list[events.Event] = []
        self.run: Any = None
        self.looks = 0

        @tool
        def look() -> str:
            """Look."""
            self.looks += 1
            self.speak("look")
            return "seen"

        self.lm = ScriptedLM(by=self.answer)
        self.agent = ReAct("task -> answer", [look], lm=self.lm, **options)

    def answer(self, request: Request) -> Any:
        number = len(self.requests)
        self.requests.append(request)
        self.speak(f"model {number}")
        return self.steps[number]

    def speak(self, who: str) -> None:
        if who in self.said:
            self.said.pop(who)(self.run)

    def start(self, *, store: Any = None, agent: Any = None) -> Run[Any]:
        with context(callbacks=[self.events.append]):
            stream = (agent or self.agent).stream(task="x", store=store)
            self.run = stream.run
            with suppress(FerruleError):  # in the run's own `error`
                for _ in stream:
                    pass
        return stream.run

    def read(self, request: int) -> list[str]:
        """What a request shows after the opening, as role and text."""
        messages = list(self.requests[request].messages)
        return [f"{message.role}: {message.text}" for message in messages[2:]]


def say(text: str, **keywords: Any) -> Callable[[Run[Any]], None]:
    return lambda run: run.say(text, **keywords)


def say_all(*texts: str, **keywords: Any) -> Callable[[Run[Any]], None]:
    def speak(run: Run[Any]) -> None:
        for text in texts:
            run.say(text, **keywords)

    return speak


@pytest.fixture(params=["no store", "memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return {"no store": None, "memory": MemoryStore(), "file": SQLiteStore(tmp_path / "r.db")}[
        request.param
    ]


# -- where a message goes


def test_a_message_reaches_the_next_request_once_and_in_order(store: Any) -> None:
    talk = Talk(LOOK, LOOK, DONE, said={"look": say_all("first", "second")})
    run = talk.start(store=store)
    assert run.status == "done"
    assert talk.read(1) == ["assistant: look", "tool: seen", "user: first", "user: second"]
    assert talk.read(2)[:4] == talk.read(1)
    assert [text for text in talk.read(2) if text.startswith("user")] == [
        "user: first",
        "user: second",
    ]


def test_a_message_before_the_first_request_is_in_it(store: Any) -> None:
    talk = Talk(DONE)
    stream = talk.agent.stream(task="x", store=store)
    stream.run.say("Be short.")
    for _ in stream:
        pass
    assert talk.read(0) == ["user: Be short."]


def test_a_message_that_comes_while_the_model_answers_is_read_after_the_answer(store: Any) -> None:
    """The run does not end with an answer to less than what was said."""
    talk = Talk(
        LOOK,
        DONE,
        native_step("again", "finish", {"answer": "blue"}),
        said={"model 1": say("Blue!")},
    )
    run = talk.start(store=store)
    assert run.prediction.answer == "blue"
    assert talk.read(2)[2:] == ["assistant: done", "tool: Completed.", "user: Blue!"]


def test_a_message_for_after_the_answer_waits_for_it(store: Any) -> None:
    talk = Talk(
        LOOK,
        DONE,
        native_step("more", "finish", {"answer": "two"}),
        said={"model 0": say("And two?", when="after")},
    )
    run = talk.start(store=store)
    assert not any("And two?" in text for text in talk.read(1))
    assert talk.read(2)[-1] == "user: And two?"
    assert run.prediction.answer == "two"


def test_a_message_that_comes_in_the_last_moment_is_read(store: Any) -> None:
    """Between the end of the program and the end of the run."""
    talk = Talk(DONE, native_step("again", "finish", {"answer": "late"}))
    original = talk.agent.flow

    def flow(**inputs: Any) -> Any:
        prediction = yield from original(**inputs)
        if "late" not in str(talk.requests[-1].messages[-1].text):
            talk.run.say("late")
        return prediction

    talk.agent.flow = flow  # type: ignore[method-assign]
    run = talk.start(store=store)
    assert run.prediction.answer == "late"
    assert talk.read(1)[-1] == "user: late"
    kinds = [type(event).__name__ for event in talk.events]
    assert (kinds.count("RunStarted"), kinds.count("RunFinished"), kinds.count("Resumed")) == (
        1,
        1,
        0,
    )
    assert kinds.count("StepFinished") == 2


def test_a_message_that_no_request_can_have_lets_the_run_end(store: Any) -> None:
    """Here, as its last request is not that of an agent."""
    executions: list[int] = []

    class Report(Module):
        def __init__(self) -> None:
            self.agent = talk.agent
            self.sum_up = Predict("answer -> summary", lm=talk.lm)

        def forward(self, task: str) -> Any:
            summary = self.sum_up(answer=self.agent(task=task).answer)
            executions.append(1)
            if len(executions) == 1:
                talk.run.say("Too late.")
            return summary

    talk = Talk(DONE, {"outputs": {"summary": "s"}})
    run = talk.start(store=store, agent=Report())
    assert (run.status, len(talk.requests), len(executions)) == ("done", 2, 2)
    assert [event for event in talk.events if isinstance(event, events.Said)] == []


def test_messages_before_and_after_the_end_have_places_of_their_own(store: Any) -> None:
    """The loop listens when it has answered, and again before the request that follows."""
    talk = Talk(DONE, DONE, said={"model 0": say("one")})

    def note(event: events.Event) -> None:
        if isinstance(event, events.Said) and event.text == "one":
            talk.run.say("two")

    with context(callbacks=[note]):
        stream = talk.agent.stream(task="x", store=store)
        talk.run = stream.run
        for _ in stream:
            pass
    assert talk.read(1)[-2:] == ["user: one", "user: two"]
    slots = [entry.slot for entry in talk.run.journal.entries if entry.kind == "decision"]
    assert slots == ["1~said.0", "1~said.1"]
    if store is not None:
        loaded = Run.load(store, talk.run.id, talk.agent)
        assert [step.said for step in loaded.trajectory.steps if step.said] == ["one", "two"]


def test_an_answer_in_plain_text_is_in_the_conversation_that_goes_on(store: Any) -> None:
    talk = Talk(Response("One."), Response("Two."), said={"model 0": say("And?")})
    run = talk.start(store=store)
    assert talk.read(1) == ["assistant: One.", "user: And?"]
    assert run.prediction.answer == "Two."
    assert [step.thought or step.said for step in run.trajectory.steps] == ["One.", "And?"]


def test_an_extracted_answer_is_in_the_conversation_that_goes_on() -> None:
    talk = Talk(
        LOOK,
        Response("[[ ## reasoning ## ]]\nr\n\n[[ ## answer ## ]]\nguess\n\n[[ ## completed ## ]]"),
        DONE,
        said={"model 1": say("Sure?")},
        max_iters=1,
    )
    run = talk.start()
    assert talk.read(2) == ["assistant: look", "tool: seen", "assistant: guess", "user: Sure?"]
    assert run.prediction.answer == "ok"


def test_who_speaks_gives_the_agent_all_its_steps_again() -> None:
    talk = Talk(LOOK, LOOK, DONE, said={"look": say("Look twice.")}, max_iters=2)
    assert talk.start().prediction.reason is None


def test_calls_in_text_show_a_message_as_a_field() -> None:
    steps = [{"name": "look", "args": {}}, {"name": "finish", "args": {"answer": "ok"}}]
    lm = ScriptedLM(steps)
    runs: list[Run[Any]] = []

    @tool
    def look() -> str:
        """Look."""
        runs[0].say("Look up.")
        return "seen"

    stream = ReAct("task -> answer", [look], lm=lm, native=False).stream(task="x")
    runs.append(stream.run)
    for _ in stream:
        pass
    assert lm.requests[1].messages[-1].text == "[[ ## user_message_1 ## ]]\nLook up."


@pytest.mark.parametrize("native", [True, False])
def test_predict_with_tools_reads_messages(native: bool, store: Any) -> None:
    runs: list[Run[Any]] = []

    @tool
    def look() -> str:
        """Look."""
        runs[0].say("first")
        runs[0].say("last", when="after")
        return "seen"

    def answer(text: str) -> Any:
        return {"outputs": {"answer": text}}

    lm = ScriptedLM([{"name": "look", "args": {}}, answer("one"), answer("two")])
    predict = Predict("task -> answer", tools=[look], lm=lm, native=native)
    stream = predict.stream(task="x", store=store)
    runs.append(stream.run)
    for _ in stream:
        pass
    run = runs[0]
    assert run.prediction.answer == "two"
    assert "first" in lm.requests[1].messages[-1].text
    assert "last" in lm.requests[2].messages[-1].text
    assert [step.said for step in run.trajectory.steps if step.said] == ["first", "last"]
    assert "one" in lm.requests[2].messages[-2].text


# -- which program reads it


def test_a_message_is_for_the_agent_and_not_for_one_that_is_its_tool(store: Any) -> None:
    inner = Talk(LOOK, DONE, said={"look": say("for the outer one")})
    lm = ScriptedLM([native_step("", "helper", {"task": "y"}), DONE])
    outer = ReAct("task -> answer", [inner.agent.as_tool("helper", "Helps.")], lm=lm)
    inner.start(store=store, agent=outer)
    assert not any("outer" in text for text in inner.read(1))
    assert lm.requests[1].messages[-1].text == "for the outer one"


def test_the_agent_of_a_forward_reads_it(store: Any) -> None:
    talk = Talk(said={"look": say("Hello.")})

    class Desk(Module):
        def __init__(self) -> None:
            self.agent = talk.agent

        def forward(self, task: str) -> Any:
            return self.agent(task=task)

    run = talk.start(store=store, agent=Desk())
    assert run.status == "done"
    assert talk.read(1)[-1] == "user: Hello."


def test_of_two_agents_at_once_one_reads_it() -> None:
    """Not both."""
    talks = [Talk(LOOK, LOOK, DONE), Talk(LOOK, LOOK, DONE)]

    class Both(Module):
        def __init__(self) -> None:
            self.agents = [talk.agent for talk in talks]

        async def aforward(self, task: str) -> Any:
            return await ferrule.gather(*[agent.acall(task=task) for agent in self.agents])

    def speak(run: Run[Any]) -> None:
        run.say("Only one of you.")

    talks[0].said = {"look": speak}
    stream = Both().stream(task="x")
    talks[0].run = stream.run
    for _ in stream:
        pass
    readers = [sum("Only one" in text for text in talk.read(2)) for talk in talks]
    assert sum(readers) == 1


def test_a_flow_of_a_user_listens_too() -> None:
    class Loop(Module):
        takes_messages = True

        def flow(self, **inputs: Any) -> Any:
            conditions = yield Within()
            assert conditions.listens
            texts: list[str] = []
            for number in range(2):
                for said in (yield Listen()):
                    texts.append(said.text)
                    yield Tell(said)
                yield Once(lambda number=number: runs[0].say(f"message {number}"), "speak")
            for said in (yield Listen(ends=True)):
                texts.append(said.text)
            return texts

    runs: list[Run[Any]] = []
    stream = Loop().stream()
    runs.append(stream.run)
    for _ in stream:
        pass
    assert stream.run.outcome == ["message 0", "message 1"]


def test_a_program_that_speaks_to_itself_each_time_ends() -> None:
    """Its messages come when it is over, so it is executed again: once."""
    executions: list[int] = []

    class Echo(Module):
        takes_messages = True

        def forward(self) -> str:
            executions.append(1)
            runs[0].say("again")
            return "over"

    runs: list[Run[Any]] = []
    stream = Echo().stream()
    runs.append(stream.run)
    for _ in stream:
        pass
    assert (stream.run.status, len(executions)) == ("done", 2)


# -- what is seen of it


def test_observers_the_trajectory_the_messages_and_the_decisions_have_it(store: Any) -> None:
    talk = Talk(said={"look": say("Use blue.", by="ann", via="chat")})
    run = talk.start(store=store)
    [said] = [event for event in talk.events if isinstance(event, events.Said)]
    assert (said.text, said.by, said.via, said.path) == ("Use blue.", "ann", "chat", "2~said.0")
    assert [step.said for step in run.trajectory.steps] == ["", "Use blue.", ""]
    assert "Use blue." in [message.text for message in run.messages]
    assert [(decision.kind, decision.by) for decision in run.decisions] == [("say", "ann")]
    assert [event.text for event in run.events() if isinstance(event, events.Said)] == ["Use blue."]


def test_a_loaded_run_has_it(store: Any) -> None:
    talk = Talk(said={"look": say("Use blue.")})
    run = talk.start(store=store)
    if store is None:
        loaded = Run.from_json(run.to_json(), talk.agent)
    else:
        loaded = Run.load(store, run.id, talk.agent)
    assert loaded.trajectory == run.trajectory
    assert [message.text for message in loaded.messages] == [
        message.text for message in run.messages
    ]
    assert len(talk.requests) == 2


# -- at rest, and across a crash


def test_a_waiting_run_reads_it_when_it_goes_on(store: Any) -> None:
    @tool(require_confirmation=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    lm = ScriptedLM([native_step("", "pay", {}), DONE])
    agent = ReAct("task -> answer", [pay], lm=lm)
    run = agent.start(task="x", store=store)
    run.say("In euros.")
    assert run.status == "waiting"
    run.answer(run.pending[0].approve())
    assert run.resume().status == "done"
    assert [message.text for message in lm.requests[1].messages][-2:] == ["paid", "In euros."]


def test_a_document_of_a_run_without_a_store_has_unread_messages() -> None:
    @tool(require_confirmation=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    lm = ScriptedLM([native_step("", "pay", {}), DONE])
    agent = ReAct("task -> answer", [pay], lm=lm)
    run = agent.start(task="x")
    run.say("one")
    run.say("two", key="k")
    copy = Run.from_json(run.to_json(), agent)
    copy.say("two", key="k")
    copy.say("three")
    copy.answer(copy.pending[0].approve())
    copy.resume()
    assert [message.text for message in lm.requests[1].messages][-3:] == ["one", "two", "three"]


def test_a_crash_after_any_entry_loses_no_message_and_reads_none_twice() -> None:
    """The messages that no entry records are still there to read."""
    talk = Talk(
        LOOK,
        LOOK,
        DONE,
        DONE,
        said={"model 0": say("a"), "look": say_all("b", "c"), "model 2": say("d")},
    )
    document = json.loads(talk.start().to_json())
    journal = document["journal"]
    messages = [entry["value"] for entry in journal if entry["kind"] == "decision"]
    assert [message["text"] for message in messages] == ["a", "b", "c", "d"]

    def by(request: Request) -> Any:
        return talk.steps[sum(message.role == "assistant" for message in request.messages)]

    talk.agent.set_lm(ScriptedLM(by=by))
    for count in range(len(journal) + 1):
        recorded = [entry["value"] for entry in journal[:count] if entry["kind"] == "decision"]
        form = {**document, "status": "running", "journal": journal[:count]}
        form["answers"] = [message for message in messages if message not in recorded]
        run = Run.from_json(json.dumps(form), talk.agent)
        run.resume()
        for question in run.pending:
            run.answer(question.approve())
            run.resume()
        assert run.status == "done", run.error
        said = [step.said for step in run.trajectory.steps if step.said]
        assert said == ["a", "b", "c", "d"], count
        shown = [message.text for message in run.messages if message.role == "user"][1:]
        assert shown == ["a", "b", "c", "d"], count


def test_a_message_after_a_crash_changes_nothing_that_was_done() -> None:
    """An agent whose answer another program went on with does not answer anew."""

    class Report(Module):
        def __init__(self) -> None:
            self.agent = talk.agent
            self.sum_up = Predict("answer -> summary", lm=talk.lm)

        def forward(self, task: str) -> Any:
            return self.sum_up(answer=ferrule.call_tool(note, text=self.agent(task=task).answer))

    @tool
    def note(text: str) -> str:
        """Note."""
        return f"noted {text}"

    talk = Talk(LOOK, DONE, {"outputs": {"summary": "s"}})
    document = json.loads(talk.start(agent=Report()).to_json())
    journal = document["journal"]

    def by(request: Request) -> Any:
        if "summary" in request.messages[0].text:
            return {"outputs": {"summary": "s"}}
        if sum(message.role == "assistant" for message in request.messages) == 0:
            return LOOK
        texts = "+".join(message.text for message in request.messages if message.role == "user")
        return native_step("", "finish", {"answer": texts})

    talk.lm = ScriptedLM(by=by)
    talk.agent.set_lm(talk.lm)
    for count in range(len(journal) + 1):
        form = {**document, "status": "running", "journal": journal[:count]}
        run = Run.from_json(json.dumps(form), Report())
        run.say("Hurry.")
        run.resume()
        for question in run.pending:
            run.answer(question.approve())
            run.resume()
        assert run.status == "done", (count, run.error)
        begun = [entry.digest for entry in run.journal.entries if entry.kind == "begun"]
        notes = {digest for digest in begun if digest.startswith("note")}
        assert len(notes) == 1, count


# -- from elsewhere


def test_a_store_says_it_to_a_run_that_executes_elsewhere(tmp_path: Path) -> None:
    """Another connection to the file, as of another process."""
    path = tmp_path / "runs.db"

    def speak(run: Run[Any]) -> None:
        with SQLiteStore(path, full_sync=False) as other:
            other.say(run.id, "from elsewhere", by="bob")

    talk = Talk(LOOK, DONE, said={"look": speak})
    run = talk.start(store=SQLiteStore(path))
    assert talk.read(1)[-1] == "user: from elsewhere"
    assert run.decisions[0].by == "bob"


def test_async_runs_read_what_another_process_said(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    def speak(run: Run[Any]) -> None:
        with SQLiteStore(path, full_sync=False) as other:
            other.say(run.id, "from elsewhere")

    talk = Talk(LOOK, DONE, DONE, said={"look": speak, "model 1": say("at the end")})

    async def main() -> Run[Any]:
        stream = talk.agent.stream(task="x", store=SQLiteStore(path))
        talk.run = stream.run
        async for _ in stream:
            pass
        return stream.run

    run = asyncio.run(main())
    assert talk.read(1)[-1] == "user: from elsewhere"
    assert talk.read(2)[-1] == "user: at the end"
    assert run.status == "done"


def test_a_message_in_a_batch_of_runs_reaches_its_run(tmp_path: Path) -> None:
    """Runs that share a commit."""
    store = SQLiteStore(tmp_path / "runs.db")

    @tool
    async def look(ctx: Context) -> str:
        """Look."""
        store.say(ctx.run_id, f"for {ctx.run_id}")
        return "seen"

    def by(request: Request) -> Any:
        return [LOOK, DONE][sum(message.role == "assistant" for message in request.messages)]

    agent = ReAct("task -> answer", [look], lm=ScriptedLM(by=by))

    async def main() -> list[Run[Any]]:
        return list(await asyncio.gather(*[agent.astart(task="x", store=store) for _ in range(20)]))

    for run in asyncio.run(main()):
        assert [step.said for step in run.trajectory.steps if step.said] == [f"for {run.id}"]


def test_messages_from_many_threads_are_all_read_once(store: Any) -> None:
    count = 8

    def speak(run: Run[Any]) -> None:
        threads = [
            threading.Thread(target=run.say, args=(f"m{number}",)) for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    talk = Talk(said={"look": speak})
    run = talk.start(store=store)
    said = [step.said for step in run.trajectory.steps if step.said]
    assert sorted(said) == [f"m{number}" for number in range(count)]
    assert said == [decision.text for decision in run.decisions]


# -- what is refused


@pytest.mark.parametrize("text", ["", "  \n", None, 5, ["a"]])
def test_a_message_is_a_text_that_says_something(text: Any, store: Any) -> None:
    refusals: list[str] = []

    def speak(run: Run[Any]) -> None:
        with pytest.raises(DecisionError) as raised:
            run.say(text)
        refusals.append(str(raised.value))

    run = Talk(said={"look": speak}).start(store=store)
    assert len(refusals) == 1
    assert run.decisions == []


def test_an_unknown_time_is_refused() -> None:
    with pytest.raises(DecisionError, match="'next', 'after'"):
        Talk().agent.stream(task="x").run.say("a", when="now")  # type: ignore[arg-type]


def test_a_finished_run_refuses_a_message(store: Any) -> None:
    talk = Talk(DONE)
    run = talk.start(store=store)
    with pytest.raises(DecisionError, match="is done"):
        run.say("more")
    if store is not None:
        with pytest.raises(DecisionError, match="is done"):
            store.say(run.id, "more")


def test_a_failed_and_a_cancelled_run_refuse_a_message(store: Any) -> None:
    talk = Talk(said={"look": lambda run: run.cancel()})
    assert talk.start(store=store).status == "cancelled"
    with pytest.raises(DecisionError, match="is cancelled"):
        talk.run.say("more")
    failing = Talk(UnavailableError("broken"))
    assert failing.start(store=store).status == "failed"
    with pytest.raises(DecisionError, match="is failed"):
        failing.run.say("more")


@pytest.mark.parametrize("kind", [Predict, ChainOfThought])
def test_a_program_without_a_loop_refuses_a_message(kind: Any, store: Any) -> None:
    refusals: list[str] = []

    def speak(run: Run[Any]) -> None:
        doors = [run.say]
        if store is not None:
            doors.append(lambda text: store.say(run.id, text))
        for door in doors:
            with pytest.raises(DecisionError, match="no loop") as raised:
                door("hello")
            refusals.append(str(raised.value))

    outputs = {"answer": "a"}
    if kind is ChainOfThought:
        outputs["reasoning"] = "r"
    talk = Talk({"outputs": outputs}, said={"model 0": speak})
    run = talk.start(store=store, agent=kind("task -> answer", lm=talk.lm))
    assert run.status == "done", run.error
    assert refusals


def test_a_cancelled_run_forgets_what_it_has_not_read(store: Any) -> None:
    """As it forgets decisions. It is asked, and told, again."""

    def stop(run: Run[Any]) -> None:
        run.say("never read")
        run.cancel()

    talk = Talk(LOOK, DONE, said={"look": stop})
    run = talk.start(store=store)
    assert isinstance(run.error, RunCancelledError)
    run.resume()
    assert run.status == "done"
    assert [step.said for step in run.trajectory.steps if step.said] == []


def test_a_message_with_a_key_is_sent_once(store: Any) -> None:
    """A webhook may send it twice: before it was read, and after."""

    def twice(run: Run[Any]) -> None:
        run.say("hello", key="slack-1")
        run.say("hello", key="slack-1")
        with pytest.raises(DecisionError, match="slack-1"):
            run.say("other", key="slack-1")

    talk = Talk(LOOK, LOOK, DONE, said={"model 0": twice, "model 1": say("hello", key="slack-1")})
    run = talk.start(store=store)
    assert [step.said for step in run.trajectory.steps if step.said] == ["hello"]


def test_a_message_is_no_decision_on_a_question(store: Any) -> None:
    talk = Talk()
    with pytest.raises(DecisionError):
        talk.agent.stream(task="x").run.answer(ferrule.Decision("say:000001", "say", "hello"))


# -- limits


def test_a_run_at_a_limit_keeps_the_message_for_when_it_goes_on(store: Any) -> None:
    talk = Talk(LOOK, LOOK, DONE, said={"look": say("Hurry.")})
    talk.agent.limits = Limits(steps=1)
    run = talk.start(store=store)
    assert isinstance(run.error, LimitReachedError)
    run.resume(limits=Limits(steps=5))
    assert run.status == "done"
    assert [step.said for step in run.trajectory.steps if step.said] == ["Hurry."]
