"""`ferrule skill`: the skill that tells agents which write code how to use ferrule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ferrule.cli.exit_code import ExitCode
from ferrule.cli.screen import say, write_text

skill_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
)
SKILL = Path(__file__).parents[1] / "skills" / "ferrule"
"""The skill in this package: a folder with `SKILL.md`, in the format of agentskills.io."""
_SHARED_FOLDER = Path(".agents") / "skills"
"""The folder that agents share (agentskills.io, "Where to scan"): Codex, Cursor, Copilot, Gemini
CLI, opencode and others read it."""
_CLAUDE = Path(".claude")
"""Claude Code reads only its own folder (November 2026)."""


@skill_app.callback()
def skill() -> None:
    """Teach a coding agent to write programs with ferrule."""
    # Without this function, typer would make `install` the whole command.


@skill_app.command("install")
def install(
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            help="The agent's folder of skills. Default: .agents/skills of this folder, and "
            ".claude/skills where there is a .claude.",
        ),
    ] = None,
) -> int:
    """Write the skill `ferrule` into the folder where a coding agent looks for skills.

    A skill that is there already is brought to this version.
    """
    for folder in _folders(to):
        target = folder / SKILL.name
        if target.exists() and not _is_ours(target):
            say(
                f"{target} was not changed: something else than the skill `ferrule` is there. "
                "Move it away, or name another folder with --to.",
            )
            return ExitCode.FAILED
        for source in sorted(SKILL.rglob("*.md")):
            copy = target / source.relative_to(SKILL)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
        write_text(f"{target}: installed")
    return ExitCode.DONE


def _folders(to: Path | None) -> list[Path]:
    if to is not None:
        return [to]
    if _CLAUDE.is_dir():
        return [_SHARED_FOLDER, _CLAUDE / "skills"]
    return [_SHARED_FOLDER]


def _is_ours(target: Path) -> bool:
    """Whether this folder is the skill, of any version."""
    text = target / "SKILL.md"
    if not text.is_file():
        return False
    return b"\nname: ferrule\n" in text.read_bytes().replace(b"\r\n", b"\n")
