"""What a `forward` uses: values that a replay finds again, and branches of one program at once."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

import ferrule
from ferrule import (
    BaseLM,
    ConfirmationRejected,
    History,
    InputError,
    Limits,
    LMError,
    MemoryStore,
    Module,
    Predict,
    Prediction,
    ReAct,
    Request,
    Response,
    Run,
    RunError,
    SQLiteStore,
    Usage,
    context,
    gather,
    tool,
)
from ferrule.errors import (
    ConfigurationError,
    LimitReachedError,
    ReplayMismatchError,
    RunCancelledError,
    UnavailableError,
)
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ferrule import Decision, Question


@tool(require_confirmation=True)
def pay(euros: int) -> str:
    """Pay."""
    return "paid"


class Clock:
    """Counts how often it was read."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> int:
        self.reads += 1
        return self.reads

    async def aread(self) -> int:
        await asyncio.sleep(0)
        return self.read()


class Desk(Module):
    """Reads a clock, and pays."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.agent = ReAct("task, now: int -> answer", [pay])

    def forward(self, task: str) -> Prediction:
        return Prediction(
            answer=self.agent(task=task, now=ferrule.once(self.clock.read, "now")).answer,
            later=ferrule.once(self.clock.read, "later"),
        )


class AsyncDesk(Desk):
    """The same with `await`."""

    async def aforward(self, task: str) -> Prediction:
        found = await self.agent.acall(task=task, now=await ferrule.aonce(self.clock.aread, "now"))
        return Prediction(answer=found.answer, later=await ferrule.aonce(self.clock.read, "later"))


def pays() -> ScriptedLM:
    return ScriptedLM(
        [{"name": "pay", "args": {"euros": 7}}, {"name": "finish", "args": {"answer": "Paid."}}],
    )


@pytest.mark.parametrize("kind", [Desk, AsyncDesk])
@pytest.mark.parametrize("is_awaited", [False, True], ids=["sync", "async"])
def test_a_value_is_computed_once_and_found_again_in_another_process(
    kind: type[Desk],
    is_awaited: bool,
    tmp_path: Path,
) -> None:
    clock = Clock()

    async def astart(store: Any) -> None:
        assert (await kind(clock).astart(task="Pay.", store=store, run_id="r")).status == "waiting"

    async def aresume(run: Run) -> None:
        await run.aresume()

    with ferrule.context(lm=pays()), closing(SQLiteStore(tmp_path / "runs.db")) as store:
        asyncio.run(astart(store)) if is_awaited else kind(clock).start(
            task="Pay.",
            store=store,
            run_id="r",
        )
        run = Run.load(store, "r", kind(clock))
        run.answer(run.pending[0].approve())
        asyncio.run(aresume(run)) if is_awaited else run.resume()
        assert run.prediction.toDict() == {"answer": "Paid.", "later": 2}
        assert Run.load(store, "r", kind(clock)).prediction.later == 2
    assert clock.reads == 2


def test_outside_a_run_and_in_a_tool_it_only_computes() -> None:
    clock = Clock()
    assert (ferrule.once(clock.read), asyncio.run(ferrule.aonce(clock.aread))) == (1, 2)

    @tool
    def now() -> int:
        """Read the clock."""
        return ferrule.once(clock.read)

    lm = ScriptedLM([{"name": "now", "args": {}}, {"name": "finish", "args": {"answer": "3"}}])
    run = ReAct("question -> answer", [now], lm=lm).start(question="?")
    assert [entry.kind for entry in run.journal.entries] == ["model", "begun", "result", "model"]


def run_in_module(forward: Callable[[], Any]) -> Run:
    class Program(Module):
        def forward(self) -> Prediction:
            return Prediction(answer=forward())

    return Program().start()


def test_values_of_one_name_are_matched_by_their_order_and_branches_have_their_own() -> None:
    clock = Clock()

    class Program(Module):
        is_stopped = True

        async def aforward(self) -> Prediction:
            twice = [await ferrule.aonce(clock.read), await ferrule.aonce(clock.read)]
            branches = await gather(ferrule.aonce(clock.aread), ferrule.aonce(clock.aread))
            if self.is_stopped:
                raise OSError("the network is gone")
            return Prediction(found=[*twice, *branches])

    store, program = MemoryStore(), Program()
    assert program.start(store=store, run_id="r").status == "failed"
    program.is_stopped = False
    assert Run.load(store, "r", program).resume().prediction.found == [1, 2, 3, 4]
    assert clock.reads == 4


def test_what_the_program_changes_in_a_value_is_not_in_the_record() -> None:
    class Program(Module):
        is_stopped = True

        def forward(self) -> Prediction:
            found = ferrule.once(lambda: {"passages": ["a"]}, "search")
            found["passages"].append("b")
            if self.is_stopped:
                raise OSError("the network is gone")
            return Prediction(**found)

    program = Program()
    run = program.start()
    assert run.status == "failed"
    program.is_stopped = False
    assert run.resume().prediction.passages == ["a", "b"]
    assert run.journal.entries[0].value == {"passages": ["a"]}


def test_a_function_that_raises_leaves_no_record() -> None:
    tries: list[str] = []

    def make() -> str:
        tries.append("try")
        if len(tries) == 1:
            raise OSError("the network is gone")
        return "found"

    run = run_in_module(lambda: ferrule.once(make))
    assert (run.status, run.journal.entries) == ("failed", [])
    assert run.resume().prediction.answer == "found"


class Triage(Module):
    """Asks a model how urgent a ticket is, goes on without it if the model is down, and pays."""

    def __init__(self) -> None:
        self.classify = Predict("ticket -> urgency")
        self.agent = ReAct("ticket, urgency -> answer", [pay])

    def ask(self, ticket: str) -> str:
        try:
            return self.classify(ticket=ticket).urgency
        except LMError:
            return "unknown"

    def forward(self, ticket: str) -> Prediction:
        urgency = ferrule.once(lambda: self.ask(ticket), "urgency")
        again = self.classify(ticket=ticket).urgency
        return Prediction(
            urgency=urgency,
            again=again,
            answer=self.agent(ticket=ticket, urgency=urgency).answer,
        )


class AsyncTriage(Triage):
    """The same with `await`."""

    async def aask(self, ticket: str) -> str:
        try:
            return (await self.classify.acall(ticket=ticket)).urgency
        except LMError:
            return "unknown"

    async def aforward(self, ticket: str) -> Prediction:
        urgency = await ferrule.aonce(lambda: self.aask(ticket), "urgency")
        again = (await self.classify.acall(ticket=ticket)).urgency
        return Prediction(
            urgency=urgency,
            again=again,
            answer=(await self.agent.acall(ticket=ticket, urgency=urgency)).answer,
        )


def triage(*urgencies: Any) -> Callable[[Request], Any]:
    """A model that gives these answers to `classify`."""
    left = list(urgencies)

    def model(request: Request) -> Any:
        if request.tools:
            return (
                {"name": "finish", "args": {"answer": "Paid."}}
                if request.messages[-1].role == "tool"
                else {"name": "pay", "args": {"euros": 7}}
            )
        found = left.pop(0)
        return found if isinstance(found, LMError) else {"outputs": {"urgency": found}}

    return model


@pytest.mark.parametrize("kind", [Triage, AsyncTriage])
@pytest.mark.parametrize(
    "first",
    ["high", UnavailableError("down")],
    ids=["it answers", "it is down"],
)
def test_a_program_in_the_function_is_a_part_of_the_value(kind: type[Triage], first: Any) -> None:
    """Its answers were looked for again in the resumed run, which failed after it had paid."""
    store = MemoryStore()
    with context(lm=ScriptedLM(by=triage(first, "low"))):
        kind().start(ticket="?", store=store, run_id="r")
        run = Run.load(store, "r", kind())
        run.answer(run.pending[0].approve())
        run.resume()
        assert run.prediction.toDict() == {
            "urgency": "high" if first == "high" else "unknown",
            "again": "low",
            "answer": "Paid.",
        }
        assert Run.load(store, "r", kind()).prediction.again == "low"


class Ways(Module):
    """Goes on without an answer if the model is down, asks a person, and says what it got."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.classify = Predict("ticket -> urgency")
        self.inner = Inner(self.classify)


