"""Output validators: what they may look at, and that their verdict is recorded."""

from __future__ import annotations

import asyncio
import json
from functools import partial, wraps
from typing import Annotated, Any, Optional, cast

import pytest
from pydantic import field_validator

from ferrule import (
    AdapterParseError,
    ChainOfThought,
    Context,
    InputField,
    MemoryStore,
    Module,
    OutputField,
    Predict,
    Prediction,
    ReAct,
    Run,
    Signature,
    ToolRetry,
    aask_person,
    acall_tool,
    aonce,
    ask_person,
    call_tool,
    once,
    tool,
)
from ferrule.errors import AuthenticationError, ConfigurationError
from ferrule.testing import ScriptedLM


class Shop:
    """What the validators look at."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.loops: set[Any] = set()

    def has(self, order: str) -> bool:
        self.asked.append(order)
        return order.startswith("A")


@tool(effect="read")
def look(place: str) -> str:
    """Look at a place."""
    return place


def check(answer: Any, ctx: Context[Shop]) -> None:
    if not ctx.deps.has(answer.order):
        raise ToolRetry(f"There is no order {answer.order}.")


async def acheck(ctx: Context[Shop], answer: Any) -> None:
    await asyncio.sleep(0)
    ctx.deps.loops.add(asyncio.get_running_loop())
    check(answer, ctx)


def outputs(order: str, **more: Any) -> dict[str, Any]:
    return {"outputs": {**more, "order": order}}


def finish(order: str) -> dict[str, Any]:
    return {"name": "finish", "args": {"order": order}}


LOOK = {"name": "look", "args": {"place": "here"}}
PROGRAMS = {
    "Predict": (lambda: Predict("question -> order"), [outputs("B1"), outputs("A1")]),
    "ChainOfThought": (
        lambda: ChainOfThought("question -> order"),
        [outputs("B1", reasoning="?"), outputs("A1", reasoning="!")],
    ),
    "with tools": (
        lambda: Predict("question -> order", tools=[look]),
        [LOOK, outputs("B1"), outputs("A1")],
    ),
    "ReAct": (lambda: ReAct("question -> order", [look]), [LOOK, finish("B1"), finish("A1")]),
    "ReAct in text": (
        lambda: ReAct("question -> order", [look], calls="prompted"),
        [
            LOOK,
            {"name": "finish", "args": {}},
            outputs("B1", reasoning="?"),
            outputs("A1", reasoning="!"),
        ],
    ),
}


@pytest.fixture(params=PROGRAMS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[check, acheck], ids=["sync", "async"])
def function(request: pytest.FixtureRequest) -> Any:
    return request.param


def made(kind: str, function: Any, answers: list[Any]) -> Any:
    program: Any = PROGRAMS[kind][0]()
    program.output_validator(function)
    program.set_lm(ScriptedLM(answers))
    return program


def test_a_validator_with_a_context_sends_an_answer_back(kind: str, function: Any) -> None:
    shop, program = Shop(), made(kind, function, PROGRAMS[kind][1])
    assert program(question="?", deps=shop).order == "A1"
    assert shop.asked == ["B1", "A1"]
    assert "There is no order B1." in str(program.get_lm().requests[-1].messages)


def test_on_an_event_loop_an_async_validator_runs_on_that_loop(kind: str) -> None:
    async def main() -> None:
        shop, program = Shop(), made(kind, acheck, PROGRAMS[kind][1])
        assert (await program.acall(question="?", deps=shop)).order == "A1"
        assert shop.loops == {asyncio.get_running_loop()}

    asyncio.run(main())


def test_a_sync_validator_with_a_context_does_not_block_the_loop() -> None:
    async def main() -> None:
        freed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def waits(answer: Any, ctx: Context) -> None:
            asyncio.run_coroutine_threadsafe(freed.wait(), loop).result(10)

        program = made("Predict", waits, [outputs("A1")])
        running = asyncio.create_task(program.acall(question="?"))
        await asyncio.sleep(0.01)
        freed.set()
        assert (await running).order == "A1"

    asyncio.run(main())


@pytest.mark.parametrize("blocks", [True, False], ids=["sync run", "async run"])
def test_wherever_a_run_stopped_it_calls_a_validator_only_for_answers_without_a_verdict(
    kind: str,
    function: Any,
    *,
    blocks: bool,
) -> None:
    answers = PROGRAMS[kind][1]
    whole = json.loads(made(kind, function, answers).start(question="?", deps=Shop()).to_json())
    for length in range(len(whole["journal"]) + 1):
        entries = whole["journal"][:length]
        shop, program = (
            Shop(),
            made(kind, function, answers[sum(entry["kind"] == "model" for entry in entries) :]),
        )
        run = Run.from_json(
            json.dumps({**whole, "journal": entries, "status": "running"}),
            program,
            deps=shop,
        )
        run = run.resume() if blocks else asyncio.run(run.aresume())
        assert run.prediction.order == "A1"
        verdicts = sum(
            entry["kind"] == "once" and entry["digest"] == "output_validators" for entry in entries
        )
        assert shop.asked == ["B1", "A1"][verdicts:]


@pytest.mark.parametrize("blocks", [True, False], ids=["sync", "async"])
def test_a_program_that_a_validator_calls_belongs_to_the_run(*, blocks: bool) -> None:
    judge = Predict(
        "order -> fits: bool",
        lm=ScriptedLM([{"outputs": {"fits": False}}, {"outputs": {"fits": True}}]),
    )

    def fits(answer: Any, ctx: Context) -> None:
        assert ctx.run_id == "r"
        if not judge(order=answer.order).fits:
            raise ToolRetry("The judge says no.")

    async def afits(answer: Any) -> None:
        if not (await judge.acall(order=answer.order)).fits:
            raise ToolRetry("The judge says no.")

    store, program = (
        MemoryStore(),
        made("Predict", fits if blocks else afits, [outputs("A1"), outputs("A2")]),
    )
    run = program.start(question="?", store=store, run_id="r")
    assert run.prediction.order == "A2"
    again = Run.load(store, "r", program)  # neither model has an answer left
    assert again.prediction.order == "A2"
    assert sum(entry["kind"] == "model" for entry in json.loads(run.to_json())["journal"]) == 4


@pytest.mark.parametrize("blocks", [True, False], ids=["sync", "async"])
def test_a_program_in_a_validator_uses_the_model_of_the_call(*, blocks: bool) -> None:
    judge = Predict("order -> fits: bool")

    def fits(answer: Any, ctx: Context) -> None:
        assert judge(order=answer.order).fits

    async def afits(answer: Any) -> None:
        assert (await judge.acall(order=answer.order)).fits

    program = Predict("question -> order")
    program.output_validator(fits if blocks else afits)
    assert (
        program(question="?", lm=ScriptedLM([outputs("A1"), {"outputs": {"fits": True}}])).order
        == "A1"
    )


def test_each_of_several_answers_gets_its_verdict(function: Any) -> None:
    shop = Shop()
    program = Predict(
        "question -> order",
        n=3,
        lm=ScriptedLM([outputs(each) for each in ("A1", "B1", "A2")]),
    )
    program.output_validator(function)
    assert sorted(program(question="?", deps=shop).completions.order) == ["A1", "A2"]
    assert sorted(shop.asked) == ["A1", "A2", "B1"]


def test_if_no_answer_of_several_is_accepted_the_model_is_asked_again(function: Any) -> None:
    program = Predict(
        "question -> order",
        n=2,
        lm=ScriptedLM([outputs(each) for each in ("B1", "B2", "A1", "A2")]),
    )
    program.output_validator(function)
    assert sorted(program(question="?", deps=Shop()).completions.order) == ["A1", "A2"]


def test_the_model_corrects_the_first_of_several_answers_by_the_problem_of_that_one(
    function: Any,
) -> None:
    lm = ScriptedLM(["?", outputs("B2"), outputs("A1"), outputs("A2")])
    program = Predict("question -> order", n=2, lm=lm)
    program.output_validator(function)
    assert program(question="?", deps=Shop()).order == "A1"
    said, wrong = lm.requests[-1].messages[-2:]
    assert said.text == "?"
    assert "`order`: is missing" in wrong.text


def test_a_model_that_is_never_right_ends_the_run_with_the_objection(function: Any) -> None:
    program = made("Predict", function, [outputs("B1"), outputs("B2"), '{"order": "B3"}'])
    with pytest.raises(AdapterParseError, match="There is no order B3"):
        program(question="?", deps=Shop())


def test_missing_and_wrong_deps_are_reported_before_the_model_is_asked(
    kind: str,
    function: Any,
) -> None:
    program = made(kind, function, [])
    with pytest.raises(
        ConfigurationError,
        match=r"The output validator `a?check` declares `Context\[.*Shop\]`, and no `deps`",
    ):
        program(question="?")
    with pytest.raises(ConfigurationError, match="of the type `str`"):
        program(question="?", deps="shop")
    assert not program.get_lm().requests


def test_validators_of_the_answer_alone_come_first() -> None:
    shop, program = Shop(), made("Predict", check, [outputs("C"), outputs("A1")])

    @program.output_validator
    def short(answer: Any) -> None:
        if len(answer.order) < 2:
            raise ToolRetry("too short")

    assert program(question="?", deps=shop).order == "A1"
    assert shop.asked == ["A1"]


def fails(answer: Any, ctx: Context) -> None:
    raise LookupError(answer.order)


async def afails(answer: Any) -> None:
    raise LookupError(answer.order)


@pytest.mark.parametrize("wrong", [fails, afails])
def test_another_error_ends_the_run_and_a_resumed_run_calls_the_validator_again(wrong: Any) -> None:
    store, program = MemoryStore(), made("Predict", wrong, [outputs("A1")])
    run = program.start(question="?", store=store, run_id="r")
    assert run.status == "failed"
    assert isinstance(run.error, LookupError)
    mended = made("Predict", partial(check), [])
    assert Run.load(store, "r", mended, deps=Shop()).resume().prediction.order == "A1"


async def changes(answer: Any) -> None:
    answer.order = "A2"


async def returns(answer: Any) -> Any:
    return answer.model_copy()


@pytest.mark.parametrize("wrong", [changes, returns])
def test_an_async_validator_changes_nothing(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="only checks"):
        made("Predict", wrong, [outputs("A1")])(question="?")


def logged(function: Any) -> Any:
    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return call


@pytest.mark.parametrize(
    "wrong",
    [logged(acheck), logged(partial(afails)), partial(logged(acheck))],
    ids=["context", "plain", "partial"],
)
def test_a_plain_function_that_returns_a_coroutine_is_reported(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not awaited"):
        made("Predict", wrong, [outputs("A1")])(question="?", deps=Shop())


def test_a_context_that_a_partial_binds_stays() -> None:
    mine, other = Shop(), Shop()
    program = made("Predict", partial(check, ctx=Context(deps=mine)), [outputs("A1")])
    assert program(question="?", deps=other).order == "A1"
    assert (mine.asked, other.asked) == (["A1"], [])


ShopContext = Context[Shop]


def by_alias(answer: Any, ctx: "ShopContext") -> None:
    check(answer, ctx)


def by_optional(answer: Any, ctx: "Optional[Context[Shop]]") -> None:
    check(answer, cast("Any", ctx))


def by_annotated(answer: Any, ctx: "Annotated[Context[Shop], 'the shop']") -> None:
    check(answer, ctx)


@pytest.mark.parametrize("function", [by_alias, by_optional, by_annotated])
def test_an_annotation_that_is_text_may_name_the_context_in_other_words(function: Any) -> None:
    shop = Shop()
    assert (
        made("Predict", function, [outputs("B1"), outputs("A1")])(question="?", deps=shop).order
        == "A1"
    )
    assert shop.asked == ["B1", "A1"]


@pytest.mark.parametrize("blocks", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "awaited"])
def test_a_validator_may_ask_a_person_and_call_tools(*, is_async: bool, blocks: bool) -> None:
    def asks(answer: Any, ctx: Context) -> None:
        assert once(lambda: 7) == 7
        assert call_tool(look, place="x") == "x"
        if ask_person(f"Is {answer.order} fine?") != "yes":
            raise ToolRetry("no")

    async def aasks(answer: Any) -> None:
        assert await aonce(lambda: 7) == 7
        assert await acall_tool(look, place="x") == "x"
        if await aask_person(f"Is {answer.order} fine?") != "yes":
            raise ToolRetry("no")

    program, store = made("Predict", aasks if is_async else asks, [outputs("A1")]), MemoryStore()
    keywords: dict[str, Any] = {"question": "?", "store": store, "run_id": "r"}
    if blocks:
        program.start(**keywords)
    else:
        asyncio.run(program.astart(**keywords))
    run = Run.load(store, "r", program)
    run.answer(run.pending[0].approve())
    run = run.resume() if blocks else asyncio.run(run.aresume())
    assert run.prediction.order == "A1"


@pytest.mark.parametrize("blocks", [True, False], ids=["sync", "async"])
def test_a_failure_in_a_validator_that_a_forward_caught_is_replayed(*, blocks: bool) -> None:
    class Desk(Module):
        def __init__(self, judged: list[Any], answers: list[Any], after: list[Any]) -> None:
            self.judge = judge = Predict("order -> fits: bool", lm=ScriptedLM(judged))
            self.answer = Predict("question -> order", lm=ScriptedLM(answers))
            self.after = Predict("question -> order", lm=ScriptedLM(after), name="After")

            @self.answer.output_validator
            async def fits(answer: Any) -> None:
                await judge.acall(order=answer.order)

        def forward(self, question: str) -> str:
            try:
                found = self.answer(question=question).order
            except AuthenticationError:
                found = "failed"
            return f"{found} {self.after(question=found).order} {ask_person('Fine?')}"

    desk = Desk([AuthenticationError("no key")], [outputs("A1")], [outputs("A2")])
    run = desk.start(question="?") if blocks else asyncio.run(desk.astart(question="?"))
    again = Run.from_json(run.to_json(), Desk([{"outputs": {"fits": True}}], [], []))
    again.answer(again.pending[0].approve())
    again = again.resume() if blocks else asyncio.run(again.aresume())
    assert again.prediction == "failed A2 yes"


@pytest.mark.parametrize("blocks", [True, False], ids=["sync", "async"])
def test_a_validator_of_a_new_version_judges_new_answers_only(*, blocks: bool) -> None:
    """What it would say of an answer that was judged before would lead another way."""

    def agent(*answers: Any) -> ReAct:
        return ReAct(
            "question -> order",
            [look.model_copy(update={"require_confirmation": True})],
            lm=ScriptedLM([*answers]),
        )

    def starts_with_a(answer: Any) -> None:
        if answer.order == "B1":
            raise ToolRetry("no")

    store, old, new = MemoryStore(), agent(finish("B1"), LOOK), agent(finish("A1"))
    judged: list[str] = []
    old.output_validator(starts_with_a)

    @new.output_validator
    async def fits(answer: Any) -> None:
        judged.append(answer.order)

    assert old.start(question="?", store=store, run_id="r").status == "waiting"
    run = Run.load(store, "r", new)
    run.answer(run.pending[0].approve())
    run = run.resume() if blocks else asyncio.run(run.aresume())
    assert (run.prediction.order, judged) == ("A1", ["A1"])


# -- validators that look at what changes without a `Context`: a module's own variables


ALLOWED: set[str] = set()
"""What plain validators read, besides the answer."""


def reads_a_global(answer: Any) -> None:
    if answer.order not in ALLOWED:
        raise ToolRetry(f"There is no order {answer.order}.")


class ReadsAGlobal(Signature):
    """Find an order."""

    question: str = InputField()
    order: str = OutputField()

    @field_validator("order")
    @classmethod
    def _exists(cls, order: str) -> str:
        if order not in ALLOWED:
            raise ValueError("there is no such order")
        return order


def paying(kind: str, answers: list[Any], paid: list[str]) -> ReAct:
    """An agent whose call needs approval, after an answer that was judged."""

    @tool(require_confirmation=True)
    def pay(order: str) -> str:
        """Pay an order."""
        paid.append(order)
        return "paid"

    lm = ScriptedLM(answers)
    if kind == "signature":
        return ReAct(ReadsAGlobal, [pay], lm=lm)
    agent = ReAct("question -> order", [pay], lm=lm)
    agent.output_validator(reads_a_global)
    return agent


PAY = {"name": "pay", "args": {"order": "B1"}}


@pytest.mark.parametrize("kind", ["function", "signature"])
@pytest.mark.parametrize("blocks", [True, False], ids=["sync", "async"])
def test_an_objection_holds_in_a_replay_though_its_reason_is_gone(
    kind: str, *, blocks: bool
) -> None:
    """The approved call never ran: the replay accepted the first answer, and the journal did not."""
    paid: list[str] = []
    store = MemoryStore()
    ALLOWED.clear()
    run = paying(kind, [finish("B1"), PAY], paid).start(question="?", store=store, run_id="r")
    assert run.status == "waiting"
    ALLOWED.update({"B1", "A1"})
    run = Run.load(store, "r", paying(kind, [finish("A1")], paid))
    run.answer(run.pending[0].approve())
    run = run.resume() if blocks else asyncio.run(run.aresume())
    assert (run.prediction.order, paid) == ("A1", ["B1"])


@pytest.mark.parametrize("kind", ["function", "signature"])
@pytest.mark.parametrize("blocks", [True, False], ids=["sync", "async"])
def test_an_acceptance_holds_in_a_replay_too(kind: str, *, blocks: bool) -> None:
    class Desk(Module):
        def __init__(self, *answers: Any) -> None:
            lm = ScriptedLM([*answers])
            if kind == "signature":
                self.find = Predict(ReadsAGlobal, lm=lm)
            else:
                self.find = Predict("question -> order", lm=lm)
                self.find.output_validator(reads_a_global)

        def forward(self, question: str) -> Prediction:
            order = self.find(question=question).order
            ask_person(f"Pay {order}?")
            return Prediction(order=order)

    store = MemoryStore()
    ALLOWED.clear()
    ALLOWED.add("A1")
    assert Desk(outputs("A1")).start(question="?", store=store, run_id="r").status == "waiting"
    ALLOWED.clear()
    run = Run.load(store, "r", Desk())
    run.answer(run.pending[0].approve())
    run = run.resume() if blocks else asyncio.run(run.aresume())
    assert run.prediction.order == "A1"


def test_a_recorded_verdict_says_what_pydantic_says() -> None:
    """With the field, as before it was recorded."""
    ALLOWED.clear()
    program = Predict(ReadsAGlobal, lm=ScriptedLM([outputs("B1")] * 3))
    with pytest.raises(AdapterParseError) as raised:
        program(question="?")
    assert raised.value.problems == (("order", "there is no such order"),)


# -- a version with other validators


def waiting_agent(*answers: Any) -> ReAct:
    return ReAct(
        "question -> order",
        [look.model_copy(update={"require_confirmation": True})],
        lm=ScriptedLM([*answers]),
    )


def never(answer: Any) -> None:
    raise ToolRetry("never")


@pytest.mark.parametrize("is_loaded_twice", [False, True])
def test_a_validator_that_a_version_adds_has_no_say_over_recorded_answers(
    is_loaded_twice: bool,
) -> None:
    """The run went on with them."""

    class Desk(Module):
        def __init__(self, *answers: Any) -> None:
            self.find = Predict("question -> order", lm=ScriptedLM([*answers]))

        def forward(self, question: str) -> Prediction:
            order = self.find(question=question).order
            ask_person("Fine?")
            second = self.find(question=order).order
            ask_person("Fine now?")
            return Prediction(orders=[order, second])

    store, old, new = MemoryStore(), Desk(outputs("B1")), Desk(outputs("B2"), outputs("A2"))
    new.find.output_validator(reads_a_global)
    ALLOWED.clear()
    ALLOWED.add("A2")
    assert old.start(question="?", store=store, run_id="r").status == "waiting"
    run = Run.load(store, "r", new)
    run.answer(run.pending[0].approve())
    assert run.resume().status == "waiting"
    ALLOWED.clear()
    if is_loaded_twice:
        run = Run.load(store, "r", new)
    run.answer(run.pending[0].approve())
    assert run.resume().prediction.orders == ["B1", "A2"]


def test_a_validator_that_a_version_removes_is_not_missed() -> None:
    store, old = MemoryStore(), waiting_agent(LOOK, finish("A1"))
    old.output_validator(lambda answer: None)
    old.start(question="?", store=store, run_id="r")
    run = Run.load(store, "r", old)
    run.answer(run.pending[0].approve())
    assert run.resume().status == "done"
    assert Run.load(store, "r", waiting_agent()).prediction.order == "A1"


def test_a_done_run_is_read_by_a_version_with_a_stricter_validator() -> None:
    store = MemoryStore()
    waiting = waiting_agent(finish("A1"))
    waiting.start(question="?", store=store, run_id="r")
    strict = waiting_agent()
    strict.output_validator(never)
    assert Run.load(store, "r", strict).prediction.order == "A1"


def test_an_answer_that_was_recorded_before_a_crash_is_judged() -> None:
    """There was no verdict yet, and nothing followed from the answer."""
    store, program = MemoryStore(), Predict("question -> order", lm=ScriptedLM([outputs("B1")]))

    @program.output_validator
    def crashes(answer: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program.start(question="?", store=store, run_id="r")
    judged = Predict("question -> order", lm=ScriptedLM([outputs("A1")]))
    judged.output_validator(reads_a_global)
    ALLOWED.clear()
    ALLOWED.add("A1")
    assert Run.load(store, "r", judged).resume().prediction.order == "A1"


@pytest.mark.parametrize("stored", [True, False])
def test_a_validator_that_changes_an_output_in_place_is_refused(stored: bool) -> None:
    """A replay takes its verdict from the journal: the loaded run would have another output."""
    store = None
    if stored:
        store = MemoryStore()
    program = Predict(
        "question -> orders: list[str]", lm=ScriptedLM([{"outputs": {"orders": ["A1"]}}])
    )

    @program.output_validator
    def adds(answer: Any) -> None:
        answer.orders.append("B2")

    run = program.start(question="?", store=store)
    assert isinstance(run.error, ConfigurationError)
    assert "only checks" in str(run.error)
