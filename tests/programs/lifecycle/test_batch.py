"""Many runs of one program: what may be in a batch, and how it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from io import StringIO
from typing import Any

import pytest
from agent_script import fields

from ferrule import (
    AdapterParseError,
    InputError,
    Limits,
    MemoryStore,
    Module,
    Predict,
    Prediction,
    ReAct,
    Response,
    Run,
    Tool,
    ToolCall,
    Usage,
    context,
    tool,
)
from ferrule.errors import (
    BadRequestError,
    ConfigurationError,
    LimitReachedError,
    RunError,
    TooManyFaultsError,
)
from ferrule.testing import ScriptedLM


def carry(driver: str, program: Module, inputs: Any, *places: int, **keywords: Any) -> Any:
    if driver == "sync":
        return program.batch(inputs, *places, **keywords)
    return asyncio.run(program.abatch(inputs, *places, **keywords))


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


class Example:
    """As DSPy's: no mapping by its class, one by what it can do."""

    def keys(self) -> list[str]:
        return ["topic"]

    def __getitem__(self, name: str) -> str:
        return f"{name} of an example"


@pytest.mark.parametrize("wrong", ["x", None, 3, [("topic", "a")], {1: "a"}, dict], ids=repr)
def test_an_item_that_is_no_mapping_of_names_is_named_with_its_index_before_any_run_begins(
    driver: str,
    wrong: Any,
) -> None:
    """A raw ValueError said nothing of which item it was."""
    lm = ScriptedLM([])
    with (
        context(lm=lm),
        pytest.raises(
            InputError,
            match=r"^Item 1 of the batch must be a mapping of inputs by name, found",
        ) as raised,
    ):
        carry(driver, Predict("topic -> text"), [{"topic": "a"}, wrong])
    assert repr(wrong) in str(raised.value)
    assert lm.requests == []


def test_an_item_may_be_the_program_with_its_inputs(driver: str) -> None:
    """`bind` checks them, also for a type checker."""
    program, other = Predict("topic -> text"), Predict("topic -> text")
    with context(lm=ScriptedLM(by=lambda request: fields(text=request.messages[-1].text[-1:]))):
        found = carry(driver, program, [program.bind(topic="a"), {"topic": "b"}])
        assert len(found) == 2
        with pytest.raises(InputError, match="Item 1 of the batch is not bound to this program"):
            carry(driver, program, [{"topic": "a"}, other.bind(topic="b")])


def test_an_item_that_is_no_mapping_has_its_place_among_the_errors(driver: str) -> None:
    """`return_exceptions` holds for every item."""
    with context(lm=ScriptedLM(by=lambda _: fields(text="ok"))):
        found = carry(
            driver,
            Predict("topic -> text"),
            [{"topic": "a"}, "x", {"topic": "b"}],
            return_exceptions=True,
        )
    assert [type(each) for each in found] == [Prediction, InputError, Prediction]
    assert str(found[1]) == "Item 1 of the batch must be a mapping of inputs by name, found 'x'."


@pytest.mark.parametrize("wrong", [{"topic": "a"}, "topic", b"topic", None, 3], ids=repr)
@pytest.mark.parametrize("return_exceptions", [False, True])
def test_what_is_no_list_of_items_is_refused(
    driver: str,
    wrong: Any,
    return_exceptions: bool,
) -> None:
    """One mapping is the usual slip."""
    with pytest.raises(
        InputError,
        match=r"^`batch` takes a list of mappings of inputs by name, found",
    ) as raised:
        carry(driver, Predict("topic -> text"), wrong, return_exceptions=return_exceptions)
    assert repr(wrong) in str(raised.value)
    assert ("`[{...}]`" in str(raised.value)) is isinstance(wrong, dict)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("num_threads", "It has: `max_concurrency`, `progress`"),
        ("concurrency", r"Did you mean `max_concurrency`\?"),
    ],
)
def test_an_unknown_option_is_refused_with_the_known_ones(
    driver: str,
    name: str,
    cure: str,
) -> None:
    with pytest.raises(ConfigurationError, match=f"batch` has no option `{name}`. {cure}"):
        carry(driver, Predict("topic -> text"), [{"topic": "a"}], **{name: 2})


