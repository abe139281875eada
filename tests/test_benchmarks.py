"""Every benchmark runs, and imports only public names of ferrule, so that no move inside the
package breaks one.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from postgres_server import PostgresServer

import ferrule

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.rglob("*.py"))
FIGURES = {
    "step of 2, sync": None,
    "step of 2, async": None,
    "first run": None,
    "HTTP, 2 agents": None,
    "memory an agent": None,
    "a tool with its schema": None,
    "8 calls at once, async": None,
    "share that repeats": None,
    "loads, added where they come": None,
    "step kept in sqlite": None,
    "a journal entry": None,
    "step with an observer": None,
    "calls recovered": None,
    "a call of an MCP tool": "mcp",
    "turns with five MCP servers": "mcp",
    "files of ferrule": None,
    "limits, as ratios": None,
}
"""What the output shows, and the package that it needs."""


def tiny(**environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "benchmarks/run.py", "--tiny"],
        capture_output=True,
        text=True,
        check=False,
        cwd=BENCHMARKS.parent,
        env=os.environ | environment,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.long
def test_all_benchmarks_run() -> None:
    """With tiny counts; a library that is not installed is named and left out."""
    printed = tiny(PEERS="udspy")
    for figure, package in FIGURES.items():
        assert (figure in printed) is (package is None or find_spec(package) is not None), figure
    assert ("udspy is not installed" in printed) is (find_spec("udspy") is None)


LEANEST_PEER = 55_272
"""The characters of the prompts that langgraph sends in the run of 20 steps."""


def test_the_prompts_of_a_run_are_about_as_short_as_those_of_the_leanest_peer() -> None:
    """A server counts the characters of every request, in the benchmark's run of 20 steps."""
    run = subprocess.run(
        [sys.executable, "benchmarks/peer.py", "ours", "make"],
        input=json.dumps({"figure": "tokens", "form": "native", "turns": 20}),
        capture_output=True,
        text=True,
        check=False,
        cwd=BENCHMARKS.parent,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["requests"] == 21
    assert found["characters"] <= 1.05 * LEANEST_PEER


def test_groups_are_picked_by_name_and_a_corpus_of_outputs_is_read(tmp_path: Path) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
    right = {
        "model": "made up",
        "raw": '{"name": "add", "arguments": {"a": 1}}',
        "tools": [tool],
        "expected": [{"add": {"a": [1]}}],
    }
    wrong = {**right, "raw": "add nothing"}
    (tmp_path / "outputs.jsonl").write_text(
        "\n".join(map(json.dumps, [right, wrong])),
        encoding="utf-8",
    )
    printed = tiny(ONLY="quality", PEERS="none", FERRULE_CORPUS=str(tmp_path))
    assert "1 of 2" in printed
    assert "step of" not in printed


def test_a_group_that_there_is_not_is_refused() -> None:
    run = subprocess.run(
        [sys.executable, "benchmarks/run.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=BENCHMARKS.parent,
        env=os.environ | {"ONLY": "stepz"},
    )
    assert run.returncode == 1
    assert "no group is called stepz; the groups are steps, first" in run.stderr


def test_the_picture_shows_each_library_with_its_ratio(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from report import Table, picture

    table = Table()
    table.add(
        "step of 100, sync",
        "us",
        {"floor": [4.0, 5.0], "ferrule": [30.0, 40.0], "other <x>": [600.0, 480.0]},
        {"absent": "failed: no"},
    )
    assert [(row.library, row.value, row.to_ours) for row in table.rows] == [
        ("floor", 4.0, pytest.approx((4 / 30 + 5 / 40) / 2)),
        ("ferrule", 30.0, None),
        ("other <x>", 480.0, 16.0),
        ("absent", None, None),
    ]
    drawn = picture(table, "today")
    assert "other &lt;x&gt;" in drawn
    assert "480 (16.0 x)" in drawn
    assert "absent" not in drawn
    assert table.print_limits() == []
    assert "holds" in capsys.readouterr().out


def test_the_readme_says_what_was_measured_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from report import Table, summary

    table = Table()
    for figure, unit in (
        ("step of 100, sync", "us"),
        ("HTTP, 200 agents", "us a request"),
        ("import", "ms"),
    ):
        table.add(
            figure,
            unit,
            {"floor": [4.0], "ferrule": [30.0], "other": [480.0]},
            {} if unit == "ms" else {"failing": "failed: no"},
        )
    table.add("step of 10, sync", "us", {"ferrule": [30.0], "elsewhere": [480.0]})
    assert summary(table, "a machine").splitlines()[3:] == [
        "| CPU of | ferrule | other |",
        "|---|---|---|",
        "| a step of a run of 100 steps, scripted model | 30 us | 16 x |",
        "| one model request over HTTP, with 200 agents at once | 30 us | 16 x |",
        "| the import | 30 ms | 16 x |",
    ]


def test_a_limit_that_is_exceeded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from report import Table

    table = Table()
    table.add("step of 100, sync", "us", {"floor": [1.0], "ferrule": [50.0]})
    assert table.print_limits() == ["a step, native, 100 steps: times the floor"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(BENCHMARKS).as_posix())
def test_a_benchmark_is_one_of_all(path: Path) -> None:
    others = [each.read_text(encoding="utf-8") for each in SCRIPTS if each != path]
    named = (
        f'"{path.name}"',
        f'"{path.stem}"',
        f"from {path.stem} import",
        f"peers.{path.stem} import",
        f"services.{path.stem}",
    )
    root = BENCHMARKS.parent
    commands = [root / "Makefile", *(root / "scripts").iterdir()]
    is_command = any(
        f"benchmarks/{path.name}" in command.read_text(encoding="utf-8") for command in commands
    )
    assert (
        is_command
        or path.name == "__init__.py"
        or any(name in text for text in others for name in named)
    )


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(BENCHMARKS).as_posix())
def test_a_benchmark_imports_public_names_only(path: Path) -> None:
    assert list(_private(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "snippet",
    [
        "from ferrule.runs.store.stored_run import Kept",
        "from ferrule import runs",
        "import ferrule.runs.store.stored_run",
        "def f():\n    from ferrule.runs import kept",
        'PROGRAM = "from ferrule.runs.store.stored_run import Kept"',
        'PROGRAM = """\nimport ferrule.runs.store.stored_run\n"""',
    ],
)
def test_an_import_of_a_private_module_is_seen(snippet: str) -> None:
    assert list(_private(snippet))


PUBLIC = {
    "ferrule.acts",
    "ferrule.errors",
    "ferrule.events",
    "ferrule.local",
    "ferrule.mcp_bridge",
    "ferrule.schemas",
    "ferrule.testing",
}


def _private(text: str) -> Iterator[str]:
    """Imports from ferrule that are not public, also in the programs that a script holds as
    strings.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (
                each.name
                for each in node.names
                if each.name.startswith("ferrule.") and each.name not in PUBLIC
            )
        elif isinstance(node, ast.ImportFrom) and node.module == "ferrule":
            yield from (each.name for each in node.names if each.name not in ferrule.__all__)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ferrule."):
            yield from [node.module] if node.module not in PUBLIC else []
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "import " in node.value
        ):
            try:
                yield from _private(node.value)
            except SyntaxError:
                continue  # prose


@pytest.mark.long
def test_the_benchmark_of_postgres_runs(postgres: PostgresServer) -> None:
    """With tiny counts."""
    assert {"append / raw INSERT (<= 1.5)", "run, Postgres / SQLite (<= 2)"} < json.loads(
        printed("postgres.py"),
    ).keys()


@pytest.mark.long
def test_the_benchmark_of_workers_compares_tickets_with_a_loop_made_by_hand(
    postgres: PostgresServer,
) -> None:
    """With tiny counts."""
    pytest.importorskip("dbos", reason="needs ferrule[dbos]")
    assert re.search(r" x \(>= 0\.55\)\nload: ", printed("workers.py", "--only", "tickets"))


def test_code_saves_a_chain_of_ten_most_requests_and_tokens() -> None:
    pytest.importorskip("pydantic_monty", reason="needs ferrule[code]")
    _, _, requests, tokens, _, _ = printed("code_mode.py").replace(",", "").split("|")
    native, code = map(int, requests.split("/"))
    assert native >= 4 * code
    native, code = map(int, tokens.split("/"))
    assert native >= 5 * code


def printed(script: str, *told: str) -> str:
    run = subprocess.run(
        [sys.executable, f"benchmarks/{script}", "--tiny", *told], capture_output=True, text=True, check=False, cwd=BENCHMARKS.parent,
        env=os.environ | {"PYTHONPATH": "tests"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout
