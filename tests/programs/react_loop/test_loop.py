"""How a run of an agent ends: `finish` is checked like any tool, and validators have their say."""

from __future__ import annotations

import inspect
import logging
import pickle
import re
from typing import Any

import pytest
from agent_script import STEPS, fields, native_step, text_step
from msgspec.structs import replace
from pydantic import field_validator, model_validator

from ferrule import (
    LM,
    AdapterParseError,
    ChainOfThought,
    ChatAdapter,
    History,
    Image,
    InputField,
    JSONAdapter,
    Limits,
    MemoryStore,
    Message,
    Messages,
    OutputField,
    Predict,
    ReAct,
    Request,
    Response,
    Run,
    Signature,
    Skills,
    Text,
    Tool,
    Toolbox,
    ToolCall,
    ToolRetry,
    XMLAdapter,
    context,
)
from ferrule.errors import ConfigurationError, FerruleError, ToolDefinitionError, TooManyFaultsError
from ferrule.testing import ScriptedLM
from ferrule.tools.definition.options import DecoratorOptions


@pytest.fixture(params=["text", "native"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def agent(
    signature: Any = "question -> answer: int",
    mode: str = "native",
    **keywords: Any,
) -> ReAct:
    return ReAct(signature, [add], native=mode == "native", **keywords)


# -- finish


def test_outputs_that_do_not_fit_go_back_to_the_model_which_still_has_its_tools():
    lm = ScriptedLM(
        [
            native_step("", "finish", {"answer": "five"}),
            native_step("", "add", {"a": 2, "b": 3}),
            native_step("", "finish", {"answer": 5}),
        ],
    )
    prediction = agent()(question="2+3?", lm=lm)
    assert prediction.answer == 5
    refused = lm.requests[1].messages[-1]
    assert refused.name == "finish"
    assert "- answer: should be a valid integer" in refused.text
    assert [tool["function"]["name"] for tool in lm.requests[1].tools] == [
        "add",
        "finish",
    ]
    assert [result.is_fault for result in prediction.trajectory.steps[0].results] == [True]


def test_every_missing_and_ill_typed_output_is_named_at_once():
    lm = ScriptedLM(
        [
            native_step("", "finish", {"a": "x", "c": 3}),
            native_step("", "finish", {"a": 1, "b": "b", "c": "c"}),
        ],
    )
    assert dict(agent("q -> a: int, b, c")(q="?", lm=lm)) == {"a": 1, "b": "b", "c": "c"}
    said = lm.requests[1].messages[-1].text
    assert "- a: " in said
    assert "- b: is missing" in said
    assert "- c" not in said  # a number is a text, too


def test_an_optional_output_may_be_left_out():
    class Asked(Signature):
        q: str = InputField()
        a: int = OutputField()
        note: str | None = OutputField()
        tags: list[str] = OutputField(default_factory=list)

    lm = ScriptedLM([native_step("", "finish", {"a": 1})] * 2)
    program = agent(Asked)
    first, second = program(q="?", lm=lm), program(q="?", lm=lm)
    assert dict(first) == {"a": 1, "note": None, "tags": []}
    assert first.tags is not second.tags


def test_calls_of_the_same_turn_run_before_outputs_are_refused():
    bad = Response(
        tool_calls=(
            ToolCall(name="finish", args={"answer": "x"}, id="1"),
            ToolCall(name="add", args={"a": 1, "b": 2}, id="2"),
        ),
    )
    lm = ScriptedLM([bad, native_step("", "finish", {"answer": 3})])
    assert agent()(question="?", lm=lm).answer == 3
    assert [message.text.splitlines()[0] for message in lm.requests[1].messages[-2:]] == [
        "3",
        "Call to `finish` was not run. Fix and call again:",
    ]


def test_outputs_that_are_refused_too_often_are_extracted_and_the_prediction_says_why():
    lm = ScriptedLM(
        [*[native_step("", "finish", {"answer": "x"})] * 3, fields(reasoning="r", answer=7)],
    )
    prediction = agent(limits=Limits(same_error=3))(question="?", lm=lm)
    assert (prediction.answer, prediction.reason) == (7, "same_error")


def test_all_limits_of_the_settings_hold_for_an_agent_beside_its_own(mode):
    """docs/how-to/agents/limits.md: on an agent, for one call, or for every run in a block.

    What is nearer counts.
    """

    def faults(*, around: Limits | None = None, own: Limits | None = None, **given: Any) -> int:
        step = native_step("", "nope") if mode == "native" else text_step("", "nope", {})
        with (
            context(lm=ScriptedLM(by=lambda _: step), limits=around),
            pytest.raises(TooManyFaultsError) as caught,
        ):
            ReAct("question -> answer", [], native=mode == "native", limits=own)(
                question="?",
                **given,
            )
        return len(caught.value.faults)

    two, three = Limits(same_error=2), Limits(same_error=3)
    nine = Limits(steps=9)
    assert [
        faults(),
        faults(around=two),
        faults(around=two, own=nine),
        faults(around=two, limits=nine),
    ] == [5, 2, 2, 2]
    assert [faults(around=two, own=three), faults(around=two, own=two, limits=three)] == [3, 3]

    def look() -> str:
        """Look."""
        return "la" * 500

    last = (
        {"name": "finish", "args": {"answer": "A"}}
        if mode == "native"
        else text_step("", "finish", {})
    )
    look_step = native_step("", "look") if mode == "native" else text_step("", "look", {})
    lm = ScriptedLM(
        [look_step, last, *([] if mode == "native" else [fields(reasoning="r", answer="A")])],
    )
    with context(lm=lm, limits=Limits(observation_chars=100)):
        ReAct("question -> answer", [look], native=mode == "native")(question="?")
    assert len(lm.requests[1].messages[-1].text) < 600


def test_a_run_with_too_many_faults_goes_on_when_the_settings_allow_more():
    store, asked = MemoryStore(), []

    def answer(_: Any) -> Response:
        asked.append(1)
        return (
            native_step("", "nope")
            if len(asked) < 4
            else native_step("", "finish", {"answer": "A"})
        )

    program = ReAct("question -> answer", [], native=True, lm=ScriptedLM(by=answer))
    with context(limits=Limits(same_error=2)):
        run = program.start(question="?", store=store, run_id="r")
    assert (type(run.error), len(asked)) == (TooManyFaultsError, 2)
    with context(limits=Limits(same_error=9)):
        assert Run.load(store, "r", program).resume().prediction.answer == "A"
    assert len(asked) == 4


def test_arguments_of_finish_that_are_no_json_go_back_too():
    cut = Response(
        tool_calls=(ToolCall.read({"name": "finish", "arguments": '{"answer": "half a'}),),
    )
    lm = ScriptedLM([cut, native_step("", "finish", {"answer": 1})])
    assert agent()(question="?", lm=lm).answer == 1
    assert "was not run" in lm.requests[1].messages[-1].text


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(Response("The answer is fort"), id="text"),
        pytest.param(Response("[[ ## answer ## ]]\n4"), id="field"),
        pytest.param(Response(""), id="nothing"),
        pytest.param(
            Response(tool_calls=(ToolCall.read({"name": "add", "arguments": '{"a": 1'}),)),
            id="call",
        ),
    ],
)
@pytest.mark.parametrize("signature", ["question -> answer", "question -> answer: int"])
def test_a_model_whose_answer_was_cut_hears_why_and_answers_again(cut: Response, signature: str):
    """Half a sentence, or 4 in place of 42, is no answer."""
    cut = replace(cut, finish_reason="length")
    lm = ScriptedLM(
        [cut, native_step("", "finish", {"answer": 42 if "int" in signature else "forty-two"})],
    )
    assert str(agent(signature)(question="?", lm=lm).answer) in {"42", "forty-two"}
    assert "cut off at its maximum length" in lm.requests[1].messages[-1].text


