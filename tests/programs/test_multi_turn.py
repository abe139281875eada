"""Agents over several turns: what a turn leaves in the history, and what the next one makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agent_script import STEPS, fields

from ferrule import (
    ChainOfThought,
    ChatAdapter,
    History,
    Image,
    InputField,
    MemoryStore,
    OutputField,
    Predict,
    ReAct,
    Response,
    Run,
    Signature,
    ToolCall,
    context,
    tool,
)
from ferrule.testing import ScriptedLM

PICTURE = Image.from_bytes(b"1234", "image/png")


class Desk(Signature):
    """Help the customer."""

    history: History = InputField(default_factory=History)
    message: str = InputField()
    reply: str = OutputField()


@pytest.fixture(params=["text", "native"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@tool(effect="read")
def order(number: str) -> str:
    """Look up an order."""
    return f"order {number}: shipped"


@tool(effect="read")
def photo(number: str) -> Image:
    """Look at the parcel."""
    return PICTURE


def desk(mode: str, *more: Any) -> ReAct:
    return ReAct(Desk, [order, photo, *more], native=mode == "native")


def reply(mode: str, text: str) -> list[Any]:
    """The answers that end a turn: in text, `finish` has no outputs, and they are extracted."""
    return (
        [STEPS[mode]("", "finish", {"reply": text})]
        if mode == "native"
        else [STEPS[mode]("", "finish"), fields(reasoning="r", reply=text)]
    )


def stored(history: History) -> History:
    return History.model_validate(json.loads(json.dumps(history.format())))


def said(lm: ScriptedLM, request: int = -1) -> str:
    return "\n".join(message.text for message in lm.requests[request].messages)


def test_the_next_turn_begins_with_all_of_the_turns_before(mode: str) -> None:
    lm = ScriptedLM(
        [
            STEPS[mode]("", "order", {"number": "A1"}),
            *reply(mode, "Shipped."),
            *reply(mode, "A1."),
            *reply(mode, "Bye."),
        ],
    )
    with context(lm=lm):
        first = desk(mode)(message="Where is A1?")
        before = [message.json for message in first.messages]
        second = desk(mode)(message="Which one did I ask for?", history=stored(first.history))
        third = desk(mode)(message="Thanks.", history=stored(second.history))
    assert (second.reply, third.reply) == ("A1.", "Bye.")
    assert [message.json for message in third.messages][: len(before)] == before
    texts = [message.text for message in third.history]
    assert ["order A1: shipped" in text for text in texts].count(True) == 1
    assert [
        sum(part in text for text in texts)
        for part in ("Where is A1?", "Shipped.", "Which one", "A1.", "Thanks.", "Bye.")
    ] == [1] * 3 + [1] * 3


def test_pictures_of_earlier_turns_stay_pictures_in_the_store(mode: str) -> None:
    lm = ScriptedLM(
        [
            STEPS[mode]("", "photo", {"number": "A1"}),
            *reply(mode, "A box."),
            *reply(mode, "Brown."),
        ],
    )
    with context(lm=lm):
        first = desk(mode)(message="What does it look like?")
        desk(mode)(message="Which colour?", history=stored(first.history))
    parts = [
        part
        for message in lm.requests[-1].messages
        if not isinstance(message.content, str)
        for part in message.content
    ]
    assert parts.count(PICTURE) == 1


def test_a_call_beside_finish_stays_in_the_history_with_its_result() -> None:
    both = Response(
        "both",
        (
            ToolCall(name="finish", args={"reply": "Yes."}, id="f"),
            ToolCall(name="order", args={"number": "A1"}, id="o"),
        ),
    )
    lm = ScriptedLM([both, *reply("native", "A1.")])
    with context(lm=lm):
        first = desk("native")(message="Is A1 on its way?")
        desk("native")(message="Which one?", history=stored(first.history))
    shown = lm.requests[-1].messages[2:5]
    assert [message.role for message in shown] == ["assistant", "tool", "assistant"]
    assert [call.name for call in shown[0].tool_calls] == ["order"]
    assert shown[1].text == "order A1: shipped"
    assert "Yes." in shown[2].text


def test_a_call_beside_finish_stays_in_text_mode_too() -> None:
    both = fields(
        next_thought="both",
        next_tool_name=["order", "finish"],
        next_tool_args=[{"number": "A1"}, {}],
    )
    with context(lm=ScriptedLM([both, fields(reasoning="r", reply="Yes.")])):
        first = desk("text")(message="Is A1 on its way?")
    assert [call.name for call in first.trajectory.steps[0].calls] == ["order", "finish"]
    assert "order A1: shipped" in first.history[-2].text
    assert "finish" not in first.history[-2].text


@pytest.mark.parametrize("kind", [ReAct, Predict])
def test_the_history_may_be_left_out_in_the_first_turn(kind: Any) -> None:
    class Maybe(Signature):
        history: History | None = InputField(default=None)
        message: str = InputField()
        reply: str = OutputField()

    program = kind(Maybe, tools=[order], native=True)
    lm = ScriptedLM(
        [*reply("native", "Hello."), *reply("native", "Bye.")]
        if kind is ReAct
        else [fields(reply="Hello."), fields(reply="Bye.")],
    )
    with context(lm=lm):
        first = program(message="Hi.")
        second = program(message="Bye.", history=first.history)
    assert (first.reply, second.reply) == ("Hello.", "Bye.")
    assert "Hello." in said(lm)


def test_a_turn_that_waits_for_a_person_goes_on_in_another_process_and_so_does_the_conversation(
    mode: str,
) -> None:
    paid: list[str] = []

    @tool(require_confirmation=True)
    def refund(number: str) -> str:
        """Refund an order."""
        paid.append(number)
        return "refunded"

    store = MemoryStore()
    step = STEPS[mode]
    with context(
        lm=ScriptedLM(
            [
                step("", "order", {"number": "A1"}),
                *reply(mode, "Shipped."),
                step("", "refund", {"number": "A1"}),
            ],
        ),
    ):
        first = desk(mode, refund)(message="Where is A1?")
        desk(mode, refund).start(
            message="Refund it.",
            history=stored(first.history),
            store=store,
            run_id="turn 2",
        )
    lm = ScriptedLM([*reply(mode, "Refunded."), *reply(mode, "Bye.")])
    with context(lm=lm):
        run = Run.load(store, "turn 2", desk(mode, refund))
        run.answer(run.pending[0].approve())
        run.resume()
        desk(mode, refund)(message="Thanks.", history=stored(run.prediction.history))
        again = Run.load(store, "turn 2", desk(mode, refund)).prediction
    assert paid == ["A1"]
    assert again.history == run.prediction.history
    for part in (
        "Where is A1?",
        "order A1: shipped",
        "Refund it.",
        "refunded",
        "Refunded.",
        "Thanks.",
    ):
        assert part in said(lm, -1 if mode == "native" else -2)


def test_a_turn_that_is_given_up_leaves_a_valid_history(mode: str) -> None:
    @tool(require_confirmation=True)
    def refund(number: str) -> str:
        """Refund an order."""
        raise AssertionError

    step = STEPS[mode]
    lm = ScriptedLM(
        [
            step("", "order", {"number": "A1"}),
            step("", "refund", {"number": "A1"}),
            *reply(mode, "Kept."),
        ],
    )
    with context(lm=lm):
        run = desk(mode, refund).start(message="Refund A1.")
        run.cancel()
        so_far = History(message for message in run.messages if message.role != "system")
        assert desk(mode, refund)(message="Never mind.", history=stored(so_far)).reply == "Kept."
    assert "order A1: shipped" in said(lm)


@pytest.mark.parametrize("other", ["text", "native"])
def test_a_conversation_may_go_on_in_the_other_mode_and_in_another_program(
    mode: str,
    other: str,
) -> None:
    lm = ScriptedLM(
        [
            STEPS[mode]("", "order", {"number": "A1"}),
            *reply(mode, "Shipped."),
            *reply(other, "A1."),
            fields(reasoning="It was A1.", reply="Still A1."),
        ],
    )
    with context(lm=lm):
        first = desk(mode)(message="Where is A1?")
        second = desk(other)(message="Which one?", history=stored(first.history))
        third = ChainOfThought(Desk)(message="Sure?", history=stored(second.history))
    assert (second.reply, third.reply) == ("A1.", "Still A1.")
    assert "order A1: shipped" in said(lm)


def test_predict_keeps_its_calls_in_the_history(mode: str) -> None:
    call: Any = {"name": "order", "args": {"number": "A1"}}
    script = [
        call if mode == "native" else fields(tool_calls={"tool_calls": [call]}),
        fields(reply="Shipped."),
        fields(reply="A1."),
    ]
    lm = ScriptedLM(script)
    program = Predict(Desk, tools=[order], native=mode == "native")
    with context(lm=lm):
        first = program(message="Where is A1?")
        assert program(message="Which one?", history=stored(first.history)).reply == "A1."
    assert "order A1: shipped" in said(lm)


class Marked(ChatAdapter):
    """An adapter of a user's, who overrides a piece."""

    def format_assistant_message_content(self, *args: Any, **keywords: Any) -> str:
        return f"{super().format_assistant_message_content(*args, **keywords)} (marked)"


