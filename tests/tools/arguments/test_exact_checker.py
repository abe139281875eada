"""Arguments that fit as they are: accepted without the full checker, and as the full checker accepts them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ferrule import Tool, ToolArgumentsError
from ferrule.tools.arguments.checker import Checker


def place(city: str, days: int = 3, ratio: float = 0.5, *, metric: bool = True) -> str:
    """Say the weather."""
    return f"{city} {days} {ratio} {metric}"


GIVEN = [
    {"city": "Oslo"},
    {"metric": False, "ratio": 1.0, "days": 2, "city": "Oslo"},
    {"city": "Oslo", "days": "2"},
    {"city": "Oslo", "ratio": 1},
    {"city": "Oslo", "ratio": float("nan")},
    {"city": "Oslo", "days": True},
    {"city": 5},
    {"city": None},
    {"town": "Oslo"},
    {"city": "Oslo", "more": 1},
    {},
    "Oslo",
    None,
]


@pytest.mark.parametrize("args", GIVEN, ids=repr)
def test_both_checkers_accept_and_refuse_the_same(args):
    tool = Tool(place)
    full = Checker("place", tool._found, tool._checked_by().parameters)

    def outcome(checker):
        try:
            found = checker.prepare(args)
        except ToolArgumentsError as error:
            return str(error)
        return dict(found.named), found.positional, dict(found.shown), found.repairs

    assert outcome(tool) == outcome(full)


def test_only_arguments_that_do_not_fit_import_the_repairs():
    program = """if True:
        import sys
        from ferrule import Tool

        def add(a: int, b: int = 1) -> int:
            return a + b

        tool = Tool(add)
        assert tool(a=1) == 2
        assert "ferrule.tools.arguments.checker" not in sys.modules
        assert tool(a="1", b=2) == 3
        assert "ferrule.tools.arguments.checker" in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
