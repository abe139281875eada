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

import forked
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
import os, runpy, subprocess, sys, traceback, warnings
warnings.simplefilter("error")
from ferrule.testing import block_network

def in_a_fork(command, cwd, check):
    # What an app runs with its own interpreter, without importing everything again.
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 0 or not check, code
        return
    code = 1
    try:
        os.chdir(cwd)
        sys.argv = command[1:]
        runpy.run_path(command[1], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)

if hasattr(os, "fork"):
    subprocess.run = in_a_fork
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as for any script
with block_network():
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.integration
@pytest.mark.parametrize("path", APPS, ids=lambda path: path.stem)
def test_an_app_prints_what_its_record_says(path: Path, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(path.stem, "ferrule"))
    words = ["-c", _ALONE, str(path)]
    if path.stem == "test_agent":  # pytest warns of plugins that are imported before it starts
        run = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, check=False, cwd=tmp_path
        )
    else:
        run = forked.run(*words, cwd=tmp_path)
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