class Careful(Ways):
    """In sync code."""

    def forward(self, ticket: str) -> Prediction:
        ask = {
            "directly": self.classify,
            "in a program": self.inner,
            "in once": lambda ticket: Prediction(
                urgency=ferrule.once(lambda: self.classify(ticket=ticket).urgency),
            ),
        }[self.way]
        try:
            urgency = ask(ticket=ticket).urgency
        except (LMError, LimitReachedError):
            urgency = "unknown"
        return Prediction(
            urgency=urgency,
            said=ferrule.ask_person("Go on?"),
            again=self.classify(ticket="again").urgency,
        )


class Inner(Module):
    """Catches nothing."""

    def __init__(self, classify: Predict) -> None:
        self.classify = classify

    def forward(self, ticket: str) -> Prediction:
        return self.classify(ticket=ticket)


class AsyncCareful(Ways):
    """The same with `await`."""

    async def aforward(self, ticket: str) -> Prediction:
        async def in_branches(ticket: str) -> Prediction:
            first, _ = await gather(self.classify.acall(ticket=ticket), ferrule.aonce(lambda: 1))
            return first

        async def in_once(ticket: str) -> Prediction:
            async def ask() -> str:
                return (await self.classify.acall(ticket=ticket)).urgency

            return Prediction(urgency=await ferrule.aonce(ask))

        ways = {
            "directly": self.classify.acall,
            "in a program": self.inner.acall,
            "in once": in_once,
            "in branches": in_branches,
        }
        try:
            urgency = (await ways[self.way](ticket=ticket)).urgency
        except (LMError, LimitReachedError):
            urgency = "unknown"
        said = await ferrule.aask_person("Go on?")
        return Prediction(
            urgency=urgency,
            said=said,
            again=(await self.classify.acall(ticket="again")).urgency,
        )


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *(
            (kind, way)
            for kind in (Careful, AsyncCareful)
            for way in ("directly", "in a program", "in once")
        ),
        (AsyncCareful, "in branches"),
    ],
)
def test_a_models_error_that_forward_caught_is_raised_again_in_a_replay(
    kind: type[Ways],
    way: str,
) -> None:
    """The resumed run asked the model again, which answered, and so took another way."""
    store = MemoryStore()
    with context(lm=ScriptedLM(by=triage(UnavailableError("down"), "low"))):
        kind(way).start(ticket="?", store=store, run_id="r")
        for _ in range(2):
            run = Run.load(store, "r", kind(way))
            if run.pending:
                run.answer(run.pending[0].approve())
                run.resume()
            assert run.prediction.toDict() == {"urgency": "unknown", "said": "yes", "again": "low"}


