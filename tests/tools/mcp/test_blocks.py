import base64

import pytest

from ferrule.tools.mcp.blocks import read_block
from ferrule.values.content.parts import Audio, File, Image, Text

PNG = base64.b64encode(b"\x89PNG" * 5).decode()

KINDS = {
    "text": ({"type": "text", "text": "hi"}, Text(text="hi"), "hi"),
    "image": (
        {"type": "image", "data": PNG, "mimeType": "image/jpeg"},
        Image(data=PNG, media_type="image/jpeg"),
        None,
    ),
    "audio": (
        {"type": "audio", "data": PNG, "mimeType": "audio/mpeg"},
        Audio(data=PNG, media_type="audio/mpeg"),
        None,
    ),
    "text resource": (
        {
            "type": "resource",
            "resource": {"uri": "demo://a", "mimeType": "text/plain", "text": "in it"},
        },
        Text(text="in it"),
        "[resource, demo://a, text/plain]\nin it",
    ),
    "picture as a resource": (
        {
            "type": "resource",
            "resource": {"uri": "demo://a.png", "mimeType": "image/png", "blob": PNG},
        },
        Image(data=PNG, media_type="image/png"),
        None,
    ),
    "zipped resource": (
        {
            "type": "resource",
            "resource": {"uri": "demo://a/b.gz", "mimeType": "application/gzip", "blob": PNG},
        },
        File(data=PNG, media_type="application/gzip", name="b.gz"),
        "[resource, demo://a/b.gz, application/gzip, 20 bytes]",
    ),
    "damaged resource": (
        {
            "type": "resource",
            "resource": {"uri": "demo://a.png", "mimeType": "image/png", "blob": "%%%"},
        },
        None,
        "[resource, demo://a.png, image/png, 2 bytes]",
    ),
    "link": (
        {
            "type": "resource_link",
            "uri": "demo://x",
            "name": "X",
            "mimeType": "text/plain",
            "size": 7,
            "description": "an x",
        },
        None,
        "[resource link, demo://x, X, text/plain, 7 bytes: an x]",
    ),
    "drawing": (
        {"type": "image", "data": PNG, "mimeType": "image/svg+xml"},
        Image(data=PNG, media_type="image/svg+xml"),
        "[image, image/svg+xml, 20 bytes]",
    ),
    "unknown kind": (
        {"type": "video", "data": PNG, "mimeType": "video/mp4"},
        None,
        "[video, video/mp4, 20 bytes]",
    ),
    "damaged picture": (
        {"type": "image", "data": "%%%", "mimeType": "image/png"},
        None,
        "[image, image/png, 2 bytes]",
    ),
    "empty picture": (
        {"type": "image", "data": "", "mimeType": "image/png"},
        None,
        "[image, image/png, 0 bytes]",
    ),
    "no kind": ({"a": 1}, None, "[unknown]"),
}


@pytest.mark.parametrize(("raw", "part", "said"), KINDS.values(), ids=KINDS.keys())
def test_a_block_is_kept_whole_and_shown_as_far_as_it_can_be(raw, part, said):
    """Opaque where it is unknown, never an exception, and bytes never as text."""
    block = read_block(raw)
    assert block.raw == raw
    assert block.part == part
    shown = block.shown()
    assert shown == ((Text(text=said),) if said is not None else (part,))
    assert PNG not in repr(block)


def test_what_is_no_object_is_kept_as_unknown():
    block = read_block(3)
    assert (block.type, block.raw["value"], block.part) == ("unknown", 3, None)


def test_blocks_of_the_sdk_read_like_plain_ones():
    types = pytest.importorskip("mcp_types")
    raw = {
        "type": "image",
        "data": PNG,
        "mimeType": "image/png",
        "annotations": {"audience": ["user"], "priority": 0.5},
    }
    assert read_block(types.ImageContent.model_validate(raw)) == read_block(raw)


def test_audience_and_priority():
    block = read_block(
        {"type": "text", "text": "x", "annotations": {"audience": ["user"], "priority": 1}},
    )
    assert (block.audience, block.priority, block.is_for_user_only) == (("user",), 1.0, True)
    both = read_block(
        {"type": "text", "text": "x", "annotations": {"audience": ["user", "assistant"]}},
    )
    assert (both.is_for_user_only, both.priority) == (False, None)
    assert read_block({"type": "text", "text": "x", "annotations": 3}).audience == ()


def test_a_link_is_read_through_its_server():
    asked = []
    link = read_block({"type": "resource_link", "uri": "demo://x", "name": "x"}, asked.append)
    link.read()
    assert asked == ["demo://x"]
    with pytest.raises(ValueError, match="no `uri`"):
        read_block({"type": "text", "text": "x"}, asked.append).read()
    with pytest.raises(ValueError, match="`read_resource`"):
        read_block({"type": "resource_link", "uri": "demo://x"}).read()