# -- validators


class Priced(Signature):
    """Name a price."""

    budget: int = InputField()
    price: int = OutputField()
    word: str = OutputField()

    @field_validator("word")
    @classmethod
    def _short(cls, word: str) -> str:
        if len(word) > 5:
            raise ValueError("has more than five letters")
        return word.upper()

    @model_validator(mode="after")
    def _affordable(self) -> Priced:
        if self.price > self.budget:
            raise ValueError(f"the price is above the budget of {self.budget}")
        return self


def test_validators_of_the_signature_speak_to_the_model_and_may_change_a_value():
    lm = ScriptedLM(
        [
            native_step("", "finish", {"price": 1, "word": "enormous"}),
            native_step("", "finish", {"price": 30, "word": "cheap"}),
            native_step("", "finish", {"price": 3, "word": "cheap"}),
        ],
    )
    assert dict(agent(Priced)(budget=10, lm=lm)) == {"price": 3, "word": "CHEAP"}
    assert "- word: has more than five letters" in lm.requests[1].messages[-1].text
    assert "- the price is above the budget of 10" in lm.requests[2].messages[-1].text


@pytest.mark.parametrize(
    "program",
    [Predict(Priced), ChainOfThought(Priced), Predict(Priced, tools=[add], native=True)],
    ids=["Predict", "ChainOfThought", "Predict with tools"],
)
def test_validators_hold_for_every_program(program: Any):
    lm = ScriptedLM(
        [fields(reasoning="", price=30, word="cheap"), fields(reasoning="", price=3, word="cheap")],
    )
    prediction = program(budget=10, lm=lm)
    assert (prediction.price, prediction.word) == (3, "CHEAP")
    assert "the price is above the budget of 10" in lm.requests[1].messages[-1].text


