"""The claims of docs/reference/errors.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ferrule

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
ROWS = {name: (parents, code) for name, parents, code in re.findall(r"^\| `(\w+)`(?: \(([^)]*)\))? \| `(\w+)` \|", PAGE, re.MULTILINE)}
ERRORS = {
    name: each for name in ferrule.__all__ if isinstance(each := getattr(ferrule, name), type) and issubclass(each, ferrule.FerruleError)
}


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/reference/errors.md")


def test_every_link_of_the_page_leads_somewhere(links) -> None:
    assert links("docs/reference/errors.md") == []


def test_the_page_lists_every_public_error_once_with_its_code() -> None:
    assert {name: code for name, (_, code) in ROWS.items()} == {name: each.code for name, each in ERRORS.items()}
    assert [name for name in ERRORS if len(re.findall(rf"^\| `{name}`", PAGE, re.MULTILINE)) != 1] == []


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_the_page_names_the_built_in_classes_of_an_error_and_its_nearer_bases(name: str) -> None:
    groups = {"FerruleError", "ToolError", "BoundaryError", "LMError", "MCPError", "RunError"}
    kind = ERRORS[name]
    named = set(re.findall(r"`(\w+)`", ROWS[name][0]))
    built_in = {each.__name__ for each in kind.__bases__ if each.__module__ == "builtins"} - {"Exception"}
    nearer = {each.__name__ for each in kind.__bases__} & ERRORS.keys() - groups
    assert built_in | nearer <= named <= {each.__name__ for each in kind.__mro__}


def test_the_errors_that_the_page_calls_retryable_are() -> None:
    assert {name for name, each in ERRORS.items() if each.is_retryable is True} == {"UnavailableError", "RateLimitError"}
    assert "for `UnavailableError` and `RateLimitError`" in PAGE


def test_a_class_that_the_page_calls_never_raised_is_raised_nowhere() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (Path(ferrule.__file__).parent).rglob("*.py"))
    bases = re.findall(r"^\| `(\w+)`.*never directly", PAGE, re.MULTILINE)
    assert {name: re.findall(rf"raise {name}\(", source) for name in bases} == {name: [] for name in bases}
