"""The claims of docs/how-to/models/media.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from ferrule import Audio, File, Image, Message, Messages, Predict, Request, Text, ToolCall
from ferrule.models.local.template import template_message
from ferrule.models.wires.wire import WIRES, wire
from ferrule.testing import ScriptedLM

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "models" / "media.md"
IMAGES = {
    kind: Image.from_bytes(b"\x89", f"image/{kind}")
    for kind in ("png", "jpeg", "gif", "webp", "tiff")
}
IMAGE_URL = Image(url="https://a.example/b.png")
SOUND, SOUND_URL = Audio.from_bytes(b"RIFF", "audio/wav"), Audio(url="https://a.example/b.wav")
PDF, TEXT = File.from_bytes(b"%PDF", "application/pdf"), File.from_bytes(b"hello", "text/plain")
PDF_URL = File(url="https://a.example/b.pdf", media_type="application/pdf")
OFFICE = File.from_bytes(
    b"PK\xff",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
)
EVERYTHING = [*IMAGES.values(), IMAGE_URL, SOUND, SOUND_URL, PDF, TEXT, PDF_URL, OFFICE]
NOTES_IN_MESSAGES = {
    "openai_chat": [SOUND_URL],
    "openai_responses": [SOUND, SOUND_URL],
    "anthropic": [IMAGES["tiff"], SOUND, SOUND_URL, OFFICE],
    "gemini": [],
}
NOTES_IN_RESULTS = NOTES_IN_MESSAGES | {
    "gemini": [IMAGES["gif"], IMAGES["tiff"], IMAGE_URL, SOUND, SOUND_URL, PDF_URL, OFFICE],
}


def body(name: str, *messages: Message, model: str = "gemini-3-pro") -> str:
    return wire(name).render(Request(Messages(messages)), model=model, settings={}).decode()


def result_with(part: Image | Audio | File) -> list[Message]:
    call = ToolCall(name="scan", args={}, id="c1")
    return [
        Message("user", "Scan."),
        Message("assistant", "", (call,)),
        Message("tool", (part,), tool_call_id="c1", name="scan"),
    ]


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/models/media.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/media.md") == []


def test_the_table_names_every_wire() -> None:
    assert re.findall(
        r"^\| `(\w+)` \|.*\|.*\|.*\|.*\|$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    ) == list(WIRES)


@pytest.mark.parametrize("name", WIRES)
def test_a_message_has_a_note_for_what_its_wire_cannot_send(name: str) -> None:
    notes = [
        part
        for part in EVERYTHING
        if "was left out" in body(name, Message("user", (Text(text="Look."), part)))
    ]
    assert notes == NOTES_IN_MESSAGES[name]


@pytest.mark.parametrize("name", WIRES)
def test_a_result_has_a_note_for_what_its_wire_cannot_send(name: str) -> None:
    assert [
        part for part in EVERYTHING if "was left out" in body(name, *result_with(part))
    ] == NOTES_IN_RESULTS[name]


def test_gemini_before_3_takes_no_media_in_results() -> None:
    assert "was left out" in body("gemini", *result_with(IMAGES["png"]), model="gemini-2.5-flash")


def test_chat_completions_send_the_media_of_results_in_a_message_after_them() -> None:
    sent = body("openai_chat", *result_with(IMAGES["png"]))
    assert sent.index('"role":"tool"') < sent.rindex('"role":"user"') < sent.index('"image_url"')


def test_a_model_in_this_process_reads_the_name_of_a_picture() -> None:
    assert (
        template_message(Message("user", (Text(text="Look."), IMAGE_URL)))["content"]
        == f"Look.\n[{IMAGE_URL!r}]"
    )


class Album(BaseModel):
    cover: Image


@pytest.mark.parametrize(
    ("signature", "value"),
    [
        ("given: Image -> answer", IMAGE_URL),
        ("given: list[File] -> answer", [PDF, TEXT]),
        ("given: dict[str, Image] -> answer", {"front": IMAGE_URL}),
        ("given: Album -> answer", Album(cover=IMAGE_URL)),
    ],
)
def test_the_types_may_be_nested(signature: str, value: object) -> None:
    lm = ScriptedLM([{"outputs": {"answer": "x"}}])
    Predict(signature)(given=value, lm=lm)
    assert {IMAGE_URL.address, PDF.address} & {
        getattr(part, "address", None) for part in lm.requests[0].messages[-1].content
    }
