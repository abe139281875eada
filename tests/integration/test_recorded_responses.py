"""Answers as providers send them, one test a provider and shape: over HTTP, as JSON, as a client's
objects, all in one normal form (E62).

The bodies are `tests/models/golden/*`; the pages they were taken from are named in the tests of
their wires.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from raw_server import raw_server, reply

from ferrule import LM
from ferrule.errors import BadRequestError, LMError, RateLimitError, RefusalError, UnavailableError
from ferrule.models.wires.any_answer import response_of
from ferrule.models.wires.wire import WIRES, wire
from ferrule.values.conversation.exchange import Request, Response
from ferrule.values.conversation.message import Message, Messages

GOLDEN = Path(__file__).parents[1] / "models" / "golden"
ASKED = Request(Messages([Message("user", "q")]))
UNREADABLE, NAMELESS = "invalid_tool_call_arguments", "invalid_tool_call"
PARIS, OSLO = {"location": "Paris"}, {"location": "Oslo"}


class Call(NamedTuple):
    """A call in the normal form; `id` is None where the provider gave none, `code` that of its
    fault.
    """

    name: str
    args: dict[str, Any]
    id: str | None = None
    code: str | None = None


class Said(NamedTuple):
    """An answer in the normal form; `usage` is input, output and cached tokens."""

    text: str | None = None
    calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    finish_reason: str = "stop"
    usage: tuple[int, int, int] = (0, 0, 0)
    refusal: str | None = None


def calling(*calls: Call, **rest: Any) -> Said:
    return Said(calls=calls, finish_reason="tool_calls", **rest)


OPENAI_CHAT = {
    "answer_text": Said("Hello!", usage=(9, 12, 4)),
    "answer_calls": calling(
        Call("get_weather", {"city": "Paris"}, "call_a"),
        Call("get_weather", {"city": "Oslo"}, "call_b"),
        usage=(82, 34, 0),
    ),
    "answer_deepseek": Said("9.11 < 9.8", reasoning="Compare.", usage=(10, 20, 8)),
    "answer_function_call": calling(Call("add", {"a": 1})),
    "answer_magistral": Said("4", reasoning="2+2 is 4", usage=(7, 9, 0)),
    "answer_openrouter": Said("hi", reasoning="Say hi.", usage=(3, 2, 0)),
    "answer_refusal": Said(refusal="I can't help with that.", usage=(5, 3, 0)),
    "answer_signed": calling(
        Call("add", {"a": 1}, "c1"),
        Call("add", {"a": 2}, "c2"),
        usage=(1, 1, 0),
    ),
    "answer_bad_calls": calling(
        Call("add", {"a": 1}, "ok"),
        Call("", {}, "nameless", NAMELESS),
        Call("add", {"a": 2}, "object"),
        text="",
    ),
}
OPENAI_RESPONSES = {
    "responses_text": Said("Hello! How can I help?", usage=(12033, 44, 11904)),
    "responses_call": calling(
        Call("get_weather", {"location": "Paris, France"}, "call_1"),
        usage=(291, 23, 0),
    ),
    "responses_text_and_calls": calling(
        Call("get_weather", PARIS, "call_1"),
        text="Let me look.",
        usage=(10, 5, 0),
    ),
    "responses_parallel": calling(
        Call("get_weather", PARIS, "call_1"),
        Call("get_weather", {"location": "Bogotá"}, "call_2"),
        Call("send_email", {"to": "bob@example.com", "body": "Hi"}, "call_3"),
        usage=(300, 60, 0),
    ),
    "responses_reasoning": calling(
        Call("get_weather", PARIS, "call_1"),
        Call("get_weather", OSLO, "call_2"),
        reasoning="**First.**\n\n**Then.**",
        usage=(81, 1035, 0),
    ),
    "responses_open_reasoning": Said("Hi.", reasoning="The user greets.", usage=(7, 9, 0)),
    "responses_refusal": Said(refusal="I'm sorry, I cannot assist with that.", usage=(81, 11, 0)),
    "responses_length": Said(finish_reason="length", usage=(81, 1000, 0)),
    "responses_bad_calls": calling(
        Call("add", {}, "call_1", UNREADABLE),
        Call("", {}, None, NAMELESS),
        Call("add", {"a": 2}, "call_3"),
        usage=(12033, 44, 11904),
    ),
}
ANTHROPIC = {
    "anthropic_answer_text": Said("Hi there.", usage=(12, 6, 0)),
    "anthropic_answer_call": calling(
        Call(
            "get_weather",
            {"location": "San Francisco, CA", "unit": "celsius"},
            "toolu_01A09q90qw90lq917835lq9",
        ),
        usage=(472, 89, 0),
    ),
    "anthropic_answer_text_and_call": calling(
        Call("get_weather", PARIS, "toolu_01"),
        text="I'll check the weather.",
        usage=(400, 70, 0),
    ),
    "anthropic_answer_parallel_calls": calling(
        Call("get_weather", PARIS, "toolu_01"),
        Call("get_time", {}, "toolu_02"),
        usage=(420, 120, 0),
    ),
    "anthropic_answer_thinking": calling(
        Call("get_weather", PARIS, "toolu_01"),
        text="Let me look.",
        reasoning="Which city? Paris.",
        usage=(300, 150, 0),
    ),
    "anthropic_answer_search": Said("In 1916.", usage=(6039, 931, 0)),
    "anthropic_answer_cached": Said("Pride.", usage=(21 + 50 + 188086, 393, 188086)),
    "anthropic_answer_refusal": Said(
        refusal="The request was declined.",
        finish_reason="content_filter",
        usage=(50, 0, 0),
    ),
    "anthropic_answer_truncated": Said("Quantum", finish_reason="length", usage=(10, 10, 0)),
}
GEMINI = {
    "gemini_answer_text": Said("AI learns patterns from data.", usage=(8, 7 + 31, 0)),
    "gemini_answer_call": calling(
        Call("check_flight", {"flight": "AA100"}, "8f2b1a3c"),
        usage=(70, 18 + 90, 0),
    ),
    "gemini_answer_text_and_call": calling(
        Call("get_weather", {"city": "Oslo"}),
        text="I will look it up.",
        usage=(40, 20, 0),
    ),
    "gemini_answer_parallel_calls": calling(
        Call("get_current_temperature", PARIS),
        Call("get_current_temperature", {"location": "London"}),
        usage=(72, 36, 0),
    ),
    "gemini_answer_thinking": Said(
        "9.8 is greater.",
        reasoning="**Compare**\n\nFirst the tenths.",
        usage=(12, 9 + 120, 0),
    ),
    "gemini_answer_code": Said("It is 4.", usage=(10 + 7, 20, 0)),
    "gemini_answer_cached": Said("The transcript is of a launch.", usage=(5030, 8, 4990)),
    "gemini_answer_truncated": Said("Once upon", finish_reason="length", usage=(5, 2, 0)),
    "gemini_answer_malformed_call": calling(Call("", {}, None, NAMELESS), usage=(50, 0, 0)),
}
ANSWERS = {
    "openai_chat": OPENAI_CHAT,
    "openai_responses": OPENAI_RESPONSES,
    "anthropic": ANTHROPIC,
    "gemini": GEMINI,
}
WITHHELD: dict[str, tuple[str, type[LMError]]] = {
    "responses_filtered": ("openai_responses", RefusalError),
    "responses_failed": ("openai_responses", UnavailableError),
    "anthropic_error": ("anthropic", BadRequestError),
    "gemini_answer_blocked": ("gemini", RefusalError),
    "gemini_answer_withheld": ("gemini", RefusalError),
    "gemini_error": ("gemini", RateLimitError),
}
"""Bodies that hold no answer, and the errors that they are."""
CASES = [(name, shape) for name, answers in ANSWERS.items() for shape in answers]
one_each = pytest.mark.parametrize(
    ("name", "shape"),
    CASES,
    ids=[f"{name}-{shape}" for name, shape in CASES],
)


def recorded(shape: str) -> Any:
    return json.loads((GOLDEN / f"{shape}.json").read_text(encoding="utf-8"))


def as_objects(value: Any) -> Any:
    """As a provider's own client hands it out: attributes.

    What the model wrote as JSON (`args`, `input`) stays a dict there too.
    """
    if isinstance(value, dict):
        return SimpleNamespace(
            **{
                key: each if key in {"args", "input"} else as_objects(each)
                for key, each in value.items()
            },
        )
    return [as_objects(each) for each in value] if isinstance(value, list) else value


def normal(response: Response) -> Said:
    usage = response.usage
    assert usage.calls == 1
    return Said(
        response.text,
        tuple(
            Call(call.name, call.args, call.id, call.fault.code if call.fault else None)
            for call in response.tool_calls
        ),
        response.reasoning,
        response.finish_reason or "",
        (usage.input_tokens, usage.output_tokens, usage.cached_tokens),
        response.refusal,
    )


@one_each
def test_a_recorded_answer_has_the_one_normal_form(name: str, shape: str) -> None:
    """Through the model's own client too (E22)."""
    body = recorded(shape)
    with raw_server(reply(json.dumps(body))) as server:
        over_http = LM(server.base_url, model="m", wire=name).complete(ASKED)
    found = [over_http, wire(name).read(body), response_of(body), response_of(as_objects(body))]
    assert [normal(each) for each in found] == [ANSWERS[name][shape]] * 4
    assert over_http.raw == body
    assert recorded(shape) == body


