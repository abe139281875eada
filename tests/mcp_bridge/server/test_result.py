"""What tools return, as content blocks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_talk import ERAS, call, refusal, talk
from pydantic import BaseModel

from ferrule import Audio, File, Image, Text, Tool
from ferrule.errors import ToolRetry
from ferrule.mcp_bridge import MCPApp
from ferrule.mcp_bridge.server.result import replace_surrogates, wire_result
from ferrule.tools.execution.run import run_call
from ferrule.tools.mcp.result import read_result
from ferrule.values.calls.call import CheckedArguments, CheckedCall, ToolCall, ToolResult
from ferrule.values.outcome import Prediction

types = pytest.importorskip("mcp_types", reason="needs the extra: pip install 'ferrule[mcp]'")


class Point(BaseModel):
    x: int


@dataclass
class Pair:
    left: int


def returned(value: object, output_schema: dict | None = None) -> dict:
    tool = Tool(lambda: value, "t")
    return wire_result(
        run_call(CheckedCall(ToolCall(name="t"), tool, CheckedArguments((), {}, {}))),
        output_schema,
    )


def texts(*found: str) -> list[dict]:
    return [{"type": "text", "text": each} for each in found]


@pytest.mark.parametrize(
    ("value", "content", "structured"),
    [
        pytest.param("hi", texts("hi"), None, id="text"),
        pytest.param("", texts(""), None, id="empty text"),
        pytest.param(3, texts("3"), None, id="number"),
        pytest.param(None, texts("null"), None, id="nothing"),
        pytest.param([1, "a"], texts('[1,"a"]'), None, id="list"),
        pytest.param({"a": 1}, texts('{"a":1}'), {"a": 1}, id="dict"),
        pytest.param({}, texts("{}"), {}, id="empty dict"),
        pytest.param(Point(x=1), texts('{"x":1}'), {"x": 1}, id="model"),
        pytest.param(Pair(2), texts('{"left":2}'), {"left": 2}, id="dataclass"),
        pytest.param(Pair, texts(str(Pair)), None, id="class"),
        pytest.param(
            Prediction(answer="x"),
            texts('{"answer":"x"}'),
            {"answer": "x"},
            id="prediction",
        ),
        pytest.param(
            Image(data="AA=="),
            [{"type": "image", "data": "AA==", "mimeType": "image/png"}],
            None,
            id="picture",
        ),
        pytest.param(
            Audio(data="AA=="),
            [{"type": "audio", "data": "AA==", "mimeType": "audio/wav"}],
            None,
            id="sound",
        ),
        pytest.param(
            File(data="AA==", name="a b.pdf", media_type="application/pdf"),
            [
                {
                    "type": "resource",
                    "resource": {
                        "uri": "attachment:///a%20b.pdf",
                        "mimeType": "application/pdf",
                        "blob": "AA==",
                    },
                },
            ],
            None,
            id="file",
        ),
        pytest.param(
            Image(url="https://example.org/a.png"),
            [
                {
                    "type": "resource_link",
                    "uri": "https://example.org/a.png",
                    "name": "image",
                    "mimeType": "image/png",
                },
            ],
            None,
            id="address of a picture",
        ),
        pytest.param(
            ["a", Image(data="AA=="), {"b": 1}, Text(text="c")],
            [
                *texts("a"),
                {"type": "image", "data": "AA==", "mimeType": "image/png"},
                *texts('{"b":1}', "c"),
            ],
            None,
            id="mixture in order",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:The tool .* has no form in JSON")
def test_what_a_tool_returns_becomes_blocks_in_order(
    value: object,
    content: list,
    structured: object,
) -> None:
    expected = (
        {"content": content}
        if structured is None
        else {"content": content, "structuredContent": structured}
    )
    assert returned(value) == expected
    assert types.CallToolResult.model_validate(expected)


def test_blocks_and_results_of_the_sdk_pass_as_they_are() -> None:
    block = types.ResourceLink(uri="a://b", name="b")
    whole = types.CallToolResult(content=[block])
    assert returned(whole) is whole
    assert returned(block)["content"] == [block]
    assert returned(["a", block, Image(data="AA==")])["content"] == [
        *texts("a"),
        block,
        {"type": "image", "data": "AA==", "mimeType": "image/png"},
    ]
    asked = types.InputRequiredResult(request_state="s")
    assert returned(asked) is asked


def test_the_result_of_another_server_is_handed_on_whole() -> None:
    """Nothing is lost on the way through two servers."""
    raw = {
        "content": [
            {"type": "text", "text": "t", "annotations": {"audience": ["user"]}},
            {"type": "odd", "x": 1},
        ],
        "structuredContent": {"a": [1]},
    }
    assert wire_result(read_result(raw).as_tool_result("t")) == {**raw, "isError": False}


def test_an_error_is_marked() -> None:
    assert wire_result(ToolResult("t", "no", is_error=True)) == {
        "content": texts("no"),
        "isError": True,
    }


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param({"x": "a"}, 'x: expected an integer, got "a"', id="wrong type"),
        pytest.param("text", "the value is not an object", id="no object"),
    ],
)
def test_what_breaks_its_own_promise_is_an_error(value: object, problem: str) -> None:
    """Specification, "Output schema": a server must return what it promised."""
    found = returned(value, Point.model_json_schema())
    assert found["isError"]
    assert problem in found["content"][0]["text"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_whatever_is_json_gives_a_valid_result(value: object) -> None:
    """Property."""
    found = returned(value)
    assert types.CallToolResult.model_validate(found)
    assert found.get("structuredContent") == (value if isinstance(value, dict) else None)


class Color(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        pytest.param(int, 3, 3, id="int"),
        pytest.param(str, "a", "a", id="str"),
        pytest.param(str | None, None, None, id="nothing"),
        pytest.param(list[Point], [Point(x=1)], [{"x": 1}], id="models"),
        pytest.param(set[int], {1}, [1], id="set"),
        pytest.param(dict[str, int], {"a": 1}, {"a": 1}, id="dict"),
        pytest.param(tuple[int, Pair], (1, Pair(2)), [1, {"left": 2}], id="tuple"),
        pytest.param(Color, Color.RED, "red", id="enum"),
        pytest.param(Decimal, Decimal("1.50"), "1.50", id="decimal"),
        pytest.param(timedelta, timedelta(days=1), "P1D", id="duration"),
        pytest.param(datetime, datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z", id="time"),
        pytest.param(UUID, UUID(int=1), str(UUID(int=1)), id="uuid"),
    ],
)
@pytest.mark.parametrize("era", ERAS)
def test_a_plain_result_is_wrapped_as_its_schema_says(
    era: str,
    kind: object,
    value: object,
    expected: object,
) -> None:
    """The SDK's client validates it."""

    def give() -> object:
        return value

    give.__annotations__["return"] = kind
    result = call(MCPApp([give]), era, "give")
    assert not result.is_error, result.content
    assert result.structured_content == {"result": expected}
    assert [each.type for each in result.content] == ["text"]