def test_a_models_error_that_nothing_caught_is_not_recorded() -> None:
    class Program(Module):
        def __init__(self) -> None:
            self.inner = Inner(Predict("ticket -> urgency"))

        def forward(self) -> Prediction:
            return self.inner(ticket="?")

    store = MemoryStore()
    with context(lm=ScriptedLM(by=triage(UnavailableError("down"), "low"))):
        run = Program().start(store=store, run_id="r")
        assert (run.status, run.journal.entries) == ("failed", [])
        assert Run.load(store, "r", Program()).resume().prediction.urgency == "low"


@pytest.mark.parametrize(
    "is_late",
    [False, True],
    ids=["beside another program", "before another program begins"],
)
def test_a_models_error_in_another_task_is_not_taken_for_one_that_was_caught(is_late: bool) -> None:
    """A program that begins in another task does not show that the error was caught: the run could
    never have gone on.
    """
    is_down = True

    class Model(BaseLM):
        def complete(self, request: Request) -> Response:
            raise NotImplementedError

        async def acomplete(self, request: Request) -> Response:
            await asyncio.sleep(0.02 if is_late == ("soon" in request.messages[-1].text) else 0)
            if is_down and "down" in request.messages[-1].text:
                raise UnavailableError("down")
            return Response("[[ ## urgency ## ]]\nlow\n\n[[ ## completed ## ]]")

    class Program(Module):
        def __init__(self) -> None:
            self.classify = Predict("ticket -> urgency", lm=Model())

        async def several(self) -> None:
            for k in range(4):
                await asyncio.sleep(0.01)
                await self.classify.acall(ticket=f"soon {k}")

        async def aforward(self) -> Prediction:
            found = await asyncio.gather(
                self.several(),
                self.classify.acall(ticket="down"),
                return_exceptions=True,
            )
            for each in found:
                if isinstance(each, BaseException):
                    raise each
            return Prediction(done=True)

    store = MemoryStore()
    run = asyncio.run(Program().astart(store=store, run_id="r"))
    assert isinstance(run.error, UnavailableError)
    assert [entry.kind for entry in run.journal.entries] == ["model"] * 4
    is_down = False
    again = Run.load(store, "r", Program())
    asyncio.run(again.aresume())
    assert again.prediction.done


