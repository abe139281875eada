"""Parts of a message."""

from __future__ import annotations

import base64
import copy
import mimetypes
import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError, model_validator

from ferrule import History, InputField, OutputField, Predict, Signature
from ferrule.errors import InputError
from ferrule.testing import ScriptedLM
from ferrule.values.content.parts import Audio, File, Image, Text

MEDIA = [Image, Audio, File]


@pytest.mark.parametrize("kind", MEDIA)
def test_a_part_carries_its_bytes_or_an_address_and_not_both(kind):
    assert kind(url="https://x/y").address == "https://x/y"
    assert kind(data="YWI=").address == f"data:{kind(data='YWI=').media_type};base64,YWI="
    for fields in ({}, {"url": "https://x/y", "data": "YWI="}, {"url": None}):
        with pytest.raises(
            ValidationError,
            match=f"`{kind.__name__}` takes exactly one of `data` \\(base64\\) and `url`",
        ):
            kind(**fields)


@pytest.mark.parametrize(
    "content", ["!!", "YWI", "YW I=", "YW\nI=", "YWI=YWI=", "-_-_", "\u00e4\u00e4"]
)
@pytest.mark.parametrize("kind", MEDIA)
def test_content_that_is_not_base64_is_refused(kind, content):
    """A provider would refuse the whole request."""
    for fields in ({"data": content}, {"url": f"data:image/png;base64,{content}"}):
        with pytest.raises(ValidationError, match="not valid base64"):
            kind(**fields)
    with pytest.raises(InputError, match="not valid base64"):
        History([{"role": "user", "content": [_form(kind, content)]}]).as_messages(lambda _: [])


def _form(kind, content):
    address = f"data:image/png;base64,{content}"
    if kind is Image:
        return {"type": "image_url", "image_url": {"url": address}}
    if kind is Audio:
        return {"type": "input_audio", "input_audio": {"data": content, "format": "wav"}}
    return {"type": "file", "file": {"filename": "a", "file_data": address}}


def test_bytes_travel_as_base64():
    """RFC 2397."""
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
    path = tmp_path / name
    path.write_bytes(b"ab")
    part = kind.from_file(path)
    assert (part.data, part.media_type) == ("YWI=", media_type)
    assert kind.from_file(str(path)) == part


def test_the_type_of_a_file_does_not_depend_on_the_programs_of_the_machine(tmp_path, monkeypatch):
    """Windows takes types from its registry: with Excel installed, a `.csv` is Excel's there."""
    monkeypatch.setattr(
        mimetypes,
        "guess_type",
        lambda *_, **__: ("application/x-of-this-machine", None),
    )
    for name, media_type in (
        ("a.csv", "text/csv"),
        ("a.webp", "image/webp"),
        ("a.xyz17", "application/x-of-this-machine"),
    ):
        (tmp_path / name).write_bytes(b"ab")
        assert File.from_file(tmp_path / name).media_type == media_type


@pytest.mark.parametrize(("name", "other"), [("a.pdf", "File"), ("a.mp3", "Audio")])
def test_a_file_of_another_type_is_no_image_and_the_error_names_what_reads_it(
    tmp_path,
    name,
    other,
):
    """It was sent as an image."""
    (tmp_path / name).write_bytes(b"ab")
    for read in (Image.from_path, Image.from_file):
        with pytest.raises(
            InputError,
            match=rf"found '.*{name}' .* Use `{other}\.from_path\(path\)`",
        ):
            read(tmp_path / name)
    (tmp_path / "a").write_bytes(b"ab")
    assert Image.from_path(tmp_path / "a").data == "YWI="


@pytest.mark.parametrize("kind", [Image, Audio, File])
def test_a_value_without_a_name_or_of_bytes_is_refused_with_what_takes_it(kind):
    """Pydantic's error named nothing, and bytes of ASCII were taken for base64."""
    for make in (lambda: kind("https://x/y"), lambda: kind(data=b"ab")):
        with pytest.raises(
            InputError,
            match=rf"`{kind.__name__}\(url=\.\.\.\)` for an address, .*from_file.*from_bytes",
        ):
            make()


