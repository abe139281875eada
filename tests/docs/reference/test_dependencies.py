"""The claims of docs/reference/dependencies.md."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "dependencies.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def named(lines: list[str]) -> set[str]:
    """The packages that requirements name, on the oldest Python, without extras.

    A newer Python may need fewer: some name `typing-extensions` only for older ones.
    """
    environment = {"extra": "", "python_version": "3.11", "python_full_version": "3.11.0"}
    wanted = [Requirement(line) for line in lines]
    return {
        canonicalize_name(need.name)
        for need in wanted
        if need.marker is None or need.marker.evaluate(environment)
    }


def installed() -> dict[str, set[str]]:
    """What a plain installation brings, by package: who needs it."""
    needed_by: dict[str, set[str]] = {}
    to_read = [("ferrule", PROJECT["dependencies"])]
    while to_read:
        reader, lines = to_read.pop()
        for name in named(lines):
            if name not in needed_by:
                to_read.append((name, requires(name) or []))
            needed_by.setdefault(name, set()).add(reader)
    return needed_by


def table(heading: str) -> list[list[str]]:
    lines = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def in_code(text: str) -> set[str]:
    return set(re.findall(r"`([\w-]+)`", text))


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/reference/dependencies.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/reference/dependencies.md") == []


def test_the_table_is_what_a_plain_installation_brings() -> None:
    listed = {name.strip("`") for name, *_ in table("package")}
    assert listed == set(installed())
    assert len(listed) == 14


def test_the_table_says_who_needs_a_package() -> None:
    """Some of them: a package that all need is listed with those that matter."""
    needed_by = installed()
    for name, needers, reason in table("package"):
        known = needed_by.get(name.strip("`"), set())
        said = in_code(needers) | ({"ferrule"} if "ferrule" in needers else set())
        assert said, name
        assert said <= known, (name, known)
        assert reason


def test_the_table_of_extras_names_each_with_its_packages() -> None:
    declared = {
        extra: {canonicalize_name(Requirement(line).name) for line in lines}
        for extra, lines in PROJECT["optional-dependencies"].items()
    }
    listed = {
        extra.strip("`"): in_code(text.rpartition(":")[2]) - {"ferrule"}
        for extra, text in table("extra")
    }
    assert listed == declared
