"""`JSONAdapter`: JSON objects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.adapters.json_object import JSONAdapter, JSONReader
from ferrule.errors import AdapterParseError
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.conversation.exchange import Capabilities, Request, Response, Shape
from ferrule.values.conversation.message import Messages
from ferrule.values.signatures.signature import InputField, OutputField, Signature

JSON = JSONAdapter()
TWO = Signature("q -> why, n: int")
ANSWER = {"why": "A", "n": 1}

TEXTS = {
    "plain": '{"why": "A", "n": 1}',
    "other keys beside": '{"why": "A", "x": null, "n": 1}',
    "numbers as text": '{"why": "A", "n": "1"}',
    "in a fence": '```json\n{"why": "A", "n": 1}\n```',
    "in prose": 'Sure! Here {is it}: {"why": "A", "n": 1} Hope it helps {really}.',
    "in prose, with a fence": 'Sure:\n```json\n{"why": "A", "n": 1}\n```\nDone.',
    "with slips": "{'why': 'A', n: 1,}",
    "the same twice": '{"why": "A", "n": 1}\n{"why": "A", "n": 1}',
    "a part, then the whole": '{"why": "x"} then {"why": "A", "n": 1}',
    "an extra brace": '{"why": "A", "n": 1}}',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_object_is_found_however_it_stands(text: str) -> None:
    assert JSON.parse(TWO, text) == ANSWER


@pytest.mark.parametrize(
    "text",
    ["junk", "[1]", '"text"', "null", "{}", '{"other": 1}', '{"why": "A", "n": '],
)
def test_what_holds_no_such_object_cannot_be_read(text: str) -> None:
    with pytest.raises(AdapterParseError) as raised:
        JSON.parse(TWO, text)
    assert raised.value.absent == {"why", "n"}


@pytest.mark.parametrize("text", ["    return x\n", "null", '"q"', "true", "1.5", "[1]"])
@pytest.mark.parametrize("kind", [str | None, int | str, float | str | None, Any], ids=str)
def test_a_string_of_the_object_is_that_string(text: str, kind: Any) -> None:
    """It was typed already."""
    made = Signature({"q": InputField(), "a": (kind, OutputField())})
    assert JSON.parse(made, json.dumps({"a": text})) == {"a": text}


def test_words_beside_any_object_are_read_as_in_every_form() -> None:
    """Lenient answers are texts, also here."""
    made = Signature({"q": InputField(), "a": (str | None, OutputField())})
    assert JSON.read(made, Response("null"), lenient=True) == {"a": None}


def test_two_different_objects_are_an_error_not_a_guess() -> None:
    with pytest.raises(AdapterParseError, match="2 different JSON objects"):
        JSON.parse(TWO, '{"why": "A", "n": 1} or {"why": "B", "n": 2}')


def test_null_is_no_text() -> None:
    """An error, not "None"."""
    with pytest.raises(AdapterParseError, match="why: should be a text, got null") as raised:
        JSON.parse(TWO, '{"why": null, "n": 1}')
    assert raised.value.parsed == {"n": 1}
    assert raised.value.absent == frozenset()


def test_constraints_are_enforced() -> None:
    made = Signature(
        {"q": InputField(), "a": (int, OutputField(ge=1)), "b": (str, OutputField(max_length=2))},
    )
    with pytest.raises(AdapterParseError) as raised:
        JSON.parse(made, '{"a": 0, "b": "xyz"}')
    assert [name for name, _ in raised.value.problems] == ["a", "b"]


def test_json_is_the_value_only_where_it_is_the_object() -> None:
    """Lenient answers that are JSON, but not this object, are text."""
    one = Signature("q -> answer")
    assert JSON.read(one, Response('{"x": 1}'), lenient=True) == {"answer": '{"x": 1}'}
    assert JSON.read(one, Response('{"answer": "y"}'), lenient=True) == {"answer": "y"}


def test_the_model_is_held_to_what_it_can_be_held_to() -> None:
    """E50; the brief's `shape`."""
    assert JSON.shape(TWO, Capabilities()) is None
    assert JSON.shape(TWO, None) is None
    assert JSON.shape(TWO, Capabilities(json_object=True)) == Shape("json_object")
    assert JSON.shape(TWO, Capabilities(json_schema=True)) == Shape(
        "json_schema",
        TWO.output_schema(),
    )
    assert JSON.shape(
        Signature("q -> args: dict[str, Any]"),
        Capabilities(json_schema=True),
    ) == Shape("json_object")
    assert JSON.shape(TWO.delete("why", "n"), Capabilities(json_schema=True)) is None
    calls = Signature({"q": InputField(), "a": (ToolCalls, OutputField())})
    assert JSON.shape(calls, Capabilities(json_schema=True)) is None
    assert JSON.request(TWO, Messages(), capabilities=Capabilities(json_object=True)) == Request(
        Messages(),
        shape=Shape("json_object"),
    )


