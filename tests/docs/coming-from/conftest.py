"""Programs of other libraries, as their pages show them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run_before(tmp_path: Path) -> Callable[[str], None]:
    """Run the block "before" of a page, in a process of its own."""

    def run(page: str) -> None:
        [before] = re.findall(
            r"^```py\n(.*?)^```$",
            (ROOT / page).read_text(encoding="utf-8"),
            re.MULTILINE | re.DOTALL,
        )
        program = tmp_path / "before.py"
        program.write_text(before, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(program)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return run