def test_items_may_come_from_a_generator_and_be_mappings_of_any_kind(driver: str) -> None:
    with context(lm=ScriptedLM(by=lambda _: fields(text="ok"))):
        found = carry(
            driver,
            Predict("topic -> text"),
            (each for each in (Prediction(topic="a"), Example())),
        )
    assert [each.text for each in found] == ["ok", "ok"]


class Slow(Module):
    """The first item is at work until the thread in which the second one failed has nothing more to
    do; who began is written down.
    """

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.both = threading.Barrier(2)
        self.failing: threading.Thread | None = None

    def forward(self, number: int) -> Prediction:
        self.begun.append(number)
        if number == 0:
            self.both.wait(60)
            assert self.failing is not None
            self.failing.join(60)
        elif number == 1:
            self.failing = threading.current_thread()
            self.both.wait(60)
            raise ValueError("the second")
        return Prediction(number=number)

    async def aforward(self, number: int) -> Prediction:
        self.begun.append(number)
        if number == 0:
            await asyncio.sleep(20)
        elif number == 1:
            await asyncio.sleep(0)
            raise ValueError("the second")
        return Prediction(number=number)


def test_the_first_error_to_happen_ends_the_batch_while_an_earlier_item_is_at_work(
    driver: str,
) -> None:
    """All other items were begun, each asking the model, until the slow one was done."""
    program = Slow()
    with pytest.raises(ValueError, match="the second"):
        carry(driver, program, [{"number": number} for number in range(50)], max_concurrency=2)
    assert sorted(program.begun) == [0, 1]


class Fails(Module):
    """Every item fails; the first two are inside at once, and the second is first to fail."""

    def __init__(self) -> None:
        self.second = threading.Event()

    def forward(self, number: int) -> Prediction:
        if number == 0:
            assert self.second.wait(60)
        else:
            self.second.set()
        raise ValueError(f"number {number}")


def test_errors_in_their_places_end_nothing(driver: str) -> None:
    """Issue 2: `return_exceptions`."""
    found = carry(
        driver,
        Fails(),
        [{"number": number} for number in range(5)],
        max_concurrency=2,
        return_exceptions=True,
    )
    assert [str(each) for each in found] == [f"number {number}" for number in range(5)]


def test_what_is_no_exception_ends_the_batch_all_the_same() -> None:
    """Ctrl-C has no place among results."""

    class Interrupted(Module):
        def forward(self, number: int) -> Prediction:
            if number == 1:
                raise KeyboardInterrupt
            return Prediction(number=number)

    with pytest.raises(KeyboardInterrupt):
        Interrupted().batch([{"number": number} for number in range(3)], return_exceptions=True)


def one_call(name: str, answer: str) -> ScriptedLM:
    """A model that calls one tool and then answers, however many runs it serves."""

    def by(request: Any) -> Any:
        is_done = request.messages[-1].role == "tool"
        return (
            {"name": "finish", "args": {"answer": answer}}
            if is_done
            else {"name": name, "args": {}}
        )

    return ScriptedLM(by=by)


def test_a_batch_may_run_inside_an_async_tool() -> None:
    """The loop that waits for it is not the one its async tools run on."""

    async def leaf() -> str:
        """Answer."""
        return "leaf"

    inner = ReAct("question -> answer", [leaf], native=True)
    inner.set_lm(one_call("leaf", "inner"))

    async def ask() -> str:
        """Ask the inner agent twice."""
        return " ".join(
            each.answer
            for each in inner.batch([{"question": "1"}, {"question": "2"}], progress=False)
        )

    outer = ReAct("question -> answer", [ask], native=True)
    outer.set_lm(
        ScriptedLM([{"name": "ask", "args": {}}, {"name": "finish", "args": {"answer": "outer"}}]),
    )
    assert outer(question="q").trajectory["observation_0"] == "inner inner"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_batch_that_keeps_errors_still_waits_for_a_person(asynchronous: bool) -> None:
    """A question is no result of an item."""
    pay = Tool(lambda: "paid", "pay", require_confirmation=True)
    agent = ReAct("question -> answer", [pay], native=True)
    agent.set_lm(one_call("pay", "a"))
    items = [{"question": "1"}, {"question": "2"}]

    class Plain(Module):
        def forward(self) -> list[Any]:
            return agent.batch(items, progress=False, return_exceptions=True)

    class Async(Module):
        async def aforward(self) -> list[Any]:
            return await agent.abatch(items, progress=False, return_exceptions=True)

    run = (Async() if asynchronous else Plain()).start()
    while run.status == "waiting":
        for question in run.pending:
            run.answer(question.approve())
        run.resume()
    assert [each.answer for each in run.prediction] == ["a", "a"]


