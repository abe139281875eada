import base64
import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ferrule.errors import FerruleError, MCPProtocolError, MCPToolError
from ferrule.tools.mcp.result import asks_for_input, read_result
from ferrule.tools.mcp.showing import ShowRules
from ferrule.values.content.parts import Audio, Image, Text

PNG = base64.b64encode(bytes(range(256)) * 4).decode()
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
PICTURE = Image(data=PNG, media_type="image/png")


def text(said, **annotations):
    return {"type": "text", "text": said, **({"annotations": annotations} if annotations else {})}


def test_blocks_keep_their_order():
    """As `get-tiny-image` sends them."""
    found = read_result({"content": [text("here:"), IMAGE, text("that was it")], "_meta": {"k": 1}})
    assert found.text == "here:\nthat was it"
    assert found.images == (PICTURE,)
    assert found.content == (Text(text="here:"), PICTURE, Text(text="that was it"))
    assert found.value == ["here:", PICTURE, "that was it"]
    assert (found.meta, found.is_error, found.structured, found.audio, found.resources) == (
        {"k": 1},
        False,
        None,
        (),
        (),
    )


def test_each_kind_is_found_by_its_name():
    link = {"type": "resource_link", "uri": "demo://a", "name": "a"}
    inside = {
        "type": "resource",
        "resource": {"uri": "demo://b", "blob": PNG, "mimeType": "audio/wav"},
    }
    found = read_result({"content": [link, inside]})
    assert [each.uri for each in found.resources] == ["demo://a", "demo://b"]
    assert found.audio == (Audio(data=PNG, media_type="audio/wav"),)
    assert found.value == [link, Audio(data=PNG, media_type="audio/wav")]


@pytest.mark.parametrize(
    ("raw", "value", "content"),
    [
        pytest.param({"content": [text("one")]}, "one", "one", id="one text"),
        pytest.param({"content": [text("a"), text("b")]}, ["a", "b"], "a\nb", id="two texts"),
        pytest.param({"content": []}, [], "", id="nothing"),
        pytest.param({"structuredContent": {"a": 1}}, {"a": 1}, '{"a":1}', id="structured alone"),
        pytest.param(
            {"content": [], "structuredContent": [1, 2]},
            [1, 2],
            "[1,2]",
            id="a list as structured",
        ),
        pytest.param({"content": "bare"}, "bare", "bare", id="a bare text"),
        pytest.param({"content": text("one")}, "one", "one", id="a block without its list"),
        pytest.param({"content": None, "structured_content": 3}, 3, "3", id="snake case"),
    ],
)
def test_what_a_call_returns_and_what_a_model_is_shown(raw, value, content):
    """Odd results are read, not refused."""
    found = read_result(raw)
    assert (found.value, found.content) == (value, content)


def test_results_of_the_sdk_read_like_plain_ones():
    types = pytest.importorskip("mcp_types")
    raw = {
        "content": [text("x"), IMAGE],
        "structuredContent": {"a": None},
        "isError": True,
        "_meta": {"k": 1},
    }
    assert read_result(types.CallToolResult.model_validate(raw)) == read_result(raw)


def test_what_is_no_result_is_an_error_of_the_protocol():
    with pytest.raises(MCPProtocolError) as caught:
        read_result(3, server="s", tool="t")
    assert (caught.value.server, caught.value.tool, caught.value.phase, caught.value.data) == (
        "s",
        "t",
        "call",
        3,
    )


# -- each thing once

SAME = {
    "as JSON text": ([text('{\n  "a": 1\n}')], {"a": 1}, '{"a":1}'),
    "text in one field": ([text("line\n")], {"content": "line\n"}, "line\n"),
    "a list of texts": ([text("1"), text("2")], {"result": [1, 2]}, "1\n2"),
    "a number in one field": ([text("3")], {"result": 3}, "3"),
    "a list as one JSON text": (
        [text('[{"a": 1}, {"a": 2}]')],
        {"result": [{"a": 1}, {"a": 2}]},
        '[{"a": 1}, {"a": 2}]',
    ),
    "the blocks themselves": ([IMAGE], {"content": [IMAGE]}, (PICTURE,)),
    "JSON text beside a picture": (
        [text('{"a": 1}'), IMAGE],
        {"a": 1},
        (PICTURE, Text(text='{"a":1}')),
    ),
}


