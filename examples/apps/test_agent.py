"""Tests of an agent, with pytest: `pytest test_agent.py`. The model is scripted or recorded, and everything else is real."""

from pathlib import Path

import pytest

from ferrule import Context, ReAct, Request, ToolRetry, ask, gt, tool
from ferrule.errors import ScriptError
from ferrule.testing import RecordLM, ReplayLM, ScriptedLM, block_network

# -- the agent under test, which would usually be in its own module ---------------------------------------------


class Shop:
    """The shop's orders; a database in real life."""

    def __init__(self) -> None:
        self.orders = {"A1": 30.0, "B2": 900.0}
        self.refunded: list[str] = []


@tool(effect="read")
def find_order(order: str, ctx: Context[Shop]) -> float:
    """Find the price of an order."""
    if order not in ctx.deps.orders:
        raise ToolRetry(f"There is no order {order}. Ask for the number on the invoice.")
    return ctx.deps.orders[order]


@tool(require_confirmation=ask(euros=gt(100)))
def refund(order: str, euros: float, ctx: Context[Shop]) -> str:
    """Refund an order."""
    ctx.deps.refunded.append(order)
    return f"{euros} EUR paid back"


desk = ReAct("message -> reply", [find_order, refund])

# -- its tests ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture(autouse=True)
def _offline() -> object:
    with block_network():  # a test that asks a real model by mistake fails, and costs nothing
        yield


def call(name: str, **args: object) -> dict[str, object]:
    return {"name": name, "args": args}


REFUND_A1 = [
    call("find_order", order="A1"),
    call("refund", order="A1", euros=30),
    call("finish", reply="Done."),
]
REFUND_B2 = [
    call("refund", order="B2", euros=900),
    call("finish", reply="A colleague has to agree."),
]


def test_a_tool_alone(shop: Shop) -> None:
    """A tool is still a function. In a run, ferrule makes the `Context`; here, the test does."""
    assert find_order(order="A1", ctx=Context(deps=shop)) == shop.orders["A1"]


def test_the_calls_their_results_and_the_answer(shop: Shop) -> None:
    with ScriptedLM(REFUND_A1) as lm:  # on exit, `with` checks that the whole script was used
        prediction = desk(message="Pay A1 back.", lm=lm, deps=shop)
    assert [[call.name for call in step.calls] for step in prediction.trajectory.steps] == [
        ["find_order"],
        ["refund"],
        ["finish"],
    ]
    assert prediction.trajectory.steps[1].calls[0].args == {"order": "A1", "euros": 30.0}
    assert prediction.trajectory["observation_1"] == "30.0 EUR paid back"
    assert prediction.reason is None  # no limit ended it
    assert (prediction.reply, shop.refunded) == ("Done.", ["A1"])


def test_what_the_model_sees_of_a_failing_tool(shop: Shop) -> None:
    def sees_why(request: Request) -> object:
        assert "There is no order A9" in request.messages[-1].text
        return call("finish", reply="Which number is on the invoice?")

    with ScriptedLM([call("find_order", order="A9"), sees_why]) as lm:
        prediction = desk(message="Pay A9 back.", lm=lm, deps=shop)
    assert prediction.trajectory.steps[0].results[0].is_error


@pytest.mark.parametrize(("is_approved", "refunded"), [(True, ["B2"]), (False, [])])
def test_a_large_refund_waits_for_a_person(
    shop: Shop,
    is_approved: bool,
    refunded: list[str],
) -> None:
    run = desk.start(message="Pay B2 back.", lm=ScriptedLM(REFUND_B2), deps=shop)
    [question] = run.pending
    assert (question.call.name, question.call.args["euros"], shop.refunded) == ("refund", 900.0, [])
    run.answer(question.approve() if is_approved else question.deny("Too much."))
    assert run.resume().status == "done"
    assert shop.refunded == refunded


def test_a_recorded_model_answers_the_same_request_only(shop: Shop, tmp_path: Path) -> None:
    """`RecordLM(LM("openai/gpt-5-mini"), path, mode="once")` asks the real model once, and then reads the file: commit it."""
    path = tmp_path / "refund.jsonl"
    desk(message="Pay A1 back.", lm=RecordLM(ScriptedLM(REFUND_A1), path), deps=shop)
    assert desk(message="Pay A1 back.", lm=ReplayLM(path), deps=Shop()).reply == "Done."
    with pytest.raises(
        ScriptError,
        match="Pay B2 back",
    ):  # the error shows the difference from the recording
        desk(message="Pay B2 back.", lm=ReplayLM(path), deps=shop)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-qq", "-p", "no:cacheprovider"]))