@pytest.mark.parametrize("wrong", [0, "3", True], ids=repr)
def test_a_concurrency_that_is_no_count_is_refused_before_any_run_begins(
    driver: str,
    wrong: Any,
) -> None:
    """'3' was a bare TypeError."""
    lm = ScriptedLM([])
    with (
        context(lm=lm),
        pytest.raises(
            ConfigurationError,
            match="`max_concurrency` must be a whole number of at least 1, found",
        ),
    ):
        carry(driver, Predict("topic -> text"), [{"topic": "a"}], max_concurrency=wrong)
    assert lm.requests == []


# -- real jobs


def answer(request: Any) -> Any:
    """A model whose answers cost, and which fails on some."""
    text = request.messages[-1].text
    if "refused" in text:
        raise BadRequestError("the model refuses this")
    return Response(fields(text="ok"), usage=Usage(10, 2, 0, 1), cost=0.25)


def test_items_keep_their_usage_and_the_real_reason_when_they_fail(driver: str) -> None:
    with context(lm=ScriptedLM(by=answer)):
        found = carry(
            driver,
            Predict("topic -> text"),
            [{"topic": "a"}, {"topic": "refused"}, "x", {"topic": "b"}],
            return_exceptions=True,
        )
    assert [type(each) for each in found] == [Prediction, BadRequestError, InputError, Prediction]
    assert [each and each.status for each in found.runs] == ["done", "failed", None, "done"]
    assert found.runs[1].error is found[1]
    assert (found.usage, found.cost) == (Usage(20, 4, 0, 2, cost=0.5), 0.5)


def test_a_batch_is_resumed_and_items_that_are_done_are_not_run_again(driver: str) -> None:
    store, program = MemoryStore(), Predict("topic -> text")
    inputs = [{"topic": "a"}, {"topic": "refused"}, {"topic": "a"}]
    with context(lm=ScriptedLM(by=answer)) as _:
        first = carry(
            driver,
            program,
            inputs,
            store=store,
            batch_id="night",
            return_exceptions=True,
        )
    assert len({run.id for run in first.runs}) == 3
    with context(lm=ScriptedLM([])):
        again = carry(
            driver, program, inputs, store=store, batch_id="night", return_exceptions=True
        )
    assert [type(each) for each in again] == [Prediction, BadRequestError, Prediction]
    assert again.usage == first.usage
    asked: list[Any] = []

    def later(request: Any) -> Response:
        asked.append(request)
        return Response(fields(text="later"), usage=Usage(1, 1, 0, 1))

    with context(lm=ScriptedLM(by=later)):
        second = carry(
            driver,
            program,
            [*reversed(inputs), {"topic": "new"}],
            store=store,
            batch_id=first.batch_id,
            retry_failed=True,
        )
    assert [each.text for each in second] == ["ok", "later", "ok", "later"]
    assert len(asked) == 2
    assert second.usage == Usage(22, 6, 0, 4)
    assert len(store.list()) == 4


