"""Whole programs of DSPy, with `Evaluate`: each runs here after its imports are changed.

The programs are those of DSPy's tutorials in our own words. They also run as they are under
DSPy 3.3.1.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_runs_with_its_imports_changed(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    source = re.sub(
        r"^import dspy$", "import ferrule.compat.dspy as dspy", source, flags=re.MULTILINE
    )
    source = re.sub(r"^from dspy\b", "from ferrule.compat.dspy", source, flags=re.MULTILINE)
    exec(compile(source, path, "exec"), {"__name__": "__main__"})


def test_there_are_four_programs() -> None:
    assert [path.stem for path in PROGRAMS] == ["agent", "hops", "intents", "people"]
