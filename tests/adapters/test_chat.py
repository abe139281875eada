"""`ChatAdapter`: fields below markers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.adapters.chat import ChatAdapter, MarkerReader, Markers
from ferrule.errors import AdapterParseError
from ferrule.values.conversation.exchange import Response
from ferrule.values.signatures.signature import Signature

CHAT = ChatAdapter()
TWO = Signature("q -> why, answer")
ONE = Signature("q -> answer")

TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "as asked": ("[[ ## why ## ]]\nA\n\n[[ ## answer ## ]]\nB\n\n[[ ## completed ## ]]", {"why": "A", "answer": "B"}),
    "without the last marker": ("[[ ## why ## ]]\nA\n[[ ## answer ## ]]\nB", {"why": "A", "answer": "B"}),
    "in one line": ("[[ ## why ## ]] A [[ ## answer ## ]] B [[ ## completed ## ]]", {"why": "A", "answer": "B"}),
    "inline in a block": ("[[ ## why ## ]]\nbecause [[ ## answer ## ]] B", {"why": "because", "answer": "B"}),
    "with words before": ("Sure, here it is.\n[[ ## why ## ]]\nA\n[[ ## answer ## ]]\nB", {"why": "A", "answer": "B"}),
    "with words behind": ("[[ ## why ## ]]\nA\n[[ ## answer ## ]]\nB\n[[ ## completed ## ]]\nHope it helps!", {"why": "A", "answer": "B"}),
    "in a fence": ("```\n[[ ## why ## ]]\nA\n[[ ## answer ## ]]\nB\n```", {"why": "A", "answer": "B"}),
    "in a fence with a language": ("Here:\n```text\n[[ ## why ## ]]\nA\n[[ ## answer ## ]]\nB\n[[ ## completed ## ]]\n```", {"why": "A", "answer": "B"}),
    "out of order": ("[[ ## answer ## ]]\nB\n[[ ## why ## ]]\nA", {"why": "A", "answer": "B"}),
    "other blanks": ("[[##why##]]\nA\n  [[  ##  answer  ##  ]]B", {"why": "A", "answer": "B"}),
    "carriage returns": ("[[ ## why ## ]]\r\nA\r\n\r\n[[ ## answer ## ]]\r\nB\r\n", {"why": "A", "answer": "B"}),
    "unknown markers are text": ("[[ ## why ## ]]\nA [[ ## note ## ]] x\n[[ ## other ## ]]\n[[ ## answer ## ]]\nB", {"why": "A [[ ## note ## ]] x\n[[ ## other ## ]]", "answer": "B"}),
    "spoken of in backticks": ("[[ ## why ## ]]\nI end with `[[ ## completed ## ]]` after `[[ ## answer ## ]]`.\n[[ ## answer ## ]]\nB", {"why": "I end with `[[ ## completed ## ]]` after `[[ ## answer ## ]]`.", "answer": "B"}),
    "dressed in backticks": ("`[[ ## why ## ]]`\nA\n`[[ ## answer ## ]]`\nB", {"why": "A", "answer": "B"}),
    "one backtick between two": ("`[[ ## why ## ]]`[[ ## answer ## ]]`\nB", {"why": "", "answer": "`\nB"}),
    "spoken of, then meant": ("[[ ## why ## ]]\nI fill in [[ ## answer ## ]] next\n\n[[ ## answer ## ]]\nB", {"why": "I fill in [[ ## answer ## ]] next", "answer": "B"}),
    "spoken of before": ("I write [[ ## why ## ]] and [[ ## answer ## ]] now.\n[[ ## why ## ]]\nA\n[[ ## answer ## ]]\nB", {"why": "A", "answer": "B"}),
    "spoken of behind": ("[[ ## why ## ]]\nA\n[[ ## answer ## ]]\nB, see [[ ## why ## ]] and [[ ## answer ## ]].", {"why": "A", "answer": "B, see [[ ## why ## ]] and [[ ## answer ## ]]."}),
    "the end spoken of": ("[[ ## why ## ]]\nA\n[[ ## answer ## ]]\nEnd with [[ ## completed ## ]].\nB\n[[ ## completed ## ]]\nC", {"why": "A", "answer": "End with [[ ## completed ## ]].\nB"}),
    "behind the end": ("[[ ## why ## ]]\nA [[ ## answer ## ]] B\n[[ ## completed ## ]]\nOr:\n[[ ## answer ## ]]\nC", {"why": "A", "answer": "B"}),
    "in one line, and again": ("[[ ## why ## ]] A [[ ## answer ## ]] B [[ ## answer ## ]] C [[ ## completed ## ]] D", {"why": "A", "answer": "B [[ ## answer ## ]] C"}),
    "twice": ("[[ ## why ## ]]\nA\n[[ ## answer ## ]]\nB\n[[ ## why ## ]]\nC\n[[ ## answer ## ]]\nD", {"why": "A", "answer": "B"}),
    "half a marker in a value": ("[[ ## why ## ]]\n[[ ## \n[[ x\n[[ ## answer ## ]]\n[[ ## answer", {"why": "[[ ## \n[[ x", "answer": "[[ ## answer"}),
    "a fence in a value": ("[[ ## why ## ]]\n```py\nx\n```\n[[ ## answer ## ]]\n```\ny\n```", {"why": "```py\nx\n```", "answer": "```\ny\n```"}),
    "empty values": ("[[ ## why ## ]]\n\n[[ ## answer ## ]]\n\n[[ ## completed ## ]]", {"why": "", "answer": ""}),
}  # fmt: skip


@pytest.mark.parametrize(("text", "found"), TEXTS.values(), ids=TEXTS)
def test_fields_are_found_however_their_markers_stand(text: str, found: dict[str, Any]) -> None:
    assert CHAT.parse(TWO, text) == found


@pytest.mark.parametrize(
    "text",
    ["42", "answer: 42", '{"answer": 42}', "[[ ## other ## ]]\n42", "[[ ## completed ## ]]"],
)
def test_an_answer_without_a_known_marker_cannot_be_read(text: str) -> None:
    """The fallback is for these."""
    with pytest.raises(AdapterParseError, match=r"ChatAdapter.*\n.*answer"):
        CHAT.parse(ONE, text)


@pytest.mark.parametrize(
    "args",
    ['{"a": 1}', "{'a': 1,}", '```json\n{"a": 1}\n```', '  {"a":\n1}  '],
)
def test_values_are_mended_where_they_are_json(args: str) -> None:
    made = Signature("q -> n: int, args: dict[str, Any]")
    assert CHAT.parse(
        made,
        f"[[ ## n ## ]]\n7\n[[ ## args ## ]]\n{args}\n[[ ## completed ## ]]",
    ) == {"n": 7, "args": {"a": 1}}


def test_a_type_that_a_text_fits_is_asked_for_as_text() -> None:
    """Who is asked for JSON puts texts in quotes."""
    assert ": text as it is, or JSON that fits the schema {" in CHAT.format_system_message(
        Signature("q -> a: list[str] | str"),
    )
    assert CHAT.parse(Signature("q -> a: int | str"), "[[ ## a ## ]]\ntrue") == {"a": "true"}


IN_STRINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "another field's": ('[[ ## quotes ## ]]\n["[[ ## v ## ]]"]\n[[ ## v ## ]]\nx', {"quotes": ["[[ ## v ## ]]"], "v": "x"}),
    "its own, and the end": ('[[ ## quotes ## ]] ["[[ ## quotes ## ]] \\" [[##completed##]]"] [[ ## v ## ]] x', {"quotes": ['[[ ## quotes ## ]] " [[##completed##]]'], "v": "x"}),
    "in backticks": ('[[ ## quotes ## ]]\n["`[[ ## v ## ]]`",\n "b"]\n[[ ## v ## ]]\nx', {"quotes": ["`[[ ## v ## ]]`", "b"], "v": "x"}),
    "the last field": ('[[ ## v ## ]]\nx\n[[ ## quotes ## ]]\n["[[ ## completed ## ]]"]', {"quotes": ["[[ ## completed ## ]]"], "v": "x"}),
    "texts are no JSON": ('[[ ## v ## ]]\n["[[ ## quotes ## ]]\n["a"]', {"quotes": ["a"], "v": '["'}),
    "a string that never ended": ('[[ ## quotes ## ]]\n["a"]\n"b\n[[ ## v ## ]]\nx', {"v": "x"}),
    "a string cut by its line": ('[[ ## quotes ## ]]\n["a\n[[ ## v ## ]]\nx', {"v": "x"}),
    "words in quotation marks": ('[[ ## quotes ## ]]\nso "[[ ## v ## ]]\nx', {"v": "x"}),
}  # fmt: skip


@pytest.mark.parametrize(("text", "found"), IN_STRINGS.values(), ids=IN_STRINGS)
def test_a_marker_in_a_string_of_json_is_text(text: str, found: dict[str, Any]) -> None:
    """Of a field that is no plain text; a value that was cut is told as before."""
    made = Signature("q -> quotes: list[str], v")
    try:
        assert CHAT.parse(made, text) == found
    except AdapterParseError as error:
        assert error.parsed == found
        assert "quotes" not in found
    for size in (1, 2, 7, 1000):
        reader = CHAT.reader(made)
        pieces = [
            piece for at in range(0, len(text), size) for piece in reader.feed(text[at : at + size])
        ]
        pieces += reader.finish()
        for name in ("quotes", "v"):
            assert "".join(piece for own, piece in pieces if own == name) == CHAT.raw_fields(
                made,
                text,
            ).get(name, "")


def test_an_output_called_completed_is_an_output() -> None:
    made = Signature("q -> completed: bool, rest")
    text = CHAT.format_assistant_message_content(made, {"completed": True, "rest": "x"})
    assert CHAT.parse(made, text) == {"completed": True, "rest": "x"}


def streamed(text: str, cuts: list[int], structured: tuple[str, ...] = ()) -> dict[str, str]:
    reader = MarkerReader(Markers(("why", "answer"), "completed", structured=structured))
    at, found = 0, {}
    pieces: list[tuple[str, str]] = []
    for cut in sorted({min(cut, len(text)) for cut in cuts} | {len(text)}):
        pieces += reader.feed(text[at:cut])
        at = cut
    pieces += reader.finish()
    for name, piece in pieces:
        assert piece
        found[name] = found.get(name, "") + piece
    return found


WORDS = st.sampled_from(
    ["[[ ## why ## ]]", "[[ ## answer ## ]]", "[[ ## completed ## ]]", "[[ ## other ## ]]", "[[", "[", "]]", " ## ", "`", "```", "\n", " ", "a", "word", "\n\n", "[[ ## an", "[[ ## why", "\t", "é"],
)  # fmt: skip


@given(st.lists(WORDS, max_size=14).map("".join), st.lists(st.integers(0, 150), max_size=20))
def test_a_streamed_answer_gives_the_same_for_any_split(text: str, cuts: list[int]) -> None:
    """Deltas add up to the raw field."""
    whole = Markers(("why", "answer"), "completed").split(text)
    assert streamed(text, cuts) == {name: value for name, value in whole.items() if value}


JSON_WORDS = st.sampled_from(
    ['"', '{"a": "', '"}', "\\", "[", "]", "{", "}", " " * 300, "\n" * 600, "```text\n", "x" * 300],
)


@given(
    st.lists(WORDS | JSON_WORDS, max_size=14).map("".join),
    st.lists(st.integers(0, 900), max_size=20),
)
def test_a_streamed_value_of_json_gives_the_same_for_any_split(text: str, cuts: list[int]) -> None:
    """U165, also where strings hold markers, and where more is held than is kept."""
    marks = Markers(("why", "answer"), "completed", structured=("why",))
    assert streamed(text, cuts, ("why",)) == {
        name: value for name, value in marks.split(text).items() if value
    }


BLANK = {
    "in a value": "[[ ## answer ## ]]\n{" + "\n" * 400_000,
    "in a value within a fence": "```\n[[ ## answer ## ]]\nx" + " `" * 120_000 + "y",
    "in a marker": "[[ ## answer ## ]]\nx [[ ##" + " " * 400_000,
    "before any marker": "```" + "\n" * 400_000 + "[[ ## answer ## ]]",
    "before a line's marker": "[[ ## answer ## ]]\nx\n" + " " * 400_000 + "[[ ## why ## ]]",
}


@pytest.mark.parametrize("piece_size", [16, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("text", BLANK.values(), ids=BLANK)
def test_blanks_are_read_in_linear_work(text: str, piece_size: int) -> None:
    """They took minutes to hours."""
    reader = MarkerReader(Markers(("why", "answer"), "completed"))
    pieces: list[tuple[str, str]] = []
    for start in range(0, len(text), piece_size):
        pieces += reader.feed(text[start : start + piece_size])
    whole = Markers(("why", "answer"), "completed").split(text)
    assert "".join(piece for _, piece in [*pieces, *reader.finish()]) == whole["answer"]


def test_a_fence_around_the_answer_is_looked_for_in_linear_work() -> None:
    text = "```\n[[ ## answer ## ]]\nx" + "\n" * 1_000_000 + "y"
    assert Markers(("answer",), "completed").split(text)["answer"] == text[23:].strip()


@given(st.lists(WORDS, max_size=14).map("".join), st.lists(st.integers(0, 150), max_size=20))
def test_no_piece_of_a_marker_that_counts_is_ever_handed_out(text: str, cuts: list[int]) -> None:
    """A value may speak of a marker within a line."""
    for value in streamed(text, cuts).values():
        for line in value.split("\n")[1:]:
            assert not line.lstrip(" \t").startswith(
                ("[[ ## why ## ]]", "[[ ## answer ## ]]", "[[ ## completed ## ]]"),
            )


@given(st.lists(WORDS, max_size=14).map("".join))
def test_any_text_without_marks_is_a_value(text: str) -> None:
    text = text.replace("[[", "").replace("`", "")
    answer = f"[[ ## why ## ]]\n{text}\n[[ ## answer ## ]]\nB\n[[ ## completed ## ]] and more"
    split = Markers(("why", "answer"), "completed").split(answer)
    assert split == {"why": text.strip(), "answer": "B"}


def test_text_comes_as_soon_as_it_is_certain() -> None:
    """Field deltas."""
    reader = CHAT.reader(TWO)
    assert reader.feed("Hm.\n[[ ## why ## ]]\nOne") == [("why", "One")]
    assert reader.feed(" two [[ #") == [("why", " two")]
    assert reader.feed("x") == [("why", " [[ #x")]
    assert reader.feed("\n\n[[ ## answer ## ]]") == []
    assert reader.feed(" 4") == [("answer", "4")]
    assert reader.feed("2 [[ ## completed ## ]] bye") == [("answer", "2")]
    assert reader.feed("[[ ## why ## ]] more") == []


def test_text_behind_a_marker_within_a_line_comes_when_it_is_certain() -> None:
    """Field deltas."""
    reader = CHAT.reader(TWO)
    assert reader.feed("[[ ## why ## ]]\nI fill in [[ ## answer ## ]] next") == [
        ("why", "I fill in"),
    ]
    assert reader.feed("\n[[ ## answer ## ]]\nB") == []
    assert reader.finish() == [("why", " [[ ## answer ## ]]"), ("why", " next"), ("answer", "B")]


def test_what_is_kept_back_is_read_in_linear_work() -> None:
    value = "`\n[[ ## " * 120_000 + "x"
    text = f"[[ ## why ## ]]\nx [[ ## answer ## ]]{value}"
    reader = MarkerReader(Markers(("why", "answer"), "completed"))
    pieces = [piece for at in range(0, len(text), 2) for piece in reader.feed(text[at : at + 2])]
    assert (
        "".join(piece for name, piece in [*pieces, *reader.finish()] if name == "answer") == value
    )


def test_long_answers_are_read_piece_by_piece() -> None:
    """What is settled is let go."""
    reader = MarkerReader(Markers(("answer",), "completed"))
    pieces = [piece for _ in range(5000) for piece in reader.feed("word ")]
    pieces += [
        piece
        for text in ("\n[[ ## answer ## ]]", *["word "] * 5000, "[[ ## completed ## ]]")
        for piece in reader.feed(text)
    ]
    assert "".join(piece for _, piece in pieces) == ("word " * 5000).strip()
    assert len(reader._buffer.text) < 2000


def test_the_end_marker_has_another_name_where_outputs_have_its_names() -> None:
    """One named like it was cut out of the answer, and missing."""
    both = Signature("question -> end_of_answer, completed: int")
    asked = CHAT.opening(both, {"question": "x"})[-1].text
    assert asked.endswith("and end with `[[ ## end_of_the_answer ## ]]`.")
    answer = CHAT.answer_content(both, {"end_of_answer": "A", "completed": 3})
    assert CHAT.read(both, Response(answer)) == {"end_of_answer": "A", "completed": 3}