def test_validators_hold_for_what_is_extracted(mode: str):
    lm = ScriptedLM(
        [
            STEPS[mode]("", "finish", {}),
            fields(reasoning="", price=30, word="cheap"),
            fields(reasoning="", price=3, word="cheap"),
        ],
    )
    assert agent(Priced, mode)(budget=10, lm=lm).price == 3


def test_a_plain_answer_that_a_validator_refuses_does_not_end_the_loop():
    lm = ScriptedLM(
        [
            Response(fields(price=30, word="cheap")),
            native_step("", "finish", {"price": 3, "word": "cheap"}),
        ],
    )
    assert agent(Priced)(budget=10, lm=lm).price == 3
    assert "- the price is above the budget of 10" in lm.requests[1].messages[-1].text


def test_validators_survive_changes_of_the_signature_and_pickling():

    changed = Priced.with_instructions("Other words.").append("note", OutputField(), str)
    again = pickle.loads(pickle.dumps(changed))
    for signature in (changed, again):
        with pytest.raises(ValueError, match="above the budget"):
            signature.validate_outputs({"budget": 1}, {"price": 2, "word": "a", "note": ""})


def test_a_function_of_the_outputs_may_ask_for_another_answer(mode: str):
    program = agent("question -> answer: int", mode)
    seen: list[tuple[str, int]] = []

    @program.output_validator
    def even(outputs: Any) -> None:
        seen.append((outputs.question, outputs.answer))
        if outputs.answer % 2:
            raise ToolRetry("The answer must be even.")

    lm = ScriptedLM(
        [STEPS[mode]("", "finish", {"answer": 3}), STEPS[mode]("", "finish", {"answer": 4})],
    )
    assert program(question="?", lm=lm).answer == 4
    assert set(seen) == {("?", 3), ("?", 4)}
    assert "The answer must be even." in lm.requests[-1].messages[-1].text


def test_predict_takes_such_a_function_too_and_gives_up_like_for_any_answer_it_cannot_use():
    program = Predict("question -> answer: int")

    @program.output_validator
    def never(outputs: Any) -> None:
        raise ToolRetry(f"{outputs.answer} will not do.")

    with pytest.raises(AdapterParseError, match="7 will not do"):
        program(question="?", lm=ScriptedLM([fields(answer=7)] * 2 + ['{"answer": 7}']))


def test_another_error_of_such_a_function_is_raised():
    program = agent()
    program.output_validator(lambda outputs: outputs.missing)
    with pytest.raises(AttributeError):
        program(question="?", lm=ScriptedLM([native_step("", "finish", {"answer": 1})]))


@pytest.mark.parametrize(
    "check",
    [lambda outputs: outputs, lambda _: None],
    ids=["outputs", "none"],
)
def test_such_a_function_may_return_what_it_was_given(check: Any):
    program = agent()
    program.output_validator(check)
    assert (
        program(question="?", lm=ScriptedLM([native_step("", "finish", {"answer": 1})])).answer == 1
    )


def test_such_a_function_cannot_change_outputs():
    """The change would be lost."""
    program = agent()
    program.output_validator(lambda outputs: {"answer": outputs.answer + 1})
    with pytest.raises(ConfigurationError, match="only checks"):
        program(question="?", lm=ScriptedLM([native_step("", "finish", {"answer": 1})]))
    program = agent()
    program.output_validator(lambda outputs: setattr(outputs, "answer", 2))
    with pytest.raises(ConfigurationError, match="only checks"):
        program(question="?", lm=ScriptedLM([native_step("", "finish", {"answer": 1})]))


