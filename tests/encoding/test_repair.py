"""JSON as models write it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.encoding.loose import LooseReader
from ferrule.encoding.repair import (
    LOSSY,
    kind_of,
    objects_in,
    read_arguments,
    read_json,
    strict_json,
)
from ferrule.errors import ToolCallError
from ferrule.values.calls.call import ToolCall

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters())
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


@given(JSON)
def test_any_json_value_survives_unrepaired(value: Any) -> None:
    """Strict JSON first; E40: lone surrogates, big integers."""
    for ascii_only in (True, False):
        assert read_json(json.dumps(value, ensure_ascii=ascii_only)) == (value, ())


SLIPS: dict[str, tuple[str, Any]] = {
    "code_fence": ('```json\n{"a": [1, "x"]}\n```', {"a": [1, "x"]}),
    "trailing_comma": ('{"a": [1, 2,], "b": {},}', {"a": [1, 2], "b": {}}),
    "single_quotes": ("{'a': 'b \"c\"'}", {"a": 'b "c"'}),
    "unquoted_keys": ('{a: 1, $b: {c_d: "x"}}', {"a": 1, "$b": {"c_d": "x"}}),
    "python_literals": (
        '{"a": True, "b": None, "c": False, "d": (1, 2)}',
        {"a": True, "b": None, "c": False, "d": [1, 2]},
    ),
    "doubly_encoded": ('{\\"a\\": \\"b\\"}', {"a": "b"}),
    "extra_closing_brace": ('{"a": {"b": 1}}}', {"a": {"b": 1}}),
    "comments": ('{"a": 1, // one\n "b": 2 /* two */}  # end', {"a": 1, "b": 2}),
    "control_characters": ('{"a": "x\ny\tz"}', {"a": "x\ny\tz"}),
    "escapes": ('{"a\\_b": "it\\\'s"}', {"a_b": "it's"}),
    "numbers": ('{"a": .5, "b": +1, "c": 1_000, "d": 2.}', {"a": 0.5, "b": 1, "c": 1000, "d": 2.0}),
}


@pytest.mark.parametrize(
    ("repair", "text", "value"),
    [(name, *slip) for name, slip in SLIPS.items()],
    ids=SLIPS,
)
def test_each_slip_is_mended_under_its_name(repair: str, text: str, value: Any) -> None:
    """Named repairs."""
    assert read_json(text) == (value, (repair,))


def test_repairs_are_told_in_order() -> None:
    assert read_json("```\n{'a': True,}\n```") == (
        {"a": True},
        ("code_fence", "single_quotes", "python_literals", "trailing_comma"),
    )


@pytest.mark.parametrize(
    "text",
    ["", " ", "junk", '{"a": 1} {"b": 2}', '{"a": 1}]', "[1, 2", '{"a": "b', "{'a': 'it's'}", '{"a" 1}', '{"a": b}', '{"a": 01}', "(1)", '{"a": 1,,}',
     "{,}", '{"a": "\\u12"}', "undefined", "1 2", '```\n{"a": 1}\n``` and ```\n{"b": 2}\n```', '{"a": 1} trailing words', "[" * 10_000, "\x00",
     '{"a": 1}}{', "{'a': 1}\n{'a': 1}", "-", "+", ".", "1__0", "{1: 2}", "{", "}", "/* never ends"],
)  # fmt: skip
def test_what_is_cut_or_ambiguous_is_an_error(text: str) -> None:
    """Two objects, or junk, are errors, never guesses."""
    with pytest.raises(ValueError):
        read_json(text)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (r"\d+\.\w", r"\d+.\w"),
        (r"C:\Users\me", r"C:\Users\me"),
        (r"\unit", r"\unit"),
        (r"\xyz", r"\xyz"),
        (r"\frac{a}", "\frac{a}"),
    ],
)
def test_a_backslash_before_a_letter_that_json_does_not_escape_is_text(
    written: str, value: str
) -> None:
    """DSPy's parser of JSON reads it in this way, too. `\\f` is an escape of JSON."""
    assert read_json(f'{{"a": "{written}"}}')[0] == {"a": value}
    call = ToolCall.read({"name": "f", "arguments": f'{{"a": "{written}", "b": "\\d"}}'})
    assert (call.args["a"], call.repairs) == (value, ("escapes",))