def test_each_result_is_handed_over_as_it_comes_with_its_index(driver: str) -> None:
    got: dict[int, Any] = {}
    with context(lm=ScriptedLM(by=answer)):
        found = carry(
            driver,
            Predict("topic -> text"),
            [{"topic": "a"}, {"topic": "refused"}],
            return_exceptions=True,
            on_result=got.__setitem__,
        )
    assert got == dict(enumerate(found))


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with context(lm=ScriptedLM(by=answer)):
        carry(driver, Predict("topic -> text"), [{"topic": "a"}, {"topic": "b"}], progress=True)
    half, whole = f"[{'#' * 15}{'.' * 15}] 1/2", f"[{'#' * 30}] 2/2"
    assert terminal.getvalue() == f"\r{half}\r{whole}\n"


def test_without_standard_error_no_progress_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    driver: str,
) -> None:
    """As in a program of Windows without a console."""
    monkeypatch.setattr("sys.stderr", None)
    with context(lm=ScriptedLM(by=answer)):
        assert (
            len(
                carry(
                    driver,
                    Predict("topic -> text"),
                    [{"topic": "a"}, {"topic": "b"}],
                    progress=True,
                ),
            )
            == 2
        )


def test_an_error_of_on_result_ends_the_batch(driver: str) -> None:
    for keeps in (True, False):
        told: list[int] = []

        def fail(index: int, result: Any, told: list[int] = told) -> None:
            told.append(index)
            raise KeyError("full disk")

        with context(lm=ScriptedLM(by=answer)), pytest.raises(KeyError, match="full disk"):
            carry(
                driver,
                Predict("topic -> text"),
                [{"topic": "a"}] * 3,
                1,
                return_exceptions=keeps,
                on_result=fail,
            )
        assert told == [0]


def test_a_batch_inside_a_run_is_a_part_of_it(driver: str) -> None:
    class Outer(Module):
        def __init__(self) -> None:
            self.inner = Predict("topic -> text")

        def forward(self, topic: str) -> Any:
            return Prediction(found=carry("sync", self.inner, [{"topic": topic}, {"topic": "b"}]))

    with context(lm=ScriptedLM(by=answer)):
        found = carry(driver, Outer(), [{"topic": "a"}])
    assert [each.text for each in found[0].found] == ["ok", "ok"]
    assert found.usage == Usage(20, 4, 0, 2, cost=0.5)


def test_a_batch_id_needs_a_store(driver: str) -> None:
    with pytest.raises(ConfigurationError, match="pass `store=` too"):
        carry(driver, Predict("topic -> text"), [], batch_id="night")


# -- budgets, and failed items again


TOPICS = [{"topic": str(number)} for number in range(20)]


def unreadable(_: Any) -> Response:
    """A model that is paid for answers that cannot be read."""
    return Response("nothing", usage=Usage(10, 2, 0, 1), cost=0.25)


def test_a_limit_holds_for_a_whole_batch(driver: str) -> None:
    with context(lm=ScriptedLM(by=answer)), pytest.raises(LimitReachedError) as reached:
        carry(driver, Predict("topic -> text"), TOPICS, 2, limits=Limits(cost=1.0))
    assert (reached.value.name, reached.value.is_of_batch) == ("cost", True)
    assert "The batch was stopped at its limit cost=1." in str(reached.value)


def test_failed_items_count_in_the_limit_of_a_batch(driver: str) -> None:
    """The recipe that added up the costs of predictions spent 28 times its budget."""
    with context(lm=ScriptedLM(by=unreadable)):
        found = carry(
            driver,
            Predict("topic -> text"),
            TOPICS,
            1,
            limits=Limits(cost=1.0),
            return_exceptions=True,
        )
    assert found.cost <= 1.0 + 0.25
    assert [type(each) for each in found[-10:]] == [LimitReachedError] * 10
    assert found.runs[-10:] == (None,) * 10  # they did not begin


def test_without_a_reached_limit_a_batch_ends_as_ever(driver: str) -> None:
    with context(lm=ScriptedLM(by=answer)):
        found = carry(
            driver, Predict("topic -> text"), TOPICS, limits=Limits(tokens=12 * len(TOPICS) + 1)
        )
    assert found.cost == 5.0


