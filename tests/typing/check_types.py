"""What type checkers say of typed predictions, inputs and `deps`.

Checked by mypy and by pyright; nothing here is executed.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedCallResult=false, reportUnusedExpression=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

from pydantic import BaseModel

from ferrule import (
    BatchResults,
    ChainOfThought,
    Context,
    EventStream,
    InputField,
    MemoryStore,
    Module,
    OutputField,
    Policy,
    Predict,
    Prediction,
    ReAct,
    Run,
    Signature,
    Tool,
    Trajectory,
    Usage,
    allow,
    arun_until_done,
    ask,
    deny,
    gather,
    gt,
    run_until_done,
    tool,
)
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Mapping


class Line(BaseModel):
    """A line of an invoice."""

    article: str
    euros: int


class Invoice(Signature):
    """Read an invoice."""

    text: str = InputField(desc="The invoice.")
    currency: str = InputField(default="EUR")
    lines: list[Line] = OutputField()
    total: float = OutputField(ge=0)


class Paid(Invoice):
    """Read an invoice and who paid it."""

    payer: str = OutputField()


class Shop:
    """What tools need."""

    owner: str = "ann"


@tool
def buy(n: int, ctx: Context[Shop]) -> str:
    """Buy."""
    return ctx.deps.owner * n


class Desk(Module):
    """A program of one's own, around a typed one."""

    def __init__(self) -> None:
        self.read = ChainOfThought(Invoice)

    def forward(self, text: str) -> Prediction:
        """Read."""
        return Prediction(total=self.read(text=text).outputs.total)


def outputs_have_the_types_of_the_signature() -> None:
    for program in (Predict(Invoice), Predict[Invoice](Invoice)):
        prediction = program(text="x")
        assert_type(prediction, Prediction[Invoice])
        assert_type(prediction.outputs, Invoice)
        assert_type(prediction.outputs.lines, list[Line])
        assert_type(prediction.outputs.lines[0].euros, int)
        assert_type(prediction.trajectory, Trajectory)
        assert_type(prediction.usage, Usage)
        assert_type(prediction.reason, str | None)
        assert_type(prediction.lines, Any)
    assert_type(ChainOfThought(Invoice)(text="x").outputs.total, float)
    assert_type(ReAct(Invoice, [buy])(text="x", currency="USD").outputs.lines, list[Line])
    assert_type(Predict(Paid)(text="x").outputs.payer, str)
    assert_type(Predict(Paid)(text="x").outputs.total, float)


async def every_entry_returns_them() -> None:
    agent = ReAct(Invoice, [buy])
    assert_type(await agent.acall(text="x"), Prediction[Invoice])
    assert_type(agent.start(text="x"), Run[Invoice])
    assert_type(
        await agent.astart(text="x", store=MemoryStore(), run_id="r", deps=Shop()),
        Run[Invoice],
    )
    assert_type(agent.start(text="x").prediction.outputs.lines, list[Line])
    assert_type(agent.start(text="x").resume().prediction.outputs.total, float)
    assert_type(agent.stream(text="x"), EventStream[Invoice])
    assert_type(agent.astream(text="x").prediction.outputs, Invoice)
    assert_type(agent.batch([{"text": "x"}], deps=Shop()), BatchResults[Invoice])
    assert_type(await agent.abatch([{"text": "x"}]), BatchResults[Invoice])
    assert_type(agent.batch([{"text": "x"}])[0], Prediction[Invoice])
    assert_type(
        agent.batch([{"text": "x"}], return_exceptions=True, timeout=3)[0],
        Prediction[Invoice] | BaseException,
    )
    assert_type(
        (await agent.abatch([{"text": "x"}], return_exceptions=bool(agent)))[0],
        Prediction[Invoice] | BaseException,
    )
    results, failed, errors = agent.batch([{"text": "x"}], return_failed_examples=True, deps=Shop())
    assert_type(results[0], Prediction[Invoice] | None)
    assert_type((failed, errors), tuple[list[Mapping[str, Any]], list[BaseException]])
    assert_type(
        (await agent.abatch([{"text": "x"}], return_failed_examples=True))[0],
        BatchResults[Invoice, None],
    )
    assert_type(agent.bind(text="x")(deps=Shop()), Prediction[Invoice])
    assert_type(agent.bind(text="x").start(store=MemoryStore()), Run[Invoice])
    assert_type(agent.resume("yes", None), Prediction[Invoice])
    assert_type(await agent.aresume("yes", None), Prediction[Invoice])
    assert_type(
        run_until_done(agent, {"text": "x"}, decide=lambda question: question.approve()),
        Prediction[Invoice],
    )
    assert_type(
        await arun_until_done(agent, {"text": "x"}, decide=lambda question: question.approve()),
        Prediction[Invoice],
    )
    assert_type(Run[Invoice].load(MemoryStore(), "r", agent), Run[Invoice])
    assert_type(Run.load(MemoryStore(), "r", agent), Run[Invoice])
    assert_type(Run.load(MemoryStore(), "r", agent).prediction.outputs.total, float)
    assert_type(Run.load(MemoryStore(), "r", Desk()), Run[Any])
    assert_type(agent.batch([agent.bind(text="x"), {"text": "y"}]), BatchResults[Invoice])
    assert_type(agent.load_run(MemoryStore(), "r"), Run[Invoice])
    paid = Predict(Paid, lm=ScriptedLM([]))
    assert_type(
        await gather(agent.acall(text="x"), paid.acall(text="x")),
        tuple[Prediction[Invoice], Prediction[Paid]],
    )
    assert_type(await gather(*[paid.acall(text=each) for each in "xy"]), list[Prediction[Paid]])
    assert_type(Predict(Invoice)(text="x", lm=ScriptedLM([])), Prediction[Invoice])
    assert_type(
        Predict(Invoice)(text="x", config={"temperature": 0}, demos=[]),
        Prediction[Invoice],
    )
    assert_type(Predict(Invoice)(text="x", max_turns=3), Prediction[Invoice])
    assert_type(agent(text="x", max_iters=3), Prediction[Invoice])
    assert_type(agent(resume_state=None), Prediction[Invoice])