@pytest.mark.parametrize(("blocks", "structured", "content"), SAME.values(), ids=SAME.keys())
def test_what_is_said_twice_is_shown_once(blocks, structured, content):
    found = read_result({"content": blocks, "structuredContent": structured})
    assert found.content == content
    assert found.structured == structured
    assert [each.raw for each in found.blocks] == blocks


def test_what_differs_is_shown_both():
    """A summary beside the data."""
    assert (
        read_result({"content": [text("3 found")], "structuredContent": {"ids": [1, 2, 3]}}).content
        == '3 found\n{"ids":[1,2,3]}'
    )


@pytest.mark.parametrize(
    ("mode", "content"),
    [("content", "3 found"), ("structured", '{"n":3}'), ("both", '3 found\n{"n":3}')],
)
def test_a_mode_chooses(mode, content):
    found = read_result(
        {"content": [text("3 found")], "structuredContent": {"n": 3}},
        rules=ShowRules(result_mode=mode),
    )
    assert found.content == content


@pytest.mark.parametrize("mode", ["auto", "content", "structured", "both"])
def test_pictures_are_always_shown(mode):
    found = read_result(
        {"content": [text("x"), IMAGE], "structuredContent": {"n": 3}},
        rules=ShowRules(result_mode=mode),
    )
    assert PICTURE in found.content


def test_bytes_never_become_text():
    """`read_media_file` sends the picture in both; elsewhere it is only in the structured value."""
    for structured in (
        {"content": [IMAGE]},
        {"picture": PNG, "n": 1},
        {"a": [{"url": f"data:image/png;base64,{PNG}"}]},
    ):
        for mode in ("auto", "structured", "both"):
            found = read_result(
                {"content": [IMAGE], "structuredContent": structured},
                rules=ShowRules(result_mode=mode),
            )
            texts = [each.text for each in found.content if isinstance(each, Text)]
            assert PNG not in "".join(texts)
            assert PICTURE in found.content
            assert found.structured == structured


def test_prose_is_not_taken_for_bytes():
    long = "word " * 100
    assert json.loads(read_result({"structuredContent": {"a": long, "b": "a" * 300}}).content) == {
        "a": long,
        "b": "a" * 300,
    }


BOTH = {"content": [text("3 found")], "structuredContent": {"n": 3}}


@pytest.mark.parametrize(
    ("mode", "value"),
    [("auto", "3 found"), ("content", "3 found"), ("structured", {"n": 3}), ("both", "3 found")],
)
def test_the_mode_chooses_the_value_of_a_direct_call_too(mode, value):
    """DSPy's `result_mode`."""
    assert read_result(BOTH, rules=ShowRules(result_mode=mode)).value == value


@pytest.mark.parametrize("mode", ["auto", "content", "structured", "both"])
def test_where_one_of_the_two_is_missing_the_other_is_used(mode):
    rules = ShowRules(result_mode=mode)
    alone = read_result({"content": [], "structuredContent": {"n": 3}}, rules=rules)
    assert (alone.value, alone.content) == ({"n": 3}, '{"n":3}')
    without = read_result({"content": [text("3 found")]}, rules=rules)
    assert (without.value, without.content) == ("3 found", "3 found")


@pytest.mark.parametrize("structured", [None, False, 0, "", [], {}])
def test_every_json_value_may_be_structured(structured):
    """From MCP 2026-07-28 on."""
    found = read_result(
        {"content": [text("x")], "structuredContent": structured},
        rules=ShowRules(result_mode="structured"),
    )
    assert (found.value, type(found.value), found.content) == (
        structured,
        type(structured),
        json.dumps(structured),
    )