@one_each
def test_a_recorded_answer_goes_back_with_its_calls_and_words(name: str, shape: str) -> None:
    """As the assistant's message of the next request, over the wire that it came by."""
    answer = wire(name).read(recorded(shape))
    sent = wire(name).render(
        Request(Messages([Message("user", "q"), answer.message(), Message("user", "go on")])),
        model="m",
        settings={},
    )
    back = json.loads(sent)
    assert (answer.text or "") in _strings(back)
    assert {call.id for call in answer.tool_calls if call.id} <= _strings(back)
    assert {call.name for call in answer.tool_calls if call.name} <= _strings(back)


def _strings(value: Any) -> set[str]:
    """All texts in a JSON value, and the empty one."""
    if isinstance(value, str):
        return {value, ""}
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {""}.union(*map(_strings, inside))


@pytest.mark.parametrize("shape", WITHHELD)
def test_a_recorded_body_without_an_answer_is_an_error_of_the_house(shape: str) -> None:
    """One class, over HTTP and read alone."""
    name, kind = WITHHELD[shape]
    body = recorded(shape)
    with pytest.raises(kind) as alone:
        wire(name).read(body)
    with raw_server(reply(json.dumps(body))) as server, pytest.raises(kind) as over_http:
        LM(server.base_url, model="m", wire=name, max_retries=0).complete(ASKED)
    assert type(alone.value) is type(over_http.value) is kind


def test_every_recorded_answer_is_in_the_table() -> None:
    """A new golden answer wants its row."""
    files = {path.stem for path in GOLDEN.glob("*.json") if "request" not in path.stem}
    assert {shape for _, shape in CASES} | WITHHELD.keys() == files
    assert ANSWERS.keys() == WIRES.keys()


@pytest.mark.parametrize("name", WIRES)
def test_every_wire_has_the_shapes_that_providers_answer_in(name: str) -> None:
    """Words alone, one call and several, thoughts, and a refusal."""
    said = list(ANSWERS[name].values())
    assert any(each.text and not each.calls for each in said)
    assert any(len(each.calls) == 1 for each in said)
    assert any(len(each.calls) > 1 for each in said)
    assert any(each.reasoning for each in said)
    assert any(each.refusal for each in said) or any(
        wire_name == name and kind is RefusalError for wire_name, kind in WITHHELD.values()
    )
