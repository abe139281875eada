"""`XMLAdapter`: fields between tags."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from ferrule.adapters.xml_tags import TagReader, Tags, XMLAdapter
from ferrule.errors import AdapterParseError
from ferrule.values.signatures.signature import InputField, OutputField, Signature

XML = XMLAdapter()
TWO = Signature("q -> why, answer")

TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "as asked": ("<why>\nA\n</why>\n<answer>\nB\n</answer>", {"why": "A", "answer": "B"}),
    "in one line": ("<why>A</why><answer>B</answer>", {"why": "A", "answer": "B"}),
    "with words around": ("Sure: <why>A</why> and <answer>B</answer>, done & dusted <", {"why": "A", "answer": "B"}),
    "in a fence": ("```xml\n<why>A</why>\n<answer>B</answer>\n```", {"why": "A", "answer": "B"}),
    "in a root": ("<response>\n<why>A</why>\n<answer>B</answer>\n</response>", {"why": "A", "answer": "B"}),
    "raw ampersands and angles": ("<why>a & b < c > d &lt;</why><answer>x && y</answer>", {"why": "a & b < c > d &lt;", "answer": "x && y"}),
    "other tags inside": ("<why><b>A</b> <answer> </why><answer><i>B</i></answer>", {"why": "<b>A</b> <answer>", "answer": "<i>B</i>"}),
    "attributes": ('<why kind="x">A</why><answer\n>B</answer >', {"why": "A", "answer": "B"}),
    "an end tag forgotten": ("<why>A\n<answer>B</answer>", {"why": "A", "answer": "B"}),
    "the last end tag forgotten": ("<why>A</why>\n<answer>B", {"why": "A", "answer": "B"}),
    "twice": ("<why>A</why><answer>B</answer><why>C</why><answer>D</answer>", {"why": "A", "answer": "B"}),
    "both end tags forgotten": ("<why>\nA\n<answer>\nB", {"why": "A", "answer": "B"}),
    "a line's tag inside": ("<why>\nA\n<answer>\nx\n</why>\n<answer>B</answer>", {"why": "A\n<answer>\nx", "answer": "B"}),
    "spoken of, then meant": ("I write <answer> in tags.\n<why>\nA\n</why>\n <answer>\nB\n</answer>", {"why": "A", "answer": "B"}),
    "spoken of with its end": ("Like <answer>x</answer>:\n<why>A</why>\n<answer>B</answer>", {"why": "A", "answer": "B"}),
    "only ever within a line": ("So <why>A</why>, <answer>B\n</answer> or <answer>C</answer>", {"why": "A", "answer": "B"}),
    "behind an end tag": ("So <why>A</why> <answer>B\n<answer>\nC</answer>", {"why": "A", "answer": "B\n<answer>\nC"}),
    "its own end tag inside": ("<why>\nuse </why> tags\n</why>\n<answer>B</answer>", {"why": "use </why> tags", "answer": "B"}),
    "its own tags inside": ("<why>a <b>x</b> </why >y</why>z</why> <answer>B</answer>!", {"why": "a <b>x</b> </why >y</why>z", "answer": "B"}),
    "the last one's end tag inside": ("<why>A</why><answer>so </answer> ends it\n</answer>\nDone.", {"why": "A", "answer": "so </answer> ends it"}),
    "empty": ("<why></why><answer>\n</answer>", {"why": "", "answer": ""}),
}  # fmt: skip


@pytest.mark.parametrize(("text", "found"), TEXTS.values(), ids=TEXTS)
def test_fields_are_found_however_their_tags_stand(text: str, found: dict[str, Any]) -> None:
    assert XML.parse(TWO, text) == found


def test_json_between_tags_may_be_escaped() -> None:
    """Escaping that a model did of its own is undone where the value is none otherwise."""
    made = Signature("q -> args: dict[str, Any]")
    assert XML.parse(made, "<args>{&quot;a&quot;: &quot;x &amp; y&quot;}</args>") == {
        "args": {"a": "x & y"},
    }
    assert XML.parse(made, '<args>{"a": "x &amp; y"}</args>') == {"args": {"a": "x &amp; y"}}


@pytest.mark.parametrize(
    "text",
    ["junk", "</answer>", "<other>x</other>", "< answer>x</answer>", "<answers>x</answers>"],
)
def test_what_holds_no_such_tag_cannot_be_read(text: str) -> None:
    with pytest.raises(AdapterParseError):
        XML.parse(Signature("q -> answer"), text)


class Peak(BaseModel):
    title: str
    height: float | None = None
    names: list[str] = Field(default_factory=list[str])
    near: list[Peak] = Field(default_factory=list["Peak"])


NESTED: dict[str, tuple[str, Any]] = {
    "an object": (
        "<title>K2 & <![CDATA[<co>]]> &lt;b&gt;</title><height>8611</height>",
        Peak(title="K2 & <co> <b>", height=8611),
    ),
    "a tag for each item": (
        "<title>K2</title>\n<names>a</names><names>b</names>",
        Peak(title="K2", names=["a", "b"]),
    ),
    "one item": ("<title>K2</title><names>a</names>", Peak(title="K2", names=["a"])),
    "items within a tag": (
        "<title>K2</title><names><item>a</item><item>b</item></names>",
        Peak(title="K2", names=["a", "b"]),
    ),
    "no items": ("<title>K2</title><names></names>", Peak(title="K2")),
    "an object for each item": (
        "<title>K2</title><near><title>x</title></near><near><title>y</title></near>",
        Peak(title="K2", near=[Peak(title="x"), Peak(title="y")]),
    ),
}


@pytest.mark.parametrize(("text", "value"), NESTED.values(), ids=NESTED)
def test_a_value_of_nested_tags_is_read(text: str, value: Any) -> None:
    made = Signature({"q": InputField(), "peak": (Peak, OutputField())})
    assert XML.parse(made, f"<peak>\n{text}\n</peak>") == {"peak": value}
    listed = Signature({"q": InputField(), "peaks": (list[Peak], OutputField())})
    assert XML.parse(listed, f"<peaks><peak>{text}</peak><peak>{text}</peak></peaks>") == {
        "peaks": [value, value],
    }


def test_nested_tags_without_a_schema_are_an_object_of_texts() -> None:
    made = Signature("q -> more: dict[str, Any]")
    text = "<more><a>1</a><b><c>x</c></b><d>y</d><d>z</d></more>"
    assert XML.parse(made, text) == {"more": {"a": "1", "b": {"c": "x"}, "d": ["y", "z"]}}


@pytest.mark.parametrize(
    "text",
    [
        "<title>K2</title> or so",
        "<title>K2",
        "<title lang='en'>K2</title>",
        "<title>a <b>x</b></title>",
        "<title>K2</title><title>K3</title>",
        "<title>K2 \ud800</title>",
        "<title>&unknown;</title>" + "<a>" * 500,
        "<a>" * 500 + "</a>" * 500,
    ],
)
def test_nested_tags_that_would_lose_text_are_refused(text: str) -> None:
    with pytest.raises(AdapterParseError):
        XML.parse(
            Signature({"q": InputField(), "peak": (Peak, OutputField())}),
            f"<peak>{text}</peak>",
        )


def test_a_text_output_keeps_its_tags() -> None:
    assert XML.parse(TWO, "<why><b>x</b></why><answer><i>1</i></answer>") == {
        "why": "<b>x</b>",
        "answer": "<i>1</i>",
    }


def streamed(text: str, cuts: list[int]) -> dict[str, str]:
    reader = TagReader(Tags(("why", "answer")))
    pieces: list[tuple[str, str]] = []
    at = 0
    for cut in sorted({min(cut, len(text)) for cut in cuts} | {len(text)}):
        pieces += reader.feed(text[at:cut])
        at = cut
    found: dict[str, str] = {}
    for name, piece in [*pieces, *reader.finish()]:
        assert piece
        found[name] = found.get(name, "") + piece
    return found


VALUE = st.lists(
    st.sampled_from(
        [
            "a",
            " ",
            "\n",
            "<",
            "<b>",
            "</b>",
            "&amp;",
            "</",
            "<answ",
            "</wh",
            "<answer >",
            "é",
            "word",
        ],
    ),
    max_size=8,
).map("".join)


@given(VALUE, VALUE, VALUE, st.lists(st.integers(0, 200), max_size=20))
def test_a_streamed_answer_gives_the_same_for_any_split(
    before: str,
    why: str,
    answer: str,
    cuts: list[int],
) -> None:
    text = f"{before.replace('<answer >', '')}<why>{why}</why> <answer>{answer}</answer> behind <b>"
    whole = {name: value for name, value in Tags(("why", "answer")).split(text).items() if value}
    assert streamed(text, cuts) == whole


@given(
    st.lists(
        st.sampled_from(
            [
                "<why>",
                "</why>",
                "<answer>",
                "</answer>",
                "<",
                "/",
                "why",
                ">",
                " ",
                "x",
                "<why ",
                "\n",
            ],
        ),
        max_size=14,
    ).map("".join),
    st.lists(st.integers(0, 80), max_size=10),
)
def test_junk_is_split_without_an_error(text: str, cuts: list[int]) -> None:
    streamed(text, cuts)
    Tags(("why", "answer")).split(text)


TAGS = st.sampled_from(
    ["<why>", "</why>", "<answer>", "</answer>", "<answer x>", "</why >", "<why ", "</answer", "<", ">", "</", "<b>", "x", " ", "\n", "\n<why>", "\n <answer>", "\n</why>", "\n\n", " " * 300, "\n" * 600, "y" * 300],
)  # fmt: skip


@given(
    st.lists(TAGS, max_size=16).map("".join),
    st.lists(st.integers(0, 900), max_size=20),
    st.booleans(),
)
def test_any_text_of_tags_gives_the_same_for_any_split(
    text: str,
    cuts: list[int],
    by_character: bool,
) -> None:
    """U165; the one exception is a field begun anew, whose first words are out already."""
    tags = Tags(("why", "answer"))
    values = [name for name, _, _ in tags.values(text, 0, {})]
    whole = tags.split(text)
    found = streamed(text, [*range(len(text))] if by_character else cuts)
    for name in {*whole, *found}:
        if values.count(name) > 1:
            assert found.get(name, "").endswith(whole[name])
        else:
            assert found.get(name, "") == whole[name]


BLANK = {
    "in a value": "<why>\n{" + "\n" * 400_000,
    "in a tag": "<why   " + " " * 400_000 + ">x",
    "in an attribute": "<why " + "x" * 400_000 + ">x",
    "in an end tag": "<why>x</why   " + " " * 400_000 + ">",
    "where the end is in doubt": "<why>x\n<answer>" + "\n " * 200_000 + "</answer>y",
    "outside": "<why>x</why>" + " " * 400_000 + "<answer>",
}


@pytest.mark.parametrize("piece_size", [16, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("text", BLANK.values(), ids=BLANK)
def test_blanks_are_read_in_linear_work(text: str, piece_size: int) -> None:
    """They took minutes to hours."""
    found = streamed(text, [*range(0, len(text), piece_size)])
    assert found == {
        name: value for name, value in Tags(("why", "answer")).split(text).items() if value
    }


@pytest.mark.parametrize("piece_size", [16, pytest.param(2, marks=pytest.mark.long)])
def test_tags_without_an_end_are_split_in_linear_work(piece_size: int) -> None:
    text = "<why>\n<answer>\n" * 50_000 + "x"
    assert Tags(("why", "answer")).split(text) == {"why": "", "answer": ""}
    assert streamed(text, [*range(0, len(text), piece_size)]) == {}


def test_what_may_have_ended_a_value_is_kept_until_that_is_known() -> None:
    """Nothing is handed out under a wrong name."""
    reader = XML.reader(TWO)
    assert reader.feed("<why>A\n<answer>B") == [("why", "A")]
    assert reader.feed("</answer>") == []
    assert reader.finish() == [("answer", "B")]
    reader = XML.reader(TWO)
    assert reader.feed("<why>A\n<answer>B") == [("why", "A")]
    assert reader.feed("</why>") == [("why", "\n<answer>B")]


def test_text_comes_as_soon_as_it_is_certain() -> None:
    reader = XML.reader(TWO)
    assert reader.feed("<why>\nOne") == [("why", "One")]
    assert reader.feed(" two </w") == [("why", " two")]
    assert reader.feed("x") == [("why", " </wx")]
    assert reader.feed("</why><answer>4") == [("answer", "4")]
    assert reader.feed("</answer>") == []
