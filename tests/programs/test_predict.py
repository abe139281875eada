"""`Predict` and `ChainOfThought`, with and without tools."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agent_script import fields
from pydantic import BaseModel

from ferrule import (
    AdapterParseError,
    ChainOfThought,
    ChatAdapter,
    History,
    InputError,
    InputField,
    JSONAdapter,
    Limits,
    OutputField,
    Predict,
    Prediction,
    ReAct,
    Response,
    Signature,
    Tool,
    ToolCall,
    XMLAdapter,
    configure,
    context,
    tool,
)  # fmt: skip
from ferrule.errors import ConfigurationError, MaxTurnsReachedError, SignatureError
from ferrule.events import FieldDelta
from ferrule.testing import ScriptedLM, serve


@pytest.fixture(params=["text", "native"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def wanted(mode: str, *calls: tuple[str, Any], said: str = "") -> Any:
    """An answer that asks for calls."""
    if mode == "native":
        return Response(said or None, tuple(ToolCall(name=name, args=args) for name, args in calls))
    return fields(tool_calls={"tool_calls": [{"name": name, "args": args} for name, args in calls]})


def answer(mode: str, **outputs: Any) -> str:
    return fields(**outputs) if mode == "native" else fields(tool_calls=[], **outputs)


class Point(BaseModel):
    x: int
    y: int


def test_outputs_are_typed() -> None:
    lm = ScriptedLM([fields(n="7", point={"x": 1, "y": 2}, tags=["a"])])
    prediction = Predict(
        "text -> n: int, point: Point, tags: list[str]".replace(": Point", ": dict"),
    )(text="t", lm=lm)
    assert (prediction.n, prediction["point"], prediction.tags) == (7, {"x": 1, "y": 2}, ["a"])
    assert list(prediction) == ["n", "point", "tags"]
    json.dumps(dict(prediction))


def test_a_class_signature_gives_models() -> None:
    class Locate(Signature):
        """Find the place."""

        text: str = InputField()
        point: Point = OutputField()

    lm = ScriptedLM([fields(point={"x": 1, "y": 2})])
    assert Predict(Locate)(text="t", lm=lm).point == Point(x=1, y=2)
    assert "Find the place." in lm.requests[0].messages[0].text


@pytest.mark.parametrize("adapter", [ChatAdapter(), JSONAdapter(), XMLAdapter()])
def test_every_adapter_carries_the_same_answer(adapter: Any) -> None:
    said = {
        ChatAdapter: fields(answer="yes & no"),
        JSONAdapter: '{"answer": "yes & no"}',
        XMLAdapter: "<answer>yes & no</answer>",
    }[type(adapter)]
    with context(adapter=adapter):
        assert (
            Predict("question -> answer")(question="q", lm=ScriptedLM([said])).answer == "yes & no"
        )


def test_unknown_and_missing_inputs_are_all_named() -> None:
    """U144; issue 2: bad input."""
    with pytest.raises(InputError) as raised:
        Predict("question, context -> answer")(qestion="q", lm=ScriptedLM([]))
    for name in ("qestion", "question", "context"):
        assert f"`{name}`" in str(raised.value)


def test_without_a_model_the_error_says_how_to_set_one() -> None:
    with pytest.raises(ConfigurationError, match="configure"):
        Predict("question -> answer")(question="q")


def test_the_model_comes_from_the_call_then_the_program_then_the_settings() -> None:
    """Issue 2: per-call `lm=`, `config=`; D40."""
    one, two, three = (
        ScriptedLM([fields(answer=name)] * 2) for name in ("call", "program", "settings")
    )
    program = Predict("question -> answer", temperature=0.5)
    configure(lm=three)
    try:
        assert program(question="q").answer == "settings"
        program.set_lm(two)
        assert program.get_lm() is two
        assert program(question="q", config={"temperature": 0.1, "top_p": 1}).answer == "program"
        assert program(question="q", lm=one).answer == "call"
    finally:
        configure(lm=None)
    assert dict(two.requests[0].settings) == {"temperature": 0.1, "top_p": 1}
    assert dict(one.requests[0].settings) == {"temperature": 0.5}


def test_an_input_named_like_a_keyword_is_an_input() -> None:
    lm = ScriptedLM([fields(answer="a")])
    with context(lm=lm):
        Predict("config, lm -> answer")(config="c", lm="l")
    assert "[[ ## config ## ]]\nc" in lm.requests[0].messages[-1].text


def test_an_unreadable_answer_is_mended_then_asked_of_the_fallback_and_the_first_error_stays() -> (
    None
):
    lm = ScriptedLM(["nonsense", "still nonsense", '{"answer": "fine"}'])
    with lm, context(adapter=ChatAdapter(repairs=1)):
        assert Predict("question -> answer")(question="q", lm=lm).answer == "fine"
    assert "nonsense" in lm.requests[1].messages[-2].text
    lm = ScriptedLM(["first", "second", "third"])
    with context(adapter=ChatAdapter(repairs=1)), pytest.raises(AdapterParseError) as raised:
        Predict("question -> answer: int")(question="q", lm=lm)
    assert isinstance(raised.value.__cause__, AdapterParseError)
    assert raised.value.__cause__.text == "first"


def test_no_repair_and_no_fallback_where_none_is_wanted() -> None:
    """0 means none."""
    lm = ScriptedLM(["nonsense"])
    with (
        lm,
        context(adapter=ChatAdapter(repairs=0, fallback=None)),
        pytest.raises(AdapterParseError),
    ):
        Predict("question -> answer: int")(question="q", lm=lm)


def test_tools_are_run_and_their_results_shown(mode: str) -> None:
    lm = ScriptedLM(
        [
            wanted(mode, ("add", {"a": 2, "b": 3}), ("add", {"a": 4, "b": 5})),
            answer(mode, total=14),
        ],
    )
    with lm:
        prediction = Predict("question -> total: int", tools=[add], native=mode == "native")(
            question="q",
            lm=lm,
        )
    assert prediction.total == 14
    assert [result.content for result in prediction.trajectory.steps[0].results] == ["5", "9"]
    shown = "".join(message.text for message in lm.requests[1].messages)
    assert "5" in shown
    assert "9" in shown


def test_text_and_native_give_equal_predictions() -> None:
    found = [
        Predict("question -> total: int", tools=[add], native=mode == "native")(
            question="q",
            lm=ScriptedLM([wanted(mode, ("add", {"a": 2, "b": 3})), answer(mode, total=5)]),
        )
        for mode in ("text", "native")
    ]
    assert found[0] == found[1]


def test_unexecuted_calls_are_handed_back(mode: str) -> None:
    ran: list[int] = []

    def note(n: int) -> None:
        """Note."""
        ran.append(n)

    lm = ScriptedLM([wanted(mode, ("note", {"n": 1}))])
    prediction = Predict(
        "question -> answer",
        tools=[note],
        auto_execute_tools=False,
        native=mode == "native",
    )(question="q", lm=lm)
    assert ran == []
    assert [(call.name, call.args) for call in prediction.tool_calls.tool_calls] == [
        ("note", {"n": 1}),
    ]
    assert prediction.answer is None
    assert list(prediction) == ["answer"]


BESIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "an output": ("[[ ## answer ## ]]\nsoon", {"answer": "soon", "n": None}),
    "all outputs": ("[[ ## answer ## ]]\nsoon\n[[ ## n ## ]]\n2", {"answer": "soon", "n": 2}),
    "an invalid output": (
        "[[ ## answer ## ]]\nsoon\n[[ ## n ## ]]\nmany",
        {"answer": "soon", "n": None},
    ),
    "bare text": ("Let me see.", {"answer": None, "n": None}),
    "nothing": ("", {"answer": None, "n": None}),
}


@pytest.mark.parametrize(("text", "outputs"), BESIDE.values(), ids=BESIDE)
def test_outputs_beside_calls_that_are_handed_back_are_kept(
    mode: str,
    text: str,
    outputs: dict[str, Any],
) -> None:
    """In the prediction as in the stream."""
    calls = (ToolCall(name="add", args={"a": 1, "b": 1}, id="c1"),)
    written = f'{text}\n[[ ## tool_calls ## ]]\n[{{"name": "add", "args": {{"a": 1, "b": 1}}}}]\n[[ ## completed ## ]]'
    lm = ScriptedLM([Response(text, calls) if mode == "native" else Response(written)])
    program = Predict(
        "question -> answer, n: int",
        tools=[add],
        auto_execute_tools=False,
        native=mode == "native",
    )
    with lm, program.stream(question="q", lm=lm) as stream:
        told = "".join(
            event.text
            for event in stream
            if isinstance(event, FieldDelta) and event.field == "answer"
        )
    assert dict(stream.prediction) == outputs
    assert told == (outputs["answer"] or "")
    assert [call.name for call in stream.prediction.tool_calls.tool_calls] == ["add"]


def test_a_remark_before_calls_in_text_is_no_answer() -> None:
    """Nor is it in the stream."""
    lm = ScriptedLM(['Let me see. [{"name": "add", "args": {"a": 1, "b": 1}}]'])
    prediction = Predict("question -> answer", tools=[add], auto_execute_tools=False, native=False)(
        question="q",
        lm=lm,
    )
    assert (prediction.answer, len(prediction.tool_calls.tool_calls)) == (None, 1)


def test_calls_handed_back_may_be_answered_in_the_next_question() -> None:
    """What the model said is kept, with its calls, and results find them."""
    said = Response("Let me see.", (ToolCall(name="add", args={"a": 1, "b": 1}, id="c1"),))
    lm = ScriptedLM([said, Response("2")])
    program = Predict(
        "question, history: History -> answer",
        tools=[add],
        auto_execute_tools=False,
        native=True,
    )
    first = program(question="1+1?", history=History(), lm=lm)
    first.history.add_tool_results(first.tool_calls.execute_all([add]))
    assert program(question="So?", history=first.history, lm=lm).answer == "2"
    sent = [message for message in lm.requests[1].messages if message.role in {"assistant", "tool"}]
    assert [(message.text, message.tool_call_id) for message in sent] == [
        ("Let me see.", None),
        ("2", "c1"),
    ]
    assert [call.id for call in sent[0].tool_calls] == ["c1"]


def test_running_out_of_turns_raises_with_the_calls_still_wanted(mode: str) -> None:
    lm = ScriptedLM([wanted(mode, ("add", {"a": 1, "b": 1}))] * 2)
    with lm, pytest.raises(MaxTurnsReachedError, match="2 turns") as raised:
        Predict("question -> answer", tools=[add], max_turns=2, native=mode == "native")(
            question="q",
            lm=lm,
        )
    assert [call.name for call in raised.value.pending] == ["add"]
    with pytest.raises(ConfigurationError, match="max_turns"):
        Predict("question -> answer", max_turns=0)


def test_faults_of_calls_go_back_to_the_model(mode: str) -> None:
    """Unknown tool, bad arguments, a tool that fails."""

    def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    lm = ScriptedLM(
        [wanted(mode, ("nosuch", {}), ("add", {"a": "x"}), ("fail", {})), answer(mode, total=1)],
    )
    prediction = Predict("question -> total: int", tools=[add, fail], native=mode == "native")(
        question="q",
        lm=lm,
    )
    texts = [result.content for result in prediction.trajectory.steps[0].results]
    assert "no tool `nosuch`" in texts[0]
    assert "was not run" in texts[1]
    assert "ValueError: broken" in texts[2]


@pytest.mark.parametrize("raw", ["", "null", None])
def test_empty_arguments_mean_none(raw: Any) -> None:
    ran: list[str] = []
    ping = Tool(lambda: ran.append("ping"), "ping", "Ping.")
    turn = Response(
        tool_calls=(ToolCall.read({"id": "c", "function": {"name": "ping", "arguments": raw}}),),
    )
    Predict("question -> answer", tools=[ping], native=True)(
        question="q",
        lm=ScriptedLM([turn, "done"]),
    )
    assert ran == ["ping"]


@pytest.mark.parametrize("raw", ["{bad json", "[1]", "3", '"x"', '{"a": 1} {"a": 2}'])
def test_unreadable_arguments_are_told_with_the_tools_name(raw: str) -> None:
    turn = Response(
        tool_calls=(ToolCall.read({"id": "c", "function": {"name": "add", "arguments": raw}}),),
    )
    lm = ScriptedLM([turn, "done"])
    prediction = Predict("question -> answer", tools=[add], native=True)(question="q", lm=lm)
    (result,) = prediction.trajectory.steps[0].results
    assert result.is_fault
    assert "`add`" in result.content


def test_the_models_own_text_next_to_calls_is_kept() -> None:
    lm = ScriptedLM([wanted("native", ("add", {"a": 1, "b": 1}), said="Let me add."), "two"])
    prediction = Predict("question -> answer", tools=[add], native=True)(question="q", lm=lm)
    assert prediction.trajectory["thought_0"] == "Let me add."
    assert lm.requests[1].messages[-2].text == "Let me add."


def test_a_plain_text_answer_after_tools_is_the_one_text_output() -> None:
    """Native models answer in plain words."""
    assert (
        Predict("question -> answer", tools=[add], native=True)(
            question="q",
            lm=ScriptedLM(["Hello!"]),
        ).answer
        == "Hello!"
    )


def test_the_conversation_goes_on_through_history(mode: str) -> None:
    """Real messages, calls and results included."""

    class Chat(Signature):
        """Chat."""

        history: History = InputField()
        message: str = InputField()
        answer: str = OutputField()

    chat = Predict(Chat, tools=[add], native=mode == "native")
    lm = ScriptedLM(
        [
            wanted(mode, ("add", {"a": 1, "b": 2})),
            answer(mode, answer="three"),
            answer(mode, answer="bye"),
        ],
    )
    first = chat(message="1+2?", history=History(messages=[]), lm=lm)
    second = chat(message="bye", history=first.history, lm=lm)
    assert second.answer == "bye"
    before = [message.json for message in lm.requests[1].messages]
    assert [message.json for message in lm.requests[2].messages][: len(before)] == before
    assert [message.role for message in lm.requests[2].messages][-2:] == ["assistant", "user"]


def test_chain_of_thought_reasons_first() -> None:
    """With tools as well."""
    lm = ScriptedLM([fields(reasoning="because", answer="4")])
    prediction = ChainOfThought("question -> answer: int")(question="2+2?", lm=lm)
    assert list(prediction) == ["reasoning", "answer"]
    assert prediction.answer == 4
    lm = ScriptedLM(
        [wanted("native", ("add", {"a": 2, "b": 2})), fields(reasoning="because", answer="4")],
    )
    assert (
        ChainOfThought("question -> answer: int", tools=[add], native=True)(
            question="2+2?",
            lm=lm,
        ).answer
        == 4
    )


def test_chain_of_thought_uses_an_output_called_reasoning_as_it_is() -> None:
    """The place and the type are the user's."""
    lm = ScriptedLM([fields(answer=4, reasoning=["two", "and two"])])
    program = ChainOfThought("question -> answer: int, reasoning: list[str]")
    assert program.predict.signature == program.signature
    assert dict(program(question="2+2?", lm=lm)) == {"answer": 4, "reasoning": ["two", "and two"]}


