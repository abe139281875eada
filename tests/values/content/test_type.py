"""`Type`: values that define how a model sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, model_serializer
from typing_extensions import TypeAliasType

from ferrule.values.calls.call import ToolCall
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import Image, Text
from ferrule.values.content.type import PART_END, PART_START, Type, split_parts


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
Endless = type(
    "TypeAliasType",
    (),
    {},
)()  # `type Endless = dict[str, Endless] | Photo`, which Python 3.11 cannot read
Endless.__value__ = dict[str, Endless] | Photo


@pytest.mark.parametrize(
    ("annotation", "found"),
    [
        (Photo, [Photo]),
        (Small, [Small]),
        (list[dict[str, Photo]], [Photo]),
        (Optional[Photo], [Photo]),
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
    """`list[dict[str, Tool]]`."""
    assert Photo.extract_custom_type_from_annotation(annotation) == found


def test_only_subclasses_of_the_class_that_asks_are_found():
    assert Type.extract_custom_type_from_annotation(dict[str, Photo | ToolCalls]) == [
        Photo,
        ToolCalls,
    ]
    assert ToolCalls.extract_custom_type_from_annotation(dict[str, Photo | ToolCalls]) == [
        ToolCalls,
    ]


def test_what_a_type_does_not_say_has_a_quiet_default():
    """`adapt_to_native_lm_feature`, `is_streamable`, `parse_lm_response`, `parse_stream_chunk`."""
    signature, settings = object(), {"temperature": 0}
    assert Place.adapt_to_native_lm_feature(signature, "place", None, settings) is signature
    assert settings == {"temperature": 0}
    assert Place.is_streamable() is False
    assert Place.parse_lm_response("text") is None
    assert Place.parse_stream_chunk(object()) is None
    assert Place.description() == ""
    assert Photo.description() == "a photo"


def test_a_type_is_written_as_it_formats():
    """`serialize_model`; a list of parts is wrapped in the markers, anything else goes as it is."""
    packed = f'{PART_START}[{{"type":"image_url","image_url":{{"url":"a"}}}}]{PART_END}'
    assert Photo(address="a").model_dump() == packed
    assert json.loads(Photo(address="a").model_dump_json()) == packed
    assert Place(name="here").model_dump() == {"name": "here", "photo": None}
    assert Place(name="here", photo=Photo(address="a")).model_dump() == {
        "name": "here",
        "photo": packed,
    }


def test_a_type_stands_in_any_pydantic_annotation():
    """A user's own subclass works in a signature, which checks its fields by pydantic."""
    made = TypeAdapter(dict[str, list[Place]]).validate_python(
        {"a": [{"name": "x", "photo": {"address": "b"}}]},
    )
    assert made == {"a": [Place(name="x", photo=Photo(address="b"))]}


def test_text_without_parts_comes_back_unchanged():
    for text in ("", "plain", f"a stray {PART_END}", PART_START[:-1]):
        assert split_parts(text) == text


def test_a_packed_value_is_taken_out_of_the_text_around_it():
    """The adapter takes the parts out again when it builds the message."""
    text = f"Before\n{Photo(address='a').model_dump()}\n \n{Photo(address='b').model_dump()} after"
    assert split_parts(text) == [
        {"type": "text", "text": "Before\n"},
        {"type": "image_url", "image_url": {"url": "a"}},
        {"type": "image_url", "image_url": {"url": "b"}},
        {"type": "text", "text": " after"},
    ]


def test_what_is_no_packed_list_stays_text():
    """A prompt must not be lost because somebody wrote a marker into it."""
    for inside in ("no JSON", '{"type": "text"}', '"text"', "[" * 100_000, ""):
        assert split_parts(f"{PART_START}{inside}{PART_END}") == [{"type": "text", "text": inside}]
    assert split_parts(f"open {PART_START}[1]") == [
        {"type": "text", "text": f"open {PART_START}[1]"},
    ]


texts = st.text(st.characters(exclude_categories=()), max_size=12) | st.sampled_from(
    [
        PART_START,
        PART_END,
        f"{PART_END}[]{PART_START}",
        '"',
        '\\"',
        "\\",
        "\\n\n",
        "\x00",
        "ü\u2028",
        "\ud800",
        "</",
        "<",
        "\\u003c",
    ],
)


@given(st.lists(texts, min_size=1, max_size=3).map("".join), st.integers(0, 3), st.booleans())
def test_any_text_survives_packing_also_inside_json_inside_json(text, strings_around, ascii_only):
    """A value in a dict in a prompt is packed inside JSON text; no text of a part ends the marking
    early.
    """
    packed = Text(text=text).model_dump()
    for _ in range(strings_around):
        packed = json.dumps({"value": packed}, ensure_ascii=ascii_only)
    found = split_parts(packed)
    assert isinstance(found, list)
    assert {"type": "text", "text": text} in found
    assert len(found) == (3 if strings_around else 1)


def test_a_picture_among_values_survives_as_a_part():
    """Nested, `list[dict[str, Image]]`."""
    from ferrule.encoding.encode import json_text

    text = json_text([{"a": Image(url="https://x/1.png")}, {"b": 2}])
    found = split_parts(f"pictures: {text}")
    assert {"type": "image_url", "image_url": {"url": "https://x/1.png"}} in found


def test_a_call_is_no_type_but_calls_are():
    """What stands in a signature is `ToolCalls`."""
    assert not issubclass(ToolCall, Type)
    assert issubclass(ToolCalls, Type)


class Written(Type):
    inside: int = 1

    @model_serializer()
    def as_number(self) -> int:
        return self.inside


class Wrapped(Type):
    inside: int = 1

    @model_serializer(mode="wrap")
    def with_more(self, handler: Any) -> dict[str, Any]:
        return {**handler(self), "more": 2}


class Renamed(Photo):
    def serialize_model(self) -> Any:
        return "a photo"


def test_a_subclass_may_have_a_serializer_of_pydantic_or_override_ours():
    """Also inside another model, in a list, and after a rebuild."""

    class Holder(BaseModel):
        written: Written
        wrapped: list[Wrapped]
        renamed: Renamed | None

    held = Holder(written=Written(), wrapped=[Wrapped()], renamed=Renamed(address="a"))
    as_written = {"written": 1, "wrapped": [{"inside": 1, "more": 2}], "renamed": "a photo"}
    assert held.model_dump() == as_written
    Holder.model_rebuild(force=True)
    assert json.loads(held.model_dump_json()) == TypeAdapter(Holder).dump_python(held) == as_written
    assert [Written().model_dump(), Wrapped().model_dump(), Renamed(address="a").model_dump()] == [
        1,
        {"inside": 1, "more": 2},
        "a photo",
    ]


def test_the_schema_of_what_a_type_is_written_as_is_open():
    """`format` may return anything."""
    assert Place.model_json_schema(mode="serialization").get("properties") is None
    assert "properties" in Place.model_json_schema()