def test_null_differs_from_no_structured_value():
    null, none = (
        read_result({"content": [], "structuredContent": None}),
        read_result({"content": []}),
    )
    assert null != none
    assert [each.has_structured for each in (null, none)] == [True, False]
    assert [each.value for each in (null, none)] == [None, []]
    assert [each.text for each in (null, none)] == ["null", ""]
    assert [each.content for each in (null, none)] == ["null", ""]


def test_null_fits_a_schema_that_takes_it_and_no_other():
    nullable = {"type": ["integer", "null"]}
    assert (
        read_result({"content": [], "structuredContent": None}, output_schema=nullable).problems
        == ()
    )
    with pytest.warns(UserWarning, match="there is none"):
        assert read_result({"content": []}, output_schema=nullable).problems
    with pytest.warns(UserWarning, match="does not fit its output schema"):
        assert read_result(
            {"content": [], "structuredContent": None},
            output_schema={"type": "integer"},
        ).problems


def test_null_beside_blocks_is_shown_only_where_it_was_asked_for():
    """Some servers send null where they mean no structured value."""
    raw = {"content": [text("3 found")], "structuredContent": None}
    shown = {
        mode: read_result(raw, rules=ShowRules(result_mode=mode)).content
        for mode in ("auto", "content", "structured", "both")
    }
    assert shown == {
        "auto": "3 found",
        "content": "3 found",
        "structured": "null",
        "both": "3 found\nnull",
    }


def test_null_in_a_result_of_the_sdk_is_kept():
    types = pytest.importorskip("mcp_types")
    for raw in ({"content": [], "structuredContent": None}, {"content": []}):
        assert read_result(types.CallToolResult.model_validate(raw)) == read_result(raw)


# -- for whom, how much


def test_blocks_for_the_user_alone_are_kept_and_not_shown():
    raw = {
        "content": [
            text("for all"),
            text("for you", audience=["user"]),
            text("for the model", audience=["assistant"]),
        ],
    }
    assert read_result(raw).content == "for all\nfor the model"
    assert read_result(raw).text == "for all\nfor you\nfor the model"
    assert (
        read_result(raw, rules=ShowRules(user_blocks=True)).content
        == "for all\nfor you\nfor the model"
    )
    assert (
        read_result({"content": [text("x", audience=["user"])]}).content
        == "(The result is for the user's eyes only.)"
    )


def test_20_megabytes_are_cut_for_the_model_and_kept():
    found = read_result({"content": [text("A" * 19_999_999 + "Z")]})
    assert len(found.content) < 101_000
    assert "19900000 of 20000000 characters left out" in found.content
    assert (found.content[0], found.content[-1]) == ("A", "Z")
    assert len(found.value) == 20_000_000


def test_the_limit_is_of_all_texts_together():
    rules = ShowRules(most_characters=10)
    found = read_result({"content": [text("a" * 8), IMAGE, text("b" * 8)]}, rules=rules)
    first, picture, second = found.content
    assert (first.text, picture) == ("a" * 8, PICTURE)
    assert second.text.startswith("bb\n… [6 of 8")
    assert (
        read_result(
            {"content": [text("a" * 300_000)]},
            rules=ShowRules(most_characters=None),
        ).content
        == "a" * 300_000
    )


def test_characters_that_nobody_sees_are_not_shown():
    found = read_result({"content": [text("a\u200b\x1b[31mb\u202e")]})
    assert (found.content, found.text) == ("ab", "a\u200b\x1b[31mb\u202e")


# -- output schemas

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "at": {"$ref": "#/$defs/At"}},
    "required": ["n"],
    "$defs": {
        "At": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
    },
}


def test_a_structured_value_that_fits_is_typed():
    found = read_result(
        {"content": [], "structuredContent": {"n": 3, "at": {"zone": "UTC"}}},
        output_schema=SCHEMA,
    )
    assert found.problems == ()
    assert (found.typed.n, found.typed.at.zone) == (3, "UTC")


