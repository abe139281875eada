"""What is private in command lines, addresses and logs. (M66)"""

from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from ferrule.mcp_bridge.redact import (
    References,
    expand,
    hidden_url,
    hidden_words,
    public_url,
    public_words,
    redact,
    redact_logs,
)


def test_an_address_is_shown_without_what_is_private() -> None:
    assert (
        public_url("https://a:b@example.com:8/x?key=v&n=1&v#f")
        == "https://example.com:8/x?key=***&n=***&***"
    )
    assert public_url("postgresql://u:p#w@h/db") == "postgresql://***"
    assert public_url("https://[::1]:3/@scope/x") == "https://[::1]:3/@scope/x"


def test_words_are_shown_without_what_is_private() -> None:
    words = [
        "docker",
        "-e",
        "A=b",
        "-e",
        "PASS",
        "--path=x",
        "--level",
        "3",
        "A=",
        "-H",
        "X: y",
        "npx",
        "--key",
        "-v",
        "a://u@h/?q=1",
    ]
    assert (
        " ".join(public_words(words))
        == "docker -e A=*** -e PASS --path=x --level 3 A= -H X: *** npx --key -v a://***@h/?q=***"
    )


def test_addresses_in_a_text_are_shown_without_what_is_private() -> None:
    assert (
        redact("401 for https://h/?k=v (see http://u:p@x)")
        == "401 for https://h/?k=*** (see http://x)"
    )


def test_each_value_has_a_variable_of_its_own() -> None:
    to = References("s", expands=True)
    assert [to.hide(each, "--key") for each in ("a", "b", "a", "${S_KEY_3}", "c")] == [
        "${S_KEY}", "${S_KEY_2}", "${S_KEY}", "${S_KEY_3}", "${S_KEY_4}",
    ]  # fmt: skip
    assert [to.hide("x", "API_KEY"), to.as_variable("x", "a-b"), to.hide("", "k")] == [
        "${API_KEY}",
        "${V_a_b}",
        "",
    ]


@given(st.lists(st.text(alphabet="-eH=:/@?#&${}A_a1. ", max_size=12), max_size=4))
def test_any_words_come_back_with_their_variables(words: list[str]) -> None:
    to = References("s", expands=False)
    saved = hidden_words(words, to.hide, to.keep)
    values = dict(to._values)
    assert [expand(each, lambda found: values[found["name"]]) for each in saved] == words


@given(st.text(alphabet="a:/@?#&=[]$ "))
def test_any_address_is_shown_and_comes_back(url: str) -> None:
    public_url(url)
    to = References("s", expands=False)
    assert expand(hidden_url(url, to.hide, to.keep), lambda found: to._values[found["name"]]) == url


def test_requests_of_ours_are_logged_without_what_is_private(caplog) -> None:
    """Httpx2 logs every address."""
    log = logging.getLogger("httpx2")
    caplog.set_level(logging.INFO)
    redact_logs()
    log.info("HTTP Request: %s %s", "POST", "https://h/mcp?api_key=SECRET")
    assert [each.getMessage() for each in caplog.records] == [
        "HTTP Request: POST https://h/mcp?api_key=***",
    ]


def test_addresses_are_looked_for_in_linear_work() -> None:
    """By counting; a search from each letter to the end of the word takes minutes."""
    words = "a" * 1_000_000
    assert (
        redact(f"{words} {words}://ann:secret@a.example/?key=1")
        == f"{words} {words}://a.example/?key=***"
    )
