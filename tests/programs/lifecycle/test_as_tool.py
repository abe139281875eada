"""Programs as tools of other programs: one run, one journal, one budget."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from agent_script import fields, native_step
from msgspec.structs import replace

from ferrule import (
    ChainOfThought,
    InputField,
    Limits,
    Module,
    OutputField,
    Predict,
    Prediction,
    ReAct,
    Response,
    Run,
    RunError,
    Signature,
    Tool,
    ToolCall,
    context,
    events,
    tool,
)
from ferrule.errors import ToolDefinitionError, UnavailableError
from ferrule.runs.driver.execution import aexecute, execute
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.exchange import Usage


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def start(program: Module, driver: str, **inputs: Any) -> Run:
    return asyncio.run(program.astart(**inputs)) if driver == "async" else program.start(**inputs)


def test_a_program_that_returns_a_plain_value_returns_it_as_a_tool() -> None:
    class Loud(Module):
        """Say it louder."""

        signature = Signature("word -> loud")

        def forward(self, word: str) -> str:
            return word.upper()

    assert Loud().as_tool()(word="a") == "A"


def test_the_tool_of_a_program_has_the_constraints_of_its_inputs() -> None:
    class Draw(Signature):
        count: int = InputField(ge=1, le=5)
        cards: str = OutputField()

    inner = Predict(Draw)
    inner.lm = ScriptedLM([])
    made = inner.as_tool("draw")
    assert made.parameters["properties"]["count"] == {"type": "integer", "minimum": 1, "maximum": 5}
    script = ScriptedLM(
        [{"name": "draw", "args": {"count": 9}}, {"name": "finish", "args": {"answer": "x"}}],
    )
    [result] = (
        ReAct("question -> answer", tools=[made], lm=script)(question="x")
        .trajectory.steps[0]
        .results
    )
    assert result.is_fault
    assert "count: 9 is over the maximum 5" in result.content


def resume(run: Run, driver: str) -> Run:
    return asyncio.run(run.aresume()) if driver == "async" else run.resume()


class Book:
    """An outer agent that calls an inner one for each name; the inner one pays after a person
    agreed. Counts what really happened.
    """

    def __init__(self, *names: str, other: Tool | None = None, **keywords: Any) -> None:
        self.paid: list[str] = []
        self.asked: list[str] = []
        self.names = names
        self.other = other

        @tool(require_confirmation=True)
        def pay(name: str) -> str:
            """Pay somebody."""
            self.paid.append(name)
            return f"paid {name}"

        self.cashier = ReAct("who -> receipt", [pay], native=True)
        tools = [self.cashier.as_tool("cashier", "Pays."), *([other] if other is not None else [])]
        self.agent = ReAct("question -> answer", tools, native=True, **keywords)
        self.lm = ScriptedLM(
            by=lambda request: replace(self.answer(request), usage=Usage(10, 1, 0, 1)),
        )

    def answer(self, request: Any) -> Response:
        opening, last = request.messages[1].text, request.messages[-1]
        if any(declared["function"]["name"] == "pay" for declared in request.tools):
            who = opening
            self.asked.append(f"cashier {who}")
            return (
                native_step("e", "finish", {"receipt": last.text})
                if last.role == "tool"
                else native_step("p", "pay", {"name": who})
            )
        self.asked.append("agent")
        if last.role == "tool":
            results = [message.text for message in request.messages if message.role == "tool"]
            return native_step("e", "finish", {"answer": "; ".join(results)})
        calls = [ToolCall(name="cashier", args={"who": name}) for name in self.names]
        return Response(
            "",
            (
                *calls,
                *([ToolCall(name=self.other.name, args={})] if self.other is not None else []),
            ),
        )


# -- as a tool


class Research(Signature):
    """Find out about a topic."""

    topic: str = InputField(desc="what it is about")
    depth: int = InputField(default=2)
    report: str = OutputField()


def test_the_arguments_are_the_inputs_of_the_signature() -> None:
    found = Predict(Research).as_tool()
    assert (found.name, found.desc) == ("research", "Find out about a topic.")
    assert found.parameters == {
        "type": "object",
        "properties": {
            "topic": {"type": "string", "description": "what it is about"},
            "depth": {"type": "integer", "default": 2},
        },
        "required": ["topic"],
    }


def test_name_and_description_can_be_given() -> None:
    found = Predict(Research).as_tool("look_up", "Looks things up.", timeout_s=5)
    assert (found.name, found.desc, found.timeout_s) == ("look_up", "Looks things up.", 5)


def test_a_programs_own_name_is_the_tools() -> None:
    assert Predict("topic -> report", name="look-up").as_tool().name == "look-up"
    assert ChainOfThought(Research, name="look-up").as_tool().name == "look-up"
    assert ReAct(Research, [], name="look-up").as_tool("other").name == "other"


def test_a_programs_own_class_names_the_tool() -> None:
    class DeepThought(Module):
        signature = Signature("question -> answer")

        def forward(self, question: str) -> Prediction:
            return Prediction(answer=question.upper())

    assert DeepThought().as_tool().name == "deep_thought"
    assert DeepThought().as_tool()(question="a") == "A"


def test_what_has_no_name_or_no_signature_is_refused() -> None:
    """What to do is said."""
    with pytest.raises(ToolDefinitionError, match=r"as_tool\('research'\)"):
        Predict("topic -> report").as_tool()
    with pytest.raises(ToolDefinitionError, match="has no signature"):
        type("Bare", (Module,), {})().as_tool("bare")


def test_called_directly_it_is_the_program() -> None:
    one, two = (
        Predict("topic -> report").as_tool("one"),
        Predict("topic -> report, pages: int").as_tool("two"),
    )
    with context(lm=ScriptedLM([fields(report="R"), fields(report="R", pages=3)])):
        assert one(topic="t") == "R"
        assert asyncio.run(two.acall(topic="t")) == {"report": "R", "pages": 3}


# -- inside a run


def test_a_nested_question_waits_in_the_outer_run_and_is_answered_there(driver: str) -> None:
    """`pending` is flat, with the path of who asks."""
    book = Book("ann")
    with context(lm=book.lm):
        run = start(book.agent, driver, question="q")
        assert (run.status, [question.call.name for question in run.pending]) == (
            "waiting",
            ["pay"],
        )
        assert "cashier" in run.pending[0].path
        assert [entry.kind for entry in run.journal.entries if entry.slot == "1.0"] == ["begun"]
        run.answer(run.pending[0].approve())
        assert resume(run, driver).prediction.answer == "paid ann"
    assert book.paid == ["ann"]
    assert book.asked == ["agent", "cashier ann", "cashier ann", "agent"]
    assert [entry.kind for entry in run.journal.entries if entry.slot == "1.0"] == [
        "begun",
        "spent",
        "result",
    ]


def test_parallel_nested_questions_are_each_answered_by_id(driver: str) -> None:
    """Those that finished are kept, those that wait wait."""
    book = Book("ann", "bob", "cleo")
    with context(lm=book.lm):
        run = start(book.agent, driver, question="q")
        assert [question.call.args["name"] for question in run.pending] == ["ann", "bob", "cleo"]
        run.answer(run.pending[1].approve())
        resume(run, driver)
        assert book.paid == ["bob"]
        assert [question.call.args["name"] for question in run.pending] == ["ann", "cleo"]
        run.answer(run.pending[1].deny("too much"))
        run.answer(run.pending[0].approve(name="anna"))
        assert resume(run, driver).status == "done"
    assert book.paid == ["bob", "anna"]
    assert book.asked.count("agent") == 2
    assert sorted(book.asked[1:-1]) == sorted(["cashier ann", "cashier bob", "cashier cleo"] * 2)


def test_other_calls_of_the_turn_run_once(driver: str) -> None:
    """A plain tool beside a program that waits."""
    noted: list[str] = []

    @tool
    def note() -> str:
        """Note."""
        noted.append("note")
        return "noted"

    book = Book("ann", other=note)
    with context(lm=book.lm):
        run = start(book.agent, driver, question="q")
        assert noted == ["note"]
        resume(run, driver)
        assert run.status == "waiting"
        run.answer(run.pending[0].approve())
        assert resume(run, driver).prediction.answer == "paid ann; noted"
    assert (noted, book.paid) == (["note"], ["ann"])


def test_sync_and_async_journals_are_equal() -> None:
    journals: list[Any] = []
    for how in ("sync", "async"):
        book = Book("ann", "bob")
        with context(lm=book.lm):
            run = start(book.agent, how, question="q")
            ids = {question.id: f"q{n}" for n, question in enumerate(run.pending)}
            for question in run.pending:
                run.answer(question.approve())
            resume(run, how)
        for entry in run.journal.entries:
            if entry.kind == "decision":
                entry.value = ids[entry.value.question_id]
        journals.append(run.journal)
    assert journals[0] == journals[1]


def test_a_run_with_a_nested_question_goes_on_from_paper(driver: str) -> None:
    """Another process, another day."""
    book = Book("ann", "bob")
    with context(lm=book.lm):
        first = start(book.agent, driver, question="q")
        first.answer(first.pending[0].approve())
        resume(first, driver)
        again = Run.from_json(first.to_json(), book.agent)
        assert [question.call.args["name"] for question in again.pending] == ["bob"]
        again.answer(again.pending[0].approve())
        assert resume(again, driver).prediction.answer == "paid ann; paid bob"
    assert book.paid == ["ann", "bob"]
    assert book.asked.count("agent") == 2


def test_a_crash_inside_is_gone_on_from_inside(driver: str) -> None:
    """What the inner program did is not done again, and nobody is asked whether the outer call ran."""
    ran: list[str] = []
    crash = [True]

    @tool
    def step(n: int) -> str:
        """Step."""
        ran.append(f"step {n}")
        return f"done {n}"

    def answer(request: Any) -> Any:
        opening, results = (
            request.messages[1].text,
            sum(message.role == "tool" for message in request.messages),
        )
        if opening != "j":
            return (
                native_step("e", "finish", {"answer": request.messages[-1].text})
                if results
                else native_step("w", "worker", {"job": "j"})
            )
        if results == 1 and crash[0]:
            raise KeyboardInterrupt
        return (
            native_step("s", "step", {"n": results})
            if results < 2
            else native_step("e", "finish", {"outcome": "fine"})
        )

    worker = ReAct("job -> outcome", [step], native=True).as_tool("worker")
    agent = ReAct("question -> answer", [worker], native=True)
    with context(lm=ScriptedLM(by=answer)):
        run = Run(agent, (), {"question": "q"})
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(aexecute(run)) if driver == "async" else execute(run)
        assert (run.status, ran) == ("cancelled", ["step 0"])
        crash[0] = False
        assert resume(Run.from_json(run.to_json(), agent), driver).prediction.answer == "fine"
    assert ran == ["step 0", "step 1"]


def test_a_nested_program_with_new_instructions_goes_on(driver: str) -> None:
    """What was approved is the call, which is the same."""
    book, other = Book("ann"), Book("ann")
    other.cashier.react.signature = other.cashier.react.signature.with_instructions("Pay twice.")
    with context(lm=book.lm):
        run = start(book.agent, driver, question="q")
        run.program = other.agent
        run.answer(run.pending[0].approve())
        resume(run, driver)
    assert (run.status, other.paid) == ("done", ["ann"])
    assert [entry.kind for entry in run.journal.entries].count("migrated") == 1


def test_what_goes_wrong_inside_is_an_observation(driver: str) -> None:
    """Like any tool that fails."""

    def answer(request: Any) -> Any:
        if "topic ## ]]" in request.messages[1].text:
            raise UnavailableError("no line")
        last = request.messages[-1]
        return (
            native_step("e", "finish", {"answer": last.text})
            if last.role == "tool"
            else native_step("r", "research", {"topic": "t"})
        )

    agent = ReAct("question -> answer", [Predict(Research).as_tool()], native=True)
    with context(lm=ScriptedLM(by=answer)):
        run = start(agent, driver, question="q")
    assert "no line" in run.prediction.answer


def test_programs_nest_as_deep_as_they_like(driver: str) -> None:
    """The path says where."""

    def answer(request: Any) -> Any:
        opening, last = request.messages[1].text, request.messages[-1]
        level = int(opening)
        if last.role == "tool":
            return native_step("e", "finish", {"answer": last.text})
        return (
            native_step("d", "deeper", {"level": level + 1})
            if level < 3
            else native_step("a", "act", {})
        )

    done: list[str] = []

    @tool(require_confirmation=True)
    def act() -> str:
        """Act."""
        done.append("act")
        return "acted"

    agent: Module = ReAct("level: int -> answer", [act], native=True)
    for _ in range(3):
        agent = ReAct("level: int -> answer", [agent.as_tool("deeper")], native=True)
    with context(lm=ScriptedLM(by=answer)):
        run = start(agent, driver, level=0)
        assert run.pending[0].path.count("deeper") == 3
        run.answer(run.pending[0].approve())
        assert resume(run, driver).prediction.answer == "acted"
    assert done == ["act"]


def test_a_program_with_a_forward_nests_too(driver: str) -> None:
    """Any module with a signature."""
    book = Book("ann")

    class Twice(Module):
        signature = Signature("who -> receipts: list[str]")

        def __init__(self) -> None:
            self.cashier = book.cashier

        def forward(self, who: str) -> Prediction:
            return Prediction(receipts=[self.cashier(who=who).receipt for _ in range(2)])

    def answer(request: Any) -> Any:
        if request.messages[1].text == "ann":
            return book.answer(request)
        last = request.messages[-1]
        return (
            native_step("e", "finish", {"answer": last.text})
            if last.role == "tool"
            else native_step("t", "twice", {"who": "ann"})
        )

    agent = ReAct("question -> answer", [Twice().as_tool()], native=True)
    with context(lm=ScriptedLM(by=answer)):
        run = start(agent, driver, question="q")
        for paid in ([], ["ann"]):
            assert (run.status, book.paid) == ("waiting", paid)
            run.answer(run.pending[0].approve())
            resume(run, driver)
        assert run.prediction.answer == '["paid ann","paid ann"]'
    assert book.paid == ["ann", "ann"]


# -- what both share


def test_tokens_inside_count_outside_also_after_a_resume(driver: str) -> None:
    """One budget; the result alone is replayed, not what was spent for it."""
    book = Book("ann", "bob")
    with context(lm=book.lm):
        run = start(book.agent, driver, question="q")
        run.answer(run.pending[0].approve())
        resume(run, driver)
        run.answer(run.pending[0].approve())
        resume(run, driver)
    assert len(book.asked) == 6
    assert (run.usage, run.prediction.usage) == (Usage(60, 6, 0, 6), Usage(60, 6, 0, 6))


def _is_inner(request: Any) -> bool:
    """Whether the worker asks: natively, or its extraction in the form of fields."""
    return request.messages[1].text == "j" or "job ## ]]" in request.messages[1].text


def test_limits_are_shared_with_what_is_nested(driver: str) -> None:
    """The outer agent's steps run out inside the inner one; both make an end."""
    asked: list[str] = []

    def answer(request: Any) -> Any:
        asked.append("inner" if _is_inner(request) else "outer")
        if not len(request.tools):
            return (
                fields(reasoning="r", outcome="O")
                if _is_inner(request)
                else fields(reasoning="r", answer="A")
            )
        return (
            native_step("l", "look", {})
            if _is_inner(request)
            else native_step("w", "worker", {"job": "j"})
        )

    looks = [Tool(lambda: "seen", "look", "Look.")]
    worker = ReAct("job -> outcome", looks, native=True, on_limit="extract").as_tool("worker")
    agent = ReAct(
        "question -> answer", [worker], native=True, limits=Limits(steps=3), on_limit="extract"
    )
    with context(lm=ScriptedLM(by=answer)):
        prediction = start(agent, driver, question="q").prediction
    assert (prediction.answer, prediction.reason) == ("A", "limits.steps")
    assert prediction.trajectory["observation_0"] == '{"outcome":"O","ended_early":"limits.steps"}'
    assert asked == ["outer", "inner", "inner", "inner", "inner", "outer"]