def test_an_error_that_a_called_program_caught_is_recorded_when_it_returns() -> None:
    class Catching(Inner):
        def forward(self, ticket: str) -> Prediction:
            try:
                return self.classify(ticket=ticket)
            except LMError:
                return Prediction(urgency="unknown")

    class Program(Module):
        def __init__(self) -> None:
            self.inner = Catching(Predict("ticket -> urgency"))

        def forward(self) -> Prediction:
            return Prediction(
                urgency=self.inner(ticket="?").urgency,
                said=ferrule.ask_person("Go on?"),
            )

    store = MemoryStore()
    with context(lm=ScriptedLM(by=triage(UnavailableError("down"), "low"))):
        Program().start(store=store, run_id="r")
        run = Run.load(store, "r", Program())
        run.answer(run.pending[0].approve())
        assert run.resume().prediction.urgency == "unknown"


def test_a_limit_that_forward_caught_is_reached_again_in_a_replay() -> None:
    class Program(Module):
        def __init__(self) -> None:
            self.classify = Predict("ticket -> urgency")

        def forward(self) -> Prediction:
            found = [self.classify(ticket="1").urgency]
            try:
                found.append(self.classify(ticket="2").urgency)
            except LimitReachedError:
                found.append("over the limit")
            return Prediction(found=found, said=ferrule.ask_person("Go on?"))

    answer = Response("[[ ## urgency ## ]]\nlow", usage=Usage(60, 0, 0, 1))
    store = MemoryStore()
    with context(lm=ScriptedLM(by=lambda _: answer), limits=Limits(tokens=50)):
        Program().start(store=store, run_id="r")
    with context(lm=ScriptedLM(by=lambda _: answer), limits=Limits(tokens=500)):
        run = Run.load(store, "r", Program())
        run.answer(run.pending[0].approve())
        assert run.resume().prediction.found == ["low", "over the limit"]


def test_a_program_in_a_function_that_was_cut_off_is_not_asked_again() -> None:
    class Program(Module):
        is_stopped = True

        def __init__(self) -> None:
            self.classify = Predict("ticket -> urgency")

        def urgency(self) -> str:
            found = [
                self.classify(ticket=ticket).urgency
                for ticket in ("a", "b")[: 2 if self.is_stopped else 1]
            ]
            if self.is_stopped:
                raise OSError("the network is gone")
            return found[0]

        def forward(self) -> Prediction:
            return Prediction(urgency=ferrule.once(self.urgency))

    store, program, lm = MemoryStore(), Program(), ScriptedLM(by=triage("high", "low"), record=True)
    with context(lm=lm):
        assert program.start(store=store, run_id="r").status == "failed"
        program.is_stopped = False
        assert Run.load(store, "r", program).resume().prediction.urgency == "high"
    assert len(lm.requests) == 2


def test_a_program_in_the_function_may_ask_a_person() -> None:
    class Program(Module):
        def __init__(self) -> None:
            self.agent = ReAct("task -> answer", [pay])

        def forward(self) -> Prediction:
            paid = ferrule.once(lambda: self.agent(task="Pay.").answer, "paid")
            return Prediction(answer=paid, said=ferrule.ask_person("Enough?"))

    store = MemoryStore()
    with context(lm=pays()):
        Program().start(store=store, run_id="r")
        for decide in (
            lambda question: question.approve(),
            lambda question: question.reply("Yes."),
        ):
            run = Run.load(store, "r", Program())
            run.answer(decide(run.pending[0]))
            run.resume()
        assert run.prediction.toDict() == {"answer": "Paid.", "said": "Yes."}


def test_what_a_program_in_the_function_spent_counts_in_the_resumed_run_too() -> None:
    class Program(Module):
        def __init__(self) -> None:
            self.ask = Predict("question -> answer")

        def forward(self) -> Prediction:
            first = ferrule.once(lambda: self.ask(question="1").answer, "first")
            ferrule.ask_person("Go on?")
            self.ask(question="2")
            return Prediction(first=first, last=self.ask(question="3").answer)

    answer = Response("[[ ## answer ## ]]\n42", usage=Usage(60, 0, 0, 1))
    store = MemoryStore()
    with context(lm=ScriptedLM(by=lambda _: answer), limits=Limits(tokens=100)):
        Program().start(store=store, run_id="r")
        run = Run.load(store, "r", Program())
        run.answer(run.pending[0].approve())
        assert isinstance(run.resume().error, LimitReachedError)
        assert run.usage.input_tokens == 120
    with context(lm=ScriptedLM(by=lambda _: answer), limits=Limits(tokens=1000)):
        assert Run.load(store, "r", Program()).resume().prediction.toDict() == {
            "first": "42",
            "last": "42",
        }
    spent = [entry for entry in run.journal.entries if entry.kind == "spent"]
    assert [entry.slot for entry in spent] == ["once:first#0"]
    clock = run_in_module(lambda: ferrule.once(lambda: 1, "now"))
    assert [entry.slot for entry in clock.journal.entries] == ["once:now#0"]


