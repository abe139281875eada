"""The papers on safety name the tests behind their promises, and each of these tests exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "docs/concepts/safety.md",
    "docs/how-to/running/web.md",
    "docs/how-to/tools/approval.md",
    "docs/how-to/tools/policies.md",
)
"""Each has a list of tests at its end."""
PAPERS = ("SECURITY.md", *PAGES)
_FILE = re.compile(r"`(tests/[\w/-]+\.py)`")
_TEST = re.compile(r"`(?:(tests/[\w/-]+\.py)::)?(test_\w+)`")


@cache
def named_in(path: Path) -> frozenset[str]:
    """The names of the tests of a file."""
    text = path.read_text(encoding="utf-8")
    return frozenset(re.findall(r"^ *(?:async )?def (test_\w+)", text, re.MULTILINE))


@cache
def all_tests() -> frozenset[str]:
    paths = (ROOT / "tests").rglob("test_*.py")
    return frozenset().union(*map(named_in, paths))


def missing_tests(text: str) -> list[str]:
    """The tests that a text names and that do not exist."""
    missing = [file for file in _FILE.findall(text) if not (ROOT / file).is_file()]
    for file, name in _TEST.findall(text):
        path = ROOT / file
        if not file:
            exists = name in all_tests()
        else:
            exists = path.is_file() and name in named_in(path)
        if not exists:
            missing.append(f"{file}::{name}")
    return missing


def is_tested(text: str) -> bool:
    return bool(_FILE.search(text) or _TEST.search(text))


def split_page(text: str) -> tuple[str, dict[str, str]]:
    """A page without its code and its last section, and that section's items by their subject."""
    page, _, shown_by = text.partition("\n## Shown by\n")
    items = re.split(r"^- ", shown_by, flags=re.MULTILINE)[1:]
    by_subject: dict[str, str] = {}
    for item in items:
        subject, _, tests = item.partition(":")
        by_subject[subject.strip("[]`").partition("]")[0]] = tests
    return re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), by_subject


def parts_of(page: str) -> set[str]:
    """What a page promises, by part: its sections, and the list items with a subject in bold."""
    sections = re.findall(r"^#+ (.*)", page, re.MULTILINE)
    items = re.findall(r"^(?:-|\d\.) \*\*(.*?)\*\*", page, re.MULTILINE)
    subjects = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", item) for item in items]
    return {subject.strip("`:. ") for subject in (*sections, *subjects)}


@pytest.mark.parametrize("paper", PAPERS)
def test_each_test_that_a_paper_names_exists(paper: str) -> None:
    text = (ROOT / paper).read_text(encoding="utf-8")
    assert is_tested(text)
    assert missing_tests(text) == []


@pytest.mark.parametrize("page", PAGES)
def test_each_part_of_a_page_has_its_tests_at_the_end(page: str) -> None:
    """A part that promises nothing, such as a limit, says so."""
    text, shown_by = split_page((ROOT / page).read_text(encoding="utf-8"))
    assert parts_of(text) == set(shown_by)
    untested = {part for part, tests in shown_by.items() if not is_tested(tests)}
    assert {part for part in untested if "no promise" not in shown_by[part]} == set()


def test_each_promise_of_the_security_paper_names_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    promised = text.partition("## What is promised")[2].partition("\n## ")[0]
    promises = re.split(r"^- ", promised, flags=re.MULTILINE)[1:]
    assert len(promises) > 10
    assert [promise[:80] for promise in promises if not is_tested(promise)] == []


def test_a_name_that_is_wrong_is_seen() -> None:
    here = "tests/docs/test_promises.py"
    for right in (f"`{here}`", f"`{here}::test_a_name_that_is_wrong_is_seen`"):
        assert missing_tests(right) == []
    for wrong in (f"`{here}::test_x`", "`test_no_such_test`", "`tests/no_such_file.py`"):
        assert len(missing_tests(wrong)) == 1


def test_a_part_without_tests_is_seen() -> None:
    text, shown_by = split_page("# One\n\n- **Two**: x\n\n## Shown by\n\n- [One](#one): `test_x`\n")
    assert parts_of(text) - set(shown_by) == {"Two"}
