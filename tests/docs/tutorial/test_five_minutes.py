"""docs/tutorial/five-minutes.md, done as a reader does it, with the embedded model."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.embedded.engine import has_needle

pytest.importorskip("typer", reason="needs the extra: pip install 'ferrule[cli]'")

PAGE = Path(__file__).parents[3] / "docs" / "tutorial" / "five-minutes.md"
BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[\w.]+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@pytest.mark.needle
@pytest.mark.integration
@pytest.mark.skipif(not has_needle(), reason="needs the extra: pip install 'ferrule[embedded]'")
@pytest.mark.skipif(sys.platform == "win32", reason="the commands are for a POSIX shell")
def test_a_reader_gets_what_the_page_says(tmp_path: Path) -> None:
    execute(PAGE, tmp_path)


def execute(page: Path, folder: Path) -> None:
    """Save each file, run each command, and compare each output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "COLUMNS": "200"}
    output = ""
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        match block["kind"], block["note"]:
            case "python", str(name):
                (folder / name).write_text(block["text"], encoding="utf-8")
            case "sh", None:
                run = subprocess.run(
                    ["/bin/sh", "-c", block["text"]],
                    cwd=folder,
                    env=env,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert run.returncode == 0, run.stderr
                output = run.stdout
            case "text", _:
                agrees = doctest.OutputChecker().check_output(
                    block["text"], output, doctest.ELLIPSIS
                )
                assert agrees, output


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/tutorial/five-minutes.md") == []
