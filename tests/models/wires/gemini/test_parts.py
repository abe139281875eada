"""A message as parts and back.

Rules: ai.google.dev/gemini-api/docs/generate-content/thought-signatures, July 2026, and the API
reference.
"""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_servers.gemini import content_of

from ferrule.models.wires import payload
from ferrule.models.wires.gemini.decode import read_parts
from ferrule.models.wires.gemini.encode import (
    UNSIGNED,
    content_parts,
    result_parts,
    turn_parts,
)
from ferrule.values.calls.call import CallFault, ToolCall
from ferrule.values.content.parts import Audio, File, Image, Text
from ferrule.values.conversation.exchange import Response
from ferrule.values.conversation.message import Message

PICTURE = Image(data="aGk=", media_type="image/png")
CALL = ToolCall(name="add", args={"a": 1}, id="c1")
SIGNED = [
    {"text": "hm", "thought": True},
    {"text": "One "},
    {"text": "moment.", "thoughtSignature": "dGV4dA=="},
    {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}, "thoughtSignature": "Y2FsbA=="},
    {"functionCall": {"id": "c2", "name": "add", "args": {}}},
]


def turn(parts: list) -> Message:
    found = read_parts(parts)
    return Response(found.text, found.calls, found.reasoning, extra=found.extra).message()


def test_a_signature_goes_back_on_the_very_part_it_came_with():
    """Parts with signatures are neither joined nor left out."""
    assert turn_parts(turn(SIGNED), signed=True) == SIGNED


def test_calls_go_back_with_the_ids_a_run_gave_them():
    """Models before Gemini 3 send none."""
    message = turn([{"functionCall": {"name": "add", "args": {}}, "thoughtSignature": "cw=="}])
    named = Message(
        "assistant",
        "",
        tuple(call.with_id("made") for call in message.tool_calls),
        extra=message.extra,
    )
    assert turn_parts(named) == [
        {"functionCall": {"id": "made", "name": "add", "args": {}}, "thoughtSignature": "cw=="},
    ]


@pytest.mark.parametrize(
    "changed",
    [
        Message("assistant", "other", (CALL, CALL), extra=turn(SIGNED).extra),
        Message("assistant", "One moment.", (CALL,), extra=turn(SIGNED).extra),
        Message("assistant", "One moment.", (CALL, CALL), extra={"gemini": {"parts": "junk"}}),
        Message("assistant", "One moment.", (CALL, CALL), extra={"gemini": 3}),
        Message("assistant", "One moment.", (CALL, CALL), extra={"anthropic": {"blocks": [1]}}),
    ],
    ids=["text", "calls", "junk", "number", "foreign"],
)
def test_what_was_kept_of_another_turn_is_not_sent(changed):
    """A message that was changed, or came from elsewhere, is rendered from itself."""
    parts = turn_parts(changed)
    assert parts[0] == {"text": changed.content}
    assert [part["functionCall"]["name"] for part in parts[1:]] == ["add"] * len(changed.tool_calls)
    assert not any("thoughtSignature" in part for part in parts)


def test_calls_that_gemini_did_not_make_say_so_where_calls_must_be_signed():
    """Gemini 3 answers 400 to a call without a signature; of parallel calls the first has it."""
    parts = turn_parts(Message("assistant", "", (CALL, CALL)), signed=True)
    assert [part.get("thoughtSignature") for part in parts] == [UNSIGNED, None]
    assert not any(
        "thoughtSignature" in part for part in turn_parts(Message("assistant", "hi"), signed=True)
    )


def test_a_bad_call_goes_back_as_the_model_wrote_it():
    """Never as a call without arguments, and never without a name."""
    fault = CallFault("invalid_tool_call_arguments", "x", "{half")
    parts = turn_parts(
        Message(
            "assistant",
            "",
            (ToolCall(name="add", id="1", fault=fault), ToolCall(name="", id="2", fault=fault)),
        ),
    )
    assert [part["functionCall"] for part in parts] == [
        {"id": "1", "name": "add", "args": {"invalid_arguments": "{half"}},
        {"id": "2", "name": "unnamed", "args": {"invalid_arguments": "{half"}},
    ]


def test_a_name_that_the_api_refuses_is_changed_in_the_call_and_in_its_result():
    """A model may have called a tool that there is not."""
    [call] = turn_parts(Message("assistant", "", (ToolCall(name="get weather!", id="1"),)))
    [result] = result_parts(
        Message("tool", "no", tool_call_id="1"),
        name="get weather!",
        media=True,
    )
    assert call["functionCall"]["name"] == result["functionResponse"]["name"] == "get_weather_"


