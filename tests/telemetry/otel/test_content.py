"""Content: none of it unless it is asked for, and then in the conventions' JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from opentelemetry._logs import NoOpLoggerProvider
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from otel_spans import Sent
from pydantic import SecretStr

from ferrule import (
    Image,
    MemoryStore,
    Policy,
    Predict,
    ReAct,
    Response,
    Run,
    ToolCall,
    allow,
    context,
    deny,
    events,
    tool,
)
from ferrule.errors import UnavailableError
from ferrule.events import Custom
from ferrule.testing import ScriptedLM

DONE = {"name": "finish", "args": {"answer": "yes"}}


def part(kind: str, required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, **properties},
        "required": ["type", *required],
    }


TEXT = {"type": "string"}
PARTS = {
    "type": "array",
    "items": {
        "oneOf": [
            part("text", ["content"], content=TEXT),
            part("reasoning", ["content"], content=TEXT),
            part(
                "tool_call",
                ["name"],
                id={"type": ["string", "null"]},
                name=TEXT,
                arguments={"type": "object"},
            ),
            part("tool_call_response", ["response"], id={"type": ["string", "null"]}),
            part(
                "uri",
                ["modality", "uri"],
                modality={"enum": ["image", "video", "audio", "document"]},
                uri=TEXT,
            ),
            part("image", ["mime_type"], mime_type=TEXT, size_bytes={"type": "integer"}),
        ],
    },
}
MESSAGE = {
    "type": "object",
    "required": ["role", "parts"],
    "properties": {"role": {"enum": ["user", "assistant", "tool"]}, "parts": PARTS},
}
REASONS = {"enum": ["stop", "length", "content_filter", "tool_call", "error"]}
SCHEMAS = {
    "gen_ai.input.messages": {"type": "array", "items": MESSAGE},
    "gen_ai.output.messages": {
        "type": "array", "items": {**MESSAGE, "required": ["role", "parts", "finish_reason"], "properties": {**MESSAGE["properties"], "finish_reason": REASONS}},
    },
    "gen_ai.system_instructions": PARTS,
    "gen_ai.tool.definitions": {"type": "array", "items": {"type": "object", "required": ["type", "name"], "properties": {"type": {"const": "function"}}}},
    "gen_ai.tool.call.arguments": {"type": "object"},
    "gen_ai.tool.call.result": {},
}  # fmt: skip
"""What the conventions' JSON schemas ask of the parts that are used here (the commit is in
`test_convention.py`). They allow parts of any other type too, as which media go without their
bytes.
"""


def values(sent: Sent, name: str) -> list[Any]:
    return [
        json.loads(span.attributes[name]) for span in sent.spans if name in (span.attributes or {})
    ]


# -- without content

SECRETS = {f"s{k}": f"hush{k}hush" for k in range(24)}


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_no_byte_of_content_is_sent_unless_it_is_asked_for(
    driver: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Secrets in inputs, instructions, arguments, results, errors, reasons, events, decisions and
    names.
    """
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "NO_CONTENT")
    caplog.set_level(logging.DEBUG)
    s, sent, told = SECRETS, Sent(), list[Any]()

    def look(word: str) -> str:
        """Look."""
        from ferrule import emit_event, progress

        progress(s["s1"])
        emit_event("seen", {"value": s["s2"]})
        return s["s3"]

    def fail(word: str) -> str:
        """Fail."""
        raise ValueError(s["s4"]) from RuntimeError(s["s5"])

    code_by_default = SecretStr(s["s6"])

    @tool(require_confirmation=True)
    def pay(word: str, code: SecretStr = code_by_default) -> dict[str, str]:
        """Pay."""
        return {s["s7"]: s["s8"]}

    def refused(word: str) -> str:
        """Refused."""
        return ""

    def call(name: str, word: str) -> ToolCall:
        return ToolCall(name=name, args={"word": word}, id=f"{name}-id")

    script = [
        {"name": "look", "args": {"wrd": s["s10"]}},  # refused, with a reason that quotes it
        Response(
            s["s9"] + s["s11"],
            (call("look", s["s12"]), call("fail", s["s13"]), call("refused", s["s14"])),
            reasoning=s["s15"],
        ),
        Response("", (call("pay", s["s16"]), call("unknown", s["s17"]))),
        UnavailableError(s["s18"]),
    ]
    agent = ReAct(
        "task -> answer",
        [look, fail, pay, refused],
        extra={"instructions": s["s19"]},
        native=True,
    )
    policy = Policy([deny("refused", reason=s["s20"]), allow("look")])
    store = MemoryStore()
    with context(callbacks=[sent.observer, told.append], policy=policy, lm=ScriptedLM(script)):
        inputs: dict[str, Any] = {"task": s["s21"], "store": store}
        run = asyncio.run(agent.astart(**inputs)) if driver == "async" else agent.start(**inputs)
        for _ in range(3):
            if run.status != "waiting":
                break
            run = Run.load(store, run.id, agent)
            run.answer(run.pending[0].edit({"word": s["s22"]}).signed(by=s["s23"]))
            run = asyncio.run(run.aresume()) if driver == "async" else run.resume()
    assert {type(event) for event in told} >= {
        events.RuleUsed,
        events.Decided,
        events.CallFinished,
        events.CallProgress,
        Custom,
    }
    everything = "".join(
        [*(span.to_json() for span in sent.spans), repr(sent.points()), repr(sent.events), *(record.getMessage() for record in caplog.records)],
    )  # fmt: skip
    assert len(sent.spans) >= 5
    assert [name for name, word in s.items() if word in everything] == []