def test_a_resumed_batch_counts_what_it_has_spent_before(driver: str) -> None:
    store, program = MemoryStore(), Predict("topic -> text")

    def run(most: float, **options: Any) -> Any:
        return carry(
            driver,
            program,
            TOPICS,
            1,
            store=store,
            batch_id="b",
            limits=Limits(cost=most),
            **options,
        )

    with context(lm=ScriptedLM(by=answer)):
        with pytest.raises(LimitReachedError):
            run(1.0)
        assert sum(each.usage.calls for each in store.list()) == 4
        with pytest.raises(LimitReachedError):
            run(1.0)
        assert sum(each.usage.calls for each in store.list()) == 4
        with pytest.raises(LimitReachedError):
            run(1.5)
        assert sum(each.usage.calls for each in store.list()) == 6
        found = run(5.1)
    assert (len(found), found.cost) == (20, 5.0)


def test_an_item_that_the_limit_stopped_goes_on_and_counts_once(driver: str) -> None:
    """Its recorded answers are replayed, not paid for again."""

    class Twice(Module):
        def __init__(self) -> None:
            self.ask = Predict("topic -> text")

        def forward(self, topic: str) -> Prediction:
            return Prediction(text=self.ask(topic=topic).text + self.ask(topic="b").text)

    store = MemoryStore()

    def run(most: float) -> Any:
        return carry(
            driver,
            Twice(),
            [{"topic": "a"}],
            store=store,
            batch_id="b",
            limits=Limits(cost=most),
            return_exceptions=True,
        )

    with context(lm=ScriptedLM(by=answer)):
        assert isinstance(run(0.25)[0], LimitReachedError)
        found = run(0.3)
    assert (found[0].text, found.cost) == ("okok", 0.5)


def test_the_limit_of_a_batch_inside_a_run_holds_for_its_items_only(driver: str) -> None:
    class Outer(Module):
        def __init__(self) -> None:
            self.inner = Predict("topic -> text")

        def forward(self) -> Prediction:
            try:
                self.inner.batch(TOPICS, 1, limits=Limits(tokens=24))
            except LimitReachedError as error:
                return Prediction(name=error.name, text=self.inner(topic="after").text)
            raise AssertionError

    with context(lm=ScriptedLM(by=answer)):
        found = carry(driver, Outer(), [{}])
    assert (found[0].name, found[0].text, found.usage.calls) == ("tokens", "ok", 3)


def test_a_batch_inside_a_tool_spends_from_the_run_around_it_too(driver: str) -> None:
    inner = Predict("topic -> text")

    def work() -> str:
        """Work."""
        found = inner.batch(TOPICS, 1, limits=Limits(tokens=24), return_exceptions=True)
        return str(found.usage.calls)

    agent = ReAct("question -> answer", [work], native=True)
    lm = ScriptedLM([{"name": "work", "args": {}}, {"name": "finish", "args": {"answer": "a"}}])
    inner.set_lm(ScriptedLM(by=answer))
    with context(lm=lm):
        found = carry(driver, agent, [{"question": "q"}], limits=Limits(tokens=25))
    assert found[0].trajectory["observation_0"] == "2"
    assert found.usage.total_tokens == 24


def test_an_error_says_what_its_run_has_spent(driver: str) -> None:
    class Fails(Module):
        def __init__(self) -> None:
            self.ask = Predict("topic -> text")

        def forward(self, topic: str) -> Prediction:
            self.ask(topic=topic)
            raise ValueError(topic)

    got: list[Any] = []
    store = MemoryStore()

    def run() -> Any:
        return carry(
            driver,
            Fails(),
            [{"topic": "a"}],
            store=store,
            batch_id="b",
            return_exceptions=True,
            on_result=lambda _, error: got.append((type(error), error.usage, error.cost)),
        )

    with context(lm=ScriptedLM(by=answer)):
        run()
        run()
    usage = Usage(10, 2, 0, 1, cost=0.25)
    assert got == [(ValueError, usage, 0.25), (RunError, usage, 0.25)]  # the second, from the store