def test_chain_of_thought_refuses_an_input_called_reasoning_with_the_reason() -> None:
    """It said that the signature has a field of that name already."""
    with pytest.raises(
        SignatureError,
        match=r"`ChainOfThought` adds an output `reasoning`, and .* has an input of that name",
    ):
        ChainOfThought("reasoning -> answer")


def test_demos_are_shown_as_real_messages() -> None:
    lm = ScriptedLM([fields(answer="c")])
    Predict("question -> answer", demos=[{"question": "a", "answer": "b"}])(question="q", lm=lm)
    assert [message.role for message in lm.requests[0].messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_sync_async_and_stream_give_the_same() -> None:
    program = Predict("question -> answer", tools=[add], native=True)

    def lm() -> ScriptedLM:
        return ScriptedLM([wanted("native", ("add", {"a": 1, "b": 1})), "two"])

    expected = program(question="q", lm=lm())
    assert asyncio.run(program.acall(question="q", lm=lm())) == expected
    assert program.stream(question="q", lm=lm()).prediction == expected


@tool
def shout(text: str, times: int = 1) -> str:
    """Shout."""
    return text.upper() * times


def test_defaults_of_tools_behave_as_in_python() -> None:
    lm = ScriptedLM(
        [wanted("native", ("shout", {"text": "a"}), ("shout", {"text": "b", "times": 2})), "ok"],
    )
    prediction: Prediction = Predict("question -> answer", tools=[shout], native=True)(
        question="q",
        lm=lm,
    )
    assert [result.content for result in prediction.trajectory.steps[0].results] == ["A", "BB"]


@pytest.mark.parametrize("made_by", [Predict, ChainOfThought])
def test_no_demos_may_be_said_by_none(made_by: Any) -> None:
    """It was a bare TypeError."""
    program = made_by("q -> answer", demos=None)
    assert program.predictors()[0].demos == []
    lm = ScriptedLM([fields(reasoning="r", answer="a")] * 2)
    assert program(q="x", lm=lm, demos=None, config=None).answer == "a"
    shown = made_by("q -> answer", demos=[{"q": "shown", "answer": "b"}])
    assert shown(q="x", lm=lm, demos=None).answer == "a"
    assert "shown" not in str(lm.requests[1].messages)


@pytest.mark.parametrize(
    "wrong",
    ["demo", b"demo", 3, {"q": "a", "answer": "b"}, Prediction(q="a"), dict],
    ids=repr,
)
@pytest.mark.parametrize("made_by", [Predict, ChainOfThought])
def test_what_is_no_list_of_demos_is_refused_with_what_was_found(made_by: Any, wrong: Any) -> None:
    """One demo alone was taken for a list of its names."""
    lm = ScriptedLM([])
    with pytest.raises(
        ConfigurationError,
        match=r"^`demos` takes a list of mappings of fields, found",
    ) as refused:
        made_by("q -> answer", demos=wrong)
    with pytest.raises(InputError, match=r"^`demos` takes a list of mappings of fields, found"):
        made_by("q -> answer")(q="x", lm=lm, demos=wrong)
    assert repr(wrong) in str(refused.value)
    assert lm.requests == []


def test_demos_of_a_call_may_come_from_a_generator() -> None:
    """They are shown again when the answer is asked for once more."""
    lm = ScriptedLM(["?", "?", '{"answer": "a"}'])
    assert (
        Predict("q -> answer")(
            q="x",
            lm=lm,
            demos=(each for each in [{"q": "shown", "answer": "b"}]),
        ).answer
        == "a"
    )
    assert all("shown" in str(request.messages) for request in lm.requests)


@pytest.mark.parametrize("wrong", [3, 0, "", "temperature", [("temperature", 0)]], ids=repr)
@pytest.mark.parametrize(
    "made_by",
    [Predict, ChainOfThought, lambda signature: ReAct(signature, [add])],
    ids=["predict", "cot", "react"],
)
def test_a_config_that_is_no_mapping_is_refused_with_what_was_found(
    made_by: Any,
    wrong: Any,
) -> None:
    """It was a bare TypeError, and what is empty was passed over."""
    lm = ScriptedLM([])
    with pytest.raises(
        InputError,
        match=r"^`config` takes a mapping of settings by name",
    ) as refused:
        made_by("q -> answer")(q="x", lm=lm, config=wrong)
    assert str(refused.value).endswith(f"found {wrong!r}.")
    assert lm.requests == []


def test_limits_of_a_call_say_where_they_are_set_for_a_program_that_does_not_take_them() -> None:
    with pytest.raises(InputError, match=r"`limits` is unknown .*`context\(limits=\.\.\.\)`"):
        Predict("q -> a", lm=ScriptedLM([]))(q="x", limits=Limits(tokens=5))


def test_a_key_in_the_settings_of_a_call_is_refused_before_anything_is_sent() -> None:
    """The model is made with it; the server would read it in the body."""
    with serve(ScriptedLM([])) as server:
        with pytest.raises(ConfigurationError, match="`api_key` is not a setting of a request"):
            Predict("q -> a", lm=server.lm())(q="hi", config={"api_key": "sk-2"})
        with pytest.raises(ConfigurationError, match="`api_key` is not a setting of a request"):
            server.lm()("hi", api_key="sk-2")
        assert server.requests == []


def test_a_call_written_wrong_in_text_is_told_as_its_result_and_no_answer_is_asked_for_twice() -> (
    None
):
    """Only the call with the fault is refused; an answer beside calls that cannot be read is taken."""
    program = Predict("question -> answer", tools=[add], native=False)
    done = fields(answer="x")
    for calls, told in (
        (
            {"tool_calls": [{"name": "add", "args": "nonsense"}]},
            "the arguments of `add` are not valid JSON",
        ),
        (
            {"tool_calls": [{"name": "add", "args": {"a": 1, "b": 1}}, {"name": 5}]},
            "A tool call needs a name",
        ),
        ("rubbish", "Your answer could not be read"),
    ):
        lm = ScriptedLM([fields(tool_calls=calls), done])
        assert program(question="q", lm=lm).answer == "x"
        assert told in lm.requests[1].messages[-1].text
    lm = ScriptedLM([fields(tool_calls="rubbish", answer="x")])
    assert program(question="q", lm=lm).answer == "x"


def test_the_description_of_the_reasoning_is_the_callers() -> None:
    program = ChainOfThought("question -> answer", reasoning_description="Doubts first.")
    assert program.predict.signature.output_fields["reasoning"].description == "Doubts first."
    assert "Doubts first." in str(program.predict.signature.output_fields["reasoning"])


@pytest.mark.parametrize("text", ['{"answer": "milk"}', '```json\n{"answer": "milk"}\n```'])
def test_an_answer_in_json_is_read_without_another_request(text: str) -> None:
    lm = ScriptedLM([Response(text)])
    with context(lm=lm):
        assert Predict("question -> answer")(question="q").answer == "milk"
    assert len(lm.requests) == 1


def test_an_answer_in_json_that_does_not_fit_is_mended() -> None:
    lm = ScriptedLM([Response('{"other": 1}'), Response("[[ ## answer ## ]]\nmilk")])
    with context(lm=lm):
        assert Predict("question -> answer")(question="q").answer == "milk"
    assert len(lm.requests) == 2