@pytest.mark.parametrize(
    "wrong",
    [lambda ctx, output: None, lambda: None, lambda output, *, strict: None],
    ids=["two", "none", "keyword"],
)
def test_a_function_of_other_arguments_is_refused_as_an_output_validator(wrong: Any):
    """pydantic-ai's takes a context first; it was a bare TypeError in the middle of a run."""
    with pytest.raises(ConfigurationError, match="takes one argument"):
        agent().output_validator(wrong)


def test_an_output_validator_may_be_any_callable_of_one_argument():
    class Check:
        def check(self, output: Any, strict: bool = True) -> None:
            del output, strict

    for right in (Check().check, lambda *outputs: None, bool, repr):
        assert agent().output_validator(right) is right


# -- the model, and errors of the programmer


def test_the_model_of_a_call_is_the_model_of_agents_that_are_its_tools(mode: str):
    inner = Predict("topic -> fact").as_tool("look_up", "Look a topic up.")
    lm = ScriptedLM(
        [
            STEPS[mode]("", "look_up", {"topic": "x"}),
            fields(fact="a fact"),
            STEPS[mode]("", "finish", {"answer": "a fact"} if mode == "native" else {}),
            *([] if mode == "native" else [fields(reasoning="", answer="a fact")]),
        ],
    )
    assert ReAct("q -> answer", [inner], native=mode == "native")(q="?", lm=lm).answer == "a fact"


def test_an_agent_that_has_a_model_of_its_own_keeps_it():
    own = ScriptedLM([fields(fact="own")])
    inner = Predict("topic -> fact", lm=own).as_tool("look_up", "Look a topic up.")
    lm = ScriptedLM(
        [native_step("", "look_up", {"topic": "x"}), native_step("", "finish", {"answer": "a"})],
    )
    assert ReAct("q -> answer", [inner], native=True)(q="?", lm=lm).answer == "a"
    assert len(own.requests) == 1


def test_a_configuration_error_in_an_agent_that_is_a_tool_ends_the_run():
    inner = Predict("topic -> fact").as_tool("look_up", "Look a topic up.")
    lm = ScriptedLM([native_step("", "look_up", {"topic": "x"})])
    with context(lm=None), pytest.raises(ConfigurationError, match="No language model"):
        ReAct("q -> answer", [inner], native=True, lm=lm)(q="?")


def test_an_agent_takes_a_model_demos_and_settings_as_predict_does():
    lm = ScriptedLM([native_step("", "finish", {}), fields(reasoning="", answer=1)])
    program = agent(lm=lm, temperature=0.5, demos=[{"question": "an example", "answer": 2}])
    assert program(question="?").answer == 1
    assert [request.settings for request in lm.requests] == [{"temperature": 0.5}] * 2
    assert any("an example" in message.text for message in lm.requests[0].messages)


# -- calls in other forms than the prompt asks for

WRITTEN = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>',
    "llama": '<|python_tag|>{"name": "add", "parameters": {"a": 2, "b": 3}}',
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {"a": 2, "b": 3}}]',
    "pythonic": "[add(a=2, b=3)]",
    "react": 'Thought: I add.\nAction: add\nAction Input: {"a": 2, "b": 3}',
    "qwen coder": "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\n3\n</parameter>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
def test_a_call_in_the_models_own_form_is_a_call(mode: str, written: str):
    lm = ScriptedLM([Response(written), STEPS[mode]("", "finish", {"answer": 5})])
    prediction = agent(mode=mode)(question="2+3?", lm=lm)
    assert prediction.answer == 5
    assert [call.name for call in prediction.trajectory.steps[0].calls] == ["add"]
    assert prediction.trajectory["observation_0"] == "5"
    assert len(lm.requests) == 2


def test_natively_such_a_call_is_sent_back_as_a_call_with_its_result():
    lm = ScriptedLM(
        [Response("I add.\n" + WRITTEN["hermes"]), native_step("", "finish", {"answer": 5})],
    )
    agent()(question="2+3?", lm=lm)
    said, result = lm.requests[1].messages[-2:]
    assert (said.text, [call.name for call in said.tool_calls]) == ("I add.", ["add"])
    assert result.tool_call_id == said.tool_calls[0].id


def test_finish_in_the_models_own_form_ends_the_loop():
    lm = ScriptedLM(
        [Response('<tool_call>{"name": "finish", "arguments": {"answer": 5}}</tool_call>')],
    )
    assert agent()(question="2+3?", lm=lm).answer == 5