@pytest.mark.parametrize(
    ("value", "on_span", "has_event"),
    [
        ("true", True, False),
        ("SPAN_ONLY", True, False),
        ("span_and_event", True, True),
        ("EVENT_ONLY", False, True),
        ("NO_CONTENT", False, False),
        ("", False, False),
        ("false", False, False),
        ("what is this", False, False),
    ],
)
@pytest.mark.parametrize("where", ["environment", "option"])
def test_content_goes_where_it_is_asked_for(
    value: str,
    on_span: bool,
    has_event: bool,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the convention's variable where the observer is given nothing, and by the same words as an
    option.
    """
    options: dict[str, Any] = {}
    if where == "environment":
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
    elif on_span or has_event:
        options = {"content": True if value == "true" else value.lower()}
    sent = Sent(**options)
    with context(callbacks=[sent.observer], lm=ScriptedLM(["[[ ## answer ## ]]\nx"])):
        Predict("question -> answer")(question="q")
    assert bool(values(sent, "gen_ai.input.messages")) is on_span
    assert [event.event_name for event in sent.events] == [
        "gen_ai.client.inference.operation.details",
    ] * has_event


def test_the_event_of_a_model_call_has_what_its_span_has_and_the_content() -> None:
    """In structured form, in the span's context, and the span has none of it."""
    sent = Sent(content="event_only")

    def look(place: str) -> str:
        """Look."""
        return "sunny"

    script = [
        Response("", (ToolCall(name="look", args={"place": "Rome"}, id="c1"),), model="m-1"),
        UnavailableError("down"),
    ]
    agent = ReAct("task -> answer", [look], native=True)
    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM(script),
        extra={"conversation_id": "c-7"},
    ):
        agent.start(task="weather?")
    chats = [span for span in sent.spans if span.name == "chat scripted"]
    assert len(chats) == len(sent.events) == 2
    for span, event in zip(chats, sent.events, strict=True):
        assert (event.trace_id, event.span_id) == (span.context.trace_id, span.context.span_id)
        content = {name: value for name, value in event.attributes.items() if name in SCHEMAS}
        assert {
            name: value
            for name, value in event.attributes.items()
            if name not in {*SCHEMAS, "ferrule.messages.since"}
        } == dict(span.attributes)
        for name, value in content.items():
            Draft202012Validator(SCHEMAS[name]).validate(
                json.loads(json.dumps(value, default=plain)),
            )
    first, second = (
        {name: plain(value) for name, value in event.attributes.items()} for event in sent.events
    )
    assert first["gen_ai.conversation.id"] == "c-7"
    assert "weather?" in first["gen_ai.input.messages"][0]["parts"][0]["content"]
    assert first["gen_ai.output.messages"][0]["parts"] == [
        {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"place": "Rome"}},
    ]
    assert second["ferrule.messages.since"] == 2
    assert second["gen_ai.input.messages"][-1]["parts"] == [
        {"type": "tool_call_response", "id": "c1", "response": "sunny"},
    ]
    assert (second["error.type"], "gen_ai.output.messages" in second) == ("UnavailableError", False)
    assert not [name for span in sent.spans for name in span.attributes if name in SCHEMAS]
    assert not [
        span.name for span in sent.spans if "Rome" in span.to_json() or "weather" in span.to_json()
    ]