def test_a_program_in_the_function_has_its_place_in_the_tree_of_events() -> None:
    class Program(Module):
        def forward(self) -> Prediction:
            return Prediction(
                found=ferrule.once(
                    lambda: Predict("question -> answer")(question="?").answer,
                    "search",
                ),
            )

    with context(lm=ScriptedLM([{"outputs": {"answer": "42"}}])):
        stream = Program().stream()
        told = list(stream)
    outer, inner = [event for event in told if event.type == "RunStarted"]
    assert (outer.path, outer.depth, inner.depth) == ("", 0, 1)
    assert inner.path.startswith("once:search#0/Predict:")
    assert inner.parent_span_id == outer.span_id
    [answered] = [event for event in told if event.type == "ModelAnswered"]
    [recalled] = [event for event in stream.run.events() if event.type == "ModelAnswered"]
    assert answered.parent_span_id == inner.span_id
    assert (recalled.path, recalled.depth, recalled.parent_span_id) == (
        answered.path,
        1,
        answered.parent_span_id,
    )


class Array:
    """As those of NumPy."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("The truth value of an array with more than one element is ambiguous.")


NO_JSON = [object(), {1: "a"}, (1, 2), float("nan"), Prediction(answer=1), Array(), [Array()]]


@pytest.mark.parametrize("value", NO_JSON, ids=lambda value: type(value).__name__)
def test_a_value_that_is_not_json_data_is_refused_without_a_store_too(value: Any) -> None:
    run = run_in_module(lambda: ferrule.once(lambda: value, "search"))
    assert isinstance(run.error, RunError)
    assert (
        "The value `search` of `once` is recorded as JSON, so it must be JSON data; found "
        in str(run.error)
    )


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    assert isinstance(run_in_module(lambda: ferrule.once(lambda: value)).error, RunError)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a?", "a#0", "a.b", 3, None])
def test_a_name_is_a_word(name: Any) -> None:
    with pytest.raises(InputError, match="a word of letters, digits, `_` and `-`; found"):
        ferrule.once(dict, name)


def test_an_async_function_needs_aonce() -> None:
    with pytest.raises(RunError, match=r"write `await ferrule\.aonce\(\.\.\.\)`"):
        ferrule.once(Clock().aread)


class Versions(Module):
    """Its next version asks for other values."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.agent = ReAct("task -> answer", [pay])

    def forward(self, task: str) -> Prediction:
        found = {name: ferrule.once(lambda: 1, name) for name in self.names}
        return Prediction(answer=self.agent(task=task).answer, **found)


def test_a_new_version_may_ask_for_more_values_but_not_for_fewer() -> None:
    with ferrule.context(lm=pays()):
        store = MemoryStore()
        Versions("now").start(task="Pay.", store=store, run_id="r")
        fewer = Run.load(store, "r", Versions())
        fewer.answer(fewer.pending[0].approve())
        assert isinstance(fewer.resume().error, ReplayMismatchError)
    with ferrule.context(lm=pays()):
        store = MemoryStore()
        Versions("now").start(task="Pay.", store=store, run_id="r")
        more = Run.load(store, "r", Versions("first", "now"))
        more.answer(more.pending[0].approve())
        assert more.resume().prediction.toDict() == {"answer": "Paid.", "first": 1, "now": 1}


def test_a_cancelled_run_computes_nothing_more() -> None:
    clock = Clock()

    class Program(Module):
        def forward(self) -> Prediction:
            run.cancel()
            return Prediction(now=ferrule.once(clock.read))

    run = Run(Program(), (), {})
    run.resume()
    assert (run.status, type(run.error), clock.reads) == ("cancelled", RunCancelledError, 0)


# -- a person