def test_events_inside_name_the_call_they_are_in(driver: str) -> None:
    """Parent ids."""
    book, told = Book("ann"), list[events.Event]()
    with context(lm=book.lm, callbacks=[told.append]):
        run = start(book.agent, driver, question="q")
    outer = next(event for event in told if isinstance(event, events.CallStarted))
    asked = next(event for event in told if isinstance(event, events.QuestionAsked))
    models = [event for event in told if isinstance(event, events.ModelCalled)]
    assert asked.parent_id == outer.call.id
    assert [event.parent_id for event in models] == ["", outer.call.id]
    assert {event.run_id for event in told} == {run.id}


def test_a_call_that_timed_out_does_nothing_more() -> None:
    """Its thread is abandoned, and makes no further act in the run."""
    reached, release, over, late = (
        threading.Event(),
        threading.Event(),
        threading.Event(),
        list[str](),
    )

    def wait() -> str:
        """Wait."""
        reached.set()
        release.wait(60)
        return "waited"

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        if _is_inner(request):
            if last.role == "tool":
                late.append("model")
            return native_step("w", "wait", {})
        return (
            native_step("e", "finish", {"answer": last.text})
            if last.role == "tool"
            else native_step("w", "worker", {"job": "j"})
        )

    class Watched(Module):
        signature = Signature("job -> outcome")

        def __init__(self) -> None:
            self.agent = ReAct("job -> outcome", [wait], native=True)

        def forward(self, job: str) -> Prediction:
            try:
                return self.agent(job=job)
            finally:
                over.set()

    agent = ReAct("question -> answer", [Watched().as_tool("worker", timeout_s=0.05)], native=True)
    with context(lm=ScriptedLM(by=answer)):
        run = agent.start(question="q")
        assert "did not finish within 0.05 s. It may still be running" in run.prediction.answer
        entries = len(run.journal.entries)
        assert reached.is_set()
        release.set()
        assert over.wait(60)
    assert (late, len(run.journal.entries)) == ([], entries)


def test_a_function_that_calls_a_program_that_waits_is_told_what_to_do(driver: str) -> None:
    """A function cannot wait in its middle."""
    book = Book("ann")

    def ask(who: str) -> str:
        """Ask."""
        return book.cashier(who=who).receipt

    agent = ReAct("question -> answer", [Tool(ask, "cashier")], native=True)
    with context(lm=book.lm):
        run = start(agent, driver, question="q")
    assert run.status == "failed"
    assert isinstance(run.error, RunError)
    assert "as_tool()" in str(run.error)
    assert book.paid == []