@given(OBJECTS)
def test_repairs_give_back_what_was_damaged(value: dict[str, Any]) -> None:
    """Each repair applied to a valid dump."""
    text = json.dumps(value)
    assert read_json(f"```json\n{text}\n```")[0] == value
    assert read_json(f"// note\n{text}")[0] == value
    assert read_arguments(json.dumps(text))[0] == value
    if value:
        assert read_json(f"{text[:-1]},}}")[0] == value
        assert read_json(f"{text}}}") == (value, ("extra_closing_brace",))


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
        max_size=4,
    ),
)
def test_python_literals_are_read(value: dict[str, Any]) -> None:
    """Single quotes, Python literals; what Python escapes in its own way is refused rather than
    guessed.
    """
    written = repr(value)
    if "\\x" in written or "\\U" in written:
        return
    assert read_json(written)[0] == value


@given(st.text())
def test_junk_raises_only_the_tagged_error(text: str) -> None:
    try:
        value, repairs = read_arguments(text, tool="f")
    except ToolCallError as error:
        assert error.code == "invalid_tool_call_arguments"
        assert error.raw == text
        assert "`f`" in str(error)
    else:
        assert isinstance(value, dict)
        assert all(isinstance(each, str) for each in repairs)


@given(st.text(alphabet="{}[]\"':,\\/*#`abu0123456789eE.+-\n TrueNonfalsd"))
def test_no_text_of_json_marks_breaks_the_reader(text: str) -> None:
    """Junk raises only `ValueError`."""
    objects_in(text)
    try:
        read_json(text)
    except ValueError as error:
        assert not isinstance(error, RecursionError)


@pytest.mark.parametrize("text", ["", "  \n", "null", "None", '""', "{}"])
def test_no_arguments_are_an_empty_object(text: str) -> None:
    assert read_arguments(text)[0] == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [("[1]", "an array"), ("3", "a number"), ('"x y"', "not valid JSON"), ("true", "a boolean")],
)
def test_arguments_that_are_no_object_are_a_tagged_error_that_names_the_tool(
    text: str,
    found: str,
) -> None:
    with pytest.raises(ToolCallError, match=found) as raised:
        read_arguments(text, tool="search")
    assert "`search`" in str(raised.value)
    assert raised.value.tool == "search"


def test_doubly_encoded_arguments_are_opened_and_told() -> None:
    assert read_arguments('"{\\"a\\": 1}"') == ({"a": 1}, ("doubly_encoded",))


def test_a_string_that_holds_json_stays_a_string() -> None:
    """Only where an object is wanted is a string opened."""
    assert read_json('"{}"') == ("{}", ())


def test_big_numbers_lose_nothing_and_the_last_of_equal_keys_counts() -> None:
    assert read_json('{"a": 123456789012345678901234567890}')[0] == {
        "a": 123456789012345678901234567890,
    }
    assert read_json("{'a': 1, 'a': 2}")[0] == {"a": 2}


def test_deep_nesting_is_read_or_refused_but_never_crashes() -> None:
    assert strict_json("[" * 400 + "]" * 400)
    for text in ("[" * 100_000 + "]" * 100_000, "{'a':" * 1000 + "1" + "}" * 1000):
        with pytest.raises(ValueError, match="deep"):
            read_json(text)


def test_objects_are_found_in_prose() -> None:
    """JSON inside prose; those inside another are not listed."""
    found = objects_in('Sure {not this}: {"a": {"b": 1}} or {\'c\': 2}.')
    assert [value for value, _ in found] == [{"a": {"b": 1}}, {"c": 2}]
    assert all(repairs[0] == "prose" for _, repairs in found)


