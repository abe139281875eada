"""Parts of a message."""

from __future__ import annotations

import base64
import copy
import json
import mimetypes
import pickle
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import TypeAliasType

from ferrule.values.calls.call import ToolCall
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.convert import content_text
from ferrule.values.content.parts import Audio, File, Image, Text
from ferrule.values.content.type import PART_END, PART_START, Type, split_parts

MEDIA = [Image, Audio, File]


@pytest.mark.parametrize("kind", MEDIA)
def test_a_part_carries_its_bytes_or_an_address_and_not_both(kind):
    """Ours."""
    assert kind(url="https://x/y").address == "https://x/y"
    assert kind(data="YWI=").address == f"data:{kind(data='YWI=').media_type};base64,YWI="
    for fields in ({}, {"url": "https://x/y", "data": "YWI="}, {"url": None}):
        with pytest.raises(ValidationError, match=f"`{kind.__name__}` takes exactly one of `data` \\(base64\\) and `url`"):
            kind(**fields)


def test_bytes_travel_as_base64():
    """Ours: RFC 2397."""
    content = bytes(range(256))
    image = Image.from_bytes(content, "image/gif")
    assert image.media_type == "image/gif"
    assert base64.b64decode(image.data or "") == content
    assert Image.from_bytes(b"", "image/gif").address == "data:image/gif;base64,"


@pytest.mark.parametrize(
    ("kind", "name", "media_type"),
    [
        (Image, "a.png", "image/png"),
        (Image, "a.JPG", "image/jpeg"),
        (File, "a.pdf", "application/pdf"),
        (File, "a", "application/octet-stream"),
    ],
    ids=["png", "jpg", "pdf", "unknown"],
)
def test_a_file_is_read_and_its_type_told_by_its_name(tmp_path, kind, name, media_type):
    """Ours."""
    path = tmp_path / name
    path.write_bytes(b"ab")
    part = kind.from_file(path)
    assert (part.data, part.media_type) == ("YWI=", media_type)
    assert kind.from_file(str(path)) == part


def test_the_type_of_a_file_does_not_depend_on_the_programs_of_the_machine(tmp_path, monkeypatch):
    """Windows takes types from its registry: with Excel installed, a `.csv` is Excel's there."""
    monkeypatch.setattr(mimetypes, "guess_type", lambda *_, **__: ("application/x-of-this-machine", None))
    for name, media_type in (("a.csv", "text/csv"), ("a.webp", "image/webp"), ("a.xyz17", "application/x-of-this-machine")):
        (tmp_path / name).write_bytes(b"ab")
        assert File.from_file(tmp_path / name).media_type == media_type


def test_a_file_keeps_its_name(tmp_path):
    """Ours: the model is told what it reads."""
    path = tmp_path / "report.pdf"
    path.write_bytes(b"ab")
    assert File.from_file(path).format() == [
        {"type": "file", "file": {"filename": "report.pdf", "file_data": "data:application/pdf;base64,YWI="}},
    ]


def test_parts_format_as_openai_writes_them():
    """D30, D31: the canonical form is OpenAI's."""
    assert Text(text="hi").format() == [{"type": "text", "text": "hi"}]
    assert Image(url="https://x/y").format() == [{"type": "image_url", "image_url": {"url": "https://x/y"}}]
    assert Image(data="YWI=").format() == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,YWI="}}]
    assert File(url="https://x/y").format() == [{"type": "file", "file": {"filename": "file", "file_data": "https://x/y"}}]


@pytest.mark.parametrize(
    ("media_type", "name"),
    [
        ("audio/wav", "wav"),
        ("audio/x-wav", "wav"),
        ("audio/wave", "wav"),
        ("audio/mpeg", "mp3"),
        ("audio/mp3", "mp3"),
        ("audio/flac", "flac"),
    ],
)
def test_a_sound_is_named_by_what_openai_calls_its_format(media_type, name):
    """Ours: `mimetypes` says `audio/mpeg` for an mp3 and `audio/x-wav` for a wav; the protocol takes neither."""
    assert Audio(data="YWI=", media_type=media_type).format() == [{"type": "input_audio", "input_audio": {"data": "YWI=", "format": name}}]