class Writer(Module):
    """Writes a text, and publishes it if a person agrees."""

    def __init__(self, expires_s: float | None = None) -> None:
        self.write = ferrule.Predict("topic -> text")
        self.expires_s = expires_s
        self.published: list[str] = []

    def publish(self, text: str, said: str) -> Prediction:
        if said == "yes":
            self.published.append(text)
        return Prediction(text=text, said=said)

    def forward(self, topic: str) -> Prediction:
        text = self.write(topic=topic).text
        return self.publish(
            text,
            ferrule.ask_person(f"Publish {text!r}?", expires_s=self.expires_s),
        )


class AsyncWriter(Writer):
    """The same with `await`."""

    async def aforward(self, topic: str) -> Prediction:
        text = (await self.write.acall(topic=topic)).text
        return self.publish(text, await ferrule.aask_person(f"Publish {text!r}?"))


class OnlyAsyncWriter(Module):
    """Without a `forward`."""

    aforward = AsyncWriter.aforward

    def __init__(self) -> None:
        self.write, self.published, self.publish = (
            ferrule.Predict("topic -> text"),
            [],
            Writer.publish.__get__(self),
        )


@pytest.mark.parametrize("make", [Writer, AsyncWriter, OnlyAsyncWriter])
@pytest.mark.parametrize("is_awaited", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("decide", "said"),
    [(lambda q: q.reply("later"), "later"), (lambda q: q.approve(), "yes")],
    ids=["reply", "approve"],
)
def test_a_person_is_asked_and_answers_in_another_process(
    make: Callable[[], Any],
    is_awaited: bool,
    decide: Callable[[Question], Decision],
    said: str,
    tmp_path: Path,
) -> None:
    lm = ScriptedLM([{"outputs": {"text": "Ink"}}])
    with ferrule.context(lm=lm), closing(SQLiteStore(tmp_path / "runs.db")) as store:
        program = make()
        asyncio.run(
            program.astart(topic="ink", store=store, run_id="r"),
        ) if is_awaited else program.start(topic="ink", store=store, run_id="r")
        assert program.published == []
        run = Run.load(store, "r", make())
        [question] = run.pending
        assert (run.status, question.kind, question.text) == (
            "waiting",
            "clarify",
            "Publish 'Ink'?",
        )
        run.answer(decide(question))
        asyncio.run(run.aresume()) if is_awaited else run.resume()
        assert run.prediction.toDict() == {"text": "Ink", "said": said}
        assert Run.load(store, "r", make()).prediction.said == said
    lm.assert_done()


def test_a_denied_question_raises_its_reason_in_the_forward() -> None:
    with ferrule.context(lm=ScriptedLM([{"outputs": {"text": "Ink"}}])):
        run = Writer().start(topic="ink")
        run.answer(run.pending[0].deny("not today"))
        run.resume()
    assert run.status == "failed"
    assert isinstance(run.error, ConfirmationRejected)
    assert run.error.message == "not today"


def test_a_question_expires() -> None:
    with ferrule.context(lm=ScriptedLM([{"outputs": {"text": "Ink"}}])):
        run = Writer(expires_s=1e-9).start(topic="ink")
        run.resume()
    assert isinstance(run.error, ConfirmationRejected)


@pytest.mark.parametrize("seconds", [0, "60", float("inf")])
def test_a_time_that_a_run_cannot_keep_is_refused(seconds: Any) -> None:
    with ferrule.context(lm=ScriptedLM([{"outputs": {"text": "Ink"}}])):
        run = Writer(expires_s=seconds).start(topic="ink")
    assert "`expires_s` is a number of seconds above 0" in str(run.error)


def test_a_plain_call_raises_the_question_and_resumes_with_the_answer() -> None:
    writer = Writer()
    with ferrule.context(lm=ScriptedLM([{"outputs": {"text": "Ink"}}])):
        with pytest.raises(ferrule.ConfirmationRequired) as waiting:
            writer(topic="ink")
        assert writer.resume("yes", waiting.value).said == "yes"
    assert writer.published == ["Ink"]