def without_a_class_everything_is_any() -> None:
    prediction = Predict("question, k: int -> answer: int")(question="x", k=3)
    assert_type(prediction, Prediction[Any])
    assert_type(prediction.outputs, Any)
    assert_type(prediction.answer, Any)
    assert_type(Desk()(text="x"), Prediction[Any])
    assert_type(ReAct(Signature("a -> b"), [])(a="x").outputs, Any)


def programs_are_passed_on(
    predict: Predict[Invoice],
    agent: ReAct[Invoice, Shop],
    some: Module,
    run: Run[Invoice],
) -> None:
    assert_type(predict(text="x").outputs.total, float)
    assert_type(agent(text="x", deps=Shop()).outputs.total, float)
    assert_type(agent.start(text="x", deps=Shop()).prediction.outputs.lines, list[Line])
    assert_type(run.prediction.outputs.total, float)
    programs_are_passed_on(
        Predict(Invoice),
        ReAct(Invoice, [buy]),
        Desk(),
        ReAct(Invoice, [buy]).start(text="x"),
    )
    programs_are_passed_on(predict, agent, agent, run)
    kept: Predict[Invoice] = Predict(Invoice)
    several: list[Module] = [predict, agent, kept, Desk()]
    del several


def lambdas_and_tested_functions_have_types() -> None:
    Policy(
        [
            allow("buy", n=lambda n: n < 3),
            ask("buy", n=gt(3), owner="ann"),
            deny("buy", n=lambda n: n > 9),
        ],
    )
    tool(require_confirmation=lambda args: args["n"] > 3)
    Tool(len, require_confirmation=lambda args: args["obj"] == "")
    Tool(len, require_confirmation=ask(obj="secret*"))
    assert_type(buy.func(3, ctx=Context(deps=Shop())), str)


def made_at_run_time(signature: type[Signature]) -> None:
    Predict(signature)(anything="x")
    assert_type(Predict(Invoice.with_instructions("Read it well."))(text="x"), Prediction[Invoice])
    program: Predict[Any] = Predict(signature)
    assert_type(program(anything="x").outputs, Any)


def what_must_not_check(agent: ReAct[Invoice, Shop]) -> None:
    predict = Predict(Invoice)
    predict(txt="x")  # type: ignore[call-overload]
    predict(text="x", curency="USD")  # type: ignore[call-overload]
    predict(text=3)  # type: ignore[call-overload]
    predict(currency="USD")  # type: ignore[call-overload]
    predict(text="x", total=3)  # type: ignore[call-overload]
    predict("x")  # type: ignore[call-overload]
    predict.bind(txt="x")  # type: ignore[call-arg]
    ReAct(Invoice, [buy])(txt="x")  # type: ignore[call-overload]
    ChainOfThought(Invoice).acall(txt="x")  # type: ignore[call-overload]
    predict(text="x").outputs.lnes  # type: ignore[attr-defined]
    predict(text="x").outputs.lines[0].article + 1  # type: ignore[operator]
    number: int = predict(text="x").outputs.lines  # type: ignore[assignment]
    del number
    predict(text="x").usage.lines  # type: ignore[attr-defined]
    agent(text="x", deps="no shop")  # type: ignore[arg-type]
    agent(text="x")  # type: ignore[call-arg]
    agent.start(text="x", deps="no shop")  # type: ignore[arg-type]
    agent.stream(text="x", deps="no shop")  # type: ignore[arg-type]
    agent.batch([], deps="no shop")  # type: ignore[call-overload]
    agent.batch([], timeout="soon")  # type: ignore[call-overload]
    agent.batch([], return_exceptions=True)[0].outputs  # type: ignore[union-attr]
    agent.bind(text="x")(deps="no shop")  # type: ignore[arg-type]
    buy(1, Context(deps="no shop"))  # type: ignore[arg-type]
    buy.func("one", Context(deps=Shop()))  # type: ignore[arg-type]
    tool(require_confirmation=lambda: True)  # type: ignore[arg-type, misc]
    predict.start(text="x", run_id=3)  # type: ignore[call-overload]
    predict.start(txt="x")  # type: ignore[call-overload]
    predict.astart(text=3)  # type: ignore[call-overload]
    predict.stream(txt="x")  # type: ignore[call-overload]
    predict.astream(currency="USD")  # type: ignore[call-overload]
    predict.batch([predict.bind(txt="x")])  # type: ignore[call-arg]
    agent.start(text="x")  # type: ignore[call-arg]
    other: Prediction[Paid] = predict(text="x")  # type: ignore[assignment]
    del other
    Predict(3)  # type: ignore[arg-type]
    ReAct(Invoice)  # type: ignore[call-arg]


def what_should_not_check_but_does(agent: ReAct[Invoice, Shop]) -> None:
    # Python's typing cannot add a keyword to the inputs of a signature. With an option, the inputs
    # are not checked; `bind` checks them.
    Predict(Invoice)(txt="x", lm=None)
    Predict(Invoice).start(txt="x", store=MemoryStore())
    Predict(Invoice).stream(txt="x", run_id="r")
    Predict(Invoice).batch([{"txt": "x"}])
    Desk().start(run_id=3)  # a program of one's own may have any inputs
    # A type that is written down says nothing of the inputs.
    agent(txt="x", deps=Shop())
    # The outputs of `prediction` itself are not known, as any name may be one.
    Predict(Invoice)(text="x").lnes