def test_so_many_braces_that_open_nothing_end_the_search() -> None:
    assert objects_in("{ " * 10_000 + '{"a": 1}') == []


@pytest.mark.parametrize(
    "text",
    [
        "{a:" * 199 + "[" + "1," * 2_000,
        '{"a":' * 4_000,
        "[{a:" * 90 + "1," * 2_000,
        '{"a": [{"b": "' * 500,
    ],
)
def test_objects_that_are_never_closed_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
    text: str,
) -> None:
    """A model that repeats itself writes them. Each began the search anew: 20 kB took a minute."""
    read, values = LooseReader.value, 0

    def counted(self: LooseReader, at: int, depth: int) -> tuple[Any, int]:
        nonlocal values
        values += 1
        return read(self, at, depth)

    monkeypatch.setattr(LooseReader, "value", counted)
    assert objects_in(text) == []
    assert values < len(text)


def test_a_complete_object_is_found_in_one_that_is_cut_off() -> None:
    assert [value for value, _ in objects_in('{"a": {"b": 1}, "c": {"d": {"e": 2}, "f')] == [
        {"b": 1},
        {"e": 2},
    ]


def test_a_comment_that_is_never_closed_is_none() -> None:
    assert objects_in('{/* {"a": 1}') == [({"a": 1}, ("prose",))]
    assert read_json('{/* one */ "a": /* two */ 1}') == ({"a": 1}, ("comments",))


def test_half_of_a_character_stays_as_it_was_written() -> None:
    assert read_json('{"a": "\\ud83d\\u0041",}') == ({"a": "\ud83dA"}, ("trailing_comma",))
    assert read_json('{"a": "\\ud83d\\ude00",}') == ({"a": "\U0001f600"}, ("trailing_comma",))


def test_a_calls_text_arguments_are_repaired_and_the_repairs_recorded() -> None:
    """Malformed arguments keep their text and give a fault, never `{}`."""
    call = ToolCall.read({"name": "f", "arguments": "{'a': 1,}"})
    assert (call.args, call.repairs) == ({"a": 1}, ("single_quotes", "trailing_comma"))
    bad = ToolCall.read({"name": "f", "arguments": "{'a': "})
    assert bad.fault is not None
    assert (bad.fault.code, bad.fault.raw) == ("invalid_tool_call_arguments", "{'a': ")
    assert "`f`" in bad.fault.reason


def test_what_drops_text_is_known_as_lossy() -> None:
    """Lossy repairs ask first."""
    assert {"comments", "extra_closing_brace", "prose"} == LOSSY


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        (True, "a boolean"),
        (1, "a number"),
        ("", "a string"),
        ([], "an array"),
        ({}, "an object"),
    ],
)
def test_kinds_have_jsons_names(value: Any, kind: str) -> None:
    assert kind_of(value) == kind


@pytest.mark.parametrize("layer", ["```\n", "\ufeff", "`", "```json\n{"])
def test_very_many_fences_inside_each_other_are_a_value_error(layer):
    """A model that repeats itself."""
    with pytest.raises(ValueError, match=r"."):
        read_json(layer * 20_000)
    with pytest.raises(ValueError, match=r"."):
        read_json(layer * 2_000 + "1" + "\n```" * 2_000)


@pytest.mark.parametrize(
    "text",
    [
        "`" * 1_000_000,
        "```json\n" + "```" * 300_000 + "x",
        "```\n" * 250_000 + "x",
        "``` " * 250_000,
    ],
)
def test_a_megabyte_of_backticks_is_looked_at_once(text: str) -> None:
    """Each run of them was tried as the end of a fence."""
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("`[1]`", [1]),
        ("`json [1]`", [1]),
        ("```json [1]```", [1]),
        ("````\n[1]\n````", [1]),
        (' ```js\r\n"a```"\r\n  ``` ', "a```"),
    ],
)
def test_every_form_of_a_fence_is_taken_off(text: str, value: object) -> None:
    assert read_json(text) == (value, ("code_fence",))
