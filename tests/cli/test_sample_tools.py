"""The tools that come along: exact, and harmless whatever a model writes."""

from __future__ import annotations

import ast
from contextlib import suppress
from datetime import date
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Toolbox, ToolRetry
from ferrule.cli import sample_tools as demo_tools
from ferrule.cli.sample_tools import TOOLS, calculate, date_after, days_between, search_documents
from ferrule.errors import ToolArgumentsError


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("(0.1 + 0.2) * 10**20", "30000000000000000000"),
        ("0.1 + 0.2", "0.3"),
        ("2 × 3 ÷ 4 − 1", "0.5"),
        ("2^10", "1024"),
        ("1,234,567 * 2", "2469134"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2**-3", "0.125"),
        ("-1/8", "-0.125"),
        ("1/3", "1/3 (about 0.3333333333)"),
        ("1.5e3", "1500"),
        ("+(1)", "1"),
        ("2**100", "1267650600228229401496703205376"),
        ("10**400 / 3", "1" + "0" * 400 + "/3 (about 3.333333333e+399)"),
    ],
)
def test_arithmetic_is_exact(expression: str, expected: str) -> None:
    """Exact arithmetic, never `eval`."""
    assert calculate(expression) == expected


BAD = [
    "", " ", "x", "1 +", "1 2", "__import__('os').system('true')", "().__class__", "'a' * 9", "True", "1j", "lambda: 1", "1 if 1 else 2", "1or 2",
    "1/0", "0**-1", "5 % 0", "2**0.5", "9**9**9", "10**99999", "1e999999999", "1e-999999", "(" * 300 + "1" + ")" * 300, "1" * 501, "[1]", "{1}",
    "a\x00b", "\ud800", "1_", "e", "0777", "1\n+", "f(1)", "1.e.e", "((", "_",
]  # fmt: skip


@pytest.mark.parametrize("expression", BAD, ids=range(len(BAD)))
def test_what_is_no_arithmetic_is_told_to_the_model(expression: str) -> None:
    with pytest.raises(ToolRetry):
        calculate(expression)


@given(st.text(alphabet="0123456789.+-*/%() eE_,", max_size=60))
def test_no_expression_does_anything_but_compute_or_say_why_not(expression: str) -> None:
    with suppress(ToolRetry):
        assert calculate(expression)


@given(
    st.fractions(max_denominator=10**6),
    st.sampled_from("+-*"),
    st.fractions(max_denominator=10**6),
)
def test_results_are_those_of_fractions(left: Fraction, sign: str, right: Fraction) -> None:
    written = (
        f"({left.numerator}/{left.denominator}) {sign} ({right.numerator}/{right.denominator})"
    )
    expected = {"+": left + right, "-": left - right, "*": left * right}[sign]
    assert Fraction(calculate(written).partition(" ")[0]) == expected


def test_nothing_is_ever_evaluated() -> None:
    called = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(Path(demo_tools.__file__).read_text()))
        if isinstance(node, ast.Call)
    }
    assert not called & {"eval", "exec", "compile"}


def test_dates() -> None:
    assert days_between(date(2024, 2, 28), date(2026, 3, 3)) == 734
    assert days_between(date(2026, 3, 3), date(2024, 2, 28)) == -734
    assert date_after(date(2024, 2, 28), 2) == "2024-03-01, a Friday"
    assert date_after(date(2024, 3, 1), -1) == "2024-02-29, a Thursday"


@pytest.mark.parametrize("days", [10**7, -(10**7), 10**30])
def test_a_date_out_of_range_is_told_to_the_model(days: int) -> None:
    with pytest.raises(ToolRetry, match="years 1 to 9999"):
        date_after(date(2024, 1, 1), days)


def test_the_search_finds_the_passage_that_fits() -> None:
    found = search_documents("AskPerson")
    assert "decision" in found
    assert "(docs/" in found
    assert "exit codes" in search_documents("exit codes")


@pytest.mark.parametrize("query", ["", "  ", "...", "the of a", "\ud800"])
def test_a_query_without_words_is_told_to_the_model(query: str) -> None:
    with pytest.raises(ToolRetry):
        search_documents(query)


def test_a_quoted_passage_has_no_marks_of_bold_text():
    assert search_documents("trajectory").startswith("A step is one round of an agent")


def test_what_no_document_mentions_is_said_so() -> None:
    assert search_documents("zyzzyva") == "No passage of ferrule's documents mentions zyzzyva."


def test_without_a_checkout_the_package_s_own_docstrings_are_searched(
    monkeypatch,
    tmp_path,
) -> None:
    """An installed package has no docs folder."""
    package = tmp_path / "site" / "ferrule"
    (package / "cli").mkdir(parents=True)
    (package / "act.py").write_text('"""`AskPerson` asks a person for decisions."""\n')
    monkeypatch.setattr(demo_tools, "__file__", str(package / "cli" / "sample_tools.py"))
    demo_tools._passages.cache_clear()
    try:
        assert (
            search_documents("AskPerson")
            == "`AskPerson` asks a person for decisions. (ferrule/act.py)"
        )
    finally:
        demo_tools._passages.cache_clear()


def test_all_are_good_tools() -> None:
    """Described and typed."""
    toolbox = Toolbox(TOOLS)
    assert toolbox.names == ("calculate", "days_between", "date_after", "search_documents")
    for tool in toolbox:
        assert tool.desc
        assert all(schema.get("description") for schema in tool.parameters["properties"].values())
    assert toolbox["days_between"](start="2024-02-28", end="2026-03-03") == 734
    with pytest.raises(ToolArgumentsError):
        toolbox["days_between"](start="yesterday", end="2026-03-03")