@pytest.mark.parametrize("name", ["a.wav", "a.mp3"])
def test_a_sound_read_from_a_file_has_a_format_that_is_taken(tmp_path, name):
    """Ours."""
    path = tmp_path / name
    path.write_bytes(b"ab")
    [part] = Audio.from_file(path).format()
    assert part["input_audio"]["format"] == name[-3:]


def test_parts_are_values():
    """Ours: compared by content, hashable, unchangeable, and never shown with all their bytes."""
    image = Image.from_bytes(b"a" * 3000, "image/png")
    assert image == Image.from_bytes(b"a" * 3000, "image/png") != Image.from_bytes(b"b", "image/png")
    assert len({image, Image.from_bytes(b"a" * 3000, "image/png")}) == 1
    assert image == copy.deepcopy(image) == pickle.loads(pickle.dumps(image))
    assert repr(image) == "Image(3000 bytes, image/png)"
    assert repr(Image(url="https://x/y")) == "Image(https://x/y, image/png)"
    with pytest.raises(ValidationError):
        image.media_type = "image/gif"


def test_content_as_text_names_what_is_no_text():
    """Ours: what stands in the trajectory beside text results."""
    assert content_text("plain") == "plain"
    assert content_text((Text(text="see"), Image(url="https://x/y"), Text(text="!"))) == "see\n[Image(https://x/y, image/png)]\n!"
    assert content_text(()) == ""


class Photo(Type):
    address: str

    def format(self) -> list[dict[str, Any]]:
        return [{"type": "image_url", "image_url": {"url": self.address}}]

    @classmethod
    def description(cls) -> str:
        return "a photo"


class Small(Photo):
    pass


class Place(Type):
    name: str
    photo: Photo | None = None


Photos = TypeAliasType("Photos", list[Photo])
Endless = type("TypeAliasType", (), {})()  # `type Endless = dict[str, Endless] | Photo`, which Python 3.11 cannot read
Endless.__value__ = dict[str, Endless] | Photo


@pytest.mark.parametrize(
    ("annotation", "found"),
    [
        (Photo, [Photo]),
        (Small, [Small]),
        (list[dict[str, Photo]], [Photo]),
        (Optional[Photo], [Photo]),  # noqa: UP045  the form under test
        (dict[str, Photo | list[Small]], [Photo, Small]),
        (Annotated[tuple[Photo, ...], "pictures"], [Photo]),
        (Callable[[Photo], int], [Photo]),
        (Photos, [Photo]),
        (list[Photos | None], [Photo]),
        (Endless, [Photo]),
        (str, []),
        (list, []),
        (BaseModel, []),
        (Literal["Photo"], []),
        (Any, []),
        (None, []),
        ("Photo", []),
        (Photo(address="a"), []),
    ],
    ids=range(18),
)
def test_types_are_found_at_any_depth_of_an_annotation(annotation, found):
    """D31: `list[dict[str, Tool]]`."""
    assert Photo.extract_custom_type_from_annotation(annotation) == found


def test_only_subclasses_of_the_class_that_asks_are_found():
    """D31."""
    assert Type.extract_custom_type_from_annotation(dict[str, Photo | ToolCalls]) == [Photo, ToolCalls]
    assert ToolCalls.extract_custom_type_from_annotation(dict[str, Photo | ToolCalls]) == [ToolCalls]


def test_what_a_type_does_not_say_has_a_quiet_default():
    """D31: `adapt_to_native_lm_feature`, `is_streamable`, `parse_lm_response`, `parse_stream_chunk`."""
    signature, settings = object(), {"temperature": 0}
    assert Place.adapt_to_native_lm_feature(signature, "place", None, settings) is signature
    assert settings == {"temperature": 0}
    assert Place.is_streamable() is False
    assert Place.parse_lm_response("text") is None
    assert Place.parse_stream_chunk(object()) is None
    assert Place.description() == ""
    assert Photo.description() == "a photo"


