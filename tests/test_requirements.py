"""REQUIREMENTS.md says which test proves which requirement, and the docstrings of tests name requirements by their codes: both agree.

After renaming tests, `FERRULE_GOLDEN=write python -m pytest tests/test_requirements.py` replaces the names that no longer exist.
"""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent
LIST = TESTS / "REQUIREMENTS.md"
CODE = re.compile(r"\b([ACDEFLMOPQRUVW])(\d{1,3})(?:-\1?(\d{1,3}))?\b")
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)
WITHOUT_A_TEST = ("not built: ", "outside the suite: ")
MOST_NAMED = 2


def codes_in(text: str) -> list[str]:
    """`U1, R2-R4` names U1, R2, R3 and R4."""
    found = CODE.findall(text)
    return [f"{letter}{number}" for letter, first, last in found for number in range(int(first), int(last or first) + 1)]


def docstrings() -> Iterator[tuple[str, str]]:
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{path.stem}::{node.name}", ast.get_docstring(node) or ""


def proofs() -> dict[str, list[str]]:
    """The tests that name each code; those that name few codes in a short docstring first."""
    found: dict[str, list[str]] = defaultdict(list)
    for _, _, test, codes in sorted((len(codes_in(text)), len(text), test, codes_in(text)) for test, text in docstrings()):
        for code in codes:
            found[code].append(test)
    return found


def names_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+::\w+)`", cell)


def refreshed(text: str) -> str:
    """The list with at most two tests that exist in each row."""
    there, proof = {test for test, _ in docstrings()}, proofs()

    def row(match: re.Match[str]) -> str:
        code, words, cell = match.groups()
        kept = [test for test in names_in(cell) if test in there]
        tests = (kept or proof[code])[:MOST_NAMED]
        return f"| {code} | {words} | {', '.join(f'`{test}`' for test in tests) or cell} |"

    return ROW.sub(row, text)


def test_the_list_and_the_tests_agree() -> None:
    """Each row names tests that exist or says why there is none, and each code of a docstring has a row."""
    if os.environ.get("FERRULE_GOLDEN") == "write":
        LIST.write_text(refreshed(LIST.read_text(encoding="utf-8")), encoding="utf-8")
    rows = ROW.findall(LIST.read_text(encoding="utf-8"))
    there = {test for test, _ in docstrings()}
    wrong = [f"{code}: no test and no reason" for code, _, cell in rows if not names_in(cell) and not cell.startswith(WITHOUT_A_TEST)]
    wrong += [f"{code}: `{test}` does not exist" for code, _, cell in rows for test in names_in(cell) if test not in there]
    listed = [code for code, _, _ in rows]
    wrong += [f"{code}: listed twice" for code in set(listed) if listed.count(code) > 1]
    wrong += [f"{code}: named by {tests[0]}, but not listed" for code, tests in proofs().items() if code not in listed]
    assert not wrong, "\n".join(["", *sorted(wrong), "After renaming tests: see the docstring of this file."])


def test_codes_are_found_singly_and_in_ranges() -> None:
    assert codes_in("U1, E65: as R2-R4 and M7-9 say; BM25 and U+200B are none.") == ["U1", "E65", "R2", "R3", "R4", "M7", "M8", "M9"]