def test_native_calls_that_nobody_asked_for_are_run_in_text_mode():
    lm = ScriptedLM(
        [native_step("", "add", {"a": 2, "b": 3}), text_step("", "finish", {"answer": 5})],
    )
    prediction = agent(mode="text")(question="2+3?", lm=lm)
    assert prediction.trajectory["observation_0"] == "5"


def test_a_call_that_is_only_quoted_stays_text():
    quoted = 'The manual says:\n\n> <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>\n\nThat is all.'
    prediction = ReAct("question -> answer", [add], native=True)(
        question="?",
        lm=ScriptedLM([Response(quoted)]),
    )
    assert prediction.answer == quoted
    assert not prediction.trajectory.steps


def test_predict_reads_such_calls_too():
    lm = ScriptedLM([Response(WRITTEN["hermes"]), Response(fields(answer=5))])
    prediction = Predict("question -> answer: int", tools=[add], native=True)(
        question="2+3?",
        lm=lm,
    )
    assert prediction.answer == 5
    assert prediction.trajectory["observation_0"] == "5"
    assert lm.requests[1].messages[-2].tool_calls[0].name == "add"


def test_that_a_model_writes_calls_as_text_is_logged_once_for_each_model(
    caplog: pytest.LogCaptureFixture,
):
    with caplog.at_level(logging.WARNING, "ferrule.programs"):
        for _ in range(2):
            lm = ScriptedLM([Response(WRITTEN["hermes"]), native_step("", "finish", {"answer": 5})])
            lm.name = "scripted/writes-text"
            agent()(question="2+3?", lm=lm)
    assert sum("wrote its calls as text" in record.getMessage() for record in caplog.records) == 1


# -- what the extractor sees, and what a step keeps

PIXEL = Image.from_bytes(b"\x89PNG\r\n\x1a\n", "image/png")


def snap(name: str) -> dict[str, Any]:
    """Take a picture."""
    return {"caption": name, "image": PIXEL}


@pytest.mark.parametrize(
    "adapter",
    [ChatAdapter(), JSONAdapter(), XMLAdapter()],
    ids=["chat", "json", "xml"],
)
def test_pictures_of_the_trajectory_reach_the_extractor_as_pictures(adapter: Any):
    lm = ScriptedLM(
        [
            native_step("", "snap", {"name": "a cat"}),
            native_step("", "snap", {"name": "a dog"}),
            native_step("", "finish", {}),
            lambda request: request.form.write({"reasoning": "", "answer": "two"}),
        ],
    )
    with context(adapter=adapter):
        assert ReAct("q -> answer", [snap], native=True)(q="?", lm=lm).answer == "two"
    asked = [
        part
        for message in lm.requests[-1].messages
        if message.role == "user"
        for part in message.content
        if not isinstance(part, str)
    ]
    assert [part for part in asked if isinstance(part, Image)] == [PIXEL, PIXEL]
    text = "".join(part.text for part in asked if isinstance(part, Text))
    assert text.index("a cat") < text.index("a dog")
    assert "q" in text