def test_inputs_are_one_json_object() -> None:
    """It really renders JSON."""
    assert json.loads(
        JSON.format_user_message_content(
            Signature("a, b: list[int] -> c"), {"a": 'x"\n', "b": [1]}
        ),
    ) == {
        "a": 'x"\n',
        "b": [1],
    }


def streamed(text: str, cuts: list[int], names: tuple[str, ...]) -> dict[str, str]:
    reader = JSONReader(names)
    found: dict[str, str] = {}
    at = 0
    for cut in sorted({min(cut, len(text)) for cut in cuts} | {len(text)}):
        for name, piece in reader.feed(text[at:cut]):
            assert piece
            found[name] = found.get(name, "") + piece
        at = cut
    assert reader.finish() == []
    return found


BLANK = {
    "in a value": ('{"why": {' + "\r\n" * 200_000 + "}}", {"why": "{" + "\r\n" * 200_000 + "}"}),
    "after a value": (
        '{"why": 1' + " " * 400_000 + ', "answer": 2}',
        {"why": "1", "answer": "2"},
    ),
    "before the first key": ("{" + " " * 400_000 + '"why": 1}', {"why": "1"}),
    "in a key": ('{"' + " " * 400_000 + '": 1}', {}),
}


@pytest.mark.parametrize("piece_size", [16, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize(("text", "found"), BLANK.values(), ids=BLANK)
def test_blanks_are_read_in_linear_work(text: str, found: dict[str, str], piece_size: int) -> None:
    """By counting; they took minutes."""
    assert streamed(text, [*range(0, len(text), piece_size)], ("why", "answer")) == found


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["why", "n", "other", 'od"d', "é"]), VALUES),
    st.lists(st.integers(0, 200), max_size=30),
    st.booleans(),
    st.sampled_from([None, 2]),
    st.sampled_from(["", "Sure { x: ", "```json\n"]),
)
def test_a_streamed_object_gives_the_same_for_any_split(
    values: dict[str, Any],
    cuts: list[int],
    ascii_only: bool,
    indent: int | None,
    before: str,
) -> None:
    """Texts unescaped, other values as their JSON; escapes and surrogate pairs cut anywhere."""
    text = before + json.dumps(values, ensure_ascii=ascii_only, indent=indent) + " behind"
    found = streamed(text, cuts, ("why", "n"))
    assert found.keys() == {
        name for name, value in values.items() if name in {"why", "n"} and value != ""
    }
    for name, piece in found.items():
        value = values[name]
        assert (piece if isinstance(value, str) else json.loads(piece)) == value


@given(st.text(alphabet='{}[]",:\\u0dD8cC whyn1 \n'), st.lists(st.integers(0, 60), max_size=8))
def test_junk_is_split_without_an_error(text: str, cuts: list[int]) -> None:
    streamed(text, cuts, ("why", "n"))


def test_a_broken_object_falls_silent() -> None:
    assert streamed('{"why": "a\\u12q", "n": 1}', [], ("why", "n")) == {"why": "a"}
    assert streamed('{"why": "a" "n": 1}', [], ("why", "n")) == {"why": "a"}
    assert streamed("{'why': 'a'}", [], ("why", "n")) == {}


@pytest.mark.parametrize("escape", [r"\d", r"\q", r"\_", r"C:\Users", r"\unit", r"\'"])
@pytest.mark.parametrize("cut", range(1, 20))
def test_an_unknown_escape_streams_as_the_whole_answer_is_read(escape: str, cut: int) -> None:
    text = f'{{"why": "a{escape}b", "n": 1}}'
    whole = JSONAdapter().raw_fields(Signature("q -> why, n: int"), text)
    assert streamed(text, [cut], ("why", "n"))["why"] == whole["why"]