def test_a_type_is_written_as_it_formats():
    """D31: `serialize_model`; a list of parts is wrapped in the markers, anything else goes as it is."""
    packed = f'{PART_START}[{{"type":"image_url","image_url":{{"url":"a"}}}}]{PART_END}'
    assert Photo(address="a").model_dump() == packed
    assert json.loads(Photo(address="a").model_dump_json()) == packed
    assert Place(name="here").model_dump() == {"name": "here", "photo": None}
    assert Place(name="here", photo=Photo(address="a")).model_dump() == {"name": "here", "photo": packed}


def test_a_type_stands_in_any_pydantic_annotation():
    """D31: a user's own subclass works in a signature, which checks its fields by pydantic."""
    made = TypeAdapter(dict[str, list[Place]]).validate_python({"a": [{"name": "x", "photo": {"address": "b"}}]})
    assert made == {"a": [Place(name="x", photo=Photo(address="b"))]}


def test_text_without_parts_comes_back_unchanged():
    """Ours."""
    for text in ("", "plain", f"a stray {PART_END}", PART_START[:-1]):
        assert split_parts(text) == text


def test_a_packed_value_is_taken_out_of_the_text_around_it():
    """D31, D43: the adapter takes the parts out again when it builds the message."""
    text = f"Before\n{Photo(address='a').model_dump()}\n \n{Photo(address='b').model_dump()} after"
    assert split_parts(text) == [
        {"type": "text", "text": "Before\n"},
        {"type": "image_url", "image_url": {"url": "a"}},
        {"type": "image_url", "image_url": {"url": "b"}},
        {"type": "text", "text": " after"},
    ]


def test_what_is_no_packed_list_stays_text():
    """Ours: a prompt must not be lost because somebody wrote a marker into it."""
    for inside in ("no JSON", '{"type": "text"}', '"text"', "[" * 100_000, ""):
        assert split_parts(f"{PART_START}{inside}{PART_END}") == [{"type": "text", "text": inside}]
    assert split_parts(f"open {PART_START}[1]") == [{"type": "text", "text": f"open {PART_START}[1]"}]


texts = st.text(st.characters(exclude_categories=()), max_size=12) | st.sampled_from(
    [PART_START, PART_END, f"{PART_END}[]{PART_START}", '"', '\\"', "\\", "\\n\n", "\x00", "ü\u2028", "\ud800", "</", "<", "\\u003c"]
)


@given(st.lists(texts, min_size=1, max_size=3).map("".join), st.integers(0, 3), st.booleans())
def test_any_text_survives_packing_also_inside_json_inside_json(text, strings_around, ascii_only):
    """Ours: a value in a dict in a prompt is packed inside JSON text; no text of a part ends the marking early."""
    packed = Text(text=text).model_dump()
    for _ in range(strings_around):
        packed = json.dumps({"value": packed}, ensure_ascii=ascii_only)
    found = split_parts(packed)
    assert isinstance(found, list)
    assert {"type": "text", "text": text} in found
    assert len(found) == (3 if strings_around else 1)


def test_a_picture_among_values_survives_as_a_part():
    """D31: nested, `list[dict[str, Image]]`."""
    from ferrule.values.encoding.encode import json_text

    text = json_text([{"a": Image(url="https://x/1.png")}, {"b": 2}])
    found = split_parts(f"pictures: {text}")
    assert {"type": "image_url", "image_url": {"url": "https://x/1.png"}} in found


def test_a_call_is_no_type_but_calls_are():
    """D28: what stands in a signature is `ToolCalls`."""
    assert not issubclass(ToolCall, Type)
    assert issubclass(ToolCalls, Type)


@pytest.mark.parametrize("path", ["photo.png", "/tmp/photo.png", "C:\\photo.png", "file:///tmp/photo.png", ""])
def test_a_path_is_no_address_and_the_error_names_what_reads_files(path):
    with pytest.raises(ValueError, match=r"Image\.from_file\(path\)"):
        Image(url=path)
    assert Image(url="gs://bucket/photo.png").url == "gs://bucket/photo.png"
