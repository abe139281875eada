"""The papers of the repository: what they name exists, and the workflow runs what a person runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import ferrule

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TASKS = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))
SCRIPTS = {path.name for path in (ROOT / "scripts").iterdir()}


@pytest.mark.parametrize(
    "paper",
    ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "README.md"],
)
def test_what_a_paper_names_exists(paper: str, links, execute) -> None:
    text = (ROOT / paper).read_text(encoding="utf-8")
    assert links(paper) == []
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= TASKS
    assert set(re.findall(r"`scripts/([a-z-]+\.sh)`", text)) <= SCRIPTS
    named = re.findall(r"`((?:src|tests|docs|conformance|requirements|site)/[\w./-]+)`", text)
    assert [place for place in named if "NAME" not in place and not (ROOT / place).exists()] == []
    execute(paper)


@pytest.mark.parametrize(
    "file",
    [".github/workflows/check.yml", ".github/workflows/release.yml", ".pre-commit-config.yaml"],
)
def test_a_workflow_and_the_hooks_run_what_a_person_runs(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    tasks = re.findall(r"(?:run|entry): make (?:PYTHON=python )?([a-z-]+)$", text, re.MULTILINE)
    scripts = re.findall(r"(?:run|entry): scripts/(\S+)$", text, re.MULTILINE)
    assert tasks
    assert set(tasks) <= TASKS
    assert set(scripts) <= SCRIPTS


def test_the_makefile_has_the_daily_tasks_and_each_script_a_line_of_help() -> None:
    assert len(TASKS) <= 13
    for script in (ROOT / "scripts").iterdir():
        assert re.match(r"#!/usr/bin/env bash\n# .+\.\n", script.read_text(encoding="utf-8")), (
            script
        )


def test_the_workflow_checks_every_python_that_the_project_promises() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    workflow = (ROOT / ".github" / "workflows" / "check.yml").read_text(encoding="utf-8")
    assert (
        re.findall(r'"(3\.\d+)"', workflow.partition("python: [")[2].partition("]")[0]) == promised
    )
    assert {"macos-latest", "windows-latest"} <= set(re.findall(r"[a-z]+-latest", workflow))


def test_an_action_is_pinned_to_one_commit_whose_version_a_comment_names() -> None:
    workflows = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")
    )
    actions = set(re.findall(r"uses: (.*)", workflows))
    assert actions
    pins = [
        re.fullmatch(r"([\w-]+/[\w-]+)@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in actions
    ]
    assert all(pins), actions
    assert len({pin.group(1) for pin in pins if pin}) == len(actions), "one version of each"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_release_takes_its_notes_from_the_changelog_or_says_what_to_do(tmp_path: Path) -> None:
    """The rest of `make release` builds and installs: it is run by hand, and by the workflow."""

    def notes(changelog: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "CHANGELOG.md").write_text(changelog, encoding="utf-8")
        command = ["bash", "scripts/release-notes.sh"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "release-notes.sh", tmp_path / "scripts")
    (tmp_path / "src" / "ferrule").mkdir(parents=True)
    (tmp_path / "src" / "ferrule" / "__init__.py").write_text(
        '__version__ = "1.2.3"\n',
        encoding="utf-8",
    )
    for changelog in (
        "## [Unreleased]\n- New.\n",
        "## [1.2.3]\n\n## [1.2.2]\n- Old.\n",
        "## [1.2.30]\n- Other.\n",
    ):
        refused = notes(changelog)
        assert refused.returncode != 0
        assert (
            "the section [1.2.3] of CHANGELOG.md, and there is none, or it is empty"
            in refused.stderr
        )
        assert "Name its first section '[1.2.3] - 2" in refused.stderr
    assert (
        notes(
            "## [Unreleased]\n\n## [1.2.3] - 2026-12-31\n\n- New.\n\n## [1.2.2]\n- Old.\n",
        ).returncode
        == 0
    )
    assert (tmp_path / "build" / "NOTES.md").read_text(encoding="utf-8").split() == ["-", "New."]


def test_the_version_has_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]
    assert "version" not in project
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", ferrule.__version__)


@pytest.mark.parametrize(
    "dot",
    sorted((ROOT / "docs" / "images").glob("*.dot")),
    ids=lambda path: path.stem,
)
def test_a_picture_was_drawn_from_its_text(dot: Path) -> None:
    """`scripts/pictures.sh` draws it; every label of the text is in the picture."""
    picture = (
        dot.with_suffix(".svg")
        .read_text(encoding="utf-8")
        .replace("&#160;", " ")
        .replace("&#39;", "'")
        .replace("&quot;", '"')
        .replace("&gt;", ">")
    )
    labels = re.findall(r'label="((?:[^"\\]|\\.)*)"', dot.read_text(encoding="utf-8"))
    lines = [line.replace('\\"', '"').strip() for label in labels for line in label.split("\\n")]
    drawn = " ".join(picture.split())
    assert [line for line in lines if " ".join(line.split()) not in drawn] == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda path: path.stem
)
def test_a_decision_says_its_status(page: Path) -> None:
    third = page.read_text(encoding="utf-8").splitlines()[2]
    assert re.match(r"Status: (accepted|superseded by \[\d{4}\])", third)