def test_an_observation_keeps_the_tools_own_value():
    lm = ScriptedLM([native_step("", "pair", {}), native_step("", "finish", {"answer": "a"})])

    def pair() -> tuple[int, set[int]]:
        """Return two values."""
        return 1, {2}

    trajectory = ReAct("q -> answer", [pair], native=True)(q="?", lm=lm).trajectory
    assert trajectory["observation_0"] == "[1, [2]]" or trajectory["observation_0"] == "[1,[2]]"
    assert trajectory["observation_0"].value == (1, {2})
    assert pickle.loads(pickle.dumps(trajectory["observation_0"])).value == (1, {2})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Predict("q -> a", max_turn=3), "Did you mean `max_turns`?"),
        (lambda: agent(max_iter=3), "Did you mean `max_iters`?"),
        (lambda: Predict("q -> a", max_iters=3), "no such option: `max_turns` bounds"),
        (lambda: Predict("q -> a", parallel=False), "this program has no such option"),
        (
            lambda: Predict("q -> a", limits=Limits(steps=3)),
            "no such option: set it with `context(limits=...)`",
        ),
        (
            lambda: Predict("q -> a", policy=None),
            "no such option: set it with `context(policy=...)`",
        ),
        (lambda: ReAct("q -> a", [], require_confirmation=True), "this program has no such option"),
        (lambda: ReAct("q -> a", [], limits={"steps": 3}), "`limits` takes `Limits(...)`"),  # type: ignore[arg-type]
        (
            lambda: ReAct("q -> a", [])(q="?", limits={"steps": 3}, lm=ScriptedLM([])),
            "`limits` takes `Limits(...)`",
        ),
        (lambda: Predict("q -> a", temprature=0), "Did you mean `temperature`?"),
        (lambda: LM("openai/x", max_token=3), "Did you mean `max_tokens`?"),
        (lambda: LM("openai/x", model_type="chat"), "wire="),
        (lambda: Predict("q -> a", model_type="chat"), "wire="),
        (lambda: Predict("q -> a", cache=False), "caches no answers"),
        (lambda: Predict("q -> a", adapter=JSONAdapter()), "with `context(...)`"),
        (lambda: agent(deps=1), "program.start(...)"),
        (lambda: agent(max_turns=3), "`max_iters` limits its steps"),
        (lambda: agent(auto_execute_tools=False), "`ReAct` has no option `auto_execute_tools`"),
        (lambda: agent(recursion_limit=3), "max_iters="),
        (lambda: Predict("q -> a", output_type=int), "fields of the signature"),
        (lambda: agent(handoffs=[]), "agent.as_tool("),
        (lambda: agent(managed_agents=[]), "agent.as_tool("),
        (lambda: agent(input_guardrails=[]), "`@program.output_validator` checks outputs"),
        (lambda: agent(tool_use_behavior="stop_on_first_tool"), "stop_at_tools="),
        (lambda: agent(model="openai/gpt-5"), "pass that: `lm=LM(..., model=...)`"),
        (lambda: agent(toolsets=[]), "in the list of tools"),
        (lambda: agent(mcp_servers=[]), "in the list of tools"),
        (lambda: agent(usage_limits=None), "`context(limits=...)`"),
        (lambda: agent(model_settings={"temperature": 0}), "`temperature=0`"),
        (lambda: agent(message_history=[]), "an input of the type `History`"),
        (lambda: agent(hooks=None), "configure(callbacks=[...])"),
        (lambda: agent(middleware=[]), "a model around a model"),
        (lambda: agent(backstory="A clerk."), "its docstring"),
        (lambda: agent(result_type=int), "fields of the signature"),
        (lambda: agent(context_schema=int), "`ctx: Context[Deps]`"),
        (lambda: agent(description="A desk."), "program.as_tool(description=...)"),
        (lambda: agent(thread_id="7"), "program.start(run_id=...)"),
        (lambda: agent(store=MemoryStore()), "program.start(store=...)"),
    ],
    ids=[
        "max_turn",
        "max_iter",
        "max_iters",
        "parallel of Predict",
        "limits of Predict",
        "policy of Predict",
        "require_confirmation",
        "limits as a dict",
        "limits of a call as a dict",
        "temprature",
        "max_token",
        "model_type of a model",
        "model_type of a program",
        "cache",
        "adapter",
        "deps",
        "max_turns of an agent",
        "auto_execute_tools of an agent",
        "recursion_limit",
        "output_type",
        "handoffs",
        "managed_agents",
        "input_guardrails",
        "tool_use_behavior",
        "model",
        "toolsets",
        "mcp_servers",
        "usage_limits",
        "model_settings",
        "message_history",
        "hooks",
        "middleware",
        "backstory",
        "result_type",
        "context_schema",
        "description",
        "thread_id",
        "store",
    ],
)
def test_a_keyword_that_looks_like_an_option_is_refused_with_the_nearest_name(make: Any, said: str):
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        make()


OPTIONS = {
    *DecoratorOptions.__annotations__,
    *inspect.signature(Toolbox.__init__).parameters,
    *inspect.signature(Limits).parameters,
}


@pytest.mark.parametrize("option", sorted(OPTIONS - {"self", "tools"}))
def test_an_option_of_something_else_is_not_sent_to_the_model(option: str) -> None:
    """`ReAct(..., concurrent=False)` was sent as a setting, and the calls ran at once."""
    with pytest.raises(ConfigurationError, match=f"`{option}`"):
        ReAct("q -> a", [], **{option: 1})


