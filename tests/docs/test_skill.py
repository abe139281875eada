"""The skill in the wheel (`src/ferrule/cli/skills`): its format, its code, and what can be written
with it.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from msgspec.structs import asdict

from ferrule import ReAct, Skills, Toolbox, configure, settings
from ferrule.cli.commands.skill import SKILL
from ferrule.testing import ScriptedLM

ROOT = Path(__file__).parents[2]
PAGES = [path.relative_to(ROOT).as_posix() for path in sorted(SKILL.rglob("*.md"))]
TOPICS = ["programs", "tools", "approval", "stores", "tests", "mcp"]
PROGRAMS = sorted((Path(__file__).parent / "skill_programs").glob("*.py"))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page: str, execute) -> None:
    if page.endswith("mcp.md"):
        pytest.importorskip("mcp", reason="the page is about MCP")
    execute(page)


@pytest.mark.parametrize("page", PAGES)
def test_no_link_of_a_page_is_broken(page: str, links) -> None:
    assert links(page) == []


def test_the_skill_has_a_page_for_each_topic_and_names_it() -> None:
    text = (SKILL / "SKILL.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\(references/(\w+)\.md\)", text)) == sorted(TOPICS)
    assert sorted(path.stem for path in (SKILL / "references").iterdir()) == sorted(TOPICS)


def test_the_text_is_as_short_as_the_specification_recommends() -> None:
    """agentskills.io: less than 500 lines for SKILL.md, and references that are read on demand."""
    for page in PAGES:
        assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) < 500


def test_the_reference_library_finds_no_fault_in_the_format() -> None:
    validator = pytest.importorskip("skills_ref.validator", reason="is not among the extras")
    assert validator.validate(SKILL) == []


def test_an_agent_of_ferrule_reads_the_skill_and_its_pages() -> None:
    pytest.importorskip("yaml", reason="skills need PyYAML")
    skills = Skills(SKILL)
    lm = ScriptedLM(
        [
            {"name": "read_skill", "args": {"skill": "ferrule"}},
            {
                "name": "read_skill",
                "args": {"skill": "ferrule", "file": "references/approval.md"},
            },
            {"name": "finish", "args": {"answer": "read"}},
        ]
    )
    prediction = ReAct("task -> answer", Toolbox(skills=skills))(task="Write an agent.", lm=lm)
    assert "How to write, port, test and run agents" in lm.requests[0].messages[0].text
    read = [result.content for step in prediction.trajectory.steps for result in step.results]
    assert read[0].startswith("# Write agents with ferrule")
    assert read[1].startswith("# Approval")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_that_was_written_from_the_skill_alone_runs(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The five programs of docs/coming-from and the support desk; each asserts what the original
    does.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program)])
    # The steps of the desk are processes of their own.
    monkeypatch.setattr(
        subprocess, "run", lambda command, check: forked.run(*command[1:], cwd=tmp_path)
    )
    before = settings.current()
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        configure(**asdict(before))


def test_there_is_a_program_for_each_library_and_the_desk() -> None:
    assert [path.stem for path in PROGRAMS] == [
        "from_dspy",
        "from_langgraph",
        "from_openai_agents",
        "from_pydantic_ai",
        "from_udspy",
        "support_desk",
    ]
