"""Which way outputs travel: in the provider's format, or below markers in the text."""

from __future__ import annotations

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
    InputField,
    OutputField,
    Predict,
    Signature,
    context,
)
from ferrule.compat import dspy
from ferrule.errors import BadRequestError
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


def enforcing(answers: list[Any], target: SchemaTarget | None = "openai-strict") -> ScriptedLM:
    return ScriptedLM(answers, capabilities=Capabilities(json_schema=True, schema_target=target))


@pytest.mark.parametrize("name", SCHEMA_TARGETS)
def test_typed_outputs_are_asked_for_in_the_format_of_each_wire(name: str) -> None:
    lm = enforcing([ANSWER], SCHEMA_TARGETS[name])
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
    capabilities = Capabilities(json_schema=True, schema_target=target, schema_with_tools=True)
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


def test_a_server_that_constrains_the_whole_answer_gets_no_format_with_tools() -> None:
    lm = enforcing([CALL, {"outputs": json.loads(ANSWER)}])
    assert Predict(Read, tools=[look_up])(text="Invoice 7", lm=lm).note == "torn"
    assert [request.shape for request in lm.requests] == [None, None]


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