@pytest.mark.parametrize("value", ["three", None, 3.5])
def test_a_plain_result_of_another_type_is_an_error(value: object) -> None:
    """As for objects."""

    def give() -> int:
        return value  # type: ignore[return-value]

    result = call(MCPApp([give]), ERAS[0], "give")
    assert result.is_error
    assert "does not fit its output schema: result: expected an integer" in result.content[0].text


LONE = "a\ud800b"


@given(st.text(st.characters(categories=["L", "P", "Cs", "So"])))
def test_whole_text_can_be_written_and_what_could_be_already_is_as_it_was(value: str) -> None:
    """M75, property."""
    found = replace_surrogates(value)
    found.encode()
    assert replace_surrogates(found) == found
    pairs = value.encode("utf-16", "surrogatepass")
    try:
        assert found == pairs.decode("utf-16")
    except UnicodeDecodeError:
        assert "\ufffd" in found


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(LONE, id="text"),
        pytest.param({LONE: [LONE]}, id="object"),
        pytest.param(types.TextContent(type="text", text=LONE), id="a block of the SDK"),
        pytest.param(
            types.CallToolResult(content=[], structured_content={"x": object(), "y": LONE}),
            id="a result of the SDK",
        ),
        pytest.param(ToolRetry(LONE), id="an error"),
    ],
)
@pytest.mark.filterwarnings("ignore:The tool .* has no form in JSON")
def test_a_result_that_json_cannot_hold_is_sent_all_the_same(era: str, value: object) -> None:
    """It would end a server over standard output."""

    def give() -> object:
        if isinstance(value, Exception):
            raise value
        return value

    sent = call(MCPApp([give]), era, "give").model_dump_json()
    assert "a\ufffdb" in sent


def test_an_error_of_the_protocol_and_a_list_that_json_cannot_hold_are_sent_all_the_same() -> None:
    from mcp.shared.exceptions import MCPError

    def fail() -> None:
        raise MCPError(-32001, LONE)

    app = MCPApp([Tool(fail, desc=LONE)])
    assert refusal(app, ERAS[0], "fail").message == "a\ufffdb"

    async def listed(connected):
        return await connected.list_tools()

    assert talk(app, ERAS[0], listed).tools[0].description == "a\ufffdb"
