"""`ferrule skill install` (`cli/commands/skill.py`).

What the skill says is tested in tests/docs/test_skill.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.cli.commands.app import run_command
from ferrule.cli.commands.skill import SKILL


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_skill_is_written_where_agents_look_for_it(project: Path) -> None:
    assert run_command(["skill", "install"]) == 0
    assert files_of(project / ".agents" / "skills" / "ferrule") == files_of(SKILL)
    assert not (project / ".claude").exists()


def test_a_folder_of_claude_code_gets_the_skill_as_well(project: Path) -> None:
    (project / ".claude").mkdir()
    assert run_command(["skill", "install"]) == 0
    assert files_of(project / ".claude" / "skills" / "ferrule") == files_of(SKILL)
    assert files_of(project / ".agents" / "skills" / "ferrule") == files_of(SKILL)


def test_another_folder_can_be_named(project: Path) -> None:
    (project / ".claude").mkdir()
    assert run_command(["skill", "install", "--to", "my skills"]) == 0
    assert files_of(project / "my skills" / "ferrule") == files_of(SKILL)
    assert not (project / ".agents").exists()
    assert list((project / ".claude").iterdir()) == []


def test_an_older_version_is_brought_to_this_one(project: Path) -> None:
    target = project / ".agents" / "skills" / "ferrule"
    target.mkdir(parents=True)
    (target / "SKILL.md").write_bytes(
        b"---\r\nname: ferrule\r\ndescription: Old.\r\n---\r\nOld.\r\n"
    )
    (target / "notes.txt").write_text("mine", encoding="utf-8")
    assert run_command(["skill", "install"]) == 0
    assert files_of(target) == {**files_of(SKILL), "notes.txt": b"mine"}


@pytest.mark.parametrize("text", ["---\nname: pencils\ndescription: Others.\n---\n", None])
def test_what_somebody_else_put_there_stays(project: Path, text: str | None, capsys) -> None:
    target = project / ".agents" / "skills" / "ferrule"
    target.mkdir(parents=True)
    if text is not None:
        (target / "SKILL.md").write_text(text, encoding="utf-8")
    before = files_of(project)
    assert run_command(["skill", "install"]) == 1
    assert files_of(project) == before
    assert "--to" in capsys.readouterr().err