def test_branches_ask_together_and_a_program_that_asks_is_a_tool() -> None:
    class Both(Module):
        async def aforward(self) -> Prediction:
            return Prediction(
                said=await gather(ferrule.aask_person("Now?"), ferrule.aask_person("Now?")),
            )

    run = Both().start()
    for question, said in zip(run.pending, ("a", "b"), strict=True):
        run.answer(question.reply(said))
    assert run.resume().prediction.said == ["a", "b"]

    lm = ScriptedLM(
        [
            {"name": "writer", "args": {"topic": "ink"}},
            {"outputs": {"text": "Ink"}},
            {"name": "finish", "args": {"answer": "Done."}},
        ],
    )
    writer = Writer()
    writer.signature = ferrule.Signature("topic -> text, said")
    agent = ReAct("task -> answer", [writer.as_tool("writer", "Write and publish.")], lm=lm)
    with ferrule.context(lm=lm):
        run = agent.start(task="Write about ink.")
        assert run.pending[0].inside == "writer"
        run.answer(run.pending[0].reply("yes"))
        assert run.resume().prediction.answer == "Done."
    assert writer.published == ["Ink"]


def test_where_nothing_can_wait_the_error_says_what_to_do() -> None:
    with pytest.raises(
        RunError,
        match="where no run executes: call the program, not its `forward`",
    ):
        ferrule.ask_person("Now?")

    @tool
    def now() -> str:
        """Ask."""
        with pytest.raises(
            ConfigurationError,
            match=r"in a tool, which cannot wait in its middle: give the agent a program that asks, `program.as_tool\(\)`",
        ):
            ferrule.ask_person("Now?")
        return "no"

    ReAct(
        "question -> answer",
        [now],
        lm=ScriptedLM([{"name": "now", "args": {}}, {"name": "finish", "args": {"answer": "no"}}]),
    )(question="?")

    class Blocks(Module):
        async def aforward(self) -> Prediction:
            return Prediction(said=ferrule.ask_person("Now?"))

    assert "write `await ferrule.aask_person(...)`" in str(Blocks().start().error)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_that_asks_a_person_itself_ends_the_run(is_async: bool) -> None:
    """No model can repair it: the agent went on, and no person was asked."""

    def ask() -> str:
        """Ask."""
        return ferrule.ask_person("Now?")

    async def aask() -> str:
        """Ask."""
        return await ferrule.aask_person("Now?")

    asks = aask if is_async else ask
    lm = ScriptedLM([{"name": "ask", "args": {}}, {"name": "finish", "args": {"answer": "no"}}])
    agent = ReAct("question -> answer", [tool(asks, name="ask")], native=True, lm=lm)
    run = agent.start(question="?", store=MemoryStore())
    assert isinstance(run.error, ConfigurationError)
    assert "program.as_tool()" in str(run.error)
    assert len(lm.requests) == 1


@pytest.mark.parametrize("text", ["", "  ", None, 3])
def test_a_question_is_a_text(text: Any) -> None:
    class Asks(Module):
        def forward(self) -> Prediction:
            return Prediction(said=ferrule.ask_person(text))

    assert isinstance(Asks().start().error, InputError)


# -- several at once


def test_a_question_in_a_task_group_fails_the_run_with_what_to_use_in_its_place() -> None:
    """The group raised the signal that unwinds a waiting run, as a `BaseExceptionGroup` out of
    `start`.
    """

    @tool(require_confirmation=True)
    def pay(name: str) -> str:
        """Pay."""
        return name

    class Office(Module):
        def __init__(self) -> None:
            self.cashier = ReAct("bill -> answer", [pay])

        async def aforward(self) -> Prediction:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.cashier.acall(bill=bill)) for bill in ("one", "two")
                ]
            return Prediction(answers=[task.result().answer for task in tasks])

    class Outer(Module):
        def __init__(self) -> None:
            self.office = Office()

        async def aforward(self) -> Prediction:
            return await self.office.acall()

    for program in (Office(), Outer()):
        with context(lm=ScriptedLM(by=lambda request: {"name": "pay", "args": {"name": "ann"}})):
            run = program.start(store=MemoryStore(), run_id="r")
        assert (run.status, type(run.error)) == ("failed", RunError)
        assert "ferrule.gather(...)" in str(run.error)


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_call_beside_a_question_ends_and_is_recorded_even_in_a_plain_asyncio_gather(
    driver: str,
) -> None:
    """It was cut off, and a person was asked again and again whether it had run."""
    paid: list[str] = []

    @tool(require_confirmation=True)
    async def pay(name: str) -> str:
        """Pay."""
        for _ in range(100):  # the other branch asks its question meanwhile
            await asyncio.sleep(0)
        paid.append(name)
        return name

    def answer(request: Request) -> dict[str, object]:
        if request.messages[-1].role == "tool":
            return {"name": "finish", "args": {"answer": request.messages[-1].text}}
        return {
            "name": "pay",
            "args": {"name": "one" if "one" in request.messages[-1].text else "two"},
        }

    class Office(Module):
        def __init__(self) -> None:
            self.cashier = ReAct("bill -> answer", [pay])

        async def aforward(self) -> Prediction:
            found = await asyncio.gather(
                self.cashier.acall(bill="one"),
                self.cashier.acall(bill="two"),
            )
            return Prediction(answers=[each.answer for each in found])

    store, asked = MemoryStore(), []
    with context(lm=ScriptedLM(by=answer)):
        run = Office().start(store=store, run_id="r")
        while run.status == "waiting" and len(asked) < 5:
            run = Run.load(store, "r", Office())
            asked += [(question.kind, question.call.args["name"]) for question in run.pending]
            for question in run.pending:
                run.answer(question.approve())
            if driver == "async":
                asyncio.run(run.aresume())
            else:
                run.resume()
    assert (sorted(asked), sorted(paid)) == (
        [("confirm", "one"), ("confirm", "two")],
        ["one", "two"],
    )  # in any order
    assert run.prediction.answers == ["one", "two"]