@pytest.mark.parametrize(
    "settings", [{"check": print}, {"metadata": {"of": object()}}, {"extra": 5}], ids=min
)
def test_a_setting_that_is_no_data_is_refused(settings: Any) -> None:
    """A function was sent as its `repr`, which a lenient server ignores."""
    lm = LM("http://localhost/v1", model="m")
    request = Request(Messages([Message("user", "hi")]), settings=settings)
    for make in (
        lambda: Predict("q -> a", **settings),
        lambda: LM("openai/x", **settings),
        lambda: lm.copy(**settings),
        lambda: lm.complete(request),
    ):
        with pytest.raises(ConfigurationError, match=next(iter(settings))):
            make()


@pytest.mark.parametrize(
    "make",
    [
        lambda value: ReAct("q -> a", [], parallel=value),
        lambda value: ReAct("q -> a", [], intention=value),
        lambda value: ReAct("q -> a", [], enable_user_clarification=value),
        lambda value: ReAct("q -> a", [], native=value),
        lambda value: Predict("q -> a", auto_execute_tools=value),
        lambda value: Tool(add, concurrent=value),
        lambda value: Tool(add, untrusted=value),
        lambda value: Toolbox([], concurrent=value),
        lambda value: Skills("skills", scripts=value),
        lambda value: Predict("q -> a").batch([], retry_failed=value),
        lambda value: Predict("q -> a").batch([], return_exceptions=value),
        lambda value: LM("openai/x", strict_tools=value),
        lambda value: LM("openai/x", send_reasoning=value),
    ],
    ids=range(13),
)
@pytest.mark.parametrize("value", ["false", 0, []], ids=repr)
def test_a_flag_is_true_or_false(make: Any, value: Any) -> None:
    """The text "false", as a file has it, counted as true."""
    with pytest.raises(FerruleError, match="True or False"):
        make(value)


@pytest.mark.parametrize("requirement", ["false", 0, 1, [], ["pay"], {}], ids=repr)
def test_what_does_not_say_when_a_person_is_asked_is_refused(requirement: Any) -> None:
    """An empty list asked nobody."""
    with pytest.raises(ToolDefinitionError, match="require_confirmation"):
        Tool(add, require_confirmation=requirement)


def test_settings_that_only_a_provider_knows_pass():
    program = Predict(
        "q -> a",
        top_k=3,
        chat_template_kwargs={"enable_thinking": False},
        extra={"max_turn": 1},
    )
    assert program.config["top_k"] == 3


# -- stop_at_tools


def quoted(order: str) -> dict[str, Any]:
    """Quote an order."""
    if order == "none":
        raise ToolRetry("There is no such order.")
    return {"euros": 30, "why": f"{order} costs that"}


def test_the_result_of_such_a_tool_is_the_output_and_the_model_is_not_asked_again(mode: str):
    lm = ScriptedLM([STEPS[mode]("", "add", {"a": 2, "b": 3})])
    with lm:
        prediction = agent(mode=mode, stop_at_tools=[add])(question="?", lm=lm)
    assert prediction.answer == 5
    assert prediction.reason is None
    assert [call.name for step in prediction.trajectory.steps for call in step.calls] == ["add"]


def test_several_outputs_are_read_from_a_dict_and_a_failed_call_ends_nothing(mode: str):
    program = ReAct(
        "question -> euros: float, why",
        [quoted],
        native=mode == "native",
        stop_at_tools=["quoted"],
    )
    lm = ScriptedLM(
        [STEPS[mode]("", "quoted", {"order": "none"}), STEPS[mode]("", "quoted", {"order": "A1"})],
    )
    assert program(question="?", lm=lm).toDict() == {"euros": 30.0, "why": "A1 costs that"}


@pytest.mark.parametrize("signature", ["question -> answer: bool", "question -> answer: int, why"])
def test_outputs_that_the_result_does_not_give_are_extracted(signature: str, mode: str):
    given = {"answer": True} if "why" not in signature else {"answer": 1, "why": "?"}
    lm = ScriptedLM(
        [STEPS[mode]("", "add", {"a": 2, "b": 3}), {"outputs": {"reasoning": "r", **given}}],
    )
    assert agent(signature, mode, stop_at_tools=[add])(question="?", lm=lm).toDict() == given


def test_a_result_that_a_validator_refuses_is_not_the_output(mode: str):
    program = agent(mode=mode, stop_at_tools=[add])

    @program.output_validator
    def even(outputs: Any) -> None:
        if outputs.answer % 2:
            raise ToolRetry("even")

    lm = ScriptedLM(
        [STEPS[mode]("", "add", {"a": 2, "b": 3}), {"outputs": {"reasoning": "r", "answer": 6}}],
    )
    assert program(question="?", lm=lm).answer == 6


