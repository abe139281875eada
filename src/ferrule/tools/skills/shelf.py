"""`Skills`: the skills of a program, and the tools with which a model uses them.

The names and descriptions of all skills are in the prompt. `read_skill` gives the model the text of
one, and the files that it names. `run_skill_script` runs a script of a skill, and a person is asked
before each run unless a policy says otherwise.

**Pinned.** The digests of all files are taken when the skills are loaded, or read from a lock file.
A file that has another digest when it is read, or that was not there, is one that nobody has
looked at: the call asks a person first.

**What a person allowed is what is used.** A question is about the files as they are then: their
digests are a part of it (`state`), so a decision does not hold for files that have changed since,
and the question is asked again. In the moment between that check and the use, a change is an
error, which tells the model to call again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule.encoding.encode import digest_of
from ferrule.encoding.stored import parse_object
from ferrule.errors import (
    StoreError,
    ToolDefinitionError,
    ToolError,
    check_flag,
    checks_keywords,
    shown,
)
from ferrule.tools.skills.skill import Skill, digest_of_file, find_skills, split_text
from ferrule.tools.tool import Tool
from ferrule.values.calls.context import Context  # noqa: TC001  read as an annotation of a tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

READ_SKILL = "read_skill"
RUN_SCRIPT = "run_skill_script"
_LOCK_VERSION = 1
_MOST_OUTPUT = 100_000
_POLL_S = 0.05
_KEPT_VARIABLES = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TEMP", "TMP", "TZ", "USER",
    "SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA",
)  # fmt: skip
"""The variables of the environment that a script gets: keys of providers are not among them."""
_INTERPRETERS = {".py": [sys.executable], ".sh": ["bash"], ".js": ["node"], ".mjs": ["node"]}


class Skills:
    """Agent Skills for a program: `Toolbox(tools, skills=Skills("skills"))`.

    See docs/how-to/tools/skills.md.

    Args:
        places: Folders with skills: each is a skill, or has skills as its folders.
        lock: A file that has the digests of all files, so that a change is noticed across
            processes. It is written if it does not exist; `pin()` writes it again. None: the
            digests are those of when the skills are loaded.
        skip_invalid: Whether to leave out invalid skills, with a warning, instead of raising.
        scripts: Whether the model may ask to run scripts.
        cwd: The folder in which scripts run. None: the current one.
        env: Variables of the environment of scripts, besides `PATH` and the like.
        timeout_s: How long a script may run.

    Raises:
        ToolDefinitionError: A skill is invalid, two have one name, or there is none.

    """

    @checks_keywords
    def __init__(
        self,
        *places: str | Path,
        lock: str | Path | None = None,
        skip_invalid: bool = False,
        scripts: bool = True,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        check_flag("skip_invalid", skip_invalid)
        check_flag("scripts", scripts)
        if not places:
            raise ToolDefinitionError("`Skills` takes the folders of skills: Skills('skills').")
        self.by_name: dict[str, Skill] = {}
        """The skills, by name."""
        for place in places:
            for skill in find_skills(place, skip_invalid=skip_invalid):
                namesake = self.by_name.setdefault(skill.name, skill)
                if namesake is not skill:
                    raise ToolDefinitionError(
                        f"There are two skills named {skill.name!r}: in {str(namesake.folder)!r} "
                        f"and in {str(skill.folder)!r}."
                    )
        if not self.by_name:
            raise ToolDefinitionError(f"All skills in {shown(places)} are invalid.")
        self.lock = None if lock is None else Path(lock)
        self.scripts = scripts
        self.cwd = cwd
        self.env = dict(env or {})
        self.timeout_s = timeout_s
        self._looked: dict[tuple[str, str], str | None] = {}
        """The digest that a file had when a call that uses it was last judged, by skill and file.

        None for one that was not there.
        """
        self._pinned = {name: skill.files for name, skill in self.by_name.items()}
        if self.lock is not None:
            if self.lock.exists():
                self._pinned = _read_lock(self.lock)
            else:
                self.pin()

    @classmethod
    def of(cls, skills: Any) -> Skills:
        """Skills unchanged; a folder, or a list of folders, as skills."""
        if isinstance(skills, Skills):
            return skills
        if isinstance(skills, str | Path):
            return cls(skills)
        if isinstance(skills, list | tuple):
            places = list(cast("Iterable[Any]", skills))
            if places and all(isinstance(place, str | Path) for place in places):
                return cls(*places)
        found = shown(cast("Any", skills))
        raise ToolDefinitionError(
            f"`skills` is a folder, a list of folders, or `Skills(...)`; found {found}."
        )

    def pin(self) -> None:
        """Take the files as they are now: none of them counts as changed.

        Writes the lock file, if there is one.
        """
        current = [find_skills(skill.folder)[0] for skill in self.by_name.values()]
        self._pinned = {skill.name: skill.files for skill in current}
        if self.lock is not None:
            content = {"ferrule_skills": _LOCK_VERSION, "skills": self._pinned}
            partial = self.lock.with_name(f"{self.lock.name}.{os.getpid()}")
            partial.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
            partial.replace(self.lock)  # whole or not at all

    def changed(self) -> list[str]:
        """The files that differ from the pinned ones, or are new, as `skill/file`."""
        return [
            f"{skill.name}/{file}"
            for skill in self.by_name.values()
            for file in skill.files
            if self._is_changed(skill, file)
        ]

    @property
    def instructions(self) -> str:
        """The part of the prompt that lists the skills."""
        lines = [
            (
                "There are skills: texts that say how certain tasks are done well. Before a task "
                f"that one of them is for, read it with `{READ_SKILL}`, and follow it:"
            )
        ]
        for skill in self.by_name.values():
            description = " ".join(skill.description.split())
            lines.append(f"- `{skill.name}`: {description}")
        return "\n".join(lines)

    @cached_property
    def tools(self) -> list[Tool]:
        """The tools with which a model uses the skills."""
        names = {"skill": Literal[tuple(self.by_name)]}
        reader = Tool(
            SkillReader(self),
            READ_SKILL,
            "Read the text of a skill, or another file of it.",
            arg_types=names,
            arg_desc={
                "skill": "The name of the skill.",
                "file": "The path of a file in the skill; by default, its text.",
            },
            require_confirmation=self._must_ask,
            effect="read",
        )
        if not self.scripts or not any(skill.scripts for skill in self.by_name.values()):
            return [reader]
        runner = Tool(
            ScriptRunner(self),
            RUN_SCRIPT,
            "Run a script of a skill, and read what it prints. A person is asked first.",
            arg_types=names,
            arg_desc={
                "skill": "The name of the skill.",
                "script": "The path of the script in the skill: `scripts/...`.",
                "arguments": "Its arguments, as on a command line.",
            },
            require_confirmation=True,
            effect="once",
        )
        return [reader, runner]

    # -- what has changed

    def _must_ask(self, args: dict[str, Any]) -> bool:
        skill = self.by_name.get(str(args.get("skill")))
        if skill is None:
            return False
        file = _file_of(skill, args.get("file"))
        digest = _digest_or_none(skill, file)
        if digest is None:  # the call says so to the model
            return False
        self._looked[skill.name, _plain(file)] = digest
        return digest != self._pin_of(skill, file)

    def look(self, skill_name: str, file: str) -> str:
        """The digest of this file and of all files known, as they are now.

        `check_as_judged` compares with them.
        """
        digests: dict[str, str | None] = {}
        for skill in self.by_name.values():
            files = {*skill.files}
            if skill.name == skill_name:  # the file may be new
                files.add(_plain(_file_of(skill, file)))
            for name in sorted(files):
                digest = _digest_or_none(skill, name)
                self._looked[skill.name, name] = digest
                digests[f"{skill.name}/{name}"] = digest
        return digest_of(digests)

    def check_as_judged(self, skill: Skill, file: str, digest: str | None) -> None:
        """Raise `ToolError` if a file has changed since the call that uses it was judged.

        No person was asked about it as it is now.
        """
        looked = self._looked.pop((skill.name, _plain(file)), digest)
        if looked != digest and digest != self._pin_of(skill, file):
            raise ToolError(
                f"The file {file!r} of the skill {skill.name!r} has just changed. Call again: "
                "a person is then asked."
            )

    def _pin_of(self, skill: Skill, file: str) -> str | None:
        return self._pinned.get(skill.name, {}).get(_plain(file))

    def _is_changed(self, skill: Skill, file: str) -> bool:
        digest = _digest_or_none(skill, file)
        return digest is None or digest != self._pin_of(skill, file)

    def note_of_changes(self, files: Callable[[Skill], Iterable[str]]) -> str:
        """Text for a person who is asked: which of these files have changed; empty if none."""
        changed = [
            f"{skill.name}/{file}"
            for skill in self.by_name.values()
            for file in files(skill)
            if self._is_changed(skill, file)
        ]
        if not changed:
            return ""
        return f"Changed since the skills were pinned: {', '.join(changed)}.\n"


class SkillReader:
    """The function of `read_skill`."""

    def __init__(self, skills: Skills) -> None:
        self.skills = skills

    @property
    def note(self) -> str:
        """What a person reads who is asked about a call."""
        return self.skills.note_of_changes(lambda skill: skill.files)

    def state(self, args: Mapping[str, Any]) -> str:
        """What a decision about a call is also about."""
        return self.skills.look(str(args.get("skill")), str(args.get("file") or ""))

    def __call__(self, skill: str, file: str = "") -> str:
        """Read a file of a skill."""
        found = self.skills.by_name[skill]
        name = _file_of(found, file)
        content = found.read(name)
        self.skills.check_as_judged(found, name, sha256(content).hexdigest())
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise ToolError(
                f"The file {name!r} of the skill {skill!r} is not text. It can be used by scripts."
            ) from None
        if _plain(name) != found.main_file:
            return text
        try:
            _, text = split_text(text, name)
        except ToolDefinitionError as error:  # it was changed, and a person let it be read
            raise ToolError(str(error)) from None
        others = [other for other in found.files if other != found.main_file]
        if others:
            text += f"\n\nOther files of this skill: {', '.join(others)}"
        return text


class ScriptRunner:
    """The function of `run_skill_script`."""

    def __init__(self, skills: Skills) -> None:
        self.skills = skills

    @property
    def note(self) -> str:
        """What a person reads who is asked about a call."""
        return (
            "A script can do whatever this program may do on this machine. "
            f"{self.skills.note_of_changes(lambda skill: skill.scripts)}".rstrip()
            + "\n"
        )

    def state(self, args: Mapping[str, Any]) -> str:
        """What a decision about a call is also about: a script may use the other files."""
        return self.skills.look(str(args.get("skill")), str(args.get("script") or ""))

    def __call__(
        self, ctx: Context[Any], skill: str, script: str, arguments: list[str] | None = None
    ) -> str:
        """Run a script of a skill."""
        found = self.skills.by_name[skill]
        path = found.path_of(script)
        if not path.is_relative_to(found.folder / "scripts"):
            listed = ", ".join(found.scripts) or "none"
            raise ToolError(
                f"Scripts are in the folder `scripts` of a skill; found {script!r}. Those of "
                f"{skill!r} are: {listed}."
            )
        for file in sorted({*found.files, _plain(script)}):
            self.skills.check_as_judged(found, file, _digest_or_none(found, file))
        command = [*_command(path), *(arguments or ())]
        return self._run(command, ctx)

    def _run(self, command: list[str], ctx: Context[Any]) -> str:
        env = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        try:
            process = subprocess.Popen(
                command,
                cwd=self.skills.cwd,
                env={**env, **self.skills.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=os.name == "posix",
            )
        except (OSError, ValueError) as error:
            raise ToolError(f"The script could not be started: {error}.") from None
        with process:
            try:
                output = self._output_of(process, ctx)
            finally:
                _end(process)  # also what it started and left
        text = output.decode(errors="replace")
        if len(text) > _MOST_OUTPUT:
            text = f"{text[:_MOST_OUTPUT]}\n... {len(text) - _MOST_OUTPUT} more characters"
        if process.returncode:
            raise ToolError(f"The script ended with the code {process.returncode}:\n{text}")
        return text

    def _output_of(self, process: subprocess.Popen[bytes], ctx: Context[Any]) -> bytes:
        """What a script prints until it ends. Raises `ToolError` if it must be stopped before."""
        ends_at = time.monotonic() + self.skills.timeout_s
        while True:
            try:
                output, _ = process.communicate(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                if ctx.cancelled:
                    raise ToolError("The script was stopped: its run was cancelled.") from None
                if time.monotonic() > ends_at:
                    raise ToolError(
                        f"The script did not end within {self.skills.timeout_s:g} seconds, and "
                        "was stopped."
                    ) from None
            else:
                return output


def skills_prompt(tools: Iterable[Tool]) -> str:
    """What the prompt says of the skills among these tools; empty if there are none."""
    texts = [tool.func.skills.instructions for tool in tools if isinstance(tool.func, SkillReader)]
    return "\n\n".join(texts)


def _digest_or_none(skill: Skill, file: str) -> str | None:
    """The digest of a file as it is now; None if it is not there."""
    try:
        return digest_of_file(skill.path_of(file))
    except (ToolError, OSError):
        return None


def _file_of(skill: Skill, file: Any) -> str:
    return str(file) if file else skill.main_file


def _plain(file: str) -> str:
    """The path as digests have it: `a/b` for `./a//b`."""
    return Path(file.replace("\\", "/")).as_posix()


def _command(path: Path) -> list[str]:
    interpreter = _INTERPRETERS.get(path.suffix.lower())
    if interpreter is not None:
        return [*interpreter, str(path)]
    if os.access(path, os.X_OK):
        return [str(path)]
    raise ToolError(
        f"It is not known how to run {path.name!r}: it is not executable, and does not end in "
        f"{', '.join(_INTERPRETERS)}."
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a script and what it started."""
    if os.name == "posix":
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
    else:
        process.kill()


def _read_lock(path: Path) -> dict[str, dict[str, str]]:
    try:
        content = parse_object(path.read_text(encoding="utf-8"), "a lock file of skills")
    except (OSError, UnicodeDecodeError, StoreError) as error:
        raise ToolDefinitionError(f"The lock file {str(path)!r} cannot be read: {error}") from None
    skills = content.get("skills")
    is_whole = content.get("ferrule_skills") == _LOCK_VERSION and isinstance(skills, dict)
    if not is_whole:
        raise ToolDefinitionError(
            f"{str(path)!r} is not a lock file of skills of this version. Delete it, and it is "
            "written again; then all files count as unchanged."
        )
    return cast("dict[str, dict[str, str]]", skills)
