"""Nothing that a model or a tool writes moves a cursor, changes a colour or hides."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.encoding.safe_text import clip_lines, conceal, one_line, printable, reveal


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