def test_the_code_that_was_run_at_the_provider_goes_back():
    parts = [
        {"executableCode": {"language": "PYTHON", "code": "2+2"}},
        {"codeExecutionResult": {"output": "4"}},
        {"text": "4"},
    ]
    assert turn_parts(turn(parts)) == parts


def test_plain_text_and_calls_keep_nothing_beside_them():
    """A journal holds no text twice."""
    assert (
        read_parts(
            [{"text": "a", "thought": True}, {"text": "b"}, {"functionCall": {"name": "add"}}],
        ).extra
        is None
    )


def test_fields_that_are_null_are_not_there():
    """Gateways write every field of a part."""
    found = read_parts(
        [
            {
                "text": "a",
                "functionCall": None,
                "thought": None,
                "thoughtSignature": None,
                "inlineData": None,
            },
        ],
    )
    assert (found.text, found.calls, found.reasoning, found.extra) == ("a", (), None, None)


MEDIA = [
    (PICTURE, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}),
    (
        Audio(data="aGk=", media_type="audio/mp3"),
        {"inlineData": {"mimeType": "audio/mp3", "data": "aGk="}},
    ),
    (
        File(data="aGk=", media_type="application/pdf"),
        {"inlineData": {"mimeType": "application/pdf", "data": "aGk="}},
    ),
    (
        Image(url="data:image/webp;base64,aGk="),
        {"inlineData": {"mimeType": "image/webp", "data": "aGk="}},
    ),
    (
        Image(url="https://example.com/a.jpg?x=1"),
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://example.com/a.jpg?x=1"}},
    ),
    (
        Image(url="https://example.com/a.jpg", media_type="image/webp"),
        {"fileData": {"mimeType": "image/webp", "fileUri": "https://example.com/a.jpg"}},
    ),
    (
        File(url="https://example.com/x"),
        {"fileData": {"mimeType": "application/octet-stream", "fileUri": "https://example.com/x"}},
    ),
]


@pytest.mark.parametrize(
    ("part", "expected"),
    MEDIA,
    ids=["image", "audio", "pdf", "data_url", "guessed", "said", "unknown"],
)
def test_media_of_people_are_carried(part, expected):
    """Ai.google.dev/gemini-api/docs/file-input-methods, May 2026."""
    assert content_parts((Text(text="look"), part)) == [{"text": "look"}, expected]


def result(*content: object, **keywords) -> Message:
    return Message("tool", tuple(content), tool_call_id="c1", **keywords)


def test_a_result_says_its_call_its_tool_and_whether_it_failed():
    good = result_parts(Message("tool", '{"$ref": 1}', tool_call_id="c1"), name="add", media=True)
    assert good == [
        {"functionResponse": {"id": "c1", "name": "add", "response": {"output": '{"$ref": 1}'}}},
    ]
    bad = result_parts(Message("tool", "no", is_error=True), name=None, media=True)
    assert bad == [{"functionResponse": {"name": "unnamed", "response": {"error": "no"}}}]


def test_pictures_in_results_are_carried_where_the_model_takes_them():
    """Ai.google.dev/gemini-api/docs/function-calling, "Multimodal function responses", July 2026."""
    [part] = result_parts(result(Text(text="seen"), PICTURE), name="look", media=True)
    assert part["functionResponse"]["response"] == {"output": "seen"}
    assert part["functionResponse"]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
    ]


@pytest.mark.parametrize(
    ("part", "media"),
    [(PICTURE, False), (Audio(data="aGk="), True), (Image(url="https://example.com/a.png"), True)],
    ids=["old_model", "sound", "address"],
)
def test_what_a_result_cannot_carry_is_told_in_words(part, media, caplog, monkeypatch):
    """To the model every time, in the log once."""
    monkeypatch.setattr(payload, "_logged", set())
    with caplog.at_level(logging.WARNING):
        found = [
            result_parts(result(part, Text(text="end")), name="look", media=media) for _ in range(2)
        ]
    assert found[0] == found[1]
    [each] = found[0]
    assert "left out" in each["functionResponse"]["response"]["output"]
    assert "parts" not in each["functionResponse"]
    assert len(caplog.records) == 1


@given(st.lists(st.text(min_size=1), max_size=3))
def test_texts_survive_as_content(texts):
    content = texts[0] if len(texts) == 1 else tuple(Text(text=text) for text in texts) or ""
    assert content_of([part for part in content_parts(content) if part["text"]]) == content


@pytest.mark.parametrize("part", [part for part, _ in MEDIA[:3]], ids=["image", "audio", "pdf"])
def test_media_survive_as_content(part):
    assert content_of(content_parts((part,))) == (part,)