def plain(value: Any) -> Any:
    """An attribute of an event, as JSON: the SDK makes it immutable."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def test_an_event_is_emitted_where_no_span_is_recorded() -> None:
    """Content may be stored apart from traces; without an SDK for logs nothing is rendered."""
    lm = ScriptedLM(["[[ ## answer ## ]]\nx"] * 2)
    sent = Sent(content="event_only", sampler=ALWAYS_OFF)
    with context(callbacks=[sent.observer], lm=lm):
        Predict("question -> answer")(question="q")
    assert (len(sent.spans), len(sent.events)) == (0, 1)
    nowhere = Sent(content="event_only", logger_provider=NoOpLoggerProvider())
    with context(callbacks=[nowhere.observer], lm=lm):
        Predict("question -> answer")(question="q")
    assert (len(nowhere.spans), len(nowhere.events)) == (2, 0)


# -- with content


def test_content_is_in_the_form_of_the_conventions() -> None:
    """Messages, instructions, declarations, arguments and results."""
    sent = Sent(content=True)

    def look(place: str) -> str:
        """Look."""
        return "sunny"

    script = [
        Response(
            "I look.",
            (ToolCall(name="look", args={"place": "Rome"}, id="c1"),),
            reasoning="Hm.",
            finish_reason="tool_calls",
        ),
        DONE,
    ]
    with context(callbacks=[sent.observer], lm=ScriptedLM(script)):
        ReAct("task -> answer", [look], native=True)(task="weather?")
    for name, schema in SCHEMAS.items():
        found = values(sent, name)
        assert found, name
        for each in found:
            Draft202012Validator(schema).validate(each)
    first, second = values(sent, "gen_ai.input.messages")
    assert [message["role"] for message in first] == ["user"]
    assert "weather?" in first[0]["parts"][0]["content"]
    [answered] = values(sent, "gen_ai.output.messages")[:1]
    assert answered == [{
        "role": "assistant", "finish_reason": "tool_call", "parts": [
            {"type": "reasoning", "content": "Hm."}, {"type": "text", "content": "I look."},
            {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"place": "Rome"}},
        ],
    }]  # fmt: skip
    assert second[-1] == {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": "c1", "response": "sunny"}],
    }
    assert [each["name"] for each in values(sent, "gen_ai.tool.definitions")[0]] == [
        "look",
        "finish",
    ]
    assert values(sent, "gen_ai.tool.call.arguments") == [{"place": "Rome"}]
    assert values(sent, "gen_ai.tool.call.result") == ["sunny"]
    assert len(values(sent, "gen_ai.system_instructions")) == 1


@pytest.mark.parametrize("messages", ["new", "all"])
def test_a_span_holds_the_messages_that_no_span_before_it_has(messages: Any) -> None:
    """So a late step costs what an early one does; `messages="all"` is for backends that need the
    whole.
    """
    sent = Sent(content=True, messages=messages)

    def step(number: int) -> int:
        """One step."""
        return number

    script = [{"name": "step", "args": {"number": k}} for k in range(30)]
    with context(callbacks=[sent.observer], lm=ScriptedLM([*script, DONE])):
        run = ReAct("task -> answer", [step], native=True, max_iters=40).start(task="x")
    told = values(sent, "gen_ai.input.messages")
    since = [
        span.attributes["ferrule.messages.since"]
        for span in sent.spans
        if span.name.startswith("chat")
    ]
    if messages == "all":
        assert set(since) == {0}
        assert (
            len(told[-1]) == len(run.messages) - 2
        )  # without the instructions, and the last answer
    else:
        assert since == [0, *range(2, 62, 2)]
        assert {len(each) for each in told[1:]} == {2}


def test_a_conversation_that_was_rewritten_is_told_anew() -> None:
    """Where the messages before are others by now."""
    sent = Sent(content=True)
    program = Predict("question -> answer")
    with context(callbacks=[sent.observer], lm=ScriptedLM(["[[ ## answer ## ]]\nx"] * 2)):
        program(question="one")
        program(question="two")
    assert [
        span.attributes["ferrule.messages.since"]
        for span in sent.spans
        if span.name.startswith("chat")
    ] == [0, 0]


def test_media_are_their_type_and_size_or_their_address() -> None:
    """Never the bytes."""
    sent = Sent(content=True)
    photos = [Image(data="MTIzNDU="), Image(url="https://host/a.png")]
    with context(callbacks=[sent.observer], lm=ScriptedLM(["[[ ## answer ## ]]\nx"])):
        Predict("photos: list[ferrule.Image], question -> answer")(photos=photos, question="q")
    [messages] = values(sent, "gen_ai.input.messages")
    Draft202012Validator(SCHEMAS["gen_ai.input.messages"]).validate(messages)
    parts = [part for message in messages for part in message["parts"]]
    assert {"type": "image", "mime_type": "image/png", "size_bytes": 5} in parts
    assert {
        "type": "uri",
        "modality": "image",
        "mime_type": "image/png",
        "uri": "https://host/a.png",
    } in parts
    assert "MTIzNDU=" not in sent.spans[1].to_json()


def test_values_that_are_too_long_are_cut_and_say_so() -> None:
    """An attribute has at most 32 KiB, and is JSON all the same."""
    sent = Sent(content=True)

    def long(size: int) -> list[str]:
        """Return much."""
        return ["x" * size, "short", *["y" * 300] * 400]

    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM([{"name": "long", "args": {"size": 90_000}}, DONE]),
    ):
        ReAct("task -> answer", [long], native=True)(task="z" * 100_000)
    for span in sent.spans:
        for name in SCHEMAS:
            text = str((span.attributes or {}).get(name, "null"))
            assert len(text.encode()) <= 32 * 1024
            json.loads(text)
    assert "[cut: " in values(sent, "gen_ai.tool.call.result")[0]
    assert "zzz[cut: " in json.dumps(values(sent, "gen_ai.input.messages")[0])


def test_secrets_stay_stars() -> None:
    """What is marked as a secret is masked as in the journal."""
    sent = Sent(content=True)

    def log_in(password: SecretStr) -> str:
        """Log in."""
        return "in"

    tool(log_in)(password="open sesame")
    with context(callbacks=[sent.observer]):
        tool(log_in)(password="open sesame")
    assert values(sent, "gen_ai.tool.call.arguments") == [{"password": "**********"}]


def test_redact_has_the_last_word() -> None:
    """On each value by its attribute; where it raises, the value is left out."""
    asked: list[str] = []

    def redact(kind: str, value: Any) -> Any:
        asked.append(kind)
        if kind == "gen_ai.tool.call.result":
            raise RuntimeError("cannot say")
        return json.loads(json.dumps(value).replace("Rome", "[city]"))

    sent = Sent(content=True, redact=redact)

    def look(place: str) -> str:
        """Look."""
        raise ValueError("nothing in Rome")

    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM([{"name": "look", "args": {"place": "Rome"}}, DONE]),
    ):
        ReAct("task -> answer", [look], native=True)(task="Rome?")
    assert "gen_ai.tool.call.result" not in sent.one("execute_tool look").attributes
    assert sent.one("execute_tool look").status.description.startswith(
        "Execution error in look: ValueError: nothing in [city]",
    )
    assert not [span.name for span in sent.spans if "Rome" in span.to_json()]
    assert {
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "error",
    } <= set(asked)


def test_redact_gets_a_copy() -> None:
    """What it changes in place is not changed for the tool, the model or the journal."""
    got: list[Any] = []

    def redact(kind: str, value: Any) -> Any:
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                for part in each.get("parts", [each]):
                    part.get("arguments", part).clear()
        return value

    def look(place: str) -> str:
        """Look."""
        got.append(place)
        return "sunny"

    sent = Sent(content=True, redact=redact)
    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM([{"name": "look", "args": {"place": "Rome"}}, DONE]),
    ):
        run = ReAct("task -> answer", [look], native=True).start(task="x")
    assert (run.status, got) == ("done", ["Rome"])
    assert run.trajectory.steps[0].calls[0].args == {"place": "Rome"}
    assert "Rome" not in "".join(span.to_json() for span in sent.spans)


def test_lone_surrogates_do_not_keep_anything_from_being_exported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In texts of models, tools and errors; OTLP has no form for them."""
    sent = Sent(content="span_and_event")

    def look(place: str) -> str:
        """Look."""
        raise ValueError(f"nothing \ud800 in {place}")

    script = [
        Response("thought \udfff", (ToolCall(name="look", args={"place": "\ud800"}, id="c1"),)),
        DONE,
    ]
    with context(callbacks=[sent.observer], lm=ScriptedLM(script)):
        ReAct("task -> answer", [look], native=True)(task="x \ud800")
    assert encode_spans(sent.spans).resource_spans
    assert encode_logs(sent.log_exporter.get_finished_logs()).resource_logs
    assert [record.getMessage() for record in caplog.records] == []


def test_with_content_reasons_and_persons_are_named() -> None:
    """On the events of the program's span."""
    sent = Sent(content=True)

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        return "paid"

    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM([{"name": "pay", "args": {"euros": 3}}, DONE]),
    ):
        run = ReAct("task -> answer", [pay], native=True).start(task="x")
        run.answer(run.pending[0].deny("Too much.").signed(by="ann"))
        run.resume()
    [decided] = [
        event for span in sent.spans for event in span.events if event.name == "ferrule.decision"
    ]
    assert (
        decided.attributes["ferrule.decision.by"],
        decided.attributes["ferrule.decision.text"],
    ) == ("ann", "Too much.")
