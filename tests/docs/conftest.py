"""Pages are proved by executing them: every Python block, in order, in one namespace, as a reader
would type them.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import asdict

import ferrule
from ferrule import settings

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

Execute = Callable[[str], dict[str, Any]]


@pytest.fixture
def execute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Execute]:
    """Execute a page's Python blocks in a folder of its own; a fault points to the page's own line.

    What the page configures, and the databases that it opens, end with the test.
    """
    monkeypatch.chdir(tmp_path)
    before = settings.current()
    name = "ferrule_page"
    modules: list[ModuleType] = []

    def run(page: str) -> dict[str, Any]:
        text = (ROOT / page).read_text(encoding="utf-8")
        module = ModuleType(
            name,
        )  # a real module: dataclasses and type hints look for the names of theirs
        monkeypatch.setitem(sys.modules, name, module)
        modules.append(module)
        for block in _BLOCK.finditer(text):
            lines_before = text.count("\n", 0, block.start(1))
            code = compile("\n" * lines_before + block[1], page, "exec", dont_inherit=True)
            exec(code, vars(module))
        return vars(module)

    yield run
    ferrule.configure(**asdict(before))
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, sqlite3.Connection):
                value.close()  # else, from Python 3.13 on, a later test would get a ResourceWarning


@pytest.fixture
def links() -> Callable[[str], list[str]]:
    """The links of a page that lead to no file."""

    def broken(page: str) -> list[str]:
        path = ROOT / page
        prose = _CODE.sub("", path.read_text(encoding="utf-8"))
        found = re.findall(r"\]\(([^)#]+)[^)]*\)", prose)
        return [link for link in found if "://" not in link and not (path.parent / link).exists()]

    return broken


_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Check that a page which was executed printed its blocks of text, in order, and nothing else."""

    def check(page: str) -> None:
        blocks = _OUTPUT.findall((ROOT / page).read_text(encoding="utf-8"))
        assert capsys.readouterr().out == "".join(blocks)

    return check