def test_a_type_of_ones_own():
    class Found(BaseModel):
        n: int

    found = read_result({"structuredContent": {"n": 3}}, rules=ShowRules(result_type=Found))
    assert found.typed == Found(n=3)
    assert read_result(
        {"structuredContent": {"n": 3}},
        rules=ShowRules(result_type=dict[str, int]),
    ).typed == {"n": 3}


def test_a_value_that_breaks_the_schema_is_a_warning_and_kept():
    with pytest.warns(
        UserWarning,
        match="`t` of the MCP server `s` does not fit its output schema: n: expected an integer",
    ):
        found = read_result(
            {"content": [text("x")], "structuredContent": {"n": "no"}},
            output_schema=SCHEMA,
            server="s",
            tool="t",
        )
    assert found.problems == ('n: expected an integer, got "no"',)
    assert (found.structured, found.typed, found.value) == ({"n": "no"}, {"n": "no"}, "x")


def test_a_value_that_is_missing_is_a_warning_too():
    with pytest.warns(UserWarning, match="there is none"):
        read_result({"content": [text("x")]}, output_schema=SCHEMA)


def test_strict_output_is_an_error_that_carries_the_value():
    with pytest.raises(MCPProtocolError) as caught:
        read_result(
            {"structuredContent": {"n": "no"}},
            output_schema=SCHEMA,
            rules=ShowRules(strict_output=True),
            tool="t",
        )
    assert (caught.value.data, caught.value.may_have_run) == ({"n": "no"}, True)


def test_the_result_of_a_failure_need_not_fit():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_result(
            {"content": [text("no such file")], "isError": True},
            output_schema=SCHEMA,
        )
    assert found.is_error


@pytest.mark.parametrize("said", ["true", "yes", 1, {"code": 5}])
def test_a_failure_of_another_type_is_no_success(said):
    assert read_result({"content": [text("no such file")], "isError": said}).is_error


def test_a_failure_is_an_error_that_says_where():
    error = read_result({"content": [text("no such file")], "isError": True}).error(
        server="s",
        tool="t",
    )
    assert isinstance(error, MCPToolError)
    assert isinstance(error, RuntimeError)
    assert str(error) == "`t` of the MCP server `s` failed: no such file"
    assert (error.server, error.tool, error.phase, error.may_have_run) == ("s", "t", "call", True)


def test_a_text_that_only_sounds_like_a_failure_is_left_alone():
    """As the sqlite server reports them."""
    found = read_result(
        {"content": [text("Error: Only SELECT queries are allowed")]},
    ).as_tool_result("t")
    assert (found.is_error, found.error) == (False, None)


def test_questions_of_a_server_are_told_from_results():
    assert asks_for_input({"resultType": "input_required", "inputRequests": {}})
    assert not asks_for_input({"content": []})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=8), inside, max_size=4)
    ),
    max_leaves=12,
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "audio", "resource", "resource_link", "video", 3])},
    optional={
        each: JSON | st.just("AAAA")
        for each in ("text", "data", "mimeType", "resource", "uri", "annotations", "name", "size")
    },
)


@given(
    JSON
    | st.fixed_dictionaries(
        {},
        optional={
            "content": st.lists(BLOCK | JSON, max_size=4) | JSON,
            "structuredContent": JSON,
            "isError": JSON,
            "_meta": JSON,
        },
    ),
)
def test_junk_raises_nothing_but_our_errors(raw):
    """And every block is kept."""
    try:
        found = read_result(raw)
    except FerruleError:
        assert not isinstance(raw, dict)
        return
    content = raw.get("content")
    if isinstance(content, list):
        assert len(found.blocks) == len(content)
    assert isinstance(found.text, str)
    assert found.as_tool_result("t").value is found
    assert isinstance(repr(found), str)