def test_an_error_with_a_usage_of_its_own_keeps_it() -> None:
    class OwnError(Exception):
        usage = "mine"

    class Fails(Module):
        def forward(self) -> Prediction:
            raise OwnError

    with pytest.raises(OwnError) as raised:
        Fails()()
    assert raised.value.usage == "mine"


def test_a_late_item_says_what_it_has_spent(driver: str) -> None:
    program = Hangs()
    [found] = carry(driver, program, [{"number": 1}], timeout=0.05, return_exceptions=True)
    program.over.set()
    assert found.usage == Usage()


def test_failed_items_are_asked_again_though_their_answers_are_recorded(driver: str) -> None:
    """Else an answer that cannot be read would come from the journal each time."""
    store, program = MemoryStore(), Predict("topic -> text")

    def run(lm: Any, **options: Any) -> Any:
        with context(lm=lm):
            return carry(
                driver,
                program,
                [{"topic": "a"}, {"topic": "b"}],
                store=store,
                batch_id="b",
                return_exceptions=True,
                **options,
            )

    first = run(ScriptedLM(by=unreadable))
    assert [type(each) for each in first] == [AdapterParseError] * 2
    stored = run(ScriptedLM([]))
    assert [type(each) for each in stored] == [AdapterParseError] * 2
    before = first.usage.total_tokens  # both items are replayed twice, and counted once
    limits = Limits(tokens=before + 24 + 1)
    second = run(ScriptedLM(by=answer), retry_failed=True, limits=limits)
    assert [each.text for each in second] == ["ok", "ok"]
    # What the unreadable answers have cost stays counted.
    assert second.cost == first.cost + 0.5
    assert run(ScriptedLM([]))[0].usage == second[0].usage


def test_a_retried_item_repeats_no_call(driver: str) -> None:
    """It continues: what has happened stays."""
    paid: list[str] = []

    def pay() -> str:
        """Pay."""
        paid.append("pay")
        return "paid"

    agent = ReAct("question -> answer", [pay], native=True)
    good = Response("", (ToolCall(name="finish", args={"answer": "a"}),), usage=Usage(1, 1, 0, 1))
    store = MemoryStore()

    def run(lm: Any, **options: Any) -> Any:
        inputs = [{"question": "q"}]
        with context(lm=lm, limits=Limits(same_error=2)):
            return carry(
                driver,
                agent,
                inputs,
                store=store,
                batch_id="b",
                return_exceptions=True,
                **options,
            )

    bad = {"name": "nothing", "args": {}}
    [error] = run(ScriptedLM([{"name": "pay", "args": {}}, bad, bad]))
    assert isinstance(error, TooManyFaultsError)
    [prediction] = run(ScriptedLM([good]), retry_failed=True)
    assert (prediction.answer, paid) == ("a", ["pay"])
    assert [step.calls[0].name for step in prediction.trajectory.steps] == ["pay", "finish"]


def test_a_request_that_failed_is_made_again_once(driver: str) -> None:
    """It is not recorded, so no other answer has to go."""
    store, program = MemoryStore(), Predict("topic -> text")
    asked: list[Any] = []

    def refuse(request: Any) -> Any:
        asked.append(request)
        raise BadRequestError("no")

    for retry_failed in (False, True):
        with context(lm=ScriptedLM(by=refuse)):
            carry(
                driver,
                program,
                [{"topic": "a"}],
                store=store,
                batch_id="b",
                return_exceptions=True,
                retry_failed=retry_failed,
            )
    assert len(asked) == 2


def test_a_stored_error_says_how_to_ask_again(driver: str) -> None:
    store, program = MemoryStore(), Predict("topic -> text")
    with context(lm=ScriptedLM(by=answer)):
        for _ in range(2):
            with pytest.raises(BadRequestError) as raised:
                carry(driver, program, [{"topic": "refused"}], store=store, batch_id="b")
    assert "retry_failed=True" in raised.value.__notes__[0]


@pytest.mark.parametrize("limits", [1.0, {"cost": 1}, Limits], ids=repr)
def test_limits_of_a_batch_are_limits(driver: str, limits: Any) -> None:
    with pytest.raises(ConfigurationError, match="limits"):
        carry(driver, Predict("topic -> text"), [], limits=limits)


