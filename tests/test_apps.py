"""The programs in `examples/apps/`: each runs without arguments, keys and a network, and prints
what its record in `golden/apps/` says.

`FERRULE_GOLDEN=write python -m pytest tests/test_apps.py` writes the records.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
APPS = sorted((ROOT / "examples" / "apps").glob("*.py"))
RECORDS = ROOT / "tests" / "golden" / "apps"
LONGEST = 200
NEEDS = {
    "browser_tool": "starlette",
    "chat": "starlette",
    "deploy_agent": "starlette",
    "research": "mcp",
    "service": "starlette",
    "service_client": "starlette",
}

# The program runs as `__main__`, with the door to the network closed and warnings as errors.
_ALONE = """
import os, runpy, sys, warnings
warnings.simplefilter("error")
from ferrule.testing import block_network
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as for any script
with block_network():
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.integration
@pytest.mark.parametrize("path", APPS, ids=lambda path: path.stem)
def test_an_app_prints_what_its_record_says(path: Path, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(path.stem, "ferrule"))
    run = subprocess.run(
        [sys.executable, "-c", _ALONE, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    record = RECORDS / f"{path.stem}.txt"
    if os.environ.get("FERRULE_GOLDEN") == "write":
        record.write_text(run.stdout, encoding="utf-8")
    assert run.stdout == record.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", APPS, ids=lambda path: path.stem)
def test_an_app_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LONGEST
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("path", APPS, ids=lambda path: path.stem)
def test_the_index_of_the_docs_links_an_app(path: Path) -> None:
    assert f"(../examples/apps/{path.name})" in (ROOT / "docs" / "index.md").read_text(
        encoding="utf-8",
    )
