"""Every example runs as it stands, alone, without a network, and proves what it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest

import ferrule

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
APPS = sorted((ROOT / "examples" / "apps").glob("*.py"))
CODE = [
    *PAGES,
    *EXAMPLES,
    *APPS,
    *sorted((ROOT / "conformance").rglob("*.py")),
    *sorted((ROOT / "benchmarks").glob("*.py")),
]
LONGEST = 80
NEEDS = {
    "13_mcp": "mcp",
    "14_constrained_calls": "llguidance",
    "15_code_mode": "pydantic_monty",
}
SUBMODULES = ("acts", "cases", "errors", "events", "local", "mcp_bridge", "schemas", "testing")
PUBLIC = {"ferrule", "ferrule.testing", *(f"ferrule.{name}" for name in ferrule.__all__)}

# The example runs as `__main__`, with the door to the network closed and warnings as errors.
_ALONE = """
import runpy, sys, warnings
warnings.simplefilter("error")
from ferrule.testing import block_network
with block_network():
    runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_there_are_fifteen_numbered_without_a_gap() -> None:
    assert [path.name[:2] for path in EXAMPLES] == [f"{number:02}" for number in range(1, 16)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_something(path: Path) -> None:
    """Examples are tests."""
    pytest.importorskip(NEEDS.get(path.stem, "ferrule"))
    run = forked.run("-c", _ALONE, path, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
    assert run.stderr == ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_ends_with_its_proof(path: Path) -> None:
    """Each under 80 lines; the last statement asserts."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LONGEST
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    last = tree.body[-1]
    assert isinstance(last, ast.Assert) or "assert_done" in ast.unparse(last)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_pages_show_the_example_word_for_word(path: Path) -> None:
    """An example is the text the docs show."""
    marker = f"<!-- examples/{path.name} -->"
    block = f"{marker}\n```python\n{path.read_text(encoding='utf-8').rstrip()}\n```\n"
    showing = [page for page in PAGES if marker in page.read_text(encoding="utf-8")]
    assert showing, f"no page shows {path.name}"
    assert [page.name for page in showing if block not in page.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("path", CODE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documented_code_uses_public_names_only(path: Path) -> None:
    """Names of `ferrule`, of its public submodules and of the facades."""
    text = path.read_text(encoding="utf-8")
    blocks = (
        re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if path.suffix == ".md"
        else [text]
    )
    assert [
        name for block in blocks for name in names_of_ferrule(block) if not is_public(name)
    ] == []


@pytest.mark.parametrize(
    "code",
    [
        "from ferrule.runs.run import Run",
        "import ferrule.runs.run",
        "from ferrule import values",
        "import ferrule\nferrule.runs.run",
    ],
)
def test_a_private_name_is_found(code: str) -> None:
    assert [name for name in names_of_ferrule(code) if not is_public(name)]


def names_of_ferrule(code: str) -> Iterator[str]:
    """What code imports from ferrule, or reads from the imported package, by its dotted name."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names):
                found = [f"{module}.{alias.name}" for alias in names]
            case ast.Attribute(value=ast.Name(id="ferrule"), attr=name):
                found = [f"ferrule.{name}"]
            case _:
                continue
        yield from (name for name in found if name.split(".")[0] == "ferrule")


def is_public(name: str) -> bool:
    return (
        name in PUBLIC
        or name == "ferrule.compat"
        or name.startswith("ferrule.compat.")
        or any(name.startswith(f"ferrule.{submodule}.") for submodule in SUBMODULES)
        or name.endswith("__")
    )