# -- late items, and failed ones apart


class Hangs(Module):
    """Item 1 goes on until the test is over; the others wait until it has begun."""

    def __init__(self) -> None:
        self.hangs, self.over = threading.Event(), threading.Event()

    def forward(self, number: int) -> Prediction:
        if number == 1:
            self.hangs.set()
            self.over.wait(60)
        assert self.hangs.wait(60)
        return Prediction(number=number)

    async def aforward(self, number: int) -> Prediction:
        if number == 1:
            self.hangs.set()
            await asyncio.sleep(60)
        while not self.hangs.is_set():
            await asyncio.sleep(0)
        return Prediction(number=number)


def test_a_late_item_fails_and_the_rest_go_on_in_its_place(driver: str) -> None:
    """As DSPy names it."""
    program = Hangs()
    inputs = [{"number": 1}, {"number": 2}, {"number": 3}]
    found = carry(driver, program, inputs, max_concurrency=1, timeout=1, return_exceptions=True)
    program.over.set()
    assert [type(each) for each in found] == [TimeoutError, Prediction, Prediction]
    assert str(found[0]) == "Item 0 of the batch did not finish within 1 s. Its run was cancelled."
    assert [each and each.number for each in found[1:]] == [2, 3]


def test_a_late_item_ends_a_batch_that_keeps_no_errors(driver: str) -> None:
    program = Hangs()
    with pytest.raises(TimeoutError, match="Item 1 of the batch did not finish within 1 s"):
        carry(driver, program, [{"number": 0}, {"number": 1}], timeout=1)
    program.over.set()


def test_an_item_counts_from_its_own_start(driver: str) -> None:
    """Waiting for a place is not being late: ten items of one place take longer than the limit of
    each.
    """
    begun: list[int] = []

    class Brief(Module):
        def forward(self, number: int) -> Prediction:
            begun.append(number)
            time.sleep(0.3)
            return Prediction(number=number)

    found = carry(
        driver,
        Brief(),
        [{"number": number} for number in range(10)],
        max_concurrency=1,
        timeout=2,
    )
    assert [each.number for each in found] == begun == list(range(10))


def test_a_late_item_is_resumed_from_its_store(driver: str) -> None:
    begun, over = threading.Event(), threading.Event()

    @tool(effect="read")
    async def look(topic: str) -> str:
        """Look something up."""
        begun.set()
        while not over.is_set():
            await asyncio.sleep(0.01)
        return topic

    program, store = ReAct("topic -> text", [look], native=True), MemoryStore()
    script = [{"name": "look", "args": {"topic": "a"}}, {"name": "finish", "args": {"text": "ok"}}]
    with context(lm=ScriptedLM(script)):
        [late] = carry(
            driver,
            program,
            [{"topic": "a"}],
            store=store,
            batch_id="b",
            timeout=1,
            return_exceptions=True,
        )
        assert isinstance(late, TimeoutError)
        over.set()
        ends = time.monotonic() + 60
        while (
            store.list()[0].status == "running" and time.monotonic() < ends
        ):  # the run that was left behind rests soon
            time.sleep(0.01)
        found = carry(
            driver,
            program,
            [{"topic": "a"}],
            store=store,
            batch_id="b",
            timeout=60,
            return_exceptions=True,
        )
    assert begun.is_set()
    assert [each.text for each in found] == ["ok"]


def test_failed_items_are_returned_apart_with_their_errors(driver: str) -> None:
    """As DSPy does; None has the place of a failed item."""
    inputs: list[Any] = [{"topic": "a"}, {"topic": "refused"}, "x", Example(), {"topic": "b"}]
    with context(lm=ScriptedLM(by=answer)):
        results, failed, errors = carry(
            driver,
            Predict("topic -> text"),
            inputs,
            return_failed_examples=True,
        )
    assert [each and each.text for each in results] == ["ok", None, None, "ok", "ok"]
    assert failed == [inputs[1], "x"]
    assert [type(each) for each in errors] == [BadRequestError, InputError]
    assert [each and each.status for each in results.runs] == [
        "done",
        "failed",
        None,
        "done",
        "done",
    ]
    assert results.usage == Usage(30, 6, 0, 3, cost=0.75)


