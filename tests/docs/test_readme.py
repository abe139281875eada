"""The claims of README.md and CHANGELOG.md."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import ferrule

ROOT = Path(__file__).parents[2]
VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.needle
def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("README.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("README.md") == []


def test_the_page_opens_with_the_two_commands_and_one_whole_program() -> None:
    """Style: the README shows one whole program before any feature list."""
    places = [
        README.index(found)
        for found in (
            "make demo",
            "make test",
            "```python\n",
            "\n## ",
        )
    ]
    assert places == sorted(places)


def test_the_page_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert [extra for extra in extras if f"pip install '.[{extra}]'" not in README] == []


def test_the_page_is_short() -> None:
    assert len(README.splitlines()) < 90


def sections() -> dict[str, str]:
    """The sections of the changelog by their heading: `[1.2.3] - 2026-12-31`, or `[Unreleased]`."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## (\S[^\n]*)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


def test_each_section_of_the_changelog_has_its_form_and_is_short() -> None:
    form = rf"\[Unreleased\]|\[{VERSION}\] - 20\d\d-\d\d-\d\d"
    assert [heading for heading in sections() if not re.fullmatch(form, heading)] == []
    assert {heading: text for heading, text in sections().items() if text.count("\n") >= 80} == {}


def test_the_changelog_says_what_the_first_release_does_and_what_it_never_was() -> None:
    """Nobody had an earlier version, so it changes, fixes and renames nothing."""
    [first] = [text for heading, text in sections().items() if heading.startswith("[0.1.0]")]
    assert re.findall(r"^### (.*)", first, re.MULTILINE) == ["Added"]
    assert "before:" not in first.lower()
    assert "no longer" not in first


def test_the_changelog_has_the_present_version() -> None:
    assert [heading for heading in sections() if heading.startswith(f"[{ferrule.__version__}] ")]