class Growing(Module):
    """Changes its inputs in place, before and after it waits, as plain Python may."""

    def __init__(self) -> None:
        self.count = Predict("words: list[str] -> answer")

    def forward(self, words: list[str], history: History) -> Prediction:
        words.append("and")
        history.add_user_message("Go on.")
        answer = self.count(words=words).answer
        said = ferrule.ask_person(f"{words}?")
        words.append(said)
        return Prediction(answer=answer, words=list(words), turns=len(history.messages))


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("way", ["the run itself", "its document", "another fork"])
def test_a_resumed_forward_begins_with_the_inputs_as_they_were(way: str, stored: bool) -> None:
    store = None
    if stored:
        store = MemoryStore()
    words, history = ["red"], History()
    with context(lm=ScriptedLM([{"outputs": {"answer": "two"}}])):
        run = Growing().start(words=words, history=history, store=store)
        assert run.status == "waiting"
        assert words == ["red", "and"]  # as any function changes what it gets
        assert run.inputs["words"] == ["red"]
        if way == "its document":
            run = Run.from_json(run.to_json(), Growing())
        if way == "another fork":
            run = run.fork()
            run.resume()
        run.answer(run.pending[0].reply("blue"))
        run.resume()
    assert run.status == "done", run.error
    assert run.prediction.words == ["red", "and", "blue"]
    assert run.prediction.turns == 1
    assert words == ["red", "and"]


@dataclass
class Basket:
    fruits: list[str]


class Shelf(BaseModel):
    fruits: list[str]


@pytest.mark.parametrize("kind", [Basket, Shelf])
def test_a_resumed_forward_begins_with_models_as_they_were(kind: Any) -> None:
    class Adding(Module):
        def forward(self, box: Any) -> Prediction:
            box.fruits.append("pear")
            ferrule.ask_person("And now?")
            return Prediction(fruits=list(box.fruits))

    box = kind(fruits=["fig"])
    run = Adding().start(box=box)
    assert box.fruits == ["fig", "pear"]  # as any function changes what it gets
    run.answer(run.pending[0].reply("Go on."))
    run.resume()
    assert run.prediction.fruits == ["fig", "pear"]
    assert run.inputs["box"].fruits == ["fig"]


def test_a_tool_does_not_change_the_inputs_of_its_run() -> None:
    def meddle(ctx: ferrule.Context) -> str:
        """Change what the run began with."""
        ctx.inputs["words"].append("more")
        ctx.inputs["task"] = "another"  # type: ignore[index]
        return "never"

    lm = ScriptedLM([{"name": "meddle", "args": {}}, {"name": "finish", "args": {"answer": "a"}}])
    run = ReAct("task, words: list[str] -> answer", [meddle], lm=lm).start(task="x", words=["a"])
    assert "TypeError" in run.trajectory["observation_0"]
    assert run.inputs == {"task": "x", "words": ["a"]}


def test_a_forward_reads_a_generator_itself() -> None:
    class Reading(Module):
        def forward(self, lines: Any) -> Prediction:
            return Prediction(first=next(lines), rest=len(list(lines)))

    prediction = Reading()(lines=(str(number) for number in range(3)))
    assert (prediction.first, prediction.rest) == ("0", 2)