def test_without_failures_there_is_nothing_apart(driver: str) -> None:
    with context(lm=ScriptedLM(by=answer)):
        results, failed, errors = carry(
            driver,
            Predict("topic -> text"),
            [{"topic": "a"}],
            return_failed_examples=True,
        )
    assert ([each.text for each in results], failed, errors) == (["ok"], [], [])


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "3"])
def test_a_timeout_is_a_number_of_seconds(driver: str, timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="`timeout` is a number of seconds above 0"):
        carry(driver, Predict("topic -> text"), [{"topic": "a"}], timeout=timeout)


def test_a_batch_inside_a_run_takes_no_timeout(driver: str) -> None:
    """What was late could not be repeated by a run that is resumed."""

    class Outer(Module):
        def forward(self, topic: str) -> Any:
            return carry(driver, Predict("topic -> text"), [{"topic": topic}], timeout=1)

    with (
        context(lm=ScriptedLM(by=answer)),
        pytest.raises(ConfigurationError, match="inside a run takes no `timeout`"),
    ):
        Outer()(topic="a")


class EndsEarly(Module):
    """One item raises as soon as another is at work, which would ask the model a thousand times."""

    def __init__(self, error: type[BaseException]) -> None:
        self.ask, self.error = Predict("topic -> text"), error
        self.at_work, self.asked = threading.Event(), 0

    def forward(self, topic: str) -> Prediction:
        if topic == "raises":
            assert self.at_work.wait(60)
            raise self.error
        for self.asked in range(1_000):
            self.ask(topic=topic)
            self.at_work.set()
            time.sleep(0.005)
        return Prediction(text="")

    async def aforward(self, topic: str) -> Prediction:
        if topic == "raises":
            while not self.at_work.is_set():
                await asyncio.sleep(0)
            raise self.error
        for self.asked in range(1_000):
            await self.ask.acall(topic=topic)
            self.at_work.set()
            await asyncio.sleep(0.005)
        return Prediction(text="")


@pytest.mark.parametrize(
    ("driver", "error"),
    [("sync", KeyboardInterrupt), ("sync", ValueError), ("async", ValueError)],
)
def test_a_batch_that_ends_early_cancels_the_runs_at_work(
    driver: str,
    error: type[BaseException],
) -> None:
    """`batch` waited until each had come to its own end, after any number of further calls."""
    program = EndsEarly(error)
    with context(lm=ScriptedLM(by=answer)), pytest.raises(error):
        carry(driver, program, [{"topic": "raises"}, {"topic": "goes on"}], max_concurrency=2)
    assert program.asked < 999


def test_an_item_whose_code_raises_a_cancelled_error_costs_no_other_item(driver: str) -> None:
    """A sync batch lost the predictions of the others."""

    class Cancels(Module):
        def forward(self, number: int) -> Prediction:
            if number == 1:
                raise asyncio.CancelledError
            return Prediction(number=number)

    inputs = [{"number": number} for number in range(3)]
    first, error, last = carry(driver, Cancels(), inputs, return_exceptions=True)
    assert (first.number, last.number) == (0, 2)
    assert isinstance(error, RunError)


def test_an_interrupt_in_a_batch_inside_a_run_cancels_the_run() -> None:
    """Ctrl-C waited for the items, which belong to the run and went on to their own ends."""
    inner = EndsEarly(KeyboardInterrupt)

    class Outer(Module):
        def forward(self) -> Any:
            return inner.batch(
                [{"topic": "raises"}, {"topic": "goes on"}],
                max_concurrency=2,
                progress=False,
            )

    run = Run(Outer(), (), {})
    with context(lm=ScriptedLM(by=answer)), pytest.raises(KeyboardInterrupt):
        run.resume()
    assert inner.asked < 999
    assert run.status == "cancelled"