@pytest.mark.parametrize("adapter", [None, Marked()])
def test_turns_of_fields_keep_their_answers(mode: str, adapter: Any) -> None:
    lm = ScriptedLM(reply(mode, "You are welcome."))
    turns = [
        {"message": "Where is A1?", "reply": "Shipped."},
        {"message": "What is in it?", "reply": "A tent."},
    ]
    with context(lm=lm, adapter=adapter):
        prediction = desk(mode)(message="Thanks.", history=History(turns))
    for request in lm.requests:  # the step, and in text the extraction
        shown = request.messages[1:5]
        assert [message.role for message in shown] == ["user", "assistant", "user", "assistant"]
        assert ["Shipped." in shown[1].text, "A tent." in shown[3].text] == [True, True]
        assert "next_thought" not in shown[1].text
        assert shown[1].text.endswith("(marked)") == (adapter is not None)
    assert len(prediction.history) == 6


@pytest.mark.parametrize("adapter", [None, Marked()])
def test_demos_of_an_agent_keep_their_answers_and_those_of_a_step_their_step(
    mode: str,
    adapter: Any,
) -> None:
    lm = ScriptedLM(reply(mode, "Hello."))
    demos = [
        {"message": "Hi.", "reply": "Good day."},
        {"message": "And?", "next_thought": "So.", "next_tool_name": "order"},
    ]
    with context(lm=lm, adapter=adapter):
        ReAct(Desk, [order], native=mode == "native", demos=demos if mode == "text" else demos[:1])(
            message="Hello?",
        )
    shown = lm.requests[0].messages
    assert [message.role for message in shown[1:3]] == ["user", "assistant"]
    assert "Good day." in shown[2].text
    assert "not given" not in shown[2].text
    if mode == "text":
        assert "So." in shown[4].text
