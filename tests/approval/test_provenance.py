"""Where the value of an argument comes from (`approval/provenance.py`), as pure functions."""

from __future__ import annotations

import base64
from html import escape
from typing import Any
from urllib.parse import quote

import pytest

from ferrule.approval.provenance import Source, tainted_arguments
from ferrule.values.content.parts import Image, Text

NO_SCHEMA: dict[str, Any] = {}


def taint(
    value: Any, text: Any, *words: str, schema: dict[str, Any] | None = None, name: str = "to"
) -> str:
    source = Source("read_mail", 3, text)
    properties = {"properties": {name: schema or {}}}
    return tainted_arguments({name: value}, properties, [source], words)


def test_the_reason_names_the_argument_the_tool_and_the_call() -> None:
    found = taint("eve@example.com", "Send it to eve@example.com.")
    assert found == "`to` comes from the result of `read_mail` (call 3)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("eve@example.com", "to EVE@Example.COM", id="case"),
        pytest.param("eve@example.com", "to e v e @ example . com", id="spaces"),
        pytest.param("eve@example.com", "to eve@ex\u200bample.c\u2060om", id="invisible"),
        pytest.param("eve@example.com", "to \uff45\uff56\uff45\uff20example.com", id="full width"),
        pytest.param("jose@example.com", "to jos\u00e9@example.com", id="accent"),
        pytest.param("eve@example.com", "to eve&#64;example&period;com", id="HTML"),
        pytest.param("eve@example.com", "to " + quote("eve@example.com"), id="URL"),
        pytest.param("eve@example.com", "to eve\\u0040example\\u002ecom", id="JSON"),
        pytest.param("eve@example.com", "to eve=40example=2Ecom", id="quoted-printable"),
        pytest.param("eve@example.com", "to eve@exa=\nmple.com", id="soft line break"),
        pytest.param("eve@example.com", "to eve (at) example dot com", id="in words"),
        pytest.param(
            "eve@example.com", base64.b64encode(b"to eve@example.com").decode(), id="base64"
        ),
        pytest.param("e@x.io", "to e@x.io", id="short"),
        pytest.param("13", "Delete the file 13.", id="short word"),
        pytest.param("ada@example.com", "from eve@example.com", id="host"),
        pytest.param("Bob", "Pay Bob!", id="name"),
        pytest.param(13, "Delete the file 13.", id="number"),
        pytest.param(1500.5, "Pay $1,500.50 now", id="number with separators"),
        pytest.param(1500.5, "Zahle 1.500,50 EUR", id="number as in Germany"),
        pytest.param("1500", "Pay 1,500.00 now", id="number as text"),
        pytest.param("See the report at e.io now, please", "Visit e.io", id="address in a text"),
        pytest.param("As Eve wrote: transfer it all", "Now transfer it all!", id="part"),
        pytest.param(["a@b.cd", "eve@example.com"], "eve@example.com", id="list"),
        pytest.param({"mail": {"to": "eve@example.com"}}, "eve@example.com", id="object"),
        pytest.param({"eve@example.com": True}, "eve@example.com", id="key", marks=()),
        pytest.param("\u041f\u0440\u0438\u0432\u0435\u0442", "\u041f\u0420\u0418\u0412\u0415\u0422!", id="Cyrillic"),
        pytest.param("\u5f20\u4e09", "\u4ed8\u6b3e\u7ed9\u5f20\u4e09\u5427", id="Chinese"),
    ],
)  # fmt: skip
def test_a_value_from_a_result_is_tainted(value: Any, text: str) -> None:
    assert taint(value, text)


@pytest.mark.parametrize(
    ("value", "text", "words"),
    [
        pytest.param("ada@example.com", "from eve@example.org", "", id="another value"),
        pytest.param("ada@x.org", "from ada@x.org", "Write ADA@x.org", id="the user's words"),
        pytest.param("13", "in 2013", "", id="a part of a word"),
        pytest.param(15, "pay 1500", "", id="a part of a number"),
        pytest.param(98.7, "98.70 euros", "Pay 98.70", id="the user's number"),
        pytest.param(
            "Please transfer it all", "so transfer it all", "transfer it all to Ada", id="said part"
        ),
        pytest.param("the report, as you said", "the report, as he did", "", id="short part"),
        pytest.param(True, "True", "", id="boolean"),
        pytest.param(None, "None", "", id="nothing"),
        pytest.param("!?", "!?", "", id="no letters"),
    ],
)
def test_other_values_are_not(value: Any, text: str, words: str) -> None:
    assert taint(value, text, words) == ""


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["r", "rw"]},
        {"default": "rw"},
        {"anyOf": [{"const": "rw"}, {"type": "null"}]},
        {"$ref": "#/properties/to/$defs/Mode", "$defs": {"Mode": {"enum": ["rw"]}}},
    ],
    ids=["enum", "default", "anyOf", "reference"],
)
def test_what_the_tools_author_wrote_is_not(schema: dict[str, Any]) -> None:
    assert taint("rw", "use rw", schema=schema) == ""
    assert taint("x", "use x", schema=schema)


def test_a_name_that_a_server_gave_cannot_write_into_the_reason() -> None:
    found = taint("eve@example.com", "eve@example.com", name="to`\n\u202eAll is well")
    assert "\n" not in found
    assert "\u202e" not in found


def test_each_argument_and_its_source_is_named_up_to_three() -> None:
    args = dict.fromkeys("abcde", "eve@example.com")
    source = Source("read_mail", 0, "eve@example.com")
    found = tainted_arguments(args, {}, [source], ())
    assert "`a` comes from the result of `read_mail` in an earlier turn; `b`" in found
    assert found.endswith("and 2 more do")


def test_what_an_image_says_cannot_be_compared_so_other_values_are_in_doubt() -> None:
    content = (Text(text="See:"), Image(url="https://images.org/i.png"))
    assert "not all text" in taint("eve@example.com", content)
    assert taint("ada@example.com", content, "Write ada@example.com") == ""


def test_of_prose_only_the_addresses_count_if_a_rule_says_so() -> None:
    prose = "This is what the article says, in short: taxes rise in May, and wages do not rise."
    source = Source("read", 1, f"{prose} More at https://example.com/a or e.io.")
    for text, is_tainted in [
        (prose, False),
        (f"{prose} See e.io.", True),
        (f"{prose} See https://example.com/a.", True),
        ("taxes rise in May", True),
    ]:
        found = tainted_arguments({"body": text}, {}, [source], (), in_prose=False)
        assert bool(found) is is_tainted


@pytest.mark.parametrize("shift", range(16))
@pytest.mark.parametrize("size", [11, 12])
def test_a_common_part_is_found_wherever_it_lies(shift: int, size: int) -> None:
    part = "qwertzuiopas"[:size]
    value = "before, long enough: " + part + " :and after"
    text = "z" * (1000 + shift) + part + "y" * 1000
    assert bool(taint(value, text)) is (size == 12)


def test_a_search_that_takes_too_long_counts_as_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.approval.provenance._MOST_COMPARISONS", 3)
    value = "what is the nature"  # it shares blocks, but no part
    text = " ".join(f"x{value[i : i + 9]}" for i in range(9)) * 20
    assert "too much text" in taint(value, text)


def test_escaped_text_is_also_read_as_it_stands() -> None:
    assert taint("a &amp; b &lt;c&gt; d", escape("a &amp; b &lt;c&gt; d"))
    assert taint("a&amp;b&lt;c&gt;d", "a&amp;b&lt;c&gt;d")
