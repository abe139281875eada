"""Which way outputs travel: in the provider's format, or below markers in the text."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from ferrule import (
    LM,
    Capabilities,
    ChainOfThought,
    ChatAdapter,
    History,
    InputField,
    MemoryStore,
    OutputField,
    Predict,
    Run,
    Signature,
    Tool,
    ToolRetry,
    context,
    module_callback,
)
from ferrule.compat import dspy
from ferrule.errors import AdapterParseError, BadRequestError
from ferrule.events import FieldDelta
from ferrule.models.providers import SCHEMA_TARGETS
from ferrule.models.wires.wire import wire
from ferrule.programs.asking import refusals
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.exchange import SchemaTarget

GOLDEN = Path(__file__).parent / "golden"


class Line(BaseModel):
    """One line of an invoice."""

    text: str
    amount: int = 1


class Invoice(BaseModel):
    """What a customer has to pay."""

    number: str
    lines: list[Line]
    state: Literal["open", "paid"] = "open"


class Read(Signature):
    """Read the invoice."""

    text: str = InputField()
    invoice: Invoice = OutputField()
    note: str = OutputField(default="none", desc="Anything odd.")


INVOICE = {"number": "7", "lines": [{"text": "Tea", "amount": 2}], "state": "paid"}
ANSWER = json.dumps({"invoice": INVOICE, "note": "torn"})
IN_TEXT = (
    f"[[ ## invoice ## ]]\n{json.dumps(INVOICE)}\n\n[[ ## note ## ]]\ntorn\n\n[[ ## completed ## ]]"
)


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_warned", set())
    refusals._refusing_formats.clear()


def enforcing(
    answers: list[Any], target: SchemaTarget | None = "openai-strict", *, shows_schema: bool = False
) -> ScriptedLM:
    capabilities = Capabilities(json_schema=True, schema_target=target, shows_schema=shows_schema)
    return ScriptedLM(answers, capabilities=capabilities)


@pytest.mark.parametrize("name", SCHEMA_TARGETS)
def test_typed_outputs_are_asked_for_in_the_format_of_each_wire(name: str) -> None:
    lm = enforcing([ANSWER], SCHEMA_TARGETS[name], shows_schema=True)
    prediction = Predict(Read)(text="Invoice 7", lm=lm)
    assert (prediction.invoice, prediction.note) == (Invoice(**INVOICE), "torn")
    body = json.loads(wire(name).render(lm.requests[0], model="m", settings={}))
    golden = (GOLDEN / f"structured_{name}.json").read_text(encoding="utf-8")
    assert body == json.loads(golden)
    assert "[[ ##" not in json.dumps(body)


@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("openai/gpt-5", "openai-strict"),
        ("anthropic/claude-opus-4-5", "anthropic"),
        ("gemini/gemini-3-pro", "gemini"),
        ("vllm/qwen3", "openai-strict"),
        ("ollama/qwen3", "openai-strict"),
        ("http://localhost:8080/v1", "openai-strict"),
        ("openai/gpt-3.5-turbo", None),
        ("anthropic/claude-3-haiku", None),
        ("groq/llama-3.3", None),
    ],
)
def test_a_model_enforces_the_dialect_of_its_wire(model: str, target: str | None) -> None:
    options = {}
    if "://" in model:
        options = {"model": "m"}
    assert LM(model, api_key="k", **options).capabilities.schema_target == target


def test_the_wire_that_is_chosen_counts() -> None:
    responses = LM("openai/gpt-5", wire="openai_responses", api_key="k")
    compatible = LM("anthropic/claude-opus-4-5", wire="openai_chat", api_key="k")
    assert responses.capabilities.schema_target == "openai-strict"
    assert compatible.capabilities.schema_target is None  # it ignores the format


@pytest.mark.parametrize(
    ("model", "shows"),
    [
        ("openai/gpt-5", True),
        ("azure/gpt-5", True),
        ("anthropic/claude-opus-4-5", True),
        ("gemini/gemini-2.5-flash", True),
        ("fireworks/qwen3", False),
        ("vllm/qwen3", False),
        ("ollama/qwen3", False),
    ],
)
def test_which_models_are_shown_the_schema_by_their_provider(
    model: str, shows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://example.invalid")
    assert LM(model, api_key="k").capabilities.shows_schema is shows


class Related(Signature):
    """Relate them."""

    first: str = InputField()
    second: str = InputField(desc="The other one.")
    history: History | None = InputField(default=None)
    invoice: Invoice = OutputField()


def test_a_prompt_describes_the_outputs_only_where_the_provider_does_not_show_the_schema() -> None:
    answer = json.dumps({"invoice": INVOICE})
    for shows in (True, False):
        lm = enforcing([answer], shows_schema=shows)
        earlier = History(messages=[{"first": "a", "second": "b", "invoice": INVOICE}])
        demo = {"first": "a", "second": "b", "invoice": INVOICE}
        Predict(Related, demos=[demo])(first="c", second="d", history=earlier, lm=lm)
        system, *turns = lm.requests[0].messages
        assert ("lines" in str(system.content)) is not shows
        assert "Relate them." in str(system.content)
        assert "The other one." in str(system.content)
        # Earlier answers have the form that the provider enforces.
        answers = [str(turn.content) for turn in turns if turn.role == "assistant"]
        assert [json.loads(text) for text in answers] == [{"invoice": INVOICE}] * 2


def test_one_input_is_asked_as_it_is_where_the_provider_shows_the_schema() -> None:
    lm = enforcing([ANSWER], shows_schema=True)
    Predict(Read)(text="Invoice 7", lm=lm)
    contents = [message.content for message in lm.requests[0].messages]
    assert contents == ["Read the invoice.", "Invoice 7"]


def test_a_property_that_strict_mode_requires_is_left_out_by_null() -> None:
    written = {"invoice": {**INVOICE, "lines": [{"text": "Tea", "amount": None}]}, "note": None}
    prediction = Predict(Read)(text="Invoice 7", lm=enforcing([json.dumps(written)]))
    assert prediction.invoice.lines == [Line(text="Tea", amount=1)]
    assert prediction.note == "none"


def test_fields_stream_from_the_structured_answer() -> None:
    lm = enforcing([ANSWER])
    stream = Predict(Read).stream(text="Invoice 7", lm=lm)
    pieces: dict[str, str] = {}
    for event in stream:
        if isinstance(event, FieldDelta):
            pieces[event.field] = pieces.get(event.field, "") + event.text
    assert json.loads(pieces["invoice"]) == INVOICE
    assert pieces["note"] == "torn"


class Open(Signature):
    """An output that no strict mode can hold."""

    question: str = InputField()
    counts: dict[str, int] = OutputField()


class Untyped(Signature):
    """An output of any type."""

    question: str = InputField()
    value: Any = OutputField()


@pytest.mark.parametrize(
    ("signature", "outputs", "target"),
    [
        (Open, {"counts": {}}, "openai-strict"),
        (Open, {"counts": {}}, "anthropic"),
        (Open, {"counts": {}}, "gemini"),
        (Untyped, {"value": 1}, "openai-strict"),
        (Untyped, {"value": 1}, "anthropic"),
        ("question -> answer", {"answer": "yes"}, "openai-strict"),
        ("question -> answer", {"answer": "yes"}, "gemini"),
    ],
)
def test_one_text_and_what_strict_mode_cannot_hold_travel_as_text(
    signature: Any, outputs: dict[str, Any], target: SchemaTarget
) -> None:
    lm = enforcing([{"outputs": outputs}], target)
    Predict(signature)(question="?", lm=lm)
    assert lm.requests[0].shape is None


def test_two_texts_are_a_structure() -> None:
    lm = enforcing(['{"reasoning": "so", "answer": "yes"}'])
    assert ChainOfThought("question -> answer")(question="?", lm=lm).answer == "yes"
    assert lm.requests[0].shape is not None


def test_a_chosen_adapter_or_format_is_used() -> None:
    lm = enforcing([IN_TEXT] * 3)
    with context(adapter=ChatAdapter()):
        Predict(Read)(text="Invoice 7", lm=lm)
    Predict(Read, response_format={"type": "json_object"})(text="Invoice 7", lm=lm)
    dspy.Predict(Read)(text="Invoice 7", lm=lm)  # DSPy's prompts
    assert [request.shape for request in lm.requests] == [None, None, None]


def test_a_model_that_enforces_nothing_is_asked_in_text() -> None:
    lm = ScriptedLM([IN_TEXT])
    assert Predict(Read)(text="Invoice 7", lm=lm).note == "torn"
    assert lm.requests[0].shape is None


def test_an_answer_below_markers_is_accepted_as_well() -> None:
    """As of a server that ignores the format."""
    lm = enforcing([IN_TEXT])
    assert Predict(Read)(text="Invoice 7", lm=lm).note == "torn"
    assert len(lm.requests) == 1


REFUSALS = {
    "OpenAI": "Invalid schema for response_format 'answer'",
    "OpenAI, a model": "'response_format' of type 'json_schema' is not supported with this model.",
    "Responses": "Unsupported parameter: 'text.format' is not supported with this model.",
    "Anthropic": "output_config.format: this model does not support structured outputs",
    "Gemini": 'Invalid JSON payload received. Unknown name "responseJsonSchema"',
    "vLLM": "Failed to compile the guided decoding grammar",
    "llama.cpp": "failed to parse grammar",
}


class Refusing(ScriptedLM):
    """Refuses the format of an answer, which its capabilities do not know."""

    def __init__(self, message: str, answers: list[Any]) -> None:
        capabilities = Capabilities(json_schema=True, schema_target="openai-strict")
        super().__init__(answers, capabilities=capabilities)
        self.message = message
        self.refused = 0

    def complete(self, request: Any) -> Any:
        if request.shape is not None:
            self.refused += 1
            raise BadRequestError(self.message, status=400)
        return super().complete(request)


@pytest.mark.parametrize("message", REFUSALS.values(), ids=REFUSALS)
def test_a_model_that_refuses_the_format_is_asked_in_text_once_and_remembered(
    message: str, caplog: pytest.LogCaptureFixture
) -> None:
    lm = Refusing(message, [IN_TEXT] * 2)
    with caplog.at_level(logging.WARNING, "ferrule"):
        for _ in range(2):
            assert Predict(Read)(text="Invoice 7", lm=lm).note == "torn"
    assert lm.refused == 1
    [record] = caplog.records
    assert message in record.getMessage()


def test_any_other_refused_request_is_an_error() -> None:
    lm = Refusing("The model `m` does not exist", [IN_TEXT])
    with pytest.raises(BadRequestError):
        Predict(Read)(text="Invoice 7", lm=lm)


@pytest.mark.parametrize("remembers", [False, True])
def test_a_run_that_fell_back_replays_wherever_it_is_resumed(remembers: bool) -> None:
    lm = Refusing(REFUSALS["OpenAI"], [IN_TEXT])
    with context(lm=lm):
        run = Predict(Read).start(text="Invoice 7")
        if not remembers:
            refusals._refusing_formats.clear()
        run.status = "failed"  # as after a crash: everything is in the journal
        run.resume()
    assert run.prediction.note == "torn"
    assert lm.refused == 1


# -- with tools


def look_up(number: str) -> str:
    """Look an invoice up."""
    return f"Invoice {number}: paid."


CALL = [{"name": "look_up", "args": {"number": "7"}}]


def with_tools(answers: list[Any], target: SchemaTarget = "openai-strict") -> ScriptedLM:
    capabilities = Capabilities(
        json_schema=True, schema_target=target, schema_with_tools=True, shows_schema=True
    )
    return ScriptedLM(answers, capabilities=capabilities)


@pytest.mark.parametrize("name", SCHEMA_TARGETS)
def test_with_tools_the_format_holds_for_the_answer_without_calls(name: str) -> None:
    lm = with_tools([CALL, ANSWER], SCHEMA_TARGETS[name])
    prediction = Predict(Read, tools=[look_up])(text="Invoice 7", lm=lm)
    assert (prediction.invoice, prediction.note) == (Invoice(**INVOICE), "torn")
    body = json.loads(wire(name).render(lm.requests[1], model="m", settings={}))
    golden = (GOLDEN / f"structured_with_tools_{name}.json").read_text(encoding="utf-8")
    assert body == json.loads(golden)
    assert "[[ ##" not in json.dumps(body)


@pytest.mark.parametrize(
    ("model", "together"),
    [
        ("openai/gpt-5", True),
        ("anthropic/claude-opus-4-5", True),
        ("gemini/gemini-3-pro", True),
        ("gemini/gemini-2.5-flash", False),
        ("vllm/qwen3", False),
        ("ollama/qwen3", False),
    ],
)
def test_which_models_take_tools_and_a_format(model: str, together: bool) -> None:
    assert LM(model, api_key="k").capabilities.schema_with_tools is together


def test_a_model_that_refuses_the_format_with_tools_is_asked_without() -> None:
    lm = Refusing(
        "response_format cannot be used with tools", [CALL, {"outputs": json.loads(ANSWER)}]
    )
    lm.capabilities = with_tools([]).capabilities
    assert Predict(Read, tools=[look_up])(text="Invoice 7", lm=lm).note == "torn"
    assert lm.refused == 1


def test_a_format_refused_after_a_tool_ran_is_an_error() -> None:
    """Asking from the start would run the tools again."""

    class RefusingLater(ScriptedLM):
        def complete(self, request: Any) -> Any:
            if self.requests:
                raise BadRequestError("response_format", status=400)
            return super().complete(request)

    lm = RefusingLater([CALL], capabilities=with_tools([]).capabilities)
    with pytest.raises(BadRequestError):
        Predict(Read, tools=[look_up])(text="Invoice 7", lm=lm)


# -- with tools, where the provider does not take the format besides


FINISH = {"name": "finish", "args": json.loads(ANSWER)}
reads_invoices = Predict(Read, tools=[look_up])


def tools_of(lm: ScriptedLM) -> list[str]:
    return [tool["function"]["name"] for tool in lm.requests[0].tools]


def has_markers(lm: ScriptedLM) -> bool:
    return any("[[ ##" in str(request.messages) for request in lm.requests)


def test_outputs_are_the_arguments_of_finish_where_a_format_excludes_tools() -> None:
    lm = enforcing([CALL, FINISH])
    prediction = reads_invoices(text="Invoice 7", lm=lm)
    assert (prediction.invoice, prediction.note) == (Invoice(**INVOICE), "torn")
    assert [step.calls[0].name for step in prediction.trajectory.steps] == ["look_up"]
    assert tools_of(lm) == ["look_up", "finish"]
    assert [request.shape for request in lm.requests] == [None, None]
    assert not has_markers(lm)
    parameters = lm.requests[0].tools[1]["function"]["parameters"]
    assert set(parameters["properties"]) == {"invoice", "note"}
    answer = prediction.messages[-1]
    assert (answer.role, answer.tool_calls) == ("assistant", ())
    assert json.loads(str(answer.content))["note"] == "torn"


def test_an_async_program_finishes_in_the_same_way() -> None:
    lm = enforcing([CALL, FINISH])
    prediction = asyncio.run(reads_invoices.acall(text="Invoice 7", lm=lm))
    assert prediction.note == "torn"


@pytest.mark.parametrize(
    "other",
    [
        {"name": "look_up", "args": {"id": "7"}},
        {"name": "nosuch", "args": {}},
        {"name": "finish", "args": {**FINISH["args"], "note": "another"}},
    ],
    ids=lambda call: f"{call['name']} {sorted(call['args'])}",
)
def test_finish_does_not_count_beside_a_call_that_failed(other: dict[str, Any]) -> None:
    lm = enforcing([[other, FINISH], FINISH])
    assert reads_invoices(text="Invoice 7", lm=lm).note == "torn"
    assert "was not accepted" in str(lm.requests[1].messages)


def test_finish_counts_beside_a_call_that_succeeded_as_written() -> None:
    lm = enforcing([[*CALL, FINISH]])
    prediction = reads_invoices(text="Invoice 7", lm=lm)
    assert prediction.note == "torn"
    [step] = prediction.trajectory.steps
    assert [result.content for result in step.results] == ["Invoice 7: paid."]
    roles = [message.role for message in prediction.messages]
    assert roles[-3:] == ["assistant", "tool", "assistant"]
    assert [call.name for call in prediction.messages[-3].tool_calls] == ["look_up"]


BAD = {"name": "finish", "args": {"invoice": {"number": "7"}, "note": "torn"}}


@pytest.mark.parametrize("beside", [[], CALL], ids=["alone", "beside a call"])
def test_outputs_that_do_not_fit_are_asked_for_again(beside: list[Any]) -> None:
    lm = enforcing([[*beside, BAD], FINISH])
    assert reads_invoices(text="Invoice 7", lm=lm).note == "torn"
    assert "lines" in str(lm.requests[1].messages.then()[-1].content)


def test_validators_judge_the_arguments_of_finish() -> None:
    strict = Predict(Read, tools=[look_up])

    @strict.output_validator
    def _check(outputs: Any) -> None:
        if outputs.note != "torn":
            raise ToolRetry("say what is odd")

    other = {"name": "finish", "args": {**FINISH["args"], "note": "none"}}
    lm = enforcing([other, [*CALL, other], FINISH])
    assert strict(text="Invoice 7", lm=lm).note == "torn"
    said = [str(request.messages) for request in lm.requests]
    assert ["say what is odd" in text for text in said] == [False, True, True]


def test_text_is_asked_again_with_the_reason_unless_it_can_be_read() -> None:
    lm = enforcing(["It is paid.", FINISH])
    assert reads_invoices(text="Invoice 7", lm=lm).note == "torn"
    assert "call `finish` with `invoice`, `note`" in str(lm.requests[1].messages)
    assert reads_invoices(text="Invoice 7", lm=enforcing([ANSWER])).note == "torn"
    assert reads_invoices(text="Invoice 7", lm=enforcing([IN_TEXT])).note == "torn"


def test_an_answer_that_is_never_readable_is_an_error() -> None:
    lm = enforcing(["It is paid."] * 3)
    with pytest.raises(AdapterParseError):
        reads_invoices(text="Invoice 7", lm=lm)
    assert len(lm.requests) == 3


def test_the_arguments_of_finish_stream_as_fields() -> None:
    pieces: dict[str, str] = {}
    for event in reads_invoices.stream(text="Invoice 7", lm=enforcing([CALL, FINISH])):
        if isinstance(event, FieldDelta):
            pieces[event.field] = pieces.get(event.field, "") + event.text
    assert json.loads(pieces["invoice"]) == INVOICE
    assert pieces["note"] == "torn"


def test_calls_that_are_not_run_do_not_hold_finish() -> None:
    unexecuted = Predict(Read, tools=[look_up], auto_execute_tools=False)
    prediction = unexecuted(text="Invoice 7", lm=enforcing([[*CALL, FINISH]]))
    assert [call.name for call in prediction.tool_calls.tool_calls] == ["look_up"]
    assert prediction.invoice is None
    assert unexecuted(text="Invoice 7", lm=enforcing([FINISH])).note == "torn"


def test_a_conversation_goes_on_after_finish() -> None:
    class Chat(Read):
        history: History | None = InputField(default=None)

    chat = Predict(Chat, tools=[look_up])
    first = chat(text="Invoice 7", lm=enforcing([CALL, FINISH]))
    lm = enforcing([FINISH])
    chat(text="And 8?", history=History(messages=first.messages), lm=lm)
    assert not has_markers(lm)
    assert [message.role for message in lm.requests[0].messages][-2:] == ["assistant", "user"]


def test_a_run_that_waits_for_a_person_finishes_when_it_is_resumed() -> None:
    sends = Tool(look_up, require_confirmation=True)
    store = MemoryStore()
    lm = enforcing([[*CALL, FINISH], FINISH])
    program = Predict(Read, tools=[sends])
    with context(lm=lm):
        run = program.start(text="Invoice 7", store=store)
        [question] = run.pending
        run.answer(question.deny("no"))
        run = Run.load(store, run.id, program)
        run.resume()
    assert run.prediction.note == "torn"
    assert "was not accepted" in str(lm.requests[1].messages)


def finish(note: str) -> str:
    """Note."""
    return note


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"tools": [look_up, finish]}, {}),
        ({"tools": [look_up], "tool_choice": "none"}, {}),
        ({"tools": [look_up], "response_format": {"type": "json_object"}}, {}),
        ({"tools": [look_up]}, {"adapter": ChatAdapter(use_native_function_calling=None)}),
    ],
    ids=["a tool called finish", "no calls", "a format", "an adapter"],
)
def test_outputs_travel_as_text_if_the_user_chose_so_or_took_the_name(
    options: dict[str, Any], settings: dict[str, Any]
) -> None:
    lm = enforcing([IN_TEXT])
    with context(**settings):
        assert Predict(Read, **options)(text="Invoice 7", lm=lm).note == "torn"
    assert has_markers(lm)
    assert tools_of(lm) == [tool.__name__ for tool in options["tools"]]


def test_a_tool_cannot_take_the_name_of_finish_later() -> None:
    def load() -> Any:
        """Load more tools."""

        @module_callback
        def add(context: Any) -> str:
            context.module.init_module([load, finish])
            return "loaded"

        return add

    lm = enforcing([{"name": "load", "args": {}}, FINISH])
    prediction = Predict(Read, tools=[load])(text="Invoice 7", lm=lm)
    [result] = prediction.trajectory.steps[0].results
    assert result.is_error
    assert prediction.note == "torn"


def test_a_model_that_refuses_tools_gets_no_finish() -> None:
    class WithoutTools(ScriptedLM):
        def complete(self, request: Any) -> Any:
            if request.tools:
                raise BadRequestError("this model does not support tools", status=400)
            return super().complete(request)

    lm = WithoutTools([IN_TEXT], capabilities=enforcing([]).capabilities)
    assert reads_invoices(text="Invoice 7", lm=lm).note == "torn"
    assert "look_up" in str(lm.requests[0].messages)
    assert "`finish`" not in str(lm.requests[0].messages)


def test_constrained_calls_end_with_finish() -> None:
    capabilities = Capabilities(
        json_schema=True,
        schema_target="openai-strict",
        schema_with_tools=True,
        constrained_calls=True,
    )
    lm = ScriptedLM([CALL, FINISH], capabilities=capabilities)
    assert reads_invoices(text="Invoice 7", lm=lm).note == "torn"
    assert lm.requests[0].tool_choice == "required"
    assert lm.requests[0].shape is not None
    assert lm.requests[0].shape.kind == "call"
