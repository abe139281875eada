"""Nothing that a model or a tool writes moves a cursor, changes a colour or hides."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.encoding.safe_text import (
    IGNORABLE,
    clip_lines,
    conceal,
    exact,
    is_hidden,
    one_line,
    printable,
    reveal,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;c2VjcmV0\x07", ""),
        ("\x1bPq#0\x1b\\picture", "picture"),
        ("\x9b2Jgone", "gone"),
        ("\x1bcreset", "reset"),
        ("a\x08b\x00c\x7f", "abc"),
        ("one\r\ntwo\rthree", "one\ntwothree"),
        ("safe \u202eexe.txt", "safe exe.txt"),
        ("\ud800", "\ufffd"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("[bold]no markup[/bold] :smile:", "[bold]no markup[/bold] :smile:"),
        ("ünïcödé 漢字 🙂", "ünïcödé 漢字 🙂"),
    ],
)
def test_escapes_and_controls_are_gone_and_all_else_stays(text: str, expected: str) -> None:
    assert printable(text) == expected


@given(
    st.text(
        alphabet=st.one_of(
            st.characters(),
            st.sampled_from("\x1b\x9b[]0;m\x07\\PX^_\r\n\t\u202e\ud800"),
        ),
    ),
)
def test_no_text_keeps_a_control_character(text: str) -> None:
    left = printable(text)
    assert not [
        each for each in left if unicodedata.category(each) in {"Cc", "Cs"} and each not in "\n\t"
    ]
    left.encode()


def test_long_text_is_shortened_and_says_so() -> None:
    assert clip_lines("x" * 5000, characters=10) == "xxxxxxxxxx\n… (4990 more characters)"
    assert clip_lines("a\nb\nc", lines=2) == "a\nb\n… (2 more characters)"
    assert clip_lines("short") == "short"
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line("x" * 10, 5) == "xxxx…"


def test_what_a_person_decides_on_shows_what_cannot_be_seen() -> None:
    assert (
        reveal("a\u202eb\u200bc\x1b[2J\ud800\nd\té") == "a\\u202eb\\u200bc\\u001b[2J\\ud800\nd\té"
    )


def test_what_a_person_sends_back_has_its_invisible_characters_again() -> None:
    assert conceal(reveal("a\u200db\r\nc"), "a\u200db\r\nc") == "a\u200db\r\nc"
    assert conceal("x\\u200dy\\u202e", "a\u200db") == "x\u200dy\\u202e", (
        "only those of the original"
    )
    assert conceal("\\u200d", "\\u200d \u200d") == "\\u200d", "the original has the escape as text"


@pytest.mark.parametrize(
    "character",
    [
        "\u3164",
        "\u115f",
        "\u2800",
        "\u034f",
        "\ufe0f",
        "\U000e0100",
        "\U000e01ef",
        "\u2065",
        "\ue000",
    ],
    ids=ascii,
)
def test_a_character_without_a_visible_glyph_is_an_escape(character: str) -> None:
    assert is_hidden(character)
    assert reveal(f"a{character}b") == f"a{ascii(character)[1:-1]}b"


def test_all_that_unicode_derives_as_ignorable_is_hidden() -> None:
    """The rule of DerivedCoreProperties.txt: formats and variation selectors, without a few."""
    visible = set(range(0xFFF9, 0xFFFC)) | set(range(0x13430, 0x13440))
    ignorable = re.compile(f"[{IGNORABLE}]")
    for code in range(0x110000):
        character = chr(code)
        name = unicodedata.name(character, "")
        is_mark_before_digits = code in {0x600, 0x601, 0x602, 0x603, 0x604, 0x605, 0x6DD, 0x70F}
        is_exception = (
            code in visible
            or is_mark_before_digits
            or code in {0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
        )
        is_derived = unicodedata.category(character) == "Cf" and not is_exception
        if is_derived or "VARIATION SELECTOR" in name:
            assert ignorable.fullmatch(character), hex(code)


def test_texts_that_differ_never_look_the_same() -> None:
    assert exact("C:\\temp") == "C:\\temp"
    assert exact("C:\\users\u202e") == "C:\\\\users\\u202e"
    assert exact("a\u00a0b  \nc ") == "a\\u00a0b\\u0020\\u0020\nc\\u0020"


ODD = st.text(st.sampled_from("\\uU0a\u202e2 \n\t\u00a0e\U000e0041"), max_size=8)


@given(ODD, ODD)
def test_what_is_shown_exactly_can_be_read_back(one: str, other: str) -> None:
    assert (exact(one) == exact(other)) == (one == other)
    assert read_exact(exact(one)) == one


def read_exact(text: str) -> str:
    """The text that `exact` shows so."""

    def read(match: re.Match[str]) -> str:
        backslashes, code = len(match[1]), match[2]
        plain = "\\" * (backslashes // 2)
        if backslashes % 2:
            digits = 4 if code == "u" else 8
            rest = match[3]
            return plain + chr(int(rest[:digits], 16)) + rest[digits:]
        return plain + code + match[3]

    return re.sub(r"(\\+)(?=[uU])([uU])((?<=u)[0-9a-f]{4}|(?<=U)[0-9a-f]{8}|)", read, text)