@pytest.mark.parametrize("kind", [Image, Audio, File])
@pytest.mark.parametrize(
    "given",
    ["https://x/y.png", b"ab", Path("y.png")],
    ids=["an address", "bytes", "a path"],
)
def test_an_input_of_another_type_is_refused_with_what_makes_one(kind, given):
    """pydantic's error asked for a dictionary."""
    signature = Signature({"many": (list[kind], InputField()), "answer": (str, OutputField())})
    how = rf"`many` 0: should be .* an instance of {kind.__name__}: `{kind.__name__}\(url=\.\.\.\)` for an address, .*from_file.*from_bytes"
    with pytest.raises(InputError, match=how):
        Predict(signature)(many=[given], lm=ScriptedLM([]))
    fitting = kind(url="https://x/y.png")
    assert signature.check_inputs({"many": [fitting, {"url": "https://x/y.png"}]}) == {
        "many": [fitting, fitting],
    }


def test_a_subclass_may_take_an_address_where_an_instance_is_expected():
    class Photo(Image):
        @model_validator(mode="before")
        @classmethod
        def of_address(cls, value):
            return {"url": value} if isinstance(value, str) else value

    signature = Signature({"photo": (Photo, InputField()), "answer": (str, OutputField())})
    assert signature.check_inputs({"photo": "https://x/y.png"}) == {
        "photo": Photo(url="https://x/y.png"),
    }


def test_a_file_keeps_its_name(tmp_path):
    """The model is told what it reads."""
    path = tmp_path / "report.pdf"
    path.write_bytes(b"ab")
    assert File.from_file(path).format() == [
        {
            "type": "file",
            "file": {"filename": "report.pdf", "file_data": "data:application/pdf;base64,YWI="},
        },
    ]


def test_parts_format_as_openai_writes_them():
    """The canonical form is OpenAI's."""
    assert Text(text="hi").format() == [{"type": "text", "text": "hi"}]
    assert Image(url="https://x/y").format() == [
        {"type": "image_url", "image_url": {"url": "https://x/y"}},
    ]
    assert Image(data="YWI=").format() == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,YWI="}},
    ]
    assert File(url="https://x/y").format() == [
        {"type": "file", "file": {"filename": "file", "file_data": "https://x/y"}},
    ]


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
    """`mimetypes` says `audio/mpeg` for an mp3 and `audio/x-wav` for a wav; the protocol takes
    neither.
    """
    assert Audio(data="YWI=", media_type=media_type).format() == [
        {"type": "input_audio", "input_audio": {"data": "YWI=", "format": name}},
    ]


@pytest.mark.parametrize("name", ["a.wav", "a.mp3"])
def test_a_sound_read_from_a_file_has_a_format_that_is_taken(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"ab")
    [part] = Audio.from_file(path).format()
    assert part["input_audio"]["format"] == name[-3:]


def test_parts_are_values():
    """Compared by content, hashable, unchangeable, and never shown with all their bytes."""
    image = Image.from_bytes(b"a" * 3000, "image/png")
    assert (
        image == Image.from_bytes(b"a" * 3000, "image/png") != Image.from_bytes(b"b", "image/png")
    )
    assert len({image, Image.from_bytes(b"a" * 3000, "image/png")}) == 1
    assert image == copy.deepcopy(image) == pickle.loads(pickle.dumps(image))
    assert repr(image) == "Image(3000 bytes, image/png)"
    assert repr(Image(url="https://x/y")) == "Image(https://x/y, image/png)"
    with pytest.raises(ValidationError):
        image.media_type = "image/gif"


@pytest.mark.parametrize(
    "path",
    ["photo.png", "/tmp/photo.png", "C:\\photo.png", "file:///tmp/photo.png", ""],
)
def test_a_path_is_no_address_and_the_error_names_what_reads_files(path):
    with pytest.raises(ValueError, match=r"Image\.from_file\(path\)"):
        Image(url=path)
    assert Image(url="gs://bucket/photo.png").url == "gs://bucket/photo.png"
