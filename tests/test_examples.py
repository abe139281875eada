"""Every example runs as it stands, alone, without a network, and proves what it says."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONGEST = 60

# The example runs as `__main__`, with the door to the network closed and warnings as errors.
_ALONE = """
import runpy, sys, warnings
warnings.simplefilter("error")
from ferrule.testing import block_network
with block_network():
    runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_there_are_thirteen_numbered_without_a_gap() -> None:
    """Ours."""
    assert [path.name[:2] for path in EXAMPLES] == [f"{number:02}" for number in range(1, 14)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_something(path: Path) -> None:
    """Style: examples are tests."""
    run = subprocess.run([sys.executable, "-c", _ALONE, str(path)], capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
    assert run.stderr == ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_ends_with_its_proof(path: Path) -> None:
    """Style: each under 60 lines; ours: the last statement asserts."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LONGEST
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    last = tree.body[-1]
    assert isinstance(last, ast.Assert) or "assert_done" in ast.unparse(last)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_pages_show_the_example_word_for_word(path: Path) -> None:
    """Style: an example is the text the docs show."""
    marker = f"<!-- examples/{path.name} -->"
    block = f"{marker}\n```python\n{path.read_text(encoding='utf-8').rstrip()}\n```\n"
    showing = [page for page in PAGES if marker in page.read_text(encoding="utf-8")]
    assert showing, f"no page shows {path.name}"
    assert [page.name for page in showing if block not in page.read_text(encoding="utf-8")] == []