def test_the_conversation_has_the_call_its_result_and_the_answer():
    made = agent("question, history: History -> answer: int", stop_at_tools=[add])
    prediction = made(
        question="?",
        history=History(),
        lm=ScriptedLM([native_step("", "add", {"a": 2, "b": 3})]),
    )
    assert [message.role for message in prediction.history.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    lm = ScriptedLM([native_step("", "finish", {"answer": 7})])
    assert made(question="And?", history=prediction.history, lm=lm).answer == 7


def test_a_waiting_call_ends_the_run_once_it_is_approved_under_its_own_name(mode: str):
    careful = Tool(add, "math.add", require_confirmation=True)
    name = "math_dot_add" if mode == "native" else "math.add"
    lm = ScriptedLM([STEPS[mode]("", name, {"a": 2, "b": 3})])
    program = ReAct(
        "question -> answer: int",
        [careful],
        native=mode == "native",
        stop_at_tools=[careful],
        lm=lm,
    )
    store = MemoryStore()
    run = program.start(question="?", store=store, run_id="r")
    assert run.status == "waiting"
    run.answer(run.pending[0].approve())
    assert run.resume().prediction.answer == 5
    assert Run.load(store, "r", program).prediction.answer == 5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("add", "takes a list of tools"),
        (["sub"], "names 'sub'"),
        (["finish"], "names 'finish'"),
        (5, "takes a list"),
    ],
)
def test_stop_at_tools_names_tools_of_the_agent(wrong: Any, said: str):
    with pytest.raises(ConfigurationError, match=said):
        agent(stop_at_tools=wrong)


def test_a_result_with_edited_arguments_is_the_output_without_the_note_for_the_model(mode: str):
    careful = Tool(add, require_confirmation=True)
    program = ReAct(
        "question -> answer: int",
        [careful],
        native=mode == "native",
        stop_at_tools=[careful],
    )
    run = program.start(question="?", lm=ScriptedLM([STEPS[mode]("", "add", {"a": 2, "b": 3})]))
    run.answer(run.pending[0].approve(a=30))
    assert run.resume().prediction.answer == 33


def test_a_reply_and_a_denial_end_nothing(mode: str):
    careful = Tool(add, require_confirmation=True)
    for decide in (lambda question: question.reply("7"), lambda question: question.deny("no")):
        program = ReAct(
            "question -> answer: int",
            [careful],
            native=mode == "native",
            stop_at_tools=[careful],
        )
        run = program.start(
            question="?",
            lm=ScriptedLM(
                [
                    STEPS[mode]("", "add", {"a": 2, "b": 3}),
                    STEPS[mode]("", "finish", {"answer": 9}),
                ],
            ),
        )
        run.answer(decide(run.pending[0]))
        assert len(run.resume().trajectory.steps) == 2


@pytest.mark.parametrize(
    "guess",
    [{"answer": 99}, {"answer": "?"}, {}],
    ids=["fits", "misfit", "none"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_finish_in_the_same_turn_does_not_replace_the_result(
    guess: dict[str, Any],
    *,
    is_first: bool,
):
    calls = (
        ToolCall(name="add", args={"a": 2, "b": 3}, id="1"),
        ToolCall(name="finish", args=guess, id="2"),
    )
    prediction = agent(stop_at_tools=[add])(
        question="?",
        lm=ScriptedLM([Response(None, calls[::-1] if is_first else calls)]),
    )
    assert prediction.answer == 5
    assert [call.name for call in prediction.trajectory.steps[0].calls] == ["add", "finish"]


def test_optional_outputs_that_the_dict_leaves_out_have_their_defaults(mode: str):
    program = ReAct(
        "question -> euros: float, why, note: str | None",
        [quoted],
        native=mode == "native",
        stop_at_tools=[quoted],
    )
    prediction = program(question="?", lm=ScriptedLM([STEPS[mode]("", "quoted", {"order": "A1"})]))
    assert prediction.toDict() == {"euros": 30.0, "why": "A1 costs that", "note": None}


def test_a_tool_that_an_input_declares_may_end_the_run():
    program = agent("question, more: Tool -> answer: int", stop_at_tools=["quadruple"])

    def quadruple(a: int) -> int:
        """Times four."""
        return 4 * a

    assert (
        program(
            question="?",
            more=Tool(quadruple),
            lm=ScriptedLM([native_step("", "quadruple", {"a": 2})]),
        ).answer
        == 8
    )
