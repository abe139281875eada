"""`ferrule migrate check` (`cli/commands/migrate.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ferrule.cli.commands.app import run_command
from ferrule.cli.migrate.names import names_of


def checked(capsys: Any, path: Path, *options: str) -> tuple[int, str]:
    code = run_command(["migrate", "check", str(path), *options])
    return code, capsys.readouterr().out


def test_missing_names_come_first_with_what_to_use_instead(tmp_path: Path, capsys: Any) -> None:
    program = "import dspy\nclass A(dspy.Module): pass\ndspy.KNNFewShot\ndspy.Parallel\n"
    (tmp_path / "a.py").write_text(program, encoding="utf-8")
    code, text = checked(capsys, tmp_path)
    names = names_of("dspy").by_name
    assert code == 1
    assert text.splitlines()[:7] == [
        "dspy: 3 names in 1 files: 1 work, 1 differ, 1 are missing.",
        "Missing:",
        "  KNNFewShot (a.py:3)",
        f"    instead: {names['KNNFewShot'].core}. {names['KNNFewShot'].note}",
        "Differ:",
        "  Parallel (a.py:4)",
        f"    {names['Parallel'].note}",
    ]
    assert "Work: Module" in text


def test_a_program_without_missing_names_ends_with_0(tmp_path: Path, capsys: Any) -> None:
    works = [name.name for name in names_of("udspy").by_name.values() if name.status == "works"]
    name = next(name for name in works if "." not in name)
    (tmp_path / "a.py").write_text(f"from udspy import {name}\n", encoding="utf-8")
    code, text = checked(capsys, tmp_path)
    assert (code, text.splitlines()[0]) == (
        0,
        "udspy: 1 names in 1 files: 1 work, 0 differ, 0 are missing.",
    )


def test_the_document_has_every_place(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.py").write_text("import dspy\ndspy.LM\ndspy.LM\n", encoding="utf-8")
    (tmp_path / "b.py").write_text("import dspy\n(", encoding="utf-8")
    code, text = checked(capsys, tmp_path, "--json")
    document = json.loads(text)
    assert code == 1, "a file that could not be read may use anything"
    [name] = document["names"]
    assert (name["name"], name["status"]) == ("LM", names_of("dspy").by_name["LM"].status)
    assert name["places"] == [{"file": "a.py", "line": line} for line in (2, 3)]
    assert [*document["unread"]] == ["b.py"]
    assert document["differences"]["dspy"]


def test_a_folder_without_such_programs_says_so(tmp_path: Path, capsys: Any) -> None:
    assert checked(capsys, tmp_path) == (0, "No file imports dspy or udspy.\n")


def test_a_path_with_nothing_is_an_error_of_the_command_line(tmp_path: Path, capsys: Any) -> None:
    code, text = checked(capsys, tmp_path / "none")
    assert (code, text) == (2, "")
